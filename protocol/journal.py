"""What a cut keeps of a turn that is not over: its finished steps, and the questions that nobody has answered yet.

After a restore the turn runs again from its start. Finished steps answer from here, or from the effect ledger; a question goes
on waiting with the time that was left.
"""

from __future__ import annotations

import msgspec


class FinishedStep(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One step or question with its end, in the order in which they ended. Append-only: old readers skip the rest."""

    message_id: bytes
    """Of the message that the turn handles."""
    kind: str
    """``step`` or ``question``."""
    name: str
    ordinal: int
    """From 0, among those of one kind and name in the turn, in order of calling."""
    state: str
    """``done``, ``failed`` or ``expired``."""
    result: bytes
    """msgpack of the result or answer."""
    reason: str
    """Why it failed."""
    intent: bytes
    """Digest of the declared arguments."""
    shown: str
    """The declared arguments, for people."""


class OpenQuestion(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One question without an answer. Append-only: old readers skip the rest."""

    message_id: bytes
    """Of the message that the turn handles."""
    ordinal: int
    token: str
    """What it is answered by."""
    question: bytes
    """msgpack of the question."""
    left_ns: int
    """Nanoseconds until it expires; -1: it does not."""
