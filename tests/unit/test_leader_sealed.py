"""A sealed epoch ends, whatever becomes of what its manifest is made from: by its commit, or forsaken with the store's consent."""

import pytest

from coordinator.events import ForsakeManifest, ManifestFailed, ManifestForsaken, ManifestStored, Propose
from coordinator.ledger import Ledger
from protocol.digests import digest, manifest_key, snapshot_key
from protocol.documents import decode_manifest, sign_manifest
from protocol.errors import ObjectConflict, ObjectMissing, StoreError
from protocol.ids import Instant
from protocol.limits import FORSAKE_AFTER_NS
from protocol.storage.repair import put_manifest
from protocol.tombstones import Tombstone, decode_tombstone, is_forsaken
from tests.coordinator_world import KEYS, MANUAL, RECOVERING, SECOND, cluster, replace_struct
from tests.epochs import plain_manifest

PATIENCE_S = FORSAKE_AFTER_NS / SECOND


def orphaned(*, coordinators=3, **attributes):
    """An epoch is sealed, and its leader dies before the manifest is stored; who had it when it died still has its bytes."""
    world = cluster("a", "b", coordinators=coordinators, **attributes)
    world.trigger()
    world.run(until=lambda: ("proposed", "seal") in world.happened)
    world.store_fails = "EIO: input/output error"
    world.run(until=lambda: world.state_of(1) == "sealed")
    dying = world.leader.machine._keeper.notes[1].assembled.manifest
    world.kill(world.coordinators[0])
    world.run(0.1)  # its put, which was under way, fails as well
    world.store_fails = ""
    return world, dying


def spoil(world, participant="a", data=b"{}"):
    key = snapshot_key(world.epoch(1).members[participant].snapshot)
    if data is None:
        world.store.delete(key)
    else:
        world.store.replace_for_test(key, data)
    return key


def next_leader(world):
    world.elect(world.coordinators[1])


def stone(world, epoch=1):
    return decode_tombstone(world.store.get(manifest_key(epoch), size_max=1 << 20))


# --- what cannot be finished --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"{}", None], ids=["damaged", "gone"])
def test_sealed_epoch_whose_part_is_damaged_or_gone_is_forsaken_and_the_next_one_commits(data):
    world, _ = orphaned()
    key = spoil(world, data=data)
    next_leader(world)
    world.run(PATIENCE_S - 1)
    assert world.state_of(1) == "sealed", "what a read gets wrong for a moment is over sooner"
    request = world.trigger()
    assert world.answers[request]["code"] == "epoch-open"
    world.run(until=lambda: world.state_of(1) == "aborted", limit=5)
    record = world.epoch(1)
    assert (record.abort.participant, record.abort.phase) == ("a", "manifest")
    assert key in record.abort.cause
    assert record.manifest == ""
    assert stone(world).epoch == 1
    assert stone(world).forsaken.startswith("b3:")
    world.trigger()
    world.run(until=lambda: world.state_of(2) == "committed")
    world.run(0.2)
    assert {name: p.ends for name, p in world.participants.items()} == {
        "a": {1: "aborted", 2: "committed"},
        "b": {1: "aborted", 2: "committed"},
    }
    manifest = decode_manifest(world.store.get(manifest_key(2), size_max=1 << 20))
    assert manifest.previous == "", "the chain goes on from the newest epoch that has a manifest"


def test_put_of_the_leader_before_that_comes_late_is_refused_for_ever():
    world, dying = orphaned()
    spoil(world)
    next_leader(world)
    world.run(until=lambda: world.state_of(1) == "aborted", limit=10)
    with pytest.raises(ObjectConflict, match="epoch 1 was forsaken"):
        put_manifest(world.store, manifest_key(1), dying)
    assert is_forsaken(world.store, 1)


@pytest.mark.parametrize("at", [1.0, PATIENCE_S - 0.01])
def test_put_of_the_leader_before_that_comes_first_wins_and_the_epoch_commits(at):
    world, dying = orphaned()
    spoil(world)
    next_leader(world)
    world.run(at)
    put_manifest(world.store, manifest_key(1), dying)
    world.run(until=lambda: world.state_of(1) == "committed", limit=10)
    assert ("found", 1) in world.happened
    world.run(0.2)
    assert world.participants["a"].ends == {1: "committed"}


