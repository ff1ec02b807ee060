"""What an operator asks of participants over the coordinators: their effects, questions and turns; and pages of long answers.

A request is one of `ConsultRequest`, carried by `protocol.messages.Consult` to one participant. Its answer is a JSON document
of bounded size, as the API hands it on. Rows of effects and questions come newest first; the place of a row among all rows of
all participants is its *cursor*, so pages of several participants can be put together without losing one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from protocol.limits import CONSULT_BYTES_MAX, CONSULT_ROW_BYTES_MAX, CONSULT_ROWS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HAPPENED: Final = "happened"
DID_NOT_HAPPEN: Final = "did-not-happen"
TAKE_RECORDED: Final = "take-recorded"

UNDER_WAY: Final = "under-way"
"""A step that is being done now."""
IN_DOUBT: Final = "in-doubt"
"""A step that was begun and has no end that anybody knows of."""
DIVERGED: Final = "diverged"
"""A step that has an end, at a place where its turn now wants something else."""
CLAIMED: Final = "claimed"
"""A step that somebody else has begun: whoever answers cannot tell more."""
OPEN: Final = "open"
"""A question that nobody has answered."""
_SAYS_MORE: Final = {UNDER_WAY: 4, DIVERGED: 3, IN_DOUBT: 2, OPEN: 2, CLAIMED: 1}


class ListEffects(msgspec.Struct, frozen=True, kw_only=True, tag="list-effects"):
    """Steps of the effect ledger, newest first."""

    in_doubt: bool = False
    """Only what waits for somebody's decision."""
    agent: str = ""
    """"": of all agents."""
    token: str = ""
    """Only this one, whatever it is; "": all."""
    before: str = ""
    """Cursor: only older ones."""
    limit: int = 100


class SettleEffect(msgspec.Struct, frozen=True, kw_only=True, tag="settle-effect"):
    """What became of a step."""

    token: str
    how: str
    """`HAPPENED`, `DID_NOT_HAPPEN` or `TAKE_RECORDED`."""
    result: bytes = b"null"
    """JSON, with `HAPPENED`."""


class ListQuestions(msgspec.Struct, frozen=True, kw_only=True, tag="list-questions"):
    """Open questions, newest first."""

    agent: str = ""
    token: str = ""
    """Only this one, open or not; "": all."""
    before: str = ""
    limit: int = 100


class AnswerQuestion(msgspec.Struct, frozen=True, kw_only=True, tag="answer-question"):
    """Somebody's answer."""

    token: str
    answer: bytes
    """JSON."""


class ReadHistory(msgspec.Struct, frozen=True, kw_only=True, tag="read-history"):
    """The newest turns of an agent in its participant's turn log, oldest of them first."""

    agent: str
    before: int = 0
    """Number of a record: only older ones; 0: up to the newest."""
    limit: int = 50


ConsultRequest: TypeAlias = ListEffects | SettleEffect | ListQuestions | AnswerQuestion | ReadHistory


# --- pages ------------------------------------------------------------------------------------------------------------


class Cursor(NamedTuple):
    """Where a row stands: later ones compare greater."""

    at: int
    """Wall clock, nanoseconds."""
    token: str

    def __str__(self) -> str:
        return f"{self.at}-{self.token}"


def cursor_of(text: object) -> Cursor | None:
    """A cursor from its text; None: it is none."""
    at, dash, token = text.partition("-") if isinstance(text, str) else ("", "", "")
    if not dash or not (at.isascii() and at.isdigit() and len(at) <= 19) or not (0 < len(token) <= 64):
        return None
    return Cursor(int(at), token) if token.isascii() and token.isalnum() else None


class Page(NamedTuple):
    """Some rows, in order, and whether there are more behind them."""

    rows: list[dict[str, Any]]
    more: bool


def page_of(rows: Iterable[dict[str, Any]], limit: int) -> Page:
    """As many of these rows, in their order, as fit into one answer; at least one if there is one.

    A row that is far too long by itself loses its longest parts.
    """
    kept: list[dict[str, Any]] = []
    size = 0
    most = max(1, min(limit, CONSULT_ROWS_MAX))
    for row in rows:
        bounded, length = _bounded(row)
        if kept and (len(kept) >= most or size + length > CONSULT_BYTES_MAX - 4096):
            return Page(kept, more=True)
        kept.append(bounded)
        size += length
    return Page(kept, more=False)


def _bounded(row: dict[str, Any]) -> tuple[dict[str, Any], int]:
    length = _length(row)
    if length <= CONSULT_ROW_BYTES_MAX:
        return row, length
    cut = dict(row)
    for key in sorted(cut, key=lambda name: _length(cut[name]), reverse=True):
        if length <= CONSULT_ROW_BYTES_MAX:
            break
        was = _length(cut[key])
        cut[key] = {"left_out_bytes": was}
        length += _length(cut[key]) - was
    return cut, length


def _length(value: object) -> int:
    return len(json.dumps(value, separators=(",", ":")))


def merged(pages: Sequence[Page], limit: int) -> Page:
    """The pages of several participants as one, newest first, each token once.

    A page that is not whole says nothing of what lies behind its last row: so nothing older than that is shown, and the next
    page begins there. Of rows with one token, the one that says more counts.
    """
    floor: Cursor | None = None
    found: dict[str, dict[str, Any]] = {}
    for page in pages:
        last: Cursor | None = None
        for row in page.rows:
            cursor = cursor_of(row.get("cursor"))
            if cursor is None:
                continue
            last = cursor
            known = found.get(cursor.token)
            if known is None or _rank(row) > _rank(known):
                found[cursor.token] = row
        if page.more and last is not None and (floor is None or last > floor):
            floor = last
    placed = [(cursor, row) for row in found.values() if (cursor := cursor_of(row["cursor"])) is not None]
    kept = sorted(
        (each for each in placed if floor is None or each[0] >= floor), key=lambda each: each[0], reverse=True
    )
    rows = [row for _, row in kept]
    most = max(1, min(limit, CONSULT_ROWS_MAX))
    more = any(page.more for page in pages) or len(rows) > most or len(kept) < len(placed)
    return Page(rows[:most], more=more)


def _rank(row: dict[str, Any]) -> tuple[int, bool, int]:
    ended = row.get("ended_at_ms")
    return (
        _SAYS_MORE.get(str(row.get("standing")), 0),
        bool(row.get("waits")),
        ended if isinstance(ended, int) else 0,
    )
