"""The listening socket of the API: bounded connections, and a clear word when the address is taken."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import stat
from typing import TYPE_CHECKING, Final

from coordinator.config import Address
from protocol.errors import ConfigError
from protocol.limits import PARTICIPANTS_MAX

if TYPE_CHECKING:
    import ssl

    from aiohttp import web

    from coordinator.config import HttpTlsConfig

CONNECTIONS_MAX: Final = PARTICIPANTS_MAX + 1_000
"""Open TCP connections: every participant has one; the rest is for people, programs and those that turn out hostile."""
IDLE_SECONDS_MAX: Final = 30.0
"""A connection without a complete request is closed after this long, from its first byte on (slow lorises)."""
HANDSHAKE_SECONDS_MAX: Final = 5.0
"""From the connection to the end of its TLS handshake."""
HEADER_BYTES_MAX: Final = 16 << 10
_ACCEPT_QUEUE: Final = 512
FILES_KEPT: Final = 256 + _ACCEPT_QUEUE
"""Open files that connections never take: the journal, a snapshot, the store and the other coordinators need theirs, and a
journal that cannot be opened ends the process. asyncio accepts a whole queue before the first one is turned away."""


def https_context(files: HttpTlsConfig) -> ssl.SSLContext:
    """What the API speaks HTTPS with.

    Raises:
        ConfigError: A file is missing, the key is open to others, or they do not fit together.
    """
    import ssl

    for name, path in (("http_tls.cert", files.cert), ("http_tls.key", files.key)):
        if not path.is_file():
            raise ConfigError(name, f"{path} is not there; `cleancut keys init` makes certificates")
    if stat.S_IMODE(files.key.stat().st_mode) & 0o027:
        raise ConfigError("http_tls.key", f"{files.key} can be read by others; run: chmod 600 {files.key}")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.cert, files.key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError("http_tls", f"{files.cert} and {files.key} do not fit together: {error}") from None
    return context


def raise_open_files() -> None:
    """Take as many open files as the system lets us, up to what is ever used; a soft limit of 1,024 is common."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + FILES_KEPT
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_max() -> int:
    """Open TCP connections that this process can afford."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(1, min(CONNECTIONS_MAX, soft - FILES_KEPT))


class _TurnedAway(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class Listener:
    """Serves a set-up `web.AppRunner` at one address."""

    def __init__(self, runner: web.AppRunner, address: Address, *, tls: ssl.SSLContext | None = None) -> None:
        self._runner = runner
        self._tls = tls
        self._wanted = address
        self._connections_max = connections_max()
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
                self._protocol,
                self._wanted.host,
                self._wanted.port,
                backlog=_ACCEPT_QUEUE,
                reuse_address=True,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX if self._tls is not None else None,
                ssl_shutdown_timeout=1.0 if self._tls is not None else None,
            )
        except OSError as error:
            raise ConfigError("http", f"cannot listen on {self._wanted}: {_why(error)}") from None
        port = self._server.sockets[0].getsockname()[1]
        return Address(self._wanted.host, port)

    def _protocol(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= self._connections_max:
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
