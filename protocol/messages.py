"""What crosses the control connection between a participant and the coordinators, and the envelope of an agent's message.

Control messages are msgpack maps with a ``type`` tag, one per WebSocket message. Unknown fields are ignored and missing
ones take their default, so old and new builds talk; an unknown tag is a `MalformedFrame`. Orders (coordinator to
participant) carry term, incarnation and the session that they are for: a participant obeys the highest term it has seen
and ignores orders for another session (DESIGN.md section 8; RELIABILITY.md rule 1).

Source of the handshake: `Register` -> `Registered` -> `TopologyChanged` -> `TopologyAccepted` -> member.
"""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import msgspec

from protocol.ancestry import Ancestry
from protocol.consulting import ConsultRequest
from protocol.errors import MalformedFrame, printable
from protocol.ids import AgentId
from protocol.limits import CONTROL_BYTES_MAX
from protocol.restore_plan import AgentCode, Outside
from protocol.streams import Resumption, StreamEnd

PROTOCOL_VERSION = 1

_T = TypeVar("_T")


class Envelope(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One agent message as it crosses a channel and as it lies in a mailbox. Append-only: old readers skip the rest."""

    id: bytes
    """`MessageId`, 16 bytes."""
    source: AgentId
    """Sending agent; ``outside/ingest`` for outside input."""
    target: AgentId
    type: str
    """Registered name of the message's type."""
    version: int
    """Registered version of the message's type."""
    body: bytes
    """The message, encoded by the message codec (msgpack)."""


# --- participant to coordinator -------------------------------------------------------------------------------------


class Control(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=False):
    """Base of all control messages."""


class Register(Control, frozen=True, kw_only=True, tag="register"):
    """First message on a connection."""

    cluster: str
    participant: str
    boot_id: str
    """32 hex digits minted at process start. The same boot id on a new connection resumes its session; another one of a
    live session is refused (``id-taken``)."""
    protocol: int = PROTOCOL_VERSION
    build: str = ""
    address: str = ""
    """Where peers reach its transport: ``ws://host:port``, ``mqtt:``, ``memory:``."""
    agents: tuple[str, ...] = ()
    agent_versions: dict[str, int] = {}
    """Kind -> state version."""
    targets: tuple[str, ...] | None = None
    """Participants it sends to; None: all."""
    session: int = 0
    """Session to resume, 0: none."""
    incarnation: int = 0
    """Highest incarnation entered by any life of this participant, 0: none."""
    kinds: tuple[str, ...] = ()
    """Kinds of agents that it can take from others."""
    takes_input: bool = False
    """It understands `Ingest`, `Inspect` and `Consult`."""
    dry_run: bool = False
    """Its store is of a fork (`protocol.forks`): it does no effect and writes to no sink."""
    durability: str = "epoch"
    """That it was started with; the cluster's must be the same."""
    resumes: Resumption | None = None
    """It has the log of its turns, and wants to go on from it; None: it has none, or the log is no good."""


class WaitingAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent whose turn is parked until somebody decides what became of a step."""

    agent: str
    step: str
    token: str
    cause: str
    """``in-doubt`` or ``diverged``."""


class Heartbeat(Control, frozen=True, kw_only=True, tag="heartbeat"):
    """Keeps the lease; also sent whenever nothing else was for `HEARTBEAT_NS`, and when an agent begins to wait."""

    session: int
    open_epochs: tuple[int, ...] = ()
    waiting: tuple[WaitingAgent, ...] = ()
    """The first `WAITING_LISTED_MAX` agents that wait for somebody's decision; for people, not for the leader's machine."""
    waiting_count: int = 0
    questions: int = 0
    """Open ones."""


class TopologyAccepted(Control, frozen=True, kw_only=True, tag="topology-accepted"):
    """All channels of this topology version can be used by this participant."""

    session: int
    version: int


class EpochProgress(Control, frozen=True, kw_only=True, tag="epoch-progress"):
    """Not replicated; for blame and live views."""

    session: int
    epoch: int
    phase: str
    """The phase that it is in: ``channels`` (its state is recorded, markers are awaited), ``encode``, ``upload``, ``report``."""
    open_channels: tuple[str, ...] = ()
    """Sources of the channels whose marker has not come."""


class LocalReport(Control, frozen=True, kw_only=True, tag="local-report"):
    """The local snapshot of one participant is durable in the store."""

    session: int
    incarnation: int
    epoch: int
    snapshot: str
    """Digest of the local-snapshot object."""
    state_bytes: int = 0
    new_bytes: int = 0
    """Bytes written for this epoch."""
    in_flight: int = 0
    """Messages recorded on incoming channels."""
    timings: dict[str, int] = {}
    """Phase -> nanoseconds since this participant's cut (``record`` itself: duration)."""


class EpochFailed(Control, frozen=True, kw_only=True, tag="epoch-failed"):
    """This participant cannot complete its part; the epoch aborts."""

    session: int
    incarnation: int
    epoch: int
    phase: str
    cause: str
    """A sentence with agent, key path, type or errno, whatever applies."""


class EpochRequested(Control, frozen=True, kw_only=True, tag="epoch-requested"):
    """An agent asks for an epoch."""

    session: int
    reason: str = ""


class Restored(Control, frozen=True, kw_only=True, tag="restored"):
    """The agents placed here are as the epoch has them, and none of them has moved since; said again for each order."""

    session: int
    incarnation: int
    state: str
    """Digest over what was taken (RELIABILITY.md I26)."""
    took_ns: int = 0


class RestoreFailed(Control, frozen=True, kw_only=True, tag="restore-failed"):
    """This participant cannot take its part of the epoch; nothing has been delivered to any agent."""

    session: int
    incarnation: int
    kind: str
    """``corrupt`` (an object is not what it must be, or is gone), ``unfit`` (the code does not fit the state), ``store`` (it
    could not be read now), ``entered`` (this participant has been in that incarnation before)."""
    cause: str
    """A sentence with agent, field or object."""


class Ingested(Control, frozen=True, kw_only=True, tag="ingested"):
    """Answer to `Ingest`. Not one of `ToCoordinator`: it is for whoever asked, not for the leader's machine."""

    session: int
    request: int
    code: str = ""
    """"": taken, durable. Else why not: ``overloaded``, ``token-conflict``, ``bad-message``, ``no-agent``, ``no-input-log``, ..."""
    sentence: str = ""
    message: str = ""
    """Id of the message that it made, hex."""
    position: int = 0
    """In the participant's input log."""
    duplicate: bool = False
    """The token had come before: nothing was done again."""


class Inspected(Control, frozen=True, kw_only=True, tag="inspected"):
    """Answer to `Inspect`. Not one of `ToCoordinator`, as `Ingested`."""

    session: int
    request: int
    codes: tuple[AgentCode, ...] = ()
    """Classes of the agents here, and of those that can be taken from others."""
    outputs: tuple[Outside, ...] = ()
    """The first `LISTED_MAX` of the outputs that reached sinks and are no part of the epoch."""
    outputs_count: int | None = None
    """How many; None: the sinks here cannot tell."""
    effects: tuple[Outside, ...] = ()
    effects_count: int | None = None
    notes: tuple[str, ...] = ()


class Consulted(Control, frozen=True, kw_only=True, tag="consulted"):
    """Answer to `Consult`. Not one of `ToCoordinator`, as `Ingested`."""

    session: int
    request: int
    code: str = ""
    """"": done. Else why not: ``no-effect``, ``no-question``, ``under-way``, ``settled-before``, ``bad-value``, ..."""
    sentence: str = ""
    body: bytes = b""
    """JSON object, at most `CONSULT_BYTES_MAX`."""


class Leave(Control, frozen=True, kw_only=True, tag="leave"):
    """Orderly: takes effect between epochs; answered by `Left`."""

    session: int


class StreamBroken(Control, frozen=True, kw_only=True, tag="stream-broken"):
    """A peer that went on from its log does not have what its log had promised: a disk has lost what it had synced.

    Only going back to an epoch helps; said again after each `Registered` as long as that session is a member.
    """

    session: int
    peer: str
    peer_session: int
    cause: str


# --- coordinator to participant -------------------------------------------------------------------------------------


class Registered(Control, frozen=True, kw_only=True, tag="registered"):
    """Answer to `Register`."""

    term: int
    session: int
    incarnation: int
    lease_ns: int
    newest_epoch: int = 0
    """Highest epoch ever started: older markers are stale."""
    aborted_through: int = 0
    """Every epoch up to this number has ended."""
    durability: str = "epoch"
    """Of the cluster."""
    line: int = 0
    """Of the session's streams (`protocol.streams`): another number than the session's if it goes on from the participant's
    log; 0: the session itself."""
    ancestry: Ancestry | None = None
    """Of the incarnation; None: an older build's coordinator does not say."""


class RegisterRefused(Control, frozen=True, kw_only=True, tag="register-refused"):
    """Answer to `Register`; the connection is closed.

    Codes: ``id-taken``, ``wrong-cluster``, ``wrong-version``, ``bad-name``, ``agent-taken``, ``fenced``, ``not-leader``,
    ``full``, ``dry-run``, ``durability``.
    """

    code: str
    sentence: str
    leader: str = ""
    """``http://host:port`` of the leader, with ``not-leader``."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a topology version."""

    id: str
    session: int
    address: str = ""
    agents: tuple[str, ...] = ()
    targets: tuple[str, ...] | None = None
    """Participants it sends to; None: all other members."""
    fresh: int = 0
    """What its agents' first messages are named after where they begin anew: 0, and another number after each time that they
    began anew while others went on. A rollback does not change it, so work that is done again has the names that it had."""
    fresh_of: tuple[tuple[str, int], ...] = ()
    """Agents of which that is another number: they came from others, or were given up alone."""
    line: int = 0
    """Session with which its streams began (`protocol.streams`); 0: this one."""
    streams: tuple[StreamEnd, ...] = ()
    """Where they stood when this session took over; empty for one that begins its line."""


class TopologyChanged(Control, frozen=True, kw_only=True, tag="topology-changed"):
    """The whole topology, between epochs; answered by `TopologyAccepted`."""

    term: int
    session: int
    incarnation: int
    version: int
    members: tuple[Member, ...]


class Restore(Control, frozen=True, kw_only=True, tag="restore"):
    """Enter this incarnation with the state of an epoch, and wait: `TopologyChanged` of it is the order to begin.

    Answered by `Restored` or `RestoreFailed`, each time that it comes.
    """

    term: int
    session: int
    incarnation: int
    epoch: int
    """0: from the start, fresh agents."""
    manifest: str
    """Digest of the epoch's manifest; "" for epoch 0."""
    newest_epoch: int
    """Highest epoch ever started: older markers are stale."""
    elapsed_ns: int
    """Wall time from the start of the epoch to the rollback: timers that were due meanwhile are overdue."""
    version: int
    """Topology of the incarnation."""
    members: tuple[Member, ...]
    """Its members, with the agents placed on each."""
    renames: tuple[tuple[str, str], ...] = ()
    """Agents that come back under another name: (in the epoch, from now on); see `protocol.renames`."""
    ancestry: Ancestry | None = None
    """Of the incarnation; None: an older build's coordinator does not say."""
    elsewhere: dict[str, tuple[str, ...]] = {}
    """Participant -> agents placed on this one that have run there since the epoch, in incarnations that are over (`protocol.stays`)."""
    returns: bool | None = None
    """Whether an earlier life of this participant was lost, so that agents of its own may have run before; None: an older build's
    coordinator does not say."""


class Ingest(Control, frozen=True, kw_only=True, tag="ingest"):
    """Outside input that came to the coordinators' API; answered by `Ingested`. Not one of `ToParticipant`: it is no order."""

    session: int
    request: int
    """Unique on this connection."""
    agent: str
    name: str
    """Registered name of the message's type."""
    version: int = 0
    """Registered version; 0: the newest that the participant knows."""
    body: bytes
    """JSON."""
    token: str = ""
    """"": none."""


class Inspect(Control, frozen=True, kw_only=True, tag="inspect"):
    """What would a restore of this epoch meet? Answered by `Inspected`; nothing is changed. Not one of `ToParticipant`."""

    session: int
    request: int
    """Unique on this connection, over `Ingest`, `Inspect` and `Consult`."""
    epoch: int


class Consult(Control, frozen=True, kw_only=True, tag="consult"):
    """An operator's look at effects, questions or turns, or word on one of them; answered by `Consulted`. Not one of `ToParticipant`."""

    session: int
    request: int
    what: ConsultRequest


class StartEpoch(Control, frozen=True, kw_only=True, tag="start-epoch"):
    """Start order. Idempotent."""

    term: int
    session: int
    incarnation: int
    epoch: int
    topology: int
    deadline_ns: int
    """From receipt; a participant gives up by itself after this long without news."""


class AbortEpoch(Control, frozen=True, kw_only=True, tag="abort-epoch"):
    """The epoch has ended without a manifest. Idempotent."""

    term: int
    session: int
    epoch: int
    reason: str
    ended_through: int = 0
    """Every epoch up to this number has ended (low-water mark)."""


class EpochSealed(Control, frozen=True, kw_only=True, tag="epoch-sealed"):
    """The report was used: the epoch is about to commit. It may end without, where its manifest cannot be made any more."""

    term: int
    session: int
    epoch: int


class EpochCommitted(Control, frozen=True, kw_only=True, tag="epoch-committed"):
    """The manifest is durable and `commit` is in the ledger."""

    term: int
    session: int
    epoch: int
    manifest: str
    """Digest of the manifest."""
    ended_through: int = 0
    kept: tuple[int, ...] = ()
    """Epochs that are savepoints, sorted: what they would bring back is kept as long as there is room."""


class ReportRefused(Control, frozen=True, kw_only=True, tag="report-refused"):
    """The report came too late or is not of this session; its data may be discarded."""

    term: int
    session: int
    epoch: int
    reason: str


class Left(Control, frozen=True, kw_only=True, tag="left"):
    """The member is out of the topology; it may close its channels and end."""

    term: int
    session: int


class Fenced(Control, frozen=True, kw_only=True, tag="fenced"):
    """This session has ended (lost lease, newer session): the participant must stop."""

    term: int
    session: int
    reason: str


ToCoordinator: TypeAlias = (
    Register
    | Heartbeat
    | TopologyAccepted
    | EpochProgress
    | LocalReport
    | EpochFailed
    | EpochRequested
    | Restored
    | RestoreFailed
    | Leave
    | StreamBroken
)
ToParticipant: TypeAlias = (
    Registered
    | RegisterRefused
    | TopologyChanged
    | Restore
    | StartEpoch
    | AbortEpoch
    | EpochSealed
    | EpochCommitted
    | ReportRefused
    | Left
    | Fenced
)

FromParticipant: TypeAlias = ToCoordinator | Ingested | Inspected | Consulted
"""All that a participant says on its connection."""
FromCoordinator: TypeAlias = ToParticipant | Ingest | Inspect | Consult
"""All that it hears."""

_encoder = msgspec.msgpack.Encoder()
_to_coordinator: msgspec.msgpack.Decoder[ToCoordinator] = msgspec.msgpack.Decoder(ToCoordinator)
_to_participant: msgspec.msgpack.Decoder[ToParticipant] = msgspec.msgpack.Decoder(ToParticipant)


_from_participant: msgspec.msgpack.Decoder[FromParticipant] = msgspec.msgpack.Decoder(FromParticipant)
_from_coordinator: msgspec.msgpack.Decoder[FromCoordinator] = msgspec.msgpack.Decoder(FromCoordinator)


def encode_control(message: FromParticipant | FromCoordinator) -> bytes:
    """One control message as bytes."""
    return _encoder.encode(message)


def decode_to_coordinator(data: bytes) -> ToCoordinator:
    """What a participant sent to the leader's machine.

    Raises:
        MalformedFrame: Anything but one of `ToCoordinator` within `CONTROL_BYTES_MAX`.
    """
    return _decode(_to_coordinator, data)


def decode_to_participant(data: bytes) -> ToParticipant:
    """What a coordinator's machine sent.

    Raises:
        MalformedFrame: Anything but one of `ToParticipant` within `CONTROL_BYTES_MAX`.
    """
    return _decode(_to_participant, data)


def decode_from_participant(data: bytes) -> FromParticipant:
    """What came from a participant.

    Raises:
        MalformedFrame: Anything but one of `FromParticipant` within `CONTROL_BYTES_MAX`.
    """
    return _decode(_from_participant, data)


def decode_from_coordinator(data: bytes) -> FromCoordinator:
    """What came from a coordinator.

    Raises:
        MalformedFrame: Anything but one of `FromCoordinator` within `CONTROL_BYTES_MAX`.
    """
    return _decode(_from_coordinator, data)


def _decode(decoder: msgspec.msgpack.Decoder[_T], data: bytes) -> _T:
    _check_size(data)
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame(f"control message of {len(data)} bytes: {printable(error)}") from None


def _check_size(data: bytes) -> None:
    if len(data) > CONTROL_BYTES_MAX:
        raise MalformedFrame(f"control message of {len(data)} bytes; at most {CONTROL_BYTES_MAX} are taken")
