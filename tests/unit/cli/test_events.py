"""The stream of events: what is shown, and how it ends."""

import json

import pytest

from coordinator.cli.events import parsed
from coordinator.cli.exits import Failure
from tests.unit.cli.fake_api import Answer, Cli, FakeApi


def frame(**event: object) -> bytes:
    return f"id: {event['seq']}\nevent: {event['kind']}\ndata: {json.dumps(event)}\n\n".encode()


STREAM = (
    frame(kind="stream", seq=0, boot="ab")
    + b": keep-alive\n\n"
    + frame(kind="gap", seq=4, missed=4)
    + frame(kind="epoch-committed", seq=5, at_ms=0, epoch=7, evil="\x1b[31m", more={"a": [1]})
    + frame(kind="participant-lost", seq=6, at_ms=None, participant="p1")
)


def test_events_are_lines_and_a_stream_that_ends_is_exit_5(ask: Cli, api: FakeApi) -> None:
    api.on("GET", "/v1/events", Answer(raw=STREAM))
    ended = ask("events", "--since", "0")
    assert ended.code == 5
    assert ended.out.splitlines() == [
        "(4 events were missed)",
        '     5  1970-01-01 00:00:00Z  epoch-committed  epoch=7 evil=\\x1b[31m more={"a": [1]}',
        "     6    participant-lost  participant=p1",
    ]
    assert api.asked[0].query == {"since": "0"}
    assert "has ended" in ended.err


def test_events_as_documents_one_per_line_up_to_a_count(ask: Cli, api: FakeApi) -> None:
    api.on("GET", "/v1/events", Answer(raw=STREAM))
    ended = ask("events", "--count", "1", "--json")
    assert ended.code == 0
    assert [json.loads(line)["kind"] for line in ended.out.splitlines()] == ["stream", "gap", "epoch-committed"]


def test_nobody_who_answers_is_exit_5_and_a_refusal_exit_6(cli: Cli, ask: Cli, api: FakeApi) -> None:
    assert cli("--coordinators", "127.0.0.1:1", "events").code == 5
    api.refuse("GET", "/v1/events", 429, "too-many-readers", "64 event streams are open already")
    assert ask("events").code == 6


@pytest.mark.parametrize("stream", [b"data: {\n\n", b"data: " + b"[" * 100_000 + b"\n\n"])
def test_what_is_not_an_event_ends_in_a_sentence(stream: bytes) -> None:
    with pytest.raises(Failure, match="not an event"):
        list(parsed(stream.splitlines(keepends=True)))


def test_an_event_without_end_is_refused() -> None:
    with pytest.raises(Failure, match="larger"):
        list(parsed([b"data: " + b"x" * 600_000 + b"\n"] * 2))
