"""``cleancut epoch restore``: says what will be given up and what stays, asks, waits for the end and says how long it took."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from coordinator.cli.exits import Exit, Failure
from coordinator.cli.output import field, items, note, plural, print_json, say, span
from coordinator.cli.restore_check import CHECK_SECONDS, demand_ok, tell_outside
from coordinator.cli.savepoints import named, number_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.cli.settings import Session

BEGIN_SECONDS: Final = 60.0
"""Until it is under way: sealed epochs commit first, suspicions are settled."""
END_SECONDS: Final = 600.0
POLL_SECONDS: Final = 0.2
SHOWN_MAX: Final = 8
"""Epochs that are named one by one."""


class Wanted(NamedTuple):
    """What is to be done."""

    number: int | str
    """A number, ``latest``, ``start``, or a savepoint's name."""
    reason: str
    renames: Mapping[str, str]
    allow_unclaimed: bool
    wait: bool
    yes: bool


def restore(session: Session, wanted: Wanted) -> None:
    """Do it.

    Raises:
        Failure: There is no such epoch, it cannot be restored, the answer was no, or the incarnation did not begin.
    """
    number = _resolved(session, wanted.number)
    # Without a terminal there is nobody to ask, and nothing is worked out for nobody.
    asks = not wanted.yes
    if asks and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failure(
            Exit.USAGE,
            "a restore gives up what happened since: in a script, say --yes",
            "see what it would do: `cleancut epoch restore EPOCH --check`",
            code="not-confirmed",
        )
    _tell_consequences(session, wanted, number)
    if asks and not click.confirm("Take the whole cluster back?", default=False, err=True):
        raise Failure(Exit.REFUSED, "nothing was done", code="not-confirmed")
    begun = session.client.call(
        "POST",
        "epochs",
        # A name may stand for something else by now: what was shown is what is done.
        number if named(wanted.number) else wanted.number,
        "restore",
        body={
            "reason": wanted.reason,
            "wait": False,
            **({"map": dict(wanted.renames)} if wanted.renames else {}),
            **({"allow_unclaimed": True} if wanted.allow_unclaimed else {}),
        },
        repeatable=False,
        timeout=session.given.timeout or BEGIN_SECONDS,
    )
    document = _end_of(session, begun) if wanted.wait else begun
    if session.as_json:
        print_json(document)
    _tell_end(session, document)


def _resolved(session: Session, number: int | str) -> int:
    """The epoch; 0: the start. `latest` is where the next rollback would go to."""
    if number == "start":
        return 0
    if number == "latest":
        found = field(session.client.read("status"), "recovery", "epoch")
        return found if isinstance(found, int) else 0
    return number_of(session, number)


def _tell_consequences(session: Session, wanted: Wanted, number: int) -> None:
    """What lies after the epoch, for people; and whether it would go through, for everybody.

    Raises:
        Failure: It would not.
    """
    newer = [
        each
        for each in items(session.client.read("epochs", query={"limit": 1000}), "epochs")
        if field(each, "state") == "committed" and int(field(each, "epoch") or 0) > number
    ]
    if newer:
        numbers = sorted(int(field(each, "epoch")) for each in newer)
        shown = ", ".join(map(str, numbers[:SHOWN_MAX])) + (" and others" if len(numbers) > SHOWN_MAX else "")
        note(f"after it: {plural(len(numbers), 'newer epoch')} ({shown}); what happened in them is given up")
    if not number:
        note("every agent begins anew")
        return
    try:
        plan = session.client.call(
            "POST",
            "epochs",
            number,
            "check",
            body={
                "allow_unclaimed": wanted.allow_unclaimed,
                **({"map": dict(wanted.renames)} if wanted.renames else {}),
            },
            timeout=session.given.timeout or CHECK_SECONDS,
        )
    except Failure as failure:
        # `latest` goes further back where this one is damaged, if the policy says so; the coordinators decide.
        if wanted.number != "latest" or failure.exit is not Exit.INCONSISTENT:
            raise
        note(f"epoch {number} is damaged: {failure.message}")
        return
    demand_ok(session, plan)
    for kind in ("output", "effect"):
        tell_outside(plan, kind, tell=note)
    dropped = [field(each, "agent") for each in items(plan, "agents") if field(each, "fate") == "unclaimed"]
    if dropped:
        note(f"given up, nobody takes them: {', '.join(map(str, dropped))}")
    for line in items(plan, "notes"):
        note(str(line))


def _end_of(session: Session, begun: Any) -> Any:  # noqa: ANN401 - JSON
    """The rollback once it is over.

    Raises:
        Failure: It is not within the time.
    """
    incarnation = field(begun, "incarnation")
    until = time.monotonic() + (session.given.timeout or END_SECONDS)
    shown = ""
    on_terminal = sys.stderr.isatty() and not session.as_json
    document = begun
    while field(document, "state") in {"fencing", "restoring"}:
        if on_terminal:
            line = (
                f"{field(document, 'state')}: {field(document, 'restored_count')} of {field(document, 'members_count')}"
            )
            if line != shown:
                sys.stderr.write(f"\r{line} participants ")
                sys.stderr.flush()
                shown = line
        if time.monotonic() > until:
            raise Failure(
                Exit.FAILED,
                f"incarnation {incarnation} has not begun yet: {field(document, 'state')}",
                "it goes on; see `cleancut status --incarnations`",
                code="still-restoring",
            )
        time.sleep(POLL_SECONDS)
        known = items(session.client.read("incarnations"), "rollbacks")
        document = next((each for each in known if field(each, "incarnation") == incarnation), document)
    if shown:
        sys.stderr.write("\n")
    return document


def _tell_end(session: Session, document: Any) -> None:  # noqa: ANN401 - JSON
    incarnation, state = field(document, "incarnation"), field(document, "state")
    place = f"epoch {field(document, 'epoch')}" if field(document, "epoch") else "the start"
    if state in {"failed", "superseded"}:
        failure = field(document, "failure")
        why_not = f"{field(failure, 'participant')}: {field(failure, 'cause')}" if isinstance(failure, dict) else state
        corrupt = isinstance(failure, dict) and field(failure, "kind") == "corrupt"
        raise Failure(
            Exit.INCONSISTENT if corrupt else Exit.FAILED,
            f"incarnation {incarnation} from {place} did not begin: {why_not}",
            "see `cleancut status --incarnations`",
            code=f"restore-{state}",
            shown=session.as_json,
        )
    if session.as_json:
        return
    members = plural(int(field(document, "members_count") or 0), "participant")
    took = f" in {span(field(document, 'took_ms'))}" if state == "done" else f", {state}"
    say(f"incarnation {incarnation}: {members} back at {place}{took}")
    for old, new in (field(document, "map") or {}).items():
        say(f"{old} is {new} now")
    dropped = items(document, "dropped")
    if dropped:
        say(f"given up, nobody takes them: {', '.join(map(str, dropped))}")
    if "in place of" in str(field(document, "cause")):
        say(f"because: {field(document, 'cause')}")
