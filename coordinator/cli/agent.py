"""``cleancut agent list | history | move``: single agents; the first two are in `history`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from coordinator.cli.exits import Exit, Failure
from coordinator.cli.history import history, list_agents
from coordinator.cli.kinds import AGENT
from coordinator.cli.output import field, print_json, say, span
from coordinator.cli.settings import looks_at_cluster

if TYPE_CHECKING:
    from coordinator.cli.settings import Session
    from protocol.ids import AgentId

MOVE_SECONDS: Final = 600.0


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
    reason = f"move {name} to {participant}"
    taken = session.client.call(
        "POST", "epochs", body={"reason": reason, "wait": True}, repeatable=False, timeout=seconds
    )
    number = field(taken, "epoch")
    if field(taken, "state") != "committed":
        raise Failure(
            Exit.FAILED,
            f"{name} was not moved: epoch {number} was aborted",
            f"see `cleancut epoch why {number}`",
            code="epoch-aborted",
        )
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
        raise Failure(
            Exit.FAILED,
            f"incarnation {field(document, 'incarnation')}, in which {name} is on {participant}, did not begin",
            "see `cleancut status --incarnations`",
            code="restore-failed",
            shown=session.as_json,
        )
    if not session.as_json:
        say(f"{name} is on {participant}; the cluster stood still for {span(field(document, 'took_ms'))}")
