"""Handlers that wait for ever are found in the healed world and named; those that only take long are not."""

import asyncio
import re
from dataclasses import dataclass

import pytest

from participant import Agent, Context, handler, value
from protocol.errors import ConfigError
from simulations import simulate

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.timeout(300)]

PATIENCE = 12


@dataclass(frozen=True)
class Go:
    """Begin."""


class Waiter(Agent, kind="waiter"):
    """Waits for what it was given."""

    calls = value(int, default=0)

    def __init__(self, name, work):
        super().__init__(name)
        self._work = work

    @handler
    async def on_go(self, ctx: Context, go: Go) -> None:
        await self._work(self, ctx)
        self.calls += 1


class Neighbour(Agent, kind="neighbour"):
    """Is at work, so that the world goes on."""

    calls = value(int, default=0)

    @handler
    async def on_go(self, ctx: Context, go: Go) -> None:
        self.calls += 1
        ctx.after(0.5, Go())


def run(work, **options):
    options = {"seeds": [1], "faults": [], "patience": PATIENCE, **options}
    goes = [("waiter/w", Go()), ("neighbour/n", Go())]
    return simulate(lambda: [Waiter("w", work), Neighbour("n")], start=goes, **options)


def said_of(work, **options):
    with pytest.raises(AssertionError) as caught:
        run(work, **options)
    return str(caught.value)


def test_a_handler_that_waits_for_an_event_that_nobody_sets_is_named_with_the_line_it_stands_at():
    async def asks(agent, ctx):
        await the_answer()

    async def the_answer():
        await asyncio.Event().wait()

    said = said_of(asks, patience=60)
    assert (
        "L9 is broken (liveness): waiting for ever, 60 s after the last fault: waiter/w: Waiter.on_go, on a Go since "
        in said
    )
    assert re.search(r"test_sim_waiting\.py:\d+ in on_go: await self\._work\(self, ctx\)\n", said)
    assert "in asks: await the_answer()" in said
    assert "in the_answer: await asyncio.Event().wait()" in said
    assert "in wait: await fut" in said
    assert "neighbour" not in said.split("options: ")[0]


def test_a_task_that_is_awaited_is_followed_to_where_it_stands():
    async def never():
        await asyncio.get_running_loop().create_future()

    async def gathers(agent, ctx):
        await asyncio.gather(asyncio.sleep(0.1), asyncio.create_task(never(), name="the slow one"))

    said = said_of(gathers)
    assert "in gathers: await asyncio.gather(" in said
    assert "which awaits the task the slow one" in said
    assert "in never: await asyncio.get_running_loop().create_future()" in said


def test_a_lock_that_is_held_for_ever_is_shown_where_it_is_wanted():
    async def locks(agent, ctx):
        lock = asyncio.Lock()
        await lock.acquire()
        async with lock:
            pass

    said = said_of(locks)
    assert "in locks: async with lock:" in said


def test_a_handler_that_asks_again_and_again_waits_for_ever_as_well():
    async def polls(agent, ctx):
        while agent.calls == 0:  # noqa: ASYNC110 - the bug
            await asyncio.sleep(1)

    assert "in polls: await asyncio.sleep(1)" in said_of(polls)


def test_two_agents_that_wait_for_each_other_are_both_named():
    """A queue between two agents of one participant, which neither fills."""

    def couple():
        one, other = asyncio.Queue(), asyncio.Queue()

        async def first(agent, ctx):
            await one.get()
            other.put_nowait(1)

        async def second(agent, ctx):
            await other.get()
            one.put_nowait(1)

        return [[Waiter("a", first), Waiter("b", second)]]

    with pytest.raises(AssertionError) as caught:
        simulate(couple, start=[("waiter/a", Go()), ("waiter/b", Go())], seeds=[1], faults=[], patience=PATIENCE)
    said = str(caught.value)
    assert "waiter/a: Waiter.on_go" in said
    assert "in first: await one.get()" in said
    assert "waiter/b: Waiter.on_go" in said
    assert "in second: await other.get()" in said


def test_it_is_found_under_faults_too_and_crashes_are_not_taken_for_it():
    async def asks(agent, ctx):
        await asyncio.Event().wait()

    said = said_of(asks, faults=["crash", "pause"], seeds=[3])
    assert "waiter/w: Waiter.on_go, on a Go since " in said


@pytest.mark.parametrize("seconds", [PATIENCE - 2, 500])
def test_a_handler_that_takes_long_or_sleeps_longer_than_the_patience_is_left_alone(seconds):
    async def sleeps(agent, ctx):
        async with asyncio.timeout(10 * seconds), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(seconds))

    run(sleeps)


def test_a_handler_that_is_answered_in_time_is_left_alone():
    async def asks(agent, ctx):
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(PATIENCE, event.set)
        await event.wait()

    run(asks)


def test_the_patience_is_the_users_choice():
    async def works(agent, ctx):
        for _ in range(15):
            await asyncio.sleep(1)

    run(works, patience=16)
    assert "waiting for ever, 3 s after the last fault" in said_of(works, patience=3)
    with pytest.raises(ConfigError, match="patience"):
        run(works, patience=0)
