"""Replay files and traces, as commands read them: what is wrong with one is said by name, and what is old about it.

A trace tells its run in its first line and its digest in the last; the rest of it is for people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
import msgspec

from coordinator.cli.exits import Exit, Failure
from simulations.build import build_digest
from simulations.options import Run, decode_run

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TextIO

    from simulations.run import Outcome

RUN_LINE: Final = "# run "
"""Begins the first line of a trace file: options and faults in JSON."""
DIGEST_LINE: Final = "# digest "
"""Begins its last one."""
BYTES_MAX: Final = 64 << 20
"""Of a replay file, or of a trace's first line: a hundred thousand faults are a tenth of it."""
_TAIL: Final = 256


def load(file: Path) -> Run:
    """Read a replay file or a trace, and say on the error stream if this build is not the one that wrote it.

    Raises:
        Failure: There is no such file.
        click.BadParameter: It is neither.
    """
    try:
        what = read(file)
    except FileNotFoundError:
        raise Failure(Exit.NOT_FOUND, f"{file}: there is no such file", "`run --save FILE` makes one") from None
    except IsADirectoryError:
        raise click.BadParameter(f"{file} is a folder", param_hint="FILE") from None
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror or error}", param_hint="FILE") from None
    except ValueError as error:
        raise click.BadParameter(
            f"{file} is neither a replay file (run --save) nor a trace (run --trace): {error}", param_hint="FILE"
        ) from None
    if what.build and what.build != build_digest():
        click.echo(
            f"{file} was written by another build of Cleancut ({what.build}, this is {build_digest()}): "
            f"the same run may have other events now",
            err=True,
        )
    return what


def read(file: Path) -> Run:
    """The run of a replay file or a trace, with the digest over its events if the file has it.

    Raises:
        OSError: It cannot be read.
        ValueError: It is neither.
    """
    data, digest = _read(file)
    what = decode_run(data)
    return msgspec.structs.replace(what, digest=digest) if digest else what


def _read(file: Path) -> tuple[bytes, str]:
    with file.open("rb") as opened:
        first = opened.readline(BYTES_MAX + 1)
        if not first.startswith(RUN_LINE.encode()):
            data = first + opened.read(BYTES_MAX + 1 - len(first))
            if len(data) > BYTES_MAX:
                raise ValueError(f"it has more than {BYTES_MAX >> 20} MiB")
            return data, ""
        if len(first) > BYTES_MAX:
            raise ValueError(f"its first line has more than {BYTES_MAX >> 20} MiB")
        end = opened.seek(0, 2)
        opened.seek(max(0, end - _TAIL))
        last = opened.read().rstrip(b"\n").rpartition(b"\n")[2].decode("ascii", "replace")
        digest = last.removeprefix(DIGEST_LINE) if last.startswith(DIGEST_LINE) else ""
        return first.removeprefix(RUN_LINE.encode()), digest


def begin_trace(file: TextIO, what: Run) -> None:
    """The first line."""
    file.write(f"{RUN_LINE}{msgspec.json.encode(what).decode()}\n")


def end_trace(file: TextIO, outcome: Outcome) -> None:
    """The last line."""
    file.write(f"{DIGEST_LINE}{outcome.digest}\n")


def compare(name: str, what: Run, outcome: Outcome) -> None:
    """Say on the error stream if the run is not what it was when it was stored."""
    if what.digest and what.digest != outcome.digest:
        click.echo(
            f"{name} is of another build, or its agents have changed: the same run has other events now", err=True
        )


def stored(what: Run, outcome: Outcome) -> Run:
    """A run as it is stored once it is known what comes of it."""
    return msgspec.structs.replace(
        what, invariant=outcome.invariant, note=outcome.text[:300], build=build_digest(), digest=outcome.digest
    )
