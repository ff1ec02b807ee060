"""A participant in the second mode: `participant.runtime.participant.Participant`, as a user's program would run it.

What is put in place of the world: its control client's dialer, its transport, its clock, its store. `WatchedParticipant`
only looks: what the ghost log and the trace are told of in the first mode by the simulator's driver, they are told here by
the overridden methods, each of which then does what the product does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from participant.events import EpochAborted, EpochCommitted
from participant.logs.segment import CorruptLog
from participant.machine_events import (
    ControlArrived,
    FrameArrived,
    IncarnationPersisted,
    LocalRestored,
    MessageIngested,
    TurnCommitted,
)
from participant.runtime.control import ControlClient
from participant.runtime.loader import Loaded
from participant.runtime.participant import Participant
from participant.runtime.turn_base import read_base
from participant.runtime.turn_keeper import TurnKeeper
from protocol.errors import Overloaded, Refused, SnapshotError, WireError
from protocol.ids import Instant
from protocol.messages import Consult
from simulations.local_disk import ROOT, FolderOfLife, SimulatedFolder
from simulations.participant_node import ParticipantLife
from simulations.prng import stream
from simulations.runtimes.lines import SimulatedDialer
from simulations.runtimes.loop import DriverLoop, Killed
from simulations.runtimes.stores import ProcessStore
from simulations.runtimes.threads import SimulatedThreads
from simulations.runtimes.transport import SimulatedTransport
from simulations.violations import Violation

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from participant.agent import Agent
    from participant.effects.entries import Entry
    from participant.events import ParticipantEvent
    from participant.failure import DeadLettered, Parked, Stopped
    from participant.host import AgentHost
    from participant.machine_events import (
        AnnounceRepeated,
        Effect,
        EnterTopology,
        Event,
        HaltAgents,
        LocalFailed,
        LocalPersisted,
        RestoreLocal,
    )
    from participant.runtime.effect_desk import Settlement
    from participant.runtime.intake import Taken
    from participant.runtime.log_files import LocalFolder
    from participant.runtime.pump import Pump
    from participant.runtime.turn_base import TurnBase
    from participant.runtime.turn_keeper import Recovered
    from protocol.consulting import ConsultRequest
    from protocol.messages import Consulted, Member, Restore, ToParticipant
    from simulations.runtimes.cluster import RuntimeCluster
    from simulations.world import Timer

THREADS: Final = 6
"""Of the loop's own pool, as on two cores."""
LEAVE_SECONDS: Final = 20.0


class ProcessClock:
    """A participant's time: its process's. Each look at the stopwatch costs what a turn costs."""

    def __init__(self, life: RuntimeParticipantLife) -> None:
        self._life = life
        self._turn_ns = life.cluster.options.turn_ns

    def now(self) -> Instant:
        """See `participant.runtime.clock.Clock`."""
        return Instant(self._life.now)

    def call_at(self, at: int, callback: Callable[[], None]) -> Timer:
        """See there: a callback of the loop."""
        life = self._life
        return life.call_at(at, lambda: cast("None", life.loop.call_soon(callback)))

    def stopwatch(self) -> int:
        """See there."""
        self._life.now += self._turn_ns
        return self._life.now


class NoPump:
    """In place of the pump, before there is one."""

    busy = True

    def close(self) -> None:
        """Nothing runs."""


class WatchedKeeper(TurnKeeper):
    """The product's, and tells the ghost log where it stands."""

    life: RuntimeParticipantLife

    found: TurnBase | None = None
    """What was on the disk to build on."""

    @property
    def number(self) -> int:
        """Of the log's last record."""
        return self._logger.position

    async def _replay(self, *arguments: Any) -> Recovered:  # noqa: ANN401 - as its base
        recovered = await super()._replay(*arguments)
        # Before it is claimed: who dies while it does has decided what its successor reads.
        hosts: Mapping[str, AgentHost] = arguments[1]
        told = self.found, recovered.base, self.number, recovered.streams, recovered.unrouted, hosts.values()
        self.life.judged(self.life.ghost.recovered, *told)
        return recovered

    async def recover(self, *arguments: Any, **settings: Any) -> Recovered | None:  # noqa: ANN401 - as its base
        """See `TurnKeeper`."""
        recovered = await super().recover(*arguments, **settings)
        if recovered is not None:
            self.life.judged(self.life.ghost.claimed, self.number)
        return recovered

    @property
    def base(self) -> TurnBase | None:
        """What the log builds on."""
        return self._base

    def _flush(self) -> int:
        number = super()._flush()
        self.life.judged(self.life.ghost.flushed, number)
        return number

    def cut(self, epoch: int) -> None:
        """See `TurnKeeper`."""
        super().cut(epoch)
        if self._active:
            self.life.judged(self.life.ghost.logged_cut, epoch, self.number)


