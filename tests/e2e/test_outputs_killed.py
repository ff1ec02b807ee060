"""Input comes once and output leaves once, whatever moment a process dies at; a frozen twin is refused (A8)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from protocol.failpoints import EXIT_CODE, PERMISSION, VARIABLE
from tests.integration.coordinators import CLUSTER, cluster, until

if TYPE_CHECKING:
    from asyncio.subprocess import Process

SCRIPT = Path(__file__).with_name("till_process.py")
ROOT = Path(__file__).parents[2]
SALES = 9
POINTS = [
    "input.durable@3",
    "log.before_sync@3",
    "log.after_sync@4",
    "output.before_deliver",
    "output.after_deliver",
    "sink.file_written",
    "sink.file_synced",
    "sink.file_indexed@3",
    "sink.file_committed@3",
    "report.before_send",
]


class Shop:
    """Two participants as processes, with one file for the sales of both."""

    def __init__(self, made, folder: Path) -> None:
        self.made = made
        self.folder = folder
        self.out = folder / "sales.jsonl"
        self.processes: dict[str, Process] = {}

    async def start(self, name: str, failpoints: str = "") -> Process:
        given = {
            "id": name,
            "cluster": CLUSTER,
            "coordinators": [each.http for each in self.made.coordinators],
            "store": self.made.store_url,
            "secret_file": str(self.made.secret_file),
            "local": str(self.folder / "local"),
            "out": str(self.out),
        }
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if failpoints:
            environment |= {PERMISSION: "1", VARIABLE: failpoints}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SCRIPT),
            json.dumps(given),
            cwd=ROOT,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self.processes[name] = process
        return process

    async def member(self, name: str) -> None:
        async with asyncio.timeout(30):
            line = await self.processes[name].stdout.readline()
        assert "member" in json.loads(line), line

    async def end(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            await process.wait()
            process._transport.close()

    async def sell(self, number: int) -> None:
        """As a client does that wants it taken once: the same token until there is an answer."""
        agent = "till/a" if number % 2 else "till/b"
        order = {"type": "Sale", "body": {"number": number}, "token": f"sale-{number}"}

        async def taken() -> bool:
            try:
                status, document, _ = await self.made.call("POST", f"/v1/agents/{agent}/messages", order)
            except (aiohttp.ClientError, TimeoutError):
                return False
            assert status in {200, 201, 404, 409, 429, 503, 504}, document
            return status in {200, 201}

        await until(taken, f"sale {number} is taken", 60)

    async def epoch(self) -> None:
        """One more epoch that commits; those that a rollback meets do not."""

        async def committed() -> bool:
            status, document, _ = await self.made.call("POST", "/v1/epochs", {"reason": "test", "wait": True})
            return status == 201 and document["state"] == "committed"

        await until(committed, "an epoch commits", 60)

    async def written(self, count: int) -> None:
        """Until so many lines are in the file: what was still on its way at one cut is released by a later one."""
        for _ in range(20):
            await self.epoch()
            try:
                await until(lambda: len(self.lines()) >= count, "lines", 1)
            except AssertionError:
                continue
            return
        raise AssertionError(f"{len(self.lines())} lines of {count}: {self.lines()}")

    def lines(self) -> list[tuple[str, int]]:
        return [(each["till"], each["number"]) for each in map(json.loads, self.out.read_bytes().splitlines())]


@asynccontextmanager
async def shop(folder: Path, **policy):
    settings = {"recovery": "auto", "max_rollbacks": 0, "takeover_after_ms": 0, **policy}
    async with cluster(folder, **settings) as made:
        one = Shop(made, folder)
        try:
            yield one
        finally:
            await one.end()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", POINTS)
async def test_a_process_that_dies_at_any_point_sells_everything_once(tmp_path: Path, point: str) -> None:
    name, _, nth = point.partition("@")
    async with shop(tmp_path) as one:
        await one.start("a", f"{name}=exit@{nth or 1}")
        await one.start("b")
        await one.member("a")
        await one.member("b")

        async def revived() -> bool:
            code = await one.processes["a"].wait()
            if code == EXIT_CODE:
                await one.start("a")
                await one.member("a")
            return code == EXIT_CODE

        reviving = asyncio.ensure_future(revived())
        await one.epoch()
        for number in range(SALES):
            await one.sell(number)
            if number % 3 == 2:
                await one.epoch()
        async with asyncio.timeout(60):
            assert await reviving, "the point was never passed"
        expected = sorted((till, number) for number in range(SALES) for till in ("till/a", "till/b"))
        await one.written(len(expected))
        await one.epoch()
        assert sorted(one.lines()) == expected


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_frozen_twin_that_wakes_after_its_successor_began_writes_nothing_and_ends_with_a_clear_error(
    tmp_path: Path,
) -> None:
    async with shop(tmp_path) as one:
        twin = await one.start("a")
        await one.start("b")
        await one.member("a")
        await one.member("b")
        await one.sell(1)
        await one.written(2)
        await one.sell(3)
        twin.send_signal(signal.SIGSTOP)
        await one.start("a")
        await one.member("a")
        await one.sell(5)
        await one.written(6)
        twin.send_signal(signal.SIGCONT)
        async with asyncio.timeout(30):
            ended = json.loads((await twin.stdout.read()).splitlines()[-1])
            assert await twin.wait() == 3
        twin._transport.close()
        assert ended["ended"] in {"FencedError", "Refused"}
        await one.epoch()
        expected = sorted((till, number) for number in (1, 3, 5) for till in ("till/a", "till/b"))
        assert sorted(one.lines()) == expected
