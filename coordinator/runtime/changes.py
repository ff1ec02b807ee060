"""Waiting for the ledger to be as somebody wants it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Changes:
    """Wakes those who wait whenever an entry was applied. Runs on one loop."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def changed(self) -> None:
        """Something may be different now."""
        current, self._next = self._next, asyncio.Event()
        current.set()

    async def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether `condition` became true within `seconds`. It is asked after each change."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    await self._next.wait()
        except TimeoutError:
            return condition()
        return True
