"""What a coordinator raises, a sink obeys: the two sides of one fence, on real files, SQLite and HTTP."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from coordinator.runtime.sink_fences import open_fence
from participant.sinks import FileSink, HttpSink
from protocol.errors import ConfigError, FencedError, IllegalName, Unreachable
from protocol.outputs import FencingToken
from tests.integration.coordinators import Scripted, cluster, until
from tests.integration.test_sinks import WRITER, Service, lines, output, serving, sql_sink


async def test_a_file_sink_refuses_a_zombie_once_its_coordinator_has_raised_the_fence(tmp_path):
    path = tmp_path / "out.jsonl"
    zombie = FileSink("receipts", path)
    await zombie.deliver(WRITER, [output(1)])
    fence = open_fence("receipts", f"file:{path}")
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
    fence = open_fence("some-name", f"{kind}:{path}#receipts")
    await asyncio.to_thread(fence.raise_to, 3, 7)
    sink = FileSink("receipts", path) if kind == "file" else sql_sink(path)
    with pytest.raises(FencedError):
        await sink.open(WRITER)
    await sink.deliver(FencingToken("p1", 3, 9), [output(1)])
    await sink.close()


async def test_a_service_is_fenced_by_its_url():
    service = Service()
    async with serving(service) as url:
        fence = open_fence("bank", f"{url}/fence")
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
    fence = open_fence("x", f"sqlite:{tmp_path}/out.db#receipts")
    fence.raise_to(1, 1)
    with sqlite3.connect(tmp_path / "out.db") as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unreachable, match="does a stopped process hold its lock"):
            fence.raise_to(2, 1)
    other.close()
    elsewhere = open_fence("x", f"sqlite:{tmp_path}/nowhere/out.db#receipts")
    with pytest.raises(Unreachable, match="there is no folder"):
        elsewhere.raise_to(2, 1)


@pytest.mark.parametrize("text", ["receipts", "file:x#receipts", "ftp://x/y", "sqlite://host/x#y", "https:///x"])
def test_what_is_no_fence_is_refused(text):
    with pytest.raises(ConfigError, match="fences"):
        open_fence("x", text)


def test_a_sink_s_name_is_checked():
    with pytest.raises(IllegalName):
        open_fence("x", "file:/x#A B")


def test_a_password_in_a_url_is_in_no_error():
    fence = open_fence("bank", "http://user:secret@127.0.0.1:9/fence")
    with pytest.raises(Unreachable, match="fence bank") as error:
        fence.raise_to(2, 1)
    assert "secret" not in str(error.value)


@pytest.mark.slow
async def test_a_cluster_raises_the_fences_in_its_settings_before_it_restores_and_the_old_life_is_refused(tmp_path):
    """The frozen twin: what an old incarnation still has to say reaches no sink, whatever it believes."""
    path = tmp_path / "out.jsonl"
    service = Service()
    zombie = FileSink("receipts", path)
    await zombie.deliver(WRITER, [output(1)])
    async with serving(service) as url:
        fences = f'fences = {{ receipts = "file:{path}", bank = "{url}/fence" }}'
        async with cluster(tmp_path, extra=fences, recovery="auto") as made, Scripted(made, "p1") as one:
            assert one.session
            status, record, _ = await made.call("POST", "/v1/epochs", {"reason": "test", "wait": True})
            assert (status, record["state"]) == (201, "committed")
            status, rollback, _ = await made.call(
                "POST", "/v1/epochs/latest/restore", {"reason": "test", "wait": False}
            )
            assert (status, rollback["incarnation"]) == (201, 2)

            async def raised() -> bool:
                found = (await made.get("/v1/incarnations"))["rollbacks"][0]
                return set(found["fences"].values()) == {True} and len(found["fences"]) == 3

            await until(raised, "all three fences stand")
            assert service.fence.incarnation == 2
            with pytest.raises(FencedError, match="and 2 has begun"):
                await zombie.deliver(WRITER, [output(2)])
            http = HttpSink("bank", f"{url}/receipts")
            with pytest.raises(FencedError):
                await http.deliver(WRITER, [output(2)])
            await http.close()
    await zombie.close()
    assert lines(path) == [1]
