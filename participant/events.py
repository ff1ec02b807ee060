"""What a participant tells whoever iterates over `Participant.events()`.

`DeadLettered` and `Stopped` of `participant.failure` are events, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from participant.failure import DeadLettered, Stopped

if TYPE_CHECKING:
    from protocol.outputs import Output
    from protocol.restore_plan import Outside


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """This participant is a member of the cluster: its agents run."""

    session: int
    topology: int
    """Version."""
    participants: tuple[str, ...]
    """All members, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The connection to the coordinators is lost; agents go on, and it comes back by itself."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCommitted:
    """The epoch is durable, all of it."""

    epoch: int
    manifest: str
    """Digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochAborted:
    """The epoch has ended without a manifest."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPartFailed:
    """This participant could not complete its part of the epoch, which aborts for it."""

    epoch: int
    phase: str
    cause: str
    """A sentence with agent, key path, type or errno."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The cluster was rolled back: the agents here run again with the state of this epoch, all in one incarnation."""

    epoch: int
    """0: the start; agents are fresh."""
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFailing:
    """A sink takes nothing at the moment; what was emitted to it waits, and is tried again for ever."""

    sink: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRefused:
    """A sink will never take this output; it was put aside."""

    output: Output
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDiverged:
    """Work that was done again emitted something else at the same position. What the sink took first stands."""

    output: Output


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInDoubt:
    """A step was begun and has no end, and nobody here can tell whether it happened. Its turn is parked until it is settled."""

    agent: str
    step: str
    token: str
    """For `Participant.settle`."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDiverged:
    """A turn runs again and wants something else at a place where a step was done. It is parked until that is settled."""

    agent: str
    step: str
    token: str
    """For `Participant.settle`."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAsked:
    """A turn waits for an answer."""

    agent: str
    token: str
    """For `Participant.answer`."""
    question: Any
    expires_in: float | None
    """Seconds; None: it does not expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """With durability ``turn``: this participant goes on from the log of the life before; the others notice nothing."""

    session: int
    turns: int
    """Turns of the log that were applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedBeyond:
    """With durability ``turn``, after everybody went back to an epoch: what had left before is no part of it, and stays."""

    epoch: int
    outputs: tuple[Outside, ...]
    """That reached sinks of this participant, as far as they can tell."""
    effects: tuple[Outside, ...]
    notes: tuple[str, ...] = ()


ParticipantEvent: TypeAlias = (
    Member
    | Lost
    | EpochCommitted
    | EpochAborted
    | EpochPartFailed
    | Restored
    | DeadLettered
    | Stopped
    | StepInDoubt
    | TurnDiverged
    | QuestionAsked
    | SinkFailing
    | OutputRefused
    | OutputDiverged
    | Resumed
    | ReleasedBeyond
)
