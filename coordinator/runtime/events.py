"""What happened lately: a bounded ring of events, served as server-sent events.

Each coordinator keeps its own ring; `seq` counts from 1 in each process, and every stream opens with a ``stream`` event
that carries the process's boot id, so that a reader notices a restart instead of skipping events in silence. A reader
that fell out of the ring, or reads too slowly, gets a ``gap`` event with the numbers that it missed.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from coordinator.runtime.answers import ApiError, query_number

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENTS_KEPT_MAX: Final = 2_000
"""A day of epochs every minute, or some minutes of a busy demo."""
READERS_MAX: Final = 64
"""Open event streams per coordinator."""
KEEPALIVE_SECONDS: Final = 10.0
"""A comment line this often, so that a dead reader is noticed."""
WRITE_SECONDS_MAX: Final = 20.0
"""A reader that takes longer for one write is dropped."""


class EventLog:
    """The ring. All methods run on the service's loop."""

    def __init__(self, boot_id: str) -> None:
        self.boot_id = boot_id
        self.newest = 0
        self._ring: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT_MAX)
        self._news = asyncio.Event()
        self._closed = False
        self.readers = 0

    def record(self, kind: str, at_ms: int, **details: object) -> None:
        """Append an event.

        Args:
            kind: ``epoch-committed`` and the like.
            at_ms: Wall clock, for people.
            details: JSON values.
        """
        self.newest += 1
        self._ring.append({"seq": self.newest, "kind": kind, "at_ms": at_ms, **details})
        self._news.set()
        self._news = asyncio.Event()

    def since(self, seq: int) -> tuple[int, list[dict[str, Any]]]:
        """Number of events missed after `seq`, and those that are still there."""
        count = min(len(self._ring), max(0, self.newest - seq))
        kept = list(islice(self._ring, len(self._ring) - count, None))
        oldest = kept[0]["seq"] if kept else self.newest + 1
        return max(0, oldest - seq - 1), kept

    async def wait_news(self, seq: int, seconds: float) -> bool:
        """Whether something newer than `seq` is there, after at most `seconds`."""
        if self.newest > seq or self._closed:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._news.set()

    @property
    def closed(self) -> bool:
        """No more events will come."""
        return self._closed

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/events`: from ``Last-Event-ID`` or ``?since=N``; without either, from now on."""
        if self.readers >= READERS_MAX:
            raise ApiError(429, "too-many-readers", f"{READERS_MAX} event streams are open already")
        last = request.headers.get("Last-Event-ID", "")
        default = int(last) if last.isascii() and last.isdigit() and len(last) < 19 else self.newest
        default = min(default, self.newest)  # numbers of a process before this one may be larger
        seq = query_number(request, "since", default, self.newest)
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        self.readers += 1
        try:
            await response.prepare(request)
            await _write(response, _frame({"kind": "stream", "seq": seq, "boot": self.boot_id}))
            while not self._closed:
                if not await self.wait_news(seq, KEEPALIVE_SECONDS):
                    await _write(response, b": keep-alive\n\n")
                    continue
                missed, events = self.since(seq)
                await _write(response, b"".join(_batch(seq, missed, events)))
                seq = self.newest if not events else events[-1]["seq"]
        except (ConnectionError, TimeoutError):
            pass  # The reader is gone or too slow; it comes back with its Last-Event-ID.
        finally:
            self.readers -= 1
        return response


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Every write may wait for the reader, a keep-alive too; one that never reads must not keep its place for ever."""
    async with asyncio.timeout(WRITE_SECONDS_MAX):
        await response.write(data)


def _batch(seq: int, missed: int, events: list[dict[str, Any]]) -> Iterator[bytes]:
    if missed:
        yield _frame({"kind": "gap", "seq": seq + missed, "missed": missed})
    for event in events:
        yield _frame(event)


def _frame(event: dict[str, Any]) -> bytes:
    # ASCII JSON on one line: nothing in it can end the field or the event.
    return f"id: {event['seq']}\nevent: {event['kind']}\ndata: {json.dumps(event)}\n\n".encode()
