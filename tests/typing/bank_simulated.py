"""A user's own test in simulated worlds; must type-check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from participant import Agent, Context, handler, value
from simulations import Cut, Simulated, simulate


@dataclass(frozen=True)
class Pay:
    amount: int


class Bank(Agent, kind="bank"):
    balance = value(int, default=50)

    @handler
    async def on_pay(self, ctx: Context, pay: Pay) -> None:
        self.balance += pay.amount


def conserved(cut: Cut) -> bool:
    return bool(cut.total(lambda agent, state: state["balance"]) == 100)


def never_raises(cut: Cut) -> None:
    assert_type(cut.put_aside, tuple[str, ...])
    assert not cut.put_aside


found = simulate(
    lambda: [Bank("a"), [Bank("b"), Bank("c")]],
    start=[("bank/a", Pay(1))],
    invariant=[conserved, never_raises],
    seeds=range(50),
    faults=["crash", "cut"],
)
assert_type(found, Simulated)
assert_type(found.statistics(), dict[str, int])
simulate(Bank, seeds=[1])  # type: ignore[arg-type]  # not a function that makes agents
simulate(lambda: [Bank("a")], invariant=conserved, sedes=[1])  # type: ignore[call-arg]
