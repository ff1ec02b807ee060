"""Real processes for benchmarks: coordinators and participants in a folder."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from protocol.errors import SnapshotError
from simulations.bench.traffic import Spec
from simulations.demo import children
from simulations.demo.cluster import LocalCluster

if TYPE_CHECKING:
    from types import TracebackType

_TRIES_MAX = 500
_TRY_SECONDS = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")


class Processes:
    """Coordinators and two participants that pass parcels to each other; an async context manager.

    Args:
        folder: Empty.
        coordinators: 1 or 3.
    """

    def __init__(self, folder: Path, *, coordinators: int = 1) -> None:
        self._folder = folder
        self.cluster = LocalCluster(folder, name="bench", coordinator_count=coordinators)
        self._participants: list[children.Child] = []

    async def __aenter__(self) -> Self:
        """Both participants are members."""
        cluster = self.cluster
        cluster.prepare({"kind": "manual", "pause_ms": 0})
        try:
            await cluster.start_coordinators()
            for me, other in (("left", "right"), ("right", "left")):
                spec = Spec(
                    id=me,
                    other=other,
                    cluster=cluster.name,
                    coordinators=tuple(each.http for each in cluster.coordinators),
                    store=cluster.store,
                    secret_file=cluster.secret_file,
                )
                path = self._folder / f"{me}.json"
                path.write_bytes(msgspec.json.encode(spec))
                child = await children.start(
                    me,
                    [sys.executable, "-m", "simulations.bench.traffic", str(path)],
                    log=self._folder / "logs" / f"{me}.log",
                )
                self._participants.append(child)
            for child in self._participants:
                await _ready(child)
            await self._first_epoch()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all processes."""
        for child in self._participants:
            await child.stop()
        await self.cluster.stop()

    async def throw(self, count: int) -> None:
        """Put so many messages under way."""
        await self._ask(self._participants[0], f"throw {count}")

    async def read(self) -> tuple[float, int]:
        """CPU seconds of both participants, and their turns so far."""
        answers = [await self._ask(child, "read") for child in self._participants]
        return sum(answer["cpu"] for answer in answers), sum(answer["turns"] for answer in answers)

    def coordinator_cpu(self) -> float:
        """CPU seconds of all coordinators, in the kernel's ticks of 10 ms."""
        return sum(_cpu_of(each.child.pid) for each in self.cluster.coordinators if each.child is not None)

    async def set_policy(self, interval_ms: int) -> None:
        """An epoch each interval; 0: none."""
        policy: dict[str, Any] = {"kind": "manual", "pause_ms": 0}
        if interval_ms:
            policy = {"kind": "periodic", "interval_ms": interval_ms, "pause_ms": 0}
        await self.cluster.call("PUT", "/v1/policy", policy)

    async def epoch(self) -> dict[str, Any]:
        """Take one and wait until it has ended.

        Raises:
            RuntimeError: It was not committed.
        """
        ended = await self.cluster.call("POST", "/v1/epochs", {"reason": "bench", "wait": True})
        if ended["state"] != "committed":
            raise RuntimeError(f"epoch {ended['epoch']} is {ended['state']}: {ended['abort']}")
        return ended

    async def _first_epoch(self) -> None:
        """Once both participants have accepted the topology that has both."""
        for _ in range(_TRIES_MAX):
            try:
                await self.epoch()
            except SnapshotError as error:
                if "not-ready" not in str(error):
                    raise
                await asyncio.sleep(_TRY_SECONDS)
            else:
                return
        raise RuntimeError("the participants never accepted the topology")

    async def epochs(self) -> list[dict[str, Any]]:
        """All that have ended, newest first."""
        listed = await self.cluster.call("GET", "/v1/epochs?limit=1000&fresh=1")
        return [epoch for epoch in listed["epochs"] if epoch["state"] in {"committed", "aborted"}]

    async def _ask(self, child: children.Child, line: str) -> dict[str, Any]:
        await child.write_line(line)
        answer = await child.read_line()
        if not answer:
            raise RuntimeError(f"{child.name} has ended: {child.last_lines()}")
        document: dict[str, Any] = json.loads(answer)
        return document


async def _ready(child: children.Child) -> None:
    line = await child.read_line()
    if "ready" not in line:
        raise RuntimeError(f"{child.name} did not start: {child.last_lines()}")


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
