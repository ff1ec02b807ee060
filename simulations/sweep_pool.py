"""Seeds on this machine's cores: processes that each run one seed after the other.

A pool of the standard library is over when one of its processes dies, and does not say over what. Here each process has a
pipe and at most one seed: when the pipe ends, that seed is named, and another process takes the place.
"""

from __future__ import annotations

import signal
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final

from coordinator.cli.exits import Exit, Failure
from simulations.sweep import lost, run_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from simulations.run import Outcome

    RunSeed = Callable[[int, str], Outcome]

TICK_SECONDS: Final = 0.5
_END_SECONDS: Final = 5
_READY: Final = "ready"


class _Worker:
    """A process, and the seed that it runs."""

    def __init__(self, mutant: str, run_one: RunSeed) -> None:
        # Spawned, not forked: a run must not depend on what its parent had in memory.
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.seed: int | None = None
        self.ready = False
        self.process: SpawnProcess = context.Process(target=_work, args=(theirs, mutant, run_one), daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe ends with the process

    def how_it_ended(self) -> str:
        """In words."""
        self.process.join(_END_SECONDS)
        code = self.process.exitcode
        if code is None:
            return "has closed its pipe"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name
        return f"was killed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"


def run_here(
    seeds: Iterator[int], *, jobs: int, mutant: str = "", run_one: RunSeed = run_seed
) -> Generator[Outcome | None]:
    """Outcomes, as they come; None when none has come for a moment.

    Args:
        seeds: Asked for the next one when a process is free: whoever ends it early lets those that run come to their end.
        jobs: Processes.
        mutant: A planted bug.
        run_one: What a process does with a seed.

    Raises:
        Failure: Processes end before they begin.
    """
    workers: list[_Worker] = []
    more = True
    try:
        while True:
            while more and len(workers) < jobs:
                workers.append(_Worker(mutant, run_one))
            if not more and all(worker.seed is None for worker in workers):
                return
            pipes: dict[Any, _Worker] = {worker.pipe: worker for worker in workers}
            heard = wait(list(pipes), TICK_SECONDS)
            if not heard:
                yield None
            for pipe in heard:
                worker = pipes[pipe]
                try:
                    answer = worker.pipe.recv()
                except (EOFError, OSError):
                    workers.remove(worker)
                    how = worker.how_it_ended()
                    if not worker.ready:
                        raise Failure(Exit.REFUSED, f"a process of the sweep {how} before it began") from None
                    if worker.seed is not None:
                        yield lost(worker.seed, how)
                    continue
                worker.ready, worker.seed = True, None
                if answer != _READY:
                    yield answer
                seed = next(seeds, None) if more else None
                if seed is None:
                    more = False
                else:
                    worker.seed = seed
                    worker.pipe.send(seed)
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join(_END_SECONDS)
            worker.pipe.close()


def _work(pipe: Connection, mutant: str, run_one: RunSeed) -> None:
    """In the process."""
    # Ctrl-C goes to all of a terminal's processes: the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pipe.send(_READY)
        while True:
            pipe.send(run_one(pipe.recv(), mutant))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone
