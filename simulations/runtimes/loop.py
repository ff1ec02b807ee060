"""The event loop of a driver: each callback is an event of the world; threads are the world's, too.

A callback that raises is a finding and ends the run. A process that is killed while its own code runs, at a point of the
protocol or in the middle of a system call, unwinds by `Killed`, which no rule of the product catches for good.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from simulations.eventloop import SimulatedLoop
from simulations.world import US

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulations.prng import Prng
    from simulations.runtimes.cluster import RuntimeCluster
    from simulations.runtimes.threads import SimulatedThreads
    from simulations.world import Process

_STEP_NS_MAX: Final = 20 * US


class Killed(BaseException):
    """The process whose code runs is dead."""


class DriverLoop(SimulatedLoop):
    """The loop of one life of a driver."""

    def __init__(self, cluster: RuntimeCluster, process: Process, random: Prng) -> None:
        """Make an idle loop.

        Args:
            cluster: Is told whose code runs.
            process: Whose loop it is.
            random: Draws among steps of tasks.
        """
        super().__init__(process, random, step_ns=min(cluster.options.turn_ns, _STEP_NS_MAX))
        self._cluster = cluster
        self._owner = process
        self.threads: SimulatedThreads
        """Of the loop's own pool, for ``asyncio.to_thread``; set by its owner."""
        cluster.loops.append(self)

    def _step(self) -> None:
        # As `acts`, spelled out: this is the hot path.
        cluster = self._cluster
        before, cluster.acting = cluster.acting, self._owner
        try:
            super()._step()
        finally:
            cluster.acting = before

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback that raised ends the run; what asyncio says of forgotten tasks when it collects them does not."""
        error = context.get("exception")
        if error is not None and "handle" in context and not isinstance(error, Killed):
            self.fail(error)

    def run_in_executor(  # type: ignore[override]  # as its base
        self,
        executor: object,
        func: Callable[..., Any],
        *args: Any,  # noqa: ANN401 - the function's own
    ) -> asyncio.Future[Any]:
        """Run it in a thread of the world: later, as long as the store says, and while others go on."""
        return asyncio.wrap_future(self.threads.submit(func, *args), loop=self)
