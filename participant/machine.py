"""The participant's machine: sessions, topology, channels, routing and its part of each epoch. Pure.

`step(event, now)` gives effects, to be carried out from left to right before the next event. `flush(now)`, called once at the
end of each turn of the driver's loop, gives the frames: everything sent since the last flush leaves in one frame per peer.

Rules:
    * Fencing (P6). A frame is taken only within one incarnation and one pair of sessions. Older ones are dropped and
      counted; of newer ones, which we shall know when the next topology arrives, a bounded amount is parked. Orders for
      another session or of a lower term are ignored and counted.
    * A cut is one moment: messages that wait for the flush are numbered before positions are read, the state is recorded
      before anything else is carried out, and markers go onto the channels in the same step, ahead of any later send.
    * What a peer sends that makes no sense costs it the frame, never us the participant.
    * What the coordinator has not answered is said again after each `Registered`: `TopologyAccepted`, reports, failures,
      `Leave`. Repeated orders are answered again.
    * An epoch that hears nothing until its deadline is dropped here (P4): no coordinator is needed to get rid of it.
    * Messages to agents that no member hosts wait, within a bound, for a topology that has them; they are part of a cut.

What it does not know: agents' state and mailboxes (the driver's hosts), bytes of frames and their MAC (`protocol.wire`),
stores, sockets, clocks.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Final, assert_never

import msgspec

from participant.machine_epochs import LocalEpochs
from participant.machine_events import (
    AnnounceEpoch,
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
from participant.peers import Peer
from protocol.errors import ConfigError, MalformedFrame, RemoteProtocolError
from protocol.ids import Epoch, Incarnation, Instant, ParticipantId, Session, Term, TopologyVersion
from protocol.items import (
    END_ITEM,
    ITEM_HEADER_BYTES,
    KIND_MARKER,
    KIND_MESSAGE,
    control_positions,
    encode_marker_item,
    marker_epoch,
    split_items,
)
from protocol.limits import (
    ACK_DELAY_NS,
    CHANNEL_WINDOW_BYTES,
    CONCURRENT_EPOCHS_MAX,
    EPOCH_DEADLINE_NS,
    MESSAGE_BYTES_MAX,
    PARKED_FRAMES_BYTES_MAX,
    RECORDING_BYTES_MAX,
    UNROUTED_MESSAGES_MAX,
)
from protocol.manifest import OutgoingCut
from protocol.messages import (
    AbortEpoch,
    Envelope,
    EpochCommitted,
    EpochFailed,
    EpochProgress,
    EpochRequested,
    EpochSealed,
    Fenced,
    Heartbeat,
    Leave,
    Left,
    LocalReport,
    Registered,
    RegisterRefused,
    ReportRefused,
    StartEpoch,
    TopologyAccepted,
    TopologyChanged,
)
from protocol.snapshot import (
    ChannelClosed,
    ChannelEnded,
    ChannelOpened,
    DropReason,
    EpochAborted,
    EpochDropped,
    EpochsEnded,
    EpochStarted,
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
from protocol.wire import KIND_ACK, KIND_DATA, FrameHeader

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from participant.machine_events import Delivery, Effect, Event
    from protocol.channel import OutFrame
    from protocol.messages import ToParticipant
    from protocol.snapshot import Effect as SnapshotEffect
    from protocol.snapshot import Event as SnapshotEvent

_NOWHERE: Final = object()
_pack_header: Final = Struct(">BI").pack
_ACKNOWLEDGE_BYTES: Final = CHANNEL_WINDOW_BYTES // 4
"""Received bytes after which an acknowledgement does not wait: the sender's window must not run dry."""
_NEVER: Final = 1 << 62

_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode


