"""How a measurement is made and told.

A machine is shared and noisy, so an absolute time proves nothing: each benchmark measures its reference in the same run,
interleaved with what it is the reference for, several cycles, and reports the median of the cycles' ratios and their
spread. Every sample goes into the JSON document, with the machine and the versions, so that a reader can judge.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

T = TypeVar("T")

LIBRARIES: Final = (
    "aiohttp",
    "aiomqtt",
    "backports.zstd",
    "blake3",
    "cleancut",
    "msgspec",
    "networkx",
    "pysyncobj",
    "simpy",
)
Size = Literal["tiny", "quick", "full"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How large a run is to be."""

    size: Size = "quick"
    """``tiny`` only proves that a benchmark works; its numbers mean nothing."""

    def pick(self, tiny: T, quick: T, full: T) -> T:
        """The value for this size."""
        return {"tiny": tiny, "quick": quick, "full": full}[self.size]


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
    """[measured, reference] of each cycle, in `unit`."""
    unit: str = ""
    """Of the samples."""
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
    unit: str = "",
    notes: str = "",
) -> Row:
    """A row from (measured, reference) pairs, one of each cycle.

    Raises:
        ValueError: There is no sample, or a reference is not positive: nothing was measured.
    """
    if not samples or any(reference <= 0 for _, reference in samples):
        raise ValueError(f"{benchmark}, {case}: nothing was measured: {samples}")
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
        unit=unit,
        notes=notes,
    )


async def interleave(
    measured: Callable[[], Awaitable[T]], reference: Callable[[], Awaitable[T]], cycles: int
) -> list[tuple[T, T]]:
    """Run both in turn, the order swapped each cycle, after one round that does not count."""
    await measured()
    await reference()
    samples: list[tuple[T, T]] = []
    for cycle in range(cycles):
        if cycle % 2:
            below = await reference()
            above = await measured()
        else:
            above = await measured()
            below = await reference()
        samples.append((above, below))
    return samples


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return statistics.median(values)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder on the disk that the working directory is on, gone afterwards.

    Not the system's folder for temporary files: on many machines that is memory, where an fsync is free.
    """
    base = Path("bench-results")
    base.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="scratch-", dir=base)).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()),
        "fsync_ms": _fsync_ms(),
        "libraries": versions,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _fsync_ms() -> float:
    """Median time of a 4 KB write with fsync here: tells runs on fast and slow disks apart."""
    with scratch_folder() as folder, (folder / "probe").open("wb", buffering=0) as file:
        taken = []
        for _ in range(16):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - began)
    return round(1000 * statistics.median(taken), 3)
