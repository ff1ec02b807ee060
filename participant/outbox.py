"""The outbox of one participant: outputs from the turn that emitted them to the sink that took them. Pure.

Theory of operation:
    * Outputs are numbered in the order in which their turns committed. An output is *held* until it cannot be rolled back
      any more, then *released*, *delivered* to its sink, *acknowledged* by it.
    * When that is depends on the cluster's durability. `epoch`: at a cut the newest number is noted; when that epoch is
      committed, everything up to it is released (RELIABILITY.md I30). `turn`: everything up to a turn is released once the
      turn is in the write-ahead log.
    * A local snapshot holds what was not acknowledged at its cut. After a restore all of it is released at once: the epoch
      that it comes from is committed. So an output may be delivered twice, and its sink drops the second by its token.
    * What is acknowledged is forgotten here. No epoch needs it: one that was cut before holds it itself, one that is cut
      afterwards has the turn that emitted it in its past, and a restore from it emits nothing again.
    * Each sink has its own queue, in order, with one batch on its way at a time. A sink that fails holds up nobody else; it is
      tried again with doubling pauses, for ever. An output that its sink refuses for good is put aside and said so.
    * A sink that answers that we are fenced stops everything. Where a newer session of this participant has begun, this process
      is a zombie, and ends. Where a newer incarnation has, it may as well be about to enter that: fences are raised before
      restore orders leave. So it waits for its order, with nothing leaving meanwhile, and ends if none comes.

What it does not know: sinks, agents' state, logs, clocks.

Sources: DESIGN.md section 6; RELIABILITY.md I22, I29, I30.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, assert_never

from protocol.limits import KIB, MIB
from protocol.outputs import Output
from protocol.plain import Plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from protocol.ids import AgentId, Epoch, Instant

Durability = Literal["epoch", "turn"]

BATCH_OUTPUTS_MAX: Final = 256
"""Outputs of one delivery: one fsync or one request's worth."""
BATCH_BYTES_MAX: Final = 1 * MIB
RETRY_NS: Final = 100_000_000
RETRY_NS_MAX: Final = 30_000_000_000
FENCED_NS: Final = 60_000_000_000
"""A process that an incarnation has overtaken waits this long for its restore order: two of them may be lost meanwhile."""
OUTBOX_BYTES_MAX: Final = 64 * MIB
"""Payloads that wait here past which agents cannot emit."""
OUTBOX_WANTS_EPOCH_BYTES: Final = 16 * MIB
"""Held payloads past which an epoch is asked for, which releases them."""
ENTRY_BYTES: Final = 1 * KIB
"""What an output costs beside its payload, rounded up: many small ones are bounded, too."""


class Outcome(Enum):
    """What became of one output at its sink."""

    DELIVERED = "delivered"
    DUPLICATE = "duplicate"
    """The sink had it already, with the same payload."""
    DIVERGED = "diverged"
    """The sink has another payload under this token: what was done again came out differently. The first one stands."""
    REFUSED = "refused"
    """The sink will never take it."""


class Receipt(NamedTuple):
    """A sink's word for one output."""

    outcome: Outcome
    reason: str = ""


DELIVERED: Final = Receipt(Outcome.DELIVERED)
DUPLICATE: Final = Receipt(Outcome.DUPLICATE)


# --- events -----------------------------------------------------------------------------------------------------------


class OutputsEmitted(Plain, frozen=True, kw_only=True):
    """A turn of this agent committed just now and emitted these."""

    agent: AgentId
    outputs: Sequence[tuple[bytes, str, bytes]]
    """Id, sink, payload of each."""


class OutputsRestored(Plain, frozen=True, kw_only=True):
    """An agent came back from an epoch with these; nothing before counts any more (`OutboxReset` came first)."""

    agent: AgentId
    outputs: Sequence[Output]
    through: int = 0
    """Epoch that it came back from: what is emitted from here on comes after it."""


class OutboxReset(Plain, frozen=True, kw_only=True):
    """Everything is dropped: a rollback begins."""


class CutTaken(Plain, frozen=True, kw_only=True):
    """The local state of this epoch was frozen just now."""

    epoch: Epoch


class EpochCommitted(Plain, frozen=True, kw_only=True):
    """The epoch cannot be lost any more."""

    epoch: Epoch


