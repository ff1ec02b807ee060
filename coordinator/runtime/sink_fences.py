"""Fences of sinks: what a coordinator raises before the restore orders of an incarnation leave (RELIABILITY.md I23).

In the coordinators' settings, each under a name of its own::

    [fences]
    receipts = "file:/var/lib/shop/receipts.jsonl"     # a `FileSink` named receipts
    sales = "sqlite:/var/lib/shop/shop.db#shop-sales"  # a `SqlSink` named shop-sales in an SQLite database
    bank = "https://bank.example/fence"                # takes ``PUT {"incarnation": k}``, as an `HttpSink`'s fence_url

A coordinator must reach what it fences: the first two are for one machine, or a shared disk that locks. A sink in another
database is fenced through a small service, or by the first output of the new incarnation alone.

Everything here blocks; the driver calls it in a thread.
"""

from __future__ import annotations

import json
import os
import sqlite3
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from protocol.errors import ConfigError, Unreachable
from protocol.fencing import FenceTable
from protocol.ids import check_name

if TYPE_CHECKING:
    import ssl

    from coordinator.fences import Fence

SECONDS: Final = 5.0
"""For one attempt; a fence that does not stand holds up the restore, and is tried again."""
_INDEX_SUFFIX: Final = ".cleancut"


class SqliteFence:
    """The fence table beside a sink in an SQLite database."""

    def __init__(self, path: str, sink: str) -> None:
        self._path = path
        self._sink = sink
        self._table = FenceTable()

    def raise_to(self, incarnation: int, epoch: int) -> None:
        """See `coordinator.fences.Fence`."""
        folder = os.path.dirname(self._path) or "."
        try:
            if not os.path.isdir(folder):
                raise Unreachable(f"fence of sink {self._sink}: there is no folder {folder}")
            connection = sqlite3.connect(self._path, timeout=SECONDS)
            try:
                # The sink may not have been opened yet: then the fence is there before it.
                connection.execute("PRAGMA journal_mode = WAL").fetchone()
                connection.execute("PRAGMA synchronous = FULL")
                cursor = connection.cursor()
                self._table.create(cursor)
                connection.commit()
                self._table.raise_fence(cursor, self._sink, incarnation)
                connection.commit()
            finally:
                connection.close()
        except sqlite3.Error as error:
            hint = "; does a stopped process hold its lock?" if "locked" in str(error) else ""
            raise Unreachable(f"fence of sink {self._sink} at {self._path}: {error}{hint}") from error


class HttpFence:
    """A service that takes ``PUT {"incarnation": k, "epoch": e}``."""

    def __init__(self, name: str, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        self._name = name
        """What errors say: a URL may hold a password."""
        self._url = url
        self._tls = tls

    def raise_to(self, incarnation: int, epoch: int) -> None:
        """See `coordinator.fences.Fence`."""
        body = json.dumps({"incarnation": incarnation, "epoch": epoch}).encode()
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            self._url, data=body, method="PUT", headers={"Content-Type": "application/json"}
        )
        try:
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), _NoRedirect(), urllib.request.HTTPSHandler(context=self._tls)
            )
            with opener.open(request, timeout=SECONDS) as answer:
                answer.read(64)
        except (OSError, urllib.error.URLError, ValueError) as error:
            raise Unreachable(f"fence {self._name}: {error}") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An answer from elsewhere is no acknowledgement."""

    def redirect_request(self, *_: object) -> None:
        """Take none."""


def open_fence(name: str, place: str, *, tls: ssl.SSLContext | None = None) -> Fence:
    """A fence by its setting.

    Args:
        name: Of the fence; of the sink, too, where `place` does not name one.
        place: One of the three forms.
        tls: What an HTTPS service's certificate is checked with; None: what this machine trusts.

    Raises:
        ConfigError: Not one of the three forms.
    """
    parts = urlsplit(place)
    if parts.scheme in {"http", "https"} and parts.hostname:
        return HttpFence(name, place, tls=tls)
    if parts.scheme not in {"file", "sqlite"} or parts.netloc or not parts.path.startswith("/"):
        raise ConfigError(f"fences.{name}", f"{place!a} is not file:/path#sink, sqlite:/path#sink or https://host/path")
    path = parts.path + (_INDEX_SUFFIX if parts.scheme == "file" else "")
    return SqliteFence(path, check_name("sink", parts.fragment or name))
