"""Simulated clusters in which who is lost comes back with a rollback of all."""

from __future__ import annotations

import pytest

from simulations.faults import RECOVERY_POINTS
from simulations.options import Fault, Run
from simulations.run import run
from simulations.swarm import RECOVERABLE, draw_run
from simulations.world import MS, SECOND

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(300)]


def world(seed: int, *faults: Fault, **changes) -> Run:
    """The seed's world, recovering, with these faults alone."""
    what = draw_run(seed, recovery=True)
    for name, value in {"faults_ns": 8 * SECOND, "deep": False, "disk": False, "by_hand": False, **changes}.items():
        setattr(what.options, name, value)
    what.faults = sorted(faults, key=lambda fault: (fault.at_ns, fault.kind))
    return what


def crash(at_s: float, who: str = "p1", *, back_s: float = 0.3) -> Fault:
    return Fault(kind="crash", at_ns=round(at_s * SECOND), for_ns=round(back_s * SECOND), who=who)


@pytest.mark.parametrize("seed", range(6))
def test_a_seed_of_the_swarm_that_recovers_finds_nothing(seed):
    outcome = run(draw_run(seed, recovery=True))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"


@pytest.mark.parametrize("workload", RECOVERABLE)
def test_participant_that_crashes_takes_everybody_back_to_the_newest_epoch(workload):
    outcome = run(world(3, crash(4.0), crash(6.5, "p2"), workload=workload))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["rollback.applied"] >= 2
    assert outcome.probes["restore.loaded_epoch"] >= 2


def test_crash_before_the_first_epoch_takes_everybody_to_the_start():
    outcome = run(world(5, crash(3.0), interval_ns=20 * SECOND))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["restore.loaded_start"] >= 2


def test_what_was_in_flight_comes_back():
    outcome = run(world(4, *(crash(2.0 + second, back_s=0.1) for second in range(5)), workload="bank", burst=8))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["restore.in_flight"] >= 1


@pytest.mark.parametrize("point", RECOVERY_POINTS)
def test_whoever_dies_at_this_point_of_a_rollback_harms_nobody(point):
    """A leader or a participant, whoever passes it; twice, so that it hits the second failure, too."""
    deaths = [Fault(kind="crash-at", at_ns=SECOND, for_ns=400 * MS, point=point, nth=nth) for nth in (1, 4)]
    hit = 0
    for seed in (7, 8):
        outcome = run(world(seed, crash(3.0), crash(6.0, "p2"), *deaths, coordinators=3))
        assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
        hit += outcome.probes.get(f"fault.crash-at {point}", 0)
    assert hit, "nobody died there"


def test_frozen_participant_that_wakes_after_its_successor_is_refused_everywhere():
    frozen = Fault(kind="pause", at_ns=3 * SECOND, for_ns=5 * SECOND, who="p2")
    outcome = run(world(9, frozen, faults_ns=12 * SECOND))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["rollback.applied"] >= 1


def test_a_run_with_rollbacks_is_the_same_each_time():
    what = world(6, crash(3.0), crash(5.0, "p2"))
    assert run(what).digest == run(what).digest


def test_operator_with_a_manual_policy_brings_the_cluster_back():
    outcome = run(world(3, crash(4.0), crash(6.5, "p2"), by_hand=True))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["restore.by_hand"] >= 1
    assert outcome.probes["restore.loaded_epoch"] >= 2


def test_twin_that_wakes_in_place_of_its_successor_is_fenced():
    frozen = Fault(kind="twin", at_ns=3 * SECOND, for_ns=6 * SECOND, who="p2")
    outcome = run(world(9, frozen, faults_ns=12 * SECOND))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["twin.ended"] == 1


def test_damaged_newest_epoch_takes_everybody_further_back():
    outcome = run(world(3, Fault(kind="epoch-spoilt", at_ns=5 * SECOND, for_ns=300 * MS, who="p1")))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["restore.older_epoch"] == 1


def test_orders_of_a_session_that_has_ended_have_no_effect_on_the_next_one():
    late = Fault(kind="queued-orders", at_ns=SECOND, for_ns=10 * SECOND, rate=1000)
    outcome = run(world(3, late, crash(4.0), crash(6.0)))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["order.of_dead_session"] >= 1
