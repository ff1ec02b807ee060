"""Random streams by name: each component of a world has its own, so that removing one fault reshuffles nothing else.

The generator is `simulations.raft.prng.Prng` (SplitMix64): integers only, the same draws in every version of Python.
Probabilities are integer ratios.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

from simulations.raft.prng import Prng

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Prng", "log_uniform", "sample", "shuffled", "stream"]

_Item = TypeVar("_Item")


def stream(seed: int, name: str) -> Prng:
    """The generator of one component.

    Args:
        seed: Of the run.
        name: Of the component, such as ``network:p1->p2``.
    """
    return Prng(int.from_bytes(blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest(), "big"))


def log_uniform(random: Prng, low: int, high: int) -> int:
    """An integer of `low` to `high` (both included), each doubling equally likely."""
    assert 0 < low <= high, "bounds of a log-uniform draw"
    doublings = (high // low).bit_length()
    bound = min(high, low << random.below(doublings + 1))
    return random.between(max(low, bound // 2), bound)


def shuffled(random: Prng, items: Sequence[_Item]) -> list[_Item]:
    """The items in another order (Fisher and Yates)."""
    found = list(items)
    for index in range(len(found) - 1, 0, -1):
        other = random.below(index + 1)
        found[index], found[other] = found[other], found[index]
    return found


def sample(random: Prng, items: Sequence[_Item], count: int) -> list[_Item]:
    """Some of the items, in their own order."""
    chosen = sorted(shuffled(random, range(len(items)))[:count])
    return [items[index] for index in chosen]
