"""What one leader knows of an open epoch beside the ledger: progress, the deadline, reports on their way, retries.

Local and rebuilt by the next leader: what must survive a change of leader is in the ledger. Time goes on, though: the
ledger keeps how much is known to have passed (`EpochRecord.elapsed_ns`), and a later leader's deadline is only what is
left of it, at least `TAKEOVER_NS_MIN`, so that it can finish what lacks nothing but its hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from coordinator.ledger.records import AbortRecord
from protocol.ids import Instant
from protocol.limits import FORSAKE_AFTER_NS, FORSAKE_REFUSALS_MIN, STORE_RETRY_NS, STORE_RETRY_NS_MAX

if TYPE_CHECKING:
    from coordinator.events import CutAssembled
    from coordinator.ledger import EpochRecord, Report

TAKEOVER_NS_MIN: Final = 1_000_000_000
"""Least time that a later leader gives an epoch, if its deadline is longer than that."""

FIRST_PHASE: Final = "record"
PARTICIPANT_PHASES: Final = (FIRST_PHASE, "channels", "encode", "upload", "report")
"""In order; what a participant tells is the one that it is in."""


@dataclass(slots=True, kw_only=True)
class ParticipantProgress:
    """The newest that a participant told of an epoch."""

    phase: str
    """The phase that it is in: one of `PARTICIPANT_PHASES`."""
    told_at: Instant
    """When it first told that it is in this phase."""
    open_channels: tuple[str, ...] = ()
    """Sources of channels whose marker has not come."""


@dataclass(slots=True, kw_only=True)
class EpochNotes:
    """One open epoch, in the eyes of one leader."""

    epoch: int
    since: Instant
    """When this leader began to work on it."""
    before_ns: int
    """Time that had passed before."""
    deadline: Instant
    progress: dict[str, ParticipantProgress] = field(default_factory=dict)
    waiting_reports: dict[str, Report] = field(default_factory=dict)
    """Arrived, not proposed yet."""
    phases: dict[str, int] = field(default_factory=dict)
    """The leader's own phases -> ns."""
    complete_at: Instant | None = None
    assembling: bool = False
    assembled: CutAssembled | None = None
    seal_asked_at: Instant | None = None
    seal_told: bool = False
    """Members know that it is sealed."""
    storing: bool = False
    """An order about the manifest's key is under way: to store it, or to forsake it."""
    stored: bool = False
    refusals: int = 0
    """Times in a row that a sealed epoch's manifest could not be made from what lies in the store."""
    refused_since: Instant | None = None
    forsaking: AbortRecord | None = None
    """Why a sealed epoch is given up; its key in the store is to be taken."""
    forsake_request: str = ""
    """Operator's request, if it was one; "" once it is answered or with the proposal."""
    forsaken: bool = False
    """The key is taken: it can only end without a manifest."""
    retry_at: Instant | None = None
    """Earliest next attempt at the store; None: at once."""
    retry_ns: int = STORE_RETRY_NS
    trouble: str = ""
    """The last thing that failed; "" while all goes well."""

    def elapsed_ns(self, now: Instant) -> int:
        """Since the start, over all leaders; at least 1, so that it never reads as unknown."""
        return max(1, self.before_ns + now - self.since)

    def may_try(self, now: Instant) -> bool:
        """The pause after a failure is over."""
        return self.retry_at is None or now >= self.retry_at

    def failed(self, trouble: str, now: Instant) -> None:
        """Something with the store failed: wait before the next attempt, twice as long each time."""
        self.trouble = trouble
        self.retry_at = Instant(now + self.retry_ns)
        self.retry_ns = min(2 * self.retry_ns, STORE_RETRY_NS_MAX)

    def refused(self, participant: str, trouble: str, now: Instant) -> None:
        """The manifest of a sealed epoch cannot be made. What a moment does not mend is final: it is forsaken then."""
        self.failed(trouble, now)
        self.refusals += 1
        if self.refused_since is None:
            self.refused_since = now
        if self.refusals >= FORSAKE_REFUSALS_MIN and now >= self.refused_since + FORSAKE_AFTER_NS:
            self.forsaking = AbortRecord(participant=participant, phase="manifest", cause=trouble)
            self.retry_at = None

    def told(self, participant: str, phase: str, open_channels: tuple[str, ...], now: Instant) -> None:
        """A participant told which phase it is in. Never backwards: messages of two connections may cross."""
        if phase not in PARTICIPANT_PHASES:
            return
        old = self.progress.get(participant)
        if old is not None and PARTICIPANT_PHASES.index(old.phase) > PARTICIPANT_PHASES.index(phase):
            return
        self.progress[participant] = ParticipantProgress(
            phase=phase,
            told_at=old.told_at if old is not None and old.phase == phase else now,
            open_channels=tuple(sorted(open_channels)) if phase == "channels" else (),
        )


def begin_notes(record: EpochRecord, now: Instant) -> EpochNotes:
    """Notes of a leader that meets an open epoch, new or taken over."""
    left_ns = max(record.deadline_ns - record.elapsed_ns, min(record.deadline_ns, TAKEOVER_NS_MIN))
    return EpochNotes(epoch=record.epoch, since=now, before_ns=record.elapsed_ns, deadline=Instant(now + left_ns))
