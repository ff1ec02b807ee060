"""Entries of the effect ledger as JSON documents for people. Decodes no user's class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from participant.effects.entries import Kind, State
from protocol.consulting import CLAIMED, DIVERGED, IN_DOUBT, OPEN, UNDER_WAY, Cursor
from protocol.contents import decode_value
from protocol.errors import ObjectCorrupt
from protocol.reading import shown

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from participant.effects.entries import Entry
    from participant.failure import Parked

NS_PER_MS: Final = 1_000_000


def cursor(entry: Entry) -> Cursor:
    """Where it stands among all."""
    return Cursor(max(0, entry.claimed_at), entry.token)


def standing(entry: Entry, participant: str, running: Container[str], parked: Mapping[str, Parked]) -> str:
    """How an entry stands, as far as one participant can tell; "": it has its end, and nobody here is in two minds.

    Args:
        entry: Of the participant's effect ledger.
        participant: Who tells.
        running: Tokens of steps that are being done here.
        parked: Turns here that wait for a decision, by token.
    """
    if entry.token in running:
        return UNDER_WAY
    turn = parked.get(entry.token)
    if turn is not None:
        return DIVERGED if turn.cause == "diverged" else IN_DOUBT
    if entry.state is not State.CLAIMED:
        return ""
    if entry.kind is Kind.QUESTION:
        return OPEN
    # A claim of this participant's, by whichever of its lives, and nobody is at it.
    return IN_DOUBT if entry.participant == participant else CLAIMED


def shown_effect(entry: Entry, stands: str, turn: Parked | None = None) -> dict[str, Any]:
    """One step, or a question as an effect.

    Args:
        entry: Of the ledger.
        stands: What `standing` said.
        turn: The turn that waits for a decision about it.
    """
    found: dict[str, Any] = {
        "cursor": str(cursor(entry)),
        "token": entry.token,
        "kind": entry.kind.value,
        "agent": entry.agent,
        "name": entry.name,
        "ordinal": entry.ordinal,
        "message": entry.message_id.hex(),
        "state": entry.state.value,
        "standing": stands,
        "arguments": entry.shown,
        "claimed_by": entry.participant,
        "incarnation": entry.incarnation,
        "session": entry.session,
        "claimed_at_ms": entry.claimed_at // NS_PER_MS,
        "ended_at_ms": entry.ended_at // NS_PER_MS if entry.ended_at else None,
        "settled": entry.settled,
        "waits": turn is not None,
        "why": entry.reason if turn is None else turn.reason,
    }
    if entry.state is State.DONE:
        found["result"] = _shown(entry.result)
    return found


def shown_question(entry: Entry, *, waits: bool, expires_in: float | None) -> dict[str, Any]:
    """One question.

    Args:
        entry: Of the ledger.
        waits: A turn here waits for its answer now.
        expires_in: Seconds; None: it does not, or that is not known here.
    """
    found: dict[str, Any] = {
        "cursor": str(cursor(entry)),
        "token": entry.token,
        "agent": entry.agent,
        "question": _shown(entry.payload),
        "state": entry.state.value,
        "standing": OPEN if entry.state is State.CLAIMED else "",
        "claimed_by": entry.participant,
        "claimed_at_ms": entry.claimed_at // NS_PER_MS,
        "ended_at_ms": entry.ended_at // NS_PER_MS if entry.ended_at else None,
        "waits": waits,
        "expires_in_ms": None if expires_in is None else round(expires_in * 1000),
    }
    if entry.state is State.DONE:
        found["answer"] = _shown(entry.result)
    return found


def _shown(data: bytes) -> Any:  # noqa: ANN401 - any value
    try:
        return shown(decode_value(data, "value"))
    except ObjectCorrupt:
        return shown(data)
