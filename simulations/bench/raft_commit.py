"""Raft commit: one small command through three coordinators, and how many commands an epoch costs.

Measured: ``PUT /v1/policy`` at the leader: HTTP, one ledger command of about 200 bytes, replicated over mutual TLS, synced by a
quorum, applied, answered. And the commands that the ledger applied for an epoch of two participants.

Reference: a 200-byte append with fdatasync, and two round trips over TCP on loopback (the request's, and one to another
coordinator): the least that any replicated commit takes. etcd, against which the goal of twice its time is set, is not
measured: no etcd is among what this project installs, so the first row has no bar.

Bound: the library sends entries in its tick, which follows the request within 1 ms; TLS and the pickle of a message are
0.2 ms, HTTP 0.5 ms: 2 ms where the reference takes 0.5.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

from simulations.bench.measure import Row, Settings, interleave, median, row_of, scratch_folder
from simulations.bench.processes import Processes

if TYPE_CHECKING:
    from pathlib import Path

NAME = "raft-commit"
ENTRY_BYTES = 200
ENTRIES_BESIDES_REPORTS = 2
PARTICIPANTS = 2


async def run(settings: Settings) -> list[Row]:
    """Time of a commit, and commands for each epoch."""
    cycles = settings.pick(1, 11, 31)
    commits = settings.pick(2, 20, 50)
    with scratch_folder() as folder:
        (folder / "cluster").mkdir()
        async with Processes(folder / "cluster", coordinators=3) as processes:
            bare = _Bare(folder)
            await bare.start()

            async def ours() -> float:
                began = time.perf_counter()
                for number in range(commits):
                    await processes.cluster.call("PUT", "/v1/policy", {"kind": "manual", "pause_ms": number % 7})
                return (time.perf_counter() - began) / commits

            async def reference() -> float:
                began = time.perf_counter()
                for _ in range(commits):
                    await bare.commit()
                return (time.perf_counter() - began) / commits

            try:
                samples = await interleave(ours, reference, cycles)
            finally:
                await bare.stop()
            await processes.set_policy(0)
            entries: list[tuple[float, float]] = []
            for _ in range(cycles):
                before = await _applied(processes)
                await processes.epoch()
                used = float(await _applied(processes) - before)
                entries.append((used, float(ENTRIES_BESIDES_REPORTS + PARTICIPANTS)))
    notes = (
        f"{1000 * median([taken for taken, _ in samples]):.2f} ms with HTTP, "
        f"bare {1000 * median([taken for _, taken in samples]):.2f}; etcd is not measured"
    )
    return [
        row_of(NAME, "3 coordinators", "commit / fdatasync and two round trips", samples, unit="s", notes=notes),
        row_of(
            NAME,
            "commands for each epoch",
            "entries / (2 and a report for each participant)",
            entries,
            bar=1.0,
            unit="entries",
        ),
    ]


async def _applied(processes: Processes) -> int:
    """Entries that the leader has applied. Not a fresh read: that would be an entry of its own."""
    status: dict[str, Any] = await processes.cluster.call("GET", "/v1/status")
    return max(int(one["applied"]) for one in status["coordinators"] if one["applied"] is not None)


class _Bare:
    """Append, fdatasync, two round trips."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._server: asyncio.Server | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> None:
        """One connection to an echo."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(_Echo, "127.0.0.1", 0)
        self._reader, self._writer = await asyncio.open_connection(*self._server.sockets[0].getsockname()[:2])

    async def commit(self) -> None:
        """One."""
        entry = b"x" * ENTRY_BYTES
        await self._round_trip(entry)
        os.write(self._file, entry)
        os.fdatasync(self._file)
        await self._round_trip(entry)

    async def stop(self) -> None:
        """End."""
        os.close(self._file)
        if self._writer is not None:
            self._writer.close()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _round_trip(self, data: bytes) -> None:
        assert self._reader is not None
        assert self._writer is not None
        self._writer.write(data)
        await self._reader.readexactly(len(data))


class _Echo(asyncio.Protocol):
    def __init__(self) -> None:
        self._stream: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._stream = transport

    def data_received(self, data: bytes) -> None:
        assert self._stream is not None
        self._stream.write(data)
