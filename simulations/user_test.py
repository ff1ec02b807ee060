"""Where a user's test is: how a failure names it, where its replay files go, and how `cleancut simulate` runs it again.

A replay file of users' agents holds no code: it says ``file::test`` and which `simulate` of it. The file's own folder
(``.cleancut`` beside the test's root, unless SIM_DIR says otherwise) tells where to look for it.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from simulations.options import Run, UserTest, encode_run

if TYPE_CHECKING:
    from types import FrameType

SEED: Final = "SIM_SEED"
"""Only this seed, with its trace."""
REPLAY: Final = "SIM_REPLAY"
"""The run of this replay file, with its trace."""
SHRINK: Final = "SIM_SHRINK"
"""1, or a number of runs: make the failure smaller."""
EXPLAIN: Final = "SIM_EXPLAIN"
"""Draw the failure, or the one run that was asked for, into this file."""
TRACE: Final = "SIM_TRACE"
"""Write the trace of that one run to this file."""
DIR: Final = "SIM_DIR"
"""Replay files go here."""
WINDOW: Final = "SIM_WINDOW"
"""Of the picture, in JSON: epoch, begin, end. For `cleancut simulate explain`."""
RESULT: Final = "SIM_RESULT"
"""What came of it is written here, in JSON. For `cleancut simulate`."""
OUTPUT: Final = "SIM_OUTPUT"
"""The smaller run goes here. For `cleancut simulate shrink`."""
PROGRESS: Final = "cleancut: "
"""Begins a line on the error stream that says how far shrinking is."""
VARIABLES: Final = (SEED, REPLAY, SHRINK, EXPLAIN, TRACE, DIR, WINDOW, RESULT, OUTPUT)

FOLDER: Final = ".cleancut"
_PYTEST: Final = "PYTEST_CURRENT_TEST"
_NAME_MAX: Final = 80


class Calls:
    """Counts `simulate` in each test."""

    def __init__(self) -> None:
        self._test = ""
        self._count = 0

    def next(self, test: str) -> int:
        """The number of this call in the test, from 1."""
        if test != self._test:
            self._test, self._count = test, 0
        self._count += 1
        return self._count


CALLS: Final = Calls()


def current_test() -> str:
    """``file::test`` as pytest names what runs now; "" outside of pytest."""
    return os.environ.get(_PYTEST, "").rsplit(" (", 1)[0]


def root_of(test: str) -> Path:
    """The folder from which pytest names this test, which runs now; without one the current folder."""
    here = Path.cwd()
    file = test.partition("::")[0]
    if not file:
        return here
    parts = PurePosixPath(file).parts
    # The documented way to look at one's callers.
    frame: FrameType | None = sys._getframe()  # noqa: SLF001
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_absolute() and path.parts[-len(parts) :] == parts:
            return path.parents[len(parts) - 1]
        frame = frame.f_back
    return next((folder for folder in (here, *here.parents) if (folder / file).is_file()), here)


def user_test(test: str, call: int) -> UserTest:
    """What a replay file says of the test that runs now."""
    return UserTest(test=test, command="" if test else _script(), call=call, code=code_of(root_of(test), test))


def code_of(root: Path, test: str) -> str:
    """Digest of a test's file; "" if there is none."""
    file = root / test.partition("::")[0]
    try:
        return blake2b(file.read_bytes(), digest_size=8).hexdigest() if test else ""
    except OSError:
        return ""


def short(path: Path) -> str:
    """As it can be named here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def shown(path: Path) -> str:
    """As it can be typed here, in a shell."""
    return shlex.quote(short(path))


def again_command(test: str, settings: dict[str, str]) -> str:
    """What runs the test again with these variables, in a shell."""
    prefix = "".join(f"{name}={shlex.quote(value)} " for name, value in settings.items())
    if not test:
        return prefix + _script()
    file, _, rest = test.partition("::")
    return f"{prefix}pytest {shlex.quote(f'{short(root_of(test) / file)}::{rest}')}"


def _script() -> str:
    return shlex.join([sys.executable.rsplit("/", 1)[-1], *sys.argv])


# --- replay files -----------------------------------------------------------------------------------------------------


def folder_for(test: str) -> Path:
    """Where replay files of a test go."""
    chosen = os.environ.get(DIR, "")
    return Path(chosen).absolute() if chosen else root_of(test) / FOLDER


def store(what: Run, *, test: str) -> Path:
    """Keep a failing run beside its test.

    Raises:
        OSError: It cannot be written.
    """
    folder = folder_for(test)
    folder.mkdir(parents=True, exist_ok=True)
    ignore = folder / ".gitignore"
    if folder.name == FOLDER and not ignore.exists():
        ignore.write_text("# Made by cleancut: failures found on this machine.\n*\n", encoding="utf-8")
    user = what.user
    call = f"-{user.call}" if user is not None and user.call > 1 else ""
    file = folder / f"{_file_name(test)}{call}-seed-{what.options.seed}.json"
    write(file, what)
    return file


def write(file: Path, what: Run) -> None:
    """Put a replay file there, whole or not at all."""
    part = file.with_name(f".{file.name}.part")
    part.write_bytes(encode_run(what))
    part.replace(file)


def _file_name(test: str) -> str:
    """Of a test: its file and its own name, made of what every filesystem takes; long ones end with a digest."""
    file, _, rest = test.partition("::")
    plain = re.sub(r"[^A-Za-z0-9_.]+", "-", f"{PurePosixPath(file).stem}.{rest}" if test else Path(sys.argv[0]).stem)
    plain = plain.strip("-.") or "run"
    if len(plain) > _NAME_MAX:
        plain = f"{plain[:_NAME_MAX]}-{blake2b(plain.encode(), digest_size=4).hexdigest()}"
    return plain


def find_root(file: Path, test: str) -> Path | None:
    """The folder from which a replay file's test is named; None if it is not to be found.

    Args:
        file: The replay file.
        test: What it says.
    """
    name = test.partition("::")[0]
    place = file.absolute().parent
    here = Path.cwd()
    path = PurePosixPath(name)
    if not name.endswith(".py") or path.is_absolute() or ".." in path.parts or name.startswith("-"):
        return None
    candidates = (*place.parents[:1], place, *place.parents, here, *here.parents)
    return next((folder for folder in candidates if (folder / name).is_file()), None)
