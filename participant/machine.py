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
    * A restore order begins an incarnation (`participant.machine_restore`); until its topology comes, the order to begin,
      frames of it are parked. A frame of an older incarnation is dropped, one of a newer is parked.
    * Where turns are logged, a life goes on from the log of the one before, in a session of the same line: with the streams
      that `resume` gave it. Its peers keep theirs, and send again what was not acknowledged.
    * Messages to agents that no member hosts wait, within a bound, for a topology that has them; they are part of a cut.

The half that every message passes is in `participant.machine_channels`; here are orders, topologies and epochs.

What it does not know: agents' state and mailboxes (the driver's hosts), bytes of frames and their MAC (`protocol.wire`),
stores, sockets, clocks.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, assert_never

from participant.inputs import HadInputs
from participant.machine_channels import NEVER, Channels
from participant.machine_epochs import LocalEpochs
from participant.machine_events import (
    AnnounceEpoch,
    ControlArrived,
    DropLocal,
    EndParticipant,
    EnterTopology,
    EpochWanted,
    ForgetResumed,
    FrameArrived,
    HaltAgents,
    IncarnationPersisted,
    KeepLocal,
    LeaveRequested,
    LocalFailed,
    LocalNotRestored,
    LocalPersisted,
    LocalProgressed,
    LocalRestored,
    LogSent,
    LogSynced,
    MessageIngested,
    PeerConnected,
    PeerDisconnected,
    PersistIncarnation,
    RecordLocal,
    SendControl,
    SetTimer,
    TimerFired,
    TurnCommitted,
)
from participant.machine_restore import Entrance
from participant.peers import ALL, PRODUCTION, Peer, ResumedStreams
from protocol.errors import ConfigError, RemoteProtocolError
from protocol.ids import Epoch, Incarnation, Instant, ParticipantId, Session, Term, TopologyVersion
from protocol.items import (
    END_ITEM,
    encode_marker_item,
)
from protocol.limits import (
    CONCURRENT_EPOCHS_MAX,
    EPOCH_DEADLINE_NS,
    RECORDING_BYTES_MAX,
)
from protocol.manifest import OutgoingCut
from protocol.messages import (
    AbortEpoch,
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
    Restore,
    StartEpoch,
    StreamBroken,
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
    LocalPartComplete,
    RecordingOverflow,
    RecordState,
    SendMarkers,
    SnapshotMachine,
    TopologySet,
)
from protocol.streams import Resumption, StreamEnd, line_of, stream_base
from protocol.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from participant.inputs import TokenPair
    from participant.machine_events import Delivery, Effect, Event
    from participant.peers import ChannelLimits
    from protocol.ancestry import Ancestry
    from protocol.messages import Member, ToParticipant
    from protocol.snapshot import Effect as SnapshotEffect
    from protocol.snapshot import Event as SnapshotEvent


