"""Strangers at a participant's port while epochs go on: what they send is refused and counted, and changes nothing."""

import asyncio
import contextlib
import os
import secrets
import struct
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from participant.runtime.transports import handshake
from participant.runtime.transports.websocket import PATH
from protocol.ids import ChannelId, ParticipantId, cluster_name
from protocol.items import encode_marker_item, encode_message_item
from protocol.keys import ClusterKeys
from protocol.limits import FRAME_BYTES_MAX
from protocol.wire import FrameCodec
from simulations.demo.ports import free_ports
from tests.e2e.real_cluster import real_cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]

TARGET = "bank-2"
MALLORY = "mallory"
ENDED = {aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR}


class Wire:
    """A TCP line in front of a participant, which keeps what it carries."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.captured: list[bytearray] = []

    async def start(self, port: int) -> None:
        self.server = await asyncio.start_server(self._carry_both, "127.0.0.1", port)

    async def _carry_both(self, reader, writer):
        kept = bytearray()
        self.captured.append(kept)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            await asyncio.gather(self._carry(reader, far_writer, kept), self._carry(far_reader, writer, None))
        except OSError:
            pass
        finally:
            writer.close()
            far_writer.close()

    async def _carry(self, reader, writer, kept):
        while data := await reader.read(1 << 16):
            if kept is not None and len(kept) < 1 << 20:
                kept += data
            writer.write(data)
            await writer.drain()
        writer.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wire():
    """In front of the target."""
    front, back = free_ports(2)
    made = Wire(back)
    await made.start(front)
    made.front = front
    yield made
    made.server.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory, wire):
    """Three participants under traffic; the second one is reached through the wire."""
    places = {TARGET: (f"127.0.0.1:{wire.target}", f"127.0.0.1:{wire.front}")}
    async with real_cluster(tmp_path_factory.mktemp("strangers"), participants=3, places=places) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def unharmed(cluster):
    """Epochs go on during the test; afterwards nothing has changed but counters."""
    before = await cluster.statistics(TARGET)
    working = asyncio.create_task(_epochs(cluster))
    yield before
    assert not working.done(), working
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    open_epochs = (await cluster.call("GET", "/v1/status"))["epochs"]["open"]
    for number in open_epochs:
        await cluster.ended(number)
    await cluster.commit_one()
    history = await cluster.judge()
    assert all(each["state"] == "committed" for each in history)
    rows = (await cluster.call("GET", "/v1/participants?fresh=1"))["participants"]
    assert [(row["id"], row["state"]) for row in rows] == [(name, "member") for name in sorted(cluster.specs)]


async def _epochs(cluster):
    while True:
        await cluster.commit_one()


async def rises(cluster, before, name, by=1):
    """One of the target's counters, as its own statistics tell it."""

    async def risen():
        return (await cluster.statistics(TARGET))[name] >= before[name] + by

    await until(risen, f"{name} rises by {by}")


async def test_first_messages_of_strangers_are_refused(cluster, wire, unharmed):
    """No handshake, a wrong one, one for another cluster or participant, one that is too long, one without the secret."""

    def hello(**changes):
        fields = {"cluster": cluster.name, "source": "bank-9", "target": TARGET, "nonce": bytes(16), **changes}
        return handshake.encode_hello(**fields)

    firsts = [
        b"",
        b"\0" * 100,
        secrets.token_bytes(1000),
        b"x" * (FRAME_BYTES_MAX + 10),
        hello(cluster="shop"),
        hello(target="bank-1"),
        hello(source="../../etc"),
        hello(source=TARGET),
        hello(nonce=b"short"),
        msgspec.msgpack.encode([99, cluster.name, "bank-9", TARGET, bytes(16)]),
        b"\x91" * 900,
    ]
    async with aiohttp.ClientSession() as session:
        for first in firsts:
            async with session.ws_connect(f"http://127.0.0.1:{wire.target}{PATH}", max_msg_size=0) as socket:
                with contextlib.suppress(OSError, aiohttp.ClientError):
                    await socket.send_bytes(first)
                assert (await socket.receive(10)).type in ENDED, first[:40]
        async with session.ws_connect(f"http://127.0.0.1:{wire.target}{PATH}") as socket:
            await socket.send_str("text")
            assert (await socket.receive(10)).type in ENDED
        async with session.ws_connect(f"http://127.0.0.1:{wire.target}{PATH}") as socket:
            await socket.send_bytes(hello(source="bank-1"))
            assert (await socket.receive(10)).type is aiohttp.WSMsgType.BINARY, "the challenge"
            await socket.send_bytes(bytes(16))
            assert (await socket.receive(10)).type is aiohttp.WSMsgType.CLOSE
        for path in ("/", PATH, "/v1/status", "/../../etc/passwd"):
            async with session.get(f"http://127.0.0.1:{wire.target}{path}") as response:
                assert response.status >= 400
    await rises(cluster, unharmed, "transport_refused", len(firsts) + 2)


