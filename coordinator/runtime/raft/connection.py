"""One TLS connection between two coordinators: hello, frames, signs of life. Knows nothing of Raft."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Protocol

from coordinator.runtime.raft.messages import (
    ALIVE_FRAME,
    LENGTH,
    PROTOCOL_VERSION,
    Hello,
    decode_hello,
    encode_frame,
    frame_length,
)
from coordinator.runtime.raft.tls import peer_name
from protocol.errors import MalformedFrame, RemoteProtocolError, SnapshotError, UnsupportedVersion
from protocol.limits import RAFT_SEND_BYTES_MAX

if TYPE_CHECKING:
    from protocol.ids import CoordinatorId


class ConnectionOwner(Protocol):
    """What a connection needs from its transport."""

    id: CoordinatorId
    cluster: str

    def is_member(self, name: str) -> bool:
        """Whether `name` is another coordinator of this group."""
        ...

    def connection_opened(self, connection: Connection) -> None:
        """Its peer is known now."""
        ...

    def connection_closed(self, connection: Connection, reason: str) -> None:
        """It is gone, known or not."""
        ...

    def is_rejoining(self) -> bool:
        """What to say in the hello."""
        ...

    def frame_received(self, connection: Connection, body: bytes) -> None:
        """One frame of a known peer; raises `SnapshotError` if the peer must be dropped."""
        ...


class Connection(asyncio.Protocol):
    """Either end of a connection.

    Args:
        owner: The transport.
        dialled: The peer that this side called; None on the accepting side, where the certificate says who it is.
        loop: The transport's loop.
    """

    def __init__(self, owner: ConnectionOwner, dialled: CoordinatorId | None, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._dialled = dialled
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._certified: str | None = None
        self._reason = "closed by the peer"
        self.peer: CoordinatorId | None = None
        """Who is at the other end, once certificate and hello agree."""
        self.peer_rejoining = False
        self.heard_at = self.spoke_at = loop.time()
        self.closed: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is through: the certificate is of our authority. Whose is it?"""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.heard_at = self.spoke_at = self._loop.time()
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._certified = peer_name(transport.get_extra_info("peercert"))
            if self._dialled is not None and self._certified != self._dialled:
                raise RemoteProtocolError(f"{self._dialled}'s address shows the certificate of {self._certified!a}")
            if not self._owner.is_member(self._certified):
                raise RemoteProtocolError(f"certificate of {self._certified!a}, who is not in this group")
        except SnapshotError as error:
            self.abort(str(error))
            return
        if self._dialled is not None:
            self._say_hello(self._dialled)

    def data_received(self, data: bytes) -> None:
        """Cut into frames; nothing longer than a frame is ever buffered."""
        self.heard_at = self._loop.time()
        self._buffer += data
        position = 0
        try:
            while len(self._buffer) - position >= LENGTH.size and not self._closing:
                length = frame_length(self._buffer[position : position + LENGTH.size], known=self.peer is not None)
                end = position + LENGTH.size + length
                if len(self._buffer) < end:
                    break
                body = bytes(self._buffer[position + LENGTH.size : end])
                position = end
                if self.peer is None:
                    self._greeted(body)
                elif body:
                    self._owner.frame_received(self, body)
        except SnapshotError as error:
            self.abort(str(error))
            return
        del self._buffer[:position]

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, for whatever reason."""
        if exc is not None and self._reason == "closed by the peer":
            self._reason = str(exc) or type(exc).__name__
        self._buffer.clear()
        if not self.closed.done():
            self.closed.set_result(None)
        self._owner.connection_closed(self, self._reason)

    def write(self, data: bytes) -> None:
        """Send bytes of whole frames; a peer that does not read is dropped and catches up later."""
        if self._transport is None or self._closing:
            return
        if self._transport.get_write_buffer_size() > RAFT_SEND_BYTES_MAX:
            self.abort("the peer does not read")
            return
        self.spoke_at = self._loop.time()
        self._transport.write(data)

    def say_alive(self) -> None:
        """A frame that only says that this side is there."""
        self.write(ALIVE_FRAME)

    def abort(self, reason: str) -> None:
        """Drop the connection now; what was not sent is lost."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    @property
    def _closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _say_hello(self, target: CoordinatorId) -> None:
        hello = Hello(
            version=PROTOCOL_VERSION,
            cluster=self._owner.cluster,
            source=self._owner.id,
            target=target,
            rejoining=self._owner.is_rejoining(),
        )
        self.write(encode_frame(hello))

    def _greeted(self, body: bytes) -> None:
        hello = decode_hello(body)
        if hello.version != PROTOCOL_VERSION:
            raise UnsupportedVersion(f"protocol version {hello.version}, this build speaks {PROTOCOL_VERSION}")
        if hello.cluster != self._owner.cluster:
            raise MalformedFrame(f"the peer belongs to cluster {hello.cluster[:80]!a}")
        if hello.source != self._certified or hello.target != self._owner.id:
            raise RemoteProtocolError(
                f"{self._certified!a} claims to be {hello.source[:80]!a} and to want {hello.target[:80]!a}"
            )
        from protocol.ids import coordinator_id

        self.peer = coordinator_id(hello.source)
        self.peer_rejoining = hello.rejoining
        if self._dialled is None:
            self._say_hello(self.peer)
        self._owner.connection_opened(self)
