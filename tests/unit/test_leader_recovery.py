"""A leader that takes the cluster back: the need, placement, fences, orders; also when it goes wrong on the way."""

from __future__ import annotations

import json

import pytest

from coordinator.policy import PolicySettings
from protocol.ancestry import Ancestry
from protocol.limits import RESTORE_DEADLINE_NS
from protocol.messages import Leave, Registered, Restored, StreamBroken
from protocol.streams import Resumption
from tests.coordinator_world import LEASE_S, MS, RECOVERING, SECOND, World, cluster, replace_struct


def with_epoch(*names, **attributes):
    world = cluster(*names, policy=RECOVERING, **attributes)
    commit(world, 1)
    return world


def commit(world, epoch):
    world.trigger()
    world.run(until=lambda: world.state_of(epoch) == "committed")


def recovered(world, incarnation):
    return lambda: world.running(incarnation)


def test_participant_that_comes_back_takes_the_cluster_to_the_newest_epoch():
    world = with_epoch("a", "b", "c")
    world.kill_participant("b")
    world.revive("b")
    world.run(until=recovered(world, 2))
    record = world.ledger.rollback
    assert (record.state, record.epoch, record.incarnation) == ("done", 1, 2)
    assert "b lost: its connection closed" in record.cause
    assert [order.epoch for order in world.participants["a"].restore_orders] == [1]
    world.run(until=world.ready)
    commit(world, 2)
    assert world.epoch(2).incarnation == 2
    assert world.replicas_agree()


def test_closed_connection_is_suspicion_long_before_the_lease_is_over():
    world = with_epoch("a", "b")
    before = world.now
    world.kill_participant("b")
    world.run(until=lambda: world.ledger.state.participants["b"].state == "lost")
    assert (world.now - before) / SECOND < LEASE_S / 2


def test_silent_participant_is_lost_when_its_lease_is_over():
    world = with_epoch("a", "b")
    world.participants["b"].silent = True
    world.run(2)
    assert world.ledger.state.participants["b"].state == "member"
    world.run(until=lambda: world.ledger.state.participants["b"].state == "lost")


def test_connection_that_comes_back_at_once_costs_nothing():
    world = with_epoch("a", "b")
    world.participants["b"].disconnect("cable")
    world.later(100 * MS, world.participants["b"].connect)
    world.run(3)
    assert world.ledger.state.incarnation == 1


def test_without_an_epoch_everybody_goes_back_to_the_start():
    world = cluster("a", "b", policy=RECOVERING)
    world.kill_participant("a")
    world.revive("a")
    world.run(until=recovered(world, 2))
    assert world.participants["b"].restore_orders[0].epoch == 0


def test_others_go_on_until_the_lost_one_is_back():
    world = with_epoch("a", "b")
    world.kill_participant("b")
    world.run(4)
    assert world.ledger.state.incarnation == 1
    assert world.participants["a"].runs == 1
    assert world.leader.machine.live(world.now).recovery()[0] == "waiting"
    assert "worker/b" in world.leader.machine.live(world.now).recovery()[1]
    world.revive("b")
    world.run(until=recovered(world, 2))


def test_agents_of_one_that_stays_away_go_to_those_that_can_take_them():
    world = World(policy=RECOVERING)
    world.elect(world.coordinators[0])
    world.add("a", "b", kinds=("worker",))
    world.add("c")
    world.run(until=world.ready)
    commit(world, 1)
    world.kill_participant("c")
    world.run(until=recovered(world, 2), limit=20)
    assert world.participants["a"].placed == ("worker/a", "worker/c")
    assert world.participants["b"].placed == ("worker/b",)
    # The one that was given up comes back as a spare: its agent stays where it is.
    world.revive("c")
    world.run(until=lambda: world.participants["c"].runs == 2)
    assert world.participants["c"].placed == ()


def test_nobody_that_can_take_them_holds_up_the_rollback_by_name():
    world = with_epoch("a", "b")
    world.kill_participant("b")
    world.run(10)
    assert world.ledger.state.incarnation == 1
    request = world.restore(None)
    world.run(1)
    assert world.answers[request]["code"] == "not-placed"
    assert "worker/b" in world.answers[request]["sentence"]


def test_cluster_comes_back_on_other_hosts_that_declare_its_agents():
    world = with_epoch("a", "b", "c")
    for name in "abc":
        world.kill_participant(name)
    world.add("x", agents=("worker/a", "worker/b"))
    world.run(until=lambda: world.ledger.state.participants["c"].state == "lost")
    assert world.ledger.state.incarnation == 1
    world.participants["x"].refused.clear()
    world.run(5)
    if world.participants["x"].fenced:  # it came while its agents had a host, and was refused
        world.revive("x")
    world.add("y", agents=("worker/c",))
    world.run(until=recovered(world, 2))
    members = world.ledger.state.topology.members
    assert {member.id: member.agents for member in members} == {"x": ("worker/a", "worker/b"), "y": ("worker/c",)}


def test_whole_cluster_that_comes_back_piece_by_piece_is_rolled_back_once():
    world = with_epoch("a", "b", "c")
    for name in "abc":
        world.kill_participant(name)
    for index, name in enumerate("abc"):
        world.later(index * SECOND, lambda name=name: world.revive(name))
    world.run(until=recovered(world, 2))
    assert world.ledger.state.incarnation == 2


def test_false_suspicion_costs_a_rollback_and_nothing_else():
    world = with_epoch("a", "b")
    zombie = world.participants["b"]
    zombie.silent = True
    world.run(until=lambda: world.ledger.state.participants["b"].state == "lost")
    world.run(1)
    assert zombie.fenced
    world.revive("b")
    world.run(until=recovered(world, 2))
    # What the zombie still says is for a session that has ended.
    zombie.silent = False
    zombie.say(Restored(session=zombie.session, incarnation=2, state="b3:" + "0" * 64))
    world.run(1)
    assert world.ledger.rollback.members["b"].session == world.participants["b"].session


def test_second_failure_during_a_restore():
    world = with_epoch("a", "b", "c")
    world.participants["a"].restores = False
    world.kill_participant("b")
    world.revive("b")
    world.run(until=lambda: world.ledger.state.incarnation == 2)
    world.run(0.5)
    assert world.ledger.rollback.state == "restoring"
    world.kill_participant("c")
    world.participants["a"].restores = True
    world.revive("c")
    world.run(until=recovered(world, 3))
    assert world.ledger.state.rollbacks[2].state == "superseded"


