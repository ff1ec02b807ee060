"""``cleancut simulate sweep``."""

from __future__ import annotations

import json
import re
import sys
import time  # noqa: TID251 - tells people how long it took
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from simulations.sweep import Totals


class SeedRange(click.ParamType[range]):
    """``A..B``, both included."""

    name = "A..B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> range:  # noqa: ANN401 - click's shape
        """A range of seeds."""
        if isinstance(value, range):
            return value
        match = re.fullmatch(r"(\d+)\.\.(\d+)", str(value))
        if match is None or int(match[2]) < int(match[1]):
            self.fail(f"{value!r} is not A..B with A <= B", param, ctx)
        return range(int(match[1]), int(match[2]) + 1)


@click.command("sweep")
@click.option("--seeds", type=SeedRange(), required=True, help="First and last seed, such as 0..999.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes.")
@click.option("--seconds", type=click.FloatRange(min=1), help="Stop after this long.")
@click.option("--mutant", default="", help="Plant this bug in every run.")
@click.option("--probes/--no-probes", default=False, help="Fail if a rare state was not reached.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, nothing else.")
def sweep_command(
    seeds: range,
    jobs: int,
    seconds: float | None,
    mutant: str,
    probes: bool,  # noqa: FBT001 - click's shape
    as_json: bool,  # noqa: FBT001 - click's shape
) -> None:
    """Run many seeds and add up what came of them."""
    from simulations.catalog import WANTED_PROBES
    from simulations.sweep import Totals, missing_probes, run_seeds

    totals = Totals()
    began = time.monotonic()
    shown = sys.stderr.isatty() and not as_json
    with click.progressbar(length=len(seeds), label="seeds", file=sys.stderr, hidden=not shown) as bar:
        for outcome in run_seeds(seeds, jobs=jobs, mutant=mutant):
            totals.add(outcome)
            bar.update(1)
            if not outcome.ok and not as_json:
                click.echo(f"seed {outcome.seed}: {outcome.kind} {outcome.text}", err=True)
            if seconds is not None and time.monotonic() - began >= seconds:
                break
    took = time.monotonic() - began
    missing = missing_probes(totals, WANTED_PROBES) if probes else []
    if as_json:
        click.echo(json.dumps(_document(totals, took, missing)))
    else:
        _tell(totals, took, missing)
    if totals.failures or missing:
        kinds = {outcome.kind for outcome in totals.failures}
        sys.exit(70 if "crash" in kinds else 4 if "safety" in kinds else 1)


def _document(totals: Totals, took: float, missing: list[str]) -> dict[str, Any]:
    return {
        "seeds": totals.seeds,
        "events": totals.events,
        "virtual_seconds": totals.virtual_ns / 1e9,
        "seconds": took,
        "commits": totals.commits,
        "aborts": totals.aborts,
        "recorded": totals.recorded,
        "probes": dict(sorted(totals.probes.items())),
        "fired": dict(sorted(totals.fired.items())),
        "failed": dict(totals.failed),
        "failures": [{"seed": each.seed, "kind": each.kind, "text": each.text} for each in totals.failures],
        "probes_missing": missing,
    }


def _tell(totals: Totals, took: float, missing: list[str]) -> None:
    click.echo(
        f"{totals.seeds} seeds in {took:.1f} s: {totals.seeds / took:.1f} seeds/s, {totals.events / took:,.0f} events/s, "
        f"{totals.virtual_ns / 1e9 / took:.0f} virtual s/s\n"
        f"epochs: {totals.commits} committed, {totals.aborts} aborted; {totals.recorded} messages in flight at cuts\n"
        f"faults that fired: {', '.join(f'{kind} {count}' for kind, count in sorted(totals.fired.items())) or 'none'}\n"
        f"probes reached (seeds): {', '.join(f'{name} {count}' for name, count in sorted(totals.probes.items())) or 'none'}"
    )
    if missing:
        click.echo(f"probes never reached: {', '.join(missing)}")
    for outcome in totals.failures:
        click.echo(f"seed {outcome.seed}: {outcome.kind} {outcome.text}")
    if totals.failures:
        click.echo(f"cleancut simulate run --seed {totals.failures[0].seed}")
