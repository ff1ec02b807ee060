"""A fork: an epoch of one cluster as the beginning of another, which has its own name, secret and incarnations.

The new cluster's folder in a store gets, in this order: ``format.json``, the packs (the same bytes under the same digests), the
local snapshots (they name the cluster, so they are written anew), the manifest, signed with the new cluster's secret, and last
``fork.json``, which says what it is a fork of. The original is only read. Doing it again with the same arguments writes nothing
and says the same; a fork that was interrupted goes on.

``fork.json`` is what keeps a fork harmless: while it says `dry_run`, participants that use this store do no effect and write to
no sink, and coordinators raise no fence of a sink, which belongs to the original.

What a fork does not take along: input logs (they are the original's; what it has in them and not in the epoch stays there) and
effect ledgers. Finished steps of turns that were running are in the epoch, and answer from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from protocol.digests import digest, manifest_key, pack_key, snapshot_key
from protocol.documents import (
    canonical_json,
    decode_local_snapshot,
    decode_manifest,
    encode_local_snapshot,
    sign_manifest,
    verify_signature,
)
from protocol.errors import ConfigError, ObjectConflict, ObjectCorrupt, ObjectMissing, UnsupportedVersion, printable
from protocol.limits import FORK_BYTES_MAX, MANIFEST_BYTES_MAX, PACK_OBJECT_BYTES_MAX, SNAPSHOT_OBJECT_BYTES_MAX
from protocol.manifest import Count, DigestText, Name, Number, Text
from protocol.ports import PutResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.ids import ClusterName
    from protocol.keys import ClusterKeys
    from protocol.ports import ObjectStore

FORK_KEY: Final = "fork.json"
FORK_FORMAT: Final = 1


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """``fork.json``: what a cluster began as."""

    format: int = FORK_FORMAT
    cluster: Name
    epoch: Number
    """That it begins from."""
    manifest: DigestText
    """Of that epoch, in the fork's own store."""
    incarnation: Number
    """Of that epoch: the fork's own are higher."""
    session: Count
    """Highest that the epoch names: the fork's own are higher."""
    members: Count
    started_at: Count
    """Wall clock of the epoch, ns."""
    origin_cluster: Name
    origin_manifest: DigestText
    dry_run: bool = True
    """No effect is done, and nothing is written to a sink."""
    signature: Text = ""
    """Keyed BLAKE3 with the fork's secret over the canonical bytes with this field empty."""


class ForkReport(NamedTuple):
    """What was done."""

    fork: Fork
    copied: int
    """Objects that were written."""
    present: int
    """Objects that were there already, with the right bytes."""
    bytes: int
    """That were written."""


def read_fork(store: ObjectStore, keys: ClusterKeys) -> Fork | None:
    """What the cluster in this store is a fork of; None: of nothing. Blocks.

    Raises:
        ObjectCorrupt: It is there and not what it must be: then nobody may take the cluster for one that does effects.
        StoreError: The store failed.
    """
    try:
        data = store.get(FORK_KEY, size_max=FORK_BYTES_MAX)
    except ObjectMissing:
        return None
    try:
        fork = msgspec.json.decode(data, type=Fork)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ObjectCorrupt("get", FORK_KEY, f"not what it must be: {printable(error)}") from None
    if fork.format != FORK_FORMAT:
        raise ObjectCorrupt("get", FORK_KEY, f"has format {fork.format}; this build reads {FORK_FORMAT}")
    if not keys.verify_manifest(_signed_bytes(fork), fork.signature):
        raise ObjectCorrupt("get", FORK_KEY, "its signature is wrong: it was changed, or is of another secret")
    return fork


