"""Threads for blocking work: on the store above all, which may hang for as long as its disk or server is gone.

The standard library's pools wait for their threads when the loop closes and when the interpreter ends: a participant that is
fenced while its store hangs would never go, and no supervisor could start the next one. These are daemons: whoever waits for
work may stop waiting, and a process may end, whatever its threads do. What is durable is so already.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

THREADS_MAX: Final = 16
"""Of a process, for all of its participants: two epochs' uploads each, and some that hang."""


class DaemonThreads(Executor):
    """A pool that nobody has to wait for."""

    def __init__(self, count: int, name: str) -> None:
        """Start with none.

        Args:
            count: Threads at most; each is started when work finds no idle one, and stays.
            name: What they are called.
        """
        self._count = count
        self._name = name
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._started = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **more: P.kwargs) -> Future[T]:
        """Have it run when a thread is free."""
        future: Future[T] = Future()
        self._work.put((future, partial(fn, *args, **more)))
        with self._lock:
            if not self._idle.acquire(blocking=False) and self._started < self._count:
                self._started += 1
                name = f"{self._name}-{self._started}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            future, work = self._work.get()
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:  # noqa: BLE001 - it is given to whoever waits
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del future, work
            self._idle.release()


_threads: Final = DaemonThreads(THREADS_MAX, "participant-store")


async def in_thread(work: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - the work's own
    """Run blocking work beside the loop. Whoever is cancelled stops waiting; the work goes on."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(work, *args))
