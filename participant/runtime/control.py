"""The control connection: a participant's one line to whoever leads the coordinators.

It tries the coordinators in turn, goes where ``not-leader`` points, and when a connection is lost comes back with doubling,
jittered delays, longer ones once all have been gone for long; with the first of them that answers again they are short. Which messages must be said again on a new connection is the machine's business (`Registered` makes it
repeat what is unanswered); here a message is sent on the connection of the moment, or it is lost.

What ends a participant for good: another process has its id, its session is fenced, its secret is wrong, the cluster or
version is another one. These are told to the sink as an error, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, Literal, Protocol
from urllib.parse import urlsplit

from participant.runtime.backoff import Backoff
from participant.runtime.late_trust import aiohttp
from participant.runtime.tasks import TaskSet
from protocol.errors import ConfigError, FencedError, MalformedFrame, Refused, SnapshotError
from protocol.failpoints import armed, fp
from protocol.limits import CONTROL_BYTES_MAX, CONTROL_WAITING_MAX, HEARTBEAT_NS, LEASE_NS, RECONNECT_NS
from protocol.messages import (
    Consulted,
    Fenced,
    Ingested,
    Inspected,
    Registered,
    RegisterRefused,
    decode_from_coordinator,
    encode_control,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from protocol.messages import FromCoordinator, FromParticipant, Heartbeat, Register

log = logging.getLogger("cleancut.participant.control")

CONNECT_SECONDS: Final = 3.0
REGISTER_SECONDS: Final = 10.0
"""From `Register` to its answer: an election may lie between."""
LATER_SECONDS: Final = 3.0
"""At most between two rounds when all coordinators have been gone for long. With one that is stopped and takes another
`CONNECT_SECONDS`, that is less than a new leader waits for those who were there: a lease and `RECONNECT_NS`."""
PING_SECONDS: Final = 1.0
"""A frozen coordinator is noticed after about 1.5 times this."""
ID_TAKEN_SECONDS: Final = (1.5 * LEASE_NS + RECONNECT_NS) / 1e9
"""How long ``id-taken`` may be a predecessor that was killed and whose lease still runs; after that it is a twin."""
_NANOSECONDS: Final = 1_000_000_000


class ControlSink(Protocol):
    """Where the control connection puts what happens; called on the driver's loop, must not block."""

    def register_message(self) -> Register:
        """How this participant introduces itself now: with its session, if it has one.

        Raises:
            SnapshotError: It has ended instead.
        """
        ...

    def heartbeat_message(self) -> Heartbeat | None:
        """What keeps the lease; None: no session yet."""
        ...

    def control_received(self, message: FromCoordinator) -> None:
        """An answer or order of the leader."""
        ...

    def control_disconnected(self, reason: str) -> None:
        """The connection is lost; it comes back by itself."""
        ...

    def control_ended(self, error: SnapshotError) -> None:
        """No connection will ever be had again."""
        ...


class Control(Protocol):
    """What the driver needs of a control connection; `ControlClient` is the real one."""

    async def start(self, sink: ControlSink) -> None:
        """Begin to connect; returns at once."""
        ...

    def send(self, message: FromParticipant) -> bool:
        """Say it on the connection of the moment; False: there is none, it is lost."""
        ...

    async def close(self) -> None:
        """Say what is waiting to be said, within a second, and end."""
        ...


class ControlSocket(Protocol):
    """One connection that was dialed: messages both ways, as aiohttp's WebSocket of a client."""

    @property
    def close_code(self) -> int | None:
        """With which it was closed; None: it is open."""
        ...

    async def receive(self) -> aiohttp.WSMessage:
        """The next message, or news of the end."""
        ...

    async def send_bytes(self, data: bytes) -> None:
        """Hand one message over; waits while the peer takes none."""
        ...

    async def close(self) -> object:
        """Say farewell and end."""
        ...


class Dialer(Protocol):
    """How a coordinator is reached; an async context manager, entered once by whoever dials."""

    async def __aenter__(self) -> object:
        """Get ready."""
        ...

    async def __aexit__(self, *error: object) -> object:
        """Let go of all that is open."""
        ...

    async def dial(self, url: str) -> ControlSocket:
        """Connect to one coordinator.

        Raises:
            Refused: It does not take our token.
            OSError: And other errors of the network: it is not reached now.
        """
        ...


