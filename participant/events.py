"""What a participant tells whoever iterates over `Participant.events()`.

`DeadLettered` and `Stopped` of `participant.failure` are events, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from participant.failure import DeadLettered, Stopped
from protocol.plain import Plain

if TYPE_CHECKING:
    from protocol.outputs import Output
    from protocol.restore_plan import Outside


class Member(Plain, frozen=True, kw_only=True):
    """This participant is a member of the cluster: its agents run."""

    session: int
    topology: int
    """Version."""
    participants: tuple[str, ...]
    """All members, sorted."""


class Lost(Plain, frozen=True, kw_only=True):
    """The connection to the coordinators is lost; agents go on, and it comes back by itself."""

    reason: str


class EpochCommitted(Plain, frozen=True, kw_only=True):
    """The epoch is durable, all of it."""

    epoch: int
    manifest: str
    """Digest."""


class EpochAborted(Plain, frozen=True, kw_only=True):
    """The epoch has ended without a manifest."""

    epoch: int
    reason: str


class EpochPartFailed(Plain, frozen=True, kw_only=True):
    """This participant could not complete its part of the epoch, which aborts for it."""

    epoch: int
    phase: str
    cause: str
    """A sentence with agent, key path, type or errno."""


class Restored(Plain, frozen=True, kw_only=True):
    """The cluster was rolled back: the agents here run again with the state of this epoch, all in one incarnation."""

    epoch: int
    """0: the start; agents are fresh."""
    incarnation: int


class SinkFailing(Plain, frozen=True, kw_only=True):
    """A sink takes nothing at the moment; what was emitted to it waits, and is tried again for ever."""

    sink: str
    reason: str


class OutputRefused(Plain, frozen=True, kw_only=True):
    """A sink will never take this output; it was put aside."""

    output: Output
    reason: str


class OutputDiverged(Plain, frozen=True, kw_only=True):
    """Work that was done again emitted something else at the same position. What the sink took first stands."""

    output: Output


class StepInDoubt(Plain, frozen=True, kw_only=True):
    """A step was begun and has no end, and nobody here can tell whether it happened. Its turn is parked until it is settled."""

    agent: str
    step: str
    token: str
    """For `Participant.settle`."""
    reason: str


class TurnDiverged(Plain, frozen=True, kw_only=True):
    """A turn runs again and wants something else at a place where a step was done. It is parked until that is settled."""

    agent: str
    step: str
    token: str
    """For `Participant.settle`."""
    reason: str


class QuestionAsked(Plain, frozen=True, kw_only=True):
    """A turn waits for an answer."""

    agent: str
    token: str
    """For `Participant.answer`."""
    question: Any
    expires_in: float | None
    """Seconds; None: it does not expire."""


class Resumed(Plain, frozen=True, kw_only=True):
    """With durability ``turn``: this participant goes on from the log of the life before; the others notice nothing."""

    session: int
    turns: int
    """Turns of the log that were applied."""


class ReleasedBeyond(Plain, frozen=True, kw_only=True):
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
