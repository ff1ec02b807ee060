"""The participants' WebSocket: what a peer may do, and what ends its connection and nothing else."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from aiohttp import WSMsgType, web

from coordinator.runtime import connections
from coordinator.runtime.access import AccessCounts, access_middleware
from coordinator.runtime.answers import errors_middleware
from coordinator.runtime.connections import ParticipantHub
from protocol.limits import CONTROL_BYTES_MAX
from protocol.messages import (
    AbortEpoch,
    Heartbeat,
    Register,
    Registered,
    RegisterRefused,
    decode_to_participant,
    encode_control,
)
from tests.integration.api_fixture import KEYS, bearer, listening


class Sink:
    """Answers every registration with the next session and keeps what came."""

    def __init__(self) -> None:
        self.hub: ParticipantHub | None = None
        self.refusal: RegisterRefused | None = None
        self.session = 0
        self.received = []
        self.opened = []
        self.lost: asyncio.Queue[tuple[int, str]] = asyncio.Queue()

    def connection_opened(self, connection):
        self.opened.append(connection)

    def message_arrived(self, connection, message):
        if not isinstance(message, Register):
            self.received.append((connection, message))
        elif self.refusal is not None:
            self.hub.send(connection, self.refusal)
        else:
            session = message.session or self.session + 1
            self.session = max(self.session, session)
            self.hub.send(connection, Registered(term=1, session=session, incarnation=1, lease_ns=3))

    def connection_lost(self, connection, reason):
        self.lost.put_nowait((connection, reason))


@asynccontextmanager
async def a_hub():
    sink = Sink()
    hub = ParticipantHub(sink, clock=time.monotonic)
    sink.hub = hub
    counts = AccessCounts()
    app = web.Application(
        middlewares=[errors_middleware(connections.log), access_middleware(KEYS, [], counts)],
    )
    app.router.add_get("/v1/participant", hub.serve)
    async with listening(app) as url:
        try:
            yield hub, sink, url
        finally:
            hub.end()


@asynccontextmanager
async def a_socket(url: str, role: str = "participant"):
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{url}/v1/participant", headers=bearer(role), max_msg_size=CONTROL_BYTES_MAX) as socket,
    ):
        yield socket


def register(name: str = "p1", **fields) -> bytes:
    return encode_control(Register(cluster="shop", participant=name, boot_id="0" * 32, **fields))


async def registered(socket) -> Registered:
    await socket.send_bytes(register())
    answer = decode_to_participant((await socket.receive(5)).data)
    assert isinstance(answer, Registered)
    return answer


async def close_code(socket) -> tuple[int, str]:
    """The code and reason with which the coordinator closes."""
    while True:
        message = await socket.receive(10)
        if message.type is WSMsgType.CLOSE:
            return message.data, message.extra
        if message.type in {WSMsgType.CLOSED, WSMsgType.CLOSING}:
            return socket.close_code, ""
        assert message.type is WSMsgType.BINARY, message


async def test_a_registered_participant_exchanges_messages_of_its_own_session():
    async with a_hub() as (hub, sink, url), a_socket(url) as socket:
        answer = await registered(socket)
        await socket.send_bytes(encode_control(Heartbeat(session=answer.session)))
        assert hub.send_to_session(answer.session, AbortEpoch(term=1, session=answer.session, epoch=4, reason="x"))
        order = decode_to_participant((await socket.receive(5)).data)
        assert isinstance(order, AbortEpoch)
        await socket.close()
        assert await asyncio.wait_for(sink.lost.get(), 5) == (1, "closed by the peer")
        assert sink.received == [(1, Heartbeat(session=answer.session))]
        assert not hub.send_to_session(answer.session, AbortEpoch(term=1, session=1, epoch=4, reason="x"))


async def test_a_message_for_another_session_closes_the_connection_that_sent_it():
    async with a_hub() as (hub, sink, url), a_socket(url) as honest, a_socket(url) as liar:
        mine = await registered(honest)
        await registered(liar)
        await liar.send_bytes(encode_control(Heartbeat(session=mine.session)))
        assert await close_code(liar) == (connections.CLOSE_FOREIGN_SESSION, "session 1 is not this connection's")
        assert sink.received == []
        assert hub.counts["foreign_session"] == 1
        await honest.send_bytes(encode_control(Heartbeat(session=mine.session)))
        await honest.close()
        await asyncio.wait_for(sink.lost.get(), 5)
        await asyncio.wait_for(sink.lost.get(), 5)
        assert [message.session for _, message in sink.received] == [mine.session]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (b"\xc1", "control message of 1 bytes"),
        (b"", "control message of 0 bytes"),
        (msgspec.msgpack.encode({"type": "restore-everything", "session": 1}), "control message"),
        (msgspec.msgpack.encode({"type": "heartbeat", "session": "one"}), "control message"),
        (b"\x91" * 100_000, "control message"),
        (encode_control(Heartbeat(session=1)), "the first message must be a registration"),
        ("text", "only binary messages are taken"),
    ],
)
async def test_a_malformed_message_closes_its_connection_with_a_reason(what, reason):
    async with a_hub() as (hub, _sink, url), a_socket(url) as socket, a_socket(url) as other:
        await registered(other)
        if isinstance(what, str):
            await socket.send_str(what)
        else:
            await socket.send_bytes(what)
        code, text = await close_code(socket)
        assert code == connections.CLOSE_MALFORMED
        assert text.startswith(reason)
        assert hub.counts["malformed"] == 1
        assert hub.bound_count == 1


async def test_an_oversized_message_closes_its_connection_before_it_is_read():
    async with a_hub() as (_hub, _sink, url), a_socket(url) as socket:
        await registered(socket)
        try:
            await socket.send_bytes(b"\0" * (CONTROL_BYTES_MAX + 1))
            code, _ = await close_code(socket)
        except ConnectionError:
            return
        assert code in {1009, 1006}


async def test_a_second_registration_on_one_connection_is_refused():
    async with a_hub() as (_hub, _sink, url), a_socket(url) as socket:
        await registered(socket)
        await socket.send_bytes(register("p2"))
        assert await close_code(socket) == (connections.CLOSE_MALFORMED, "registered twice on one connection")


async def test_a_session_that_comes_back_takes_over_from_its_older_connection():
    async with a_hub() as (hub, sink, url), a_socket(url) as older, a_socket(url) as newer:
        session = (await registered(older)).session
        await newer.send_bytes(register(session=session))
        assert decode_to_participant((await newer.receive(5)).data).session == session
        assert (await close_code(older))[0] == connections.CLOSE_REPLACED
        lost = await asyncio.wait_for(sink.lost.get(), 5)
        assert lost == (1, "the session goes on on a newer connection")
        assert hub.connected(session)


async def test_a_follower_says_where_the_leader_is_and_closes():
    async with a_hub() as (hub, sink, url), a_socket(url) as socket:
        sink.refusal = RegisterRefused(code="not-leader", sentence="c2 leads", leader="http://127.0.0.1:7401")
        await socket.send_bytes(register())
        assert decode_to_participant((await socket.receive(5)).data) == sink.refusal
        assert await close_code(socket) == (connections.CLOSE_NOT_LEADER, "not-leader")
        assert hub.counts["not_leader"] == 1


async def test_a_connection_that_never_registers_is_closed(monkeypatch):
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS_MAX", 0.05)
    async with a_hub() as (hub, _sink, url), a_socket(url) as socket:
        assert await close_code(socket) == (connections.CLOSE_HANDSHAKE, "not registered in time")
        assert hub.counts["handshake"] == 1


async def test_a_flood_closes_only_the_connection_that_makes_it(monkeypatch):
    monkeypatch.setattr(connections, "MESSAGES_BURST", 20)
    monkeypatch.setattr(connections, "MESSAGES_PER_SECOND", 1)
    async with a_hub() as (hub, _sink, url), a_socket(url) as socket, a_socket(url) as calm:
        quiet = await registered(calm)
        session = (await registered(socket)).session
        for _ in range(40):
            await socket.send_bytes(encode_control(Heartbeat(session=session)))
        assert (await close_code(socket))[0] == connections.CLOSE_FLOOD
        assert hub.connected(quiet.session)


async def test_too_many_connections_without_a_session_are_turned_away(monkeypatch):
    monkeypatch.setattr(connections, "HANDSHAKES_MAX", 1)
    async with a_hub() as (hub, sink, url), a_socket(url) as first:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"{url}/v1/participant", headers=bearer("participant"))
        assert refused.value.status == 503
        assert hub.counts["full"] == 1
        await registered(first)
        async with a_socket(url) as second:
            await registered(second)
        assert sink.session == 2


async def test_a_peer_that_takes_no_orders_is_dropped_before_they_fill_memory(monkeypatch):
    monkeypatch.setattr(connections, "WAITING_BYTES_MAX", 1 << 20)
    async with a_hub() as (hub, sink, url), a_socket(url) as socket:
        session = (await registered(socket)).session
        order = AbortEpoch(term=1, session=session, epoch=1, reason="x" * 100_000)
        sent = 0
        while hub.send_to_session(session, order) and sent < 1_000:
            sent += 1
        # Nothing ran between the sends: the queue hit its bound and the connection is closing.
        assert (await close_code(socket))[0] == connections.CLOSE_TOO_SLOW
        assert await asyncio.wait_for(sink.lost.get(), 5) == (1, "orders are not taken fast enough")


@pytest.mark.parametrize("role", ["viewer", "operator"])
async def test_only_a_participants_token_opens_the_control_connection(role):
    async with a_hub() as (_hub, _sink, url), aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"{url}/v1/participant", headers=bearer(role))
        assert refused.value.status == 403


async def test_a_token_that_is_bound_to_a_participant_registers_no_other():
    headers = {"Authorization": f"Bearer {KEYS.participant_token('p1')}"}
    async with a_hub() as (_hub, sink, url), aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{url}/v1/participant", headers=headers) as socket:
            await socket.send_bytes(encode_control(Register(cluster="shop", participant="p2", boot_id="0" * 32)))
            answer = decode_to_participant((await socket.receive(10)).data)
            assert isinstance(answer, RegisterRefused)
            assert (answer.code, answer.sentence) == ("wrong-token", "this token is p1's")
            assert (await close_code(socket))[0] == connections.CLOSE_REFUSED
        async with session.ws_connect(f"{url}/v1/participant", headers=headers) as socket:
            await socket.send_bytes(encode_control(Register(cluster="shop", participant="p1", boot_id="0" * 32)))
            assert isinstance(decode_to_participant((await socket.receive(10)).data), Registered)
        assert sink.session == 1
        async with session.get(f"{url}/v1/status", headers=headers) as response:
            assert response.status == 403


async def test_a_plain_request_to_the_control_address_is_answered_with_an_error():
    async with (
        a_hub() as (_hub, _sink, url),
        aiohttp.ClientSession() as session,
        session.get(f"{url}/v1/participant", headers=bearer("participant")) as response,
    ):
        assert response.status == 400
        assert (await response.json())["error"]["code"] == "not-a-websocket"
