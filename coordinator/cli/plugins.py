"""Commands that other packages bring: entry points of the group ``cleancut.commands``.

So the coordinator's package never imports the participant's or the simulations'. Listing them must be cheap, because
``cleancut --help`` does it: this reads the installed distributions' ``entry_points.txt`` (2 ms) where
`importlib.metadata` would cost 30 ms of imports first. A command's code is loaded when it is named.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Final

import click

from coordinator.cli.exits import Exit, Failure

GROUP: Final = "cleancut.commands"
SUMMARIES: Final = {
    "bench": "Measure this machine: message path, stall of a cut, epoch duration, bytes written.",
    "demo": "A whole cluster on this machine: agents at work, a leader killed, every cut verified.",
    "simulate": "Run seeded clusters under injected failures; replay and shrink what fails.",
}
"""One line each for the list, so that it needs none of their code."""


def plugin_commands(path: list[str] | None = None) -> dict[str, str]:
    """Command name -> ``module:attribute``, sorted; the first found on the path wins, as with imports."""
    found: dict[str, str] = {}
    for folder in sys.path if path is None else path:
        if not folder:
            continue
        try:
            files = sorted(Path(folder).glob("*.dist-info/entry_points.txt"))
        except OSError:
            continue  # a path entry that is not there or not ours to read; imports pass over it as well
        for file in files:
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue  # a damaged distribution must not take the whole command down
            for name, target in _parsed(text):
                found.setdefault(name, target)
    return dict(sorted(found.items()))


def _parsed(text: str) -> list[tuple[str, str]]:
    entries = []
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif section == GROUP and "=" in line and not line.startswith(("#", ";")):
            name, _, target = line.partition("=")
            entries.append((name.strip(), target.partition("[")[0].strip()))
    return entries


def load_plugin(name: str, target: str) -> click.Command:
    """The command behind an entry point.

    Raises:
        Failure: It cannot be imported, or is no command.
    """
    module, _, attribute = target.partition(":")
    try:
        command = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise Failure(
            Exit.FAILED, f"the command {name!a} cannot be loaded: {error}", "install the package again, with its extras"
        ) from error
    if not isinstance(command, click.Command):
        raise Failure(Exit.FAILED, f"the command {name!a} is not a click command but {type(command).__name__}")
    return command
