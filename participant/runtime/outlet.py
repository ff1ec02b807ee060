"""The driver of `participant.outbox`: keeps outputs with their agents, and carries batches to the sinks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol, assert_never

from participant.outbox import (
    BatchDelivered,
    BatchFailed,
    CutTaken,
    DeliverBatch,
    EndFenced,
    EpochCommitted,
    EpochDropped,
    HoldOutputs,
    LetGoOutputs,
    Outbox,
    OutboxReset,
    OutboxTimerFired,
    OutputsEmitted,
    OutputsRestored,
    PutOutputAside,
    RefuseEmits,
    SetOutboxTimer,
    SinkFenced,
    TellDiverged,
    TellSinkFailing,
    TurnsLogged,
    WantEpoch,
)
from participant.sinks.base import SinkError, SinkOutput
from protocol.errors import ConfigError, FencedError, RecoveryError
from protocol.failpoints import fp
from protocol.ids import Epoch
from protocol.outputs import FencingToken, OlderIncarnation, output_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from participant.host import AgentHost
    from participant.outbox import Durability, OutboxEffect, OutboxEvent, Receipt
    from participant.runtime.clock import Cancellable, Clock
    from participant.runtime.tasks import TaskSet
    from participant.sinks.base import Sink
    from protocol.outputs import Output

log = logging.getLogger("cleancut.participant.outputs")


class OutletSink(Protocol):
    """Where an outlet's news goes; called on the loop, must not block."""

    def epoch_wanted(self, reason: str) -> None:
        """Much is held."""
        ...

    def output_refused(self, output: Output, reason: str) -> None:
        """A sink will never take this output; it was put aside."""
        ...

    def output_diverged(self, output: Output) -> None:
        """A sink has another payload under this output's token."""
        ...

    def sink_failing(self, sink: str, reason: str) -> None:
        """A sink does not take outputs; it is tried again."""
        ...

    def sink_fenced(self, reason: str) -> None:
        """A sink says that this process is a zombie."""
        ...


