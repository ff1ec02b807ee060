"""The commands of the ledger: what may be put into the replicated log.

A command is ASCII JSON of at most `COMMAND_BYTES_MAX` bytes::

    {"v":1,"id":["c1.5f2a",17],"done":16,"at":1790000000000000000,"term":4,"kind":"start", ...}

``id`` is (client, sequence number): a command that is sent again with the same id is applied once. ``done`` says that
the client has its answers to all numbers up to it, so that the ledger may forget them. ``at`` is the proposer's wall
clock in nanoseconds since 1970: recorded for people, never decisive. ``term`` is the proposer's: a command of another
term than the one that leads is refused (`LeadCommand`), so two self-believed leaders never both act.

Unknown fields are refused: a replica that ignored what another one understood would drift from it.

``v`` is 1 for the kinds that every build knows and `LATER_KINDS` for those that came later. A build that does not know such a
kind does not skip it, which would be a refusal that the others do not give: it finds a version that it does not apply and
stops before the entry (`coordinator.runtime.service.understood`). So a mixed group agrees for as long as nobody uses
what is new, and a replica that is too old says so instead of drifting.

Sources: RAFT_MQTT.md A6 to A8 (one method, ids, ASCII, size); Ongaro's thesis 6.3 (client sequence numbers).
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, get_args

import msgspec

from coordinator.policy import PolicySettings
from protocol.errors import LimitExceeded
from protocol.ids import SAVEPOINT_PATTERN
from protocol.limits import COMMAND_BYTES_MAX, DROPPED_MAX, FENCES_MAX, KINDS_MAX, RENAMES_CARRIED_MAX
from protocol.streams import Resumption

COMMAND_VERSION: Final = 1
LATER_KINDS: Final = 2
"""Version of the kinds of commands that came after the first builds; the kind says which it is."""
SENTENCE_CHARS_MAX: Final = 400
"""A cause or reason. In ASCII JSON a character takes up to 12 bytes: two sentences and their notes fit a command."""
WAITING_NOTES_MAX: Final = 16
"""Participants that an abort names as missing; the number of all is recorded beside them."""
OPEN_CHANNELS_MAX: Final = 8
"""Open channels that one waiting note names."""
TIMINGS_MAX: Final = 16
"""Phases in one table of timings."""

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
ClientName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9._:-]{0,79}\Z")]
Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9._-]{0,62}\Z")]
SavepointName = Annotated[str, msgspec.Meta(pattern=rf"\A{SAVEPOINT_PATTERN.pattern}\Z")]
AgentName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9._-]{0,62}/[a-z0-9][a-z0-9._-]{0,62}\Z")]
DigestText = Annotated[str, msgspec.Meta(pattern=r"\Ab3:[0-9a-f]{64}\Z")]
BootId = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Sentence = Annotated[str, msgspec.Meta(max_length=SENTENCE_CHARS_MAX)]
Word = Annotated[str, msgspec.Meta(max_length=64)]
Timings = Annotated[dict[Word, Count], msgspec.Meta(max_length=TIMINGS_MAX)]

CommandId: TypeAlias = tuple[str, int]
"""(client, sequence number from 1)."""


class CommandBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """What every command carries."""

    kind: ClassVar[str]
    command_version: ClassVar[int] = COMMAND_VERSION
    """What `v` must be."""
    v: int = COMMAND_VERSION
    id: tuple[ClientName, Positive]
    done: Count = 0
    at: Count = 0
    term: Count


class LeadCommand(CommandBase, frozen=True, kw_only=True, tag="lead"):
    """The first entry of every leader: from here only commands of this term have an effect (I20)."""

    kind: ClassVar[str] = "lead"
    coordinator: Name


class ConfigureCommand(CommandBase, frozen=True, kw_only=True, tag="configure"):
    """The policy is this from now on."""

    kind: ClassVar[str] = "configure"
    policy: PolicySettings


class FoundCommand(CommandBase, frozen=True, kw_only=True, tag="found"):
    """The cluster is a fork: it begins from an epoch that it did not take. Only for a ledger in which nothing has happened."""

    kind: ClassVar[str] = "found"
    epoch: Positive
    manifest: DigestText
    """Of the epoch, signed by this cluster."""
    incarnation: Positive
    """Of the epoch; this cluster's first one is the next."""
    session: Count
    """Highest that the epoch names."""
    members: Count
    started_at: Count
    origin_cluster: Name
    origin_manifest: DigestText
    dry_run: bool


