"""What a participant of a fork has in place of the outside world: effects that are not done, and sinks that only note down.

Whether a cluster is a fork in dry-run says its store (`protocol.forks`), so no setting can be forgotten: the same program, started
on the fork's store, charges nobody.

    * A step whose result is known answers it: finished steps of turns that were running lie in the epoch, and what an effect
      ledger knows of this position, or of the original's at the same position, is taken from there. Every other step is refused
      as `DryRun`, before its claim; a handler may catch it and go on, else the agent's failure policy applies.
    * Questions are asked and answered here as anywhere.
    * Outputs go into ``<local>/<participant>/dry-run/<sink>.jsonl``, each once; without a folder for local files the newest are kept
      in memory. The sinks themselves are not opened.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from participant.effects.entries import Kind, State, effect_token
from participant.effects.ledger import Known
from participant.outbox import DELIVERED
from participant.sinks.file import FileSink
from protocol.errors import DryRun

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from participant.effects.backend import EffectBackend
    from participant.effects.entries import Entry
    from participant.effects.ledger import Claimed
    from participant.outbox import Receipt
    from participant.sinks.base import Sink, SinkOutput
    from protocol.outputs import FencingToken

DRY_RUN_FOLDER: Final = "dry-run"
FORKS_FOLDER: Final = ".forks"
"""In the folder for local files; no participant's name begins like this."""
NOTED_MAX: Final = 1_000
"""Outputs that are kept where there is no disk."""


class DryRunEffects:
    """An effect ledger in which no step is ever claimed.

    Args:
        inner: Where questions are kept, and results may be known.
        origin: Name of the original cluster.
        known: An effect ledger of the original's that is only read; None: only `inner` is asked.
    """

    def __init__(self, inner: EffectBackend, *, origin: str, known: EffectBackend | None = None) -> None:
        self._inner = inner
        self._origin = origin
        self._known = inner if known is None else known
        self.shared = inner.shared

    async def open(self, fence: FencingToken) -> None:
        """See `EffectBackend.open`."""
        await self._inner.open(fence)

    async def claim(self, entry: Entry, fence: FencingToken) -> Claimed | Known:
        """See `EffectBackend.claim`.

        Raises:
            DryRun: It is a step, and no result of it is known.
        """
        if entry.kind is not Kind.STEP:
            return await self._inner.claim(entry, fence)
        found = await self._inner.entry(entry.token)
        if found is None or not found.ended:
            place = effect_token(self._origin, entry.agent, entry.message_id, entry.kind, entry.name, entry.ordinal)
            found = await self._known.entry(place)
        if found is not None and found.ended:
            return Known(found)
        raise DryRun(
            f"step {entry.name} of {entry.agent} was not done: this cluster is a fork of {self._origin} in dry-run, and no result "
            "of it is known"
        )

    async def take(self, token: str, fence: FencingToken, claim_id: bytes, *, before: bytes) -> Claimed | Known:
        """See `EffectBackend.take`: nothing is gone on with.

        Raises:
            DryRun: Always.
        """
        raise DryRun(f"step {token[:64]!a} is not gone on with: this cluster is a fork of {self._origin} in dry-run")

    async def end(
        self, token: str, fence: FencingToken, claim_id: bytes, state: State, *, result: bytes = b"", reason: str = ""
    ) -> Claimed | Known:
        """See `EffectBackend.end`."""
        return await self._inner.end(token, fence, claim_id, state, result=result, reason=reason)

    async def settle(self, token: str, fence: FencingToken, state: State, *, result: bytes = b"") -> Claimed | Known:
        """See `EffectBackend.settle`."""
        return await self._inner.settle(token, fence, state, result=result)

    async def accept(self, token: str, fence: FencingToken, intent: bytes) -> Known:
        """See `EffectBackend.accept`."""
        return await self._inner.accept(token, fence, intent)

    async def entry(self, token: str) -> Entry | None:
        """See `EffectBackend.entry`."""
        return await self._inner.entry(token)

    async def entries(self, states: Collection[State] = (State.CLAIMED,)) -> list[Entry]:
        """See `EffectBackend.entries`."""
        return await self._inner.entries(states)

    async def close_turn(self, tokens: Iterable[str], after: int, fence: FencingToken) -> None:
        """See `EffectBackend.close_turn`."""
        await self._inner.close_turn(tokens, after, fence)

    async def reopen(self, base: int, fence: FencingToken) -> None:
        """See `EffectBackend.reopen`."""
        await self._inner.reopen(base, fence)

    async def prune(self, oldest: int, fence: FencingToken) -> int:
        """See `EffectBackend.prune`."""
        return await self._inner.prune(oldest, fence)

    async def aclose(self) -> None:
        """See `EffectBackend.aclose`."""
        await self._inner.aclose()
        if self._known is not self._inner:
            await self._known.aclose()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - what a backend has besides
        return getattr(self._inner, name)


class NotedSink:
    """Keeps the newest outputs in memory, in place of a sink."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outputs: deque[SinkOutput] = deque(maxlen=NOTED_MAX)

    async def open(self, writer: FencingToken) -> None:
        """See `Sink`."""

    async def deliver(self, writer: FencingToken, outputs: Sequence[SinkOutput]) -> list[Receipt]:
        """See `Sink`."""
        self.outputs.extend(outputs)
        return [DELIVERED] * len(outputs)

    async def raise_fence(self, incarnation: int) -> None:
        """See `Sink`."""

    async def close(self) -> None:
        """See `Sink`."""


def dry_run_sinks(sinks: Sequence[Sink], folder: Path | None) -> tuple[Sink, ...]:
    """In place of each sink one of its name that writes outputs down. Blocks.

    Args:
        sinks: As the program gave them; they are not touched.
        folder: Of the participant's local files; None: there is none.
    """
    if folder is None:
        return tuple(NotedSink(sink.name) for sink in sinks)
    place = folder / DRY_RUN_FOLDER
    if sinks:
        place.mkdir(parents=True, exist_ok=True)
    return tuple(FileSink(sink.name, place / f"{sink.name}.jsonl", encode=_line) for sink in sinks)


def _line(output: SinkOutput) -> bytes:
    noted = {"token": output.token, "agent": output.agent, "value": output.value}
    return msgspec.json.encode(noted, order="sorted") + b"\n"
