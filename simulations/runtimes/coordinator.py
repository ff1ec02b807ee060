"""A coordinator in the second mode: the product's `Driver` with its hub, as the service puts them together.

What is put in place of the world: the replicated log, the participants' sockets, the store, threads and clocks.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from coordinator.events import AbortRequested, CutAssembled, EpochTriggered, PolicyChanged, RestoreRequested
from coordinator.fences import StoreFence
from coordinator.ledger import parse_result
from coordinator.runtime.answers import ApiError
from coordinator.runtime.driver import REQUEST_SECONDS_MAX, Clock, Driver
from protocol.errors import Refused, Unreachable
from protocol.ids import Instant
from simulations.coordinator_node import CoordinatorLife
from simulations.oracles.rot import check_noticed
from simulations.outside import SinkFence
from simulations.prng import stream
from simulations.runtimes.demands import check_one_connection
from simulations.runtimes.loop import DriverLoop, Killed
from simulations.runtimes.sockets import ServerSocket
from simulations.runtimes.stores import ProcessStore
from simulations.runtimes.threads import SimulatedThreads

if TYPE_CHECKING:
    from coordinator.events import AssembleCut, CutRefused, Effect, Event, SnapshotsUnreadable
    from coordinator.fences import Fence
    from coordinator.machine import Leader
    from coordinator.runtime.probes import Found
    from coordinator.runtime.raft import RaftGroup
    from simulations.control import ControlLine
    from simulations.runtimes.cluster import RuntimeCluster
    from simulations.runtimes.lines import RuntimeLine


class ProcessClock(Clock):
    """A coordinator's time: its process's."""

    def __init__(self, life: RuntimeCoordinatorLife) -> None:
        self._life = life

    def now(self) -> Instant:
        """See `Clock`."""
        return Instant(self._life.now)

    def wall(self) -> int:
        """See `Clock`."""
        return self._life.cluster.wall(self._life.name)


class WatchedLeader:
    """The leader's machine, and tells the trace."""

    def __init__(self, leader: Leader, life: RuntimeCoordinatorLife) -> None:
        self._leader = leader
        self._life = life

    def step(self, event: Event, now: Instant) -> tuple[Effect, ...]:
        """See `Leader`."""
        effects = self._leader.step(event, now)
        life = self._life
        if life.alive:
            life.cluster.trace.note(life.now, life.name, type(event).__name__, event, b"%d" % len(effects))
        return effects

    @property
    def leading(self) -> bool:
        """See `Leader`."""
        return self._leader.leading


class WatchedDriver(Driver):
    """The product's, and tells the oracles what its reads were given."""

    life: RuntimeCoordinatorLife

    def _assemble_now(self, order: AssembleCut) -> CutAssembled | CutRefused | SnapshotsUnreadable:
        cluster, rotten = self.life.cluster, self.life.store.rotten
        rotten.clear()
        found = super()._assemble_now(order)
        if rotten:
            cluster.rotten_reads.add(order.epoch)
            cluster.probes.hit("rot.noticed_by_assembler")
        if isinstance(found, CutAssembled):
            check_noticed(cluster, order.epoch, list(rotten))
        return found


class SimulatedGroup:
    """What the driver asks of the replicated log."""

    def __init__(self, life: RuntimeCoordinatorLife) -> None:
        self._life = life
        self._waiting: dict[tuple[str, int], list[asyncio.Future[str]]] = {}

    async def submit(self, command: str, timeout: float) -> str:
        """See `RaftGroup.submit`."""
        life = self._life
        client, number = json.loads(command)["id"]
        identity = (str(client), int(number))
        future: asyncio.Future[str] = life.loop.create_future()
        self._waiting.setdefault(identity, []).append(future)
        life.cluster.log.submit(life, command, identity)
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise Unreachable(f"no answer within {timeout:.0f} s") from None
        finally:
            waiting = self._waiting[identity]
            waiting.remove(future)
            if not waiting:
                del self._waiting[identity]

    def answered(self, identity: tuple[str, int], answer: str | Exception) -> None:
        """The log says what became of a command."""
        for future in self._waiting.get(identity, ()):
            if not future.done():
                if isinstance(answer, str):
                    future.set_result(answer)
                else:
                    future.set_exception(answer)


