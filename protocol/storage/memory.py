"""An object store in memory, for one process, tests and simulation. Holds to the same port as the others.

Faults are set from outside: the next put fails with a given error, every operation first calls a hook (which may wait, or
raise), and what was done is listed.

What it does not know: durability. What it holds is gone with the process.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from protocol.errors import ObjectConflict, ObjectCorrupt, ObjectMissing
from protocol.ports import PutResult
from protocol.storage.names import check_key, check_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from protocol.errors import StoreError
    from protocol.ids import ClusterName

OPERATIONS_REMEMBERED_MAX: Final = 10_000


class MemoryStore:
    """Objects in a dict. Thread safe.

    Attributes:
        operations: What was asked last, oldest first: operation and key.
        before_operation: Called with operation and key before each one, outside the lock: a place for delays and faults.
    """

    def __init__(self, cluster: ClusterName, *, name: str = "") -> None:
        self._url = f"memory:{name}"
        self._cluster = cluster
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._put_failures: deque[StoreError] = deque()
        self.operations: deque[tuple[str, str]] = deque(maxlen=OPERATIONS_REMEMBERED_MAX)
        self.before_operation: Callable[[str, str], None] | None = None

    @property
    def url(self) -> str:
        """``memory:`` and its name."""
        return self._url

    @property
    def cluster(self) -> ClusterName:
        """The cluster whose objects it holds."""
        return self._cluster

    def fail_next_put(self, error: StoreError) -> None:
        """The next put raises this instead of storing; several calls queue up."""
        self._put_failures.append(error)

    def put(self, key: str, data: bytes) -> PutResult:
        """Create an object."""
        check_key("put", key)
        self._begin("put", key)
        if self._put_failures:
            raise self._put_failures.popleft()
        with self._lock:
            there = self._objects.get(key)
            if there is None:
                self._objects[key] = bytes(data)
                return PutResult.CREATED
            if there == data:
                return PutResult.ALREADY_THERE
        raise ObjectConflict("put", key, f"holds {len(there)} other bytes already; these were {len(data)}")

    def replace(self, key: str, data: bytes) -> None:
        """Write an object in the place of whatever is there."""
        check_key("replace", key)
        self._begin("replace", key)
        if self._put_failures:
            raise self._put_failures.popleft()
        with self._lock:
            self._objects[key] = bytes(data)

    def get(self, key: str, *, size_max: int) -> bytes:
        """The whole object."""
        data = self._get("get", key)
        if len(data) > size_max:
            raise ObjectCorrupt("get", key, f"{len(data)} bytes; at most {size_max} are read")
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`."""
        assert offset >= 0, "a range begins in the object"
        assert length >= 0, "a range has a length"
        data = self._get("get_range", key)
        if offset + length > len(data):
            raise ObjectCorrupt("get", key, f"{len(data)} bytes; {length} from {offset} were expected")
        return data[offset : offset + length]

    def size(self, key: str) -> int:
        """Bytes of an object."""
        return len(self._get("size", key))

    def list(self, prefix: str) -> Iterator[str]:
        """Keys that begin with `prefix`, sorted."""
        check_prefix(prefix)
        self._begin("list", prefix)
        with self._lock:
            keys = sorted(key for key in self._objects if key.startswith(prefix))
        return iter(keys)

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is fine."""
        check_key("delete", key)
        self._begin("delete", key)
        with self._lock:
            self._objects.pop(key, None)

    def replace_for_test(self, key: str, data: bytes) -> None:
        """Change an object behind everybody's back, as a failing disk or an attacker would."""
        with self._lock:
            self._objects[key] = data

    def _get(self, operation: str, key: str) -> bytes:
        check_key("get", key)
        self._begin(operation, key)
        with self._lock:
            data = self._objects.get(key)
        if data is None:
            raise ObjectMissing("get", key, f"no such object in {self._url}")
        return data

    def _begin(self, operation: str, key: str) -> None:
        self.operations.append((operation, key))
        if self.before_operation is not None:
            self.before_operation(operation, key)


_named: WeakValueDictionary[tuple[str, str], MemoryStore] = WeakValueDictionary()
_named_lock: Final = threading.Lock()


def named_store(name: str, cluster: ClusterName) -> MemoryStore:
    """The store that this process knows by this name, as long as anybody holds it."""
    with _named_lock:
        store = _named.get((name, cluster))
        if store is None:
            store = _named[name, cluster] = MemoryStore(cluster, name=name)
        return store
