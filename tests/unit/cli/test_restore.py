"""`epoch restore`: what it says before, whom it asks, how it waits, and every way to end."""

import os
import pty
import subprocess
import sys

import pytest

from tests.unit.cli.fake_api import Cli, FakeApi

RESTORE = ("epoch", "restore", "3")
STATUS = {"recovery": {"epoch": 5}}
EPOCHS = {"epochs": [{"epoch": number, "state": "committed"} for number in (5, 4, 3)]}
PLAN = {
    "epoch": 3,
    "agents": [],
    "ok": True,
    "problems": [],
    "counts": {},
    "outputs_after": 1,
    "effects_after": 0,
    "outside": [{"kind": "output", "place": "receipts", "agent": "buyer/main", "token": "ab12", "detail": "x"}],
    "notes": [],
}
BEGUN = {"incarnation": 2, "epoch": 3, "state": "restoring", "members_count": 2, "restored_count": 0, "took_ms": 0}
DONE = {**BEGUN, "state": "done", "restored_count": 2, "took_ms": 1_500, "cause": "operator"}


@pytest.fixture
def world(api: FakeApi) -> FakeApi:
    """An API on which a restore of epoch 3 goes through."""
    api.on("GET", "/v1/status", STATUS)
    api.on("GET", "/v1/epochs", EPOCHS)
    for number in (3, 5):
        api.on("POST", f"/v1/epochs/{number}/check", PLAN)
    for name in ("3", "latest", "start"):
        api.on("POST", f"/v1/epochs/{name}/restore", BEGUN)
    api.on("GET", "/v1/incarnations", {"incarnation": 2, "rollbacks": [DONE]})
    return api


def restores(api: FakeApi) -> list[object]:
    """Bodies of the requests that would have changed something."""
    return [asked.body for asked in api.asked if asked.path.endswith("/restore")]


def test_says_what_is_given_up_and_what_stays_and_how_long_it_took(ask: Cli, world: FakeApi) -> None:
    ended = ask(*RESTORE, "--yes")
    assert ended.code == 0, ended.err
    assert "2 newer epochs (4, 5); what happened in them is given up" in ended.err
    assert "1 output after the epoch: they stay" in ended.err
    assert "receipts of buyer/main" in ended.err
    assert "2 participants back at epoch 3 in 1.5 s" in ended.out
    assert restores(world) == [{"reason": "operator", "wait": False}]


def test_nobody_is_asked_in_a_script_and_nothing_happens_without_yes(ask: Cli, world: FakeApi) -> None:
    ended = ask(*RESTORE)
    assert ended.code == 2
    assert "--yes" in ended.err
    assert restores(world) == []


def test_a_plan_that_would_be_refused_ends_it_before_anything_is_touched(ask: Cli, world: FakeApi) -> None:
    world.on("POST", "/v1/epochs/3/check", {**PLAN, "ok": False, "problems": ["buyer/main: nobody takes it"]})
    ended = ask(*RESTORE, "--yes")
    assert ended.code == 6
    assert "buyer/main: nobody takes it" in ended.err
    assert restores(world) == []


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [(404, "unknown", 3), (409, "not-committed", 6), (422, "corrupt", 4), (409, "bad-map", 6)],
)
def test_an_epoch_that_cannot_be_gone_back_to_ends_with_its_own_code(
    ask: Cli, world: FakeApi, status: int, code: str, exit_code: int
) -> None:
    world.refuse("POST", "/v1/epochs/3/check", status, code, "epoch 3 is no good")
    ended = ask(*RESTORE, "--yes")
    assert ended.code == exit_code
    assert "epoch 3 is no good" in ended.err
    assert restores(world) == []


def test_latest_goes_on_where_the_newest_is_damaged_and_says_so(ask: Cli, world: FakeApi) -> None:
    """The coordinators decide how far back, by their policy."""
    world.refuse("POST", "/v1/epochs/5/check", 422, "corrupt", "pack x is damaged")
    cause = "operator; epoch 3 in place of 5, 2 epochs and 20 s further back: pack x is damaged"
    world.on("GET", "/v1/incarnations", {"incarnation": 2, "rollbacks": [{**DONE, "cause": cause}]})
    ended = ask("epoch", "restore", "latest", "--yes")
    assert ended.code == 0, ended.err
    assert "pack x is damaged" in ended.err
    assert "2 epochs and 20 s further back" in ended.out


