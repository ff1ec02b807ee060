"""``cleancut epoch list | show | trigger | abort | pin | unpin | restore | fork | why | verify | state``.

`verify` and `state` also work on a store alone, without any coordinator (`coordinator.cli.offline`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.exits import Exit, Failure
from coordinator.cli.kinds import AGENT, EPOCH, EPOCH_OR_START, RENAME, SAVEPOINT
from coordinator.cli.output import (
    field,
    items,
    listed,
    moment,
    note,
    plural,
    print_json,
    print_pairs,
    print_table,
    say,
    size,
    span,
)
from coordinator.cli.savepoints import demand_free, give_name, number_of, pin, unpin
from coordinator.cli.settings import looks_at_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.cli.settings import Session
    from protocol.ids import AgentId

TRIGGER_SECONDS = 120.0
"""Waiting for an epoch: the default deadline of one, and as much again for an election."""
VALUE_CHARACTERS_MAX = 160
ENTRIES_SHOWN_MAX = 200
"""What people read of an agent's state; programs get all of it."""
WAITING_SHOWN_MAX = 20
"""Agents that wait for a decision, beside why an epoch took its time."""
VERIFY_SECONDS = 600.0
"""A deep check reads every chunk of the epoch."""


@click.group()
def epoch() -> None:
    """Look at epochs; start, abort, name and verify them; go back to one.

    EPOCH is a number, `latest` for the newest committed one, or the name of a savepoint (`pin`).
    """


epoch.add_command(pin)
epoch.add_command(unpin)


@epoch.command(name="list")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most so many.")
@click.option("--before", type=click.IntRange(min=1), help="Only epochs older than this one.")
@click.option("--named", is_flag=True, help="Only savepoints.")
@looks_at_cluster
def list_epochs(session: Session, *, limit: int, before: int | None, named: bool) -> None:
    """Epochs, newest first: open, committed and aborted ones."""
    query: dict[str, object] = {"limit": limit, "before": before, "named": 1 if named else None}
    document = session.client.read("epochs", query=query)
    if session.as_json:
        print_json(document)
        return
    rows = items(document, "epochs")
    if not rows:
        say(("no savepoints" if named else "no epochs") + ("" if before is None else f" before {before}"))
        return
    print_table(
        ("EPOCH", "STATE", "STARTED", "TOOK", "MEMBERS", "STATE SIZE", "NEW", "IN-FLIGHT", "SAVEPOINT", "WHY"),
        [
            (
                field(each, "epoch"),
                field(each, "state"),
                moment(field(each, "started_at_ms")),
                span(field(each, "duration_ms")),
                _reported(each),
                size(field(each, "state_bytes")),
                size(field(each, "new_bytes")),
                field(each, "in_flight"),
                listed(field(each, "names")),
                f"{field(each, 'reason')}; aborted: {abort_line(each)}"
                if field(each, "abort")
                else field(each, "reason"),
            )
            for each in rows
        ],
        numbers=("EPOCH", "TOOK", "MEMBERS", "STATE SIZE", "NEW", "IN-FLIGHT"),
    )
    if field(document, "more"):
        more = " --named" if named else ""
        say(f"older ones: cleancut epoch list{more} --before {field(rows[-1], 'epoch')}")


@epoch.command()
@click.argument("number", type=EPOCH, metavar="EPOCH")
@looks_at_cluster
def show(session: Session, *, number: int | str) -> None:
    """All that is known of one epoch."""
    document = session.client.read("epochs", number)
    if session.as_json:
        print_json(document)
        return
    print_pairs([
        ("epoch", field(document, "epoch")),
        ("savepoint", listed(field(document, "names")) or None),
        ("state", field(document, "state")),
        ("started because", field(document, "reason")),
        ("started", moment(field(document, "started_at_ms"))),
        ("ended", moment(field(document, "ended_at_ms")) or None),
        ("took", span(field(document, "duration_ms")) or None),
        ("term", listed(field(document, "terms")) or field(document, "term")),
        ("incarnation", field(document, "incarnation")),
        ("topology", field(document, "topology")),
        ("state size", size(field(document, "state_bytes")) or None),
        ("newly written", size(field(document, "new_bytes")) or None),
        ("in-flight", _messages(field(document, "in_flight"))),
        ("manifest", field(document, "manifest")),
        ("aborted", abort_line(document) or None),
    ])  # fmt: skip
    members = field(document, "members")
    if isinstance(members, dict) and members:
        say()
        print_table(
            ("MEMBER", "SESSION", "PHASE", "REPORTED AFTER", "STATE SIZE", "NEW", "IN-FLIGHT", "TIMINGS"),
            [
                (
                    name,
                    field(member, "session"),
                    field(member, "phase"),
                    span(field(member, "reported_ms")),
                    size(field(member, "state_bytes")),
                    size(field(member, "new_bytes")),
                    field(member, "in_flight"),
                    _timings(field(member, "timings")),
                )
                for name, member in sorted(members.items())
            ],
            numbers=("SESSION", "REPORTED AFTER", "STATE SIZE", "NEW", "IN-FLIGHT"),
        )


