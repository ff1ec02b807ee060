"""What people see of a sweep while it runs: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import click

from simulations.catalog import WANTED_PROBES
from simulations.sweep import FAILURES_KEPT

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from simulations.run import Outcome
    from simulations.sweep import Totals

LINE_SECONDS: Final = 10
_TEXT_MAX: Final = 300


class Shown:
    """Tells how a sweep goes, on the error stream."""

    def __init__(self, totals: Totals, planned: int, *, silent: bool) -> None:
        """Begin.

        Args:
            totals: Looked at whenever there is something to tell.
            planned: Seeds.
            silent: Tell nothing.
        """
        self._totals = totals
        self._planned = planned
        self._silent = silent
        self._began = time.monotonic()
        self._last_line = self._began
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if not silent and sys.stderr.isatty():
            self._open_bar()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return max(time.monotonic() - self._began, 1e-9)

    def moved(self) -> None:
        """Something may have changed."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._totals.seeds, numbers=self.numbers())
        elif not self._silent and time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            click.echo(f"{self._totals.seeds} of {self._planned} seeds; {self.numbers()}", err=True)

    def failed(self, outcome: Outcome, file: str) -> None:
        """A seed failed; the first ones are shown at once."""
        if self._silent or self._totals.failures_count > FAILURES_KEPT:
            return
        line = f"seed {outcome.seed}: {outcome.kind} {outcome.text[:_TEXT_MAX]}" + (f" ({file})" if file else "")
        if self._totals.failures_count == FAILURES_KEPT:
            line += "\nfurther ones are counted"
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            click.echo(line, err=True)

    def numbers(self) -> str:
        """How fast, and what was found."""
        totals, took = self._totals, self.seconds
        reached = sum(1 for name in WANTED_PROBES if totals.probes.get(name))
        return (
            f"{totals.seeds / took:.1f} seeds/s, {totals.events / took:,.0f} events/s, "
            f"probes {reached}/{len(WANTED_PROBES)}, failed {totals.failures_count}"
        )

    def close(self) -> None:
        """No bar any more."""
        if self._bar is not None:
            self.moved()
            self._bar.stop()
            self._bar = None

    def _open_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("seeds"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("seeds", total=self._planned, numbers=self.numbers())
        self._bar.start()
