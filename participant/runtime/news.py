"""`Participant.events()`: what happens, told to everybody who listens, within bounds."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from protocol.limits import EVENTS_WAITING_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from participant.events import ParticipantEvent


class News:
    """Events on their way to listeners. One that does not listen fast enough loses the oldest."""

    def __init__(self) -> None:
        self._listeners: list[_Listener] = []
        self._ended = False
        self.lost = 0
        """Events that listeners have lost."""

    def tell(self, event: ParticipantEvent) -> None:
        """Let all who listen have this."""
        for listener in self._listeners:
            if len(listener.waiting) >= EVENTS_WAITING_MAX:
                listener.waiting.popleft()
                self.lost += 1
            listener.waiting.append(event)
            listener.awake.set()

    def end(self) -> None:
        """Nothing more happens: who listens hears what waits, and no more."""
        self._ended = True
        for listener in self._listeners:
            listener.awake.set()

    async def listen(self) -> AsyncGenerator[ParticipantEvent, None]:
        """What happens from now on, until the end."""
        listener = _Listener()
        self._listeners.append(listener)
        try:
            while True:
                while listener.waiting:
                    yield listener.waiting.popleft()
                if self._ended:
                    return
                listener.awake.clear()
                await listener.awake.wait()
        finally:
            self._listeners.remove(listener)


class _Listener:
    __slots__ = ("awake", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[ParticipantEvent] = deque()
        self.awake = asyncio.Event()
