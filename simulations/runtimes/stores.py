"""The object store as one process sees it: calls that block a thread, with the faults of `simulations.store`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from protocol.errors import StoreError
from simulations.prng import stream
from simulations.runtimes.loop import Killed
from simulations.store import DiedInPut
from simulations.world import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol.ports import PutResult
    from simulations.runtimes.cluster import RuntimeCluster


class ProcessStore:
    """An `ObjectStore`. The thread that calls has waited already."""

    def __init__(self, cluster: RuntimeCluster, name: str, life: int) -> None:
        self._cluster = cluster
        self._name = name
        self.rotten: list[str] = []
        """Keys of which it was given wrong bytes; for who looks at it to clear."""
        self._random = stream(cluster.options.seed, f"store:{name}:{life}")

    @property
    def url(self) -> str:
        """See `ObjectStore`."""
        return "simulated:store"

    def put(self, key: str, data: bytes) -> PutResult:
        """See `ObjectStore`."""
        store = self._cluster.store
        self._trouble("put", key)
        if store.hang and self._random.chance(store.hang, 1000):
            self._cluster.probes.hit("store.timeout")
            if self._random.chance(1, 2):
                late = SECOND + self._random.below(4 * SECOND)
                self._cluster.world.after(late, self._random, self._put_late, key, data)
            raise StoreError("put", key, "no answer", errno_name="ETIMEDOUT", definite=False)
        unheard = store.unheard and self._random.chance(store.unheard, 1000)
        try:
            result = store.put_plain(self._name, key, data)
        except DiedInPut:
            raise Killed from None
        if unheard:
            self._cluster.probes.hit("store.timeout_after_success")
            raise StoreError("put", key, "no answer", errno_name="ETIMEDOUT", definite=False)
        return result

    def _put_late(self, key: str, data: bytes) -> None:
        """A request that was given up arrives after all; nobody hears of its outcome."""
        self._cluster.probes.hit("store.put_after_timeout")
        with suppress(StoreError, DiedInPut):
            self._cluster.store.put_plain(self._name, key, data)

    def get(self, key: str, *, size_max: int) -> bytes:
        """See `ObjectStore`."""
        self._trouble("get", key)
        reader = self._cluster.store.reader()
        try:
            return reader.get(key, size_max=size_max)
        finally:
            self.rotten += reader.rotten

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See `ObjectStore`."""
        self._trouble("get", key)
        reader = self._cluster.store.reader()
        data = reader.get_range(key, offset, length)
        self.rotten += reader.rotten
        return data

    def size(self, key: str) -> int:
        """See `ObjectStore`."""
        return self._cluster.store.objects.size(key)

    def list(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore`."""
        return self._cluster.store.objects.list(prefix)

    def replace(self, key: str, data: bytes) -> None:
        """See `ObjectStore`."""
        self._trouble("replace", key)
        try:
            self._cluster.store.replace_plain(self._name, key, data)
        except DiedInPut:
            raise Killed from None

    def delete(self, key: str) -> None:
        """See `ObjectStore`."""
        self._trouble("delete", key)
        self._cluster.store.delete_plain(self._name, key)

    def _trouble(self, operation: str, key: str) -> None:
        error = self._cluster.store.trouble(self._name, operation, key)
        if error is not None:
            raise error