class WebSocketDialer:
    """A `Dialer` over aiohttp.

    Args:
        token: Bearer token of role ``participant``.
        tls: What HTTPS coordinators' certificates are checked with; None: what this machine trusts.
    """

    def __init__(self, token: str, tls: ssl.SSLContext | None) -> None:
        self._token = token
        self._tls: ssl.SSLContext | Literal[True] = True if tls is None else tls
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> None:
        """Get ready."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        self._session = aiohttp.ClientSession(timeout=timeout)

    async def __aexit__(self, *error: object) -> None:
        """Let go of all that is open."""
        await self._session.close()

    async def dial(self, url: str) -> aiohttp.ClientWebSocketResponse:
        """As `Dialer.dial`."""
        try:
            return await self._session.ws_connect(
                f"{url}/v1/participant",
                headers={"Authorization": f"Bearer {self._token}"},
                max_msg_size=CONTROL_BYTES_MAX + 1,
                heartbeat=PING_SECONDS,
                compress=0,
                ssl=self._tls,
            )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in {401, 403}:
                raise Refused(
                    "wrong-token", f"{url} refuses our token: is secret_file the one of this cluster? ({error.status})"
                ) from None
            raise


class ControlClient:
    """A `Control` over WebSocket."""

    def __init__(
        self,
        *,
        coordinators: Sequence[str],
        token: str,
        tls: ssl.SSLContext | None = None,
        dialer: Dialer | None = None,
    ) -> None:
        """Set up.

        Args:
            coordinators: ``host:port`` or ``http[s]://host:port``, at least one.
            token: Bearer token of role ``participant``.
            tls: What HTTPS coordinators' certificates are checked with; None: what this machine trusts.
            dialer: In place of one over HTTP with this token; for tests.

        Raises:
            ConfigError: An address is not one, or there is none.
        """
        if not coordinators:
            raise ConfigError("coordinators", "name at least one, as host:port")
        self._coordinators = [_url(text) for text in coordinators]
        self._dialer: Dialer = dialer or WebSocketDialer(token, tls)
        self._sink: ControlSink | None = None
        self._tasks = TaskSet(self._task_failed)
        self._outbox: deque[tuple[bytes, bool]] = deque()
        """Encoded messages, and whether they keep the lease."""
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._bound = False
        self._sent_at = 0.0
        self._id_taken_since: float | None = None
        self._counts = dict.fromkeys(("connections", "disconnections", "sent", "received", "lost", "malformed"), 0)
        self.leader = ""
        """URL of the coordinator that the connection of the moment leads to; "": none."""

    async def start(self, sink: ControlSink) -> None:
        """Begin to connect; returns at once."""
        self._sink = sink
        self._tasks.spawn(self._stay_connected(), name="control")

    def send(self, message: FromParticipant) -> bool:
        """Say it on the connection of the moment."""
        if not self._bound or len(self._outbox) >= CONTROL_WAITING_MAX:
            self._counts["lost"] += 1
            return False
        self._put(message)
        return True

    async def close(self) -> None:
        """Say what is waiting to be said, within a second, and end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._drained.wait()
        self._sink = None
        await self._tasks.close()

    def statistics(self) -> dict[str, int]:
        """Counts since the start."""
        return dict(self._counts)

    def _put(self, message: FromParticipant) -> None:
        # Answers are for whoever asked: the leader's machine does not hear them, and they keep no lease.
        self._outbox.append((encode_control(message), not isinstance(message, Ingested | Inspected | Consulted)))
        self._counts["sent"] += 1
        self._drained.clear()
        self._wake.set()

    async def _stay_connected(self) -> None:
        backoff = Backoff(first=0.05, most=1.0, later=LATER_SECONDS)
        turn, count = 0, len(self._coordinators)
        unanswered = 0
        pointed = ""
        said: dict[int, tuple[str, str]] = {}
        async with self._dialer:
            while self._sink is not None:
                url = pointed or self._coordinators[turn % count]
                connections = self._counts["connections"]
                try:
                    pointed = await self._talk(url)
                    if unanswered >= count:
                        backoff.reset()  # They are coming back: soon one of them leads.
                    unanswered = 0
                    problem = f"not the leader; it says {pointed or 'nobody'} is"
                except (OSError, TimeoutError, aiohttp.ClientError, MalformedFrame) as error:
                    pointed = ""
                    unanswered += 1
                    problem = _problem(error)
                except SnapshotError as error:
                    self._end(error)
                    return
                if self._counts["connections"] > connections:
                    backoff.reset()
                    self._lost(problem)
                if pointed and pointed != url:
                    # No wait: where it points is usually right, and an election is when it matters.
                    await asyncio.sleep(0.01)
                    continue
                if said.get(turn % count) != (url, problem):
                    # Once for each of them: with all of them gone, every round would fill the log with the same lines.
                    said[turn % count] = url, problem
                    log.warning("coordinator %s: %s; trying on", url, problem)
                rounds = turn // count
                turn += 1
                if self._coordinators[turn % count] == url:
                    turn += 1  # Not the same one again: a stopped process takes connections and never answers.
                if turn // count > rounds:
                    await asyncio.sleep(backoff.next())

    async def _talk(self, url: str) -> str:
        """One connection from its dialing to its end.

        Returns:
            URL of the leader, if `url` is not it; "" if nobody knows.

        Raises:
            SnapshotError: For good.
            OSError: And other errors of the network: not for good.
        """
        sink = self._sink
        assert sink is not None, "talks before start"
        async with asyncio.timeout(CONNECT_SECONDS):
            socket = await self._dialer.dial(url)
        try:
            await socket.send_bytes(encode_control(sink.register_message()))
            async with asyncio.timeout(REGISTER_SECONDS):
                answer = await self._receive(socket)
            if isinstance(answer, RegisterRefused):
                return self._refused(answer)
            if not isinstance(answer, Registered):
                raise MalformedFrame(f"{type(answer).__name__} where an answer to Register was due")
            await self._converse(socket, url, sink, answer)
        finally:
            with contextlib.suppress(TimeoutError, OSError, aiohttp.ClientError):
                async with asyncio.timeout(1):
                    await socket.close()
        return ""

    async def _converse(self, socket: ControlSocket, url: str, sink: ControlSink, answer: Registered) -> None:
        self._id_taken_since = None
        self._counts["connections"] += 1
        self._outbox.clear()
        self._bound = True
        self.leader = url
        writer = self._tasks.spawn(self._write(socket), name="control write")
        beats = self._tasks.spawn(self._beat(sink, answer.lease_ns), name="control heartbeat")
        try:
            message: FromCoordinator = answer
            while True:
                sink.control_received(message)
                if isinstance(message, Fenced):
                    raise FencedError(f"session {message.session} has ended: {message.reason}")
                message = await self._receive(socket)
        finally:
            self._bound = False
            self.leader = ""
            writer.cancel()
            beats.cancel()
            self._drained.set()

    async def _receive(self, socket: ControlSocket) -> FromCoordinator:
        received = await socket.receive()
        if received.type is not aiohttp.WSMsgType.BINARY:
            raise ConnectionResetError(
                f"the coordinator closed the connection ({socket.close_code}: {received.extra or 'no reason'})"
            )
        self._counts["received"] += 1
        try:
            return decode_from_coordinator(received.data)
        except MalformedFrame:
            self._counts["malformed"] += 1
            raise

    async def _write(self, socket: ControlSocket) -> None:
        with contextlib.suppress(OSError, aiohttp.ClientError):
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._outbox:
                    data, keeps_lease = self._outbox.popleft()
                    if keeps_lease:
                        self._sent_at = asyncio.get_running_loop().time()
                    await socket.send_bytes(data)
                    if armed() and b"local-report" in data[:32]:
                        fp("report.after_send")
                    elif armed() and b"\xa8restored" in data[:32]:
                        fp("restored.after_send")
                self._drained.set()

    async def _beat(self, sink: ControlSink, lease_ns: int) -> None:
        interval = min(HEARTBEAT_NS, max(lease_ns, _NANOSECONDS // 100) // 4) / _NANOSECONDS
        loop = asyncio.get_running_loop()
        while True:
            quiet = loop.time() - self._sent_at
            if quiet < interval:
                await asyncio.sleep(interval - quiet)
                continue
            beat = sink.heartbeat_message()
            if beat is not None:
                self._put(beat)
            await asyncio.sleep(interval)

    def _refused(self, answer: RegisterRefused) -> str:
        match answer.code:
            case "not-leader":
                return answer.leader.rstrip("/")
            case "full":
                raise ConnectionRefusedError(answer.sentence)
            case "fenced":
                raise FencedError(answer.sentence)
            case "id-taken":
                now = asyncio.get_running_loop().time()
                if self._id_taken_since is None:
                    self._id_taken_since = now
                if now - self._id_taken_since < ID_TAKEN_SECONDS:
                    raise ConnectionRefusedError(answer.sentence)
            case _:
                pass
        raise Refused(answer.code, answer.sentence)

    def _lost(self, reason: str) -> None:
        self._counts["disconnections"] += 1
        if self._sink is not None:
            self._sink.control_disconnected(reason)

    def _end(self, error: SnapshotError) -> None:
        if self._sink is not None:
            self._sink.control_ended(error)

    def _task_failed(self, error: BaseException) -> None:
        log.error("a control task failed", exc_info=error)
        if isinstance(error, Exception):
            self._end(Refused("internal", f"the control connection failed: {error!r}"))


def _problem(error: Exception) -> str:
    """Why a coordinator was not reached, in a sentence without the library's own words."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted ({error.certificate_error}); is ca_file the cluster's?"
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error) or type(error.os_error).__name__
    return str(error) or type(error).__name__


def _url(text: str) -> str:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError as error:
        raise ConfigError("coordinators", f"{text!r}: {error}; write host:port") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or port is None or parts.path not in {"", "/"}:
        raise ConfigError("coordinators", f"{text!r} is not host:port")
    return f"{parts.scheme}://{parts.netloc}"
