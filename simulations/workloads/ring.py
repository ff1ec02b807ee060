"""Ring counters: a baton goes round; who has it counts one and passes it on. Counts differ by little, and there is one baton.

Each life brings a baton of its own, so a cluster that lost and regained members has several, and conservation says how many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from participant import Agent, Context, handler, value
from simulations.names import Names, first_of
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

    def __init__(self, name: str, *, after: tuple[str, ...], tick: float, switch: Switch, names: Names) -> None:
        super().__init__(name)
        self._names = names
        self._after = after
        self._tick = tick
        self._switch = switch

    async def on_start(self, ctx: Context) -> None:
        """Begin."""
        ctx.after(self._tick, PassOn())

    def _next(self) -> str:
        return self._names.now(self._after[self.count % len(self._after)])

    @handler
    def on_pass(self, ctx: Context, due: PassOn) -> None:
        """Pass all on but what nobody takes."""
        if not self._switch.on:
            return
        if self._after:
            while self.batons:
                self.batons -= 1
                self.count += 1
                ctx.send(self._next(), Baton(self.count))
        ctx.after(self._tick, PassOn())

    @handler
    def on_baton(self, ctx: Context, baton: Baton) -> None:
        """Take it, and pass it on at once every other time."""
        self.count += 1
        if self._after and self._switch.on and self.count % 2:
            ctx.send(self._next(), Baton(baton.laps + 1))
        else:
            self.batons += 1


class Ring(Workload):
    """One counter on each participant."""

    messages: ClassVar[tuple[type, ...]] = (Baton, PassOn)

    kinds: ClassVar[tuple[type[Agent], ...]] = (Counter,)

    def agents(self, participant: str) -> list[Agent]:
        """One counter that passes on to its participant's targets."""
        first = f"counter/{participant}"
        return [self._counter(first, self.names.declared(first))]

    def take(self, agent: str) -> Agent:
        """See `Workload`."""
        return self._counter(first_of(agent), agent)

    def _counter(self, first: str, agent: str) -> Counter:
        after = tuple(f"counter/{target}" for target in self.targets[first.partition("/")[2]])
        tick = self.options.tick_ns / 1e9
        return Counter(agent.partition("/")[2], after=after, tick=tick, switch=self.switch, names=self.names)

    def brings(self, agent: str) -> int:
        """One baton."""
        return 1

    def share(self, participant: str) -> int:
        """One baton."""
        return 1

    def held(self, fields: dict[str, Any]) -> int:
        """Batons that it holds."""
        return int(fields.get("batons", 1))

    def carried(self, envelope: Envelope) -> int:
        """A baton is one."""
        return int(envelope.type == "Baton")
