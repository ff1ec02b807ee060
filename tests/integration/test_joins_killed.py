"""Work that is split and joined, and dies in between: a half-filled join (A6), a brother that takes all down (A2)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

import msgspec
import pytest

from participant import Agent, Context, DidNotHappen, handler, keyed, value
from participant.sinks import MemorySink
from participant.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from participant.testing import EpochView, ManualClock

pytestmark = pytest.mark.slow

MS = 1_000_000


class Go(msgspec.Struct, frozen=True):
    order: str


class Part(msgspec.Struct, frozen=True):
    order: str
    of: str
    receipt: str = ""


class Maker(Agent, kind="maker"):
    """Makes its part of an order when it is told to."""

    @handler
    async def on_go(self, ctx: Context, go: Go) -> None:
        ctx.send("join/j", Part(go.order, ctx.self_id))


class Join(Agent, kind="join"):
    """Fires once for each order: when both parts are there."""

    parts = keyed(str, list[str])
    fired = value(list[str], default=[])
    shipped: ClassVar[list[str]] = []
    """Outside: nothing rolls it back."""
    gate: ClassVar[asyncio.Event | None] = None
    """The outside is busy until it is set."""

    @handler
    async def on_part(self, ctx: Context, part: Part) -> None:
        have = sorted({*self.parts.get(part.order, ()), part.of})
        self.parts[part.order] = have
        if len(have) == 2:
            await ctx.step(self.ship, part.order, have)
            self.fired = [*self.fired, part.order]
            ctx.emit("joined", {"order": part.order, "parts": have})

    @staticmethod
    async def ship(order: str, parts: list[str]) -> None:
        if Join.gate is not None:
            await Join.gate.wait()
        Join.shipped.append(f"{order}: {' '.join(parts)}")


@pytest.fixture(autouse=True)
def nothing_outside() -> None:
    Join.shipped, Join.gate = [], None


BOTH = "o1: maker/a maker/b"


class Held:
    """A network that loses what goes over one channel, until it is told to let go."""

    def __init__(self, source: str, target: str) -> None:
        self.channel = (source, target)
        self.holds = False
        self.caught = 0

    def __call__(self, source: str, target: str, frame: bytes) -> Iterable[tuple[float, bytes]]:
        if self.holds and (source, target) == self.channel:
            self.caught += 1
            return ()
        return ((0.0, frame),)


PLACES = [
    {"p1": ["maker/a"], "p2": ["maker/b"], "p3": ["join/j"]},
    {"p1": ["maker/a", "join/j"], "p2": ["maker/b"], "p3": []},
    {"p1": ["maker/b"], "p2": ["join/j"], "p3": ["maker/a"]},
]
"""J where it was, at a's host, at b's."""


async def turns_of_the_loop(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def half_filled(cluster: Cluster, where: str, held: Held) -> EpochView:
    """An epoch that has a's part, and not b's."""
    a = Part("o1", "maker/a")
    if where == "in its state":
        await cluster.send("maker/a", Go("o1"))
        await cluster.idle()
        epoch = await cluster.epoch()
        assert epoch.state("join/j")["parts"] == {"o1": ["maker/a"]}
    elif where == "in its mailbox":
        # It comes while the join is at another order.
        Join.gate = asyncio.Event()
        for maker in ("maker/a", "maker/b"):
            await cluster.send(maker, Go("o0"))
        while not cluster.effects.ledger.entries:
            await turns_of_the_loop(1)
        await cluster.send("maker/a", Go("o1"))
        await turns_of_the_loop()
        epoch = await cluster.epoch()
        assert a in epoch.mailbox("join/j")[1:]
        assert "o1" not in epoch.state("join/j")["parts"]
        Join.gate.set()
        await cluster.idle()
    else:
        held.holds = True
        await cluster.send("maker/a", Go("o1"))
        while not held.caught:
            await turns_of_the_loop(1)
        number = cluster.conductor.start_epoch("test")
        await turns_of_the_loop()
        held.holds = False
        epoch = await cluster.committed(number)
        assert epoch.in_flight() == [a]
        assert (epoch.state("join/j")["parts"], epoch.mailbox("join/j")) == ({}, [])
    return epoch


@pytest.mark.parametrize("where", ["in its state", "in its mailbox", "on the wire"])
@pytest.mark.parametrize("place", range(len(PLACES)))
async def test_a_half_filled_join_fires_once_with_both_parts(where: str, place: int) -> None:
    """A6: a's part is there at the cut; kill; restore, on other hosts too; then b's part arrives."""
    sink = MemorySink("joined")
    held = Held("p1", "p3")
    async with Cluster(Maker("a"), Maker("b"), Join("j"), sinks=[sink], faults=held) as cluster:
        epoch = await half_filled(cluster, where, held)
        await cluster.crash("p3")
        await cluster.restore(epoch, placement=PLACES[place])
        await cluster.idle()
        join = cluster["join/j"]
        assert isinstance(join, Join)
        assert dict(join.parts)["o1"] == ["maker/a"]
        assert "o1" not in join.fired
        await cluster.send("maker/b", Go("o1"))
        await cluster.idle()
        assert join.fired.count("o1") == 1
        await cluster.epoch()
        await cluster.idle()
        assert [each["parts"] for each in sink.values if each["order"] == "o1"] == [["maker/a", "maker/b"]]
        assert Join.shipped.count(BOTH) == 1


@pytest.mark.parametrize("where", ["in its state", "in its mailbox", "on the wire"])
@pytest.mark.parametrize("released", [False, True])
async def test_a_join_that_had_fired_before_the_kill_fires_again_and_the_world_sees_it_once(
    where: str, released: bool, tmp_path: Path
) -> None:
    """A6, and back beyond what was released: b's part comes again by itself, out of the log of outside input."""
    sink = MemorySink("joined")
    held = Held("p1", "p3")
    async with Cluster(
        Maker("a"), Maker("b"), Join("j"), sinks=[sink], faults=held, local=str(tmp_path / "local")
    ) as cluster:
        epoch = await half_filled(cluster, where, held)
        await cluster.send("maker/b", Go("o1"), token="b of o1")
        await cluster.idle()
        assert Join.shipped.count(BOTH) == 1
        if released:
            await cluster.epoch()
            await cluster.idle()
        assert (len([each for each in sink.values if each["order"] == "o1"]) == 1) is released
        await cluster.crash("p3")
        await cluster.restore(epoch)
        await cluster.idle()
        join = cluster["join/j"]
        assert isinstance(join, Join)
        assert join.fired.count("o1") == 1
        await cluster.epoch()
        await cluster.idle()
        assert Join.shipped.count(BOTH) == 1
        assert [each["parts"] for each in sink.values if each["order"] == "o1"] == [["maker/a", "maker/b"]]


