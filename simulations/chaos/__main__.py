"""``python -m simulations.chaos``."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import click
import msgspec

from simulations.chaos import SECONDS
from simulations.chaos.run import run


@click.command()
@click.option("--seconds", type=click.FloatRange(1, 86_400), default=SECONDS, show_default=True, help="Of failures.")
@click.option("--seed", type=int, default=None, help="Of the failures. Without it: another one each time; it is said.")
@click.option("--participants", type=click.IntRange(2, 16), default=4, show_default=True, help="Participant processes.")
@click.option(
    "--transport",
    type=click.Choice(["websocket", "mqtt"]),
    default="websocket",
    show_default=True,
    help="What carries the messages; mqtt starts a mosquitto of its own.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Where everything is put, and stays. Without it: a temporary folder, which stays if something was wrong.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document at the end, nothing else on standard output.")
def main(
    *, seconds: float, seed: int | None, participants: int, transport: str, folder: Path | None, as_json: bool
) -> None:
    """Kill, freeze and double the processes of a whole cluster, by seed, then see whether anything was lost or done twice.

    Exit code 4: something was.
    """
    made = folder is None
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="cleancut-chaos-"))
    else:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(folder.iterdir()):
            raise click.UsageError(f"--dir {folder} is not empty")
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    say = lambda line: click.echo(line, err=as_json)  # noqa: E731 - progress is not the document
    outcome = asyncio.run(
        run(folder.resolve(), seed=seed, seconds=seconds, participants=participants, transport=transport, say=say)
    )
    if as_json:
        click.echo(msgspec.json.encode(outcome).decode())
    else:
        click.echo(
            f"{sum(outcome.faults.values())} failures, {outcome.rollbacks} rollbacks, {outcome.epochs_committed} epochs committed, "
            f"{outcome.charges} charges: {outcome.charges_duplicated} twice, {outcome.charges_lost} lost"
        )
        for problem in outcome.problems:
            click.echo(f"WRONG: {problem}")
        click.echo("nothing lost, nothing twice" if outcome.consistent else f"seed {seed}; everything is in {folder}")
    if made and outcome.consistent:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if outcome.consistent else 4)


if __name__ == "__main__":
    main()