class ParticipantMachine(Channels):
    """Rules of the module. The driver owns one and feeds it one event at a time."""

    def __init__(
        self,
        participant: ParticipantId,
        *,
        max_concurrent_epochs: int = CONCURRENT_EPOCHS_MAX,
        recording_bytes_max: int = RECORDING_BYTES_MAX,
        entered: int = 0,
        has_disk: bool = False,
        channel_limits: ChannelLimits = PRODUCTION,
        logged: bool = False,
    ) -> None:
        """A participant that has not registered yet.

        Args:
            participant: Its id.
            max_concurrent_epochs: Epochs that may be open here at once.
            recording_bytes_max: In-flight bytes that one epoch may record here.
            entered: Highest incarnation that an earlier life entered, from its disk.
            has_disk: The driver keeps that number; without a disk, sessions alone keep lives apart.
            channel_limits: Sizes and times of its channels.
            logged: Turns are logged: nothing that the log does not hold leaves.
        """
        super().__init__(participant, _COUNTERS, channel_limits, logged=logged)
        self.line = 0
        """Of our session (`protocol.streams`)."""
        self.ancestry: Ancestry | None = None
        """Of our incarnation; None: nobody said."""
        self._resumption: Resumption | None = None
        self._resumed: Mapping[str, ResumedStreams] = {}
        self._broken: dict[str, StreamBroken] = {}
        """Peers whose streams could not go on, in this topology."""
        self.term = Term(0)
        self.leaving = False
        self._max_concurrent_epochs = max_concurrent_epochs
        self._recording_bytes_max = recording_bytes_max
        self._snapshot = self._new_snapshot_machine(0)
        self._epochs = LocalEpochs()
        self._timer_at = NEVER
        self._entrance = Entrance(entered)
        self._has_disk = has_disk
        self._joining: TopologyChanged | None = None
        """The first topology of a life that joins; waits until its incarnation is on the disk."""

    @property
    def entered(self) -> int:
        """Highest incarnation that any life of this participant has entered."""
        return self._entrance.entered

    @property
    def restoring(self) -> bool:
        """A restore order was obeyed, and the order to begin has not come."""
        return self._entrance.order is not None and self.topology is None

    @property
    def returning(self) -> bool:
        """It is restoring, and agents of its own may have run in an earlier life."""
        order = self._entrance.order
        return self.restoring and order is not None and order.returns is not False

    @property
    def open_epochs(self) -> tuple[Epoch, ...]:
        """Epochs with a local part that the coordinator has not ended."""
        return self._epochs.open()

    @property
    def newest_epoch(self) -> int:
        """Highest epoch heard of."""
        return self._snapshot.newest_epoch

    @property
    def resumption(self) -> Resumption | None:
        """What to register with, where this life can go on from the log of the one before."""
        return self._resumption

    def resume(
        self,
        *,
        session: int,
        line: int,
        incarnation: int,
        streams: Mapping[str, ResumedStreams],
        unrouted: Iterable[Delivery] = (),
        inputs: Iterable[TokenPair] = (),
        agents: tuple[str, ...] | None = None,
    ) -> None:
        """Go on from a log, if the coordinators agree; before the first registration.

        Args:
            session: That wrote it last.
            line: Of that session.
            incarnation: In which it was.
            streams: By peer.
            unrouted: Messages to agents that nobody hosted.
            inputs: Outside input with tokens that the agents have had.
            agents: That it holds, in order; None: those that are declared here.
        """
        assert not self.session, "a life goes on from a log before it registers"
        ends = tuple(StreamEnd(peer, each.line, each.sent, each.received) for peer, each in sorted(streams.items()))
        self._resumption = Resumption(session=session, line=line, incarnation=incarnation, streams=ends, agents=agents)
        self._resumed = streams
        self._unrouted.extend(unrouted)
        self.unrouted_bytes = sum(len(data) for _, data in self._unrouted)
        self.inputs = HadInputs(inputs)

    def heartbeat(self) -> Heartbeat | None:
        """What keeps the lease now; None before there is a session."""
        return Heartbeat(session=self.session, open_epochs=self._epochs.open()) if self.session else None

    def still_recording(self) -> list[EpochProgress]:
        """What each epoch waits for whose markers are not all in; to be told now and then, for blame."""
        return [self._progress(epoch) for epoch in self._snapshot.open_epochs if self._epochs.has(epoch)]

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and what is held now."""
        snapshot = {f"snapshot_{name}": value for name, value in self._snapshot.statistics().items()}
        return {**self.channel_statistics(), **snapshot}

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
                self._send(event.sends, out, in_turn=True)
            case FrameArrived():
                self._frame_arrived(event.header, event.body, now, out)
            case MessageIngested():
                self._counts["messages_ingested"] += 1
                deliveries, _ = self._not_had((event.message,), (0,), out)
                self._send(deliveries, out)
            case LogSynced():
                self._log_synced(event.number)
            case TimerFired():
                self._timer_fired(now, out)
            case ControlArrived():
                self._control_arrived(event.message, now, out)
            case PeerConnected():
                self._peer_connected(event.peer, now)
            case PeerDisconnected():
                self._peer_disconnected(event.peer)
            case LocalPersisted():
                self._local_persisted(event, now, out)
            case LocalFailed():
                self._local_failed(event.epoch, event.phase, event.cause, now, out)
            case LocalProgressed():
                self._local_encoded(event.epoch, out)
            case EpochWanted():
                out.append(SendControl(message=EpochRequested(session=self.session, reason=event.reason)))
            case LeaveRequested():
                self.leaving = True
                if self.session:
                    out.append(SendControl(message=Leave(session=self.session)))
            case IncarnationPersisted():
                self._incarnation_persisted(event.incarnation, now, out)
            case LocalRestored():
                self._local_restored(event, out)
            case LocalNotRestored():
                answer = self._entrance.not_restored(event, self.session)
                if answer is not None:
                    out.append(SendControl(message=answer))
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
        self._flush_channels(now, out)
        wanted = min(self._channels_due, self._epochs.next_deadline)
        if wanted < self._timer_at:
            self._timer_at = wanted
            out.append(SetTimer(wanted))
        return out

    @property
    def flush_wanted(self) -> bool:
        """Whether a flush would do anything."""
        if self._dirty:
            return True
        timer_at = self._timer_at
        return self._epochs.next_deadline < timer_at or self._channels_due < timer_at

    def _timer_fired(self, now: Instant, out: list[Effect]) -> None:
        self._timer_at = NEVER
        self._channels_time(now, out)
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
            case Restore():
                self._restore_ordered(message, now, out)
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
        if (message.durability == "turn") != self.logged:
            cause = f"the cluster's durability is {message.durability}, {self.participant} was started with another"
            out.append(EndParticipant(reason=cause))
            return
        if not self.session:
            # A newer incarnation than ours is entered by a restore order alone.
            self.session = Session(message.session)
            self.line = message.line or message.session
            resumed = self._resumption is not None and self.line == self._resumption.line
            unrouted, inputs = list(self._unrouted) if resumed else [], self.inputs
            self.ancestry = message.ancestry
            self._enter(Incarnation(message.incarnation), message.newest_epoch, out)
            if resumed:
                self._unrouted.extend(unrouted)
                self.unrouted_bytes = sum(len(data) for _, data in unrouted)
                self.inputs = inputs
            elif self._resumption is not None:
                self._resumption, self._resumed = None, {}
                out.append(ForgetResumed())
        self._raise_mark(message.aborted_through, now, out)
        if self.topology is not None:
            out.append(SendControl(message=TopologyAccepted(session=self.session, version=self.topology.version)))
        out += [SendControl(message=unanswered) for unanswered in self._epochs.unanswered()]
        out += [SendControl(message=broken) for broken in self._broken.values()]
        if self.leaving:
            out.append(SendControl(message=Leave(session=self.session)))

    def _enter(self, incarnation: Incarnation, newest_epoch: int, out: list[Effect]) -> None:
        """Begin an incarnation: no streams, no epochs; every epoch that was started before is not ours."""
        self.incarnation = incarnation
        for epoch in self._epochs.open():
            self._epochs.forget(epoch)
            out.append(DropLocal(epoch=epoch, reason=DropReason.ENDED.value))
        self._counts["items_lost"] += len(self._unrouted)
        self._unrouted.clear()
        self.unrouted_bytes = 0
        self.inputs = HadInputs()
        self._snapshot = self._new_snapshot_machine(newest_epoch)
        self._forget_peers(list(self._peers.values()))
        self._routes = {}
        self.topology = None
        self._joining = None

    # --- the way into an incarnation ----------------------------------------------------------------------------------

    def _restore_ordered(self, message: Restore, now: Instant, out: list[Effect]) -> None:
        entrance = self._entrance
        if entrance.repeated(message.incarnation):
            self._counts["orders_repeated"] += 1
            if entrance.answer is not None:
                out.append(SendControl(message=entrance.answer))
        elif message.incarnation < self.incarnation:
            self._counts["orders_stale"] += 1
        elif message.incarnation <= entrance.entered:
            self._counts["orders_reentered"] += 1
            out.append(SendControl(message=entrance.refuse(message)))
        else:
            self._counts["restores"] += 1
            # An incarnation is a beginning: lines end with the one before.
            self.line, self._resumption, self._resumed = self.session, None, {}
            entrance.obey(message)
            self.ancestry = message.ancestry
            self._enter(Incarnation(message.incarnation), message.newest_epoch, out)
            out.append(HaltAgents())
            self._persist(message.incarnation, now, out)

    def _persist(self, incarnation: int, now: Instant, out: list[Effect]) -> None:
        if self._has_disk:
            out.append(PersistIncarnation(incarnation=incarnation))
        else:
            self._incarnation_persisted(incarnation, now, out)

    def _incarnation_persisted(self, incarnation: int, now: Instant, out: list[Effect]) -> None:
        follows = self._entrance.persisted(incarnation)
        if follows is not None:
            out.append(follows)
        joining = self._joining
        if joining is not None and joining.incarnation == incarnation:
            self._joining = None
            self._topology_changed(joining, now, out)

    def _local_restored(self, event: LocalRestored, out: list[Effect]) -> None:
        answer = self._entrance.restored(event, self.session)
        if answer is None:
            self._counts["orders_stale"] += 1
            return
        # Before what has come from outside meanwhile: it is older.
        self._unrouted.extendleft(reversed(event.unrouted))
        self.unrouted_bytes += sum(len(data) for _, data in event.unrouted)
        self.inputs = HadInputs(event.inputs)
        out.append(SendControl(message=answer))

    def _new_snapshot_machine(self, ended_through: int) -> SnapshotMachine:
        return SnapshotMachine(
            self.participant,
            max_concurrent_epochs=self._max_concurrent_epochs,
            recording_bytes_max=self._recording_bytes_max,
            ended_through=ended_through,
        )

    def _topology_changed(self, message: TopologyChanged, now: Instant, out: list[Effect]) -> None:
        if message.incarnation != self.incarnation or not self._entrance.begins:
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
            if message.incarnation > self._entrance.entered:
                waits = self._joining is not None
                self._joining = message
                if not waits:
                    self._persist(message.incarnation, now, out)
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
        self._broken.clear()
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
            if peer is not None and peer.session != member.session and not self._goes_on(peer, topology, now, out):
                peer = None
            if peer is None:
                peer = self._new_peer(topology, member, now, out, sends=sends, receives=receives)
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
        restored = self._entrance.order is not None
        out.append(
            EnterTopology(
                topology=topology,
                peers=addresses,
                first=first,
                restored=restored,
                resumed=self._resumption is not None,
                lines={peer.id: peer.line for peer in self._peers.values()},
            )
        )
        if first and restored and self.leaving:
            out.append(SendControl(message=Leave(session=self.session)))
        waited, self._unrouted, self.unrouted_bytes = self._unrouted, deque(), 0
        unrouted, _ = self._not_had(waited, range(len(waited)), out)
        self._send(unrouted, out)
        self._unpark(now, out)

    def _stream_broken(self, member: Member, error: RemoteProtocolError, out: list[Effect]) -> None:
        self._counts["streams_broken"] += 1
        broken = StreamBroken(session=self.session, peer=member.id, peer_session=member.session, cause=str(error)[:400])
        self._broken[member.id] = broken
        out.append(SendControl(message=broken))

    def _goes_on(self, peer: Peer, topology: Topology, now: Instant, out: list[Effect]) -> bool:
        """Whether a peer's new session goes on with the streams of the one before; if so, they do."""
        me, member = topology.member(self.participant), topology.member(peer.id)
        assert me is not None, "a topology without us"
        assert member is not None, "a channel to a stranger"
        if line_of(member) != peer.line:
            return False
        try:
            self._rebase(peer, me, member)
        except RemoteProtocolError as error:
            # It lost what it had acknowledged, or invents: no stream can go on from there.
            self._stream_broken(member, error, out)
            return False
        peer.session = Session(member.session)
        if peer.connected:
            self._reconnect(peer, now)
        self._dirty[peer.id] = peer
        return True

    def _new_peer(
        self, topology: Topology, member: Member, now: Instant, out: list[Effect], *, sends: bool, receives: bool
    ) -> Peer:
        me = topology.member(self.participant)
        assert me is not None, "a topology without us"
        peer = Peer(
            self.participant,
            ParticipantId(member.id),
            Session(member.session),
            sends=sends,
            receives=receives,
            limits=self._limits,
            line=line_of(member),
            logged=self.logged,
        )
        streams = self._resumed.get(member.id)
        if streams is not None and streams.line == peer.line:
            peer.resume(streams, now)
            self.outgoing_bytes += peer.outgoing_bytes
        if self.logged:
            # Also where our log knows nothing of the peer: its own may know of us.
            try:
                self._rebase(peer, me, member)
            except RemoteProtocolError as error:
                self._stream_broken(member, error, out)
        return peer

    def _rebase(self, peer: Peer, me: Member, member: Member) -> None:
        """Compute digests from where the later session of both resumed.

        Raises:
            RemoteProtocolError: One of the ends cannot.
        """
        if peer.sending is not None:
            peer.sending.rebase(stream_base(me, member))
        if peer.receiving is not None:
            peer.receiving.rebase(stream_base(member, me))

    def _left(self, now: Instant, out: list[Effect]) -> None:
        # It never comes back: what leaves now waits for no log.
        self.logged = False
        for peer in self._peers.values():
            peer.number_waiting()
            peer.may_leave = peer.may_acknowledge = ALL
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

    def _local_encoded(self, epoch: Epoch, out: list[Effect]) -> None:
        if self._epochs.has(epoch):
            self._epochs.encoded(epoch)
            out.append(SendControl(message=self._progress(epoch)))

    def _progress(self, epoch: Epoch) -> EpochProgress:
        waiting = tuple(channel.source for channel in self._snapshot.open_channels(epoch))
        return EpochProgress(session=self.session, epoch=epoch, phase=self._epochs.phase(epoch), open_channels=waiting)

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
                    out.append(SendControl(message=self._progress(epoch)))
                case SendMarkers(epoch=epoch, channels=channels):
                    marker = encode_marker_item(epoch)
                    for channel in channels:
                        peer = self._peers[channel.target]
                        assert peer.sending is not None, "a marker onto a channel that is not there"
                        assert not peer.waiting, "sent after the cut, before its marker"
                        peer.sending.put((marker,))
                        if self.logged:
                            out.append(LogSent(target=peer.id, number=peer.sending.sent, item=marker))
                        self.outgoing_bytes += len(marker)
                        self._dirty[peer.id] = peer
                case ChannelClosed():
                    self._epochs.closed(effect)
                case LocalPartComplete(epoch=epoch):
                    out.append(self._epochs.complete(epoch))
                    out.append(SendControl(message=self._progress(epoch)))
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
            inputs=self.inputs.blocks(),
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
    "orders_foreign",
    "orders_stale",
    "orders_repeated",
    "orders_reentered",
    "restores",
    "orders_impossible",
    "reports_refused",
    "parts_late",
    "epochs_failed",
    "streams_broken",
)
