"""Runs a user's test again for ``cleancut simulate replay | shrink | explain``, in a process of its own, and reads what came of it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from coordinator.cli.exits import Exit, Failure
from simulations.options import Run
from simulations.run import Outcome
from simulations.user_test import FOLDER, PROGRESS, REPLAY, RESULT, TRACE, VARIABLES, code_of, find_root

if TYPE_CHECKING:
    from typing import TextIO

    from simulations.options import UserTest

_TAIL: Final = 30


class Told(msgspec.Struct):
    """What `simulate` says of its one run (`simulations.user_report`)."""

    outcome: Any
    said: list[str]
    message: str
    smaller: Run | None = None

    def result(self) -> Outcome:
        """The outcome."""
        return msgspec.convert(self.outcome, Outcome)


def run_test(file: Path, what: Run, settings: dict[str, str]) -> Told:
    """Carry out the run of a replay file of users' agents.

    Args:
        file: The replay file.
        what: Its content.
        settings: Further variables for `simulate`.

    Raises:
        Failure: The test is not there, or does not come to the run.
    """
    user = what.user
    assert user is not None, "asked for users' runs only"
    if not user.test:
        raise Failure(
            Exit.USAGE,
            f"{file} is of a script, not of a test",
            f"run it yourself: {REPLAY}={shlex.quote(str(file))} {user.command}",
        )
    root = find_root(file, user.test)
    if root is None:
        raise Failure(
            Exit.NOT_FOUND,
            f"{file} is of the test {user.test}, which is not there",
            f"run this in the folder from which pytest names it so, or keep the file in its {FOLDER} folder",
        )
    if user.code and user.code != code_of(root, user.test):
        click.echo(
            f"{user.test.partition('::')[0]} has changed since: the same run may have other events now", err=True
        )
    with TemporaryDirectory(prefix="cleancut-") as folder:
        result = Path(folder) / "result.json"
        environment = {
            name: text for name, text in os.environ.items() if name not in {*VARIABLES, "PYTEST_CURRENT_TEST"}
        }
        # A shrinking test takes minutes; pytest-timeout reads this where neither the test nor the configuration says more.
        environment |= {"PYTEST_TIMEOUT": "0", TRACE: os.devnull, **settings}
        environment |= {REPLAY: str(file.absolute()), RESULT: str(result)}
        command = [sys.executable, "-m", "pytest", "-q", "-s", "--", user.test]
        with (Path(folder) / "output.txt").open("w+", encoding="utf-8", errors="replace") as output:
            code = _run(command, root, environment, output)
            if not result.exists():
                output.seek(0)
                raise _nothing(user, root, code, output.read())
        return msgspec.json.decode(result.read_bytes(), type=Told)


def _run(command: list[str], root: Path, environment: dict[str, str], output: TextIO) -> int:
    """Run pytest; what shrinking says is passed on at once."""
    with subprocess.Popen(  # noqa: S603 - no shell; a test of the user's own
        command,
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as started:
        assert started.stderr is not None, "it was asked for"
        for line in started.stderr:
            if line.startswith(PROGRESS):
                click.echo(line.removeprefix(PROGRESS).rstrip(), err=True)
            else:
                output.write(line)
        return started.wait()


def _nothing(user: UserTest, root: Path, code: int, output: str) -> Failure:
    tail = "\n".join(output.strip().splitlines()[-_TAIL:])
    if code == 0:
        what = f"{user.test} passes without its simulate number {user.call}"
    else:
        what = f"{user.test} does not come to its simulate number {user.call}"
    return Failure(Exit.NOT_FOUND, f"{what}; pytest in {root} said:\n{tail}", "has the test changed?")