@pytest.mark.parametrize("when", ["proposed", "applied", "fenced", "half restored", "restored"])
def test_leader_that_dies_during_a_restore(when):
    world = with_epoch("a", "b", "c")
    old, new = world.leader, world.coordinators[1]
    if when == "half restored":
        world.participants["c"].restores = False
    world.kill_participant("b")
    world.revive("b")

    def reached():
        record = world.ledger.rollback
        match when:
            case "proposed":
                return ("proposed", "rollback") in world.happened
            case "applied":
                return record is not None
            case "fenced":
                return record is not None and record.state == "restoring"
            case "half restored":
                return record is not None and record.restored_count == 2
            case _:
                return record is not None and record.state == "done"

    world.run(until=reached)
    world.kill(old)
    world.participants["c"].restores = True
    world.run(0.05)
    world.elect(new)
    world.run(until=recovered(world, 2))
    world.run(until=world.ready)
    commit(world, 2)
    assert world.ledger.state.incarnation == 2
    assert world.replicas_agree()


def test_repeated_order_after_a_change_of_leader_is_acknowledged_again():
    world = with_epoch("a", "b")
    lost = []
    a = world.participants["a"]
    say = a.say
    a.say = lambda message: lost.append(message) if isinstance(message, Restored) else say(message)
    world.kill_participant("b")
    world.revive("b")
    world.run(until=lambda: lost)
    a.say = say
    world.kill(world.leader)
    world.elect(world.coordinators[2])
    world.run(until=recovered(world, 2))
    assert len(a.restore_orders) >= 2


def test_fence_that_fails_is_raised_again_and_no_order_leaves_before():
    world = with_epoch("a", "b")
    world.fence_fails = "EIO"
    world.kill_participant("b")
    world.revive("b")
    world.run(5)
    assert world.ledger.rollback.state == "fencing"
    assert world.participants["a"].restore_orders == []
    assert "EIO" in world.leader.machine.live(world.now).recovery()[1]
    world.fence_fails = ""
    world.run(until=recovered(world, 2))


@pytest.mark.parametrize("kind", ["fence", "restored", "rollback-failed"])
def test_entry_of_an_older_incarnation_that_is_on_its_way_holds_up_nothing(kind):
    """It takes the place in which the same word of the newer incarnation would go into the log."""
    world = with_epoch("a", "b", "c")
    held = []
    submit = world.submit

    def hold(coordinator, text):
        if f'"kind":"{kind}"' in text and '"incarnation":2' in text:
            held.append((coordinator, text))
        else:
            submit(coordinator, text)

    world.submit = hold
    world.kill_participant("b")
    failure = ("store", "EIO") if kind == "rollback-failed" else None
    world.revive("b", restore_fails=failure)
    world.run(until=lambda: held)
    world.kill_participant("c")
    world.revive("c", restore_fails=failure)
    world.run(until=lambda: world.ledger.state.incarnation == 3)
    world.run(0.5)
    world.submit = submit
    for participant in world.participants.values():
        participant.restore_fails = None
    for each in held:
        submit(*each)
    world.run(until=lambda: world.running(world.ledger.state.incarnation), limit=30)
    assert world.ledger.state.incarnation == (4 if failure else 3)


def test_participant_that_hangs_in_a_restore_is_not_waited_for_for_ever():
    world = with_epoch("a", "b")
    world.participants["a"].restores = False
    world.kill_participant("b")
    world.revive("b")
    world.run(until=lambda: world.ledger.state.rollbacks.get(2) is not None)
    world.run(RESTORE_DEADLINE_NS / SECOND - 5)
    assert world.ledger.rollback.state == "restoring"
    world.run(6)
    failed = world.ledger.state.rollbacks[2]
    assert (failed.state, failed.participant) == ("failed", "a")
    assert "within 600 s" in failed.failure
    world.participants["a"].restores = True
    world.run(until=lambda: world.ledger.state.incarnation > 2)
    world.participants["a"].disconnect("cable")
    world.participants["a"].connect()
    world.run(until=lambda: world.running(world.ledger.state.incarnation))


def test_sealed_epoch_is_committed_first():
    world = with_epoch("a", "b")
    world.trigger()
    world.run(until=lambda: world.state_of(2) == "sealed")
    world.store_fails = "ENOSPC"
    world.kill_participant("b")
    world.revive("b")
    world.run(5)
    assert world.ledger.state.incarnation == 1
    world.store_fails = ""
    world.run(until=recovered(world, 2))
    assert world.ledger.rollback.epoch == 2


def test_corrupt_newest_manifest_falls_back_and_says_how_far():
    world = with_epoch("a", "b")
    commit(world, 2)
    world.corrupt.add(2)
    world.kill_participant("b")
    world.revive("b")
    world.run(until=recovered(world, 2))
    record = world.ledger.rollback
    assert record.epoch == 1
    assert "epoch 1 in place of 2" in record.cause


def test_newest_manifest_that_cannot_be_read_now_is_waited_for_and_no_older_one_is_taken():
    """Nothing says that it is lost: whoever goes further back now gives up what had been committed, and released."""
    world = with_epoch("a", "b")
    commit(world, 2)
    world.store_fails = "EIO: Input/output error"
    world.kill_participant("b")
    world.revive("b")
    world.run(10)
    assert world.ledger.state.incarnation == 1
    state, why = world.leader.machine.live(world.now).recovery()
    assert (state, why.endswith("epoch 2 cannot be read: EIO: Input/output error")) == ("waiting", True)
    world.store_fails = ""
    world.run(until=recovered(world, 2))
    assert world.ledger.rollback.epoch == 2
    assert "in place of" not in world.ledger.rollback.cause


def test_part_that_a_participant_cannot_read_now_is_tried_again_from_the_same_epoch():
    world = with_epoch("a", "b")
    commit(world, 2)
    world.kill_participant("b")
    b = world.revive("b", restore_fails=("store", "EIO: Input/output error"))
    world.run(until=lambda: world.ledger.state.incarnation >= 3)
    b.restore_fails = None
    world.run(until=lambda: world.running(world.ledger.state.incarnation), limit=30)
    assert {record.epoch for record in world.ledger.state.rollbacks.values()} == {2}


def test_leader_takes_the_epoch_from_the_ledger_and_lists_no_store(monkeypatch):
    """D5: a listing that is old or empty changes nothing."""
    world = with_epoch("a", "b")
    monkeypatch.setattr(type(world.store), "list", lambda *_: pytest.fail("the store is listed"))
    world.kill_participant("b")
    world.revive("b")
    world.run(until=recovered(world, 2))
    assert world.ledger.rollback.epoch == 1


