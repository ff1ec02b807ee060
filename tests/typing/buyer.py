"""What a user writes must type-check, and what is wrong must not.

Each ``type: ignore`` below is an assertion: mypy reports one that is not needed.
"""

from __future__ import annotations

import dataclasses
from typing import assert_type

import msgspec

from participant import Agent, Backoff, Context, DeadLetter, Retry, Stop, handler, keyed, message, value
from participant.state import KeyedState


@message("order", version=2)
class Order(msgspec.Struct, frozen=True):
    """A message and a state value."""

    id: str
    cents: int


@dataclasses.dataclass
class Paid:
    """A dataclass is fine, too."""

    order: str


class Buyer(Agent, kind="buyer", state_version=2):
    """The example of the documentation."""

    orders = keyed(str, Order)
    tags = keyed(int, list[str])
    spent = value(int, default=0)
    names = value(list[str], default=[])
    last = value(Order)
    note = value(str | None, default=None)
    failure = Retry(attempts=5, backoff=Backoff(first=0.5), then=Stop())

    async def on_start(self, ctx: Context) -> None:
        """Hooks are turns."""
        ctx.after(1.5, Paid("first"))

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        """State reads and writes have the declared types."""
        self.orders[order.id] = order
        self.spent += order.cents
        self.names.append(order.id)
        self.last = order
        assert_type(self.spent, int)
        assert_type(self.names, list[str])
        assert_type(self.last, Order)
        assert_type(self.orders, KeyedState[str, Order])
        assert_type(self.orders.get("x"), Order | None)
        assert_type(ctx.message_id, bytes)
        ctx.send("ledger/main", Paid(order.id))
        ctx.request_epoch("a large order")

    @handler
    def on_paid(self, ctx: Context, paid: Paid) -> None:
        """A plain function."""
        for key, order in self.orders.items():
            assert_type(key, str)
            assert_type(order, Order)
        del self.orders[paid.order]


class Strict(Buyer, kind="strict"):
    """Another kind with the same handlers."""


class Careful(Agent):
    """Any policy, without an annotation."""

    failure = DeadLetter()


def wrong(buyer: Buyer, ctx: Context) -> None:
    """Each line is an error."""
    buyer.spent = "7"  # type: ignore[assignment]
    buyer.orders["x"] = Paid("x")  # type: ignore[assignment]
    buyer.orders[7] = Order("x", 1)  # type: ignore[index]
    buyer.names.append(7)  # type: ignore[arg-type]
    ctx.send(7, Paid("x"))  # type: ignore[arg-type]
    ctx.after("1", Paid("x"))  # type: ignore[arg-type]
    Retry(attempts="3")  # type: ignore[arg-type]
    Buyer()  # type: ignore[call-arg]


assert_type(Buyer("main").id.upper(), str)
