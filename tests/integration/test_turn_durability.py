"""`durability="turn"`: a participant that crashes goes on from its log, and the others notice nothing."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Self

import msgspec
import pytest

from participant import Agent, Context, Participant, ReleasedBeyond, Restoration, Resumed, handler, value
from participant.runtime.conductor import Conductor, LocalControl
from participant.runtime.log_files import Life, LocalFolder
from participant.runtime.transports.memory import MemoryHub, MemoryTransport
from participant.runtime.turn_keeper import TurnKeeper
from participant.sinks.memory import MemorySink
from protocol.errors import ConfigError, FencedError
from tests.integration.fleet import CLUSTER, KEYS, SECRET, until

if TYPE_CHECKING:
    from pathlib import Path

from protocol.storage.memory import MemoryStore


class Pay(msgspec.Struct, frozen=True):
    """So much, from one to the next, with the number of the payment."""

    cents: int
    hops: int
    number: int


class Tick(msgspec.Struct, frozen=True):
    """Comes from a timer."""

    number: int


class Purse(Agent, kind="purse"):
    """Holds money, passes it on, and keeps what came from whom in order."""

    cents = value(int, default=1000)
    seen = value(dict[str, list[int]], default={})
    sent = value(int, default=0)
    ticks = value(list[int], default=[])
    restorations = value(int, default=0)

    def __init__(self, name: str, others: tuple[str, ...]) -> None:
        super().__init__(name)
        self.others = others
        self.told: list[Restoration] = []

    async def on_restored(self, ctx: Context, what: Restoration) -> None:
        self.told.append(what)
        self.restorations += 1
        ctx.emit("bank", {"to": str(self.id), "again": what.session})

    @handler
    def on_pay(self, ctx: Context, pay: Pay) -> None:
        self.seen.setdefault(ctx.source, []).append(pay.number)
        self.cents += pay.cents
        ctx.emit("bank", {"to": str(self.id), "number": pay.number, "from": ctx.source})
        if pay.number % 7 == 0:
            ctx.after(0.01, Tick(pay.number))
        if pay.hops:
            self.sent += 1
            self.cents -= pay.cents
            target = self.others[(pay.number + self.sent) % len(self.others)]
            ctx.send(f"purse/{target}", Pay(pay.cents, pay.hops - 1, self.sent))

    @handler
    def on_tick(self, ctx: Context, tick: Tick) -> None:
        self.ticks = [*self.ticks, tick.number]


class Turned:
    """Participants with a log each, a conductor, and crashes that leave what a crash leaves."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.folder = folder
        self.names = names
        self.hub = MemoryHub()
        self.store = MemoryStore(CLUSTER)
        self.conductor = Conductor(cluster=CLUSTER, store=self.store, keys=KEYS)
        self.sink = MemorySink("bank")
        self.participants: dict[str, Participant] = {}
        self.events: dict[str, list] = {name: [] for name in names}
        self.lives = dict.fromkeys(names, 0)
        self._listening: list[asyncio.Task] = []

    async def __aenter__(self) -> Self:
        for name in self.names:
            await self.start(name)
        await self.conductor.wait_members(*self.names)
        return self

    async def __aexit__(self, *_: object) -> None:
        for participant in self.participants.values():
            await participant.__aexit__(None, None, None)
        for task in self._listening:
            await task

    def local(self, name: str) -> Path:
        return self.folder / f"{name}-{self.lives[name]}"

    async def start(self, name: str, **options) -> Participant:
        others = tuple(other for other in self.names if other != name)
        participant = Participant(
            Purse(name, others),
            id=name,
            cluster=CLUSTER,
            transport="memory",
            store=self.store,
            secret=SECRET,
            durability="turn",
            local=str(self.local(name)),
            sinks=[self.sink],
            control=LocalControl(self.conductor),
            wire=MemoryTransport(name, self.hub),
            **options,
        )
        await participant.__aenter__()
        self.participants[name] = participant
        self._listening.append(asyncio.create_task(self._listen(name, participant)))
        return participant

    async def _listen(self, name: str, participant: Participant) -> None:
        with suppress(FencedError):
            async for event in participant.events():
                self.events[name].append(event)

    async def crash(self, name: str) -> None:
        """What is on the disk in this moment is all that is left."""
        before = self.local(name)
        self.lives[name] += 1
        shutil.copytree(before, self.local(name))
        participant = self.participants.pop(name)
        participant._end(FencedError("killed"))
        with pytest.raises(FencedError):
            await participant.__aexit__(None, None, None)
        self.conductor.lose(name)

    async def back(self, *names: str) -> None:
        for name in names:
            await self.start(name)
        for name in names:
            async with asyncio.timeout(20):
                await self.participants[name].wait_member()
        await self.conductor.wait_members(*self.names)

    def purse(self, name: str) -> Purse:
        (agent,) = self.participants[name].agents
        assert isinstance(agent, Purse)
        return agent

    async def quiet(self) -> None:
        """Nothing moves any more, and all that was emitted is at the sink."""

        def still() -> bool:
            return not any(
                each.busy or each.outgoing_bytes or each._outlet.waiting or each._pump.timers_noted
                for each in self.participants.values()
            )

        async with asyncio.timeout(30):
            count = 0
            while count < 5:
                count = count + 1 if still() else 0
                await asyncio.sleep(0.01)

    def judge(self, *, total: int) -> None:
        purses = [self.purse(name) for name in self.names]
        assert sum(purse.cents for purse in purses) == total
        for purse in purses:
            for source, numbers in purse.seen.items():
                if source.startswith("purse/"):
                    assert len(set(numbers)) == len(numbers), f"{source} to {purse.id}: twice"
        handled = sum(len(numbers) for purse in purses for numbers in purse.seen.values())
        passed_on = sum(purse.sent for purse in purses)
        outside = sum(
            len(numbers) for purse in purses for source, numbers in purse.seen.items() if source[:6] != "purse/"
        )
        assert handled == passed_on + outside
        # One for each message that was handled, and for each time that an agent was told that it came back.
        assert len(self.sink.outputs) == handled + sum(purse.restorations for purse in purses)
        assert [purse.restorations for purse in purses] == [self.lives[name] for name in self.names]
        for purse in purses:
            due = sorted(n for numbers in purse.seen.values() for n in numbers if n % 7 == 0)
            assert sorted(purse.ticks) == due


