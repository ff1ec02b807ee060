"""What commands print: tables and lines for people on standard output, one JSON document for programs, words on standard error.

Names, reasons and values come from the network, from stores and from agents. `safe` takes out whatever a terminal would
obey (control characters, escape codes) or show in a misleading order (bidirectional marks), so every text passes it
on the way to a person; JSON is ASCII, with escapes, and needs none.
"""

from __future__ import annotations

import json
import math
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CELL_CHARACTERS_MAX: Final = 2_000
"""One text from outside; a longer one is cut, with its length, so that it cannot push everything else off the screen."""


def safe(text: object) -> str:
    """The text with everything escaped that a terminal might obey.

    What `str.isprintable` refuses: control, format (bidirectional marks and zero-width characters among them), surrogate,
    private use, unassigned, and every separator but the space.
    """
    raw = str(text)
    shown = raw[:CELL_CHARACTERS_MAX]
    if not shown.isprintable():
        shown = "".join(
            each if each.isprintable() else each.encode("unicode_escape", "backslashreplace").decode("ascii")
            for each in shown
        )
    return shown if len(raw) <= CELL_CHARACTERS_MAX else f"{shown}... ({len(raw)} characters)"


def say(text: object = "") -> None:
    """One line on standard output."""
    click.echo(safe(text))


def note(text: object) -> None:
    """One line on standard error: progress and warnings."""
    click.echo(safe(text), err=True)


def print_json(document: object) -> None:
    """The one document of a command with ``--json``. Numbers that JSON has not (an agent's NaN) become texts."""
    try:
        text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=True)
    except ValueError:
        text = json.dumps(_only_finite(document), indent=2, allow_nan=False, ensure_ascii=True)
    click.echo(text)


def _only_finite(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _only_finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_only_finite(part) for part in value]
    return value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Iterable[str] = ()) -> None:
    """A table on standard output.

    On a terminal it is fitted to the width; in a pipe no cell is ever wrapped or cut, so that line tools work.

    Args:
        columns: Headings.
        rows: Cells, of the same length.
        numbers: Headings of columns that are aligned right.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    on_terminal = sys.stdout.isatty()
    right = frozenset(numbers)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column in right or not on_terminal,
            overflow="fold",
        )
    for row in rows:
        assert len(row) == len(columns)
        table.add_row(*(Text("-" if cell is None or cell == "" else safe(cell)) for cell in row))
    console = Console(
        file=sys.stdout, markup=False, highlight=False, emoji=False, width=None if on_terminal else 1_000_000
    )
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, one pair per line; a pair whose value is None is left out."""
    kept = [(name, value) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        click.echo(f"{name:<{width}}  {safe(value)}")


# --- values as people read them -------------------------------------------------------------------------------------


def size(count: object) -> str:
    """Bytes: ``812 B``, ``1.4 MB`` (powers of 1000); "" where there is none."""
    if not isinstance(count, int):
        return ""
    amount = float(count)
    if amount < 1000:
        return f"{count} B"
    for unit in ("kB", "MB", "GB", "TB"):
        amount /= 1000
        # 999.95 would be shown as 1000.0
        if amount < 999.95 or unit == "TB":
            return f"{amount:.1f} {unit}"
    raise AssertionError("the loop ends with TB")


def span(milliseconds: object) -> str:
    """A duration: ``0.3 ms``, ``340 ms``, ``12.4 s``, ``3 min 05 s``, ``2 h 10 min``; "" where there is none."""
    if not isinstance(milliseconds, int | float):
        return ""
    if milliseconds < 1000:
        return f"{milliseconds:.1f} ms" if 0 < milliseconds < 9.95 and milliseconds % 1 else f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def moment(milliseconds: object) -> str:
    """Wall clock, ms since 1970, as UTC: ``2026-11-29 21:16:39Z``; "" where there is none."""
    if not isinstance(milliseconds, int):
        return ""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"


def listed(names: object, most: int = 6) -> str:
    """Names with commas; the rest as a count."""
    if not isinstance(names, list | tuple):
        return ""
    shown = ", ".join(str(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def plural(count: int, word: str) -> str:
    """``1 epoch``, ``2 epochs``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def field(document: Any, *path: str) -> Any:  # noqa: ANN401 - JSON of another build
    """A value deep in a document, None where any part of the way is missing: answers may be of an older build."""
    for key in path:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document


def items(document: Any, *path: str) -> list[Any]:  # noqa: ANN401 - JSON of another build
    """A list deep in a document; empty where there is none."""
    found = field(document, *path)
    return list(found) if isinstance(found, list | tuple) else []
