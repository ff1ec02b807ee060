"""The channels of one participant: routing, streams to and from each peer, acknowledgements, what is parked.

The half of `participant.machine` that every message passes. It knows sessions and routes, as the topology gave them, and
numbers items; when a marker or an end is next on a channel, it feeds it to the other half (`_feed`) before it advances past
it. Pure, like the whole.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec

from participant.inputs import CAME_OTHERWISE, NO_DIGEST, OUTSIDE, HadInputs, came_with_token, message_digest
from participant.machine_events import AnnounceRepeated, DeadLetter, DeliverToAgents, LogReceived, LogSent, SendFrame
from participant.peers import PRODUCTION, Peer
from protocol.errors import MalformedFrame, Overloaded, Refused, RemoteProtocolError
from protocol.ids import AgentId, Incarnation, Session
from protocol.items import (
    ITEM_HEADER_BYTES,
    KIND_MARKER,
    KIND_MESSAGE,
    control_positions,
    marker_epoch,
    split_items,
)
from protocol.limits import (
    ACK_DELAY_NS,
    MESSAGE_BYTES_MAX,
    UNROUTED_BYTES_MAX,
    UNROUTED_MESSAGES_MAX,
)
from protocol.messages import Envelope
from protocol.snapshot import ChannelEnded, ItemsReceived, MarkerReceived
from protocol.wire import KIND_ACK, KIND_DATA, FrameHeader

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from participant.machine_events import Delivery, Effect
    from participant.peers import ChannelLimits
    from protocol.channel import OutFrame
    from protocol.ids import Instant, ParticipantId
    from protocol.snapshot import Event as SnapshotEvent
    from protocol.snapshot import SnapshotMachine
    from protocol.topology import Topology

NEVER: Final = 1 << 62
"""An instant that does not come."""
_NOWHERE: Final = object()
_pack_header: Final = Struct(">BI").pack
_PARKED_OVERHEAD_BYTES: Final = 256
"""What one parked frame costs beyond its body."""

_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode


class Channels:
    """Rules of the module; `participant.machine.ParticipantMachine` is the only subclass."""

    _snapshot: SnapshotMachine

    def __init__(
        self,
        participant: ParticipantId,
        counters: Iterable[str],
        limits: ChannelLimits = PRODUCTION,
        *,
        logged: bool = False,
    ) -> None:
        self.participant = participant
        self.logged = logged
        """Turns are logged: what they send, and what acknowledges their input, waits for `logging` and `LogSynced`."""
        self._gated: dict[ParticipantId, Peer] = {}
        """Peers with something that waits for the log."""
        self._limits = limits
        self._acknowledge_bytes = limits.window_bytes // 4
        """Received bytes after which an acknowledgement does not wait: the sender's window must not run dry."""
        self.session = Session(0)
        self.incarnation = Incarnation(0)
        self.topology: Topology | None = None
        """Of which this participant is a member; None: it is not one yet."""
        self.outgoing_bytes = 0
        """Bytes sent and not acknowledged, over all channels. Invariant: the sum of the peers' `outgoing_bytes`."""
        self._peers: dict[ParticipantId, Peer] = {}
        self._connected: dict[ParticipantId, None] = {}
        self._routes: dict[str, Peer | None] = {}
        """Agent -> peer; None: hosted here. Missing: nobody hosts it, or no channel leads to its host."""
        self._unrouted: deque[Delivery] = deque()
        self.unrouted_bytes = 0
        """Bytes of the messages that wait for an agent to appear."""
        self.inputs = HadInputs()
        """Outside input with tokens that the agents here have had."""
        self._dirty: dict[ParticipantId, Peer] = {}
        """Peers that the next flush looks at, in the order in which they got something."""
        self._acks: dict[ParticipantId, int] = {}
        """Peers that wait for an acknowledgement -> when it leaves by itself. The delay is one, so it is in order."""
        self._parked: deque[tuple[FrameHeader, bytes]] = deque()
        self._parked_bytes = 0
        self._resend_at = NEVER
        """Earliest instant at which a sending end wants to be looked at, or earlier."""
        self._counts: dict[str, int] = dict.fromkeys((*_COUNTERS, *counters), 0)

    def _feed(self, event: SnapshotEvent, now: Instant, out: list[Effect]) -> None:
        """Give the snapshot machine an event, and carry out what it orders.

        Raises:
            RemoteProtocolError: The event makes no sense; nothing is changed.
        """
        raise NotImplementedError

    def channel_statistics(self) -> dict[str, int]:
        """Counts since the start, and what is held now."""
        ends = dict.fromkeys(("frames_resent", "timeouts", "items_repeated", "frames_reordered"), 0)
        for peer in self._peers.values():
            for end in (peer.sending, peer.receiving):
                if end is not None:
                    for name, value in end.statistics().items():
                        if name in ends:
                            ends[name] += value
        return {
            **self._counts,
            **ends,
            "peers": len(self._peers),
            "peers_connected": sum(peer.connected for peer in self._peers.values()),
            "outgoing_bytes": self.outgoing_bytes,
            "unrouted": len(self._unrouted),
            "unrouted_bytes": self.unrouted_bytes,
            "parked_frames": len(self._parked),
            "inputs_had": len(self.inputs),
        }

    def _flush_channels(self, now: Instant, out: list[Effect]) -> None:
        """Frames to all peers that got something."""
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for peer in dirty.values():
                self._flush_peer(peer, now, out)

    @property
    def _channels_due(self) -> int:
        """Instant at which something here is due by itself."""
        return min(self._resend_at, next(iter(self._acks.values()))) if self._acks else self._resend_at

    def _channels_time(self, now: Instant, out: list[Effect]) -> None:
        """Time has come for acknowledgements, or for sending again."""
        while self._acks:
            peer_id, at = next(iter(self._acks.items()))
            if at > now:
                break
            peer = self._peers.get(peer_id)
            if peer is None or not peer.connected or not peer.acknowledgement_due:
                del self._acks[peer_id]
            else:
                self._acknowledge(peer, out)
        if now >= self._resend_at:
            self._resend_at = NEVER
            for peer in self._peers.values():
                if peer.sending is None or not peer.connected:
                    continue
                at = peer.sending.next_timeout() or NEVER
                if at <= now:
                    peer.sending.timed_out(now)
                    self._dirty[peer.id] = peer
                    at = peer.sending.next_timeout() or NEVER
                self._resend_at = min(self._resend_at, at)

    def _peer_disconnected(self, peer_id: ParticipantId) -> None:
        self._connected.pop(peer_id, None)
        if peer_id in self._peers:
            self._peers[peer_id].connected = False

    def _flush_peer(self, peer: Peer, now: Instant, out: list[Effect]) -> None:
        peer.number_waiting()
        receiving = peer.receiving
        if not peer.connected:
            return
        sending = peer.sending
        if sending is not None:
            frames = sending.frames(now, peer.may_leave)
            if frames:
                ack = 0
                if receiving is not None:
                    ack = peer.acknowledge()
                    peer.unacknowledged_bytes = 0
                    self._acks.pop(peer.id, None)
                out += [self._data_frame(peer, frame, ack) for frame in frames]
                self._counts["frames_sent"] += len(frames)
            timeout = sending.next_timeout()
            if timeout is not None and timeout < self._resend_at:
                self._resend_at = timeout
        if peer.acknowledgement_due:
            if peer.unacknowledged_bytes >= self._acknowledge_bytes:
                self._acknowledge(peer, out)
            elif peer.id not in self._acks:
                self._acks[peer.id] = now + ACK_DELAY_NS

    def _acknowledge(self, peer: Peer, out: list[Effect]) -> None:
        self._acks.pop(peer.id, None)
        peer.unacknowledged_bytes = 0
        self._counts["acks_sent"] += 1
        number, epoch = peer.acknowledge(), self._snapshot.newest_epoch
        out.append(SendFrame(peer.id, KIND_ACK, self.incarnation, self.session, peer.session, epoch, 0, number, 0, b""))

    def _data_frame(self, peer: Peer, frame: OutFrame, ack: int) -> SendFrame:
        return SendFrame(
            peer.id,
            KIND_DATA,
            self.incarnation,
            self.session,
            peer.session,
            self._snapshot.newest_epoch,
            frame.first_seq,
            ack,
            frame.count,
            frame.body,
        )

    def route(self, deliveries: Iterable[Delivery]) -> list[tuple[str, int, bytes]]:
        """Where a `TurnCommitted` with these would send each, for the log: participant and number, or "" and 0.

        To be asked in the moment before that step.
        """
        found: list[tuple[str, int, bytes]] = []
        numbers: dict[ParticipantId, int] = {}
        for envelope, data in deliveries:
            peer = self._routes.get(envelope.target)
            if peer is None or peer.sending is None or len(data) > MESSAGE_BYTES_MAX:
                found.append(("", 0, data))
                continue
            number = numbers.get(peer.id, peer.sending.sent + len(peer.waiting)) + 1
            numbers[peer.id] = number
            found.append((peer.id, number, data))
        return found

    def positions(self) -> list[tuple[ParticipantId, int, int]]:
        """Peers with news: who, number up to which everything from it is taken in, and that it has acknowledged."""
        return [
            (
                peer.id,
                0 if peer.receiving is None else peer.receiving.received,
                0 if peer.sending is None else peer.sending.acknowledged_through,
            )
            for peer in self._dirty.values()
        ]

    @property
    def gated(self) -> bool:
        """Something waits for the log."""
        return bool(self._gated)

    def logging(self, number: int) -> None:
        """All that was sent and taken in so far is covered by the log up to this number: it waits for that."""
        for peer in self._dirty.values():
            if peer.note_logging(number):
                self._gated[peer.id] = peer

    def _log_synced(self, number: int) -> None:
        """The log is durable up to this number."""
        for peer in list(self._gated.values()):
            if peer.logged(number):
                self._dirty[peer.id] = peer
            if not peer.gates:
                del self._gated[peer.id]

    def _send(
        self, deliveries: Iterable[Delivery], out: list[Effect], *, in_turn: bool = False, source: str = ""
    ) -> None:
        """Each to where its agent is: here, onto a channel, or to those who wait for an agent to appear.

        The hottest loop of the send path, hence `encode_message_item` written out in it.

        Args:
            deliveries: Decoded and encoded.
            out: Effects.
            in_turn: Turns sent them, whose records say where they went.
            source: Participant over whose channel they came; empty: they are from here.
        """
        logged = self.logged and not in_turn
        here: list[Delivery] = []
        routes = self._routes
        total = 0
        for delivery in deliveries:
            envelope, data = delivery
            peer = routes.get(envelope.target, _NOWHERE)
            if peer is None:
                here.append(delivery)
                continue
            size = len(data)
            if type(peer) is not Peer or size > MESSAGE_BYTES_MAX:
                self._no_route(delivery, out)
                continue
            waiting = peer.waiting
            if not waiting:
                self._dirty[peer.id] = peer
            waiting.append(_pack_header(KIND_MESSAGE, size) + data)
            if logged:
                assert peer.sending is not None, "a route without a channel"
                number = peer.sending.sent + len(waiting)
                out.append(LogSent(target=peer.id, number=number, item=waiting[-1], message=envelope.id))
            size += ITEM_HEADER_BYTES
            peer.waiting_bytes += size
            total += size
        self.outgoing_bytes += total
        if here:
            out.append(DeliverToAgents(here, source))

    def _no_route(self, delivery: Delivery, out: list[Effect]) -> None:
        envelope, data = delivery
        if len(data) > MESSAGE_BYTES_MAX:
            reason = f"a message of {len(data)} bytes; at most {MESSAGE_BYTES_MAX} are carried"
        else:
            refusal = self.refusal(envelope.target, len(data))
            if refusal is None:
                self._unrouted.append(delivery)
                self.unrouted_bytes += len(data)
                return
            reason = str(refusal)
        self._dead_letter(delivery, reason, out)

    def _dead_letter(self, delivery: Delivery, reason: str, out: list[Effect]) -> None:
        self._counts["dead_letters"] += 1
        out.append(DeadLetter(message=delivery, reason=reason))

    def refusal(self, target: str, size: int) -> Overloaded | Refused | None:
        """Why a message of this many bytes would become a dead letter now; None if it would not."""
        if target in self._routes:
            return None
        host = None if self.topology is None else self.topology.host_of(AgentId(target))
        if host is not None:
            return Refused("no-channel", f"{target} is hosted by {host}, to which {self.participant} has no channel")
        if len(self._unrouted) >= UNROUTED_MESSAGES_MAX or self.unrouted_bytes + size > UNROUTED_BYTES_MAX:
            waiting = f"{len(self._unrouted)} messages of {self.unrouted_bytes} bytes"
            return Overloaded(f"nobody hosts {target}, and {waiting} wait already for agents that nobody hosts")
        return None

    def _frame_arrived(self, header: FrameHeader, body: bytes, now: Instant, out: list[Effect]) -> None:
        peer = self._peers.get(header.source)
        if (
            peer is None
            or header.source_session != peer.session
            or header.target_session != self.session
            or header.incarnation != self.incarnation
            or header.target != self.participant
        ):
            self._not_of_this_stream(header, body, peer)
            return
        self._counts["frames_received"] += 1
        sending = peer.sending
        if header.ack and sending is not None:
            before = sending.in_flight_bytes
            try:
                sending.acknowledged(header.ack, now)
            except RemoteProtocolError:
                self._counts["frames_impossible"] += 1
                return
            self.outgoing_bytes -= before - sending.in_flight_bytes
            if sending.in_flight_bytes:
                # The window may have opened, or a recovery goes on.
                self._dirty[peer.id] = peer
        if header.kind == KIND_ACK:
            return
        receiving = peer.receiving
        if receiving is None:
            self._counts["frames_impossible"] += 1
            return
        try:
            runs = receiving.accept(header.first, split_items(body, header.count))
        except (MalformedFrame, RemoteProtocolError):
            self._counts["frames_impossible"] += 1
            return
        self._dirty[peer.id] = peer
        peer.unacknowledged_bytes += len(body)
        for first, items in runs:
            self._hand_on(peer, first, items, now, out)

    def _hand_on(self, peer: Peer, first: int, items: list[bytes], now: Instant, out: list[Effect]) -> None:
        """Items in order and without gaps: recorded, counted, delivered; piecewise around markers and ends."""
        receiving, channel = peer.receiving, peer.incoming
        assert receiving is not None, "items of a channel that is not there"
        start = 0
        for position in control_positions(items):
            if position > start:
                self._hand_on_messages(peer, first + start, items[start:position], now, out)
            item, number = items[position], first + position
            event: SnapshotEvent
            if item[0] == KIND_MARKER:
                event = MarkerReceived(channel=channel, epoch=marker_epoch(item), number=number)
            else:
                event = ChannelEnded(channel=channel, number=number)
            try:
                self._feed(event, now, out)
            except RemoteProtocolError:
                self._counts["markers_impossible"] += 1
            receiving.advance((item,))
            start = position + 1
        if start < len(items):
            self._hand_on_messages(peer, first + start, items[start:] if start else items, now, out)

    def _hand_on_messages(self, peer: Peer, first: int, items: list[bytes], now: Instant, out: list[Effect]) -> None:
        receiving = peer.receiving
        assert receiving is not None, "items of a channel that is not there"
        if self._snapshot.records(peer.incoming):
            self._feed(ItemsReceived(channel=peer.incoming, first=first, items=items), now, out)
        receiving.advance(items)
        self._counts["messages_received"] += len(items)
        datas = [item[ITEM_HEADER_BYTES:] for item in items]
        numbers: Sequence[int] = range(first, first + len(items))
        try:
            deliveries = [(_decode_envelope(data), data) for data in datas]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            deliveries, numbers = self._well_formed(datas, first)
        get = self._routes.get
        all_here, outside = True, False
        for envelope, _ in deliveries:
            if envelope.source == OUTSIDE:
                outside = True
            if get(envelope.target, peer) is not None:
                all_here = False
        if outside:
            deliveries, numbers = self._not_had(deliveries, numbers, out, source=peer.id)
        if not deliveries:
            return
        if self.logged:
            out.append(LogReceived(source=peer.id, numbers=numbers, deliveries=deliveries))
        if all_here:
            out.append(DeliverToAgents(deliveries, peer.id))
        else:
            # One of the agents has moved, or is not there yet.
            self._send(deliveries, out, source=peer.id)

    def has_had(self, message: Envelope) -> bool:
        """Whether this is outside input for an agent here that has come by another way before."""
        if not came_with_token(message.source, message.id) or self.inputs.digest(message.id) is None:
            return False
        return self._routes.get(message.target, _NOWHERE) is None

    def _not_had(
        self, deliveries: Iterable[Delivery], numbers: Iterable[int], out: list[Effect], *, source: str = ""
    ) -> tuple[list[Delivery], list[int]]:
        """Without the outside input that agents here have had; they have the others from here on."""
        get = self._routes.get
        found: list[Delivery] = []
        left: list[int] = []
        for delivery, number in zip(deliveries, numbers, strict=True):
            message = delivery[0]
            may_repeat = came_with_token(message.source, message.id) and get(message.target, _NOWHERE) is None
            if may_repeat and not self.inputs.add(message):
                self._counts["inputs_repeated"] += 1
                out.append(AnnounceRepeated(source=source, message=delivery))
                if self.inputs.digest(message.id) not in (NO_DIGEST, message_digest(message)):
                    self._dead_letter(delivery, CAME_OTHERWISE, out)
                continue
            found.append(delivery)
            left.append(number)
        return found, left

    def _well_formed(self, datas: list[bytes], first: int) -> tuple[list[Delivery], list[int]]:
        """Genuine and in order, yet some are no envelopes: another build's fault. They count as received."""
        found: list[Delivery] = []
        numbers: list[int] = []
        for number, data in enumerate(datas, first):
            try:
                found.append((_decode_envelope(data), data))
                numbers.append(number)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                self._counts["messages_malformed"] += 1
        return found, numbers

    def _not_of_this_stream(self, header: FrameHeader, body: bytes, peer: Peer | None) -> None:
        """Park what we shall understand with the next topology; count the rest."""
        if header.target != self.participant:
            self._counts["frames_misdirected"] += 1
        elif (
            header.incarnation < self.incarnation
            or header.target_session < self.session
            or (peer is not None and header.source_session < peer.session)
        ):
            self._counts["frames_stale"] += 1
        elif self._parked_bytes + len(body) > self._limits.parked_bytes or header.kind == KIND_ACK:
            self._counts["frames_dropped_early"] += 1
        else:
            self._parked.append((header, body))
            self._parked_bytes += len(body) + _PARKED_OVERHEAD_BYTES

    def _unpark(self, now: Instant, out: list[Effect]) -> None:
        parked, self._parked, self._parked_bytes = self._parked, deque(), 0
        for header, body in parked:
            self._frame_arrived(header, body, now, out)

    def _peer_connected(self, peer_id: ParticipantId, now: Instant) -> None:
        self._connected[peer_id] = None
        peer = self._peers.get(peer_id)
        if peer is not None:
            self._reconnect(peer, now)

    def _reconnect(self, peer: Peer, now: Instant) -> None:
        peer.connected = True
        if peer.sending is not None:
            peer.sending.reconnected(now)
        self._dirty[peer.id] = peer

    def _forget_peers(self, peers: list[Peer]) -> None:
        for peer in peers:
            self.outgoing_bytes -= peer.outgoing_bytes
            if peer.sending is not None:
                self._counts["items_lost"] += peer.sending.unacknowledged + len(peer.waiting)
            if self._peers.get(peer.id) is peer:
                del self._peers[peer.id]
            if self._dirty.get(peer.id) is peer:
                del self._dirty[peer.id]
            if self._gated.get(peer.id) is peer:
                del self._gated[peer.id]
            if peer.id not in self._peers:
                self._acks.pop(peer.id, None)


_COUNTERS: Final = (
    "messages_sent",
    "messages_ingested",
    "messages_received",
    "messages_malformed",
    "inputs_repeated",
    "dead_letters",
    "frames_sent",
    "frames_received",
    "frames_stale",
    "frames_misdirected",
    "frames_impossible",
    "frames_dropped_early",
    "markers_impossible",
    "acks_sent",
    "items_lost",
)
