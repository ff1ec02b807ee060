"""Latency in an epoch: how long messages take while epochs are taken, against the same without.

Measured: one participant with ten agents of 500 KB, a store on disk; the coordinator's side is a script, since it is another
process's. Every millisecond messages of 100 bytes come in, as many as make the rate; each changes its agent's state (so an
epoch finds most of it changed) and is passed on to a second agent, which changes its own. Its latency is from the instant at
which it was due, late or not, to that second turn. Windows with an epoch every 2 s and without, in turn.

The rate is 20,000 messages a second, or a quarter of what was handled of a burst before: more would measure the queue.

Reference: the windows without epochs. For the loop's longest gap: a ticker of the same period with nothing else on the loop.

Bound: a slice of a cut is 0.5 ms, so is a message's longest wait for one; a cut holds the loop for 10 us. The operating system
makes gaps, too, of any length on a busy machine: a row without bar tells the most that the loop's thread worked between two
ticks, which other processes cannot lengthen.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from participant import Agent, Context, handler, keyed
from protocol.storage import open_store
from simulations.bench.local import CLUSTER
from simulations.bench.measure import Row, Settings, median, row_of, scratch_folder
from simulations.bench.solo import SoloParticipant

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "latency-in-epoch"
AGENTS: Final = 10
VALUES: Final = 5_000
VALUE_BYTES: Final = 100
RATE: Final = 20_000
SHARE: Final = 0.25
TICK_SECONDS: Final = 0.001
EPOCH_SECONDS: Final = 2.0
GAP_GOAL_SECONDS: Final = 0.001


class Parcel(msgspec.Struct, frozen=True):
    """100 bytes for the state."""

    due: float
    slot: int
    content: bytes
    last: bool


class Shelf(Agent, kind="shelf"):
    """Puts each parcel into its state; passes it on if it is not the last who gets it."""

    parcels = keyed(int, bytes)

    def __init__(self, name: str, other: str, arrived: Callable[[float], None]) -> None:
        super().__init__(name)
        self._other = other
        self._arrived = arrived
        self.parcels.update({slot: bytes([slot % 251]) * VALUE_BYTES for slot in range(VALUES)})

    @handler
    async def on_parcel(self, ctx: Context, parcel: Parcel) -> None:
        """Keep it, and send it on or tell that it is there."""
        self.parcels[parcel.slot] = parcel.content
        if parcel.last:
            self._arrived(time.perf_counter() - parcel.due)
        else:
            ctx.send(self._other, Parcel(parcel.due, parcel.slot, parcel.content, last=True))


class _Window(NamedTuple):
    p99: float
    gap: float
    """Longest time between two ticks, less the period."""
    work: float
    """Most CPU time of the loop's thread between two ticks."""
    epochs: int


async def run(settings: Settings) -> list[Row]:
    """Latency and gaps."""
    cycles = settings.pick(1, 4, 12)
    seconds = settings.pick(0.3, 4.0, 10.0)
    with scratch_folder() as folder:
        bench = _Bench()
        store = open_store(str(folder), CLUSTER)
        async with SoloParticipant(bench.agents, store) as solo:
            bench.solo = solo
            rate = min(float(RATE), SHARE * await bench.capacity(settings.pick(500, 20_000, 50_000)))
            await bench.epoch()
            every = min(EPOCH_SECONDS, seconds / 2)
            on: list[_Window] = []
            off: list[_Window] = []
            idle: list[float] = []
            for cycle in range(cycles):
                for with_epochs in (True, False) if cycle % 2 else (False, True):
                    window = await bench.window(rate, seconds, every if with_epochs else 0.0)
                    (on if with_epochs else off).append(window)
                idle.append((await bench.window(0.0, min(seconds, 1.0), 0.0)).gap)
    case = f"{AGENTS} x {VALUES * VALUE_BYTES // 1000} KB, an epoch every 2 s"
    pairs = list(zip(on, off, strict=True))
    notes = (
        f"{rate:,.0f} messages/s, {sum(window.epochs for window in on)} epochs; "
        f"p99 {1000 * median([window.p99 for window in on]):.2f} ms, without {1000 * median([window.p99 for window in off]):.2f}"
    )
    gaps = (
        f"{1000 * median([window.gap for window in on]):.2f} ms, without epochs "
        f"{1000 * median([window.gap for window in off]):.2f}, idle {1000 * median(idle):.2f}"
    )
    over = [(max(window.gap - quiet, 1e-6), GAP_GOAL_SECONDS) for window, quiet in zip(on, idle, strict=True)]
    work = [(above.work, below.work) for above, below in pairs]
    return [
        row_of(
            NAME,
            case,
            "p99, on / off",
            [(above.p99, below.p99) for above, below in pairs],
            bar=1.1,
            unit="s",
            notes=notes,
        ),
        row_of(NAME, case, "(longest gap - idle ticker's) / 1 ms", over, bar=1.0, unit="s", notes=gaps),
        row_of(NAME, case, "most work between two ticks, on / off", work, unit="CPU-s"),
    ]


class _Bench:
    """Agents, and what has arrived at them."""

    def __init__(self) -> None:
        self.solo: SoloParticipant | None = None
        self._latencies: list[float] = []
        self._sent = 0
        self._here = asyncio.Event()
        self.agents = [
            Shelf(f"s{number}", f"shelf/s{(number + 1) % AGENTS}", self._arrived) for number in range(AGENTS)
        ]

    async def capacity(self, count: int) -> float:
        """Messages a second of a burst."""
        began = time.perf_counter()
        for _ in range(count // 500):
            self._throw(500, began)
            await self._all_here()
        return len(self._latencies) / (time.perf_counter() - began)

    async def epoch(self) -> None:
        """One, committed."""
        assert self.solo is not None, "started"
        await self.solo.control.order()
        self.solo.control.commit()

    async def window(self, rate: float, seconds: float, epoch_seconds: float) -> _Window:
        """At this rate, with an epoch so often; 0: none."""
        self._latencies.clear()
        self._sent = 0
        clock, work_clock = time.perf_counter, time.thread_time
        epochs: list[asyncio.Task[None]] = []
        gap = work = 0.0
        began = at = clock()
        worked = work_clock()
        while at < began + seconds:
            await asyncio.sleep(TICK_SECONDS)
            now, works = clock(), work_clock()
            gap, work = max(gap, now - at - TICK_SECONDS), max(work, works - worked)
            at, worked = now, works
            # What was due while the loop was held was due then.
            while rate and self._sent < (at - began) * rate:
                self._throw(1, began + self._sent / rate)
            if epoch_seconds and at - began >= (len(epochs) + 0.5) * epoch_seconds:
                epochs.append(asyncio.ensure_future(self.epoch()))
        await asyncio.gather(*epochs)
        await self._all_here()
        ordered = sorted(self._latencies)
        p99 = ordered[len(ordered) * 99 // 100] if ordered else 0.0
        return _Window(p99, gap, work, len(epochs))

    def _throw(self, count: int, due: float) -> None:
        assert self.solo is not None, "started"
        for _ in range(count):
            number = self._sent
            content = number.to_bytes(8, "big") + bytes(VALUE_BYTES - 8)
            parcel = Parcel(due, number * 7 // AGENTS % VALUES, content, last=False)
            self.solo.participant.ingest_nowait(self.agents[number % AGENTS].id, parcel)
            self._sent += 1

    def _arrived(self, latency: float) -> None:
        self._latencies.append(latency)
        if len(self._latencies) == self._sent:
            self._here.set()

    async def _all_here(self) -> None:
        while len(self._latencies) < self._sent:
            self._here.clear()
            await self._here.wait()
