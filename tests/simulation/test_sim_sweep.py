"""``cleancut simulate sweep``: processes that die, numbers that do not depend on who ran what, and how it ends."""

import json
import os
import signal
import sys
from itertools import permutations

import pytest

from coordinator.cli.exits import Failure
from coordinator.cli.root import run as cleancut
from simulations import sweep_pool, sweep_progress
from simulations.options import decode_run
from simulations.run import Outcome
from simulations.sweep import LOST, Totals, run_seed
from simulations.sweep_pool import run_here

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.timeout(300)]


# --- in the processes -----------------------------------------------------------------------------------------------------


def quick(seed, mutant):
    return Outcome(seed=seed, digest=f"{seed:032x}", events=seed)


def killed_at_three(seed, mutant):
    if seed == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return quick(seed, mutant)


def gone_at_two(seed, mutant):
    if seed == 2:
        os._exit(7)
    return quick(seed, mutant)


def stopped_by_hand(seed, mutant):
    """As Ctrl-C in a terminal, where each process gets the signal."""
    os.kill(os.getpid(), signal.SIGINT)
    return quick(seed, mutant)


class Unready:
    """Ends the process that only wants to take it in."""

    def __reduce__(self):
        return os._exit, (9,)


def outcomes(seeds, **options):
    return [each for each in run_here(iter(seeds), **options) if each is not None]


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_process_that_is_killed_is_named_with_its_seed_and_the_others_go_on(jobs):
    found = {each.seed: each for each in outcomes(range(8), jobs=jobs, run_one=killed_at_three)}
    assert sorted(found) == list(range(8))
    lost = found.pop(3)
    assert (lost.kind, lost.invariant) == ("crash", LOST)
    assert lost.text == "ProcessLost: the process that ran it was killed by SIGKILL (out of memory?)"
    assert all(each.ok for each in found.values())


def test_a_process_that_ends_by_itself_is_named_with_its_exit_code():
    found = {each.seed: each.text for each in outcomes(range(4), jobs=2, run_one=gone_at_two)}
    assert found == {0: "", 1: "", 2: "ProcessLost: the process that ran it ended with exit code 7", 3: ""}


def test_processes_that_end_before_they_begin_end_the_sweep():
    with pytest.raises(Failure, match="ended with exit code 9 before it began"):
        outcomes(range(4), jobs=2, run_one=Unready())


def test_processes_leave_an_interrupt_to_their_parent():
    assert len(outcomes(range(2), jobs=1, run_one=stopped_by_hand)) == 2


def test_whoever_stops_early_leaves_no_process_behind():
    running = run_here(iter(range(1000)), jobs=2, run_one=quick)
    next(each for each in running if each is not None)
    workers = running.gi_frame.f_locals["workers"]
    processes = [worker.process for worker in workers]
    running.close()
    assert processes
    assert not any(process.is_alive() for process in processes)


def test_two_processes_do_what_one_does():
    one, two = Totals(), Totals()
    for each in outcomes(range(4), jobs=2):
        two.add(each)
    for seed in range(4):
        one.add(run_seed(seed))
    assert one == two
    assert int(one.digest, 16)


# --- sums -----------------------------------------------------------------------------------------------------------------


def test_in_which_order_outcomes_come_makes_no_difference():
    some = [
        Outcome(seed=1, digest="f" * 32, events=3, probes={"a": 1}),
        Outcome(seed=2, kind="safety", invariant="I1", digest="e" * 32),
        Outcome(seed=3, kind="liveness", invariant="L2", digest="1" * 32, fired={"crash": 2}),
    ]
    found = []
    for order in permutations(some):
        totals = Totals()
        for each in order:
            totals.add(each)
        found.append(totals)
    assert all(each == found[0] for each in found)
    assert [each.seed for each in found[0].failures] == [2, 3]
    assert found[0].failures_count == 2


def test_of_many_failures_those_of_the_smallest_seeds_are_kept():
    totals = Totals()
    for seed in range(100, 0, -1):
        totals.add(Outcome(seed=seed, kind="safety", invariant="I1"))
    assert [each.seed for each in totals.failures] == list(range(1, 21))
    assert totals.failures_count == 100


# --- the command ----------------------------------------------------------------------------------------------------------


class Sweep:
    """The command with outcomes that are given."""

    def __init__(self, monkeypatch, capsys):
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.asked = []

    def __call__(self, *arguments, outcomes=(), ends=None):
        self.asked = []

        def run_instead(seeds, **_):
            kinds = dict(outcomes)
            for seed in seeds:
                self.asked.append(seed)
                kind = kinds.get(seed, "")
                yield Outcome(seed=seed, kind=kind, invariant="I1" if kind else "", text=f"what {seed} broke")
                yield None
            if ends is not None:
                raise ends

        self._monkeypatch.setattr(sweep_pool, "run_here", run_instead)
        code = cleancut(["simulate", "sweep", "--seeds", "0..9", *arguments])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err