class Outlet:
    """All outputs of one participant on their way to their sinks.

    Raises:
        ConfigError: Two sinks have one name.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        hosts: Sequence[AgentHost],
        *,
        cluster: str,
        participant: str,
        durability: Durability,
        clock: Clock,
        tasks: TaskSet,
        sink: OutletSink,
        changed: Callable[[], None] = lambda: None,
        delivered: Callable[[Sequence[bytes]], None] = lambda _: None,
    ) -> None:
        self._sinks = {each.name: each for each in sinks}
        if len(self._sinks) < len(sinks):
            raise ConfigError("sinks", "two of them have the same name")
        self._hosts = {host.id: host for host in hosts}
        self._cluster = cluster
        self._participant = participant
        self._clock = clock
        self._tasks = tasks
        self._sink = sink
        self._changed = changed
        """Called when outputs have left."""
        self._delivered = delivered
        """Told their ids."""
        self._outbox = Outbox(self._sinks, durability=durability)
        self._writer = FencingToken(participant, 0, 0)
        self._opened: set[str] = set()
        self._waiting: list[DeliverBatch] = []
        """Batches that were ordered before the writer was known."""
        self._timer: Cancellable | None = None
        self._closed = False
        for host in hosts:
            host.sinks = self._sinks

    # --- from the participant -----------------------------------------------------------------------------------------

    def enter(self, incarnation: int, session: int) -> None:
        """Write as this from now on; sinks that were opened before are opened again, so that they refuse what is older."""
        writer = FencingToken(self._participant, incarnation, session)
        if writer == self._writer:
            return
        self._writer = writer
        self._opened.clear()
        # Each sink learns of the new session at once, not with the first output: until then a zombie could still write.
        for name in self._sinks:
            self._tasks.spawn(self._open(name), name=f"open sink {name}")
        waiting, self._waiting = self._waiting, []
        for effect in waiting:
            self._spawn(effect)

    def emitted(self, host: AgentHost, outputs: Sequence[tuple[bytes, str, bytes]]) -> None:
        """A turn committed just now, and emitted these."""
        self._step(OutputsEmitted(agent=host.id, outputs=outputs))

    def cut(self, epoch: int) -> None:
        """The local state of this epoch was frozen just now."""
        self._step(CutTaken(epoch=Epoch(epoch)))

    def committed(self, epoch: int) -> None:
        """The epoch is committed."""
        self._step(EpochCommitted(epoch=Epoch(epoch)))

    def dropped(self, epoch: int) -> None:
        """The epoch ended otherwise."""
        self._step(EpochDropped(epoch=Epoch(epoch)))

    def logged(self, through: int) -> None:
        """Turns are in the write-ahead log up to the one that emitted this number; see `newest`."""
        self._step(TurnsLogged(through=through))

    @property
    def newest(self) -> int:
        """Number of the newest output; what a write-ahead log notes with a turn."""
        return self._outbox.newest

    def check(self, hosts: Iterable[AgentHost]) -> None:
        """Before a restore is accepted: whether every held output has a sink here.

        Raises:
            RecoveryError: Names agent and sink.
        """
        for host in hosts:
            for output in host.outputs.values():
                if output.sink not in self._sinks:
                    known = ", ".join(sorted(self._sinks)) or "none"
                    raise RecoveryError(
                        f"agent {host.id} holds outputs for sink {output.sink!r}, and {self._participant} has no such sink "
                        f"(its sinks: {known})"
                    )

    def restored(self, hosts: Iterable[AgentHost], *, epoch: int) -> None:
        """Agents were loaded from a committed epoch: drop everything, and release what they held.

        Args:
            hosts: All agents that are here now; `AgentHost.load` has put their held outputs into them.
            epoch: That they come from; 0: from the start.
        """
        hosts = list(hosts)
        self.check(hosts)
        self._hosts = {host.id: host for host in hosts}
        self._step(OutboxReset())
        for host in hosts:
            host.sinks = self._sinks
            held, host.outputs = tuple(host.outputs.values()), {}
            self._step(OutputsRestored(agent=host.id, outputs=held, through=epoch))

    @property
    def waiting(self) -> int:
        """Outputs that are not acknowledged, held ones included."""
        return self._outbox.waiting

    @property
    def delivering(self) -> bool:
        """Whether a sink is at work."""
        return self._outbox.on_the_way > 0

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and what is held now."""
        return {f"outputs_{name}": value for name, value in self._outbox.statistics().items()}

    def stop(self) -> None:
        """Nothing more leaves: the participant is fenced, or ends."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """Let go of the sinks; after the tasks have ended."""
        self.stop()
        for sink in self._sinks.values():
            try:
                await sink.close()
            except Exception as error:  # noqa: BLE001 - a user's sink: the others are to be closed as well
                log.warning("sink %s does not close: %s", sink.name, error)

    # --- machine ------------------------------------------------------------------------------------------------------

    def _step(self, event: OutboxEvent) -> None:
        if self._closed:
            return
        for effect in self._outbox.step(event, self._clock.now()):
            self._carry_out(effect)

    def _carry_out(self, effect: OutboxEffect) -> None:
        match effect:
            case HoldOutputs():
                held = self._hosts[effect.agent].outputs
                for number, output in enumerate(effect.outputs, effect.first):
                    held[number] = output
            case LetGoOutputs():
                gone: list[bytes] = []
                for agent, number in effect.outputs:
                    host = self._hosts.get(agent)
                    if host is not None and number in host.outputs:
                        gone.append(host.outputs.pop(number).id)
                self._delivered(gone)
                self._changed()
            case DeliverBatch():
                if self._writer.session:
                    self._spawn(effect)
                else:
                    self._waiting.append(effect)
            case TellDiverged():
                output = effect.output
                log.warning(
                    "agent %s: sink %s has another payload for output %s", output.agent, output.sink, output.id.hex()
                )
                self._sink.output_diverged(output)
            case PutOutputAside():
                output = effect.output
                log.error(
                    "agent %s: sink %s refuses output %s: %s", output.agent, output.sink, output.id.hex(), effect.reason
                )
                self._sink.output_refused(output, effect.reason)
            case TellSinkFailing():
                log.warning("sink %s fails and is tried again: %s", effect.sink, effect.reason)
                self._sink.sink_failing(effect.sink, effect.reason)
            case WantEpoch():
                self._sink.epoch_wanted(effect.reason)
            case RefuseEmits():
                for host in self._hosts.values():
                    host.emits_refused = effect.reason
            case SetOutboxTimer():
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self._clock.call_at(effect.at, self._time_came)
            case EndFenced():
                self._sink.sink_fenced(effect.reason)
            case _:
                assert_never(effect)

    def _time_came(self) -> None:
        self._timer = None
        self._step(OutboxTimerFired())

    # --- sinks --------------------------------------------------------------------------------------------------------

    def _spawn(self, effect: DeliverBatch) -> None:
        self._tasks.spawn(self._deliver(effect), name=f"deliver to {effect.sink}")

    async def _open(self, name: str) -> None:
        writer = self._writer
        try:
            await self._sinks[name].open(writer)
        except FencedError as error:
            if writer == self._writer:
                self._fenced(name, 0, error)
        except Exception as error:  # noqa: BLE001 - a user's sink: each delivery tries again
            log.warning("sink %s does not open yet: %s", name, error)
        else:
            if writer == self._writer:
                self._opened.add(name)

    def _fenced(self, sink: str, batch: int, error: FencedError) -> None:
        final = not isinstance(error, OlderIncarnation)
        self._step(SinkFenced(sink=sink, batch=batch, reason=str(error), final=final))

    async def _deliver(self, effect: DeliverBatch) -> None:
        sink = self._sinks[effect.sink]
        writer = self._writer
        outputs = [
            SinkOutput(output_token(self._cluster, output.sink, output.id), output.agent, output.payload, output.after)
            for output in effect.outputs
        ]
        fp("output.before_deliver")
        try:
            if effect.sink not in self._opened:
                await sink.open(writer)
                self._opened.add(effect.sink)
            receipts = _checked(effect.sink, await sink.deliver(writer, outputs), len(outputs))
        except FencedError as error:
            self._fenced(effect.sink, effect.batch, error)
        except Exception as error:  # noqa: BLE001 - a user's sink may raise anything: it is tried again
            reason = str(error) or type(error).__name__
            self._step(BatchFailed(sink=effect.sink, batch=effect.batch, reason=reason))
        else:
            fp("output.after_deliver")
            self._step(BatchDelivered(sink=effect.sink, batch=effect.batch, receipts=receipts))


def _checked(sink: str, receipts: Sequence[Receipt], count: int) -> Sequence[Receipt]:
    """A sink may be a user's."""
    if len(receipts) != count:
        raise SinkError(sink, f"gave {len(receipts)} receipts for {count} outputs")
    return receipts
