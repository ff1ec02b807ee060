"""How long to wait before the next attempt: doubling, with jitter, bounded.

Jitter keeps a hundred participants that lost the same coordinator from coming back in the same millisecond.
"""

from __future__ import annotations

import random


class Backoff:
    """Delays of one retry loop, in seconds."""

    __slots__ = ("_first", "_last", "_most")

    def __init__(self, *, first: float, most: float) -> None:
        assert 0 < first <= most, "a backoff grows"
        self._first = first
        self._most = most
        self._last = 0.0

    def next(self) -> float:
        """The next delay: between half and all of a doubling base."""
        self._last = min(self._most, self._last * 2 or self._first)
        return self._last * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret

    def reset(self) -> None:
        """An attempt succeeded."""
        self._last = 0.0
