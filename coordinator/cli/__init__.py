"""The command ``cleancut``. Importing it costs click and little else: see `coordinator.cli.root`."""

from __future__ import annotations

from coordinator.cli.root import main

__all__ = ["main"]
