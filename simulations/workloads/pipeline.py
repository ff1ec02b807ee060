"""Pipeline: a source counts, every stage adds to what passes, a sink verifies: each number once, in order, with its header.

Every participant has a source and a sink; what a source sends goes to the sinks of its participant's targets. A sink knows
its sources by their life (a number drawn at their start), so that a source that began anew is a new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from participant import Agent, Context, handler, keyed, value
from simulations.workloads.base import Switch, Workload

if TYPE_CHECKING:
    from protocol.messages import Envelope

MAGIC = 0x434C4541


class Parcel(msgspec.Struct, frozen=True):
    """One number of one source, for one sink."""

    magic: int
    life: int
    number: int
    padding: bytes


class Emit(msgspec.Struct, frozen=True):
    """A source's own timer."""


class Source(Agent, kind="source"):
    """Counts for each of its sinks; makes as much as it sends."""

    made = value(int, default=0)
    next = keyed(str, int)

    def __init__(
        self, name: str, *, life: int, sinks: tuple[str, ...], tick: float, burst: int, switch: Switch
    ) -> None:
        super().__init__(name)
        self._life = life
        self._sinks = sinks
        self._tick = tick
        self._burst = burst
        self._switch = switch

    async def on_start(self, ctx: Context) -> None:
        """Begin."""
        ctx.after(self._tick, Emit())

    @handler
    def on_emit(self, ctx: Context, due: Emit) -> None:
        """The next numbers to every sink."""
        if not self._switch.on:
            return
        for sink in self._sinks:
            number = self.next.get(sink, 0)
            for offset in range(self._burst):
                ctx.send(sink, Parcel(MAGIC, self._life, number + offset, bytes((number + offset) % 300)))
            self.next[sink] = number + self._burst
            self.made -= self._burst
        ctx.after(self._tick, Emit())


class Sink(Agent, kind="sink"):
    """Verifies. What it finds wrong it counts, and the workload's total shows it."""

    seen = keyed(int, int)
    taken = value(int, default=0)
    wrong = value(int, default=0)

    @handler
    def on_parcel(self, ctx: Context, parcel: Parcel) -> None:
        """Each number once, in order."""
        expected = self.seen.get(parcel.life, 0)
        intact = parcel.magic == MAGIC and len(parcel.padding) == parcel.number % 300
        # Of a source that was at work before this sink was: what came before is not to be had, so it begins anywhere.
        if not intact or (expected and parcel.number != expected):
            self.wrong += 1
        self.seen[parcel.life] = parcel.number + 1
        self.taken += 1


class Pipeline(Workload):
    """A source and a sink on each participant."""

    messages: ClassVar[tuple[type, ...]] = (Parcel, Emit)

    def __init__(self, options: Any, targets: dict[str, tuple[str, ...]]) -> None:  # noqa: ANN401 - as the base
        super().__init__(options, targets)
        self._lives = 0

    def agents(self, participant: str) -> list[Agent]:
        """A source, and a sink."""
        self._lives += 1
        sinks = tuple(f"sink/{target}" for target in self.targets[participant])
        return [
            Source(
                participant,
                life=self._lives,
                sinks=sinks,
                tick=self.options.tick_ns / 1e9,
                burst=self.options.burst,
                switch=self.switch,
            ),
            Sink(participant),
        ]

    def share(self, participant: str) -> int:
        """Nothing: what a source has made is its debt."""
        return 0

    def held(self, fields: dict[str, Any]) -> int:
        """A source's debt, a sink's takings; a wrong parcel can not be made up for."""
        return int(fields.get("made", 0)) + int(fields.get("taken", 0)) + (int(fields.get("wrong", 0)) << 40)

    def carried(self, envelope: Envelope) -> int:
        """A parcel is one."""
        return int(envelope.type == "Parcel")
