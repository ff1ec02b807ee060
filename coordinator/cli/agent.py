"""``cleancut agent list | history | move``: single agents; the first two are in `history`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from coordinator.cli.exits import Exit, Failure
from coordinator.cli.history import history, list_agents
from coordinator.cli.kinds import AGENT
from coordinator.cli.output import field, items, print_json, say, span
from coordinator.cli.settings import looks_at_cluster

if TYPE_CHECKING:
    from coordinator.cli.settings import Session
    from protocol.ids import AgentId

MOVE_SECONDS: Final = 600.0
AGAIN_SECONDS: Final = 0.2
"""Between two attempts to start an epoch while another one is under way."""
SHOWN_MAX: Final = 10


@click.group()
def agent() -> None:
    """Single agents: where they are, what they did; move one."""


agent.add_command(list_agents)
agent.add_command(history)


@agent.command(short_help="Move an agent to another participant.")
@click.argument("name", type=AGENT, metavar="AGENT")
@click.argument("participant")
@looks_at_cluster
def move(session: Session, *, name: AgentId, participant: str) -> None:
    """Move an agent, with its state, its mailbox and its timers.

    An epoch is taken, and the whole cluster goes on from it with AGENT on PARTICIPANT, which must declare it or take its kind.
    What happens between the two is given up and done again.
    """
    seconds = session.given.timeout or MOVE_SECONDS
    where = _demand_movable(session, name, participant)
    if where == participant:
        if session.as_json:
            print_json({"agent": name, "participant": participant, "moved": False})
        else:
            say(f"{name} is on {participant} already; nothing was done")
        return
    reason = f"move {name} to {participant}"
    number = _take_epoch(session, name, reason, seconds)
    document = session.client.call(
        "POST",
        "epochs",
        number,
        "restore",
        body={"reason": reason, "wait": True, "moves": {name: participant}},
        repeatable=False,
        timeout=seconds,
    )
    if session.as_json:
        print_json(document)
    if field(document, "state") != "done":
        failure = field(document, "failure")
        why_not = f": {field(failure, 'participant')}: {field(failure, 'cause')}" if isinstance(failure, dict) else ""
        raise Failure(
            Exit.FAILED,
            f"incarnation {field(document, 'incarnation')}, in which {name} is on {participant}, did not begin{why_not}",
            "see `cleancut status --incarnations`",
            code="restore-failed",
            shown=session.as_json,
        )
    if not session.as_json:
        say(f"{name} is on {participant}; the cluster stood still for {span(field(document, 'took_ms'))}")


def _demand_movable(session: Session, name: AgentId, participant: str) -> str:
    """Where the agent is now: seen before an epoch is taken for nothing.

    Raises:
        Failure: One of the two is not there, or they do not go together.
    """
    known = [
        each
        for each in items(session.client.read("participants", strict=True), "participants")
        if field(each, "state") in {"joining", "member", "leaving"}
    ]
    host = next((str(field(each, "id")) for each in known if name in items(each, "agents")), "")
    target = next((each for each in known if field(each, "id") == participant), None)
    if target is None:
        there = ", ".join(str(field(each, "id")) for each in known[:SHOWN_MAX]) or "nobody"
        raise Failure(Exit.NOT_FOUND, f"{participant} is not there", f"there now: {there}", code="unknown-participant")
    if not host:
        raise Failure(
            Exit.NOT_FOUND, f"nobody hosts {name}", "`cleancut agent list` shows who hosts what", code="unknown-agent"
        )
    kind = name.partition("/")[0]
    if host != participant and kind not in items(target, "kinds") and name not in items(target, "declared"):
        raise Failure(
            Exit.REFUSED,
            f"{participant} does not take agents of kind {kind}",
            "start it with takes=[...] of that agent's class",
            code="not-placed",
        )
    return host


def _take_epoch(session: Session, name: AgentId, reason: str, seconds: float) -> int:
    """A committed epoch of now; one that is under way is waited for.

    Raises:
        Failure: It was aborted, or cannot be started.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            taken = session.client.call(
                "POST", "epochs", body={"reason": reason, "wait": True}, repeatable=False, timeout=seconds
            )
        except Failure as failure:
            if failure.code not in {"epoch-open", "too-soon"} or time.monotonic() > until:
                raise
            time.sleep(AGAIN_SECONDS)
            continue
        number = field(taken, "epoch")
        if field(taken, "state") == "committed" and isinstance(number, int):
            return number
        raise Failure(
            Exit.FAILED,
            f"{name} was not moved: epoch {number} was aborted",
            f"see `cleancut epoch why {number}`",
            code="epoch-aborted",
        )
