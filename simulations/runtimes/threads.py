"""Threads that block in the store: each is an event of the world that takes virtual time.

A thread's work begins after a delay, runs in one event, and its outcome is heard after another one where it was an answer
that got lost. While the store hangs for its process it does not begin; it does when that is over, whoever still waits.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any

from protocol.errors import StoreError
from simulations.runtimes.loop import Killed
from simulations.violations import Violation
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

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
                self._cluster.world.at(at, self._random, self.due, future, work)
        if self._waiting:
            self._cluster.probes.hit("driver.threads_all_busy")

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
        except (Exception, Killed) as error:  # noqa: BLE001 - it is given to whoever waits
            return None, error

    def _end(self, future: Future[Any], result: Any, error: BaseException | None) -> None:  # noqa: ANN401 - the work's own
        self._free += 1
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
        self._begin()
