"""``cleancut effects list | settle``: what agents did to the world outside, and a word on what is in doubt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.exits import Exit, Failure
from coordinator.cli.kinds import AGENT
from coordinator.cli.local import local_option, reader
from coordinator.cli.output import field, items, moment, note, print_json, print_table, say
from coordinator.cli.settings import looks_at_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from coordinator.cli.settings import Session
    from protocol.ids import AgentId

WORD_SECONDS = 25.0
"""Who knows the step is asked first, then told."""
CELL = 60
TOKEN_CHARACTERS_MAX = 64


@click.group()
def effects() -> None:
    """Steps that agents did outside of the cluster; settle those that are in doubt.

    A step is in doubt when it was begun and nobody knows its end: its agent waits until it is settled. It has diverged when its turn runs again and
    wants something else at the same place.
    """


@effects.command(name="list")
@click.option("--in-doubt", is_flag=True, help="Only what waits for a decision: in doubt, or diverged.")
@click.option("--agent", type=AGENT, metavar="KIND/NAME", help="Only this agent's.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@click.option("--before", metavar="CURSOR", help="Only older ones; the cursor stands in the answer before.")
@local_option
@looks_at_cluster
def list_effects(
    session: Session, *, in_doubt: bool, agent: AgentId | None, limit: int, before: str | None, local: Path | None
) -> None:
    """Steps with their tokens, newest first; with --local out of a folder, whether its participant runs or not."""
    if local is not None:
        document = reader().effects_page(local, in_doubt=in_doubt, agent=agent or "", before=before or "", limit=limit)
        rows = items(document, "effects")
        document["before"] = field(rows[-1], "cursor") if rows and document["more"] else None
    else:
        document = session.client.get(
            "effects",
            query={"in_doubt": 1 if in_doubt else None, "agent": agent, "limit": limit, "before": before},
        )
    if session.as_json:
        print_json(document)
    else:
        rows = items(document, "effects")
        if rows:
            print_table(
                ("TOKEN", "AGENT", "STEP", "STATE", "CLAIMED", "BY", "ARGUMENTS", "CAME TO"),
                [
                    (
                        field(each, "token"),
                        field(each, "agent"),
                        f"{field(each, 'name') or 'question'}#{field(each, 'ordinal')}",
                        state_of(each),
                        moment(field(each, "claimed_at_ms")),
                        field(each, "claimed_by"),
                        _cut(field(each, "arguments")),
                        _cut(_came_to(each)),
                    )
                    for each in rows
                ],
            )
        else:
            say("nothing is in doubt" if in_doubt else "no effects")
        tell_more(document, "effects list")
    tell_unanswered(document)


@effects.command()
@click.argument("token")
@click.option(
    "--result", metavar="JSON", help="It happened, and this is what it returned; null where it returns nothing."
)
@click.option("--did-not-happen", is_flag=True, help="It certainly did not happen: it is done now.")
@click.option("--take-recorded", is_flag=True, help="It has diverged: take the result that is recorded.")
@looks_at_cluster
def settle(session: Session, *, token: str, result: str | None, did_not_happen: bool, take_recorded: bool) -> None:
    """Say what became of a step that is in doubt or has diverged; its agent goes on.

    Find out at the other side first: the token went with the call. The first word counts; the same again is fine.
    """
    check_token(token)
    if (result is not None) + did_not_happen + take_recorded != 1:
        raise Failure(
            Exit.USAGE,
            "say one thing: --result JSON, --did-not-happen or --take-recorded",
            "`cleancut effects list --in-doubt` says what is known",
        )
    body: dict[str, Any] = {"did_not_happen": True} if did_not_happen else {"take_recorded": True}
    if result is not None:
        body = {"result": parse_json("--result", result)}
    document = session.client.call(
        "POST", "effects", token, "settle", body=body, timeout=session.given.timeout or WORD_SECONDS
    )
    if session.as_json:
        print_json(document)
        return
    row = field(document, "effect")
    again = " already" if field(document, "duplicate") else ""
    what = "its recorded result is taken" if take_recorded else f"{state_of(row)}{again}"
    say(f"{field(row, 'name') or 'question'} of {field(row, 'agent')}: {what}")


def state_of(row: Any) -> str:  # noqa: ANN401 - JSON
    """How a step stands, in a word."""
    standing, state = field(row, "standing"), field(row, "state")
    if standing == "claimed":
        return "claimed (its claimer does not answer)"
    shown = str(standing or state or "")
    return f"{shown} (settled)" if field(row, "settled") else shown


def _came_to(row: Any) -> str:  # noqa: ANN401 - JSON
    if isinstance(row, dict) and "result" in row and not field(row, "why"):
        return json.dumps(row["result"], ensure_ascii=False)
    return str(field(row, "why") or "")


def _cut(text: object) -> str:
    shown = str(text or "")
    return shown if len(shown) <= CELL else f"{shown[: CELL - 3]}..."


# --- also for questions -----------------------------------------------------------------------------------------------


def check_token(token: str) -> None:
    """Refuse what is no token before anybody is asked.

    Raises:
        Failure: It is none.
    """
    if not (token.isascii() and token.isalnum() and len(token) <= TOKEN_CHARACTERS_MAX):
        raise Failure(Exit.USAGE, f"{token[:80]!a} is no token", "the lists show them: 32 hex digits")


def parse_json(what: str, text: str) -> Any:  # noqa: ANN401 - JSON
    """A JSON value from the command line.

    Raises:
        Failure: It is none.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Failure(Exit.USAGE, f"{what} is not JSON: {error}", "a text needs its quotes: '\"paid\"'") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def tell_more(document: Any, command: str) -> None:  # noqa: ANN401 - JSON
    """How to see older ones, if there are."""
    cursor = field(document, "before")
    if field(document, "more") and cursor:
        say(f"older ones: cleancut {command} --before {cursor}")


def tell_unanswered(document: Any) -> None:  # noqa: ANN401 - JSON
    """Whose part is missing."""
    for each in items(document, "unanswered"):
        note(f"cleancut: {field(each, 'participant')} is not in this list: {field(each, 'why')}")
