"""Child processes: started here, watched here, ended here by their ids, and never outliving this process."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PR_SET_PDEATHSIG = 1
TERM_GRACE_SECONDS = 5.0


def _die_with_parent() -> None:
    """In the child, before exec: SIGKILL when the parent ends, however it ends. Linux only; elsewhere atexit must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """One process of the cluster.

    Attributes:
        name: For people.
        tail: Its last lines on standard error.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process
        self.ended_on_purpose = False

    @property
    def pid(self) -> int:
        """Operating system's id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """It has not ended."""
        return self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.returncode

    def kill(self) -> None:
        """SIGKILL."""
        self.ended_on_purpose = True
        if self.running:
            self._process.kill()

    def signal(self, number: signal.Signals) -> None:
        """Any other signal, if it runs."""
        if self.running:
            self._process.send_signal(number)

    async def write_line(self, line: str) -> None:
        """A line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()

    async def read_line(self) -> str:
        """The next line of its standard output; "" at its end."""
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().rstrip("\n")

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL when it does not end in time."""
        self.ended_on_purpose = True
        if not self.running:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), TERM_GRACE_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def wait(self) -> int:
        """Until it has ended."""
        return await self._process.wait()

    def last_lines(self, count: int = 12) -> str:
        """The end of its log, to show when it failed."""
        if not self.log.exists():
            return ""
        with self.log.open(encoding="utf-8", errors="replace") as file:
            return "".join(deque(file, maxlen=count))


async def start(
    name: str,
    arguments: list[str],
    *,
    log: Path,
    die_with_parent: bool = True,
    variables: Mapping[str, str] | None = None,
) -> Child:
    """Start a child; its standard error goes to `log`, its standard input and output are pipes.

    Args:
        name: For people.
        arguments: Program and arguments.
        log: Appended to.
        die_with_parent: Let it never outlive this process.
        variables: Added to this process's environment.
    """
    before: Callable[[], None] | None = _die_with_parent if die_with_parent else None
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(variables or {})}
    # What is installed has its bytecode: a child that compiles all modules at each start would measure the compiler.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            preexec_fn=before,
            start_new_session=True,
            limit=1 << 22,
            env=environment,
        )
    return Child(name, process, log)
