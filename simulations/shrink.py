"""Makes a failing run small: fewer faults, then a smaller world; only what breaks the same invariant is kept.

Faults go by delta debugging (Zeller's ddmin over the list), kinds first. Then participants, length, overlap and the like are
lowered one by one as long as it still fails. Each trial is a whole run, so there is a bound on their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from simulations.options import Fault, Run
from simulations.run import Outcome, run
from simulations.topologies import names_of
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simulations.options import Options

TRIALS_MAX: Final = 400


class Shrinker:
    """One failing run on its way to a small one."""

    def __init__(
        self, what: Run, outcome: Outcome, *, tell: Callable[[str], None], trials_max: int = TRIALS_MAX
    ) -> None:
        """Begin.

        Args:
            what: The failing run.
            outcome: What came of it.
            tell: Told of progress.
            trials_max: Runs at most.
        """
        assert not outcome.ok, "only a failing run can be made smaller"
        self.what = what
        self.outcome = outcome
        self.trials = 0
        self._tell = tell
        self._trials_max = trials_max

    def shrink(self) -> Run:
        """The smallest that was found; breaks the same invariant."""
        self._without_kinds()
        self._ddmin()
        for options in self._smaller_worlds():
            if self._fails(options, self.what.faults):
                self._tell(f"{self.trials} trials: a smaller world")
        self._ddmin()
        return Run(
            options=self.what.options,
            faults=self.what.faults,
            invariant=self.outcome.invariant,
            note=f"found with seed {self.what.options.seed}: {self.outcome.text[:300]}",
        )

    def _fails(self, options: Options, faults: list[Fault]) -> bool:
        """Try; keep it if it breaks the same invariant."""
        if self.trials >= self._trials_max:
            return False
        self.trials += 1
        trial = Run(options=options, faults=faults)
        outcome = run(trial)
        if (outcome.kind, outcome.invariant) != (self.outcome.kind, self.outcome.invariant):
            return False
        self.what, self.outcome = trial, outcome
        return True

    def _without_kinds(self) -> None:
        for kind in sorted({fault.kind for fault in self.what.faults}):
            rest = [fault for fault in self.what.faults if fault.kind != kind]
            if self._fails(self.what.options, rest):
                self._tell(f"{self.trials} trials: without {kind}, {len(rest)} faults left")

    def _ddmin(self) -> None:
        parts = 2
        while len(self.what.faults) >= 1 and self.trials < self._trials_max:
            faults = self.what.faults
            size = max(1, len(faults) // parts)
            for start in range(0, len(faults), size):
                if self._fails(self.what.options, faults[:start] + faults[start + size :]):
                    self._tell(f"{self.trials} trials: {len(self.what.faults)} faults left")
                    parts = max(2, parts - 1)
                    break
            else:
                if size == 1:
                    return
                parts = min(len(faults), 2 * parts)

    def _smaller_worlds(self) -> Iterator[Options]:
        while self.what.options.nodes > 2:
            fewer = msgspec.structs.replace(self.what.options, nodes=self.what.options.nodes - 1)
            there = set(names_of(fewer))
            hit = [fault for fault in self.what.faults if fault.who.startswith("p") and fault.who not in there]
            if hit:
                break
            before = self.what
            yield fewer
            if self.what is before:
                break
        last = max((fault.at_ns + fault.for_ns for fault in self.what.faults), default=SECOND)
        plain: dict[str, object] = {
            "faults_ns": min(self.what.options.faults_ns, last + SECOND),
            "coordinators": 1,
            "max_concurrent": 1,
            "burst": 1,
            "tick_ns": 500 * MS,
            "workload": "bank",
            "topology": "mesh",
            "slice_steps": 64,
        }
        for name, value in plain.items():
            if getattr(self.what.options, name) != value:
                yield msgspec.structs.replace(self.what.options, **{name: value})
