"""Planted bugs of steps, outputs, outside input and the logs under them; looked for with `orders`, in the second mode."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from simulations.mutants import Patcher


def claim_after_call(patcher: Patcher) -> None:
    """A step is claimed when it has been done."""
    from participant.effects.entries import Kind
    from participant.effects.ledger import Claimed
    from participant.runtime.step_calls import StepCaller
    from participant.steps import finished_of

    def make(perform: Any) -> Any:  # noqa: ANN401 - the patched method
        del perform

        async def eager(self: Any, agent: Any, context: Any, call: Any, token: str, **more: Any) -> Any:  # noqa: ANN401 - as the method
            del more
            ledger = self._ledger
            known = await ledger.ask(lambda: ledger.backend.entry(token))
            if known is not None and known.ended:
                return finished_of(known)
            value: object = None
            while True:
                try:
                    value = await self._call(call.function, call.arguments, self._keywords(call, token), call.name)
                    break
                except Exception:  # noqa: BLE001 - the bank's failures: it tries again
                    await self._pause(token, 50_000_000)
            entry = ledger.new_entry(agent, context, Kind.STEP, call.name, call.ordinal, token, call.intent, call.shown)
            answer = await ledger.ask(lambda: ledger.backend.claim(entry, ledger.fence()))
            assert isinstance(answer, Claimed), "nobody else does it"
            return await self._record(agent, call, token, entry.claim_id, value)

        return eager

    patcher.method(StepCaller, "perform", make)


def token_of_chance(patcher: Patcher) -> None:
    """A step's token is another one each time (it is not durable)."""
    import participant.runtime.steps as steps

    numbers = itertools.count()
    patcher.method(
        steps,
        "effect_token",
        lambda token: (
            lambda cluster, agent, message, kind, name, _: token(cluster, agent, message, kind, name, next(numbers))
        ),
    )


def ledger_rolls_back(patcher: Patcher) -> None:
    """The effect ledger goes back with the state."""
    from participant.effects.ledger import EffectLedger, Reopened

    def make(apply: Any) -> Any:  # noqa: ANN401 - the patched method
        def forgetful(self: Any, change: Any) -> None:  # noqa: ANN401 - as the method
            if isinstance(change, Reopened):
                for entry in list(self.entries.values()):
                    if entry.closed_after >= change.base and entry.closed_in < change.incarnation:
                        del self.entries[entry.token]
            apply(self, change)

        return forgetful

    patcher.method(EffectLedger, "apply", make)


class _NoSync:
    """Files whose sync is forgotten."""

    def __init__(self, files: Any) -> None:  # noqa: ANN401 - any `LogFiles`
        self._files = files

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the files'
        return getattr(self._files, name)

    def sync(self, name: str) -> None:
        """Nothing."""


def log_without_sync(patcher: Patcher) -> None:
    """A log's records are acknowledged when they are written, and not synced."""
    from participant.runtime.durable_log import DurableLog

    def make(write: Any) -> Any:  # noqa: ANN401 - the patched method
        def hasty(self: Any, job: Any) -> None:  # noqa: ANN401 - as the method
            files = self._files
            self._files = _NoSync(files)
            try:
                write(self, job)
            finally:
                self._files = files

        return hasty

    patcher.method(DurableLog, "_write", make)


def acknowledged_at_once(patcher: Patcher) -> None:
    """Records of a log are acknowledged before they are written."""
    from participant.runtime.group_commit import GroupCommit

    def make(wait: Any) -> Any:  # noqa: ANN401 - the patched method
        del wait

        async def hasty(self: Any, number: int) -> None:  # noqa: ANN401 - as the method
            del number
            self.start()

        return hasty

    patcher.method(GroupCommit, "wait_durable", make)


