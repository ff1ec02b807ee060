"""Makes a failing run small: fewer faults, then a smaller world; only what breaks the same invariant is kept.

Faults go by delta debugging (Zeller's ddmin over the list), kinds first. Then participants, length, overlap and the like are
lowered one by one as long as it still fails. Each trial is a whole run, so there is a bound on their number. What is the
smallest so far is handed out each time: whoever is interrupted has that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from simulations.build import build_digest
from simulations.options import KNOBS, Fault, Options, Run, check_run
from simulations.run import Outcome, run
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TRIALS_MAX: Final = 400
NODES_MIN: Final = 2
"""A fault has two ends."""


class Shrinker:
    """One failing run on its way to a small one."""

    def __init__(
        self,
        what: Run,
        outcome: Outcome,
        *,
        tell: Callable[[str], None],
        trials_max: int = TRIALS_MAX,
        carry_out: Callable[[Run], Outcome] = run,
        smaller: Callable[[Run], None] = lambda what: None,
    ) -> None:
        """Begin.

        Args:
            what: The failing run.
            outcome: What came of it.
            tell: Told of progress.
            trials_max: Runs at most.
            carry_out: Runs one.
            smaller: Given each run that is smaller than the last one, as it may be stored.
        """
        assert not outcome.ok, "only a failing run can be made smaller"
        self.what = what
        self.outcome = outcome
        self.trials = 0
        self._found_with = f"found with seed {what.options.seed}: {outcome.text[:300]}"
        self._tell = tell
        self._trials_max = trials_max
        self._carry_out = carry_out
        self._smaller = smaller

    def shrink(self) -> Run:
        """The smallest that was found; breaks the same invariant."""
        self._without_kinds()
        self._ddmin()
        for trial in self.smaller_worlds():
            if self.fails(trial):
                self._tell(f"{self.trials} trials: a smaller world")
        self._ddmin()
        return self.result()

    def result(self) -> Run:
        """What was found so far, as it may be stored."""
        return msgspec.structs.replace(
            self.what,
            invariant=self.outcome.invariant,
            note=self._found_with,
            build=build_digest(),
            digest=self.outcome.digest,
        )

    def fails(self, trial: Run) -> bool:
        """Try; keep it if it breaks the same invariant."""
        try:
            check_run(trial)
        except ValueError:
            return False  # a fault hits somebody who is no more
        outcome = self.attempt(trial)
        if outcome is None or (outcome.kind, outcome.invariant) != (self.outcome.kind, self.outcome.invariant):
            return False
        self.what, self.outcome = trial, outcome
        self._smaller(self.result())
        return True

    def attempt(self, trial: Run) -> Outcome | None:
        """Carry out a run; None if there were too many."""
        if self.trials >= self._trials_max:
            return None
        self.trials += 1
        return self._carry_out(trial)

    def _without_kinds(self) -> None:
        for kind in sorted({fault.kind for fault in self.what.faults}):
            rest = [fault for fault in self.what.faults if fault.kind != kind]
            if self.fails(with_faults(self.what, rest)):
                self._tell(f"{self.trials} trials: without {kind}, {len(rest)} faults left")

    def _ddmin(self) -> None:
        parts = 2
        while len(self.what.faults) >= 1 and self.trials < self._trials_max:
            faults = self.what.faults
            size = max(1, len(faults) // parts)
            for start in range(0, len(faults), size):
                if self.fails(with_faults(self.what, faults[:start] + faults[start + size :])):
                    self._tell(f"{self.trials} trials: {len(self.what.faults)} faults left")
                    parts = max(2, parts - 1)
                    break
            else:
                if size == 1:
                    return
                parts = min(len(faults), 2 * parts)

    def smaller_worlds(self) -> Iterator[Run]:
        """Runs to try, each made of what the last one has left."""
        while self.what.options.nodes > NODES_MIN:
            before = self.what
            yield with_options(before, nodes=before.options.nodes - 1)
            if self.what is before:
                break
        yield from self.shorter_runs()
        yield from self.plainer_worlds(workload="bank", topology="mesh", burst=1, tick_ns=500 * MS)

    def shorter_runs(self) -> Iterator[Run]:
        """Fewer operations: a phase of faults that ends soon after the last one, or earlier still."""
        last = max((fault.at_ns + fault.for_ns for fault in self.what.faults), default=0)
        starts = max((fault.at_ns for fault in self.what.faults), default=0)
        for bound in (last + SECOND, starts + SECOND, SECOND):
            if bound < self.what.options.faults_ns:
                yield with_options(self.what, faults_ns=bound)

    def plainer_worlds(self, **more: Any) -> Iterator[Run]:  # noqa: ANN401 - options of any type
        """One knob after the other where it is usual.

        Args:
            more: Knobs that only some runs have.
        """
        plain: dict[str, Any] = {
            "coordinators": 1,
            "max_concurrent": 1,
            "broker": False,
            "disk": False,
            "pause_ns": 0,
            "slice_steps": 64,
            **{name: getattr(Options(seed=0), name) for name in KNOBS},
            **more,
        }
        for name, value in plain.items():
            if getattr(self.what.options, name) != value:
                yield with_options(self.what, **{name: value})


def with_options(what: Run, **changes: Any) -> Run:  # noqa: ANN401 - options of any type
    """The run in another world."""
    return msgspec.structs.replace(what, options=msgspec.structs.replace(what.options, **changes))


def with_faults(what: Run, faults: list[Fault]) -> Run:
    """The run with other faults."""
    return msgspec.structs.replace(what, faults=faults)
