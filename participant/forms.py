"""How a value that is not plain is kept between turns: the committed form and the ways to and from it.

Three forms, chosen per field:
    * `WholeForm`: the msgpack bytes of the value.
    * `BlocksForm`: for a `value` declared as list or dict: blocks of 32 items, each a msgpack array or map. What a turn did
      not change keeps its bytes *and* its identity: a list that grows by one item encodes as a whole (fast, in C), but
      only its last block is checked, kept and, in an epoch, written.
    * `PickleForm`: cloudpickle, opt-in per agent.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

import msgspec

from participant.schema import ENCODER, Kind, Schema, type_name
from participant.serializers import PickleAllowed, pickle_bytes, unpickle, unpickle_own
from protocol.errors import Unsavable

if TYPE_CHECKING:
    from collections.abc import Iterator

_decode_blocks: Final = msgspec.msgpack.Decoder(tuple[int, list[tuple[int, bytes]]]).decode

BLOCK_ITEMS: Final = 32
"""Items in one block of a list or dict: an append rewrites at most this many."""
BLOCK_ITEMS_MIN: Final = 4
BLOCK_BYTES: Final = 8 * 1024
"""Blocks of large items hold fewer: with 32 items of 1 KB, 1 % growth of 500 KB would write 5 % of the bytes."""


class Form(Protocol):
    """The committed form of one field's values. Committed forms are immutable and compare by content."""

    mutable: bool
    """Values can change in place: turn commit encodes what was read."""
    serializer: Literal["msgpack", "cloudpickle"]
    is_map: bool
    """Blocks are maps, not arrays."""

    def save(self, value: Any, agent: str, path: str) -> Any:  # noqa: ANN401 - any value, any form
        """The committed form of a value; raises `Unsavable`."""
        ...

    def again(self, value: Any, before: Any, agent: str, path: str) -> Any:  # noqa: ANN401 - any value, any form
        """The same for a value that may have changed in place since it had the form `before`."""
        ...

    def is_form_of(self, stored: Any, value: Any) -> bool:  # noqa: ANN401 - any value, any form
        """Whether a value is what `load` would give; False also where that costs too much to tell."""
        ...

    def detach(self, value: Any, stored: Any, before: Any) -> bool:  # noqa: ANN401 - any value, any form
        """Put copies in place of what came into a value when its form went from `before` to `stored`.

        Returns:
            Whether that was done; if not, `load` a new one.
        """
        ...

    def load(self, stored: Any) -> Any:  # noqa: ANN401 - any value, any form
        """A new value."""
        ...

    def restore(self, data: bytes, allowed: PickleAllowed | None, agent: str, path: str) -> Any:  # noqa: ANN401 - any form
        """The committed form out of stored bytes; raises what decoding raises, or `Unsavable`."""
        ...

    def logged(self, stored: Any, before: Any) -> msgspec.Raw:  # noqa: ANN401 - any form
        """A committed form for the write-ahead log, given the one before; ``()``: there was none."""
        ...

    def replayed(
        self,
        payload: msgspec.Raw,
        before: Any,  # noqa: ANN401 - any form
        allowed: PickleAllowed | None,
        agent: str,
        path: str,
    ) -> Any:  # noqa: ANN401 - any form
        """The committed form out of what `logged` gave; raises as `restore` does."""
        ...


class WholeForm:
    """msgpack bytes of the value."""

    serializer: Literal["msgpack", "cloudpickle"] = "msgpack"
    is_map = False

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.mutable = schema.kind is Kind.MUTABLE
        self.load = schema.decode

    def save(self, value: Any, agent: str, path: str) -> bytes:  # noqa: ANN401 - of the declared type
        """See `Form`."""
        return self._schema.save(value, agent, path)[0]

    def again(self, value: Any, before: bytes, agent: str, path: str) -> bytes:  # noqa: ANN401 - of the declared type
        """See `Form`."""
        if encoding_of(value) == before:
            return before
        return self._schema.save(value, agent, path)[0]

    def is_form_of(self, stored: bytes, value: Any) -> bool:  # noqa: ANN401 - of the declared type
        """See `Form`."""
        return encoding_of(value) == stored

    def detach(self, value: Any, stored: bytes, before: bytes) -> bool:  # noqa: ANN401 - of the declared type
        """See `Form`."""
        return False

    def restore(self, data: bytes, allowed: PickleAllowed | None, agent: str, path: str) -> bytes:
        """See `Form`. The bytes are kept as they are: an older schema's encoding stays until its value changes."""
        self.load(data)
        return data

    def logged(self, stored: bytes, before: Any) -> msgspec.Raw:  # noqa: ANN401 - bytes or ()
        """See `Form`."""
        return msgspec.Raw(stored)

    def replayed(
        self,
        payload: msgspec.Raw,
        before: Any,  # noqa: ANN401 - bytes or ()
        allowed: PickleAllowed | None,
        agent: str,
        path: str,
    ) -> bytes:
        """See `Form`. What was logged was checked when it was set, and is checked again when it is read."""
        return bytes(payload)


