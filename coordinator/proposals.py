"""The leader's commands on their way through the log.

Each proposal has an id, (client, number), that it keeps over all attempts, and a *slot*: what it is about. One slot
holds one proposal at a time; what arrives meanwhile is gathered for the next. A refused or ambiguous attempt is made
again after `PROPOSAL_RETRY_NS` with the same id: the ledger applies it once, so neither loses nor doubles anything.

When leadership is lost all proposals are dropped. One that was on its way may still be applied, but only before the
next leader's `LeadCommand`: afterwards its term is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from coordinator.events import Propose
from protocol.ids import Instant
from protocol.limits import PROPOSAL_RETRY_NS, PROPOSALS_IN_FLIGHT_MAX

if TYPE_CHECKING:
    from coordinator.ledger import Command, CommandId

Slot: TypeAlias = tuple[str, ...]
"""Kind, then what distinguishes proposals of one kind that may be in flight together."""


class Stamp(NamedTuple):
    """What every command begins with."""

    id: CommandId
    done: int


@dataclass(slots=True, kw_only=True)
class Proposal:
    """One command on its way."""

    slot: Slot
    command: Command
    request: str
    """Whom to answer; "" for nobody."""
    retry_at: Instant | None = None
    """None while an attempt is under way."""


class Proposals:
    """All of one leader's commands that are on their way."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._number = 0
        self._by_number: dict[int, Proposal] = {}
        self._slots: dict[Slot, int] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    @property
    def full(self) -> bool:
        """No further proposal of the kinds that come in masses; the others are few."""
        return len(self._by_number) >= PROPOSALS_IN_FLIGHT_MAX

    def busy(self, *slot: str) -> bool:
        """A proposal of this slot is on its way."""
        return slot in self._slots

    def stamp(self) -> Stamp:
        """The next id. `done`: all numbers before the oldest on its way are answered, or are asked for no more."""
        self._number += 1
        oldest = next(iter(self._by_number), self._number)  # numbers grow, so the first entry is the oldest
        return Stamp((self._client, self._number), min(oldest, self._number) - 1)

    def put(self, slot: Slot, command: Command, *, request: str = "") -> Propose:
        """Send a command on its way. Its slot must be free."""
        assert slot not in self._slots, slot
        assert command.id == (self._client, self._number), command.id
        self._by_number[self._number] = Proposal(slot=slot, command=command, request=request)
        self._slots[slot] = self._number
        return Propose(command=command)

    def applied(self, id_: CommandId) -> Proposal | None:
        """The proposal that has its result now; None for another client's, or one that had it before."""
        if id_[0] != self._client:
            return None
        proposal = self._by_number.pop(id_[1], None)
        if proposal is not None:
            del self._slots[proposal.slot]
        return proposal

    def attempt_failed(self, id_: CommandId, now: Instant) -> None:
        """An attempt was refused, or it is unclear what became of it: try again after a while."""
        proposal = self._by_number.get(id_[1]) if id_[0] == self._client else None
        if proposal is not None:
            proposal.retry_at = Instant(now + PROPOSAL_RETRY_NS)

    def retries(self, now: Instant) -> list[Propose]:
        """The attempts that are due."""
        if not self._by_number:
            return []  # nearly always, and asked at each event
        due = [each for each in self._by_number.values() if each.retry_at is not None and each.retry_at <= now]
        for proposal in due:
            proposal.retry_at = None
        return [Propose(command=proposal.command) for proposal in due]

    def next_retry(self) -> Instant | None:
        """When `retries` will have something."""
        if not self._by_number:
            return None
        return min((each.retry_at for each in self._by_number.values() if each.retry_at is not None), default=None)

    def clear(self) -> list[str]:
        """Drop all; returns the requests that get no result."""
        requests = [each.request for each in self._by_number.values() if each.request]
        self._by_number.clear()
        self._slots.clear()
        return requests
