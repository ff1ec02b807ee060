"""Digests, the Merkle root, and where an object of each kind lies in a store.

A digest is written ``b3:`` and 64 lower-case hex digits (BLAKE3-256). A key is made from a digest only after its syntax is
checked, so that a digest from a hostile object can never become a path (RELIABILITY.md T7).

Source of the tree: RFC 6962 section 2.1 (leaf prefix 0x00, node prefix 0x01, split at the largest power of two below n),
with BLAKE3 in place of SHA-256.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from protocol.errors import ObjectCorrupt, ObjectMissing
from protocol.ids import Digest, Epoch

if TYPE_CHECKING:
    from collections.abc import Sequence

DIGEST_PREFIX: Final = "b3:"
DIGEST_PATTERN: Final = re.compile(r"b3:[0-9a-f]{64}")
FORMAT_KEY: Final = "format.json"
FENCES_PREFIX: Final = "fences/"
EPOCHS_PREFIX: Final = "epochs/"
SNAPSHOTS_PREFIX: Final = "snapshots/"
PACKS_PREFIX: Final = "packs/"
EPOCH_MAX: Final = 2**63 - 1
KEYS_REMEMBERED_MAX: Final = 4096
"""Keys of packs and local snapshots, of each: the same few are asked for again and again while an epoch is made or read."""

_EPOCH_KEY: Final = re.compile(r"epochs/([0-9]{20})\.json")


def digest(data: bytes | bytearray | memoryview) -> Digest:
    """The digest of some bytes."""
    return Digest(DIGEST_PREFIX + blake3(data).hexdigest())


def check_digest(text: object) -> Digest:
    """Return `text` if it is written as a digest.

    Raises:
        ObjectCorrupt: It is not; whatever named it is wrong.
    """
    if not isinstance(text, str) or DIGEST_PATTERN.fullmatch(text) is None:
        shown = ascii(text)
        raise ObjectCorrupt("get", shown[:100], "this is not a digest (b3: and 64 lower-case hex digits)")
    return Digest(text)


@lru_cache(KEYS_REMEMBERED_MAX)
def snapshot_key(of: str) -> str:
    """Key of the local-snapshot object with this digest. Raises `ObjectCorrupt` for what is no digest."""
    return SNAPSHOTS_PREFIX + check_digest(of)[3:]


@lru_cache(KEYS_REMEMBERED_MAX)
def pack_key(of: str) -> str:
    """Key of the pack with this digest. Raises `ObjectCorrupt` for what is no digest."""
    name = check_digest(of)[3:]
    return f"{PACKS_PREFIX}{name[:2]}/{name}"


def manifest_key(epoch: int) -> str:
    """Key of an epoch's manifest; sorts as the numbers do.

    Raises:
        ObjectMissing: No epoch has this number, so nothing lies under its key.
    """
    if not 0 < epoch <= EPOCH_MAX:
        raise ObjectMissing("get", EPOCHS_PREFIX, f"there is no epoch {epoch}: they are numbered from 1")
    return f"{EPOCHS_PREFIX}{epoch:020d}.json"


def fence_key(incarnation: int) -> str:
    """Key of the object that says: whatever is older than this incarnation is refused."""
    return f"{FENCES_PREFIX}{incarnation:020d}.json"


def epoch_of_key(key: str) -> Epoch | None:
    """The epoch whose manifest has this key; None if it is not a manifest's key."""
    match = _EPOCH_KEY.fullmatch(key)
    number = int(match[1]) if match is not None else 0
    return Epoch(number) if 0 < number <= EPOCH_MAX else None


def merkle_root_of(leaves: Sequence[bytes]) -> Digest:
    """Root of the RFC 6962 tree over `leaves`, in their order; of none: the digest of no bytes."""
    if not leaves:
        return digest(b"")
    level = [blake3(b"\0" + leaf).digest() for leaf in leaves]
    while len(level) > 1:
        # Pairing from the left and carrying an odd last one up gives the same tree as the recursive split.
        paired = [blake3(b"\1" + level[i] + level[i + 1]).digest() for i in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            paired.append(level[-1])
        level = paired
    return Digest(DIGEST_PREFIX + level[0].hex())
