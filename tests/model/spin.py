"""One run of spin: generate the search of one configuration, compile it, let it run, read what it says."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).parent / "cut.pml"
MEMORY_MB = 12_000
"""Past it the search stops and is not complete."""
OPTIMIZED_FROM = 700_000
"""States from which it pays to let gcc optimize (6 s instead of 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a search found."""

    errors: int
    complete: bool
    states: int
    transitions: int
    violated: str
    """The assertion, as written: ``I9||(...)``; "" where none failed."""
    cpu_s: float
    """Of the search and of making it."""

    @property
    def invariant(self) -> str:
        """The name in front of the failed assertion."""
        return self.violated.split("||")[0]


class ToolMissing(Exception):
    """spin or gcc is not installed."""


def search(switches: str, folder: Path, *, timeout_s: float, expected: int = 0) -> Outcome:
    """Explore `cut.pml` with these switches.

    Args:
        switches: Names or ``NAME=value``, separated by spaces.
        folder: Empty; what spin and gcc write goes here.
        timeout_s: For the search, wall clock.
        expected: States to expect; many are worth an optimizing compiler.

    Raises:
        ToolMissing: With what to install.
        subprocess.SubprocessError: spin or gcc failed, or the search took too long.
    """
    missing = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    if missing:
        raise ToolMissing(
            f"not installed: {' '.join(missing)}. As root: apt-get install spin gcc libc6-dev (`make test` does it)"
        )
    before = _cpu_s()
    defines = [f"-D{switch}" for switch in switches.split()]
    shutil.copy(MODEL, folder / MODEL.name)
    _run(["spin", "-a", *defines, MODEL.name], folder, 60)
    level = "-O2" if expected >= OPTIMIZED_FROM else "-O0"
    # HC4: a state is kept as a 64-bit hash. At 10 million states the odds that any two share one are below 1 in 100,000.
    options = ["-DSAFETY", "-DHC4", "-DVECTORSZ=2048", f"-DMEMLIM={MEMORY_MB}"]
    _run(["gcc", level, "-w", *options, "-o", "pan", "pan.c"], folder, 300)
    said = _run(["./pan", "-m200000"], folder, timeout_s)
    violated = re.search(r"assertion violated \((.*)\) \(at depth", said)
    other = re.search(r"^pan:\d+: (.*)", said, re.MULTILINE)
    return Outcome(
        errors=_number(r"errors: (\d+)", said),
        complete="Search not completed" not in said
        and "max search depth too small" not in said
        and "out of memory" not in said,
        states=_number(r"(\d+) states, stored", said),
        transitions=_number(r"(\d+) transitions", said),
        violated=violated[1] if violated else other[1] if other else "",
        cpu_s=_cpu_s() - before,
    )


def _run(command: list[str], folder: Path, timeout_s: float) -> str:
    # A search that finds an error exits 0 all the same: what it says counts.
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise subprocess.SubprocessError(f"{' '.join(command)} exits {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise subprocess.SubprocessError(f"no {pattern!r} in what the search says:\n{text}")
    return int(found[1])


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
