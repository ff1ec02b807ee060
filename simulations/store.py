"""An object store under virtual time, stricter than the real ones: create-only puts that fail, hang, or succeed unheard.

A put that was begun goes on when its process dies. What is visible is durable here; `simulations.disk` is where the two
part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocol.errors import ObjectConflict, ObjectMissing, StoreError
from protocol.storage import ensure_format
from protocol.storage.memory import MemoryStore
from simulations.prng import stream
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.ids import ClusterName
    from simulations.options import Options
    from simulations.probes import Probes
    from simulations.world import World

STRAGGLERS: Final = 16
"""One operation in so many takes up to 30 times as long as the others: objects become durable in any order."""
SLOW: Final = 40
"""Times as slow while a fault says so."""


class SimulatedStore:
    """The store that all share.

    Attributes:
        objects: What is in it, through the port that the product uses. Faults apply to `get`.
        put_seen: Called when an object becomes visible.
    """

    def __init__(self, world: World, options: Options, cluster: ClusterName, probes: Probes) -> None:
        self._world = world
        self._options = options
        self._probes = probes
        self._random = stream(options.seed, "store")
        self.objects = MemoryStore(cluster)
        self.image = MemoryStore(cluster)
        """The same objects without faults: what a crash of everything would leave."""
        ensure_format(self.objects, cluster)
        ensure_format(self.image, cluster)
        self.put_seen: Callable[[str, bytes], None] | None = None
        self.fail = 0
        self.unheard = 0
        """Chances in 1,000 that a put fails for certain, or succeeds with an error."""
        self.down: set[str] = set()
        """Who cannot reach it; "" for everybody. Asked, never iterated."""
        self.slow = 0
        self.puts = 0

    def delay(self) -> int:
        """How long the next operation takes."""
        base = self._options.store_ns
        took = base // 2 + self._random.below(base + 1)
        if self._random.chance(1, STRAGGLERS):
            took *= 1 + self._random.below(30)
        return took * SLOW if self.slow else took

    def unreachable(self, who: str) -> bool:
        """Whether `who` gets no answer."""
        return "" in self.down or who in self.down

    def trouble(self, who: str, operation: str, key: str) -> StoreError | None:
        """The error that an operation begun now meets before it does anything."""
        if self.unreachable(who):
            self._probes.hit("store.down")
            return StoreError(operation, key, "connection refused", errno_name="ECONNREFUSED")
        if self.fail and self._random.chance(self.fail, 1000):
            name = ("ENOSPC", "EIO", "EACCES")[self._random.below(3)]
            self._probes.hit(f"store.{name}")
            return StoreError(operation, key, "injected", errno_name=name)
        return None

    def put(self, who: str, key: str, data: bytes, done: Callable[[StoreError | None], None]) -> None:
        """Begin a put; `done` is called with the outcome. Whoever calls checks that it still lives."""
        error = self.trouble(who, "put", key)
        if error is not None:
            self._world.after(self.delay(), self._random, done, error)
            return
        unheard = self.unheard and self._random.chance(self.unheard, 1000)
        self._world.after(self.delay(), self._random, self._do_put, key, data, bool(unheard), done)

    def _do_put(self, key: str, data: bytes, unheard: bool, done: Callable[[StoreError | None], None]) -> None:  # noqa: FBT001 - of the queue
        self.puts += 1
        try:
            self.objects.put(key, data)
        except ObjectConflict as error:
            done(error)
            return
        if self._is_new(key):
            self.image.put(key, data)
            if self.put_seen is not None:
                self.put_seen(key, data)
        if unheard:
            self._probes.hit("store.timeout_after_success")
            lost = StoreError("put", key, "no answer", errno_name="ETIMEDOUT", definite=False)
            self._world.after(SECOND + self._random.below(500 * MS), self._random, done, lost)
        else:
            done(None)

    def _is_new(self, key: str) -> bool:
        try:
            self.image.size(key)
        except ObjectMissing:
            return True
        return False

    def heal(self) -> None:
        """No faults any more."""
        self.fail = self.unheard = self.slow = 0
        self.down.clear()
