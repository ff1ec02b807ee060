"""An object store under virtual time, stricter than the real ones: create-only puts that fail, hang, or succeed unheard.

Two kinds. *Remote*: what is visible is durable. *Disk*: the product's own filesystem store over a `SimulatedDisk`, one store
object for each process, as they would share a folder: visible and durable part, calls fail in the middle, a process can die
between any two calls, and a power cut keeps what was synced.

A remote put that was begun goes on when its process dies.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from protocol.errors import ObjectConflict, ObjectMissing, StoreError
from protocol.storage import ensure_format
from protocol.storage.filesystem import FilesystemStore
from protocol.storage.memory import MemoryStore
from simulations.disk import SimulatedDisk
from simulations.prng import stream
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.ids import ClusterName
    from protocol.ports import ObjectStore
    from simulations.options import Options
    from simulations.probes import Probes
    from simulations.world import World

STRAGGLERS: Final = 16
"""One operation in so many takes up to 30 times as long as the others: objects become durable in any order."""
OPERATION_NS_MAX: Final = 5 * SECOND
"""Below the drivers' own patience: what they do about a store that hangs for a minute is for their tests."""
SLOW: Final = 40
"""Times as slow while a fault says so."""
_ROOT: Final = "/store"


class _DiedInPut(BaseException):
    """The process was killed between two system calls."""


class SimulatedStore:
    """The store that all share.

    Attributes:
        put_seen: Called when an object becomes visible.
        crash: Called with who dies in the middle of a put.
    """

    def __init__(self, world: World, options: Options, cluster: ClusterName, probes: Probes) -> None:
        self._world = world
        self._options = options
        self._probes = probes
        self._cluster = cluster
        self._random = stream(options.seed, "store")
        self._disk_random = stream(options.seed, "disk")
        self.put_seen: Callable[[str, bytes], None] | None = None
        self.crash: Callable[[str], None] | None = None
        self.fail = 0
        self.unheard = 0
        """Chances in 1,000 that a put fails for certain, or succeeds with an error."""
        self.fsync_fails = 0
        self.die_in_put = 0
        """Chances in 1,000 of each system call (disk only)."""
        self.down: set[str] = set()
        """Who cannot reach it; "" for everybody. Asked, never iterated."""
        self.slow = 0
        self.puts = 0
        self._seen: set[str] = set()
        """Keys that were visible once; asked, never iterated."""
        self._memory = MemoryStore(cluster)
        self._disk: SimulatedDisk | None = None
        self._stores: dict[str, FilesystemStore] = {}
        if options.disk:
            self._disk = SimulatedDisk()
            whole = FilesystemStore(_ROOT, cluster, system=self._disk)
            whole.check_openable(writable=True)
            ensure_format(whole, cluster)
        else:
            ensure_format(self._memory, cluster)

    # --- looking ------------------------------------------------------------------------------------------------------

    @property
    def objects(self) -> ObjectStore:
        """All that is visible now, without faults."""
        if self._disk is None:
            return self._memory
        return FilesystemStore(_ROOT, self._cluster, system=self._disk.everything())

    def image(self) -> ObjectStore:
        """What a power cut at this moment leaves for certain."""
        if self._disk is None:
            return self._memory
        return FilesystemStore(_ROOT, self._cluster, system=self._disk.image())

    def is_durable(self, key: str) -> bool:
        """Whether a power cut now leaves this object."""
        try:
            self.image().size(key)
        except ObjectMissing:
            return False
        return True

    # --- operations ---------------------------------------------------------------------------------------------------

    def delay(self) -> int:
        """How long the next operation takes."""
        base = self._options.store_ns
        took = base // 2 + self._random.below(base + 1)
        if self._random.chance(1, STRAGGLERS):
            took *= 1 + self._random.below(30)
        return min(took * SLOW if self.slow else took, OPERATION_NS_MAX)

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
        self._world.after(self.delay(), self._random, self._do_put, who, key, data, bool(unheard), done)

    def _do_put(
        self,
        who: str,
        key: str,
        data: bytes,
        unheard: bool,  # noqa: FBT001 - of the queue
        done: Callable[[StoreError | None], None],
    ) -> None:
        self.puts += 1
        error: StoreError | None = None
        try:
            self._store_of(who).put(key, data)
        except ObjectConflict as conflict:
            done(conflict)
            return
        except StoreError as failed:
            error = failed
        except _DiedInPut:
            self._look(key, data)
            self._probes.hit("disk.died_in_put")
            if self.crash is not None:
                self.crash(who)
            return
        self._look(key, data)
        if error is None and unheard:
            self._probes.hit("store.timeout_after_success")
            lost = StoreError("put", key, "no answer", errno_name="ETIMEDOUT", definite=False)
            self._world.after(SECOND + self._random.below(500 * MS), self._random, done, lost)
        else:
            done(error)

    def _look(self, key: str, data: bytes) -> None:
        """Tell of an object that has become visible, whatever became of its put."""
        if key in self._seen:
            return
        try:
            self.objects.size(key)
        except ObjectMissing:
            return
        self._seen.add(key)
        if self.put_seen is not None:
            self.put_seen(key, data)

    def _store_of(self, who: str) -> ObjectStore:
        if self._disk is None:
            return self._memory
        store = self._stores.get(who)
        if store is None:
            store = self._stores[who] = FilesystemStore(_ROOT, self._cluster, system=self._disk)
        self._disk.trouble = self._system_trouble
        return store

    def _system_trouble(self, call: str) -> int:
        random = self._disk_random
        if self.die_in_put and random.chance(self.die_in_put, 1000):
            raise _DiedInPut
        if self.fsync_fails and call.startswith("sync") and random.chance(self.fsync_fails, 1000):
            self._probes.hit(f"disk.{call}_EIO")
            return errno.EIO
        if self.fsync_fails and call == "write" and random.chance(self.fsync_fails, 1000):
            self._probes.hit("disk.ENOSPC_in_put")
            return errno.ENOSPC
        return 0

    # --- faults -------------------------------------------------------------------------------------------------------

    def died(self, who: str) -> None:
        """A process is gone, and with it what its store object remembered."""
        self._stores.pop(who, None)

    def power_cut(self) -> bool:
        """The disk loses what was not durable; whoever used it is dead already."""
        if self._disk is None:
            return False
        self._stores.clear()
        self._disk = self._disk.image(self._disk_random)
        self._probes.hit("disk.power_cut")
        return True

    def heal(self) -> None:
        """No faults any more."""
        self.fail = self.unheard = self.slow = self.fsync_fails = self.die_in_put = 0
        self.down.clear()
