"""One field of an agent as chunks: what an epoch writes of it, and what it names again from the epoch before.

Theory of operation:
    * A `keyed` field is a *base*, all its entries in segments of about `EncodingLimits.segment_bytes`, and *overlays*, one per
      epoch in which it changed: only the entries that changed. Segments apply in order, a later entry takes the place of an
      earlier one, and then the keys in `removed` go. So an epoch writes about the bytes that changed, however the keys
      are scattered (segments by hash of the key would all be dirty at 1 % churn: 0.99 ** 500 is nothing). Each manifest names
      base and overlays itself: there is no chain.
    * `OVERLAYS_MAX` overlays are merged into one; when overlays hold half as many entries as the base, the field is
      written anew. Both keep the number of chunks and the bytes to be read by a restore within a constant.
    * A list or dict in a `value` is its header and one chunk per block of 32 items (`participant.forms`): a block that still
      is the same object as in the last committed epoch is not even hashed.
    * Everything else is cut into pieces of `EncodingLimits.piece_bytes`; pieces with a digest that the field had before are named again.

All of it is generators that yield after about 64 KiB or a few hundred entries, since the event loop waits meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, chain
from operator import add
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from participant.cells import KeyedState, ObjectCell, PlainCell, WholeCell
from participant.forms import container_header, joined_blocks
from participant.history import MISSING
from participant.schema import ENCODER

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from typing import TypeAlias

    from participant.packing import Chunk, ChunkWriter

    Steps: TypeAlias = Generator[None, None, "SavedCell"]

ENTRIES_PER_STEP: Final = 128
"""Entries of keyed state looked at between two yields: about 0.1 ms."""
FEW_ENTRIES: Final = 8
"""So few are encoded one by one."""
OVERLAYS_MAX: Final = 12
"""At 1 % churn a merge comes each 12th epoch; a restore reads at most this many small segments more."""
BLOCK_BYTES_MIN: Final = 1024
"""Blocks are joined into chunks of at least about this size: a reference costs some 145 bytes in the local snapshot."""

_PAIR: Final = b"\x92"
"""Header of an entry: an array of key and value."""
_ENTRY_OVERHEAD_BYTES: Final = 1 + 2 * 9
"""The pair's own header, and a header or a whole number for key and value each."""
_UTF8_BYTES_MAX: Final = 4
_UNKNOWN: Final = 1 << 62
"""Bytes of what cannot be told cheaply."""
_BYTES: Final = frozenset({bytes})
_SIZED: Final = frozenset({bytes, str})
_FIXED: Final = frozenset({int, float, bool})

Segments = tuple[tuple["Chunk", ...], ...]


class SavedCell(NamedTuple):
    """What one epoch holds of a field, and what the next needs to know of it."""

    segments: Segments
    removed: tuple[Chunk, ...] = ()
    plan: Any = None
    """`_KeyedPlan` or `_BlocksPlan`."""


class _KeyedPlan(NamedTuple):
    base: Segments
    base_keys: int
    overlays: tuple[tuple[Segments, tuple[Any, ...]], ...]
    """Segments and keys of each, oldest first."""
    removed: dict[Any, None]
    """Keys that base or overlays may hold and the state does not."""


class _BlocksPlan(NamedTuple):
    blocks: tuple[bytes, ...]
    per_chunk: int


def encode_cell(cell: Any, generation: int, since: int, saved: SavedCell | None, writer: ChunkWriter) -> Steps:  # noqa: ANN401 - a cell
    """Write what changed of a field.

    Args:
        cell: The field.
        generation: The cut whose value is written.
        since: The cut that `saved` is of.
        saved: What the last committed epoch holds of it, or None.
        writer: Takes chunks.

    Yields:
        After each small step.

    Returns:
        What this epoch holds of the field.

    Raises:
        Unsavable: An agent's own `capture` gave something that cannot be saved.
    """
    if saved is not None and not cell.changed(since, generation):
        return saved
    if isinstance(cell, KeyedState):
        return (yield from _keyed(cell, generation, since, saved, writer))
    if isinstance(cell, PlainCell):
        return (yield from _plain(cell.stored_at(generation), saved, writer))
    assert isinstance(cell, ObjectCell | WholeCell)
    stored = cell.stored_at(generation)
    if stored is MISSING:
        return SavedCell(())
    if isinstance(stored, tuple):
        return (yield from _blocks(stored, is_map=cell.form.is_map, saved=saved, writer=writer))
    return (yield from _pieces(_cut(stored, writer), saved, writer))


