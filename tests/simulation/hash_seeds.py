"""The same program in processes whose sets and dictionaries are in other orders."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_under_two_hash_seeds(code: str) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """Run it in two processes, one after the other; each has to end well."""

    def ran(hash_seed: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )

    return ran("1"), ran("4711")
