"""One effect ledger for all participants, somewhere outside of the cluster: where agents go elsewhere, what they have done goes with them.

The product's own rules (`EffectLedger`) behind a network: a request takes its time, and its answer may not come back, whatever has
become of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from participant.effects.backend import by_time
from participant.effects.entries import State
from protocol.errors import Unreachable
from simulations.outside import BankFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from participant.effects.entries import Entry
    from participant.effects.ledger import Claimed, EffectLedger, Known
    from protocol.outputs import FencingToken
    from simulations.outside import Ways


class SharedEffects:
    """The ledger as one life asks it (`participant.effects.backend.EffectBackend`).

    Args:
        ledger: One for the run.
        ways: Of the life.
    """

    shared = True

    def __init__(self, ledger: EffectLedger, ways: Ways) -> None:
        self._ledger = ledger
        self._ways = ways

    async def _asked(self, act: Callable[[int], Any]) -> Any:  # noqa: ANN401 - whatever it gives
        try:
            return await self._ways.request(lambda: act(self._ways.wall()))
        except BankFailed as error:
            raise Unreachable("effects", str(error)) from None

    async def open(self, fence: FencingToken) -> None:
        """See `EffectBackend.open`."""
        await self._asked(lambda _: self._ledger.admit(fence))

    async def claim(self, entry: Entry, fence: FencingToken) -> Claimed | Known:
        """See `EffectBackend.claim`."""
        found: Claimed | Known = await self._asked(lambda _: self._ledger.claim(entry, fence)[1])
        return found

    async def take(self, token: str, fence: FencingToken, claim_id: bytes, *, before: bytes) -> Claimed | Known:
        """See `EffectBackend.take`."""
        found: Claimed | Known = await self._asked(
            lambda at: self._ledger.take(token, fence, claim_id, before=before, at=at)[1]
        )
        return found

    async def end(
        self, token: str, fence: FencingToken, claim_id: bytes, state: State, *, result: bytes = b"", reason: str = ""
    ) -> Claimed | Known:
        """See `EffectBackend.end`."""
        found: Claimed | Known = await self._asked(
            lambda at: self._ledger.end(token, fence, claim_id, state, result=result, reason=reason, at=at)[1]
        )
        return found

    async def settle(self, token: str, fence: FencingToken, state: State, *, result: bytes = b"") -> Claimed | Known:
        """See `EffectBackend.settle`."""
        found: Claimed | Known = await self._asked(
            lambda at: self._ledger.settle(token, fence, state, result=result, at=at)[1]
        )
        return found

    async def accept(self, token: str, fence: FencingToken, intent: bytes) -> Known:
        """See `EffectBackend.accept`."""
        found: Known = await self._asked(lambda _: self._ledger.accept(token, fence, intent)[1])
        return found

    async def entry(self, token: str) -> Entry | None:
        """See `EffectBackend.entry`."""
        found: Entry | None = await self._asked(lambda _: self._ledger.entries.get(token))
        return found

    async def entries(self, states: Collection[State] = (State.CLAIMED,)) -> list[Entry]:
        """See `EffectBackend.entries`."""
        found: list[Entry] = await self._asked(lambda _: by_time(self._ledger.entries.values(), states))
        return found

    async def close_turn(self, tokens: Iterable[str], after: int, fence: FencingToken) -> None:
        """See `EffectBackend.close_turn`."""
        closed = tuple(tokens)
        await self._asked(lambda _: self._ledger.close(closed, after, fence))

    async def reopen(self, base: int, fence: FencingToken) -> None:
        """See `EffectBackend.reopen`."""
        await self._asked(lambda _: self._ledger.reopen(base, fence))

    async def prune(self, oldest: int, fence: FencingToken) -> int:
        """See `EffectBackend.prune`."""

        def pruned(_: int) -> int:
            before = len(self._ledger.entries)
            self._ledger.prune(oldest, fence)
            return before - len(self._ledger.entries)

        return int(await self._asked(pruned))

    async def aclose(self) -> None:
        """See `EffectBackend.aclose`."""
