"""The library's transport on asyncio and mutual TLS, and the barrier that nothing passes before the disk.

Between two coordinators there is one connection; the one with the greater id dials. Messages wait in a queue until
`flush`, which first makes the journal durable: no vote, acknowledgement or entry leaves the process that a crash could
make it forget.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from coordinator.runtime.raft import tls
from coordinator.runtime.raft.config import split_address
from coordinator.runtime.raft.connection import Connection
from coordinator.runtime.raft.messages import decode_message, encode_frame
from coordinator.runtime.raft.pinned import Member, Transport
from protocol.errors import ConfigError, RemoteProtocolError
from protocol.limits import RAFT_UNKNOWN_CONNECTIONS_MAX

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Coroutine

    from coordinator.runtime.raft.config import RaftConfig
    from coordinator.runtime.raft.replica import Replica
    from protocol.ids import CoordinatorId

logger = logging.getLogger(__name__)


class TlsTransport(Transport):  # type: ignore[misc] # the library is untyped
    """Connections to all other coordinators.

    Args:
        config: Peers, addresses, certificates, clocks.
        loop: The loop that everything here runs in.
        traffic: Called when a tick is due because something arrived.
        failed: Called with an exception that came out of the library: its state may be torn.
    """

    def __init__(
        self,
        config: RaftConfig,
        loop: asyncio.AbstractEventLoop,
        *,
        traffic: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(None, None, [])
        self.id = config.id
        self.cluster = str(config.cluster)
        self._config = config
        self._loop = loop
        self._traffic = traffic
        self._failed = failed
        self._nodes = {peer: Member(peer) for peer in config.peers}
        self._connections: dict[CoordinatorId, Connection] = {}
        self._unknown: list[Connection] = []
        self._outgoing: list[tuple[Connection, bytes]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._server_tls: ssl.SSLContext | None = None
        self._client_tls: ssl.SSLContext | None = None
        self._destroyed = False
        self._replica: Replica | None = None
        self.refused: dict[str, int] = {}
        """Reason -> connections that ended before their peer was known, the newest reasons last, bounded."""

    # Start and end.

    def bind(self) -> None:
        """Read the certificates and bind the listening socket, exactly to the configured address.

        A group of one binds nothing.

        Raises:
            ConfigError: Certificates or port are not usable.
        """
        if not self._nodes:
            return
        assert self._config.tls is not None, "the configuration was checked"
        name = tls.own_name(self._config.tls)
        if name != self.id:
            raise ConfigError("tls.cert", f"it is the certificate of {name!a}, this coordinator is {self.id}")
        self._server_tls = tls.server_context(self._config.tls)
        self._client_tls = tls.client_context(self._config.tls)
        self._listener = _listen(self._config.listen)

    @property
    def address(self) -> str | None:
        """The bound address, None where nothing is bound."""
        if self._listener is None:
            return None
        host, port = self._listener.getsockname()[:2]
        return f"{host}:{port}"

    def start(self, replica: Replica) -> None:
        """Accept and dial from now on."""
        self._replica = replica
        if self._listener is not None:
            self._spawn(self._accept(self._listener))
        for peer in self._nodes:
            if self.id > peer:
                self._spawn(self._dial(peer))

    def destroy(self) -> None:
        """Close everything at once; called by the library as well."""
        self._destroyed = True
        self._outgoing.clear()
        for task in self._tasks:
            task.cancel()
        for connection in [*self._unknown, *self._connections.values()]:
            connection.abort("this coordinator ends")
        if self._listener is not None:
            self._listener.close()

    async def wait_closed(self) -> None:
        """After `destroy`: until the tasks have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    # What the library calls.

    def send(self, node: Any, message: dict[str, Any]) -> bool:  # noqa: ANN401 - the library is untyped
        """Queue a message for `flush`; False if the peer is not connected."""
        connection = self._connections.get(node.id)
        if connection is None:
            return False
        assert self._replica is not None, "connections exist only after start"
        self._outgoing.append((connection, encode_frame(self._replica.guards.outgoing(message))))
        return True

    # What the driver calls.

    def flush(self) -> bool:
        """Make the journal durable, then let the queue go; returns whether the journal had anything to write.

        Raises:
            JournalPoisoned: Nothing was sent.
        """
        assert self._replica is not None, "start comes first"
        synced = self._replica.journal.sync()
        if self._outgoing:
            frames, self._outgoing = self._outgoing, []
            by_connection: dict[int, tuple[Connection, list[bytes]]] = {}
            for connection, frame in frames:
                by_connection.setdefault(id(connection), (connection, []))[1].append(frame)
            for connection, parts in by_connection.values():
                connection.write(b"".join(parts))
        return synced

    def check(self) -> None:
        """Signs of life to quiet peers; the end of silent ones."""
        now = self._loop.time()
        timing = self._config.timing
        for connection in list(self._connections.values()):
            if now - connection.heard_at > timing.connection:
                connection.abort(f"silent for {timing.connection} s")
            elif now - connection.spoke_at > timing.connection / 3:
                connection.say_alive()
        for connection in list(self._unknown):
            if now - connection.heard_at > timing.handshake:
                connection.abort(f"did not say who it is within {timing.handshake} s")

    def connected(self, peer: CoordinatorId) -> bool:
        """Whether a peer's connection is up."""
        return peer in self._connections

    # What connections call.

    def is_member(self, name: str) -> bool:
        """See `ConnectionOwner`."""
        return name in self._nodes

    def is_rejoining(self) -> bool:
        """See `ConnectionOwner`."""
        return self._replica is not None and self._replica.journal.rejoining

    def connection_opened(self, connection: Connection) -> None:
        """See `ConnectionOwner`. A newer connection replaces the older: the peer has restarted or given it up."""
        assert connection.peer is not None, "opened means known"
        self._drop_unknown(connection)
        older = self._connections.get(connection.peer)
        self._connections[connection.peer] = connection
        if older is not None:
            older.abort("replaced by a newer connection")
        node = self._nodes[connection.peer]
        assert self._replica is not None, "connections exist only after start"
        self._replica.guards.connected(node, rejoining=connection.peer_rejoining)
        self._onNodeConnected(node)
        self._traffic()

    def connection_closed(self, connection: Connection, reason: str) -> None:
        """See `ConnectionOwner`."""
        self._drop_unknown(connection)
        if connection.peer is None:
            self._count_refused(reason)
        elif self._connections.get(connection.peer) is connection:
            logger.info("coordinator %s: connection to %s is gone: %s", self.id, connection.peer, reason)
            del self._connections[connection.peer]
            if not self._destroyed:
                self._onNodeDisconnected(self._nodes[connection.peer])
                self._traffic()

    def frame_received(self, connection: Connection, body: bytes) -> None:
        """See `ConnectionOwner`."""
        assert connection.peer is not None, "frames come from known peers"
        if self._destroyed or self._connections.get(connection.peer) is not connection:
            return
        message = decode_message(body)
        node = self._nodes[connection.peer]
        assert self._replica is not None, "connections exist only after start"
        try:
            answers = self._replica.guards.receive(node, message, lambda mended: self._onMessageReceived(node, mended))
        except RemoteProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the library raised in the middle: its state may be torn
            self._failed(error)
            return
        for answer in answers:
            self._outgoing.append((connection, encode_frame(answer)))
        self._traffic()

    # Inside.

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(listener)
            except OSError as error:
                logger.warning("coordinator %s cannot accept connections: %s", self.id, error)
                await asyncio.sleep(self._config.timing.reconnect)
                continue
            if len(self._unknown) >= RAFT_UNKNOWN_CONNECTIONS_MAX:
                accepted.close()
                self._count_refused("too many unknown connections")
                continue
            connection = Connection(self, None, self._loop)
            self._unknown.append(connection)
            self._spawn(self._welcome(connection, accepted))

    async def _welcome(self, connection: Connection, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._server_tls,
                ssl_handshake_timeout=self._config.timing.handshake,
                ssl_shutdown_timeout=self._config.timing.handshake,
            )
        except OSError as error:  # ssl.SSLError is one
            self._drop_unknown(connection)
            self._count_refused(f"TLS: {error}")

    async def _dial(self, peer: CoordinatorId) -> None:
        host, port = split_address(f"peers.{peer}", self._config.peers[peer])
        while True:
            connection = Connection(self, peer, self._loop)
            try:
                # Without a limit an attempt on a host that drops packets goes on for two minutes, with pauses of up to one
                # between its own, while the host is long back.
                async with asyncio.timeout(self._config.timing.handshake):
                    await self._loop.create_connection(
                        lambda connection=connection: connection,
                        host,
                        port,
                        ssl=self._client_tls,
                        server_hostname="",
                        ssl_handshake_timeout=self._config.timing.handshake,
                        ssl_shutdown_timeout=self._config.timing.handshake,
                    )
                self._unknown.append(connection)
                await connection.closed
            except OSError as error:
                logger.debug("coordinator %s cannot reach %s: %s", self.id, peer, error)
            await asyncio.sleep(self._config.timing.reconnect)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def _drop_unknown(self, connection: Connection) -> None:
        if connection in self._unknown:
            self._unknown.remove(connection)

    def _count_refused(self, reason: str) -> None:
        if reason not in self.refused and len(self.refused) >= RAFT_UNKNOWN_CONNECTIONS_MAX:
            self.refused.pop(next(iter(self.refused)))
        self.refused[reason] = self.refused.get(reason, 0) + 1
        logger.info("coordinator %s refused a connection: %s", self.id, reason)


def _listen(address: str) -> socket.socket:
    import socket

    host, port = split_address("raft", address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.settimeout(0)
        listener.bind((host, port))
        listener.listen(RAFT_UNKNOWN_CONNECTIONS_MAX)
    except OSError as error:
        listener.close()
        raise ConfigError("raft", f"cannot listen on {address}: {error.strerror}") from error
    return listener
