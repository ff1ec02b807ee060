"""``cleancut status``, ``participants`` and ``topology``: the cluster as it is now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.output import field, items, listed, plural, print_json, print_pairs, print_table, say, span
from coordinator.cli.settings import looks_at_cluster

if TYPE_CHECKING:
    from coordinator.cli.settings import Session


_fresh_option = click.option(
    "--fresh", is_flag=True, help="Fail rather than show what may be old, where no quorum of coordinators answers."
)


@click.command()
@click.option("--incarnations", is_flag=True, help="The rollbacks: why, to which epoch, how long what took.")
@_fresh_option
@looks_at_cluster
def status(session: Session, *, fresh: bool, incarnations: bool) -> None:
    """The cluster at a glance: coordinators, participants, epochs, policy."""
    if incarnations:
        _tell_incarnations(session, fresh=fresh)
        return
    document = session.client.read("status", strict=fresh)
    if session.as_json:
        print_json(document)
        return
    epochs = field(document, "epochs") or {}
    open_now = epochs.get("open") or []
    print_pairs([
        ("cluster", field(document, "cluster")),
        ("leader", field(document, "leader") or "none: an election is going on, or no quorum of coordinators runs"),
        ("term", field(document, "term")),
        ("fork of", _origin_line(field(document, "fork_of"))),
        ("incarnation", field(document, "incarnation")),
        ("recovery", _recovery_line(field(document, "recovery"))),
        ("topology", field(document, "topology")),
        ("participants", _participants_line(field(document, "participants"))),
        ("waiting", _waiting_line(field(document, "waiting"))),
        ("newest epoch", epochs.get("newest") or "none yet"),
        ("epochs committed", epochs.get("committed")),
        ("epochs aborted", epochs.get("aborted")),
        ("epochs open", listed(open_now) or "none"),
        ("epochs stuck", "; ".join(f"{field(each, 'epoch')}: {field(each, 'why')}" for each in items(epochs, "stuck")) or None),
        ("policy", policy_line(field(document, "policy"))),
        ("version", field(document, "version")),
    ])  # fmt: skip
    if field(document, "struggling"):
        say(f"WARNING: {plural(int(epochs.get('failures_in_a_row') or 0), 'epoch')} in a row aborted")
    coordinators = items(document, "coordinators")
    if coordinators:
        say()
        print_table(
            ("COORDINATOR", "ADDRESS", "UP", "LEADER", "APPLIED"),
            [
                (
                    field(each, "id"),
                    field(each, "address"),
                    _yes(field(each, "up")),
                    _yes(field(each, "leader")),
                    field(each, "applied"),
                )
                for each in coordinators
            ],
            numbers=("APPLIED",),
        )


@click.command()
@_fresh_option
@looks_at_cluster
def participants(session: Session, *, fresh: bool) -> None:
    """The participants and what they are doing."""
    document = session.client.read("participants", strict=fresh)
    if session.as_json:
        print_json(document)
        return
    known = items(document, "participants")
    if not known:
        say("no participant has registered yet")
        return
    print_table(
        ("PARTICIPANT", "SESSION", "STATE", "HEARD", "ADDRESS", "AGENTS", "WAITING", "CAUSE"),
        [
            (
                field(each, "id"),
                field(each, "session"),
                field(each, "state"),
                _age(field(each, "heartbeat_age_ms")),
                field(each, "address"),
                listed(field(each, "agents"), 4),
                _waiting_here(each),
                field(each, "cause"),
            )
            for each in known
        ],
        numbers=("SESSION",),
    )


@click.command()
@_fresh_option
@looks_at_cluster
def topology(session: Session, *, fresh: bool) -> None:
    """Members and channels of the current topology."""
    document = session.client.read("topology", strict=fresh)
    if session.as_json:
        print_json(document)
        return
    members = items(document, "members")
    channels = items(document, "channels")
    count = field(document, "channels_count")
    all_channels = count if isinstance(count, int) else len(channels)
    say(
        f"topology {field(document, 'version')}: {plural(len(members), 'member')}, {plural(all_channels, 'channel')}"
        + (f", of which {len(channels)} are shown" if all_channels > len(channels) else "")
        + (" (participants that have joined or left since enter the next one)" if field(document, "stale") else "")
    )
    if not members:
        return
    targets: dict[str, list[str]] = {}
    for pair in channels:
        if isinstance(pair, list) and len(pair) == 2:
            targets.setdefault(str(pair[0]), []).append(str(pair[1]))
    say()
    print_table(
        ("MEMBER", "SESSION", "ADDRESS", "AGENTS", "CHANNELS TO"),
        [
            (
                field(each, "id"),
                field(each, "session"),
                field(each, "address"),
                listed(field(each, "agents"), 4),
                listed(targets.get(str(field(each, "id")), []), 8),
            )
            for each in members
        ],
        numbers=("SESSION",),
    )


def _waiting_here(participant: Any) -> str:  # noqa: ANN401 - JSON
    named = [f"{field(each, 'agent')} ({field(each, 'cause')})" for each in items(participant, "waiting")]
    count = field(participant, "waiting_count")
    more = count - len(named) if isinstance(count, int) else 0
    return listed(named, 4) + (f" and {more} more" if named and more > 0 else "")


def _waiting_line(waiting: Any) -> str | None:  # noqa: ANN401 - JSON
    """Agents that wait for somebody's word; None: none does, or that is not known."""
    count, questions = field(waiting, "count"), field(waiting, "questions")
    parts = []
    if count:
        named = [f"{field(each, 'agent')} ({field(each, 'cause')})" for each in items(waiting, "agents")]
        more = count - len(named[:6])
        shown = listed(named[:6]) + (f" and {more} more" if more > 0 else "")
        parts.append(f"{plural(count, 'agent')} for a decision: {shown}; see `cleancut effects list --in-doubt`")
    if questions:
        parts.append(f"{plural(questions, 'question')} open; see `cleancut questions list`")
    return "; ".join(parts) or None


