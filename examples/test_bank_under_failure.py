"""A bank whose money must add up in every cut, whatever fails: a test in a simulated cluster.

Run it::

    pytest examples/test_bank_under_failure.py

Ten worlds are drawn from ten seeds, each with its own latencies, crashes, partitions and broken stores; minutes pass in seconds,
because nothing here waits for a real clock. When a seed fails, the last line of the message runs it again.

Try it: swap the lines marked 1 and 2, and nothing happens: a turn takes effect as a whole. Keep the transfer in a plain attribute
until the next turn instead of sending it, and a seed finds the cut in which that money is nowhere.
"""

import asyncio
from dataclasses import dataclass

from participant import Agent, Backoff, Context, Retry, handler, value
from simulations import Cut, simulate

START = 100


@dataclass(frozen=True)
class Go:
    """The teller's own timer."""


@dataclass(frozen=True)
class Order:
    """Pay somebody."""

    to: str
    amount: int


@dataclass(frozen=True)
class Transfer:
    """Money on its way."""

    amount: int


class Bank(Agent, kind="bank"):
    """One account. The authorisation is slow, and fails now and then."""

    balance = value(int, default=START)
    failure = Retry(attempts=4, backoff=Backoff(first=0.05))

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        if order.amount > self.balance:
            return
        self.balance -= order.amount  # 1
        ctx.send(order.to, Transfer(order.amount))  # 2
        async with asyncio.timeout(0.5):
            await self._authorised(ctx)

    async def _authorised(self, ctx: Context) -> None:
        await asyncio.sleep(0.02)
        if ctx.attempt == 1 and ctx.message_id[0] % 4 == 0:
            # The turn has not happened: the money is back, and the transfer was never sent.
            raise ConnectionError("authorisation failed")

    @handler
    def on_transfer(self, ctx: Context, transfer: Transfer) -> None:
        self.balance += transfer.amount


class Teller(Agent, kind="teller"):
    """Has the banks pay each other."""

    rounds = value(int, default=0)

    @handler
    async def on_go(self, ctx: Context, go: Go) -> None:
        self.rounds += 1
        ctx.send("bank/a", Order("bank/b", self.rounds % 7))
        ctx.send("bank/b", Order("bank/a", self.rounds % 5))
        ctx.after(0.1, Go())


def money(cut: Cut) -> int:
    """All that the banks hold, and all that is on its way between them."""
    total: int = cut.total(
        lambda agent, state: state.get("balance", 0),
        lambda message: message.amount if isinstance(message, Transfer) else 0,
    )
    return total


def test_money_is_conserved() -> None:
    found = simulate(
        lambda: [Bank("a"), Bank("b"), Teller("main")],
        start=[("teller/main", Go())],
        invariant=lambda cut: money(cut) == 2 * START,
        seeds=range(10),
    )
    print(found.statistics())
