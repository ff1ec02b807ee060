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
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Self

from participant.agent import Agent
from participant.codec import MessageRegistry
from participant.config import ParticipantConfig, check_interpreter
from participant.context import encode_envelope, too_long
from participant.events import EpochAborted, EpochCommitted, EpochPartFailed, Lost, Member
from participant.failure import DeadLettered, DeadLetters, Stopped
from participant.host import AgentHost
from participant.machine import ParticipantMachine
from participant.machine_events import (
    AnnounceEpoch,
    ChannelsRecorded,
    ControlArrived,
    DeadLetter,
    DeliverToAgents,
    DropLocal,
    EndParticipant,
    EnterTopology,
    EpochWanted,
    FrameArrived,
    KeepLocal,
    LeaveRequested,
    LocalFailed,
    LocalPersisted,
    LocalProgressed,
    MessageIngested,
    PeerConnected,
    PeerDisconnected,
    RecordLocal,
    SendControl,
    SendFrame,
    SetTimer,
    TimerFired,
    TurnCommitted,
)
from participant.runtime.clock import Clock, LoopClock
from participant.runtime.control import Control, ControlClient
from participant.runtime.pump import Pump
from participant.runtime.tasks import TaskSet
from participant.runtime.threads import in_thread
from participant.runtime.uploader import Uploader
from participant.state import CutClock
from protocol.errors import ConfigError, FencedError, Overloaded, Refused, SnapshotError, StoreError, WireError
from protocol.failpoints import arm_failpoints, fp
from protocol.ids import MESSAGE_ID_BYTES, AgentId, ParticipantId, agent_id
from protocol.keys import ClusterKeys, read_secret, trust
from protocol.limits import EVENTS_WAITING_MAX, MESSAGE_BYTES_MAX, STRANGERS_REMEMBERED_MAX
from protocol.messages import Envelope, EpochFailed, Heartbeat, LocalReport, Register
from protocol.version import __version__
from protocol.wire import FrameCodec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from types import TracebackType

    from participant.events import ParticipantEvent
    from participant.machine_events import Delivery, Effect, Event
    from participant.runtime.clock import Cancellable
    from protocol.messages import ToParticipant
    from protocol.ports import ObjectStore, Transport

log = logging.getLogger("cleancut.participant")

