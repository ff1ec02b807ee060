"""Planted bugs, for judging the harness: switched on by a run's options, in tests only.

A mutant that lies in the product's own code is a patch of one method, put in place for one run; one that lies in what a
driver does is asked for by the simulated driver (`on`). Each must be caught, by the invariant named, within 2,000 seeds.
"""

from __future__ import annotations

_active = ""


def on(name: str) -> bool:
    """Whether this mutant is switched on."""
    return _active == name


def activate(name: str) -> None:
    """Switch one on; "" for none."""
    global _active  # noqa: PLW0603 - one run at a time in a process; reset after each
    _active = name
