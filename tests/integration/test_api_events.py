"""`/v1/events`: what happened, in order, with numbers that show what was missed."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web

from coordinator.runtime import events as events_module
from coordinator.runtime.events import EventLog
from tests.integration.api_fixture import client, listening
from tests.integration.coordinators import Scripted, cluster


class Reader:
    """Reads events from a response."""

    def __init__(self, response):
        self._content = response.content

    async def next(self) -> dict:
        fields = {}
        while True:
            line = (await asyncio.wait_for(self._content.readline(), 10)).decode().rstrip("\n")
            if not line and "data" in fields:
                document = json.loads(fields["data"])
                assert fields["id"] == str(document["seq"])
                assert fields["event"] == document["kind"]
                return document
            name, _, value = line.partition(": ")
            if name:
                fields[name] = value


async def test_events_come_as_they_happen_and_from_where_a_reader_left_off():
    log = EventLog("boot")
    app = web.Application()
    app.router.add_get("/v1/events", log.serve)
    log.record("before", 1)
    async with listening(app) as url, client() as session:
        async with session.get(f"{url}/v1/events") as response:
            assert response.content_type == "text/event-stream"
            reader = Reader(response)
            assert await reader.next() == {"kind": "stream", "seq": 1, "boot": "boot"}
            log.record("epoch-started", 2, epoch=1)
            log.record("epoch-aborted", 3, epoch=1, cause="a\nb\r\nid: 99\u2028</script>")
            assert await reader.next() == {"seq": 2, "kind": "epoch-started", "at_ms": 2, "epoch": 1}
            assert (await reader.next())["cause"] == "a\nb\r\nid: 99\u2028</script>"
        async with session.get(f"{url}/v1/events", headers={"Last-Event-ID": "2"}) as response:
            reader = Reader(response)
            await reader.next()
            assert (await reader.next())["seq"] == 3
            log.close()
            assert await response.content.read() == b""
    assert log.readers == 0


async def test_a_reader_with_a_number_of_the_process_before_misses_nothing_from_now_on():
    log = EventLog("boot")
    app = web.Application()
    app.router.add_get("/v1/events", log.serve)
    log.record("before", 1)
    async with (
        listening(app) as url,
        client() as session,
        session.get(f"{url}/v1/events", headers={"Last-Event-ID": "5000"}) as response,
    ):
        reader = Reader(response)
        assert await reader.next() == {"kind": "stream", "seq": 1, "boot": "boot"}
        log.record("epoch-started", 2, epoch=1)
        assert (await reader.next())["seq"] == 2


async def test_what_fell_out_of_the_ring_is_told_as_a_gap(monkeypatch):
    monkeypatch.setattr(events_module, "EVENTS_KEPT_MAX", 3)
    log = EventLog("boot")
    for number in range(1, 8):
        log.record("x", number)
    app = web.Application()
    app.router.add_get("/v1/events", log.serve)
    async with listening(app) as url, client() as session, session.get(f"{url}/v1/events?since=2") as response:
        reader = Reader(response)
        await reader.next()
        assert await reader.next() == {"kind": "gap", "seq": 4, "missed": 2}
        assert [(await reader.next())["seq"] for _ in range(3)] == [5, 6, 7]
        log.close()


async def test_readers_are_bounded(monkeypatch):
    monkeypatch.setattr(events_module, "READERS_MAX", 0)
    log = EventLog("boot")
    with pytest.raises(events_module.ApiError):
        await log.serve(None)


@pytest.mark.slow
async def test_an_epoch_is_told_from_start_to_commit(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1"):
        headers = {"Authorization": f"Bearer {running.keys.token('viewer')}"}
        async with running.session.get(f"{running.c1.url}/v1/events", headers=headers) as response:
            reader = Reader(response)
            assert (await reader.next())["kind"] == "stream"
            await running.call("POST", "/v1/epochs", {"wait": True})
            told = [await reader.next() for _ in range(4)]
            assert [each["kind"] for each in told] == [
                "epoch-started",
                "epoch-reported",
                "epoch-sealed",
                "epoch-committed",
            ]
            assert {each["epoch"] for each in told} == {1}
            assert await running.c1.end() == 0
