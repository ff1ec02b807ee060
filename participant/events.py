"""What a participant tells whoever iterates over `Participant.events()`.

`DeadLettered` and `Stopped` of `participant.failure` are events, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from participant.failure import DeadLettered, Stopped


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


ParticipantEvent: TypeAlias = Member | Lost | EpochCommitted | EpochAborted | EpochPartFailed | DeadLettered | Stopped
