"""``cleancut simulate sweep``."""

from __future__ import annotations

import json
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from coordinator.cli.exits import Failure
from simulations.exits import EPILOG, EXIT_LIVENESS, exit_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from simulations.run import Outcome
    from simulations.sweep import Totals
    from simulations.sweep_progress import Shown

SEED_MAX: Final = 2**63 - 1
INTERRUPTED: Final = 130


class SeedRange(click.ParamType[range]):
    """``A..B``, both included."""

    name = "A..B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> range:  # noqa: ANN401 - click's shape
        """A range of seeds."""
        if isinstance(value, range):
            return value
        match = re.fullmatch(r"(\d{1,19})\.\.(\d{1,19})", str(value), re.ASCII)
        if match is None or not int(match[1]) <= int(match[2]) < SEED_MAX:
            self.fail(f"{str(value)[:80]!r} is not A..B with A <= B < {SEED_MAX}", param, ctx)
        return range(int(match[1]), int(match[2]) + 1)


@click.command("sweep", epilog=EPILOG)
@click.option("--seeds", type=SeedRange(), required=True, help="First and last seed, such as 0..999.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Processes on this machine.  [default: 1]")
@click.option("--dask", metavar="URL", help="Run on this Dask cluster instead, such as tcp://host:8786.")
@click.option("--seconds", type=click.FloatRange(min=1), help="Begin no seed after this long.")
@click.option("--stop-at", type=click.IntRange(min=1), metavar="N", help="Begin no seed after N failures.")
@click.option("--keep-going", is_flag=True, help="Run all seeds, whatever fails (the default).")
@click.option(
    "--save", type=click.Path(file_okay=False, path_type=Path), help="Store failing seeds' replay files in this folder."
)
@click.option("--mutant", default="", help="Plant this bug in every run (`cleancut simulate mutants` lists them).")
@click.option("--runtimes", is_flag=True, help="The second mode: the asyncio drivers run, too (slower).")
@click.option("--probes/--no-probes", default=False, help="Fail, with 1, if a rare state was not reached.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, nothing else.")
def sweep_command(
    seeds: range,
    jobs: int | None,
    dask: str | None,
    seconds: float | None,
    stop_at: int | None,
    keep_going: bool,  # noqa: FBT001 - click's shape
    save: Path | None,
    mutant: str,
    runtimes: bool,  # noqa: FBT001 - click's shape
    probes: bool,  # noqa: FBT001 - click's shape
    as_json: bool,  # noqa: FBT001 - click's shape
) -> None:
    """Run many seeds and add up what came of them.

    Ctrl-C ends it with the sums so far. A process that dies is named with its seed, and the others go on. With --dask the seeds
    run on a cluster's workers, which need this very build of Cleancut (`pip install 'cleancut[dask]'`); the sums are the same.
    """
    from simulations.catalog import WANTED_PROBES
    from simulations.mutants import MUTANTS
    from simulations.sweep import Totals, missing_probes
    from simulations.sweep_progress import Shown

    if keep_going and stop_at is not None:
        raise click.UsageError("--keep-going and --stop-at exclude each other")
    if dask is not None and jobs is not None:
        raise click.UsageError("--jobs are this machine's; with --dask the cluster's workers decide")
    if mutant and mutant not in MUTANTS:
        raise click.BadParameter(
            f"there is no mutant {mutant!r}; there are {', '.join(MUTANTS)}", param_hint="--mutant"
        )
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
    totals = Totals()
    shown = Shown(totals, len(seeds), silent=as_json)

    def wanted() -> Iterator[int]:
        for seed in seeds:
            if seconds is not None and shown.seconds >= seconds:
                return
            if stop_at is not None and totals.failures_count >= stop_at:
                return
            yield seed

    how = _How(mutant, runtimes)
    interrupted = False
    failure: Failure | None = None
    try:
        _carry_out(_outcomes(wanted(), jobs or 1, dask, how), totals, shown, save, how)
    except KeyboardInterrupt:
        interrupted = True
    except Failure as error:
        failure = error
    finally:
        shown.close()
    missing = missing_probes(totals, WANTED_PROBES) if probes and not interrupted and failure is None else []
    if failure is not None and not totals.seeds:
        raise failure
    if as_json:
        if failure is None:
            click.echo(json.dumps(_document(totals, shown.seconds, missing, interrupted=interrupted)))
    else:
        _tell(totals, shown.seconds, missing, save, how)
        if interrupted:
            click.echo(f"interrupted after {totals.seeds} of {len(seeds)} seeds")
    if failure is not None:
        raise failure
    code = exit_of(set(totals.kinds)) or (INTERRUPTED if interrupted else EXIT_LIVENESS if missing else 0)
    sys.exit(code)


