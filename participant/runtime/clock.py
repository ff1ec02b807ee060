"""The driver's time: nanoseconds since its start, a way to be called at one of them, and a stopwatch for its own work.

Production has the event loop's; `participant.testing` has one that moves only when a test says so, `simulations` a virtual one.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from protocol.ids import Instant

if TYPE_CHECKING:
    from collections.abc import Callable


class Cancellable(Protocol):
    """What `call_at` gives."""

    def cancel(self) -> None:
        """Do not call."""
        ...


class Clock(Protocol):
    """Time as the driver sees it."""

    def now(self) -> Instant:
        """Nanoseconds since the start; never steps back."""
        ...

    def call_at(self, at: int, callback: Callable[[], None]) -> Cancellable:
        """Call from the loop, at this instant or a little later."""
        ...

    def stopwatch(self) -> int:
        """Nanoseconds that run while this process works, whatever `now` does: slices of work end by it."""
        ...


class LoopClock:
    """The running event loop's time."""

    __slots__ = ("_loop", "_origin")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._origin = time.monotonic_ns()

    def now(self) -> Instant:
        """Nanoseconds since this clock was made."""
        return Instant(time.monotonic_ns() - self._origin)

    def call_at(self, at: int, callback: Callable[[], None]) -> Cancellable:
        """Call from the loop; an instant that has passed: in its next turn."""
        return self._loop.call_later(max(0, at - self.now()) / 1e9, callback)

    stopwatch = staticmethod(time.monotonic_ns)
