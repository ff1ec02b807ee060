"""Path overhead: CPU time of a message with epochs every 2 s and every 200 ms, against the same without.

Measured on real processes: two participants over WebSocket, each with 500 KB of state of which every message changes 100 bytes
(so an epoch finds all of it changed), 512 messages under way for ever, one coordinator, a store on disk. Windows without
epochs, with an epoch every 2 s and with one every 200 ms, their order rotated each cycle. The bar is for the participants'
CPU time, threads included; a row without bar adds the coordinator's.

Reference: the windows without epochs of the same cycle, on the same processes.

An epoch costs CPU time, not a share of it: on a machine whose processors are busy with other things fewer messages are handled
between two epochs, and the ratio is worse than it would be. Notes give the share of a core that the participants had.

Bound: a full epoch of 5,000 values encodes, hashes and compresses 500 KB: about 4 ms of CPU, 3 ms of bookkeeping for the values
that change while the cut is open. Every 2 s that is 0.4 % of a busy core; every 200 ms 3.5 %.
"""

from __future__ import annotations

import asyncio

from simulations.bench.measure import Row, Settings, row_of, scratch_folder
from simulations.bench.processes import Processes

NAME = "path-overhead"
UNDER_WAY = 512
INTERVALS = (0, 2000, 200)


async def run(settings: Settings) -> list[Row]:
    """Both intervals."""
    cycles = settings.pick(1, 6, 15)
    seconds = settings.pick(1.0, 4.0, 8.0)
    intervals = settings.pick((0, 200), INTERVALS, INTERVALS)
    windows: dict[int, list[tuple[float, float, int, float]]] = {interval: [] for interval in intervals}
    with scratch_folder() as folder:
        async with Processes(folder) as processes:
            await processes.throw(UNDER_WAY)
            await _window(processes, 200, 1.0)
            for cycle in range(cycles):
                for place in range(len(intervals)):
                    interval = intervals[(cycle + place) % len(intervals)]
                    windows[interval].append(await _window(processes, interval, seconds))
            aborted = sum(epoch["state"] == "aborted" for epoch in await processes.epochs())
    rows = []
    for interval in intervals[1:]:
        off, on = windows[0], windows[interval]
        share = sum(share for _, _, _, share in off) / len(off)
        notes = (
            f"{sum(epochs for _, _, epochs, _ in on)} epochs in {len(on) * seconds:.0f} s, {aborted} aborted; "
            f"{1e6 * sorted(own for own, _, _, _ in off)[len(off) // 2]:.1f} us a message without, "
            f"the two had {share:.2f} of a core"
        )
        case = f"an epoch every {interval / 1000:g} s"
        rows.append(
            row_of(
                NAME,
                case,
                "CPU-s per message, on / off",
                [(above[0], below[0]) for above, below in zip(on, off, strict=True)],
                bar={2000: 1.02, 200: 1.08}[interval],
                unit="CPU-s",
                notes=notes,
            )
        )
        rows.append(
            row_of(
                NAME,
                case,
                "the same with the coordinator's CPU",
                [(above[1], below[1]) for above, below in zip(on, off, strict=True)],
                unit="CPU-s",
            )
        )
    return rows


async def _window(processes: Processes, interval_ms: int, seconds: float) -> tuple[float, float, int, float]:
    """CPU seconds per message, the same with the coordinator's, epochs that ended, cores that the participants had."""
    await processes.set_policy(interval_ms)
    await _quiet(processes, interval_ms)
    before = len(await processes.epochs())
    coordinator = processes.coordinator_cpu()
    cpu, turns = await processes.read()
    await asyncio.sleep(seconds)
    cpu_after, turns_after = await processes.read()
    coordinator_after = processes.coordinator_cpu()
    epochs = len(await processes.epochs()) - before
    await processes.set_policy(0)
    messages = turns_after - turns
    if messages <= 0:
        raise RuntimeError("no message was handled")
    own = cpu_after - cpu
    return own / messages, (own + coordinator_after - coordinator) / messages, epochs, own / seconds


async def _quiet(processes: Processes, interval_ms: int) -> None:
    """Until no epoch of the window before is open, unless this one has epochs of its own."""
    still_open = not interval_ms
    while still_open:
        status = await processes.cluster.call("GET", "/v1/status")
        still_open = bool(status["epochs"]["open"])
