"""An operator who decides what nothing in a cluster can: what became of steps that are in doubt (`Options.settled`, with `orders`).

The operator asks the bank and passes its word on, to the participant itself or by way of the coordinators' `Consult`. That it did
not happen is said in the very moment in which the bank promised not to carry out what is on its way; that it happened stays true,
and is now and then said late. A colleague may say something else afterwards, which must not count. Processes crash at any of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from participant import DidNotHappen
from participant.effects.entries import State
from participant.runtime.effect_desk import Happened
from protocol.consulting import DID_NOT_HAPPEN, HAPPENED, AnswerQuestion, SettleEffect
from protocol.errors import Refused, SnapshotError
from simulations.prng import log_uniform, stream
from simulations.violations import Violation
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from protocol.messages import Consulted
    from simulations.options import Options
    from simulations.participant_node import ParticipantLife
    from simulations.workloads.orders import Orders

LOOK_NS: Final = 200 * MS
LIES: Final = 3
"""After one decision in so many a colleague says something else."""


class Settler:
    """The operator of one run."""

    def __init__(self, orders: Orders, options: Options) -> None:
        self._orders = orders
        self._random = stream(options.seed, "settler")
        self._patience = log_uniform(self._random, 50 * MS, 3 * SECOND)
        self._said: dict[str, int] = {}
        """Token -> result, of steps for which it was acknowledged that they happened."""

    def begin(self, life: ParticipantLife) -> None:
        """Look after a life."""
        life.later(self._random.below(LOOK_NS), self._look, life, {})

    def _look(self, life: ParticipantLife, seen: dict[str, int]) -> None:
        for token in life.parked_steps():
            since = seen.setdefault(token, life.now)
            if life.now - since >= self._random.below(2 * self._patience):
                seen[token] = life.now + SECOND
                life.run(self._settle(life, token), name="operator")
        life.later(LOOK_NS, self._look, life, seen)

    async def _settle(self, life: ParticipantLife, token: str) -> None:
        found = self._orders.outside.bank.find(token, at=life.cluster.world.now)
        if found is not None and self._random.chance(1, 2):
            await asyncio.sleep(self._random.below(500 * MS) / SECOND)
        if not await self._say(life, token, found) or found is None:
            return
        before = self._said.setdefault(token, found)
        if before != found:
            raise Violation("I19", f"step {token} was settled with {before}, and then with {found}")
        if self._random.chance(1, LIES):
            if await self._say(life, token, found + 1):
                raise Violation("I29", f"step {token} was settled with {found}, and then with {found + 1}")
            life.cluster.probes.hit("operator.too_late")

    async def _say(self, life: ParticipantLife, token: str, result: int | None) -> bool:
        """Give a word; whether it counts."""
        probe = life.cluster.probes.hit
        try:
            if self._random.chance(1, 2):
                entry = await life.settle(token, DidNotHappen() if result is None else Happened(result))
                counts = bool(
                    entry.state is State.RELEASED
                    if result is None
                    else entry.state is State.DONE and msgspec.msgpack.decode(entry.result) == result
                )
            else:
                how = DID_NOT_HAPPEN if result is None else HAPPENED
                what = SettleEffect(token=token, how=how, result=msgspec.json.encode(result))
                counts = not (await life.consult(what)).code
        except (Refused, SnapshotError):
            return False
        if counts:
            probe("operator.did_not_happen" if result is None else "operator.happened")
        return counts


async def answered_by_consulting(life: ParticipantLife, token: str, word: str) -> str:
    """Answer a question by way of the coordinators; as `ParticipantLife.say`."""
    found: Consulted = await life.consult(AnswerQuestion(token=token, answer=msgspec.json.encode(word)))
    if found.code:
        return found.code
    body: dict[str, Any] = msgspec.json.decode(found.body)
    return "duplicate" if body["duplicate"] else "taken"