async def test_bytes_that_are_no_http_and_connections_that_hang_harm_nothing(cluster, wire, unharmed):
    """Raw sockets: noise, half a request, a header without end, a hundred that say nothing."""
    hanging = []
    for data in (
        os.urandom(4096),
        b"GET / HT",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000,
        b"\x16\x03\x01" + bytes(200),
    ):
        _, writer = await asyncio.open_connection("127.0.0.1", wire.target)
        writer.write(data)
        hanging.append(writer)
    for _ in range(100):
        _, writer = await asyncio.open_connection("127.0.0.1", wire.target)
        hanging.append(writer)
    newest = (await cluster.call("GET", "/v1/status"))["epochs"]["newest_committed"]

    async def another():
        return (await cluster.call("GET", "/v1/status"))["epochs"]["newest_committed"] > newest + 3

    await until(another, "epochs go on meanwhile")
    for writer in hanging:
        writer.transport.abort()


async def test_a_captured_connection_that_is_played_again_is_refused(cluster, wire, unharmed):
    """Byte for byte what a real peer said, its handshake included: the challenge is another one."""
    captured = await until(lambda: next((bytes(each) for each in wire.captured if len(each) > 2_000), None), "traffic")
    assert captured.startswith(b"GET " + PATH.encode())
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", wire.target)
        writer.write(captured)
        async with asyncio.timeout(20):
            while await reader.read(1 << 16):
                pass
        writer.close()
    await rises(cluster, unharmed, "transport_refused", 3)


async def test_frames_that_are_forged_or_stale_or_played_again_are_dropped_and_counted(cluster, wire, unharmed):
    """Through the handshake by a stolen secret even: frames stand for themselves, each by its own key, sessions and number."""
    rows = (await cluster.call("GET", "/v1/participants?fresh=1"))["participants"]
    sessions = {row["id"]: row["session"] for row in rows}
    right = FrameCodec(cluster_name(cluster.name), cluster.keys)
    wrong = FrameCodec(cluster_name(cluster.name), ClusterKeys.from_secret(secrets.token_bytes(32)))
    marker = encode_marker_item(10_000)

    def frame(codec, body=marker, **changes):
        fields = {
            "incarnation": 1,
            "source_session": sessions["bank-1"],
            "target_session": sessions[TARGET],
            "epoch": 10_000,
            "first": 1,
            "ack": 0,
            "count": 1,
            "source": "bank-1",
            "target": TARGET,
            "body": body,
        }
        return codec.encode(**{**fields, **changes})

    genuine = frame(right)
    async with aiohttp.ClientSession() as session:
        socket = await _introduce(session, cluster, wire)
        for _ in range(5):
            await socket.send_bytes(frame(wrong))
            await socket.send_bytes(genuine[:-1] + bytes([genuine[-1] ^ 1]))
        await rises(cluster, unharmed, "frames_forged", 10)
        for malformed in (
            b"",
            b"CLCT",
            genuine[:-1],
            genuine + b"x",
            genuine.replace(b"CLCT", b"CLCU", 1),
            b"\xff" * 300,
        ):
            await socket.send_bytes(malformed)
        await rises(cluster, unharmed, "frames_malformed", 6)
        for _ in range(5):
            await socket.send_bytes(genuine)
            await socket.send_bytes(frame(right, encode_message_item(b"\xc1 not an envelope")))
        await rises(cluster, unharmed, "items_repeated", 10)
        for stale in ({"target_session": 99}, {"source_session": sessions["bank-1"] + 1_000}, {"incarnation": 0}):
            await socket.send_bytes(frame(right, **stale))
        await socket.send_bytes(frame(right, target="bank-3"))
        await rises(cluster, unharmed, "frames_misdirected", 1)
        huge = struct.pack(">I", 2**31 - 1) + bytes(FRAME_BYTES_MAX + 100)
        with contextlib.suppress(OSError, aiohttp.ClientError):
            await socket.send_bytes(huge)
        async with asyncio.timeout(20):
            while (await socket.receive()).type is aiohttp.WSMsgType.BINARY:
                pass
        assert socket.closed, "more than a frame may have ends its connection"
    for name in cluster.specs:
        assert (await cluster.statistics(name))["snapshot_open_epochs"] <= 1
    assert (await cluster.call("GET", "/v1/status?fresh=1"))["epochs"]["newest"] < 10_000


async def _introduce(session, cluster, wire):
    """The handshake, with the secret: as somebody whom the topology does not know."""
    channel = ChannelId(ParticipantId(MALLORY), ParticipantId(TARGET))
    socket = await session.ws_connect(f"http://127.0.0.1:{wire.target}{PATH}", max_msg_size=0)
    hello = handshake.encode_hello(cluster=cluster.name, source=MALLORY, target=TARGET, nonce=bytes(16))
    await socket.send_bytes(hello)
    proof = handshake.answer_challenge(cluster.keys, channel, hello, await socket.receive_bytes())
    await socket.send_bytes(proof)
    handshake.check_welcome(await socket.receive_bytes())
    return socket


async def test_the_address_that_peers_are_told_is_the_one_of_the_wire(cluster, wire):
    """Else the capture above would have been of nobody."""
    rows = (await cluster.call("GET", "/v1/participants"))["participants"]
    [address] = [row["address"] for row in rows if row["id"] == TARGET]
    assert urlsplit(address).port == wire.front