class _How(NamedTuple):
    """How seeds are run."""

    mutant: str
    runtimes: bool


def _outcomes(seeds: Iterator[int], jobs: int, dask: str | None, how: _How) -> Generator[Outcome | None]:
    if dask is not None:
        from simulations.sweep_dask import run_on_dask

        return run_on_dask(seeds, url=dask, mutant=how.mutant, runtimes=how.runtimes)
    from simulations.sweep import run_seed, run_seed_of_drivers
    from simulations.sweep_pool import run_here

    run_one = run_seed_of_drivers if how.runtimes else run_seed
    return run_here(seeds, jobs=jobs, mutant=how.mutant, run_one=run_one)


def _carry_out(outcomes: Generator[Outcome | None], totals: Totals, shown: Shown, save: Path | None, how: _How) -> None:
    with closing(outcomes):  # whatever happens, no process stays behind
        for outcome in outcomes:
            if outcome is not None:
                totals.add(outcome)
                if not outcome.ok:
                    shown.failed(outcome, _saved(outcome, save, how) if save is not None else "")
            shown.moved()


def _saved(outcome: Outcome, folder: Path, how: _How) -> str:
    """Store the run of a failing seed; its file."""
    from simulations.replay_files import stored
    from simulations.sweep import drawn
    from simulations.user_test import write

    file = _file_of(outcome, folder)
    write(file, stored(drawn(outcome.seed, how.mutant, runtimes=how.runtimes), outcome))
    return str(file)


def _file_of(outcome: Outcome, folder: Path) -> Path:
    return folder / f"seed-{outcome.seed}.json"


def _document(totals: Totals, took: float, missing: list[str], *, interrupted: bool) -> dict[str, Any]:
    return {
        "seeds": totals.seeds,
        "events": totals.events,
        "virtual_seconds": totals.virtual_ns / 1e9,
        "seconds": took,
        "commits": totals.commits,
        "aborts": totals.aborts,
        "recorded": totals.recorded,
        "digest": totals.digest,
        "probes": dict(sorted(totals.probes.items())),
        "fired": dict(sorted(totals.fired.items())),
        "failed": dict(sorted(totals.failed.items())),
        "failures": [{"seed": each.seed, "kind": each.kind, "text": each.text} for each in totals.failures],
        "probes_missing": missing,
        "interrupted": interrupted,
    }


RAREST: Final = 5
"""Rare states that are named; `--json` has all of them, with the faults, hundreds by now."""


def _counted(totals: Totals) -> str:
    rarest = sorted(totals.probes.items(), key=lambda named: (named[1], named[0]))[:RAREST]
    named = f"; rarest: {', '.join(f'{name} {count}' for name, count in rarest)}" if rarest else ""
    kinds = {kind: count for kind, count in totals.fired.items() if " " not in kind}
    points = len(totals.fired) - len(kinds)
    return (
        f"faults that fired: {sum(kinds.values()):,} of {len(kinds)} kinds; crashes at {points} named points\n"
        f"rare states reached: {len(totals.probes)}{named} (seeds; --json counts them all)"
    )


def _tell(totals: Totals, took: float, missing: list[str], save: Path | None, how: _How) -> None:
    click.echo(
        f"{totals.seeds} seeds in {took:.1f} s: {totals.seeds / took:.1f} seeds/s, {totals.events / took:,.0f} events/s, "
        f"{totals.virtual_ns / 1e9 / took:.0f} virtual s/s\n"
        f"epochs: {totals.commits} committed, {totals.aborts} aborted; {totals.recorded} messages in flight at cuts\n"
        f"{_counted(totals)}\n"
        f"digest over all runs: {totals.digest}"
    )
    if missing:
        click.echo(f"probes never reached: {', '.join(missing)}")
    if not totals.failures:
        return
    click.echo(
        f"failed: {totals.failures_count} ({', '.join(f'{what} {count}' for what, count in sorted(totals.failed.items()))})"
    )
    for outcome in totals.failures:
        click.echo(f"seed {outcome.seed}: {outcome.kind} {outcome.text}")
    if len(totals.failures) < totals.failures_count:
        click.echo(f"and {totals.failures_count - len(totals.failures)} of greater seeds")
    if save is not None:
        click.echo(f"cleancut simulate replay {_file_of(totals.failures[0], save)}")
    else:
        planted = (" --runtimes" if how.runtimes else "") + (f" --mutant {how.mutant}" if how.mutant else "")
        click.echo(f"cleancut simulate run --seed {totals.failures[0].seed}{planted}")
