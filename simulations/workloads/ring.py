"""Ring counters: a baton goes round; who has it counts one and passes it on. Counts differ by little, and there is one baton.

Each life brings a baton of its own, so a cluster that lost and regained members has several, and conservation says how many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from participant import Agent, Context, handler, value
from simulations.workloads.base import Switch, Workload

if TYPE_CHECKING:
    from protocol.messages import Envelope


class Baton(msgspec.Struct, frozen=True):
    """Goes round."""

    laps: int


class PassOn(msgspec.Struct, frozen=True):
    """A counter's own timer."""


class Counter(Agent, kind="counter"):
    """Holds batons for a moment."""

    batons = value(int, default=1)
    count = value(int, default=0)

    def __init__(self, name: str, *, after: tuple[str, ...], tick: float, switch: Switch) -> None:
        super().__init__(name)
        self._after = after
        self._tick = tick
        self._switch = switch

    async def on_start(self, ctx: Context) -> None:
        """Begin."""
        ctx.after(self._tick, PassOn())

    @handler
    def on_pass(self, ctx: Context, due: PassOn) -> None:
        """Pass all on but what nobody takes."""
        if not self._switch.on:
            return
        if self._after:
            while self.batons:
                self.batons -= 1
                self.count += 1
                ctx.send(self._after[self.count % len(self._after)], Baton(self.count))
        ctx.after(self._tick, PassOn())

    @handler
    def on_baton(self, ctx: Context, baton: Baton) -> None:
        """Take it, and pass it on at once every other time."""
        self.count += 1
        if self._after and self._switch.on and self.count % 2:
            ctx.send(self._after[self.count % len(self._after)], Baton(baton.laps + 1))
        else:
            self.batons += 1


class Ring(Workload):
    """One counter on each participant."""

    messages: ClassVar[tuple[type, ...]] = (Baton, PassOn)

    def agents(self, participant: str) -> list[Agent]:
        """One counter that passes on to its participant's targets."""
        after = tuple(f"counter/{target}" for target in self.targets[participant])
        return [Counter(participant, after=after, tick=self.options.tick_ns / 1e9, switch=self.switch)]

    def share(self, participant: str) -> int:
        """One baton."""
        return 1

    def held(self, fields: dict[str, Any]) -> int:
        """Batons that it holds."""
        return int(fields.get("batons", 1))

    def carried(self, envelope: Envelope) -> int:
        """A baton is one."""
        return int(envelope.type == "Baton")
