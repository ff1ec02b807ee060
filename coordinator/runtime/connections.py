"""The participants' control connections: WebSockets that carry `protocol.messages`, one message each.

A connection lives through three states: it is opened (the token was right), it has sent its `Register`, it is bound to
the session that the answer `Registered` carried. What a peer can do to us is bounded in each: the time and number of
connections that have not registered, the size and rate of messages, what waits to be sent to it. A peer that breaks a
rule loses this connection, with a close code that says why; nothing else is harmed.

A message's session must be the connection's own (RELIABILITY.md T1, T2): a participant cannot speak for another one.

A coordinator that does not lead answers a `Register` with where the leader is, and closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import WSMessage, WSMsgType, web

from coordinator.runtime.access import PARTICIPANT_KEY
from coordinator.runtime.answers import ApiError
from coordinator.runtime.asks import Asks
from coordinator.runtime.ingests import Ingests
from coordinator.runtime.orders import OrderEncoder
from coordinator.runtime.waiting import WaitingBoard
from protocol.errors import MalformedFrame
from protocol.failpoints import armed, fp
from protocol.limits import CONTROL_BYTES_MAX, MIB, PARTICIPANTS_MAX
from protocol.messages import (
    Consulted,
    Heartbeat,
    Ingested,
    Inspected,
    Register,
    Registered,
    RegisterRefused,
    decode_from_participant,
    encode_control,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.messages import Consult, Ingest, Inspect, ToCoordinator, ToParticipant

log = logging.getLogger("cleancut.connections")

HANDSHAKE_SECONDS_MAX: Final = 5.0
"""From the upgrade to `Register`, and from there to the answer's leaving."""
ANSWER_SECONDS_MAX: Final = 15.0
"""From `Register` to its answer: an election may lie between."""
HANDSHAKES_MAX: Final = 256
"""Connections that are not bound to a session yet."""
IDLE_SECONDS_MAX: Final = 30.0
"""A bound connection without any message; its lease ran out long before."""
WRITE_SECONDS_MAX: Final = 20.0
"""One message must leave within this time."""
WAITING_BYTES_MAX: Final = 32 * MIB
"""Orders that wait for a slow peer: four of the largest messages."""
MESSAGES_PER_SECOND: Final = 500
"""Sustained rate of one participant; heartbeats make two, an epoch about ten."""
MESSAGES_BURST: Final = 2_000

CLOSE_MALFORMED: Final = 4000
CLOSE_REPLACED: Final = 4001
CLOSE_HANDSHAKE: Final = 4002
CLOSE_FOREIGN_SESSION: Final = 4003
CLOSE_NOT_LEADER: Final = 4004
CLOSE_TOO_SLOW: Final = 4005
CLOSE_REFUSED: Final = 4006
CLOSE_FLOOD: Final = 4007
CLOSE_IDLE: Final = 4008
CLOSE_ORDERED: Final = 4009
CLOSE_ENDING: Final = 1001
"""The coordinator ends; WebSocket's own code for going away."""


