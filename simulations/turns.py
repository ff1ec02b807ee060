"""Turns under virtual time: the product's `Pump`, whose slices end by the participant's own clock.

Nothing else of it is replaced: which agent is next, what a burst is, when a retry or timer is due, what is handed in together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from participant.runtime.pump import Pump, _Runner
from protocol.ids import Instant
from protocol.limits import TURN_SLICE_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulations.participant_node import ParticipantLife
    from simulations.world import Timer


class SimulatedPump(Pump):
    """All turns of one life."""

    def run(self) -> bool:
        """Run turns for a slice of virtual time; whether there is more to run at once."""
        if not self._running:
            return False
        ready = self._ready
        now = self._clock.now()
        end = now + TURN_SLICE_NS
        try:
            while now < end:
                if not ready:
                    self._hand_in()
                    if not ready:
                        break
                runner = ready.popleft()
                runner.queued = False
                self._burst(runner, now)
                now = self._clock.now()
        finally:
            self._hand_in()
        return bool(ready)

    def _turn(self, runner: _Runner, now: int) -> bool:
        self._clock.now()  # what a turn costs
        return super()._turn(runner, now)


class TurnClock:
    """The clock that turns look at: each look costs the participant a little time."""

    __slots__ = ("_life",)

    def __init__(self, life: ParticipantLife) -> None:
        self._life = life

    def now(self) -> Instant:
        """The participant's time."""
        life = self._life
        life.now += life.cluster.options.turn_ns
        return Instant(life.now)

    def call_at(self, at: int, callback: Callable[[], None]) -> Timer:
        """A timer."""
        return self._life.call_at(at, callback)