@pytest.mark.parametrize("when", ["proposed", "fenced"])
def test_next_leader_in_the_middle_of_a_rollback_lists_no_store_either(monkeypatch, when):
    """D5: the listing is empty just when the leadership changes; that is no reason for a fresh start."""
    world = with_epoch("a", "b", "c")
    commit(world, 2)
    asked = []
    monkeypatch.setattr(type(world.store), "list", lambda *prefix: asked.append(prefix) or iter(()))
    old, new = world.leader, world.coordinators[1]
    world.kill_participant("b")
    world.revive("b")
    world.run(
        until=lambda: (
            ("proposed", "rollback") in world.happened
            if when == "proposed"
            else world.ledger.rollback is not None and world.ledger.rollback.state == "restoring"
        )
    )
    world.kill(old)
    world.run(0.05)
    world.elect(new)
    world.run(until=recovered(world, 2))
    assert world.ledger.rollback.terms[-1] > 1
    assert world.ledger.rollback.epoch == 2
    assert {order.epoch for name in "abc" for order in world.participants[name].restore_orders} == {2}
    assert asked == []


def test_corrupt_object_of_a_participant_falls_back_too():
    world = with_epoch("a", "b")
    commit(world, 2)
    world.kill_participant("b")
    b = world.revive("b", restore_fails=("corrupt", "pack xyz: bad checksum"))
    world.run(until=lambda: world.ledger.state.rollbacks.get(2) is not None)
    world.run(until=lambda: world.ledger.state.rollbacks[2].state == "failed")
    b.restore_fails = None
    world.run(until=recovered(world, 3))
    assert (world.ledger.state.rollbacks[2].epoch, world.ledger.rollback.epoch) == (2, 1)


def test_part_that_does_not_fit_the_code_stops_recovery_until_other_code_comes():
    world = with_epoch("a", "b")
    world.kill_participant("b")
    world.revive("b", restore_fails=("unfit", "agent worker/b: no field x"))
    world.run(until=lambda: bool(world.ledger.state.stopped))
    world.run(5)
    assert world.ledger.state.incarnation == 2
    state, why = world.leader.machine.live(world.now).recovery()
    assert state == "stopped"
    assert "no field x" in why
    assert world.participants["a"].runs == 0 or world.participants["a"].runs == 1
    world.kill_participant("b")
    world.revive("b")
    world.run(until=recovered(world, 3))


def test_crash_loop_backs_off_and_stops_with_a_clear_state():
    policy = replace_struct(RECOVERING, max_rollbacks=3, rollback_window_ns=600 * SECOND)
    world = cluster("a", "b", policy=policy)
    commit(world, 1)
    begun = []
    for incarnation in range(2, 5):
        world.kill_participant("b")
        world.revive("b")
        world.run(until=recovered(world, incarnation), limit=100)
        begun.append(world.now)
    assert begun[2] - begun[1] > 500 * MS
    world.kill_participant("b")
    world.revive("b")
    world.run(until=lambda: bool(world.ledger.state.stopped), limit=100)
    world.run(20)
    assert world.ledger.state.incarnation == 4
    assert "3 rollbacks within 600 s" in world.leader.machine.live(world.now).recovery()[1]
    request = world.restore(None, "looked into it")
    world.run(until=recovered(world, 5))
    assert world.answers[request]["ok"]


def test_manual_recovery_waits_for_the_operator():
    world = cluster("a", "b", policy=replace_struct(RECOVERING, recovery="manual"))
    world.kill_participant("b")
    world.revive("b")
    world.run(10)
    assert world.ledger.state.incarnation == 1
    assert "an operator has to restore" in world.leader.machine.live(world.now).recovery()[1]
    request = world.restore(None, "by hand")
    world.run(until=recovered(world, 2))
    assert world.answers[request] == {
        "ok": True,
        "outcome": "begun",
        "incarnation": 2,
        "epoch": 0,
        "members": 2,
        "aborted": [],
    }


def test_operator_goes_back_to_an_older_epoch():
    world = with_epoch("a", "b")
    commit(world, 2)
    request = world.restore(1, "epoch 2 holds nonsense")
    world.run(until=recovered(world, 2))
    assert world.answers[request]["epoch"] == 1
    world.kill_participant("a")
    world.revive("a")
    world.run(until=recovered(world, 3))
    assert world.ledger.rollback.epoch == 1


def test_operator_moves_an_agent_with_a_rollback_to_the_newest_epoch():
    world = World(policy=RECOVERING)
    world.elect(world.coordinators[0])
    world.add("a", "b", kinds=("worker",))
    world.add("c")
    world.run(until=world.ready)
    commit(world, 1)
    for moves, sentence in (
        ((("worker/a", "z"),), "z is not there"),
        ((("worker/a", "c"),), "c does not take"),
        ((("worker/z", "b"),), "nobody hosts"),
    ):
        refused = world.restore(None, "move", moves)
        world.run(0.1)
        assert world.answers[refused]["code"] == "not-placed"
        assert sentence in world.answers[refused]["sentence"]
    request = world.restore(None, "move", (("worker/a", "b"),))
    world.run(until=recovered(world, 2))
    assert world.answers[request]["epoch"] == 1
    assert world.participants["b"].placed == ("worker/a", "worker/b")
    assert world.participants["a"].placed == ()
    world.run(until=world.ready)
    # Back again before any epoch of where it was: its host is told, in each order that says it.
    world.restore(None, "move", (("worker/a", "a"),))
    world.run(until=recovered(world, 3))
    assert [order.elsewhere for order in world.participants["b"].restore_orders] == [{}, {}]
    assert [order.elsewhere for order in world.participants["a"].restore_orders] == [{}, {"b": ("worker/a",)}]
    world.run(until=world.ready)
    commit(world, 2)


@pytest.mark.parametrize(("epoch", "code"), [(7, "unknown"), (2, "not-committed")])
def test_operator_is_refused_what_cannot_be_restored(epoch, code):
    world = with_epoch("a", "b")
    for participant in world.participants.values():
        participant.reports = False
    world.trigger()
    world.run(0.5)
    request = world.restore(epoch)
    world.run(0.1)
    assert world.answers[request]["code"] == code


def test_participant_that_was_in_the_incarnation_before_makes_the_next_one():
    world = with_epoch("a", "b")
    world.kill_participant("b")
    world.revive("b", restore_fails=("entered", "its disk says so"))
    world.run(until=lambda: world.ledger.state.incarnation == 2)
    world.run(until=lambda: world.ledger.rollback.state == "failed")
    world.participants["b"].restore_fails = None
    world.run(until=recovered(world, 3))


@pytest.mark.parametrize("seed", range(25))
def test_any_mixture_of_failures_ends_in_one_incarnation(seed):
    """Participants and leaders die at random moments, proposals get lost or doubled; then all heals."""
    world = World(policy=replace_struct(RECOVERING, max_rollbacks=0), seed=seed, jitter_ns=30 * MS)
    world.elect(world.coordinators[0])
    names = ["a", "b", "c", "d"]
    world.add(*names)
    chance = world.random
    world.run(until=world.ready)
    world.fate_odds = 0.1
    for _ in range(12):
        match chance.choice(["kill", "kill", "leader", "epoch", "cable", "wait"]):
            case "kill":
                name = chance.choice(names)
                if not world.participants[name].dead:
                    world.kill_participant(name)
                    world.later(
                        chance.randrange(3 * SECOND),
                        lambda name=name: world.participants[name].dead and world.revive(name),
                    )
            case "leader":
                if world.leader is not None:
                    old = world.leader
                    world.kill(old)
                    world.restart(old)
                    world.run(chance.random() * 0.3)
                world.elect(chance.choice([each for each in world.coordinators if each.up]))
            case "epoch":
                if world.leader is not None and world.leader.machine.leading:
                    world.trigger()
            case "cable":
                participant = world.participants[chance.choice(names)]
                if not participant.dead and participant.connection is not None:
                    participant.disconnect("cable")
                    world.later(chance.randrange(SECOND), participant.connect)
            case _:
                pass
        world.run(chance.random() * 1.5)
    world.fate_odds = 0.0
    for name in names:
        participant = world.participants[name]
        if participant.fenced or participant.refused:
            world.kill_participant(name)
            world.revive(name)
    heal_until = world.now + 120 * SECOND

    def healed():
        for name in names:
            participant = world.participants[name]
            if (participant.fenced or participant.refused) and not participant.dead:
                participant.dead = True
                participant.disconnect("ends")
                world.revive(name)
        return world.running(world.ledger.state.incarnation) and world.ready()

    world.run(until=healed, limit=120)
    assert world.now <= heal_until
    world.trigger()
    number = world.ledger.state.epoch + 1
    world.run(until=lambda: world.state_of(number) == "committed", limit=30)
    assert world.replicas_agree()


def test_epoch_follows_a_leave_so_that_a_rollback_does_not_need_who_has_left():
    world = with_epoch("a", "b", "c")
    c = world.participants["c"]
    c.say(Leave(session=c.session))
    world.run(until=lambda: world.state_of(2) == "committed")
    assert sorted(world.epoch(2).members) == ["a", "b"]
    assert world.epoch(2).reason == "a participant has left"
    world.kill_participant("b")
    world.revive("b")
    world.run(until=recovered(world, 2))
    assert world.ledger.rollback.epoch == 2


def test_everybody_hears_what_the_incarnation_comes_from_also_who_was_away_when_it_began():
    world = with_epoch("a", "b")
    world.add("c")
    world.run(until=lambda: world.participants["c"].runs == 1)
    world.kill_participant("c")
    world.run(until=recovered(world, 2))
    assert sorted(member.id for member in world.ledger.state.topology.members) == ["a", "b"]
    ancestry = Ancestry(incarnation=2, through=((1, 1),))
    assert world.participants["a"].restore_orders[-1].ancestry == ancestry
    world.revive("c")
    world.run(until=lambda: world.participants["c"].runs == 2)
    assert world.participants["c"].restore_orders == []
    assert [each.ancestry for each in world.participants["c"].received if isinstance(each, Registered)] == [ancestry]


def test_policy_of_the_world_is_one_that_recovers():
    assert isinstance(RECOVERING, PolicySettings)
    assert RECOVERING.recovery == "auto"


# --- an operator's words: names, losses, the same command twice -------------------------------------------------------


def test_agent_comes_back_under_another_name_and_keeps_it_over_crashes():
    world = with_epoch("a", "b")
    world.kill_participant("b")
    world.revive("b", agents=("worker/z",))
    world.run(2)
    request = world.restore(1, renames=(("worker/b", "worker/z"),))
    world.run(until=recovered(world, 2))
    assert world.answers[request]["outcome"] == "begun"
    assert world.ledger.rollback.renames == (("worker/b", "worker/z"),)
    assert world.participants["a"].restore_orders[-1].renames == (("worker/b", "worker/z"),)
    # Before the next epoch a crash goes back to the same one: its agent has the new name still.
    world.kill_participant("a")
    world.revive("a")
    world.run(until=recovered(world, 3))
    assert world.ledger.rollback.automatic
    assert world.ledger.rollback.renames == (("worker/b", "worker/z"),)
    world.run(until=world.ready)
    commit(world, 2)
    world.kill_participant("a")
    world.revive("a")
    world.run(until=recovered(world, 4))
    assert (world.ledger.rollback.epoch, world.ledger.rollback.renames) == (2, ())
    assert world.replicas_agree()


@pytest.mark.parametrize(
    ("renames", "word"),
    [
        ((("worker/x", "worker/z"),), "holds no agent worker/x"),
        ((("worker/a", "worker/b"),), "holds an agent of that name"),
        ((("worker/a", "worker/z"), ("worker/b", "worker/z")), "both to become worker/z"),
        ((("worker/a", "worker/a"),), "mapped to itself"),
        ((("worker/a", "worker/z"),), "it would begin anew"),
    ],
)
def test_map_that_makes_no_sense_is_refused_by_name_and_nothing_happens(renames, word):
    world = with_epoch("a", "b")
    request = world.restore(1, renames=renames)
    world.run(1)
    assert world.answers[request]["code"] == "bad-map"
    assert word in world.answers[request]["sentence"]
    assert world.ledger.state.incarnation == 1


def test_map_to_a_name_that_nobody_hosts_is_refused_by_name():
    world = with_epoch("a", "b")
    world.kill_participant("b")
    world.run(2)
    request = world.restore(1, renames=(("worker/b", "worker/z"),))
    world.run(1)
    assert world.answers[request]["code"] == "not-placed"
    assert "worker/z" in world.answers[request]["sentence"]


def test_agents_that_nobody_takes_are_given_up_only_when_that_is_said():
    world = with_epoch("a", "b")
    world.kill_participant("b")
    world.run(2)
    refused = world.restore(1)
    world.run(1)
    assert world.answers[refused]["code"] == "not-placed"
    world.restore(1, allow_unclaimed=True)
    world.run(until=recovered(world, 2))
    assert world.ledger.rollback.dropped == ("worker/b",)
    # They stay given up when the cluster goes back to that epoch once more.
    world.kill_participant("a")
    world.revive("a")
    world.run(until=recovered(world, 3))
    assert world.ledger.rollback.dropped == ("worker/b",)
    # Who hosts them again gets them again.
    world.revive("b")
    world.run(until=lambda: world.participants["b"].runs == 3)
    world.restore(1)
    world.run(until=recovered(world, 4))
    assert world.ledger.rollback.dropped == ()