class BlocksForm:
    """A tuple of msgpack arrays (or maps) of `BLOCK_ITEMS` items each; empty for an empty value."""

    serializer: Literal["msgpack", "cloudpickle"] = "msgpack"
    mutable = True

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._cls = schema.container
        assert self._cls is not None
        self.is_map = self._cls is dict

    @staticmethod
    def fits(schema: Schema) -> bool:
        """Whether values of this type are cut in blocks."""
        return schema.container is not None

    def save(self, value: Any, agent: str, path: str) -> tuple[bytes, ...]:  # noqa: ANN401 - of the declared type
        """See `Form`."""
        return self.again(value, (), agent, path)

    def again(self, value: Any, before: tuple[bytes, ...], agent: str, path: str) -> tuple[bytes, ...]:  # noqa: ANN401
        """See `Form`."""
        if type(value) is not self._cls:
            value = self._schema.save(value, agent, path)[1]
        blocks: list[bytes] = []
        known = len(before)
        for index, items in enumerate(_cut(value, self._items_per_block(value, before))):
            data = encoding_of(items)
            if index < known and data == before[index]:
                blocks.append(before[index])
                continue
            try:
                blocks.append(self._schema.save(items, agent, path)[0])
            except Unsavable:
                self._schema.save(value, agent, path)  # names the path from the whole value's beginning
                raise
        if len(blocks) == known and all(map(_same, blocks, before)):
            return before
        return tuple(blocks)

    def is_form_of(self, stored: tuple[bytes, ...], value: Any) -> bool:  # noqa: ANN401 - of the declared type
        """See `Form`."""
        return type(value) is self._cls and encoding_of(value) == b"".join(joined_blocks(stored, is_map=self.is_map))

    def detach(self, value: Any, stored: tuple[bytes, ...], before: tuple[bytes, ...]) -> bool:  # noqa: ANN401
        """See `Form`: an append to a long list costs the decoding of one block."""
        working: Any = value
        if type(value) is not self._cls:
            return False
        known = len(before)
        new = [index for index, block in enumerate(stored) if index >= known or block is not before[index]]
        if 2 * len(new) > len(stored):
            return False
        per_block = _size_of(stored[0])[0]
        for index in new:
            copies = self._schema.decode(stored[index])
            if self.is_map:
                working.update(copies)
            else:
                working[index * per_block : index * per_block + len(copies)] = copies
        return True

    @staticmethod
    def _items_per_block(value: Any, before: tuple[bytes, ...]) -> int:  # noqa: ANN401 - a list or dict
        """As before, so that boundaries stay; anew where there was no full block."""
        if len(before) > 1:
            return _size_of(before[0])[0]
        sample = next(_cut(value, BLOCK_ITEMS), None)
        size = len(encoding_of(sample) or b"") if sample else 0
        return max(BLOCK_ITEMS_MIN, min(BLOCK_ITEMS, len(sample or ()) * BLOCK_BYTES // max(size, 1)))

    def load(self, stored: tuple[bytes, ...]) -> Any:  # noqa: ANN401 - of the declared type
        """See `Form`."""
        return self._schema.decode(b"".join(joined_blocks(stored, is_map=self.is_map)))

    def restore(self, data: bytes, allowed: PickleAllowed | None, agent: str, path: str) -> tuple[bytes, ...]:
        """See `Form`."""
        return self.again(self._schema.decode(data), (), agent, path)

    def logged(self, stored: tuple[bytes, ...], before: tuple[bytes, ...]) -> msgspec.Raw:
        """See `Form`: blocks that are others now, and how many there are."""
        known = len(before)
        changed = [(index, block) for index, block in enumerate(stored) if index >= known or block is not before[index]]
        return msgspec.Raw(ENCODER.encode((len(stored), changed)))

    def replayed(
        self,
        payload: msgspec.Raw,
        before: tuple[bytes, ...],
        allowed: PickleAllowed | None,
        agent: str,
        path: str,
    ) -> tuple[bytes, ...]:
        """See `Form`."""
        count, changed = _decode_blocks(payload)
        blocks: list[bytes | None] = [*before[:count], *([None] * (count - len(before)))]
        for index, block in changed:
            blocks[index] = block
        if None in blocks:
            raise msgspec.DecodeError(f"block {blocks.index(None)} of {path} is in no record")
        return cast("tuple[bytes, ...]", tuple(blocks))


class PickleForm:
    """cloudpickle bytes. Each turn pickles what it touched: slow, and not the same bytes in two processes."""

    serializer: Literal["msgpack", "cloudpickle"] = "cloudpickle"
    is_map = False
    mutable = True

    def __init__(self, declared: Any) -> None:  # noqa: ANN401 - a type form
        self._cls = declared if isinstance(declared, type) and declared not in {Any, float} else object

    def save(self, value: Any, agent: str, path: str) -> bytes:  # noqa: ANN401 - of the declared type
        """See `Form`."""
        if not isinstance(value, self._cls):
            raise Unsavable(agent, path, type_name(value), f"the declared type is {self._cls.__qualname__}")
        try:
            return pickle_bytes(value)
        except Exception as error:  # noqa: BLE001 - a user's __reduce__ may raise anything
            raise Unsavable(agent, path, type_name(value), f"cloudpickle refuses it: {error}") from None

    def again(self, value: Any, before: bytes, agent: str, path: str) -> bytes:  # noqa: ANN401 - of the declared type
        """See `Form`."""
        data = self.save(value, agent, path)
        return before if data == before else data

    def is_form_of(self, stored: bytes, value: Any) -> bool:  # noqa: ANN401 - of the declared type
        """See `Form`: equal objects may pickle to other bytes."""
        return False

    def detach(self, value: Any, stored: bytes, before: bytes) -> bool:  # noqa: ANN401 - of the declared type
        """See `Form`."""
        return False

    def load(self, stored: bytes) -> Any:  # noqa: ANN401 - of the declared type
        """See `Form`. The bytes were made by this process."""
        return unpickle_own(stored)

    def restore(self, data: bytes, allowed: PickleAllowed | None, agent: str, path: str) -> bytes:
        """See `Form`."""
        if allowed is None:
            raise Unsavable(agent, path, "cloudpickle", "loading it runs code, and no PickleAllowed was given")
        return self.save(unpickle(data, allowed), agent, path)

    def logged(self, stored: bytes, before: Any) -> msgspec.Raw:  # noqa: ANN401 - bytes or ()
        """See `Form`."""
        return msgspec.Raw(ENCODER.encode(stored))

    def replayed(
        self,
        payload: msgspec.Raw,
        before: Any,  # noqa: ANN401 - bytes or ()
        allowed: PickleAllowed | None,
        agent: str,
        path: str,
    ) -> bytes:
        """See `Form`. Not unpickled here: that happens when it is read, in a process that was allowed to."""
        if allowed is None:
            raise Unsavable(agent, path, "cloudpickle", "loading it runs code, and no PickleAllowed was given")
        return msgspec.msgpack.decode(payload, type=bytes)


def encoding_of(value: Any) -> bytes | None:  # noqa: ANN401 - anything
    """The encoding, or None where it fails: the check that follows names the part to blame."""
    try:
        return ENCODER.encode(value)
    except Exception:  # noqa: BLE001 - a pydantic model's own code may raise anything
        return None


def joined_blocks(blocks: tuple[bytes, ...], *, is_map: bool) -> Iterator[bytes]:
    """One msgpack array or map out of blocks: its header, then each block without its own."""
    bodies = []
    total = 0
    for block in blocks:
        count, header = _size_of(block)
        total += count
        bodies.append(memoryview(block)[header:])
    yield container_header(total, is_map=is_map)
    yield from bodies  # type: ignore[misc]  # views are bytes-like; b"".join takes them


def container_header(count: int, *, is_map: bool) -> bytes:
    """The msgpack header of an array or map with `count` entries."""
    if count < 16:
        return bytes([(0x80 if is_map else 0x90) | count])
    if count < 1 << 16:
        return bytes([0xDE if is_map else 0xDC]) + count.to_bytes(2, "big")
    return bytes([0xDF if is_map else 0xDD]) + count.to_bytes(4, "big")


def _size_of(block: bytes) -> tuple[int, int]:
    """Entries of a block and the length of its header; blocks are small, so only two header forms occur."""
    first = block[0]
    if first & 0xF0 in {0x80, 0x90}:
        return first & 0x0F, 1
    assert first in {0xDC, 0xDE}
    return int.from_bytes(block[1:3], "big"), 3


def _cut(value: Any, items: int) -> Iterator[Any]:  # noqa: ANN401 - a list or dict
    if isinstance(value, dict):
        pairs = iter(value.items())
        while part := dict(islice(pairs, items)):
            yield part
        return
    for start in range(0, len(value), items):
        yield value[start : start + items]


def _same(one: bytes, other: bytes) -> bool:
    return one is other