def test_leader_that_finds_the_key_taken_forsakes_although_it_could_make_the_manifest():
    """The one before it saw damage that is no more; what the store has said once stays said."""
    world, _ = orphaned()
    good = world.store.get(spoil_key := snapshot_key(world.epoch(1).members["a"].snapshot), size_max=1 << 20)
    world.store.replace_for_test(spoil_key, b"{}")
    next_leader(world)
    world.fates["forsake"] = "lose"
    world.run(until=lambda: ("proposed", "forsake") in world.happened, limit=10)
    world.run(0.05)
    world.kill(world.coordinators[1])
    assert world.state_of(1) == "sealed"
    world.store.replace_for_test(spoil_key, good)
    world.restart(world.coordinators[0])
    world.elect(world.coordinators[2])
    world.run(until=lambda: world.state_of(1) == "aborted", limit=10)
    assert "forsaken" in world.epoch(1).abort.cause


def test_manifest_of_another_cluster_in_its_place_is_the_end_of_an_epoch_and_not_of_all():
    world = cluster("a", "b")
    data = sign_manifest(plain_manifest(1, cluster="shop", participant="z"), KEYS)
    world.store.put(manifest_key(1), data)
    world.watched = 10**9  # the world's own rule asks for a tombstone
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "aborted", limit=2)
    assert "other bytes" in world.epoch(1).abort.cause
    assert world.store.get(manifest_key(1), size_max=1 << 20) == data, "what is whole and somebody else's stays"
    world.trigger()
    world.run(until=lambda: world.state_of(2) == "committed")


def test_damaged_manifest_that_cannot_be_made_again_makes_way_for_the_tombstone():
    world, dying = orphaned()
    world.store.put(manifest_key(1), dying[:-9])
    spoil(world)
    next_leader(world)
    world.run(until=lambda: world.state_of(1) == "aborted", limit=10)
    assert isinstance(stone(world), Tombstone)
    with pytest.raises(ObjectConflict):
        put_manifest(world.store, manifest_key(1), dying)


def test_store_that_fails_when_the_key_is_to_be_taken_is_asked_until_it_answers():
    world, _ = orphaned()
    spoil(world)
    next_leader(world)
    world.run(PATIENCE_S)
    world.store_fails = "EIO: input/output error"
    world.run(20)
    assert world.state_of(1) == "sealed"
    assert not world.store_has(1)
    world.store_fails = ""
    world.run(until=lambda: world.state_of(1) == "aborted", limit=5)


def test_store_that_cannot_be_read_is_no_reason_to_forsake():
    world, _ = orphaned()
    world.store_fails = "EIO: input/output error"
    next_leader(world)
    world.run(60)
    assert world.state_of(1) == "sealed"
    world.store_fails = ""
    world.run(until=lambda: world.state_of(1) == "committed", limit=5)


def test_damage_that_is_mended_in_time_costs_nothing():
    world, _ = orphaned()
    key = snapshot_key(world.epoch(1).members["a"].snapshot)
    good = world.store.get(key, size_max=1 << 20)
    world.store.replace_for_test(key, b"{}")
    next_leader(world)
    world.run(PATIENCE_S - 1)
    world.store.replace_for_test(key, good)
    world.run(until=lambda: world.state_of(1) == "committed", limit=5)


def test_damage_that_was_seen_twice_however_far_apart_is_not_final_yet():
    world, _ = orphaned()
    key = snapshot_key(world.epoch(1).members["a"].snapshot)
    good = world.store.get(key, size_max=1 << 20)
    world.store.replace_for_test(key, b"{}")
    seen = lambda: world.happened.count(("assembled", 1, "CutRefused"))  # noqa: E731
    next_leader(world)
    world.run(until=lambda: seen() == 1)
    world.store_fails = "EIO: input/output error"
    world.run(2 * PATIENCE_S)
    world.store_fails = ""
    world.run(until=lambda: seen() == 2)
    world.store.replace_for_test(key, good)
    world.run(until=lambda: world.state_of(1) == "committed", limit=5)


