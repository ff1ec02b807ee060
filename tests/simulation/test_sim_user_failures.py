"""What users of `simulate` have of a failure: the files, the commands, a smaller one, a picture."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from participant import Agent, Context, handler, value
from protocol.errors import ConfigError
from simulations import simulate
from simulations.options import decode_run, encode_run
from simulations.user_test import Calls
from tests.simulation.frozen_tree import copy_of_packages

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.timeout(300)]

TESTS = '''
"""The bug: an account that begins again after a crash has its first money again, and forgets what it had sent."""

from dataclasses import dataclass

import pytest

from participant import Agent, Context, handler, value
from simulations import simulate


@dataclass(frozen=True)
class Go:
    pass


@dataclass(frozen=True)
class Pay:
    amount: int


class Account(Agent, kind="account"):
    balance = value(int, default=50)

    @handler
    async def on_go(self, ctx: Context, go: Go) -> None:
        self.balance -= 1
        ctx.send("account/b" if ctx.self_id == "account/a" else "account/a", Pay(1))
        ctx.after(0.2, Go())

    @handler
    async def on_pay(self, ctx: Context, pay: Pay) -> None:
        self.balance += pay.amount


def run(**more):
    simulate(
        lambda: [Account("a"), Account("b"), Account("c")],
        start=[("account/a", Go())],
        **more,
    )


def no_money_comes_from_nowhere(cut):
    return sum(cut.state(agent).get("balance", 50) for agent in cut.agents()) <= 150


class TestMoney:
    @pytest.mark.parametrize("how", ["with a crash", "without"])
    def test_it_is_conserved(self, how):
        run(faults=[], seeds=[1])
        if how == "with a crash":
            run(faults=["crash", "pause"], seeds=range(20), invariant=no_money_comes_from_nowhere, after_loss=True)
'''


class Shell:
    """A user's terminal, in a folder with a test."""

    def __init__(self, folder, packages):
        self.folder = folder
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "COV_", "SIM_"))}
        # As an activated environment of a project that has Cleancut in its path.
        self.environment = {
            **kept,
            "PYTHONPATH": str(packages),
            "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
        }

    def __call__(self, command, cwd="."):
        return subprocess.run(
            command,
            shell=True,
            cwd=self.folder / cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """A shell, and what pytest said of the test that fails in it."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "tests").mkdir()
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (folder / "tests" / "test_money.py").write_text(TESTS)
    shell = Shell(folder, copy_of_packages(tmp_path_factory.mktemp("packages")))
    return shell, shell("pytest -p no:cacheprovider tests")


def command_of(verb, text):
    found = re.search(rf"{verb}: +(cleancut simulate {verb} .*)$", text, re.MULTILINE)
    assert found is not None, text
    return found[1]


def stored_file(shell):
    (file,) = [each for each in (shell.folder / ".cleancut").glob("*.json") if ".small" not in each.name]
    return file


def test_a_failure_is_kept_beside_the_test_and_says_so(failed):
    shell, ran = failed
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "no_money_comes_from_nowhere is broken (safety)" in ran.stdout
    file = stored_file(shell)
    assert re.fullmatch(r"test_money\.TestMoney-test_it_is_conserved-with-a-crash-2-seed-\d+\.json", file.name)
    assert f"kept: .cleancut/{file.name}" in ran.stdout
    assert (shell.folder / ".cleancut" / ".gitignore").read_text().endswith("*\n")
    stored = decode_run(file.read_bytes())
    assert stored.invariant == "no_money_comes_from_nowhere"
    assert stored.user.test == "tests/test_money.py::TestMoney::test_it_is_conserved[with a crash]"
    assert stored.user.call == 2
    assert stored.build
    assert stored.digest
    assert "user_report.py" not in ran.stdout, "the traceback ends in the user's own test"


@pytest.mark.parametrize("cwd", [".", "tests"])
def test_the_printed_command_replays_it_from_wherever_it_is_typed(failed, cwd):
    shell, ran = failed
    file = stored_file(shell)
    command = command_of("replay", ran.stdout)
    if cwd != ".":
        command = f"cleancut simulate replay ../.cleancut/{shlex.quote(file.name)}"
    again = shell(command, cwd)
    assert again.returncode == 4, again.stderr
    assert f"digest {decode_run(file.read_bytes()).digest}" in again.stdout
    assert "safety: " in again.stdout
    assert again.stderr == ""


def test_its_trace_and_its_picture_can_be_had(failed, tmp_path):
    shell, ran = failed
    picture = tmp_path / "picture.svg"
    drawn = shell(f"{command_of('explain', ran.stdout)} --out {picture}")
    assert drawn.returncode == 0, drawn.stderr
    assert f"drawn: {picture}" in drawn.stdout
    ElementTree.fromstring(picture.read_bytes())
    trace = tmp_path / "trace.txt"
    assert shell(f"{command_of('replay', ran.stdout)} --trace {trace}").returncode == 4
    assert trace.read_text().count("\n") > 100
    # The same picture from the trace, which lies where no test is.
    again = shell(f"cleancut simulate explain {trace}")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "trace.txt.svg").read_bytes() == picture.read_bytes()
    wrong = shell(f"{command_of('explain', ran.stdout)} --epoch 4711")
    assert wrong.returncode == 2
    assert "there is no epoch 4711" in wrong.stderr


def test_it_becomes_smaller_and_the_smaller_one_replays(failed):
    shell, ran = failed
    shrunk = shell(command_of("shrink", ran.stdout))
    assert shrunk.returncode == 0, shrunk.stderr
    assert "1 trials: " in shrunk.stderr or " trials: " in shrunk.stderr, "progress as it goes"
    before = decode_run(stored_file(shell).read_bytes())
    small = stored_file(shell).with_suffix(".small.json")
    after = decode_run(small.read_bytes())
    assert after.invariant == before.invariant
    assert [fault.kind for fault in after.faults] == ["crash"]
    assert len(before.faults) > 1
    assert (before.options.nodes, after.options.nodes) == (3, 2)
    assert after.options.faults_ns < before.options.faults_ns
    assert f"{len(before.faults)} faults became 1" in shrunk.stdout
    assert "crash for_ns=" in shrunk.stdout
    replayed = shell(shrunk.stdout.splitlines()[-1])
    assert replayed.returncode == 4, replayed.stderr
    assert f"digest {after.digest}" in replayed.stdout


def test_variables_do_the_same_without_the_command(failed, tmp_path):
    shell, ran = failed
    said = re.search(r"(SIM_SEED=\d+) pytest (\S.*)$", ran.stdout, re.MULTILINE)
    assert said is not None, ran.stdout
    picture, trace = tmp_path / "small.svg", tmp_path / "trace.txt"
    once = shell(f"SIM_SHRINK=1 SIM_EXPLAIN={picture} SIM_TRACE={trace} SIM_DIR={tmp_path} {said[0]}")
    assert once.returncode == 1
    assert re.search(r"smaller, after \d+ runs: \d+ faults became 1, 3 participants 2", once.stdout), once.stdout
    small = re.search(r"again, with its trace: (SIM_REPLAY=\S+ pytest .*)$", once.stdout, re.MULTILINE)
    assert small is not None
    assert ".small.json" in small[1]
    ElementTree.fromstring(picture.read_bytes())
    assert trace.read_text().startswith("# run {")
    again = shell(small[1])
    assert again.returncode == 1
    assert "no_money_comes_from_nowhere is broken" in again.stdout


def test_a_test_that_has_changed_or_gone_is_said_by_name(failed, tmp_path):
    shell, ran = failed
    place = shell.folder / "tests" / "test_money.py"
    try:
        place.write_text(TESTS + "\n# changed\n")
        again = shell(command_of("replay", ran.stdout))
        assert again.returncode == 4
        assert "tests/test_money.py has changed since" in again.stderr
        place.write_text(TESTS.replace("test_it_is_conserved", "test_of_another_name"))
        again = shell(command_of("replay", ran.stdout))
        assert again.returncode == 3
        assert "does not come to its simulate number 2" in again.stderr
        assert "not found" in again.stderr
        place.write_text(
            TESTS.replace('faults=["crash", "pause"]', 'faults=["pause"]').replace("run(faults=[], seeds=[1])", "pass")
        )
        again = shell(command_of("replay", ran.stdout))
        assert again.returncode == 3
        assert "passes without its simulate number 2" in again.stderr
    finally:
        place.write_text(TESTS)


# --- in this process ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Go:
    """Begin."""


class Counter(Agent, kind="counter"):
    """Counts."""

    calls = value(int, default=0)

    @handler
    async def on_go(self, ctx: Context, go: Go) -> None:
        self.calls += 1


def counters():
    return [Counter("a"), Counter("b"), Counter("c")]


GOES = [("counter/a", Go()), ("counter/b", Go()), ("counter/c", Go())]


def message_of(**options):
    """What a test is told of a simulation that fails."""
    with pytest.raises(AssertionError) as caught:
        simulate(counters, **options)
    return str(caught.value)


def small_file(folder):
    (file,) = folder.glob("*.small.json")
    return decode_run(file.read_bytes())


def nobody_was_lost(cut):
    return cut.losses == 0


def test_messages_from_outside_go_unless_the_invariant_rests_on_them(monkeypatch, tmp_path):
    def b_was_called_and_nobody_was_lost(cut):
        called = cut.seconds < 3 or cut.state("counter/b").get("calls", 0) > 0
        return called and cut.losses == 0

    monkeypatch.setenv("SIM_SHRINK", "1")
    monkeypatch.setenv("SIM_DIR", str(tmp_path))
    said = message_of(
        start=GOES,
        invariant=b_was_called_and_nobody_was_lost,
        after_loss=True,
        faults=["crash", "slow"],
        seeds=range(9),
    )
    assert "without 2 of the start messages" in said
    small = small_file(tmp_path)
    assert small.user.left_out == [0, 2]
    assert len(small.faults) == 1
    assert small.options.nodes == 2


def test_a_number_of_runs_bounds_the_shrinking(monkeypatch, tmp_path):
    monkeypatch.setenv("SIM_SHRINK", "3")
    monkeypatch.setenv("SIM_DIR", str(tmp_path))
    said = message_of(invariant=nobody_was_lost, after_loss=True, faults=["crash", "slow"], seeds=range(9))
    assert "smaller, after 3 runs: " in said


def test_what_is_not_the_same_twice_is_kept_but_not_made_smaller(monkeypatch, tmp_path):
    seconds = iter(range(1000))
    monkeypatch.setenv("SIM_SHRINK", "1")
    monkeypatch.setenv("SIM_DIR", str(tmp_path))

    class Restless(Agent, kind="restless"):
        @handler
        async def on_go(self, ctx: Context, go: Go) -> None:
            ctx.after(0.1 + next(seconds) / 1000, Go())

    with pytest.raises(AssertionError) as caught:
        simulate(
            lambda: [Restless("r")],
            start=[("restless/r", Go())],
            invariant=lambda cut: cut.seconds < 1.5,
            seeds=[1],
            faults=[],
        )
    assert "NOT REPRODUCIBLE" in str(caught.value)
    assert "not made smaller: it is not reproducible" in str(caught.value)
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_a_folder_that_cannot_be_written_takes_nothing_from_the_message(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SIM_DIR", str(blocked / "folder"))
    said = message_of(invariant=lambda cut: False, seeds=[1], faults=[])
    assert "the invariant is broken (safety)" in said
    assert "not kept: " in said
    assert "cleancut simulate" not in said
    assert "SIM_SEED=1 pytest " in said


def test_a_picture_that_cannot_be_written_takes_nothing_from_the_message(monkeypatch, tmp_path):
    monkeypatch.setenv("SIM_EXPLAIN", str(tmp_path / "no" / "folder.svg"))
    said = message_of(invariant=lambda cut: False, seeds=[1], faults=[])
    assert "not drawn: " in said
    assert "the invariant is broken (safety)" in said


def test_a_seed_that_passes_can_be_drawn_too(monkeypatch, tmp_path):
    monkeypatch.setenv("SIM_EXPLAIN", str(tmp_path / "calm.svg"))
    monkeypatch.setenv("SIM_SEED", "1")
    monkeypatch.setenv("SIM_TRACE", os.devnull)
    simulate(counters, start=GOES, faults=[])
    ElementTree.fromstring((tmp_path / "calm.svg").read_bytes())


def test_a_file_of_another_world_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("SIM_DIR", str(tmp_path))
    message_of(invariant=lambda cut: False, seeds=[1], faults=[])
    (file,) = tmp_path.glob("*.json")
    stored = decode_run(file.read_bytes())
    monkeypatch.setattr("simulations.user.CALLS", Calls())
    monkeypatch.setenv("SIM_REPLAY", str(file))
    stored.options.nodes = 9
    file.write_bytes(encode_run(stored))
    with pytest.raises(ConfigError, match=r"has 9 participants, and this test 3: the test has changed"):
        simulate(counters)
    stored.user = None
    stored.options.workload = "bank"
    file.write_bytes(encode_run(stored))
    with pytest.raises(ConfigError, match="no run of users' agents: cleancut simulate replay"):
        simulate(counters)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SIM_SEED", "one"),
        ("SIM_SEED", "9" * 30),
        ("SIM_SHRINK", "yes"),
        ("SIM_SHRINK", "-1"),
        ("SIM_REPLAY", "nowhere.json"),
        ("SIM_REPLAY", "."),
        ("SIM_REPLAY", __file__),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError, match=name):
        simulate(counters, invariant=lambda cut: False, faults=[], seeds=[1])


# --- points ---------------------------------------------------------------------------------------------------------------


def test_a_crash_at_each_named_point_is_tried_and_reported():
    names = ["seal.applied", "manifest.after_put", "local.frozen"]
    found = simulate(counters, crash_points=names, faults=[], seeds=range(2))
    assert found.crash_points == {"local.frozen": 1, "seal.applied": 1, "manifest.after_put": 1}
    assert found.statistics()["crash_points_fired"] == 3


def test_a_point_that_nobody_comes_past_is_reported_as_not_fired():
    """Epochs do not abort by themselves in a calm world that is over soon; the operator's abort is not part of it."""
    found = simulate(counters, crash_points="abort.applied", faults=[], seeds=[1])
    assert set(found.crash_points) == {"abort.applied"}
    tried = simulate(counters, faults=[], seeds=[1])
    assert tried.crash_points == {}


def test_each_seed_has_its_share_of_the_points_also_when_it_runs_alone(monkeypatch):
    together = simulate(counters, crash_points="all", faults=[], seeds=range(40, 44))
    assert len(together.crash_points) > 24
    monkeypatch.setenv("SIM_SEED", "41")
    monkeypatch.setenv("SIM_TRACE", os.devnull)
    alone = simulate(counters, crash_points="all", faults=[], seeds=range(40, 44))
    assert alone.outcomes[0].digest == together.outcomes[1].digest


def test_a_point_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="there is no point 'tea'; there are "):
        simulate(counters, crash_points=["tea"])