class WatchedParticipant(Participant):
    """The product's, and tells the ghost log and the trace."""

    life: RuntimeParticipantLife
    _event: tuple[str, Any, bytes] | None = None
    """What is being stepped, until its effects are known."""
    _order: ToParticipant | None = None
    _restoring: Restore | None = None

    def _judged(self, tell: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401 - the call's own
        self.life.judged(tell, *arguments)

    # --- the log of turns -----------------------------------------------------------------------------------------------

    def _make_keeper(self, folder: LocalFolder) -> TurnKeeper:
        keeper = WatchedKeeper(folder, cluster=self.config.cluster, participant=self.id, sink=self, tasks=self._tasks)
        keeper.life = self.life
        return keeper

    async def _recover_turns(self) -> None:
        keeper = cast("WatchedKeeper", self._turns)
        try:
            keeper.found = read_base(cast("LocalFolder", self.life.folder))
        except CorruptLog:
            keeper.found = None
        await super()._recover_turns()
        if keeper.base is None:
            self._judged(self.life.ghost.recovered, keeper.found, None, 0, {}, (), ())

    def _begin_turns(self, turns: TurnKeeper, effect: EnterTopology, member: Member) -> None:
        super()._begin_turns(turns, effect, member)
        base = cast("WatchedKeeper", turns).base
        assert base is not None, "it was just decided on"
        if not effect.resumed:
            self._judged(self.life.ghost.begins_line, base.position)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        life = self.life
        if self._event is not None:
            (what, detail, mark), self._event = self._event, None
            if life.alive:
                life.cluster.trace.note(life.now, life.name, what, detail, mark + b"%d" % len(effects))
        if self._order is not None:
            order, self._order = self._order, None
            self._judged(life.ghost.ordered, order, effects)
        super()._carry_out(effects)
        self._judged(life.parked.check, life)

    def _step(self, event: Event) -> None:
        if isinstance(event, ControlArrived):
            self._order = event.message
            self.life.cluster.orders_seen(self.life, event.message)
            self._event = (type(event.message).__name__, event.message, b"")
        else:
            self._event = (type(event).__name__, event, b"")
            if isinstance(event, IncarnationPersisted):
                self._judged(self.life.ghost.persisted, event.incarnation)
            if isinstance(event, MessageIngested):
                self._judged(self.life.ghost.ingested, event.message)
        super()._step(event)
        self._event = self._order = None

    def frame_received(self, frame: bytes) -> None:
        """See `Participant`."""
        self._event = (FrameArrived.__name__, frame[:64], frame[-16:])
        self._note_parked(frame)
        super().frame_received(frame)
        self._event = None

    def _note_parked(self, frame: bytes) -> None:
        try:
            header, body = self._codec.verify_and_open(frame)
        except WireError:
            return
        self._judged(self.life.parked.arrived, self.life, header, body)

    def _refuse_frame(self, frame: bytes, error: WireError) -> None:
        self.life.cluster.probes.hit("wire.refused")
        super()._refuse_frame(frame, error)

    def turn_committed(self, sends: Any) -> None:  # noqa: ANN401 - as its base
        """See `Participant`."""
        self._judged(self.life.ghost.sent, sends)
        self._event = (TurnCommitted.__name__, sends, sends[-1][0].id)
        super().turn_committed(sends)

    def local_persisted(self, event: LocalPersisted) -> None:
        """See `Participant`."""
        self._look_at_retries()
        super().local_persisted(event)

    def local_failed(self, event: LocalFailed) -> None:
        """See `Participant`."""
        self._look_at_retries()
        super().local_failed(event)

    def _look_at_retries(self) -> None:
        if self._uploader.statistics()["capture_store_retries"]:
            self.life.cluster.probes.hit("upload.retried")

    def turn_failed(self, outcome: DeadLettered | Stopped) -> None:
        """See `Participant`."""
        self._judged(self.life.cluster.workload.put_aside, self.life, outcome)
        super().turn_failed(outcome)

    def _deliver_to_agents(self, effect: Any) -> None:  # noqa: ANN401 - as its base
        self._judged(self.life.ghost.delivered, effect)
        super()._deliver_to_agents(effect)

    def _announce_repeated(self, effect: AnnounceRepeated) -> None:
        self._judged(self.life.ghost.passed_over, effect)
        super()._announce_repeated(effect)

    def _record_local(self, effect: Any) -> None:  # noqa: ANN401 - as its base
        life = self.life
        self._judged(life.ghost.cut, effect)
        life.cluster.trace.note(life.now, life.name, "RecordLocal", effect.epoch, b"%d" % effect.epoch)
        life.probe_cut()
        super()._record_local(effect)

    def _keep_local(self, effect: Any) -> None:  # noqa: ANN401 - as its base
        ghost = self.life.ghost
        ghost.kept = max(ghost.kept, int(effect.epoch))
        ghost.logged_commit(int(effect.epoch))
        super()._keep_local(effect)

    def _channels_recorded(self, effect: Any) -> None:  # noqa: ANN401 - as its base
        self.life.probe_channels(effect)
        super()._channels_recorded(effect)

    def _announce_epoch(self, effect: Any) -> None:  # noqa: ANN401 - as its base
        self._judged(self.life.ghost.announced, effect)
        super()._announce_epoch(effect)

    def _enter_topology(self, effect: EnterTopology) -> None:
        life = self.life
        if effect.first and self._turns is not None:
            self._judged(life.ghost.goes_on if effect.resumed else life.ghost.will_begin)
        self._judged(life.ghost.entered, effect.topology)
        life.parked.enters()
        if effect.first:
            life.member = True
            self._judged(life.restored_begins, effect.restored)
            life.cluster.workload.begin(life)
        super()._enter_topology(effect)

    def _open_folder(self) -> LocalFolder | None:
        folder = self.life.folder
        if folder is None:
            return None
        highest = folder.highest()
        if highest is not None:
            self._machine = self.life.machine = self._make_machine(entered=highest.incarnation)
        return cast("LocalFolder", folder)

    def outputs_emitted(self, host: AgentHost, outputs: Sequence[tuple[bytes, str, bytes]]) -> None:
        """See `Participant`."""
        self._judged(self.life.ghost.emitted, outputs)
        super().outputs_emitted(host, outputs)

    def turn_parked(self, outcome: Parked) -> None:
        """See `Participant`: in most of these worlds whatever is in doubt can be found out."""
        super().turn_parked(outcome)
        if self.life.cluster.options.settled and outcome.cause == "in-doubt":
            self.life.cluster.probes.hit("turn.parked")
            return
        self._judged(self._no_parking, outcome)

    def _no_parking(self, outcome: Parked) -> None:
        raise Violation("I29", f"{outcome.agent} is parked: {outcome.reason}")

    def _halt_agents(self, effect: HaltAgents) -> None:
        self.life.member = False
        self._judged(self.life.ghost.halted)
        super()._halt_agents(effect)

    def _restore_local(self, effect: RestoreLocal) -> None:
        self._restoring = effect.order
        super()._restore_local(effect)

    def restore_stepped(self, event: Event) -> None:
        """See `Participant`."""
        order = self._restoring
        if isinstance(event, LocalRestored) and order is not None and order.incarnation == event.incarnation:
            loaded = Loaded(list(self._hosts), event.state, event.unrouted, None)
            self._judged(self.life.ghost.restored, order, loaded)
        super().restore_stepped(event)

    def _task_failed(self, error: BaseException) -> None:
        if isinstance(error, Killed):
            return
        self.life.loop.fail(error)
        super()._task_failed(error)


class RuntimeParticipantLife(ParticipantLife):
    """One life of a participant's process."""

    main: asyncio.Task[str] | None = None
    """The program; None: it has not begun."""

    def judged(self, tell: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401 - the call's own
        """Tell; a violation ends the run, whatever the code around makes of an exception."""
        try:
            tell(*arguments)
        except Violation as violation:
            self.loop.fail(violation)

    @property
    def drivers(self) -> RuntimeCluster:
        """The cluster, of this mode."""
        return cast("RuntimeCluster", self.cluster)

    def _build(self) -> None:
        cluster = self.drivers
        name, number, options = self.name, self.number, cluster.options
        self.loop = DriverLoop(cluster, self, stream(options.seed, f"loop:{name}:{number}"))
        random = stream(options.seed, f"threads:{name}:{number}")
        self.loop.threads = SimulatedThreads(cluster, self, random, THREADS)
        self.boot_id = stream(options.seed, f"boot:{name}:{number}").next().to_bytes(8, "big").hex() * 2
        dialer = self.dialer = SimulatedDialer(cluster, self)
        first = self.control_random.below(options.coordinators)
        names = cluster.log.names[first:] + cluster.log.names[:first]
        control = ControlClient(coordinators=[f"{each}:1" for each in names], token="", dialer=dialer)
        self.takes = cluster.workload.kinds if options.takeover_ns else ()
        needed = options.recovery or cluster.workload.outside_world
        kind = FolderOfLife if options.turns else SimulatedFolder
        self.folder = kind(cluster.disk_of(name)) if needed else None
        if self.folder is not None and cluster.forked is not None:
            self.folder.path = None  # what goes to sinks in a dry run is kept in memory
        sinks = cluster.workload.sinks(self)
        cluster.workload.connect(self, sinks)
        self.participant = WatchedParticipant(
            *self.agents,
            id=name,
            cluster=cluster.name,
            store=ProcessStore(cluster, name, number),
            secret=cluster.secret,
            targets=cluster.targets[name],
            messages=cluster.workload.messages,
            takes={kind.kind: self._taker(kind.kind) for kind in self.takes},
            max_concurrent_epochs=max(2, options.max_concurrent),
            recording_bytes_max=options.recording_bytes_max,
            in_flight_bytes_max=cluster.workload.in_flight_bytes_max,
            control=control,
            wire=SimulatedTransport(cluster, self),
            local=str(ROOT) if self.folder is not None else None,
            sinks=sinks,
            effects=cluster.workload.effect_ledger(self) or "",
            clock=ProcessClock(self),
            boot_id=self.boot_id,
            durability="turn" if options.turns else "epoch",
        )
        self.participant.life = self
        self.machine = self.participant._machine  # noqa: SLF001 - the oracles look at what the driver has
        self.hosts = self.participant._hosts  # noqa: SLF001 - as above
        self.pump = cast("Pump", NoPump())
        self.control = cast("Any", dialer)

    def _taker(self, kind: str) -> Callable[[str], Agent]:
        def take(name: str) -> Agent:
            agent = self.cluster.workload.take(f"{kind}/{name}")
            self.cluster.workload.taken(self, agent)
            return agent

        return take

    def start(self) -> None:
        """Run the program."""
        delay = self.control_random.below(50_000_000)
        self.later(delay, self._begin)

    def _begin(self) -> None:
        self.main = self.loop.create_task(self._run(), name="main")
        self.main.add_done_callback(self._ran)

    async def _run(self) -> str:
        """What a user's program does."""
        try:
            async with self.participant as participant:
                async for event in participant.events():
                    self._heard(event)
        except SnapshotError as error:
            return str(error)
        return "left"

    def _heard(self, event: ParticipantEvent) -> None:
        """The program is told the same as everybody."""
        if isinstance(event, EpochCommitted | EpochAborted):
            how = "committed" if isinstance(event, EpochCommitted) else "aborted"
            self.cluster.oracles.told(self.name, int(event.epoch), how)

    def _ran(self, main: asyncio.Future[str]) -> None:
        if main.cancelled():
            self.end("stopped")
            return
        error = main.exception()
        if error is None:
            self.end(main.result())
        elif not isinstance(error, Killed):
            self.loop.fail(error)

    def restored_begins(self, restored: bool) -> None:  # noqa: FBT001 - the effect's field
        """Its agents run from here on."""
        self.ghost.begun(restored=restored)

    def entered(self) -> None:
        """The participant has begun: its parts are there."""
        self.pump = self.participant._pump  # noqa: SLF001 - as in `_build`

    def die(self) -> None:
        """See `Process`."""
        killed = self.alive and not self.drivers.over
        super().die()
        self.loop.drop()
        if isinstance(self.folder, FolderOfLife):
            if killed:
                self.loop.threads.die(self.folder.disk)
            self.folder.dead = True

    def ingest(self, agent: str, message: object) -> Overloaded | Refused | None:
        """See `ParticipantLife`: the product's own."""
        with self.loop.entered():
            try:
                self.participant.ingest_nowait(agent, message)
            except (Overloaded, Refused) as refusal:
                return refusal
        self.loop.check()
        return None

    def run(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """See `ParticipantLife`."""
        self.loop.create_task(work, name=name).add_done_callback(self._user_ended)

    def _user_ended(self, task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Killed):
            self.loop.fail(error)

    async def give(self, agent: str, message: object, token: str) -> Taken:
        """See `ParticipantLife`: the product's own."""
        return await self.participant.ingest(agent, message, token=token)

    async def say(self, token: str, value: object) -> str:
        """See `ParticipantLife`: the product's own."""
        return (await self.participant.answer(token, value)).value

    @property
    def input_comes(self) -> bool:
        """See `ParticipantLife`: the product's own."""
        return self.member and self.participant._input_comes  # noqa: SLF001 - the oracles look at what the driver has

    def parked_steps(self) -> list[str]:
        """See `ParticipantLife`: the product's own."""
        if not self.member:
            return []
        return [parked.token for parked in self.participant.parked]

    async def settle(self, token: str, settlement: Settlement) -> Entry:
        """See `ParticipantLife`: the product's own."""
        return await self.participant.settle(token, settlement)

    async def consult(self, what: ConsultRequest) -> Consulted:
        """See `ParticipantLife`: the product's own."""
        asked = Consult(session=int(self.machine.session), request=1, what=what)
        return await self.participant._desk.answer(asked)  # noqa: SLF001 - the answer itself, whatever the connection

    def open_questions(self) -> list[tuple[str, str]]:
        """See `ParticipantLife`: the product's own."""
        if not self.member:
            return []
        return [(question.token, str(question.question["order"])) for question in self.participant.questions()]

    # --- from the network, and from faults ----------------------------------------------------------------------------

    def frame_received(self, frame: bytes) -> None:
        """A callback of the loop."""
        self.loop.call_soon(self._wire.frame_received, frame)

    def order_comes_late(self, message: ToParticipant) -> None:
        """See `ParticipantLife`."""
        self.loop.call_soon(self.participant.control_received, message)

    def peer_connected(self, peer: str) -> None:
        """A callback of the loop."""
        self.loop.call_soon(self._wire.peer_connected, peer)

    def peer_disconnected(self, peer: str, reason: str) -> None:
        """A callback of the loop."""
        self.loop.call_soon(self._wire.peer_disconnected, peer, reason)

    @property
    def _wire(self) -> SimulatedTransport:
        return cast("SimulatedTransport", self.participant._given_wire)  # noqa: SLF001 - ours

    def leave(self) -> None:
        """Leave in order, in half of the cases after everything is done here."""
        drain = bool(self.control_random.chance(1, 2))
        self.loop.create_task(self._leave(drain=drain), name="leave")

    async def _leave(self, *, drain: bool) -> None:
        try:
            await self.participant.leave(timeout=LEAVE_SECONDS, drain=drain)
        except (TimeoutError, SnapshotError) as error:
            self.note("LeaveFailed", str(error))

    def stop(self) -> None:
        """The program is told to end, as by Ctrl-C."""
        if self.main is not None:
            self.main.cancel()
