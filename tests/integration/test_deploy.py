"""Another version of the code takes over what an older one left in an epoch: checked first, then done; scenario A12."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest

from participant import Agent, Context, Participant, handler, keyed, migration, value
from participant.sinks import MemorySink
from tests.integration.coordinators import CLUSTER, cluster, until

pytestmark = pytest.mark.slow


class Sale(msgspec.Struct, frozen=True):
    item: str
    euros: float


class ShopV1(Agent, kind="shop", state_version=1):
    total = value(float, default=0.0)
    sales = keyed(str, float)

    @handler
    async def on_sale(self, ctx: Context, sale: Sale) -> None:
        self.total += sale.euros
        self.sales[sale.item] = sale.euros
        ctx.emit("receipts", sale.item)


class ShopV2(Agent, kind="shop", state_version=2):
    cents = value(int, default=0)
    """`total`, in cents."""
    sales = keyed(str, int)
    since = value(str, default="today")

    @staticmethod
    @migration(1)
    def _cents(state: dict[str, Any]) -> dict[str, Any]:
        return {
            "cents": round(100 * state["total"]),
            "sales": {item: round(100 * euros) for item, euros in state["sales"].items()},
        }

    @handler
    async def on_sale(self, ctx: Context, sale: Sale) -> None:
        self.cents += round(100 * sale.euros)
        self.sales[sale.item] = round(100 * sale.euros)
        ctx.emit("receipts", sale.item)


class ShopForgot(Agent, kind="shop", state_version=2):
    """Its author raised the version and wrote no migration."""

    cents = value(int, default=0)
    sales = keyed(str, int)


class Moved(ShopV2, kind="store", state_version=2, renamed_from=("shop",)):
    """Version 2 under another name of class and kind, in another module some day."""


def make(made, name: str, agent: Agent, sink: MemorySink, local) -> Participant:
    return Participant(
        agent,
        id=name,
        cluster=CLUSTER,
        coordinators=[each.http for each in made.coordinators],
        store=made.store_url,
        secret_file=str(made.secret_file),
        local=str(local),
        sinks=[sink],
    )


@asynccontextmanager
async def running(made, sink: MemorySink, local, *agents: Agent):
    async with AsyncExitStack() as stack:
        found = []
        for number, agent in enumerate(agents, 1):
            found.append(await stack.enter_async_context(make(made, f"p{number}", agent, sink, local)))
        yield found


async def connected(made, participants) -> None:
    """Until these processes have sessions of their own: those of their predecessors have ended."""
    sessions = [await until(lambda one=one: one.session, f"{one.id} is registered") for one in participants]

    async def there() -> bool:
        listed = (await made.get("/v1/participants"))["participants"]
        return {each["session"] for each in listed if each["state"] in {"joining", "member"}} == set(sessions)

    await until(there, "only these are here")


async def check(made, epoch: int | str = "latest", **body):
    status, document, _ = await made.call("POST", f"/v1/epochs/{epoch}/check", body, role="viewer")
    assert status == 200, document
    return document


async def restore(made, epoch: int | str = "latest"):
    status, document, _ = await made.call("POST", f"/v1/epochs/{epoch}/restore", {"reason": "deploy", "wait": True})
    return status, document


def fates(plan) -> dict[str, str]:
    return {line["agent"]: line["fate"] for line in plan["agents"]}


async def sold(participants, *sales: Sale) -> None:
    for number, sale in enumerate(sales):
        participant = participants[number % len(participants)]
        await participant.ingest(participant.agents[0].id, sale)
    for participant in participants:
        await participant.wait_idle()


async def test_new_code_is_checked_against_an_epoch_before_anything_is_touched_and_then_takes_it_over(tmp_path) -> None:
    sink = MemorySink("receipts")
    local = tmp_path / "local"
    async with cluster(tmp_path, recovery="manual") as made:
        async with running(made, sink, local, ShopV1("a"), ShopV1("b")) as participants:
            for participant in participants:
                await participant.wait_member()
            await sold(participants, Sale("tea", 2.5), Sale("jam", 3.25))
            status, epoch, _ = await made.call("POST", "/v1/epochs", {"reason": "deploy", "wait": True})
            assert (status, epoch["state"]) == (201, "committed")
            await until(lambda: len(sink.values) == 2, "the receipts are out")
            # After the epoch: one more output that the plan must know.
            await sold(participants[:1], Sale("late", 1.0))
            await made.call("POST", "/v1/epochs", {"reason": "more", "wait": True})
            await until(lambda: len(sink.values) == 3, "the last receipt is out")
            plan = await check(made, epoch["epoch"])
            assert fates(plan) == {"shop/a": "matched", "shop/b": "matched"}
            assert (plan["ok"], plan["outputs_after"], plan["effects_after"]) == (True, 1, 0)
            assert plan["outside"][0]["place"] == "receipts"
            assert plan["outside"][0]["agent"] == "shop/a"

        async with running(made, sink, local, ShopForgot("a"), ShopV2("b")) as participants:
            await connected(made, participants)
            plan = await check(made)
            assert fates(plan) == {"shop/a": "refused", "shop/b": "refused"}, (
                "the weaker of two versions of one kind decides"
            )
            assert "there is no migration from 1 to 2" in plan["problems"][0]
            assert [participant.agents[0].cents for participant in participants] == [0, 0]

        async with running(made, sink, local, ShopForgot("a"), ShopForgot("b")) as participants:
            await connected(made, participants)
            # And if it is tried all the same, it fails before anything is delivered, and says why.
            status, rollback = await restore(made)
            assert (status, rollback["state"]) == (201, "failed")
            assert "no migration from 1 to 2" in rollback["failure"]["cause"]

        async with running(made, sink, local, ShopV2("a"), ShopV2("b")) as participants:
            await connected(made, participants)
            plan = await check(made)
            assert fates(plan) == {"shop/a": "migrated", "shop/b": "migrated"}
            assert plan["agents"][0]["steps"] == ["1 to 2"]
            assert plan["ok"]
            status, rollback = await restore(made)
            assert (status, rollback["state"]) == (201, "done"), rollback
            (a,), (b,) = (participant.agents for participant in participants)
            await until(lambda: a.cents == 350, "p1 has its state")
            assert (a.cents, dict(a.sales), a.since) == (350, {"tea": 250, "late": 100}, "today")
            assert (b.cents, dict(b.sales)) == (325, {"jam": 325})
            await sold(participants, Sale("pie", 4.0))
            status, epoch, _ = await made.call("POST", "/v1/epochs", {"reason": "v2", "wait": True})
            assert (status, epoch["state"]) == (201, "committed")
            agents = (await made.get(f"/v1/epochs/{epoch['epoch']}/agents"))["agents"]
            assert {each["agent"]: each["state_version"] for each in agents} == {"shop/a": 2, "shop/b": 2}
            await until(lambda: len(sink.values) == 4, "nothing was sold twice")
            assert sorted(sink.values) == ["jam", "late", "pie", "tea"]

        async with running(made, sink, local, ShopV1("a"), ShopV1("b")) as participants:
            await connected(made, participants)
            plan = await check(made)
            assert fates(plan) == {"shop/a": "refused", "shop/b": "refused"}
            assert "code cannot go back" in plan["problems"][0]
            status, rollback = await restore(made)
            assert (status, rollback["state"]) == (201, "failed")
            assert "code cannot go back" in rollback["failure"]["cause"]


async def test_a_rolling_update_has_both_versions_alive_and_renamed_classes_take_their_agents_under_old_ids(
    tmp_path,
) -> None:
    sink = MemorySink("receipts")
    local = tmp_path / "local"
    async with cluster(tmp_path, recovery="manual") as made:
        async with running(made, sink, local, ShopV1("a"), ShopV1("b")) as participants:
            for participant in participants:
                await participant.wait_member()
            await sold(participants, Sale("tea", 2.5), Sale("jam", 3.25))
            await made.call("POST", "/v1/epochs", {"reason": "deploy", "wait": True})
        async with running(made, sink, local, ShopV1("a"), Moved("shop/b")) as participants:
            await connected(made, participants)
            status, rollback = await restore(made)
            assert (status, rollback["state"]) == (201, "done"), rollback
            (a,), (b,) = (participant.agents for participant in participants)
            await until(lambda: b.cents == 325, "p2 has its state")
            assert (a.total, b.id) == (2.5, "shop/b")
            await participants[0].ingest("shop/b", Sale("pie", 1.0))
            await until(lambda: b.cents == 425, "it is reached under its old id")
            status, epoch, _ = await made.call("POST", "/v1/epochs", {"reason": "mixed", "wait": True})
            assert epoch["state"] == "committed"
            agents = (await made.get(f"/v1/epochs/{epoch['epoch']}/agents"))["agents"]
            assert {each["agent"]: each["state_version"] for each in agents} == {"shop/a": 1, "shop/b": 2}


async def test_agents_that_nobody_takes_and_those_that_are_new_are_listed_and_a_silent_participant_is_noted(
    tmp_path,
) -> None:
    sink = MemorySink("receipts")
    local = tmp_path / "local"
    async with cluster(tmp_path, recovery="manual") as made:
        async with running(made, sink, local, ShopV1("a"), ShopV1("b")) as participants:
            for participant in participants:
                await participant.wait_member()
            await made.call("POST", "/v1/epochs", {"reason": "deploy", "wait": True})
        async with running(made, sink, local, ShopV1("a"), ShopV1("c")) as participants:
            await connected(made, participants)
            plan = await check(made)
            assert fates(plan) == {"shop/a": "matched", "shop/b": "unclaimed", "shop/c": "missing"}
            assert not plan["ok"]
            assert (await check(made, allow_unclaimed=True))["ok"]
            for status_of, body in ((404, {}), (400, {"else": 1})):
                status, _, _ = await made.call("POST", f"/v1/epochs/{99 if status_of == 404 else 'latest'}/check", body)
                assert status == status_of
            status, _, _ = await made.call("POST", "/v1/epochs/latest/check", {}, role="participant")
            assert status == 403
