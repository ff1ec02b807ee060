"""``cleancut bench``."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from simulations.bench.measure import Row

DOCUMENT_FORMAT: Final = 1


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--full", is_flag=True, help="Full sizes and more cycles: half an hour instead of five minutes.")
@click.option("--tiny", is_flag=True, hidden=True, help="Only prove that everything works; the numbers mean nothing.")
@click.option(
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Where the document with every sample goes. Default: bench-results/<time>.json.",
)
@click.option("--list", "only_list", is_flag=True, help="Name the benchmarks, measure nothing.")
def bench(*, names: tuple[str, ...], full: bool, tiny: bool, file: Path | None, only_list: bool) -> None:
    """Measure this machine: message path, stall of a cut, epoch duration, bytes written.

    Every number is a ratio to a reference that is measured in the same run, interleaved with it, over several cycles: the
    median, and from the lowest to the highest. Absolute times prove nothing on a machine that others use, too. A bar is a
    goal; one that is missed is shown as such, and the command still ends with 0.

    NAME: only these benchmarks; see --list.
    """
    from simulations.bench.catalog import MODULES, title_of

    unknown = [name for name in names if name not in MODULES]
    if unknown:
        raise click.UsageError(f"no benchmark {', '.join(unknown)}; there are {', '.join(MODULES)}")
    if only_list:
        for name in MODULES:
            click.echo(f"{name:<16} {title_of(name)}")
        return
    size = "tiny" if tiny else "full" if full else "quick"
    document = _measure(names or tuple(MODULES), size)
    if file is None:
        file = Path("bench-results") / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    click.echo(f"\n{_verdict(document)} Every sample: {file}")
    if document["failed"]:
        sys.exit(1)


def _measure(names: tuple[str, ...], size: str) -> dict[str, Any]:
    """Run each benchmark in a process of its own; tell its rows as soon as they are there."""
    import msgspec

    from simulations.bench.measure import Row, machine

    document: dict[str, Any] = {
        "format": DOCUMENT_FORMAT,
        "size": size,
        "machine": machine(),
        "benchmarks": [],
        "failed": [],
    }
    with tempfile.TemporaryDirectory(prefix="cleancut-bench-") as folder:
        for name in names:
            out = Path(folder) / f"{name}.json"
            began = time.monotonic()
            code = subprocess.run(  # noqa: S603 - our own module in our own interpreter
                [sys.executable, "-m", "simulations.bench", name, size, str(out)], check=False
            ).returncode
            took = time.monotonic() - began
            if code or not out.exists():
                click.echo(f"{name}: ended with {code} and no result", err=True)
                document["failed"].append(name)
                continue
            rows = msgspec.json.decode(out.read_bytes(), type=list[Row])
            _tell(name, rows, took)
            document["benchmarks"].append(
                {
                    "name": name,
                    "seconds": round(took, 1),
                    "rows": [{**msgspec.to_builtins(row), "met": row.met} for row in rows],
                }
            )
    return document


def _tell(name: str, rows: list[Row], took: float) -> None:
    from simulations.bench.catalog import title_of

    click.echo(f"\n{name}: {title_of(name).partition(': ')[2] or title_of(name)} ({took:.0f} s)")
    width = max(len(row.case) for row in rows)
    for row in rows:
        bar = "" if row.bar is None else f"{'>=' if row.at_least else '<='} {_number(row.bar)}"
        verdict = {True: "met", False: "MISSED", None: ""}[row.met]
        spread = f"{_number(row.low)} to {_number(row.high)}"
        click.echo(
            f"  {row.case:<{width}}  {_number(row.ratio):>8}  ({spread:^18})  {bar:<9} {verdict:<6}  {row.metric}"
        )
        if row.notes:
            click.echo(f"  {'':<{width}}  {'':>8}  {row.notes}")


def _number(value: float) -> str:
    """Three digits that count."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}" if value >= 0.1 else f"{value:.2g}"


def _verdict(document: dict[str, Any]) -> str:
    met = [row["met"] for benchmark in document["benchmarks"] for row in benchmark["rows"] if row["met"] is not None]
    text = f"{sum(met)} of {len(met)} bars met."
    if document["size"] == "tiny":
        return "tiny sizes: the numbers mean nothing."
    failed = document["failed"]
    return text + (f" Failed: {', '.join(failed)}." if failed else "")
