"""One entry of the effect ledger, its token, and what its arguments were meant to be.

Rules:
    * The token is a position: H(cluster, agent, input message id, kind, name, ordinal). Message ids are lineage, so work that
      is done again after a rollback comes to the same tokens, whatever its arguments are this time.
    * The *intent* is what must not change between two times: the digest of the declared arguments. The text beside it is
      for people, who must see both versions.
    * An entry says who claimed it: participant, incarnation, session. What is older than the newest that the ledger knows of
      cannot claim and cannot write a result.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec
from blake3 import blake3

from protocol.limits import EFFECT_SHOWN_CHARS_MAX
from protocol.outputs import FencingToken

TOKEN_BYTES: Final = 16
INTENT_BYTES: Final = 16


class Kind(StrEnum):
    """What an entry stands for."""

    STEP = "step"
    """A call that an agent makes."""
    QUESTION = "question"
    """A question that somebody outside answers."""


class State(StrEnum):
    """How far it is."""

    CLAIMED = "claimed"
    """A step: it was about to be done; whether it was is not known here. A question: it is open."""
    DONE = "done"
    """It happened, and this is its result; or the question's answer."""
    FAILED = "failed"
    """It was tried, and has a definite end that is no result."""
    RELEASED = "released"
    """It certainly did not happen; it may be claimed anew."""
    EXPIRED = "expired"
    """A question that nobody answered in time."""


class Entry(msgspec.Struct, array_like=True):
    """One effect. Append-only: old readers skip the rest."""

    token: str
    kind: Kind
    agent: str
    message_id: bytes
    """Of the message whose turn came to this position."""
    name: str
    ordinal: int
    """From 0, among those of one name in one turn, in order of calling."""
    intent: bytes
    """Digest of the declared arguments."""
    shown: str
    """The declared arguments, for people."""
    payload: bytes
    """A question: the encoded question."""
    participant: str
    incarnation: int
    session: int
    claim_id: bytes
    """Of this very claim: one that is repeated because its answer was lost is the same claim."""
    claimed_at: int
    """Wall clock, nanoseconds: for people."""
    state: State = State.CLAIMED
    result: bytes = b""
    """Encoded."""
    reason: str = ""
    """Why it failed, or what made it doubtful."""
    ended_at: int = 0
    """Wall clock, nanoseconds."""
    settled: bool = False
    """An operator said so."""
    accepted: bytes = b""
    """Intent that differs from the recorded one and that an operator accepted."""
    closed_after: int = -1
    """The turn has committed: the newest epoch started by then. Only it and older ones can bring the position back. -1: not yet."""
    closed_in: int = 0
    """Incarnation in which the turn has committed."""

    @property
    def claimed_by(self) -> FencingToken:
        """Whose claim it is."""
        return FencingToken(self.participant, self.incarnation, self.session)

    @property
    def ended(self) -> bool:
        """It has a result of some kind."""
        return self.state in {State.DONE, State.FAILED, State.EXPIRED}


def effect_token(cluster: str, agent: str, message_id: bytes, kind: Kind, name: str, ordinal: int) -> str:
    """The position's token: 32 hex digits.

    Args:
        cluster: Its name: a fork of the cluster does its own effects.
        agent: Whose turn.
        message_id: Of the message that the turn handles.
        kind: Steps and questions are counted apart.
        name: Of the step.
        ordinal: From 0, among those of this kind and name in the turn.
    """
    parts = (cluster.encode(), agent.encode(), message_id, kind.value.encode(), name.encode(), b"%d" % ordinal)
    # Each with its length: no two positions have one text.
    text = b"".join(len(part).to_bytes(4, "big") + part for part in (b"cleancut effect", *parts))
    return blake3(text).hexdigest(length=TOKEN_BYTES)


def intent_digest(encoded: bytes) -> bytes:
    """The digest of encoded arguments."""
    return blake3(encoded).digest(length=INTENT_BYTES)


def shown_arguments(values: object) -> str:
    """Arguments for people: one line, bounded, whatever their own ``__repr__`` does."""
    try:
        text = " ".join(repr(values).split())
    except Exception:  # noqa: BLE001 - a user's __repr__ may raise anything, and the step must go on
        text = "(cannot be shown)"
    if len(text) > EFFECT_SHOWN_CHARS_MAX:
        text = f"{text[: EFFECT_SHOWN_CHARS_MAX - 40]}... ({len(text)} characters)"
    return text
