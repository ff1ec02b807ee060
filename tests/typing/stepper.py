"""Types that a user's checker must see in steps and questions."""

import functools
from typing import assert_type

import msgspec

from participant import Agent, Context, DidNotHappen, InDoubt, Retry, handler, value


class Order(msgspec.Struct, frozen=True):
    id: str


async def charge(order_id: str, cents: int, *, token: str) -> str:
    return f"{order_id} {cents} {token}"


def count(words: str) -> int:
    return len(words.split())


async def find(token: str) -> str | InDoubt | DidNotHappen:
    return InDoubt(token)


class Stepper(Agent, kind="stepper"):
    receipt = value(str, default="")
    words = value(int, default=0)
    allowed = value(bool, default=False)

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        self.receipt = await ctx.step(charge, order.id, 5, retry=Retry(attempts=5), resolve=find)
        self.words = await ctx.step(count, "one two")
        self.words = await ctx.step(functools.partial(count, "one two"), name="count", idempotent=True, intent=())
        self.allowed = await ctx.ask("ship it?", answer=bool, timeout=60)
        assert_type(await ctx.ask("ship it?", answer=bool), bool)
        assert_type(await ctx.step(charge, order.id, 5), str)
        wrong: int = await ctx.step(charge, order.id, 5)  # type: ignore[arg-type]
        del wrong