def test_leader_that_dies_at_any_step_of_forsaking_leaves_it_to_the_next():
    for step in [("proposed", "forsake"), ("forsaken", 1)]:
        world, _ = orphaned()
        spoil(world)
        next_leader(world)
        world.run(until=lambda w=world, s=step: s in w.happened, limit=10)
        world.kill(world.coordinators[1])
        world.restart(world.coordinators[0])
        world.elect(world.coordinators[2])
        world.run(until=lambda w=world: w.state_of(1) == "aborted", limit=10)
        world.run(until=world.ready)
        world.trigger()
        world.run(until=lambda w=world: w.state_of(2) == "committed", limit=5)
        assert world.replicas_agree()


def test_lost_member_is_brought_back_after_a_sealed_epoch_was_forsaken():
    """A rollback waits for what is sealed; it must not wait for ever."""
    world, _ = orphaned(policy=replace_struct(RECOVERING, deadline_ns=2 * SECOND))
    spoil(world)
    world.kill_participant("b")
    next_leader(world)
    world.run(until=lambda: ("proposed", "mark-lost") in world.happened)
    world.run(1)
    world.revive("b")
    world.run(until=lambda: world.running(2), limit=40)
    assert world.state_of(1) == "aborted"


# --- an operator's word -------------------------------------------------------------------------------------------------


def test_operator_ends_at_once_what_cannot_be_finished():
    world, _ = orphaned()
    spoil(world)
    next_leader(world)
    world.run(1)
    request = world.abort(1, reason="it is Friday")
    world.run(0.2)
    assert world.answers[request]["ok"]
    abort = world.epoch(1).abort
    assert abort.phase == "operator"
    assert abort.cause.startswith("it is Friday; it was sealed, and: ")
    assert stone(world).epoch == 1


def test_operator_cannot_end_a_sealed_epoch_that_nothing_is_wrong_with():
    world = cluster("a", "b")
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "sealed")
    request = world.abort(1)
    assert world.answers[request]["code"] == "sealed"
    world.run(until=lambda: world.state_of(1) == "committed")


def test_operator_is_told_when_the_manifest_turns_out_to_be_there():
    world, dying = orphaned()
    spoil(world)
    next_leader(world)
    world.run(1)
    put_manifest(world.store, manifest_key(1), dying)
    request = world.abort(1)
    world.run(0.5)
    assert world.answers[request]["code"] == "sealed"
    assert world.state_of(1) == "committed"


def test_word_of_an_operator_does_not_outlive_the_trouble_of_the_store():
    """He is told that it did not work; by the time the store does, there is nothing that has to be given up."""
    world, _ = orphaned()
    world.store_fails = "EIO: input/output error"
    next_leader(world)
    world.run(1)
    request = world.abort(1)
    world.run(0.5)
    assert world.answers[request]["code"] == "store"
    world.store_fails = ""
    world.run(until=lambda: world.state_of(1) == "committed", limit=5)


def test_second_operator_takes_the_place_of_the_first_and_both_are_answered():
    world, _ = orphaned()
    spoil(world)
    next_leader(world)
    world.run(1)
    first, second = world.abort(1), world.abort(1)
    world.run(0.5)
    assert world.answers[first]["code"] == "busy"
    assert world.answers[second]["ok"]


def test_operator_who_waits_when_leadership_is_lost_is_answered_as_unknown():
    world, _ = orphaned()
    spoil(world)
    next_leader(world)
    world.run(1)
    request = world.abort(1)
    world.elect(world.coordinators[2])
    world.run(0.1)
    assert world.answers[request]["code"] == "unknown-outcome"


def test_operator_who_asks_while_it_is_being_forsaken_is_answered_too():
    world, _ = orphaned()
    spoil(world)
    next_leader(world)
    world.run(until=lambda: ("proposed", "forsake") in world.happened, limit=10)
    request = world.abort(1)
    world.run(0.5)
    assert world.state_of(1) == "aborted"
    assert world.answers[request]["ok"]


# --- what it costs ------------------------------------------------------------------------------------------------------


def test_undisturbed_epoch_has_no_step_more_for_it():
    """One put of the leader, and three entries beside the reports' batches: nothing is kept in case it is needed."""
    world = cluster("a", "b")
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "committed")
    of_leader = [each for each in world.store.operations if not each[1].startswith("snapshots/") and each[0] != "size"]
    assert of_leader == [("put", manifest_key(1))]
    kinds = [each[1] for each in world.happened if each[0] == "proposed"]
    assert [kind for kind in kinds[kinds.index("start") :] if kind != "reports"] == ["start", "seal", "commit"]


