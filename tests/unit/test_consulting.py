"""Pages of rows that several participants give: nothing is lost between them, nothing comes twice."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.consulting import Cursor, ListEffects, Page, ReadHistory, cursor_of, merged, page_of
from protocol.limits import CONSULT_BYTES_MAX, CONSULT_ROW_BYTES_MAX, CONSULT_ROWS_MAX
from protocol.messages import Consult, Heartbeat, WaitingAgent, decode_from_coordinator, decode_from_participant
from protocol.messages import encode_control as encode


def row(at: int, token: str, **more: Any) -> dict[str, Any]:
    return {"cursor": str(Cursor(at, token)), "token": token, **more}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "1",
        "1-",
        "-a",
        "x-a",
        "1-a b",
        "1-é",
        f"{'9' * 20}-a",
        f"1-{'a' * 65}",
        "\uff11-a",
        None,
        7,
        ["1-a"],
        "1-a-b",
    ],
)
def test_what_is_no_cursor_is_none(text: Any):
    assert cursor_of(text) is None


def test_a_cursor_comes_back_from_its_text():
    cursor = Cursor(1_796_000_000_000_000_000, "0f" * 16)
    assert cursor_of(str(cursor)) == cursor


def test_a_page_is_bounded_in_rows_and_in_bytes_and_never_empty():
    assert page_of([], 5) == Page([], more=False)
    rows = [row(n, f"t{n}") for n in range(10)]
    assert page_of(rows, 3) == Page(rows[:3], more=True)
    assert page_of(rows, 10) == Page(rows, more=False)
    assert page_of(rows, 0) == Page(rows[:1], more=True)
    assert len(page_of([row(n, f"t{n}") for n in range(CONSULT_ROWS_MAX + 5)], 1 << 40).rows) == CONSULT_ROWS_MAX
    large = [row(n, f"t{n}", result="x" * (CONSULT_ROW_BYTES_MAX - 200)) for n in range(100)]
    page = page_of(large, 100)
    assert page.more
    assert 1 < len(page.rows) < 100
    assert len(json.dumps(page.rows)) < CONSULT_BYTES_MAX


def test_a_row_that_is_far_too_long_loses_its_longest_parts_and_says_how_much():
    (cut,) = page_of([row(1, "t", result="x" * (4 << 20), why="because", arguments="y" * 1000)], 1).rows
    assert cut["result"] == {"left_out_bytes": (4 << 20) + 2}
    assert (cut["why"], cut["token"], cut["arguments"]) == ("because", "t", "y" * 1000)


def test_the_row_that_says_more_counts_whoever_it_is_of():
    pages = [
        Page([row(1, "t", standing="claimed")], more=False),
        Page([row(1, "t", standing="under-way")], more=False),
        Page([row(1, "t", standing="in-doubt")], more=False),
    ]
    for turned in (pages, pages[::-1]):
        (found,) = merged(turned, 10).rows
        assert found["standing"] == "under-way"
    ended = row(1, "t", standing="", ended_at_ms=5)
    (found,) = merged(
        [Page([row(1, "t", standing="", ended_at_ms=None)], more=False), Page([ended], more=False)], 1
    ).rows
    assert found == ended


def test_rows_without_a_place_are_passed_over():
    page = merged([Page([{"token": "x"}, {"cursor": "nonsense"}, row(1, "t")], more=True)], 10)
    assert [each["token"] for each in page.rows] == ["t"]


@given(
    holdings=st.lists(st.sets(st.integers(0, 40), max_size=20), min_size=1, max_size=4),
    limit=st.integers(1, 7),
    smaller=st.lists(st.integers(1, 7), min_size=4, max_size=4),
)
def test_walking_the_pages_shows_every_row_once_in_order(holdings: list[set[int]], limit: int, smaller: list[int]):
    """Each participant may give less than it was asked for, as where its rows are long."""
    seen: list[int] = []
    before = 1 << 40
    for _ in range(200):
        pages = []
        for holding, most in zip(holdings, smaller, strict=False):
            rows = [row(n, f"t{n}") for n in sorted(holding, reverse=True) if n < before]
            pages.append(page_of(rows, min(limit, most)))
        page = merged(pages, limit)
        seen += [int(each["token"][1:]) for each in page.rows]
        if not page.more:
            break
        assert page.rows, "a page that says that there is more goes on somewhere"
        assert len(page.rows) <= limit
        before = int(page.rows[-1]["token"][1:])
    assert seen == sorted(set().union(*holdings), reverse=True)


def test_requests_cross_the_connection_and_others_are_refused():
    asked = Consult(session=1, request=2, what=ListEffects(in_doubt=True, agent="a/b"))
    assert decode_from_coordinator(encode(asked)) == asked
    asked = Consult(session=1, request=2, what=ReadHistory(agent="a/b"))
    assert decode_from_coordinator(encode(asked)) == asked
    strange = msgspec.msgpack.encode({"type": "consult", "session": 1, "request": 1, "what": {"type": "erase"}})
    with pytest.raises(Exception, match="control message"):
        decode_from_coordinator(strange)


def test_builds_without_waiting_agents_understand_heartbeats_of_those_that_have_them():
    """And the other way round."""
    beat = Heartbeat(
        session=1, waiting=(WaitingAgent(agent="a/b", step="s", token="t", cause="in-doubt"),), waiting_count=1
    )
    assert decode_from_participant(encode(beat)) == beat
    old = msgspec.msgpack.encode({"type": "heartbeat", "session": 1, "open_epochs": []})
    assert decode_from_participant(old) == Heartbeat(session=1)
