"""Frames peer to peer over WebSocket (aiohttp), one connection for both directions of a pair.

Theory: of two participants the one whose id sorts first dials, so a pair has one connection and nobody has to break a tie.
A connection carries frames only after the handshake (`handshake.py`). A newer connection of the same peer replaces the
older one: the peer restarted, or its network came back before ours noticed.

Losing frames is allowed (the channel machine sends again), so nothing here waits: what does not fit into the bounded send
buffer of a connection is dropped and counted.

Measured (RAFT_MQTT.md D): WebSocket is as fast as a bare stream; compression costs half, so it is off; a peer that does
not read is cut by the heartbeat, so each connection has a receiving task from its first moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from participant.runtime.backoff import Backoff
from participant.runtime.tasks import TaskSet
from participant.runtime.transports import handshake
from protocol.errors import ConfigError, WireError
from protocol.failpoints import is_loopback
from protocol.ids import ChannelId, ClusterName, ParticipantId
from protocol.limits import FRAME_BYTES_MAX, HANDSHAKES_MAX, KIB, SEND_BUFFER_BYTES

if TYPE_CHECKING:
    from protocol.keys import ClusterKeys
    from protocol.ports import FrameSink

log = logging.getLogger("cleancut.participant.websocket")

PATH: Final = "/cleancut/channel"
HANDSHAKE_SECONDS: Final = 5.0
HEARTBEAT_SECONDS: Final = 2.0
"""A frozen peer is noticed after about 1.5 times this."""
CLOSE_SECONDS: Final = 1.0
_MESSAGE_BYTES_MAX: Final = FRAME_BYTES_MAX + 1
"""aiohttp refuses a message that reaches its limit."""

_AT_ONCE_BYTES: Final = 32 * KIB
"""Half of asyncio's high-water mark."""

_Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class _Connection:
    """One open, proven connection: its outbox and the task that empties it."""

    __slots__ = ("announced", "bytes_waiting", "drained", "outbox", "peer", "socket", "stream", "wake")

    def __init__(self, peer: str, socket: _Socket, stream: asyncio.BaseTransport | None) -> None:
        self.peer = peer
        self.socket = socket
        self.stream = stream if isinstance(stream, asyncio.WriteTransport) else None
        self.outbox: deque[bytes] = deque()
        self.bytes_waiting = 0
        self.announced = False
        self.wake = asyncio.Event()
        self.drained = asyncio.Event()
        self.drained.set()

    def write_now(self, frame: bytes) -> bool:
        """Write a small frame at once if nothing waits: spares a task's wake-up, half of a frame's cost.

        Raises:
            OSError: The connection is closing.
        """
        stream = self.stream
        if self.outbox or len(frame) > _AT_ONCE_BYTES or stream is None or stream.get_write_buffer_size():
            return False
        # With nothing buffered and less than the high-water mark to write, aiohttp has no reason to wait.
        writing = self.socket.send_bytes(frame)
        try:
            writing.send(None)
        except StopIteration:
            return True
        writing.close()
        raise ConnectionResetError("a small write waited")

    def put(self, frame: bytes) -> None:
        """Have it written in its turn."""
        self.outbox.append(frame)
        self.bytes_waiting += len(frame)
        self.drained.clear()
        self.wake.set()

    async def write(self) -> None:
        """Empty the outbox for ever; ends with the connection."""
        while True:
            await self.wake.wait()
            self.wake.clear()
            while self.outbox:
                frame = self.outbox.popleft()
                self.bytes_waiting -= len(frame)
                await self.socket.send_bytes(frame)
            self.drained.set()