@pytest.fixture
def sweep(monkeypatch, capsys):
    return Sweep(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ({}, 0),
        ({3: "liveness"}, 1),
        ({3: "liveness", 4: "safety"}, 4),
        ({3: "liveness", 4: "safety", 5: "crash"}, 70),
    ],
)
def test_the_worst_finding_is_the_exit_code(sweep, kinds, code):
    found, out, err = sweep(outcomes=kinds.items())
    assert found == code
    assert "10 seeds in " in out
    for seed, kind in kinds.items():
        assert f"seed {seed}: {kind} what {seed} broke" in err, "at once"
        assert f"seed {seed}: {kind} what {seed} broke" in out, "and at the end"
    assert ("cleancut simulate run --seed 3" in out) == bool(kinds)


def test_no_seed_is_begun_after_so_many_failures(sweep):
    code, out, _ = sweep("--stop-at", "2", outcomes=[(2, "safety"), (4, "safety"), (6, "safety")])
    assert code == 4
    assert sweep.asked == [0, 1, 2, 3, 4]
    assert "failed: 2 (safety I1 2)" in out
    code, _, _ = sweep("--keep-going", outcomes=[(2, "safety"), (4, "safety")])
    assert len(sweep.asked) == 10


def test_ctrl_c_ends_it_with_the_sums_so_far(sweep):
    code, out, _ = sweep(ends=KeyboardInterrupt())
    assert code == 130
    assert "10 seeds in " in out
    assert "interrupted after 10 of 10 seeds" in out
    code, _, _ = sweep(ends=KeyboardInterrupt(), outcomes=[(1, "safety")])
    assert code == 4, "a finding is worth more"
    code, out, _ = sweep("--json", ends=KeyboardInterrupt())
    assert code == 130
    assert json.loads(out)["interrupted"] is True


def test_failing_seeds_are_stored_as_replay_files(sweep, tmp_path):
    folder = tmp_path / "some" / "failures"
    code, out, err = sweep("--save", str(folder), outcomes=[(2, "safety"), (7, "liveness")])
    assert code == 4
    assert sorted(file.name for file in folder.iterdir()) == ["seed-2.json", "seed-7.json"]
    assert f"({folder}/seed-7.json)" in err
    assert f"cleancut simulate replay {folder}/seed-2.json" in out
    stored = decode_run((folder / "seed-2.json").read_bytes())
    assert stored.options.seed == 2
    assert stored.invariant == "I1"
    assert stored.build


def test_without_a_terminal_there_are_plain_lines_and_with_json_none(sweep, monkeypatch):
    monkeypatch.setattr(sweep_progress, "LINE_SECONDS", 0)
    _, _, err = sweep()
    assert "10 of 10 seeds; " in err
    assert "seeds/s" in err
    assert "events/s" in err
    assert "probes 0/" in err
    assert "\x1b" not in err
    code, out, err = sweep("--json", outcomes=[(1, "safety")])
    assert code == 4
    assert err == ""
    assert json.loads(out)["failures"] == [{"seed": 1, "kind": "safety", "text": "what 1 broke"}]


def test_on_a_terminal_there_is_a_bar(sweep, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    _, _, err = sweep(outcomes=[(1, "safety")])
    assert "10/10" in err
    assert "failed 1" in err
    assert "seed 1: safety what 1 broke" in err


def test_a_rare_state_that_was_not_reached_fails_the_sweep_only_on_demand(sweep):
    code, out, _ = sweep("--probes")
    assert code == 1
    assert "probes never reached: " in out
    assert "seal.applied" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--stop-at", "1", "--keep-going"], "exclude each other"),
        (["--jobs", "2", "--dask", "tcp://127.0.0.1:1"], "--jobs are this machine's"),
        (["--mutant", "dragon"], "there is no mutant 'dragon'; there are "),
        (["--jobs", "0"], "range"),
        (["--seeds", "9..1"], "is not A..B"),
        (["--seeds", "0.." + "9" * 5000], "is not A..B"),
        (["--seeds", "-1..3"], "is not A..B"),
        (["--dask", "anywhere"], "'anywhere' is no address of a Dask scheduler"),
        (["--dask", "smb://host:1"], "no address"),
        (["--dask", "tcp://host:99999"], "no address"),
        (["--save", __file__], "is a file"),
    ],
)
def test_what_makes_no_sweep_is_wrong_usage(sweep, arguments, sentence):
    code, _, err = sweep(*arguments)
    assert code == 2
    assert sentence in err
    assert len(err) < 2000


def test_without_dask_the_extra_is_named(sweep, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, _, err = sweep("--dask", "tcp://127.0.0.1:8786")
    assert code == 2
    assert "sweep --dask needs Dask, which is not installed" in err
    assert "pip install 'cleancut[dask]'" in err
