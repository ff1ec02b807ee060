"""A leader of a fork: it founds the cluster, takes it to the epoch that it begins from, and lets nobody charge."""

from __future__ import annotations

from protocol.digests import manifest_key
from protocol.documents import decode_manifest
from protocol.forks import Fork
from tests.coordinator_world import RECOVERING, World, cluster, replace_struct


def fork_of(original: World, number: int = 1) -> Fork:
    record = original.epoch(number)
    manifest = decode_manifest(original.store.get(manifest_key(number), size_max=1 << 20))
    return Fork(
        cluster=manifest.cluster,
        epoch=number,
        manifest=record.manifest,
        incarnation=manifest.incarnation,
        session=max(member.session for member in manifest.members),
        members=len(manifest.members),
        started_at=manifest.started_at,
        origin_cluster="original",
        origin_manifest=record.manifest,
    )


def forked(policy=RECOVERING, **how) -> World:
    original = cluster("a", "b", policy=RECOVERING)
    original.trigger()
    original.run(until=lambda: original.state_of(1) == "committed")
    world = World(policy=policy, fork=fork_of(original), **how)
    world.store = original.store
    world.seen, world.committed = {1: "committed"}, 1
    world.elect(world.coordinators[0])
    world.run(1)
    return world


def test_fork_begins_with_its_epoch_as_soon_as_all_agents_have_a_host():
    world = forked()
    a = world.add("a")
    world.run(3)
    assert world.ledger.state.origin.cluster == "original"
    assert a.runs == 0, "nothing runs before the epoch is there"
    assert not a.topologies
    world.add("b")
    world.run(until=lambda: world.running(2))
    assert (world.ledger.rollback.epoch, world.ledger.state.incarnation) == (1, 2)
    assert "fork of epoch 1 of original" in world.ledger.rollback.cause
    world.run(until=world.ready)
    world.trigger()
    world.run(until=lambda: world.state_of(2) == "committed")
    assert world.replicas_agree()


def test_fork_begins_whatever_the_policy_says_of_recovery():
    for recovery in ("manual", "off"):
        world = forked(replace_struct(RECOVERING, recovery=recovery))
        world.add("a", "b")
        world.run(until=lambda world=world: world.running(2))


def test_fork_outlives_its_first_leader():
    world = forked()
    world.add("a")
    world.run(2)
    world.kill(world.leader)
    world.elect(world.coordinators[1])
    world.add("b")
    world.run(until=lambda: world.running(2))
    assert world.ledger.state.origin.epoch == 1
    assert world.replicas_agree()


def test_participant_whose_store_says_nothing_of_a_fork_is_refused():
    world = forked()
    stray = world.add("a")
    world.run(1)
    assert stray.session
    other = world.add("b")
    other.dry_run = False
    other.disconnect("again")
    world.run(2)
    assert "dry-run" in other.refused


def test_folders_of_another_cluster_are_no_fork_and_whoever_comes_is_told():
    original = cluster("a", "b", policy=RECOVERING)
    original.trigger()
    original.run(until=lambda: original.state_of(1) == "committed")
    original.fork = fork_of(original)
    old = original.leader
    original.kill(old)
    other = original.coordinators[1]
    other.start()
    original.elect(other)
    original.run(3)
    assert original.ledger.state.origin is None
    assert any("empty folders" in each for each in original.participants["a"].told)
