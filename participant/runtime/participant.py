"""`Participant`: agents in a process, joined to a cluster. The asyncio driver of `participant.machine`.

It owns what the machine does not: the loop, the clock, sockets, the agents' hosts, the store. Events go into the machine
one at a time, its effects are carried out from left to right at once; one of them, `RecordLocal`, freezes the agents before
the next one is looked at.

One turn of the loop: whatever arrived (frames, control messages, turns that ended) has been stepped by its own callback;
then `_tick` runs turns for a slice, and flushes: everything sent leaves in one frame per peer.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import secrets
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from participant.codec import MessageRegistry
from participant.config import ParticipantConfig, check_interpreter
from participant.context import encode_envelope, too_long
from participant.dry_run import dry_run_sinks
from participant.effects.entries import Entry, State
from participant.effects.reach import NONE, covered_by_none
from participant.events import (
    EpochAborted,
    EpochCommitted,
    EpochPartFailed,
    Lost,
    Member,
    OutputDiverged,
    OutputRefused,
    QuestionAsked,
    ReleasedBeyond,
    Restored,
    Resumed,
    SinkFailing,
    StepInDoubt,
    TurnDiverged,
)
from participant.failure import DeadLettered, DeadLetters, Parked, Stopped
from participant.host import AgentHost
from participant.inputs import OUTSIDE, volatile_message_id
from participant.machine import ParticipantMachine
from participant.machine_events import (
    AnnounceEpoch,
    AnnounceRepeated,
    ChannelsRecorded,
    ControlArrived,
    DeadLetter,
    DeliverToAgents,
    DropLocal,
    EndParticipant,
    EnterTopology,
    EpochWanted,
    ForgetResumed,
    FrameArrived,
    HaltAgents,
    KeepLocal,
    LeaveRequested,
    LocalFailed,
    LocalPersisted,
    LocalProgressed,
    LogReceived,
    LogSent,
    LogSynced,
    MessageIngested,
    PeerConnected,
    PeerDisconnected,
    PersistIncarnation,
    RecordLocal,
    RestoreLocal,
    SendControl,
    SendFrame,
    SetTimer,
    TimerFired,
    TurnCommitted,
)
from participant.restoring import Restoration, renamed_delivery
from participant.runtime.clock import Clock, LoopClock
from participant.runtime.consulting import ConsultDesk
from participant.runtime.control import Control, ControlClient
from participant.runtime.effect_desk import Question, answer, settle
from participant.runtime.inspection import inspect
from participant.runtime.intake import Intake, Taken, refusal_code
from participant.runtime.log_files import Life, LocalFolder
from participant.runtime.news import News
from participant.runtime.outlet import Outlet
from participant.runtime.parts import (
    agent_factories,
    check_agents,
    effect_backend,
    make_wire,
    open_folder,
    open_store,
)
from participant.runtime.pump import Pump
from participant.runtime.restorer import Restorer
from participant.runtime.steps import StepRunner
from participant.runtime.tasks import TaskSet
from participant.runtime.threads import in_thread
from participant.runtime.turn_keeper import TurnKeeper
from participant.runtime.uploader import Uploader
from participant.state import CutClock
from protocol.consulting import AnswerQuestion, SettleEffect
from protocol.errors import (
    ConfigError,
    FencedError,
    Overloaded,
    RecoveryError,
    Refused,
    SnapshotError,
    WireError,
)
from protocol.failpoints import arm_failpoints, fp
from protocol.ids import ParticipantId, agent_id
from protocol.keys import ClusterKeys, read_secret, trust
from protocol.limits import MESSAGE_BYTES_MAX, STRANGERS_REMEMBERED_MAX, WAITING_LISTED_MAX
from protocol.messages import (
    Consult,
    Envelope,
    EpochFailed,
    Heartbeat,
    Ingest,
    Ingested,
    Inspect,
    LocalReport,
    Register,
)
from protocol.messages import EpochCommitted as CommitTold
from protocol.outputs import FencingToken
from protocol.version import __version__
from protocol.wire import FrameCodec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
    from types import TracebackType

    from participant.agent import Agent
    from participant.events import ParticipantEvent
    from participant.machine_events import Delivery, Effect, Event
    from participant.runtime.clock import Cancellable
    from participant.runtime.effect_desk import AnswerResult, Settlement
    from participant.sinks.base import Sink
    from participant.turnlog.writer import Committed
    from protocol.forks import Fork
    from protocol.messages import FromCoordinator, Restore
    from protocol.messages import Member as ClusterMember
    from protocol.outputs import Output
    from protocol.ports import ObjectStore, Transport

log = logging.getLogger("cleancut.participant")

LEAVE_SECONDS: Final = 30.0


class Participant:
    """A process's agents as a member of a cluster; an async context manager.

    ::

        async with Participant(Buyer("main"), id="buyer-1", cluster="shop", coordinators=["c1:7400"],
                               store="/var/lib/shop", secret_file="shop.secret") as participant:
            async for event in participant.events():
                ...

    Args:
        agents: Hosted here; their ids are unique in the cluster.
        id: As `ParticipantConfig.id`; the other settings likewise.
        messages: Types that no handler here takes, but that agents here send.
        takes: Agents that may come here from a participant that stays away: their classes, called with the agent's name, or
            kind -> what makes such an agent from its name.
        sinks: Where agents here emit to (`Context.emit`); all participants of the cluster that emit to one name the same sink.
        control: In place of a connection to `coordinators`; for tests.
        wire: In place of the transport that `transport` names; for tests.
        clock: In place of the loop's time; for tests.
        boot_id: Hex digits that name this life, in place of random ones; for tests.

    Raises:
        ConfigError: A setting is wrong.
    """

    def __init__(
        self,
        *agents: Agent,
        id: str,  # noqa: A002 - the word that users know
        cluster: str,
        coordinators: Sequence[str] = (),
        transport: str = "websocket",
        store: str | ObjectStore = "",
        ca_file: str | None = None,
        secret_file: str | None = None,
        secret: bytes | None = None,
        messages: Iterable[type] = (),
        takes: Iterable[type[Agent]] | Mapping[str, Callable[[str], Agent]] = (),
        sinks: Iterable[Sink] = (),
        control: Control | None = None,
        wire: Transport | None = None,
        clock: Clock | None = None,
        boot_id: str = "",
        **settings: Any,  # noqa: ANN401 - the other fields of ParticipantConfig, checked there
    ) -> None:
        check_interpreter()
        try:
            self.config = ParticipantConfig(
                id=id,
                cluster=cluster,
                coordinators=tuple(coordinators),
                transport=transport,
                store=store,
                ca_file=ca_file,
                secret_file=secret_file,
                secret=secret,
                **settings,
            )
        except TypeError as error:
            raise ConfigError("participant", str(error)) from None
        check_agents(agents, allow_cloudpickle=self.config.allow_cloudpickle)
        self.id: ParticipantId = self.config.participant_id
        self._agents = agents
        self._messages = tuple(messages)
        self._sinks = tuple(sinks)
        self._given_control = control
        self._given_wire = wire
        self._given_clock = clock
        self._entered = False
        self._fork: Fork | None = None
        self._started = False
        self._closed = False
        self._failure: SnapshotError | None = None
        self._ended = asyncio.Event()
        self._member = asyncio.Event()
        self._idle_news = asyncio.Event()
        self._idle_news.set()
        self._outputs_news = asyncio.Event()
        self._boot_id = boot_id or secrets.token_hex(16)
        self._ingested = 0
        self._intake: Intake | None = None
        self._news = News()
        self._strangers: dict[str, None] = {}
        self._counts = dict.fromkeys(("frames_malformed", "frames_forged"), 0)
        self._dead_letters = DeadLetters()
        self._tasks = TaskSet(self._task_failed)
        self._tick_due = False
        self._timer: Cancellable | None = None
        self.record_ns_max = 0
        """Longest that a cut has held the loop, nanoseconds."""
        self._restored_epoch = 0
        self._restored_order: Restore | None = None
        self._turns: TurnKeeper | None = None
        """Their log, with durability ``turn``."""
        self._turns_recovered = 0
        self._renames: dict[str, str] = {}
        self._factories = agent_factories(takes)
        classes = [each for each in self._factories.values() if isinstance(each, type)]
        registry = MessageRegistry.of_agents((*agents, *classes), self._messages)
        self._registry = registry
        self._cut_clock = CutClock()
        self._hosts = [AgentHost(agent, registry, self._cut_clock) for agent in agents]
        self._machine = self._make_machine(entered=0)
        self._carry: dict[type[Any], Callable[[Any], None]] = {
            DeliverToAgents: self._deliver_to_agents,
            SendFrame: self._send_frame,
            SetTimer: self._set_timer,
            RecordLocal: self._record_local,
            ChannelsRecorded: self._channels_recorded,
            DropLocal: self._drop_local,
            KeepLocal: self._keep_local,
            AnnounceEpoch: self._announce_epoch,
            AnnounceRepeated: self._announce_repeated,
            SendControl: self._send_control,
            EnterTopology: self._enter_topology,
            LogReceived: self._log_received,
            LogSent: self._log_sent,
            ForgetResumed: self._forget_resumed,
            HaltAgents: self._halt_agents,
            PersistIncarnation: self._persist_incarnation,
            RestoreLocal: self._restore_local,
            DeadLetter: self._dead_letter,
            EndParticipant: self._end_participant,
        }

    # --- for users ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Bind, connect, and register in the background; agents run once this is a member.

        Raises:
            ConfigError: A port is taken, the store or the secret cannot be used.
            StoreError: The store does not work.
        """
        if self._entered:
            raise ConfigError("participant", "one object is one life of a participant; make another")
        self._entered = True
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._clock = self._given_clock or LoopClock()
        config = self.config
        arm_failpoints(os.environ, config.hosts)
        secret = config.secret
        if secret is None:
            assert config.secret_file is not None, "the configuration was checked"
            secret = await in_thread(read_secret, config.secret_file)
        keys = ClusterKeys.from_secret(secret)
        self._codec = FrameCodec(config.cluster_name, keys)
        store, self._fork = await open_store(config, keys)
        self._control = self._given_control or ControlClient(
            coordinators=config.coordinators,
            token=keys.participant_token(config.participant_id),
            tls=None if config.ca_file is None else trust("ca_file", config.ca_file),
        )
        folder = await asyncio.to_thread(self._open_folder)
        if self.dry_run:
            self._sinks = await in_thread(dry_run_sinks, self._sinks, None if folder is None else folder.path)
        self._steps = self._make_steps(folder)
        if self._steps is not None:
            await asyncio.to_thread(self._steps.prepare)
        self._pump = Pump(self._hosts, clock=self._clock, sink=self, tasks=self._tasks, steps=self._steps)
        self._desk = ConsultDesk(
            self._hosts,
            self._steps,
            participant=self.id,
            folder=None if folder is None else folder.path,
            resume=self._pump.resume,
            clock=self._clock,
        )
        self._outlet = Outlet(
            self._sinks,
            self._hosts,
            cluster=config.cluster,
            participant=self.id,
            durability="turn" if config.durability == "turn" else "epoch",
            clock=self._clock,
            tasks=self._tasks,
            sink=self,
            changed=self._outputs_news.set,
            delivered=self._outputs_delivered,
        )
        self._uploader = Uploader(
            hosts=self._hosts,
            cut_clock=self._cut_clock,
            cluster=config.cluster_name,
            participant=self.id,
            store=store,
            clock=self._clock,
            tasks=self._tasks,
            sink=self,
            ledger=self._ledger,
        )
        if folder is not None:
            self._intake = Intake(
                folder,
                cluster=config.cluster,
                participant=self.id,
                enters=self._input_enters,
                had=self._input_had,
                failed=self._end,
                bytes_max=config.input_log_bytes_max,
                allow_lost=config.allow_lost_input,
            )
            await self._intake.open()
        if config.durability == "turn":
            assert folder is not None, "the configuration was checked"
            self._turns = self._make_keeper(folder)
            self._pump.log_turns = self._log_turns
        self._restorer = Restorer(
            self._hosts,
            factories=self._factories,
            registry=self._registry,
            cut_clock=self._cut_clock,
            pump=self._pump,
            uploader=self._uploader,
            outlet=self._outlet,
            intake=self._intake,
            folder=folder,
            turns=self._turns,
            covers=self._covers,
            came_late=self._came_late,
            store=store,
            keys=keys,
            cluster=config.cluster_name,
            participant=self.id,
            allow_cloudpickle=config.allow_cloudpickle,
            clock=self._clock,
            tasks=self._tasks,
            sink=self,
        )
        self._wire = self._given_wire or make_wire(config, keys)
        self._started = True
        try:
            if self._turns is not None:
                await self._recover_turns()
            await self._wire.start(self)
            await self._control.start(self)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. Not an orderly leave: for that, `leave` first.

        Raises:
            FencedError: What ended the participant before, unless the body raised something itself.
        """
        await self._close()
        if self._failure is not None and error is None:
            raise self._failure

    async def events(self) -> AsyncIterator[ParticipantEvent]:
        """What happens from now on; ends with the participant.

        Raises:
            SnapshotError: What ended the participant: it is fenced, its id is taken, the secret is wrong.
        """
        async with aclosing(self._news.listen()) as news:
            async for event in news:
                yield event
        if self._failure is not None:
            raise self._failure

    async def ingest(self, agent: str, message: object, *, token: str = "") -> Taken:
        """Give a message from outside to an agent anywhere in the cluster.

        With a folder for local files (`local`), the input is durable when this returns, and survives crashes and rollbacks: what a
        rollback undoes of it is done again. Without one, it is as volatile as the work that it causes.

        Args:
            agent: ``kind/name``.
            message: Of a type that this participant knows.
            token: The caller's own name for this input, unique to it. Who does not know whether an input was taken gives it
                again with the same token: it is taken once. Needs a folder for local files. The participant that took it knows it, and
                whoever hosts its agents in an epoch that has it: give it again here, or always over the coordinators' API.

        Raises:
            Overloaded: Too much is in flight here, waits for agents that nobody hosts, or has not been committed yet; try again
                later.
            Refused: Not started yet, leaving, or without a channel to the agent; ``token-conflict``: the token came before with
                another agent or message.
            LimitExceeded: A longer message than is carried, or no legal token.
            Unsavable: The message's type is not known here, or a part of it cannot be saved.
            IllegalName: Not an agent id.
            StoreError: The local disk does not work; the participant ends.
        """
        self._demand_input()
        name, version, body = self._registry.encode(message)
        return await self._take_input(agent, name, version, body, token)

    async def _take_input(self, agent: str, name: str, version: int, body: bytes, token: str) -> Taken:
        self._demand_input()
        if self._intake is None:
            if token:
                raise Refused(
                    "no-input-log",
                    f"{self.id} keeps no input: give it a folder for local files (local=...) to use tokens",
                )
            return self._enter_volatile(agent, name, version, body)
        target = agent_id(agent)
        refusal = self._machine.refusal(target, len(body))
        if refusal is not None:
            raise refusal
        taken = await self._intake.add(target, name, version, body, token=token)
        if self._failure is not None:
            raise self._failure
        return taken

    def ingest_nowait(self, agent: str, message: object) -> None:
        """As `ingest`, and never kept: a rollback forgets it with the work that it caused."""
        self._demand_input()
        self._enter_volatile(agent, *self._registry.encode(message))

    def _demand_input(self) -> None:
        """Refuse input that is not taken now, before anything is looked at: an input that is refused has had no effect."""
        if self._failure is not None:
            raise self._failure
        if not self._started or self._ended.is_set() or self._machine.leaving:
            state = "is leaving the cluster" if self._started else "has not been started (async with)"
            raise Refused("leaving" if self._started else "not-started", f"{self.id} {state} and takes no input")
        in_flight = self._machine.outgoing_bytes + self._machine.unrouted_bytes + self._pump.mailbox_bytes
        if in_flight > self.config.in_flight_bytes_max:
            raise Overloaded(
                f"{in_flight} bytes are in flight at {self.id}; the limit is {self.config.in_flight_bytes_max}"
            )

    def _enter_volatile(self, agent: str, name: str, version: int, body: bytes) -> Taken:
        target = agent_id(agent)
        identity = volatile_message_id(self._boot_id, self._ingested + 1)
        envelope = Envelope(identity, OUTSIDE, target, name, version, body)
        data = encode_envelope(envelope)
        if len(data) > MESSAGE_BYTES_MAX:
            raise too_long(name, len(data))
        refusal = self._machine.refusal(target, len(data))
        if refusal is not None:
            raise refusal
        self._ingested += 1
        if self._turns is not None:
            self._turns.taken(0, data)
        self._step(MessageIngested((envelope, data)))
        if self._closed and self._failure is not None:
            raise self._failure
        return Taken(identity, 0, duplicate=False)

    async def wait_member(self) -> None:
        """Until this participant is a member of the cluster and its agents run.

        Raises:
            SnapshotError: It has ended instead.
        """
        await self._wait_first(self._member)

    async def wait_idle(self) -> None:
        """Until no turn runs or can begin here and nothing that was sent is unacknowledged."""
        while not self._idle and not self._ended.is_set():
            self._idle_news.clear()
            await self._idle_news.wait()

    async def leave(self, *, timeout: float = LEAVE_SECONDS, drain: bool = True) -> None:
        """Leave the cluster in order: finish what is here, then be let go between two epochs.

        Others should have stopped sending to the agents here: what they send afterwards waits at their side until somebody
        hosts the agent.

        Args:
            timeout: Seconds.
            drain: Wait until nothing is left to do here. Without it, messages that are not handled yet are lost to this
                incarnation.

        Raises:
            TimeoutError: It took longer (others may still be sending); the participant is still a member.
            SnapshotError: It has ended instead.
        """
        async with asyncio.timeout(timeout):
            if drain:
                await self.wait_idle()
                await self._wait_outputs()
            self._step(LeaveRequested())
            await self._wait_first(self._ended)

    @property
    def dry_run(self) -> bool:
        """The cluster is a fork whose participants do no effects and write to no sink; known once this is entered."""
        return self._fork is not None and self._fork.dry_run

    def questions(self) -> tuple[Question, ...]:
        """Questions of agents here that nobody has answered yet."""
        return tuple(
            Question.of(host.id, question, self._clock.now())
            for host in self._hosts
            for question in host.questions.values()
        )

    async def answer(self, token: str, value: object) -> AnswerResult:
        """Answer a question, durably. The first answer counts; late and repeated ones are told so and ignored.

        Raises:
            Refused: There is no such question, or no effect ledger.
            Unsavable: The value is not what the question wants; it stays open.
        """
        return await answer(self._effect_ledger(), token, value)

    async def effects(self, *states: State) -> tuple[Entry, ...]:
        """Entries of the effect ledger in these states; without any: steps in doubt and under way, and open questions."""
        return tuple(await self._effect_ledger().entries(states or (State.CLAIMED,)))

    async def settle(self, token: str, settlement: Settlement) -> Entry:
        """Say what became of a step that is in doubt or has diverged; its turn goes on.

        Args:
            token: Of the event that told of it, or of `effects`.
            settlement: `Happened(result)`, `DidNotHappen()` or `TakeRecorded()`.

        Returns:
            The entry as it is now: if it was settled before, that is what counts.

        Raises:
            Refused: There is no such step, it is not parked on it, or there is no effect ledger.
            Unsavable: The result is not what the step gives; nothing is settled.
        """
        entry = await settle(self._effect_ledger(), self._hosts, token, settlement)
        self.step_settled(token)
        return entry

    async def prune_effects(self, oldest_epoch: int) -> int:
        """Forget effects that no epoch from this one on could bring back; for whoever decides which epochs are kept.

        Returns:
            How many entries of the effect ledger went.

        Raises:
            Refused: There is no effect ledger.
        """
        return await self._effect_ledger().prune(oldest_epoch)

    @property
    def parked(self) -> tuple[Parked, ...]:
        """Turns here that wait for a decision from outside."""
        return tuple(host.parked for host in self._hosts if host.parked is not None)

    def _effect_ledger(self) -> StepRunner:
        if not self._started or self._steps is None:
            state = "has no effect ledger: give it local=... or effects=..." if self._started else "is not started"
            raise Refused("no-effects", f"{self.id} {state}")
        return self._steps

    @property
    def _ledger(self) -> str:
        """What local snapshots call the effect ledger at hand."""
        return NONE if self._steps is None else self._steps.ledger_name

    def _covers(self, ledger: str) -> bool:
        """Whether what may be in this effect ledger is in the one at hand, or nobody need ask for it."""
        covers = covered_by_none if self._steps is None else self._steps.covers
        return ledger in self.config.settled_ledgers or covers(ledger)

    def _came_late(self) -> None:
        if self._steps is not None:
            self._steps.came_late()

    @property
    def dead_letters(self) -> tuple[DeadLettered, ...]:
        """The newest messages that were put aside, oldest first."""
        return tuple(self._dead_letters)

    @property
    def agents(self) -> tuple[Agent, ...]:
        """The agents hosted here; look, do not touch."""
        return tuple(host.agent for host in self._hosts)

    @property
    def incarnation(self) -> int:
        """That this participant is in; 0: none yet."""
        return self._machine.incarnation

    @property
    def session(self) -> int:
        """Of this registration; 0: not registered."""
        return self._machine.session

    @property
    def busy(self) -> bool:
        """Whether a turn runs or can begin, or something waits to be sent in this turn of the loop."""
        steps = self._steps is not None and self._steps.busy
        return self._tick_due or self._pump.active or self._outlet.delivering or steps or self._input_comes

    @property
    def outgoing_bytes(self) -> int:
        """Sent to other participants and not acknowledged yet."""
        return self._machine.outgoing_bytes

    @property
    def address(self) -> str:
        """Where peers reach this participant."""
        return self._wire.address

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and what is held now."""
        found = {
            **self._counts,
            "events_lost": self._news.lost,
            **self._machine.statistics(),
            **self._uploader.statistics(),
            **self._outlet.statistics(),
            **({} if self._intake is None else self._intake.statistics()),
            **({} if self._steps is None else self._steps.statistics()),
            "turns": self._pump.turns,
            "turns_failed": self._pump.turns_failed,
            "mailbox_bytes": self._pump.mailbox_bytes,
            "timers_noted": self._pump.timers_noted,
            "dead_letters": self._dead_letters.count,
            "record_ns_max": self.record_ns_max,
            "turn_slice_ns_max": self._pump.slice_ns_max,
        }
        for prefix, part in (("transport", self._wire), ("control", self._control)):
            statistics = getattr(part, "statistics", None)
            if statistics is not None:
                found.update({f"{prefix}_{name}": value for name, value in statistics().items()})
        return found

    async def _wait_outputs(self) -> None:
        """Until all that was emitted here has reached its sinks: an epoch releases it."""
        asked = False
        while self._outlet.waiting and not self._ended.is_set():
            if not asked and self._member.is_set():
                asked = True
                self.epoch_wanted(f"{self.id} leaves, and {self._outlet.waiting} outputs are to be released")
            self._outputs_news.clear()
            await self._outputs_news.wait()

    # --- the log of turns ---------------------------------------------------------------------------------------------

    async def _recover_turns(self) -> None:
        """Before it is registered: the agents as the log has them."""
        recovered = await self._restorer.recover()
        if recovered is None:
            return
        base = recovered.base
        self._turns_recovered = recovered.turns
        self._restored_epoch = base.epoch
        self._machine.resume(
            session=base.session,
            line=base.line,
            incarnation=base.incarnation,
            streams=recovered.streams,
            unrouted=recovered.unrouted,
            inputs=recovered.input_tokens,
            agents=None if base.agents == self._declared() else base.agents,
        )

    def _log_turns(self, turns: list[Committed]) -> None:
        assert self._turns is not None, "turns are logged"
        self._turns.turns(turns, self._machine)

    def _log_received(self, effect: LogReceived) -> None:
        assert self._turns is not None, "turns are logged"
        self._turns.received(effect)

    def _log_sent(self, effect: LogSent) -> None:
        assert self._turns is not None, "turns are logged"
        self._turns.sent(effect)

    def _forget_resumed(self, effect: ForgetResumed) -> None:
        log.warning("%s: session %d does not go on from the log of turns", self.id, self._machine.session)
        self._restorer.forget()
        self._restored_epoch = self._turns_recovered = 0

    def _outputs_delivered(self, outputs: Sequence[bytes]) -> None:
        if self._turns is not None and outputs:
            self._turns.delivered(outputs)

    def turns_durable(self, number: int) -> None:
        """From the keeper: what the log covers up to this number may leave."""
        assert self._turns is not None, "turns are logged"
        through = self._turns.outputs_through(number)
        if through:
            self._outlet.logged(through)
        self._step(LogSynced(number))

    def turns_failed(self, error: SnapshotError) -> None:
        """From the keeper: nothing more can be logged."""
        self._end(error)

    async def _tell_released(self, epoch: int) -> None:
        """What had left before a rollback and is no part of its epoch: it stays, whatever is done again."""
        agents = [*self._agents, *(host.agent for host in self._hosts)]
        asked = Inspect(session=self._machine.session, request=0, epoch=epoch)
        try:
            found = await inspect(asked, agents=agents, factories=self._factories, sinks=self._sinks, steps=self._steps)
        except SnapshotError as error:
            log.warning("%s: what had been released beyond epoch %d cannot be listed: %s", self.id, epoch, error)
            return
        silent = any(getattr(sink, "outputs_after", None) is None for sink in self._sinks)
        if not (found.outputs or found.effects or silent):
            return
        listed = "; ".join(
            f"{each.kind} of {each.agent} to {each.place}: {each.token}" for each in (*found.outputs, *found.effects)
        )
        log.warning("%s: released beyond epoch %d, and not taken back: %s", self.id, epoch, listed)
        self._news.tell(ReleasedBeyond(epoch=epoch, outputs=found.outputs, effects=found.effects, notes=found.notes))

    # --- machine and loop ---------------------------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        if self._closed:
            return
        try:
            self._carry_out(self._machine.step(event, self._clock.now()))
        except Exception as error:  # noqa: BLE001 - a bug of ours: going on would be guessing
            # Not left to who called: a timer that raises is a line in a log, and never set again.
            self._task_failed(error)
            return
        if not self._tick_due:
            self.wake()

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        carry = self._carry
        for effect in effects:
            carry[type(effect)](effect)

    def wake(self) -> None:
        """Have `_tick` run in this turn of the loop or the next."""
        if not self._tick_due and not self._closed:
            self._tick_due = True
            # Woken by a handler's task, the tick and the turns in it do not see that task's context variables.
            self._loop.call_soon(self._tick, context=self._context)

    def _tick(self) -> None:
        self._tick_due = False
        if self._closed:
            return
        try:
            more = self._pump.run()
            machine = self._machine
            if machine.flush_wanted or self._turns is not None:
                if self._turns is not None:
                    self._turns.tick(machine, self._outlet)
                self._carry_out(machine.flush(self._clock.now()))
        except Exception as error:  # noqa: BLE001 - a bug of ours: going on would be guessing
            self._task_failed(error)
            return
        except BaseException as error:
            # A handler's exit: it ends the participant as it does out of a task, and goes on if it is the process's.
            self._task_failed(error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return
        if more:
            self.wake()
        elif not self._idle_news.is_set() and self._idle:
            self._idle_news.set()

    @property
    def _idle(self) -> bool:
        return not self._pump.busy and not self._machine.outgoing_bytes and not self._input_comes

    def turn_committed(self, sends: list[Delivery]) -> None:
        """From the pump: state was taken over just now."""
        self._carry_out(self._machine.step(TurnCommitted(sends), self._clock.now()))

    def epoch_wanted(self, reason: str) -> None:
        """From the pump: an agent asks for an epoch."""
        self._step(EpochWanted(reason=reason))

    def outputs_emitted(self, host: AgentHost, outputs: Sequence[tuple[bytes, str, bytes]]) -> None:
        """From the pump: a turn that committed just now emitted these."""
        self._outlet.emitted(host, outputs)

    def turn_failed(self, outcome: DeadLettered | Stopped) -> None:
        """From the pump: a message was put aside, or an agent stopped."""
        if self._turns is not None:
            self._turns.ended(outcome)
        self._say_failed(outcome)

    def _say_failed(self, outcome: DeadLettered | Stopped) -> None:
        if isinstance(outcome, DeadLettered):
            self._dead_letters.add(outcome)
            log.warning("agent %s: dead letter of type %a: %s", outcome.agent, outcome.message.type, outcome.reason)
        else:
            log.error("agent %s has stopped: %s", outcome.agent, outcome.reason)
        self._news.tell(outcome)

    def turn_parked(self, outcome: Parked) -> None:
        """From the pump: a turn waits for a decision from outside."""
        log.warning("agent %s is parked: %s", outcome.agent, outcome.reason)
        if self._steps is not None:
            self._steps.turn_parked()
        self._say_who_waits()
        event = StepInDoubt if outcome.cause == "in-doubt" else TurnDiverged
        self._news.tell(event(agent=outcome.agent, step=outcome.step, token=outcome.token, reason=outcome.reason))

    def question_asked(self, agent: str, token: str, question: object, expires_in: float | None) -> None:
        """From the steps: a turn waits for an answer."""
        self._news.tell(QuestionAsked(agent=agent, token=token, question=question, expires_in=expires_in))

    def step_settled(self, token: str) -> None:
        """From the steps, or by `settle`: what a parked turn waits for has been decided."""
        for host in self._hosts:
            if host.parked is not None and host.parked.token == token:
                self._pump.resume(host.id)

    def effects_failed(self, error: SnapshotError) -> None:
        """From the steps: the effect ledger is broken for good, set up wrongly, or somebody else's."""
        self._end(error)

    # --- from the outlet ----------------------------------------------------------------------------------------------

    def output_refused(self, output: Output, reason: str) -> None:
        """From the outlet: a sink will never take this output."""
        self._news.tell(OutputRefused(output=output, reason=reason))

    def output_diverged(self, output: Output) -> None:
        """From the outlet: a sink has another payload under an output's token."""
        self._news.tell(OutputDiverged(output=output))

    def sink_failing(self, sink: str, reason: str) -> None:
        """From the outlet: a sink takes nothing at the moment."""
        self._news.tell(SinkFailing(sink=sink, reason=reason))

    def sink_fenced(self, reason: str) -> None:
        """From the outlet: this process is a zombie."""
        self._end(FencedError(reason))

    # --- from the transport -------------------------------------------------------------------------------------------

    def frame_received(self, frame: bytes) -> None:
        """From the transport: bytes that anybody may have written."""
        try:
            header, body = self._codec.verify_and_open(frame)
        except WireError as error:
            self._refuse_frame(frame, error)
            return
        if self._closed:
            return
        try:
            self._carry_out(self._machine.step(FrameArrived(header, body), self._clock.now()))
        except Exception as error:  # noqa: BLE001 - a bug of ours: going on would be guessing
            self._task_failed(error)
            return
        if not self._tick_due:
            self.wake()

    def peer_connected(self, peer: str) -> None:
        """From the transport."""
        self._step(PeerConnected(peer=ParticipantId(peer)))

    def peer_disconnected(self, peer: str, reason: str) -> None:
        """From the transport."""
        log.info("connection to %s lost: %s", peer, reason)
        self._step(PeerDisconnected(peer=ParticipantId(peer)))

    def _refuse_frame(self, frame: bytes, error: WireError) -> None:
        """Count, and say it once per peer: whoever sends a million of them does not fill the disk."""
        try:
            source: str = self._codec.peek(frame).source
            self._counts["frames_forged"] += 1
        except WireError:
            source = "?"
            self._counts["frames_malformed"] += 1
        if source not in self._strangers and len(self._strangers) < STRANGERS_REMEMBERED_MAX:
            self._strangers[source] = None
            log.warning("dropped a frame that says it is from %s; more like it are only counted: %s", source, error)

    # --- from the control connection ----------------------------------------------------------------------------------

    def register_message(self) -> Register:
        """From the control connection: how to introduce this participant.

        Raises:
            RecoveryError: It is not to be introduced: who registers without the log that is there has it given up.
        """
        if self._turns is not None and not self._machine.session and self._turns.overtaken:
            error = RecoveryError(f"{self.id}: another process has begun a log of turns here meanwhile; start again")
            self._end(error)
            raise error
        return Register(
            cluster=self.config.cluster,
            participant=self.id,
            boot_id=self._boot_id,
            build=__version__,
            address=self._wire.address,
            agents=self._declared(),
            agent_versions={agent.id.partition("/")[0]: agent.state_version for agent in self._agents},
            targets=self.config.targets,
            session=self._machine.session,
            incarnation=self._machine.entered,
            kinds=tuple(sorted(self._factories)),
            takes_input=True,
            dry_run=self.dry_run,
            durability=self.config.durability,
            resumes=self._machine.resumption if not self._machine.session else None,
        )

    def _declared(self) -> tuple[str, ...]:
        return tuple(sorted(agent.id for agent in self._agents))

    def heartbeat_message(self) -> Heartbeat | None:
        """From the control connection: what keeps the lease."""
        if self._closed:
            return None
        for progress in self._machine.still_recording():
            self._control.send(progress)
        beat = self._machine.heartbeat()
        listed, count, questions = self._desk.waiting(WAITING_LISTED_MAX)
        if beat is None or not (count or questions):
            return beat
        return msgspec.structs.replace(beat, waiting=listed, waiting_count=count, questions=questions)

    def _say_who_waits(self) -> None:
        """At once: a heartbeat comes only where nothing else is said for a while."""
        beat = self.heartbeat_message()
        if beat is not None:
            self._control.send(beat)

    def control_received(self, message: FromCoordinator) -> None:
        """From the control connection: an answer or order, or outside input."""
        if isinstance(message, Ingest):
            if message.session == self._machine.session and not self._closed:
                self._tasks.spawn(self._ingest_for(message), name="input of the coordinators' API")
            return
        if isinstance(message, Inspect):
            if message.session == self._machine.session and not self._closed:
                self._tasks.spawn(self._inspect_for(message), name="inspection")
            return
        if isinstance(message, Consult):
            if message.session == self._machine.session and not self._closed:
                self._tasks.spawn(self._consult_for(message), name="an operator's look or word")
            return
        if isinstance(message, CommitTold) and self._intake is not None and message.session == self._machine.session:
            self._intake.keeps(message.kept)
        self._step(ControlArrived(message=message))

    async def _consult_for(self, asked: Consult) -> None:
        answer = await self._desk.answer(asked)
        self._control.send(answer)
        if isinstance(asked.what, SettleEffect | AnswerQuestion):
            self._say_who_waits()

    async def _inspect_for(self, asked: Inspect) -> None:
        agents = [*self._agents, *(host.agent for host in self._hosts)]
        answer = await inspect(asked, agents=agents, factories=self._factories, sinks=self._sinks, steps=self._steps)
        missing = "" if self._intake is None else await self._intake.missing(asked.epoch)
        if missing:
            answer = msgspec.structs.replace(answer, notes=(*answer.notes, missing))
        self._control.send(answer)

    async def _ingest_for(self, asked: Ingest) -> None:
        """Take an input that came over the coordinators' API, and answer; no answer where its fate is not known."""
        request = asked.request
        try:
            name, version, body = self._registry.encode_json(asked.name, asked.version, asked.body)
            taken = await self._take_input(asked.agent, name, version, body, asked.token)
        except SnapshotError as error:
            code = refusal_code(error)
            if code:
                answer = Ingested(session=asked.session, request=request, code=code, sentence=str(error))
                self._control.send(answer)
            return
        self._control.send(
            Ingested(
                session=asked.session,
                request=request,
                message=taken.id.hex(),
                position=taken.position,
                duplicate=taken.duplicate,
            )
        )

    def control_disconnected(self, reason: str) -> None:
        """From the control connection: it comes back by itself."""
        log.info("connection to the coordinators lost: %s", reason)
        self._news.tell(Lost(reason=reason))

    def control_ended(self, error: SnapshotError) -> None:
        """From the control connection: it never comes back."""
        self._end(error)

    # --- from the uploader --------------------------------------------------------------------------------------------

    def local_persisted(self, event: LocalPersisted) -> None:
        """From the uploader: a part is durable."""
        if self._turns is not None:
            self._turns.persisted(event.epoch, event.snapshot)
        if self._turns is None and self._intake is None:
            self._step(event)
        else:
            self._tasks.spawn(self._local_covered(event), name=f"log up to epoch {event.epoch}")

    async def _local_covered(self, event: LocalPersisted) -> None:
        try:
            if self._turns is not None:
                await self._turns.covered()
            if self._intake is not None:
                await self._intake.noted(event.epoch)
        except SnapshotError:
            return  # whoever keeps the log has said so, or the epoch is over
        self._step(event)

    def local_failed(self, event: LocalFailed) -> None:
        """From the uploader: a part cannot be completed."""
        log.warning("epoch %d failed here in phase %s: %s", event.epoch, event.phase, event.cause)
        self._step(event)

    def local_progressed(self, event: LocalProgressed) -> None:
        """From the uploader: a phase is over."""
        self._step(event)

    # --- effects ------------------------------------------------------------------------------------------------------

    def _deliver_to_agents(self, effect: DeliverToAgents) -> None:
        self._pump.deliver(effect.deliveries)

    def _send_frame(self, effect: SendFrame) -> None:
        frame = self._codec.encode(
            kind=effect.kind,
            incarnation=effect.incarnation,
            source_session=effect.source_session,
            target_session=effect.target_session,
            epoch=effect.epoch,
            first=effect.first,
            ack=effect.ack,
            count=effect.count,
            source=self.id,
            target=effect.target,
            body=effect.body,
        )
        self._wire.send(effect.target, frame)

    def _set_timer(self, effect: SetTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_at(effect.at, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        if not self._closed:
            self._step(TimerFired())

    def _record_local(self, effect: RecordLocal) -> None:
        began = self._clock.now()
        position = 0 if self._intake is None else self._intake.cut(effect.epoch)
        if self._turns is not None:
            self._turns.cut(effect.epoch)
        self._uploader.freeze(effect, began, input_position=position)
        self._outlet.cut(effect.epoch)
        self.record_ns_max = max(self.record_ns_max, self._clock.now() - began)

    def _channels_recorded(self, effect: ChannelsRecorded) -> None:
        self._uploader.channels_recorded(effect)

    def _drop_local(self, effect: DropLocal) -> None:
        self._uploader.drop(effect.epoch)
        self._outlet.dropped(effect.epoch)
        if self._turns is not None:
            self._turns.dropped(effect.epoch)
        if self._intake is not None:
            self._intake.dropped(effect.epoch)

    def _keep_local(self, effect: KeepLocal) -> None:
        self._uploader.keep(effect.epoch)
        self._outlet.committed(effect.epoch)
        if self._turns is not None:
            self._turns.committed(effect.epoch)
        if self._intake is not None:
            self._intake.committed(effect.epoch)

    def _announce_epoch(self, effect: AnnounceEpoch) -> None:
        if effect.committed:
            self._news.tell(EpochCommitted(epoch=effect.epoch, manifest=effect.manifest))
        else:
            self._news.tell(EpochAborted(epoch=effect.epoch, reason=effect.reason))

    def _announce_repeated(self, effect: AnnounceRepeated) -> None:
        message = effect.message[0]
        log.debug("%s has had input %s, which comes again from %s", message.target, message.id.hex(), effect.source)

    def _send_control(self, effect: SendControl) -> None:
        message = effect.message
        if isinstance(message, LocalReport):
            fp("report.before_send")
        self._control.send(message)
        if isinstance(message, EpochFailed):
            self._news.tell(EpochPartFailed(epoch=message.epoch, phase=message.phase, cause=message.cause))

    def _enter_topology(self, effect: EnterTopology) -> None:
        self._wire.set_peers({str(peer): address for peer, address in effect.peers.items()})
        topology = effect.topology
        if effect.first:
            member = topology.member(self.id)
            assert member is not None, "a topology without us"
            if not effect.restored and not effect.resumed:
                self._restorer.start(member, self._machine.ancestry)
            if self._turns is not None:
                self._begin_turns(self._turns, effect, member)
            self._pump.start()
            if self._intake is not None:
                self._let_input_in(self._intake, restored=effect.restored or effect.resumed)
                if self._turns is not None and not effect.resumed:
                    self._turns.input_from(self._intake.position)
            if self._steps is not None and (effect.restored or effect.resumed):
                # Also who goes on from its log: the life that was rolled back may have died before its ledger heard of it.
                self._steps.rolled_back(self._restored_epoch)
            if effect.resumed:
                self._news.tell(Resumed(session=self._machine.session, turns=self._turns_recovered))
            if effect.restored:
                self._news.tell(Restored(epoch=self._restored_epoch, incarnation=self._machine.incarnation))
        if self._turns is not None:
            self._turns.streams(effect.lines)
        self._outlet.enter(self._machine.incarnation, self._machine.session)
        self._news.tell(
            Member(session=self._machine.session, topology=topology.version, participants=topology.participants())
        )
        self._member.set()

    def _begin_turns(self, turns: TurnKeeper, effect: EnterTopology, member: ClusterMember) -> None:
        """Log turns from here on: before the first of them."""
        incarnation, session = self._machine.incarnation, self._machine.session
        if effect.resumed:
            turns.go_on(self._hosts, incarnation=incarnation, session=session)
            now = self._clock.now()
            for host in self._hosts:
                overdue = sum(timer[0] <= now for timer in host.timers)
                what = Restoration(
                    epoch=self._restored_epoch,
                    incarnation=incarnation,
                    host=self.id,
                    waiting=len(host.mailbox),
                    timers=len(host.timers) - overdue,
                    overdue=overdue,
                    session=session,
                )
                host.come_back(self.config.cluster, what, ())
            self._outlet.restored(self._hosts, epoch=self._restored_epoch)
        elif effect.restored:
            turns.start_over(self._hosts, incarnation=incarnation, session=session, order=self._restored_order)
            self._tasks.spawn(self._tell_released(self._restored_epoch), name="what was released beyond the epoch")
        else:
            turns.start_over(
                self._hosts, incarnation=incarnation, session=session, fresh=member.fresh, fresh_of=member.fresh_of
            )

    def _let_input_in(self, intake: Intake, *, restored: bool) -> None:
        """What came after the epoch's cut enters again, then what is new; a cut may be taken before either has begun."""
        life = Life(self._machine.incarnation, self._machine.session)
        if restored:
            ticket = intake.hold(
                epoch=self._restored_epoch,
                position=self._restorer.input_position,
                began=self._restorer.input_from,
                ancestry=self._machine.ancestry,
            )
        else:
            ticket = intake.hold(epoch=None, ancestry=self._machine.ancestry)
        restoring = intake.restore(life, ticket, newest_epoch=self._machine.newest_epoch)
        self._tasks.spawn(self._open_intake(restoring), name="input comes again" if restored else "input begins")

    async def _open_intake(self, work: Coroutine[Any, Any, int]) -> None:
        try:
            count = await work
        except RecoveryError as error:
            log.info("%s", error)
        except SnapshotError as error:
            self._end(error)
        else:
            if count:
                log.info("%d inputs came again", count)
        # Whoever waits for idleness waited for this, too.
        self.wake()

    @property
    def _input_comes(self) -> bool:
        """Whether input is on its way from the log to the agents."""
        return self._intake is not None and self._intake.busy and self._member.is_set()

    def _input_enters(self, delivery: Delivery, taken_in: int) -> None:
        """From the intake: it is durable. What comes again may be for an agent that has another name by now, or may have had it."""
        ancestry = self._machine.ancestry
        if not taken_in or ancestry is None:
            delivery = renamed_delivery(delivery, self._renames)
        elif ancestry.named and taken_in != ancestry.incarnation:
            target = delivery[0].target
            called = ancestry.called(target, taken_in)
            delivery = renamed_delivery(delivery, {target: called} if called != target else {})
        if self._turns is not None and not self._machine.has_had(delivery[0]):
            assert self._intake is not None, "input comes from somewhere"
            self._turns.taken(self._intake.position, delivery[1])
        self._step(MessageIngested(delivery))

    def _input_had(self, message: bytes) -> bytes | None:
        """From the intake: what an input asked for that an agent here has had."""
        return self._machine.inputs.digest(message)

    def _halt_agents(self, effect: HaltAgents) -> None:
        if self._intake is not None:
            self._intake.pause()
        self._restorer.halt()

    def _persist_incarnation(self, effect: PersistIncarnation) -> None:
        self._restorer.persist(effect.incarnation, self._machine.session, returns=self._machine.returning)

    def _restore_local(self, effect: RestoreLocal) -> None:
        self._restored_epoch = effect.order.epoch
        self._restored_order = effect.order
        self._renames = dict(effect.order.renames)
        if self._steps is not None:
            self._steps.stay(self._staying(effect.order))
        self._restorer.restore(effect.order)

    def _staying(self, order: Restore) -> frozenset[str]:
        """Agents that an order leaves here; who has the name of one of them from then on may be another one."""
        mine = next((frozenset(each.agents) for each in order.members if each.id == self.id), frozenset[str]())
        first_name = str if order.ancestry is None else order.ancestry.first_name
        return frozenset(host.id for host in self._hosts if host.id in mine and host.lineage == first_name(host.id))

    def restore_stepped(self, event: Event) -> None:
        """From the restorer: a step of a restore is done, or cannot be."""
        self._step(event)

    def restore_fenced(self, error: SnapshotError) -> None:
        """From the restorer: a later life of this participant is on its disk."""
        self._end(error)

    def _dead_letter(self, effect: DeadLetter) -> None:
        envelope, data = effect.message
        letter = DeadLettered(
            agent=envelope.target, message=envelope, data=data, reason=effect.reason, attempts=0, at=self._clock.now()
        )
        self._say_failed(letter)

    def _end_participant(self, effect: EndParticipant) -> None:
        if effect.reason:
            self._end(FencedError(effect.reason))
        else:
            # The ends of the channels were put in this step: the flush that follows sends them.
            self._pump.close()
            self._loop.call_soon(self._end, None)

    # --- life ---------------------------------------------------------------------------------------------------------

    def _end(self, error: SnapshotError | None) -> None:
        if self._ended.is_set():
            return
        self._failure = error
        if error is not None:
            log.error("participant %s ends: %s", self.id, error)
            # A fenced participant has no effect from here on: no turn, no frame, no upload, no claim to be alive.
            self._closed = True
            self._pump.close()
            self._uploader.close()
            self._outlet.stop()
            if self._steps is not None:
                self._steps.stop()
            if self._intake is not None:
                self._intake.stop()
        self._ended.set()
        self._idle_news.set()
        self._outputs_news.set()
        self._news.end()

    async def _close(self) -> None:
        if not self._ended.is_set():
            self._end(None)
        if self._machine.flush_wanted and not self._closed:
            self._carry_out(self._machine.flush(self._clock.now()))
        self._closed = True
        self._pump.close()
        if self._timer is not None:
            self._timer.cancel()
        await self._control.close()
        await self._wire.close()
        await self._tasks.close()
        self._uploader.close()
        await self._outlet.close()
        if self._intake is not None:
            await self._intake.close()
        if self._turns is not None:
            await self._turns.close()
        if self._steps is not None:
            await self._steps.close()

    async def _wait_first(self, wanted: asyncio.Event) -> None:
        """Until `wanted`, or the end."""
        if not wanted.is_set() and not self._ended.is_set():
            waits = [asyncio.ensure_future(event.wait()) for event in (wanted, self._ended)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        if self._failure is not None:
            raise self._failure
        if not wanted.is_set():
            raise Refused("ended", f"{self.id} has ended")

    def _task_failed(self, error: BaseException) -> None:
        # A bug of ours, or a BaseException of a handler's: neither may pass unseen.
        log.critical("a task of participant %s failed", self.id, exc_info=error)
        self._end(Refused("internal", f"{self.id}: {type(error).__name__}: {error}"))

    def _make_machine(self, *, entered: int) -> ParticipantMachine:
        return ParticipantMachine(
            self.id,
            max_concurrent_epochs=self.config.max_concurrent_epochs,
            recording_bytes_max=self.config.recording_bytes_max,
            entered=entered,
            has_disk=self.config.local is not None,
            logged=self.config.durability == "turn",
        )

    def _make_steps(self, folder: LocalFolder | None) -> StepRunner | None:
        """The effect ledger, if there is a place for one."""
        backend = effect_backend(self.config, folder, self._fork)
        if backend is None:
            return None
        return StepRunner(
            backend,
            self._hosts,
            cluster=self.config.cluster,
            fence=lambda: FencingToken(self.id, self._machine.incarnation, self._machine.session),
            epoch=lambda: self._machine.newest_epoch,
            clock=self._clock,
            sink=self,
        )

    def _make_keeper(self, folder: LocalFolder) -> TurnKeeper:
        return TurnKeeper(
            folder,
            cluster=self.config.cluster,
            participant=self.id,
            sink=self,
            tasks=self._tasks,
            ledger=self._ledger,
        )

    def _open_folder(self) -> LocalFolder | None:
        """What earlier lives left on the disk. Blocks."""
        folder = open_folder(self.config, self._fork)
        life = None if folder is None else folder.highest()
        if life is not None:
            self._machine = self._make_machine(entered=life.incarnation)
        return folder
