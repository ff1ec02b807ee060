"""A copy of the packages, for tests whose processes must all run the same code: the tree may change while they run."""

import shutil
from pathlib import Path

from simulations.build import PACKAGES

ROOT = Path(__file__).parents[2]


def copy_of_packages(folder: Path) -> Path:
    """Put them into a folder, which then goes into PYTHONPATH."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder
