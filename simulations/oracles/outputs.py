"""I22 and I30 at a sink: no zombie writes, and nothing leaves that could still be undone.

Whoever emits tells the ghost log so in the moment in which its turn commits; each cut tells how many of a life's outputs are
before it. An output may reach a sink only if some committed epoch has it before its cut. What a sink takes for one token
stays the same for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.outputs import output_token
from simulations.violations import Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from participant.sinks.base import SinkOutput
    from protocol.outputs import FencingToken
    from simulations.cluster import SimulatedCluster


class Outputs:
    """All of one run."""

    def __init__(self) -> None:
        self.cluster: SimulatedCluster
        self._emitted: dict[str, list[tuple[tuple[int, int], int]]] = {}
        """Token -> (session and incarnation, number among its outputs), of each time that it was emitted."""
        self._counts: dict[tuple[int, int], int] = {}
        self._cuts: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """(session, incarnation) -> (epoch, outputs before its cut)."""
        self.entered = 0
        """Newest incarnation that anybody has entered."""
        self.withheld: dict[str, None] = {}
        """Tokens of work that was rolled back before it was committed, until it is done again."""

    def emitted(self, session: int, incarnation: int, outputs: Sequence[tuple[bytes, str, bytes]]) -> None:
        """A turn has committed and emits these: id, sink, payload."""
        who = (session, incarnation)
        for identity, sink, _ in outputs:
            count = self._counts[who] = self._counts.get(who, 0) + 1
            token = output_token(self.cluster.name, sink, identity)
            self._emitted.setdefault(token, []).append((who, count))

    def cut(self, session: int, incarnation: int, epoch: int) -> None:
        """The local state of an epoch is recorded now."""
        who = (session, incarnation)
        self._cuts.setdefault(who, []).append((epoch, self._counts.get(who, 0)))

    def halted(self, session: int, incarnation: int) -> None:
        """What this life did in its incarnation is rolled back, as far as no committed epoch has it."""
        who = (session, incarnation)
        for token, emits in self._emitted.items():
            if emits[-1][0] == who and not self._is_committed(token):
                self.cluster.probes.hit("output.withheld")
                return

    def writes(self, writer: FencingToken) -> None:
        """A sink is about to take what this one writes.

        Raises:
            Violation: I22.
        """
        if writer.incarnation < self.entered:
            raise Violation(
                "I22", f"a sink takes what {writer} writes, and incarnation {self.entered} has been entered"
            )

    def taken(self, output: SinkOutput, before: bytes | None) -> None:
        """A sink takes this output.

        Raises:
            Violation: I29, I30.
        """
        if not self._is_committed(output.token):
            what = "was never emitted" if output.token not in self._emitted else "is in no committed epoch"
            raise Violation("I30", f"a sink is given output {output.token} of {output.agent}, which {what}")
        if before is not None and before != output.payload:
            raise Violation("I29", f"output {output.token} of {output.agent} comes again and is another")

    def _is_committed(self, token: str) -> bool:
        states = self.cluster.oracles.history.states
        return any(
            states.get(epoch) == "committed"
            for who, number in self._emitted.get(token, ())
            for epoch, count in self._cuts.get(who, ())
            if number <= count
        )
