"""D10: code that has changed between the epoch and the restore: one answer, whoever is asked and however."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from participant import Agent, Context, handler, keyed, migration, value
from participant.sinks import MemorySink
from tests.cli_cluster import ENVIRONMENT, ROOT
from tests.integration.coordinators import cluster, until
from tests.integration.test_deploy import connected, running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


class Sale(msgspec.Struct, frozen=True):
    item: str
    cents: int


class Shop(Agent, kind="shop"):
    """Version 1."""

    cents = value(int, default=0)

    @handler
    async def on_sale(self, ctx: Context, sale: Sale) -> None:
        self.cents += sale.cents
        ctx.emit("receipts", sale.item)


class Depot(Agent, kind="depot"):
    """Is called otherwise later."""

    cents = value(int, default=0)

    @handler
    async def on_sale(self, ctx: Context, sale: Sale) -> None:
        self.cents += sale.cents


class Clerk(Agent, kind="clerk"):
    """Is gone later."""

    cents = value(int, default=0)

    @handler
    async def on_sale(self, ctx: Context, sale: Sale) -> None:
        self.cents += sale.cents


class ShopLater(Agent, kind="shop", state_version=2):
    """With a field more."""

    cents = value(int, default=0)
    sales = keyed(str, int)

    @staticmethod
    @migration(1)
    def _sales(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "sales": {"before": state["cents"]}}

    @handler
    async def on_sale(self, ctx: Context, sale: Sale) -> None:
        self.cents += sale.cents


class Warehouse(Depot, kind="warehouse", renamed_from=("depot",)):
    """Another name of class and kind."""


class Till(Agent, kind="till"):
    """Is new."""

    opened = value(int, default=0)

    async def on_start(self, ctx: Context) -> None:
        self.opened += 1


before = [Shop("a"), Depot("d"), Clerk("c")]


def after() -> list[Agent]:
    return [ShopLater("a"), Warehouse("depot/d"), Till("t")]


FATES = {"shop/a": "migrated", "depot/d": "matched", "clerk/c": "unclaimed", "till/t": "missing"}


async def cleancut(made: Any, *arguments: str) -> tuple[int, Any, str]:
    """The command's exit code, its document, its errors."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "coordinator.cli", *arguments, "--json"),
        *("--coordinators", ",".join(each.http for each in made.coordinators)),
        *("--secret-file", str(made.secret_file)),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(child.communicate(), 50)
    assert child.returncode is not None
    return child.returncode, json.loads(out) if out else None, err.decode()


def lines(document: Any) -> dict[str, tuple[Any, ...]]:
    return {line["agent"]: (line["fate"], line["saved_version"], line["steps"]) for line in document["agents"]}


async def test_the_plan_is_the_same_by_api_and_command_for_latest_and_by_number_and_touches_nothing(
    tmp_path: Path,
) -> None:
    sink = MemorySink("receipts")
    local = tmp_path / "local"
    async with cluster(tmp_path, recovery="manual") as made:
        async with running(made, sink, local, *before) as participants:
            for participant in participants:
                await participant.wait_member()
            for agent in ("shop/a", "depot/d", "clerk/c"):
                await participants[0].ingest(agent, Sale("tea", 250))
            for participant in participants:
                await participant.wait_idle()
            status, epoch, _ = await made.call("POST", "/v1/epochs", {"reason": "deploy", "wait": True})
            assert (status, epoch["state"]) == (201, "committed")
            number = str(epoch["epoch"])
            await until(lambda: sink.values == ["tea"], "the receipt is out")
        async with running(made, sink, local, *after()) as participants:
            await connected(made, participants)
            agents = [participant.agents[0] for participant in participants]
            files = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
            assert files
            counts = [participant.statistics()["turns"] for participant in participants]
            before_it = await made.get("/v1/status")

            asked = []
            for which in (number, "latest"):
                status, document, _ = await made.call("POST", f"/v1/epochs/{which}/check", {})
                assert status == 200
                asked.append(document)
                code, document, err = await cleancut(made, "epoch", "restore", which, "--check")
                assert code == 6, err
                asked.append(document)
            assert asked[0] == asked[1] == asked[2] == asked[3]
            plan = asked[0]
            assert {line["agent"]: line["fate"] for line in plan["agents"]} == FATES
            assert (plan["ok"], plan["problems"]) == (
                False,
                ["clerk/c: nobody here declares it or takes agents of kind clerk (it was on p3)"],
            )
            # From the store alone, with this module's code.
            code, document, _ = await cleancut(
                made,
                *("epoch", "restore", number, "--check", "--store", str(tmp_path / "store"), "--cluster", "shop"),
                *("--app", f"{__name__}:after"),
            )
            assert (code, lines(document), document["problems"]) == (6, lines(plan), plan["problems"])
            code, document, _ = await cleancut(made, "epoch", "restore", number, "--check", "--allow-unclaimed")
            assert (code, document["ok"], lines(document)) == (0, True, lines(plan))

            # Refused by default, in word and deed, and nothing was touched by any of it.
            code, _, err = await cleancut(made, "epoch", "restore", number, "--yes")
            assert (code, "clerk/c" in err) == (6, True), err
            status, document, _ = await made.call("POST", f"/v1/epochs/{number}/restore", {"reason": "x", "wait": True})
            assert status == 409, document
            assert "clerk" in document["error"]["message"]
            assert {path: path.read_bytes() for path in files} == files
            assert [participant.statistics()["turns"] for participant in participants] == counts
            assert [agent.cents for agent in agents[:2]] == [0, 0]  # type: ignore[attr-defined]
            now = await made.get("/v1/status")
            assert (now["incarnation"], now["recovery"]["rollbacks"]) == (
                before_it["incarnation"],
                before_it["recovery"]["rollbacks"],
            )

            body = {"reason": "deploy", "wait": True, "allow_unclaimed": True}
            status, rollback, _ = await made.call("POST", f"/v1/epochs/{number}/restore", body)
            assert (status, rollback["state"], rollback["dropped"]) == (201, "done", ["clerk/c"])
            shop, depot, till = agents
            await until(lambda: shop.cents == 250, "the shop has its state")  # type: ignore[attr-defined]
            assert dict(shop.sales) == {"before": 250}  # type: ignore[attr-defined]
            await until(lambda: (depot.cents, till.opened) == (250, 1), "the others too")  # type: ignore[attr-defined]
            assert sink.values == ["tea"]
