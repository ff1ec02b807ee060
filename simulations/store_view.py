"""What lies in a store at this moment, for judges: no store's code stands between, and nothing is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.errors import ObjectCorrupt, ObjectMissing
from protocol.storage.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from protocol.ports import PutResult


class OpenMemory(MemoryStore):
    """A store in memory that judges can look into."""

    def find(self, key: str) -> bytes | None:
        """An object's bytes; None: there is none."""
        return self._objects.get(key)

    def keys(self) -> list[str]:
        """All keys."""
        return list(self._objects)


class StoreView:
    """An `ObjectStore` that is only looked at."""

    __slots__ = ("_find", "_keys", "_over")

    def __init__(
        self, find: Callable[[str], bytes | None], keys: Callable[[], Iterable[str]], *over: Mapping[str, bytes]
    ) -> None:
        """A view.

        Args:
            find: Gives an object's bytes, the same object as long as nobody writes it anew; None: there is none.
            keys: Gives all keys.
            over: Objects that are seen in place of those that lie there.
        """
        self._find = find
        self._keys = keys
        self._over = over

    @property
    def url(self) -> str:
        """It is in memory."""
        return "memory:view"

    def find(self, key: str) -> bytes | None:
        """An object's bytes; None: there is none."""
        for objects in self._over:
            data = objects.get(key)
            if data is not None:
                return data
        return self._find(key)

    def _get(self, key: str) -> bytes:
        data = self.find(key)
        if data is None:
            raise ObjectMissing("get", key, "no such object", errno_name="ENOENT")
        return data

    def get(self, key: str, *, size_max: int) -> bytes:
        """The whole object."""
        data = self._get(key)
        if len(data) > size_max:
            raise ObjectCorrupt("get", key, f"{len(data)} bytes; at most {size_max} are read")
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """A part of it."""
        data = self._get(key)
        if offset + length > len(data):
            raise ObjectCorrupt("get", key, f"{len(data)} bytes; {length} from {offset} were expected")
        return data[offset : offset + length]

    def size(self, key: str) -> int:
        """Its length."""
        return len(self._get(key))

    def list(self, prefix: str) -> Iterator[str]:
        """All keys that begin so, sorted."""
        keys = {key for source in (self._keys(), *self._over) for key in source}
        return iter(sorted(key for key in keys if key.startswith(prefix)))

    def put(self, key: str, data: bytes) -> PutResult:
        """Nothing is written through a view."""
        raise AssertionError(f"{len(data)} bytes of {key} are put into a store that is only looked at")

    def replace(self, key: str, data: bytes) -> None:
        """Nothing is written through a view."""
        raise AssertionError(f"{len(data)} bytes of {key} are put into a store that is only looked at")

    def delete(self, key: str) -> None:
        """Nothing is removed through a view."""
        raise AssertionError(f"{key} is removed from a store that is only looked at")
