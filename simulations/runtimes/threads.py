"""Threads that block in the store: each is an event of the world that takes virtual time.

A thread's work begins after a delay, runs in one event, and its outcome is heard after another one where it was an answer
that got lost. While the store hangs for its process it does not begin; it does when that is over, whoever still waits.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any

from participant.runtime.durable_log import DurableLog
from participant.runtime.turn_base import write_base
from protocol.errors import StoreError
from simulations.local_disk import SimulatedFolder
from simulations.log_disk import ProcessDied
from simulations.runtimes.loop import Killed
from simulations.violations import Violation
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulations.local_disk import LocalDisk
    from simulations.prng import Prng
    from simulations.runtimes.cluster import RuntimeCluster
    from simulations.world import Process


class SimulatedThreads(Executor):
    """A pool of so many threads of one process."""

    def __init__(self, cluster: RuntimeCluster, process: Process, random: Prng, count: int) -> None:
        self._cluster = cluster
        self._process = process
        self._random = random
        self._free = count
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._writing: dict[int, Callable[[], Any]] = {}
        """Calls of the process's own disk that have begun, by number."""
        self._number = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:  # noqa: ANN401 - the function's own
        """As a pool of real threads: begins when one is free."""
        future: Future[Any] = Future()
        self._waiting.append((future, partial(fn, *args, **more)))
        self._begin()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as its base
        """No work begins any more; what runs goes on."""
        while cancel_futures and self._waiting:
            self._waiting.popleft()[0].cancel()

    def _begin(self) -> None:
        while self._waiting and self._free:
            future, work = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                self._free -= 1
                at = self._process.now + self._cluster.store.delay()
                if self._cluster.options.turns and _on_disk(work):
                    self._number += 1
                    self._writing[self._number] = work
                    work = partial(self._written, self._number)
                self._cluster.world.at(at, self._random, self.due, future, work)
        if self._waiting:
            self._cluster.probes.hit("driver.threads_all_busy")

    def _written(self, number: int) -> Any:  # noqa: ANN401 - the work's own
        work = self._writing.pop(number, None)
        if work is None:
            raise ProcessDied
        return work()

    def die(self, disk: LocalDisk) -> None:
        """The process is killed: what it was just writing is there, or a part of it, or nothing."""
        writing, self._writing = self._writing, {}
        for work in writing.values():
            if not self._random.chance(1, 2):
                continue
            for files in disk.logs.values():
                files.die_soon(1 + self._random.below(4))
            self._outcome(work)
            for files in disk.logs.values():
                files.die_at = None

    def due(self, future: Future[Any], work: Callable[[], Any]) -> None:
        """The store has got the request, unless it hangs."""
        cluster, process = self._cluster, self._process
        if cluster.hangs(process.name):
            cluster.probes.hit("store.hung")
            cluster.park(process.name, partial(self.due, future, work))
        elif process.alive:
            process.enter(self._run, future, work)
        elif not cluster.options.disk and self._random.chance(1, 2):
            # What a dead process has sent to a remote store is on its way all the same.
            cluster.probes.hit("store.put_of_the_dead")
            self._outcome(work)

    def _run(self, future: Future[Any], work: Callable[[], Any]) -> None:
        with self._cluster.acts(self._process):
            result, error = self._outcome(work)
        if self._process.is_gone():
            return
        late = 0
        if isinstance(error, StoreError) and error.errno_name == "ETIMEDOUT":
            late = SECOND + self._random.below(500 * MS)
        self._cluster.world.at(
            self._process.now + late, self._random, self._process.enter, self._end, future, result, error
        )

    @staticmethod
    def _outcome(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        try:
            return work(), None
        except Violation:
            raise
        except (Exception, Killed, ProcessDied) as error:  # noqa: BLE001 - it is given to whoever waits
            return None, error

    def _end(self, future: Future[Any], result: Any, error: BaseException | None) -> None:  # noqa: ANN401 - the work's own
        self._free += 1
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
        self._begin()


def _on_disk(work: Callable[[], Any]) -> bool:
    """Whether a thread's work is on the process's own disk, and ends with it."""
    called: Any = work
    while isinstance(called, partial):
        # `asyncio.to_thread` wraps what it is given into a context.
        called = called.args[0] if called.args and callable(called.args[0]) else called.func
    return called is write_base or isinstance(getattr(called, "__self__", None), DurableLog | SimulatedFolder)
