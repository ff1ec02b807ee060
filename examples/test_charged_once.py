"""An order is charged at a bank outside, once, whatever crashes in between; large ones are asked about first.

Run it: ``pytest examples/test_charged_once.py``. A test of your own agents looks the same: real participants, in memory, with
time in your hands.
"""

from dataclasses import dataclass

from participant import Agent, Context, DidNotHappen, QuestionExpired, Retry, handler, keyed
from participant.testing import Cluster


@dataclass(frozen=True)
class Order:
    """What a customer wants."""

    id: str
    cents: int


class Bank:
    """Outside of the cluster: it does not roll back, and remembers tokens."""

    def __init__(self) -> None:
        self.charges: dict[str, str] = {}
        self.outage = 0

    async def charge(self, order_id: str, cents: int, *, token: str) -> str:
        """The step. Its token belongs to this place in the program for ever."""
        if self.outage:
            self.outage -= 1
            raise ConnectionError("the bank does not answer")
        self.charges[token] = f"{order_id}: {cents}"
        return f"receipt {len(self.charges)}"

    async def find(self, token: str) -> str | DidNotHappen:
        """Asked when a crash or an error left it open whether a charge was made."""
        return f"receipt {list(self.charges).index(token) + 1}" if token in self.charges else DidNotHappen()


BANK = Bank()


class Buyer(Agent, kind="buyer"):
    """Charges each order, and keeps the receipt."""

    receipts = keyed(str, str)

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        """One message is one turn. If it runs again, what was done and answered is found, not repeated."""
        if order.cents > 100_000:
            try:
                allowed = await ctx.ask({"order": order.id, "cents": order.cents}, answer=bool, timeout=3600)
            except QuestionExpired:
                allowed = False
            if not allowed:
                self.receipts[order.id] = "refused"
                return
        self.receipts[order.id] = await ctx.step(
            BANK.charge, order.id, order.cents, retry=Retry(attempts=5), resolve=BANK.find
        )


class Shop(Agent, kind="shop"):
    """Orders a minute after it has started."""

    async def on_start(self, ctx: Context) -> None:
        """A durable timer: it is part of each epoch, so it comes again after a rollback."""
        ctx.after(60, Order("small", 500))
        ctx.after(90, Order("large", 200_000))

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        """Pass it on."""
        ctx.send("buyer/main", order)


def receipts(cluster: Cluster) -> dict[str, str]:
    """What the buyer has."""
    buyer = cluster["buyer/main"]
    assert isinstance(buyer, Buyer)
    return dict(buyer.receipts)


async def test_each_order_is_charged_once_though_the_cluster_goes_back_to_before_it() -> None:
    """The bank is out of reach twice, then the buyer's process dies after the charge, and all go back to the epoch before."""
    BANK.outage = 2
    async with Cluster(Buyer("main"), Shop("main")) as cluster:
        epoch = await cluster.epoch()
        await cluster.advance(65)
        assert receipts(cluster) == {"small": "receipt 1"}

        await cluster.crash("p1")
        await cluster.restore(epoch)
        assert receipts(cluster) == {}
        await cluster.advance(65)
        assert receipts(cluster) == {"small": "receipt 1"}
        assert list(BANK.charges.values()) == ["small: 500"]

        await cluster.advance(30)
        (question,) = cluster.questions()
        assert question.question == {"order": "large", "cents": 200_000}
        await cluster.answer(question.token, value=True)
        await cluster.idle()
        assert receipts(cluster)["large"] == "receipt 2"
