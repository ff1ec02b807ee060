"""``cleancut epoch pin | unpin``: epochs that have a name and are kept; and what a name stands for, for all other commands.

Names are in the ledger, so the coordinators know them. A store alone does not: there a number has to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.exits import Exit, Failure
from coordinator.cli.kinds import EPOCH, SAVEPOINT
from coordinator.cli.output import field, items, listed, print_json, say
from coordinator.cli.settings import looks_at_cluster

if TYPE_CHECKING:
    from coordinator.cli.settings import Session

_HOW_TO_FREE = "take another name, or take this one back first: `cleancut epoch unpin {}`"


@click.command()
@click.argument("number", type=EPOCH, metavar="EPOCH")
@click.argument("name", type=SAVEPOINT)
@looks_at_cluster
def pin(session: Session, *, number: int | str, name: str) -> None:
    """Name a committed epoch, and keep it: a savepoint.

    Every command that takes an epoch takes its name. It stands for this epoch, through rollbacks and restarts of everything, until
    it is taken back with `unpin`. An epoch may have several names. The same again is fine.

    \b
    Before something daring, and back:
      cleancut epoch trigger --name before-the-migration
      cleancut epoch restore before-the-migration
    """  # noqa: D301 - click wants the character itself
    if not isinstance(number, int):
        # Asked once: where the answer to the request below is lost, `latest` may be another one the next time.
        number = number_of(session, number)
    document = give_name(session, number, name)
    if session.as_json:
        print_json(document)
    elif field(document, "outcome") == "already":
        say(f"epoch {number} is savepoint {name} already")
    else:
        say(f"epoch {number} is savepoint {name} now, and is kept")


@click.command()
@click.argument("name", type=SAVEPOINT)
@looks_at_cluster
def unpin(session: Session, *, name: str) -> None:
    """Take a savepoint's name back. Its epoch then goes the way of all others."""
    # Not asked again where the answer is lost: the second answer would be that there is none.
    document = session.client.call("DELETE", "savepoints", name, repeatable=False)
    if session.as_json:
        print_json(document)
        return
    rest = items(document, "names")
    still = f"it is still {listed(rest)}" if rest else "it is kept no longer than others"
    say(f"epoch {field(document, 'epoch')} is not savepoint {name} any more; {still}")


def give_name(session: Session, number: int, name: str) -> Any:  # noqa: ANN401 - JSON
    """Name an epoch.

    Raises:
        Failure: It is not there, is not committed, or the name is another's.
    """
    return session.client.call("POST", "epochs", number, "pin", body={"name": name})


def demand_free(session: Session, name: str) -> None:
    """See that nothing has this name, before an epoch is taken for it.

    Raises:
        Failure: Something has.
    """
    for each in items(session.client.read("savepoints", strict=True), "savepoints"):
        if field(each, "name") == name:
            raise Failure(
                Exit.REFUSED,
                f"savepoint {name} is epoch {field(each, 'epoch')}; no epoch was started",
                _HOW_TO_FREE.format(name),
                code="name-taken",
            )


def named(number: int | str) -> bool:
    """Whether this is the name of a savepoint."""
    return isinstance(number, str) and number not in {"latest", "start"}


def number_of(session: Session, number: int | str, *, cluster: str = "") -> int:
    """The epoch that is meant, as the coordinators say.

    Args:
        session: Names the coordinators.
        number: A number, ``latest`` or a name.
        cluster: Whose epochs are meant; "": that of the coordinators.

    Raises:
        Failure: There is no such epoch, nobody answers, or who answers is another cluster.
    """
    if isinstance(number, int):
        return number
    try:
        found = field(session.client.read("epochs", number), "epoch")
        theirs = field(session.client.read("status"), "cluster") if cluster else cluster
    except Failure as failure:
        if failure.exit is not Exit.UNREACHABLE:
            raise
        what = f"what savepoint {number} is" if named(number) else "which epoch is the latest"
        hint = "or give the epoch's number"
        raise Failure(
            failure.exit,
            f"only the coordinators know {what}: {failure.message}",
            f"{failure.hint}, {hint}" if failure.hint else hint,
            code=failure.code,
        ) from None
    if theirs != cluster:
        raise Failure(
            Exit.REFUSED,
            f"the coordinators that were asked for savepoint {number} are of cluster {theirs}, not {cluster}",
            "name the cluster's own with --dir or --coordinators, or give the epoch's number",
            code="foreign-cluster",
        )
    if not isinstance(found, int):
        raise Failure(Exit.FAILED, f"the coordinators do not say what epoch {number} is", "give the epoch's number")
    return found


def not_in_a_store(name: str) -> Failure:
    """The end of a command that was to find a name without asking a coordinator."""
    return Failure(
        Exit.NOT_FOUND,
        f"{name} can only be the name of a savepoint, and a store does not know names: the coordinators do",
        "give the epoch's number; `cleancut epoch show NAME` asks the coordinators for it",
        code="no-savepoint",
    )
