"""``cleancut simulate explain``: a run as a space-time diagram.

A run is what its seed, options and faults make of it, so it is run again with a recorder. They come from a replay file, or
from the first line of a trace file; a trace's last line tells whether this build still does the same.
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from simulations.diagram import Scene
    from simulations.options import Run

RUN_LINE: Final = "# run "
"""Begins the first line of a trace file: options and faults in JSON."""
DIGEST_LINE: Final = "# digest "
"""Begins its last one."""


@click.command("explain")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--seed", type=int, help="The run of this seed, instead of a FILE.")
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

    FILE is a replay file (run --save) or a trace (run --trace). The picture has tooltips with ids and numbers.
    """
    from simulations.diagram import draw
    from simulations.recorder import Recorder
    from simulations.run import run
    from simulations.scene import NothingToShow, scene_of
    from simulations.swarm import draw_run

    if (file is None) == (seed is None):
        raise click.UsageError("name a FILE or a --seed, and not both")
    window = _ns(begin), _ns(end)
    expected = ""
    if file is not None:
        what, expected = load(file)
        target = out or file.with_name(file.name + ".svg")
    else:
        assert seed is not None
        what = draw_run(seed)
        target = out or Path(f"seed-{seed}.svg")
    recorder = Recorder()
    outcome = run(what, recorder=recorder)
    if expected and expected != outcome.digest:
        click.echo(f"{file} is of another build: the same run has other events now", err=True)
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


def sentences(scene: Scene) -> list[str]:
    """What is to be said of a picture."""
    flights = sum(1 for arrow in scene.arrows if arrow.role == "flight")
    window = f"{scene.begin / 1e6:.1f} to {scene.end / 1e6:.1f} ms"
    return [f"{scene.title}; {flights} in flight, {len(scene.arrows)} arrows, {window}", *scene.notes]


def load(file: Path) -> tuple[Run, str]:
    """Read a replay file or a trace file.

    Returns:
        The run, and the digest over its events if the file has it.

    Raises:
        click.BadParameter: It is neither.
    """
    from simulations.options import decode_run

    data = file.read_bytes()
    digest = ""
    try:
        if data.startswith(RUN_LINE.encode()):
            first, _, rest = data.partition(b"\n")
            last = rest.rstrip(b"\n").rpartition(b"\n")[2].decode()
            digest = last.removeprefix(DIGEST_LINE) if last.startswith(DIGEST_LINE) else ""
            return decode_run(first.removeprefix(RUN_LINE.encode())), digest
        return decode_run(data), digest
    except ValueError as error:
        raise click.BadParameter(
            f"{file} is neither a replay file (run --save) nor a trace (run --trace): {error}", param_hint="FILE"
        ) from None


def _ns(ms: float | None) -> int | None:
    if ms is None:
        return None
    if not isfinite(ms):
        raise click.UsageError(f"{ms} is not a time")
    return int(ms * 1e6)