def make_fork(
    source: ObjectStore,
    epoch: int,
    source_keys: ClusterKeys | None,
    target: ObjectStore,
    cluster: ClusterName,
    keys: ClusterKeys,
    *,
    dry_run: bool = True,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> ForkReport:
    """Make an epoch of one cluster the beginning of another. Blocks; asks no coordinator.

    Args:
        source: Store of the original; only read.
        epoch: Committed.
        source_keys: To check its signature; None: it is not checked.
        target: Store of the fork (its format is there already), which holds nothing yet, or this very fork.
        cluster: Name of the fork.
        keys: Of the fork.
        dry_run: As in `Fork`.
        progress: Called with objects done and objects in all.

    Raises:
        ConfigError: The target is the original, or holds another cluster, fork or epoch.
        ObjectMissing: There is no such epoch, or it lacks an object.
        ObjectCorrupt: An object of it is damaged, or its signature is wrong.
        UnsupportedVersion: A later build wrote it.
        StoreError: A store failed.
    """
    key = manifest_key(epoch)
    data = source.get(key, size_max=MANIFEST_BYTES_MAX)
    manifest = decode_manifest(data, name=key)
    if manifest.epoch != epoch:
        raise ObjectCorrupt("get", key, f"it is the manifest of epoch {manifest.epoch}")
    if source_keys is not None and not verify_signature(data, manifest, source_keys):
        raise ObjectCorrupt("get", key, "its signature is wrong: it was changed, or is of another secret")
    if manifest.cluster == cluster:
        raise ConfigError("--cluster", f"{cluster} is the original's own name; a fork needs another one")
    _demand_empty(target, epoch)

    tally = _Tally(target, of=len(manifest.packs) + len(manifest.members) + 2, progress=progress)
    for pack in manifest.packs:
        where = pack_key(pack)
        tally.put(where, _verified(source, where, pack, PACK_OBJECT_BYTES_MAX))
    members = []
    for member in manifest.members:
        where = snapshot_key(member.snapshot)
        found = source.get(where, size_max=SNAPSHOT_OBJECT_BYTES_MAX)
        snapshot = decode_local_snapshot(found, expected=member.snapshot, name=where)
        if encode_local_snapshot(snapshot) != found:
            raise UnsupportedVersion(f"{where} has parts that this build does not know; fork it with the newer build")
        # Positions in an input log that the fork has not: it takes in whatever comes from its own.
        written = encode_local_snapshot(
            msgspec.structs.replace(snapshot, cluster=cluster, input_position=msgspec.UNSET)
        )
        named = digest(written)
        tally.put(snapshot_key(named), written)
        members.append(msgspec.structs.replace(member, snapshot=named))
    signed = sign_manifest(
        msgspec.structs.replace(manifest, cluster=cluster, members=tuple(members), previous=""), keys
    )
    tally.put(key, signed)
    fork = Fork(
        cluster=cluster,
        epoch=epoch,
        manifest=digest(signed),
        incarnation=manifest.incarnation,
        session=max((member.session for member in members), default=0),
        members=len(members),
        started_at=manifest.started_at,
        origin_cluster=manifest.cluster,
        origin_manifest=digest(data),
        dry_run=dry_run,
    )
    fork = msgspec.structs.replace(fork, signature=keys.sign_manifest(_signed_bytes(fork)))
    tally.put(FORK_KEY, canonical_json(fork))
    return ForkReport(fork, tally.copied, tally.present, tally.bytes)


class _Tally:
    def __init__(self, target: ObjectStore, *, of: int, progress: Callable[[int, int], None]) -> None:
        self._target = target
        self._of = of
        self._progress = progress
        self.copied = self.present = self.bytes = 0

    def put(self, key: str, data: bytes) -> None:
        """Write an object, or see that it is there with these bytes."""
        try:
            outcome = self._target.put(key, data)
        except ObjectConflict:
            raise ConfigError(
                "--store", f"{self._target.url} has another {key}: it holds another cluster or fork; name another store"
            ) from None
        if outcome is PutResult.CREATED:
            self.copied += 1
            self.bytes += len(data)
        else:
            self.present += 1
        self._progress(self.copied + self.present, self._of)


def _demand_empty(target: ObjectStore, epoch: int) -> None:
    """Nothing may be in the way: a cluster that has gone on is not to be given another beginning."""
    from protocol.verify import committed_epochs

    others = [number for number in committed_epochs(target) if number != epoch]
    if others:
        raise ConfigError(
            "--store",
            f"{target.url} holds epoch {others[0]} already: a fork begins in an empty one; name another cluster",
        )


def _verified(store: ObjectStore, key: str, named: str, size_max: int) -> bytes:
    data = store.get(key, size_max=size_max)
    if digest(data) != named:
        raise ObjectCorrupt("get", key, f"expected digest {named}, found {digest(data)} over {len(data)} bytes")
    return data


def _signed_bytes(fork: Fork) -> bytes:
    return b"cleancut fork\0" + canonical_json(msgspec.structs.replace(fork, signature=""))