class AnnounceCommand(CommandBase, frozen=True, kw_only=True, tag="announce"):
    """Part of a list of agents that is too long for one entry; the `RegisterCommand` that follows makes use of it."""

    kind: ClassVar[str] = "announce"
    participant: Name
    boot_id: BootId
    offset: Count
    """Agents announced before this part; 0 begins anew."""
    agents: Annotated[tuple[AgentName, ...], msgspec.Meta(min_length=1)]


class RegisterCommand(CommandBase, frozen=True, kw_only=True, tag="register"):
    """A participant asks for a session; the same boot id gets its session again."""

    kind: ClassVar[str] = "register"
    participant: Name
    boot_id: BootId
    address: Annotated[str, msgspec.Meta(max_length=512)] = ""
    agents: tuple[AgentName, ...] = ()
    announced: Count = 0
    """Number of further agents, announced before."""
    agent_versions: dict[Name, Count] = {}
    targets: tuple[Name, ...] | None = None
    build: Word = ""
    session: Count = 0
    """Session that the participant believes to have; 0: none."""
    incarnation: Count = 0
    """Highest incarnation that it entered; 0: none."""
    kinds: Annotated[tuple[Name, ...], msgspec.Meta(max_length=KINDS_MAX)] = ()
    """Kinds of agents that it can take from others."""
    durability: Literal["epoch", "turn"] = "epoch"
    """That it was started with."""
    resumes: Resumption | None = None
    """Where the log of its turns ends; None: it has none that is any good."""


class WaitingNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a participant that had not reported was when its epoch was aborted."""

    participant: Name
    phase: Word
    waited_ns: Count = 0
    """Since it was last heard about this epoch, or since the start order."""
    open_channels: Annotated[tuple[Name, ...], msgspec.Meta(max_length=OPEN_CHANNELS_MAX)] = ()
    """Sources of channels whose marker had not come."""
    open_count: Count = 0
    """Number of all of them."""


class MarkLostCommand(CommandBase, frozen=True, kw_only=True, tag="mark-lost"):
    """A session is over without a goodbye; its unsealed epochs abort in the same entry."""

    kind: ClassVar[str] = "mark-lost"
    session: Positive
    cause: Sentence
    damaged: bool = False
    """Its log is not what it had promised: nothing goes on from it."""
    epoch: Count = 0
    """The epoch that `waiting` is about; 0: nothing is known of any."""
    waiting: Annotated[tuple[WaitingNote, ...], msgspec.Meta(max_length=WAITING_NOTES_MAX)] = ()
    """Where those were that had not reported, the lost one first."""
    waiting_count: Count = 0


class LeaveCommand(CommandBase, frozen=True, kw_only=True, tag="leave"):
    """A session ends in order, with the next topology."""

    kind: ClassVar[str] = "leave"
    session: Positive


class TopologyCommand(CommandBase, frozen=True, kw_only=True, tag="topology"):
    """Make the topology that is wanted (all who joined and stay) the current one.

    Small for any number of members: the ledger knows who they are.
    """

    kind: ClassVar[str] = "topology"
    version: Positive
    """Must be the current version plus one: two proposals of one change make one change."""


class StartCommand(CommandBase, frozen=True, kw_only=True, tag="start"):
    """Start an epoch with the members of `topology`; the ledger gives the number."""

    kind: ClassVar[str] = "start"
    topology: Positive
    reason: Sentence
    deadline_ns: Positive


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One participant's local snapshot is durable."""

    epoch: Positive
    participant: Name
    session: Positive
    incarnation: Positive
    snapshot: DigestText
    state_bytes: Count = 0
    new_bytes: Count = 0
    in_flight: Count = 0
    timings: Timings = {}
    """Phase -> nanoseconds since the participant's cut."""
    waited_ns: Count = 0
    """Monotonic, since the start of the epoch, as the leader that took it measured."""


class ReportsCommand(CommandBase, frozen=True, kw_only=True, tag="reports"):
    """Reports that arrived together; each has its own outcome."""

    kind: ClassVar[str] = "reports"
    reports: Annotated[tuple[Report, ...], msgspec.Meta(min_length=1)]


