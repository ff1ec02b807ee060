"""Packs: many chunks in one object, so that one epoch of one participant costs one write and one fsync.

Format, version 1 (big endian)::

    header    4s "CLPK" | u8 version | 3 zero bytes
    payloads  back to back, each compressed with zstd (method 1) or stored (method 0)
    index     per chunk: 32s BLAKE3 of the uncompressed bytes | u64 offset | u32 stored bytes | u32 bytes | u8 method
    footer    32s BLAKE3 of header and index | u64 offset of the index | u32 chunks | u8 version | 4s "KPLC"

The pack's id is the digest of all of it. A reader takes the footer, then the index, then single chunks by their range; it
never needs the whole pack.

Rules:
    * Every size is checked against `limits` and against what the object can hold before memory is taken for it. A chunk
      unfolds into exactly the size in its index, at most `CHUNK_BYTES_MAX`, in a window no larger than that: a
      decompression bomb ends there (RELIABILITY.md T8).
    * Who reads chunk after chunk, as a restore does, is read ahead for: `READ_AHEAD_BYTES` at once, not a file opened for each.
    * A chunk's digest is checked on every read. What does not fit is `ObjectCorrupt`, which names pack, chunk, what was
      expected and what was found.
    * The builder takes one chunk at a time and never copies what it has: a background slice calls `add` as long as it has
      time left.

What it does not know: what a chunk means, and which packs are still needed.
"""

from __future__ import annotations

import io
import struct
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from blake3 import blake3

from protocol.digests import DIGEST_PREFIX, check_digest, digest, pack_key
from protocol.errors import LimitExceeded, ObjectCorrupt, StoreError
from protocol.ids import Digest
from protocol.limits import CHUNK_BYTES_MAX, DECOMPRESSED_BYTES_MAX, KIB, PACK_TARGET_BYTES

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from protocol.manifest import ChunkRef
    from protocol.ports import ObjectStore

__all__ = [
    "PACK_VERSION",
    "BytesSource",
    "ChunkReader",
    "PackBuilder",
    "PackEntry",
    "PackReader",
    "digest",
]

PACK_VERSION: Final = 1
STORED: Final = 0
ZSTD: Final = 1
COMPRESSION_LEVEL: Final = 1
"""Measured on msgpack records: level 3 saves 2 % more than level 1; what it costs comes out of the agents' time."""
PACK_BYTES_MAX: Final = PACK_TARGET_BYTES + 2 * CHUNK_BYTES_MAX
"""The last chunk may overshoot the target, and the index takes its place."""
READERS_REMEMBERED_MAX: Final = 256
"""Pack indexes that a `ChunkReader` keeps: 49 bytes per chunk, about 50 KB for a full pack of 64 KiB chunks."""
READ_AHEAD_BYTES: Final = 256 * KIB
"""Read at once for a reader that goes on where it was; each `PackReader` holds that much at most, besides its index."""

_HEADER: Final = struct.Struct(">4sB3x")
_ENTRY: Final = struct.Struct(">32sQIIB")
_FOOTER: Final = struct.Struct(">32sQIB4s")
_MAGIC: Final = b"CLPK"
_END_MAGIC: Final = b"KPLC"
_CHUNKS_MAX: Final = 1 << 20
"""Chunks in one pack: its index then takes 49 MiB, still one read."""
_WINDOW_LOG_MAX: Final = 23
"""2**23 = `CHUNK_BYTES_MAX`: no honest frame needs a larger window."""
_SMALL_BYTES: Final = 64
"""Shorter chunks are stored: zstd's own frame would eat the gain."""


class PackEntry(NamedTuple):
    """One chunk's place in a pack."""

    digest: Digest
    """Of the uncompressed bytes."""
    offset: int
    stored: int
    """Bytes in the pack."""
    bytes: int
    """Uncompressed."""
    method: int


