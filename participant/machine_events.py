"""What enters a participant's machine and what it orders.

Events are facts in the past tense, effects are orders. Those of the message path and of the control connection are not
frozen: one is made for every frame, turn or order, and a frozen dataclass takes four times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

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


@dataclass(slots=True)
class TurnCommitted:
    """A turn's sends, in order; its state has been taken over in the same moment.

    Or those of several turns that ran one after the other with no event in between: nobody could tell the difference.
    """

    sends: Sequence[Delivery]


@dataclass(slots=True)
class MessageIngested:
    """A message from outside, to an agent anywhere."""

    message: Delivery


@dataclass(slots=True)
class FrameArrived:
    """A frame whose MAC has been verified."""

    header: FrameHeader
    body: bytes


# --- events: the rest -------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class ControlArrived:
    """A message of the coordinators.

    One event for all ten: the machine matches on the message itself, which is as plain and as immutable as an event of
    its own would be.
    """

    message: ToParticipant


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConnected:
    """Frames to this participant can leave now."""

    peer: ParticipantId


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerDisconnected:
    """Frames to this participant are lost from here on."""

    peer: ParticipantId


@dataclass(slots=True, kw_only=True)
class TimerFired:
    """The instant that `SetTimer` named has come, or an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPersisted:
    """The local part of an epoch is durable: all that its object names, and the object."""

    epoch: Epoch
    snapshot: str
    """Digest of the local-snapshot object."""
    state_bytes: int = 0
    new_bytes: int = 0
    in_flight: int = 0
    timings: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFailed:
    """The local part of an epoch cannot be completed."""

    epoch: Epoch
    phase: str
    cause: str
    """A sentence with agent, key path, type, errno: whatever applies."""


@dataclass(slots=True, kw_only=True)
class LocalProgressed:
    """The phase ``encode`` of the local part is over; for blame and live views."""

    epoch: Epoch
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochWanted:
    """An agent asks for an epoch."""

    reason: str


@dataclass(slots=True)
class LogSynced:
    """The log of turns is durable up to this number."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequested:
    """The participant is to leave in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncarnationPersisted:
    """`PersistIncarnation` is done: the number is on this participant's disk."""

    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRestored:
    """`RestoreLocal` is done: state, mailboxes and timers are as the epoch has them, and what was in flight is delivered."""

    incarnation: int
    state: str
    """Digest over what was taken."""
    unrouted: tuple[Delivery, ...] = ()
    """Messages that go on as soon as there is a topology: to agents that nobody hosted."""
    took_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNotRestored:
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


@dataclass(slots=True)
class SendFrame:
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


@dataclass(slots=True)
class DeliverToAgents:
    """Put these into the mailboxes of agents here, in order."""

    deliveries: list[Delivery]


@dataclass(slots=True)
class SetTimer:
    """Give `TimerFired` at this instant; takes the place of the timer set before."""

    at: int


# --- effects: the rest ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLocal:
    """Freeze the local state now, before anything else is carried out. The one synchronous effect."""

    epoch: Epoch
    session: Session
    incarnation: Incarnation
    topology: TopologyVersion
    outgoing: tuple[OutgoingCut, ...]
    """Sorted by target; the markers follow right behind these positions."""
    unrouted: tuple[bytes, ...]
    """Encoded envelopes to agents that nobody hosts."""
    deadline: int
    """Instant at which the part is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedChannel:
    """The channel state of one incoming channel."""

    source: ParticipantId
    received: int
    closed_at: int
    digest: str
    """Over the items 1..closed_at, continued from the cut over the recorded bytes."""
    items: tuple[bytes, ...]
    """Encoded items received+1 .. closed_at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelsRecorded:
    """All markers are in; with the frozen state, this is the whole local part."""

    epoch: Epoch
    channels: tuple[RecordedChannel, ...]
    """Sorted by source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLocal:
    """Free what is held for this epoch; nothing of it is to be reported."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLocal:
    """The epoch is committed: what was written for it stays in the store and may be named again."""

    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceEpoch:
    """Tell whoever listens how an epoch ended."""

    epoch: Epoch
    committed: bool
    reason: str = ""
    manifest: str = ""


@dataclass(slots=True, kw_only=True)
class SendControl:
    """Say it on the control connection of the moment; what must not be lost is said again after `Registered`."""

    message: ToCoordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class EnterTopology:
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
    lines: Mapping[ParticipantId, int] = field(default_factory=dict)
    """Who shares a channel with us -> its line (`protocol.streams`)."""


@dataclass(slots=True, kw_only=True)
class LogReceived:
    """These messages came over a channel: the log is to say so, before they are delivered or passed on."""

    source: ParticipantId
    numbers: Sequence[int]
    deliveries: Sequence[Delivery]


@dataclass(slots=True, kw_only=True)
class LogSent:
    """Something that no turn sent took a number of a channel: the log is to say so."""

    target: ParticipantId
    number: int
    item: bytes
    """Encoded."""
    message: bytes = b""
    """Its id, if it is one; it was logged as received, taken or without a route before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetResumed:
    """The session does not go on from the log: what was recovered from it does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltAgents:
    """Abandon running turns and begin no more: what happens here belongs to an incarnation that is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistIncarnation:
    """Put this number on the participant's disk, durably; answer with `IncarnationPersisted`."""

    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreLocal:
    """Give the agents placed here what the epoch holds of them; answer with `LocalRestored` or `LocalNotRestored`.

    A newer one takes the place of one that is being carried out.
    """

    order: Restore


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """This message can reach nobody."""

    message: Delivery
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndParticipant:
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