def test_the_same_command_while_it_is_under_way_is_the_same_rollback():
    world = with_epoch("a", "b")
    world.participants["b"].restores_slowly = True
    first = world.restore(1)
    world.run(until=lambda: first in world.answers)
    again = world.restore(1)
    world.run(until=lambda: again in world.answers)
    assert world.answers[again]["incarnation"] == world.answers[first]["incarnation"] == 2
    world.run(until=recovered(world, 2))
    assert world.ledger.state.incarnation == 2


def test_with_a_manual_policy_the_same_command_is_another_rollback_when_a_member_was_lost_on_the_way():
    world = cluster("a", "b", policy=replace_struct(RECOVERING, recovery="manual"))
    world.run(until=world.ready)
    commit(world, 1)
    world.participants["b"].restores_slowly = True
    first = world.restore(1)
    world.run(until=lambda: first in world.answers)
    world.kill_participant("b")
    world.revive("b")
    world.run(until=lambda: bool(world.ledger.lost_members()) and world.ledger.state.participants["b"].live)
    again = world.restore(1)
    world.run(until=lambda: again in world.answers)
    assert world.answers[again]["incarnation"] == 3, "what began cannot come through without that session"
    world.run(until=recovered(world, 3))


def test_damaged_epoch_never_brings_back_what_an_operator_went_behind():
    world = with_epoch("a", "b")
    commit(world, 2)
    world.restore(1)
    world.run(until=recovered(world, 2))
    world.run(until=world.ready)
    commit(world, 3)
    world.corrupt.add(3)
    world.kill_participant("b")
    world.revive("b")
    world.run(until=recovered(world, 3))
    assert world.ledger.rollback.epoch == 1, "epoch 2 was given up"


def test_policy_may_refuse_to_go_further_back_by_itself():
    world = cluster("a", "b", policy=replace_struct(RECOVERING, fallback="refuse"))
    for number in (1, 2):
        world.run(until=world.ready)
        world.trigger()
        world.run(until=lambda number=number: world.state_of(number) == "committed")
    world.corrupt.add(2)
    world.kill_participant("b")
    world.revive("b")
    world.run(8)
    assert world.ledger.state.incarnation == 1
    doing, why = world.leader.machine.live(world.now).recovery()
    assert doing == "waiting"
    assert "refuses to go back to 1 by itself" in why
    request = world.restore(None)
    world.run(2)
    assert world.answers[request]["code"] == "corrupt"
    world.restore(1)
    world.run(until=recovered(world, 2))
    assert world.ledger.rollback.epoch == 1


SWAP = (("worker/a", "worker/b"), ("worker/b", "worker/a"))


@pytest.mark.parametrize(("damaged", "expected"), [((), (2, ())), ((2,), (1, SWAP))])
def test_names_of_a_swap_are_swapped_once_however_far_the_next_rollback_goes(damaged, expected):
    world = with_epoch("a", "b")
    world.restore(1, renames=SWAP)
    world.run(until=recovered(world, 2))
    world.run(until=world.ready)
    commit(world, 2)
    world.corrupt.update(damaged)
    world.kill_participant("a")
    world.revive("a")
    world.run(until=recovered(world, 3))
    assert (world.ledger.rollback.epoch, world.ledger.rollback.renames) == expected


def test_a_map_at_the_start_that_is_asked_for_again_is_the_rollback_that_is_under_way():
    world = renamed_at_the_start("worker/y")
    world.kill_participant("b")
    world.revive("b", agents=("worker/z",))
    world.run(2)
    first = world.restore(0, renames=(("worker/y", "worker/z"),))
    world.run(until=lambda: world.ledger.state.incarnation == 3)
    again = world.restore(0, renames=(("worker/y", "worker/z"),))
    for wrong in (("worker/z", "worker/z"), ("worker/x", "worker/z")):
        refused = world.restore(0, renames=(wrong,))
        world.run(until=lambda refused=refused: refused in world.answers)
        assert world.answers[refused]["code"] == "bad-map"
    world.run(until=recovered(world, 3))
    world.run(1)
    assert [world.answers[each]["incarnation"] for each in (first, again)] == [3, 3]
    assert world.ledger.state.incarnation == 3


def test_before_the_first_epoch_a_name_that_was_given_is_kept_too():
    world = renamed_at_the_start("worker/z")
    world.kill_participant("a")
    world.revive("a")
    world.run(until=recovered(world, 3))
    record = world.ledger.rollback
    assert (record.epoch, record.automatic, record.renames) == (0, True, (("worker/b", "worker/z"),))


def renamed_at_the_start(name):
    """The agent of b came back under another name, before there was an epoch."""
    world = cluster("a", "b", policy=RECOVERING)
    world.kill_participant("b")
    world.revive("b", agents=(name,))
    world.run(2)
    world.restore(0, renames=(("worker/b", name),))
    world.run(until=recovered(world, 2))
    world.run(until=world.ready)
    return world


def test_back_at_the_start_an_operator_s_names_come_on_top_of_those_that_were_given():
    world = with_epoch("a", "b")
    world.kill_participant("b")
    world.revive("b", agents=("worker/y",))
    world.run(2)
    world.restore(1, renames=(("worker/b", "worker/y"),))
    world.run(until=recovered(world, 2))
    world.run(until=world.ready)
    world.kill_participant("b")
    world.revive("b", agents=("worker/z",))
    world.run(2)
    world.restore(0, renames=(("worker/y", "worker/z"),))
    world.run(until=recovered(world, 3))
    record = world.ledger.rollback
    assert (record.epoch, record.renames) == (0, (("worker/b", "worker/z"),))
    order = world.participants["a"].restore_orders[-1]
    assert order.ancestry.first_name("worker/z") == "worker/b"
    assert order.ancestry.called("worker/y", 2) == "worker/z"


def test_going_further_back_than_a_rename_keeps_the_name_and_what_was_given_up():
    world = with_epoch("a", "b", "c")
    world.kill_participant("b")
    world.kill_participant("c")
    world.revive("b", agents=("worker/z",))
    world.run(3)
    world.restore(1, renames=(("worker/b", "worker/z"),), allow_unclaimed=True)
    world.run(until=recovered(world, 2))
    world.run(until=world.ready)
    commit(world, 2)
    world.corrupt.add(2)
    world.kill_participant("a")
    world.revive("a")
    world.run(until=recovered(world, 3))
    record = world.ledger.rollback
    assert (record.epoch, record.renames, record.dropped) == (1, (("worker/b", "worker/z"),), ("worker/c",))


