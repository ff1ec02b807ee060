"""An asyncio event loop on virtual time: for handlers that await, in a simulated participant.

Theory of operation:
    * A loop belongs to one `Process` and has no thread, selector or clock: its time is the process's, and each callback runs
      as an event of the world. So everything else (a marker, a crash) can come between any two steps of a task.
    * Callbacks run in the order in which asyncio promises it. Steps of tasks have no promised order: of those that stand at
      the head of the queue together a seeded draw takes one. Tasks are numbered, so that the order in which something like a
      task group walks through its set of tasks (by address) makes no difference.
    * What needs a real thread runs at once, in line (``asyncio.to_thread``); a call from a real thread is refused. What needs a
      socket, a process or a signal raises `RealWorldError`, and so ends the run: a failure policy must not hide it.
    * A process that is killed drops its loop: no callback runs any more, and no ``finally`` of its tasks either until `close`,
      when the run is over.

Source: BaseEventLoop of Python 3.11, of which private names are used: `_asyncgen_finalizer_hook` and the hooks of handles.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import warnings
from asyncio import base_events, events
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from simulations.world import SECOND

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
    from contextvars import Context

    from simulations.prng import Prng
    from simulations.world import Process, Timer

_REFUSED: Final = (
    "add_reader",
    "add_signal_handler",
    "add_writer",
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "create_connection",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "getaddrinfo",
    "getnameinfo",
    "sendfile",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_recvfrom_into",
    "sock_sendall",
    "sock_sendfile",
    "sock_sendto",
    "start_tls",
    "subprocess_exec",
    "subprocess_shell",
)


_PRUNE: Final = 64
_SECONDS_MAX: Final = 1e9
"""Later than the end of any run: for timers that are never to ring."""


class RealWorldError(RuntimeError):
    """A handler wanted something that a simulated world does not have: a socket, a process, a thread that calls back."""


class SimulatedTask(asyncio.Task[Any]):
    """A task with a number."""

    serial: int


class SimulatedLoop(base_events.BaseEventLoop):
    """The event loop of one process, for one life."""

    def __init__(self, process: Process, random: Prng, *, step_ns: int) -> None:
        """Make an idle loop.

        Args:
            process: Whose it is.
            random: Draws among steps of tasks.
            step_ns: Virtual time that a callback takes.
        """
        super().__init__()
        self._process = process
        self._random = random
        self._step_ns = step_ns
        self._queue: deque[events.Handle] = deque()
        self._timers: dict[events.TimerHandle, Timer] = {}
        self._due = False
        self._serial = 0
        self._thread = threading.get_ident()
        self._tasks: dict[SimulatedTask, None] = {}
        """By number; those that are done go now and then."""
        self._prune_at = _PRUNE
        self._problem: BaseException | None = None
        self.dropped = False
        """Its process was killed."""
        self.steps = 0
        """Callbacks that have run."""

    # --- driven by the world ------------------------------------------------------------------------------------------

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be the running loop: for code that looks for one."""
        before = events._get_running_loop()  # noqa: SLF001 - what run_forever does
        hooks = sys.get_asyncgen_hooks()
        events._set_running_loop(self)  # noqa: SLF001 - as above
        sys.set_asyncgen_hooks(firstiter=self._first_iteration, finalizer=self._asyncgen_finalizer_hook)
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(before)  # noqa: SLF001 - as above

    def check(self) -> None:
        """Raise what must not be swallowed.

        Raises:
            RealWorldError: A handler reached for the real world.
        """
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem

    def fail(self, problem: BaseException) -> None:
        """Have the run end with this after the callback that runs now; the first one counts."""
        if self._problem is None:
            self._problem = problem

    def _wake(self) -> None:
        if not self._due and not self.dropped:
            self._due = True
            process = self._process
            process.world.at(process.now, self._random, process.enter, self._step)

    def _step(self) -> None:
        """One callback."""
        self._due = False
        while self._queue and not self.dropped:
            handle = self._next()
            if handle.cancelled():
                continue
            self.steps += 1
            # As `entered`, spelled out: this is the hot path.
            before = events._get_running_loop()  # noqa: SLF001 - what run_forever does
            hooks = sys.get_asyncgen_hooks()
            events._set_running_loop(self)  # noqa: SLF001 - as above
            sys.set_asyncgen_hooks(self._first_iteration, self._asyncgen_finalizer_hook)
            try:
                handle._run()  # noqa: SLF001 - what _run_once does
            finally:
                sys.set_asyncgen_hooks(*hooks)
                events._set_running_loop(before)  # noqa: SLF001 - as above
            self._process.now += self._step_ns
            self.check()
            break
        if self._queue:
            self._wake()

    def _next(self) -> events.Handle:
        """The callback that runs next: the first, or one of the tasks' steps at the head."""
        queue = self._queue
        if len(queue) > 1 and _task_of(queue[0]) is not None:
            run: list[tuple[int, int]] = []
            for index, handle in enumerate(queue):
                task = _task_of(handle)
                if task is None:
                    break
                run.append((task.serial, index))
            if len(run) > 1:
                run.sort()
                _, index = run[self._random.below(len(run))]
                handle = queue[index]
                del queue[index]
                return handle
        return queue.popleft()

    def drop(self) -> None:
        """The process was killed: nothing of this loop runs any more."""
        self.dropped = True
        self._queue.clear()
        self._timers.clear()

    def tasks(self) -> list[SimulatedTask]:
        """Those that are not done, by number."""
        return [task for task in self._tasks if not task.done()]

    def timers_where(self, wanted: Callable[[Context], bool]) -> list[events.TimerHandle]:
        """Timers that have not rung and were set in such a context."""
        return [timer for timer in self._timers if wanted(timer._context)]  # type: ignore[attr-defined]  # noqa: SLF001 - nothing public tells

    def is_set(self, timer: events.TimerHandle) -> bool:
        """Whether it has neither rung nor been taken back."""
        return timer in self._timers

    def cancel_tasks(self) -> None:
        """The process ends in order: tell its tasks."""
        for task in list(self._tasks):
            task.cancel()

    def close(self) -> None:
        """Unwind what is left, in the order of its start, once the run is over."""
        if self.is_closed():
            return
        self.drop()
        with warnings.catch_warnings():
            # A `finally` that begins a task now, without a loop, leaves that task's work unawaited.
            warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)
            for task in list(self._tasks):
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it was killed, not forgotten
                try:
                    task.get_coro().close()
                except Exception:  # noqa: BLE001, S112 - a `finally` of the user's that awaits or raises; nobody is there to hear
                    continue
        self._tasks.clear()
        super().close()

    # --- what asyncio and handlers call -------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds since the world began."""
        return self._process.now / SECOND

    def is_running(self) -> bool:
        """Whether it is the running loop at this moment."""
        return events._get_running_loop() is self  # noqa: SLF001 - the public one raises

    def call_soon(  # type: ignore[override]  # asyncio's own form needs TypeVarTuple at run time
        self,
        callback: Callable[..., Any],
        *args: Any,  # noqa: ANN401 - the callback's own
        context: Context | None = None,
    ) -> events.Handle:
        """See asyncio."""
        if threading.get_ident() != self._thread:
            self._refuse("a real thread called the event loop")
        handle = events.Handle(callback, args, self, context)
        if not self.dropped:
            self._queue.append(handle)
            self._wake()
        return handle

    def call_soon_threadsafe(  # type: ignore[override]  # as call_soon
        self,
        callback: Callable[..., Any],
        *args: Any,  # noqa: ANN401 - the callback's own
        context: Context | None = None,
    ) -> events.Handle:
        """As `call_soon`: there is one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]  # as call_soon
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,  # noqa: ANN401 - the callback's own
        context: Context | None = None,
    ) -> events.TimerHandle:
        """See asyncio."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as call_soon
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,  # noqa: ANN401 - the callback's own
        context: Context | None = None,
    ) -> events.TimerHandle:
        """See asyncio."""
        if threading.get_ident() != self._thread:
            self._refuse("a real thread called the event loop")
        handle = events.TimerHandle(when, callback, args, self, context)
        if not self.dropped:
            handle._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001 - so that its cancel tells us
            at = round(min(when, _SECONDS_MAX) * SECOND)
            self._timers[handle] = self._process.call_at(at, lambda: self._timer_due(handle))
        return handle

    def _timer_due(self, handle: events.TimerHandle) -> None:
        if self._timers.pop(handle, None) is not None:
            handle._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001 - as above
            self._queue.append(handle)
            self._wake()

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        timer = self._timers.pop(handle, None)
        if timer is not None:
            timer.cancel()

    def create_task(  # type: ignore[override]  # always with the type of this loop
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> SimulatedTask:
        """See asyncio."""
        self._serial += 1
        # Names with a counter of the interpreter's would differ between two runs in one process.
        shown = f"task {self._serial}" if name is None else str(name)
        task = SimulatedTask(coro, loop=self, name=shown, context=context)
        task.serial = self._serial
        if len(self._tasks) >= self._prune_at:
            self._tasks = {each: None for each in self._tasks if not each.done()}
            self._prune_at = 2 * len(self._tasks) + _PRUNE
        self._tasks[task] = None
        return task

    def run_in_executor(  # type: ignore[override]  # a finished future, whatever the executor
        self,
        executor: object,
        func: Callable[..., Any],
        *args: Any,  # noqa: ANN401 - the function's own
    ) -> asyncio.Future[Any]:
        """Run it at once: there is one thread."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is given to whoever awaits
            future.set_exception(error)
        return future

    def run_forever(self) -> NoReturn:
        """Refused: the world runs it."""
        self._refuse("run_forever or run_until_complete")

    def _first_iteration(self, agen: AsyncGenerator[Any, Any]) -> None:
        """Nothing: generators are not listed, as the set that asyncio keeps has no order."""

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        if not self.dropped and threading.get_ident() == self._thread:
            self.call_soon(self.create_task, agen.aclose())

    def _refuse(self, what: str) -> NoReturn:
        error = RealWorldError(
            f"{self._process.name}: {what}: a simulated world has no sockets, processes, signals or threads. Give the agent "
            f"an object that does this for it, and have make_agents pass one that only pretends"
        )
        self.fail(error)
        raise error


def _task_of(handle: events.Handle) -> SimulatedTask | None:
    """The task of which this callback is a step."""
    task = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]  # noqa: SLF001 - nothing public tells
    return task if isinstance(task, SimulatedTask) else None


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refused(self: SimulatedLoop, *_: object, **__: object) -> NoReturn:
        self._refuse(name)

    refused.__name__ = name
    refused.__doc__ = "Refused: there is no such thing in a simulated world."
    return refused


for _name in _REFUSED:
    setattr(SimulatedLoop, _name, _refusing(_name))
