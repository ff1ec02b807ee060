"""A small cluster for tests: real machines, channels and cut checker, joined by queues that a test empties item by item.

Each participant has a balance; a message moves an amount. Every send, receipt and record is also written to a log that
knows nothing of markers, so that `expected_cut` can say, from the definition alone, what an epoch must hold.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.channel import CutPosition, OutFrame, ReceivingEnd, SendingEnd, continued_digest
from protocol.cut import Violation, check_cut
from protocol.ids import ChannelId, Epoch, Instant, ParticipantId, TopologyVersion
from protocol.items import (
    END_ITEM,
    KIND_END,
    KIND_MARKER,
    KIND_MESSAGE,
    encode_marker_item,
    encode_message_item,
    item_kind,
    marker_epoch,
    message_count,
    message_payload,
    split_items,
)
from protocol.manifest import IncomingCut, LocalSnapshot, OutgoingCut
from protocol.messages import Member
from protocol.snapshot import (
    ChannelClosed,
    ChannelEnded,
    Effect,
    EpochDropped,
    EpochStarted,
    Event,
    ItemsReceived,
    LocalPartComplete,
    MarkerReceived,
    RecordingOverflow,
    RecordState,
    SendMarkers,
    SnapshotMachine,
    TopologySet,
)
from protocol.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from blake3 import blake3

NOW = Instant(0)


def channel(source: str, target: str) -> ChannelId:
    return ChannelId(ParticipantId(source), ParticipantId(target))


def make_topology(participants: Iterable[str], channels: Iterable[ChannelId]) -> Topology:
    targets: dict[str, list[str]] = {participant: [] for participant in participants}
    for source, target in channels:
        targets[source].append(target)
    return Topology(
        TopologyVersion(1),
        tuple(
            Member(id=participant, session=100 + index, targets=tuple(names))
            for index, (participant, names) in enumerate(targets.items())
        ),
    )


@dataclass
class LocalCut:
    """What a driver keeps from `RecordState` to `LocalPartComplete`."""

    state: int
    outgoing: dict[ChannelId, CutPosition]
    incoming: dict[ChannelId, tuple[CutPosition, blake3]]
    closed: dict[ChannelId, ChannelClosed] = field(default_factory=dict)
    complete: bool = False


class Process:
    def __init__(self, name: str, machine: SnapshotMachine, state: int) -> None:
        self.name = name
        self.machine = machine
        self.state = state
        self.sending: dict[ChannelId, SendingEnd] = {}
        self.receiving: dict[ChannelId, ReceivingEnd] = {}
        self.cuts: dict[Epoch, LocalCut] = {}
        self.dropped: dict[Epoch, EpochDropped] = {}


class World:
    def __init__(
        self,
        states: Mapping[str, int],
        channels: Iterable[ChannelId],
        *,
        machine: Callable[..., SnapshotMachine] = SnapshotMachine,
    ) -> None:
        self.channels = sorted(channels)
        self.topology = make_topology(states, self.channels)
        self.total = sum(states.values())
        self.initial = dict(states)
        self.queues: dict[ChannelId, deque[OutFrame]] = {c: deque() for c in self.channels}
        self.log: list[tuple[object, ...]] = []
        self.processes = {name: Process(name, machine(ParticipantId(name)), state) for name, state in states.items()}
        for name, process in self.processes.items():
            me = ParticipantId(name)
            process.sending = {c: SendingEnd(c) for c in self.topology.outgoing(me)}
            process.receiving = {c: ReceivingEnd(c) for c in self.topology.incoming(me)}
            self.step(name, TopologySet(incoming=self.topology.incoming(me), outgoing=self.topology.outgoing(me)))

    # --- what a test does ---

    def send(self, source: str, target: str, payload: bytes, amount: int = 0) -> None:
        self.processes[source].state -= amount
        self.log.append(("send", channel(source, target), payload, amount))
        self.put(channel(source, target), encode_message_item(payload))

    def start(self, name: str, epoch: int) -> tuple[Effect, ...]:
        me = ParticipantId(name)
        return self.step(
            name,
            EpochStarted(epoch=Epoch(epoch), incoming=self.topology.incoming(me), outgoing=self.topology.outgoing(me)),
        )

    def end(self, c: ChannelId) -> None:
        self.put(c, END_ITEM)
        self.step(c.source, ChannelEnded(channel=c, number=self.processes[c.source].sending[c].sent))

    def deliver(self, c: ChannelId, *, amount: int = 0) -> tuple[str, bytes | int]:
        """The next item of a channel arrives.

        Returns:
            ``("message", payload)``, ``("marker", epoch)`` or ``("end", 0)``.
        """
        frame = self.queues[c].popleft()
        sender, receiver = self.processes[c.source], self.processes[c.target]
        end = receiver.receiving[c]
        what: tuple[str, bytes | int] = ("nothing", 0)
        for first, items in end.accept(frame.first_seq, split_items(frame.body, frame.count)):
            assert len(items) == 1
            item = items[0]
            match item_kind(item):
                case x if x == KIND_MESSAGE:
                    if receiver.machine.recording:
                        self.step(c.target, ItemsReceived(channel=c, first=first, items=items))
                    end.advance(items)
                    payload = message_payload(item)
                    receiver.state += amount
                    self.log.append(("receive", c, payload, amount))
                    what = ("message", payload)
                case x if x == KIND_MARKER:
                    self.step(c.target, MarkerReceived(channel=c, epoch=marker_epoch(item), number=first))
                    end.advance(items)
                    what = ("marker", marker_epoch(item))
                case x if x == KIND_END:
                    self.step(c.target, ChannelEnded(channel=c, number=first))
                    end.advance(items)
                    what = ("end", 0)
        sender.sending[c].acknowledged(end.ack(), NOW)
        return what

    # --- what a driver does ---

    def put(self, c: ChannelId, item: bytes) -> None:
        end = self.processes[c.source].sending[c]
        end.put([item])
        for frame in end.frames(NOW):
            self.queues[c].append(frame)
            self.left(c)

    def left(self, c: ChannelId) -> None:
        """One item has left on a channel: for runners that give it a delay."""

    def step(self, name: str, event: Event) -> tuple[Effect, ...]:
        effects = self.processes[name].machine.step(event, NOW)
        for effect in effects:
            self.carry_out(self.processes[name], effect)
        return effects

    def carry_out(self, process: Process, effect: Effect) -> None:
        match effect:
            case RecordState(epoch=epoch):
                assert epoch not in process.cuts, "recorded twice"
                self.log.append(("record", process.name, epoch))
                process.cuts[epoch] = LocalCut(
                    state=process.state,
                    outgoing={c: end.cut_position for c, end in process.sending.items()},
                    incoming={c: (end.cut_position, end.hasher()) for c, end in process.receiving.items()},
                )
            case SendMarkers(epoch=epoch, channels=channels):
                for c in channels:
                    self.put(c, encode_marker_item(epoch))
            case ChannelClosed(epoch=epoch, channel=c):
                assert c not in process.cuts[epoch].closed, "closed twice"
                process.cuts[epoch].closed[c] = effect
            case LocalPartComplete(epoch=epoch):
                process.cuts[epoch].complete = True
            case EpochDropped(epoch=epoch):
                process.cuts.pop(epoch, None)
                process.dropped[epoch] = effect
            case RecordingOverflow():
                pass

    # --- what came of it ---

    def complete(self, epoch: int) -> bool:
        cuts = [process.cuts.get(Epoch(epoch)) for process in self.processes.values()]
        return all(cut is not None and cut.complete for cut in cuts)

    def states(self, epoch: int) -> dict[str, int]:
        return {name: process.cuts[Epoch(epoch)].state for name, process in self.processes.items()}

    def in_flight(self, epoch: int) -> dict[ChannelId, list[bytes]]:
        """Recorded messages of each channel, other epochs' markers left out."""
        return {
            c: [
                message_payload(item)
                for item in self.processes[c.target].cuts[Epoch(epoch)].closed[c].items
                if item_kind(item) == KIND_MESSAGE
            ]
            for c in self.channels
        }

    def snapshots(self, epoch: int) -> dict[ParticipantId, LocalSnapshot]:
        return {
            ParticipantId(name): self.local_snapshot(process, Epoch(epoch)) for name, process in self.processes.items()
        }

    def local_snapshot(self, process: Process, epoch: Epoch) -> LocalSnapshot:
        cut = process.cuts[epoch]
        incoming = []
        for c, closed in sorted(cut.closed.items()):
            position, hasher = cut.incoming[c]
            incoming.append(
                IncomingCut(
                    source=c.source,
                    received=position.number,
                    closed_at=closed.closed_at,
                    digest=continued_digest(hasher, closed.items),
                    items=len(closed.items),
                    messages=message_count(closed.items),
                )
            )
        member = self.topology.member(ParticipantId(process.name))
        assert member is not None
        return LocalSnapshot(
            cluster="test",
            participant=process.name,
            incarnation=1,
            session=member.session,
            epoch=epoch,
            topology=self.topology.version,
            agents=(),
            outgoing=tuple(
                OutgoingCut(target=c.target, sent=position.number, digest=position.digest, ended=position.ended)
                for c, position in sorted(cut.outgoing.items())
            ),
            incoming=tuple(incoming),
        )

    def violation(self, epoch: int) -> Violation | None:
        """What the product's own checker says."""
        return check_cut(self.topology, self.snapshots(epoch))

    def expected_cut(self, epoch: int) -> tuple[dict[str, int], dict[ChannelId, list[bytes]]]:
        """The cut by its definition, from the log alone: no markers, no numbers.

        State: everything that happened at the participant before its record. Channel: what was sent before the sender's
        record, without what was received before the receiver's, which must be a prefix of it.
        """
        cut_at = {entry[1]: place for place, entry in enumerate(self.log) if entry[0] == "record" and entry[2] == epoch}
        states = dict(self.initial)
        sent: dict[ChannelId, list[bytes]] = {c: [] for c in self.channels}
        received: dict[ChannelId, list[bytes]] = {c: [] for c in self.channels}
        for place, entry in enumerate(self.log):
            if entry[0] == "record":
                continue
            kind, c, payload, amount = entry
            assert isinstance(c, ChannelId)
            assert isinstance(payload, bytes)
            assert isinstance(amount, int)
            if kind == "send" and place < cut_at[c.source]:
                states[c.source] -= amount
                sent[c].append(payload)
            if kind == "receive" and place < cut_at[c.target]:
                states[c.target] += amount
                received[c].append(payload)
        for c in self.channels:
            assert sent[c][: len(received[c])] == received[c], f"orphan on {c}"
        return states, {c: sent[c][len(received[c]) :] for c in self.channels}
