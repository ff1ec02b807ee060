"""aiohttp, imported without the certificates that nobody here may ever need. Import it from here.

aiohttp makes two TLS contexts when it is imported, and has each read all of the system's authorities: 80 ms of CPU, a fifth
of a participant's start, which is what everybody waits for where one has died. Participants talk plain HTTP, or HTTPS with
the authority of their own cluster. So the two contexts get their authorities when they are first used, if ever: whoever uses
aiohttp in the same process notices nothing. Where aiohttp is not as it is known here, or was imported before, it stays as
it is.
"""

from __future__ import annotations

import ssl
import sys
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CONTEXTS: Final = ("_SSL_CONTEXT_VERIFIED", "_SSL_CONTEXT_UNVERIFIED")


class _LateTrust(ssl.SSLContext):
    """A context that has not read the system's authorities yet; it becomes an ordinary one with the first use."""

    def wrap_bio(self, *args: Any, **more: Any) -> ssl.SSLObject:  # noqa: ANN401 - as the original
        """As `ssl.SSLContext.wrap_bio`."""
        self._read()
        return self.wrap_bio(*args, **more)

    def wrap_socket(self, *args: Any, **more: Any) -> ssl.SSLSocket:  # noqa: ANN401 - as the original
        """As `ssl.SSLContext.wrap_socket`."""
        self._read()
        return self.wrap_socket(*args, **more)

    def get_ca_certs(self, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - as the original
        """As `ssl.SSLContext.get_ca_certs`."""
        self._read()
        return self.get_ca_certs(*args, **more)

    def cert_store_stats(self) -> dict[str, int]:
        """As `ssl.SSLContext.cert_store_stats`."""
        self._read()
        return self.cert_store_stats()

    def _read(self) -> None:
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]  # the same layout, without the methods above
        self.load_default_certs()


@contextmanager
def late_trust() -> Iterator[None]:
    """Have contexts that aiohttp makes inside read nothing now."""
    if "aiohttp.connector" in sys.modules:
        yield
        return
    here = threading.get_ident()
    load, verify = ssl.SSLContext.load_default_certs, ssl.SSLContext.set_default_verify_paths
    skipped: list[tuple[ssl.SSLContext, Callable[[], None]]] = []

    def load_later(self: ssl.SSLContext, *args: Any) -> None:  # noqa: ANN401 - as the original
        if threading.get_ident() == here:
            skipped.append((self, partial(load, self, *args)))
        else:
            load(self, *args)  # somebody else's context

    def verify_later(self: ssl.SSLContext) -> None:
        if threading.get_ident() == here:
            skipped.append((self, partial(verify, self)))
        else:
            verify(self)

    try:
        ssl.SSLContext.load_default_certs = load_later  # type: ignore[method-assign, assignment]
        ssl.SSLContext.set_default_verify_paths = verify_later  # type: ignore[method-assign]
        yield
    finally:
        ssl.SSLContext.load_default_certs = load  # type: ignore[method-assign]
        del ssl.SSLContext.set_default_verify_paths  # the inherited one is back
        connector = sys.modules.get("aiohttp.connector")
        known = [getattr(connector, name, None) for name in _CONTEXTS]
        for context, read in skipped:
            if any(context is each for each in known):
                context.__class__ = _LateTrust
            else:
                read()


with late_trust():
    import aiohttp

__all__ = ["aiohttp", "late_trust"]
