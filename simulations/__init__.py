"""The same machines under seeded failures, and real clusters on this machine.

Public names are imported when first used (`protocol.lazy`). A new one goes into all three lists below (the first under
``if TYPE_CHECKING:``, as in `protocol`) and into ``tests/unit/public_names.txt``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.lazy import lazy_exports

if TYPE_CHECKING:
    from simulations.user import Simulated, simulate
    from simulations.user_workload import Cut

__all__ = [
    "Cut",
    "Simulated",
    "simulate",
]

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would let every misspelt name pass
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "user": ("Simulated", "simulate"),
            "user_workload": ("Cut",),
        },
    )
