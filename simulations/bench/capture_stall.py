"""Capture stall: how long a cut holds the event loop, against encoding the same state inline.

Measured: the longest gap of a ticker that does nothing else, from the start order to the report, in a real participant that
takes full cuts of 0.5, 50 and 1000 MB of keyed state onto disk. Median of the longest gaps of several cuts.

Reference: one `msgspec` encode of the same live objects, agent by agent, on the loop: the least that any snapshot taken
inline must hold it for; what would follow (hash, compression, write) is not even counted.

The operating system makes gaps, too: notes give the longest gap of the same ticker without a cut, and the longest time on
the processor that lay between two ticks (which other processes cannot lengthen).

Bound: the freeze is O(agents): 0.4 us each, so 0.8 ms for the 2,000 agents of 1 GB; everything else is slices, at least one
step long: a step encodes up to 128 entries, or hashes and compresses 64 KiB (0.1 to 0.25 ms).
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import TYPE_CHECKING, Any

import msgspec

from protocol.storage import open_store
from simulations.bench.local import CLUSTER
from simulations.bench.measure import Row, Settings, median, row_of, scratch_folder
from simulations.bench.pages import AGENT_BYTES, Notebook, make_pages
from simulations.bench.solo import SoloParticipant

if TYPE_CHECKING:
    from pathlib import Path

    from simulations.bench.pages import Page

NAME = "capture-stall"
_encode = msgspec.msgpack.Encoder().encode


async def run(settings: Settings) -> list[Row]:
    """All sizes."""
    sizes = settings.pick([(1, 2)], [(1, 25), (100, 7), (2000, 1)], [(1, 60), (100, 15), (2000, 5)])
    bars = {1: 1.0, 100: 0.02, 2000: 0.005}
    rows: list[Row] = []
    for agents, cycles in sizes:
        with scratch_folder() as folder:
            rows += await _case(folder, agents, cycles, bars[agents])
    return rows


async def _case(folder: Path, agents: int, cycles: int, bar: float) -> list[Row]:
    contents = [make_pages(seed) for seed in range(agents)]
    books = [Notebook(f"n{number}", pages) for number, pages in enumerate(contents)]
    state = [dict(enumerate(pages)) for pages in contents]
    # What was made for the benchmark is not what its collector is to look through.
    gc.collect()
    gc.freeze()
    gaps: list[tuple[float, float]] = []
    works: list[tuple[float, float]] = []
    whole: list[tuple[float, float]] = []
    idle: list[float] = []
    store = open_store(str(folder), CLUSTER)
    async with SoloParticipant(books, store) as solo:
        warm_up = agents < 1000  # a round that does not count is too dear at 1 GB
        for cycle in range(cycles + warm_up):
            report = solo.control.order()
            began = time.perf_counter()
            gap, work = await _tick(report)
            took = time.perf_counter() - began
            await report
            solo.control.abort()
            await asyncio.sleep(0.01)
            inline = _inline(state)
            quiet, _ = await _tick(asyncio.ensure_future(asyncio.sleep(min(took, 1.0))))
            if cycle >= warm_up:
                gaps.append((gap, inline))
                works.append((work, inline))
                whole.append((took, inline))
                idle.append(quiet)
    size = agents * AGENT_BYTES / 1e6
    case = f"{size:g} MB"
    return [
        row_of(
            NAME,
            case,
            "longest gap of the loop / encoding inline",
            gaps,
            bar=bar,
            unit="s",
            notes=f"gap {1000 * median([gap for gap, _ in gaps]):.2f} ms (without a cut {1000 * median(idle):.2f}), "
            f"inline {1000 * median([inline for _, inline in gaps]):.2f} ms",
        ),
        row_of(NAME, case, "longest work between two ticks / encoding inline", works, unit="CPU-s"),
        row_of(NAME, case, "cut to report, everything durable / encoding inline", whole, unit="s"),
    ]


def _inline(state: list[dict[int, Page]]) -> float:
    began = time.perf_counter()
    encoded = [_encode(pages) for pages in state]
    took = time.perf_counter() - began
    assert len(encoded) == len(state)
    return took


async def _tick(until: asyncio.Future[Any]) -> tuple[float, float]:
    """Longest gap between two ticks in seconds, and the most that this thread worked in one."""
    clock, work_clock = time.perf_counter, time.thread_time
    gap = work = 0.0
    at, worked = clock(), work_clock()
    while not until.done():
        await asyncio.sleep(0)
        now, works = clock(), work_clock()
        gap = max(gap, now - at)
        work = max(work, works - worked)
        at, worked = now, works
    return gap, work
