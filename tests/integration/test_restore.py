"""A cluster goes back to an epoch: state, mailboxes, running turns, timers, what was in flight; also on other hosts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from participant import Agent, Context, Restoration, handler, keyed, value
from participant.testing import Cluster
from protocol.errors import Refused


@dataclass
class Pay:
    to: str
    amount: int


@dataclass
class Got:
    amount: int
    number: int = 0


@dataclass
class Later:
    seconds: float


@dataclass
class Rang:
    pass


@dataclass
class Hold:
    pass


class Account(Agent, kind="account"):
    balance = value(int, default=100)
    seen = value(list[int], default=[])
    notes = keyed(str, list[int])
    rung = value(int, default=0)
    started = value(int, default=0)
    held = value(int, default=0)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told: list[Restoration] = []
        self.release = asyncio.Event()
        self.holding = asyncio.Event()
        self.wrote_late: list[str] = []

    async def on_start(self, ctx: Context) -> None:
        self.started += 1

    async def on_restored(self, ctx: Context, what: Restoration) -> None:
        self.told.append(what)

    @handler
    async def on_pay(self, ctx: Context, pay: Pay) -> None:
        self.balance -= pay.amount
        ctx.send(pay.to, Got(pay.amount, len(self.notes) + 1))
        self.notes[f"n{len(self.notes)}"] = [pay.amount]

    @handler
    async def on_got(self, ctx: Context, got: Got) -> None:
        self.balance += got.amount
        self.seen = [*self.seen, got.number]

    @handler
    async def on_later(self, ctx: Context, later: Later) -> None:
        ctx.after(later.seconds, Rang())

    @handler
    async def on_rang(self, ctx: Context, rang: Rang) -> None:
        self.rung += 1

    @handler
    async def on_hold(self, ctx: Context, hold: Hold) -> None:
        self.held += 1
        self.holding.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            # Goes on although it was cancelled: nothing of this may count.
            try:
                self.balance = -1
            except Exception as error:  # noqa: BLE001 - whatever refuses it
                self.wrote_late.append(type(error).__name__)
            try:
                ctx.send("account/b", Got(1_000))
            except Exception as error:  # noqa: BLE001 - whatever refuses it
                self.wrote_late.append(type(error).__name__)


def total(cluster: Cluster, *names: str) -> int:
    return sum(cluster[f"account/{name}"].balance for name in names)


async def test_everybody_goes_back_and_goes_on() -> None:
    async with Cluster(Account("a"), Account("b"), messages=[Got]) as cluster:
        await cluster.send("account/a", Pay("account/b", 30))
        await cluster.idle()
        epoch = await cluster.epoch()
        await cluster.send("account/a", Pay("account/b", 50))
        await cluster.idle()
        assert cluster["account/b"].balance == 180
        await cluster.restore(epoch)
        await cluster.idle()
        assert (cluster["account/a"].balance, cluster["account/b"].balance) == (70, 130)
        assert dict(cluster["account/a"].notes) == {"n0": [30]}
        await cluster.send("account/b", Pay("account/a", 1))
        await cluster.idle()
        assert (cluster["account/a"].balance, cluster["account/b"].balance) == (71, 129)
        assert cluster["account/a"].started == 1
        again = await cluster.epoch()
        assert again.state("account/a")["balance"] == 71
        assert again.manifest.incarnation == 2


async def test_participant_that_crashed_comes_back_with_the_others() -> None:
    async with Cluster(Account("a"), Account("b"), Account("c"), messages=[Got]) as cluster:
        await cluster.send("account/a", Pay("account/b", 30))
        await cluster.idle()
        epoch = await cluster.epoch()
        await cluster.send("account/a", Pay("account/c", 20))
        await cluster.idle()
        await cluster.crash("p2")
        await cluster.restore(epoch)
        await cluster.idle()
        assert total(cluster, "a", "b", "c") == 300
        assert cluster["account/b"].balance == 130
        await cluster.send("account/b", Pay("account/a", 130))
        await cluster.idle()
        assert cluster["account/a"].balance == 200


async def test_messages_in_flight_are_delivered_once_in_order_and_before_newer_ones() -> None:
    async with Cluster(Account("a"), Account("b"), messages=[Got]) as cluster:
        # A cut at b before what a sent has arrived.
        for amount in (1, 2, 3):
            await cluster.send("account/a", Pay("account/b", amount))
        number = cluster.conductor.start_epoch("test")
        epoch = await cluster.committed(number)
        await cluster.idle()
        before = cluster["account/b"].seen
        flying = len(epoch.in_flight()) + len(epoch.mailbox("account/a")) + len(epoch.mailbox("account/b"))
        assert flying > 0
        await cluster.restore(epoch)
        await cluster.send("account/a", Pay("account/b", 4))
        await cluster.idle()
        assert before == [1, 2, 3]
        assert cluster["account/b"].seen == [1, 2, 3, 4]
        assert total(cluster, "a", "b") == 200


@pytest.mark.parametrize(
    "placement",
    [
        {"p1": ["account/a", "account/b", "account/c", "account/d"], "p2": [], "p3": [], "p4": []},
        {"p1": ["account/d"], "p2": ["account/c"], "p3": ["account/b"], "p4": ["account/a"]},
        {"p1": ["account/b", "account/a"], "p2": ["account/d"], "p3": [], "p4": ["account/c"]},
    ],
)
async def test_other_placement_loses_and_repeats_nothing(placement) -> None:
    names = "abcd"
    async with Cluster(*(Account(name) for name in names), messages=[Got]) as cluster:
        for round_ in range(5):
            for index, name in enumerate(names):
                await cluster.send(f"account/{name}", Pay(f"account/{names[(index + 1 + round_ % 3) % 4]}", 1 + round_))
            if round_ == 2:
                number = cluster.conductor.start_epoch("test")
        epoch = await cluster.committed(number)
        await cluster.idle()
        await cluster.restore(epoch, placement=placement)
        await cluster.idle()
        assert total(cluster, *names) == 400
        for name in names:
            agent = cluster[f"account/{name}"]
            host = next(host for host, agents in placement.items() if agent.id in agents)
            assert agent.told[-1].host == f"p{names.index(name) + 1}"
            assert agent in cluster.participants[host].agents
        for name in names:
            await cluster.send(f"account/{name}", Pay("account/a", 10))
        await cluster.idle()
        assert total(cluster, *names) == 400
        again = await cluster.epoch()
        assert again.total(lambda _, fields: fields["balance"], lambda message: getattr(message, "amount", 0)) == 400


async def test_running_turn_begins_again_and_what_it_still_does_has_no_effect() -> None:
    async with Cluster(Account("a"), Account("b"), messages=[Got]) as cluster:
        await cluster.send("account/a", Hold())
        await cluster["account/a"].holding.wait()
        epoch = await cluster.epoch()
        assert len(epoch.mailbox("account/a")) == 1
        agent = cluster["account/a"]
        agent.holding.clear()
        await cluster.restore(epoch)
        await agent.holding.wait()
        assert agent.told[-1].running
        assert len(agent.wrote_late) == 2
        agent.release.set()
        await cluster.idle()
        assert (agent.balance, agent.held) == (100, 1)
        assert cluster["account/b"].balance == 100


async def test_timers_run_on_and_overdue_ones_fire_at_once_and_once() -> None:
    async with Cluster(Account("a"), messages=[Got]) as cluster:
        await cluster.send("account/a", Later(10))
        await cluster.send("account/a", Later(100))
        await cluster.idle()
        epoch = await cluster.epoch()
        await cluster.advance(11)
        assert cluster["account/a"].rung == 1
        await cluster.restore(epoch, elapsed=60)
        await cluster.idle()
        assert cluster["account/a"].rung == 1
        told = cluster["account/a"].told[-1]
        assert (told.timers, told.overdue) == (1, 1)
        await cluster.advance(39)
        assert cluster["account/a"].rung == 1
        await cluster.advance(2)
        assert cluster["account/a"].rung == 2


async def test_without_an_epoch_agents_are_fresh() -> None:
    async with Cluster(Account("a"), Account("b"), messages=[Got]) as cluster:
        await cluster.send("account/a", Pay("account/b", 30))
        await cluster.send("account/a", Later(5))
        await cluster.idle()
        await cluster.restore(None)
        await cluster.idle()
        assert (cluster["account/a"].balance, cluster["account/b"].balance) == (100, 100)
        assert dict(cluster["account/a"].notes) == {}
        assert cluster["account/a"].started == 1
        await cluster.advance(10)
        assert cluster["account/a"].rung == 0
        assert cluster["account/a"].told == []


async def test_restore_of_a_restore_is_the_same() -> None:
    async with Cluster(Account("a"), Account("b"), messages=[Got]) as cluster:
        await cluster.send("account/a", Pay("account/b", 30))
        epoch = await cluster.epoch()
        first = await cluster.conductor.begin_rollback(epoch.number)
        second = await cluster.conductor.begin_rollback(epoch.number)
        assert first == second
        await cluster.conductor.wait_members("p1", "p2")
        await cluster.idle()
        assert total(cluster, "a", "b") == 200


async def test_newer_rollback_takes_the_place_of_one_that_runs() -> None:
    async with Cluster(Account("a"), Account("b"), messages=[Got]) as cluster:
        await cluster.send("account/a", Pay("account/b", 30))
        await cluster.idle()
        epoch = await cluster.epoch()
        cluster.conductor.begin_rollback(epoch.number)
        await asyncio.sleep(0)
        await cluster.conductor.begin_rollback(0)
        await cluster.conductor.wait_members("p1", "p2")
        await cluster.idle()
        assert (cluster["account/a"].balance, cluster["account/b"].balance) == (100, 100)


async def test_object_that_is_corrupt_fails_the_restore_by_name() -> None:
    async with Cluster(Account("a"), Account("b"), messages=[Got]) as cluster:
        epoch = await cluster.epoch()
        for pack in epoch.manifest.packs:
            cluster.store.delete(f"packs/{pack[3:5]}/{pack[3:]}")
        with pytest.raises(Refused) as refused:
            await cluster.restore(epoch)
        assert "packs/" in str(refused.value)
        # Nothing runs; a later restore to what is there goes through.
        await cluster.restore(None)
        await cluster.idle()
        assert cluster["account/a"].balance == 100


@pytest.mark.parametrize("what", ["epochs/", "snapshots/", "packs/"])
@pytest.mark.parametrize("how", ["bit", "cut", "gone"])
async def test_each_kind_of_object_that_rots_fails_the_restore_and_an_older_epoch_is_good(what, how):
    """D4: flip a bit of it, cut it short, lose it. What cannot be read is named, and nothing of it is taken."""
    async with Cluster(Account("a"), Account("b"), messages=[Got]) as cluster:
        good = await cluster.epoch()
        await cluster.send("account/a", Pay("account/b", 30))
        await cluster.idle()
        spoiled = await cluster.epoch()
        (manifest,) = [key for key in cluster.store.list("epochs/") if key.endswith(f"{spoiled.number}.json")]
        old = {*good.manifest.packs, *(member.snapshot for member in good.manifest.members)}
        new = {*spoiled.manifest.packs, *(member.snapshot for member in spoiled.manifest.members)} - old
        keys = [key for key in cluster.store.list(what) if key == manifest or f"b3:{key.rpartition('/')[2]}" in new]
        assert keys
        for key in keys:
            data = cluster.store.get(key, size_max=1 << 20)
            cluster.store.delete(key)
            if how == "bit":
                cluster.store.put(key, data[:9] + bytes([data[9] ^ 4]) + data[10:])
            elif how == "cut":
                cluster.store.put(key, data[: len(data) // 2])
        with pytest.raises(Refused) as refused:
            await cluster.restore(spoiled)
        assert refused.value.code == "restore-corrupt"
        assert any(key in str(refused.value) for key in keys)
        await cluster.restore(good)
        await cluster.idle()
        assert (cluster["account/a"].balance, cluster["account/b"].balance) == (100, 100)


async def test_no_listing_of_the_store_is_ever_asked_for_what_to_restore(monkeypatch):
    """D5: a listing may be old or empty; the committed record says which epoch, and the manifest says which objects."""
    async with Cluster(Account("a"), Account("b"), messages=[Got]) as cluster:
        epoch = await cluster.epoch()
        monkeypatch.setattr(type(cluster.store), "list", lambda *_: pytest.fail("the store is listed"))
        await cluster.restore(epoch)
        await cluster.idle()
        assert total(cluster, "a", "b") == 200


async def test_agent_of_a_kind_that_is_not_known_here_fails_the_restore_by_name() -> None:
    async with Cluster(Account("a"), Account("b"), messages=[Got]) as cluster:
        epoch = await cluster.epoch()
        for participant in cluster.participants.values():
            participant._factories.clear()
        with pytest.raises(Refused, match="account/b is placed on p1"):
            await cluster.restore(epoch, placement={"p1": ["account/a", "account/b"], "p2": []})


class Grown(Agent, kind="grown"):
    """A list of lists that its turns change in place."""

    rows = value(list[list[int]], default=[])
    by_name = keyed(str, list[int])

    @handler
    async def on_got(self, ctx: Context, got: Got) -> None:
        self.rows.append([got.amount])
        self.rows[0].append(got.number)
        self.by_name.setdefault("x", []).append(got.amount)


async def test_changing_what_was_restored_does_not_change_the_epoch_and_it_restores_the_same_again() -> None:
    """A7: the restored object is a copy of its own; the stored epoch stays what it was, and so does the next restore."""
    async with Cluster(Grown("a"), messages=[Got]) as cluster:
        for amount in (1, 2, 3):
            await cluster.send("grown/a", Got(amount, amount))
        await cluster.idle()
        epoch = await cluster.epoch()
        at_the_cut = epoch.state("grown/a")
        assert at_the_cut == {"rows": [[1, 1, 2, 3], [2], [3]], "by_name": {"x": [1, 2, 3]}}
        stored = {key: cluster.store.get(key, size_max=1 << 20) for key in cluster.store.list("")}
        for crash in (False, True, False):
            if crash:
                await cluster.crash("p1")
            await cluster.restore(epoch)
            await cluster.idle()
            agent = cluster["grown/a"]
            assert isinstance(agent, Grown)
            assert {"rows": agent.rows, "by_name": dict(agent.by_name)} == at_the_cut
            for amount in (7, 8):
                await cluster.send("grown/a", Got(amount, amount))
            await cluster.idle()
            assert agent.rows != at_the_cut["rows"]
            assert agent.by_name["x"] != at_the_cut["by_name"]["x"]
            assert epoch.state("grown/a") == at_the_cut
        assert {key: cluster.store.get(key, size_max=1 << 20) for key in stored} == stored


class Older(Agent, kind="other"):
    """Its state in the epoch."""

    count = value(int, default=0)


class Newer(Agent, kind="other", state_version=2):
    """Whoever wrote it forgot the migration."""

    count = value(int, default=0)


async def test_one_that_cannot_take_its_state_fails_the_restore_before_any_message_is_delivered_anywhere() -> None:
    """The others have their part by then, with messages in mailboxes, in flight and overdue timers: nobody begins."""
    async with Cluster(Account("a"), Account("b"), Older("o"), messages=[Got]) as cluster:
        await cluster.send("account/a", Later(5))
        await cluster.idle()
        await cluster.send("account/a", Hold())
        await cluster["account/a"].holding.wait()
        for amount in (1, 2):
            await cluster.send("account/a", Pay("account/b", amount))
        epoch = await cluster.epoch()
        assert len(epoch.mailbox("account/a")) == 3
        await cluster.crash("p1")
        await cluster.crash("p3")
        cluster._crashed["p3"] = (Newer("o"),)
        with pytest.raises(Refused) as refused:
            await cluster.restore(epoch, elapsed=60)
        assert refused.value.code == "restore-unfit"
        assert "other/o" in str(refused.value)
        assert "no migration from 1 to 2" in str(refused.value)
        await cluster.advance(10)
        a, b = cluster["account/a"], cluster["account/b"]
        assert (a.held, a.rung, a.told, a.holding.is_set()) == (0, 0, [], False)
        assert (b.balance, b.seen, b.told) == (100, [], [])
        assert [cluster.participants[name].statistics()["turns"] for name in ("p1", "p3")] == [0, 0]
        # With code that fits all of it goes on from there.
        await cluster.crash("p3")
        cluster._crashed["p3"] = (Older("o"),)
        await cluster.restore(epoch, elapsed=60)
        await cluster["account/a"].holding.wait()
        cluster["account/a"].release.set()
        await cluster.idle()
        assert (cluster["account/a"].rung, cluster["account/b"].balance) == (1, 103)