@epoch.command()
@click.option("--reason", default="manual", show_default=True, help="Why; kept with the epoch.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until it is committed or aborted.")
@click.option("--name", type=SAVEPOINT, help="Make it a savepoint of this name, once it is committed.")
@looks_at_cluster
def trigger(session: Session, *, reason: str, wait: bool, name: str | None) -> None:
    """Start an epoch now."""
    if name is not None:
        if not wait:
            raise click.UsageError(
                "--name needs the end of the epoch, so not --no-wait: only a committed one gets a name"
            )
        demand_free(session, name)
    seconds = session.given.timeout or (TRIGGER_SECONDS if wait else session.timeout)
    document = session.client.call(
        "POST", "epochs", body={"reason": reason, "wait": wait}, repeatable=False, timeout=seconds
    )
    aborted = field(document, "state") == "aborted"
    number = field(document, "epoch")
    if name is not None and field(document, "state") == "committed":
        try:
            give_name(session, number, name)
        except Failure as failure:
            what = f"epoch {number} is committed, and has no name: {failure.message}"
            hint = failure.hint or f"`cleancut epoch pin {number} NAME`"
            raise Failure(failure.exit, what, hint, code=failure.code) from None
        document["names"] = [name]
    if session.as_json:
        print_json(document)
    if aborted:
        raise Failure(
            Exit.FAILED,
            f"epoch {number} was aborted: {abort_line(document)}",
            f"see `cleancut epoch why {number}`",
            code="epoch-aborted",
            shown=session.as_json,
        )
    if not session.as_json:
        if field(document, "state") == "committed":
            saved = "" if name is None else f"; it is savepoint {name}, and is kept"
            say(f"epoch {number} committed in {span(field(document, 'duration_ms'))}{saved}")
        else:
            say(f"epoch {number} {field(document, 'state') or 'started'}")


@epoch.command()
@click.argument("number", type=EPOCH, metavar="EPOCH")
@click.option("--reason", default="operator", show_default=True, help="Why; kept with the epoch.")
@looks_at_cluster
def abort(session: Session, *, number: int | str, reason: str) -> None:
    """Abort an open epoch. One that is sealed can be aborted only while something keeps it from its commit."""
    if not isinstance(number, int):
        raise click.UsageError("`latest` and savepoints are committed epochs; name the number of an open one")
    document = session.client.call("POST", "epochs", number, "abort", body={"reason": reason})
    if session.as_json:
        print_json(document)
        return
    say(f"epoch {number} is aborted")


def on_a_store(function: Callable[..., None]) -> Callable[..., None]:
    """The options of commands that also work without a coordinator."""
    function = click.option(
        "--offline", is_flag=True, help="Read the store of --dir, CLEANCUT_DIR or CLEANCUT_STORE; ask no coordinator."
    )(function)
    function = click.option("--cluster", help="Cluster in the store; not needed where it holds only one.")(function)
    return click.option("--store", help="Store folder or URL; asks no coordinator.")(function)