class RuntimeCoordinatorLife(CoordinatorLife):
    """One process of a coordinator."""

    def __init__(self, cluster: RuntimeCluster, name: str, number: int, dump: tuple[str, int] | None) -> None:
        """Start; as `CoordinatorLife`."""
        super().__init__(cluster, name, number, dump)
        seed = cluster.options.seed
        self.loop = DriverLoop(cluster, self, stream(seed, f"loop:{name}:{number}"))
        random = stream(seed, f"threads:{name}:{number}")
        self.loop.threads = SimulatedThreads(cluster, self, random, 1)
        self.sockets: dict[int, ServerSocket] = {}
        self.group = SimulatedGroup(self)
        self.store = ProcessStore(cluster, name, number)
        self.driver = WatchedDriver(
            cast("Leader", WatchedLeader(self.machine, self)),
            cast("RaftGroup", self.group),
            self.store,
            cluster.keys,
            clock=ProcessClock(self),
            leader_url=self._leader_url,
            crashed=self._crashed,
            fences=self._fences(),
            threads=lambda count, _: SimulatedThreads(cluster, self, random, count),
            probe=self._probe_address,
        )
        self.driver.life = self
        self.number = number
        self.stopping = False
        self._hub_counts: dict[str, int] = {}
        """Of the hub, as far as they are probes that were hit."""

    async def _probe_address(self, address: str) -> Found:
        await asyncio.sleep(self.cluster.probe_travel() / 1e9)
        return self.cluster.found_at(self.name, address)

    def _fences(self) -> dict[str, Fence]:
        cluster = self.cluster
        found: dict[str, Fence] = {"store": StoreFence(self.store, cluster.name)}
        if "receipts" in cluster.fences:
            found["receipts"] = SinkFence(cluster)
        return found

    @property
    def drivers(self) -> RuntimeCluster:
        """The cluster, of this mode."""
        return cast("RuntimeCluster", self.cluster)

    def die(self) -> None:
        """See `Process`."""
        super().die()
        self.loop.drop()
        # What its coroutines do while they are put away, at the end of the run, must not begin anything.
        self.driver._dead = True  # noqa: SLF001 - a process that is gone takes no events

    def _crashed(self, error: BaseException) -> None:
        if self.alive and not isinstance(error, Killed):
            self.loop.fail(error)

    def _leader_url(self) -> str:
        log = self.cluster.log
        leader = log.leader
        if leader is None or leader is self or log.isolated.get(self.name):
            return ""
        return f"http://{leader.name}:1"

    def feed(self, event: Event) -> None:
        """From outside: an operator's request, which the API puts to the driver."""
        if isinstance(event, AbortRequested | EpochTriggered | PolicyChanged | RestoreRequested):
            self.loop.create_task(self._ask(event), name="request").add_done_callback(self._conversed)
        else:
            self.loop.call_soon(self.driver.feed, event)

    async def _ask(self, event: AbortRequested | EpochTriggered | PolicyChanged | RestoreRequested) -> None:
        result = await self.driver.ask(lambda request: replace(event, request=request), REQUEST_SECONDS_MAX)
        self.cluster.answers[event.request] = result
        self.cluster.probes.hit(f"request.{result.get('code', 'done')}")

    # --- the log ------------------------------------------------------------------------------------------------------

    def apply_through(self, index: int) -> None:
        """See `CoordinatorLife`: a callback of the loop, in the order of the log's news."""
        self.loop.call_soon(self._apply, index)

    def _apply(self, index: int) -> None:
        log = self.cluster.log
        while self.alive and self.applied < index and not log.isolated.get(self.name):
            text = log.entries[self.applied]
            answer = self.ledger.apply(text)
            result = parse_result(answer)
            self.applied += 1
            command = json.loads(text)
            self.cluster.ghost.entry_applied(self, command, result)
            self.driver.pass_applied(text)
            identity = (str(command["id"][0]), int(command["id"][1]))
            self.driver.command_applied(identity, result)
            self.group.answered(identity, answer)

    def became_leader(self, term: int, index: int) -> None:
        """See `CoordinatorLife`."""
        self.apply_through(index)
        self.loop.call_soon(self._leads, term)

    def _leads(self, term: int) -> None:
        self.leads_in = term
        self.driver.leadership_changed(True, term)  # noqa: FBT003 - the shape of the group's callback

    def lost_leadership(self, leader: str, term: int) -> None:
        """See `CoordinatorLife`."""
        self.loop.call_soon(self._lost, term)

    def _lost(self, term: int) -> None:
        if self.leads_in is not None and self.leads_in < term:
            self.leads_in = None
            self.driver.leadership_changed(False, term)  # noqa: FBT003 - as above
        else:
            self.driver.leader_known()

    def leader_known(self, leader: str) -> None:
        """See `CoordinatorLife`."""
        self.loop.call_soon(self.driver.leader_known)

    def command_refused(self, identity: tuple[str, int]) -> None:
        """See `CoordinatorLife`."""
        self.loop.call_soon(self.group.answered, identity, Refused("injected", "injected"))

    def command_ambiguous(self, identity: tuple[str, int]) -> None:
        """See `CoordinatorLife`."""
        self.loop.call_soon(self.group.answered, identity, Unreachable("no answer"))

    def command_overdue(self, identity: tuple[str, int]) -> None:
        """Nothing: the driver's own patience is under test."""

    # --- connections --------------------------------------------------------------------------------------------------

    def connected(self, line: ControlLine) -> None:
        """A participant's upgrade is here."""
        try:
            self.driver.hub.admit()
        except ApiError as error:
            line.cut(str(error))
            return
        self.lines[line.number] = line
        socket = self.sockets[line.number] = ServerSocket(cast("RuntimeLine", line), self.loop)
        bound_to = line.client.life.name
        task = self.loop.create_task(self.driver.hub.converse(socket, bound_to=bound_to), name="conversation")
        task.add_done_callback(self._conversed)

    def _conversed(self, task: asyncio.Future[Any]) -> None:
        # As aiohttp: whoever's time was up, or whose peer is gone, is no defect.
        for name, count in self.driver.hub.counts.items():
            if count > self._hub_counts.get(name, 0):
                self._hub_counts[name] = count
                self.cluster.probes.hit(f"hub.{name}")
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Killed | TimeoutError | ConnectionError):
            self.loop.fail(error)

    def message_arrived(self, line: ControlLine, data: bytes) -> None:
        """A participant said something."""
        socket = self.sockets.get(line.number)
        if socket is not None:
            socket.arrived(data)
            check_one_connection(self.name, self.driver.hub)

    def disconnected(self, line: ControlLine, reason: str) -> None:
        """A connection is gone."""
        self.lines.pop(line.number, None)
        socket = self.sockets.pop(line.number, None)
        if socket is not None:
            socket.lost(reason)

    # --- the end in order ---------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """SIGTERM."""
        if not self.stopping:
            self.stopping = True
            self.loop.create_task(self._stop(), name="stop").add_done_callback(self._stopped)

    async def _stop(self) -> None:
        """In the order of `Service`."""
        self.driver.hub.end()
        await self.driver.close()

    def _stopped(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Killed):
            self.loop.fail(error)
            return
        self.drivers.coordinator_stopped(self)
