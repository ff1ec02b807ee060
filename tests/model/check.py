"""Checks the model from the command line and prints a table: ``python tests/model/check.py quick|full|mutants|probes``.

Exits 0 where everything is as `configurations.py` says, 1 on any surprise, 2 on wrong usage or where a tool is missing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

# Runs as a script, so that the folder needs no package: the root comes first.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.model.configurations import CONFIGURATIONS, MUTANTS, PROBES
from tests.model.spin import Outcome, ToolMissing, search

TIMEOUT_S = 3600


def run(switches: str, expected: int = 0) -> Outcome:
    """One search in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="cleancut-model-") as folder:
        return search(switches, Path(folder), timeout_s=TIMEOUT_S, expected=expected)


def configurations(*, full: bool) -> bool:
    """Explore; True where all is as expected."""
    good = True
    row("configuration", "switches", "states", "transitions", "CPU s", "result")
    row("---", "---", "---", "---", "---", "---")
    for each in CONFIGURATIONS:
        if not (each.quick or full):
            continue
        got = run(each.switches, each.states)
        result = "no error, complete"
        if got.errors or not got.complete:
            result = f"WRONG: errors {got.errors}, complete {got.complete}, {got.violated}"
        elif got.states != each.states:
            result = f"WRONG: {each.states:,} states expected"
        good = good and not result.startswith("WRONG")
        row(each.name, quoted(each.switches), f"{got.states:,}", f"{got.transitions:,}", f"{got.cpu_s:.0f}", result)
    return good


def mutants() -> bool:
    """Every planted bug must be caught, by the invariant named."""
    good = True
    row("mutant", "broken rule", "switches", "states until caught", "by")
    row("---", "---", "---", "---", "---")
    for each in MUTANTS:
        got = run(f"{each.name} {each.switches}")
        caught = got.errors > 0 and got.invariant == each.invariant
        by = each.invariant if caught else f"WRONG: {got.violated or 'not caught'}"
        good = good and caught
        row(each.name, each.about, quoted(each.switches), f"{got.states:,}", by)
    return good


def probes() -> bool:
    """Every rare state must be reached."""
    good = True
    row("rare state", "switches", "states until reached")
    row("---", "---", "---")
    for each in PROBES:
        got = run(f"REACH={each.name} {each.switches}")
        reached = got.errors > 0 and "||" not in got.violated
        good = good and reached
        row(
            each.name,
            quoted(each.switches),
            f"{got.states:,}" if reached else f"WRONG: {got.violated or 'not reached'}",
        )
    return good


def row(*cells: str) -> None:
    """One line of a table, at once: a search may take minutes."""
    print("| " + " | ".join(cells) + " |", flush=True)


def quoted(switches: str) -> str:
    """As code, where there are any."""
    return f"`{switches}`" if switches else ""


def main(arguments: list[str]) -> int:
    """The command."""
    commands = {
        "quick": lambda: configurations(full=False),
        "full": lambda: configurations(full=True),
        "mutants": mutants,
        "probes": probes,
    }
    if len(arguments) != 1 or arguments[0] not in commands:
        print(f"usage: check.py {'|'.join(commands)}", file=sys.stderr)
        return 2
    try:
        return 0 if commands[arguments[0]]() else 1
    except ToolMissing as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