# --- values -----------------------------------------------------------------------------------------------------------


def _plain(value: Any, saved: SavedCell | None, writer: ChunkWriter) -> Steps:  # noqa: ANN401 - a plain value
    if value is MISSING:
        return SavedCell(())
    if isinstance(value, bytes) and len(value) > writer.limits.piece_bytes:
        header = b"\xc6" + len(value).to_bytes(4, "big")
        return (yield from _pieces(_chain(header, _cut(value, writer)), saved, writer))
    return (yield from _pieces(_cut(ENCODER.encode(value), writer), saved, writer))


def _pieces(pieces: Iterable[bytes | memoryview], saved: SavedCell | None, writer: ChunkWriter) -> Steps:
    known = {} if saved is None else {chunk.digest: chunk for segment in saved.segments for chunk in segment}
    chunks: list[Chunk] = []
    for piece in pieces:
        chunks.append(writer.put(bytes(piece), known))
        yield
    return SavedCell((tuple(chunks),))


def _cut(data: bytes, writer: ChunkWriter) -> Iterator[bytes | memoryview]:
    size = writer.limits.piece_bytes
    if len(data) <= size:
        yield data
        return
    view = memoryview(data)
    for start in range(0, len(data), size):
        yield view[start : start + size]


def _chain(header: bytes, rest: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    yield header
    yield from rest


def _blocks(stored: tuple[bytes, ...], *, is_map: bool, saved: SavedCell | None, writer: ChunkWriter) -> Steps:
    """Header, then one chunk per block or per few small ones."""
    before = saved.plan if saved is not None and isinstance(saved.plan, _BlocksPlan) else None
    total = sum(map(len, stored))
    per_chunk = max(1, -(-BLOCK_BYTES_MIN * len(stored) // total)) if total else 1
    if before is not None and before.per_chunk <= 4 * per_chunk and per_chunk <= 4 * before.per_chunk:
        per_chunk = before.per_chunk  # boundaries stay, so unchanged chunks do
    old_blocks: tuple[bytes, ...] = ()
    old_chunks: Sequence[Sequence[Chunk]] = ()
    if before is not None and saved is not None and before.per_chunk == per_chunk:
        old_blocks, old_chunks = before.blocks, saved.segments[1:]
    segments: list[tuple[Chunk, ...]] = []
    count = 0
    for index, start in enumerate(range(0, len(stored), per_chunk)):
        group = stored[start : start + per_chunk]
        was = old_blocks[start : start + per_chunk]
        if index < len(old_chunks) and len(was) == len(group) and all(map(_same, group, was)):
            segments.append(tuple(old_chunks[index]))
            if index % 256 == 255:
                yield
        else:
            _, *bodies = joined_blocks(group, is_map=is_map)
            body = b"".join(bodies)
            chunks: list[Chunk] = []
            for piece in _cut(body, writer):
                chunks.append(writer.put(bytes(piece), {}))
                yield
            segments.append(tuple(chunks))
        count += sum(map(_entries, group))
    header = writer.put(container_header(count, is_map=is_map), {})
    # One segment per chunk group keeps the positions for the next epoch; joined they are one value all the same.
    return SavedCell(((header,), *segments), plan=_BlocksPlan(stored, per_chunk))


def _same(one: bytes, other: bytes) -> bool:
    return one is other


def _entries(block: bytes) -> int:
    first = block[0]
    return first & 0x0F if first & 0xF0 in {0x80, 0x90} else int.from_bytes(block[1:3], "big")


# --- keyed state ------------------------------------------------------------------------------------------------------


def _keyed(
    cell: KeyedState[Any, Any], generation: int, since: int, saved: SavedCell | None, writer: ChunkWriter
) -> Steps:
    if saved is None:
        return (yield from _keyed_anew(cell, generation, writer))
    plan = saved.plan
    assert isinstance(plan, _KeyedPlan)
    changed = cell.changed(since, generation)
    yield
    overlaid = sum(len(keys) for _, keys in plan.overlays)
    if 2 * (overlaid + len(plan.removed) + len(changed)) > plan.base_keys:
        return (yield from _keyed_anew(cell, generation, writer))
    overlays = plan.overlays
    removed = dict(plan.removed)
    keys: dict[Any, None] = changed
    if len(overlays) >= OVERLAYS_MAX:
        keys = {}
        for _, overlay in overlays:
            keys.update(dict.fromkeys(overlay))
            yield
        keys.update(changed)
        overlays = ()
    present: list[Any] = []
    gone: list[Any] = []
    segments = yield from _segments(_Wanted(cell, generation, list(keys), gone, present), writer)
    for key in present:
        removed.pop(key, None)
    removed.update(dict.fromkeys(gone))
    if segments:
        overlays = (*overlays, (segments, tuple(present)))
    lists = saved.removed
    if removed.keys() != plan.removed.keys():
        lists = yield from _keys(removed, writer)
    plan = _KeyedPlan(plan.base, plan.base_keys, overlays, removed)
    return SavedCell(_joined(plan), lists, plan)


def _keyed_anew(cell: KeyedState[Any, Any], generation: int, writer: ChunkWriter) -> Steps:
    keys = cell.keys_at(generation)
    yield
    later: list[Any] = []
    base = yield from _segments(_Wanted(cell, generation, keys, later), writer)
    plan = _KeyedPlan(base, len(keys) - len(later), (), {})
    return SavedCell(_joined(plan), (), plan)


def _joined(plan: _KeyedPlan) -> Segments:
    return (*plan.base, *(segment for segments, _ in plan.overlays for segment in segments))


class _Wanted(NamedTuple):
    """Keys of a field whose entries are to be written."""

    cell: KeyedState[Any, Any]
    generation: int
    """The cut that they are of."""
    keys: list[Any]
    gone: list[Any]
    """Filled with those that were not there."""
    present: list[Any] | None = None
    """Filled with the others."""

    def batches(self) -> Iterator[tuple[list[Any], list[Any]]]:
        """Keys and what is stored under them, a step's worth each."""
        for start in range(0, len(self.keys), ENTRIES_PER_STEP):
            batch = self.keys[start : start + ENTRIES_PER_STEP]
            yield batch, self.cell.stored_many(self.generation, batch)


def _segments(wanted: _Wanted, writer: ChunkWriter) -> Generator[None, None, Segments]:
    """The entries in segments."""
    cell = wanted.cell
    if cell.serializer == "msgpack" and cell.form is not None:
        return (yield from _encoded_segments(wanted, writer))
    present, gone = wanted.present, wanted.gone
    segments: list[tuple[Chunk, ...]] = []
    entries: list[bytes] = []
    count = size = 0
    target = writer.limits.segment_bytes
    encode = ENCODER.encode
    for batch, values in wanted.batches():
        at = 0
        while at < len(batch):
            fitting = _surely_fitting(batch, values, at, target - size)
            part, held = batch[at : at + (fitting or FEW_ENTRIES)], values[at : at + (fitting or FEW_ENTRIES)]
            at += len(part)
            if fitting:
                # All of them in one call: the array's items are the entries.
                joined = encode(list(zip(part, held, strict=True)))[len(container_header(fitting, is_map=False)) :]
                entries.append(joined)
                size += len(joined)
                count += fitting
                if present is not None:
                    present.extend(part)
                continue
            for key, value in zip(part, held, strict=True):
                if value is MISSING:
                    gone.append(key)
                    continue
                if present is not None:
                    present.append(key)
                entry = _PAIR + encode(key) + encode(value)
                entries.append(entry)
                size += len(entry)
                count += 1
                if size >= target:
                    segments.append((yield from _segment(entries, count, writer)))
                    entries, count, size = [], 0, 0
        yield
    if entries:
        segments.append((yield from _segment(entries, count, writer)))
    return tuple(segments)


def _encoded_segments(wanted: _Wanted, writer: ChunkWriter) -> Generator[None, None, Segments]:
    """`_segments` of values that are kept encoded: where a segment ends is told from lengths, and each byte is copied once."""
    present, gone = wanted.present, wanted.gone
    segments: list[tuple[Chunk, ...]] = []
    parts: list[bytes] = []
    count = size = 0
    target = writer.limits.segment_bytes
    encode = ENCODER.encode
    for keys, stored in wanted.batches():
        batch, values = keys, stored
        try:
            sizes = list(map(len, values))
        except TypeError:
            # MISSING has no length: a key that was not there at the cut.
            gone.extend(key for key, value in zip(keys, stored, strict=True) if value is MISSING)
            batch = [key for key, value in zip(keys, stored, strict=True) if value is not MISSING]
            values = [value for value in stored if value is not MISSING]
            sizes = list(map(len, values))
        if present is not None:
            present.extend(batch)
        heads = list(map(_PAIR.__add__, map(encode, batch)))
        ends = list(accumulate(map(add, map(len, heads), sizes), initial=size))
        at = began = 0
        while (end := bisect_left(ends, began + target, at + 1)) < len(ends):
            # The entry that reaches the target is the segment's last.
            parts.extend(chain.from_iterable(zip(heads[at:end], values[at:end], strict=True)))
            segments.append((yield from _segment(parts, count + end - at, writer)))
            parts, count = [], 0
            at, began = end, ends[end]
        parts.extend(chain.from_iterable(zip(heads[at:], values[at:], strict=True)))
        count += len(batch) - at
        size = ends[-1] - began
        yield
    if parts:
        segments.append((yield from _segment(parts, count, writer)))
    return tuple(segments)


def _surely_fitting(keys: list[Any], values: list[Any], at: int, room: int) -> int:
    """How many entries from `at` on take less than `room` bytes: found by halves; 0 for only a few, or where one is MISSING."""
    count = len(keys) - at
    while count >= FEW_ENTRIES:
        if _bytes_at_most(keys[at : at + count], values[at : at + count]) < room:
            return count
        count //= 2
    return 0


def _bytes_at_most(keys: list[Any], values: list[Any]) -> int:
    """No less than the encoded bytes of these entries, cheaply; a large number where that cannot be told."""
    total = _ENTRY_OVERHEAD_BYTES * len(keys)
    for part in (keys, values):
        kinds = set(map(type, part))
        if kinds <= _SIZED:
            total += sum(map(len, part)) * (1 if kinds == _BYTES else _UTF8_BYTES_MAX)
        elif not kinds <= _FIXED:
            return _UNKNOWN
    return total


def _segment(entries: list[bytes], count: int, writer: ChunkWriter) -> Generator[None, None, tuple[Chunk, ...]]:
    chunks: list[Chunk] = []
    whole = b"".join([container_header(count, is_map=False), *entries])
    # A segment of one huge entry is cut; an ordinary one overshoots the target by its last entry and stays whole.
    for piece in [whole] if len(whole) < 2 * writer.limits.segment_bytes else _cut(whole, writer):
        chunks.append(writer.put(bytes(piece), {}))
        yield
    return tuple(chunks)


def _keys(keys: dict[Any, None], writer: ChunkWriter) -> Generator[None, None, tuple[Chunk, ...]]:
    """Chunks that joined are one msgpack array of keys."""
    chunks = []
    for piece in _cut(ENCODER.encode(list(keys)), writer) if keys else ():
        chunks.append(writer.put(bytes(piece), {}))
        yield
    return tuple(chunks)