def test_agent_that_was_given_up_and_is_hosted_again_is_not_given_up_once_more():
    """It begins anew; a rollback to the epoch that holds the former one brings that one back."""
    world = with_epoch("a", "b")
    world.kill_participant("b")
    world.run(2)
    world.restore(1, allow_unclaimed=True)
    world.run(until=recovered(world, 2))
    world.revive("b")
    world.run(until=lambda: world.participants["b"].runs == 2)
    world.kill_participant("a")
    world.revive("a")
    world.run(until=recovered(world, 3))
    record = world.ledger.rollback
    assert (record.automatic, record.epoch, record.dropped) == (True, 1, ())


def test_only_a_rollback_to_the_epoch_that_an_operator_named_may_pass_over_a_newer_one():
    """What nobody has named is the newest epoch of the moment at which it was prepared; should it come late, it is refused."""
    world = with_epoch("a", "b")
    proposed = []
    submit = world.submit
    world.submit = lambda at, text: (proposed.append(json.loads(text)), submit(at, text))
    world.restore(None)
    world.run(until=recovered(world, 2))
    world.run(until=world.ready)
    world.trigger()
    world.run(until=lambda: world.state_of(2) == "committed")
    world.restore(1)
    world.run(until=recovered(world, 3))
    world.kill_participant("b")
    world.revive("b")
    world.run(until=recovered(world, 4))
    rollbacks = [each for each in proposed if each["kind"] == "rollback"]
    assert [(each["epoch"], each.get("newest")) for each in rollbacks] == [(1, 1), (1, None), (1, 1)]


def test_who_may_have_a_log_of_turns_is_waited_for_as_long_as_the_policy_says():
    """The epoch does not hold it, so nothing else keeps the others from going back; and what it had done would be lost."""
    policy = replace_struct(RECOVERING, durability="turn", takeover_after_ns=5 * SECOND)
    world = World(policy=policy)
    world.elect(world.coordinators[0])
    world.add("a", durability="turn")
    world.run(until=world.ready)
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "committed")
    world.add("b", durability="turn")
    world.run(until=lambda: len(world.ledger.state.topology.members) == 2 and world.ready())
    world.kill_participant("b")
    world.run(until=lambda: world.ledger.state.participants["b"].state == "lost")
    world.run(4)
    assert world.ledger.state.incarnation == 1
    world.run(until=lambda: world.ledger.state.incarnation == 2, limit=10)


def with_newcomers(*names, durability="turn", takeover_s=0):
    """A cluster whose only epoch does not know these, all of them with logs of turns."""
    policy = replace_struct(RECOVERING, durability=durability, takeover_after_ns=takeover_s * SECOND)
    world = World(policy=policy)
    world.elect(world.coordinators[0])
    world.add("a", durability=durability)
    world.run(until=world.ready)
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "committed")
    world.add(*names, durability=durability)
    world.run(until=lambda: len(world.ledger.state.topology.members) == 1 + len(names) and world.ready())
    return world


def lose(world, *names):
    for name in names:
        world.kill_participant(name)
    world.run(until=lambda: all(world.ledger.state.participants[name].state == "lost" for name in names))


def test_who_may_have_a_log_of_turns_is_waited_for_for_ever_where_nobody_takes_its_agents_over():
    world = with_newcomers("b")
    lose(world, "b")
    world.run(100)
    assert world.ledger.state.incarnation == 1
    assert world.leader.machine.live(world.now).recovery()[0] == "waiting"


def test_who_comes_back_without_its_log_of_turns_is_waited_for_no_longer():
    world = with_newcomers("b")
    lose(world, "b")
    world.run(3)
    assert world.ledger.state.incarnation == 1
    world.revive("b", durability="turn")
    world.run(until=recovered(world, 2), limit=10)


def test_who_comes_back_with_its_log_of_turns_takes_nobody_back():
    world = with_newcomers("b")
    session = world.participants["b"].session
    lose(world, "b")
    world.run(3)
    world.revive("b", durability="turn", resumes=Resumption(session=session, line=session, incarnation=1))
    world.run(until=lambda: world.ledger.state.participants["b"].state == "member" and world.ready())
    world.run(5)
    assert world.ledger.state.incarnation == 1


def test_whose_log_of_turns_is_not_what_it_had_promised_is_waited_for_no_longer():
    world = with_newcomers("b")
    session = world.participants["b"].session
    lose(world, "b")
    world.revive("b", durability="turn", resumes=Resumption(session=session, line=session, incarnation=1))
    world.run(until=lambda: world.ledger.state.participants["b"].state == "member" and world.ready())
    speaker, broken = world.participants["a"], world.participants["b"]
    broken.dead = True
    speaker.say(StreamBroken(session=speaker.session, peer="b", peer_session=broken.session, cause="it has less"))
    world.run(until=recovered(world, 2), limit=10)
    assert world.ledger.state.participants["b"].damaged


def test_an_operator_who_asks_for_a_rollback_waits_for_no_log_of_turns():
    world = with_newcomers("b")
    lose(world, "b")
    world.restore(1)
    world.run(until=recovered(world, 2), limit=10)


def test_nobody_waits_for_a_log_of_turns_that_nobody_has():
    """Durability is by epochs: who is lost and in no epoch is in nobody's way."""
    world = with_newcomers("b", durability="epoch")
    lose(world, "b")
    world.run(until=recovered(world, 2), limit=10)


def test_everybody_who_may_have_a_log_of_turns_is_waited_for_as_long():
    """Each from when it was missed."""
    world = with_newcomers("b", "c", takeover_s=5)
    lose(world, "b")
    world.run(3)
    lose(world, "c")
    world.run(3)
    assert world.ledger.state.incarnation == 1, "b has been gone for long enough, c has not"
    world.run(until=recovered(world, 2), limit=10)


def test_each_is_told_whether_an_earlier_life_of_it_was_lost():
    """Also one that comes for the first time with a rollback."""
    world = with_epoch("a", "b")
    world.kill_participant("b")
    world.revive("b")
    world.add("c")
    world.run(until=recovered(world, 2))
    told = {name: [order.returns for order in each.restore_orders] for name, each in world.participants.items()}
    assert told["a"] == [False]
    assert told["b"] == [True]
    assert set(told["c"]) <= {False}


