"""``cleancut simulate`` as it is typed: exit codes, files that are wrong, old, strange or not there, and numbers that are too big."""

import json
from pathlib import Path

import pytest

from coordinator.cli.root import run as cleancut
from simulations.build import build_digest
from simulations.command import simulate
from simulations.exits import EPILOG, EPILOG_MUTANTS, EPILOG_WORK, exit_of
from simulations.options import Fault, Options, Run, UserTest, decode_run, encode_run
from simulations.run import Outcome
from simulations.sweep import drawn
from simulations.world import SECOND

REGRESS = Path(__file__).parent / "regress"
QUICK = ("--seed", "3", "--nodes", "2", "--faults", "none", "--seconds", "1")

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.timeout(300)]


@pytest.fixture
def cli(capsys):
    def call(*arguments):
        code = cleancut(["simulate", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.fixture
def ends_with(monkeypatch):
    """Every run comes to this."""

    def set_outcome(kind):
        invariant = {"safety": "I1", "liveness": "L2", "crash": "ValueError", "": ""}[kind]
        monkeypatch.setattr(
            "simulations.run.run",
            lambda what, **_: Outcome(
                seed=what.options.seed, kind=kind, invariant=invariant, text=f"{invariant}: it broke"
            ),
        )

    return set_outcome


def small(**changes):
    return Run(
        options=Options(seed=5, nodes=2, faults_ns=SECOND), faults=[Fault(kind="pause", at_ns=SECOND // 2, who="p1")]
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(encode_run(small()))
    return path


# --- exit codes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "code"), [("", 0), ("liveness", 1), ("safety", 4), ("crash", 70)])
def test_run_and_replay_end_with_the_code_of_what_they_found(cli, ends_with, file, kind, code):
    ends_with(kind)
    for arguments in (("run", *QUICK), ("replay", file), ("run", *QUICK, "--json"), ("replay", file, "--json")):
        found, out, _ = cli(*arguments)
        assert found == code, arguments
        if "--json" in arguments:
            assert json.loads(out)["kind"] == kind
        elif kind:
            assert f"{kind}: " in out
            assert out.splitlines()[-1].startswith(f"cleancut simulate {arguments[0]} ")


@pytest.mark.parametrize("name", ["run", "replay", "sweep", "explain", "shrink", "mutants"])
def test_the_help_of_each_command_says_its_exit_codes(cli, name):
    code, out, _ = cli(name, "--help")
    assert code == 0
    text = " ".join(out.split())
    expected = {"explain": EPILOG_WORK, "shrink": EPILOG_WORK, "mutants": EPILOG_MUTANTS}
    assert expected.get(name, EPILOG) in text
    assert "70 the simulator" in text


def test_the_help_of_all_names_each_command_and_the_exit_codes(cli):
    code, out, _ = cli("--help")
    assert code == 0
    text = " ".join(out.split())
    assert EPILOG in text
    assert all(f" {name} " in text for name in simulate.commands)


def test_the_worst_kind_counts():
    assert [exit_of(kinds) for kinds in (set(), {"liveness"}, {"liveness", "safety"}, {"safety", "crash"})] == [
        0,
        1,
        4,
        70,
    ]


def test_a_bug_of_the_simulator_itself_is_no_finding(cli, monkeypatch):
    def broken(options, kinds):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("simulations.swarm.draw_faults", broken)
    code, _, err = cli("run", *QUICK)
    assert code == 70
    assert "a bug in the simulator: ZeroDivisionError: a bug" in err


# --- files ----------------------------------------------------------------------------------------------------------------


def test_what_was_saved_is_the_same_run_and_knows_its_build_and_its_events(cli, tmp_path):
    path = tmp_path / "saved.json"
    code, out, _ = cli("run", *QUICK, "--save", path)
    assert code == 0
    stored = decode_run(path.read_bytes())
    assert stored.build == build_digest()
    assert f"digest {stored.digest}" in out
    code, again, err = cli("replay", path)
    assert code == 0
    assert f"digest {stored.digest}" in again
    assert err == ""


def test_a_trace_is_a_replay_file_as_well(cli, tmp_path):
    path = tmp_path / "trace.txt"
    _, out, _ = cli("run", *QUICK, "--trace", path)
    code, again, err = cli("replay", path)
    assert code == 0
    assert out.splitlines()[-1] == again.splitlines()[-1]
    assert err == ""


def test_a_file_of_another_build_is_run_with_a_warning(cli, file, tmp_path):
    stored = small()
    stored.build, stored.digest = "0123456789abcdef", "00" * 16
    file.write_bytes(encode_run(stored))
    code, _, err = cli("replay", file)
    assert code == 0
    assert f"{file} was written by another build of Cleancut (0123456789abcdef, this is {build_digest()})" in err
    assert "the same run has other events now" in err
    code, _, err = cli("explain", file, "--out", tmp_path / "x.svg")
    assert code == 0
    assert "another build" in err


@pytest.mark.parametrize("name", ["replay", "shrink", "explain"])
def test_a_file_that_is_not_there_is_not_found(cli, tmp_path, name):
    code, _, err = cli(name, tmp_path / "nowhere.json")
    assert code == 3
    assert "nowhere.json: there is no such file" in err


def changed(**changes):
    """Bytes of a replay file with these values."""
    document = json.loads(encode_run(small()))
    for key, value in changes.items():
        place, _, name = key.rpartition("__")
        (document[place] if place else document)[name] = value
    return json.dumps(document).encode()


WRONG = {
    "nothing": (b"", "not a replay file"),
    "noise": (b"\x00\xff\xfe", "not a replay file"),
    "another document": (b'{"openapi": "3.1"}', "missing required field `format`"),
    "a later format": (changed(format=2, fault_lists=[]), "replay file of format 2; this build reads 1"),
    "an unknown field": (changed(options__colour="red"), "unknown field `colour`"),
    "an unknown workload": (changed(options__workload="casino"), "there is no 'casino'; there are bank, "),
    "users' agents without a test": (changed(options__workload="user"), "there is no 'user'"),
    "an unknown topology": (changed(options__topology="torus"), "there is no 'torus'; there are mesh, "),
    "an unknown mutant": (changed(options__mutant="dragon"), "there is no 'dragon'; there are "),
    "an unknown fault": (changed(faults=[{"kind": "fire"}]), "kind of fault 1: there is no 'fire'"),
    "an unknown point": (changed(faults=[{"kind": "crash-at", "point": "tea"}]), "point of fault 1: there is no 'tea'"),
    "a stranger": (changed(faults=[{"kind": "crash", "who": "p9"}]), "fault 1 hits p9, which this world does not have"),
    "too many participants": (changed(options__nodes=10**9), "nodes is 1000000000; it has to be 2 to 1000"),
    "no participants": (changed(options__nodes=0), "nodes is 0; it has to be 2 to"),
    "a negative time": (changed(options__faults_ns=-5), "faults_ns is -5"),
    "a year": (changed(options__faults_ns=365 * 86400 * SECOND), "faults_ns is "),
    "a late fault": (changed(faults=[{"kind": "crash", "who": "p1", "at_ns": 2**62}]), "at_ns of fault 1 is "),
    "a huge number": (b'{"format": 1, "options": {"seed": ' + b"9" * 5000 + b'}, "faults": []}', "out of range"),
    "a fraction": (changed(options__nodes=2.5), "Expected `int`"),
    "a deep hole": (b'{"format": 1, "faults": ' + b"[" * 200_000, "not a replay file"),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_a_file_that_is_no_run_is_wrong_usage_and_says_why(cli, tmp_path, what):
    data, sentence = WRONG[what]
    path = tmp_path / "wrong.json"
    path.write_bytes(data)
    for name in ("replay", "shrink", "explain"):
        code, out, err = cli(name, path)
        assert code == 2
        assert out == ""
        assert "wrong.json is neither a replay file (run --save) nor a trace (run --trace): " in err
        assert sentence in err
        assert len(err) < 3000


def test_a_folder_or_an_endless_file_is_wrong_usage(cli, tmp_path):
    code, _, err = cli("replay", tmp_path)
    assert code == 2
    assert "is a folder" in err
    code, _, err = cli("replay", "/dev/zero")
    assert code == 2
    assert "has more than 64 MiB" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seed", 2**63], "range"),
        (["--seed", "9" * 5000], "Invalid value for '--seed'"),
        (["--seed", "1", "--nodes", "1000000"], "range"),
        (["--seed", "1", "--seconds", "1e9"], "range"),
        (["--seed", "1", "--steps", 10**20], "steps_max is 100000000000000000000; it has to be"),
        (["--seed", "1", "--mutant", "dragon"], "there is no 'dragon'"),
        (["--seed", "1", "--faults", "fire"], "there is no kind 'fire'"),
        (["--seed", "1", "--workload", "casino"], "'casino' is not one of"),
        ([], "Missing option '--seed'"),
    ],
)
def test_a_run_that_there_cannot_be_is_wrong_usage(cli, arguments, sentence):
    code, _, err = cli("run", *arguments)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err


@pytest.mark.parametrize("option", ["--trace", "--save"])
def test_a_place_that_cannot_be_written_is_wrong_usage(cli, tmp_path, option):
    code, _, err = cli("run", *QUICK, option, tmp_path / "no" / "such" / "folder.txt")
    assert code == 2
    assert "No such file or directory" in err


# --- shrinking ------------------------------------------------------------------------------------------------------------


def test_a_run_that_does_not_fail_cannot_be_made_smaller(cli, file):
    code, _, err = cli("shrink", file)
    assert code == 6
    assert "does not fail: there is nothing to shrink" in err


def test_a_failure_shrinks_to_the_faults_that_it_needs_and_the_smaller_one_breaks_the_same_invariant(cli, tmp_path):
    """A planted bug that needs no fault at all: every fault goes, and the world becomes the plainest."""
    path = tmp_path / "failure.json"
    code, _, _ = cli("run", "--seed", "1", "--mutant", "told-at-seal", "--save", path)
    assert code == 4
    before = decode_run(path.read_bytes())
    assert before.invariant == "I11"
    code, out, _ = cli("shrink", path)
    assert code == 0
    target = tmp_path / "failure.small.json"
    assert out.splitlines()[-1] == f"cleancut simulate replay {target}"
    after = decode_run(target.read_bytes())
    assert after.invariant == "I11"
    assert after.faults == []
    assert after.options.nodes == 2
    assert after.options.faults_ns <= before.options.faults_ns
    assert cli("replay", target)[0] == 4


def test_a_file_of_users_agents_whose_test_is_nowhere_is_not_found(cli, tmp_path):
    what = small()
    what.options.workload = "user"
    what.user = UserTest(test="tests/test_nowhere_at_all.py::test_it")
    path = tmp_path / "users.json"
    path.write_bytes(encode_run(what))
    for name in ("replay", "shrink", "explain"):
        code, _, err = cli(name, path)
        assert code == 3, name
        assert "is of the test tests/test_nowhere_at_all.py::test_it, which is not there" in err


@pytest.mark.parametrize(
    "test", ["../../etc/passwd", "../regress/../test_sim_command.py::x", "/etc/passwd.py::x", "-p evil.py", "--co", "x"]
)
def test_a_file_cannot_name_anything_but_a_test_as_its_test(cli, tmp_path, test):
    what = small()
    what.options.workload = "user"
    what.user = UserTest(test=test)
    path = tmp_path / "users.json"
    path.write_bytes(encode_run(what))
    code, _, err = cli("replay", path)
    assert code == 3
    assert "which is not there" in err


def test_a_file_of_a_script_says_how_to_run_it(cli, tmp_path):
    what = small()
    what.options.workload = "user"
    what.user = UserTest(test="", command="python try.py")
    path = tmp_path / "users.json"
    path.write_bytes(encode_run(what))
    code, _, err = cli("replay", path)
    assert code == 2
    assert f"SIM_REPLAY={path} python try.py" in err


@pytest.mark.parametrize("arguments", [(), ("--runtimes",), ("--mutant", "two-hosts"), ("--mutant", "not-claimed")])
def test_a_seed_is_the_world_that_a_sweep_has_for_it(cli, ends_with, tmp_path, arguments):
    """Recovering or not, with logs of turns, with agents elsewhere: else the command at a sweep's end would find nothing."""
    ends_with("")
    mutant = arguments[1] if len(arguments) == 2 else ""
    for seed in range(20):
        path = tmp_path / f"{seed}.json"
        cli("run", "--seed", seed, *arguments, "--save", path)
        found, wanted = decode_run(path.read_bytes()), drawn(seed, mutant, runtimes="--runtimes" in arguments)
        assert (found.options, found.faults) == (wanted.options, wanted.faults)
