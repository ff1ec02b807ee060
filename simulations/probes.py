"""Rare states that a sweep must have reached, and points of the protocol at which a fault can be made to happen.

A point that is passed is a probe that is hit. A sweep adds up the hits of its seeds: what was never hit was never tested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Probes:
    """Hits of one run."""

    def __init__(self) -> None:
        self.hits: dict[str, int] = {}
        self._armed: dict[str, list[tuple[int, Callable[[str], None]]]] = {}

    def hit(self, name: str) -> None:
        """The state was reached."""
        self.hits[name] = self.hits.get(name, 0) + 1

    def arm(self, point: str, nth: int, action: Callable[[str], None]) -> None:
        """Have `action(who)` called when the point is passed for the n-th time from now on."""
        self._armed.setdefault(point, []).append((self.hits.get(point, 0) + nth, action))

    def disarm(self) -> None:
        """No actions any more."""
        self._armed.clear()

    def point(self, name: str, who: str) -> None:
        """A component passes a point; what is armed there acts now."""
        count = self.hits[name] = self.hits.get(name, 0) + 1
        armed = self._armed.get(name)
        if armed:
            due = [action for at, action in armed if at == count]
            self._armed[name] = [entry for entry in armed if entry[0] > count]
            for action in due:
                action(who)
