"""A driver's background tasks: kept alive, ended together, and none fails unseen.

`asyncio.TaskGroup` wants one scope that awaits it; a driver is entered and left through `start` and `close`, and its tasks
come and go in between, so it keeps its own set.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context


log = logging.getLogger("cleancut.participant.tasks")

CANCEL_SECONDS: Final = 2.0
CANCELLATIONS_MAX: Final = 5
"""Ten seconds in all: a handler that cleans up over the network has had its time."""


class TaskSet:
    """Tasks of one driver object."""

    __slots__ = ("_failed", "_tasks")

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        """Start empty.

        Args:
            failed: Told of each exception that ends a task (cancellation is none); must not raise.
        """
        self._failed = failed
        # Ordered by start: closing cancels in the same order in every run.
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str, context: Context | None = None) -> asyncio.Task[Any]:
        """Run `work` until it ends or `close` cancels it; in a copy of the current context, or in the given one."""
        task = asyncio.get_running_loop().create_task(work, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel all and wait until they have ended; safe to call from one of them.

        A task that swallows its cancellation is told again, and left alone in the end: whoever closes must get on.
        """
        current = asyncio.current_task()
        tasks = {task for task in self._tasks if task is not current}
        for attempt in range(CANCELLATIONS_MAX):
            for task in [task for task in self._tasks if task in tasks]:
                task.cancel()
            if not tasks:
                return
            _, tasks = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
            if tasks:
                names = ", ".join(sorted({task.get_name() for task in tasks}))
                level = logging.WARNING if attempt + 1 < CANCELLATIONS_MAX else logging.ERROR
                log.log(level, "%d tasks do not end though they were cancelled: %s", len(tasks), names)

    def __len__(self) -> int:
        return len(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._failed(error)