# --- what people see ----------------------------------------------------------------------------------------------------


def test_why_says_what_is_wrong_and_what_helps():
    world, _ = orphaned()
    spoil(world)
    next_leader(world)
    world.run(1)
    machine, now = world.leader.machine, Instant(world.now)
    told = " ".join(machine.why(1, now)["sentences"])
    assert "expected digest" in told
    assert "`cleancut epoch abort 1`" in told
    assert "expected digest" in machine.live(now).trouble(1)
    assert machine.live(now).trouble(2) == ""


def test_manifest_of_a_forsaken_epoch_is_missing_and_not_corrupt():
    world, _ = orphaned()
    spoil(world)
    next_leader(world)
    world.run(until=lambda: world.state_of(1) == "aborted", limit=10)
    with pytest.raises(ObjectMissing, match="sealed and then aborted"):
        decode_manifest(world.store.get(manifest_key(1), size_max=1 << 20))


# --- several at once ----------------------------------------------------------------------------------------------------


def test_later_epoch_that_is_sealed_already_commits_behind_one_that_is_forsaken():
    world = cluster("a", "b", policy=replace_struct(MANUAL, max_concurrent=2))

    def full(operation, key):
        if operation == "put" and key.startswith("epochs/"):
            raise StoreError("put", key, "no space left on device", errno_name="ENOSPC")

    world.store.before_operation = full
    world.trigger()
    world.run(until=lambda: ("proposed", "reports") in world.happened)
    world.trigger()
    world.run(until=lambda: world.ledger.epoch(2) and world.state_of(2) == "sealed", limit=5)
    assert world.state_of(1) == "sealed"
    world.kill(world.coordinators[0])
    world.run(0.1)
    world.store.before_operation = None
    spoil(world)
    next_leader(world)
    world.run(until=lambda: world.state_of(2) == "committed", limit=10)
    assert world.state_of(1) == "aborted"
    assert world.epoch(2).previous.startswith("b3:"), "sealed as it was, with the name of a manifest that never was"
    world.run(until=world.ready)
    world.trigger()
    world.run(until=lambda: world.ledger.epoch(3) and world.state_of(3) == "committed", limit=5)
    assert world.epoch(3).previous == world.epoch(2).manifest


# --- answers that are not this epoch's ----------------------------------------------------------------------------------


def test_answer_about_another_manifest_forsakes_nothing():
    world, _ = orphaned()
    spoil(world)
    next_leader(world)
    world.run(1)
    effects = world.leader.machine.step(ManifestForsaken(epoch=1, digest=digest(b"other")), Instant(world.now))
    assert not [each for each in effects if isinstance(each, Propose)]
    effects = world.leader.machine.step(ManifestStored(epoch=1, digest=digest(b"other")), Instant(world.now))
    assert not [each for each in effects if isinstance(each, Propose)]


@pytest.mark.parametrize("asked_again", [False, True])
def test_answer_that_comes_after_its_leader_has_begun_anew_counts(asked_again):
    """The store has said it, whoever asked and whatever has become of the reason."""
    world, _ = orphaned()
    spoil(world)
    next_leader(world)
    world.run(1)
    carry_out, held = world.carry_out, []
    world.carry_out = lambda at, effect: (
        held.append(effect) if isinstance(effect, ForsakeManifest) else carry_out(at, effect)
    )
    world.abort(1)
    world.elect(world.coordinators[1])
    world.run(1)
    if asked_again:
        world.abort(1)
        world.leader.feed(ManifestFailed(epoch=1, cause="EIO, of a put before that"))
    world.leader.feed(world._forsake_manifest(held[0]))
    world.run(0.5)
    assert world.state_of(1) == "aborted"
    assert world.epoch(1).abort.phase == "manifest"


def test_dump_of_a_ledger_that_forsook_an_epoch_can_be_loaded():
    world, _ = orphaned()
    spoil(world)
    next_leader(world)
    world.run(until=lambda: world.state_of(1) == "aborted", limit=10)
    other = Ledger("shop")
    other.load(world.ledger.dump())
    assert other.digest() == world.ledger.digest()
