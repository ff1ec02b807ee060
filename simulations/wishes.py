"""What an operator of a simulated cluster may want (`simulations.operator`), and the kinds of faults that begin it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from coordinator.events import RestoreRequested

TAKING_ONLY: Final = ("gone", "grow", "move")
"""Kinds that need participants which take agents of others."""
ELSEWHERE_ONLY: Final = (*TAKING_ONLY, "give-up", "go-back", "rename", "swap", "wrong-restore")
"""Kinds of worlds in which agents go elsewhere: drawn by themselves."""


@dataclass(kw_only=True)
class Wish:
    """Something that the operator wants."""

    kind: str
    """``move``, ``spread``, ``swap``, ``rename``, ``give-up``, ``back``, ``wrong``."""
    who: str = ""
    variant: int = 0
    request: RestoreRequested | None = None
    asked_at: int = 0
    tries: int = 0