class Connection:
    """One WebSocket of one participant."""

    __slots__ = (
        "_allowance", "_closing", "_last", "_news", "_waiting", "bound_to", "id", "participant", "session",
        "understands_asks", "waiting_bytes",
    )  # fmt: skip

    def __init__(self, number: int, now: float, *, bound_to: str = "") -> None:
        self.id = number
        """Unique in this process."""
        self.bound_to = bound_to
        """The only participant that may register here, by its token; "": any."""
        self.participant = ""
        """As it registered; "" before."""
        self.session = 0
        """Bound by `Registered`; 0 before."""
        self.understands_asks = False
        """It understands `Ingest`, `Inspect` and `Consult`."""
        self.waiting_bytes = 0
        self._waiting: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._closing: tuple[int, str] | None = None
        self._allowance = float(MESSAGES_BURST)
        self._last = now

    def put(self, data: bytes) -> None:
        """Queue an order; too many for a slow peer close the connection."""
        if self._closing is not None:
            return
        if self.waiting_bytes + len(data) > WAITING_BYTES_MAX:
            self._waiting.clear()
            self.close(CLOSE_TOO_SLOW, "orders are not taken fast enough")
            return
        self._waiting.append(data)
        self.waiting_bytes += len(data)
        self._news.set()

    def close(self, code: int, reason: str) -> None:
        """Close after what is queued has left. The first reason stands."""
        if self._closing is None:
            self._closing = (code, reason)
        self._news.set()

    @property
    def closing(self) -> tuple[int, str] | None:
        """Code and reason once `close` was called."""
        return self._closing

    def may_receive(self, now: float) -> bool:
        """Take one from the rate's allowance."""
        self._allowance = min(MESSAGES_BURST, self._allowance + (now - self._last) * MESSAGES_PER_SECOND)
        self._last = now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    async def next_order(self) -> bytes | None:
        """The next message to send; None: close now."""
        while not self._waiting:
            if self._closing is not None:
                return None
            self._news.clear()
            await self._news.wait()
        data = self._waiting.popleft()
        self.waiting_bytes -= len(data)
        return data


class HubSink(Protocol):
    """Where the hub puts what happened; called on the service's loop, must not block."""

    def connection_opened(self, connection: int) -> None:
        """A peer with a participant's token is there."""
        ...

    def message_arrived(self, connection: int, message: ToCoordinator) -> None:
        """A `Register`, or a message with the connection's own session."""
        ...

    def connection_lost(self, connection: int, reason: str) -> None:
        """The connection is gone; not the session, which may come back on a new one."""
        ...


class Socket(Protocol):
    """One connection that was taken: messages both ways, as aiohttp's WebSocket of a server."""

    async def receive(self) -> WSMessage:
        """The next message, or news of the end."""
        ...

    async def send_bytes(self, data: bytes) -> None:
        """Hand one message over; waits while the peer takes none."""
        ...

    async def close(self, *, code: int, message: bytes) -> object:
        """Say why, and end."""
        ...


