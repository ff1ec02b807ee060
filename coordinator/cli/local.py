"""Reading a participant's local folder without any coordinator: ``--local DIR``.

The reader belongs to the participant's package; it is imported where it is named, so that the coordinator's package does not
need it.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.exits import Exit, Failure

if TYPE_CHECKING:
    from collections.abc import Callable

_READER = "participant.runtime.local_reading"


def reader() -> Any:  # noqa: ANN401 - a module of another package
    """The module that reads local folders.

    Raises:
        Failure: It is not installed.
    """
    try:
        return importlib.import_module(_READER)
    except ImportError as error:
        raise Failure(
            Exit.FAILED, f"local folders cannot be read here: {error}", "install the package again, with its extras"
        ) from error


def local_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--local DIR`` for a command."""

    @click.option(
        "--local",
        "local",
        metavar="DIR",
        type=click.Path(path_type=Path, file_okay=False),
        help="Read a participant's folder for local files, or one that holds several, and ask nobody. It may be in use.",
    )
    @functools.wraps(function)
    def with_local(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the command's own
        return function(*args, **kwargs)

    return with_local
