"""``python -m simulations.raft sweep --seeds 0..300 [--kind NAME]`` and ``run --kind NAME --seed N``.

Exits with 1 if our shell violated anything, with 2 if the stock library lost nothing (then the simulation shows nothing).
"""

from __future__ import annotations

import time  # noqa: TID251 - CPU seconds for people

import click

from simulations.raft.kinds import KINDS
from simulations.raft.world import Outcome, run_schedule


@click.group()
def main() -> None:
    """The library in a deterministic world, as it comes and inside our shell."""


@main.command()
@click.option("--seeds", default="0..100", show_default=True, help="First..last, the last excluded.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Default: all.")
def sweep(seeds: str, kinds: tuple[str, ...]) -> None:
    """Run many seeds of each kind and count what was violated."""
    first, last = (int(part) for part in seeds.split(".."))
    code = 0
    for kind in kinds or tuple(KINDS):
        started = time.process_time()
        outcomes = [run_schedule(seed, KINDS[kind]) for seed in range(first, last)]
        bad = [outcome for outcome in outcomes if outcome.violations]
        guards = {
            rule: sum(outcome.guards.get(rule, 0) for outcome in outcomes)
            for rule in sorted({rule for outcome in outcomes for rule in outcome.guards})
        }
        click.echo(
            f"{kind}: {len(bad)} of {len(outcomes)} schedules violated something; "
            f"{sum(outcome.acknowledged for outcome in outcomes)} commands acknowledged, "
            f"{sum(outcome.crashes for outcome in outcomes)} crashes, {time.process_time() - started:.1f} s of CPU"
        )
        if guards:
            click.echo(f"    rules used: {guards}")
        for outcome in bad[:3]:
            click.echo(f"    seed {outcome.seed}: {outcome.violations[0]}")
            click.echo(f"    again: python -m simulations.raft run --kind {kind} --seed {outcome.seed}")
        if KINDS[kind].guarded and bad:
            code = 1
        elif not KINDS[kind].guarded and not bad and not code:
            code = 2
    raise SystemExit(code)


@main.command()
@click.option("--kind", type=click.Choice(list(KINDS)), required=True)
@click.option("--seed", type=int, required=True)
def run(kind: str, seed: int) -> None:
    """Run one schedule and show its outcome."""
    outcome = run_schedule(seed, KINDS[kind])
    _show(outcome)
    raise SystemExit(1 if outcome.violations else 0)


def _show(outcome: Outcome) -> None:
    click.echo(f"seed {outcome.seed}: {outcome.steps} steps, {outcome.crashes} crashes, term {outcome.term}")
    click.echo(f"submitted {outcome.submitted}, acknowledged {outcome.acknowledged}, rules used {outcome.guards}")
    for name, sequence in outcome.sequences.items():
        click.echo(f"{name}: {len(sequence)} applied, ends with {sequence[-5:]}")
    for violation in outcome.violations:
        click.echo(f"VIOLATED {violation}")


if __name__ == "__main__":
    main()
