"""``cleancut simulate mutants`` and ``shrink``: what is for those who work on the product or on the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

TABLE_BEGIN: Final = "<!-- mutants: begin -->"
TABLE_END: Final = "<!-- mutants: end -->"


@click.command("mutants")
@click.option("--seeds", type=click.IntRange(1), default=2000, show_default=True, help="Seeds for each, at most.")
@click.option("--only", multiple=True, help="Only this one; may be repeated.")
@click.option(
    "--write", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Put the table into this file."
)
def mutants_command(seeds: int, only: tuple[str, ...], write: Path | None) -> None:
    """Plant bugs, one after the other, and tell after how many seeds each is caught, and by what."""
    from simulations.mutants import MUTANTS
    from simulations.sweep import run_seed

    rows = ["| planted bug | what | seeds until caught | by |", "| --- | --- | --- | --- |"]
    missed = []
    for name in only or tuple(MUTANTS):
        if name not in MUTANTS:
            raise click.BadParameter(
                f"there is no mutant {name!r}; there are {', '.join(MUTANTS)}", param_hint="--only"
            )
        caught = next((outcome for seed in range(seeds) if not (outcome := run_seed(seed, name)).ok), None)
        if caught is None:
            missed.append(name)
        found = "never" if caught is None else str(caught.seed + 1)
        rows.append(f"| `{name}` | {MUTANTS[name].what} | {found} | {caught.invariant if caught is not None else ''} |")
        click.echo(rows[-1])
    if write is not None:
        text = write.read_text(encoding="utf-8")
        before, _, rest = text.partition(TABLE_BEGIN)
        _, _, after = rest.partition(TABLE_END)
        write.write_text(f"{before}{TABLE_BEGIN}\n\n" + "\n".join(rows) + f"\n\n{TABLE_END}{after}", encoding="utf-8")
    if missed:
        raise click.ClickException(f"never caught: {', '.join(missed)}")


@click.command("shrink")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Default: FILE with .small before its end."
)
@click.option("--trials", type=click.IntRange(1), default=400, show_default=True, help="Runs at most.")
def shrink_command(file: Path, output: Path | None, trials: int) -> None:
    """Make the failing run of a FILE (from ``run --save``) as small as it gets."""
    from simulations.options import decode_run, encode_run
    from simulations.run import run
    from simulations.shrink import Shrinker

    try:
        what = decode_run(file.read_bytes())
    except ValueError as error:
        raise click.BadParameter(f"{file}: {error}") from None
    outcome = run(what)
    if outcome.ok:
        raise click.ClickException(f"{file} does not fail: there is nothing to shrink")
    click.echo(f"{outcome.kind}: {outcome.text}")
    small = Shrinker(what, outcome, tell=click.echo, trials_max=trials).shrink()
    target = output or file.with_suffix(".small.json")
    target.write_bytes(encode_run(small))
    click.echo(
        f"{len(what.faults)} faults became {len(small.faults)}, {what.options.nodes} participants {small.options.nodes}"
    )
    click.echo(f"cleancut simulate replay {target}")