OUTSIDE: Final = AgentId("outside/ingest")
"""Source of messages that come from outside the cluster."""
LEAVE_SECONDS: Final = 30.0
STORE_SECONDS_MAX: Final = 60.0
"""Opening the store; one that hangs longer counts as failed, and whoever started the participant hears of it."""


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
        control: Control | None = None,
        wire: Transport | None = None,
        clock: Clock | None = None,
        boot_id: str = "",
        **settings: Any,  # noqa: ANN401 - the other fields of ParticipantConfig, checked there
    ) -> None:
        check_interpreter()
        _check_agents(agents)
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
        self.id: ParticipantId = self.config.participant_id
        self._agents = agents
        self._messages = tuple(messages)
        self._given_control = control
        self._given_wire = wire
        self._given_clock = clock
        self._entered = False
        self._started = False
        self._closed = False
        self._failure: SnapshotError | None = None
        self._ended = asyncio.Event()
        self._member = asyncio.Event()
        self._idle_news = asyncio.Event()
        self._idle_news.set()
        self._boot_id = boot_id or secrets.token_hex(16)
        self._ingested = 0
        self._listeners: list[_Listener] = []
        self._strangers: dict[str, None] = {}
        self._counts = dict.fromkeys(("frames_malformed", "frames_forged", "events_lost"), 0)
        self._dead_letters = DeadLetters()
        self._tasks = TaskSet(self._task_failed)
        self._tick_due = False
        self._timer: Cancellable | None = None
        self.record_ns_max = 0
        """Longest that a cut has held the loop, nanoseconds."""
        registry = MessageRegistry.of_agents(agents, self._messages)
        self._registry = registry
        self._cut_clock = CutClock()
        self._hosts = [AgentHost(agent, registry, self._cut_clock) for agent in agents]
        self._check_pickle()
        self._machine = ParticipantMachine(
            self.id,
            max_concurrent_epochs=self.config.max_concurrent_epochs,
            recording_bytes_max=self.config.recording_bytes_max,
        )
        self._carry: dict[type[Any], Callable[[Any], None]] = {
            DeliverToAgents: self._deliver_to_agents,
            SendFrame: self._send_frame,
            SetTimer: self._set_timer,
            RecordLocal: self._record_local,
            ChannelsRecorded: self._channels_recorded,
            DropLocal: self._drop_local,
            KeepLocal: self._keep_local,
            AnnounceEpoch: self._announce_epoch,
            SendControl: self._send_control,
            EnterTopology: self._enter_topology,
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
        store = await self._open_store()
        self._control = self._given_control or ControlClient(
            coordinators=config.coordinators,
            token=keys.participant_token(config.participant_id),
            tls=None if config.ca_file is None else trust("ca_file", config.ca_file),
        )
        self._pump = Pump(self._hosts, clock=self._clock, sink=self, tasks=self._tasks)
        self._uploader = Uploader(
            hosts=self._hosts,
            cut_clock=self._cut_clock,
            cluster=config.cluster_name,
            participant=self.id,
            store=store,
            clock=self._clock,
            tasks=self._tasks,
            sink=self,
        )
        self._wire = self._given_wire or self._make_wire(keys)
        self._started = True
        try:
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
        listener = _Listener()
        self._listeners.append(listener)
        try:
            while True:
                while listener.waiting:
                    yield listener.waiting.popleft()
                if self._ended.is_set():
                    break
                listener.news.clear()
                await listener.news.wait()
        finally:
            self._listeners.remove(listener)
        if self._failure is not None:
            raise self._failure

    async def ingest(self, agent: str, message: object) -> None:
        """Give a message from outside to an agent anywhere in the cluster.

        Raises:
            Overloaded: Too much is in flight here, or waits for agents that nobody hosts; try again later.
            Refused: Not started yet, leaving, or without a channel to the agent.
            LimitExceeded: A longer message than is carried.
            Unsavable: The message's type is not known here, or a part of it cannot be saved.
            IllegalName: Not an agent id.
        """
        self.ingest_nowait(agent, message)

    def ingest_nowait(self, agent: str, message: object) -> None:
        """As `ingest`."""
        if self._failure is not None:
            raise self._failure
        if not self._started or self._ended.is_set() or self._machine.leaving:
            # Said before anything is looked at: an input that is refused has had no effect.
            state = "is leaving the cluster" if self._started else "has not been started (async with)"
            raise Refused("leaving" if self._started else "not-started", f"{self.id} {state} and takes no input")
        in_flight = self._machine.outgoing_bytes + self._machine.unrouted_bytes + self._pump.mailbox_bytes
        if in_flight > self.config.in_flight_bytes_max:
            raise Overloaded(
                f"{in_flight} bytes are in flight at {self.id}; the limit is {self.config.in_flight_bytes_max}"
            )
        name, version, body = self._registry.encode(message)
        target = agent_id(agent)
        identity = bytes.fromhex(self._boot_id)[:8] + (self._ingested + 1).to_bytes(MESSAGE_ID_BYTES - 8, "big")
        envelope = Envelope(identity, OUTSIDE, target, name, version, body)
        data = encode_envelope(envelope)
        if len(data) > MESSAGE_BYTES_MAX:
            raise too_long(name, len(data))
        refusal = self._machine.refusal(target, len(data))
        if refusal is not None:
            raise refusal
        self._ingested += 1
        self._step(MessageIngested((envelope, data)))
        if self._closed and self._failure is not None:
            raise self._failure

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
            self._step(LeaveRequested())
            await self._wait_first(self._ended)

    @property
    def dead_letters(self) -> tuple[DeadLettered, ...]:
        """The newest messages that were put aside, oldest first."""
        return tuple(self._dead_letters)

    @property
    def agents(self) -> tuple[Agent, ...]:
        """The agents hosted here; look, do not touch."""
        return self._agents

    @property
    def session(self) -> int:
        """Of this registration; 0: not registered."""
        return self._machine.session

    @property
    def busy(self) -> bool:
        """Whether a turn runs or can begin, or something waits to be sent in this turn of the loop."""
        return self._tick_due or self._pump.busy

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
            **self._machine.statistics(),
            **self._uploader.statistics(),
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
            if machine.flush_wanted:
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
        return not self._pump.busy and not self._machine.outgoing_bytes

    def turn_committed(self, sends: list[Delivery]) -> None:
        """From the pump: state was taken over just now."""
        self._carry_out(self._machine.step(TurnCommitted(sends), self._clock.now()))

    def epoch_wanted(self, reason: str) -> None:
        """From the pump: an agent asks for an epoch."""
        self._step(EpochWanted(reason=reason))

    def turn_failed(self, outcome: DeadLettered | Stopped) -> None:
        """From the pump: a message was put aside, or an agent stopped."""
        if isinstance(outcome, DeadLettered):
            self._dead_letters.add(outcome)
            log.warning("agent %s: dead letter of type %a: %s", outcome.agent, outcome.message.type, outcome.reason)
        else:
            log.error("agent %s has stopped: %s", outcome.agent, outcome.reason)
        self._tell(outcome)

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
        """From the control connection: how to introduce this participant."""
        return Register(
            cluster=self.config.cluster,
            participant=self.id,
            boot_id=self._boot_id,
            build=__version__,
            address=self._wire.address,
            agents=tuple(sorted(host.id for host in self._hosts)),
            agent_versions={agent.kind: agent.state_version for agent in self._agents},
            targets=self.config.targets,
            session=self._machine.session,
            incarnation=self._machine.incarnation,
        )

    def heartbeat_message(self) -> Heartbeat | None:
        """From the control connection: what keeps the lease."""
        if self._closed:
            return None
        for progress in self._machine.still_recording():
            self._control.send(progress)
        return self._machine.heartbeat()

    def control_received(self, message: ToParticipant) -> None:
        """From the control connection: an answer or order."""
        self._step(ControlArrived(message=message))

    def control_disconnected(self, reason: str) -> None:
        """From the control connection: it comes back by itself."""
        log.info("connection to the coordinators lost: %s", reason)
        self._tell(Lost(reason=reason))

    def control_ended(self, error: SnapshotError) -> None:
        """From the control connection: it never comes back."""
        self._end(error)

    # --- from the uploader --------------------------------------------------------------------------------------------

    def local_persisted(self, event: LocalPersisted) -> None:
        """From the uploader: a part is durable."""
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
        self._uploader.freeze(effect, began)
        self.record_ns_max = max(self.record_ns_max, self._clock.now() - began)

    def _channels_recorded(self, effect: ChannelsRecorded) -> None:
        self._uploader.channels_recorded(effect)

    def _drop_local(self, effect: DropLocal) -> None:
        self._uploader.drop(effect.epoch)

    def _keep_local(self, effect: KeepLocal) -> None:
        self._uploader.keep(effect.epoch)

    def _announce_epoch(self, effect: AnnounceEpoch) -> None:
        if effect.committed:
            self._tell(EpochCommitted(epoch=effect.epoch, manifest=effect.manifest))
        else:
            self._tell(EpochAborted(epoch=effect.epoch, reason=effect.reason))

    def _send_control(self, effect: SendControl) -> None:
        message = effect.message
        if isinstance(message, LocalReport):
            fp("report.before_send")
        self._control.send(message)
        if isinstance(message, EpochFailed):
            self._tell(EpochPartFailed(epoch=message.epoch, phase=message.phase, cause=message.cause))

    def _enter_topology(self, effect: EnterTopology) -> None:
        self._wire.set_peers({str(peer): address for peer, address in effect.peers.items()})
        topology = effect.topology
        if effect.first:
            for host in self._hosts:
                host.start_fresh(self.config.cluster, self._machine.session)
            self._pump.start()
        self._tell(
            Member(session=self._machine.session, topology=topology.version, participants=topology.participants())
        )
        self._member.set()

    def _dead_letter(self, effect: DeadLetter) -> None:
        envelope, data = effect.message
        letter = DeadLettered(
            agent=envelope.target, message=envelope, data=data, reason=effect.reason, attempts=0, at=self._clock.now()
        )
        self.turn_failed(letter)

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
        self._ended.set()
        self._idle_news.set()
        for listener in self._listeners:
            listener.news.set()

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

    def _tell(self, event: ParticipantEvent) -> None:
        for listener in self._listeners:
            if len(listener.waiting) >= EVENTS_WAITING_MAX:
                listener.waiting.popleft()
                self._counts["events_lost"] += 1
            listener.waiting.append(event)
            listener.news.set()

    def _task_failed(self, error: BaseException) -> None:
        # A bug of ours, or a BaseException of a handler's: neither may pass unseen.
        log.critical("a task of participant %s failed", self.id, exc_info=error)
        self._end(Refused("internal", f"{self.id}: {type(error).__name__}: {error}"))

    def _check_pickle(self) -> None:
        if self.config.allow_cloudpickle:
            return
        for agent in self._agents:
            if agent.serializer == "cloudpickle":
                raise ConfigError(
                    "allow_cloudpickle", f"agent {agent.id} keeps its state with cloudpickle; allow it explicitly"
                )

    async def _open_store(self) -> ObjectStore:
        from protocol.storage import ensure_format, open_store

        config = self.config
        url = config.store if isinstance(config.store, str) else config.store.url
        try:
            async with asyncio.timeout(STORE_SECONDS_MAX):
                if isinstance(config.store, str):
                    store = await in_thread(open_store, config.store, config.cluster_name)
                else:
                    store = config.store
                await in_thread(ensure_format, store, config.cluster_name)
        except TimeoutError:
            cause = f"the store did not answer within {STORE_SECONDS_MAX:.0f} s"
            raise StoreError("open", url, cause, errno_name="ETIMEDOUT") from None
        return store

    def _make_wire(self, keys: ClusterKeys) -> Transport:
        config = self.config
        if config.transport == "memory":
            from participant.runtime.transports.memory import MemoryTransport, hub_of

            return MemoryTransport(self.id, hub_of(config.cluster))
        if config.transport == "websocket":
            from participant.runtime.transports.websocket import WebSocketTransport

            return WebSocketTransport(
                cluster=config.cluster_name,
                participant=self.id,
                keys=keys,
                listen=config.listen,
                advertise=config.advertise,
            )
        from participant.runtime.transports.mqtt import MqttSettings, MqttTransport, client_tls

        tls = None
        if config.transport.startswith("mqtts://"):
            tls = client_tls(
                ca_file=config.mqtt_ca_file, cert_file=config.mqtt_cert_file, key_file=config.mqtt_key_file
            )
        settings = MqttSettings.from_url(config.transport, tls=tls)
        return MqttTransport(cluster=config.cluster_name, participant=self.id, settings=settings)


def _check_agents(agents: Sequence[object]) -> None:
    """Before any of them is taken: agents that were refused here can be given again."""
    seen: dict[str, object] = {}
    for agent in agents:
        if not isinstance(agent, Agent):
            hint = f"{agent.__qualname__}(name) is one" if isinstance(agent, type) else "subclass Agent"
            raise ConfigError("agents", f"{agent!r} is no agent; {hint}")
        name = getattr(agent, "id", "")
        if name and name in seen:
            raise ConfigError(
                "agents", f"{name} was given twice" if seen[name] is agent else f"two agents have one id, {name}"
            )
        seen[name] = agent


class _Listener:
    """One iteration over `Participant.events()`."""

    __slots__ = ("news", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[ParticipantEvent] = deque()
        self.news = asyncio.Event()
