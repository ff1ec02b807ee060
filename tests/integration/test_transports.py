"""One body, three arms: what every transport must do, on the memory hub, over WebSocket, and through a real mosquitto."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import aiohttp
import pytest

from participant.runtime.transports import handshake
from participant.runtime.transports.memory import MemoryHub, MemoryTransport
from participant.runtime.transports.mqtt import MqttSettings, MqttTransport
from participant.runtime.transports.websocket import PATH, WebSocketTransport
from protocol.errors import ConfigError, ForgedFrame
from protocol.ids import ChannelId, cluster_name, participant_id
from protocol.keys import ClusterKeys
from protocol.limits import FRAME_BYTES_MAX, SEND_BUFFER_BYTES
from tests.integration.broker import Broker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from protocol.ports import Transport

CLUSTER = cluster_name("shop")
KEYS = ClusterKeys.from_secret(bytes(range(32)))
OTHER_KEYS = ClusterKeys.from_secret(bytes(range(1, 33)))


class Sink:
    """Notes what arrives."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.up: dict[str, int] = {}
        self.down: list[tuple[str, str]] = []
        self._changed = asyncio.Event()

    def frame_received(self, frame: bytes) -> None:
        self.frames.append(frame)
        self._changed.set()

    def peer_connected(self, peer: str) -> None:
        self.up[peer] = self.up.get(peer, 0) + 1
        self._changed.set()

    def peer_disconnected(self, peer: str, reason: str) -> None:
        self.down.append((peer, reason))
        self._changed.set()

    async def wait(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(15):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class Network:
    """Makes transports of one kind that reach each other."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.hub = MemoryHub()
        self.broker = Broker(folder) if kind == "mqtt" else None
        self.stack = AsyncExitStack()

    async def join(self, name: str, **options) -> tuple[Transport, Sink]:
        participant = participant_id(name)
        transport: Transport
        if self.kind == "memory":
            transport = MemoryTransport(participant, self.hub)
        elif self.kind == "websocket":
            transport = WebSocketTransport(
                cluster=CLUSTER, participant=participant, keys=options.pop("keys", KEYS), **options
            )
        else:
            assert self.broker is not None
            transport = MqttTransport(
                cluster=CLUSTER, participant=participant, settings=MqttSettings.from_url(self.broker.url)
            )
        sink = Sink()
        await transport.start(sink)
        self.stack.push_async_callback(transport.close)
        return transport, sink

    async def pair(self) -> tuple[Transport, Sink, Transport, Sink]:
        a, a_sink = await self.join("a")
        b, b_sink = await self.join("b")
        a.set_peers({"b": b.address})
        b.set_peers({"a": a.address})
        await a_sink.wait(lambda: "b" in a_sink.up)
        await b_sink.wait(lambda: "a" in b_sink.up)
        return a, a_sink, b, b_sink

    async def break_between(self, one: Transport, other: Transport) -> None:
        if isinstance(one, MemoryTransport) and isinstance(other, MemoryTransport):
            self.hub.disconnect(one.participant, other.participant)
            self.hub.connect(one.participant, other.participant)
        elif isinstance(one, WebSocketTransport):
            assert one.disconnect("b")
        else:
            assert self.broker is not None
            self.broker.kill()
            await self.broker.start()


@pytest.fixture(params=["memory", "websocket", "mqtt"])
async def network(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Network]:
    network = Network(request.param, tmp_path)
    if network.broker is not None:
        await network.broker.start()
    try:
        yield network
    finally:
        await network.stack.aclose()
        if network.broker is not None:
            network.broker.kill()


async def test_frames_arrive_whole_and_in_order_both_ways(network: Network) -> None:
    a, a_sink, b, b_sink = await network.pair()
    there = [bytes([i]) * (i * 997 + 1) for i in range(50)]
    back = [b"back" + bytes([i]) for i in range(50)]
    for one, other in zip(there, back, strict=True):
        assert a.send("b", one)
        assert b.send("a", other)
    await b_sink.wait(lambda: len(b_sink.frames) == 50)
    await a_sink.wait(lambda: len(a_sink.frames) == 50)
    assert b_sink.frames == there
    assert a_sink.frames == back


async def test_the_largest_frame_passes(network: Network) -> None:
    a, _, _, b_sink = await network.pair()
    frame = b"x" * FRAME_BYTES_MAX
    assert a.send("b", frame)
    await b_sink.wait(lambda: bool(b_sink.frames))
    assert b_sink.frames == [frame]


async def test_small_frames_do_not_pile_up_in_front_of_a_broker(network: Network) -> None:
    """Each waits for all before it; the channel sends again what was dropped."""
    if network.kind != "mqtt":
        return
    a, _, _, b_sink = await network.pair()
    taken = [a.send("b", b"frame") for _ in range(5_000)]
    assert 1_000 <= sum(taken) < 1_100
    assert a.statistics()["frames_dropped"] == 5_000 - sum(taken)
    await b_sink.wait(lambda: len(b_sink.frames) == sum(taken))
    assert a.send("b", b"one more")


async def test_a_frame_to_somebody_who_is_not_a_peer_is_dropped_and_counted(network: Network) -> None:
    a, _, _, _ = await network.pair()
    assert not a.send("nobody", b"frame")
    assert a.statistics()["frames_dropped"] == 1


async def test_a_broken_connection_comes_back_by_itself(network: Network) -> None:
    a, a_sink, b, b_sink = await network.pair()
    ups = a_sink.up["b"], b_sink.up["a"]
    await network.break_between(a, b)
    await a_sink.wait(lambda: a_sink.up["b"] > ups[0])
    await b_sink.wait(lambda: b_sink.up["a"] > ups[1])
    assert "b" in [peer for peer, _ in a_sink.down]
    assert a.send("b", b"after")
    await b_sink.wait(lambda: b_sink.frames == [b"after"])


async def test_a_peer_that_starts_later_is_reached(network: Network) -> None:
    a, a_sink = await network.join("a")
    a.set_peers({"b": "ws://127.0.0.1:9"} if network.kind == "websocket" else {"b": "mqtt:"})
    b, b_sink = await network.join("b")
    b.set_peers({"a": a.address})
    a.set_peers({"b": b.address})
    await b_sink.wait(lambda: "a" in b_sink.up)
    await a_sink.wait(lambda: "b" in a_sink.up)
    assert b.send("a", b"hello")
    await a_sink.wait(lambda: a_sink.frames == [b"hello"])


async def test_a_peer_that_is_not_named_any_more_is_let_go(network: Network) -> None:
    a, a_sink, _, _ = await network.pair()
    a.set_peers({})
    await a_sink.wait(lambda: bool(a_sink.down))
    assert not a.send("b", b"frame")


async def test_closing_delivers_what_was_handed_over(network: Network) -> None:
    a, _, _, b_sink = await network.pair()
    for i in range(20):
        assert a.send("b", bytes([i]) * 1000)
    await a.close()
    await b_sink.wait(lambda: len(b_sink.frames) == 20)


# --- only memory: faults to order


async def test_the_memory_hub_loses_and_repeats_what_the_test_says() -> None:
    hub = MemoryHub(faults=lambda _source, _target, frame: [] if frame == b"lose" else [(0, frame), (0.001, frame)])
    sinks = []
    for name, other in (("a", "b"), ("b", "a")):
        transport = MemoryTransport(name, hub)
        sinks.append(Sink())
        await transport.start(sinks[-1])
        transport.set_peers({other: "memory:"})
        if name == "a":
            a = transport
    assert a.send("b", b"lose")
    assert a.send("b", b"repeat")
    await sinks[1].wait(lambda: len(sinks[1].frames) == 2)
    assert sinks[1].frames == [b"repeat", b"repeat"]


async def test_two_of_one_id_on_one_hub_are_refused() -> None:
    hub = MemoryHub()
    await MemoryTransport("a", hub).start(Sink())
    with pytest.raises(ConfigError, match="already on this memory hub"):
        await MemoryTransport("a", hub).start(Sink())


# --- only WebSocket: strangers and sockets


@pytest.fixture
async def sockets(tmp_path: Path) -> AsyncIterator[Network]:
    network = Network("websocket", tmp_path)
    async with network.stack:
        yield network


async def test_a_port_in_use_is_a_configuration_error_that_names_it(sockets: Network) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: EADDRINUSE"):
            await sockets.join("a", listen=f"127.0.0.1:{port}")


@pytest.mark.parametrize("listen", ["", "127.0.0.1", "http://x:1", "x:y", ":1", "127.0.0.1:1/path", "h:99999"])
async def test_what_is_not_host_and_port_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="listen"):
        WebSocketTransport(cluster=CLUSTER, participant=participant_id("a"), keys=KEYS, listen=listen)


@pytest.mark.parametrize("turns", range(6))
async def test_closing_leaves_no_socket_of_whoever_came_in_that_moment(turns: int) -> None:
    """So many turns of the loop after the connection: it is in the queue, taken, or being made."""
    transport = WebSocketTransport(cluster=CLUSTER, participant=participant_id("a"), keys=KEYS)
    await transport.start(Sink())
    host, _, port = transport.address.removeprefix("ws://").rpartition(":")
    gc.collect()
    with socket.socket() as stranger, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stranger.connect((host, int(port)))
        for _ in range(turns):
            await asyncio.sleep(0)
        await transport.close()
        gc.collect()
    assert [str(each.message) for each in caught] == []


async def test_a_dialer_with_the_wrong_secret_is_refused_before_any_frame(sockets: Network) -> None:
    b, b_sink = await sockets.join("b")
    a, a_sink = await sockets.join("a", keys=OTHER_KEYS)
    b.set_peers({"a": a.address})
    a.set_peers({"b": b.address})
    async with asyncio.timeout(10):
        while b.statistics()["refused"] < 2:  # noqa: ASYNC110 - a counter, nothing to wait on
            await asyncio.sleep(0.005)
    assert not a_sink.up
    assert not b_sink.up


async def test_hostile_first_messages_end_their_connection_and_nothing_else(sockets: Network) -> None:
    b, b_sink = await sockets.join("b")
    good = handshake.encode_hello(cluster="shop", source="a", target="b", nonce=bytes(16))
    attacks = [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"x" * 5000,
        handshake.encode_hello(cluster="other", source="a", target="b", nonce=bytes(16)),
        handshake.encode_hello(cluster="shop", source="../a", target="b", nonce=bytes(16)),
        handshake.encode_hello(cluster="shop", source="a\x1b[31m", target="b", nonce=bytes(16)),
        handshake.encode_hello(cluster="shop", source="b", target="b", nonce=bytes(16)),
        handshake.encode_hello(cluster="shop", source="a", target="c", nonce=bytes(16)),
        handshake.encode_hello(cluster="shop", source="a", target="b", nonce=b""),
    ]
    async with aiohttp.ClientSession() as session:
        url = b.address.replace("ws:", "http:") + PATH
        for attack in attacks:
            async with session.ws_connect(url) as stranger:
                await stranger.send_bytes(attack)
                assert (await stranger.receive()).type is aiohttp.WSMsgType.CLOSE
        async with session.ws_connect(url) as stranger:
            await stranger.send_str("text")
            assert (await stranger.receive()).type is aiohttp.WSMsgType.CLOSE
        async with session.ws_connect(url) as stranger:
            await stranger.send_bytes(good)
            challenge = await stranger.receive_bytes()
            with pytest.raises(ForgedFrame):
                handshake.answer_challenge(OTHER_KEYS, ChannelId("a", "b"), good, challenge)
            await stranger.send_bytes(b"guessed proof 16")
            assert (await stranger.receive()).type is aiohttp.WSMsgType.CLOSE
    assert b.statistics()["refused"] == len(attacks) + 2
    assert not b_sink.frames
    a, a_sink = await sockets.join("a")
    b.set_peers({"a": a.address})
    a.set_peers({"b": b.address})
    await a_sink.wait(lambda: "b" in a_sink.up)


async def test_a_peer_that_does_not_read_fills_a_bounded_buffer(sockets: Network) -> None:
    a, _, _, _ = await sockets.pair()
    frame = b"x" * FRAME_BYTES_MAX
    accepted = 0
    # Nothing here yields to the loop, so nobody reads.
    while a.send("b", frame):
        accepted += 1
        assert accepted * FRAME_BYTES_MAX <= SEND_BUFFER_BYTES
    assert a.statistics()["frames_dropped"] == 1


# --- only MQTT


async def test_a_broker_that_does_not_answer_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("participant.runtime.transports.mqtt.FIRST_CONNECT_SECONDS", 0.2)
    settings = MqttSettings.from_url("mqtt://127.0.0.1:9")
    transport = MqttTransport(cluster=CLUSTER, participant=participant_id("a"), settings=settings)
    with pytest.raises(ConfigError, match=r"no MQTT broker answers at 127\.0\.0\.1:9"):
        await transport.start(Sink())


async def test_a_wrong_password_is_told_at_the_start(tmp_path: Path) -> None:
    broker = Broker(tmp_path, password="right")
    await broker.start()
    try:
        settings = MqttSettings.from_url(broker.url, username="p", password="wrong")
        transport = MqttTransport(cluster=CLUSTER, participant=participant_id("a"), settings=settings)
        with pytest.raises(ConfigError, match="refuses us"):
            await transport.start(Sink())
        settings = MqttSettings.from_url(f"mqtt://p:right@127.0.0.1:{broker.port}")
        transport = MqttTransport(cluster=CLUSTER, participant=participant_id("a"), settings=settings)
        await transport.start(Sink())
        await transport.close()
    finally:
        broker.kill()


@pytest.mark.parametrize("url", ["mqtt://", "http://h:1", "mqtt://h:port", "mqtt://h:1/path", "mqtt:h"])
def test_what_is_not_a_broker_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="transport"):
        MqttSettings.from_url(url)


def test_broker_settings_do_not_print_the_password() -> None:
    settings = MqttSettings.from_url("mqtt://user:sesame@h:1")
    assert settings.password == "sesame"
    assert "sesame" not in repr(settings)
