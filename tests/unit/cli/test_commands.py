"""Each command: what goes wrong first, then what people and programs see."""

import json

import pytest

from tests.unit.cli.fake_api import Answer, Cli, FakeApi, error

MEMBER = {
    "session": 3,
    "phase": "reported",
    "reported_ms": 120,
    "state_bytes": 512_000,
    "new_bytes": 4_096,
    "in_flight": 2,
    "timings": {"encode": 40.5, "upload": 12.0},
}
COMMITTED = {
    "epoch": 12,
    "state": "committed",
    "reason": "periodic",
    "started_at_ms": 1_796_000_000_000,
    "ended_at_ms": 1_796_000_000_340,
    "duration_ms": 340,
    "term": 2,
    "terms": [1, 2],
    "incarnation": 1,
    "topology": 4,
    "members_count": 1,
    "reported_count": 1,
    "state_bytes": 512_000,
    "new_bytes": 4_096,
    "in_flight": 2,
    "manifest": "b3:" + "ab" * 32,
    "abort": None,
    "members": {"buyer-1": MEMBER},
}
ABORTED = {
    **COMMITTED,
    "epoch": 13,
    "state": "aborted",
    "manifest": None,
    "members_count": 2,
    "abort": {"participant": "buyer-2", "phase": "upload", "cause": "ENOSPC: no space left on device"},
}
COMMANDS_THAT_READ = [
    ("status",),
    ("participants",),
    ("topology",),
    ("epoch", "list"),
    ("epoch", "show", "7"),
    ("epoch", "show", "latest"),
    ("epoch", "show", "before-the-migration"),
    ("epoch", "list", "--named"),
    ("epoch", "why", "7"),
    ("epoch", "state", "7"),
    ("epoch", "state", "7", "buyer/main"),
    ("policy", "show"),
]
COMMANDS_THAT_WRITE = [
    ("epoch", "trigger"),
    ("epoch", "abort", "7"),
    ("epoch", "pin", "7", "x"),
    ("epoch", "unpin", "x"),
    ("epoch", "trigger", "--name", "x"),
    ("epoch", "verify", "7"),
    ("policy", "set", "--kind", "manual"),
]


@pytest.mark.parametrize("command", COMMANDS_THAT_READ + COMMANDS_THAT_WRITE, ids=" ".join)
def test_no_coordinator_reachable_is_exit_5_and_says_where_it_was_sought(cli: Cli, command: tuple[str, ...]) -> None:
    ended = cli("--coordinators", "127.0.0.1:1", *command)
    assert (ended.code, ended.out) == (5, "")
    assert "127.0.0.1:1: connection refused" in ended.err
    assert "Traceback" not in ended.err
    assert len(ended.err.splitlines()) == 2, "one line names the thing, one says what to do"


class RefusingApi:
    """Every request gets the same error."""

    def __init__(self, api: FakeApi, answer: Answer) -> None:
        api.next = lambda _method, _path: answer  # type: ignore[method-assign]


@pytest.mark.parametrize("command", COMMANDS_THAT_READ + COMMANDS_THAT_WRITE, ids=" ".join)
def test_a_wrong_token_is_exit_6_with_what_to_do(ask: Cli, api: FakeApi, command: tuple[str, ...]) -> None:
    RefusingApi(api, error(401, "wrong-token", "the token is not one of this cluster"))
    ended = ask(*command)
    assert (ended.code, ended.out) == (6, "")
    assert "the token is not one of this cluster" in ended.err
    assert "--secret-file" in ended.err


@pytest.mark.parametrize("command", COMMANDS_THAT_READ + COMMANDS_THAT_WRITE, ids=" ".join)
def test_an_error_is_one_json_document_too(ask: Cli, api: FakeApi, command: tuple[str, ...]) -> None:
    RefusingApi(api, error(403, "wrong-role", "role viewer may not do this", "it takes operator"))
    ended = ask(*command, "--json")
    expected = {"code": "wrong-role", "message": "role viewer may not do this", "hint": "it takes operator", "exit": 6}
    assert ended.document == {"error": expected}
    assert ended.code == 6


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS_THAT_READ + COMMANDS_THAT_WRITE if "7" in each], ids=" ".join
)
def test_an_unknown_epoch_is_exit_3(ask: Cli, api: FakeApi, command: tuple[str, ...]) -> None:
    RefusingApi(api, error(404, "no-epoch", "there is no epoch 7; the newest is 3"))
    ended = ask(*command)
    assert ended.code == 3
    assert "there is no epoch 7" in ended.err


