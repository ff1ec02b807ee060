"""Capture memory: how much more memory a full cut needs at its peak, as a part of the state's size.

Measured: the peak of the process's resident memory during a full cut of 200 MB onto disk, less what it held before, over
the size of the state.

Reference: the size of the state itself. Interleaved, for comparison: the same peak of one encode of all of it in memory.

Bound: what waits in memory is the pack being filled and `UPLOADS_MAX` + 1 finished ones (1/64 of the state each, at least
2 MB), and one list of chunk references: 1/64 x 4 = 0.06 of what was compressed, 0.03 of the state here.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from pathlib import Path
from typing import Self

import msgspec

from protocol.storage import open_store
from simulations.bench.local import CLUSTER
from simulations.bench.measure import Row, Settings, median, row_of, scratch_folder
from simulations.bench.pages import AGENT_BYTES, Notebook, make_pages
from simulations.bench.solo import SoloParticipant

NAME = "capture-memory"
_PAGE = os.sysconf("SC_PAGE_SIZE")


async def run(settings: Settings) -> list[Row]:
    """The one case."""
    agents = settings.pick(2, 400, 400)
    cycles = settings.pick(1, 3, 7)
    contents = [make_pages(seed) for seed in range(agents)]
    books = [Notebook(f"n{number}", pages) for number, pages in enumerate(contents)]
    state = agents * AGENT_BYTES
    gc.collect()
    ours: list[tuple[float, float]] = []
    inline: list[tuple[float, float]] = []
    with scratch_folder() as folder:
        async with SoloParticipant(books, open_store(str(folder), CLUSTER)) as solo:
            for cycle in range(cycles + 1):
                with Peak() as peak:
                    await solo.control.order()
                solo.control.abort()
                await asyncio.sleep(0.05)
                gc.collect()
                with Peak() as whole:
                    data = msgspec.msgpack.encode(contents)
                del data
                gc.collect()
                if cycle:  # the first round lets the allocator take what it keeps
                    ours.append((peak.extra_bytes, state))
                    inline.append((whole.extra_bytes, state))
    return [
        row_of(
            NAME,
            f"{state / 1e6:g} MB",
            "extra peak / state",
            ours,
            bar=0.05,
            unit="bytes",
            notes=f"encoding inline: {median([extra / size for extra, size in inline]):.2f}",
        )
    ]


class Peak:
    """Resident memory above what it was at the beginning, sampled each millisecond by a thread; a context manager."""

    def __init__(self) -> None:
        self.extra_bytes = 0
        self._over = threading.Event()
        self._began = 0
        self._peak = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._began = self._peak = _resident()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._peak = max(self._peak, _resident())
        self._over.set()
        self._thread.join()
        self.extra_bytes = self._peak - self._began

    def _watch(self) -> None:
        while not self._over.is_set():
            self._peak = max(self._peak, _resident())
            time.sleep(0.001)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE
