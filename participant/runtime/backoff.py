"""How long to wait before the next attempt: doubling, with jitter, bounded; and less often still where nobody has come for long.

Jitter keeps a hundred participants that lost the same coordinator from coming back in the same millisecond.
"""

from __future__ import annotations

import random
from typing import Final

LONG_SECONDS: Final = 30.0
"""Waited in all, from which on the bound may be a later one: what is gone for so long is not back in the next second."""


class Backoff:
    """Delays of one retry loop, in seconds.

    Args:
        first: The first one, at most.
        most: Bound of its doubling.
        later: The bound once `LONG_SECONDS` were waited in vain; default: the same.
    """

    __slots__ = ("_first", "_last", "_later", "_most", "_waited")

    def __init__(self, *, first: float, most: float, later: float | None = None) -> None:
        assert 0 < first <= most <= (later or most), "a backoff grows"
        self._first = first
        self._most = most
        self._later = later or most
        self._last = 0.0
        self._waited = 0.0

    def next(self) -> float:
        """The next delay: between half and all of a doubling base."""
        most = self._most if self._waited < LONG_SECONDS else self._later
        self._last = min(most, self._last * 2 or self._first)
        delay = self._last * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
        self._waited += delay
        return delay

    def reset(self) -> None:
        """An attempt succeeded."""
        self._last = self._waited = 0.0
