"""Names, numbers and identities that every part agrees on, and what a legal one is.

Rules:
    * A *name* (cluster, participant, agent kind, agent name) is ``[a-z0-9][a-z0-9._-]{0,62}``. It is safe as a file name
      on every file system (no separators, no case folding), as an MQTT topic level and as an HTTP path segment.
    * An agent id is ``kind/name``; both halves are names.
    * A savepoint's name is a name that cannot be taken for anything else that names an epoch: no number, no word such as
      ``latest``.
    * Epochs, incarnations, sessions and topology versions are positive integers that only grow. They come from the
      ledger, never from a clock: two in one millisecond differ, and a clock that steps back changes nothing.
    * Time is integer nanoseconds: ``Instant`` since the driver's start, ``Duration`` between two of them.

Sources: DESIGN.md section 2 (words); RELIABILITY.md T7 (hostile names).
"""

from __future__ import annotations

import re
from typing import NamedTuple, NewType

from protocol.errors import IllegalName

ClusterName = NewType("ClusterName", str)
"""The cluster's name; part of every key in the store and of every frame."""
ParticipantId = NewType("ParticipantId", str)
"""A process in Chandy and Lamport's sense; stable over restarts."""
AgentId = NewType("AgentId", str)
"""``kind/name``."""
CoordinatorId = NewType("CoordinatorId", str)
"""One coordinator of the replicated group; a name."""
Epoch = NewType("Epoch", int)
"""One attempt at a global snapshot; from 1, never used again."""
Incarnation = NewType("Incarnation", int)
"""The cluster's generation; from 1; every rollback starts the next one."""
Session = NewType("Session", int)
"""One registration of a participant; from 1, unique over the whole cluster."""
TopologyVersion = NewType("TopologyVersion", int)
"""Version of the member and channel list; from 1."""
Term = NewType("Term", int)
"""Raft term of the leader that gave an order."""
Instant = NewType("Instant", int)
"""Nanoseconds since the driver's start; monotonic."""
Duration = NewType("Duration", int)
"""Nanoseconds."""
MessageId = NewType("MessageId", bytes)
"""16 bytes: lineage, H(parent's id, agent, ordinal of the send)."""
Digest = NewType("Digest", str)
"""``b3:`` and 64 lower-case hex digits: BLAKE3-256. The prefix names the algorithm, so that it can change."""

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
EPOCH_WORDS = ("latest", "start")
"""What is said in place of an epoch's number and means something already."""
SAVEPOINT_PATTERN = re.compile(rf"(?!(?:[0-9_]+|{'|'.join(EPOCH_WORDS)})\Z){NAME_PATTERN.pattern}")
"""Digits with underscores are a number to a person, and to Python."""
MESSAGE_ID_BYTES = 16


class ChannelId(NamedTuple):
    """The directed FIFO stream from one participant to another.

    Invariant: ``source != target``: what a participant sends to itself goes from turn to mailbox and is part of its
    local state; it is never in flight.
    """

    source: ParticipantId
    target: ParticipantId

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"


def check_name(what: str, text: object) -> str:
    """Return `text` if it is a legal name.

    Args:
        what: What is being named, for the error ("participant", "cluster").
        text: The candidate, from anywhere.

    Raises:
        IllegalName: With the text escaped, so that it is safe to print.
    """
    if not isinstance(text, str) or NAME_PATTERN.fullmatch(text) is None:
        raise IllegalName(what, text)
    return text


def cluster_name(text: str) -> ClusterName:
    """A checked cluster name."""
    return ClusterName(check_name("cluster", text))


def participant_id(text: str) -> ParticipantId:
    """A checked participant id."""
    return ParticipantId(check_name("participant", text))


def coordinator_id(text: str) -> CoordinatorId:
    """A checked coordinator id."""
    return CoordinatorId(check_name("coordinator", text))


def savepoint_name(text: object) -> str:
    """A checked name of a savepoint.

    Raises:
        IllegalName: Not a name, or one that names an epoch in another way.
    """
    name = check_name("savepoint", text)
    if SAVEPOINT_PATTERN.fullmatch(name) is None:
        means = "a word that names an epoch already" if name in EPOCH_WORDS else "it reads as an epoch's number"
        raise IllegalName("savepoint", text, means)
    return name


def agent_id(text: object) -> AgentId:
    """A checked agent id, ``kind/name``.

    Raises:
        IllegalName: Not two legal names with one slash between them.
    """
    if not isinstance(text, str):
        raise IllegalName("agent", text)
    kind, slash, name = text.partition("/")
    if not slash or NAME_PATTERN.fullmatch(kind) is None or NAME_PATTERN.fullmatch(name) is None:
        raise IllegalName("agent", text)
    return AgentId(text)


def channel_id(source: ParticipantId, target: ParticipantId) -> ChannelId:
    """A checked channel.

    Raises:
        IllegalName: Source and target are the same participant.
    """
    if source == target:
        raise IllegalName("channel", f"{source}->{target}")
    return ChannelId(source, target)
