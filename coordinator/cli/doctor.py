"""``cleancut doctor``: what commonly goes wrong, checked from here and by the coordinators themselves.

Checks go on after one failed: the point is to see all of it. The exit code is that of the gravest.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coordinator.cli.exits import Exit, Failure, as_failure
from coordinator.cli.output import field, items, plural, print_json, print_table, safe, say, size
from coordinator.cli.settings import looks_at_cluster
from protocol.errors import SnapshotError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.cli.settings import Session

FREE_BYTES_MIN = 1_000_000_000
"""Below this a store fills up within minutes of ordinary use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str
    hint: str = ""


@click.command()
@looks_at_cluster
def doctor(session: Session) -> None:
    """Check what commonly goes wrong, and say what to do."""
    checks = list(_checks(session))
    answering = [check for check in checks if check.name.startswith("coordinator ")]
    wrong = [check for check in checks if not check.ok]
    if session.as_json:
        print_json({"ok": not wrong, "checks": [asdict(check) for check in checks]})
    else:
        print_table(
            ("CHECK", "", "WHAT WAS FOUND"),
            [(check.name, "ok" if check.ok else "WRONG", check.detail) for check in checks],
        )
        for check in wrong:
            if check.hint:
                say(f"{check.name}: {check.hint}")
    if wrong:
        exit_code = Exit.UNREACHABLE if answering and not any(check.ok for check in answering) else Exit.FAILED
        names = ", ".join(check.name for check in wrong)
        raise Failure(
            exit_code, f"{plural(len(wrong), 'check')} of {len(checks)} failed: {names}", shown=session.as_json
        )


def _checks(session: Session) -> Iterator[Check]:
    yield _python()
    yield from _settings(session)
    yield from _store_here(session)
    reachable = False
    try:
        places = session.places
    except SnapshotError as error:
        yield Check(name="coordinators", ok=False, detail=str(error), hint=as_failure(error).hint)
        return
    from coordinator.cli.client import NoAnswer

    for place in places:
        try:
            status, answer = session.client.ask_one(place, "/healthz")
        except NoAnswer as error:
            yield Check(
                name=f"coordinator {place}",
                ok=False,
                detail=error.reason,
                hint="see that it runs and that this address is its `http` setting",
            )
            continue
        reachable = True
        ready = status == 200
        yield Check(
            name=f"coordinator {place}",
            ok=ready,
            detail="ready" if ready else f"not ready: {_reason(answer)}",
            hint="" if ready else "wait for an election to end; see that a majority of the coordinators runs",
        )
    if reachable:
        yield from _by_the_cluster(session)


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.flags.optimize:
        return Check(name="python", ok=False, detail=f"{version} with -O, which removes checks", hint="run without -O")
    return Check(name="python", ok=True, detail=version)


def _settings(session: Session) -> Iterator[Check]:
    try:
        named = session.secret_file
        keys = session.keys
    except SnapshotError as error:
        yield Check(name="secret", ok=False, detail=str(error), hint=as_failure(error).hint)
        return
    if keys is None:
        yield Check(name="secret", ok=True, detail="none named; signatures and tokens need --secret-file or --dir")
    else:
        yield Check(name="secret", ok=True, detail=f"{named} can be used")


def _store_here(session: Session) -> Iterator[Check]:
    """The store, if it is a folder that this machine sees."""
    try:
        where = session.description.get("store") or session.env.get("CLEANCUT_STORE")
    except SnapshotError as error:
        yield Check(name="folder", ok=False, detail=str(error), hint=as_failure(error).hint)
        return
    if not where or "://" in where.removeprefix("file://"):
        return
    folder = Path(where.removeprefix("file://").removeprefix("file:"))
    if not folder.is_dir():
        yield Check(name="store from here", ok=False, detail=f"{folder} is not a folder", hint="mount or create it")
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Check(
            name="store from here", ok=False, detail=f"{folder} is not writable for this user", hint="check its owner"
        )
        return
    free = shutil.disk_usage(folder).free
    yield Check(
        name="store from here",
        ok=free >= FREE_BYTES_MIN,
        detail=f"{folder}, {size(free)} free",
        hint="" if free >= FREE_BYTES_MIN else "free some space; epochs abort on a full disk and go on by themselves",
    )


def _by_the_cluster(session: Session) -> Iterator[Check]:
    """What the coordinators themselves found."""
    try:
        document = session.client.get("doctor")
    except Failure as failure:
        yield Check(name="cluster", ok=False, detail=failure.message, hint=failure.hint)
        return
    except SnapshotError:
        return  # a setting that is wrong; it has been told of already
    for each in items(document, "checks"):
        yield Check(
            name=str(field(each, "name")),
            ok=bool(field(each, "ok")),
            detail=str(field(each, "detail") or ""),
            hint=str(field(each, "hint") or ""),
        )


def _reason(answer: bytes) -> str:
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        return safe(answer[:200].decode("utf-8", "replace").strip())
    reasons = field(document, "reasons")
    if isinstance(reasons, list):
        return safe("; ".join(map(str, reasons)))
    return safe(field(document, "reason") or field(document, "error", "message") or document)
