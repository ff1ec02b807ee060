"""Agents that come back under other names: state, mailbox, what was in flight, and the positions of their work."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from participant import Agent, Context, handler, value
from participant.testing import Cluster
from tests.integration.test_restore import Account, Got, Pay


class Order(msgspec.Struct, frozen=True):
    """An order to charge."""

    cents: int


class Buyer(Agent, kind="buyer"):
    """Charges at a bank that lives outside."""

    charged = value(int, default=0)
    tokens: ClassVar[list[str]] = []

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        self.charged += await ctx.step(self.charge, order.cents)

    async def charge(self, cents: int, *, token: str) -> int:
        self.tokens.append(token)
        return cents


class Customer(Agent, kind="customer"):
    """Orders."""

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        ctx.send("buyer/old", order)


async def test_what_was_in_flight_to_the_old_name_reaches_the_new_one() -> None:
    async with Cluster([Account("a")], [Account("b")], [], messages=[Got]) as cluster:
        for cents in range(1, 9):
            await cluster.send("account/a", Pay("account/b", cents))
        number = cluster.conductor.start_epoch("test")
        epoch = await cluster.committed(number)
        await cluster.idle()
        on_the_way = [one for one in (*epoch.in_flight(), *epoch.mailbox("account/b")) if isinstance(one, Got)]
        assert on_the_way
        first, second, third = sorted(cluster.participants)
        placement = {first: ["account/a"], second: [], third: ["account/z"]}
        await cluster.restore(epoch, placement=placement, renames={"account/b": "account/z"})
        await cluster.idle()
        # What was sent to account/b before the cut has arrived, in order; what account/a sends there after it, goes to nobody.
        state = cluster["account/z"]
        held = epoch.state("account/b")
        assert state.balance == held["balance"] + sum(one.amount for one in on_the_way)
        assert state.seen == sorted(state.seen)
        assert [what.was for what in state.told] == ["account/b"]
        again = await cluster.epoch()
        assert "account/b" not in again.agents()
        assert "account/z" in again.agents()


async def test_work_that_is_done_again_under_the_new_name_repeats_no_effect() -> None:
    Buyer.tokens.clear()
    async with Cluster([Customer("c")], [Buyer("old")]) as cluster:
        for cents in range(1, 6):
            await cluster.send("buyer/old", Order(cents))
        number = cluster.conductor.start_epoch("test")
        epoch = await cluster.committed(number)
        await cluster.idle()
        assert cluster["buyer/old"].charged == 15
        waiting = len(epoch.mailbox("buyer/old"))
        assert waiting > 0
        assert len(Buyer.tokens) == 5
        first, second = sorted(cluster.participants)
        placement = {first: ["customer/c"], second: ["buyer/new"]}
        await cluster.restore(epoch, placement=placement, renames={"buyer/old": "buyer/new"})
        await cluster.idle()
        assert cluster["buyer/new"].charged == 15
        assert len(Buyer.tokens) == 5, "the results that were recorded under the old name count"
        # And from an epoch that has the new name: positions are named as ever.
        await cluster.send("buyer/new", Order(7))
        number = cluster.conductor.start_epoch("test")
        after = await cluster.committed(number)
        await cluster.idle()
        await cluster.restore(after, placement=placement)
        await cluster.idle()
        assert cluster["buyer/new"].charged == 22
        assert len(Buyer.tokens) == 6


async def test_the_old_name_may_be_another_agent_s_that_the_epoch_does_not_hold() -> None:
    """Two have exchanged their names, and all go back to before there was the second one."""
    async with Cluster([Account("a")], messages=[Got]) as cluster:
        await cluster.send("account/a", Pay("account/a", 3))
        await cluster.idle()
        epoch = await cluster.epoch()
        await cluster.restore(epoch, placement={"p1": ["account/a", "account/b"]}, renames={"account/a": "account/b"})
        await cluster.idle()
        assert cluster["account/b"].balance == epoch.state("account/a")["balance"]
        assert [what.was for what in cluster["account/b"].told] == ["account/a"]
        assert cluster["account/a"].balance == Account("a").balance
        assert not cluster["account/a"].told


async def test_back_at_the_start_work_is_told_by_the_first_name() -> None:
    """It does all of its work again, and none of its effects."""
    Buyer.tokens.clear()
    async with Cluster([Customer("c")], [Buyer("old")]) as cluster:
        await cluster.send("customer/c", Order(5))
        await cluster.idle()
        assert len(Buyer.tokens) == 1
        first, second = sorted(cluster.participants)
        placement = {first: ["customer/c"], second: ["buyer/new"]}
        await cluster.restore(None, placement=placement, renames={"buyer/old": "buyer/new"})
        await cluster.idle()
        assert cluster["buyer/new"].charged == 0
        hosts = cluster.participants[second]._hosts
        assert [host.lineage for host in hosts] == ["buyer/old"]


async def test_input_that_comes_again_is_for_whom_it_was_meant_by_a_name_that_others_have_since(tmp_path) -> None:
    """Two exchange their names. What came before that is for the other name now, and what came since is not."""
    Buyer.tokens.clear()
    async with Cluster([Buyer("a"), Buyer("b")], local=str(tmp_path)) as cluster:
        epoch = await cluster.epoch()
        await cluster.send("buyer/a", Order(1), token="one")
        await cluster.idle()
        placement = {"p1": ["buyer/a", "buyer/b"]}
        swap = {"buyer/a": "buyer/b", "buyer/b": "buyer/a"}
        await cluster.restore(epoch, placement=placement, renames=swap)
        await cluster.idle()
        assert (cluster["buyer/a"].charged, cluster["buyer/b"].charged) == (0, 1)
        await cluster.send("buyer/a", Order(2), token="two")
        await cluster.idle()
        # A second rollback that goes on with the names that everybody has.
        await cluster.restore(epoch, placement=placement, renames=swap)
        await cluster.idle()
        assert (cluster["buyer/a"].charged, cluster["buyer/b"].charged) == (2, 1)
        assert len(Buyer.tokens) == 2
        await cluster.restore(None, placement=placement)
        await cluster.idle()
        assert (cluster["buyer/a"].charged, cluster["buyer/b"].charged) == (1, 2)
        assert len(Buyer.tokens) == 2, "the same agents, by their first names"