class PackBuilder:
    """Collects chunks of one pack in memory.

    Invariant: a chunk is in the pack once, however often it is added.
    """

    __slots__ = ("_buffer", "_compressor", "_entries", "_finished", "_hasher", "_index", "_offset")

    def __init__(self) -> None:
        # BytesIO gives its buffer away without a copy at the end; joining 64 MiB would hold the event loop.
        self._buffer = io.BytesIO()
        self._hasher = blake3()
        self._entries: dict[Digest, PackEntry] = {}
        self._index = bytearray()
        """Grows with each chunk: to make it at the end would hold the event loop."""
        self._compressor: zstd.ZstdCompressor | None = None
        """Made when the first chunk needs it: many small packs have none that does."""
        self._offset = 0
        self._finished = False
        self._write(_HEADER.pack(_MAGIC, PACK_VERSION))

    def add(self, chunk: bytes, name: Digest | None = None) -> Digest:
        """Take one chunk.

        Args:
            chunk: At most `CHUNK_BYTES_MAX` bytes. About 64 KiB keep one call below half a millisecond.
            name: Its digest, from whoever has computed it already.

        Returns:
            The digest to put into a `ChunkRef`.

        Raises:
            LimitExceeded: The chunk is too large; the pack is unchanged.
        """
        assert not self._finished, "the pack was finished"
        if len(chunk) > CHUNK_BYTES_MAX:
            raise LimitExceeded(f"chunk of {len(chunk)} bytes; at most {CHUNK_BYTES_MAX} fit")
        name = name or digest(chunk)
        if name in self._entries:
            return name
        payload, method = chunk, STORED
        if len(chunk) >= _SMALL_BYTES:
            if self._compressor is None:
                self._compressor = zstd.ZstdCompressor(level=COMPRESSION_LEVEL)
            compressed = self._compressor.compress(chunk, zstd.ZstdCompressor.FLUSH_FRAME)
            # Less than a sixteenth saved is not worth decompressing for ever after.
            if len(compressed) < len(chunk) - len(chunk) // 16:
                payload, method = compressed, ZSTD
        self._entries[name] = PackEntry(name, self._offset, len(payload), len(chunk), method)
        self._index += _ENTRY.pack(bytes.fromhex(name[3:]), self._offset, len(payload), len(chunk), method)
        self._write(payload)
        return name

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """Size so far, index not counted."""
        return self._offset

    @property
    def full(self) -> bool:
        """Time to finish this pack and begin another one."""
        return self._offset >= PACK_TARGET_BYTES or len(self._entries) >= _CHUNKS_MAX

    def finish(self) -> tuple[bytes, Digest, tuple[PackEntry, ...]]:
        """End the pack.

        Returns:
            Its bytes, its digest (the pack's id) and its index in the order of `add`. The builder is used up.
        """
        assert not self._finished, "the pack was finished"
        entries = tuple(self._entries.values())
        index = bytes(self._index)
        start = self._offset
        self._write(index)
        check = blake3(_HEADER.pack(_MAGIC, PACK_VERSION) + index).digest()
        self._write(_FOOTER.pack(check, start, len(entries), PACK_VERSION, _END_MAGIC))
        self._finished = True
        return self._buffer.getvalue(), Digest(DIGEST_PREFIX + self._hasher.hexdigest()), entries

    def _write(self, data: bytes) -> None:
        self._buffer.write(data)
        self._hasher.update(data)
        self._offset += len(data)


class BytesSource:
    """A pack that is in memory, in the shape in which `PackReader` reads."""

    __slots__ = ("_data", "key")

    def __init__(self, data: bytes, key: str = "pack") -> None:
        self._data = data
        self.key = key

    def size(self) -> int:
        """Bytes of the pack."""
        return len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        """Exactly this range."""
        return self._data[offset : offset + length]


class StoreSource:
    """A pack in an object store."""

    __slots__ = ("_store", "key")

    def __init__(self, store: ObjectStore, pack: str) -> None:
        self._store = store
        self.key = pack_key(pack)

    def size(self) -> int:
        """Bytes of the object. Raises `StoreError`."""
        return self._store.size(self.key)

    def read(self, offset: int, length: int) -> bytes:
        """Exactly this range. Raises `StoreError`."""
        return self._store.get_range(self.key, offset, length)


