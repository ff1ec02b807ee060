"""Epoch of much: a full epoch of many agents of 500 KB, against the least that makes as many bytes durable.

Measured: from the start order to the report, when packs and local snapshot are durable, in a real participant on a folder that
holds nothing yet. The agents' loop goes on meanwhile: all of it is slices of 0.5 ms, and the packs are written by threads.

Reference: the same state agent by agent through `msgspec`, the bytes through a `PackBuilder` in pieces of 64 KiB (checksum, zstd),
each pack written and fsynced under a name of its own, all in one go and with nothing else in between.

Bound: the slices look at each key and keep the plan from which the next epoch names what did not change: some 0.2 us a key
beside 1 us of packing. What the threads write beside the loop wins time back where the disk, not the core, is what one
waits for.
"""

from __future__ import annotations

import gc
import os
import time
from typing import TYPE_CHECKING

import msgspec

from protocol.limits import KIB
from protocol.pack import PackBuilder
from protocol.storage import open_store
from simulations.bench.local import CLUSTER
from simulations.bench.measure import Row, Settings, interleave, median, row_of, scratch_folder
from simulations.bench.pages import AGENT_BYTES, Notebook, make_pages
from simulations.bench.solo import SoloParticipant

if TYPE_CHECKING:
    from pathlib import Path

    from protocol.ports import ObjectStore
    from simulations.bench.pages import Page

NAME = "epoch-bulk"
_PIECE_BYTES = 64 * KIB
_encode = msgspec.msgpack.Encoder().encode


async def run(settings: Settings) -> list[Row]:
    """One size."""
    count = settings.pick(2, 60, 1000)
    cycles = settings.pick(1, 7, 9)
    contents = [make_pages(seed) for seed in range(count)]
    books = [Notebook(f"n{number}", pages) for number, pages in enumerate(contents)]
    state = [{page.number: page for page in pages} for pages in contents]
    # What was made for the benchmark is not what its collector is to look through.
    gc.collect()
    gc.freeze()
    try:
        with scratch_folder() as folder:
            (folder / "bare").mkdir()
            store = open_store(str(folder), CLUSTER)
            async with SoloParticipant(books, store) as solo:

                async def measured() -> tuple[float, float]:
                    return await _epoch(solo, store)

                async def reference() -> tuple[float, float]:
                    return _bare(folder / "bare", state)

                both = await interleave(measured, reference, cycles)
    finally:
        gc.unfreeze()
    samples = [(epoch[0], bare[0]) for epoch, bare in both]
    notes = f"{1000 * median([took for took, _ in samples]):.0f} ms, bare {1000 * median([bare for _, bare in samples]):.0f}"
    case = f"{count} x {AGENT_BYTES // 1000} KB, full"
    metric = "order to report / (encode, pack, fsync)"
    work = [(epoch[1], bare[1]) for epoch, bare in both]
    return [
        row_of(NAME, case, metric, samples, bar=1.3, unit="s", notes=notes),
        row_of(NAME, case, "CPU time of the same, threads included", work, unit="CPU-s"),
    ]


async def _epoch(solo: SoloParticipant, store: ObjectStore) -> tuple[float, float]:
    """Seconds and CPU seconds of a full one; nothing is left of it."""
    began, worked = time.perf_counter(), time.process_time()
    await solo.control.order()
    took, work = time.perf_counter() - began, time.process_time() - worked
    solo.control.abort()
    # Else the next one would find its objects there, and only compare them.
    for prefix in ("packs/", "snapshots/"):
        for key in list(store.list(prefix)):
            store.delete(key)
    return took, work


def _bare(folder: Path, state: list[dict[int, Page]]) -> tuple[float, float]:
    """Seconds and CPU seconds of the shortest way."""
    began, worked = time.perf_counter(), time.process_time()
    builder = PackBuilder()
    files = 0
    for pages in state:
        data = _encode(pages)
        for start in range(0, len(data), _PIECE_BYTES):
            builder.add(data[start : start + _PIECE_BYTES])
        if builder.full:
            _durable(folder / f"pack-{files}", builder)
            files += 1
            builder = PackBuilder()
    _durable(folder / f"pack-{files}", builder)
    took, work = time.perf_counter() - began, time.process_time() - worked
    for path in folder.iterdir():
        path.unlink()
    return took, work


def _durable(path: Path, builder: PackBuilder) -> None:
    data, _, _ = builder.finish()
    with path.open("wb", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())
