"""How a measurement is made and told.

A machine is shared and noisy, so an absolute time proves nothing: each benchmark measures its reference in the same run,
interleaved with what it is the reference for, several cycles, and reports the median of the cycles' ratios and their
spread. Every sample goes into the JSON document, with the machine and the versions, so that a reader can judge.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import time
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIBRARIES = ("aiohttp", "aiomqtt", "backports.zstd", "blake3", "msgspec", "networkx", "pysyncobj", "cleancut")


class Row(msgspec.Struct, kw_only=True):
    """One line of the table."""

    benchmark: str
    case: str
    metric: str
    """What is divided by what."""
    ratio: float
    """Median over the cycles."""
    low: float
    high: float
    bar: float | None = None
    """The goal; None: none is set for this case."""
    at_least: bool = False
    """True: the ratio is to be at least the bar; False: at most."""
    samples: list[list[float]] = []
    """[measured, reference] of each cycle, in the benchmark's own unit."""
    notes: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None without one."""
        if self.bar is None:
            return None
        return self.ratio >= self.bar if self.at_least else self.ratio <= self.bar


def row_of(
    benchmark: str,
    case: str,
    metric: str,
    samples: Sequence[tuple[float, float]],
    *,
    bar: float | None = None,
    at_least: bool = False,
    notes: str = "",
) -> Row:
    """A row from (measured, reference) pairs, one of each cycle."""
    ratios = [measured / reference for measured, reference in samples]
    return Row(
        benchmark=benchmark,
        case=case,
        metric=metric,
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        bar=bar,
        at_least=at_least,
        samples=[list(pair) for pair in samples],
        notes=notes,
    )


def interleave(measured: Callable[[], float], reference: Callable[[], float], cycles: int) -> list[tuple[float, float]]:
    """Run both in turn, the order swapped each cycle, after one round that does not count."""
    measured()
    reference()
    samples = []
    for cycle in range(cycles):
        if cycle % 2:
            below = reference()
            above = measured()
        else:
            above = measured()
            below = reference()
        samples.append((above, below))
    return samples


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process while `work` runs."""
    before = time.process_time()
    work()
    return time.process_time() - before


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    versions: dict[str, str] = {}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()),
        "libraries": versions,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