class WebSocketTransport:
    """One participant's end; a `protocol.ports.Transport`."""

    def __init__(
        self,
        *,
        cluster: ClusterName,
        participant: ParticipantId,
        keys: ClusterKeys,
        listen: str = "127.0.0.1:0",
        advertise: str = "",
    ) -> None:
        """Set up; nothing is bound before `start`.

        Args:
            cluster: Whose handshake is spoken.
            participant: This end.
            keys: Of the cluster.
            listen: ``host:port``; port 0 takes a free one.
            advertise: ``host:port`` under which peers reach this end; default: where it listens.
        """
        self._cluster = cluster
        self._me = participant
        self._keys = keys
        self._host, self._port = _host_port("listen", listen)
        self._advertise = advertise
        if advertise:
            _host_port("advertise", advertise)
        self._sink: FrameSink | None = None
        self._peers: dict[str, str] = {}
        self._dialing: dict[str, asyncio.Task[Any]] = {}
        self._connections: dict[str, _Connection] = {}
        self._handshakes = 0
        self._tasks = TaskSet(self._task_failed)
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._counts = dict.fromkeys(
            ("frames_sent", "frames_received", "frames_dropped", "connections", "disconnections", "refused"), 0
        )

    @property
    def address(self) -> str:
        """``ws://host:port``."""
        return f"ws://{self._advertise or f'{_bracket(self._host)}:{self._port}'}"

    async def start(self, sink: FrameSink) -> None:
        """Bind and listen.

        Raises:
            ConfigError: The port is taken, or the address is not ours.
        """
        self._sink = sink
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_connect=5)
        )
        application = web.Application()
        application.router.add_get(PATH, self._accept)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=CLOSE_SECONDS)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self.close()
            raise ConfigError("listen", _bind_problem(f"{self._host}:{self._port}", error)) from None
        self._port = self._runner.addresses[0][1]
        if not is_loopback(self._host):
            log.warning(
                "listening on %s: frames are authenticated, not encrypted; whoever can watch this network reads the messages",
                f"{_bracket(self._host)}:{self._port}",
            )

    def set_peers(self, peers: dict[str, str]) -> None:
        """Dial who is new and ours to dial, drop who is gone."""
        before, self._peers = self._peers, dict(peers)
        for peer, task in list(self._dialing.items()):
            if peers.get(peer) != before.get(peer):
                task.cancel()
                del self._dialing[peer]
        for peer in list(self._connections):
            if peer not in peers or (peer in before and peers[peer] != before[peer]):
                self._drop(self._connections[peer], "not a peer at this address any more")
        for peer, address in peers.items():
            if self._me < peer and peer not in self._dialing:
                self._dialing[peer] = self._tasks.spawn(self._dial(peer, address), name=f"dial {peer}")
            if peer in self._connections:
                # It may have dialed before our topology named it.
                self._announce(self._connections[peer])

    def send(self, peer: str, frame: bytes) -> bool:
        """Hand over a frame; False: not connected, or the buffer is full."""
        connection = self._connections.get(peer)
        if connection is None or connection.bytes_waiting + len(frame) > SEND_BUFFER_BYTES:
            self._counts["frames_dropped"] += 1
            return False
        try:
            if not connection.write_now(frame):
                connection.put(frame)
        except (OSError, aiohttp.ClientError) as error:
            self._drop(connection, f"{type(error).__name__}: {error}")
            self._counts["frames_dropped"] += 1
            return False
        self._counts["frames_sent"] += 1
        return True

    async def close(self) -> None:
        """Give outboxes a second, then end all connections."""
        connections = list(self._connections.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                for connection in connections:
                    await connection.drained.wait()
        self._sink = None
        await self._tasks.close()
        for connection in connections:
            with contextlib.suppress(TimeoutError, OSError, aiohttp.ClientError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await connection.socket.close()
        self._connections.clear()
        self._dialing.clear()
        if self._runner is not None:
            await self._stop_accepting(self._runner)
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    def statistics(self) -> dict[str, int]:
        """Frames and connections since the start."""
        return dict(self._counts)

    def disconnect(self, peer: str) -> bool:
        """Abort the connection to a peer, as a failing network would; it comes back by itself."""
        connection = self._connections.get(peer)
        if connection is None:
            return False
        self._drop(connection, "disconnected on request")
        return True

    # --- the accepting side

    @staticmethod
    async def _stop_accepting(runner: web.AppRunner) -> None:
        """Take no more connections, and let those that were just taken become whole, so that cleaning up closes them.

        asyncio makes a connection's transport one turn of the loop after it has taken its socket; where the server was closed in
        between, that fails, and the socket is nobody's.
        """
        loop = asyncio.get_running_loop()
        for site in runner.sites:
            server = site._server  # noqa: SLF001 - aiohttp has no public way to it
            for listening in server.sockets if isinstance(server, asyncio.Server) else ():
                loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)

    async def _accept(self, request: web.Request) -> web.StreamResponse:
        if self._handshakes >= HANDSHAKES_MAX or self._sink is None:
            self._counts["refused"] += 1
            return web.Response(status=503, text="too many handshakes\n")
        socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT_SECONDS, max_msg_size=_MESSAGE_BYTES_MAX, compress=False, timeout=CLOSE_SECONDS
        )
        try:
            await socket.prepare(request)
        except (OSError, aiohttp.ClientError):
            # Gone before it was answered: this process slept, say.
            self._counts["refused"] += 1
            return web.Response(status=503, text="gone\n")
        self._handshakes += 1
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                peer = await self._welcome(socket)
        except (WireError, TimeoutError, OSError, TypeError, aiohttp.ClientError) as error:
            # TypeError: aiohttp's word for a text message where bytes were due.
            self._counts["refused"] += 1
            log.warning("refused a connection from %s: %s", request.remote, str(error) or "handshake timed out")
            await socket.close(code=aiohttp.WSCloseCode.POLICY_VIOLATION, message=b"handshake")
            return socket
        finally:
            self._handshakes -= 1
        await self._carry(_Connection(peer, socket, request.transport))
        return socket

    async def _welcome(self, socket: web.WebSocketResponse) -> str:
        hello = await socket.receive_bytes()
        source = handshake.open_hello(hello, cluster=self._cluster, me=self._me)
        channel = ChannelId(source, self._me)
        nonce = secrets.token_bytes(handshake.NONCE_BYTES)
        await socket.send_bytes(handshake.answer_hello(self._keys, channel, hello, nonce))
        handshake.check_proof(self._keys, channel, hello, nonce, await socket.receive_bytes())
        await socket.send_bytes(handshake.WELCOME)
        return source

    # --- the dialing side

    async def _dial(self, peer: str, address: str) -> None:
        backoff = Backoff(first=0.02, most=2.0, later=5.0)
        said = ""
        while True:
            try:
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    socket = await self._introduce(peer, address)
            except (WireError, TimeoutError, OSError, ValueError, TypeError, aiohttp.ClientError) as error:
                problem = f"{type(error).__name__}: {error}"
                if problem != said:
                    log.info("cannot reach %s at %s yet: %s", peer, address, problem)
                    said = problem
                await asyncio.sleep(backoff.next())
                continue
            said = ""
            backoff.reset()
            # aiohttp has no public way from a client's socket to its transport.
            stream = getattr(socket._conn, "transport", None)  # noqa: SLF001
            await self._carry(_Connection(peer, socket, stream))
            await asyncio.sleep(backoff.next())

    async def _introduce(self, peer: str, address: str) -> aiohttp.ClientWebSocketResponse:
        assert self._session is not None, "dialed before start"
        socket = await self._session.ws_connect(
            f"http://{urlsplit(address).netloc}{PATH}",
            heartbeat=HEARTBEAT_SECONDS,
            max_msg_size=_MESSAGE_BYTES_MAX,
            compress=0,
        )
        try:
            channel = ChannelId(self._me, ParticipantId(peer))
            nonce = secrets.token_bytes(handshake.NONCE_BYTES)
            hello = handshake.encode_hello(cluster=self._cluster, source=self._me, target=peer, nonce=nonce)
            await socket.send_bytes(hello)
            proof = handshake.answer_challenge(self._keys, channel, hello, await socket.receive_bytes())
            await socket.send_bytes(proof)
            handshake.check_welcome(await socket.receive_bytes())
        except BaseException:
            await socket.close()
            raise
        return socket

    # --- both

    async def _carry(self, connection: _Connection) -> None:
        """Frames in both directions until the connection ends."""
        peer, socket = connection.peer, connection.socket
        older = self._connections.get(peer)
        if older is not None:
            self._drop(older, "replaced by a newer connection")
        self._connections[peer] = connection
        self._counts["connections"] += 1
        writer = self._tasks.spawn(self._write(connection), name=f"write to {peer}")
        if peer in self._peers:
            self._announce(connection)
        reason = "closed"
        try:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    reason = f"sent a {message.type.name.lower()} message" if message.data is not None else "broke"
                    break
                self._counts["frames_received"] += 1
                if self._sink is None:
                    break
                self._sink.frame_received(message.data)
        except (OSError, aiohttp.ClientError) as error:
            reason = f"{type(error).__name__}: {error}"
        finally:
            writer.cancel()
            self._forget(connection, reason)
            with contextlib.suppress(TimeoutError, OSError, aiohttp.ClientError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await socket.close()

    async def _write(self, connection: _Connection) -> None:
        try:
            await connection.write()
        except (OSError, aiohttp.ClientError) as error:
            self._drop(connection, f"{type(error).__name__}: {error}")

    def _drop(self, connection: _Connection, reason: str) -> None:
        self._forget(connection, reason)
        # Abort instead of close: whoever does not read must not hold us up. The receiving task sees it and ends.
        if connection.stream is not None:
            connection.stream.abort()

    def _announce(self, connection: _Connection) -> None:
        if not connection.announced and self._sink is not None:
            connection.announced = True
            self._sink.peer_connected(connection.peer)

    def _forget(self, connection: _Connection, reason: str) -> None:
        if self._connections.get(connection.peer) is connection:
            del self._connections[connection.peer]
            self._counts["disconnections"] += 1
            self._counts["frames_dropped"] += len(connection.outbox)
            connection.outbox.clear()
            connection.drained.set()
            if self._sink is not None and connection.announced:
                self._sink.peer_disconnected(connection.peer, reason)

    def _task_failed(self, error: BaseException) -> None:
        log.error("a transport task failed", exc_info=error)


def _host_port(setting: str, text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(setting, f"{text!r} is not host:port") from None
    if not host or port is None or parts.path:
        raise ConfigError(setting, f"{text!r} is not host:port")
    return host, port


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _bind_problem(where: str, error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "error")
    hint = {
        "EADDRINUSE": "the port is in use; choose another or 0 for a free one",
        "EADDRNOTAVAIL": "this machine does not have that address",
        "EACCES": "ports below 1024 need privileges",
    }.get(name, error.strerror or str(error))
    return f"cannot listen on {where}: {name}: {hint}"
