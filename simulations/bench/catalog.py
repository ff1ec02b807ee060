"""The benchmarks by name, in the order in which they run. Each module: its docstring, `NAME`, and ``async def run``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from simulations.bench.measure import Row, Settings

MODULES: Final = {
    "path-overhead": "path_overhead",
    "latency-in-epoch": "latency_in_epoch",
    "turn-path": "turn_path",
    "wire-tax": "wire_tax",
    "capture-stall": "capture_stall",
    "capture-memory": "capture_memory",
    "incremental": "incremental",
    "epoch-scale": "epoch_scale",
    "epoch-bulk": "epoch_bulk",
    "real-epoch": "real_epoch",
    "kill-to-work": "kill_to_work",
    "recover-all": "recover_all",
    "recover-one": "recover_one",
    "durable-append": "durable_append",
    "raft-commit": "raft_commit",
    "simulator": "simulator",
    "cli-start": "cli_start",
}


def module_of(name: str) -> Any:  # noqa: ANN401 - a benchmark's module
    """The module of a benchmark."""
    return importlib.import_module(f"simulations.bench.{MODULES[name]}")


def title_of(name: str) -> str:
    """The first line of its docstring."""
    return str(module_of(name).__doc__).partition("\n")[0]


async def run_benchmark(name: str, settings: Settings) -> list[Row]:
    """Measure in this process."""
    rows: list[Row] = await module_of(name).run(settings)
    return rows
