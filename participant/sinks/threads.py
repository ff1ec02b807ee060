"""One thread for a sink that blocks: its connection and files are used from there alone, one call at a time."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


class OwnThread:
    """Made when first used; ends with `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[[], _T]) -> _T:
        """What `work` returns or raises. Cancelled, it still runs to its end in its thread, before the next call."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Take no more work; what runs ends by itself."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None