@epoch.command(short_help="Take the whole cluster back to an epoch.")
@click.argument("number", type=EPOCH_OR_START, metavar="EPOCH")
@click.option("--reason", default="operator", show_default=True, help="Why; kept with the incarnation.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until all agents run again.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
@click.option("--check", is_flag=True, help="Say what it would do to every agent, and do nothing.")
@click.option(
    "--map",
    "renames",
    type=RENAME,
    multiple=True,
    metavar="OLD=NEW",
    help="The epoch's agent OLD comes back as NEW, with what is in flight to it; both kind/name. May be repeated.",
)
@click.option("--allow-unclaimed", is_flag=True, help="Agents that nobody takes are given up.")
@click.option(
    "--app", multiple=True, metavar="MODULE:AGENTS", help="With --check and a store alone: the code; it is imported."
)
@on_a_store
@looks_at_cluster
def restore(
    session: Session,
    *,
    number: int | str,
    reason: str,
    wait: bool,
    yes: bool,
    check: bool,
    renames: tuple[tuple[str, str], ...],
    allow_unclaimed: bool,
    app: tuple[str, ...],
    store: str | None,
    cluster: str | None,
    offline: bool,
) -> None:
    """Take the whole cluster back to an epoch: every agent, and what was in flight.

    EPOCH is a number, the name of a savepoint, `latest` (where the next rollback would go to), or `start`. What happened since is
    given up; outputs and effects that are in the world already stay, are listed first, and are not repeated at the same positions.

    \b
    Look, then do it:
      cleancut epoch restore 41 --check
      cleancut epoch restore 41
    The agents of a host that was renamed, one by one:
      cleancut epoch restore latest --map worker/old=worker/new --yes
    """  # noqa: D301 - click wants the character itself
    mapped = dict(renames)
    if len(mapped) < len(renames):
        raise click.UsageError("--map names an agent twice")
    if mapped and number == "start":
        raise click.UsageError("--map is for epochs: at the start no agent has a state that could be another's")
    if check:
        from coordinator.cli import restore_check

        restore_check.check(
            session,
            number,
            app=app,
            store=store,
            cluster=cluster,
            offline=offline,
            allow_unclaimed=allow_unclaimed,
            renames=mapped,
        )
        return
    if app or store or cluster or offline:
        raise click.UsageError("--app, --store, --cluster and --offline are for --check")
    from coordinator.cli import restore as restoring

    restoring.restore(
        session,
        restoring.Wanted(
            number=number, reason=reason, renames=mapped, allow_unclaimed=allow_unclaimed, wait=wait, yes=yes
        ),
    )


@epoch.command(short_help="An epoch as the beginning of another cluster.")
@click.argument("number", type=EPOCH, metavar="EPOCH")
@click.option("--cluster", metavar="NEW", help="The fork's name.")
@click.option(
    "--store", metavar="STORE", help="Where the fork goes; may be the original's store: its folder is its own."
)
@click.option(
    "--fork-secret-file", type=click.Path(path_type=Path), help="The fork's secret; made if missing [./NEW.secret]."
)
@click.option(
    "--into", type=click.Path(path_type=Path), help="Folder that `keys init` made for the fork: names all three."
)
@click.option("--from-store", metavar="STORE", help="The original's store, if neither --dir nor CLEANCUT_DIR names it.")
@click.option("--from-cluster", metavar="NAME", help="Its name there; not needed where the store holds only one.")
@looks_at_cluster
def fork(
    session: Session,
    *,
    number: int | str,
    cluster: str | None,
    store: str | None,
    fork_secret_file: Path | None,
    into: Path | None,
    from_store: str | None,
    from_cluster: str | None,
) -> None:
    """Make an epoch the beginning of another cluster, with its own name, secret and incarnations.

    --dir names the original, which is only read; no coordinator is asked, except for what a savepoint's name stands for.
    Participants of the fork do no effects and write to no sink (dry-run): what is known already is answered, everything else is
    refused or noted down. The original's savepoints are not the fork's: it has names of its own.

    \b
    Beside the original, in the same store:
      cleancut keys init ./try --cluster shop-try --store /srv/store --coordinators c1=127.0.0.1:7600:7700
      cleancut epoch fork latest --dir ./shop --into ./try
      cleancut coordinator --config ./try/c1.toml
    """  # noqa: D301 - click wants the character itself
    from coordinator.cli import fork as forking

    place = forking.place_of(cluster, store, fork_secret_file, into)
    forking.fork(session, number, place, from_store=from_store, from_cluster=from_cluster)


@epoch.command(short_help="What an epoch waited for, in words.")
@click.argument("number", type=EPOCH, metavar="EPOCH")
@looks_at_cluster
def why(session: Session, *, number: int | str) -> None:
    """What an epoch waited for, in words; aborted and open ones too."""
    document = session.client.read("epochs", number, "why")
    if session.as_json:
        print_json(document)
        return
    for sentence in items(document, "sentences"):
        say(sentence)
    _tell_waiting(session)
    phases = items(document, "phases")
    if phases:
        say()
        print_table(
            ("PARTICIPANT", "PHASE", "CHANNEL", "TOOK"),
            [
                (
                    field(each, "participant") or "(leader)",
                    field(each, "phase"),
                    field(each, "channel"),
                    span(field(each, "ms")),
                )
                for each in phases
            ],
            numbers=("TOOK",),
        )


def _tell_waiting(session: Session) -> None:
    """Agents whose work stands still now, with the reason: no epoch waits for them, and people look here for them first."""
    try:
        waiting = field(session.client.get("status"), "waiting")
        if not field(waiting, "count"):
            return
        rows = items(session.client.get("effects", query={"in_doubt": 1, "limit": WAITING_SHOWN_MAX}), "effects")
    except Failure:
        return  # the epoch's own sentences are there
    stuck = [row for row in rows if field(row, "waits")]
    if stuck:
        say("No epoch waits for agents that wait for a decision; now these do (`cleancut effects settle`):")
    for row in stuck:
        say(f"  {field(row, 'why')}")


@epoch.command(short_help="Check a committed epoch, byte for byte.")
@click.argument("number", type=EPOCH, metavar="EPOCH")
@click.option(
    "--deep/--shallow", default=True, show_default=True, help="Read every chunk, or only manifest and local snapshots."
)
@on_a_store
@looks_at_cluster
def verify(
    session: Session, *, number: int | str, deep: bool, store: str | None, cluster: str | None, offline: bool
) -> None:
    """Check a committed epoch: signature, digests, consistency of the cut, every byte.

    With --store it needs no coordinator; without the secret it says that the signature was not checked.
    """
    if store or offline:
        from coordinator.cli import offline as offline_commands

        report = offline_commands.verify(
            session.open_store(store, cluster), number, session.keys_of_store(store), deep=deep
        )
    else:
        seconds = session.given.timeout or VERIFY_SECONDS
        # A name is asked for first: a coordinator that lags behind would not know a new one.
        which = number if number == "latest" else number_of(session, number)
        report = session.client.call("POST", "epochs", which, "verify", body={"deep": deep}, timeout=seconds)
    if session.as_json:
        print_json(report)
    _tell_report(report, as_json=session.as_json)


@epoch.command(short_help="The decoded state of an agent in an epoch.")
@click.argument("number", type=EPOCH, metavar="EPOCH")
@click.argument("agent", type=AGENT, required=False)
@on_a_store
@looks_at_cluster
def state(
    session: Session, *, number: int | str, agent: AgentId | None, store: str | None, cluster: str | None, offline: bool
) -> None:
    """The decoded state of an agent in an epoch; without an agent, the agents that are in it.

    Nothing is executed: values that were saved with cloudpickle are shown by their size.
    """
    if store or offline:
        from coordinator.cli import offline as offline_commands

        opened, keys = session.open_store(store, cluster), session.keys_of_store(store)
        document = (
            offline_commands.agents(opened, number, keys)
            if agent is None
            else offline_commands.state(opened, number, agent, keys)
        )
    elif agent is None:
        document = session.client.read("epochs", number, "agents")
    else:
        document = session.client.read("epochs", number, "state", query={"agent": agent})
    if session.as_json:
        print_json(document)
    elif agent is None:
        _tell_agents(document)
    else:
        _tell_state(document)


# --- words ----------------------------------------------------------------------------------------------------------


def abort_line(document: Any) -> str:  # noqa: ANN401 - JSON
    """Who, in which phase, why; "" for an epoch that was not aborted."""
    why_not = field(document, "abort")
    if not isinstance(why_not, dict):
        return ""
    who, phase, cause = why_not.get("participant"), why_not.get("phase"), why_not.get("cause")
    match phase:
        case "lost":
            first = next(iter(items(why_not, "waiting")), None)
            where = f" in phase {field(first, 'phase')}" if field(first, "participant") == who else ""
            return f"{who} was lost{where}: {cause}"
        case "operator":
            return f"by hand: {cause}"
        case _:
            return f"{who or 'the leader'} in phase {phase}: {cause}"


def _reported(document: Any) -> str:  # noqa: ANN401 - JSON
    members = field(document, "members_count")
    if members is None:
        return ""
    reported = field(document, "reported_count")
    return f"{reported}/{members}" if reported is not None and reported != members else str(members)


def _messages(count: object) -> str | None:
    return plural(count, "message") if isinstance(count, int) else None


def _timings(timings: Any) -> str:  # noqa: ANN401 - JSON
    if not isinstance(timings, dict):
        return ""
    return ", ".join(f"{phase} {span(ms)}" for phase, ms in timings.items())


def _tell_report(report: Any, *, as_json: bool) -> None:  # noqa: ANN401 - JSON
    """A report of a check in words.

    Raises:
        Failure: It found something.
    """
    number = field(report, "epoch")
    findings = items(report, "findings")
    if not as_json:
        counts = field(report, "counts") or {}
        for name, count in counts.items() if isinstance(counts, dict) else ():
            say(f"{str(name).replace('_', ' '):<24}{count}")
        signature = field(report, "signature")
        if signature is not None:
            say(f"{'signature':<24}{signature}")
        for note_line in items(report, "notes"):
            say(note_line)
    if findings or field(report, "ok") is not True:
        # Only a plain "ok" is one: an answer that this build does not understand must not pass for sound.
        if not as_json:
            for finding in findings:
                say(f"WRONG  {_finding(finding)}")
        first = _finding(findings[0]) if findings else "the report does not say that it is"
        rest = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
        raise Failure(
            Exit.INCONSISTENT,
            f"epoch {number} is not sound: {first}{rest}",
            "do not restore from it; look for an older epoch with `cleancut epoch list`",
            shown=as_json,
        )
    if not as_json:
        say(f"epoch {number} is sound")


def _finding(finding: Any) -> str:  # noqa: ANN401 - JSON
    """A finding as `protocol.verify.Finding` tells it."""
    if not isinstance(finding, dict):
        return str(finding)
    place = finding.get("channel") or finding.get("participant") or finding.get("key")
    expected, found = finding.get("expected"), finding.get("found")
    counts = f" (expected {expected}, found {found})" if expected or found else ""
    return f"{finding.get('kind')}{f' at {place}' if place else ''}: {finding.get('detail')}{counts}"


def _tell_agents(document: Any) -> None:  # noqa: ANN401 - JSON
    agents = items(document, "agents")
    if not agents:
        say("no agents in this epoch")
        return
    print_table(
        ("AGENT", "PARTICIPANT", "STATE VERSION", "MAILBOX", "TIMERS", "AT THE CUT"),
        [
            (
                field(each, "agent"),
                field(each, "participant"),
                field(each, "state_version"),
                field(each, "mailbox_count"),
                field(each, "timers_count"),
                "stopped" if field(each, "dead") else "in a turn" if field(each, "running") else "",
            )
            for each in agents
        ],
        numbers=("STATE VERSION", "MAILBOX", "TIMERS"),
    )


def _tell_state(document: Any) -> None:  # noqa: ANN401 - JSON
    say(f"{field(document, 'agent')}, state version {field(document, 'state_version')}")
    fields = field(document, "fields")
    cut = False
    for name, value in fields.items() if isinstance(fields, dict) else ():
        entries = _entries(value)
        if entries is None:
            text, was_cut = _shortened(value)
            say(f"  {name}: {text}")
            cut |= was_cut
            continue
        say(f"  {name}: {plural(len(entries), 'key') if entries else 'empty'}")
        for key, part in entries[:ENTRIES_SHOWN_MAX]:
            text, was_cut = _shortened(part)
            say(f"    {key}: {text}")
            cut |= was_cut
        if len(entries) > ENTRIES_SHOWN_MAX:
            say(f"    and {len(entries) - ENTRIES_SHOWN_MAX} more")
            cut = True
    for name in ("mailbox", "timers"):
        waiting = items(document, name)
        say(f"  {name}: {len(waiting) or 'empty'}")
        for entry in waiting[:ENTRIES_SHOWN_MAX]:
            text, was_cut = _shortened(entry)
            say(f"    {text}")
            cut |= was_cut
        if len(waiting) > ENTRIES_SHOWN_MAX:
            say(f"    and {len(waiting) - ENTRIES_SHOWN_MAX} more")
            cut = True
    if cut:
        note("cleancut: long values and lists are cut; --json has all of it")


def _entries(value: Any) -> list[tuple[str, Any]] | None:  # noqa: ANN401 - JSON
    """Keys and values of a keyed field, sorted by key; None: it is a value.

    A JSON object has text keys only: other keys come as ``{"pairs": [[key, value], ...]}`` (`protocol.reading`).
    """
    pairs = value.get("pairs") if isinstance(value, dict) and len(value) == 1 else None
    if isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        numbers = all(isinstance(key, int | float) for key, _ in pairs)
        ordered = sorted(pairs, key=(lambda pair: pair[0]) if numbers else (lambda pair: _text(pair[0])))
        return [(_text(key), part) for key, part in ordered]
    if isinstance(value, dict):
        return [(_text(key), value[key]) for key in sorted(value)]
    return None


def _text(value: object) -> str:
    # ASCII with escapes, on one line: nothing in a value can reach the terminal.
    return json.dumps(value, ensure_ascii=True)


def _shortened(value: object) -> tuple[str, bool]:
    """A value on one line, and whether it was cut."""
    text = _text(value)
    if len(text) <= VALUE_CHARACTERS_MAX:
        return text, False
    return f"{text[:VALUE_CHARACTERS_MAX]}... ({len(text)} characters)", True
