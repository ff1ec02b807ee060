"""`durability="turn"` where a process was not as dead as it seemed, or died while it began: who has the folder, and what counts in it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pytest

from participant import Agent, Context, Participant, handler, value
from participant.runtime.conductor import Conductor, LocalControl
from participant.runtime.intake import Intake
from participant.runtime.log_files import Life, LocalFolder
from participant.runtime.restorer import Restorer
from participant.runtime.transports.memory import MemoryHub, MemoryTransport
from participant.runtime.turn_base import BASE_NAME, TurnBase, read_base
from participant.runtime.turn_keeper import TurnKeeper
from protocol.ancestry import Ancestry, Named
from protocol.errors import FencedError, RecoveryError, SnapshotError
from protocol.storage.memory import MemoryStore
from protocol.topology import Topology
from tests.integration.fleet import CLUSTER, KEYS, SECRET, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


class Add(msgspec.Struct, frozen=True):
    """One number."""

    number: int


class Book(Agent, kind="book"):
    """Writes down what it is given, and how often it has begun."""

    starts = value(int, default=0)
    numbers = value(list[int], default=[])

    async def on_start(self, ctx: Context) -> None:
        self.starts += 1

    @classmethod
    def nowhere(cls, name: str) -> Book:
        raise OSError(f"no book {name}")

    @handler
    def on_add(self, ctx: Context, add: Add) -> None:
        self.numbers = [*self.numbers, add.number]


class Fresh(Conductor):
    """Says what agents that begin anew are named after."""

    fresh = 0
    fresh_of = 0
    """Of each agent by itself; 0: none is another than `fresh`."""

    def _make_topology(self) -> None:
        super()._make_topology()
        members = tuple(
            msgspec.structs.replace(
                member,
                fresh=self.fresh,
                fresh_of=tuple((agent, self.fresh_of) for agent in member.agents if self.fresh_of),
            )
            for member in self.topology.members
        )
        self.topology = Topology(self.topology.version, members)


class Generous(Fresh):
    """Gives agents to who joins."""

    def _make_topology(self) -> None:
        super()._make_topology()
        given = tuple(
            msgspec.structs.replace(member, agents=(*member.agents, f"book/more-{member.id}"))
            for member in self.topology.members
        )
        self.topology = Topology(self.topology.version, given)


class Waiting(LocalControl):
    """Does something before the participant says who it is."""

    def __init__(self, conductor: Conductor, before: Callable[[], Awaitable[None]]) -> None:
        super().__init__(conductor)
        self._before = before

    async def start(self, sink: Any) -> None:
        await self._before()
        await super().start(sink)


class Deaf(LocalControl):
    """Never says who it is."""

    def reconnect(self) -> None:
        pass


class World:
    """Participants with a log each in folders that several processes may have."""

    def __init__(self, folder: Path) -> None:
        self.hub = MemoryHub()
        self.store = MemoryStore(CLUSTER)
        self.conductor = Fresh(cluster=CLUSTER, store=self.store, keys=KEYS)
        self.local = {"a": folder / "a", "b": folder / "b"}
        self.takes: list[Any] | dict[str, Any] = [Book]
        self.here: dict[str, Participant] = {}
        self._open: list[Participant] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for participant in self._open:
            with suppress(SnapshotError):
                await participant.__aexit__(None, None, None)

    def make(self, name: str, control: LocalControl | None = None, *, hub: MemoryHub | None = None) -> Participant:
        participant = Participant(
            Book(name),
            id=name,
            cluster=CLUSTER,
            transport="memory",
            store=self.store,
            secret=SECRET,
            durability="turn",
            takes=self.takes,
            local=str(self.local[name]),
            control=control or LocalControl(self.conductor),
            wire=MemoryTransport(name, hub or self.hub),
        )
        self._open.append(participant)
        return participant

    async def start(self, *names: str) -> None:
        for name in names:
            self.here[name] = await self.make(name).__aenter__()
        for name in names:
            async with asyncio.timeout(20):
                await self.here[name].wait_member()
        await self.conductor.wait_members(*self.here)
        for name in names:
            await until(lambda name=name: self.has_begun(name))

    def has_begun(self, name: str) -> bool:
        """Its life writes the log."""
        here = self.here[name]
        if not (self.local[name] / name / BASE_NAME).exists():
            return False
        base = self.base_on_disk(name)
        return (base.incarnation, base.session) == (here.incarnation, here.session)

    def base_on_disk(self, name: str) -> TurnBase:
        """What its log builds on."""
        base = read_base(LocalFolder(self.local[name], name))
        assert base is not None
        return base

    async def kill(self, name: str) -> None:
        """It ends, and says nothing to anybody."""
        await self.end(self.here.pop(name))
        self.conductor.lose(name)

    async def forsake(self, name: str) -> Participant:
        """It is taken for dead and hears nothing any more, and is not dead."""
        participant = self.here.pop(name)
        await participant._wire.close()
        self.conductor.lose(name)
        return participant

    async def end(self, participant: Participant) -> None:
        self._open.remove(participant)
        participant._end(FencedError("killed"))
        with pytest.raises(FencedError):
            await participant.__aexit__(None, None, None)

    def forget(self, participant: Participant) -> None:
        """It has ended."""
        self._open.remove(participant)

    async def leave(self, name: str) -> None:
        participant = self.here.pop(name)
        self._open.remove(participant)
        await participant.leave()
        await participant.__aexit__(None, None, None)

    def book(self, name: str) -> Book:
        (agent,) = self.here[name].agents
        assert isinstance(agent, Book)
        return agent

    async def add(self, name: str, *numbers: int) -> None:
        for number in numbers:
            await self.here[name].ingest(f"book/{name}", Add(number), token=f"{name}-{number}")

    async def has(self, name: str, *numbers: int) -> None:
        await until(lambda: self.book(name).numbers == [*numbers])


async def test_input_that_a_twin_acknowledged_before_the_folder_was_taken_over_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor had read the log of input by then."""
    async with World(tmp_path) as world:
        await world.start("a", "b")
        await world.add("a", 1, 2)
        twin = await world.forsake("a")
        recover = Restorer.recover

        async def late(self: Restorer) -> Any:
            await twin.ingest("book/a", Add(3), token="a-3")
            return await recover(self)

        monkeypatch.setattr(Restorer, "recover", late)
        await world.start("a")
        await world.has("a", 1, 2, 3)
        await world.add("a", 3, 4)
        await world.has("a", 1, 2, 3, 4)
        # Positions go on behind it: what is in the log comes back once each.
        await world.kill("a")
        monkeypatch.setattr(Restorer, "recover", recover)
        await world.start("a")
        await world.add("a", 5)
        await world.has("a", 1, 2, 3, 4, 5)


