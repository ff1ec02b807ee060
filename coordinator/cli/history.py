"""``cleancut agent list | history``: the agents of the cluster, and what one of them did, turn by turn."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.effects import tell_unanswered
from coordinator.cli.exits import Exit, Failure
from coordinator.cli.kinds import AGENT
from coordinator.cli.local import local_option, reader
from coordinator.cli.output import field, items, moment, print_json, print_table, say, span
from coordinator.cli.settings import looks_at_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from coordinator.cli.settings import Session
    from protocol.ids import AgentId

HISTORY_SECONDS = 20.0
"""A long log is read from the disk."""
VALUE_CHARACTERS_MAX = 120


@click.command(name="list")
@local_option
@looks_at_cluster
def list_agents(session: Session, *, local: Path | None) -> None:
    """All agents, where they are, and which of them wait for a decision; with --local those with turns in a log."""
    if local is not None:
        rows = reader().logged_agents(local)
        if session.as_json:
            print_json({"agents": rows})
            return
        print_table(
            ("AGENT", "PARTICIPANT", "TURNS LOGGED", "LAST"),
            [(row["agent"], row["participant"], row["turns"], moment(row["last_turn_at_ms"])) for row in rows],
            numbers=("TURNS LOGGED",),
        )
        return
    document = session.client.read("agents")
    if session.as_json:
        print_json(document)
        return
    known = items(document, "agents")
    if not known:
        say("no agents: no participant has registered yet")
        return
    print_table(
        ("AGENT", "PARTICIPANT", "STATE", "VERSION", "WAITS FOR"),
        [
            (
                field(each, "agent"),
                field(each, "participant"),
                field(each, "participant_state"),
                field(each, "state_version"),
                waits_for(field(each, "waiting")),
            )
            for each in known
        ],
        numbers=("VERSION",),
    )


@click.command()
@click.argument("name", metavar="AGENT", type=AGENT)
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="The newest so many turns.")
@click.option("--before", type=click.IntRange(min=1), help="Only turns before the record with this number.")
@local_option
@looks_at_cluster
def history(session: Session, *, name: AgentId, limit: int, before: int | None, local: Path | None) -> None:
    """Turns of an agent with their steps, sends, timers and outputs, oldest first, from its participant's log of turns.

    The log is kept with durability `turn`, back to the newest committed epoch.
    """
    if local is not None:
        document = reader().history_document(local, name, before=before or 0, limit=limit)
        if document is None:
            raise Failure(
                Exit.NOT_FOUND, f"no log under {local} has a turn of {name}", "`cleancut agent list --local DIR`"
            )
    else:
        document = session.client.call(
            "GET",
            "agents",
            *name.split("/"),
            "history",
            query={"limit": limit, "before": before},
            timeout=session.given.timeout or HISTORY_SECONDS,
        )
    if session.as_json:
        print_json(document)
        return
    turns = items(document, "turns")
    if not turns:
        say(f"no turn of {name} is in the log of {field(document, 'participant')}")
    elif field(document, "more"):
        say(f"older ones: cleancut agent history {name} --before {field(turns[0], 'number')}")
    for turn in turns:
        for line in lines_of(turn):
            say(line)
    tell_unanswered(document)


def waits_for(waiting: Any) -> str:  # noqa: ANN401 - JSON
    """What a parked agent waits for, in a few words."""
    if not isinstance(waiting, dict):
        return ""
    return f"{field(waiting, 'cause')}: {field(waiting, 'step') or 'question'} ({field(waiting, 'token')})"


def lines_of(turn: Any) -> list[str]:  # noqa: ANN401 - JSON
    """A turn: one line for the message and the outcome, one for each thing that it did."""
    at = field(turn, "at")
    message = f"{field(turn, 'message', 'type')} from {field(turn, 'message', 'source')}"
    outcome = field(turn, "outcome")
    tries = field(turn, "attempt")
    attempt = f", attempt {tries}" if isinstance(tries, int) and tries > 1 else ""
    reason = f": {field(turn, 'reason')}" if field(turn, "reason") else ""
    when = moment(at // 1_000_000) if isinstance(at, int) else ""
    found = [f"{field(turn, 'number')!s:>6}  {when}  {message}  {outcome}{attempt}{reason}"]
    fields = items(turn, "fields")
    if fields:
        found.append(f"        changed {', '.join(map(str, fields))}")
    for each in items(turn, "steps"):
        name = field(each, "name") or "question"
        end = field(each, "state")
        value = field(each, "reason") or (_shown(each["result"]) if isinstance(each, dict) and "result" in each else "")
        found.append(f"        {field(each, 'kind')} {name}#{field(each, 'ordinal')} {end} {value}".rstrip())
    for each in items(turn, "sends"):
        line = f"sent {field(each, 'type')} to {field(each, 'target')}"
        found.append(f"        {line} {_shown(field(each, 'body'))}")
    for each in items(turn, "timers"):
        delay = field(each, "in_ns")
        after = span(delay / 1_000_000) if isinstance(delay, int) else "?"
        found.append(f"        timer in {after}: {field(each, 'type')} {_shown(field(each, 'body'))}")
    return found + [
        f"        output to {field(each, 'sink')} {_shown(field(each, 'payload'))}" for each in items(turn, "outputs")
    ]


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[: VALUE_CHARACTERS_MAX - 3]}..."