def test_renames_and_losses_go_along_with_check_and_restore(ask: Cli, world: FakeApi) -> None:
    ended = ask(*RESTORE, "--yes", "--map", "buyer/a=buyer/b", "--map", "buyer/c=buyer/d", "--allow-unclaimed")
    assert ended.code == 0, ended.err
    wanted = {"buyer/a": "buyer/b", "buyer/c": "buyer/d"}
    checks = [asked.body for asked in world.asked if asked.path.endswith("/check")]
    assert checks == [{"allow_unclaimed": True, "map": wanted}]
    assert restores(world) == [{"reason": "operator", "wait": False, "map": wanted, "allow_unclaimed": True}]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--map", "buyer/a"),
        ("--map", "buyer/a=nonsense"),
        ("--map", "buyer/a=buyer/b", "--map", "buyer/a=buyer/c"),
        ("--store", "/nowhere"),
        ("--app", "x:y"),
    ],
)
def test_wrong_words_are_wrong_usage(ask: Cli, world: FakeApi, arguments: tuple[str, ...]) -> None:
    assert ask(*RESTORE, "--yes", *arguments).code == 2
    assert restores(world) == []


def test_the_start_has_no_agents_to_rename(ask: Cli, world: FakeApi) -> None:
    assert ask("epoch", "restore", "start", "--yes", "--map", "buyer/a=buyer/b").code == 2
    ended = ask("epoch", "restore", "start", "--yes")
    assert ended.code == 0, ended.err
    assert "every agent begins anew" in ended.err


@pytest.mark.parametrize(("kind", "exit_code"), [("unfit", 1), ("corrupt", 4)])
def test_an_incarnation_that_does_not_begin_is_a_failure_with_its_cause(
    ask: Cli, world: FakeApi, kind: str, exit_code: int
) -> None:
    failure = {"participant": "p1", "kind": kind, "cause": "agent buyer/main: no field x"}
    world.on(
        "GET", "/v1/incarnations", {"incarnation": 2, "rollbacks": [{**DONE, "state": "failed", "failure": failure}]}
    )
    ended = ask(*RESTORE, "--yes")
    assert ended.code == exit_code
    assert "p1: agent buyer/main: no field x" in ended.err


def test_one_that_does_not_end_in_time_says_that_it_goes_on(ask: Cli, world: FakeApi) -> None:
    world.on("GET", "/v1/incarnations", {"incarnation": 2, "rollbacks": [BEGUN]})
    ended = ask(*RESTORE, "--yes", "--timeout", "0.5")
    assert ended.code == 1
    assert "it goes on" in ended.err
    at_once = ask(*RESTORE, "--yes", "--no-wait")
    assert at_once.code == 0
    assert "restoring" in at_once.out


def test_json_is_one_document(ask: Cli, world: FakeApi) -> None:
    ended = ask(*RESTORE, "--yes", "--json")
    assert ended.code == 0
    assert ended.document == DONE


def on_a_terminal(api: FakeApi, answer: str) -> tuple[int, str]:
    """Exit code and everything that a person at a terminal sees."""
    mine, its = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "coordinator.cli", "--coordinators", api.address, *RESTORE],
        stdin=its,
        stdout=its,
        stderr=its,
        close_fds=True,
    )
    os.close(its)
    os.write(mine, answer.encode() + b"\n")
    seen = b""
    try:
        while data := os.read(mine, 4096):
            seen += data
    except OSError:
        pass  # the other end is closed: it has ended
    os.close(mine)
    return child.wait(20), seen.decode()


def test_a_person_is_asked_after_the_consequences_and_may_say_no(world: FakeApi) -> None:
    code, seen = on_a_terminal(world, "n")
    assert code == 6, seen
    assert seen.index("newer epochs") < seen.index("Take the whole cluster back?")
    assert "nothing was done" in seen
    assert restores(world) == []
    code, seen = on_a_terminal(world, "y")
    assert code == 0, seen
    assert "restoring: 0 of 2 participants" in seen
    assert "back at epoch 3 in 1.5 s" in seen
