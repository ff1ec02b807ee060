"""Our own small generator: the same draws in every version of Python, for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

_Item = TypeVar("_Item")
_MASK: Final = (1 << 64) - 1


class Prng:
    """SplitMix64 (Steele, Lea, Flood 2014)."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    # A simulated world draws several times for each event: the generator is written out in each method, because a call
    # costs as much as the draw.

    def next(self) -> int:
        """64 random bits."""
        self._state = z = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, limit: int) -> int:
        """0 <= result < limit; the bias of the remainder does not matter here."""
        self._state = z = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return (z ^ (z >> 31)) % limit

    def between(self, low: int, high: int) -> int:
        """Low <= result <= high."""
        return low + self.below(high - low + 1)

    def chance(self, numerator: int, denominator: int) -> bool:
        """True in `numerator` of `denominator` cases."""
        self._state = z = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return (z ^ (z >> 31)) % denominator < numerator

    def tie(self) -> int:
        """A draw that only has to order events of one instant: one step of the stream, 16 bits, mixed once."""
        self._state = z = (self._state + 0x9E3779B97F4A7C15) & _MASK
        return ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 >> 48) & 0xFFFF

    def pick(self, items: Sequence[_Item]) -> _Item:
        """One of a non-empty sequence."""
        return items[self.below(len(items))]

    def random(self) -> float:
        """0 <= result < 1: what the library asks the module `random` for."""
        return (self.next() >> 11) / (1 << 53)
