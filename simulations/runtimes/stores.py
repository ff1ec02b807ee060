"""The object store as one process sees it: calls that block a thread, with the faults of `simulations.store`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.errors import StoreError
from simulations.prng import stream
from simulations.runtimes.loop import Killed
from simulations.store import DiedInPut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol.ports import PutResult
    from simulations.runtimes.cluster import RuntimeCluster


class ProcessStore:
    """An `ObjectStore`. The thread that calls has waited already."""

    def __init__(self, cluster: RuntimeCluster, name: str, life: int) -> None:
        self._cluster = cluster
        self._name = name
        self._random = stream(cluster.options.seed, f"store:{name}:{life}")

    @property
    def url(self) -> str:
        """See `ObjectStore`."""
        return "simulated:store"

    def put(self, key: str, data: bytes) -> PutResult:
        """See `ObjectStore`."""
        store = self._cluster.store
        self._trouble("put", key)
        unheard = store.unheard and self._random.chance(store.unheard, 1000)
        try:
            result = store.put_plain(self._name, key, data)
        except DiedInPut:
            raise Killed from None
        if unheard:
            self._cluster.probes.hit("store.timeout_after_success")
            raise StoreError("put", key, "no answer", errno_name="ETIMEDOUT", definite=False)
        return result

    def get(self, key: str, *, size_max: int) -> bytes:
        """See `ObjectStore`."""
        self._trouble("get", key)
        return self._cluster.store.reader().get(key, size_max=size_max)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See `ObjectStore`."""
        self._trouble("get", key)
        return self._cluster.store.reader().get_range(key, offset, length)

    def size(self, key: str) -> int:
        """See `ObjectStore`."""
        return self._cluster.store.objects.size(key)

    def list(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore`."""
        return self._cluster.store.objects.list(prefix)

    def delete(self, key: str) -> None:
        """See `ObjectStore`."""
        self._trouble("delete", key)
        self._cluster.store.delete_plain(self._name, key)

    def _trouble(self, operation: str, key: str) -> None:
        error = self._cluster.store.trouble(self._name, operation, key)
        if error is not None:
            raise error
