"""``cleancut events``: what happens in the cluster, as it happens, from one coordinator's stream.

The stream ends with the coordinator that gives it; then so does the command, with exit code 5. It does not go over to another
one by itself: each counts its own events, and what was missed in between could not be told.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.exits import Exit, Failure
from coordinator.cli.output import field, moment, note, say
from coordinator.cli.settings import looks_at_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from coordinator.cli.settings import Session

EVENT_BYTES_MAX = 1 << 20


@click.command()
@click.option("--since", type=click.IntRange(min=0), help="Begin after this number; 0: with the oldest that is kept.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many events.")
@looks_at_cluster
def events(session: Session, *, since: int | None, count: int | None) -> None:
    """What happens in the cluster, as it happens, until Ctrl-C.

    With --json one document per line, as it comes.
    """
    shown = 0
    with session.client.stream("events", query={"since": since}) as (place, lines):
        note(f"events of {place}")
        for event in parsed(lines):
            kind = field(event, "kind")
            if session.as_json:
                click.echo(json.dumps(event, ensure_ascii=True))
            elif kind == "gap":
                say(f"({field(event, 'missed')} events were missed)")
            elif kind != "stream":
                say(line_of(event))
            if kind not in {"stream", "gap"}:
                shown += 1
                if shown == count:
                    return
    raise Failure(Exit.UNREACHABLE, f"the stream of {place} has ended", "start again to follow another coordinator")


def parsed(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Server-sent events whose data is a JSON object; whatever else a stream may hold is passed over."""
    data = b""
    for line in lines:
        name, _, rest = line.rstrip(b"\r\n").partition(b":")
        if name == b"data":
            data += rest.removeprefix(b" ")
            if len(data) > EVENT_BYTES_MAX:
                raise Failure(Exit.FAILED, "an event is larger than any event may be")
        elif not line.strip() and data:
            try:
                event = json.loads(data)
            except (ValueError, RecursionError):
                raise Failure(Exit.FAILED, "the stream holds something that is not an event") from None
            data = b""
            if isinstance(event, dict):
                yield event


def line_of(event: dict[str, Any]) -> str:
    """An event in one line: when, what, and the rest as ``name=value``."""
    rest = " ".join(
        f"{name}={value if isinstance(value, str | int) else json.dumps(value)}"
        for name, value in event.items()
        if name not in {"seq", "kind", "at_ms"} and value is not None
    )
    return f"{event.get('seq')!s:>6}  {moment(event.get('at_ms'))}  {event.get('kind')}  {rest}".rstrip()
