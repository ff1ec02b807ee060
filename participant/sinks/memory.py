"""A sink in memory, for tests: outlives the participants that write to it, and can be told to fail."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from participant.outbox import DELIVERED, DUPLICATE, Outcome, Receipt
from participant.sinks.base import SinkError, sink_name
from protocol.outputs import FenceState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from participant.sinks.base import SinkOutput
    from protocol.outputs import FencingToken


class MemorySink:
    """Keeps what it took in a list.

    Args:
        name: As of every sink.
        refuse: Says why an output is refused for good, or "".
    """

    def __init__(self, name: str, *, refuse: Callable[[Any], str] | None = None) -> None:
        self.name = sink_name(name)
        self.outputs: list[SinkOutput] = []
        """Taken, in order."""
        self.fence = FenceState()
        self.failures = 0
        """So many deliveries fail from now on, before anything is taken."""
        self.failures_after = 0
        """So many fail after everything was taken: the answer is lost."""
        self.deliveries = 0
        self._refuse = refuse
        self._digests: dict[str, bytes] = {}

    @property
    def values(self) -> list[Any]:
        """Payloads taken, in order, as plain data."""
        return [output.value for output in self.outputs]

    async def open(self, writer: FencingToken) -> None:
        """See `Sink`."""
        self.fence.admit(writer, f"sink {self.name}")

    async def deliver(self, writer: FencingToken, outputs: Sequence[SinkOutput]) -> list[Receipt]:
        """See `Sink`."""
        self.deliveries += 1
        if self.failures:
            self.failures -= 1
            raise SinkError(self.name, "told to fail")
        self.fence.admit(writer, f"sink {self.name}")
        receipts = [self._take(output) for output in outputs]
        if self.failures_after:
            self.failures_after -= 1
            raise SinkError(self.name, "told to lose the answer")
        return receipts

    def _take(self, output: SinkOutput) -> Receipt:
        before = self._digests.get(output.token)
        if before is not None:
            same = hmac.compare_digest(before, output.digest)
            return DUPLICATE if same else Receipt(Outcome.DIVERGED)
        reason = self._refuse(output.value) if self._refuse is not None else ""
        if reason:
            return Receipt(Outcome.REFUSED, reason)
        self._digests[output.token] = output.digest
        self.outputs.append(output)
        return DELIVERED

    async def raise_fence(self, incarnation: int) -> None:
        """See `Sink`."""
        self.fence.raise_fence(incarnation)

    async def outputs_after(self, epoch: int) -> list[tuple[str, str, int]]:
        """Token, agent and newest epoch before it, of every output that is no part of this epoch."""
        return [(each.token, each.agent, each.after) for each in self.outputs if each.after >= epoch]

    async def close(self) -> None:
        """See `Sink`."""