class EpochDropped(Plain, frozen=True, kw_only=True):
    """The epoch ended otherwise."""

    epoch: Epoch


class TurnsLogged(Plain, frozen=True, kw_only=True):
    """The turns that emitted outputs up to this number are in the write-ahead log, durable."""

    through: int


class BatchDelivered(Plain, frozen=True, kw_only=True):
    """The sink answered: one receipt per output, in order."""

    sink: str
    batch: int
    receipts: Sequence[Receipt]


class BatchFailed(Plain, frozen=True, kw_only=True):
    """The sink did not take the batch, or it is not known whether it did."""

    sink: str
    batch: int
    reason: str


class SinkFenced(Plain, frozen=True, kw_only=True):
    """The sink refuses us."""

    sink: str
    batch: int
    """On its way; 0: it refused to be opened for the writer of the moment."""
    reason: str
    final: bool = True
    """No restore order can make this process its writer again."""


class OutboxTimerFired(Plain, frozen=True, kw_only=True):
    """The instant that `SetOutboxTimer` named has come, or an earlier one."""


OutboxEvent: TypeAlias = (
    OutputsEmitted
    | OutputsRestored
    | OutboxReset
    | CutTaken
    | EpochCommitted
    | EpochDropped
    | TurnsLogged
    | BatchDelivered
    | BatchFailed
    | SinkFenced
    | OutboxTimerFired
)


# --- effects ----------------------------------------------------------------------------------------------------------


class HoldOutputs(Plain, frozen=True, kw_only=True):
    """Keep these with the agent, for the next cut."""

    agent: AgentId
    first: int
    """Number of the first; the others follow."""
    outputs: tuple[Output, ...]


class LetGoOutputs(Plain, frozen=True, kw_only=True):
    """These have reached their sink, or never will: the agent need not keep them."""

    outputs: tuple[tuple[AgentId, int], ...]


class DeliverBatch(Plain, frozen=True, kw_only=True):
    """Give these to the sink, and say what came of it under this batch's number."""

    sink: str
    batch: int
    outputs: tuple[Output, ...]


class TellDiverged(Plain, frozen=True, kw_only=True):
    """A sink has another payload under an output's token."""

    output: Output


class PutOutputAside(Plain, frozen=True, kw_only=True):
    """A sink will never take this output."""

    output: Output
    reason: str


class TellSinkFailing(Plain, frozen=True, kw_only=True):
    """A sink does not take outputs; said once until it does again."""

    sink: str
    reason: str


class WantEpoch(Plain, frozen=True, kw_only=True):
    """Much is held; an epoch would release it."""

    reason: str


class RefuseEmits(Plain, frozen=True, kw_only=True):
    """From now on agents cannot emit; with an empty reason they can again."""

    reason: str


class SetOutboxTimer(Plain, frozen=True, kw_only=True):
    """Give `OutboxTimerFired` at this instant; takes the place of the one before."""

    at: int


class EndFenced(Plain, frozen=True, kw_only=True):
    """A sink says that we are a zombie: stop the participant."""

    reason: str


OutboxEffect: TypeAlias = (
    HoldOutputs
    | LetGoOutputs
    | DeliverBatch
    | TellDiverged
    | PutOutputAside
    | TellSinkFailing
    | WantEpoch
    | RefuseEmits
    | SetOutboxTimer
    | EndFenced
)


class _Entry(NamedTuple):
    number: int
    output: Output

    @property
    def size(self) -> int:
        return len(self.output.payload) + ENTRY_BYTES


class _Queue:
    """One sink's outputs."""

    __slots__ = ("batch", "entries", "failing", "on_the_way", "pause_ns", "retry_at")

    def __init__(self) -> None:
        self.entries: deque[_Entry] = deque()
        """In order; those on their way are the first."""
        self.on_the_way = 0
        self.batch = 0
        """Number of the batch on its way."""
        self.retry_at = 0
        """0: not waiting."""
        self.pause_ns = RETRY_NS
        self.failing = False


