"""Pipeline: a source counts, every stage adds to what passes, a sink verifies: each number once, in order, with its header.

Every participant has a source and a sink; what a source sends goes to the sinks of its participant's targets. A sink knows
its sources by their life (a number drawn at their start), so that a source that began anew is a new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from blake3 import blake3

from participant import Agent, Context, handler, keyed, value
from simulations.names import Names, first_of
from simulations.oracles.arrival import arrived, check_arrival
from simulations.workloads.base import Switch, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocol.messages import Envelope
    from protocol.reading import EpochReader
    from simulations.cluster import SimulatedCluster
    from simulations.options import Options

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
    life = value(int, default=0)
    """Drawn when it begins anew: in whatever process it goes on, its numbers go on."""
    next = keyed(str, int)

    def __init__(
        self, name: str, *, sinks: tuple[str, ...], tick: float, burst: int, switch: Switch, names: Names
    ) -> None:
        super().__init__(name)
        self._sinks = sinks
        self._names = names
        self._tick = tick
        self._burst = burst
        self._switch = switch

    async def on_start(self, ctx: Context) -> None:
        """Begin."""
        self.life = int.from_bytes(ctx.message_id[:6], "big")
        ctx.after(self._tick, Emit())

    @handler
    def on_emit(self, ctx: Context, due: Emit) -> None:
        """The next numbers to every sink."""
        if not self._switch.on:
            return
        for sink in self._sinks:
            number = self.next.get(sink, 0)
            for offset in range(self._burst):
                padding = padding_of(self.life, number + offset)
                ctx.send(self._names.now(sink), Parcel(MAGIC, self.life, number + offset, padding))
            self.next[sink] = number + self._burst
            self.made -= self._burst
        ctx.after(self._tick, Emit())


class Sink(Agent, kind="sink"):
    """Verifies: of each source every number once, in order, with its header and its own bytes."""

    seen = keyed(int, int)
    """Life of a source -> number that comes next."""
    gaps = keyed(str, int)
    taken = value(int, default=0)
    late = value(int, default=0)
    twice = value(int, default=0)
    spoiled = value(int, default=0)

    @handler
    def on_parcel(self, ctx: Context, parcel: Parcel) -> None:
        """Look at it; what is wrong is counted."""
        self.taken += 1
        if parcel.magic != MAGIC or parcel.padding != padding_of(parcel.life, parcel.number):
            self.spoiled += 1
        wrong = arrived(self.seen, self.gaps, parcel.life, parcel.number)
        self.late += wrong == "late"
        self.twice += wrong == "twice"


def padding_of(life: int, number: int) -> bytes:
    """What a parcel carries: of many lengths, and no other parcel's."""
    return blake3(b"%d %d" % (life, number)).digest(length=1 + number % 300)


class Pipeline(Workload):
    """A source and a sink on each participant."""

    messages: ClassVar[tuple[type, ...]] = (Parcel, Emit)

    kinds: ClassVar[tuple[type[Agent], ...]] = (Source, Sink)
    item_bytes: ClassVar[int] = 450

    @classmethod
    def says(cls, options: Options, targets: Mapping[str, tuple[str, ...]]) -> float:
        """Each source so many to each of its sinks."""
        return options.burst

    def agents(self, participant: str) -> list[Agent]:
        """A source, and a sink."""
        firsts = (f"source/{participant}", f"sink/{participant}")
        return [self._made(first, self.names.declared(first)) for first in firsts]

    def take(self, agent: str) -> Agent:
        """See `Workload`."""
        return self._made(first_of(agent), agent)

    def _made(self, first: str, agent: str) -> Agent:
        kind, _, participant = first.partition("/")
        name = agent.partition("/")[2]
        if kind == "sink":
            return Sink(name)
        return Source(
            name,
            sinks=tuple(f"sink/{target}" for target in self.targets[participant]),
            tick=self.options.tick_ns / 1e9,
            burst=self.options.burst,
            switch=self.switch,
            names=self.names,
        )

    def brings(self, agent: str) -> int:
        """Nothing, as `share`."""
        return 0

    def judge(self, cluster: SimulatedCluster, reader: EpochReader) -> None:
        """What the sinks have found.

        Raises:
            Violation: I6.
        """
        for agent in reader.agents():
            if agent.startswith("sink/"):
                check_arrival(f"epoch {reader.manifest.epoch}, {agent}", reader.state(agent).fields)

    def share(self, participant: str) -> int:
        """Nothing: what a source has made is its debt."""
        return 0

    def held(self, fields: dict[str, Any]) -> int:
        """A source's debt, a sink's takings."""
        return int(fields.get("made", 0)) + int(fields.get("taken", 0))

    def carried(self, envelope: Envelope) -> int:
        """A parcel is one."""
        return int(envelope.type == "Parcel")
