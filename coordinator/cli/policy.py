"""``cleancut policy show | set``: when epochs are started; a change takes effect at once, on whoever leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.cluster import policy_line
from coordinator.cli.kinds import DURATION
from coordinator.cli.output import print_json, print_pairs, say, span
from coordinator.cli.settings import looks_at_cluster
from protocol.limits import CONCURRENT_EPOCHS_MAX

if TYPE_CHECKING:
    from coordinator.cli.settings import Session


@click.group()
def policy() -> None:
    """When epochs are started: show it, change it."""


@policy.command()
@looks_at_cluster
def show(session: Session) -> None:
    """The policy as it is now."""
    document = session.client.read("policy")
    if session.as_json:
        print_json(document)
        return
    _print(document)


@policy.command(name="set")
@click.option("--kind", type=click.Choice(["periodic", "manual"]), help="By the clock, or only on request.")
@click.option("--interval", type=DURATION, help="From the start of one epoch to the start of the next (10s).")
@click.option("--pause", type=DURATION, help="At least this long between two epochs (500ms).")
@click.option("--deadline", type=DURATION, help="An epoch that takes longer is aborted (1m).")
@click.option("--tolerable-failures", type=click.IntRange(min=0), help="Aborted epochs in a row; 0: no limit.")
@click.option("--max-concurrent", type=click.IntRange(1, CONCURRENT_EPOCHS_MAX), help="Open epochs at one time.")
@looks_at_cluster
def set_policy(
    session: Session,
    *,
    kind: str | None,
    interval: int | None,
    pause: int | None,
    deadline: int | None,
    tolerable_failures: int | None,
    max_concurrent: int | None,
) -> None:
    """Change some of it; what is not named stays as it is."""
    changes = {
        "kind": kind,
        "interval_ms": interval,
        "pause_ms": pause,
        "deadline_ms": deadline,
        "tolerable_failures": tolerable_failures,
        "max_concurrent": max_concurrent,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes:
        raise click.UsageError("nothing to change: name at least one of the options")
    document = session.client.call("PUT", "policy", body=changes)
    if session.as_json:
        print_json(document)
        return
    say(f"policy is now: {policy_line(document)}")


def _print(document: Any) -> None:  # noqa: ANN401 - JSON
    get = document.get if isinstance(document, dict) else {}.get
    print_pairs([
        ("kind", get("kind")),
        ("interval", span(get("interval_ms"))),
        ("pause", span(get("pause_ms"))),
        ("deadline", span(get("deadline_ms"))),
        ("tolerable failures", get("tolerable_failures") or "no limit"),
        ("open at one time", get("max_concurrent")),
    ])  # fmt: skip