async def test_input_that_a_twin_acknowledged_before_a_rollback_took_the_folder_over_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor has no log of turns: it comes in with a rollback."""
    async with World(tmp_path) as world:
        await world.start("a", "b")
        await world.add("a", 1)
        await world.has("a", 1)
        await world.conductor.epoch()
        folder = world.local["a"] / "a"
        # Nobody writes the base from here on: it is renamed below.
        await until(lambda: b'"epoch":1' in (folder / BASE_NAME).read_bytes())
        twin = await world.forsake("a")
        recover = Restorer.recover

        async def late(self: Restorer) -> Any:
            (folder / BASE_NAME).rename(folder / "gone")
            found = await recover(self)
            (folder / "gone").rename(folder / BASE_NAME)
            await twin.ingest("book/a", Add(2), token="a-2")
            (folder / BASE_NAME).unlink()
            return found

        monkeypatch.setattr(Restorer, "recover", late)
        world.here["a"] = await world.make("a").__aenter__()
        await until(lambda: "a" in world.conductor._seats)
        await world.conductor.begin_rollback(1)
        await world.has("a", 1, 2)


async def test_nothing_that_a_twin_writes_behind_what_its_successor_has_read_counts(tmp_path: Path) -> None:
    """The successor tells others where its log ends, and may die before it has written anything itself."""
    async with World(tmp_path) as world:
        await world.start("a", "b")
        await world.add("a", 1, 2)
        await world.has("a", 1, 2)
        await until(lambda: not world.here["a"].busy)
        twin = await world.forsake("a")
        found = []
        for _ in range(3):
            successor = await world.make("a", Deaf(world.conductor)).__aenter__()
            (agent,) = successor.agents
            assert isinstance(agent, Book)
            found.append((agent.numbers, successor._turns_recovered, successor._machine.resumption))
            await world.end(successor)
            if twin._failure is None:
                before = size_of(world.local["a"] / "a" / "turns")
                twin.ingest_nowait("book/a", Add(3))
                await until(lambda: twin._failure is not None)
                assert size_of(world.local["a"] / "a" / "turns") > before, "it has written, and told nobody"
        assert found == [([1, 2], 3, found[0][2])] * 3
        world.here["a"] = await world.make("a").__aenter__()
        await world.here["a"].wait_member()
        await world.add("a", 4)
        await world.has("a", 1, 2, 4)


def size_of(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.iterdir())


async def test_process_that_found_no_log_does_not_register_once_a_twin_has_begun_one(tmp_path: Path) -> None:
    """As a new life it would go back to an epoch, and the log, whose end others have seen, would be taken for nothing."""
    async with World(tmp_path) as world:
        await world.start("b")

        async def meanwhile() -> None:
            await world.start("a")
            await world.add("a", 1, 2)
            await world.has("a", 1, 2)
            await world.end(world.here.pop("a"))
            world.conductor.lose("a")

        late = world.make("a", Waiting(world.conductor, meanwhile), hub=MemoryHub())
        with pytest.raises(RecoveryError, match="another process has begun a log of turns here meanwhile; start again"):
            await late.__aenter__()
        world.forget(late)
        # It is started again, as it says, and goes on from that log.
        await world.start("a")
        await world.has("a", 1, 2)
        assert world.here["a"].incarnation == 1


@pytest.mark.parametrize("epoch", [False, True])
@pytest.mark.parametrize("restored", [False, True])
async def test_agents_that_began_do_not_begin_again_when_their_log_is_replayed(
    tmp_path: Path, restored: bool, epoch: bool
) -> None:
    """Their first messages are named after what the coordinators said: where they joined, and where a rollback had them begin."""
    async with World(tmp_path) as world:
        world.conductor.fresh, world.conductor.fresh_of = 7, 9 * epoch
        await world.start("b")
        if epoch:
            await world.conductor.epoch()
        await world.start("a")
        await world.add("a", 1)
        await world.has("a", 1)
        if restored:
            await world.conductor.begin_rollback(1 if epoch else 0)
            # A death before its life is written down is one without a log: another rollback would follow.
            await until(lambda: world.here["a"].incarnation == 2 and world.has_begun("a"))
        for number in (2, 3):
            await world.add("a", number)
            await world.has("a", *range(1, number + 1))
            assert world.book("a").starts == 1
            await world.kill("a")
            await world.start("a")
        await world.add("a", 4)
        await world.has("a", 1, 2, 3, 4)
        assert world.book("a").starts == 1
        assert {each.incarnation for each in world.here.values()} == {1 + restored}


async def test_who_goes_on_from_its_log_does_so_under_the_first_name_under_which_it_joined(tmp_path: Path) -> None:
    """Its base has neither an epoch nor an order that would tell."""
    async with World(tmp_path) as world:
        world.conductor._ancestries[1] = Ancestry(incarnation=1, named=(Named(1, 0, (("book/old", "book/a"),)),))
        for _ in range(2):
            await world.start("a")
            await world.add("a", 1)
            await world.has("a", 1)
            assert [host.lineage for host in world.here["a"]._hosts] == ["book/old"]
            assert world.book("a").starts == 1
            await world.kill("a")


@pytest.mark.parametrize("epoch", [False, True])
async def test_input_of_a_member_that_died_before_it_had_noted_its_membership_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: bool
) -> None:
    """It goes on from its log of turns; a rollback to before it was a member brings back what it has acknowledged since, and no more."""
    async with World(tmp_path) as world:
        await world.start("a", "b")
        await world.add("a", 1, 2, 3)
        await world.has("a", 1, 2, 3)
        await world.leave("a")
        await until(lambda: len(world.conductor.topology.members) == 1)
        await world.conductor.epoch()
        begin = Intake._begin

        async def never(self: Intake, *_: object) -> None:
            await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(Intake, "_begin", never)
        await world.start("a")
        keeper = world.here["a"]._turns
        assert keeper is not None
        await until(lambda: world.book("a").starts == 1 and keeper._logger.log.durable > keeper._base.position)
        await world.kill("a")
        monkeypatch.setattr(Intake, "_begin", begin)
        await world.start("a")
        await world.add("a", 4, 5)
        await world.has("a", 4, 5)
        if epoch:
            await world.conductor.epoch()
            await until(lambda: world.base_on_disk("a").epoch == 2)
        await world.kill("a")
        await world.start("a")
        await world.has("a", 4, 5)
        assert world.here["a"].incarnation == 1
        await world.conductor.begin_rollback(1)
        await until(lambda: world.here["a"].incarnation == 2)
        await world.has("a", 4, 5)
        await world.add("a", 6)
        await world.has("a", 4, 5, 6)


async def test_rollback_that_comes_while_a_life_begins_to_log_lets_it_put_that_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder goes to the next incarnation of the same process; it is not taken for somebody else's."""
    release, gate = TurnKeeper._release, asyncio.Event()

    async def late(self: TurnKeeper, life: Life) -> None:
        await gate.wait()
        await release(self, life)

    async with World(tmp_path) as world:
        await world.start("b")
        monkeypatch.setattr(TurnKeeper, "_release", late)
        late_one = world.here["a"] = await world.make("a").__aenter__()
        await late_one.wait_member()
        await world.conductor.wait_members("a", "b")
        outcome = world.conductor.begin_rollback(0)
        await until(lambda: late_one._machine.restoring)
        folder = LocalFolder(world.local["a"], "a")
        # Long enough for whoever does not wait.
        for _ in range(100):
            await asyncio.to_thread(folder.highest)
        gate.set()
        async with asyncio.timeout(20):
            await outcome
        await world.add("a", 1)
        await world.has("a", 1)
        assert {name: each.incarnation for name, each in world.here.items()} == {"a": 2, "b": 2}


