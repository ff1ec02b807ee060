"""``cleancut questions list | answer``: what agents ask of people."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from coordinator.cli.effects import WORD_SECONDS, check_token, parse_json, tell_more, tell_unanswered
from coordinator.cli.kinds import AGENT
from coordinator.cli.local import local_option, reader
from coordinator.cli.output import field, items, moment, print_json, print_table, say, span
from coordinator.cli.settings import looks_at_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from coordinator.cli.settings import Session
    from protocol.ids import AgentId


@click.group()
def questions() -> None:
    """Questions that agents ask, and wait for the answer of."""


@questions.command(name="list")
@click.option("--agent", type=AGENT, metavar="KIND/NAME", help="Only this agent's.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@click.option("--before", metavar="CURSOR", help="Only older ones; the cursor stands in the answer before.")
@local_option
@looks_at_cluster
def list_questions(
    session: Session, *, agent: AgentId | None, limit: int, before: str | None, local: Path | None
) -> None:
    """Open questions with their tokens, newest first."""
    if local is not None:
        document = reader().questions_page(local, agent=agent or "", before=before or "", limit=limit)
        rows = items(document, "questions")
        document["before"] = field(rows[-1], "cursor") if rows and document["more"] else None
    else:
        document = session.client.get("questions", query={"agent": agent, "limit": limit, "before": before})
    if session.as_json:
        print_json(document)
    else:
        rows = items(document, "questions")
        if rows:
            print_table(
                ("TOKEN", "AGENT", "ASKED", "EXPIRES IN", "QUESTION"),
                [
                    (
                        field(each, "token"),
                        field(each, "agent"),
                        moment(field(each, "claimed_at_ms")),
                        span(field(each, "expires_in_ms")),
                        _text(field(each, "question")),
                    )
                    for each in rows
                ],
            )
        else:
            say("no question is open")
        tell_more(document, "questions list")
    tell_unanswered(document)


@questions.command()
@click.argument("token")
@click.argument("answer", metavar="JSON")
@looks_at_cluster
def answer(session: Session, *, token: str, answer: str) -> None:
    """Answer a question with a JSON value: true, 12, '"yes"', '{"cents": 5}'.

    The first answer counts: a later one, or one that comes after the question has expired, is refused. The same again is fine.
    """
    check_token(token)
    document = session.client.call(
        "POST",
        "questions",
        token,
        "answer",
        body={"answer": parse_json("the answer", answer)},
        timeout=session.given.timeout or WORD_SECONDS,
    )
    if session.as_json:
        print_json(document)
        return
    row = field(document, "question")
    again = "had this answer already" if field(document, "duplicate") else "has its answer"
    say(f"{field(row, 'agent')} {again}: {_text(field(row, 'question'))}")


def _text(question: object) -> str:
    return question if isinstance(question, str) else json.dumps(question, ensure_ascii=False)
