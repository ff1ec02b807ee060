"""Who may do what: role by endpoint, foreign hosts and origins, tokens where they must not be, oversized and odd requests."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

from coordinator.runtime.access import allowed_roles
from protocol.keys import ROLES, ClusterKeys
from tests.integration.coordinators import Scripted, cluster

pytestmark = pytest.mark.slow

READS = (
    "/v1/status",
    "/v1/participants",
    "/v1/topology",
    "/v1/epochs",
    "/v1/epochs/1",
    "/v1/epochs/latest",
    "/v1/epochs/1/why",
    "/v1/epochs/1/manifest",
    "/v1/epochs/1/agents",
    "/v1/epochs/1/state?agent=buyer/p1",
    "/v1/policy",
    "/v1/doctor",
    "/metrics",
)
WRITES = (
    ("POST", "/v1/epochs", {"wait": True}),
    ("POST", "/v1/epochs/1/abort", {}),
    ("PUT", "/v1/policy", {"pause_ms": 0}),
)


async def test_every_role_may_do_its_part_and_nothing_else(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1"):
        assert (await running.call("POST", "/v1/epochs", {"wait": True}))[0] == 201
        for path in READS:
            for role in ROLES:
                status, document, _ = await running.call("GET", path, role=role)
                assert (path, role, status) == (path, role, 403 if role == "participant" else 200), document
            status, document, headers = await running.call("GET", path, role=None)
            assert (status, document["error"]["code"]) == (401, "no-token")
            assert headers["WWW-Authenticate"] == "Bearer"
        for method, path, body in WRITES:
            for role in ROLES:
                status, document, _ = await running.call(method, path, body, role=role)
                if role == "operator":
                    assert status in {200, 201, 409}, document
                else:
                    assert (status, document["error"]["code"]) == (403, "wrong-role")
        # Work, but it changes nothing.
        for role, expected in (("participant", 403), ("viewer", 200), ("operator", 200)):
            assert (await running.call("POST", "/v1/epochs/1/verify", {}, role=role))[0] == expected
        for path in ("/healthz", "/", "/web/page.js", "/web/page.css", "/web/icon.svg"):
            assert (await running.call("GET", path, role=None))[0] == 200


async def test_a_token_of_another_cluster_or_a_made_up_one_is_refused(tmp_path):
    async with cluster(tmp_path) as running:
        await running.leader()
        foreign = ClusterKeys.from_secret(bytes(range(7, 60))).token("operator")
        real = running.keys.token("viewer")
        for token in (foreign, real[:-1], real.replace("viewer", "operator"), "x", "é", real + "0", "cc1.operator."):
            headers = {"Authorization": f"Bearer {token}"}
            async with running.session.get(f"{running.c1.url}/v1/status", headers=headers) as response:
                assert response.status in {400, 401}
                assert (await response.json())["error"]["code"] == "wrong-token"
        async with running.session.get(
            f"{running.c1.url}/v1/status", headers={"Authorization": f"Basic {real}"}
        ) as response:
            assert response.status == 401
        for name in ("token", "access_token"):
            async with running.session.get(f"{running.c1.url}/v1/status?{name}={real}") as response:
                assert response.status == 400
                assert (await response.json())["error"]["code"] == "token-in-url"
        assert real not in running.c1.text()


async def test_requests_of_foreign_pages_and_under_foreign_names_are_refused(tmp_path):
    async with cluster(tmp_path, extra='hosts = ["snapshots.example"]') as running:
        await running.leader()
        port = running.c1.http.rsplit(":", 1)[1]
        token = {"Authorization": f"Bearer {running.keys.token('operator')}"}
        for headers, status in (
            ({"Host": f"evil.example:{port}"}, 403),
            ({"Host": "localhost.evil.example"}, 403),
            ({"Host": f"localhost:{port}"}, 200),
            ({"Host": f"[::1]:{port}"}, 200),
            ({"Host": "snapshots.example"}, 200),
            ({"Origin": "http://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": running.c1.url}, 200),
        ):
            async with running.session.get(f"{running.c1.url}/v1/status", headers={**token, **headers}) as response:
                assert (headers, response.status) == (headers, status)


async def test_odd_requests_get_the_one_error_shape(tmp_path):
    async with cluster(tmp_path) as running:
        await running.leader()
        token = {"Authorization": f"Bearer {running.keys.token('operator')}"}
        for method, path, data, status, code in (
            ("GET", "/v1/nothing", None, 404, "not-found"),
            ("DELETE", "/v1/epochs", None, 405, "method-not-allowed"),
            ("GET", "/v1/epochs/0", None, 404, "no-epoch"),
            ("GET", "/v1/epochs/latest", None, 404, "no-epoch"),
            ("GET", "/v1/epochs/x%2F..%2F", None, 400, "bad-epoch"),
            ("GET", "/v1/epochs/99999999999999999999", None, 400, "bad-epoch"),
            ("GET", "/v1/epochs/²", None, 400, "bad-epoch"),
            ("GET", "/v1/epochs?limit=-1", None, 400, "bad-value"),
            ("POST", "/v1/epochs", b"{", 400, "bad-json"),
            ("POST", "/v1/epochs", b"[" * 60_000, 400, "bad-json"),
            ("POST", "/v1/epochs", b"\xff\xfe", 400, "bad-json"),
            ("POST", "/v1/epochs", b'{"wait": "yes"}', 400, "bad-value"),
            ("POST", "/v1/epochs", b'{"wiat": true}', 400, "unknown-key"),
            ("POST", "/v1/epochs", b" " * (65 << 10), 413, "too-large"),
        ):
            async with running.session.request(method, f"{running.c1.url}{path}", data=data, headers=token) as response:
                document = json.loads(await response.text())
                assert (path, response.status, document["error"]["code"]) == (path, status, code)
                assert set(document["error"]) == {"code", "message", "hint"}
                assert response.headers["Cleancut-Leader"] == "1"


async def test_hostile_bytes_on_the_port_harm_nothing(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1"):
        host, port = running.c1.http.split(":")
        for data in (
            b"\0" * 1_000,
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 5_000,
            b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
            b"POST /v1/epochs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
            b"GET /v1/participant HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(data)
            answer = await asyncio.wait_for(reader.read(4096), 10)
            writer.close()
            assert b" 400 " in answer or b" 401 " in answer or b" 403 " in answer or b" 413 " in answer or not answer
        assert (await running.call("POST", "/v1/epochs", {"wait": True}))[1]["state"] == "committed"
        assert "defect" not in running.c1.text()


async def test_the_page_allows_no_foreign_script(tmp_path):
    async with cluster(tmp_path) as running:
        status, text, headers = await running.call("GET", "/", role=None)
        assert status == 200
        assert headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert "<script src=" in text
        assert "<script>" not in text
        assert "style=" not in text
        _, script, _ = await running.call("GET", "/web/page.js", role=None)
        assert "innerHTML" not in script
        assert "textContent" in script


def test_the_table_of_roles_defaults_to_the_narrowest():
    class Request:
        def __init__(self, method, path):
            self.method, self.path = method, path

    assert allowed_roles(Request("PATCH", "/v1/anything")) == {"operator"}
    assert allowed_roles(Request("GET", "/v1/participant")) == {"participant"}
    assert allowed_roles(Request("POST", "/healthz")) == frozenset()
    assert allowed_roles(Request("POST", "/v1/epochs/1/verify")) == {"viewer", "operator"}
    assert allowed_roles(Request("POST", "/v1/agents/a/b/messages")) == {"operator", "participant"}
    assert allowed_roles(Request("GET", "/v1/agents/a/b/messages")) == {"viewer", "operator"}
    assert allowed_roles(Request("POST", "/v1/agents/a/b/move")) == {"operator"}
    assert allowed_roles(Request("POST", "/v1/epochs/1/check")) == {"viewer", "operator"}
    assert allowed_roles(Request("POST", "/v1/epochs/1/restore")) == {"operator"}
    assert allowed_roles(Request("POST", "/v1/verify")) == {"operator"}
    assert allowed_roles(Request("GET", "/v1/participant/")) == {"viewer", "operator"}


async def test_a_connection_that_never_asks_or_dribbles_is_closed(monkeypatch):
    """Slow lorises: no request at all, and a header every few moments."""
    from aiohttp import web

    from tests.integration import api_fixture

    async def answer(_):
        return web.Response(text="there")

    monkeypatch.setattr(api_fixture, "IDLE_SECONDS_MAX", 0.3)
    app = web.Application()
    app.router.add_get("/", answer)
    async with api_fixture.listening(app) as url, api_fixture.client() as session:
        host, port = url.removeprefix("http://").split(":")
        silent, writer_of_silent = await asyncio.open_connection(host, int(port))
        slow, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\n")

        async def dribble():
            while True:
                writer.write(b"a: b\r\n")
                await asyncio.sleep(0.05)

        task = asyncio.create_task(dribble())
        async with asyncio.timeout(5):
            assert await silent.read() == b""
            with suppress(ConnectionError):
                await slow.read()
        task.cancel()
        writer.close()
        writer_of_silent.close()
        async with session.get(url) as response:
            assert await response.text() == "there"
