"""Objects that are not what was written: rot, cut-off ends, old blocks, lost writes; and listings that are behind.

What was meant is remembered for every object that a fault has spoiled, so that the oracles can judge what an epoch means
(`SimulatedStore.meant`) apart from what a reader now gets (`RottenReader`), and demand that the difference is noticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocol.errors import ObjectCorrupt, ObjectMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from protocol.ports import ObjectStore, PutResult
    from simulations.prng import Prng
    from simulations.store import SimulatedStore

_PAGE: Final = 512
HOWS: Final = ("flip", "flip", "cut", "page", "old", "gone")
"""One bit; the end is missing; a page of something else; an older object's bytes; no object at all."""


def damaged(random: Prng, how: str, data: bytes, older: Sequence[bytes]) -> bytes:
    """What became of an object's bytes; never the bytes themselves.

    Args:
        random: Decides where.
        how: One of `HOWS`, ``gone`` excepted.
        data: What was written.
        older: Other objects' bytes, from which an old or misdirected block may come.
    """
    found = bytearray(data)
    if how == "old":
        others = [each for each in older if each != data]
        if others:
            return others[random.below(len(others))]
    if how == "cut" and data:
        return data[: random.below(len(data))]
    if how == "page" and data:
        start = random.below(len(data))
        garbage = random.next().to_bytes(8, "big") * (_PAGE // 8)
        found[start : start + _PAGE] = garbage[: len(found[start : start + _PAGE])]
        if found != data:
            return bytes(found)
    if not data:
        return b"\0"
    found = bytearray(data)
    # Half of the flips near the beginning: where a pack has its chunks, and not its index, whose own digest covers it.
    reach = len(found) if random.chance(1, 2) else len(found) // 4 + 1
    found[random.below(reach)] ^= 1 << random.below(8)
    return bytes(found)


class _View:
    """An object store over another one: only looked at."""

    def __init__(self, base: ObjectStore) -> None:
        self._base = base

    @property
    def url(self) -> str:
        """As the store's own."""
        return self._base.url

    def _bytes(self, key: str) -> bytes:
        return self._base.get(key, size_max=1 << 40)

    def get(self, key: str, *, size_max: int) -> bytes:
        """The whole object."""
        data = self._bytes(key)
        if len(data) > size_max:
            raise ObjectCorrupt("get", key, f"{len(data)} bytes; at most {size_max} are read")
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """A part of it."""
        data = self._bytes(key)
        if offset + length > len(data):
            raise ObjectCorrupt("get", key, f"{len(data)} bytes; {length} from {offset} were expected")
        return data[offset : offset + length]

    def size(self, key: str) -> int:
        """Its length."""
        return len(self._bytes(key))

    def list(self, prefix: str) -> Iterator[str]:
        """As the store's own."""
        return self._base.list(prefix)

    def put(self, key: str, data: bytes) -> PutResult:
        """Nothing is written through a view."""
        raise AssertionError(f"{key} is put into a store that is only looked at")

    def replace(self, key: str, data: bytes) -> None:
        """Nothing is written through a view."""
        raise AssertionError(f"{key} is replaced in a store that is only looked at")

    def delete(self, key: str) -> None:
        """Nothing is removed through a view."""
        raise AssertionError(f"{key} is removed from a store that is only looked at")


class RottenReader(_View):
    """What one process gets from the store: spoiled objects as they are, and reads that go wrong by themselves.

    Attributes:
        rotten: Keys of which it was given wrong bytes.
    """

    def __init__(self, store: SimulatedStore, base: ObjectStore, random: Prng) -> None:
        super().__init__(base)
        self._store = store
        self._random = random
        self.rotten: list[str] = []

    def _bytes(self, key: str) -> bytes:
        store = self._store
        try:
            data = self._base.get(key, size_max=1 << 40)
        except ObjectMissing:
            if store.is_spoiled(key):
                self.rotten.append(key)
            raise
        if store.rot_read and self._random.chance(store.rot_read, 1000):
            how = ("flip", "cut", "page", "old")[self._random.below(4)]
            store.probes.hit(f"store.read_{how}")
            wrong = damaged(self._random, how, data, store.older_than(key))
            self.rotten.append(key)
            return wrong
        if store.is_spoiled(key):
            self.rotten.append(key)
        return data


class StaleListing(_View):
    """A store whose listings are behind: they know nothing of the newest objects, or of none."""

    def __init__(self, base: ObjectStore, known: frozenset[str]) -> None:
        super().__init__(base)
        self._known = known

    def list(self, prefix: str) -> Iterator[str]:
        """What was there a while ago."""
        return iter([key for key in self._base.list(prefix) if key in self._known])


class LostDeletes(_View):
    """A store as one process uses it, where to remove or replace an object is answered and now and then not done."""

    def __init__(self, base: ObjectStore, lost: Callable[[], bool]) -> None:
        super().__init__(base)
        self._lost = lost

    def put(self, key: str, data: bytes) -> PutResult:
        """As the store's own."""
        return self._base.put(key, data)

    def replace(self, key: str, data: bytes) -> None:
        """Perhaps."""
        if not self._lost():
            self._base.replace(key, data)

    def delete(self, key: str) -> None:
        """Perhaps."""
        if not self._lost():
            self._base.delete(key)


class Spoiled:
    """Which objects are not what was written, in one store."""

    def __init__(self) -> None:
        self.meant: dict[str, bytes] = {}
        """Key -> what was written, of every object that was spoiled once."""

    def note(self, key: str, data: bytes) -> None:
        """This object is about to be spoiled."""
        self.meant.setdefault(key, data)

    def is_spoiled(self, store: ObjectStore, key: str) -> bool:
        """Whether the object's bytes are wrong now; a later put may have mended it."""
        meant = self.meant.get(key)
        if meant is None:
            return False
        try:
            return store.get(key, size_max=1 << 40) != meant
        except ObjectMissing:
            return True
        except ObjectCorrupt:
            return True
