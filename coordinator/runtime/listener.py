"""The listening socket of the API: bounded connections, and a clear word when the address is taken."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Final

from coordinator.config import Address
from protocol.errors import ConfigError
from protocol.limits import PARTICIPANTS_MAX

if TYPE_CHECKING:
    from aiohttp import web

CONNECTIONS_MAX: Final = PARTICIPANTS_MAX + 1_000
"""Open TCP connections: every participant has one; the rest is for people, programs and those that turn out hostile."""
IDLE_SECONDS_MAX: Final = 30.0
"""A connection without a complete request is closed after this long, from its first byte on (slow lorises)."""
HEADER_BYTES_MAX: Final = 16 << 10
_ACCEPT_QUEUE: Final = 512


class _TurnedAway(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class Listener:
    """Serves a set-up `web.AppRunner` at one address."""

    def __init__(self, runner: web.AppRunner, address: Address) -> None:
        self._runner = runner
        self._wanted = address
        self._server: asyncio.Server | None = None
        self.turned_away = 0
        """Connections refused because there were too many."""

    async def start(self) -> Address:
        """Bind and listen.

        Returns:
            The real address, with the port that the system chose for port 0.

        Raises:
            ConfigError: The address is taken, not ours, or needs a right that we do not have.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._protocol, self._wanted.host, self._wanted.port, backlog=_ACCEPT_QUEUE, reuse_address=True
            )
        except OSError as error:
            raise ConfigError("http", f"cannot listen on {self._wanted}: {_why(error)}") from None
        port = self._server.sockets[0].getsockname()[1]
        return Address(self._wanted.host, port)

    def _protocol(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= CONNECTIONS_MAX:
            self.turned_away += 1
            return _TurnedAway()
        return server()

    def stop_listening(self) -> None:
        """Take no more connections; those that are open go on."""
        if self._server is not None:
            self._server.close()


def _why(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the host is not known ({error.strerror})"
    if error.errno == errno.EADDRINUSE:
        return "the address is in use; is another coordinator running there?"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address"
    if error.errno == errno.EACCES:
        return "permission denied; ports below 1024 are for root"
    return f"{errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror}"
