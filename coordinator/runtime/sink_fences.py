"""Fences of sinks: what a coordinator raises before the restore orders of an incarnation leave (RELIABILITY.md I23).

Written as one text each in the coordinators' settings::

    file:/var/lib/shop/receipts.jsonl#receipts     a `FileSink` named receipts
    sqlite:/var/lib/shop/shop.db#receipts          a `SqlSink` named receipts in an SQLite database
    https://bank.example/fence                     whatever takes ``PUT {"incarnation": k}``, as an `HttpSink`'s fence_url

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

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
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
            raise Unreachable(f"fence {self._url}: {error}") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An answer from elsewhere is no acknowledgement."""

    def redirect_request(self, *_: object) -> None:
        """Take none."""


def open_fence(text: str, *, tls: ssl.SSLContext | None = None) -> tuple[str, Fence]:
    """A fence by its setting, and the name by which the ledger knows it.

    Raises:
        ConfigError: Not one of the three forms.
    """
    parts = urlsplit(text)
    if parts.scheme in {"http", "https"} and parts.hostname:
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", HttpFence(text, tls=tls)
    path = parts.path
    if parts.scheme not in {"file", "sqlite"} or parts.netloc or not path.startswith("/") or not parts.fragment:
        raise ConfigError("fences", f"{text!a} is not file:/path#sink, sqlite:/path#sink or https://host/path")
    sink = check_name("sink", parts.fragment)
    return f"{parts.scheme}:{path}#{sink}", SqliteFence(path + (_INDEX_SUFFIX if parts.scheme == "file" else ""), sink)
