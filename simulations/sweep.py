"""Many seeds: run, add up, tell what failed first and what was never reached.

Where they run is somebody else's: `simulations.sweep_pool` (processes here), `simulations.sweep_dask` (a cluster of machines).
A seed is the same run everywhere, so what is added up does not depend on it; `Totals.digest` shows that.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from simulations.mutants import MUTANTS
from simulations.run import CRASH, Outcome, run
from simulations.swarm import draw_run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simulations.options import Run

FAILURES_KEPT: Final = 20
_DIGESTS: Final = 1 << 128
LOST: Final = "ProcessLost"
"""In place of an invariant: the process that ran the seed has died."""


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
    """Kind and invariant -> seeds that broke it."""
    kinds: Counter[str] = field(default_factory=Counter)
    """``safety``, ``liveness``, ``crash`` -> seeds."""
    failures: list[Outcome] = field(default_factory=list)
    """Those of the smallest seeds, in order."""
    _sum: int = 0

    def add(self, outcome: Outcome) -> None:
        """Take one in; in which order they come makes no difference."""
        self.seeds += 1
        self.events += outcome.events
        self.virtual_ns += outcome.virtual_ns
        self.commits += outcome.commits
        self.aborts += outcome.aborts
        self.recorded += outcome.recorded
        self.probes.update(outcome.probes.keys())
        self.fired.update(outcome.fired)
        if outcome.digest:
            self._sum = (self._sum + int(outcome.digest, 16)) % _DIGESTS
        if not outcome.ok:
            self.kinds[outcome.kind] += 1
            self.failed[f"{outcome.kind} {outcome.invariant}"] += 1
            insort(self.failures, outcome, key=lambda each: each.seed)
            del self.failures[FAILURES_KEPT:]

    @property
    def failures_count(self) -> int:
        """Seeds that failed."""
        return sum(self.kinds.values())

    @property
    def digest(self) -> str:
        """Over the events of all runs."""
        return f"{self._sum:032x}"


def drawn(seed: int, mutant: str = "", *, runtimes: bool = False) -> Run:
    """The run of a seed; in the second mode if asked for, or if the planted bug is one of drivers."""
    planted = MUTANTS.get(mutant)
    recovery = None if planted is None else planted.recovery
    of_drivers = runtimes or (planted is not None and planted.runtimes)
    workload = None if planted is None else planted.workload
    elsewhere = True if planted is not None and planted.elsewhere else None
    turns = True if planted is not None and planted.turns else None
    what = draw_run(seed, runtimes=of_drivers, recovery=recovery, workload=workload, turns=turns, elsewhere=elsewhere)
    what.options.mutant = mutant
    return what


def run_seed(seed: int, mutant: str = "") -> Outcome:
    """One seed as the swarm draws it."""
    return run(drawn(seed, mutant))


def run_seed_of_drivers(seed: int, mutant: str = "") -> Outcome:
    """As `run_seed`, in the second mode."""
    return run(drawn(seed, mutant, runtimes=True))


def lost(seed: int, how: str) -> Outcome:
    """What came of a seed whose process has died."""
    return Outcome(seed=seed, kind=CRASH, invariant=LOST, text=f"{LOST}: the process that ran it {how}")


def missing_probes(totals: Totals, wanted: Iterable[str]) -> list[str]:
    """Which of these no seed has reached."""
    return [name for name in wanted if not totals.probes.get(name)]
