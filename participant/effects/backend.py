"""What a place that keeps an effect ledger provides; and one in memory, for tests."""

from __future__ import annotations

from time import time_ns  # noqa: TID251 - wall clock, for people; never for a decision
from typing import TYPE_CHECKING, Protocol

from participant.effects.entries import State
from participant.effects.ledger import Claimed, EffectLedger, Known

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from participant.effects.entries import Entry
    from protocol.outputs import FencingToken


class EffectBackend(Protocol):
    """An effect ledger somewhere durable. What an answer says is durable when it is given.

    Every method raises `FencedError` for a fencing token older than the newest one seen, `StoreError` when the place is broken
    for good, and `Unreachable` when it does not answer: whether it acted is unknown then, and asking again is right.

    A ledger that is not everybody's has ``ledger_name``, and ``covers(name) -> bool``, too: whether what may be in the ledger of
    that name is in it (`participant.effects.reach`). Without it, it is. Blocking ``prepare()`` is called before either is asked,
    and blocking ``came_late()`` before the first life of a folder has it, if earlier lives have run elsewhere.
    """

    shared: bool
    """Other participants use it, too: what one of them is told here, another may wait for."""

    async def open(self, fence: FencingToken) -> None:
        """Get ready to serve this life of the participant; older ones are refused from here on. Again with a later one is fine.

        Raises:
            ConfigError: The place cannot be used as it is set up.
        """
        ...

    async def claim(self, entry: Entry, fence: FencingToken) -> Claimed | Known:
        """See `EffectLedger.claim`."""
        ...

    async def take(self, token: str, fence: FencingToken, claim_id: bytes, *, before: bytes) -> Claimed | Known:
        """See `EffectLedger.take`. Of a claim that is the caller's already, it confirms that it and the fence still are what they were."""
        ...

    async def end(
        self, token: str, fence: FencingToken, claim_id: bytes, state: State, *, result: bytes = b"", reason: str = ""
    ) -> Claimed | Known:
        """See `EffectLedger.end`."""
        ...

    async def settle(self, token: str, fence: FencingToken, state: State, *, result: bytes = b"") -> Claimed | Known:
        """See `EffectLedger.settle`."""
        ...

    async def accept(self, token: str, fence: FencingToken, intent: bytes) -> Known:
        """See `EffectLedger.accept`."""
        ...

    async def entry(self, token: str) -> Entry | None:
        """What is known of a position."""
        ...

    async def entries(self, states: Collection[State] = (State.CLAIMED,)) -> list[Entry]:
        """Entries in one of these states, by time of their claim."""
        ...

    async def close_turn(self, tokens: Iterable[str], after: int, fence: FencingToken) -> None:
        """See `EffectLedger.close`. Need not be durable: what is lost is kept longer."""
        ...

    async def reopen(self, base: int, fence: FencingToken) -> None:
        """See `EffectLedger.reopen`."""
        ...

    async def prune(self, oldest: int, fence: FencingToken) -> int:
        """See `EffectLedger.prune`; returns how many went."""
        ...

    async def aclose(self) -> None:
        """End; what was answered stays."""
        ...


class MemoryEffects:
    """A ledger that lives as long as this object: for tests. Share one among participants that come and go."""

    shared = False
    """True has participants that share it look for what others were told."""

    def __init__(self) -> None:
        self.ledger = EffectLedger()

    async def open(self, fence: FencingToken) -> None:
        """See `EffectBackend.open`."""
        self.ledger.admit(fence)

    async def claim(self, entry: Entry, fence: FencingToken) -> Claimed | Known:
        """See `EffectBackend.claim`."""
        return self.ledger.claim(entry, fence)[1]

    async def take(self, token: str, fence: FencingToken, claim_id: bytes, *, before: bytes) -> Claimed | Known:
        """See `EffectBackend.take`."""
        return self.ledger.take(token, fence, claim_id, before=before, at=time_ns())[1]

    async def end(
        self, token: str, fence: FencingToken, claim_id: bytes, state: State, *, result: bytes = b"", reason: str = ""
    ) -> Claimed | Known:
        """See `EffectBackend.end`."""
        return self.ledger.end(token, fence, claim_id, state, result=result, reason=reason, at=time_ns())[1]

    async def settle(self, token: str, fence: FencingToken, state: State, *, result: bytes = b"") -> Claimed | Known:
        """See `EffectBackend.settle`."""
        return self.ledger.settle(token, fence, state, result=result, at=time_ns())[1]

    async def accept(self, token: str, fence: FencingToken, intent: bytes) -> Known:
        """See `EffectBackend.accept`."""
        return self.ledger.accept(token, fence, intent)[1]

    async def entry(self, token: str) -> Entry | None:
        """See `EffectBackend.entry`."""
        return self.ledger.entries.get(token)

    async def entries(self, states: Collection[State] = (State.CLAIMED,)) -> list[Entry]:
        """See `EffectBackend.entries`."""
        return by_time(self.ledger.entries.values(), states)

    async def close_turn(self, tokens: Iterable[str], after: int, fence: FencingToken) -> None:
        """See `EffectBackend.close_turn`."""
        self.ledger.close(tokens, after, fence)

    async def reopen(self, base: int, fence: FencingToken) -> None:
        """See `EffectBackend.reopen`."""
        self.ledger.reopen(base, fence)

    async def prune(self, oldest: int, fence: FencingToken) -> int:
        """See `EffectBackend.prune`."""
        before = len(self.ledger.entries)
        self.ledger.prune(oldest, fence)
        return before - len(self.ledger.entries)

    async def aclose(self) -> None:
        """See `EffectBackend.aclose`."""


def by_time(entries: Iterable[Entry], states: Collection[State]) -> list[Entry]:
    """Those in one of these states, oldest claim first."""
    found = [entry for entry in entries if entry.state in states]
    found.sort(key=lambda entry: (entry.claimed_at, entry.token))
    return found
