"""What the ledger remembers. Plain mutable records; only `coordinator.ledger.ledger` changes them.

Everyone else (leader's machine, API, blame) reads. Dictionaries may stand in another order on another replica that
came from a snapshot: iterate them sorted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from coordinator.ledger.commands import WaitingNote
from coordinator.policy import PolicySettings
from protocol.messages import Member
from protocol.streams import StreamEnd

if TYPE_CHECKING:
    from collections.abc import Iterable

LEDGER_FORMAT: Final = 1
SAVEPOINTS_FORMAT: Final = 2
"""Of a dump that holds savepoints: a build that would drop them, unknown as they are to it, refuses it."""

# States of a session. `LIVE` ones hold their participant's id and agents against others.
JOINING: Final = "joining"
MEMBER: Final = "member"
LEAVING: Final = "leaving"
LOST: Final = "lost"
LEFT: Final = "left"
LIVE: Final = (JOINING, MEMBER, LEAVING)

# States of an epoch. The first two are open.
STARTED: Final = "started"
SEALED: Final = "sealed"
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
OPEN: Final = (STARTED, SEALED)

# States of a rollback. The first two are running.
FENCING: Final = "fencing"
RESTORING: Final = "restoring"
DONE: Final = "done"
FAILED: Final = "failed"
SUPERSEDED: Final = "superseded"
RUNNING: Final = (FENCING, RESTORING)


class ParticipantRecord(msgspec.Struct, kw_only=True):
    """A participant and its newest session."""

    id: str
    session: int
    boot_id: str
    state: str
    """`JOINING`, `MEMBER`, `LEAVING`, `LOST` or `LEFT`."""
    address: str = ""
    agents: tuple[str, ...] = ()
    """Hosted by it: what it declared and nobody else has adopted, and what it adopted."""
    declared: tuple[str, ...] = ()
    """As it registered."""
    adopted: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """Of agents that it can take from others."""
    agent_versions: dict[str, int] = {}
    targets: tuple[str, ...] | None = None
    build: str = ""
    registered_at: int = 0
    """Wall clock, ns."""
    ended_at: int = 0
    """Wall clock, ns, of `LOST` or `LEFT`; 0 while live."""
    cause: str = ""
    """Why it was lost."""
    fresh: int = 0
    """See `protocol.messages.Member.fresh`."""
    fresh_of: dict[str, int] = {}
    """See `protocol.messages.Member.fresh_of`."""
    ended: int | None = None
    """Newest epoch started when an agent of its program left in order with another host, in this incarnation; None: none has."""
    before: str = ""
    """Why the session before this one was lost."""
    line: int = 0
    """Session with which its streams began (`protocol.streams`); 0: this one."""
    streams: tuple[StreamEnd, ...] = ()
    """Where they stood when this session took over."""
    resumed_from: int = 0
    """Session whose log this one goes on from; 0: none."""
    damaged: bool = False
    """Nothing goes on from its log any more."""

    @property
    def live(self) -> bool:
        """The session holds its id and agents."""
        return self.state in LIVE

    def fresh_as(self, agent: str) -> int:
        """What the first message of one of its agents is named after."""
        return self.fresh_of.get(agent, self.fresh)

    def name_fresh(self, agents: Iterable[str], number: int) -> None:
        """First messages of these are named after this number."""
        fresh_of = {**self.fresh_of, **dict.fromkeys(agents, number)}
        self.fresh_of = {agent: each for agent, each in sorted(fresh_of.items()) if each != self.fresh}

    def begin_as_new(self, number: int) -> None:
        """First messages of all that its program declares are named after this number."""
        others = {agent: self.fresh_as(agent) for agent in self.adopted if agent not in self.declared}
        self.fresh, self.fresh_of = number, {agent: each for agent, each in others.items() if each != number}

    def member(self) -> Member:
        """As a member of a topology."""
        return Member(
            id=self.id,
            session=self.session,
            address=self.address,
            agents=self.agents,
            targets=self.targets,
            fresh=self.fresh,
            fresh_of=tuple((agent, self.fresh_of[agent]) for agent in self.agents if agent in self.fresh_of),
            line=self.line,
            streams=self.streams,
        )


class AnnouncedRecord(msgspec.Struct, kw_only=True):
    """Agents of a participant that has not registered yet."""

    boot_id: str
    number: int
    """Announcements begun before this one: the oldest is forgotten first."""
    agents: tuple[str, ...] = ()


class TopologyRecord(msgspec.Struct, kw_only=True):
    """The current topology."""

    version: int = 0
    """0: there has been none."""
    members: tuple[Member, ...] = ()
    """Sorted by id."""


class MemberRecord(msgspec.Struct, kw_only=True):
    """A member's part in one epoch."""

    session: int
    snapshot: str = ""
    """Digest of the local-snapshot object; "" until the report is in."""
    state_bytes: int = 0
    new_bytes: int = 0
    in_flight: int = 0
    timings: dict[str, int] = {}
    waited_ns: int = 0
    """From the start of the epoch to the report."""
    reported_at: int = 0
    """Wall clock, ns."""
    term: int = 0
    """Of the leader that took the report."""


class AbortRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Why an epoch was aborted."""

    participant: str
    phase: str
    cause: str
    waiting: tuple[WaitingNote, ...] = ()
    waiting_count: int = 0


class EpochRecord(msgspec.Struct, kw_only=True):
    """One epoch, open or ended."""

    epoch: int
    state: str = STARTED
    reason: str = ""
    started_at: int
    """Wall clock of the leader that started it, ns; part of the manifest."""
    deadline_ns: int
    terms: tuple[int, ...]
    """Of the leaders that worked on it, in order."""
    incarnation: int
    topology: int
    members: dict[str, MemberRecord] = {}
    """Fixed at the start (I7). Emptied for old epochs of large clusters (`trimmed`)."""
    members_count: int = 0
    reported_count: int = 0
    trimmed: bool = False
    elapsed_ns: int = 0
    """Monotonic time that is known to have passed since the start; a later leader goes on from it."""
    previous: str = ""
    """From `SEALED` on: manifest of the epoch sealed before."""
    manifest: str = ""
    """From `SEALED` on: digest of the manifest; "" again for one that was forsaken."""
    sealed_at: int = 0
    ended_at: int = 0
    took_ns: int = 0
    """Start to end, never negative."""
    state_bytes: int = 0
    new_bytes: int = 0
    in_flight: int = 0
    phases: dict[str, int] = {}
    """The leader's own phases -> ns: ``collect``, ``assemble``, ``seal``, ``manifest``."""
    abort: AbortRecord | None = None

    @property
    def open(self) -> bool:
        """Neither committed nor aborted."""
        return self.state in OPEN

    @property
    def complete(self) -> bool:
        """All reports are in."""
        return self.reported_count == self.members_count


class RestoreRecord(msgspec.Struct, kw_only=True):
    """A member's part in one rollback."""

    session: int
    state: str = ""
    """Digest over what it took; "" until it has said so."""
    took_ns: int = 0

    @property
    def restored(self) -> bool:
        """It has its part."""
        return bool(self.state)


class RollbackRecord(msgspec.Struct, kw_only=True):
    """One rollback, and with it the beginning of one incarnation."""

    incarnation: int
    epoch: int
    """That it goes to; 0: the start."""
    manifest: str
    """Of the epoch; "" for the start."""
    cause: str
    automatic: bool
    state: str = FENCING
    terms: tuple[int, ...]
    """Of the leaders that worked on it, in order."""
    topology: int
    fences: dict[str, bool] = {}
    """Store or sink -> it has acknowledged the incarnation."""
    members: dict[str, RestoreRecord] = {}
    """Emptied when a later rollback begins."""
    members_count: int = 0
    restored_count: int = 0
    renames: tuple[tuple[str, str], ...] = ()
    """(agent of the epoch, its name from now on)."""
    dropped: tuple[str, ...] = ()
    """Agents of the epoch that were given up on purpose."""
    elapsed_ns: int = 0
    """Wall time from the start of the epoch to `started_at`: how overdue timers are."""
    waited_ns: int = 0
    """From when the need was seen to the beginning."""
    fenced_ns: int = 0
    took_ns: int = 0
    """Monotonic, from the beginning to the end."""
    started_at: int = 0
    """Wall clock, ns."""
    ended_at: int = 0
    participant: str = ""
    """Who failed."""
    session: int = 0
    why: str = ""
    """Kind of the failure; see `protocol.messages.RestoreFailed`."""
    failure: str = ""
    """In words."""

    @property
    def running(self) -> bool:
        """Neither done nor given up."""
        return self.state in RUNNING


class OriginRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What this cluster is a fork of."""

    cluster: str
    epoch: int
    manifest: str
    """Of the original; this cluster's own is in the epoch's record."""
    dry_run: bool
    """Effects are not done and sinks are not written to; see `protocol.forks`."""


class SavepointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A name and what it stands for, until it is taken back."""

    epoch: int
    """Committed; its record stays (`coordinator.ledger.savepoints`)."""
    pinned_at: int
    """Wall clock, ns."""


class ClientRecord(msgspec.Struct, kw_only=True):
    """What is remembered of a client's commands."""

    floor: int = 0
    """Numbers up to here are answered or forgotten."""
    results: dict[int, str] = {}
    """Number -> result, above the floor."""


class LedgerState(msgspec.Struct, kw_only=True):
    """All of it. One entry of the log changes it from one consistent value to the next."""

    format: int = LEDGER_FORMAT
    cluster: str
    term: int = 0
    """Of the newest `LeadCommand`."""
    leader: str = ""
    incarnation: int = 1
    """Only grows (I10)."""
    base: int = 0
    """Epoch that this incarnation began from; 0: the start."""
    origin: OriginRecord | None = None
    """None: this cluster is no fork."""
    session: int = 0
    """Newest session given out."""
    membership: int = 0
    """Changes of who is live and who hosts what."""
    adoptions: dict[str, str] = {}
    """Agent -> live participant that hosts it from the next rollback on."""
    rollbacks: dict[int, RollbackRecord] = {}
    """By the incarnation that they began."""
    stays: dict[str, dict[str, int]] = {}
    """Hosts of agents that have come to another one (`protocol.stays`)."""
    stopped: str = ""
    """Why nothing is rolled back by itself any more; "" while that is not so."""
    policy: PolicySettings | None = None
    """None: nobody configured one yet."""
    failures: int = 0
    """Epochs aborted in a row for a reason that counts (`coordinator.policy`)."""
    participants: dict[str, ParticipantRecord] = {}
    announced: dict[str, AnnouncedRecord] = {}
    announcements: int = 0
    """Begun so far."""
    topology: TopologyRecord = msgspec.field(default_factory=TopologyRecord)
    epoch: int = 0
    """Newest epoch started; numbers only grow (I10)."""
    ended_through: int = 0
    """Every epoch up to this number has ended."""
    committed: int = 0
    """Newest committed epoch."""
    committed_count: int = 0
    aborted_count: int = 0
    sealed_manifest: str = ""
    """Manifest of the newest sealed epoch: the head of the chain."""
    epochs: dict[int, EpochRecord] = {}
    """Open ones and the history."""
    savepoints: dict[str, SavepointRecord] = {}
    """By name."""
