"""What the demo's cluster does: accounts that move money in a ring with chords, and a pipeline of orders whose handlers await.

Two sums must hold in every cut, whatever is in flight: money (balances and transfers on their way) and orders (made =
waiting + at a stage + on their way + done). Each order is charged at a bank outside, where one is there: that is a step, so that
it happens once whatever crashes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from participant import Agent, Context, DidNotHappen, Retry, handler, keyed, value

START_CENTS = 1_000_00
"""Every account begins with this much."""
TRANSFERS_PER_TICK = 8
TICK_SECONDS = 0.02
ORDER_SECONDS = 0.05
STAGES = ("kitchen/main", "courier/main")
CASHIER = "cashier/main"
BANK_SECONDS = 10.0
"""For one request to the bank; one that takes longer has failed, and the bank is asked what became of it."""


@dataclass(frozen=True)
class Transfer:
    """Money on its way: it has left the sender's balance and is not in the receiver's yet."""

    cents: int


@dataclass(frozen=True)
class Tick:
    """An account's own timer."""


@dataclass(frozen=True)
class Order:
    """One order on its way through the pipeline."""

    number: int


@dataclass(frozen=True)
class Delivered:
    """The pipeline's answer."""

    number: int


class Account(Agent, kind="account"):
    """Moves small amounts to its peers, several at each tick, and never below zero."""

    balance = value(int, default=START_CENTS)
    moved = value(int, default=0)

    def __init__(self, name: str, *, peers: tuple[str, ...]) -> None:
        super().__init__(name)
        self._peers = peers

    async def on_start(self, ctx: Context) -> None:
        """Begin ticking once this agent is a member."""
        ctx.after(TICK_SECONDS, Tick())

    @handler
    def on_tick(self, ctx: Context, tick: Tick) -> None:
        """Send a few transfers; amounts and peers follow from the message's id, so that a turn done again does the same."""
        draws = ctx.message_id
        for index in range(TRANSFERS_PER_TICK):
            cents = 1 + draws[index]
            if self.balance >= cents and self._peers:
                self.balance -= cents
                ctx.send(self._peers[draws[-1 - index] % len(self._peers)], Transfer(cents))
        ctx.after(TICK_SECONDS, Tick())

    @handler
    def on_transfer(self, ctx: Context, transfer: Transfer) -> None:
        """Take what arrives."""
        self.balance += transfer.cents
        self.moved += 1


class Intake(Agent, kind="intake"):
    """Makes orders and counts what comes back."""

    made = value(int, default=0)
    done = value(int, default=0)

    def __init__(self, name: str, *, first: str = STAGES[0]) -> None:
        super().__init__(name)
        self._first = first

    async def on_start(self, ctx: Context) -> None:
        """The first order."""
        ctx.after(ORDER_SECONDS, Tick())

    @handler
    def on_tick(self, ctx: Context, tick: Tick) -> None:
        """One more order."""
        self.made += 1
        ctx.send(self._first, Order(self.made))
        ctx.after(ORDER_SECONDS, Tick())

    @handler
    def on_delivered(self, ctx: Context, delivered: Delivered) -> None:
        """An order has gone all the way."""
        self.done += 1


class Stage(Agent, kind="kitchen"):
    """One stage: works on an order for a while (it awaits, as a model call would) and passes it on."""

    log = keyed(int, str)

    def __init__(self, name: str, *, then: str) -> None:
        super().__init__(name)
        self._then = then

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        """Work, then pass on. A cut in the middle holds the order as the next message to handle."""
        await asyncio.sleep(0.02 + ctx.message_id[0] / 5000)
        self.log[order.number % 100] = f"order {order.number}"
        ctx.send(self._then, Delivered(order.number) if self._then.startswith("intake/") else Order(order.number))


class Courier(Stage, kind="courier"):
    """The last stage."""


class BankClient:
    """What the cluster knows of the bank outside (`simulations.demo.outside`)."""

    def __init__(self, url: str) -> None:
        """Nothing is connected yet.

        Args:
            url: ``http://host:port``.
        """
        self._url = url

    async def charge(self, order: str, cents: int, *, token: str) -> str:
        """Charge a card. Each call that reaches the bank is one more charge.

        Returns:
            The receipt.
        """
        from aiohttp import ClientSession, ClientTimeout

        async with (
            ClientSession(timeout=ClientTimeout(total=BANK_SECONDS)) as session,
            session.post(
                f"{self._url}/charges",
                json={"token": token, "order": order, "cents": cents},
                raise_for_status=True,
            ) as response,
        ):
            return str((await response.json())["receipt"])

    async def find_charge(self, token: str) -> str | DidNotHappen:
        """What became of a charge whose answer nobody heard."""
        from aiohttp import ClientSession, ClientTimeout

        async with (
            ClientSession(timeout=ClientTimeout(total=BANK_SECONDS)) as session,
            session.get(f"{self._url}/charges/{token}") as response,
        ):
            if response.status == 404:
                return DidNotHappen()
            response.raise_for_status()
            return str((await response.json())["receipt"])


class Cashier(Agent, kind="cashier"):
    """Has each order charged at the bank before it is cooked."""

    paid = keyed(int, str)
    """Order -> the bank's receipt."""

    def __init__(self, name: str, *, bank: BankClient, careless: bool = False) -> None:
        super().__init__(name)
        self._bank = bank
        self._careless = careless

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        """Charge, once: a crash in the middle, or a rollback, finds out at the bank what became of it."""
        name = f"order-{order.number}"
        if self._careless:
            receipt = await self._bank.charge(name, price(order.number), token=ctx.message_id.hex())
        else:
            receipt = await ctx.step(
                self._bank.charge,
                name,
                price(order.number),
                resolve=self._bank.find_charge,
                retry=Retry(attempts=5),
            )
        self.paid[order.number] = receipt
        ctx.send(STAGES[0], order)


def price(number: int) -> int:
    """Of an order, in cents."""
    return 500 + 37 * number % 1000


def place(participants: int, *, cashier: bool = False) -> list[list[tuple[str, str]]]:
    """Which agents each participant hosts: two accounts each, and the pipeline spread over the first three or four.

    Args:
        participants: How many.
        cashier: Orders are charged.

    Returns:
        For each participant, (kind, name) pairs.
    """
    hosts: list[list[tuple[str, str]]] = [[] for _ in range(participants)]
    for index in range(2 * participants):
        hosts[index % participants].append(("account", f"a{index + 1}"))
    pipeline = ("intake", "cashier", "kitchen", "courier") if cashier else ("intake", "kitchen", "courier")
    for index, kind in enumerate(pipeline):
        hosts[index % participants].append((kind, "main"))
    return hosts


def make(kind: str, name: str, accounts: tuple[str, ...], bank: str = "", *, careless: bool = False) -> Agent:
    """One of the demo's agents.

    Args:
        kind: ``account``, ``intake``, ``cashier``, ``kitchen`` or ``courier``.
        name: Its name.
        accounts: Ids of all accounts, in order: each account's peers are its neighbours in the ring and the one opposite.
        bank: Where orders are charged; "": they are not.
        careless: The cashier charges without a step, as one must not; for demos that are to fail.
    """
    match kind:
        case "account":
            at, count = accounts.index(f"account/{name}"), len(accounts)
            peers = {accounts[(at + step) % count] for step in (1, count - 1, count // 2)} - {f"account/{name}"}
            return Account(name, peers=tuple(sorted(peers)))
        case "intake":
            return Intake(name, first=CASHIER if bank else STAGES[0])
        case "cashier":
            return Cashier(name, bank=BankClient(bank), careless=careless)
        case "kitchen":
            return Stage(name, then=STAGES[1])
        case _:
            return Courier(name, then="intake/main")
