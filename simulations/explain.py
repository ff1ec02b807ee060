"""``cleancut simulate explain``: a run as a space-time diagram.

A run is what its seed, options and faults make of it, so it is run again with a recorder. They come from a replay file, or
from the first line of a trace file; a trace's last line tells whether this build still does the same.
"""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simulations.exits import EPILOG_WORK

if TYPE_CHECKING:
    from simulations.diagram import Scene
    from simulations.options import Run


@click.command("explain", epilog=EPILOG_WORK)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--seed", type=click.IntRange(-(2**63), 2**63 - 1), help="The run of this seed, instead of a FILE.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Default: FILE.svg.")
@click.option(
    "--epoch",
    type=int,
    help="Default: the violation's, else the last committed one (of those with messages in flight, if any).",
)
@click.option("--from", "begin", type=float, metavar="MS", help="Begin of the window. Default: before the cut.")
@click.option("--to", "end", type=float, metavar="MS", help="End of the window. Default: after the cut.")
def explain_command(
    file: Path | None, seed: int | None, out: Path | None, epoch: int | None, begin: float | None, end: float | None
) -> None:
    """Draw a run as a space-time diagram in SVG: messages, markers, the cut, what was in flight, and faults.

    FILE is a replay file (run --save, or of your own agents) or a trace (run --trace). The picture has tooltips with ids and numbers.
    """
    from simulations.diagram import draw
    from simulations.recorder import Recorder
    from simulations.replay_files import compare, load
    from simulations.run import run
    from simulations.scene import NothingToShow, scene_of
    from simulations.swarm import draw_run

    if (file is None) == (seed is None):
        raise click.UsageError("name a FILE or a --seed, and not both")
    window = _ns(begin), _ns(end)
    if file is not None:
        what = load(file)
        target = out or file.with_name(file.name + ".svg")
    else:
        assert seed is not None
        what = draw_run(seed)
        target = out or Path(f"seed-{seed}.svg")
    if file is not None and what.user is not None:
        _explain_test(file, what, target, (epoch, *window))
        return
    recorder = Recorder()
    outcome = run(what, recorder=recorder)
    if file is not None:
        compare(str(file), what, outcome)
    if not outcome.ok:
        click.echo(f"{outcome.kind}: {outcome.text}")
    try:
        scene = scene_of(recorder, outcome, epoch=epoch, begin=window[0], end=window[1])
    except NothingToShow as error:
        raise click.UsageError(str(error)) from None
    target.write_text(draw(scene), encoding="utf-8")
    for line in sentences(scene):
        click.echo(line)
    click.echo(f"{target}")


def _explain_test(file: Path, what: Run, target: Path, window: tuple[int | None, ...]) -> None:
    """The run of users' agents is drawn by their test."""
    from simulations.replay_files import compare
    from simulations.user_command import run_test
    from simulations.user_test import EXPLAIN, WINDOW

    told = run_test(file, what, {EXPLAIN: str(target.absolute()), WINDOW: json.dumps(window)})
    outcome = told.result()
    compare(str(file), what, outcome)
    if not outcome.ok:
        click.echo(f"{outcome.kind}: {outcome.text}")
    for line in told.said:
        if line.startswith("not drawn: "):
            raise click.UsageError(line.removeprefix("not drawn: "))
        click.echo(line)


def sentences(scene: Scene) -> list[str]:
    """What is to be said of a picture."""
    flights = sum(1 for arrow in scene.arrows if arrow.role == "flight")
    window = f"{scene.begin / 1e6:.1f} to {scene.end / 1e6:.1f} ms"
    return [f"{scene.title}; {flights} in flight, {len(scene.arrows)} arrows, {window}", *scene.notes]


def _ns(ms: float | None) -> int | None:
    if ms is None:
        return None
    if not isfinite(ms):
        raise click.UsageError(f"{ms} is not a time")
    return int(ms * 1e6)
