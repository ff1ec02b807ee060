"""Epochs end to end on real processes: from the request to its answer, everything durable.

Measured: ``POST /v1/epochs`` with ``wait``: two participant processes over WebSocket with 500 KB of state each, one coordinator
or three, a store on disk. First at rest (nothing has changed since the last epoch), then with 512 messages under way, each of
which changes state, so that every epoch writes all of it.

Reference: a bare epoch (`bare_epoch`) of two participants in this process, with as many bytes, interleaved.

Bound: the ledger's entries are 4 commits one after the other (start, reports, seal, commit), each a wait for the disk, and with
three coordinators for another process's disk and the way there and back; the part is 2 waits, the manifest 2. So 8 waits
where the bare epoch has 2, and some 15 messages between processes at 0.1 to 0.3 ms.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from simulations.bench.bare_epoch import BareEpoch
from simulations.bench.measure import Row, Settings, median, row_of, scratch_folder
from simulations.bench.processes import Processes

if TYPE_CHECKING:
    from pathlib import Path

NAME = "real-epoch"
STATE_BYTES = 500_000


async def run(settings: Settings) -> list[Row]:
    """One coordinator and three."""
    cycles = settings.pick(1, 9, 25)
    rows: list[Row] = []
    for coordinators in settings.pick((1,), (1, 3), (1, 3)):
        with scratch_folder() as folder:
            (folder / "cluster").mkdir()
            rows += await _case(folder, coordinators, cycles)
    return rows


async def _case(folder: Path, coordinators: int, cycles: int) -> list[Row]:
    rows: list[Row] = []
    bare = BareEpoch(folder, 2)
    await bare.start()
    try:
        async with Processes(folder / "cluster", coordinators=coordinators) as processes:
            for under_way, part_bytes in ((0, 2_000), (512, STATE_BYTES)):
                if under_way:
                    await processes.throw(under_way)
                samples: list[tuple[float, float]] = []
                for cycle in range(cycles + 1):
                    began = time.perf_counter()
                    await processes.epoch()
                    took = time.perf_counter() - began
                    reference = await bare.epoch(part_bytes, together=False)
                    if cycle:
                        samples.append((took, reference))
                shown = "1 coordinator" if coordinators == 1 else f"{coordinators} coordinators"
                rows.append(
                    row_of(
                        NAME,
                        f"{shown}, {'busy' if under_way else 'at rest'}",
                        "request to answer / bare epoch",
                        samples,
                        unit="s",
                        notes=f"{1000 * median([took for took, _ in samples]):.1f} ms, "
                        f"bare {1000 * median([reference for _, reference in samples]):.1f}",
                    )
                )
    finally:
        await bare.stop()
    return rows