async def test_who_joins_begins_all_that_it_is_to_have(tmp_path: Path) -> None:
    """Also what its program does not name: else epochs would wait for it for ever."""
    async with World(tmp_path) as world:
        world.conductor = Generous(cluster=CLUSTER, store=world.store, keys=KEYS)
        await world.start("a")
        await world.here["a"].ingest("book/more-a", Add(1), token="a-1")
        await until(lambda: books(world, "a") == {"book/a": [], "book/more-a": [1]})
        await world.conductor.epoch()


async def given(world: World) -> None:
    """Both books are on b, and there is more in them than the epoch has."""
    await world.start("a", "b")
    await world.add("a", 1)
    await world.add("b", 10)
    await world.has("a", 1)
    await world.has("b", 10)
    await world.conductor.epoch()
    await world.conductor.begin_rollback(1, placement={"a": (), "b": ("book/a", "book/b")})
    await until(lambda: all(world.here[name].incarnation == 2 and world.has_begun(name) for name in "ab"))
    await world.here["b"].ingest("book/a", Add(2), token="a-2")
    await world.here["b"].ingest("book/b", Add(11), token="b-11")
    await until(lambda: books(world, "b") == {"book/a": [1, 2], "book/b": [10, 11]})


def books(world: World, name: str) -> dict[str, list[int]]:
    return {str(agent.id): agent.numbers for agent in world.here[name].agents if isinstance(agent, Book)}


