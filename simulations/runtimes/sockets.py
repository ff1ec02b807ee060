"""Both ends of a control connection, at the level at which the drivers use aiohttp's WebSockets.

A socket hands bytes to a line and takes them from it. What the peer's process has not taken counts against a window: a
sender then waits, as for a full TCP buffer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from aiohttp import WSMessage, WSMsgType

if TYPE_CHECKING:
    from simulations.runtimes.lines import RuntimeLine
    from simulations.runtimes.loop import DriverLoop

_CLOSE_SECONDS: Final = 10.0
"""How long aiohttp's server waits for the peer's farewell."""
_ABNORMAL: Final = 1006


class _Socket:
    """What both ends have."""

    def __init__(self, line: RuntimeLine, loop: DriverLoop, *, up: bool) -> None:
        self._line = line
        self._loop = loop
        self._up = up
        self._inbox: deque[bytes] = deque()
        self._news: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] = loop.create_future()
        self._closing = False
        self.close_code: int | None = None
        self.reason = ""

    # --- from the line ------------------------------------------------------------------------------------------------

    def arrived(self, data: bytes) -> None:
        """A message is here."""
        if not self._closing:
            self._inbox.append(data)
            self._wake()

    def lost(self, reason: str) -> None:
        """The line is gone; what arrived before can still be read."""
        if not self._gone.done():
            self.close_code = self.close_code or _ABNORMAL
            self.reason = reason
            self._gone.set_result(None)
        self._wake()
        self.room()

    def room(self) -> None:
        """The peer has taken something."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    # --- for the driver -----------------------------------------------------------------------------------------------

    async def receive(self) -> WSMessage:
        """The next message, or news of the end."""
        while True:
            if self._inbox:
                data = self._inbox.popleft()
                self._line.taken(len(data), up=not self._up)
                return WSMessage(WSMsgType.BINARY, data, None)
            if self._closing or self._gone.done():
                kind = WSMsgType.CLOSING if self._closing and not self._gone.done() else WSMsgType.CLOSED
                return WSMessage(kind, None, self.reason)
            self._news = self._loop.create_future()
            await self._news

    async def send_bytes(self, data: bytes) -> None:
        """Hand one message over; waits while the window is full."""
        if self._closing or self._gone.done():
            raise ConnectionResetError("Cannot write to closing transport")
        self._line.put(data, up=self._up)
        while self._line.is_full(up=self._up) and not self._gone.done():
            self._line.probes.hit("control.window_full")
            self._room = self._loop.create_future()
            await self._room

    async def _close(self, code: int, reason: str, seconds: float) -> None:
        if not self._closing:
            self._closing = True
            self.close_code = self.close_code or code
            self._wake()
            self._line.hang_up(reason, up=self._up)
        if seconds and not self._gone.done():
            await asyncio.wait([self._gone], timeout=seconds)

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class ClientSocket(_Socket):
    """A participant's end."""

    def __init__(self, line: RuntimeLine, loop: DriverLoop) -> None:
        super().__init__(line, loop, up=True)

    async def close(self) -> None:
        """Say farewell and end."""
        await self._close(1000, "closed by the peer", 0)


class ServerSocket(_Socket):
    """A coordinator's end."""

    def __init__(self, line: RuntimeLine, loop: DriverLoop) -> None:
        super().__init__(line, loop, up=False)

    async def close(self, *, code: int, message: bytes) -> None:
        """Say why, and end; waits for the peer's farewell, for a while."""
        await self._close(code, message.decode(), _CLOSE_SECONDS)
        if not self._gone.done():
            self._line.drop("no farewell", up=False)
