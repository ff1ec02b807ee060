"""What enters a participant's machine and what it orders.

Events are facts in the past tense, effects are orders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from protocol.plain import Plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from protocol.ids import Epoch, Incarnation, ParticipantId, Session, TopologyVersion
    from protocol.manifest import OutgoingCut
    from protocol.messages import Envelope, Restore, ToCoordinator, ToParticipant
    from protocol.topology import Topology
    from protocol.wire import FrameHeader

Delivery: TypeAlias = "tuple[Envelope, bytes]"
"""An agent message, decoded to its envelope, and the encoded envelope that it came from: neither is made twice."""


# --- events: the message path -----------------------------------------------------------------------------------------


class TurnCommitted(Plain, frozen=True):
    """A turn's sends, in order; its state has been taken over in the same moment.

    Or those of several turns that ran one after the other with no event in between: nobody could tell the difference.
    """

    sends: Sequence[Delivery]


class MessageIngested(Plain, frozen=True):
    """A message from outside, to an agent anywhere."""

    message: Delivery


class FrameArrived(Plain, frozen=True):
    """A frame whose MAC has been verified."""

    header: FrameHeader
    body: bytes


# --- events: the rest -------------------------------------------------------------------------------------------------


class ControlArrived(Plain, frozen=True, kw_only=True):
    """A message of the coordinators.

    One event for all ten: the machine matches on the message itself, which is as plain and as immutable as an event of
    its own would be.
    """

    message: ToParticipant


class PeerConnected(Plain, frozen=True, kw_only=True):
    """Frames to this participant can leave now."""

    peer: ParticipantId


class PeerDisconnected(Plain, frozen=True, kw_only=True):
    """Frames to this participant are lost from here on."""

    peer: ParticipantId


class TimerFired(Plain, frozen=True, kw_only=True):
    """The instant that `SetTimer` named has come, or an earlier one."""


class LocalPersisted(Plain, frozen=True, kw_only=True):
    """The local part of an epoch is durable: all that its object names, and the object."""

    epoch: Epoch
    snapshot: str
    """Digest of the local-snapshot object."""
    state_bytes: int = 0
    new_bytes: int = 0
    in_flight: int = 0
    timings: Mapping[str, int]


class LocalFailed(Plain, frozen=True, kw_only=True):
    """The local part of an epoch cannot be completed."""

    epoch: Epoch
    phase: str
    cause: str
    """A sentence with agent, key path, type, errno: whatever applies."""


class LocalProgressed(Plain, frozen=True, kw_only=True):
    """The phase ``encode`` of the local part is over; for blame and live views."""

    epoch: Epoch
    phase: str


class EpochWanted(Plain, frozen=True, kw_only=True):
    """An agent asks for an epoch."""

    reason: str


class LogSynced(Plain, frozen=True):
    """The log of turns is durable up to this number."""

    number: int


class LeaveRequested(Plain, frozen=True, kw_only=True):
    """The participant is to leave in order."""


class IncarnationPersisted(Plain, frozen=True, kw_only=True):
    """`PersistIncarnation` is done: the number is on this participant's disk."""

    incarnation: int


class LocalRestored(Plain, frozen=True, kw_only=True):
    """`RestoreLocal` is done: state, mailboxes and timers are as the epoch has them, and what was in flight is delivered."""

    incarnation: int
    state: str
    """Digest over what was taken."""
    unrouted: tuple[Delivery, ...] = ()
    """Messages that go on as soon as there is a topology: to agents that nobody hosted."""
    inputs: Sequence[tuple[bytes, bytes]] = ()
    """Outside input with tokens that these agents have had (`participant.inputs.TokenPair`)."""
    took_ns: int = 0


class LocalNotRestored(Plain, frozen=True, kw_only=True):
    """`RestoreLocal` cannot be done; no agent runs."""

    incarnation: int
    kind: str
    """See `protocol.messages.RestoreFailed`."""
    cause: str


Event: TypeAlias = (
    TurnCommitted
    | FrameArrived
    | MessageIngested
    | TimerFired
    | ControlArrived
    | PeerConnected
    | PeerDisconnected
    | LocalPersisted
    | LocalFailed
    | LocalProgressed
    | EpochWanted
    | LeaveRequested
    | IncarnationPersisted
    | LocalRestored
    | LocalNotRestored
    | LogSynced
)


# --- effects: the message path ----------------------------------------------------------------------------------------


class SendFrame(Plain, frozen=True):
    """Encode this frame, with its MAC, and hand it to the transport. May be lost."""

    target: ParticipantId
    kind: int
    incarnation: Incarnation
    source_session: Session
    target_session: Session
    epoch: int
    first: int
    ack: int
    count: int
    body: bytes


class DeliverToAgents(Plain, frozen=True):
    """Put these into the mailboxes of agents here, in order."""

    deliveries: list[Delivery]
    source: str = ""
    """Participant over whose channel they came; empty: they are from here."""


class SetTimer(Plain, frozen=True):
    """Give `TimerFired` at this instant; takes the place of the timer set before."""

    at: int


