"""What lies under the key of an epoch that was sealed and then forsaken: the proof that it never gets a manifest.

A sealed epoch whose manifest cannot be made any more (a local snapshot is damaged or gone) is forsaken. A leader that was
deposed long ago may still have the right bytes, and a put under way; so the key is taken first, create-only as every put:
then either the manifest lies there, and the epoch commits, or this object does, and no manifest ever will.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from protocol.digests import manifest_key
from protocol.errors import StoreError

if TYPE_CHECKING:
    from protocol.ports import ObjectStore

TOMBSTONE_BYTES_MAX: Final = 512
"""Manifests are larger, but for those of next to nothing: of a listing, only what is no larger than this is read."""


class Tombstone(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object."""

    cluster: str
    epoch: int
    forsaken: str
    """Digest of the manifest that was sealed."""
    format: int = 1


_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decoder: Final = msgspec.json.Decoder(Tombstone)


def tombstone(cluster: str, epoch: int, sealed: str) -> bytes:
    """The object's bytes: the same for every leader that writes it."""
    return _encode(Tombstone(cluster=cluster, epoch=epoch, forsaken=sealed))


def decode_tombstone(data: bytes) -> Tombstone | None:
    """What these bytes say; None: they are something else."""
    if len(data) > TOMBSTONE_BYTES_MAX:
        return None
    try:
        found = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
        return None
    return found if found.format == 1 and _encode(found) == data else None


def is_forsaken(store: ObjectStore, epoch: int) -> bool:
    """Whether the epoch's key is taken by a tombstone. What the store does not give counts as none."""
    try:
        key = manifest_key(epoch)
        return (
            store.size(key) <= TOMBSTONE_BYTES_MAX
            and decode_tombstone(store.get(key, size_max=TOMBSTONE_BYTES_MAX)) is not None
        )
    except StoreError:
        return False
