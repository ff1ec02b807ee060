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
        """Token -> (line and incarnation, number among its outputs), of each time that it was emitted."""
        self._counts: dict[tuple[int, int], int] = {}
        self._cuts: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """(line, incarnation) -> (epoch, outputs before its cut)."""
        self._taken: dict[tuple[int, int], int] = {}
        """(line, incarnation) -> highest number of an output of it that a sink has."""
        self.entered = 0
        """Newest incarnation that anybody has entered."""
        self.withheld: dict[str, None] = {}
        """Tokens of work that was rolled back before it was committed, until it is done again."""

    def count(self, line: int, incarnation: int) -> int:
        """How many outputs a line has emitted."""
        return self._counts.get((line, incarnation), 0)

    def taken_of(self, line: int, incarnation: int) -> int:
        """Highest number of its outputs that a sink has."""
        return self._taken.get((line, incarnation), 0)

    def forget(self, line: int, incarnation: int, kept: int) -> None:
        """A line goes on from its log: so many outputs were emitted."""
        who = (line, incarnation)
        if self._counts.get(who, 0) == kept:
            return
        self._counts[who] = kept
        for token, emits in list(self._emitted.items()):
            left = [each for each in emits if each[0] != who or each[1] <= kept]
            if left:
                self._emitted[token] = left
            else:
                del self._emitted[token]

    def emitted(self, line: int, incarnation: int, outputs: Sequence[tuple[bytes, str, bytes]]) -> None:
        """A turn has committed and emits these: id, sink, payload."""
        who = (line, incarnation)
        for identity, sink, _ in outputs:
            count = self._counts[who] = self._counts.get(who, 0) + 1
            token = output_token(self.cluster.name, sink, identity)
            self._emitted.setdefault(token, []).append((who, count))

    def cut(self, line: int, incarnation: int, epoch: int) -> None:
        """The local state of an epoch is recorded now."""
        who = (line, incarnation)
        self._cuts.setdefault(who, []).append((epoch, self._counts.get(who, 0)))

    def halted(self, line: int, incarnation: int) -> None:
        """What this life did in its incarnation is rolled back, as far as no committed epoch has it."""
        who = (line, incarnation)
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
        emits = self._emitted.get(output.token)
        if self.cluster.options.turns and emits:
            # Whether a crash takes it back is judged when somebody comes back from the log.
            who, number = emits[-1]
            self._taken[who] = max(self._taken.get(who, 0), number)
        elif not self._is_committed(output.token):
            what = "was never emitted" if not emits else "is in no committed epoch"
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