@pytest.mark.parametrize("command", COMMANDS_THAT_READ, ids=" ".join)
@pytest.mark.parametrize("document", [{}, [], None, 7, {"epochs": None}, {"members": 3, "agents": "x", "fields": 1}])
def test_an_answer_of_another_build_is_never_a_traceback(
    ask: Cli, api: FakeApi, command: tuple[str, ...], document: object
) -> None:
    RefusingApi(api, Answer(document=document))
    ended = ask(*command)
    assert ended.code == 0, ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--no-such-option",),
        ("no-such-command",),
        ("epoch", "no-such-command"),
        ("epoch", "show"),
        ("epoch", "show", "0"),
        ("epoch", "show", "-1"),
        ("epoch", "show", "٣"),
        ("epoch", "show", "9" * 30),
        ("epoch", "show", "../etc"),
        ("epoch", "list", "--limit", "0"),
        ("epoch", "list", "--limit", "many"),
        ("epoch", "abort", "latest"),
        ("epoch", "abort", "before-the-migration"),
        ("epoch", "show", "start"),
        ("epoch", "show", "1_000"),
        ("epoch", "pin", "7"),
        ("epoch", "pin", "start", "x"),
        ("epoch", "pin", "7", "8"),
        ("epoch", "pin", "7", "latest"),
        ("epoch", "pin", "7", "start"),
        ("epoch", "pin", "7", "../etc"),
        ("epoch", "pin", "7", "Before"),
        ("epoch", "pin", "7", "a" * 64),
        ("epoch", "unpin"),
        ("epoch", "unpin", "7"),
        ("epoch", "trigger", "--name", "latest"),
        ("epoch", "trigger", "--name", "x", "--no-wait"),
        ("epoch", "state", "1", "buyer"),
        ("epoch", "state", "1", "../../x"),
        ("policy", "set"),
        ("policy", "set", "--interval", "10"),
        ("policy", "set", "--interval", "-1s"),
        ("policy", "set", "--kind", "adaptive"),
        ("policy", "set", "--max-concurrent", "99"),
        ("status", "--timeout", "0"),
        ("status", "--coordinators", "nonsense"),
        ("epoch", "trigger", "extra"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_2_before_anything_is_asked(ask: Cli, api: FakeApi, arguments: tuple[str, ...]) -> None:
    ended = ask(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("cleancut: ")
    assert api.asked == []


def test_a_misspelt_command_gets_the_nearest_name(cli: Cli) -> None:
    ended = cli("epohc")
    assert ended.code == 2
    assert "did you mean epoch?" in ended.err


def test_a_hostile_argument_does_not_reach_the_terminal(cli: Cli) -> None:
    ended = cli("\x1b[2Jstatus")
    assert ended.code == 2
    assert "\x1b" not in ended.err


def test_hostile_names_from_the_cluster_do_not_reach_the_terminal(ask: Cli, api: FakeApi) -> None:
    evil = "\x1b[31mred\x07\u202ered[bold]m[/bold]\nline:smile:"
    api.on("GET", "/v1/participants", {"participants": [{"id": evil, "agents": [evil], "cause": evil}]})
    api.refuse("GET", "/v1/topology", 409, evil, evil, evil)
    shown = ask("participants")
    assert "\\x1b[31mred" in shown.out
    assert "[bold]m[/bold]" in shown.out
    assert ":smile:" in shown.out
    for text in (shown.out, ask("topology").err):
        assert not any(each in text for each in "\x1b\x07\u202e")
    assert len(shown.out.splitlines()) == 2


def test_a_failing_store_is_exit_1_and_not_unreachable(ask: Cli, api: FakeApi) -> None:
    api.refuse("POST", "/v1/epochs/3/verify", 503, "store-failed", "store get of 'x' failed: EIO")
    assert ask("epoch", "verify", "3").code == 1


def test_a_bug_of_ours_is_a_sentence_and_with_debug_a_traceback(
    ask: Cli, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_method: str, _path: str) -> Answer:
        raise AssertionError("not asked")

    monkeypatch.setattr("coordinator.cli.client.Client.read", broken)
    ended = ask("status")
    assert ended.code == 1
    assert "CLEANCUT_DEBUG=1" in ended.err
    assert "Traceback" not in ended.err
    monkeypatch.setenv("CLEANCUT_DEBUG", "1")
    assert "Traceback" in ask("status").err


# --- what is shown --------------------------------------------------------------------------------------------------


def test_status_in_words_and_as_a_document(ask: Cli, api: FakeApi) -> None:
    document = {
        "cluster": "shop",
        "term": 3,
        "leader": "c2",
        "coordinators": [
            {"id": "c1", "address": "127.0.0.1:7401", "up": False, "leader": False, "applied": 40},
            {"id": "c2", "address": "127.0.0.1:7402", "up": True, "leader": True, "applied": 41},
        ],
        "incarnation": 1,
        "topology": 5,
        "epochs": {"newest": 13, "committed": 12, "aborted": 1, "failures_in_a_row": 3, "open": [13]},
        "participants": {"count": 4, "up": 4, "members": 4},
        "policy": {"kind": "periodic", "interval_ms": 10_000, "pause_ms": 500, "deadline_ms": 60_000},
        "struggling": True,
        "version": "0.1.0",
    }
    api.on("GET", "/v1/status", document)
    words = ask("status")
    assert words.code == 0
    assert "leader" in words.out
    assert "periodic, every 10.0 s" in words.out
    assert "3 epochs in a row aborted" in words.out
    assert [line.split() for line in words.out.splitlines()[-2:]] == [
        ["c1", "127.0.0.1:7401", "no", "no", "40"],
        ["c2", "127.0.0.1:7402", "yes", "yes", "41"],
    ]
    assert ask("status", "--json").document == document
    ask("status", "--fresh")
    assert api.asked[-1].query == {"fresh": "1"}


def test_status_names_an_epoch_that_cannot_be_committed(ask: Cli, api: FakeApi) -> None:
    api.on("GET", "/v1/status", {"epochs": {"open": [7], "stuck": [{"epoch": 7, "why": "a part is gone\x1b[2J"}]}})
    words = ask("status").out
    assert "7: a part is gone" in words
    assert "\x1b" not in words
    api.on("GET", "/v1/status", {"epochs": {"open": [7], "stuck": []}})
    assert "stuck" not in ask("status").out


def test_status_without_a_leader_says_why_that_may_be(ask: Cli, api: FakeApi) -> None:
    api.on("GET", "/v1/status", {"leader": None, "coordinators": []})
    assert "no quorum" in ask("status").out


def test_participants_and_topology_as_tables(ask: Cli, api: FakeApi) -> None:
    api.on(
        "GET",
        "/v1/participants",
        {"participants": [{"id": "b", "session": 3, "state": "member", "heartbeat_age_ms": 80, "agents": ["k/a"] * 6}]},
        {"participants": []},
    )
    rows = ask("participants").out.splitlines()
    assert rows[1].split()[:6] == ["b", "3", "member", "80", "ms", "ago"]
    assert "and 2 more" in rows[1]
    assert "no participant has registered yet" in ask("participants").out
    api.on(
        "GET",
        "/v1/topology",
        {"version": 2, "members": [{"id": "a", "session": 1, "agents": []}], "channels": [["a", "b"], ["a", "c"]]},
    )
    ended = ask("topology")
    assert ended.out.startswith("topology 2: 1 member, 2 channels\n")
    assert ended.out.splitlines()[-1].endswith("b, c")


def test_epoch_list_shows_why_one_was_aborted_and_where_older_ones_are(ask: Cli, api: FakeApi) -> None:
    api.on("GET", "/v1/epochs", {"epochs": [ABORTED, COMMITTED], "more": True}, {"epochs": [], "more": False})
    ended = ask("epoch", "list", "--limit", "2", "--before", "14")
    lines = ended.out.splitlines()
    assert "buyer-2 in phase upload" in lines[1]
    assert "1/2" in lines[1].split()
    assert lines[2].split()[:2] == ["12", "committed"]
    assert "340 ms" in lines[2]
    assert "512.0 kB" in lines[2]
    assert lines[3].endswith("--before 12")
    assert api.asked[0].query == {"limit": "2", "before": "14", "fresh": "1"}
    assert ask("epoch", "list").out == "no epochs\n"


def test_no_line_of_a_table_is_wrapped_in_a_pipe(ask: Cli, api: FakeApi) -> None:
    long = {**ABORTED, "reason": "requested: " + "long " * 100}
    api.on("GET", "/v1/epochs", {"epochs": [long]})
    assert len(ask("epoch", "list").out.splitlines()) == 2


def test_epoch_show_has_members_with_phases_and_timings(ask: Cli, api: FakeApi) -> None:
    api.on("GET", "/v1/epochs/latest", COMMITTED)
    api.on("GET", "/v1/epochs/13", ABORTED)
    ended = ask("epoch", "show", "latest")
    assert COMMITTED["manifest"] in ended.out
    assert "encode 40 ms, upload 12 ms" in ended.out
    assert "ENOSPC" in ask("epoch", "show", "13").out
    assert ask("epoch", "show", "latest", "--json").document == COMMITTED


def test_epoch_trigger_waits_and_tells_how_it_ended(ask: Cli, api: FakeApi) -> None:
    api.on("POST", "/v1/epochs", Answer(status=201, document=COMMITTED))
    assert ask("epoch", "trigger", "--reason", "before the release").out == "epoch 12 committed in 340 ms\n"
    assert api.asked[0].body == {"reason": "before the release", "wait": True}
    api.on("POST", "/v1/epochs", Answer(status=201, document={"epoch": 14, "state": "started"}))
    assert ask("epoch", "trigger", "--no-wait").out == "epoch 14 started\n"


def test_an_epoch_that_was_triggered_and_aborts_is_exit_1_with_the_culprit(ask: Cli, api: FakeApi) -> None:
    api.on("POST", "/v1/epochs", Answer(status=201, document=ABORTED))
    ended = ask("epoch", "trigger")
    assert (ended.code, ended.out) == (1, "")
    assert "buyer-2 in phase upload" in ended.err
    assert "epoch why 13" in ended.err
    as_json = ask("epoch", "trigger", "--json")
    assert (as_json.code, as_json.document) == (1, ABORTED)


def test_a_trigger_that_is_refused_is_exit_6(ask: Cli, api: FakeApi) -> None:
    api.refuse("POST", "/v1/epochs", 409, "epoch-open", "epoch 13 is open", "wait for it, or abort it")
    ended = ask("epoch", "trigger")
    assert ended.code == 6
    assert ended.err == "cleancut: epoch 13 is open\n  wait for it, or abort it\n"


def test_an_epoch_that_is_still_open_is_told_once_and_not_asked_for_again(ask: Cli, api: FakeApi) -> None:
    api.refuse("POST", "/v1/epochs", 504, "still-open", "epoch 13 has not ended within 75 s")
    assert ask("epoch", "trigger").code == 5
    assert len(api.asked) == 1


def test_epoch_abort_sends_the_reason(ask: Cli, api: FakeApi) -> None:
    api.on("POST", "/v1/epochs/13/abort", ABORTED)
    assert ask("epoch", "abort", "13", "--reason", "too slow").out == "epoch 13 is aborted\n"
    assert api.asked[0].body == {"reason": "too slow"}


def test_epoch_why_says_the_sentences_and_the_phases(ask: Cli, api: FakeApi) -> None:
    document = {
        "epoch": 13,
        "state": "aborted",
        "sentences": ["Epoch 13 was aborted after 2.0 s.", "It ended in phase upload of buyer-2: ENOSPC."],
        "phases": [
            {"participant": "buyer-2", "phase": "upload", "ms": 1900},
            {"participant": "", "phase": "assemble", "ms": 3},
        ],
    }
    api.on("GET", "/v1/epochs/13/why", document)
    lines = ask("epoch", "why", "13").out.splitlines()
    assert lines[:2] == document["sentences"]
    assert lines[-1].split() == ["(leader)", "assemble", "-", "3", "ms"]


def test_epoch_why_names_agents_that_wait_for_a_decision_with_both_versions(ask: Cli, api: FakeApi) -> None:
    """A4: work stops there, and whoever looks why sees what is recorded and what is wanted now."""
    api.on("GET", "/v1/epochs/13/why", {"epoch": 13, "state": "committed", "sentences": ["Epoch 13 was committed."]})
    api.on("GET", "/v1/status", {"waiting": {"count": 1, "questions": 0, "agents": []}})
    why = "agent payer/main: step pay was done with ('baker', 500), and now wants ('baker', 700)"
    rows = [{"agent": "payer/main", "waits": True, "why": why}, {"agent": "b/c", "waits": False, "why": "claimed"}]
    api.on("GET", "/v1/effects", {"effects": rows})
    lines = ask("epoch", "why", "13").out.splitlines()
    assert lines[0] == "Epoch 13 was committed."
    assert lines[1].startswith("No epoch waits for agents that wait for a decision; now these do")
    assert lines[2:] == [f"  {why}"]
    api.on("GET", "/v1/status", {"waiting": {"count": 0, "questions": 0, "agents": []}})
    assert ask("epoch", "why", "13").out.splitlines() == ["Epoch 13 was committed."]


def test_policy_set_sends_only_what_was_named_in_milliseconds(ask: Cli, api: FakeApi) -> None:
    after = {"kind": "periodic", "interval_ms": 90_000, "pause_ms": 250, "deadline_ms": 60_000}
    api.on("PUT", "/v1/policy", after)
    ended = ask("policy", "set", "--interval", "1.5m", "--pause", "250ms", "--tolerable-failures", "0")
    assert ended.out.startswith("policy is now: periodic, every 1 min 30 s")
    assert api.asked[0].body == {"interval_ms": 90_000, "pause_ms": 250, "tolerable_failures": 0}
    api.on("GET", "/v1/policy", {**after, "tolerable_failures": 0, "max_concurrent": 1})
    assert "no limit" in ask("policy", "show").out
    api.refuse("PUT", "/v1/policy", 400, "bad-value", "policy: interval_ms is too small")
    assert ask("policy", "set", "--interval", "1ms").code == 2


def test_state_in_words_escapes_what_an_agent_kept(ask: Cli, api: FakeApi) -> None:
    document = {
        "agent": "buyer/main",
        "state_version": 2,
        "fields": {
            "note": "\x1b[31m\u202e",
            "spent": 42,
            "orders": {"o1": {"cents": 5}},
            "by_number": {"pairs": [[102, "order 102"], [11, "x" * 500]]},
            "none": {},
        },
        "mailbox": [{"type": "Order"}],
        "timers": [],
    }
    api.on("GET", "/v1/epochs/latest/state", document)
    ended = ask("epoch", "state", "latest", "buyer/main")
    assert api.asked[0].query == {"agent": "buyer/main", "fresh": "1"}
    assert not any(each in ended.out for each in "\x1b\u202e")
    lines = ended.out.splitlines()
    assert lines[3:5] == ["  orders: 1 key", '    "o1": {"cents": 5}']
    assert lines[5] == "  by_number: 2 keys"
    assert lines[6].startswith('    11: "xxx')
    assert lines[6].endswith("... (502 characters)")
    assert lines[7:9] == ['    102: "order 102"', "  none: empty"]
    assert "--json has all of it" in ended.err
    assert "mailbox: 1" in ended.out
    assert "timers: empty" in ended.out
    assert ask("epoch", "state", "latest", "buyer/main", "--json").document == document


def test_a_number_that_json_does_not_have_still_makes_a_document(ask: Cli, api: FakeApi) -> None:
    raw = b'{"agent": "a/b", "fields": {"x": NaN, "y": [Infinity]}}'
    api.on("GET", "/v1/epochs/1/state", Answer(raw=raw))
    ended = ask("epoch", "state", "1", "a/b", "--json")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(ended.out, parse_constant=refuse)["fields"] == {"x": "nan", "y": ["inf"]}


def test_agents_of_an_epoch_are_listed_without_an_agent(ask: Cli, api: FakeApi) -> None:
    api.on("GET", "/v1/epochs/1/agents", {"agents": [{"agent": "a/b", "participant": "p1", "mailbox_count": 3}]})
    assert ask("epoch", "state", "1").out.splitlines()[1].split()[:2] == ["a/b", "p1"]


def test_doctor_goes_on_after_one_check_failed_and_its_code_is_the_gravest(
    cli: Cli, api: FakeApi, second_api: FakeApi
) -> None:
    api.on("GET", "/healthz", Answer(status=503, document={"ready": False, "reasons": ["no leader"]}))
    second_api.on("GET", "/healthz", {"ready": True, "reasons": []})
    checks = {"checks": [{"name": "journal disk", "ok": False, "detail": "3 MiB free", "hint": "free some space"}]}
    for each in (api, second_api):
        each.on("GET", "/v1/doctor", checks)
    ended = cli("doctor", "--coordinators", f"{api.address},{second_api.address}")
    assert ended.code == 1
    assert "not ready: no leader" in ended.out
    assert "journal disk: free some space" in ended.out
    assert cli("doctor", "--coordinators", "127.0.0.1:1").code == 5
    document = cli("doctor", "--coordinators", second_api.address, "--json").document
    assert document["ok"] is False
    assert [check["name"] for check in document["checks"] if not check["ok"]] == ["journal disk"]


def test_doctor_names_a_secret_that_cannot_be_used_and_goes_on(cli: Cli, api: FakeApi) -> None:
    api.on("GET", "/healthz", {"ready": True})
    ended = cli("doctor", "--coordinators", api.address, "--secret-file", "/no/such/secret")
    assert ended.code == 1
    assert "no such file" in ended.out
    assert f"coordinator {api.address}" in ended.out
