"""Steps, questions, outputs and outside input in worlds that recover: nothing happens twice, nothing acknowledged is lost."""

from __future__ import annotations

import pytest

from participant.runtime.log_files import Life
from protocol.errors import FencedError
from simulations.cluster import SimulatedCluster
from simulations.faults import OUTSIDE_POINTS
from simulations.local_disk import LocalDisk, SimulatedFolder
from simulations.options import Fault, Options, Run
from simulations.outside import Bank, BankFailed
from simulations.prng import stream
from simulations.run import run
from simulations.swarm import draw_run
from simulations.trace import Trace
from simulations.violations import Violation
from simulations.world import MS, SECOND

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.timeout(300)]


def world(seed: int, *faults: Fault, **changes) -> Run:
    """The seed's world with orders, in the second mode, with these faults alone."""
    what = draw_run(seed, recovery=True, runtimes=True, workload="orders")
    settings = {"faults_ns": 6 * SECOND, "deep": False, "disk": False, "by_hand": False, "interval_ns": 500 * MS}
    for name, value in {**settings, **changes}.items():
        setattr(what.options, name, value)
    what.faults = sorted(faults, key=lambda fault: (fault.at_ns, fault.kind))
    return what


def crash(at_s: float, who: str = "p1") -> Fault:
    return Fault(kind="crash", at_ns=round(at_s * SECOND), for_ns=300 * MS, who=who)


@pytest.mark.parametrize("seed", range(4))
def test_orders_are_charged_once_under_the_faults_of_a_seed(seed):
    outcome = run(draw_run(seed, recovery=True, runtimes=True, workload="orders"))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"


def test_everything_of_the_outside_is_reached_and_comes_back():
    outcome = run(world(2, crash(2.5), crash(3.8, "p2"), crash(5.0)))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    for probe in ("effect.recorded", "question.taken", "output.after_deliver", "input.acknowledged"):
        assert outcome.probes[probe], probe


@pytest.mark.parametrize("point", OUTSIDE_POINTS)
def test_who_dies_at_this_point_of_a_step_an_output_or_an_input_does_nothing_twice(point):
    deaths = [Fault(kind="crash-at", at_ns=SECOND, for_ns=400 * MS, point=point, nth=nth) for nth in (2, 7)]
    hit = 0
    for seed in (3, 5):
        outcome = run(world(seed, *deaths))
        assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
        hit += outcome.probes.get(f"fault.crash-at {point}", 0)
    assert hit, "nobody died there"


@pytest.mark.parametrize("turns", [False, True])
def test_who_is_away_while_all_go_back_to_an_epoch_without_it_loses_no_input(turns):
    """It comes after the first epoch, takes input, and is away when all go back there; who has a log of turns is not waited for when an operator says so."""
    away = [Fault(kind="crash", at_ns=350 * MS, for_ns=4200 * MS, who="p3")]
    away.append(Fault(kind="crash", at_ns=7 * SECOND, for_ns=2500 * MS, who="p3"))
    for seed in (1, 8):
        what = draw_run(seed, turns=True, workload="orders") if turns else world(seed)
        settings = {
            "nodes": 3,
            "coordinators": 1,
            "topology": "mesh",
            "faults_ns": 10 * SECOND,
            "interval_ns": 4 * SECOND,
        }
        for name, value in {**settings, "deep": False, "disk": False, "by_hand": False}.items():
            setattr(what.options, name, value)
        what.faults = [*away, Fault(kind="restore", at_ns=8 * SECOND)] if turns else away
        outcome = run(what)
        assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
        assert outcome.probes["rollback.applied"]


def test_frozen_twin_that_wakes_beside_its_successor_does_nothing_any_more():
    frozen = Fault(kind="twin", at_ns=2 * SECOND, for_ns=6 * SECOND, who="p2")
    outcome = run(world(4, frozen, faults_ns=10 * SECOND))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["twin.ended"] == 1


def test_damaged_newest_epoch_is_passed_over_and_nothing_is_charged_again():
    spoilt = Fault(kind="epoch-spoilt", at_ns=4 * SECOND, for_ns=300 * MS, who="p1")
    outcome = run(world(2, spoilt))
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    assert outcome.probes["restore.older_epoch"] == 1


def test_a_run_with_orders_is_the_same_each_time():
    what = world(6, crash(3.0), crash(4.5, "p2"))
    assert run(what).digest == run(what).digest


def test_a_simulated_folder_belongs_to_the_later_life_only():
    taken: list[tuple[str, int]] = []
    disk = LocalDisk("p1", stream(1, "disk"), lambda name, incarnation: taken.append((name, incarnation)))
    first, second = SimulatedFolder(disk), SimulatedFolder(disk)
    first.take_over(Life(1, 1))
    first.check()
    second.take_over(Life(1, 2))
    with pytest.raises(FencedError):
        first.check()
    with pytest.raises(FencedError):
        first.take_over(Life(1, 1))
    second.take_over(Life(1, 2))
    assert second.highest() == Life(1, 2)
    assert taken == [("p1", 1), ("p1", 1)]


def test_a_machine_that_stops_keeps_what_was_synced():
    disk = LocalDisk("p1", stream(1, "disk"), lambda *_: None)
    files = disk.files("input")
    files.create("a", b"header")
    files.append("a", b"synced")
    files.sync("a")
    files.append("a", b"lost, or a part of it")
    disk.machine_stopped()
    assert files.read("a").startswith(b"headersynced")


def test_a_machine_that_stops_takes_the_frozen_process_on_it_too():
    """It would write on behind what the power took, and what it had been told is durable would be gone: charged twice."""
    cluster = SimulatedCluster(Options(seed=1, nodes=2, recovery=True), Trace())
    frozen = {}
    for name in cluster.participants:
        cluster.start_participant(name)
        frozen[name] = cluster.lives.pop(name)
        frozen[name].suspend()
        cluster.frozen.append(frozen[name])
    cluster.stop_machine("p1")
    assert [life.alive for life in frozen.values()] == [False, True]
    frozen["p1"].resume()
    assert not frozen["p1"].alive


def test_the_bank_notices_an_order_that_is_charged_twice_whatever_its_token():
    for second, forgiving in (("t1", False), ("t2", False), ("t2", True)):
        bank = Bank()
        bank.charge("o1", 5, "t1", sent=1, at=2, forgiving=False)
        with pytest.raises(Violation, match="order o1 is charged at"):
            bank.charge("o1", 5, second, sent=3, at=4, forgiving=forgiving)


def test_the_counter_that_forgives_takes_a_charge_with_its_token_again_and_no_other():
    bank = Bank()
    result = bank.charge("o1", 5, "t1", sent=1, at=2, forgiving=True)
    assert bank.charge("o1", 5, "t1", sent=3, at=4, forgiving=True) == result
    assert (bank.repeated, len(bank.charges)) == (1, 1)
    with pytest.raises(Violation, match="token t1 charges o1, and now o2"):
        bank.charge("o2", 5, "t1", sent=5, at=6, forgiving=True)


def test_a_charge_of_which_somebody_was_told_that_it_did_not_happen_does_not_arrive_later():
    bank = Bank()
    assert bank.find("t1", at=3) is None
    with pytest.raises(BankFailed):
        bank.charge("o1", 5, "t1", sent=2, at=4, forgiving=False)
    assert bank.find("t1", at=5) is None
    bank.charge("o1", 5, "t1", sent=6, at=7, forgiving=False)
    assert bank.find("t1", at=8) is not None