class PackReader:
    """Reads single chunks of one pack.

    Raises from every method: `ObjectCorrupt` for bytes that do not fit, any `StoreError` of the store.
    """

    __slots__ = (
        "_decompressor_options",
        "_entries",
        "_next",
        "_payloads_end",
        "_source",
        "_window",
        "_window_start",
        "key",
    )

    def __init__(self, source: BytesSource | StoreSource) -> None:
        self._source = source
        self.key = source.key
        self._decompressor_options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}
        self._next = _HEADER.size
        """Offset behind the chunk that was read last."""
        self._payloads_end = 0
        self._window = memoryview(b"")
        """What was read last, from `_window_start` on."""
        self._window_start = 0
        self._entries = self._read_index()

    @classmethod
    def open(cls, store: ObjectStore, pack: str) -> PackReader:
        """The pack with this digest."""
        return cls(StoreSource(store, pack))

    @classmethod
    def from_bytes(cls, data: bytes, *, key: str = "pack") -> PackReader:
        """A pack in memory; `key` is what errors call it."""
        return cls(BytesSource(data, key))

    @property
    def entries(self) -> tuple[PackEntry, ...]:
        """The index, in the order of the pack."""
        return tuple(self._entries.values())

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def chunk(self, name: str) -> bytes:
        """The uncompressed bytes of one chunk, checked against its digest.

        Args:
            name: The chunk's digest.
        """
        entry = self._entries.get(name)  # type: ignore[call-overload]  # what is in the index is a digest
        if entry is None:
            check_digest(name)
            raise self._corrupt(f"chunk {name} is not in this pack's index of {len(self._entries)} chunks")
        payload = self._payload(entry)
        data = bytes(payload) if entry.method == STORED else self._decompress(entry, payload)
        if len(data) != entry.bytes:
            raise self._corrupt(f"chunk {name}: expected {entry.bytes} bytes, found {len(data)}")
        found = digest(data)
        if found != name:
            raise self._corrupt(f"chunk {name}: expected this digest, found {found}")
        return data

    def chunks(self) -> Iterator[tuple[PackEntry, bytes]]:
        """Every chunk, in the order of the pack."""
        for entry in self._entries.values():
            yield entry, self.chunk(entry.digest)

    def _payload(self, entry: PackEntry) -> memoryview:
        start, end = entry.offset, entry.offset + entry.stored
        if not self._window_start <= start <= end <= self._window_start + len(self._window):
            ahead = min(READ_AHEAD_BYTES, self._payloads_end - start) if start == self._next else 0
            self._window = memoryview(self._read(start, entry.stored, ahead))
            self._window_start = start
        self._next = end
        return self._window[start - self._window_start : end - self._window_start]

    def _read(self, start: int, length: int, ahead: int) -> bytes:
        if ahead > length:
            try:
                return self._source.read(start, ahead)
            except StoreError:
                pass  # perhaps only what lies behind this chunk cannot be read: then that is its own matter
        return self._source.read(start, length)

    def _decompress(self, entry: PackEntry, payload: bytes | memoryview) -> bytes:
        # One byte of room more than promised shows a frame that unfolds into more, at the cost of that byte.
        decompressor = zstd.ZstdDecompressor(options=self._decompressor_options)
        try:
            data = decompressor.decompress(payload, entry.bytes + 1)
        except zstd.ZstdError as error:
            raise self._corrupt(f"chunk {entry.digest}: {error}") from None
        if len(data) > entry.bytes:
            raise self._corrupt(f"chunk {entry.digest}: unfolds into more than the {entry.bytes} bytes in its index")
        if not decompressor.eof or decompressor.unused_data:
            raise self._corrupt(f"chunk {entry.digest}: its {entry.stored} stored bytes are not one zstd frame")
        return data

    def _read_index(self) -> dict[Digest, PackEntry]:
        size = self._source.size()
        if not _HEADER.size + _FOOTER.size <= size <= PACK_BYTES_MAX + _CHUNKS_MAX * _ENTRY.size:
            raise self._corrupt(f"{size} bytes cannot be a pack")
        check, start, count, version, end = _FOOTER.unpack(self._source.read(size - _FOOTER.size, _FOOTER.size))
        if end != _END_MAGIC:
            raise self._corrupt(f"expected {_END_MAGIC!r} at its end, found {end!r}: cut short, or not a pack")
        if version != PACK_VERSION:
            raise self._corrupt(f"pack of format version {version}; this build reads version {PACK_VERSION}")
        if count > _CHUNKS_MAX or start + count * _ENTRY.size + _FOOTER.size != size:
            raise self._corrupt(f"its footer places an index of {count} chunks at {start} in {size} bytes")
        index = self._source.read(start, count * _ENTRY.size)
        header = self._source.read(0, _HEADER.size)
        found = blake3(header + index).digest()
        if found != check:
            raise self._corrupt(f"index: expected digest {check.hex()}, found {found.hex()}")
        if header != _HEADER.pack(_MAGIC, PACK_VERSION):
            raise self._corrupt(f"expected header {_MAGIC!r} version {PACK_VERSION}, found {header!r}")
        self._payloads_end = start
        entries: dict[Digest, PackEntry] = {}
        for raw, offset, stored, length, method in _ENTRY.iter_unpack(index):
            entry = PackEntry(Digest(DIGEST_PREFIX + raw.hex()), offset, stored, length, method)
            self._check_entry(entry, start)
            entries[entry.digest] = entry
        return entries

    def _check_entry(self, entry: PackEntry, payloads_end: int) -> None:
        inside = _HEADER.size <= entry.offset and entry.offset + entry.stored <= payloads_end
        sized = entry.bytes <= min(CHUNK_BYTES_MAX, DECOMPRESSED_BYTES_MAX) and (
            entry.stored == entry.bytes if entry.method == STORED else entry.method == ZSTD
        )
        if not (inside and sized):
            raise self._corrupt(
                f"index entry of chunk {entry.digest} says {entry.stored} bytes at {entry.offset}, "
                f"{entry.bytes} unfolded, method {entry.method}"
            )

    def _corrupt(self, reason: str) -> ObjectCorrupt:
        return ObjectCorrupt("get", self.key, reason)


