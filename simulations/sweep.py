"""Many seeds: run, add up, tell what failed first and what was never reached."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING

from simulations.run import Outcome, run
from simulations.swarm import draw_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FAILURES_KEPT: int = 20


@dataclass(kw_only=True)
class Totals:
    """What came of many runs."""

    seeds: int = 0
    events: int = 0
    virtual_ns: int = 0
    commits: int = 0
    aborts: int = 0
    recorded: int = 0
    probes: Counter[str] = field(default_factory=Counter)
    """Probe -> seeds in which it was reached."""
    fired: Counter[str] = field(default_factory=Counter)
    """Fault kind -> times it did something."""
    failed: Counter[str] = field(default_factory=Counter)
    """Invariant -> seeds that broke it."""
    failures: list[Outcome] = field(default_factory=list)
    """The first ones."""

    def add(self, outcome: Outcome) -> None:
        """Take one in."""
        self.seeds += 1
        self.events += outcome.events
        self.virtual_ns += outcome.virtual_ns
        self.commits += outcome.commits
        self.aborts += outcome.aborts
        self.recorded += outcome.recorded
        self.probes.update(outcome.probes.keys())
        self.fired.update(outcome.fired)
        if not outcome.ok:
            self.failed[f"{outcome.kind} {outcome.invariant}"] += 1
            if len(self.failures) < FAILURES_KEPT:
                self.failures.append(outcome)


def run_seed(seed: int, mutant: str = "") -> Outcome:
    """One seed as the swarm draws it."""
    what = draw_run(seed)
    what.options.mutant = mutant
    return run(what)


def run_seeds(seeds: Sequence[int], *, jobs: int = 1, mutant: str = "") -> Iterator[Outcome]:
    """Outcomes, as they come.

    Args:
        seeds: Which.
        jobs: Processes.
        mutant: A planted bug.
    """
    if jobs <= 1:
        for seed in seeds:
            yield run_seed(seed, mutant)
        return
    # Spawned, not forked: a run must not depend on what its parent had in memory.
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_run_pair, [(seed, mutant) for seed in seeds], chunksize=1)


def _run_pair(pair: tuple[int, str]) -> Outcome:
    return run_seed(*pair)


def missing_probes(totals: Totals, wanted: Iterable[str]) -> list[str]:
    """Which of these no seed has reached."""
    return [name for name in wanted if not totals.probes.get(name)]