# --- effects: the rest ------------------------------------------------------------------------------------------------


class RecordLocal(Plain, frozen=True, kw_only=True):
    """Freeze the local state now, before anything else is carried out. The one synchronous effect."""

    epoch: Epoch
    session: Session
    incarnation: Incarnation
    topology: TopologyVersion
    outgoing: tuple[OutgoingCut, ...]
    """Sorted by target; the markers follow right behind these positions."""
    unrouted: tuple[bytes, ...]
    """Encoded envelopes to agents that nobody hosts."""
    inputs: tuple[bytes, ...]
    """Outside input with tokens that the agents here have had: encoded blocks."""
    deadline: int
    """Instant at which the part is given up."""


class RecordedChannel(Plain, frozen=True, kw_only=True):
    """The channel state of one incoming channel."""

    source: ParticipantId
    received: int
    closed_at: int
    digest: str
    """Over the items 1..closed_at, continued from the cut over the recorded bytes."""
    items: tuple[bytes, ...]
    """Encoded items received+1 .. closed_at."""
    base: int = 0
    """The digest leaves out the items up to this number: the stream was resumed behind it."""


class ChannelsRecorded(Plain, frozen=True, kw_only=True):
    """All markers are in; with the frozen state, this is the whole local part."""

    epoch: Epoch
    channels: tuple[RecordedChannel, ...]
    """Sorted by source."""


class DropLocal(Plain, frozen=True, kw_only=True):
    """Free what is held for this epoch; nothing of it is to be reported."""

    epoch: Epoch
    reason: str


class KeepLocal(Plain, frozen=True, kw_only=True):
    """The epoch is committed: what was written for it stays in the store and may be named again."""

    epoch: Epoch


class AnnounceEpoch(Plain, frozen=True, kw_only=True):
    """Tell whoever listens how an epoch ended."""

    epoch: Epoch
    committed: bool
    reason: str = ""
    manifest: str = ""


class AnnounceRepeated(Plain, frozen=True, kw_only=True):
    """Tell whoever listens that outside input came which an agent here has had by another way: it is not delivered again."""

    source: str
    """Participant from which it came; empty: this one."""
    message: Delivery


class SendControl(Plain, frozen=True, kw_only=True):
    """Say it on the control connection of the moment; what must not be lost is said again after `Registered`."""

    message: ToCoordinator


class EnterTopology(Plain, frozen=True, kw_only=True):
    """This participant is a member of this version: connect to its peers, and let the agents run."""

    topology: Topology
    peers: Mapping[ParticipantId, str]
    """Who shares a channel with us -> where its transport is reached."""
    first: bool
    """It was not a member of this incarnation before."""
    restored: bool = False
    """Its agents have their state from `RestoreLocal`; else they are fresh."""
    resumed: bool = False
    """Its agents have their state from its own log, which goes on."""
    lines: Mapping[ParticipantId, int] = msgspec.field(default_factory=dict)
    """Who shares a channel with us -> its line (`protocol.streams`)."""


class LogReceived(Plain, frozen=True, kw_only=True):
    """These messages came over a channel: the log is to say so, before they are delivered or passed on."""

    source: ParticipantId
    numbers: Sequence[int]
    deliveries: Sequence[Delivery]


class LogSent(Plain, frozen=True, kw_only=True):
    """Something that no turn sent took a number of a channel: the log is to say so."""

    target: ParticipantId
    number: int
    item: bytes
    """Encoded."""
    message: bytes = b""
    """Its id, if it is one; it was logged as received, taken or without a route before."""


class ForgetResumed(Plain, frozen=True, kw_only=True):
    """The session does not go on from the log: what was recovered from it does not count."""


class HaltAgents(Plain, frozen=True, kw_only=True):
    """Abandon running turns and begin no more: what happens here belongs to an incarnation that is over."""


class PersistIncarnation(Plain, frozen=True, kw_only=True):
    """Put this number on the participant's disk, durably; answer with `IncarnationPersisted`."""

    incarnation: int


class RestoreLocal(Plain, frozen=True, kw_only=True):
    """Give the agents placed here what the epoch holds of them; answer with `LocalRestored` or `LocalNotRestored`.

    A newer one takes the place of one that is being carried out.
    """

    order: Restore


class DeadLetter(Plain, frozen=True, kw_only=True):
    """This message can reach nobody."""

    message: Delivery
    reason: str


class EndParticipant(Plain, frozen=True, kw_only=True):
    """Stop: it has left in order (`reason` is empty), or it is fenced."""

    reason: str


Effect: TypeAlias = (
    SendFrame
    | DeliverToAgents
    | SetTimer
    | RecordLocal
    | ChannelsRecorded
    | DropLocal
    | KeepLocal
    | AnnounceEpoch
    | AnnounceRepeated
    | SendControl
    | EnterTopology
    | LogReceived
    | LogSent
    | ForgetResumed
    | HaltAgents
    | PersistIncarnation
    | RestoreLocal
    | DeadLetter
    | EndParticipant
)
