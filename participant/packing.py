"""Chunks on their way into packs, for one epoch of one participant.

A chunk's pack has no id before it is finished, so a `Chunk` learns it later; `ChunkRef`s are made at the end. Packs are
finished early while little has been written and later as the state grows: what waits in memory is a small part of what has
been written, and a large state still makes few packs and few fsyncs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from protocol.digests import digest, pack_key
from protocol.limits import KIB, MIB, PACK_TARGET_BYTES, SEGMENT_TARGET_BYTES
from protocol.manifest import ChunkRef
from protocol.pack import PackBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocol.ids import Digest

PACK_BYTES_MIN: Final = 2 * MIB
"""A pack below this is finished only at the end."""
PACK_CHUNKS_MAX: Final = 8_192
"""Chunks of one pack: to tell each of them its pack is one step."""
PACK_SHARE: Final = 64
"""A pack is finished at this part of the uncompressed bytes so far: memory for packs stays below 2 % of the state."""
PIECE_BYTES: Final = 64 * KIB
"""Large values are cut into pieces of this size: one slice's work, and what an append to a long text rewrites."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingLimits:
    """Sizes in which state is written. Those of production are the defaults; whoever tests goes to the edges."""

    segment_bytes: int = SEGMENT_TARGET_BYTES
    """A segment of keyed state is closed at about this size."""
    piece_bytes: int = PIECE_BYTES
    pack_bytes_min: int = PACK_BYTES_MIN
    pack_bytes: int = PACK_TARGET_BYTES
    """A pack is finished at about this size, whatever its share is."""
    pack_chunks: int = PACK_CHUNKS_MAX


PRODUCTION: Final = EncodingLimits()


class Chunk:
    """One chunk; `pack` is known once its pack is finished."""

    __slots__ = ("digest", "pack", "size")

    def __init__(self, digest: Digest, size: int) -> None:
        self.digest = digest
        self.size = size
        """Uncompressed."""
        self.pack: Digest | None = None

    def ref(self) -> ChunkRef:
        """The reference that a local snapshot holds."""
        assert self.pack is not None, "its pack is not finished"
        return ChunkRef(self.digest, self.pack, self.size)


class Pack(NamedTuple):
    """A finished pack, to be made durable before the local snapshot is."""

    key: str
    digest: Digest
    data: bytes
    chunks: int


class ChunkWriter:
    """Collects the new chunks of one epoch; a chunk is written once."""

    __slots__ = ("_builder", "_new", "_waiting", "limits", "ready", "written_bytes")

    def __init__(self, limits: EncodingLimits = PRODUCTION) -> None:
        self.limits = limits
        self._builder = PackBuilder()
        self._waiting: list[Chunk] = []
        self._new: dict[Digest, Chunk] = {}
        self.ready: list[Pack] = []
        """Finished packs; whoever drives the slices takes them out."""
        self.written_bytes = 0
        """Uncompressed bytes of all new chunks."""

    def put(self, data: bytes, known: Mapping[Digest, Chunk]) -> Chunk:
        """A chunk with these bytes: one that is `known` or new in this epoch already, else written now."""
        name = digest(data)
        chunk = known.get(name) or self._new.get(name)
        if chunk is not None:
            return chunk
        self._builder.add(data, name)
        chunk = self._new[name] = Chunk(name, len(data))
        self._waiting.append(chunk)
        self.written_bytes += len(data)
        size, limits = self._builder.size_bytes, self.limits
        if len(self._waiting) >= limits.pack_chunks or (
            size >= limits.pack_bytes_min and (size >= limits.pack_bytes or size * PACK_SHARE >= self.written_bytes)
        ):
            self.finish_pack()
        return chunk

    def forget(self) -> None:
        """No more chunks come: free what only `put` needs."""
        assert not self._waiting, "a pack is not finished"
        self._new = {}

    def finish_pack(self) -> None:
        """End the pack of the moment, if there is anything in it."""
        if not self._waiting:
            return
        data, name, entries = self._builder.finish()
        for chunk in self._waiting:
            chunk.pack = name
        self.ready.append(Pack(pack_key(name), name, data, len(entries)))
        self._waiting = []
        self._builder = PackBuilder()
