"""What people do with a participant's effect ledger: list, answer, settle; and where the ledger is."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

from participant.effects.entries import State
from participant.effects.ledger import Claimed
from participant.steps import PLAIN, DidNotHappen
from protocol.errors import Refused
from protocol.plain import Plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from participant.effects.backend import EffectBackend
    from participant.effects.entries import Entry
    from participant.host import AgentHost, WaitingQuestion
    from participant.runtime.log_files import LocalFolder
    from participant.runtime.steps import StepRunner


class AnswerResult(Enum):
    """What became of an answer."""

    TAKEN = "taken"
    DUPLICATE = "duplicate"
    """It was answered before: that answer counts."""
    LATE = "late"
    """It had expired."""


class Happened(Plain, frozen=True):
    """Settles a step: it happened, and this is what it returned."""

    result: Any = None


class TakeRecorded(Plain, frozen=True):
    """Settles a step that has diverged: its recorded result is taken for what it wants now."""


Settlement: TypeAlias = Happened | DidNotHappen | TakeRecorded


class Question(Plain, frozen=True, kw_only=True):
    """A question that nobody has answered yet."""

    agent: str
    token: str
    question: Any
    asked_for: float
    """Seconds since it was asked here; since the restore, for one that is older."""
    expires_in: float | None
    """Seconds; None: it does not expire."""

    @classmethod
    def of(cls, agent: str, question: WaitingQuestion, now: int) -> Question:
        """As people are shown it."""
        return cls(
            agent=agent,
            token=question.token,
            question=PLAIN.decode(question.question),
            asked_for=(now - question.at) / 1e9,
            expires_in=None if question.deadline is None else max(0, question.deadline - now) / 1e9,
        )


def make_backend(
    effects: str | EffectBackend, folder: LocalFolder | None, *, cluster: str, participant: str
) -> EffectBackend | None:
    """The effect ledger that the configuration names; None: there is no place for one.

    Raises:
        ConfigError: Redis' client is not installed, or its URL is none.
    """
    if not isinstance(effects, str):
        return effects
    if effects:
        from participant.runtime.effects_redis import RedisEffects

        return RedisEffects(effects, cluster=cluster)
    if folder is None:
        return None
    from participant.runtime.effects_local import LocalEffects

    return LocalEffects(folder, cluster=cluster, participant=participant)


def dry_run_backend(
    effects: str | EffectBackend, folder: LocalFolder | None, *, cluster: str, participant: str, origin: str
) -> EffectBackend:
    """The effect ledger of a participant of a fork in dry-run: what is not the fork's own is only read.

    Raises:
        ConfigError: As `make_backend`.
    """
    from participant.dry_run import DryRunEffects
    from participant.effects.backend import MemoryEffects

    if isinstance(effects, str) and effects:
        from participant.runtime.effects_redis import RedisEffects

        # Redis keeps each cluster's entries apart.
        return DryRunEffects(
            RedisEffects(effects, cluster=cluster), origin=origin, known=RedisEffects(effects, cluster=origin)
        )
    own = make_backend("", folder, cluster=cluster, participant=participant) or MemoryEffects()
    return DryRunEffects(own, origin=origin, known=None if isinstance(effects, str) else effects)


async def answer(steps: StepRunner, token: str, value: object) -> AnswerResult:
    """See `Participant.answer`."""
    before = await steps.answer(token, value)
    if before is None:
        return AnswerResult.TAKEN
    return AnswerResult.LATE if before.state is State.EXPIRED else AnswerResult.DUPLICATE


async def settle(steps: StepRunner, hosts: Iterable[AgentHost], token: str, settlement: Settlement) -> Entry:
    """See `Participant.settle`."""
    parked = next((host.parked for host in hosts if host.parked is not None and host.parked.token == token), None)
    match settlement:
        case Happened(result=result):
            found = await steps.settle(token, State.DONE, result, None if parked is None else parked.result)
        case DidNotHappen():
            found = await steps.settle(token, State.RELEASED)
        case TakeRecorded():
            if parked is None:
                raise Refused("not-parked", f"no turn here waits for step {token[:64]!a}")
            return (await steps.accept(token, parked.intent)).entry
        case _:
            assert_never(settlement)
    if not isinstance(found, Claimed) and found.entry.state is State.CLAIMED:
        raise Refused("not-settled", f"step {token[:64]!a} is being done")
    return found.entry
