"""A participant: the product's machine, hosts, turns and capture, with the simulator as their driver.

The same parts as `participant.runtime.participant` puts together, in the same order: what arrived is stepped by its own
event, then a tick runs turns for a slice and flushes. Turns take virtual time. `simulations.uploads` is the background half
of a cut.

A life ends by a crash, when it is fenced, or when it has left; the next one has another boot id, and nothing of this one's
memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from participant.codec import MessageRegistry
from participant.context import encode_envelope
from participant.host import AgentHost
from participant.inputs import OUTSIDE, position_message_id
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
    FrameArrived,
    HaltAgents,
    KeepLocal,
    LeaveRequested,
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
from participant.peers import ChannelLimits
from participant.state import CutClock
from protocol.errors import Overloaded, Refused, WireError
from protocol.ids import AgentId, Instant, ParticipantId
from protocol.messages import Envelope, LocalReport, Register, Restored
from simulations.control import ControlClient
from simulations.local_disk import SimulatedFolder
from simulations.oracles.parked import EarlyFrames
from simulations.prng import stream
from simulations.restores import Restores
from simulations.uploads import Uploads
from simulations.world import Process, Timer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from participant.agent import Agent
    from participant.effects.entries import Entry
    from participant.failure import DeadLettered, Parked, Stopped
    from participant.machine_events import Delivery, Effect, Event
    from participant.runtime.effect_desk import Settlement
    from participant.runtime.intake import Taken
    from protocol.consulting import ConsultRequest
    from protocol.messages import Consulted, Member, ToParticipant
    from protocol.topology import Topology
    from simulations.cluster import SimulatedCluster
    from simulations.ghost import GhostLife
    from simulations.options import Options


def channel_limits(options: Options) -> ChannelLimits:
    """Of every participant of a world."""
    return ChannelLimits(
        frame_bytes=options.frame_bytes,
        window_bytes=options.window_bytes,
        reorder_bytes=options.reorder_bytes,
        resend_ns=options.resend_ns,
        resend_ns_max=options.resend_ns_max,
        parked_bytes=options.parked_bytes,
    )


_LONG: Final = 100
"""Messages of a mailbox that counts as long."""
_MANY: Final = 30
"""Messages of one channel state that counts as long."""


class ParticipantLife(Process):
    """One life of a participant."""

    def __init__(self, cluster: SimulatedCluster, name: str, number: int, agents: Sequence[Agent]) -> None:
        """Start.

        Args:
            cluster: Where it lives.
            name: Participant id.
            number: Of this life, from 1.
            agents: Fresh ones.
        """
        super().__init__(cluster.world, stream(cluster.options.seed, f"participant:{name}:{number}"), name)
        self.cluster = cluster
        self.number = number
        self.agents = agents
        self.control_random = stream(cluster.options.seed, f"control:{name}:{number}")
        self.boot_id = f"{name}-{number}"
        self.peers: dict[str, str] = {}
        self.member = False
        self.visited = False
        """Customers and a human have found it."""
        self._ingested = 0
        self.ended = ""
        """Why this life ended by itself."""
        self._build()
        self.ghost: GhostLife = cluster.ghost.born(self)
        self.parked = EarlyFrames()
        self.codec = cluster.codec
        self._tick_due = False
        self._inside = 0
        """Depth of steps that are being carried out."""
        self._timer: Timer | None = None
        self.forged = 0
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
            HaltAgents: self._halt_agents,
            PersistIncarnation: self._persist_incarnation,
            RestoreLocal: self._restore_local,
            DeadLetter: self._dead_letter,
            EndParticipant: self._end_participant,
        }

    def _build(self) -> None:
        """Make the parts of this life."""
        cluster = self.cluster
        self.takes = cluster.workload.kinds if cluster.options.takeover_ns else ()
        self.registry = registry = MessageRegistry.of_agents((*self.agents, *self.takes), cluster.workload.messages)
        self.cut_clock = CutClock()
        self.hosts = [AgentHost(agent, registry, self.cut_clock) for agent in self.agents]
        self.machine = ParticipantMachine(
            ParticipantId(self.name),
            max_concurrent_epochs=max(2, cluster.options.max_concurrent),
            recording_bytes_max=cluster.options.recording_bytes_max,
            channel_limits=channel_limits(cluster.options),
            entered=cluster.entered.get(self.name, 0),
            has_disk=cluster.options.recovery,
        )
        self.folder: SimulatedFolder | None = SimulatedFolder(cluster.disk_of(self.name))
        self.pump = cluster.workload.pump(self)
        self.uploads = Uploads(self)
        self.restores = Restores(self)
        self.control = ControlClient(self)

    def start(self) -> None:
        """Begin to connect."""
        self.cluster.network.lives[self.name] = self
        self.control.start()

    # --- machine and loop ---------------------------------------------------------------------------------------------

    def step(self, event: Event, mark: bytes = b"") -> None:
        """Give the machine an event and carry out what it orders."""
        effects = self.machine.step(event, Instant(self.now))
        self.cluster.trace.note(self.now, self.name, type(event).__name__, event, mark + b"%d" % len(effects))
        self._carry_out(effects)
        self.wake()

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        carry = self._carry
        self._inside += 1
        for effect in effects:
            if not self.alive:
                return
            carry[type(effect)](effect)
        self._inside -= 1
        # A peer that is none any more is told of inside of the step that brings the topology.
        if self.parked.due and not self._inside:
            self.parked.check(self)

    def wake(self) -> None:
        """Have `_tick` run soon, if it has anything to do: after most events it has not."""
        if not self._tick_due and self.alive and (self.pump.busy or self.machine.flush_wanted):
            self._tick_due = True
            world = self.world
            if self.now > world.now:
                world.at(self.now, self.random, self.enter, self._tick)
            else:
                world.soon(self.random, self._enter_tick)

    def _enter_tick(self) -> None:
        self.enter(self._tick)

    def _tick(self) -> None:
        self._tick_due = False
        more = self.pump.run()
        if self.alive and self.machine.flush_wanted:
            self._carry_out(self.machine.flush(Instant(self.now)))
        if more:
            self.wake()

    def note(self, what: str, detail: str) -> None:
        """Into the trace."""
        self.cluster.trace.note(self.now, self.name, what, detail)

    def point(self, name: str) -> None:
        """Pass a point of the protocol; this life may be over afterwards."""
        self.cluster.probes.point(name, self.name)

    # --- from the pump ------------------------------------------------------------------------------------------------

    def turn_committed(self, sends: list[Delivery]) -> None:
        """State was taken over just now."""
        self.ghost.sent(sends)
        event = TurnCommitted(sends)
        effects = self.machine.step(event, Instant(self.now))
        self.cluster.trace.note(self.now, self.name, "TurnCommitted", event, sends[-1][0].id)
        self._carry_out(effects)

    def epoch_wanted(self, reason: str) -> None:
        """An agent asks for an epoch."""
        self.step(EpochWanted(reason=reason))

    def outputs_emitted(self, host: AgentHost, outputs: Sequence[tuple[bytes, str, bytes]]) -> None:
        """A turn emitted something."""
        raise AssertionError(f"{host.id} emits, and simulated participants have no sinks")

    def turn_failed(self, outcome: DeadLettered | Stopped) -> None:
        """A message was put aside, or an agent stopped."""
        self.cluster.workload.put_aside(self, outcome)

    def turn_parked(self, outcome: Parked) -> None:
        """A turn waits for a decision from outside."""
        raise AssertionError(f"{outcome.agent} makes steps, and simulated participants have no effect ledger")

    # --- from outside -------------------------------------------------------------------------------------------------

    @property
    def in_flight_bytes(self) -> int:
        """What the limit on outside input looks at."""
        return self.machine.outgoing_bytes + self.machine.unrouted_bytes + self.pump.mailbox_bytes

    def ingest(self, agent: str, message: object) -> Overloaded | Refused | None:
        """As `Participant.ingest_nowait`: outside input to an agent anywhere.

        Returns:
            Why it is refused; None: it was accepted.
        """
        if not self.member or self.machine.leaving:
            return Refused("leaving", f"{self.name} takes no input")
        limit = self.cluster.workload.in_flight_bytes_max
        if self.in_flight_bytes > limit:
            return Overloaded(f"{self.in_flight_bytes} bytes are in flight at {self.name}; the limit is {limit}")
        name, version, body = self.registry.encode(message)
        identity = position_message_id("simulated", self.boot_id, self._ingested)
        envelope = Envelope(identity, OUTSIDE, AgentId(agent), name, version, body)
        data = encode_envelope(envelope)
        refusal = self.machine.refusal(agent, len(data))
        if refusal is None:
            self._ingested += 1
            self.ghost.ingested((envelope, data))
            self.step(MessageIngested((envelope, data)), identity)
        return refusal

    def run(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Somebody who uses this participant, in its own event loop."""
        raise NotImplementedError

    async def give(self, agent: str, message: object, token: str) -> Taken:
        """As `Participant.ingest`."""
        raise NotImplementedError

    async def say(self, token: str, value: object) -> str:
        """As `Participant.answer`; what became of the answer."""
        raise NotImplementedError

    @property
    def input_comes(self) -> bool:
        """Whether input is on its way from a log to the agents."""
        return False

    def parked_steps(self) -> list[str]:
        """Tokens of steps for which turns wait."""
        return []

    async def settle(self, token: str, settlement: Settlement) -> Entry:
        """As `Participant.settle`."""
        raise NotImplementedError

    async def consult(self, what: ConsultRequest) -> Consulted:
        """What a participant answers to an operator who asks by way of the coordinators."""
        raise NotImplementedError

    def open_questions(self) -> list[tuple[str, str]]:
        """Token of each, and the order that it is about."""
        raise NotImplementedError

    # --- from the network ---------------------------------------------------------------------------------------------

    def frame_received(self, frame: bytes) -> None:
        """Bytes that anybody may have written."""
        try:
            header, body = self.codec.verify_and_open(frame)
        except WireError:
            self.forged += 1
            self.cluster.probes.hit("wire.refused")
            return
        self.parked.arrived(self, header, body)
        event = FrameArrived(header, body)
        effects = self.machine.step(event, Instant(self.now))
        self.cluster.trace.note(self.now, self.name, "FrameArrived", header, frame[-16:])
        self._carry_out(effects)
        self.wake()

    def peer_connected(self, peer: str) -> None:
        """A connection is there."""
        self.step(PeerConnected(peer=ParticipantId(peer)))

    def peer_disconnected(self, peer: str, reason: str) -> None:
        """A connection is gone."""
        self.note("PeerLost", f"{peer}: {reason}")
        self.step(PeerDisconnected(peer=ParticipantId(peer)))

    # --- from the control connection ----------------------------------------------------------------------------------

    def register_message(self) -> Register:
        """How to introduce this participant."""
        return Register(
            cluster=self.cluster.name,
            participant=self.name,
            boot_id=self.boot_id,
            address=self.cluster.address_of(self.name),
            agents=tuple(sorted(agent.id for agent in self.agents)),
            agent_versions={agent.kind: agent.state_version for agent in self.agents},
            kinds=tuple(sorted(kind.kind for kind in self.takes)),
            targets=self.cluster.targets[self.name],
            dry_run=self.cluster.forked is not None,
            session=self.machine.session,
            incarnation=self.machine.entered,
        )

    def order_comes_late(self, message: ToParticipant) -> None:
        """An order that an earlier life of this participant was given arrives here, out of some queue."""
        self.enter(self.control_received, message)

    def control_received(self, message: ToParticipant) -> None:
        """An answer or order."""
        self.cluster.orders_seen(self, message)
        event = ControlArrived(message=message)
        effects = self.machine.step(event, Instant(self.now))
        self.cluster.trace.note(self.now, self.name, type(message).__name__, message, b"%d" % len(effects))
        self.ghost.ordered(message, effects)
        self._carry_out(effects)
        self.wake()

    def leave(self) -> None:
        """Leave in order, without waiting for anything."""
        self.step(LeaveRequested())

    # --- effects ------------------------------------------------------------------------------------------------------

    def _deliver_to_agents(self, effect: DeliverToAgents) -> None:
        self.ghost.delivered(effect)
        self.pump.deliver(effect.deliveries)

    def _send_frame(self, effect: SendFrame) -> None:
        frame = self.codec.encode(
            kind=effect.kind,
            incarnation=effect.incarnation,
            source_session=effect.source_session,
            target_session=effect.target_session,
            epoch=effect.epoch,
            first=effect.first,
            ack=effect.ack,
            count=effect.count,
            source=self.name,
            target=effect.target,
            body=effect.body,
        )
        self.cluster.network.send(self, effect.target, frame)

    def _set_timer(self, effect: SetTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.call_at(effect.at, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.step(TimerFired())

    def _record_local(self, effect: RecordLocal) -> None:
        self.ghost.cut(effect)
        self.cluster.trace.note(self.now, self.name, "RecordLocal", effect.epoch, b"%d" % effect.epoch)
        self.probe_cut()
        self.uploads.freeze(effect)

    def probe_cut(self) -> None:
        """The local state is recorded now: is it a rare one?"""
        probe = self.cluster.probes.hit
        for host in self.hosts:
            if host.turn is not None:
                probe("cut.inside_turn")
            if len(host.mailbox) >= _LONG:
                probe("cut.long_mailbox")

    def probe_channels(self, effect: ChannelsRecorded) -> None:
        """The channel states are recorded."""
        probe = self.cluster.probes.hit
        if sum(1 for channel in effect.channels if channel.items) >= 2:
            probe("cut.two_channels_in_flight")
        if any(len(channel.items) >= _MANY for channel in effect.channels):
            probe("cut.long_channel")

    def _channels_recorded(self, effect: ChannelsRecorded) -> None:
        self.probe_channels(effect)
        self.uploads.channels_recorded(effect)

    def _drop_local(self, effect: DropLocal) -> None:
        self.uploads.drop(effect.epoch)

    def _keep_local(self, effect: KeepLocal) -> None:
        self.ghost.kept = max(self.ghost.kept, int(effect.epoch))
        self.uploads.keep(effect.epoch)

    def _announce_repeated(self, effect: AnnounceRepeated) -> None:
        raise AssertionError(f"{effect.message[0]} repeats, and simulated participants have no input log")

    def _announce_epoch(self, effect: AnnounceEpoch) -> None:
        self.ghost.announced(effect)

    def _send_control(self, effect: SendControl) -> None:
        message = effect.message
        report = isinstance(message, LocalReport)
        if report:
            self.point("report.before_send")
            if not self.alive:
                return
        self.control.say(message)
        if report:
            self.point("report.after_send")
        elif isinstance(message, Restored):
            self.point("restored.after_send")

    def _enter_topology(self, effect: EnterTopology) -> None:
        self.ghost.entered(effect.topology)
        self.parked.enters()
        self.peers = {str(peer): address for peer, address in effect.peers.items()}
        self.cluster.network.set_peers(self, self.peers)
        if effect.first:
            self.member = True
            if not effect.restored:
                self.restores.start(self._member_of(effect.topology))
            self.ghost.begun(restored=effect.restored)
            self.cluster.workload.begin(self)
            self.pump.start()

    def _member_of(self, topology: Topology) -> Member:
        member = topology.member(ParticipantId(self.name))
        assert member is not None, "a topology without this participant"
        return member

    def _halt_agents(self, effect: HaltAgents) -> None:
        self.member = False
        self.ghost.halted()
        self.restores.halt()

    def _persist_incarnation(self, effect: PersistIncarnation) -> None:
        self.restores.persist(effect.incarnation)

    def _restore_local(self, effect: RestoreLocal) -> None:
        self.restores.restore(effect.order)

    def _dead_letter(self, effect: DeadLetter) -> None:
        self.cluster.workload.put_aside(self, effect)

    def _end_participant(self, effect: EndParticipant) -> None:
        if effect.reason:
            self.end(f"fenced: {effect.reason}")
            return
        # The ends of the channels were put in this step: flush them, then go.
        self.pump.close()
        self._carry_out(self.machine.flush(Instant(self.now)))
        self.later(50_000_000, self.end, "left")

    def end(self, reason: str) -> None:
        """This life is over; a supervisor starts the next one."""
        if self.alive:
            self.ended = reason
            self.note("Ended", reason)
            self.cluster.participant_ended(self)
