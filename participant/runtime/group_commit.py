"""A log written in a thread: while one batch is being made durable, the next one gathers."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from protocol.errors import FencedError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from participant.runtime.durable_log import DurableLog, Job

log = logging.getLogger("cleancut.participant.log")


class GroupCommit:
    """One log and its thread.

    Args:
        log: Recovered, and begun.
        on_durable: Called on the loop with the number of the last record that is durable now.
        on_failure: Called on the loop, once: the log is poisoned or fenced.
    """

    def __init__(
        self,
        log: DurableLog,
        *,
        on_durable: Callable[[int], None] | None = None,
        on_failure: Callable[[StoreError | FencedError], None] | None = None,
    ) -> None:
        self.log = log
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cleancut log")
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        """Ascending by number."""
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._held = False

    def hold(self) -> None:
        """Write nothing until `release`: something is to be durable before."""
        self._held = True

    def release(self) -> None:
        """Write what waits."""
        self._held = False
        self.start()

    def append(self, record: bytes) -> int:
        """See `DurableLog.append`; the write begins in this turn of the loop or when the one before is done."""
        number = self.log.append(record)
        self.start()
        return number

    def start(self) -> None:
        """Have what waits written."""
        if self._task is None and not self._closed and not self._held and self.log.waiting:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"log {self.log.next - 1}")

    async def wait_durable(self, number: int) -> None:
        """Until a record is durable.

        Raises:
            LogPoisoned: It may never be.
            FencedError: It never counts.
        """
        if number <= self.log.durable:
            return
        if self.log.failure is not None:
            raise self.log.failure
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((number, future))
        self.start()
        await future

    async def write(self, record: bytes) -> int:
        """Append, and wait until it is durable."""
        number = self.append(record)
        await self.wait_durable(number)
        return number

    async def write_job(self, job: Job) -> None:
        """Write this while all else is held.

        Raises:
            LogPoisoned: It may never be durable.
            FencedError: It never counts.
        """
        assert self._held, "written between others"
        await asyncio.get_running_loop().run_in_executor(self._thread, self.log.write, job)

    async def truncate(self, before: int) -> int:
        """See `DurableLog.truncate`; between two batches."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.log.truncate, before)

    async def wait_idle(self) -> None:
        """Until nothing waits and nothing is being written."""
        while self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        """Write what waits, unless the log has failed, and end."""
        await self.wait_idle()
        self._closed = True
        self._settle(StoreError("put", self.log.where, "the log is closed"))
        await asyncio.get_running_loop().run_in_executor(self._thread, self.log.close)
        self._thread.shutdown(wait=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while (job := self.log.take()) is not None:
                await loop.run_in_executor(self._thread, self.log.write, job)
                self._reached(job.last)
        except (StoreError, FencedError) as error:
            self._failed(error)
        except Exception as error:  # a bug of ours: nobody may wait for it for ever
            log.critical("writing %s failed", self.log.where, exc_info=error)
            self._failed(StoreError("put", self.log.where, f"{type(error).__name__}: {error}", definite=False))
        finally:
            self._task = None

    def _reached(self, number: int) -> None:
        kept = []
        for wanted, future in self._waiters:
            if wanted > number:
                kept.append((wanted, future))
            elif not future.done():
                future.set_result(None)
        self._waiters = kept
        if self._on_durable is not None:
            self._on_durable(number)

    def _failed(self, error: StoreError | FencedError) -> None:
        self._settle(error)
        if self._on_failure is not None:
            self._on_failure(error)

    def _settle(self, error: StoreError | FencedError) -> None:
        waiters, self._waiters = self._waiters, []
        for _, future in waiters:
            if not future.done():
                future.set_exception(error)
