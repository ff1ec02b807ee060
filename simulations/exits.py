"""How ``cleancut simulate`` ends: a code for each kind of finding, and sentences for everything else."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from coordinator.cli.exits import Exit, Failure
from protocol.errors import SnapshotError

EXIT_LIVENESS: Final = 1
EXIT_SAFETY: Final = 4
EXIT_CRASH: Final = 70
"""The simulator, or a machine in it, raised (EX_SOFTWARE)."""
EXITS: Final = {"": 0, "safety": EXIT_SAFETY, "liveness": EXIT_LIVENESS, "crash": EXIT_CRASH}
"""Kind of outcome -> exit code."""
EPILOG: Final = (
    "Exit codes: 0 all is well, 4 a safety invariant is broken, 1 a liveness one, 70 the simulator or a machine in it raised; "
    "2 wrong usage or file, 3 no such file or test, 5 no Dask scheduler, 6 refused, 130 interrupted."
)
EPILOG_WORK: Final = (
    "Exit codes: 0 done, also if the run fails; 70 the simulator itself raised; 2 wrong usage or file, 3 no such file or test, "
    "6 there is nothing to do."
)
EPILOG_MUTANTS: Final = "Exit codes: 0 each is caught, 1 one is not; 70 the simulator itself raised; 2 wrong usage."


def exit_of(kinds: set[str]) -> int:
    """The worst of these kinds of outcomes."""
    return next((EXITS[kind] for kind in ("crash", "safety", "liveness") if kind in kinds), 0)


class Simulate(click.Group):
    """The group: what goes wrong in the simulator itself must not look like a finding."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as its base
        """Run a command."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, Failure, SnapshotError, BrokenPipeError):
            raise
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            raise Failure(
                Exit.USAGE, f"{place}{error.strerror or error}", "check the path, its permissions and the free space"
            ) from error
        except Exception as error:  # noqa: BLE001 - the edge: a bug must not look like a liveness violation
            import traceback

            click.echo(traceback.format_exc(), err=True)
            click.echo(f"a bug in the simulator: {type(error).__name__}: {error}", err=True)
            sys.exit(EXIT_CRASH)
