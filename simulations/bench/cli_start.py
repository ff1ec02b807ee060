"""Start of the command: CPU time of ``--version``, ``--help`` and ``status``, against Python's own start.

Measured: user and system CPU time of the child process. ``status`` asks a coordinator that is not there and is refused at
once, which is all of its start and none of the network's time.

References, interleaved: ``python -c pass`` for the first two; ``python -c "import asyncio"`` for ``status``, which needs it.

Bound: Python's own start is 11 ms; click is 12 ms more, and reading one file of entry points 2: 2.3 times.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from simulations.bench.measure import Row, Settings, interleave, row_of

NAME = "cli-start"


async def run(settings: Settings) -> list[Row]:
    """All commands."""
    cycles = settings.pick(1, 7, 25)
    command = str(Path(sys.executable).with_name("cleancut"))
    cases = (
        ("--version", "python -c pass", "pass", 4.0),
        ("--help", "python -c pass", "pass", 4.0),
        ("status", "python -c 'import asyncio'", "import asyncio", 1.5),
    )
    rows = []
    for argument, shown, code, bar in cases:

        async def ours(argument: str = argument) -> float:
            return await asyncio.to_thread(_cpu_seconds, [command, argument])

        async def reference(code: str = code) -> float:
            return await asyncio.to_thread(_cpu_seconds, [sys.executable, "-c", code])

        samples = await interleave(ours, reference, cycles)
        rows.append(row_of(NAME, f"cleancut {argument}", f"CPU / {shown}", samples, bar=bar, unit="CPU-s"))
    return rows


def _cpu_seconds(command: list[str]) -> float:
    """Of one child, from its own accounts: nobody else's children are in it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CLEANCUT_")}
    environment["CLEANCUT_COORDINATORS"] = "127.0.0.1:9"
    child = subprocess.Popen(  # noqa: S603 - our own command
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    _, _, usage = os.wait4(child.pid, 0)
    child.returncode = 0
    return usage.ru_utime + usage.ru_stime
