"""Turns under virtual time: what they cost. The product's `Pump` runs them; nothing of it is replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.ids import Instant

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulations.participant_node import ParticipantLife
    from simulations.world import Timer


class TurnClock:
    """A participant's own time; each look at the stopwatch, one a turn, costs a little of it."""

    __slots__ = ("_life", "_turn_ns")

    def __init__(self, life: ParticipantLife) -> None:
        self._life = life
        self._turn_ns = life.cluster.options.turn_ns

    def now(self) -> Instant:
        """The participant's time."""
        return Instant(self._life.now)

    def call_at(self, at: int, callback: Callable[[], None]) -> Timer:
        """A timer."""
        return self._life.call_at(at, callback)

    def stopwatch(self) -> int:
        """As `now`, after what a turn costs."""
        life = self._life
        life.now += self._turn_ns
        return life.now
