"""Which failures come when: a function of the seed alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from simulations.prng import sample, stream

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal[
    "kill-participant",
    "kill-participants",
    "kill-leader",
    "kill-follower",
    "kill-both",
    "freeze-participant",
    "freeze-leader",
    "freeze-both",
    "twin",
]
WEIGHTS: Final[dict[Kind, int]] = {
    "kill-participant": 6,
    "kill-participants": 2,
    "kill-leader": 3,
    "kill-follower": 1,
    "kill-both": 3,
    "freeze-participant": 4,
    "freeze-leader": 3,
    "freeze-both": 1,
    "twin": 3,
}
PAUSE_MS: Final = (1_000, 4_000)
"""Between two failures; most recoveries are under way when the next one comes, and some are over."""
FREEZE_MS: Final = (200, 6_000)
"""Shorter and longer than a participant's lease and than an election."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One failure."""

    pause: float
    """Seconds after the one before."""
    kind: Kind
    participants: tuple[int, ...]
    """Positions in the list of participants; whom a failure of participants hits."""
    seconds: float
    """How long it stays frozen."""
    in_charge: bool
    """Wait for a charge at the bank before a participant is killed."""
    rested: bool
    """Wait until the cluster has recovered from what came before."""


def faults(seed: int, participants: int) -> Iterator[Fault]:
    """Without end.

    Args:
        seed: Of the run.
        participants: How many there are.
    """
    draws = stream(seed, "chaos")
    drawn = [kind for kind, weight in WEIGHTS.items() for _ in range(weight)]
    while True:
        kind = drawn[draws.below(len(drawn))]
        count = draws.between(2, participants) if kind == "kill-participants" else 1
        yield Fault(
            pause=draws.between(*PAUSE_MS) / 1000,
            kind=kind,
            participants=tuple(sample(draws, range(participants), count)),
            seconds=draws.between(*FREEZE_MS) / 1000,
            in_charge=draws.below(2) == 0,
            rested=draws.below(5) < 2,
        )
