"""``effects``, ``questions`` and ``agent list | history``: what is refused before anybody is asked, and what people see."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.operator_world import log_turns
from tests.unit.cli.fake_api import Answer, Cli, FakeApi, error

TOKEN = "ab" * 16
EFFECT: dict[str, Any] = {
    "cursor": f"1796000000000000000-{TOKEN}",
    "token": TOKEN,
    "kind": "step",
    "agent": "buyer/a",
    "name": "charge",
    "ordinal": 0,
    "state": "claimed",
    "standing": "in-doubt",
    "arguments": "('o1', 500)",
    "claimed_by": "p1",
    "claimed_at_ms": 1_796_000_000_000,
    "ended_at_ms": None,
    "settled": False,
    "waits": True,
    "why": "nobody can tell",
}
DONE = {**EFFECT, "state": "done", "standing": "", "why": "", "result": {"number": 7}, "settled": True}
QUESTION = {
    "cursor": f"1796000000000000000-{TOKEN}",
    "token": TOKEN,
    "agent": "buyer/a",
    "question": "Ship it?",
    "claimed_at_ms": 1_796_000_000_000,
    "expires_in_ms": 90_000,
}
TURN = {
    "number": 12,
    "at": 1_796_000_000_000_000_000,
    "message": {"id": "00", "type": "Order", "source": "buyer/b"},
    "outcome": "committed",
    "attempt": 2,
    "fields": ["receipts"],
    "steps": [{"kind": "step", "name": "charge", "ordinal": 0, "state": "done", "result": {"number": 7}}],
    "sends": [{"type": "Paid", "target": "ledger/main", "body": {"cents": 5}}],
    "timers": [{"in_ns": 5_000_000_000, "type": "Remind", "body": None}],
    "outputs": [{"id": "01", "sink": "receipts", "payload": {"text": "\x1b[31m"}}],
}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("effects", "settle", TOKEN), "say one thing"),
        (("effects", "settle", TOKEN, "--result", "1", "--did-not-happen"), "say one thing"),
        (("effects", "settle", TOKEN, "--take-recorded", "--did-not-happen"), "say one thing"),
        (("effects", "settle", TOKEN, "--result", "paid"), "not JSON"),
        (("effects", "settle", TOKEN, "--result", "NaN"), "NaN is no JSON"),
        (("effects", "settle", TOKEN, "--result", "[" * 100_000), "not JSON"),
        (("effects", "settle", "../../x", "--result", "1"), "is no token"),
        (("effects", "settle", "", "--result", "1"), "is no token"),
        (("effects", "list", "--agent", "buyer"), "buyer"),
        (("effects", "list", "--limit", "0"), "--limit"),
        (("questions", "answer", TOKEN, "yes"), "not JSON"),
        (("questions", "answer", TOKEN), "JSON"),
        (("questions", "answer", "a b", "true"), "is no token"),
        (("agent", "history", "buyer"), "buyer"),
        (("agent", "history", "buyer/a", "--limit", "many"), "--limit"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(
    ask: Cli, api: FakeApi, arguments: Any, said: str
) -> None:
    ended = ask(*arguments)
    assert ended.code == 2
    assert said in ended.err
    assert ended.out == ""
    assert api.asked == []


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (404, "no-effect", 3),
        (409, "settled-before", 6),
        (409, "under-way", 6),
        (403, "wrong-role", 6),
        (400, "bad-value", 2),
        (503, "not-found-yet", 5),
        (504, "unknown-outcome", 5),
    ],
)
def test_a_word_that_is_not_taken_ends_with_the_reason(
    ask: Cli, api: FakeApi, status: int, code: str, exit_code: int
) -> None:
    for method, path, arguments in [
        ("POST", f"/v1/effects/{TOKEN}/settle", ("effects", "settle", TOKEN, "--did-not-happen")),
        ("POST", f"/v1/questions/{TOKEN}/answer", ("questions", "answer", TOKEN, "true")),
    ]:
        api.refuse(method, path, status, code, "it is \x1b[31mso", "do that")
        ended = ask(*arguments, "--timeout", "0.3")
        assert ended.code == exit_code, ended
        assert "it is \\x1b[31mso" in ended.err
        ended = ask(*arguments, "--timeout", "0.3", "--json")
        assert ended.document["error"]["code"] == code


def test_effects_are_a_table_and_whoever_is_missing_is_named(ask: Cli, api: FakeApi) -> None:
    answer = {
        "effects": [EFFECT, DONE],
        "more": True,
        "before": EFFECT["cursor"],
        "asked": ["p1", "p2"],
        "unanswered": [{"participant": "p2", "why": "it is lost"}],
    }
    api.on("GET", "/v1/effects", answer)
    ended = ask("effects", "list", "--in-doubt", "--agent", "buyer/a", "--limit", "2")
    assert ended.code == 0
    assert api.asked[-1].query == {"in_doubt": "1", "agent": "buyer/a", "limit": "2"}
    for part in (
        TOKEN,
        "buyer/a",
        "charge#0",
        "in-doubt",
        "('o1', 500)",
        "nobody can tell",
        "done (settled)",
        "number",
    ):
        assert part in ended.out
    assert f"--before {EFFECT['cursor']}" in ended.out
    assert "p2 is not in this list: it is lost" in ended.err
    assert ask("effects", "list", "--json").document == answer
    api.on("GET", "/v1/effects", {"effects": [], "more": False, "unanswered": []})
    assert ask("effects", "list", "--in-doubt").out == "nothing is in doubt\n"
    assert ask("effects", "list").out == "no effects\n"


def test_an_answer_of_another_build_is_shown_as_far_as_it_goes(ask: Cli, api: FakeApi) -> None:
    for path, arguments in [
        ("/v1/effects", ("effects", "list")),
        ("/v1/questions", ("questions", "list")),
        ("/v1/agents", ("agent", "list")),
        ("/v1/agents/buyer/a/history", ("agent", "history", "buyer/a")),
    ]:
        for document in ({}, {"effects": [{}], "questions": [{}], "agents": [{}], "turns": [{}]}, {"effects": 7}):
            api.on("GET", path, document)
            assert ask(*arguments).code == 0, (path, document)


def test_settling_says_what_it_came_to(ask: Cli, api: FakeApi) -> None:
    path = f"/v1/effects/{TOKEN}/settle"
    api.on("POST", path, {"participant": "p1", "duplicate": False, "effect": DONE})
    ended = ask("effects", "settle", TOKEN, "--result", '{"number": 7}')
    assert (ended.code, api.asked[-1].body) == (0, {"result": {"number": 7}})
    assert ended.out == "charge of buyer/a: done (settled)\n"
    ended = ask("effects", "settle", TOKEN, "--result", "null")
    assert api.asked[-1].body == {"result": None}
    api.on(
        "POST",
        path,
        {"participant": "p1", "duplicate": True, "effect": {**EFFECT, "state": "released", "standing": ""}},
    )
    ended = ask("effects", "settle", TOKEN, "--did-not-happen")
    assert (api.asked[-1].body, ended.out) == ({"did_not_happen": True}, "charge of buyer/a: released already\n")
    ended = ask("effects", "settle", TOKEN, "--take-recorded")
    assert (api.asked[-1].body, ended.out) == (
        {"take_recorded": True},
        "charge of buyer/a: its recorded result is taken\n",
    )


def test_a_word_is_said_again_where_its_answer_was_lost_since_the_same_word_is_taken_once(
    ask: Cli, api: FakeApi, second_api: FakeApi, cli: Cli
) -> None:
    path = f"/v1/questions/{TOKEN}/answer"
    api.on("POST", path, Answer(cut=True))
    second_api.on("POST", path, {"duplicate": True, "question": QUESTION})
    ended = cli("--coordinators", f"{api.address},{second_api.address}", "questions", "answer", TOKEN, "true")
    assert (ended.code, ended.out) == (0, "buyer/a had this answer already: Ship it?\n")


def test_questions_are_a_table_and_answers_are_json(ask: Cli, api: FakeApi) -> None:
    api.on("GET", "/v1/questions", {"questions": [QUESTION, {**QUESTION, "question": {"ask": 1}}], "unanswered": []})
    ended = ask("questions", "list")
    for part in (TOKEN, "Ship it?", "1 min 30 s", '{"ask": 1}'):
        assert part in ended.out
    api.on("GET", "/v1/questions", {"questions": []})
    assert ask("questions", "list").out == "no question is open\n"
    api.on("POST", f"/v1/questions/{TOKEN}/answer", {"duplicate": False, "question": QUESTION})
    ended = ask("questions", "answer", TOKEN, '"yes"')
    assert (api.asked[-1].body, ended.out) == ({"answer": "yes"}, "buyer/a has its answer: Ship it?\n")


def test_agents_and_what_they_wait_for_are_listed(ask: Cli, api: FakeApi) -> None:
    row = {"agent": "buyer/a", "participant": "p1", "participant_state": "member", "state_version": 2, "waiting": None}
    waits = {**row, "agent": "buyer/b", "waiting": {"cause": "diverged", "step": "charge", "token": TOKEN}}
    api.on("GET", "/v1/agents", {"agents": [row, waits]})
    ended = ask("agent", "list")
    assert "buyer/a" in ended.out
    assert f"diverged: charge ({TOKEN})" in ended.out
    assert ask("agent", "list", "--json").document["agents"] == [row, waits]
    api.on("GET", "/v1/agents", {"agents": []})
    assert "no agents" in ask("agent", "list").out


def test_a_history_says_turn_by_turn_what_was_done(ask: Cli, api: FakeApi) -> None:
    dead = {
        "number": 13,
        "at": 1,
        "message": {"type": "Order", "source": "x/y"},
        "outcome": "dead-letter",
        "reason": "no",
    }
    document = {"agent": "buyer/a", "participant": "p1", "turns": [TURN, dead], "more": True}
    api.on("GET", "/v1/agents/buyer/a/history", document)
    ended = ask("agent", "history", "buyer/a", "--limit", "2", "--before", "99")
    assert api.asked[-1].query == {"limit": "2", "before": "99"}
    assert ended.out.splitlines()[0] == "older ones: cleancut agent history buyer/a --before 12"
    for part in (
        "Order from buyer/b  committed, attempt 2",
        "changed receipts",
        'step charge#0 done {"number": 7}',
        'sent Paid to ledger/main {"cents": 5}',
        "timer in 5.0 s: Remind",
        "output to receipts",
        "dead-letter: no",
    ):
        assert part in ended.out
    assert "\x1b" not in ended.out
    assert ask("agent", "history", "buyer/a", "--json").document == document
    api.on("GET", "/v1/agents/buyer/a/history", error(409, "no-turn-log", "p1 keeps no log of turns"))
    assert ask("agent", "history", "buyer/a").code == 6


def test_who_waits_is_in_status_and_participants(ask: Cli, api: FakeApi) -> None:
    agents = [
        {"participant": "p1", "agent": f"buyer/{n}", "cause": "in-doubt", "step": "s", "token": "t"} for n in range(3)
    ]
    api.on("GET", "/v1/status", {"cluster": "shop", "waiting": {"count": 9, "questions": 1, "agents": agents}})
    ended = ask("status")
    assert "9 agents for a decision: buyer/0 (in-doubt), buyer/1 (in-doubt), buyer/2 (in-doubt) and 6 more" in ended.out
    assert "1 question open" in ended.out
    api.on("GET", "/v1/status", {"cluster": "shop", "waiting": {"count": 0, "questions": 0, "agents": []}})
    assert "waiting" not in ask("status").out
    row = {
        "id": "p1",
        "session": 1,
        "state": "member",
        "agents": ["buyer/0"],
        "waiting": agents[:1],
        "waiting_count": 3,
    }
    api.on("GET", "/v1/participants", {"participants": [row]})
    assert "buyer/0 (in-doubt) and 2 more" in ask("participants").out


def test_a_local_folder_is_read_without_any_coordinator(cli: Cli, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    for arguments in (
        ("effects", "list"),
        ("questions", "list"),
        ("agent", "list"),
        ("agent", "history", "buyer/a"),
    ):
        ended = cli(*arguments, "--local", nowhere)
        assert ended.code == 1, ended
        assert "ENOENT" in ended.err
    log_turns(tmp_path / "p1", "buyer/a", 5)
    ended = cli("agent", "history", "buyer/a", "--local", tmp_path, "--limit", "2", "--json")
    assert [turn["outcome"] for turn in ended.document["turns"]] == ["committed", "dead-letter"]
    assert "sent Number to buyer/other 4" in cli("agent", "history", "buyer/a", "--local", tmp_path / "p1").out
    assert cli("agent", "history", "buyer/b", "--local", tmp_path).code == 3
    assert "buyer/a" in cli("agent", "list", "--local", tmp_path).out
    ended = cli("effects", "list", "--local", tmp_path)
    assert ended.code == 1
    assert "no participant's effects log" in ended.err
    segment = next((tmp_path / "p1" / "turns").iterdir())
    segment.write_bytes(segment.read_bytes()[:100] + b"x" + segment.read_bytes()[101:])
    ended = cli("agent", "history", "buyer/a", "--local", tmp_path, "--json")
    assert ended.code == 4
    assert json.loads(ended.out)["error"]["exit"] == 4
