"""A whole cluster in the second mode: the first one's world, log, store and network, with the drivers in it."""

from __future__ import annotations

import logging
import random as global_random
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from protocol.failpoints import disarm_failpoints, watch_failpoints
from simulations.cluster import WALL_NS, SimulatedCluster
from simulations.prng import stream
from simulations.runtimes.coordinator import RuntimeCoordinatorLife
from simulations.runtimes.demands import demand_nothing_left
from simulations.runtimes.knobs import Knobs
from simulations.runtimes.lines import RuntimeLine
from simulations.runtimes.loop import Killed
from simulations.runtimes.participant import RuntimeParticipantLife
from simulations.runtimes.strangers import Stranger
from simulations.workloads import workload_of
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from participant.agent import Agent
    from simulations.coordinator_node import CoordinatorLife
    from simulations.forking import Forked
    from simulations.options import Options
    from simulations.runtimes.loop import DriverLoop
    from simulations.trace import Trace
    from simulations.workloads import MakeWorkload
    from simulations.world import Process

LOST_MAX: Final = 2
_LOGGERS: Final = ("cleancut", "asyncio")


class RuntimeCluster(SimulatedCluster):
    """Drivers in one world."""

    def __init__(
        self, options: Options, trace: Trace, make_workload: MakeWorkload = workload_of, forked: Forked | None = None
    ) -> None:
        super().__init__(options, trace, make_workload, forked)
        self.loops: list[DriverLoop] = []
        """Of all lives, for the end of the run."""
        self.knobs = Knobs(options.seed)
        self.acting: Process | None = None
        """Whose code runs now."""
        self.over = False
        """The run is, and nobody dies any more."""
        self._hanging: dict[str, int] = {}
        self.lost_threads: dict[tuple[str, int], int] = {}
        """(process, life) -> threads that never come back."""
        self._parked: list[tuple[str, Callable[[], None]]] = []
        self._strangers = 0
        self._park_random = stream(options.seed, "hang")

    # --- whose code runs ----------------------------------------------------------------------------------------------

    @contextmanager
    def acts(self, process: Process) -> Iterator[None]:
        """Code of this process runs."""
        before, self.acting = self.acting, process
        try:
            yield
        finally:
            self.acting = before

    def _passed(self, point: str) -> None:
        """A driver passes a point of the protocol; it may die there."""
        process = self.acting
        if process is None or not process.alive:
            return
        self.probes.point(point, process.name)
        if process.is_gone():
            raise Killed

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Everything of the interpreter's that a run needs, and puts back as it was."""
        with ExitStack() as stack:
            before = global_random.getstate()
            stack.callback(global_random.setstate, before)
            global_random.seed(self.options.seed)
            stack.callback(disarm_failpoints)
            watch_failpoints(self._passed)
            handler = _TraceHandler(self)
            for name in _LOGGERS:
                logger = logging.getLogger(name)
                stack.callback(_restore, logger, logger.level, logger.propagate, handler)
                logger.setLevel(logging.INFO if name == "cleancut" else logging.CRITICAL)
                logger.propagate = False
                logger.addHandler(handler)
            self.knobs.turn(stack)
            if self.options.turns:
                self.knobs.turn_logs(stack, lambda: WALL_NS + self.world.now, quick=self.options.store_ns < 5 * MS)
            yield

    def unwind(self) -> None:
        """The run is over: nothing is left behind that the interpreter would complain about."""
        self.acting = None
        self.over = True
        for life in [*self.lives.values(), *self.log.lives.values()]:
            life.die()
        for loop in self.loops:
            loop.close()

    # --- parts --------------------------------------------------------------------------------------------------------

    def make_participant(self, name: str, number: int, agents: Sequence[Agent]) -> RuntimeParticipantLife:
        """See `SimulatedCluster`."""
        return RuntimeParticipantLife(self, name, number, agents)

    def make_coordinator(self, name: str, number: int, dump: tuple[str, int] | None) -> RuntimeCoordinatorLife:
        """See `SimulatedCluster`."""
        return RuntimeCoordinatorLife(self, name, number, dump)

    def make_line(self, number: int, client: Any, coordinator: CoordinatorLife) -> RuntimeLine:  # noqa: ANN401 - a dialer
        """See `SimulatedCluster`."""
        return RuntimeLine(number, client, coordinator, self.knobs.window)

    def coordinators(self) -> list[RuntimeCoordinatorLife]:
        """Those that live."""
        found = [self.log.lives.get(name) for name in self.log.names]
        return [life for life in found if isinstance(life, RuntimeCoordinatorLife) and life.alive]

    def participant(self, name: str) -> RuntimeParticipantLife | None:
        """The life of a participant that lives."""
        life = self.lives.get(name)
        return life if isinstance(life, RuntimeParticipantLife) and life.alive else None

    # --- faults of this mode ------------------------------------------------------------------------------------------

    def hangs(self, name: str) -> bool:
        """Whether the store hangs for a process."""
        return bool(self._hanging) and bool(self._hanging.get("") or self._hanging.get(name))

    def drivers_stuck(self, name: str) -> bool:
        """The store hangs from now on for one process ("": for all)."""
        self._hanging[name] = self._hanging.get(name, 0) + 1
        return True

    def drivers_freed(self, name: str) -> None:
        """It does not hang any more: what was begun goes on, each at a moment of its own."""
        self._hanging[name] -= 1
        if not self._hanging[name]:
            del self._hanging[name]
        parked, self._parked = self._parked, []
        for who, go_on in parked:
            if self.hangs(who):
                self._parked.append((who, go_on))
            elif self._stays_lost(who):
                self.probes.hit("driver.thread_lost")
            else:
                self.world.after(self._park_random.below(200 * MS), self._park_random, go_on)

    def _stays_lost(self, who: str) -> bool:
        """Whether a thread never comes back, as of a mount that is gone: a few, where patience with them is short."""
        lives = [self.participant(who), *self.coordinators()]
        life = next((each for each in lives if each is not None and each.name == who), None)
        if (self.workload.outside_world or self.options.turns) and isinstance(life, RuntimeParticipantLife):
            return False  # its threads are also those of its own disk, and who has a disk that hangs for ever has none
        knobs = self.knobs
        if life is None or knobs.store_seconds > 4 or knobs.store_threads < 6:
            return False
        key = (who, life.number)
        if self.lost_threads.get(key, 0) >= LOST_MAX or not self._park_random.chance(1, 2):
            return False
        self.lost_threads[key] = self.lost_threads.get(key, 0) + 1
        return True

    def park(self, who: str, go_on: Callable[[], None]) -> None:
        """A thread hangs."""
        self._parked.append((who, go_on))

    def half_open_control(self, name: str) -> bool:
        """A participant's control connection carries nothing any more; its ends find out, each for itself."""
        life = self.participant(name)
        line = life.dialer.line if life is not None else None
        if line is None:
            return False
        line.dead = True
        return True

    def stranger(self, name: str) -> bool:
        """Somebody with a participant's token breaks the rules."""
        self._strangers += 1
        return Stranger(self, name, self._strangers).begin()

    def stop_in_order(self, name: str) -> bool:
        """A process is told to end ("": the leader's); a supervisor starts it again."""
        if name not in self.targets:
            return self._stop_coordinator(name)
        life = self.participant(name)
        if life is None or life.main is None:
            return False
        life.enter(life.stop)
        return True

    def _stop_coordinator(self, name: str) -> bool:
        wanted = self.log.lives.get(name) if name else self.log.leader
        life = next((each for each in self.coordinators() if each is wanted), None)
        if life is None or life.stopping:
            return False
        life.enter(life.stop)
        return True

    def coordinator_stopped(self, life: CoordinatorLife) -> None:
        """It has ended in order; it is started again."""
        if life.alive:
            self.crash_coordinator(life.name, 50 * MS + self._park_random.below(SECOND))

    def demand_drivers(self) -> None:
        """See `SimulatedCluster`."""
        demand_nothing_left(self)

    def heal(self) -> None:
        """See `SimulatedCluster`."""
        for name in list(self._hanging):
            while name in self._hanging:
                self.drivers_freed(name)
        super().heal()


class _TraceHandler(logging.Handler):
    """What the drivers log becomes part of the trace."""

    def __init__(self, cluster: RuntimeCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        """Take it down."""
        process = self._cluster.acting
        if process is not None and process.alive:
            self._cluster.trace.note(process.now, process.name, f"log {record.levelname}", record.getMessage())


def _restore(logger: logging.Logger, level: int, propagate: bool, handler: logging.Handler) -> None:  # noqa: FBT001 - as read
    logger.setLevel(level)
    logger.propagate = propagate
    logger.removeHandler(handler)