class AbortCommand(CommandBase, frozen=True, kw_only=True, tag="abort"):
    """End an epoch without a manifest; refused once it is sealed."""

    kind: ClassVar[str] = "abort"
    epoch: Positive
    participant: Annotated[str, msgspec.Meta(max_length=63)] = ""
    """Whom it is about; "" where no single participant is."""
    phase: Word
    cause: Sentence
    took_ns: Count = 0
    waiting: Annotated[tuple[WaitingNote, ...], msgspec.Meta(max_length=WAITING_NOTES_MAX)] = ()
    waiting_count: Count = 0


class ForsakeCommand(CommandBase, frozen=True, kw_only=True, tag="forsake"):
    """End a sealed epoch without a manifest: the store has promised that it never gets one (`protocol.tombstones`)."""

    kind: ClassVar[str] = "forsake"
    command_version: ClassVar[int] = LATER_KINDS
    v: int = LATER_KINDS
    epoch: Positive
    manifest: DigestText
    """That was sealed."""
    participant: Annotated[str, msgspec.Meta(max_length=63)] = ""
    """Whose object is damaged or gone; "" where it is no single participant's."""
    phase: Word
    cause: Sentence
    took_ns: Count = 0


class SealCommand(CommandBase, frozen=True, kw_only=True, tag="seal"):
    """The checked cut has this manifest; from here the epoch commits, or is forsaken, and nothing else can end it."""

    kind: ClassVar[str] = "seal"
    epoch: Positive
    manifest: DigestText
    previous: Annotated[str, msgspec.Meta(pattern=r"\A(b3:[0-9a-f]{64})?\Z")] = ""
    """Manifest of the epoch sealed before; part of the manifest's bytes."""
    took_ns: Count = 0
    phases: Timings = {}


class CommitCommand(CommandBase, frozen=True, kw_only=True, tag="commit"):
    """The manifest is durable in the store."""

    kind: ClassVar[str] = "commit"
    epoch: Positive
    manifest: DigestText
    took_ns: Count = 0
    phases: Timings = {}


class AdoptCommand(CommandBase, frozen=True, kw_only=True, tag="adopt"):
    """With the next rollback these agents are placed on this session."""

    kind: ClassVar[str] = "adopt"
    session: Positive
    agents: Annotated[tuple[AgentName, ...], msgspec.Meta(min_length=1)]
    move: bool = False
    """Take them from live hosts, too."""


class RollbackCommand(CommandBase, frozen=True, kw_only=True, tag="rollback"):
    """Begin the next incarnation: everybody back to an epoch.

    Members are all live sessions, each with the agents that it hosts then.
    """

    kind: ClassVar[str] = "rollback"
    incarnation: Positive
    """Must be the current one plus one: two proposals of one rollback make one rollback."""
    epoch: Count
    """Committed, or 0: the start."""
    membership: Count
    """Must be the current one (`LedgerState.membership`): what the leader placed is what is there."""
    cause: Sentence
    automatic: bool = True
    """Counts towards `PolicySettings.max_rollbacks`."""
    fences: Annotated[tuple[Name, ...], msgspec.Meta(max_length=FENCES_MAX)] = ()
    """Stores and sinks that must have acknowledged the incarnation before the first restore order leaves."""
    waited_ns: Count = 0
    """From when the need was seen."""
    renames: Annotated[tuple[tuple[AgentName, AgentName], ...], msgspec.Meta(max_length=RENAMES_CARRIED_MAX)] = ()
    """(agent of the epoch, its name from now on)."""
    dropped: Annotated[tuple[AgentName, ...], msgspec.Meta(max_length=DROPPED_MAX)] = ()
    """Agents of the epoch that nobody takes, and that are given up on purpose."""
    newest: Count | None = None
    """The epoch that a rollback went to when this one was prepared; another one since, and it is refused. None: an operator named
    the epoch, and knew what is given up."""


class FenceCommand(CommandBase, frozen=True, kw_only=True, tag="fence"):
    """A store or sink refuses everything older than this incarnation from now on."""

    kind: ClassVar[str] = "fence"
    incarnation: Positive
    fence: Name
    took_ns: Count = 0


class RestoredNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One participant has its part."""

    participant: Name
    session: Positive
    state: DigestText
    """Over what it took."""
    took_ns: Count = 0


class RestoredCommand(CommandBase, frozen=True, kw_only=True, tag="restored"):
    """These participants have their parts; the last of them ends the rollback."""

    kind: ClassVar[str] = "restored"
    incarnation: Positive
    restored: Annotated[tuple[RestoredNote, ...], msgspec.Meta(min_length=1)]
    took_ns: Count = 0
    """Monotonic, since the rollback began, as the leader measured."""


class RollbackFailedCommand(CommandBase, frozen=True, kw_only=True, tag="rollback-failed"):
    """A participant cannot take its part: this incarnation will never run."""

    kind: ClassVar[str] = "rollback-failed"
    incarnation: Positive
    participant: Name
    session: Positive
    why: Word
    """``corrupt``, ``unfit``, ``store`` or ``entered``; see `protocol.messages.RestoreFailed`."""
    cause: Sentence


class PinCommand(CommandBase, frozen=True, kw_only=True, tag="pin"):
    """A committed epoch is named and kept: a savepoint."""

    kind: ClassVar[str] = "pin"
    command_version: ClassVar[int] = LATER_KINDS
    v: int = LATER_KINDS
    epoch: Positive
    name: SavepointName


class UnpinCommand(CommandBase, frozen=True, kw_only=True, tag="unpin"):
    """A savepoint is none any more; its epoch goes the way of all others."""

    kind: ClassVar[str] = "unpin"
    command_version: ClassVar[int] = LATER_KINDS
    v: int = LATER_KINDS
    name: SavepointName


Command: TypeAlias = (
    LeadCommand
    | ConfigureCommand
    | FoundCommand
    | AnnounceCommand
    | RegisterCommand
    | MarkLostCommand
    | LeaveCommand
    | TopologyCommand
    | StartCommand
    | ReportsCommand
    | AbortCommand
    | ForsakeCommand
    | SealCommand
    | CommitCommand
    | AdoptCommand
    | RollbackCommand
    | FenceCommand
    | RestoredCommand
    | RollbackFailedCommand
    | PinCommand
    | UnpinCommand
)

VERSIONS: Final = {each.kind: each.command_version for each in get_args(Command)}
"""Kind -> version that this build applies."""


_encode: Final = msgspec.json.Encoder(order="sorted").encode


def to_ascii_json(value: Any) -> str:  # noqa: ANN401 - any msgspec structure
    """Canonical JSON: sorted keys, no spaces, ASCII."""
    data = _encode(value)
    if data.isascii() and b"\x7f" not in data:
        return data.decode("ascii")
    # The same text, but for the escapes; ten times as slow.
    return json.dumps(
        msgspec.to_builtins(value, str_keys=True), ensure_ascii=True, sort_keys=True, separators=(",", ":")
    )


def encode_command(command: Command, *, at: int) -> str:
    """A command as it goes into the log.

    Args:
        command: Made by the leader's machine, which has no wall clock.
        at: Wall clock of the driver, nanoseconds since 1970. A command that is sent again may carry another `at`.

    Raises:
        LimitExceeded: Over `COMMAND_BYTES_MAX`.
    """
    text = to_ascii_json(msgspec.structs.replace(command, at=max(0, at)))
    if len(text) > COMMAND_BYTES_MAX:
        raise LimitExceeded(f"ledger command {command.kind!r} of {len(text)} bytes; at most {COMMAND_BYTES_MAX} fit")
    return text


def command_bytes(value: Any) -> int:  # noqa: ANN401 - a command or a part of one
    """Bytes that this takes in the log, at most (`at` of any length included)."""
    return len(to_ascii_json(value)) + 20


def sentence(text: str) -> str:
    """`text` as it may stand in the ledger: printable, at most `SENTENCE_CHARS_MAX` characters.

    Causes come from participants and their agents: escape codes must not reach an operator's terminal through them.
    """
    text = text[: SENTENCE_CHARS_MAX + 1]  # a cause may be megabytes long
    clean = text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)
    if len(clean) > SENTENCE_CHARS_MAX:
        clean = clean[: SENTENCE_CHARS_MAX - 3] + "..."
    return clean


def word(text: str) -> str:
    """`text` as a short label: printable, at most 64 characters."""
    return sentence(text)[:64]