def released_at_emit(patcher: Patcher) -> None:
    """An output leaves when its turn commits."""
    from participant.outbox import Outbox, OutputsEmitted

    def make(step: Any) -> Any:  # noqa: ANN401 - the patched method
        def eager(self: Any, event: Any, now: Any) -> Any:  # noqa: ANN401 - as the method
            out = list(step(self, event, now))
            if isinstance(event, OutputsEmitted):
                self._release(self.newest, now, out)
            return out

        return eager

    patcher.method(Outbox, "step", make)


def released_by_the_newest(patcher: Patcher) -> None:
    """A commit releases what was emitted until then, not until the cut."""
    from participant.outbox import EpochCommitted, Outbox

    def make(step: Any) -> Any:  # noqa: ANN401 - the patched method
        def eager(self: Any, event: Any, now: Any) -> Any:  # noqa: ANN401 - as the method
            if isinstance(event, EpochCommitted):
                self._cuts[event.epoch] = self.newest
            return step(self, event, now)

        return eager

    patcher.method(Outbox, "step", make)


def outputs_forgotten(patcher: Patcher) -> None:
    """What an epoch holds of outputs does not come back."""
    from participant.outbox import Outbox, OutputsRestored

    def make(step: Any) -> Any:  # noqa: ANN401 - the patched method
        return lambda self, event, now: () if isinstance(event, OutputsRestored) else step(self, event, now)

    patcher.method(Outbox, "step", make)


def sinks_unfenced(patcher: Patcher) -> None:
    """Only the store is fenced before restore orders leave."""
    from coordinator.recovery import RecoveryKeeper

    def make(begin: Any) -> Any:  # noqa: ANN401 - the patched method
        def hasty(self: Any, *arguments: Any) -> None:  # noqa: ANN401 - as the method
            begin(self, *arguments)
            self._fences = ("store",)

        return hasty

    patcher.method(RecoveryKeeper, "begin", make)


def input_not_replayed(patcher: Patcher) -> None:
    """Acknowledged input that came after the cut does not enter again."""
    from participant.runtime.intake import Intake

    def make(replay: Any) -> Any:  # noqa: ANN401 - the patched method
        del replay

        async def nothing(self: Any, ticket: int) -> int:  # noqa: ANN401 - as the method
            self._demand(ticket)
            self.position = self._log.next - 1
            return 0

        return nothing

    patcher.method(Intake, "_replay", make)


def owner_unchecked(patcher: Patcher) -> None:
    """Whoever writes a log does not look whether the folder is still its own."""
    from participant.runtime.durable_log import DurableLog

    def make(write: Any) -> Any:  # noqa: ANN401 - the patched method
        def trusting(self: Any, job: Any) -> None:  # noqa: ANN401 - as the method
            owner, self._owner = self._owner, None
            try:
                write(self, job)
            finally:
                self._owner = owner

        return trusting

    patcher.method(DurableLog, "write", make)


def word_overrides(patcher: Patcher) -> None:
    """An operator's word counts although the step has its end."""
    from participant.effects.entries import State
    from participant.effects.ledger import EffectLedger

    def make(settle: Any) -> Any:  # noqa: ANN401 - the patched method
        def obedient(self: Any, token: str, *arguments: Any, **more: Any) -> Any:  # noqa: ANN401 - as the method
            entry = self.entries.get(token)
            if entry is not None and entry.ended:
                self.entries[token] = msgspec.structs.replace(entry, state=State.CLAIMED)
            return settle(self, token, *arguments, **more)

        return obedient

    patcher.method(EffectLedger, "settle", make)


def fork_charges(patcher: Patcher) -> None:
    """A fork in dry-run claims its steps like anybody."""
    from participant.dry_run import DryRunEffects

    patcher.method(DryRunEffects, "claim", lambda _: lambda self, entry, fence: self._inner.claim(entry, fence))


def fork_delivers(patcher: Patcher) -> None:
    """A fork in dry-run writes to the sinks that its program names."""
    import participant.runtime.participant as participant

    patcher.method(participant, "dry_run_sinks", lambda _: lambda sinks, _folder: tuple(sinks))
