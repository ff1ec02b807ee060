"""Savepoints from the command line: what is refused, what a name is taken for, and where it cannot be known."""

from pathlib import Path

import pytest

from tests.unit.cli.fake_api import Answer, Cli, FakeApi, error
from tests.unit.cli.store_maker import Made, make_store
from tests.unit.cli.test_commands import ABORTED, COMMITTED
from tests.unit.cli.test_restore import DONE, EPOCHS, PLAN, STATUS

PINNED = {"name": "x", "epoch": 12, "outcome": "pinned"}
NOBODY = error(404, "no-savepoint", "there is no savepoint xx", "did you mean x?")
TAKEN = error(409, "name-taken", "savepoint x is epoch 3", "take another name")


def asked(api: FakeApi) -> list[tuple[str, str]]:
    return [(each.method, each.path) for each in api.asked]


# --- pin and unpin --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (error(404, "no-epoch", "there is no epoch 12; the newest is 3"), 3),
        (error(409, "not-committed", "epoch 12 is aborted: only a committed one gets a name"), 6),
        (TAKEN, 6),
        (error(409, "full", "there are 256 savepoints; at most 256 are kept"), 6),
    ],
)
def test_what_the_coordinators_refuse_is_said_with_its_own_exit_code(
    ask: Cli, api: FakeApi, answer: Answer, code: int
) -> None:
    api.on("POST", "/v1/epochs/12/pin", answer)
    ended = ask("epoch", "pin", "12", "x")
    assert (ended.code, ended.out) == (code, "")
    assert answer.document["error"]["message"] in ended.err


def test_a_name_that_nothing_has_is_exit_3_with_the_nearest(ask: Cli, api: FakeApi) -> None:
    api.on("DELETE", "/v1/savepoints/xx", NOBODY)
    api.on("GET", "/v1/epochs/xx", NOBODY)
    for command in (("unpin", "xx"), ("show", "xx"), ("pin", "xx", "y"), ("verify", "xx"), ("restore", "xx", "--yes")):
        ended = ask("epoch", *command)
        assert ended.code == 3, command
        assert "there is no savepoint xx" in ended.err
        assert "did you mean x?" in ended.err
    assert not [each for each in asked(api) if each[0] == "POST"]


def test_a_lost_answer_to_unpin_is_not_asked_for_again(ask: Cli, api: FakeApi) -> None:
    """The second answer would be that there is no such savepoint."""
    api.on("DELETE", "/v1/savepoints/x", Answer(cut=True))
    ended = ask("epoch", "unpin", "x")
    assert ended.code == 5
    assert "whether it acted is not known" in ended.err
    assert asked(api) == [("DELETE", "/v1/savepoints/x")]


def test_pinned_and_pinned_again_and_taken_back(ask: Cli, api: FakeApi) -> None:
    api.on("POST", "/v1/epochs/12/pin", PINNED, {**PINNED, "outcome": "already"})
    first, again = ask("epoch", "pin", "12", "x"), ask("epoch", "pin", "12", "x")
    assert (first.code, first.out) == (0, "epoch 12 is savepoint x now, and is kept\n")
    assert (again.code, again.out) == (0, "epoch 12 is savepoint x already\n")
    assert [each.body for each in api.asked] == [{"name": "x"}] * 2
    api.on("DELETE", "/v1/savepoints/x", {"name": "x", "epoch": 12, "names": ["y"]}, {"name": "x", "epoch": 12})
    assert "epoch 12 is not savepoint x any more; it is still y" in ask("epoch", "unpin", "x").out
    assert "kept no longer than others" in ask("epoch", "unpin", "x").out


def test_latest_is_made_a_number_before_it_is_named(ask: Cli, api: FakeApi) -> None:
    """Where an answer is lost, the same is asked again: it must be the same epoch."""
    api.on("GET", "/v1/epochs/latest", COMMITTED)
    api.on("GET", "/v1/epochs/other", COMMITTED)
    api.on("POST", "/v1/epochs/12/pin", PINNED)
    assert ask("epoch", "pin", "latest", "x", "--json").document == PINNED
    assert ask("epoch", "pin", "other", "x").code == 0
    assert asked(api)[1] == asked(api)[3] == ("POST", "/v1/epochs/12/pin")


# --- trigger --name -------------------------------------------------------------------------------------------------


def test_a_name_in_use_is_refused_before_an_epoch_is_taken_for_it(ask: Cli, api: FakeApi) -> None:
    api.on("GET", "/v1/savepoints", {"savepoints": [{"name": "x", "epoch": 3}]})
    ended = ask("epoch", "trigger", "--name", "x")
    assert ended.code == 6
    assert "savepoint x is epoch 3; no epoch was started" in ended.err
    assert asked(api) == [("GET", "/v1/savepoints")]


def test_an_epoch_that_aborts_gets_no_name(ask: Cli, api: FakeApi) -> None:
    api.on("GET", "/v1/savepoints", {"savepoints": []})
    api.on("POST", "/v1/epochs", Answer(status=201, document=ABORTED))
    ended = ask("epoch", "trigger", "--name", "x")
    assert ended.code == 1
    assert "epoch 13 was aborted" in ended.err
    assert asked(api)[-1] == ("POST", "/v1/epochs")


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_epoch_that_commits_and_cannot_be_named_is_told_with_its_number(
    ask: Cli, api: FakeApi, options: tuple[str, ...]
) -> None:
    api.on("GET", "/v1/savepoints", {"savepoints": []})
    api.on("POST", "/v1/epochs", Answer(status=201, document=COMMITTED))
    api.on("POST", "/v1/epochs/12/pin", TAKEN)
    ended = ask("epoch", "trigger", "--name", "x", *options)
    assert ended.code == 6
    said = ended.document["error"]["message"] if options else ended.err
    assert "epoch 12 is committed, and has no name: savepoint x is epoch 3" in said


