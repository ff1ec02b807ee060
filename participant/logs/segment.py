"""One segment of a log on disk: a header, then batches of records, each checksummed and chained to all before it.

::

    segment = "CLCTLOG1" | u32 length | u32 CRC | msgpack SegmentHeader | batches    made whole, with its first batch
    batch   = header (60 bytes) | body | line feed
    body    = msgpack array of records; what a record is, is the log's own matter

A batch is what one fsync made durable. Its header has the CRC of itself, its own offset in the file, the number of its
first record, how many there are, and the *chain*: H(chain before, numbers, body), 16 bytes of BLAKE3. The next segment's
header names the chain and size at which the one before it ends.

What damage means (RELIABILITY.md I17):
    * A batch is written only after the one before it is durable. So a bad batch with a good header behind it was good once:
      a hole, an error.
    * The last batch is *torn* (the process or the power went while it was being written; nothing in it was acknowledged) if
      the file is too short for it, or one of its disk sectors was never written and still reads as zeros. It is cut off. How
      many sectors are zeros by right is in the header.
    * A last batch that is complete and wrong is an error as well: it may have been acknowledged.
    * What lies behind the end that the next segment's header names is nobody's: a process that had been declared dead wrote
      it. It is not read.

What it does not know: a file that lost whole batches from its end. Nothing on one disk can tell.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

import msgspec
from blake3 import blake3

from protocol.errors import StoreError
from protocol.limits import LOG_BATCH_BYTES_MAX, LOG_HEADER_BYTES_MAX

_MAGIC: Final = b"CLCTLOG1"
_PREFIX: Final = struct.Struct(">8sII")
_BATCH_MAGIC: Final = b"CLB1"
_BATCH: Final = struct.Struct(">4sIQQQIII16s")
# magic, CRC of the rest of the header, file offset, first number, time, record count, body length, sectors of zeros, chain
_CHECKED_FROM: Final = 8
_NUMBERS: Final = struct.Struct(">QQII")
_END: Final = b"\n"
"""Ends each batch, so that its last piece of a sector is never all zeros."""
_SECTOR: Final = 512
_ZEROS: Final = bytes(_SECTOR)
CHAIN_BYTES: Final = 16
BATCH_OVERHEAD: Final = _BATCH.size + len(_END)


class CorruptLog(StoreError):
    """A log is damaged in a way that may have cost what it had acknowledged."""

    def __init__(self, where: str, offset: int, reason: str) -> None:
        self.offset = offset
        super().__init__("open", where, f"damaged at byte {offset}: {reason}")


class SegmentHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a segment says about itself."""

    kind: str
    """Which log: ``turns``, ``effects``, ..."""
    cluster: str
    participant: str
    incarnation: int
    session: int
    """Of the life that wrote it: each life begins a segment of its own."""
    ordinal: int
    """Of the segment, from 1; its file's name."""
    first: int
    """Number that the segment's first record has or will have."""
    base: bool = False
    """The log begins here: what segments before it hold does not count any more."""
    chain: bytes = b""
    """The chain at the end of the segment before; nothing for a base."""
    size: int = 0
    """Bytes of the segment before that count; 0 for a base."""


class Batch(NamedTuple):
    """Records that became durable together."""

    first: int
    records_count: int
    at: int
    """Wall clock when it was written, nanoseconds: for people."""
    body: memoryview
    """msgpack array of the records."""


class End(NamedTuple):
    """How far a segment counts."""

    size: int
    """Bytes."""
    next: int
    """Number of the next record."""
    chain: bytes


def segment_name(ordinal: int) -> str:
    """A segment's file name: sorted as text is sorted by number."""
    return f"{ordinal:012d}.log"


def ordinal_of(name: str) -> int | None:
    """The number of a segment's file, None for other files."""
    stem = name.removesuffix(".log")
    return int(stem) if name.endswith(".log") and len(stem) == 12 and stem.isascii() and stem.isdigit() else None


# --- writing ----------------------------------------------------------------------------------------------------------


def encode_segment_header(header: SegmentHeader) -> tuple[bytes, End]:
    """The first bytes of a segment, and where its first batch goes."""
    text = msgspec.msgpack.encode(header)
    data = _PREFIX.pack(_MAGIC, len(text), zlib.crc32(text)) + text
    return data, End(len(data), header.first, blake3(data).digest(length=CHAIN_BYTES))


def encode_batch(end: End, records: list[bytes], at: int) -> tuple[bytes, End]:
    """A batch that goes to the segment's end.

    Args:
        end: Where it goes.
        records: Encoded; at least one, each one msgpack value.
        at: Wall clock, nanoseconds.

    Returns:
        Its bytes, and the end that the segment then has.
    """
    count = len(records)
    assert count, "a batch has records"
    body = b"".join([_array_header(count), *records])
    chain = _chained(end.chain, end.next, at, count, body)
    tail = body + _END
    zeros = 0
    if _ZEROS in tail:
        # The header is never zeros: its sectors are not counted.
        zeros = _zero_pieces(tail, end.size + _BATCH.size)
    header = _BATCH.pack(_BATCH_MAGIC, 0, end.size, end.next, at, count, len(body), zeros, chain)
    crc = zlib.crc32(header[_CHECKED_FROM:])
    data = b"".join((header[:4], crc.to_bytes(4, "big"), header[_CHECKED_FROM:], tail))
    return data, End(end.size + len(data), end.next + count, chain)


