"""One barrier for all fresh reads that wait at the same time.

A barrier is an entry of the log: an fsync on each coordinator, and the journal grows by it. Readers must not decide how
many there are.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class SharedBarrier:
    """Whoever comes while a barrier is under way shares the next one: the running one began before the question.

    Args:
        barrier: Makes one; raises what the group raises.
    """

    def __init__(self, barrier: Callable[[], Awaitable[None]]) -> None:
        self._barrier = barrier
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def passed(self) -> None:
        """Return once a barrier that began after this call has passed.

        Raises:
            Refused, Unreachable: It did not.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._one())
            self._next.add_done_callback(_take_outcome)
        await asyncio.shield(self._next)

    async def _one(self) -> None:
        if self._running is not None:
            await asyncio.wait([self._running])
        self._running, self._next = self._next, None
        await self._barrier()


def _take_outcome(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # Whoever waits has it; nobody may be left to.