@pytest.mark.parametrize("epoch", [False, True])
async def test_who_was_given_agents_goes_on_with_them_from_its_log_and_who_gave_them_without(
    tmp_path: Path, epoch: bool
) -> None:
    """Their programs name the same ones as ever: the log says which they have."""
    async with World(tmp_path) as world:
        await given(world)
        if epoch:
            await world.conductor.epoch()
            await until(lambda: world.base_on_disk("b").epoch == 2)
        for number in (3, 4):
            await world.kill("b")
            await world.kill("a")
            await world.start("a", "b")
            assert books(world, "a") == {}
            await world.here["b"].ingest("book/a", Add(number), token=f"a-{number}")
            numbers = list(range(1, number + 1))
            await until(lambda numbers=numbers: books(world, "b") == {"book/a": numbers, "book/b": [10, 11]})
        assert {each.incarnation for each in world.here.values()} == {2}


async def test_who_may_not_go_on_with_what_it_was_given_is_as_its_program_began(tmp_path: Path) -> None:
    """Until a rollback gives it what it is to have: nothing of its log is left in anybody."""
    async with World(tmp_path) as world:
        await given(world)
        await world.kill("b")
        world.conductor._lost["b"].agents = ("book/b",)
        participant = world.here["b"] = await world.make("b").__aenter__()
        await until(lambda: bool(participant.session) and participant._turns_recovered == 0)
        assert books(world, "b") == {"book/b": []}
        assert {name: host.agent.numbers for name, host in participant._restorer._known.items()} == {
            "book/a": [],
            "book/b": [],
        }
        await world.conductor.begin_rollback(1)
        await until(lambda: books(world, "b") == {"book/b": [10, 11]})


@pytest.mark.parametrize("takes", [[], {"book": lambda name: Book(f"{name}-other")}, {"book": Book.nowhere}])
async def test_who_can_not_make_what_it_was_given_comes_back_as_it_began_and_its_log_is_kept(
    tmp_path: Path, takes: Any
) -> None:
    """All go back to an epoch then."""
    async with World(tmp_path) as world:
        await given(world)
        await world.kill("b")
        world.takes = takes
        participant = await world.make("b").__aenter__()
        assert {str(agent.id) for agent in participant.agents} == {"book/b"}
        assert (participant._turns_recovered, participant._machine.resumption) == (0, None)
        await until(lambda: bool(participant.session))
        assert world.conductor.lost == ("b",)
        assert (world.local["b"] / "b" / "turns.damaged-1").is_dir()
