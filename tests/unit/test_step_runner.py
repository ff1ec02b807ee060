"""What a step runner tells the effect ledger behind a turn's back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from participant.effects.backend import MemoryEffects
from participant.effects.entries import Entry, Kind, State
from participant.runtime.clock import LoopClock
from participant.runtime.steps import StepRunner
from participant.steps import Calls
from protocol.errors import FencedError, SnapshotError, Unreachable
from protocol.outputs import FencingToken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from participant.context import Context

TOKEN = "t" * 32


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.001)


class FarEffects(MemoryEffects):
    """A ledger behind a network."""

    reached = True
    asked = 0
    reopens = 0
    lost_reopens = 0

    opening: Callable[[], None] | None = None
    """Happens while it is opened."""

    async def open(self, fence: FencingToken) -> None:
        self._look()
        if self.opening is not None:
            self.opening()
        await super().open(fence)

    async def close_turn(self, tokens: Iterable[str], after: int, fence: FencingToken) -> None:
        self._look()
        await super().close_turn(tokens, after, fence)

    async def reopen(self, base: int, fence: FencingToken) -> None:
        self._look()
        self.reopens += 1
        if self.reopens <= self.lost_reopens:
            raise Unreachable("the connection was closed")
        await super().reopen(base, fence)

    def _look(self) -> None:
        self.asked += 1
        if not self.reached:
            raise Unreachable("the ledger does not answer")


class News:
    """`StepsSink`: nothing is expected but an end."""

    def __init__(self) -> None:
        self.ends: list[SnapshotError] = []

    def question_asked(self, agent: str, token: str, question: object, expires_in: float | None) -> None:
        raise AssertionError(token)

    def step_settled(self, token: str) -> None:
        raise AssertionError(token)

    def effects_failed(self, error: SnapshotError) -> None:
        self.ends.append(error)


class World:
    """A participant that has done a step in the first incarnation, before epoch 4 and after epoch 3."""

    def __init__(self) -> None:
        self.fence = FencingToken("p1", 1, 1)
        self.effects = FarEffects()
        self.news = News()
        self.steps = StepRunner(
            self.effects,
            [],
            cluster="shop",
            fence=lambda: self.fence,
            epoch=lambda: 3,
            clock=LoopClock(),
            sink=self.news,
        )

    async def do_a_step(self) -> None:
        entry = Entry(
            token=TOKEN, kind=Kind.STEP, agent="a/b", message_id=b"m" * 16, name="charge", ordinal=0, intent=b"", shown="",
            payload=b"", participant="p1", incarnation=1, session=1, claim_id=b"c", claimed_at=5,
        )  # fmt: skip
        await self.effects.claim(entry, self.fence)
        await self.effects.end(TOKEN, self.fence, b"c", State.DONE, result=b"paid")

    def end_turn(self) -> None:
        calls = Calls()
        calls.tokens[TOKEN] = None
        self.steps.turn_over(cast("Context", object()), calls, done=True)

    async def told(self) -> None:
        await until(lambda: not self.steps.busy)
        assert not self.news.ends


@pytest.mark.parametrize("rolled_back_to", [2, 3])
async def test_turn_whose_end_the_ledger_hears_of_after_a_rollback_is_remembered_until_it_has_come_again(
    rolled_back_to,
):
    """Else its entry goes with the epochs of before, and the turn, done again, charges again."""
    world = World()
    await world.do_a_step()
    world.effects.reached = False
    world.end_turn()
    await until(lambda: world.effects.asked > 0)
    world.fence = FencingToken("p1", 2, 1)
    world.effects.reached = True
    world.steps.rolled_back(rolled_back_to)
    await world.told()
    assert await world.steps.prune(9) == 0
    world.end_turn()  # it has come again
    await world.told()
    assert await world.steps.prune(9) == 1


async def test_turn_whose_end_the_ledger_hears_of_late_goes_with_its_epochs_where_nothing_was_rolled_back():
    world = World()
    await world.do_a_step()
    world.effects.reached = False
    world.end_turn()
    await until(lambda: world.effects.asked > 0)
    world.effects.reached = True
    await world.told()
    assert await world.steps.prune(3) == 0
    assert await world.steps.prune(4) == 1


async def test_entries_that_a_rollback_may_bring_back_are_not_pruned_before_the_ledger_has_heard_of_it():
    world = World()
    await world.do_a_step()
    world.end_turn()
    await world.told()
    world.fence = FencingToken("p1", 2, 1)
    world.effects.lost_reopens = 1
    world.steps.rolled_back(2)
    await until(lambda: world.effects.reopens > 0)
    assert await world.steps.prune(9) == 0
    await world.told()
    assert await world.steps.prune(9) == 0


async def test_of_two_rollbacks_that_the_ledger_hears_of_late_the_one_that_goes_back_further_counts():
    world = World()
    await world.do_a_step()
    world.end_turn()
    await world.told()
    world.effects.reached = False
    for incarnation, base in ((2, 2), (3, 5)):
        world.fence = FencingToken("p1", incarnation, 1)
        world.steps.rolled_back(base)
    await until(lambda: world.effects.asked > 0)
    world.effects.reached = True
    await world.told()
    assert await world.steps.prune(9) == 0


@pytest.mark.parametrize("goes_on", [True, False], ids=["this very process", "somebody else"])
async def test_ledger_that_is_taken_while_it_is_opened(goes_on):
    """By this process in its next incarnation it is no reason to end; by another one it is."""
    world = World()
    later = FencingToken("p1", 2, 1)

    def take() -> None:
        world.effects.opening = None
        world.effects.ledger.admit(later)
        if goes_on:
            world.fence = later

    world.effects.opening = take
    if goes_on:
        assert await world.steps.prune(9) == 0
        assert not world.news.ends
    else:
        with pytest.raises(FencedError) as raised:
            await world.steps.prune(9)
        assert world.news.ends == [raised.value]
