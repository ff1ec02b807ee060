"""Embedded in each agent process.

Public names are imported when first used (`protocol.lazy`). A new one goes into all three lists below (the first under
``if TYPE_CHECKING:``, as in `protocol`) and into ``tests/unit/public_names.txt``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.lazy import lazy_exports

if TYPE_CHECKING:
    from participant.agent import Agent, handler
    from participant.codec import message
    from participant.config import ParticipantConfig
    from participant.context import Context
    from participant.events import (
        EpochAborted,
        EpochCommitted,
        EpochPartFailed,
        Lost,
        Member,
        OutputDiverged,
        OutputRefused,
        ParticipantEvent,
        QuestionAsked,
        ReleasedBeyond,
        Restored,
        Resumed,
        SinkFailing,
        StepInDoubt,
        TurnDiverged,
    )
    from participant.failure import Backoff, DeadLetter, DeadLettered, Retry, Stop, Stopped
    from participant.migrations import migration
    from participant.restoring import Restoration
    from participant.runtime.effect_desk import AnswerResult, Happened, Question, TakeRecorded
    from participant.runtime.participant import Participant
    from participant.state import keyed, value
    from participant.steps import (
        DidNotHappen,
        DoubtfulStep,
        InDoubt,
        NotDone,
        QuestionExpired,
        StepDiverged,
        StepFailed,
        StepUndecided,
    )

__all__ = [
    "Agent",
    "AnswerResult",
    "Backoff",
    "Context",
    "DeadLetter",
    "DeadLettered",
    "DidNotHappen",
    "DoubtfulStep",
    "EpochAborted",
    "EpochCommitted",
    "EpochPartFailed",
    "Happened",
    "InDoubt",
    "Lost",
    "Member",
    "NotDone",
    "OutputDiverged",
    "OutputRefused",
    "Participant",
    "ParticipantConfig",
    "ParticipantEvent",
    "Question",
    "QuestionAsked",
    "QuestionExpired",
    "ReleasedBeyond",
    "Restoration",
    "Restored",
    "Resumed",
    "Retry",
    "SinkFailing",
    "StepDiverged",
    "StepFailed",
    "StepInDoubt",
    "StepUndecided",
    "Stop",
    "Stopped",
    "TakeRecorded",
    "TurnDiverged",
    "handler",
    "keyed",
    "message",
    "migration",
    "value",
]

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would let every misspelt name pass
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "agent": ("Agent", "handler"),
            "codec": ("message",),
            "config": ("ParticipantConfig",),
            "context": ("Context",),
            "events": (
                "EpochAborted",
                "EpochCommitted",
                "EpochPartFailed",
                "Lost",
                "Member",
                "OutputDiverged",
                "OutputRefused",
                "ParticipantEvent",
                "QuestionAsked",
                "ReleasedBeyond",
                "Restored",
                "Resumed",
                "SinkFailing",
                "StepInDoubt",
                "TurnDiverged",
            ),
            "failure": ("Backoff", "DeadLetter", "DeadLettered", "Retry", "Stop", "Stopped"),
            "restoring": ("Restoration",),
            "runtime.effect_desk": ("AnswerResult", "Happened", "Question", "TakeRecorded"),
            "migrations": ("migration",),
            "runtime.participant": ("Participant",),
            "state": ("keyed", "value"),
            "steps": (
                "DidNotHappen",
                "DoubtfulStep",
                "InDoubt",
                "NotDone",
                "QuestionExpired",
                "StepDiverged",
                "StepFailed",
                "StepUndecided",
            ),
        },
    )