def test_a_savepoint_is_one_command(ask: Cli, api: FakeApi) -> None:
    api.on("GET", "/v1/savepoints", {"savepoints": [{"name": "y", "epoch": 3}]})
    api.on("POST", "/v1/epochs", Answer(status=201, document=COMMITTED))
    api.on("POST", "/v1/epochs/12/pin", PINNED)
    ended = ask("epoch", "trigger", "--name", "x")
    assert ended.code == 0, ended.err
    assert ended.out == "epoch 12 committed in 340 ms; it is savepoint x, and is kept\n"
    assert ask("epoch", "trigger", "--name", "x", "--json").document == {**COMMITTED, "names": ["x"]}


# --- names in place of numbers ----------------------------------------------------------------------------------------


def test_names_are_shown_in_the_list_and_with_the_epoch(ask: Cli, api: FakeApi) -> None:
    api.on("GET", "/v1/epochs", {"epochs": [{**COMMITTED, "names": ["x", "y\x1b[2J"]}, ABORTED], "more": True})
    ended = ask("epoch", "list", "--named")
    assert "SAVEPOINT" in ended.out
    assert "x, y\\x1b[2J" in ended.out
    assert "epoch list --named --before 13" in ended.out
    assert api.asked[-1].query["named"] == "1"
    api.on("GET", "/v1/epochs/x", {**COMMITTED, "names": ["x"]})
    assert "savepoint        x" in ask("epoch", "show", "x").out
    assert "savepoint" not in ask_of_an_older_build(ask, api)
    api.on("GET", "/v1/epochs", {"epochs": []})
    assert ask("epoch", "list", "--named").out == "no savepoints\n"


def ask_of_an_older_build(ask: Cli, api: FakeApi) -> str:
    api.on("GET", "/v1/epochs/12", COMMITTED)
    return ask("epoch", "show", "12").out


def test_a_restore_by_name_goes_where_it_said_that_it_would(ask: Cli, api: FakeApi) -> None:
    """Between the look and the order somebody may give the name to another epoch."""
    api.on("GET", "/v1/status", STATUS)
    api.on("GET", "/v1/epochs", EPOCHS)
    api.on("GET", "/v1/epochs/x", {**COMMITTED, "epoch": 3}, {**COMMITTED, "epoch": 5})
    api.on("POST", "/v1/epochs/3/check", PLAN)
    api.on("POST", "/v1/epochs/x/check", PLAN)
    api.on("POST", "/v1/epochs/3/restore", DONE)
    ended = ask("epoch", "restore", "x", "--yes")
    assert ended.code == 0, ended.err
    assert "2 newer epochs (4, 5)" in ended.err
    assert ("POST", "/v1/epochs/3/restore") in asked(api)
    checked = ask("epoch", "restore", "x", "--check")
    assert checked.code == 0, checked.err
    assert "epoch 3 can be restored" in checked.out


def test_verify_by_name_asks_for_the_number(ask: Cli, api: FakeApi) -> None:
    api.on("GET", "/v1/epochs/x", COMMITTED)
    api.on("POST", "/v1/epochs/12/verify", {"epoch": 12, "ok": True, "findings": []})
    ended = ask("epoch", "verify", "x")
    assert (ended.code, ended.out) == (0, "epoch 12 is sound\n")


# --- a store alone ----------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make_store(tmp_path)


def test_a_store_alone_does_not_know_names_and_the_command_says_so(cli: Cli, made: Made, api: FakeApi) -> None:
    for command in (("verify", "x"), ("state", "x"), ("state", "x", "buyer/main"), ("restore", "x", "--check")):
        ended = cli("epoch", *command, "--store", made.folder / "store")
        assert (ended.code, ended.out) == (3, ""), command
        assert "a store does not know names: the coordinators do" in ended.err
        assert "give the epoch's number" in ended.err
    assert api.asked == []


def fork(cli: Cli, made: Made, *options: object) -> object:
    return cli(
        "epoch", "fork", "x", "--cluster", "try", "--store", made.folder / "other", "--from-store",
        made.folder / "store", "--secret-file", made.secret_file, "--fork-secret-file", made.folder / "try.secret", *options,
    )  # fmt: skip


def test_a_fork_asks_the_coordinators_what_a_name_is_and_nothing_else(cli: Cli, made: Made, api: FakeApi) -> None:
    api.on("GET", "/v1/epochs/x", {**COMMITTED, "epoch": 3})
    api.on("GET", "/v1/status", {"cluster": "shop"})
    ended = fork(cli, made, "--coordinators", api.address)
    assert ended.code == 0, ended.err
    assert "epoch 3 of shop is now the beginning of cluster try" in ended.out
    assert asked(api) == [("GET", "/v1/epochs/x"), ("GET", "/v1/status")]


def test_a_fork_takes_no_name_from_another_clusters_coordinators(cli: Cli, made: Made, api: FakeApi) -> None:
    api.on("GET", "/v1/epochs/x", {**COMMITTED, "epoch": 3})
    api.on("GET", "/v1/status", {"cluster": "somebody-else"})
    ended = fork(cli, made, "--coordinators", api.address)
    assert ended.code == 6
    assert "of cluster somebody-else, not shop" in ended.err
    assert not (made.folder / "other").exists()
    nobody = fork(cli, made, "--coordinators", "127.0.0.1:1", "--timeout", "2")
    assert nobody.code == 5
    assert "only the coordinators know what savepoint x is" in nobody.err
    assert "or give the epoch's number" in nobody.err