@pytest.fixture
def turned(tmp_path: Path):
    return lambda *names: Turned(tmp_path, names)


async def pay(world: Turned, name: str, count: int, *, hops: int, first: int = 1) -> None:
    for number in range(first, first + count):
        await world.participants[name].ingest(f"purse/{name}", Pay(1, hops, number), token=f"{name}-{number}")


async def test_participant_that_crashed_goes_on_and_the_others_keep_session_and_incarnation(turned) -> None:
    async with turned("a", "b") as world:
        await pay(world, "a", 20, hops=6)
        await world.quiet()
        sessions = {name: each.session for name, each in world.participants.items()}
        before = {name: (world.purse(name).cents, dict(world.purse(name).seen)) for name in world.names}
        await world.crash("a")
        await world.back("a")
        assert world.participants["b"].session == sessions["b"]
        assert world.participants["a"].session > sessions["a"]
        assert {each.incarnation for each in world.participants.values()} == {1}
        assert {name: (world.purse(name).cents, dict(world.purse(name).seen)) for name in world.names} == before
        await pay(world, "a", 20, hops=6, first=21)
        await pay(world, "b", 20, hops=6)
        await world.quiet()
        world.judge(total=2000 + 60)
        assert [type(event) for event in world.events["a"]].count(Resumed) == 1
        (told,) = world.purse("a").told
        assert (told.session, told.epoch, told.incarnation) == (world.participants["a"].session, 0, 1)


async def test_epochs_go_on_over_a_crash_and_shorten_the_log(turned) -> None:
    async with turned("a", "b", "c") as world:
        for round_ in range(4):
            await pay(world, "a", 10, hops=9, first=10 * round_ + 1)
            await world.conductor.epoch()
            await world.crash("abc"[round_ % 3])
            await world.back("abc"[round_ % 3])
        await world.conductor.epoch()
        await world.quiet()
        world.judge(total=3000 + 40)


@pytest.mark.parametrize("seed", range(6))
async def test_crash_in_the_middle_of_everything_loses_and_repeats_nothing(turned, seed: int) -> None:
    random = Random(seed)
    async with turned("a", "b", "c") as world:
        paid = 0
        for _ in range(4):
            await pay(world, "a", 15, hops=30, first=paid + 1)
            paid += 15
            for _ in range(random.randrange(40)):
                await asyncio.sleep(0)
            if random.random() < 0.5:
                world.conductor.start_epoch()
            for _ in range(random.randrange(40)):
                await asyncio.sleep(0)
            victims = random.sample(world.names, random.choice((1, 1, 2)))
            for name in victims:
                await world.crash(name)
            await world.back(*victims)
        await world.conductor.epoch()
        await world.quiet()
        world.judge(total=3000 + paid)
        assert {each.incarnation for each in world.participants.values()} == {1}
        resumed = [event for events in world.events.values() for event in events if isinstance(event, Resumed)]
        assert len(resumed) == sum(world.lives.values())


async def test_log_that_grows_asks_for_an_epoch_once_until_one_commits(turned) -> None:
    async with turned("a", "b") as world:
        keeper = world.participants["a"]._turns
        keeper._wants_epoch_bytes = 4_000
        await pay(world, "a", 40, hops=6)
        await world.quiet()
        assert [
            reason for reason in world.conductor.requested if "log of turns" in reason
        ] == world.conductor.requested[:1]
        assert len(world.conductor.requested) == 1
        await world.conductor.epoch()
        await until(lambda: keeper._base.snapshot)
        await pay(world, "a", 1, hops=6, first=41)
        await world.quiet()
        assert len(world.conductor.requested) in (1, 2)


