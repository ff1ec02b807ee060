"""How a run fails: what was broken, by name."""

from __future__ import annotations


class Violation(Exception):
    """An invariant does not hold.

    Attributes:
        invariant: Its name in RELIABILITY.md, such as ``I1``.
        text: What was found.
    """

    kind = "safety"

    def __init__(self, invariant: str, text: str) -> None:
        self.invariant = invariant
        self.text = text
        super().__init__(f"{invariant}: {text}")


class LivenessViolation(Violation):
    """Something that must happen did not, in a healed world."""

    kind = "liveness"
