"""The event queue: virtual time in integer nanoseconds, one event after the other, the same order for the same seed.

Theory of operation:
    * An event is a function with its arguments at an instant. Two of one instant are ordered by a draw of the component
      that scheduled them, then by serial number: every order of simultaneous events comes up in some seed.
    * A `Process` is what can crash, sleep and wake: what was scheduled for a process that is gone is dropped; for one that
      sleeps it waits, in order. A process has a time of its own, never behind the world's: work takes time.
    * Nothing here knows threads, real clocks or the operating system. An exception ends the run.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulations.prng import Prng
    from simulations.trace import Trace

US: Final = 1_000
MS: Final = 1_000_000
SECOND: Final = 1_000_000_000


class StepsExhausted(Exception):
    """The run took more events than it may: something spins."""


class World:
    """Time, the queue, and the trace of what happened."""

    def __init__(self, trace: Trace, *, steps_max: int) -> None:
        self.now = 0
        """Nanoseconds since the world began."""
        self.steps = 0
        """Events carried out."""
        self.trace = trace
        self.steps_max = steps_max
        self._queue: list[tuple[int, int, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._serial = 0
        self._soon: list[tuple[Prng, Callable[[], Any]]] = []
        """What the event that runs wants to be done at this very instant."""

    def at(self, when: int, random: Prng, action: Callable[..., Any], *arguments: Any) -> None:  # noqa: ANN401 - the action's own
        """Have `action(*arguments)` carried out.

        Args:
            when: Instant; one that has passed is now.
            random: Of the component that asks: orders events of one instant.
            action: What.
            arguments: Of the action.
        """
        self._serial = serial = self._serial + 1
        now = self.now
        if when < now:
            when = now
        heappush(self._queue, (when, random.tie(), serial, action, arguments))

    def after(self, delay: int, random: Prng, action: Callable[..., Any], *arguments: Any) -> None:  # noqa: ANN401 - the action's own
        """As `at`, nanoseconds from now."""
        self._serial = serial = self._serial + 1
        now = self.now
        heappush(self._queue, (now + delay if delay > 0 else now, random.tie(), serial, action, arguments))

    def soon(self, random: Prng, action: Callable[[], Any]) -> None:
        """Have `action()` carried out at this instant, behind the event that runs: as `at`, and most often without the queue."""
        self._soon.append((random, action))

    def run(self, end: int, until: Callable[[], bool] | None = None) -> bool:
        """Carry out events.

        Args:
            end: Stop at this instant.
            until: Stop when it holds; asked after each event.

        Returns:
            Whether `until` held; without it, True.

        Raises:
            StepsExhausted: `steps_max` is passed.
        """
        queue = self._queue
        pop = heappop
        steps_max, soon = self.steps_max, self._soon
        while queue and queue[0][0] <= end:
            if until is not None and until():
                return True
            self.now, _, _, action, arguments = pop(queue)
            self.steps = steps = self.steps + 1
            if steps > steps_max:
                raise StepsExhausted(f"{steps} events; at most {steps_max} are run")
            action(*arguments)
            if soon:
                self._carry_out_soon()
        self.now = max(self.now, end) if until is None else self.now
        return until is None or until()

    def _carry_out_soon(self) -> None:
        """Into the queue where the order has to be drawn; done at once where nothing else happens at this instant."""
        soon, queue = self._soon, self._queue
        while soon:
            random, action = soon.pop(0)
            if soon or (queue and queue[0][0] <= self.now):
                self.at(self.now, random, action)
            else:
                self.steps += 1
                action()


class Timer:
    """A call that can be taken back."""

    __slots__ = ("_callback", "_process", "cancelled")

    def __init__(self, process: Process, callback: Callable[[], None]) -> None:
        self._process = process
        self._callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Do not call."""
        self.cancelled = True

    def fire(self) -> None:
        """Call, unless it was taken back."""
        if self.cancelled:
            return
        process = self._process
        if process.asleep is None and process.alive:
            now = process.world.now
            if process.now < now:
                process.now = now
            self._callback()
        else:
            process.enter(self._ring)

    def _ring(self) -> None:
        if not self.cancelled:
            self._callback()


class Process:
    """One life of something that runs: dies once, may sleep and wake."""

    def __init__(self, world: World, random: Prng, name: str) -> None:
        self.world = world
        self.random = random
        self.name = name
        self.alive = True
        self.now = world.now
        """Its own time: at least the world's while it acts, ahead of it by the work it has done."""
        self.asleep: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        """What waits for it to wake; None: awake."""

    def enter(self, action: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401 - the action's own
        """Let it act now; dropped if it is dead, kept if it sleeps."""
        if not self.alive:
            return
        if self.asleep is not None:
            self.asleep.append((action, arguments))
            return
        now = self.world.now
        if self.now < now:
            self.now = now
        action(*arguments)

    def call_at(self, at: int, callback: Callable[[], None]) -> Timer:
        """A timer of this process."""
        timer = Timer(self, callback)
        self.world.at(at, self.random, timer.fire)
        return timer

    def later(self, delay: int, action: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401 - the action's own
        """Act after a while of its own time."""
        self.world.at(self.now + delay, self.random, self.enter, action, *arguments)

    def suspend(self) -> None:
        """Stop, as by SIGSTOP: everything that comes waits."""
        if self.alive and self.asleep is None:
            self.asleep = []

    def resume(self) -> None:
        """Go on, as by SIGCONT."""
        waiting, self.asleep = self.asleep, None
        for action, arguments in waiting or ():
            self.enter(action, *arguments)

    def is_gone(self) -> bool:
        """Whether it has died meanwhile: a method, because a type checker remembers what it knew of an attribute."""
        return not self.alive

    def die(self) -> None:
        """End, as by SIGKILL: memory is gone."""
        self.alive = False
        self.asleep = None
