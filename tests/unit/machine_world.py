"""Participants' machines on a network in memory, with time and loss in the test's hands, and a check of each cut.

Each participant hosts one agent, ``agent/<id>``, that holds an amount of money. A message moves some of it. No driver, no
hosts, no stores: what is tested is the machine.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

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
    FrameArrived,
    KeepLocal,
    LocalPersisted,
    PeerConnected,
    PeerDisconnected,
    RecordLocal,
    SendControl,
    SendFrame,
    SetTimer,
    TimerFired,
    TurnCommitted,
)
from protocol.cut import check_cut
from protocol.items import message_count, message_payload
from protocol.manifest import IncomingCut, LocalSnapshot
from protocol.messages import (
    AbortEpoch,
    Envelope,
    EpochCommitted,
    EpochFailed,
    LocalReport,
    Member,
    Registered,
    StartEpoch,
    TopologyChanged,
)
from protocol.topology import Topology
from protocol.wire import FrameHeader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MILLISECOND = 1_000_000
encode = msgspec.msgpack.encode
decode_envelope = msgspec.msgpack.Decoder(Envelope).decode


def message(source: str, target: str, amount: int, number: int = 0) -> tuple[Envelope, bytes]:
    envelope = Envelope(number.to_bytes(16, "big"), f"agent/{source}", f"agent/{target}", "Pay", 1, encode(amount))
    return envelope, encode(envelope)


def amount_of(envelope: Envelope) -> int:
    return msgspec.msgpack.decode(envelope.body, type=int)


class Part:
    """One participant of the world and what its machine ordered."""

    def __init__(self, world: World, name: str, **options) -> None:
        self.world = world
        self.name = name
        self.machine = ParticipantMachine(name, **options)
        self.balance = 0
        self.received: list[tuple[str, int]] = []
        self.controls: list = []
        self.announced: list[AnnounceEpoch] = []
        self.dropped: list[DropLocal] = []
        self.kept: list[int] = []
        self.dead: list[DeadLetter] = []
        self.topologies: list[EnterTopology] = []
        self.ended: list[str] = []
        self.timer: int | None = None
        self.recorded: dict[int, tuple[RecordLocal, int]] = {}
        self.channels: dict[int, ChannelsRecorded] = {}
        self.log: list[object] = []

    def step(self, event) -> list:
        effects = list(self.machine.step(event, self.world.now))
        self.carry_out(effects)
        return effects

    def flush(self) -> None:
        self.carry_out(self.machine.flush(self.world.now))

    def carry_out(self, effects: Iterable) -> None:
        for effect in effects:
            self.log.append(effect)
            match effect:
                case SendFrame():
                    self.world.post(self.name, effect)
                case DeliverToAgents(deliveries=deliveries):
                    for envelope, _ in deliveries:
                        self.balance += amount_of(envelope)
                        self.received.append((envelope.source, amount_of(envelope)))
                case RecordLocal():
                    self.recorded[effect.epoch] = (effect, self.balance)
                case ChannelsRecorded():
                    self.channels[effect.epoch] = effect
                    if self.world.auto_persist:
                        self.world.later.append((self, effect.epoch))
                case SendControl():
                    self.controls.append(effect.message)
                case SetTimer(at=at):
                    self.timer = at
                case AnnounceEpoch():
                    self.announced.append(effect)
                case DropLocal():
                    self.dropped.append(effect)
                case KeepLocal():
                    self.kept.append(effect.epoch)
                case DeadLetter():
                    self.dead.append(effect)
                case EnterTopology():
                    self.topologies.append(effect)
                case EndParticipant():
                    self.ended.append(effect.reason)

    def pay(self, target: str, amount: int) -> None:
        self.balance -= amount
        self.step(TurnCommitted([message(self.name, target, amount)]))

    def control(self, kind: type, **fields) -> list:
        defaults = {"term": self.world.term, "session": self.world.sessions[self.name]}
        return self.step(ControlArrived(message=kind(**{**defaults, **fields})))

    def said(self, kind: type) -> list:
        return [one for one in self.controls if isinstance(one, kind)]

    def local_snapshot(self, epoch: int) -> LocalSnapshot:
        record, _ = self.recorded[epoch]
        return LocalSnapshot(
            cluster="shop",
            participant=self.name,
            incarnation=record.incarnation,
            session=record.session,
            epoch=epoch,
            topology=record.topology,
            agents=(),
            outgoing=record.outgoing,
            incoming=tuple(
                IncomingCut(
                    source=channel.source,
                    received=channel.received,
                    closed_at=channel.closed_at,
                    digest=channel.digest,
                    items=len(channel.items),
                    messages=message_count(channel.items),
                )
                for channel in self.channels[epoch].channels
            ),
        )


class World:
    """Machines, a network between them, and the orders of a coordinator that the test writes."""

    def __init__(self, names: str, *, links: dict[str, str] | None = None, money: int = 100, **options) -> None:
        """`names`: one letter each; `links`: participant -> its targets, None: all."""
        self.now = 1_000 * MILLISECOND
        self.term = 1
        self.version = 0
        self.links = links
        self.auto_persist = True
        self.later: list[tuple[Part, int]] = []
        self.parts = {name: Part(self, name, **options) for name in names}
        self.sessions = {name: number for number, name in enumerate(names, 1)}
        self.network: deque[tuple[str, SendFrame]] = deque()
        self.lose: Callable[[str, SendFrame], bool] = lambda _source, _frame: False
        for name, part in self.parts.items():
            part.balance = money
            part.control(Registered, incarnation=1, lease_ns=3_000 * MILLISECOND)
            for other in names:
                if other != name:
                    part.step(PeerConnected(peer=other))
        self.set_topology()

    def __getitem__(self, name: str) -> Part:
        return self.parts[name]

    def members(self) -> tuple[Member, ...]:
        return tuple(
            Member(
                id=name,
                session=self.sessions[name],
                address=f"memory:{name}",
                agents=(f"agent/{name}",),
                targets=None if self.links is None else tuple(self.links.get(name, "")),
            )
            for name in self.parts
        )

    def set_topology(self) -> None:
        self.version += 1
        for part in self.parts.values():
            part.control(TopologyChanged, incarnation=1, version=self.version, members=self.members())

    def post(self, source: str, frame: SendFrame) -> None:
        if not self.lose(source, frame):
            self.network.append((source, frame))

    def header(self, source: str, frame: SendFrame) -> FrameHeader:
        return FrameHeader(
            frame.kind,
            frame.incarnation,
            frame.source_session,
            frame.target_session,
            frame.epoch,
            frame.first,
            frame.ack,
            frame.count,
            source,
            frame.target,
        )

    def deliver(self, count: int | None = None) -> None:
        """Move frames that are on the network now, or the first `count`."""
        for _ in range(len(self.network) if count is None else count):
            source, frame = self.network.popleft()
            self.parts[frame.target].step(FrameArrived(self.header(source, frame), frame.body))

    def flush(self) -> None:
        for part in self.parts.values():
            part.flush()

    def run(self, *, rounds: int = 50) -> None:
        """Flush, deliver and let time pass until everything has arrived and is acknowledged."""
        for _ in range(rounds):
            self.flush()
            self.deliver()
            self.persist()
            self.flush()
            if not self.network:
                self.pass_time(6)
                if not self.network and not any(part.machine.outgoing_bytes for part in self.parts.values()):
                    return

    def persist(self) -> None:
        later, self.later = self.later, []
        for part, epoch in later:
            part.step(LocalPersisted(epoch=epoch, snapshot=f"b3:{part.name}{epoch}", timings={"record": 1}))

    def pass_time(self, milliseconds: float) -> None:
        """Let time pass, timers fire on their way."""
        end = self.now + int(milliseconds * MILLISECOND)
        while True:
            due = sorted((part.timer, part.name) for part in self.parts.values() if part.timer is not None)
            if not due or due[0][0] > end:
                break
            self.now = max(self.now, due[0][0])
            part = self.parts[due[0][1]]
            part.timer = None
            part.step(TimerFired())
            part.flush()
        self.now = end

    def start(self, epoch: int, names: str | None = None, *, deadline_ms: int = 60_000) -> None:
        for name in names or self.parts:
            self.parts[name].control(
                StartEpoch,
                incarnation=1,
                epoch=epoch,
                topology=self.version,
                deadline_ns=deadline_ms * MILLISECOND,
            )

    def commit(self, epoch: int) -> None:
        for part in self.parts.values():
            part.control(EpochCommitted, epoch=epoch, manifest="b3:m", ended_through=epoch)

    def abort(self, epoch: int, names: str | None = None) -> None:
        for name in names or self.parts:
            self.parts[name].control(AbortEpoch, epoch=epoch, reason="test", ended_through=0)

    def break_between(self, one: str, other: str) -> None:
        self.parts[one].step(PeerDisconnected(peer=other))
        self.parts[other].step(PeerDisconnected(peer=one))
        self.network = deque(item for item in self.network if {item[0], item[1].target} != {one, other})

    def mend(self, one: str, other: str) -> None:
        self.parts[one].step(PeerConnected(peer=other))
        self.parts[other].step(PeerConnected(peer=one))

    def reports(self, epoch: int) -> list[str]:
        return [
            name for name, part in self.parts.items() if any(report.epoch == epoch for report in part.said(LocalReport))
        ]

    def failures(self) -> list[EpochFailed]:
        return [failure for part in self.parts.values() for failure in part.said(EpochFailed)]

    def check(self, epoch: int, *, total: int) -> int:
        """The cut is consistent and holds all the money. Returns how much was in flight."""
        topology = Topology(self.version, self.members())
        violation = check_cut(topology, {name: part.local_snapshot(epoch) for name, part in self.parts.items()})
        assert violation is None, str(violation)
        states = sum(part.recorded[epoch][1] for part in self.parts.values())
        flying = sum(
            amount_of(decode_envelope(message_payload(item)))
            for part in self.parts.values()
            for channel in part.channels[epoch].channels
            for item in channel.items
            if item[0] == 1
        )
        assert states + flying == total, f"epoch {epoch}: {states} in states, {flying} in flight, {total} expected"
        return flying
