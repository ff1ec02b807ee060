"""What a coordinator raises, a sink obeys: the two sides of one fence, on real files, SQLite and HTTP."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from coordinator.runtime.sink_fences import open_fence
from participant.sinks import FileSink, HttpSink
from protocol.errors import ConfigError, FencedError, IllegalName, Unreachable
from protocol.outputs import FencingToken
from tests.integration.test_sinks import WRITER, Service, lines, output, serving, sql_sink


async def test_a_file_sink_refuses_a_zombie_once_its_coordinator_has_raised_the_fence(tmp_path):
    path = tmp_path / "out.jsonl"
    zombie = FileSink("receipts", path)
    await zombie.deliver(WRITER, [output(1)])
    name, fence = open_fence(f"file:{path}#receipts")
    assert name == f"file:{path}#receipts"
    await asyncio.to_thread(fence.raise_to, 2, 7)
    await asyncio.to_thread(fence.raise_to, 1, 7)
    with pytest.raises(FencedError, match="and 2 has begun"):
        await zombie.deliver(WRITER, [output(2)])
    await zombie.deliver(FencingToken("p1", 2, 6), [output(2)])
    assert lines(path) == [1, 2]
    await zombie.close()


@pytest.mark.parametrize("kind", ["file", "sqlite"])
async def test_a_fence_can_stand_before_its_sink_was_ever_opened(kind, tmp_path):
    path = tmp_path / "out"
    _, fence = open_fence(f"{kind}:{path}#receipts")
    await asyncio.to_thread(fence.raise_to, 3, 7)
    sink = FileSink("receipts", path) if kind == "file" else sql_sink(path)
    with pytest.raises(FencedError):
        await sink.open(WRITER)
    await sink.deliver(FencingToken("p1", 3, 9), [output(1)])
    await sink.close()


async def test_a_service_is_fenced_by_its_url():
    service = Service()
    async with serving(service) as url:
        name, fence = open_fence(f"{url}/fence")
        assert name == f"{url}/fence"
        await asyncio.to_thread(fence.raise_to, 2, 7)
        sink = HttpSink("receipts", f"{url}/receipts")
        with pytest.raises(FencedError):
            await sink.deliver(WRITER, [output(1)])
        service.statuses = [500]
        with pytest.raises(Unreachable, match="500"):
            await asyncio.to_thread(fence.raise_to, 3, 7)
        await sink.close()


async def test_a_lock_that_is_held_and_a_folder_that_is_not_there_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr("coordinator.runtime.sink_fences.SECONDS", 0.1)
    _, fence = open_fence(f"sqlite:{tmp_path}/out.db#receipts")
    fence.raise_to(1, 1)
    with sqlite3.connect(tmp_path / "out.db") as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unreachable, match="does a stopped process hold its lock"):
            fence.raise_to(2, 1)
    other.close()
    _, elsewhere = open_fence(f"sqlite:{tmp_path}/nowhere/out.db#receipts")
    with pytest.raises(Unreachable, match="there is no folder"):
        elsewhere.raise_to(2, 1)


@pytest.mark.parametrize(
    "text", ["receipts", "file:/x", "file:x#receipts", "ftp://x/y", "sqlite://host/x#y", "https:///x"]
)
def test_what_is_no_fence_is_refused(text):
    with pytest.raises(ConfigError, match="fences"):
        open_fence(text)


def test_a_sink_s_name_is_checked():
    with pytest.raises(IllegalName):
        open_fence("file:/x#A B")


def test_a_password_in_a_url_is_no_part_of_the_name():
    name, _ = open_fence("https://user:secret@bank.example/fence")
    assert name == "https://bank.example/fence"
