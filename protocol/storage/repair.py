"""Puts that repair: a damaged object in the place of the one to be written makes way for it.

What may be written under a key is settled before anybody writes: packs and local snapshots are named by their digest, and
of an epoch only one manifest is ever sealed. So other bytes under such a key are mostly damage: a put that was torn or has
rotted, a block that came back old. A create-only put would be refused for ever, and with it every epoch whose state has
not changed since. What is whole and merely somebody else's stays, and is a conflict as before.

It makes way in one step. Were it removed first, somebody else could have mended it, and an epoch that names it could be
committed, just before: a crash behind the removal would then take an object away that has to stay (P2).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from protocol.digests import digest, pack_key, snapshot_key
from protocol.errors import ObjectConflict, ObjectCorrupt, ObjectMissing, UnsupportedVersion
from protocol.limits import MANIFEST_BYTES_MAX
from protocol.ports import PutResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.ports import ObjectStore

log = logging.getLogger(__name__)


def put_content(store: ObjectStore, key: str, data: bytes) -> PutResult:
    """Put a pack or local snapshot, whatever lies in its place, unless that is what its name says.

    Raises:
        ObjectConflict: What lies there is what its name says, or these bytes are not.
        StoreError: As `ObjectStore.put`.
    """
    return _put(store, key, data, lambda found: not _is_named(found, key) and _is_named(data, key))


def put_manifest(store: ObjectStore, key: str, data: bytes) -> PutResult:
    """Put the manifest that the ledger has sealed.

    Raises:
        ObjectConflict: A whole manifest of other members lies there: the store is another cluster's, or of an earlier one of
            this name.
        StoreError: As `ObjectStore.put`.
    """
    return _put(store, key, data, lambda found: _manifest_damaged(found, data))


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
        if not damaged(found):
            raise
        log.warning("%s is damaged (%s, %d bytes): written anew", key, digest(found)[:19], len(found))
        store.replace(key, data)
        store.put(key, data)  # a store that answered and did nothing is found out
        return PutResult.CREATED


def _is_named(data: bytes, key: str) -> bool:
    """Whether this is the pack or local snapshot that the key names."""
    return key in (pack_key(digest(data)), snapshot_key(digest(data)))


def _manifest_damaged(found: bytes, wanted: bytes) -> bool:
    """Whether these bytes are no whole manifest of somebody else for the same epoch."""
    # Here: manifests are rarely in the way, and their module is not small.
    from protocol.documents import decode_manifest, merkle_root

    ours = decode_manifest(wanted)
    try:
        theirs = decode_manifest(found)
    except ObjectCorrupt:
        return True
    except UnsupportedVersion:
        return False
    if theirs.epoch != ours.epoch:
        return True  # an older block: no writer puts it under this key
    return theirs.members == ours.members or theirs.merkle_root != merkle_root(theirs.members, theirs.channels)