def _tell_incarnations(session: Session, *, fresh: bool) -> None:
    document = session.client.read("incarnations", strict=fresh)
    if session.as_json:
        print_json(document)
        return
    known = items(document, "rollbacks")
    if not known:
        say(f"incarnation {field(document, 'incarnation')}: the cluster was never rolled back")
        return
    print_table(
        ("INCARNATION", "EPOCH", "STATE", "RESTORED", "WAITED", "FENCE", "TOOK", "LOAD", "CAUSE"),
        [
            (
                field(each, "incarnation"),
                field(each, "epoch") or "start",
                field(each, "state"),
                f"{field(each, 'restored_count')}/{field(each, 'members_count')}",
                span(field(each, "waited_ms")),
                span(field(each, "fence_ms")),
                span(field(each, "took_ms")),
                span(_slowest(field(each, "members"))),
                _cause(each),
            )
            for each in known
        ],
        numbers=("INCARNATION", "EPOCH", "RESTORED", "WAITED", "FENCE", "TOOK", "LOAD"),
    )


def _slowest(members: Any) -> int | None:  # noqa: ANN401 - JSON
    """Longest that a member took to load its part, ms."""
    if not isinstance(members, dict):
        return None
    return max((int(field(member, "load_ms") or 0) for member in members.values()), default=None)


def _cause(rollback: Any) -> str:  # noqa: ANN401 - JSON
    failure = field(rollback, "failure")
    cause = str(field(rollback, "cause") or "")
    return (
        f"{cause}; {field(failure, 'participant')}: {field(failure, 'cause')}" if isinstance(failure, dict) else cause
    )


def _origin_line(origin: Any) -> str | None:  # noqa: ANN401 - JSON
    """What the cluster is a fork of; None for one that is none."""
    if not isinstance(origin, dict):
        return None
    mode = "; dry-run: no effects, no outputs" if origin.get("dry_run") else ""
    return f"epoch {origin.get('epoch')} of {origin.get('cluster')}{mode}"


def _recovery_line(recovery: Any) -> str:  # noqa: ANN401 - JSON
    """What recovery is doing, and why."""
    state, why = field(recovery, "state"), field(recovery, "why")
    if state == "stopped":
        return f"STOPPED: {why}; look into it, then `cleancut epoch restore latest`"
    return f"{state}: {why}" if why else str(state or "")


def policy_line(policy: Any) -> str:  # noqa: ANN401 - JSON
    """A policy in one line."""
    if not isinstance(policy, dict):
        return str(policy or "")
    if policy.get("kind") == "manual":
        return f"manual, deadline {span(policy.get('deadline_ms'))}"
    return (
        f"{policy.get('kind')}, every {span(policy.get('interval_ms'))}, pause at least {span(policy.get('pause_ms'))}, "
        f"deadline {span(policy.get('deadline_ms'))}"
    )


def _participants_line(counts: Any) -> str:  # noqa: ANN401 - JSON
    if not isinstance(counts, dict):
        return ""
    line = f"{counts.get('up')} of {counts.get('count')} up"
    members = counts.get("members")
    return line if members is None else f"{line}, {plural(int(members), 'member')} of the topology"


def _yes(value: object) -> str:
    return "" if value is None else "yes" if value else "no"


def _age(milliseconds: object) -> str:
    text = span(milliseconds)
    return f"{text} ago" if text else ""