class Outbox:
    """Rules of the module.

    Args:
        sinks: Their names.
        durability: What releases an output.
        bytes_max: Bound of what waits here.
        wants_epoch_bytes: Held bytes past which an epoch is asked for.
    """

    def __init__(
        self,
        sinks: Iterable[str],
        *,
        durability: Durability = "epoch",
        bytes_max: int = OUTBOX_BYTES_MAX,
        wants_epoch_bytes: int = OUTBOX_WANTS_EPOCH_BYTES,
    ) -> None:
        self._queues: Mapping[str, _Queue] = {sink: _Queue() for sink in sinks}
        self._durability = durability
        self._bytes_max = bytes_max
        self._wants_epoch_bytes = wants_epoch_bytes
        self.newest = 0
        """Number of the newest output."""
        self.released = 0
        """Everything up to this number is released."""
        self.waiting_bytes = 0
        """Payloads and what goes with them, not acknowledged."""
        self.fenced = False
        """For good."""
        self._refused = ""
        """Why nothing leaves until the next restore."""
        self._refused_until = 0
        self._cuts: dict[Epoch, int] = {}
        self._newest_cut = 0
        self._batches = 0
        self._timer_at = 0
        self._epoch_wanted = False
        self._emits_refused = False
        self._counts = dict.fromkeys(("emitted", "delivered", "duplicate", "diverged", "refused", "failures"), 0)

    @property
    def waiting(self) -> int:
        """Outputs that are not acknowledged."""
        return sum(len(queue.entries) for queue in self._queues.values())

    @property
    def on_the_way(self) -> int:
        """Outputs that a sink was given and has not answered for."""
        return sum(queue.on_the_way for queue in self._queues.values())

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and what is held now."""
        return {**self._counts, "waiting": self.waiting, "waiting_bytes": self.waiting_bytes}

    def step(self, event: OutboxEvent, now: Instant) -> Sequence[OutboxEffect]:
        """Apply one event.

        Args:
            event: What happened.
            now: Driver time, nanoseconds.

        Returns:
            Effects, to be carried out from left to right, at once.
        """
        out: list[OutboxEffect] = []
        if self.fenced:
            return out
        match event:
            case OutputsEmitted():
                self._emitted(event, out)
            case OutputsRestored():
                self._newest_cut = max(self._newest_cut, event.through)
                self._take(event.agent, event.outputs, out)
                self.released = self.newest
                self._deliver(now, out)
            case OutboxReset():
                self._reset(out)
            case CutTaken():
                self._cuts[event.epoch] = self.newest
                self._newest_cut = max(self._newest_cut, event.epoch)
            case EpochCommitted():
                # An epoch that this participant was no member of, or whose cut a rollback undid, releases nothing.
                self._release(self._cuts.pop(event.epoch, 0), now, out)
                self._epoch_wanted = False
            case EpochDropped():
                self._cuts.pop(event.epoch, None)
                self._epoch_wanted = False
            case TurnsLogged():
                if self._durability == "turn":
                    self._release(event.through, now, out)
            case BatchDelivered():
                self._delivered(event, now, out)
            case BatchFailed():
                self._failed(event, now, out)
            case SinkFenced():
                self._sink_fenced(event, now, out)
            case OutboxTimerFired():
                self._timer_at = 0
                if self._refused and now >= self._refused_until:
                    self._end(self._refused, out)
                else:
                    self._deliver(now, out)
            case _:
                assert_never(event)
        return out

    def _sink_fenced(self, event: SinkFenced, now: Instant, out: list[OutboxEffect]) -> None:
        queue = self._queues[event.sink]
        if event.batch not in {0, queue.batch}:
            return
        if event.final:
            self._end(event.reason, out)
            return
        queue.on_the_way = 0
        if not self._refused:
            self._refused = event.reason
            self._refused_until = now + FENCED_NS
            self._wake_at(self._refused_until, out)

    def _end(self, reason: str, out: list[OutboxEffect]) -> None:
        self.fenced = True
        out.append(EndFenced(reason=reason))

    def _emitted(self, event: OutputsEmitted, out: list[OutboxEffect]) -> None:
        self._counts["emitted"] += len(event.outputs)
        after = self._newest_cut
        agent = event.agent
        self._take(agent, [Output(i, agent, sink, payload, after) for i, sink, payload in event.outputs], out)
        if self.waiting_bytes > self._bytes_max and not self._emits_refused:
            self._emits_refused = True
            out.append(
                RefuseEmits(reason=f"{self.waiting_bytes} bytes of outputs wait; the limit is {self._bytes_max}")
            )
        if self._durability == "epoch" and not self._epoch_wanted and self.waiting_bytes > self._wants_epoch_bytes:
            self._epoch_wanted = True
            out.append(WantEpoch(reason=f"{self.waiting} outputs wait to be released"))

    def _take(self, agent: AgentId, outputs: Sequence[Output], out: list[OutboxEffect]) -> None:
        if not outputs:
            return
        first = self.newest + 1
        for output in outputs:
            self.newest += 1
            entry = _Entry(self.newest, output)
            self._queues[output.sink].entries.append(entry)
            self.waiting_bytes += entry.size
        out.append(HoldOutputs(agent=agent, first=first, outputs=tuple(outputs)))

    def _reset(self, out: list[OutboxEffect]) -> None:
        for queue in self._queues.values():
            queue.entries.clear()
            queue.on_the_way = 0
            # What comes back of the batch on its way is of the past: its outputs come again, and the sink knows them.
            queue.batch = 0
            queue.retry_at = 0
        self._cuts.clear()
        self._refused = ""
        self.released = self.newest
        self.waiting_bytes = 0
        self._epoch_wanted = False
        self._let_emit(out)

    def _release(self, through: int, now: Instant, out: list[OutboxEffect]) -> None:
        if through > self.released:
            self.released = through
            self._deliver(now, out)

    def _deliver(self, now: Instant, out: list[OutboxEffect]) -> None:
        """Send on what is released to each sink that is free; see when to try the others again."""
        if self._refused:
            self._wake_at(self._refused_until, out)
            return
        wake = 0
        for name, queue in self._queues.items():
            if queue.on_the_way or not queue.entries or queue.entries[0].number > self.released:
                continue
            if queue.retry_at > now:
                wake = min(wake, queue.retry_at) if wake else queue.retry_at
                continue
            queue.retry_at = 0
            batch: list[Output] = []
            size = 0
            for entry in islice(queue.entries, BATCH_OUTPUTS_MAX):
                size += len(entry.output.payload)
                if entry.number > self.released or (batch and size > BATCH_BYTES_MAX):
                    break
                batch.append(entry.output)
            self._batches += 1
            queue.batch = self._batches
            queue.on_the_way = len(batch)
            out.append(DeliverBatch(sink=name, batch=queue.batch, outputs=tuple(batch)))
        if wake:
            self._wake_at(wake, out)

    def _wake_at(self, at: Instant | int, out: list[OutboxEffect]) -> None:
        if not self._timer_at or at < self._timer_at:
            self._timer_at = at
            out.append(SetOutboxTimer(at=at))

    def _delivered(self, event: BatchDelivered, now: Instant, out: list[OutboxEffect]) -> None:
        queue = self._queues[event.sink]
        if event.batch != queue.batch or not queue.on_the_way:
            return
        assert len(event.receipts) == queue.on_the_way, "one receipt per output"
        gone: list[tuple[AgentId, int]] = []
        for receipt in event.receipts:
            entry = queue.entries.popleft()
            self.waiting_bytes -= entry.size
            gone.append((entry.output.agent, entry.number))
            self._counts[receipt.outcome.value] += 1
            if receipt.outcome is Outcome.DIVERGED:
                out.append(TellDiverged(output=entry.output))
            elif receipt.outcome is Outcome.REFUSED:
                out.append(PutOutputAside(output=entry.output, reason=receipt.reason))
        queue.on_the_way = 0
        queue.pause_ns = RETRY_NS
        queue.failing = False
        out.append(LetGoOutputs(outputs=tuple(gone)))
        if self.waiting_bytes <= self._bytes_max:
            self._let_emit(out)
        self._deliver(now, out)

    def _failed(self, event: BatchFailed, now: Instant, out: list[OutboxEffect]) -> None:
        queue = self._queues[event.sink]
        if event.batch != queue.batch or not queue.on_the_way:
            return
        self._counts["failures"] += 1
        queue.on_the_way = 0
        queue.retry_at = now + queue.pause_ns
        queue.pause_ns = min(RETRY_NS_MAX, 2 * queue.pause_ns)
        if not queue.failing:
            queue.failing = True
            out.append(TellSinkFailing(sink=event.sink, reason=event.reason))
        self._deliver(now, out)

    def _let_emit(self, out: list[OutboxEffect]) -> None:
        if self._emits_refused:
            self._emits_refused = False
            out.append(RefuseEmits(reason=""))