class ParticipantHub:
    """All control connections of this coordinator."""

    def __init__(self, sink: HubSink, *, clock: Callable[[], float]) -> None:
        self._sink = sink
        self._clock = clock
        self._connections: dict[int, Connection] = {}
        self._by_session: dict[int, Connection] = {}
        self._orders = OrderEncoder()
        self.asks = Asks()
        """Questions to participants that are no orders."""
        self.ingests = Ingests(self.asks, clock)
        """Outside input on its way to participants."""
        self.waiting = WaitingBoard()
        """Agents that wait for somebody's decision."""
        self._numbers = 0
        self._ending = False
        self.counts: dict[str, int] = {
            "opened": 0,
            "malformed": 0,
            "foreign_session": 0,
            "flood": 0,
            "handshake": 0,
            "too_slow": 0,
            "full": 0,
            "not_leader": 0,
            "refused": 0,
        }
        """Connections and what ended them, since the start."""

    # --- what the driver orders ---

    def send(self, connection: int, message: ToParticipant) -> bool:
        """Send on a connection; `Registered` binds it to its session. False: it is gone."""
        found = self._connections.get(connection)
        if found is None:
            return False
        match message:
            case Registered(session=session):
                older = self._by_session.get(session)
                if older is not None and older is not found:
                    older.close(CLOSE_REPLACED, "the session goes on on a newer connection")
                found.session = session
                self._by_session[session] = found
                found.put(self._orders.encode(message))
            case RegisterRefused(code=code):
                self.counts["not_leader" if code == "not-leader" else "refused"] += 1
                found.put(self._orders.encode(message))
                found.close(CLOSE_NOT_LEADER if code == "not-leader" else CLOSE_REFUSED, code)
            case _:
                found.put(self._orders.encode(message))
        return True

    def send_to_session(self, session: int, message: ToParticipant) -> bool:
        """Send to whatever connection the session has now. False: none."""
        found = self._by_session.get(session)
        return found is not None and self.send(found.id, message)

    def ask(self, session: int, message: Ingest | Inspect | Consult) -> bool:
        """Ask a session something. False: it has no connection, or does not understand it."""
        found = self._by_session.get(session)
        if found is None or not found.understands_asks or found.closing is not None:
            return False
        found.put(encode_control(message))
        return True

    def close(self, connection: int, code: int, reason: str) -> None:
        """Close one connection after what is queued for it."""
        found = self._connections.get(connection)
        if found is not None:
            found.close(code, reason)

    def close_session(self, session: int, code: int, reason: str) -> None:
        """Close the connection of a session, if it has one."""
        found = self._by_session.get(session)
        if found is not None:
            found.close(code, reason)

    def close_all(self, code: int, reason: str) -> None:
        """Close every connection: leadership was lost, or the process ends."""
        for connection in list(self._connections.values()):
            connection.close(code, reason)

    def end(self) -> None:
        """Take no more connections and close those that are there."""
        self._ending = True
        self.close_all(CLOSE_ENDING, "the coordinator ends")

    def connected(self, session: int) -> bool:
        """Whether a session has a connection."""
        return session in self._by_session

    @property
    def open_count(self) -> int:
        """Connections, bound or not."""
        return len(self._connections)

    @property
    def bound_count(self) -> int:
        """Connections with a session."""
        return len(self._by_session)

    # --- one connection ---

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/participant`."""
        self.admit()
        socket = web.WebSocketResponse(max_msg_size=CONTROL_BYTES_MAX, compress=False, autoping=True)
        if not socket.can_prepare(request):
            raise ApiError(400, "not-a-websocket", "this address takes WebSocket upgrades only")
        await socket.prepare(request)
        await self.converse(socket, bound_to=request.get(PARTICIPANT_KEY, ""))
        return socket

    def admit(self) -> None:
        """Whether one more connection may begin.

        Raises:
            ApiError: It may not; 503 with the reason.
        """
        if self._ending:
            raise ApiError(503, "ending", "this coordinator ends")
        waiting = len(self._connections) - len(self._by_session)
        if waiting >= HANDSHAKES_MAX or len(self._connections) >= PARTICIPANTS_MAX + HANDSHAKES_MAX:
            self.counts["full"] += 1
            raise ApiError(503, "full", "too many connections", "try again in a second", headers={"Retry-After": "1"})

    async def converse(self, socket: Socket, *, bound_to: str) -> None:
        """One connection from its opening to its end.

        Args:
            socket: Was opened; is closed on return.
            bound_to: The only participant that may register on it; "": any.
        """
        self._numbers += 1
        connection = Connection(self._numbers, self._clock(), bound_to=bound_to)
        self._connections[connection.id] = connection
        self.counts["opened"] += 1
        self._sink.connection_opened(connection.id)
        writer = asyncio.create_task(self._write(socket, connection))
        try:
            await self._read(socket, connection)
        finally:
            # Reading has ended: the peer closed, broke a rule, or we closed. What is queued leaves first.
            self._forget(connection)
            connection.close(1000, "")
            try:
                async with asyncio.timeout(WRITE_SECONDS_MAX):
                    await writer
            finally:
                writer.cancel()

    def _forget(self, connection: Connection) -> None:
        del self._connections[connection.id]
        if self._by_session.get(connection.session) is connection:
            del self._by_session[connection.session]
            self.asks.session_lost(connection.session)
            self.ingests.session_lost(connection.session)
        self._sink.connection_lost(connection.id, (connection.closing or (0, ""))[1] or "closed by the peer")

    async def _write(self, socket: Socket, connection: Connection) -> None:
        try:
            while (data := await connection.next_order()) is not None:
                async with asyncio.timeout(WRITE_SECONDS_MAX):
                    await socket.send_bytes(data)
                if armed():
                    _pass_sent(data)
        except (ConnectionError, TimeoutError, RuntimeError):
            # RuntimeError: aiohttp's word for writing to a socket whose close has begun.
            connection.close(CLOSE_TOO_SLOW, "orders cannot be delivered")
        code, reason = connection.closing or (1000, "")
        if code == CLOSE_TOO_SLOW:
            self.counts["too_slow"] += 1
        await socket.close(code=code, message=reason.encode()[:120])

    async def _read(self, socket: Socket, connection: Connection) -> None:
        deadline = self._clock() + HANDSHAKE_SECONDS_MAX
        while connection.closing is None:
            try:
                async with asyncio.timeout(max(0.0, deadline - self._clock())):
                    received = await socket.receive()
            except TimeoutError:
                self._give_up(connection)
                return
            if received.type in {WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED}:
                return
            if received.type is WSMsgType.ERROR:
                self.counts["malformed"] += 1
                return
            if not self._take(connection, received.type, received.data):
                return
            bound = connection.session != 0
            deadline = self._clock() + (IDLE_SECONDS_MAX if bound else ANSWER_SECONDS_MAX)

    def _give_up(self, connection: Connection) -> None:
        if connection.session != 0:
            connection.close(CLOSE_IDLE, "no message for too long")
        else:
            self.counts["handshake"] += 1
            connection.close(CLOSE_HANDSHAKE, "not registered in time")

    def _take(self, connection: Connection, kind: WSMsgType, data: object) -> bool:
        """One message. False: the connection is being closed for it."""
        if not connection.may_receive(self._clock()):
            self.counts["flood"] += 1
            connection.close(CLOSE_FLOOD, f"more than {MESSAGES_PER_SECOND} messages a second")
            return False
        if kind is not WSMsgType.BINARY or not isinstance(data, bytes):
            return self._malformed(connection, "only binary messages are taken")
        try:
            message = decode_from_participant(data)
        except MalformedFrame as error:
            return self._malformed(connection, str(error))
        if isinstance(message, Register):
            return self._take_register(connection, message)
        if connection.session == 0:
            if not connection.participant:
                return self._malformed(connection, "the first message must be a registration")
            # Registered is on its way: only a peer that makes up its session speaks before it.
            return self._foreign(connection, message.session)
        if message.session != connection.session:
            return self._foreign(connection, message.session)
        if isinstance(message, Ingested | Inspected | Consulted):
            self.asks.answered(message)
            return True
        if isinstance(message, Heartbeat):
            self.waiting.heard(connection.participant, message)
        self._sink.message_arrived(connection.id, message)
        return connection.closing is None

    def _take_register(self, connection: Connection, message: Register) -> bool:
        if connection.participant:
            return self._malformed(connection, "registered twice on one connection")
        if connection.bound_to and message.participant != connection.bound_to:
            text = f"this token is {connection.bound_to}'s"
            log.warning("connection %d: %s, not %a's", connection.id, text, message.participant[:64])
            self.send(connection.id, RegisterRefused(code="wrong-token", sentence=text))
            return False
        connection.participant = message.participant or "?"
        connection.understands_asks = message.takes_input
        self._sink.message_arrived(connection.id, message)
        return connection.closing is None

    def _malformed(self, connection: Connection, problem: str) -> bool:
        self.counts["malformed"] += 1
        if self.counts["malformed"] <= 100 or self.counts["malformed"] % 1_000 == 0:
            log.warning("connection %d (%a) closed: %a", connection.id, connection.participant[:64], problem[:200])
        connection.close(CLOSE_MALFORMED, ascii(problem)[1:-1])
        return False

    def _foreign(self, connection: Connection, session: int) -> bool:
        self.counts["foreign_session"] += 1
        log.warning("connection %d (%a) spoke for session %d", connection.id, connection.participant[:64], session)
        connection.close(CLOSE_FOREIGN_SESSION, f"session {session} is not this connection's")
        return False


def _pass_sent(data: bytes) -> None:
    """Failpoints behind an order's leaving; the kind stands at its beginning."""
    head = data[:32]
    if b"start-epoch" in head:
        fp("order.sent")
    elif b"epoch-committed" in head:
        fp("commit.announced")
    elif b"\xa7restore" in head:
        fp("restore.sent")
