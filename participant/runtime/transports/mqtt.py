"""Frames over an MQTT 5 broker (aiomqtt): a fleet that cannot reach each other directly.

Topic ``cleancut/<cluster>/ch/<source>/<target>``: a broker's ACL can pin each participant to writing under its own name and
reading what is for it. Frames are opaque and QoS 0: the channel machine numbers, acknowledges and sends again, which no QoS
of the broker replaces (it drops on full queues in silence, and acknowledges before our code has seen a message).

Measured (RAFT_MQTT.md C): TCP_NODELAY or 23 messages a second; one client object per connection (its queue is lost with
it); protocol 5 must be asked for.

A broker's connection says nothing about a peer. So an empty payload on a channel's topic means "I am (back) on the
broker": it makes the peer send again what is not acknowledged, instead of waiting for its timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import deque
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlsplit

import aiomqtt
import msgspec

from participant.runtime.backoff import Backoff
from participant.runtime.tasks import TaskSet
from protocol.errors import ConfigError
from protocol.ids import NAME_PATTERN, ClusterName, ParticipantId
from protocol.keys import trust
from protocol.limits import FRAME_BYTES_MAX, SEND_BUFFER_BYTES

if TYPE_CHECKING:
    from protocol.ports import FrameSink

log = logging.getLogger("cleancut.participant.mqtt")

KEEPALIVE_SECONDS: Final = 5
CLOSE_SECONDS: Final = 1.0
FIRST_CONNECT_SECONDS: Final = 10.0
"""A broker that does not answer for this long at the start is a wrong setting, not an outage."""
OUTBOX_FRAMES_MAX: Final = 1_024
"""Frames that wait for the client; more are dropped and sent again later. A frame costs the client much more than its bytes do, and
each waits for all before it, those of an overtaken incarnation too: without this bound a busy machine was half a minute behind."""
PUBLISHED_AT_ONCE: Final = 64
GREETING_SECONDS: Final = 0.2
"""Greetings of one peer are heeded no more often: they cost us a resend, and anybody on the broker can write one."""


class MqttSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the broker."""

    host: str
    port: int = 1883
    username: str | None = None
    password: str | None = None
    tls: ssl.SSLContext | None = None
    """None: plain TCP."""

    def __repr__(self) -> str:
        return f"MqttSettings({self.host}:{self.port}, username={self.username!r}, tls={self.tls is not None})"

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> MqttSettings:
        """``mqtt://[user:password@]host[:port]`` or ``mqtts://`` (port 8883, the system's certificates).

        Raises:
            ConfigError: Anything else.
        """
        try:
            parts: SplitResult = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError("transport", f"{error}; write mqtt://host:1883") from None
        if parts.scheme not in {"mqtt", "mqtts"} or not parts.hostname or parts.path not in {"", "/"} or parts.query:
            raise ConfigError("transport", "write mqtt://host:1883 or mqtts://host:8883")
        if parts.scheme == "mqtts" and tls is None:
            tls = ssl.create_default_context()
        return cls(
            host=parts.hostname,
            port=port or (1883 if tls is None else 8883),
            username=username or (unquote(parts.username) if parts.username else None),
            password=password or (unquote(parts.password) if parts.password else None),
            tls=tls,
        )