def _array_header(count: int) -> bytes:
    if count < 16:
        return bytes([0x90 | count])
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


def _chained(before: bytes, first: int, at: int, count: int, body: bytes | memoryview) -> bytes:
    hasher = blake3(before + _NUMBERS.pack(first, at, count, len(body)))
    hasher.update(body)
    return hasher.digest(length=CHAIN_BYTES)


# --- reading ----------------------------------------------------------------------------------------------------------


def decode_segment_header(data: bytes, where: str) -> tuple[SegmentHeader, End]:
    """A segment's header out of its first bytes.

    Raises:
        CorruptLog: It is none. A segment is durable before its name is there, so its header is never torn.
    """
    if len(data) < _PREFIX.size:
        raise CorruptLog(where, 0, "too short to be a log's segment")
    magic, length, crc = _PREFIX.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptLog(where, 0, "not a log of this program, or of another format version")
    end = _PREFIX.size + length
    text = data[_PREFIX.size : end]
    if length > LOG_HEADER_BYTES_MAX or len(text) != length or zlib.crc32(text) != crc:
        raise CorruptLog(where, 0, "its header is unreadable")
    try:
        header = msgspec.msgpack.decode(text, type=SegmentHeader)
    except msgspec.MsgspecError as error:
        raise CorruptLog(where, 0, f"its header is none: {error}") from None
    return header, End(end, header.first, blake3(data[:end]).digest(length=CHAIN_BYTES))


def read_batches(data: bytes, start: End, where: str, *, size: int | None = None) -> tuple[list[Batch], End]:
    """The batches of a segment.

    Args:
        data: The whole file.
        start: Where they begin, from `decode_segment_header`.
        where: Its path, for messages.
        size: How much of it counts, as the next segment says; None for the last segment, whose tail may be torn.

    Returns:
        All that count, and where they end: less than the file where the tail was torn.

    Raises:
        CorruptLog: Damage that is no torn tail.
    """
    limit = len(data) if size is None else size
    if limit > len(data):
        raise CorruptLog(where, len(data), f"ends here; the segment after it was begun at byte {limit}")
    view = memoryview(data)[:limit]
    batches: list[Batch] = []
    end = start
    while end.size < limit:
        found = _batch_at(view, end)
        if found is None and batches:
            if size is not None:
                raise CorruptLog(where, end.size, "unreadable, and later segments follow")
            _check_torn(view, end, where)
        if found is None:
            break
        batch, end = found
        batches.append(batch)
    if not batches:
        raise CorruptLog(where, start.size, "the first batch is unreadable; a segment is made together with it")
    return batches, end


def _batch_at(view: memoryview, end: End) -> tuple[Batch, End] | None:
    fields = _header_at(view, end.size)
    if fields is None:
        return None
    _, first, at, count, length, _, chain = fields
    start = end.size + _BATCH.size
    stop = start + length
    if first != end.next or bytes(view[stop : stop + 1]) != _END:
        return None
    body = view[start:stop]
    if _chained(end.chain, first, at, count, body) != chain:
        return None
    return Batch(first, count, at, body), End(stop + len(_END), first + count, chain)


def _header_at(view: memoryview, offset: int) -> tuple[int, int, int, int, int, int, bytes] | None:
    """Offset, first number, time, count, length, zero sectors, chain; None if there is no header here."""
    if offset + _BATCH.size > len(view):
        return None
    magic, crc, own, first, at, count, length, zeros, chain = _BATCH.unpack_from(view, offset)
    if magic != _BATCH_MAGIC or own != offset or not count or length > LOG_BATCH_BYTES_MAX:
        return None
    if zlib.crc32(view[offset + _CHECKED_FROM : offset + _BATCH.size]) != crc:
        return None
    return own, first, at, count, length, zeros, chain


def _check_torn(view: memoryview, end: End, where: str) -> None:
    """Raise unless what is left is a batch whose writing was interrupted."""
    data = bytes(view[end.size :])
    later = data.find(_BATCH_MAGIC, 1)
    while later != -1:
        header = _header_at(view, end.size + later)
        if header is not None and header[1] > end.next:
            raise CorruptLog(where, end.size, f"unreadable, but a batch that was good follows at byte {header[0]}")
        later = data.find(_BATCH_MAGIC, later + 1)
    header = _header_at(view, end.size)
    if header is None:
        # Too short, or a piece of the header itself was never written.
        torn = len(data) < _BATCH.size or _zero_pieces(data[: _BATCH.size], end.size) > 0
    else:
        _, _, _, _, length, zeros, _ = header
        rest = data[_BATCH.size : _BATCH.size + length + len(_END)]
        torn = len(rest) < length + len(_END) or _zero_pieces(rest, end.size + _BATCH.size) > zeros
    if not torn:
        raise CorruptLog(where, end.size, "the last batch was written completely and does not verify")


def _zero_pieces(data: bytes, offset: int) -> int:
    """Pieces of disk sectors in `data`, which begins at this offset of the file, that are all zeros."""
    found = 0
    start = 0
    while start < len(data):
        stop = min(len(data), start - (offset + start) % _SECTOR + _SECTOR)
        if not data[start:stop].strip(b"\0"):
            found += 1
        start = stop
    return found
