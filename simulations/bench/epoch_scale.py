"""Epoch duration against the number of agents, of participants and of channels; against a bare epoch.

Measured: from the start of an epoch to its commit, everything durable on disk: participants in this process on the memory
transport, with the coordinator in memory that checks each cut and writes the manifest. First 8 participants with more and
more agents of 1 KB; then more and more participants, full mesh of channels. Between two epochs one agent of each
participant changes, so each writes a pack.

Reference: a bare epoch with the same participants, channels and bytes, and nothing else: an order to each, a marker through
a queue for each channel, one file with fsync for each participant's part, a report each over TCP on loopback, one manifest
with fsync. No sequence numbers, no digests, no MACs, no check of the cut, no names made durable (no fsync of folders).
The second reference puts all parts of an epoch into *one* file with one fsync: what one process could do, and a cluster
could not.

Bound: per participant a pack and a local snapshot, each a file, fsync, rename and fsync of the folder; four waits for the disk
where the bare epoch has one, two threads of them at a time. Per channel two markers' framing and MACs (8 us a side), a
digest at both ends (2 us) and the check (3 us): some 25 us, against 0.4 us for a queue.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from participant import Agent, Context, handler, value
from protocol.storage import open_store
from simulations.bench.local import CLUSTER, LocalParticipants
from simulations.bench.measure import Row, Settings, median, row_of, scratch_folder
from simulations.bench.turn_path import Ball

if TYPE_CHECKING:
    from pathlib import Path

NAME = "epoch-scale"
AGENT_BYTES = 1000
REPORT_BYTES = 64
FLINK_MS_AT_4096_CHANNELS = 460.0
"""Measured elsewhere; the bar is a twentieth of it."""


class Small(Agent, kind="small"):
    """1 KB of state."""

    seen = value(int, default=0)
    text = value(str, default="x" * AGENT_BYTES)

    @handler
    async def on_ball(self, ctx: Context, ball: Ball) -> None:
        """Change something."""
        self.seen += 1


async def run(settings: Settings) -> list[Row]:
    """Both scales."""
    rows: list[Row] = []
    cycles = settings.pick(1, 9, 25)
    for agents in settings.pick([8], [8, 64, 256, 1000], [8, 64, 256, 1000]):
        rows += await _case(f"{agents} agents on 8 participants", 8, agents, cycles)
    for participants in settings.pick([4], [8, 64, 256], [8, 64, 256, 1000]):
        few = cycles if participants <= 64 else max(1, cycles // 3)
        rows += await _case(f"{participants} participants", participants, participants, few)
    return rows


async def _case(case: str, participants: int, agents: int, cycles: int) -> list[Row]:
    channels = participants * (participants - 1)
    own: list[tuple[float, float]] = []
    one: list[tuple[float, float]] = []
    with scratch_folder() as folder:
        groups: list[list[Small]] = [[] for _ in range(participants)]
        for number in range(agents):
            groups[number % participants].append(Small(f"a{number}"))
        async with LocalParticipants(groups, store=open_store(str(folder), CLUSTER)) as cluster:
            for participant in cluster.participants:
                await participant.wait_idle()
            bare = _Bare(folder, participants)
            await bare.start()
            try:
                for cycle in range(cycles + 1):
                    for participant, group in zip(cluster.participants, groups, strict=True):
                        participant.ingest_nowait(group[0].id, Ball(cycle, ""))
                        await participant.wait_idle()
                    began = time.perf_counter()
                    await cluster.conductor.epoch()
                    took = time.perf_counter() - began
                    # As many bytes as a part with its snapshot has.
                    apart = await bare.epoch(1500, together=False)
                    together = await bare.epoch(1500, together=True)
                    if cycle:
                        own.append((took, apart))
                        one.append((took, together))
            finally:
                await bare.stop()
    ours = [taken for taken, _ in own]
    notes = (
        f"{1000 * median(ours):.1f} ms, bare {1000 * median([apart for _, apart in own]):.1f}, "
        f"bare with one file {1000 * median([together for _, together in one]):.1f}; {channels} channels"
    )
    rows = [
        row_of(NAME, case, "epoch / bare epoch, a file for each participant", own, bar=2.0, unit="s", notes=notes),
        row_of(NAME, case, "epoch / bare epoch, one file in all", one, unit="s"),
    ]
    if channels == 4032:
        rows.append(
            row_of(
                NAME,
                case,
                "epoch / Flink's at 4,096 channels (460 ms elsewhere)",
                [(1000 * taken, FLINK_MS_AT_4096_CHANNELS) for taken in ours],
                bar=0.05,
                unit="ms",
            )
        )
    return rows


class _Bare:
    """Order, marker, pack and fsync, report over TCP, manifest and fsync; nothing else."""

    def __init__(self, folder: Path, participants: int) -> None:
        self._folder = folder / "bare"
        self._folder.mkdir()
        self._count = participants
        self._epoch = 0
        self._inboxes: list[asyncio.Queue[int]] = [asyncio.Queue() for _ in range(participants)]
        self._tasks: list[asyncio.Task[None]] = []
        self._reports: asyncio.Queue[bytes] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._part = b""
        self._together = False

    async def start(self) -> None:
        """One connection and one task for each participant."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Collector(self._reports), "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        for number in range(self._count):
            _, writer = await asyncio.open_connection(host, port)
            self._writers.append(writer)
            self._tasks.append(asyncio.create_task(self._participate(number)))

    async def epoch(self, part_bytes: int, *, together: bool) -> float:
        """Seconds from order to manifest."""
        self._epoch += 1
        self._part = os.urandom(part_bytes)
        self._together = together
        began = time.perf_counter()
        for inbox in self._inboxes:
            inbox.put_nowait(self._epoch)
        reports = [await self._reports.get() for _ in range(self._count)]
        if together:
            await asyncio.to_thread(_durable, self._folder / f"pack-{self._epoch}", self._part * self._count)
        await asyncio.to_thread(_durable, self._folder / f"manifest-{self._epoch}", b"".join(reports))
        return time.perf_counter() - began

    async def stop(self) -> None:
        """End."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _participate(self, me: int) -> None:
        inbox = self._inboxes[me]
        others = [queue for number, queue in enumerate(self._inboxes) if number != me]
        while True:
            epoch = await inbox.get()
            for other in others:
                other.put_nowait(epoch)
            for _ in others:
                await inbox.get()
            # The order and all markers carry the same number, so which one came first does not matter.
            if not self._together:
                await asyncio.to_thread(_durable, self._folder / f"{me}-{epoch}", self._part)
            self._writers[me].write(b"%08d" % me * (REPORT_BYTES // 8))


class _Collector(asyncio.Protocol):
    """Takes reports of 64 bytes."""

    def __init__(self, reports: asyncio.Queue[bytes]) -> None:
        self._reports = reports
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT_BYTES
        for start in range(0, whole, REPORT_BYTES):
            self._reports.put_nowait(data[start : start + REPORT_BYTES])
        self._rest = data[whole:]


def _durable(path: Path, data: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())
