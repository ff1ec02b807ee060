"""``cleancut epoch restore N --check``: what the restore would do, said before anything is touched.

With a running cluster its leader asks the participants for their code. With ``--store`` nobody is asked: the code is that of
``--app module:attribute``, which is imported, and run as far as an import runs it.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from coordinator.cli.exits import Exit, Failure
from coordinator.cli.output import field, items, plural, print_json, print_table, safe, say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coordinator.cli.settings import Session
    from protocol.restore_plan import AgentCode

CHECK_SECONDS: Final = 120.0
"""Every participant is asked, and mailboxes are read."""
LISTED: Final = 20
"""Outputs and effects that people are shown; programs get all."""
_CODE: Final = "__cleancut_code__"


def check(
    session: Session,
    number: int | str,
    *,
    app: Sequence[str] = (),
    store: str | None = None,
    cluster: str | None = None,
    offline: bool = False,
    allow_unclaimed: bool = False,
    renames: Mapping[str, str] | None = None,
) -> None:
    """Print the plan of a restore.

    Args:
        session: Of the command.
        number: The epoch, ``latest``, or a savepoint's name.
        app: ``module:attribute`` of agents or their classes; only without a coordinator.
        store: Folder or URL; asks no coordinator.
        cluster: In the store.
        offline: Read the store that the session names.
        allow_unclaimed: Agents that nobody takes do not stand in the way.
        renames: Agent of the epoch -> its name from then on.

    Raises:
        Failure: The restore would be refused, or the epoch is not there.
        ConfigError: `app` cannot be loaded.
    """
    if number == "start":
        raise Failure(Exit.USAGE, "the start has nothing to check: every agent begins anew", "name an epoch")
    if store or offline:
        document = _offline(
            session, number, app, store, cluster, allow_unclaimed=allow_unclaimed, renames=renames or {}
        )
    elif app:
        raise Failure(
            Exit.USAGE,
            "--app is for --store and --offline",
            "a running cluster's participants tell their code themselves",
        )
    else:
        document = session.client.call(
            "POST",
            "epochs",
            number,
            "check",
            body={"allow_unclaimed": allow_unclaimed, **({"map": dict(renames)} if renames else {})},
            timeout=session.given.timeout or CHECK_SECONDS,
        )
    if session.as_json:
        print_json(document)
    else:
        _tell(document)
    demand_ok(session, document)
    if not session.as_json:
        say(f"epoch {field(document, 'epoch')} can be restored")


def demand_ok(session: Session, document: Any) -> None:  # noqa: ANN401 - JSON
    """Go on only if the plan would go through.

    Raises:
        Failure: It would not; the first reason.
    """
    problems = items(document, "problems")
    if problems or field(document, "ok") is not True:
        first = str(problems[0]) if problems else "the answer does not say that it would go through"
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise Failure(
            Exit.REFUSED,
            f"epoch {field(document, 'epoch')} would not be restored: {first}{more}",
            "nothing was touched; start participants with the right code, or see --allow-unclaimed",
            code="restore-refused",
            shown=session.as_json,
        )


def load_codes(places: Sequence[str]) -> tuple[list[AgentCode], dict[str, str] | None]:
    """The code of agents that modules hold.

    Args:
        places: ``module:attribute``; the attribute is an agent, an agent class, a list or dict of them, or a function that
            gives one of these.

    Returns:
        One description per class, and the agents that are there as objects, if there are only objects: agent -> place.

    Raises:
        Failure: It cannot be imported, or holds no agents.
    """
    here: dict[str, str] = {}
    codes: dict[str, AgentCode] = {}
    only_objects = True
    # As ``python -m`` does: the user's modules lie where the command is given.
    sys.path.insert(0, os.getcwd())
    try:
        for place in places:
            for found in _found(place):
                code = getattr(found, _CODE)()
                codes[code.kind] = code
                if isinstance(found, type):
                    only_objects = False
                else:
                    here[str(found.id)] = place
    finally:
        sys.path.remove(os.getcwd())
    return list(codes.values()), here if only_objects and here else None


def _found(place: str) -> list[Any]:
    module, _, attribute = place.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for name in (attribute or "agents").split("."):
            value = getattr(value, name)
        if callable(value) and not hasattr(value, _CODE):
            value = value()
    except Exception as error:
        raise Failure(
            Exit.USAGE,
            f"--app {safe(place)} cannot be loaded: {type(error).__name__}: {error}",
            "name it module:attribute",
        ) from error
    listed: list[Any] = []
    for each in value.values() if isinstance(value, dict) else value if _is_many(value) else [value]:
        listed += each if _is_many(each) else [each]
    strangers = [each for each in listed if not hasattr(each, _CODE)]
    if strangers or not listed:
        shown = f"{strangers[0]!r} is no agent" if strangers else "it holds no agents"
        raise Failure(Exit.USAGE, f"--app {safe(place)}: {shown}", "name a list of agents, or of agent classes")
    return listed


def _is_many(value: object) -> bool:
    return isinstance(value, list | tuple | set | frozenset)


def _offline(
    session: Session,
    number: int | str,
    app: Sequence[str],
    store: str | None,
    cluster: str | None,
    *,
    allow_unclaimed: bool,
    renames: Mapping[str, str],
) -> dict[str, Any]:
    from coordinator.cli import offline as offline_commands
    from protocol.renames import rename_problem, renamed_epoch
    from protocol.restore_plan import restore_plan, saved_agents

    codes, here = load_codes(app)
    reader = offline_commands.reader(session.open_store(store, cluster), number, session.keys_of_store(store))
    notes = [] if app else ["no code was named (--app module:agents): every agent is unclaimed"]
    notes.append("sinks and effect ledgers were not asked what happened after the epoch")
    problem = rename_problem(renames, reader.agents(), here or {})
    if problem:
        raise Failure(Exit.REFUSED, problem, "`cleancut epoch state N` lists the agents of an epoch", code="bad-map")
    manifest, saved = renamed_epoch(reader.manifest, saved_agents(reader), renames)
    plan = restore_plan(manifest, saved, codes, here=here, notes=notes)
    return plan.document(allow_unclaimed=allow_unclaimed)


def _tell(document: Any) -> None:  # noqa: ANN401 - JSON
    rows = items(document, "agents")
    print_table(
        ("AGENT", "FATE", "WAS ON", "STATE", "WHY"),
        [
            (field(each, "agent"), field(each, "fate"), field(each, "participant"), _versions(each), _why(each))
            for each in rows
        ],
    )
    say()
    counts = field(document, "counts")
    if isinstance(counts, dict):
        say(", ".join(f"{count} {fate}" for fate, count in counts.items() if count) or "no agents")
    for kind in ("output", "effect"):
        tell_outside(document, kind)
    for line in items(document, "notes"):
        say(f"note: {line}")


def _versions(line: Any) -> str:  # noqa: ANN401 - JSON
    saved, now = field(line, "saved_version"), field(line, "version")
    if not saved:
        return f"new, version {now}" if now else "new"
    return f"version {saved}" if saved == now or not now else f"version {saved}, code {now}"


def _why(line: Any) -> str:  # noqa: ANN401 - JSON
    parts = []
    if field(line, "steps"):
        parts.append(f"migrations {', '.join(items(line, 'steps'))}")
    if field(line, "reason"):
        parts.append(str(field(line, "reason")))
    if field(line, "unhandled"):
        parts.append(f"nobody handles {', '.join(items(line, 'unhandled'))}: dead letters")
    return "; ".join(parts)


def tell_outside(document: Any, kind: str, *, tell: Callable[[str], None] = say) -> None:  # noqa: ANN401 - JSON
    """What of one kind lies after the epoch, in words."""
    count = field(document, f"{kind}s_after")
    if not isinstance(count, int):
        return
    tell(
        f"{plural(count, kind)} after the epoch"
        + (": they stay, and are not repeated at the same positions" if count else "")
    )
    shown = [each for each in items(document, "outside") if field(each, "kind") == kind]
    for each in shown[:LISTED]:
        tell(f"  {field(each, 'place')} of {field(each, 'agent')}: {field(each, 'detail')} ({field(each, 'token')})")
    if count > LISTED:
        tell(f"  and {count - LISTED} more")
