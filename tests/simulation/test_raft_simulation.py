"""The library in a deterministic world: as it comes it loses acknowledged commands, inside our shell it does not.

A violation prints the command that runs its schedule again. ``python -m simulations.raft sweep`` runs many more seeds.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.errors import StoreError
from simulations.raft.kinds import KINDS
from simulations.raft.world import Outcome, run_schedule

ROOT = Path(__file__).parents[2]
SEEDS = range(10)
"""Kept small: the default test run spends about 25 s of CPU here."""

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.timeout(180)]


def outcomes(kind: str, seeds: range = SEEDS) -> list[Outcome]:
    return [run_schedule(seed, KINDS[kind]) for seed in seeds]


def violations(kind: str, results: list[Outcome]) -> list[str]:
    again = "python -m simulations.raft run --kind"
    return [f"{each.violations[0]}: {again} {kind} --seed {each.seed}" for each in results if each.violations]


def first_violation(kind: str, seeds: range, word: str = "") -> str | None:
    """What goes wrong first over these seeds; a coordinator that refuses its disk or trips over its log counts too."""
    for seed in seeds:
        try:
            found = run_schedule(seed, KINDS[kind]).violations
        except (StoreError, IndexError) as error:
            found = [repr(error)]
        for text in found:
            if word in text:
                return text
    return None


def test_the_stock_library_loses_acknowledged_commands_when_a_leader_crashes():
    """If this fails the simulation has lost its teeth, or the library is mended and the guards can go."""
    lost = [text for text in violations("stock-leader-crash", outcomes("stock-leader-crash")) if "lost" in text]
    assert len(lost) >= 2


# The library leaves its journal's files to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_stock_library_diverges_under_cuts_and_restarts():
    """No power is lost here: its own journal keeps everything, and still it applies different sequences."""
    assert first_violation("stock-faults", range(1, 10), "another sequence")


@pytest.mark.parametrize("kind", [kind for kind, options in KINDS.items() if options.guarded])
def test_our_shell_loses_and_doubles_nothing_over_the_same_seeds(kind):
    results = outcomes(kind)
    assert violations(kind, results) == []
    assert all(each.acknowledged > 0 for each in results)


def test_the_schedules_reach_every_rule():
    used: dict[str, int] = {}
    for each in outcomes("storage", range(8)) + outcomes("storage-five", range(4)):
        for rule, count in each.guards.items():
            used[rule] = used.get(rule, 0) + count
    assert sorted(rule for rule, count in used.items() if count == 0) == []


def test_without_the_truncation_rule_the_same_schedules_fail(monkeypatch):
    """The oracle sees what the rule prevents: switch it off and acknowledged commands are gone."""
    monkeypatch.setattr("coordinator.runtime.raft.guards.Guards._trim", lambda _self, message: message)
    assert first_violation("storage", range(40))


def test_without_syncs_the_same_schedules_fail(monkeypatch):
    """Power loss is real in this world: a journal that only writes is found out."""
    monkeypatch.setattr("simulations.raft.disk.SimulatedFiles.sync", lambda _self, _name: None)
    assert first_violation("storage-leader-crash", range(30))


def test_without_the_rejoin_rule_the_same_schedules_fail(monkeypatch):
    """A coordinator that comes back empty and votes as if it were new forgets what it acknowledged."""
    never = property(lambda _self: False, lambda _self, _value: None)
    monkeypatch.setattr("coordinator.runtime.raft.journal.DurableJournal.rejoining", never)
    assert first_violation("rejoin", range(60))


def test_a_schedule_is_the_same_in_every_process():
    program = (
        "from simulations.raft.kinds import KINDS; from simulations.raft.world import run_schedule;"
        "print(run_schedule(5, KINDS['storage']))"
    )
    shown = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(shown) == 1


def test_a_group_of_one_survives_power_losses():
    options = replace(KINDS["storage"], size=1, crashes=0, link_faults=0)
    results = [run_schedule(seed, options) for seed in range(5)]
    assert [each.violations for each in results] == [[]] * 5
