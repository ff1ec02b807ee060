"""SIGKILL to one of 8 processes with 1000 agents of 5 KB in all: from the kill to new turns, with either durability.

Measured: real processes over WebSocket, one coordinator, an epoch every second; the killed process is started again at once, as an
init system does. The notes split it.

``epoch``: to the first new turn at every participant. Detect (until the leader knows), restart (until the process is there again
and has registered), load (until everybody has its part of the epoch), replay (until a new turn is over everywhere).

``turn``: to the first new turn of the one that was killed; the others go on meanwhile. Detect runs beside the rest; restart
(until its process has imported all), load (until its state is back out of base and log), replay (until it is a member again and
a turn is over).

Reference: the same process started for nothing: until Python has imported what a participant needs, in the same run, between two
kills. It is what a restart costs on this machine, whatever we do; the bars of 1 s and 0.5 s are for the whole, in seconds.

Bound: a bare start, and then a wait for the disk for each of some six entries and orders (session, adoption of none, rollback,
fence, incarnation on each disk, acknowledgements), the manifest and one eighth of the state read and decoded, 50 ms together.
"""

from __future__ import annotations

import asyncio
import itertools
import os
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
BAR_SECONDS = {"epoch": 1.0, "turn": 0.5}
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
    rows: list[Row] = []
    with scratch_folder() as folder:
        for durability in BAR_SECONDS:
            (folder / durability).mkdir()
            rows += await _case(folder / durability, durability, participants, agents, settings.pick(1, 3, 9))
    return rows


async def _case(folder: Path, durability: str, participants: int, agents: int, cycles: int) -> list[Row]:
    cluster = LocalCluster(folder, name="bench", coordinator_count=1)
    await asyncio.to_thread(cluster.prepare, {"kind": "manual", "pause_ms": 0, "durability": durability})
    found: list[RecoverySeconds] = []
    known: list[float] = []
    work: list[dict[str, float]] = []
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
                durability=durability,
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
            before = await incarnation_of(cluster)
            watching = asyncio.create_task(_known_after(cluster, victim.id)) if durability == "turn" else None
            recovery = await kill_participant(cluster, victim, _say_nothing, where="", before=before, module=MODULE)
            found.append(recovery.seconds)
            known.append(recovery.seconds.detect if watching is None else await watching)
            work.append((await cluster.ask(victim.id, {"do": "returns"}))["times"])
    finally:
        await cluster.stop()
    parts = ", ".join(
        f"{part} {median([getattr(seconds, part) for seconds in found]):.2f}"
        for part in ("restart", "load", "replay", "total")
    )
    case = f"{participants} processes, {agents} agents, durability {durability}"
    what = "kill to new turns everywhere" if durability == "epoch" else "kill to a new turn of the killed one"
    bar = BAR_SECONDS[durability]
    return [
        row_of(
            NAME,
            case,
            f"{what} / bare start",
            list(zip([seconds.total for seconds in found], starts, strict=True)),
            unit="s",
            notes=f"detect {median(known):.2f}, {parts} s; bare start {median(starts):.2f}; CPU of the new process: {_cpu(work)}",
        ),
        row_of(
            NAME,
            case,
            f"{what} / {bar:g} s",
            [(seconds.total, bar) for seconds in found],
            bar=1.0,
            unit="s",
            notes="the bar is absolute, the machine is not",
        ),
    ]


def _cpu(work: list[dict[str, float]]) -> str:
    """CPU seconds of the process that was started: they tell more than seconds do where other work is going on."""
    marks = ("started", "entered", "resumed")
    found = [median([each[f"{mark}_cpu"] for each in work]) for mark in marks if f"{mark}_cpu" in work[0]]
    steps = [found[0], *(after - before for before, after in itertools.pairwise(found))]
    return ", ".join(
        f"{what} {step:.2f}" for what, step in zip(("imports", "entering", "first turn"), steps, strict=False)
    )


async def _known_after(cluster: LocalCluster, name: str) -> float:
    """Seconds from now until the leader does not count a participant's present life as a member any more."""
    began = time.perf_counter()
    sessions: list[int] = []
    while True:
        listed = (await cluster.call("GET", "/v1/participants"))["participants"]
        (found,) = [each for each in listed if each["id"] == name]
        sessions = sessions or [found["session"]]
        if found["state"] != "member" or found["session"] != sessions[0]:
            return time.perf_counter() - began
        await cluster.work_for(POLL_SECONDS)


async def _epoch_over(cluster: LocalCluster) -> None:
    epoch = await epoch_open(cluster, EPOCH_WAIT_SECONDS)
    while epoch in (await cluster.call("GET", "/v1/status"))["epochs"]["open"]:
        await cluster.work_for(POLL_SECONDS)


async def _bare_start() -> float:
    began = time.perf_counter()
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        f"import {MODULE}, participant.runtime.participant, participant.runtime.transports.websocket",
        env=environment,
    )
    if await child.wait():
        raise RuntimeError("a bare start failed")
    return time.perf_counter() - began


def _say_nothing(_line: str) -> None:
    """The narrator of the demo has nothing to say here."""
