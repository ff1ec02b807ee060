"""Puts that repair: a damaged object in the place of the one to be written makes way for it.

What may be written under a key is settled before anybody writes: packs and local snapshots are named by their digest, and
of an epoch only one manifest is ever sealed. So other bytes under such a key are mostly damage: a put that was torn or has
rotted, a block that came back old. A create-only put would be refused for ever, and with it every epoch whose state has
not changed since. What is whole and merely somebody else's stays, and is a conflict as before.

`take_manifest_key` is the opposite of the latter: it sees to it that a sealed epoch never gets its manifest.

It makes way in one step. Were it removed first, somebody else could have mended it, and an epoch that names it could be
committed, just before: a crash behind the removal would then take an object away that has to stay (P2).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from protocol.digests import digest, manifest_key, pack_key, snapshot_key
from protocol.errors import ObjectConflict, ObjectCorrupt, ObjectMissing, StoreError, UnsupportedVersion
from protocol.limits import MANIFEST_BYTES_MAX
from protocol.ports import PutResult
from protocol.tombstones import decode_tombstone, tombstone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from protocol.manifest import Manifest
    from protocol.ports import ObjectStore

log = logging.getLogger(__name__)


def put_content(store: ObjectStore, key: str, data: bytes) -> PutResult:
    """Put a pack or local snapshot, whatever lies in its place, unless that is what its name says.

    Raises:
        ObjectConflict: What lies there is what its name says, or these bytes are not.
        StoreError: As `ObjectStore.put`; or what was written in place of damage is damaged, too. Another attempt may succeed.
    """
    return _put(store, key, data, lambda found: not _is_named(found, key) and _is_named(data, key))


def put_manifest(store: ObjectStore, key: str, data: bytes) -> PutResult:
    """Put the manifest that the ledger has sealed.

    Raises:
        ObjectConflict: A whole manifest of other members lies there: the store is another cluster's, or of an earlier one of
            this name. Or the epoch was forsaken (`take_manifest_key`).
        StoreError: As `put_content`.
    """
    return _put(store, key, data, lambda found: _manifest_damaged(found, data))


def take_manifest_key(
    store: ObjectStore, epoch: int, *, cluster: str, sealed: str, snapshots: Mapping[str, str]
) -> bool:
    """Take the key of a sealed epoch's manifest for good, unless the manifest lies there.

    The store decides, once: puts are create-only, so of this one and a put of the manifest by whoever still has its bytes,
    now or in a week, one is refused.

    Args:
        store: The cluster's.
        epoch: Sealed, and not known to be committed.
        cluster: Its name.
        sealed: Digest of its manifest.
        snapshots: Participant -> digest of its local snapshot; tells a damaged manifest of this epoch from another's.

    Returns:
        True: no manifest of it will ever lie there. False: the very one that was sealed does, durably.

    Raises:
        StoreError: Nothing is certain; another attempt may succeed.
    """
    key = manifest_key(epoch)
    stone = tombstone(cluster, epoch, sealed)
    try:
        store.put(key, stone)
    except ObjectConflict:
        pass
    else:
        return True
    try:
        found = store.get(key, size_max=MANIFEST_BYTES_MAX)
    except ObjectCorrupt:
        found = b""  # larger than a manifest may be
        if store.size(key) <= MANIFEST_BYTES_MAX:
            raise
    else:
        # A read that went wrong must not cost a manifest that is there: these very bytes are, or this is a conflict.
        store.put(key, found)
    if digest(found) == sealed:
        return False
    if _may_be_replaced(found, epoch, snapshots):
        log.warning("%s is damaged and cannot be mended: the epoch is forsaken", key)
        store.replace(key, stone)
        store.put(key, stone)
    return True


def _put(store: ObjectStore, key: str, data: bytes, damaged: Callable[[bytes], bool]) -> PutResult:
    try:
        return store.put(key, data)
    except ObjectConflict:
        try:
            found = store.get(key, size_max=max(len(data), MANIFEST_BYTES_MAX))
        except ObjectMissing:
            return store.put(key, data)  # somebody else repairs it at this moment
        except ObjectCorrupt:
            found = b""  # larger than anything that may lie there
        stone = decode_tombstone(found)
        if stone is not None and key == manifest_key(stone.epoch):
            raise ObjectConflict(
                "put", key, f"epoch {stone.epoch} was forsaken: it gets no manifest any more"
            ) from None
        if not damaged(found):
            raise
        log.warning("%s is damaged (%s, %d bytes): written anew", key, digest(found)[:19], len(found))
        store.replace(key, data)
        try:
            store.put(key, data)  # a store that answered and did nothing is found out
        except ObjectConflict as conflict:
            # Damaged again at once, or somebody was faster: the next attempt sees which, and only then is it a refusal.
            raise StoreError("put", key, f"it was written anew, and still {conflict.reason}") from conflict
        return PutResult.CREATED


def _is_named(data: bytes, key: str) -> bool:
    """Whether this is the pack or local snapshot that the key names."""
    return key in (pack_key(digest(data)), snapshot_key(digest(data)))


def _manifest_damaged(found: bytes, wanted: bytes) -> bool:
    """Whether these bytes are no whole manifest of somebody else for the same epoch."""
    # Here: manifests are rarely in the way, and their module is not small.
    from protocol.documents import decode_manifest

    ours = decode_manifest(wanted)
    return _may_be_replaced(found, ours.epoch, _snapshots(ours))


def _snapshots(manifest: Manifest) -> dict[str, str]:
    return {member.participant: member.snapshot for member in manifest.members}


def _may_be_replaced(found: bytes, epoch: int, snapshots: Mapping[str, str]) -> bool:
    """Whether these bytes are no whole manifest of another cut than that of these local snapshots.

    The snapshots tell, and nothing else of a member: a manifest with ours and any other byte wrong is ours, and damaged. Where
    the damage is in a snapshot's digest, the Merkle root says so.
    """
    from protocol.documents import decode_manifest, merkle_root

    stone = decode_tombstone(found)
    if stone is not None:
        return stone.epoch != epoch
    try:
        theirs = decode_manifest(found)
    except ObjectCorrupt:
        return True
    except UnsupportedVersion:
        return False
    if theirs.epoch != epoch:
        return True  # an older block: no writer puts it under this key
    return _snapshots(theirs) == snapshots or theirs.merkle_root != merkle_root(theirs.members, theirs.channels)