def test_a_map_without_an_epoch_is_not_taken_for_the_rollback_that_is_under_way():
    world = with_epoch("a", "b")
    world.participants["b"].restores_slowly = True
    first = world.restore(1)
    world.run(until=lambda: first in world.answers)
    wrong = world.restore(None, renames=(("worker/a", "worker/a"),))
    world.run(until=lambda: wrong in world.answers)
    assert world.answers[wrong]["code"] == "bad-map"
    right = world.restore(None, renames=SWAP)
    world.run(until=lambda: right in world.answers)
    assert world.answers[right]["incarnation"] == 3
    world.run(until=recovered(world, 3))
    assert world.ledger.rollback.renames == SWAP


def test_a_move_to_one_that_is_lost_meanwhile_is_refused_and_the_loss_is_made_good():
    world = World(policy=RECOVERING)
    world.elect(world.coordinators[0])
    world.add("a", "b", "c", kinds=("worker",))
    world.run(until=world.ready)
    commit(world, 1)
    request = world.restore(None, moves=(("worker/a", "b"),))
    world.kill_participant("b")
    world.run(until=lambda: request in world.answers, limit=20)
    assert world.answers[request]["code"] == "not-placed"
    assert "b is not there" in world.answers[request]["sentence"]
    world.run(until=recovered(world, 2), limit=20)
    assert world.ledger.host_of("worker/a") == "a"
    assert world.ledger.host_of("worker/b") in ("a", "c")


def given_away(policy=RECOVERING):
    """The agent of a is b's now."""
    world = World(policy=policy)
    world.elect(world.coordinators[0])
    world.add("b", kinds=("worker",))
    world.add("a", "c")
    world.run(until=world.ready)
    commit(world, 1)
    world.restore(1, "move", (("worker/a", "b"),))
    world.run(until=recovered(world, 2))
    world.run(until=world.ready)
    return world


@pytest.mark.parametrize("epoch", [1, 2], ids=["before it was given away", "behind that"])
def test_agent_that_was_given_away_and_has_left_does_not_begin_where_it_was_before_a_rollback_brings_it(epoch):
    """A host that connects anew declares it still, and runs it no more: a message for it would find nobody there."""
    world = given_away()
    commit(world, 2)
    b = world.participants["b"]
    b.say(Leave(session=b.session))
    world.run(until=lambda: world.ledger.state.participants["b"].state == "left")
    world.participants["a"].disconnect("cable")
    world.later(100 * MS, world.participants["a"].connect)
    world.run(3)
    world.run(until=lambda: world.state_of(3) == "committed")
    members = {member.id: member.agents for member in world.ledger.state.topology.members}
    assert members == {"a": (), "c": ("worker/c",)}
    # The epoch has it, its last host has left, and who declares it is there.
    request = world.restore(epoch)
    world.run(until=lambda: request in world.answers)
    assert "hosts, or can take, worker/b (on b before)" in world.answers[request]["sentence"]
    world.restore(epoch, allow_unclaimed=True)
    world.run(until=recovered(world, 3))
    members = {member.id: member.agents for member in world.ledger.state.topology.members}
    assert members == {"a": ("worker/a",), "c": ("worker/c",)}


def test_agent_that_was_given_away_waits_for_its_host_where_that_was_only_lost():
    world = given_away()
    world.kill_participant("b")
    world.run(until=lambda: world.ledger.state.participants["b"].state == "lost")
    world.revive("b")
    world.run(until=recovered(world, 3))
    members = {member.id: member.agents for member in world.ledger.state.topology.members}
    assert members["a"] == ()


def hosts(world):
    return {agent: member.id for member in world.ledger.state.topology.members for agent in member.agents}


def first_number(world, agent):
    """What the agent's first message is named after."""
    (member,) = [member for member in world.ledger.state.topology.members if agent in member.agents]
    return dict(member.fresh_of).get(agent, member.fresh)


@pytest.mark.parametrize("epoch", [1, 2], ids=["before it was given away", "behind that"])
@pytest.mark.parametrize("takeover_s", [0, 5])
def test_host_that_comes_back_has_at_once_what_it_had_been_given(epoch, takeover_s):
    """It does not declare it, and nobody waits for anybody else."""
    world = given_away(replace_struct(RECOVERING, takeover_after_ns=takeover_s * SECOND))
    if epoch == 2:
        commit(world, 2)
    lose(world, "b")
    world.run(1)
    before = world.now
    world.revive("b")
    world.run(until=recovered(world, 3))
    assert (world.now - before) / SECOND < 1
    assert hosts(world) == {"worker/a": "b", "worker/b": "b", "worker/c": "c"}


def test_who_is_waited_for_is_the_host_of_now_and_not_the_one_that_the_epoch_has():
    world = given_away(replace_struct(RECOVERING, takeover_after_ns=0))
    lose(world, "b")
    world.run(2)
    assert "worker/a, worker/b (on b before)" in world.leader.machine.live(world.now).recovery()[1]


def test_agent_whose_host_comes_back_with_code_that_does_not_take_it_is_waited_for_as_before():
    world = given_away()
    lose(world, "b")
    world.participants["b"].kinds = ()
    before = world.now
    world.revive("b")
    world.run(until=recovered(world, 3), limit=20)
    assert 4 < (world.now - before) / SECOND < 7
    assert hosts(world) == {"worker/a": "a", "worker/b": "b", "worker/c": "c"}


def test_program_that_calls_its_agents_otherwise_is_not_given_them_under_the_old_names():
    """It takes their kind, and an operator is to say what they are called: an old name that has a host cannot be mapped any more."""
    world = World(policy=RECOVERING)
    world.elect(world.coordinators[0])
    world.add("a", "b", kinds=("worker",))
    world.run(until=world.ready)
    commit(world, 1)
    lose(world, "a")
    world.revive("a", agents=("worker/new",))
    world.run(2)
    assert world.ledger.state.incarnation == 1
    world.restore(1, renames=(("worker/a", "worker/new"),))
    world.run(until=recovered(world, 2))
    assert hosts(world) == {"worker/new": "a", "worker/b": "b"}


def test_host_that_comes_back_after_a_rollback_without_it_has_nothing_of_what_it_had_been_given():
    """The agent has another name since, and would begin beside itself."""
    world = given_away()
    lose(world, "b")
    world.add("d", agents=("worker/new", "worker/b"))
    world.participants["a"].disconnect("cable")
    world.participants["a"].dead = True
    world.run(until=lambda: world.ledger.state.participants["a"].state == "lost")
    world.revive("a", agents=("other/a",))
    world.run(1)
    world.restore(1, renames=(("worker/a", "worker/new"),))
    world.run(until=recovered(world, 3))
    assert hosts(world)["worker/new"] == "d"
    world.revive("b", agents=("other/b",))
    world.run(until=lambda: "b" in {member.id for member in world.ledger.state.topology.members})
    assert hosts(world) == {"worker/new": "d", "worker/b": "d", "worker/c": "c", "other/a": "a", "other/b": "b"}


