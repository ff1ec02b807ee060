"""``epoch restore N --check``: the plan in words, from a store alone and from a running cluster."""

from pathlib import Path

import pytest

from tests.unit.cli.fake_api import Cli, FakeApi
from tests.unit.cli.store_maker import Made, make_store

CHECK = ("epoch", "restore", "3", "--check")
GOOD = """
from participant import Agent, keyed, migration, value

class Buyer(Agent, kind="buyer", state_version=3, serializer="cloudpickle"):
    note = value(str)
    orders = keyed(str, dict)

    @staticmethod
    @migration(2)
    def _next(state):
        return state

class Ledger(Agent, kind="books", renamed_from=("ledger",)):
    pass

agents = [Buyer, Ledger]
objects = {"one": Buyer("main"), "more": [Ledger("ledger/main"), Ledger("new")]}

def made():
    return objects

class Old(Agent, kind="buyer"):
    pass

class Gap(Agent, kind="buyer", state_version=4):
    @staticmethod
    @migration(3)
    def _next(state):
        return state

class Same(Agent, kind="buyer", state_version=2):
    note = value(str)

old, gap, same, nothing, wrong = [Old, Ledger], [Gap, Ledger], [Same, Ledger], [], ["text"]
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.chdir(tmp_path)
    return make_store(tmp_path)


@pytest.fixture
def app(made: Made, tmp_path: Path) -> str:
    """A module of this test's own: modules are imported once."""
    name = f"app_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(GOOD)
    return name


def store(made: Made) -> tuple[object, ...]:
    return ("--store", made.folder / "store", "--secret-file", made.secret_file)


def test_code_that_fits_says_what_happens_to_each_agent_and_exits_0(cli: Cli, made: Made, app: str) -> None:
    ended = cli(*CHECK, *store(made), "--app", f"{app}:agents")
    assert (ended.code, ended.err) == (0, "")
    assert "buyer/main" in ended.out
    assert "migrations 2 to 3" in ended.out
    assert "ledger/main" in ended.out
    assert "1 matched, 1 migrated" in ended.out
    assert "epoch 3 can be restored" in ended.out
    assert "nobody handles 1 of Paid version 1: dead letters" in ended.out


def test_agents_as_objects_also_say_who_is_missing_from_the_epoch(cli: Cli, made: Made, app: str) -> None:
    for attribute in ("objects", "made"):
        document = cli(*CHECK, *store(made), "--app", f"{app}:{attribute}", "--json").document
        fates = {line["agent"]: line["fate"] for line in document["agents"]}
        assert fates == {"books/new": "missing", "buyer/main": "migrated", "ledger/main": "matched"}
        assert document["ok"] is True


def test_without_code_every_agent_is_unclaimed_and_it_is_exit_6(cli: Cli, made: Made) -> None:
    ended = cli(*CHECK, *store(made))
    assert ended.code == 6
    assert "nobody here declares it or takes agents of kind buyer (it was on p1)" in ended.out
    assert "nothing was touched" in ended.err
    assert "no code was named" in ended.out
    allowed = cli(*CHECK, *store(made), "--allow-unclaimed")
    assert allowed.code == 0


@pytest.mark.parametrize(
    ("attribute", "problem"),
    [
        ("old", "code cannot go back"),
        ("gap", "there is no migration from 2 to 3"),
        ("same", "its class has no field orders that the epoch holds"),
    ],
)
def test_code_that_does_not_fit_is_exit_6_and_named(
    cli: Cli, made: Made, app: str, attribute: str, problem: str
) -> None:
    ended = cli(*CHECK, *store(made), "--app", f"{app}:{attribute}", "--json")
    assert ended.code == 6
    document = ended.document
    assert problem in document["problems"][0]
    assert document["counts"]["refused"] == 1
    assert document["ok"] is False


@pytest.mark.parametrize(
    ("suffix", "problem"),
    [
        (":nothing", "holds no agents"),
        (":wrong", "'text' is no agent"),
        (":absent", "AttributeError"),
        ("x", "No module"),
    ],
)
def test_an_app_that_is_none_is_exit_2(cli: Cli, made: Made, app: str, suffix: str, problem: str) -> None:
    ended = cli(*CHECK, *store(made), "--app", f"{app}{suffix}")
    assert ended.code == 2
    assert problem in ended.err


def test_a_running_cluster_is_asked_and_its_answer_told(ask: Cli, api: FakeApi) -> None:
    document = {
        "epoch": 3,
        "ok": True,
        "problems": [],
        "counts": {"matched": 1, "missing": 1, "migrated": 0},
        "agents": [
            {"agent": "a/1", "fate": "matched", "participant": "p1", "saved_version": 2, "version": 2},
            {"agent": "a/2", "fate": "missing", "participant": "p2", "saved_version": 0, "version": 2},
        ],
        "outputs_after": 25,
        "effects_after": 0,
        "outside": [
            {"kind": "output", "place": "receipts", "agent": "a/1", "token": f"t{number}", "detail": "after epoch 3"}
            for number in range(25)
        ],
        "notes": ["p3: no answer"],
    }
    api.on("POST", "/v1/epochs/3/check", document)
    ended = ask(*CHECK)
    assert (ended.code, ended.err) == (0, "")
    assert "25 outputs after the epoch: they stay, and are not repeated" in ended.out
    assert "receipts of a/1: after epoch 3 (t19)" in ended.out
    assert "and 5 more" in ended.out
    assert "0 effects after the epoch" in ended.out
    assert "note: p3: no answer" in ended.out
    assert ask(*CHECK, "--json").document == document
    api.on("POST", "/v1/epochs/3/check", {**document, "ok": False, "problems": ["a/1: no", "b: no"]})
    refused = ask(*CHECK)
    assert refused.code == 6
    assert "a/1: no (and 1 more)" in refused.err


def test_an_answer_that_does_not_say_that_all_is_well_does_not_pass_for_it(ask: Cli, api: FakeApi) -> None:
    api.on("POST", "/v1/epochs/3/check", {"epoch": 3})
    assert ask(*CHECK).code == 6


def test_options_that_do_not_go_together_are_exit_2(cli: Cli, ask: Cli, made: Made) -> None:
    assert ask(*CHECK, "--app", "x:y").code == 2
    assert cli("epoch", "restore", "3", "--store", made.folder / "store").code == 2
    assert ask("epoch", "restore", "3", "--allow-unclaimed").code == 2
    assert ask("epoch", "restore", "start", "--check").code == 2