async def test_life_that_died_before_it_wrote_anything_is_in_nobodys_way(turned) -> None:
    async with turned("a", "b") as world:
        await pay(world, "a", 10, hops=3)
        await world.quiet()
        session = world.participants["a"].session
        await world.crash("a")
        # It had a session and the folder, and not a word in the log.
        LocalFolder(world.local("a"), "a").take_over(Life(1, session + 5))
        world.conductor._sessions += 5
        await world.back("a")
        await pay(world, "b", 10, hops=3)
        await world.quiet()
        world.judge(total=2000 + 20)
        assert world.participants["a"].incarnation == 1


async def test_everybody_crashes_and_goes_on_from_where_all_were(turned) -> None:
    async with turned("a", "b", "c") as world:
        await pay(world, "a", 30, hops=20)
        await world.conductor.epoch()
        await pay(world, "b", 30, hops=20)
        for name in world.names:
            await world.crash(name)
        await world.back(*world.names)
        await world.conductor.epoch()
        await world.quiet()
        world.judge(total=3000 + 60)
        assert {each.incarnation for each in world.participants.values()} == {1}


def test_turns_need_a_place_for_their_log() -> None:
    with pytest.raises(ConfigError) as caught:
        Participant(id="a", cluster=CLUSTER, store=MemoryStore(CLUSTER), secret=SECRET, durability="turn")
    assert caught.value.setting == "local"


@pytest.mark.parametrize("epoch", [False, True])
async def test_log_that_is_gone_is_no_log_that_is_empty(turned, epoch: bool) -> None:
    """What it builds on is still there: fresh agents, or an epoch. Others have seen what came after."""
    async with turned("a", "b") as world:
        if epoch:
            await world.conductor.epoch()
            await until(lambda: world.participants["a"]._turns._base.snapshot)
        await pay(world, "a", 10, hops=3)
        await world.quiet()
        await world.crash("a")
        shutil.rmtree(world.local("a") / "a" / "turns")
        await world.start("a")
        await until(lambda: "a" in world.conductor._seats)
        assert world.conductor._lost
        await world.conductor.begin_rollback(1 if epoch else 0)
        await world.quiet()
        assert {each.incarnation for each in world.participants.values()} == {2}
        assert sum(world.purse(name).cents for name in world.names) == 2000 + 10


async def test_base_says_from_where_in_the_input_its_agents_began_and_names_only_what_is_on_the_disk(
    turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, early = TurnKeeper._write_base, []

    async def watched(keeper: TurnKeeper) -> None:
        if keeper._base.position > keeper._logger.log.durable:
            early.append(keeper._base)
        await write(keeper)

    monkeypatch.setattr(TurnKeeper, "_write_base", watched)
    async with turned("a", "b") as world:
        keeper = world.participants["a"]._turns
        assert keeper._base.input_from == 0
        await pay(world, "a", 10, hops=1)
        await world.quiet()
        await world.conductor.epoch()
        await until(lambda: keeper._base.snapshot)
        assert keeper._base.input_from == 0
        held = world.participants["a"]._intake.position
        await pay(world, "a", 5, hops=1, first=11)
        await world.quiet()
        await world.conductor.begin_rollback(1)
        await until(lambda: world.participants["a"].incarnation == 2)
        await world.quiet()
        assert keeper._base.input_from == held > 0
        await world.conductor.epoch()
        await until(lambda: keeper._base.snapshot)
        assert keeper._base.input_from == held
        assert early == []


async def test_damaged_log_falls_back_to_a_rollback(turned) -> None:
    async with turned("a", "b") as world:
        await pay(world, "a", 10, hops=3)
        await world.quiet()
        await world.conductor.epoch()
        await pay(world, "a", 10, hops=3, first=11)
        await world.quiet()
        await world.crash("a")
        for segment in (world.local("a") / "a" / "turns").iterdir():
            data = bytearray(segment.read_bytes())
            data[len(data) // 3] ^= 1
            segment.write_bytes(bytes(data))
        await world.start("a")
        await until(lambda: "a" in world.conductor._seats)
        assert world.conductor._lost
        await world.conductor.begin_rollback(1)
        await world.quiet()
        # What the sink has of the work that was undone is told; the input log has it done again.
        assert sum(world.purse(name).cents for name in world.names) == 2000 + 20
        await until(lambda: any(isinstance(event, ReleasedBeyond) for event in world.events["a"]))
        (told,) = (event for event in world.events["a"] if isinstance(event, ReleasedBeyond))
        assert told.epoch == 1
        assert len({each.token for each in told.outputs}) == 40
        # From here on the log is good again.
        await pay(world, "b", 5, hops=3)
        await world.crash("b")
        await world.back("b")
        await world.quiet()
        assert sum(world.purse(name).cents for name in world.names) == 2000 + 25
        assert {each.incarnation for each in world.participants.values()} == {2}