def test_agent_that_was_given_away_goes_home_where_its_host_stays_away():
    """Whoever declares it can take it, of whatever kinds it takes others: before anybody who takes that kind."""
    world = given_away()
    world.add("d", agents=("worker/z",), kinds=("worker",))
    world.run(until=lambda: "worker/z" in hosts(world) and world.ready())
    commit(world, 2)
    lose(world, "b")
    world.run(until=recovered(world, 3), limit=20)
    assert hosts(world) == {"worker/a": "a", "worker/b": "d", "worker/c": "c", "worker/z": "d"}


def late_and_given_away():
    """The agent of d came after the epoch, and is b's now."""
    world = World(policy=RECOVERING)
    world.elect(world.coordinators[0])
    world.add("b", kinds=("worker",))
    world.add("a")
    world.run(until=world.ready)
    commit(world, 1)
    world.add("d")
    world.run(until=lambda: "worker/d" in hosts(world))
    world.restore(None, moves=(("worker/d", "b"),))
    world.run(until=recovered(world, 2))
    assert hosts(world)["worker/d"] == "b"
    return world


def test_agent_that_no_epoch_holds_begins_at_home_where_the_host_that_it_was_given_to_stays_away():
    """Nobody waits for it; and nobody would have it: a rollback places what the epoch holds, and who gives an agent away keeps it no more."""
    world = late_and_given_away()
    world.add("e", agents=("other/e",), kinds=("worker",))
    world.run(until=lambda: "other/e" in hosts(world))
    lose(world, "b")
    world.run(until=recovered(world, 3), limit=20)
    assert (hosts(world)["worker/b"], hosts(world)["worker/d"]) == ("e", "d")
    assert world.participants["d"].placed == ("worker/d",)
    # The other one comes back, and leaves it there.
    world.revive("b")
    world.run(until=lambda: "b" in {member.id for member in world.ledger.state.topology.members})
    assert hosts(world)["worker/d"] == "d"


def test_agent_that_no_epoch_holds_begins_as_it_began_where_it_is_undone():
    """What it does again has the names that it had, also where its home has left since, and come as another."""
    world = late_and_given_away()
    world.add("e", agents=("other/e",), kinds=("worker",))
    d = world.participants["d"]
    d.say(Leave(session=d.session))
    world.run(until=lambda: world.ledger.state.participants["d"].state == "left")
    d.dead = True
    world.revive("d")
    world.run(until=lambda: {"b", "d", "e"} <= {member.id for member in world.ledger.state.topology.members})
    number = first_number(world, "worker/d")
    lose(world, "b")
    world.run(until=recovered(world, 3), limit=20)
    assert hosts(world)["worker/d"] == "d"
    assert first_number(world, "worker/d") == number
    assert first_number(world, "worker/d") != world.ledger.state.participants["d"].fresh


def test_agent_that_no_epoch_holds_stays_with_the_host_that_it_was_given_to_if_that_comes_back():
    world = late_and_given_away()
    lose(world, "b")
    world.revive("b")
    world.run(until=recovered(world, 3))
    assert hosts(world)["worker/d"] == "b"


def test_agent_that_no_epoch_holds_goes_to_who_takes_its_kind_where_nobody_is_there_who_declares_it():
    world = late_and_given_away()
    world.add("e", agents=("other/e",), kinds=("worker",))
    world.run(until=lambda: "other/e" in hosts(world))
    lose(world, "b", "d")
    world.run(until=recovered(world, 3), limit=20)
    assert hosts(world)["worker/d"] == "e"
    # What declares it comes back as a spare.
    world.revive("d")
    world.run(until=lambda: "d" in {member.id for member in world.ledger.state.topology.members})
    assert hosts(world)["worker/d"] == "e"


def test_agent_that_no_epoch_holds_goes_nowhere_where_nobody_takes_it_and_holds_up_nobody():
    world = late_and_given_away()
    lose(world, "b", "d")
    world.participants["b"].kinds = ()
    world.revive("b")
    world.run(until=recovered(world, 3))
    assert "worker/d" not in hosts(world)
    world.revive("d")
    world.run(until=lambda: "worker/d" in hosts(world))
    assert hosts(world)["worker/d"] == "d"


def test_agent_that_no_epoch_holds_is_not_begun_for_who_is_back_without_it():
    """Its host takes its kind no more, and nobody is there who declares it."""
    world = late_and_given_away()
    world.add("e", agents=("other/e",), kinds=("worker",))
    world.run(until=lambda: "other/e" in hosts(world))
    lose(world, "b", "d")
    world.participants["b"].kinds = ()
    world.revive("b")
    world.run(until=recovered(world, 3))
    assert "worker/d" not in hosts(world)


def test_agent_that_no_epoch_holds_waits_for_the_host_that_declares_it():
    world = late_and_given_away()
    world.add("e", agents=("other/e",), kinds=("worker",))
    world.add("f")
    world.run(until=lambda: {"other/e", "worker/f"} <= hosts(world).keys())
    lose(world, "f")
    world.run(until=recovered(world, 3))
    assert "worker/f" not in hosts(world)
    world.revive("f")
    world.run(until=lambda: "worker/f" in hosts(world))
    assert hosts(world)["worker/f"] == "f"


def test_agent_that_the_epoch_holds_under_another_name_is_none_that_it_does_not_hold():
    """An operator who names an epoch says all names anew: what was renamed since does not begin beside itself."""
    world = World(policy=RECOVERING)
    world.elect(world.coordinators[0])
    world.add("a")
    world.add("b", "e", kinds=("worker",))
    world.run(until=world.ready)
    commit(world, 1)
    world.kill_participant("a")
    world.revive("a", agents=("worker/new",))
    world.run(2)
    world.restore(1, renames=(("worker/a", "worker/new"),))
    world.run(until=recovered(world, 2))
    world.restore(None, moves=(("worker/new", "b"),))
    world.run(until=recovered(world, 3))
    assert hosts(world) == {"worker/new": "b", "worker/b": "b", "worker/e": "e"}
    lose(world, "b")
    request = world.restore(1)
    world.run(until=recovered(world, 4))
    assert world.answers[request]["outcome"] == "begun"
    assert hosts(world) == {"worker/a": "e", "worker/b": "e", "worker/e": "e"}
