"""Token bank: accounts move money at random; what they hold and what is on its way is the total."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from participant import Agent, Context, handler, keyed, value
from simulations.names import Names, first_of
from simulations.workloads.base import Switch, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocol.messages import Envelope
    from simulations.options import Options

START: int = 1000
ACCOUNTS: int = 2
PASSED_ON: int = 4
"""One transfer in so many is passed on at once."""
_ROUNDS: int = 12
"""What is passed on, and on again: after so many nothing is left of it."""
_MASK = (1 << 64) - 1


class Transfer(msgspec.Struct, frozen=True):
    """Money on its way."""

    amount: int


class Move(msgspec.Struct, frozen=True):
    """An account's own timer."""


class Account(Agent, kind="account"):
    """Sends small amounts on and, now and then, passes on at once what arrives."""

    balance = value(int, default=START)
    draws = value(int, default=1)
    partners = keyed(str, int)

    def __init__(
        self, name: str, *, peers: tuple[str, ...], tick: float, burst: int, switch: Switch, names: Names
    ) -> None:
        super().__init__(name)
        self._peers = peers
        self._names = names
        self._tick = tick
        self._burst = burst
        self._switch = switch

    async def on_start(self, ctx: Context) -> None:
        """Begin."""
        self.draws = int.from_bytes(ctx.message_id[:8], "big")
        ctx.after(self._tick, Move())

    def _draw(self, limit: int) -> int:
        self.draws = (self.draws * 6364136223846793005 + 1442695040888963407) & _MASK
        return (self.draws >> 33) % limit

    def _pay(self, ctx: Context) -> None:
        amount = 1 + self._draw(9)
        if self._peers and self.balance >= amount:
            peer = self._peers[self._draw(len(self._peers))]
            self.balance -= amount
            self.partners[peer] = self.partners.get(peer, 0) + amount
            ctx.send(self._names.now(peer), Transfer(amount))

    @handler
    def on_move(self, ctx: Context, move: Move) -> None:
        """Pay a few."""
        if self._switch.on:
            for _ in range(self._burst):
                self._pay(ctx)
            ctx.after(self._tick, Move())

    @handler
    def on_transfer(self, ctx: Context, transfer: Transfer) -> None:
        """Take what arrives."""
        self.balance += transfer.amount
        if self._switch.on and self._draw(PASSED_ON) == 0:
            self._pay(ctx)


class Bank(Workload):
    """Some accounts on each participant."""

    messages: ClassVar[tuple[type, ...]] = (Transfer, Move)

    kinds: ClassVar[tuple[type[Agent], ...]] = (Account,)
    item_bytes: ClassVar[int] = 100

    @classmethod
    def says(cls, options: Options, targets: Mapping[str, tuple[str, ...]]) -> float:
        """Each account its moves, and one in `PASSED_ON` of what arrives; to each partner alike."""
        partners = {name: ACCOUNTS * (1 + len(others)) - 1 for name, others in targets.items()}
        spent = dict.fromkeys(targets, float(ACCOUNTS * options.burst))
        for _ in range(_ROUNDS):
            arrives = {name: spent[name] * (ACCOUNTS - 1) / partners[name] for name in targets}
            for name, others in targets.items():
                for other in others:
                    arrives[other] += spent[name] * ACCOUNTS / partners[name]
            spent = {name: ACCOUNTS * options.burst + arrives[name] / PASSED_ON for name in targets}
        return max((spent[name] * ACCOUNTS / partners[name] for name in targets if targets[name]), default=0)

    def agents(self, participant: str) -> list[Agent]:
        """Accounts that know those of the targets, and each other."""
        firsts = [f"account/{participant}-{number}" for number in range(ACCOUNTS)]
        return [self._account(first, self.names.declared(first)) for first in firsts]

    def take(self, agent: str) -> Agent:
        """See `Workload`."""
        return self._account(first_of(agent), agent)

    def _account(self, first: str, agent: str) -> Account:
        options = self.options
        participant = first.partition("/")[2].partition("-")[0]
        known = [participant, *self.targets[participant]]
        peers = [f"account/{name}-{number}" for name in known for number in range(ACCOUNTS)]
        return Account(
            agent.partition("/")[2],
            peers=tuple(peer for peer in peers if peer != first),
            tick=options.tick_ns / 1e9,
            burst=options.burst,
            switch=self.switch,
            names=self.names,
        )

    def brings(self, agent: str) -> int:
        """As every account."""
        return START

    def share(self, participant: str) -> int:
        """All accounts start with the same."""
        return ACCOUNTS * START

    def held(self, fields: dict[str, Any]) -> int:
        """The balance."""
        return int(fields.get("balance", START))

    def carried(self, envelope: Envelope) -> int:
        """The amount of a transfer."""
        if not envelope.type.endswith("Transfer"):
            return 0
        return int(msgspec.msgpack.decode(envelope.body, type=Transfer).amount)