class ParticipantMachine:
    """Rules of the module. The driver owns one and feeds it one event at a time."""

    def __init__(
        self,
        participant: ParticipantId,
        *,
        max_concurrent_epochs: int = CONCURRENT_EPOCHS_MAX,
        recording_bytes_max: int = RECORDING_BYTES_MAX,
    ) -> None:
        """A participant that has not registered yet.

        Args:
            participant: Its id.
            max_concurrent_epochs: Epochs that may be open here at once.
            recording_bytes_max: In-flight bytes that one epoch may record here.
        """
        self.participant = participant
        self.session = Session(0)
        self.incarnation = Incarnation(0)
        self.term = Term(0)
        self.topology: Topology | None = None
        """Of which this participant is a member; None: it is not one yet."""
        self.leaving = False
        self.outgoing_bytes = 0
        """Bytes sent and not acknowledged, over all channels. Invariant: the sum of the peers' `outgoing_bytes`."""
        self._max_concurrent_epochs = max_concurrent_epochs
        self._recording_bytes_max = recording_bytes_max
        self._snapshot = self._new_snapshot_machine(0)
        self._epochs = LocalEpochs()
        self._peers: dict[ParticipantId, Peer] = {}
        self._connected: dict[ParticipantId, None] = {}
        self._routes: dict[str, Peer | None] = {}
        """Agent -> peer; None: hosted here. Missing: nobody hosts it, or no channel leads to its host."""
        self._unrouted: deque[Delivery] = deque()
        self._dirty: dict[ParticipantId, Peer] = {}
        """Peers that the next flush looks at, in the order in which they got something."""
        self._acks: dict[ParticipantId, int] = {}
        """Peers that wait for an acknowledgement -> when it leaves by itself. The delay is one, so it is in order."""
        self._parked: deque[tuple[FrameHeader, bytes]] = deque()
        self._parked_bytes = 0
        self._resend_at = _NEVER
        self._timer_at = _NEVER
        self._counts: dict[str, int] = dict.fromkeys(_COUNTERS, 0)

    @property
    def open_epochs(self) -> tuple[Epoch, ...]:
        """Epochs with a local part that the coordinator has not ended."""
        return self._epochs.open()

    @property
    def newest_epoch(self) -> int:
        """Highest epoch heard of."""
        return self._snapshot.newest_epoch

    def heartbeat(self) -> Heartbeat | None:
        """What keeps the lease now; None before there is a session."""
        return Heartbeat(session=self.session, open_epochs=self._epochs.open()) if self.session else None

    def still_recording(self) -> list[EpochProgress]:
        """What each epoch waits for whose markers are not all in; to be told now and then, for blame."""
        return [self._progress(epoch, "recorded") for epoch in self._snapshot.open_epochs if self._epochs.has(epoch)]

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and what is held now."""
        channels = dict.fromkeys(("frames_resent", "timeouts", "items_repeated", "frames_reordered"), 0)
        for peer in self._peers.values():
            for end in (peer.sending, peer.receiving):
                if end is not None:
                    for name, value in end.statistics().items():
                        if name in channels:
                            channels[name] += value
        return {
            **self._counts,
            **channels,
            **{f"snapshot_{name}": value for name, value in self._snapshot.statistics().items()},
            "peers": len(self._peers),
            "peers_connected": sum(peer.connected for peer in self._peers.values()),
            "outgoing_bytes": self.outgoing_bytes,
            "unrouted": len(self._unrouted),
            "parked_frames": len(self._parked),
        }

    # --- the two ways in ----------------------------------------------------------------------------------------------

    def step(self, event: Event, now: Instant) -> Sequence[Effect]:
        """Apply one event.

        Args:
            event: What happened.
            now: Driver time, nanoseconds.

        Returns:
            Effects, to be carried out from left to right, at once.
        """
        out: list[Effect] = []
        match event:
            case TurnCommitted():
                self._counts["messages_sent"] += len(event.sends)
                self._send(event.sends, out)
            case FrameArrived():
                self._frame_arrived(event.header, event.body, now, out)
            case MessageIngested():
                self._counts["messages_ingested"] += 1
                self._send((event.message,), out)
            case TimerFired():
                self._timer_fired(now, out)
            case ControlArrived():
                self._control_arrived(event.message, now, out)
            case PeerConnected():
                self._peer_connected(event.peer, now)
            case PeerDisconnected():
                self._connected.pop(event.peer, None)
                if event.peer in self._peers:
                    self._peers[event.peer].connected = False
            case LocalPersisted():
                self._local_persisted(event, now, out)
            case LocalFailed():
                self._local_failed(event.epoch, event.phase, event.cause, now, out)
            case LocalProgressed():
                self._local_progressed(event.epoch, event.phase, out)
            case EpochWanted():
                out.append(SendControl(message=EpochRequested(session=self.session, reason=event.reason)))
            case LeaveRequested():
                self.leaving = True
                if self.session:
                    out.append(SendControl(message=Leave(session=self.session)))
            case _:
                assert_never(event)
        return out

    def flush(self, now: Instant) -> Sequence[Effect]:
        """Frames of all that was sent since the last flush, and acknowledgements that are due.

        Args:
            now: Driver time, nanoseconds.

        Returns:
            `SendFrame`s, and `SetTimer` where something is due earlier than the timer that is set.
        """
        out: list[Effect] = []
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for peer in dirty.values():
                self._flush_peer(peer, now, out)
        wanted = min(self._resend_at, self._epochs.next_deadline)
        if self._acks:
            wanted = min(wanted, next(iter(self._acks.values())))
        if wanted < self._timer_at:
            self._timer_at = wanted
            out.append(SetTimer(wanted))
        return out

    @property
    def flush_wanted(self) -> bool:
        """Whether a flush would do anything."""
        return bool(self._dirty or self._acks) or min(self._resend_at, self._epochs.next_deadline) < self._timer_at

    def _flush_peer(self, peer: Peer, now: Instant, out: list[Effect]) -> None:
        peer.number_waiting()
        receiving = peer.receiving
        if not peer.connected:
            return
        sending = peer.sending
        if sending is not None:
            frames = sending.frames(now)
            if frames:
                ack = 0
                if receiving is not None:
                    ack = receiving.ack()
                    peer.unacknowledged_bytes = 0
                    self._acks.pop(peer.id, None)
                out += [self._data_frame(peer, frame, ack) for frame in frames]
                self._counts["frames_sent"] += len(frames)
            timeout = sending.next_timeout()
            if timeout is not None and timeout < self._resend_at:
                self._resend_at = timeout
        if receiving is not None and receiving.ack_due:
            if peer.unacknowledged_bytes >= _ACKNOWLEDGE_BYTES:
                self._acknowledge(peer, out)
            elif peer.id not in self._acks:
                self._acks[peer.id] = now + ACK_DELAY_NS

    def _acknowledge(self, peer: Peer, out: list[Effect]) -> None:
        assert peer.receiving is not None, "nothing to acknowledge"
        self._acks.pop(peer.id, None)
        peer.unacknowledged_bytes = 0
        self._counts["acks_sent"] += 1
        number, epoch = peer.receiving.ack(), self._snapshot.newest_epoch
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

    # --- messages -----------------------------------------------------------------------------------------------------

    def _send(self, deliveries: Iterable[Delivery], out: list[Effect]) -> None:
        """Each to where its agent is: here, onto a channel, or to those who wait for an agent to appear.

        The hottest loop of the send path, hence `encode_message_item` written out in it.
        """
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
            size += ITEM_HEADER_BYTES
            peer.waiting_bytes += size
            total += size
        self.outgoing_bytes += total
        if here:
            out.append(DeliverToAgents(here))

    def _no_route(self, delivery: Delivery, out: list[Effect]) -> None:
        target = delivery[0].target
        host = None if self.topology is None else self.topology.host_of(target)
        if len(delivery[1]) > MESSAGE_BYTES_MAX:
            reason = f"a message of {len(delivery[1])} bytes; at most {MESSAGE_BYTES_MAX} are carried"
        elif host is not None:
            reason = f"{target} is hosted by {host}, to which {self.participant} has no channel"
        elif len(self._unrouted) < UNROUTED_MESSAGES_MAX:
            self._unrouted.append(delivery)
            return
        else:
            reason = f"nobody hosts {target}, and {UNROUTED_MESSAGES_MAX} messages wait already"
        self._counts["dead_letters"] += 1
        out.append(DeadLetter(message=delivery, reason=reason))

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
        try:
            deliveries = [(_decode_envelope(data), data) for data in datas]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            deliveries = self._well_formed(datas)
        get = self._routes.get
        for delivery in deliveries:
            if get(delivery[0].target, peer) is not None:
                # Not all are for agents here: one of them has moved, or is not there yet.
                self._send(deliveries, out)
                return
        if deliveries:
            out.append(DeliverToAgents(deliveries))

    def _well_formed(self, datas: list[bytes]) -> list[Delivery]:
        """Genuine and in order, yet some are no envelopes: another build's fault. They count as received."""
        found: list[Delivery] = []
        for data in datas:
            try:
                found.append((_decode_envelope(data), data))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                self._counts["messages_malformed"] += 1
        return found

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
        elif self._parked_bytes + len(body) > PARKED_FRAMES_BYTES_MAX or header.kind == KIND_ACK:
            self._counts["frames_dropped_early"] += 1
        else:
            self._parked.append((header, body))
            self._parked_bytes += len(body) + 256

    def _unpark(self, now: Instant, out: list[Effect]) -> None:
        parked, self._parked, self._parked_bytes = self._parked, deque(), 0
        for header, body in parked:
            self._frame_arrived(header, body, now, out)

    # --- connections and time -----------------------------------------------------------------------------------------

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

    def _timer_fired(self, now: Instant, out: list[Effect]) -> None:
        self._timer_at = _NEVER
        while self._acks:
            peer_id, at = next(iter(self._acks.items()))
            if at > now:
                break
            peer = self._peers.get(peer_id)
            if peer is None or peer.receiving is None or not peer.connected or not peer.receiving.ack_due:
                del self._acks[peer_id]
            else:
                self._acknowledge(peer, out)
        if now >= self._resend_at:
            self._resend_at = _NEVER
            for peer in self._peers.values():
                if peer.sending is None or not peer.connected:
                    continue
                at = peer.sending.next_timeout() or _NEVER
                if at <= now:
                    peer.sending.timed_out(now)
                    self._dirty[peer.id] = peer
                    at = peer.sending.next_timeout() or _NEVER
                self._resend_at = min(self._resend_at, at)
        for epoch in self._epochs.overdue(now):
            waiting = ", ".join(channel.source for channel in self._snapshot.open_channels(epoch))
            cause = f"no marker came from {waiting}" if waiting else "the coordinator did not say how it ended"
            self._local_failed(epoch, "deadline", f"{self.participant} gave up: {cause} within the deadline", now, out)

    # --- the control connection ---------------------------------------------------------------------------------------

    def _control_arrived(self, message: ToParticipant, now: Instant, out: list[Effect]) -> None:
        if isinstance(message, Registered):
            self._registered(message, now, out)
            return
        if isinstance(message, RegisterRefused):
            return
        if message.session != self.session:
            self._counts["orders_foreign"] += 1
            return
        if message.term < self.term:
            self._counts["orders_stale"] += 1
            return
        self.term = Term(message.term)
        match message:
            case TopologyChanged():
                self._topology_changed(message, now, out)
            case StartEpoch():
                self._start_ordered(message, now, out)
            case AbortEpoch():
                self._epoch_ended(Epoch(message.epoch), message.ended_through, now, out)
                out.append(AnnounceEpoch(epoch=Epoch(message.epoch), committed=False, reason=message.reason))
            case EpochSealed():
                self._epochs.heard(Epoch(message.epoch), now)
            case EpochCommitted():
                epoch = Epoch(message.epoch)
                if self._epochs.forget(epoch):
                    out.append(KeepLocal(epoch=epoch))
                self._raise_mark(message.ended_through, now, out)
                out.append(AnnounceEpoch(epoch=epoch, committed=True, manifest=message.manifest))
            case ReportRefused():
                self._counts["reports_refused"] += 1
                self._epoch_ended(Epoch(message.epoch), 0, now, out)
            case Left():
                self._left(now, out)
            case Fenced():
                out.append(EndParticipant(reason=f"session {message.session} has ended: {message.reason}"))
            case _:
                assert_never(message)

    def _registered(self, message: Registered, now: Instant, out: list[Effect]) -> None:
        if message.term < self.term or (self.session and message.session != self.session):
            # Another session in place of ours: our lease was lost, and what we hold is no longer anybody's.
            if message.term >= self.term:
                out.append(EndParticipant(reason=f"session {self.session} was replaced by {message.session}"))
            self._counts["orders_stale"] += 1
            return
        self.term = Term(message.term)
        if not self.session:
            self.session = Session(message.session)
            self._enter(Incarnation(message.incarnation), message.newest_epoch)
        elif message.incarnation > self.incarnation:
            self._enter(Incarnation(message.incarnation), message.newest_epoch)
        self._raise_mark(message.aborted_through, now, out)
        if self.topology is not None:
            out.append(SendControl(message=TopologyAccepted(session=self.session, version=self.topology.version)))
        out += [SendControl(message=unanswered) for unanswered in self._epochs.unanswered()]
        if self.leaving:
            out.append(SendControl(message=Leave(session=self.session)))

    def _enter(self, incarnation: Incarnation, newest_epoch: int) -> None:
        """Begin an incarnation: no streams, no epochs; every epoch that was started before is not ours."""
        self.incarnation = incarnation
        self._snapshot = self._new_snapshot_machine(newest_epoch)
        self._forget_peers(list(self._peers.values()))
        self._routes = {}
        self.topology = None

    def _new_snapshot_machine(self, ended_through: int) -> SnapshotMachine:
        return SnapshotMachine(
            self.participant,
            max_concurrent_epochs=self._max_concurrent_epochs,
            recording_bytes_max=self._recording_bytes_max,
            ended_through=ended_through,
        )

    def _topology_changed(self, message: TopologyChanged, now: Instant, out: list[Effect]) -> None:
        if message.incarnation != self.incarnation:
            self._counts["orders_stale"] += 1
            return
        version = TopologyVersion(message.version)
        if self.topology is None or version > self.topology.version:
            try:
                topology = Topology(version, message.members)
            except ConfigError:
                self._counts["orders_impossible"] += 1
                return
            member = topology.member(self.participant)
            if member is None or member.session != self.session:
                self._counts["orders_foreign"] += 1
                return
            self._enter_topology(topology, now, out)
        elif version < self.topology.version:
            self._counts["orders_stale"] += 1
            return
        out.append(SendControl(message=TopologyAccepted(session=self.session, version=version)))

    def _enter_topology(self, topology: Topology, now: Instant, out: list[Effect]) -> None:
        me = self.participant
        # No topology changes while an epoch is open: whatever is open here, its end was not heard.
        for epoch in self._snapshot.open_epochs:
            self._feed(EpochAborted(epoch=epoch), now, out)
        first = self.topology is None
        self.topology = topology
        incoming, outgoing = topology.incoming(me), topology.outgoing(me)
        to = {channel.target: None for channel in outgoing}
        from_ = {channel.source: None for channel in incoming}
        before, self._peers = self._peers, {}
        addresses: dict[ParticipantId, str] = {}
        for other in topology.participants():
            if other not in to and other not in from_:
                continue
            member = topology.member(other)
            assert member is not None, "a channel to a stranger"
            sends, receives = other in to, other in from_
            peer = before.get(other)
            if peer is None or peer.session != member.session:
                peer = Peer(me, other, Session(member.session), sends=sends, receives=receives)
                self._feed(ChannelOpened(channel=peer.incoming), now, out)
                self._feed(ChannelOpened(channel=peer.outgoing), now, out)
                if other in self._connected:
                    self._reconnect(peer, now)
            else:
                del before[other]
                held = peer.outgoing_bytes
                peer.set_channels(sends=sends, receives=receives)
                self.outgoing_bytes -= held - peer.outgoing_bytes
            self._peers[other] = peer
            addresses[other] = member.address
        self._forget_peers(list(before.values()))
        self._feed(TopologySet(incoming=incoming, outgoing=outgoing), now, out)
        self._routes = {}
        for agent in topology.agents():
            host = topology.host_of(agent)
            if host == me:
                self._routes[agent] = None
            elif host in to:
                self._routes[agent] = self._peers[host]
        out.append(EnterTopology(topology=topology, peers=addresses, first=first))
        unrouted, self._unrouted = self._unrouted, deque()
        self._send(unrouted, out)
        self._unpark(now, out)

    def _forget_peers(self, peers: list[Peer]) -> None:
        for peer in peers:
            self.outgoing_bytes -= peer.outgoing_bytes
            if peer.sending is not None:
                self._counts["items_lost"] += peer.sending.unacknowledged + len(peer.waiting)
            if self._peers.get(peer.id) is peer:
                del self._peers[peer.id]
            if self._dirty.get(peer.id) is peer:
                del self._dirty[peer.id]
            if peer.id not in self._peers:
                self._acks.pop(peer.id, None)

    def _left(self, now: Instant, out: list[Effect]) -> None:
        for peer in self._peers.values():
            peer.number_waiting()
            if peer.sending is not None and not peer.sending.ended:
                peer.sending.put((END_ITEM,))
                self.outgoing_bytes += len(END_ITEM)
                self._feed(ChannelEnded(channel=peer.outgoing, number=peer.sending.sent), now, out)
                self._dirty[peer.id] = peer
        # What a turn still sends finds no way out any more.
        self._routes = {}
        self.topology = None
        out.append(EndParticipant(reason=""))

    # --- epochs -------------------------------------------------------------------------------------------------------

    def _start_ordered(self, message: StartEpoch, now: Instant, out: list[Effect]) -> None:
        epoch = Epoch(message.epoch)
        if message.incarnation != self.incarnation:
            self._counts["orders_stale"] += 1
            return
        if self.topology is None or self.topology.version != message.topology:
            have = 0 if self.topology is None else self.topology.version
            cause = f"{self.participant} is in topology {have}, the epoch in {message.topology}"
            self._report_failure(epoch, "order", cause, out)
            return
        deadline = now + message.deadline_ns
        me = self.participant
        started = EpochStarted(epoch=epoch, incoming=self.topology.incoming(me), outgoing=self.topology.outgoing(me))
        self._feed(started, now, out, deadline=deadline)
        self._epochs.ordered(epoch, deadline)
        report = self._epochs.report_of(epoch)
        if report is not None:
            out.append(SendControl(message=report))

    def _epoch_ended(self, epoch: Epoch, ended_through: int, now: Instant, out: list[Effect]) -> None:
        self._epochs.answered(epoch)
        self._feed(EpochAborted(epoch=epoch), now, out)
        self._raise_mark(ended_through, now, out)

    def _raise_mark(self, ended_through: int, now: Instant, out: list[Effect]) -> None:
        """Every epoch up to this number has ended; how, was not heard for those that still have a part here."""
        self._feed(EpochsEnded(ended_through=ended_through), now, out)
        for epoch in self._epochs.open():
            if epoch <= ended_through:
                self._epochs.forget(epoch)
                out.append(DropLocal(epoch=epoch, reason=DropReason.ENDED.value))

    def _local_persisted(self, event: LocalPersisted, now: Instant, out: list[Effect]) -> None:
        if not self._epochs.has(event.epoch):
            self._counts["parts_late"] += 1
            return
        report = LocalReport(
            session=self.session,
            incarnation=self.incarnation,
            epoch=event.epoch,
            snapshot=event.snapshot,
            state_bytes=event.state_bytes,
            new_bytes=event.new_bytes,
            in_flight=event.in_flight,
            timings=dict(event.timings),
        )
        self._epochs.reported(event.epoch, report, now)
        out.append(SendControl(message=report))

    def _local_failed(self, epoch: Epoch, phase: str, cause: str, now: Instant, out: list[Effect]) -> None:
        if not self._epochs.has(epoch):
            self._counts["parts_late"] += 1
            return
        self._report_failure(epoch, phase, cause, out)
        self._feed(EpochAborted(epoch=epoch), now, out)

    def _report_failure(self, epoch: Epoch, phase: str, cause: str, out: list[Effect]) -> None:
        self._counts["epochs_failed"] += 1
        failed = EpochFailed(
            session=self.session, incarnation=self.incarnation, epoch=epoch, phase=phase, cause=cause[:4096]
        )
        self._epochs.failed(epoch, failed)
        out.append(SendControl(message=failed))

    def _local_progressed(self, epoch: Epoch, phase: str, out: list[Effect]) -> None:
        if self._epochs.has(epoch):
            out.append(SendControl(message=self._progress(epoch, phase)))

    def _progress(self, epoch: Epoch, phase: str) -> EpochProgress:
        waiting = tuple(channel.source for channel in self._snapshot.open_channels(epoch))
        return EpochProgress(session=self.session, epoch=epoch, phase=phase, open_channels=waiting)

    def _feed(self, event: SnapshotEvent, now: Instant, out: list[Effect], *, deadline: int = 0) -> None:
        """Give the snapshot machine an event and turn its effects into ours.

        Raises:
            RemoteProtocolError: As `SnapshotMachine.step`; nothing is changed.
        """
        effects: tuple[SnapshotEffect, ...] = self._snapshot.step(event, now)
        blame = ""
        for effect in effects:
            match effect:
                case RecordState(epoch=epoch):
                    out.append(self._record(epoch, now, deadline or now + EPOCH_DEADLINE_NS))
                    self._local_progressed(epoch, "recorded", out)
                case SendMarkers(epoch=epoch, channels=channels):
                    marker = encode_marker_item(epoch)
                    for channel in channels:
                        peer = self._peers[channel.target]
                        assert peer.sending is not None, "a marker onto a channel that is not there"
                        assert not peer.waiting, "sent after the cut, before its marker"
                        peer.sending.put((marker,))
                        self.outgoing_bytes += len(marker)
                        self._dirty[peer.id] = peer
                case ChannelClosed():
                    self._epochs.closed(effect)
                case LocalPartComplete(epoch=epoch):
                    out.append(self._epochs.complete(epoch))
                    self._local_progressed(epoch, "channels", out)
                case RecordingOverflow(channel=channel, bytes=size):
                    blame = f"{size} in-flight bytes were recorded, {channel} passed the limit of {self._recording_bytes_max}"
                case EpochDropped(epoch=epoch, reason=reason):
                    self._dropped(epoch, reason, blame, out)
                    blame = ""
                case _:
                    assert_never(effect)

    def _record(self, epoch: Epoch, now: Instant, deadline: int) -> RecordLocal:
        """The positions of all channels at this moment."""
        assert self.topology is not None, "a cut before membership"
        outgoing: list[OutgoingCut] = []
        for channel in self.topology.outgoing(self.participant):
            peer = self._peers[channel.target]
            peer.number_waiting()
            assert peer.sending is not None, "an outgoing channel without its end"
            number, digest, ended = peer.sending.cut_position
            outgoing.append(OutgoingCut(target=channel.target, sent=number, digest=digest, ended=ended))
        self._epochs.begin(
            epoch,
            now=now,
            deadline=deadline,
            positions={
                channel.source: receiving
                for channel in self.topology.incoming(self.participant)
                if (receiving := self._peers[channel.source].receiving) is not None
            },
        )
        return RecordLocal(
            epoch=epoch,
            session=self.session,
            incarnation=self.incarnation,
            topology=self.topology.version,
            outgoing=tuple(outgoing),
            unrouted=tuple(data for _, data in self._unrouted),
            deadline=deadline,
        )

    def _dropped(self, epoch: Epoch, reason: DropReason, blame: str, out: list[Effect]) -> None:
        was_open = self._epochs.forget(epoch)
        if reason not in {DropReason.ABORTED, DropReason.ENDED}:
            phase = "record" if reason is DropReason.RECORDING_LIMIT else "channels"
            self._report_failure(epoch, phase, blame or _DROPPED_BECAUSE[reason], out)
        if was_open:
            out.append(DropLocal(epoch=epoch, reason=blame or reason.value))


_DROPPED_BECAUSE: Final = {
    DropReason.NEWER: "a newer epoch began here, and no more may be open at once",
    DropReason.TOO_MANY: "too many newer epochs are open here",
    DropReason.CHANNEL_BROKEN: "a channel that it recorded began anew: its sender has another session",
    DropReason.RECORDING_LIMIT: "too many in-flight bytes",
}

_COUNTERS: Final = (
    "messages_sent",
    "messages_ingested",
    "messages_received",
    "messages_malformed",
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
    "orders_foreign",
    "orders_stale",
    "orders_impossible",
    "reports_refused",
    "parts_late",
    "epochs_failed",
)
