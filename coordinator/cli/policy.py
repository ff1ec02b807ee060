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
@click.option(
    "--recovery", type=click.Choice(["auto", "manual", "off"]), help="What the loss of a participant leads to."
)
@click.option("--takeover-after", type=DURATION, help="Agents of a lost participant go to others (30s); 0s: they wait.")
@click.option(
    "--max-rollbacks", type=click.IntRange(min=0), help="In one window, then an operator decides; 0: no limit."
)
@click.option("--rollback-window", type=DURATION, help="The window (10m).")
@click.option(
    "--fallback",
    type=click.Choice(["newest-good", "refuse"]),
    help="Where the epoch to go back to is damaged: an older one, or an operator has to say.",
)
@click.option(
    "--durability",
    type=click.Choice(["epoch", "turn"]),
    help="What a crash costs: everybody goes back, or one goes on from its log. Only while no participant is there.",
)
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
    recovery: str | None,
    takeover_after: int | None,
    max_rollbacks: int | None,
    rollback_window: int | None,
    fallback: str | None,
    durability: str | None,
) -> None:
    """Change some of it; what is not named stays as it is."""
    changes = {
        "kind": kind,
        "interval_ms": interval,
        "pause_ms": pause,
        "deadline_ms": deadline,
        "tolerable_failures": tolerable_failures,
        "max_concurrent": max_concurrent,
        "recovery": recovery,
        "takeover_after_ms": takeover_after,
        "max_rollbacks": max_rollbacks,
        "rollback_window_ms": rollback_window,
        "fallback": fallback,
        "durability": durability,
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
        ("recovery", get("recovery")),
        ("takeover after", span(get("takeover_after_ms")) if get("takeover_after_ms") else "never"),
        ("durability", get("durability")),
        ("damaged epoch", _fallback(get("fallback"))),
        ("rollbacks at most", _rollbacks(get("max_rollbacks"), get("rollback_window_ms"))),
    ])  # fmt: skip


def _fallback(fallback: Any) -> str | None:  # noqa: ANN401 - JSON
    return {"newest-good": "back to an older one", "refuse": "an operator has to say"}.get(fallback)


def _rollbacks(most: Any, window: Any) -> str:  # noqa: ANN401 - JSON
    return f"{most} in {span(window)}" if most else "no limit"
