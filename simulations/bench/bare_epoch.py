"""A bare epoch: what an epoch cannot do without, and nothing else. The reference of the benchmarks of whole epochs.

An order to each participant, a marker through a queue for each channel of a full mesh, one file with fsync for each
participant's part, a report each over TCP on loopback, one manifest with fsync. No sequence numbers, no digests, no MACs, no
check of the cut, no names made durable (no fsync of folders).
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

REPORT_BYTES: Final = 64


class BareEpoch:
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