def client_tls(*, ca_file: str | None, cert_file: str | None, key_file: str | None) -> ssl.SSLContext:
    """What an ``mqtts://`` broker's certificate is checked with, and what it is shown.

    Raises:
        ConfigError: A file cannot be used.
    """
    context = ssl.create_default_context() if ca_file is None else trust("mqtt_ca_file", ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert_file is not None:
        assert key_file is not None, "the configuration was checked"
        try:
            # An empty password: a key that has one is refused instead of asked for on the terminal.
            context.load_cert_chain(cert_file, key_file, password="")
        except (ssl.SSLError, OSError) as error:
            why = error.strerror if not isinstance(error, ssl.SSLError) else "not a certificate and its key, in PEM"
            raise ConfigError("mqtt_cert_file", f"{cert_file!a} with {key_file!a} cannot be used: {why}") from None
    return context


class MqttTransport:
    """One participant's end; a `protocol.ports.Transport`."""

    def __init__(self, *, cluster: ClusterName, participant: ParticipantId, settings: MqttSettings) -> None:
        self._me = participant
        self._settings = settings
        self._root = f"cleancut/{cluster}/ch"
        self._sink: FrameSink | None = None
        self._peers: dict[str, str] = {}
        self._outbox: deque[tuple[str, bytes]] = deque()
        self._bytes_waiting = 0
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._client: aiomqtt.Client | None = None
        self._started: asyncio.Future[None] | None = None
        self._greeted_at: dict[str, float] = {}
        self._problem = ""
        """Why the broker was not reached the last time."""
        self._tasks = TaskSet(self._task_failed)
        self._counts = dict.fromkeys(
            ("frames_sent", "frames_received", "frames_dropped", "connections", "disconnections", "refused"), 0
        )

    @property
    def address(self) -> str:
        """Nothing to dial: the broker knows the names."""
        return "mqtt:"

    async def start(self, sink: FrameSink) -> None:
        """Connect and subscribe.

        Raises:
            ConfigError: The broker does not answer, or refuses us; later losses of the broker are mended in silence.
        """
        self._sink = sink
        self._started = asyncio.get_running_loop().create_future()
        self._tasks.spawn(self._connect(), name="mqtt")
        try:
            async with asyncio.timeout(FIRST_CONNECT_SECONDS):
                await asyncio.shield(self._started)
        except TimeoutError:
            await self.close()
            where = f"{self._settings.host}:{self._settings.port}"
            why = f" ({self._problem})" if self._problem else ""
            raise ConfigError("transport", f"no MQTT broker answers at {where}{why}") from None
        except ConfigError:
            await self.close()
            raise

    def set_peers(self, peers: dict[str, str]) -> None:
        """Who may be sent to; all are as connected as the broker is."""
        before, self._peers = self._peers, dict(peers)
        if self._client is None or self._sink is None:
            return
        for peer in before:
            if peer not in peers:
                self._sink.peer_disconnected(peer, "not a peer any more")
        for peer in peers:
            if peer not in before:
                self._greet(peer)
                self._sink.peer_connected(peer)

    def send(self, peer: str, frame: bytes) -> bool:
        """Hand over a frame; False: no broker, or the buffer is full."""
        full = len(self._outbox) >= OUTBOX_FRAMES_MAX or self._bytes_waiting + len(frame) > SEND_BUFFER_BYTES
        if self._client is None or peer not in self._peers or full:
            self._counts["frames_dropped"] += 1
            return False
        self._put(peer, frame)
        self._counts["frames_sent"] += 1
        return True

    async def close(self) -> None:
        """Give the outbox a second, then disconnect."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._drained.wait()
        self._sink = None
        await self._tasks.close()
        if self._started is not None and self._started.done() and not self._started.cancelled():
            self._started.exception()

    def statistics(self) -> dict[str, int]:
        """Frames and connections since the start."""
        return dict(self._counts)

    async def _connect(self) -> None:
        backoff = Backoff(first=0.05, most=2.0, later=5.0)
        said = ""
        while True:
            try:
                async with self._make_client() as client:
                    await client.subscribe(f"{self._root}/+/{self._me}", qos=0)
                    backoff.reset()
                    said = ""
                    await self._carry(client)
            except aiomqtt.MqttError as error:
                # Bad password and the like: told to the user if it is the first attempt, else tried again.
                self._problem = str(error)
                if self._started is not None and not self._started.done():
                    where = f"{self._settings.host}:{self._settings.port}"
                    if _refused(error):
                        self._started.set_exception(ConfigError("transport", f"the broker {where} refuses us: {error}"))
                        return
                    if "CERTIFICATE_VERIFY_FAILED" in self._problem:
                        hint = "is mqtt_ca_file the authority of its certificate?"
                        self._started.set_exception(
                            ConfigError("transport", f"the broker {where} is not trusted: {error}; {hint}")
                        )
                        return
                if str(error) != said:
                    said = str(error)
                    log.info("MQTT broker %s:%s: %s", self._settings.host, self._settings.port, error)
            await asyncio.sleep(backoff.next())

    def _make_client(self) -> aiomqtt.Client:
        settings = self._settings
        client = aiomqtt.Client(
            settings.host,
            settings.port,
            username=settings.username,
            password=settings.password,
            tls_context=settings.tls,
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=True,
            keepalive=KEEPALIVE_SECONDS,
            timeout=5,
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        )
        client.pending_calls_threshold = PUBLISHED_AT_ONCE  # It would warn of more.
        return client

    async def _carry(self, client: aiomqtt.Client) -> None:
        self._client = client
        self._counts["connections"] += 1
        if self._started is not None and not self._started.done():
            self._started.set_result(None)
        for peer in self._peers:
            self._greet(peer)
            if self._sink is not None:
                self._sink.peer_connected(peer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write(client), name="mqtt write")
                async for message in client.messages:
                    self._arrived(message)
        except* aiomqtt.MqttError as errors:
            raise errors.exceptions[0] from None
        finally:
            self._client = None
            self._counts["disconnections"] += 1
            self._counts["frames_dropped"] += len(self._outbox)
            self._outbox.clear()
            self._bytes_waiting = 0
            self._drained.set()
            for peer in self._peers:
                if self._sink is not None:
                    self._sink.peer_disconnected(peer, "no connection to the broker")

    async def _write(self, client: aiomqtt.Client) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outbox:
                batch = [self._outbox.popleft() for _ in range(min(len(self._outbox), PUBLISHED_AT_ONCE))]
                self._bytes_waiting -= sum(len(frame) for _, frame in batch)
                # Each waits for the loop to come round once; in the order in which they are begun here.
                await asyncio.gather(
                    *(client.publish(f"{self._root}/{self._me}/{peer}", frame, qos=0) for peer, frame in batch)
                )
            self._drained.set()

    def _arrived(self, message: aiomqtt.Message) -> None:
        payload = message.payload
        if self._sink is None:
            return
        if len(payload) > FRAME_BYTES_MAX:
            self._counts["refused"] += 1
            return
        # The subscription's filter has the source as the last level but one.
        source = message.topic.value.split("/")[-2]
        if payload:
            self._counts["frames_received"] += 1
            self._sink.frame_received(payload)
        elif NAME_PATTERN.fullmatch(source) is not None and source in self._peers:
            now = asyncio.get_running_loop().time()
            if now - self._greeted_at.get(source, -GREETING_SECONDS) >= GREETING_SECONDS:
                self._greeted_at[source] = now
                self._sink.peer_connected(source)

    def _greet(self, peer: str) -> None:
        self._put(peer, b"")

    def _put(self, peer: str, frame: bytes) -> None:
        self._outbox.append((peer, frame))
        self._bytes_waiting += len(frame)
        self._drained.clear()
        self._wake.set()

    def _task_failed(self, error: BaseException) -> None:
        log.error("the MQTT task failed", exc_info=error)


def _refused(error: aiomqtt.MqttError) -> bool:
    """Whether the broker said no (codes from 128 on), rather than nothing."""
    code = getattr(error, "rc", None)
    value = getattr(code, "value", code)
    return isinstance(error, aiomqtt.MqttCodeError) and isinstance(value, int) and value >= 128
