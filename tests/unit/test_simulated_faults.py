"""Shapes of partitions, operators, and the list of what a sweep must reach."""

import pytest

from protocol.failpoints import POINTS as REAL_POINTS
from simulations.catalog import WANTED_PROBES
from simulations.cluster import SimulatedCluster
from simulations.faults import (
    DRIVERS_ONLY,
    KINDS,
    NOT_IN_WORLDS,
    OUTSIDE_POINTS,
    POINTS,
    RECOVERY_POINTS,
    SEALED_POINTS,
    TURN_POINTS,
    TURNS_ONLY,
    Injector,
)
from simulations.options import Fault, Options
from simulations.trace import Trace
from simulations.world import SECOND


def cluster_with(*faults: Fault, nodes: int = 6, **options: object) -> tuple[SimulatedCluster, Injector]:
    cluster = SimulatedCluster(Options(seed=3, nodes=nodes, **options), Trace())
    injector = Injector(cluster)
    cluster.boot()
    injector.inject(list(faults))
    return cluster, injector


def reachable(cluster: SimulatedCluster) -> dict[str, set[str]]:
    """Participant -> whom its frames reach."""
    return {
        one: {other for other in cluster.participants if other != one and not cluster.network.pipe(one, other).blocked}
        for one in cluster.participants
    }


def split(kind: str, **more: str) -> dict[str, set[str]]:
    cluster, injector = cluster_with(Fault(kind=kind, at_ns=SECOND, for_ns=SECOND, **more))
    cluster.world.run(SECOND + 1)
    found = reachable(cluster)
    assert injector.fired == {kind: 1}
    cluster.world.run(2 * SECOND + 1)
    assert all(len(others) == 5 for others in reachable(cluster).values()), "it is over"
    return found


def test_in_a_ring_each_reaches_two_neighbours():
    found = split("partition-ring")
    assert {len(others) for others in found.values()} == {2}
    assert all(one in found[other] for one, others in found.items() for other in others)


def test_over_a_bridge_two_halves_have_one_participant_in_common():
    found = split("partition-bridge")
    bridges = [one for one, others in found.items() if len(others) == 5]
    assert len(bridges) == 1
    assert all(bridges[0] in others for one, others in found.items() if one != bridges[0])
    assert all(len(others) < 5 for one, others in found.items() if one != bridges[0])


def test_halves_hear_nothing_of_each_other():
    assert {len(others) for others in split("partition-halves").values()} == {2}


def test_a_lopsided_partition_takes_one_direction_only():
    assert sorted(len(others) for others in split("partition-halves", other="out").values()) == [2, 2, 2, 5, 5, 5]


def test_a_swizzle_clogs_and_unclogs_in_its_own_order_and_leaves_nothing():
    cluster, injector = cluster_with(Fault(kind="swizzle", at_ns=SECOND, for_ns=2 * SECOND))
    cluster.world.run(2 * SECOND)
    assert any(len(others) < 5 for others in reachable(cluster).values())
    cluster.world.run(4 * SECOND)
    assert all(len(others) == 5 for others in reachable(cluster).values())
    assert injector.fired["swizzle"] == 1


def test_an_operators_abort_at_a_point_ends_the_epoch_by_that_name():
    cluster, injector = cluster_with(Fault(kind="abort", at_ns=SECOND, point="order.sent"), nodes=3)
    cluster.world.run(5 * SECOND)
    assert injector.fired["abort"] == 1
    assert cluster.oracles.history.aborts == 1
    assert cluster.oracles.history.commits >= 1


def test_a_replica_that_was_away_gets_a_snapshot_and_agrees_with_the_others():
    away = [Fault(kind="log-install", who=name, at_ns=2 * SECOND, for_ns=2 * SECOND) for name in ("c1", "c2", "c3")]
    for fault in away:
        cluster, _ = cluster_with(fault, nodes=2)
        cluster.world.run(8 * SECOND)
        known: dict[int, str] = {}
        for life in cluster.log.lives.values():
            assert known.setdefault(life.applied, life.ledger.digest()) == life.ledger.digest()
        if cluster.probes.hits.get("log.snapshot_installed"):
            return
    pytest.fail("no replica was sent a snapshot")


def test_points_are_those_of_the_product():
    assert {*POINTS, *SEALED_POINTS, *RECOVERY_POINTS, *OUTSIDE_POINTS, *TURN_POINTS} == {
        each for each in REAL_POINTS if not each.startswith(NOT_IN_WORLDS)
    }
    assert len(POINTS) == len(set(POINTS))


def test_a_sweep_wants_every_kind_and_a_crash_at_every_point():
    assert {f"fault.{kind}" for kind in KINDS if kind not in (*DRIVERS_ONLY, *TURNS_ONLY)} <= set(WANTED_PROBES)
    assert {f"fault.crash-at {point}" for point in (*POINTS, *SEALED_POINTS)} <= set(WANTED_PROBES)
