"""One benchmark in a process of its own: ``python -m simulations.bench NAME SIZE FILE``; rows go to FILE as JSON.

A process each, so that none inherits another's heap, its collector's thresholds or its peak of memory.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import msgspec

from simulations.bench.catalog import run_benchmark
from simulations.bench.measure import Settings


def main() -> int:
    """Entry point."""
    name, size, file = sys.argv[1:]
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s %(message)s")
    rows = asyncio.run(run_benchmark(name, msgspec.convert({"size": size}, Settings)))
    Path(file).write_bytes(msgspec.json.encode(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
