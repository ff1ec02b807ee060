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
        Restored,
        SinkFailing,
    )
    from participant.failure import Backoff, DeadLetter, DeadLettered, Retry, Stop, Stopped
    from participant.restoring import Restoration
    from participant.runtime.participant import Participant
    from participant.state import keyed, value

__all__ = [
    "Agent",
    "Backoff",
    "Context",
    "DeadLetter",
    "DeadLettered",
    "EpochAborted",
    "EpochCommitted",
    "EpochPartFailed",
    "Lost",
    "Member",
    "OutputDiverged",
    "OutputRefused",
    "Participant",
    "ParticipantConfig",
    "ParticipantEvent",
    "Restoration",
    "Restored",
    "Retry",
    "SinkFailing",
    "Stop",
    "Stopped",
    "handler",
    "keyed",
    "message",
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
                "Restored",
                "SinkFailing",
            ),
            "failure": ("Backoff", "DeadLetter", "DeadLettered", "Retry", "Stop", "Stopped"),
            "restoring": ("Restoration",),
            "runtime.participant": ("Participant",),
            "state": ("keyed", "value"),
        },
    )
