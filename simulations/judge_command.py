"""``cleancut simulate mutants`` and ``shrink``: what is for those who work on the product or on the simulator."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from coordinator.cli.exits import Exit, Failure
from simulations.exits import EPILOG_MUTANTS, EPILOG_WORK

if TYPE_CHECKING:
    from simulations.options import Run

TABLE_BEGIN: Final = "<!-- mutants: begin -->"
TABLE_END: Final = "<!-- mutants: end -->"


@click.command("mutants", epilog=EPILOG_MUTANTS)
@click.option("--seeds", type=click.IntRange(1), default=2000, show_default=True, help="Seeds for each, at most.")
@click.option("--only", multiple=True, help="Only this one; may be repeated.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes.")
@click.option(
    "--write", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Put the table into this file."
)
def mutants_command(seeds: int, only: tuple[str, ...], jobs: int, write: Path | None) -> None:
    """Plant bugs, one after the other, and tell after how many seeds each is caught, and by what."""
    from multiprocessing import get_context

    from simulations.mutants import MUTANTS

    rows = ["| planted bug | what | seeds until caught | by |", "| --- | --- | --- | --- |"]
    missed = []
    names = only or tuple(MUTANTS)
    for name in names:
        if name not in MUTANTS:
            raise click.BadParameter(
                f"there is no mutant {name!r}; there are {', '.join(MUTANTS)}", param_hint="--only"
            )
    with get_context("spawn").Pool(jobs) as pool:
        for name, number, by in pool.imap(_caught, [(name, seeds) for name in names], chunksize=1):
            if not number:
                missed.append(name)
            rows.append(f"| `{name}` | {MUTANTS[name].what} | {number or 'never'} | {by} |")
            click.echo(rows[-1])
    if write is not None:
        text = write.read_text(encoding="utf-8")
        before, _, rest = text.partition(TABLE_BEGIN)
        _, _, after = rest.partition(TABLE_END)
        write.write_text(f"{before}{TABLE_BEGIN}\n\n" + "\n".join(rows) + f"\n\n{TABLE_END}{after}", encoding="utf-8")
    if missed:
        raise click.ClickException(f"never caught: {', '.join(missed)}")


def _caught(which: tuple[str, int]) -> tuple[str, int, str]:
    """(mutant, seeds until it is caught, by what); 0 seeds: it is not."""
    from simulations.sweep import run_seed

    name, seeds = which
    for seed in range(seeds):
        outcome = run_seed(seed, name)
        if not outcome.ok:
            return name, seed + 1, outcome.invariant
    return name, 0, ""


@click.command("shrink", epilog=EPILOG_WORK)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Default: FILE with .small before its end."
)
@click.option("--trials", type=click.IntRange(2, 1_000_000), default=400, show_default=True, help="Runs at most.")
def shrink_command(file: Path, output: Path | None, trials: int) -> None:
    """Make the failing run of a FILE as small as it gets; only what breaks the same invariant is kept.

    Kinds of faults go first, then single ones, then participants, time and knobs of the world; of your own agents' runs also
    messages from outside. The smallest so far is in the output file at any time: Ctrl-C keeps it.
    """
    from simulations.command import describe_fault
    from simulations.options import encode_run
    from simulations.replay_files import load
    from simulations.run import run
    from simulations.shrink import Shrinker
    from simulations.user_test import write

    what = load(file)
    target = output or file.with_suffix(".small.json")
    if what.user is not None:
        _shrink_test(file, what, target, trials)
        return
    outcome = run(what)
    if outcome.ok:
        raise _nothing(file)
    click.echo(f"{outcome.kind}: {outcome.text}")
    small = Shrinker(
        what,
        outcome,
        tell=click.echo,
        trials_max=trials,
        smaller=lambda found: write(target, found),
    ).shrink()
    target.write_bytes(encode_run(small))
    click.echo(
        f"{len(what.faults)} faults became {len(small.faults)}, {what.options.nodes} participants {small.options.nodes}, "
        f"{what.options.faults_ns / 1e9:.1f} s {small.options.faults_ns / 1e9:.1f} s"
    )
    for fault in small.faults:
        click.echo(f"  {describe_fault(fault)}")
    click.echo(f"cleancut simulate replay {shlex.quote(str(target))}")


def _shrink_test(file: Path, what: Run, target: Path, trials: int) -> None:
    """The run of users' agents is made smaller by their test."""
    from simulations.user_command import run_test
    from simulations.user_test import OUTPUT, SHRINK

    told = run_test(file, what, {SHRINK: str(trials), OUTPUT: str(target.absolute())})
    outcome = told.result()
    if outcome.ok:
        raise _nothing(file)
    click.echo(f"{outcome.kind}: {outcome.text}")
    for line in told.said:
        click.echo(line)
    if told.smaller is None:
        raise Failure(Exit.REFUSED, f"{file}: the same run is not the same twice", "see the test's own message")
    click.echo(f"cleancut simulate replay {shlex.quote(str(target))}")


def _nothing(file: Path) -> Failure:
    return Failure(Exit.REFUSED, f"{file} does not fail: there is nothing to shrink")
