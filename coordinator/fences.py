"""What a driver does in a thread for a rollback: raise fences, read the manifest that it goes to.

A fence point is a store or sink that outlives incarnations. Once it has acknowledged incarnation k, durably, it refuses
whatever an older one sends; only then may the first restore order of k leave (RELIABILITY.md rule 2, I23). The object
store's own fence is an object per incarnation: create-only, so that it can be raised and never lowered, and read by whoever
writes into the store from a process that may be a zombie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from coordinator.events import EpochRead, EpochUnreadable
from protocol.digests import fence_key, manifest_key
from protocol.documents import canonical_json, decode_manifest
from protocol.errors import ObjectCorrupt, ObjectMissing, StoreError, UnsupportedVersion
from protocol.ids import Epoch
from protocol.limits import MANIFEST_BYTES_MAX

if TYPE_CHECKING:
    from protocol.ids import ClusterName
    from protocol.ports import ObjectStore


class Fence(Protocol):
    """A store or sink that refuses what is older than the incarnation that it was told last."""

    def raise_to(self, incarnation: int, epoch: int) -> None:
        """Refuse everything older than `incarnation`, durably. Idempotent; never lowers. Blocks.

        Args:
            incarnation: That begins.
            epoch: That it begins from.

        Raises:
            SnapshotError: It is not raised; another attempt may succeed.
        """
        ...


class StoreFence:
    """The object store's own fence."""

    def __init__(self, store: ObjectStore, cluster: ClusterName) -> None:
        self._store = store
        self._cluster = cluster

    def raise_to(self, incarnation: int, epoch: int) -> None:
        """See `Fence`."""
        self._store.put(fence_key(incarnation), fence_document(self._cluster, incarnation))


def fence_document(cluster: str, incarnation: int) -> bytes:
    """What the store's fence object holds: the same for every leader that raises it."""
    return canonical_json({"cluster": cluster, "incarnation": incarnation})


def read_epoch_from_store(epoch: int, manifest: str, store: ObjectStore) -> EpochRead | EpochUnreadable:
    """Read a committed epoch's manifest: who had which agent. Blocks; the answer to `ReadEpoch`."""
    key = manifest_key(Epoch(epoch))
    try:
        document = decode_manifest(store.get(key, size_max=MANIFEST_BYTES_MAX), expected=manifest, name=key)
    except (ObjectMissing, ObjectCorrupt, UnsupportedVersion) as error:
        return EpochUnreadable(epoch=epoch, final=True, cause=str(error))
    except StoreError as error:
        return EpochUnreadable(epoch=epoch, final=False, cause=str(error))
    agents = {agent: member.participant for member in document.members for agent in member.agents}
    return EpochRead(epoch=epoch, agents=agents)
