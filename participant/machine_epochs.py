"""The open epochs of one participant: where its channels stood at the cut, what closed since, what was reported.

The snapshot machine says which items are the channel state; here are the numbers, the digests and the deadlines, and what
the coordinator has not answered yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from participant.machine_events import ChannelsRecorded, RecordedChannel
from protocol.channel import continued_digest
from protocol.limits import CONCURRENT_EPOCHS_MAX, EPOCH_DEADLINE_NS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blake3 import blake3

    from protocol.channel import ReceivingEnd
    from protocol.ids import Epoch, Instant, ParticipantId
    from protocol.messages import EpochFailed, LocalReport
    from protocol.snapshot import ChannelClosed

_NEVER: Final = 1 << 62
_FAILURES_KEPT: Final = 4 * CONCURRENT_EPOCHS_MAX
"""Failures that are said again after a reconnect; the coordinator's own deadline covers older ones."""


class _Part:
    __slots__ = ("closed", "deadline", "deadline_ns", "encoded", "positions", "report")

    def __init__(self, now: int, deadline: int, positions: dict[ParticipantId, tuple[int, int, blake3]]) -> None:
        self.deadline = deadline
        self.deadline_ns = max(0, deadline - now) or EPOCH_DEADLINE_NS
        self.positions = positions
        self.closed: dict[ParticipantId, RecordedChannel] = {}
        self.encoded = False
        self.report: LocalReport | None = None


class LocalEpochs:
    """Local parts by epoch."""

    def __init__(self) -> None:
        self._parts: dict[Epoch, _Part] = {}
        self._failures: dict[Epoch, EpochFailed] = {}
        self.next_deadline = _NEVER
        """Earliest instant at which a part is overdue."""

    def open(self) -> tuple[Epoch, ...]:
        """Epochs with a part, ascending."""
        return tuple(sorted(self._parts))

    def has(self, epoch: Epoch) -> bool:
        """Whether there is a part of this epoch."""
        return epoch in self._parts

    def begin(
        self, epoch: Epoch, *, now: Instant, deadline: int, positions: Mapping[ParticipantId, ReceivingEnd]
    ) -> None:
        """Note where the incoming channels stand at this cut."""
        noted = {source: (end.cut_position.number, end.base, end.hasher()) for source, end in positions.items()}
        self._parts[epoch] = _Part(now, deadline, noted)
        self._failures.pop(epoch, None)
        self._find_next()

    def closed(self, effect: ChannelClosed) -> None:
        """A channel's state is known."""
        part = self._parts[effect.epoch]
        source = effect.channel.source
        number, base, hasher = part.positions.pop(source)
        assert number == effect.received, f"{effect.channel}: cut at {number}, recorded from {effect.received}"
        part.closed[source] = RecordedChannel(
            source=source,
            received=number,
            closed_at=effect.closed_at,
            digest=continued_digest(hasher, effect.items, skipped=max(0, base - number)),
            items=effect.items,
            base=base,
        )

    def complete(self, epoch: Epoch) -> ChannelsRecorded:
        """All channels are closed; the recorded items are the effect's from here on."""
        part = self._parts[epoch]
        assert not part.positions, "complete with an open channel"
        closed, part.closed = part.closed, {}
        return ChannelsRecorded(epoch=epoch, channels=tuple(closed[source] for source in sorted(closed)))

    def ordered(self, epoch: Epoch, deadline: int) -> None:
        """The coordinator's own deadline, which may come after the marker did."""
        part = self._parts.get(epoch)
        if part is not None:
            part.deadline = deadline
            self._find_next()

    def heard(self, epoch: Epoch, now: Instant) -> None:
        """News of the epoch: wait as long again."""
        part = self._parts.get(epoch)
        if part is not None:
            part.deadline = max(part.deadline, now + part.deadline_ns)
            self._find_next()

    def encoded(self, epoch: Epoch) -> None:
        """The agents' state is encoded."""
        self._parts[epoch].encoded = True

    def phase(self, epoch: Epoch) -> str:
        """The phase that the part is in: ``channels``, ``encode``, ``upload`` or ``report``.

        State is encoded while markers are awaited; as long as one is, it is what the part waits for.
        """
        part = self._parts[epoch]
        if part.positions:
            return "channels"
        if part.report is not None:
            return "report"
        return "upload" if part.encoded else "encode"

    def reported(self, epoch: Epoch, report: LocalReport, now: Instant) -> None:
        """The part is durable; what is left is to hear how the epoch ended."""
        self._parts[epoch].report = report
        self.heard(epoch, now)

    def report_of(self, epoch: Epoch) -> LocalReport | None:
        """The report, once there is one."""
        part = self._parts.get(epoch)
        return None if part is None else part.report

    def failed(self, epoch: Epoch, failure: EpochFailed) -> None:
        """Keep it until the coordinator has ended the epoch."""
        self._failures[epoch] = failure
        while len(self._failures) > _FAILURES_KEPT:
            del self._failures[next(iter(self._failures))]

    def answered(self, epoch: Epoch) -> None:
        """The coordinator knows that the epoch has failed."""
        self._failures.pop(epoch, None)

    def unanswered(self) -> list[LocalReport | EpochFailed]:
        """What must be said again on a new connection."""
        said: list[LocalReport | EpochFailed] = list(self._failures.values())
        said += [part.report for part in self._parts.values() if part.report is not None]
        return said

    def forget(self, epoch: Epoch) -> bool:
        """The epoch is over here; whether there was a part of it."""
        if self._parts.pop(epoch, None) is None:
            return False
        self._find_next()
        return True

    def overdue(self, now: Instant) -> list[Epoch]:
        """Epochs whose deadline has passed, ascending."""
        if now < self.next_deadline:
            return []
        return [epoch for epoch in sorted(self._parts) if self._parts[epoch].deadline <= now]

    def _find_next(self) -> None:
        self.next_deadline = min((part.deadline for part in self._parts.values()), default=_NEVER)
