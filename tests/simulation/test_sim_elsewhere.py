"""Simulated clusters in which an operator moves, renames and gives up agents, decides about effects, and forks epochs."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest

from simulations.cluster import SimulatedCluster
from simulations.faults import KINDS
from simulations.names import Names
from simulations.operator import REASON
from simulations.options import Fault, Options, Run, decode_run, encode_run
from simulations.run import run
from simulations.swarm import draw_run
from simulations.trace import Trace
from simulations.violations import Violation
from simulations.wishes import ELSEWHERE_ONLY
from simulations.world import MS, SECOND

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(300)]


def world(seed: int, *faults: Fault, **changes) -> Run:
    """The seed's world, in which agents go elsewhere, with these faults alone."""
    what = draw_run(seed, recovery=True, elsewhere=True)
    settings = {
        "faults_ns": 8 * SECOND,
        "nodes": 3,
        "workload": "bank",
        "deep": False,
        "disk": False,
        "by_hand": False,
        "refuse": False,
        "interval_ns": 400 * MS,
        "takeover_ns": SECOND,
        "spares": 0,
    }
    for name, value in {**settings, **changes}.items():
        setattr(what.options, name, value)
    what.faults = sorted(faults, key=lambda fault: (fault.at_ns, fault.kind))
    return what


def fault(kind: str, at_s: float, who: str = "", *, for_s: float = 0.3, rate: int = 0) -> Fault:
    return Fault(kind=kind, at_ns=round(at_s * SECOND), for_ns=round(for_s * SECOND), who=who, rate=rate)


def carried_out(what: Run):
    outcome = run(what)
    assert outcome.ok, f"{outcome.kind} {outcome.invariant}: {outcome.text}"
    return outcome.probes


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_in_which_agents_go_elsewhere_finds_nothing(seed):
    assert carried_out(draw_run(seed, recovery=True, elsewhere=True))


def test_orders_that_customers_give_again_anywhere_are_charged_once_wherever_their_desks_go():
    seen = Counter()
    for seed in (3_000_014, 3_000_021, 3_000_028, 3_000_030, 3_000_031, 3_000_033):
        what = draw_run(seed, runtimes=True, recovery=True, workload="orders", elsewhere=True)
        assert what.options.elsewhere
        seen.update(carried_out(what))
    wanted = ("input.in_two_logs", "input.known_here", "input.duplicate", "restore.elsewhere", "restore.renamed")
    assert [name for name in wanted if not seen[name]] == []


def test_agents_of_those_that_never_come_back_are_taken_by_the_others():
    probes = carried_out(world(3, fault("gone", 3.0, "p2")))
    assert probes["restore.elsewhere"]


def test_what_was_taken_on_six_goes_on_on_two():
    probes = carried_out(world(3, fault("gone", 4.0), nodes=6, workload="pipeline"))
    assert probes["restore.elsewhere"]


def test_what_was_taken_on_six_goes_on_on_twelve():
    probes = carried_out(world(4, fault("grow", 3.0), nodes=6, spares=6))
    assert probes["operator.spread"]
    assert probes["restore.elsewhere"]


def test_an_agent_is_moved_on_purpose():
    probes = carried_out(world(5, fault("move", 3.0), fault("move", 5.0, rate=2)))
    assert probes["operator.move"] >= 1


def test_agents_come_back_under_other_names_and_keep_them_over_crashes():
    probes = carried_out(world(6, fault("rename", 3.0, "p2"), fault("crash", 6.5, "p1"), takeover_ns=0))
    assert probes["operator.rename"]
    assert probes["restore.renamed"]


@pytest.mark.parametrize("workload", ["bank", "pipeline"])
def test_agents_are_given_up_only_because_an_operator_says_so(workload):
    """And when they begin anew, nobody takes what they send for what they had sent."""
    away = fault("give-up", 2.5, "p2", for_s=5.0)
    probes = carried_out(world(4, away, takeover_ns=0, lease_ns=1500 * MS, workload=workload, faults_ns=12 * SECOND))
    assert probes["operator.give-up"]
    assert probes["restore.dropped"]


def test_what_cannot_be_is_refused_by_name_and_changes_nothing():
    wrong = [fault("wrong-restore", 2.0 + kind, rate=kind) for kind in range(5)]
    probes = carried_out(world(8, *wrong))
    assert probes["operator.refused_by_name"]
    assert "rollback.applied" not in probes


def test_a_damaged_newest_epoch_is_passed_over_only_when_an_operator_names_an_older_one():
    probes = carried_out(world(3, fault("epoch-spoilt", 5.0, "p1"), refuse=True))
    assert probes["restore.named_for_refusal"]


def test_a_fork_runs_beside_and_reaches_nothing_outside():
    what = draw_run(9, recovery=True, runtimes=True, workload="orders", elsewhere=False)
    what.options.interval_ns, what.options.faults_ns = 400 * MS, 4 * SECOND
    what.faults = [fault("fork", 3.5)]
    assert carried_out(what)["fork.run"] == 1


def test_an_operator_settles_what_nothing_else_can():
    what = draw_run(25, recovery=True, runtimes=True, workload="orders")
    what.options.settled = True
    assert carried_out(what)["turn.parked"]


def test_a_world_of_before_is_the_same_but_for_what_is_new():
    what = decode_run(encode_run(draw_run(2, recovery=True, elsewhere=False)))
    assert not what.options.elsewhere
    assert not any(each.kind in ELSEWHERE_ONLY for each in what.faults)
    assert {*ELSEWHERE_ONLY} <= KINDS.keys()


def test_names_follow_the_incarnations():
    names = Names()
    names.began(2, 1, {"a/x": "a/y", "a/y": "a/x"})
    assert (names.now("a/x"), names.now("a/y")) == ("a/y", "a/x")
    names.began(3, 2, {"a/y": "a/z"})
    assert names.now("a/x") == "a/z"
    names.began(4, 1, {})
    assert names.now("a/x") == "a/x"


@pytest.mark.parametrize(("cause", "excused"), [("p1 lost: closed", False), (f"{REASON}; epoch 2 is damaged", True)])
def test_an_epoch_that_was_named_once_excuses_only_the_rollback_that_it_was_named_for(cause, excused):
    cluster = SimulatedCluster(Options(seed=1, recovery=True, elsewhere=True), Trace())
    history = cluster.oracles.history
    history.incarnation, history.recoverable = 1, 2
    history.states.update({1: "committed", 2: "committed"})
    cluster.operator.asked_for[1] = None
    with nullcontext() if excused else pytest.raises(Violation, match="2 is committed"):
        history._rolled_back(2, 1, cause)
