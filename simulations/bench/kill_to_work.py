"""SIGKILL to one of 8 processes with 1000 agents of 5 KB in all: from the kill to the first new turn everywhere.

Measured: real processes over WebSocket, one coordinator, an epoch every second; the killed process is started again at once, as an
init system does. The notes split it: detect (until the leader knows), restart (until the process is there again and has
registered), load (until everybody has its part of the epoch), replay (until a new turn is over at every participant).

Reference: the same process started for nothing: until Python has imported what a participant needs, in the same run, between two
kills. It is what a restart costs on this machine, whatever we do; the bar of 1 s is for the whole, in seconds.

Bound: a bare start, and then a wait for the disk for each of some six entries and orders (session, adoption of none, rollback,
fence, incarnation on each disk, acknowledgements), the manifest and one eighth of the state read and decoded, 50 ms together.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

from simulations.bench.cells import Spec
from simulations.bench.measure import Row, Settings, median, row_of, scratch_folder
from simulations.demo.cluster import LocalCluster
from simulations.demo.recovery import epoch_open, incarnation_of, kill_participant

if TYPE_CHECKING:
    from pathlib import Path

    from simulations.demo.recovery import RecoverySeconds

NAME = "kill-to-work"
BAR_SECONDS = 1.0
MODULE = "simulations.bench.cells"
EPOCH_WAIT_SECONDS = 30.0
POLL_SECONDS = 0.02
POLICY = {
    "kind": "periodic",
    "interval_ms": 1000,
    "pause_ms": 100,
    "recovery": "auto",
    "takeover_after_ms": 0,
    "max_rollbacks": 0,
    "rollback_window_ms": 1000,
}


async def run(settings: Settings) -> list[Row]:
    """One cluster, some kills."""
    participants, agents = settings.pick((2, 20), (8, 1000), (8, 1000))
    with scratch_folder() as folder:
        (folder / "cluster").mkdir()
        return await _case(folder / "cluster", participants, agents, settings.pick(1, 3, 9))


async def _case(folder: Path, participants: int, agents: int, cycles: int) -> list[Row]:
    cluster = LocalCluster(folder, name="bench", coordinator_count=1)
    await asyncio.to_thread(cluster.prepare, {"kind": "manual", "pause_ms": 0})
    found: list[RecoverySeconds] = []
    starts: list[float] = []
    try:
        await cluster.start_coordinators()
        specs = [
            Spec(
                id=f"host-{index + 1}",
                cluster=cluster.name,
                coordinators=tuple(each.http for each in cluster.coordinators),
                transport="websocket",
                store=cluster.store,
                secret_file=cluster.secret_file,
                local=str(folder / "local"),
                cells=agents // participants,
            )
            for index in range(participants)
        ]
        await asyncio.gather(*(cluster.start_participant(spec, module=MODULE) for spec in specs))
        await cluster.call("PUT", "/v1/policy", POLICY)
        for cycle in range(cycles):
            starts.append(await _bare_start())
            victim = specs[1 + cycle % (participants - 1)]
            for _ in range(2):  # The second one holds what the first one's participants did.
                await _epoch_over(cluster)
            recovery = await kill_participant(
                cluster, victim, _say_nothing, where="", before=await incarnation_of(cluster), module=MODULE
            )
            found.append(recovery.seconds)
    finally:
        await cluster.stop()
    parts = ", ".join(
        f"{part} {median([getattr(seconds, part) for seconds in found]):.2f}"
        for part in ("detect", "restart", "load", "replay", "total")
    )
    case = f"{participants} processes, {agents} agents"
    return [
        row_of(
            NAME,
            case,
            "kill to new turns everywhere / bare start",
            list(zip([seconds.total for seconds in found], starts, strict=True)),
            unit="s",
            notes=f"{parts} s; bare start {median(starts):.2f}",
        ),
        row_of(
            NAME,
            case,
            "kill to new turns everywhere / 1 s",
            [(seconds.total, BAR_SECONDS) for seconds in found],
            bar=1.0,
            unit="s",
            notes="the bar is absolute, the machine is not",
        ),
    ]


async def _epoch_over(cluster: LocalCluster) -> None:
    epoch = await epoch_open(cluster, EPOCH_WAIT_SECONDS)
    while epoch in (await cluster.call("GET", "/v1/status"))["epochs"]["open"]:
        await cluster.work_for(POLL_SECONDS)


async def _bare_start() -> float:
    began = time.perf_counter()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"import {MODULE}, participant.runtime.participant, aiohttp"
    )
    if await child.wait():
        raise RuntimeError("a bare start failed")
    return time.perf_counter() - began


def _say_nothing(_line: str) -> None:
    """The narrator of the demo has nothing to say here."""
