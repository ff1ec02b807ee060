"""Savepoints over the API: names that coordinators agree on, keep through restarts, and take in place of numbers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.coordinators import Scripted, cluster, until

if TYPE_CHECKING:
    from tests.integration.coordinators import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


async def trigger(running: Cluster) -> int:
    status, document, _ = await running.call("POST", "/v1/epochs", {"reason": "test", "wait": True})
    assert (status, document["state"]) == (201, "committed"), document
    return int(document["epoch"])


async def refused(running: Cluster, method: str, path: str, body: Any = None, **how: Any) -> tuple[int, str, str]:
    status, document, _ = await running.call(method, path, body, **how)
    assert status >= 400, document
    return status, document["error"]["code"], document["error"]["hint"]


async def test_what_is_no_savepoint_is_refused_with_a_reason(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1") as one:
        assert await refused(running, "DELETE", "/v1/savepoints/x") == (
            404,
            "no-savepoint",
            "there are none yet: `cleancut epoch pin N NAME`",
        )
        number = await trigger(running)
        one.answers = False
        status, document, _ = await running.call("POST", "/v1/epochs", {"wait": False})
        assert status == 201
        still_open = document["epoch"]
        assert (await running.call("POST", f"/v1/epochs/{number}/pin", {"name": "golden"}))[0] == 201
        for path, body, status, code in [
            (f"/v1/epochs/{still_open}/pin", {"name": "x"}, 409, "not-committed"),
            ("/v1/epochs/99/pin", {"name": "x"}, 404, "no-epoch"),
            ("/v1/epochs/start/pin", {"name": "x"}, 400, "bad-epoch"),
            ("/v1/epochs/nothing/pin", {"name": "x"}, 404, "no-savepoint"),
            (f"/v1/epochs/{number}/pin", {}, 400, "bad-value"),
            (f"/v1/epochs/{number}/pin", {"name": 7}, 400, "bad-value"),
            (f"/v1/epochs/{number}/pin", {"name": "x", "keep": True}, 400, "unknown-key"),
            *(
                (f"/v1/epochs/{number}/pin", {"name": name}, 400, "bad-name")
                for name in ("", "7", "1_000", "latest", "start", "../x", "X", "a b", "x" * 64, "\x1b[2J", "é")
            ),
        ]:
            assert (await refused(running, "POST", path, body))[:2] == (status, code), (path, body)
        for name in ("7", "latest", "X", "x" * 64):
            assert (await refused(running, "DELETE", f"/v1/savepoints/{name}"))[:2] == (400, "bad-name")
        assert await refused(running, "GET", "/v1/epochs/goldne") == (404, "no-savepoint", "did you mean golden?")
        assert await refused(running, "DELETE", "/v1/savepoints/zz") == (404, "no-savepoint", "there are golden")
        for role, status in (("viewer", 403), ("participant", 403), (None, 401)):
            for method, path in (("POST", f"/v1/epochs/{number}/pin"), ("DELETE", "/v1/savepoints/golden")):
                assert (await running.call(method, path, {"name": "x"}, role=role))[0] == status
        listed = await running.get("/v1/savepoints")
        assert [(each["name"], each["epoch"]) for each in listed["savepoints"]] == [("golden", number)]


async def test_a_name_is_taken_wherever_an_epoch_is_meant_and_told_once(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1"):
        first, second = await trigger(running), await trigger(running)
        status, document, _ = await running.call("POST", f"/v1/epochs/{first}/pin", {"name": "golden"})
        assert (status, document["epoch"], document["outcome"]) == (201, first, "pinned")
        status, document, _ = await running.call("POST", f"/v1/epochs/{first}/pin", {"name": "golden"})
        assert (status, document["outcome"]) == (200, "already")
        status, document, _ = await running.call("POST", "/v1/epochs/latest/pin", {"name": "golden"})
        assert (status, document["error"]["code"]) == (409, "name-taken")
        assert f"savepoint golden is epoch {first}" in document["error"]["message"]
        status, document, _ = await running.call("POST", "/v1/epochs/golden/pin", {"name": "alias"})
        assert (status, document["epoch"]) == (201, first)

        shown = await running.get("/v1/epochs/golden")
        assert (shown["epoch"], shown["names"]) == (first, ["alias", "golden"])
        assert (await running.get(f"/v1/epochs/{second}"))["names"] == []
        assert [each["names"] for each in (await running.get("/v1/epochs"))["epochs"]] == [[], ["alias", "golden"]]
        only = await running.get("/v1/epochs?named=1")
        assert [each["epoch"] for each in only["epochs"]] == [first]
        for path in ("why", "agents", "manifest", "state?agent=buyer/p1"):
            assert (await running.get(f"/v1/epochs/golden/{path}"))["epoch"] == first, path
        _, report, _ = await running.call("POST", "/v1/epochs/golden/verify", {})
        assert (report["ok"], report["epoch"]) == (True, first)
        assert (await refused(running, "POST", "/v1/epochs/golden/abort", {}))[:2] == (409, "sealed")
        _, metrics, _ = await running.call("GET", "/metrics")
        assert "cleancut_savepoints 2" in metrics

        status, document, _ = await running.call("DELETE", "/v1/savepoints/alias")
        assert (status, document) == (200, {"name": "alias", "epoch": first, "names": ["golden"]})
        assert (await refused(running, "GET", "/v1/epochs/alias"))[:2] == (404, "no-savepoint")
        told = [each for each in await happened(running) if each["kind"] in {"epoch-pinned", "epoch-unpinned"}]
        assert [(each["kind"], each["epoch"], each["name"]) for each in told] == [
            ("epoch-pinned", first, "golden"),
            ("epoch-pinned", first, "alias"),
            ("epoch-unpinned", first, "alias"),
        ]
        assert "write DELETE /v1/savepoints/alias by operator" in running.c1.text()


async def happened(running: Cluster) -> list[dict[str, Any]]:
    """All events so far, up to one that the test makes for it."""
    assert (await running.call("PUT", "/v1/policy", {}))[0] == 200
    found: list[dict[str, Any]] = []
    assert running.session is not None
    headers = {"Authorization": f"Bearer {running.keys.token('viewer')}"}
    async with (
        asyncio.timeout(20),
        running.session.get(f"{running.c1.url}/v1/events?since=0", headers=headers) as stream,
    ):
        async for line in stream.content:
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
                if found[-1]["kind"] == "policy-changed" and any(each["kind"] == "epoch-unpinned" for each in found):
                    return found
    raise AssertionError("the stream ended")


async def test_names_survive_the_restart_of_all_coordinators_and_any_of_them_takes_and_knows_them(tmp_path):
    async with cluster(tmp_path, 3, recovery="manual") as running, Scripted(running, "p1") as one:
        leader = await running.leader()
        follower = next(each for each in running.coordinators if each is not leader)
        number = await trigger(running)
        await trigger(running)
        status, document, headers = await running.call(
            "POST", f"/v1/epochs/{number}/pin", {"name": "golden"}, at=follower
        )
        assert (status, document["epoch"], headers["Cleancut-Leader"]) == (201, number, "0")
        for each in running.coordinators:
            assert (await running.get("/v1/epochs/golden?fresh=1", at=each))["epoch"] == number

        await asyncio.gather(*(each.end() for each in running.coordinators))
        await asyncio.gather(*(each.start() for each in running.coordinators))
        leader = await running.leader()
        for each in running.coordinators:

            async def known(at: Any = each) -> bool:
                status, found, _ = await running.call("GET", "/v1/epochs/golden?fresh=1", at=at)
                return status == 200 and found["epoch"] == number and found["names"] == ["golden"]

            await until(known, f"{each.name} knows it again")
        session = one.session
        await until(lambda: one.is_member and one.session == session, "p1 is back with its session")
        await until(lambda: _restored(running), "the cluster goes back to it")
        assert (await running.get("/v1/epochs/golden?fresh=1", at=leader))["names"] == ["golden"], (
            "a rollback changes none"
        )
        status, document, _ = await running.call("DELETE", "/v1/savepoints/golden", at=leader)
        assert (status, document["epoch"]) == (200, number)


async def _restored(running: Cluster) -> bool:
    """The order to go back by name is taken; a participant that has just come back may not be there yet."""
    status, document, _ = await running.call("POST", "/v1/epochs/golden/restore", {"wait": False})
    assert status in {201, 409, 503, 429}, document
    if status == 201:
        assert document["epoch"] == (await running.get("/v1/epochs/golden"))["epoch"]
    return status == 201


async def test_the_page_shows_what_an_epoch_is_called(tmp_path):
    async with cluster(tmp_path) as running:
        _, page, _ = await running.call("GET", "/", role=None)
        _, script, _ = await running.call("GET", "/web/page.js", role=None)
        columns = page.partition('id="epochs-title"')[2].partition("</thead>")[0].count("</th>")
        assert "<th>Savepoint</th>" in page
        assert f'{columns}, "No epochs yet."' in script
        assert script.count(".names || []") == 2, "in the list, and with the epoch"
