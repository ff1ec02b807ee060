"""Simulated participants that log their turns: who crashes goes on alone, and nothing that anybody has seen is undone."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from simulations.cluster import SimulatedCluster
from simulations.faults import OUTSIDE_POINTS, TURN_POINTS
from simulations.local_disk import FolderOfLife, LocalDisk
from simulations.log_disk import ProcessDied
from simulations.operator import REASON
from simulations.options import PATIENT_NS, Fault, Options, Run
from simulations.prng import stream
from simulations.run import run
from simulations.swarm import draw_run
from simulations.trace import Trace
from simulations.violations import Violation
from simulations.world import MS, SECOND

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(300)]

LOG_POINTS = OUTSIDE_POINTS[:5]


def world(seed: int, *faults: Fault, **changes) -> Run:
    """The seed's world with logs of turns, with these faults alone."""
    what = draw_run(seed, turns=True)
    settings = {
        "workload": "bank",
        "topology": "mesh",
        "nodes": 3,
        "coordinators": 1,
        "faults_ns": 5 * SECOND,
        "interval_ns": 600 * MS,
        "store_ns": 3 * MS,
        "deep": False,
        "disk": False,
        "elsewhere": False,
        "takeover_ns": 0,
        "spares": 0,
    }
    for name, value in {**settings, **changes}.items():
        setattr(what.options, name, value)
    what.faults = sorted(faults, key=lambda fault: (fault.at_ns, fault.kind))
    return what


def crash(at_s: float, who: str = "p1", *, back_s: float = 0.2, kind: str = "crash", rate: int = 0) -> Fault:
    return Fault(kind=kind, at_ns=round(at_s * SECOND), for_ns=round(back_s * SECOND), who=who, rate=rate)


@pytest.mark.parametrize("seed", range(8))
def test_a_seed_of_the_swarm_that_logs_turns_finds_nothing(seed):
    outcome = run(draw_run(seed, turns=True))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"


@pytest.mark.parametrize("seed", range(100, 106))
def test_a_seed_of_the_swarm_whose_agents_go_elsewhere_finds_nothing(seed):
    outcome = run(draw_run(seed, turns=True, elsewhere=True))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"


def test_who_was_given_agents_goes_on_with_them_and_nobody_goes_back():
    faults = (Fault(kind="move", at_ns=2 * SECOND, rate=1), crash(3.5), crash(4.0, "p2"), crash(4.5, "p3"))
    outcome = run(world(3, *faults, elsewhere=True, takeover_ns=PATIENT_NS))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["turns.resumed"] >= 3
    assert outcome.probes["turns.resumed_elsewhere"] >= 2, "one has more than its program declares, one has less"
    assert outcome.probes["rollback.applied"] == 1


@pytest.mark.parametrize("workload", ["bank", "ring", "pipeline", "orders"])
def test_who_crashes_goes_on_and_nobody_goes_back(workload):
    outcome = run(world(3, crash(2.5), crash(3.5, "p2"), crash(4.5), workload=workload))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["turns.resumed"] >= 3
    assert "rollback.applied" not in outcome.probes
    assert outcome.commits >= 3


def test_all_crash_in_one_instant_and_go_on_from_where_all_were():
    outcome = run(world(4, *(crash(3.0, name) for name in ("p1", "p2", "p3"))))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["turns.resumed"] == 3
    assert "rollback.applied" not in outcome.probes


@pytest.mark.parametrize("point", [*LOG_POINTS, *TURN_POINTS])
def test_who_dies_at_this_point_of_its_log_loses_nothing_that_anybody_saw(point):
    deaths = [Fault(kind="crash-at", at_ns=SECOND, for_ns=200 * MS, point=point, nth=nth) for nth in (1, 3, 7)]
    hit = 0
    for seed in (5, 6):
        outcome = run(world(seed, crash(2.5), crash(3.5, "p2"), *deaths, interval_ns=300 * MS))
        assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
        hit += outcome.probes.get(f"fault.crash-at {point}", 0)
    assert hit, "nobody died there"


@pytest.mark.parametrize("what", [0, 1, 2], ids=["all", "log", "base"])
def test_who_has_lost_its_disk_takes_everybody_back(what):
    outcome = run(world(7, crash(3.0, kind="local-lost", rate=what)))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["turns.harmed_disk"] == 1
    assert outcome.probes["rollback.applied"] >= 1


def test_log_with_a_hole_is_not_gone_on_from():
    found = [run(world(seed, crash(3.0, kind="local-rot"))) for seed in (8, 9, 10)]
    assert all(outcome.ok for outcome in found), [outcome.text for outcome in found]
    assert any(outcome.probes.get("turns.harmed_disk") for outcome in found)


@pytest.mark.parametrize("rate", [0, 1], ids=["full", "sync"])
def test_failed_write_ends_the_process_and_its_next_life_goes_on(rate):
    outcome = run(world(11, crash(3.0, kind="local-fails", rate=rate)))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["turns.resumed"] >= 1
    assert "rollback.applied" not in outcome.probes


def test_operator_takes_everybody_back_and_their_logs_begin_anew():
    outcome = run(world(12, crash(2.0), Fault(kind="restore", at_ns=3 * SECOND), crash(4.0, "p2")))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["rollback.applied"] == 1
    assert outcome.probes["turns.resumed"] >= 2


def test_a_run_with_logs_of_turns_is_the_same_each_time():
    what = world(13, crash(2.5), crash(3.5, "p2"))
    assert run(what).digest == run(what).digest


def test_a_killed_process_writes_nothing_any_more():
    folder = FolderOfLife(LocalDisk("p1", stream(1, "disk"), lambda name, incarnation: None))
    files = folder.files("turns")
    files.create("a", b"1")
    folder.dead = True
    for call in (lambda: files.append("a", b"2"), lambda: folder.replace("b", b"3"), lambda: files.sync("a")):
        with pytest.raises(ProcessDied):
            call()
    assert folder.disk.files("turns").read("a") == b"1"


@pytest.mark.parametrize(("cause", "justified"), [("p1 lost: closed", False), (REASON, True)])
def test_an_incarnation_begins_only_for_the_reason_that_there_is(cause, justified):
    cluster = SimulatedCluster(Options(seed=1, recovery=True, runtimes=True, turns=True), Trace())
    with nullcontext() if justified else pytest.raises(Violation, match="nobody had to begin anew"):
        cluster.ghost.turns.rolled_back(2, cause)