class ChunkReader:
    """Reads chunks by reference over many packs, keeping the indexes that were used last. Not thread safe."""

    __slots__ = ("_readers", "_store")

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._readers: OrderedDict[str, PackReader] = OrderedDict()

    def pack(self, name: str) -> PackReader:
        """The reader of one pack. Raises `ObjectMissing`, `ObjectCorrupt`, `StoreError`."""
        reader = self._readers.get(name)
        if reader is not None:
            self._readers.move_to_end(name)
            return reader
        reader = PackReader.open(self._store, name)
        self._readers[name] = reader
        if len(self._readers) > READERS_REMEMBERED_MAX:
            self._readers.popitem(last=False)
        return reader

    def read(self, ref: ChunkRef) -> bytes:
        """One chunk, checked against its reference.

        Raises:
            ObjectCorrupt: With pack, chunk, what was expected and what was found.
            StoreError: Anything else that went wrong, `ObjectMissing` for a pack that is gone.
        """
        data = self.pack(ref.pack).chunk(ref.digest)
        if len(data) != ref.bytes:
            raise ObjectCorrupt(
                "get",
                pack_key(ref.pack),
                f"chunk {ref.digest}: its reference says {ref.bytes} bytes, it has {len(data)}",
            )
        return data

    def join(self, refs: Iterable[ChunkRef], *, size_max: int) -> bytes:
        """Chunks joined; the sum of the references' sizes is checked before anything is read.

        Raises:
            ObjectCorrupt: As `read`, or the sum is over `size_max`.
            StoreError: As `read`.
        """
        wanted = list(refs)
        total = sum(ref.bytes for ref in wanted)
        if total > size_max:
            raise ObjectCorrupt("get", "chunks", f"{len(wanted)} chunks of {total} bytes; at most {size_max} are read")
        return b"".join([self.read(ref) for ref in wanted])
