"""What a participant tells of itself before a restore: its code, and what reached the world after an epoch."""

from __future__ import annotations

from typing import Any

import msgspec

from participant import Agent, Context, handler, value
from participant.runtime.inspection import inspect
from participant.sinks import MemorySink
from participant.testing import Cluster
from protocol.messages import Inspect, Inspected


class Buy(msgspec.Struct, frozen=True):
    cents: int


async def charge(cents: int) -> str:
    return f"receipt {cents}"


class Buyer(Agent, kind="buyer", state_version=2, renamed_from=("shopper",)):
    spent = value(int, default=0)

    @handler
    async def on_buy(self, ctx: Context, buy: Buy) -> None:
        receipt = await ctx.step(charge, buy.cents)
        self.spent += buy.cents
        ctx.emit("receipts", receipt)


class Other(Agent, kind="other"):
    pass


async def asked(cluster: Cluster, epoch: int, **changes: Any) -> Inspected:
    participant = cluster.participant_of("buyer/main")
    given = {
        "agents": participant.agents,
        "factories": participant._factories,
        "sinks": participant._sinks,
        "steps": participant._steps,
        **changes,
    }
    return await inspect(Inspect(session=1, request=7, epoch=epoch), **given)


async def test_outputs_and_effects_of_turns_that_an_epoch_does_not_hold_are_listed_and_others_are_not() -> None:
    async with Cluster(Buyer("main"), sinks=[MemorySink("receipts")]) as cluster:
        await cluster.send("buyer/main", Buy(1))
        await cluster.idle()
        first = await cluster.epoch()
        await cluster.idle()
        await cluster.send("buyer/main", Buy(2))
        await cluster.idle()
        second = await cluster.epoch()
        await cluster.idle()
        answer = await asked(cluster, first.number)
        assert (answer.session, answer.request) == (1, 7)
        assert (answer.outputs_count, answer.effects_count) == (1, 1)
        assert [(each.place, each.agent) for each in answer.outputs] == [("receipts", "buyer/main")]
        assert "done" in answer.effects[0].detail
        assert "charge" in answer.effects[0].place
        answer = await asked(cluster, second.number)
        assert (answer.outputs_count, answer.effects_count) == (0, 0)
        answer = await asked(cluster, 0)
        assert (answer.outputs_count, answer.effects_count) == (2, 2)


def made(name: str) -> Agent:
    return Other(name)


async def test_code_is_told_once_per_class_also_of_kinds_that_can_be_taken_from_others() -> None:
    async with Cluster(Buyer("main"), sinks=[MemorySink("receipts")]) as cluster:
        answer = await asked(cluster, 0, factories={"buyer": Buyer, "other": Other, "made": made})
        assert [code.kind for code in answer.codes] == ["buyer", "other"]
        buyer = answer.codes[0]
        assert (buyer.state_version, buyer.renamed_from, buyer.fields) == (
            2,
            ("shopper",),
            (("spent", "value", "msgpack"),),
        )
        assert answer.notes == ("agents of kind made are made by a function; their class is not known before",)


class Mute(MemorySink):
    outputs_after = None  # type: ignore[assignment]


class Broken(MemorySink):
    async def outputs_after(self, epoch: int) -> list[tuple[str, str, int]]:
        raise OSError("the disk is gone")


async def test_a_sink_that_cannot_tell_is_noted_and_holds_up_nothing() -> None:
    async with Cluster(Buyer("main"), sinks=[MemorySink("receipts")]) as cluster:
        answer = await asked(cluster, 0, sinks=[Mute("mute"), Broken("broken")], steps=None)
        assert (answer.outputs_count, answer.effects_count) == (None, None)
        assert answer.notes == (
            "sink mute cannot tell what it took after an epoch",
            "sink broken does not tell what it took: the disk is gone",
        )