# --- brothers ---------------------------------------------------------------------------------------------------------


class Fan(Agent, kind="fan"):
    """An order for two brothers, a minute after the start: a timer of the epoch before."""

    async def on_start(self, ctx: Context) -> None:
        ctx.after(60, Go("o1"))

    @handler
    async def on_go(self, ctx: Context, go: Go) -> None:
        ctx.send("pay/p", go)
        ctx.send("flaky/f", go)


class Bank:
    """Outside; it takes 50 ms of virtual time, and knows what became of a token."""

    charges: ClassVar[dict[str, str]] = {}
    calls = 0
    clock: ManualClock | None = None

    @classmethod
    async def charge(cls, order: str, *, token: str) -> str:
        cls.calls += 1
        clock = cls.clock
        assert clock is not None
        done = asyncio.get_running_loop().create_future()
        clock.call_at(clock.now() + 50 * MS, lambda: done.done() or done.set_result(None))
        await done
        assert token not in cls.charges, "charged twice"
        cls.charges[token] = order
        return f"receipt of {order}"

    @classmethod
    async def find(cls, token: str) -> str | DidNotHappen:
        return f"receipt of {cls.charges[token]}" if token in cls.charges else DidNotHappen()


class PayAgent(Agent, kind="pay"):
    @handler
    async def on_go(self, ctx: Context, go: Go) -> None:
        receipt = await ctx.step(Bank.charge, go.order, resolve=Bank.find)
        ctx.send("join/j", Part(go.order, ctx.self_id, receipt))


class Flaky(Agent, kind="flaky"):
    """What kills the process is done by the test: this one is at work then."""

    @handler
    async def on_go(self, ctx: Context, go: Go) -> None:
        ctx.send("join/j", Part(go.order, ctx.self_id))


async def killed_around_the_end(offset_ms: int, turns: int) -> tuple[int, bool]:
    """One run: the process dies so long after the end of Pay, and so many turns of the loop later.

    Returns:
        Calls of the bank, and whether it had charged when the process died.
    """
    Bank.charges, Bank.calls, Join.shipped = {}, 0, []
    sink = MemorySink("joined")
    async with Cluster([Fan("main"), PayAgent("p"), Flaky("f"), Join("j")], sinks=[sink]) as cluster:
        Bank.clock = clock = cluster.clock
        epoch = await cluster.epoch()
        due = epoch_due(epoch, clock)
        clock.move_to(due)
        while not Bank.calls:
            await turns_of_the_loop(1)
        for at in range(clock.now(), clock.now() + (50 + offset_ms) * MS + 1, 10 * MS):
            clock.move_to(at)
            await turns_of_the_loop(1)
        clock.move_to(due + (50 + offset_ms) * MS)
        await turns_of_the_loop(turns)
        charged = bool(Bank.charges)
        await cluster.crash("p1")
        await cluster.restore(epoch)
        clock.move_to(clock.now() + 61_000 * MS)
        for _ in range(200):
            await turns_of_the_loop(3)
            clock.move_to(clock.now() + 10 * MS)
            join = cluster["join/j"]
            assert isinstance(join, Join)
            if join.fired:
                break
        await cluster.idle()
        assert list(Bank.charges.values()) == ["o1"], (offset_ms, turns)
        assert join.fired == ["o1"], (offset_ms, turns)
        assert Join.shipped == ["o1: flaky/f pay/p"], (offset_ms, turns)
        await cluster.epoch()
        await cluster.idle()
        assert sink.values == [{"order": "o1", "parts": ["flaky/f", "pay/p"]}]
    return Bank.calls, charged


def epoch_due(epoch: EpochView, clock: ManualClock) -> int:
    """When the order comes."""
    ((left, _),) = epoch.timers("fan/main")
    return clock.now() + round(left * 1_000) * MS


async def test_a_brother_that_takes_the_process_down_around_the_end_of_a_charge_charges_once_and_joins_once() -> None:
    """A2: 101 moments from 50 ms before the end of Pay to 50 ms behind it, and 99 at its very end, between any two turns."""
    moments = [(offset, 1) for offset in range(-50, 51)] + [(0, turns) for turns in range(99)]
    seen = [await killed_around_the_end(*moment) for moment in moments]
    assert len(seen) == 200
    assert {charged for _, charged in seen} == {False, True}
    assert {calls for calls, _ in seen} == {1, 2}, "where it had not been charged it was called again, and only there"
    assert all((calls == 1) is charged for calls, charged in seen)
