"""The participant's machine on its way into an incarnation."""

from __future__ import annotations

import random

import msgspec
import pytest

from participant.machine import ParticipantMachine
from participant.machine_events import (
    ControlArrived,
    DeliverToAgents,
    EndParticipant,
    EnterTopology,
    FrameArrived,
    HaltAgents,
    IncarnationPersisted,
    LeaveRequested,
    LocalNotRestored,
    LocalRestored,
    MessageIngested,
    PersistIncarnation,
    RestoreLocal,
    SendControl,
)
from protocol.ancestry import Ancestry
from protocol.messages import (
    EpochFailed,
    Leave,
    Registered,
    Restore,
    Restored,
    RestoreFailed,
    StartEpoch,
    TopologyAccepted,
    TopologyChanged,
)
from tests.unit.machine_world import Part, World, message


def order(world: World, name: str, incarnation: int = 2, **fields) -> list:
    wanted = {
        "epoch": 1,
        "manifest": "b3:m",
        "newest_epoch": 3,
        "elapsed_ns": 0,
        "version": world.version + 1,
        "members": world.members(),
    }
    return world[name].control(Restore, incarnation=incarnation, **{**wanted, **fields})


def begin(world: World, incarnation: int = 2) -> None:
    world.version += 1
    for part in world.parts.values():
        part.control(TopologyChanged, incarnation=incarnation, version=world.version, members=world.members())


def restored(part: Part, incarnation: int = 2, **fields) -> list:
    return part.step(LocalRestored(incarnation=incarnation, **{"state": f"b3:{part.name}", **fields}))


def kinds(effects: list) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def machine_with_disk(entered: int = 0) -> ParticipantMachine:
    machine = ParticipantMachine("a", entered=entered, has_disk=True)
    machine.step(ControlArrived(message=Registered(term=1, session=1, incarnation=1, lease_ns=1)), 1)
    return machine


def restore(incarnation: int, *, session: int = 1, term: int = 1, world: World | None = None) -> ControlArrived:
    members = (world or World("ab")).members()
    return ControlArrived(
        message=Restore(
            term=term,
            session=session,
            incarnation=incarnation,
            epoch=0,
            manifest="",
            newest_epoch=0,
            elapsed_ns=0,
            version=2,
            members=members,
        )
    )


def test_what_an_incarnation_comes_from_is_that_of_the_order_that_entered_it():
    first, second = Ancestry(incarnation=1), Ancestry(incarnation=2, through=((1, 5),))
    machine = ParticipantMachine("a")
    assert machine.ancestry is None
    machine.step(ControlArrived(message=Registered(term=1, session=1, incarnation=1, lease_ns=1, ancestry=first)), 1)
    assert machine.ancestry == first
    machine.step(ControlArrived(message=Registered(term=1, session=1, incarnation=2, lease_ns=1, ancestry=second)), 2)
    assert machine.ancestry == first, "the order that enters it is still to come"
    order = restore(2).message
    machine.step(ControlArrived(message=msgspec.structs.replace(order, ancestry=second)), 3)
    assert machine.ancestry == second


@pytest.mark.parametrize(("logged", "durability"), [(True, "epoch"), (False, "turn")])
def test_participant_of_another_durability_ends(logged, durability):
    machine = ParticipantMachine("a", logged=logged)
    registered = Registered(term=1, session=1, incarnation=1, lease_ns=1, durability=durability)
    (effect,) = machine.step(ControlArrived(message=registered), 0)
    assert isinstance(effect, EndParticipant)
    assert durability in effect.reason
    assert machine.session == 0


def test_order_halts_the_agents_loads_their_part_and_is_answered() -> None:
    world = World("ab")
    effects = order(world, "a")
    assert kinds(effects) == ["HaltAgents", "RestoreLocal"]
    assert world["a"].said(Restored) == []
    restored(world["a"])
    assert [(answer.incarnation, answer.state) for answer in world["a"].said(Restored)] == [(2, "b3:a")]
    assert not [entry for entry in world["a"].topologies if entry.restored]
    restored_topologies = []
    order(world, "b")
    restored(world["b"])
    begin(world)
    restored_topologies = [entry for entry in world["a"].topologies if entry.restored]
    assert [entry.first for entry in restored_topologies] == [True]
    assert world["a"].said(TopologyAccepted)[-1].version == 2


def test_incarnation_is_on_the_disk_before_anything_is_loaded() -> None:
    machine = machine_with_disk()
    effects = list(machine.step(restore(2), 1))
    assert kinds(effects) == ["HaltAgents", "PersistIncarnation"]
    assert machine.entered == 0
    assert kinds(list(machine.step(IncarnationPersisted(incarnation=2), 2))) == ["RestoreLocal"]
    assert machine.entered == 2
    assert list(machine.step(IncarnationPersisted(incarnation=2), 3))[1:] == []


def test_incarnation_that_an_earlier_life_entered_is_refused() -> None:
    machine = machine_with_disk(entered=2)
    (effect,) = machine.step(restore(2), 1)
    assert isinstance(effect.message, RestoreFailed)
    assert effect.message.kind == "entered"
    assert machine.statistics()["orders_reentered"] == 1
    assert kinds(list(machine.step(restore(3), 2))) == ["HaltAgents", "PersistIncarnation"]


def test_order_for_another_life_is_ignored() -> None:
    machine = machine_with_disk()
    assert list(machine.step(restore(2, session=7), 1)) == []
    assert machine.statistics()["orders_foreign"] == 1


def test_repeated_order_is_answered_again_and_changes_nothing() -> None:
    world = World("ab")
    order(world, "a")
    assert order(world, "a") == []
    restored(world["a"])
    (again,) = order(world, "a")
    assert again.message == world["a"].said(Restored)[0]
    order(world, "b")
    restored(world["b"])
    begin(world)
    assert kinds(order(world, "a")) == ["SendControl"]
    assert world["a"].machine.topology is not None


def test_failure_is_said_again_too_and_no_topology_begins_it() -> None:
    world = World("ab")
    order(world, "a")
    world["a"].step(LocalNotRestored(incarnation=2, kind="unfit", cause="agent x/y: no field z"))
    order(world, "a")
    assert [failed.cause for failed in world["a"].said(RestoreFailed)] == ["agent x/y: no field z"] * 2
    begin(world)
    assert world["a"].machine.topology is None
    assert world["a"].topologies[-1].topology.version == 1


def test_newer_order_takes_the_place_of_the_one_that_is_carried_out() -> None:
    world = World("ab")
    order(world, "a", 2)
    assert kinds(order(world, "a", 3)) == ["HaltAgents", "RestoreLocal"]
    assert restored(world["a"], 2) == []
    assert order(world, "a", 2) == []
    restored(world["a"], 3)
    assert [answer.incarnation for answer in world["a"].said(Restored)] == [3]


def test_topology_before_the_part_is_there_does_not_begin() -> None:
    world = World("ab")
    order(world, "a")
    begin(world)
    assert world["a"].machine.topology is None
    assert world["b"].machine.incarnation == 1


def test_nothing_of_the_old_incarnation_is_taken_after_the_order() -> None:
    world = World("ab")
    world["b"].pay("a", 5)
    world["b"].flush()
    order(world, "a")
    world.deliver()
    assert world["a"].received == []
    assert world["a"].machine.statistics()["frames_stale"] == 1
    world["a"].control(StartEpoch, incarnation=1, epoch=4, topology=1, deadline_ns=1)
    assert world["a"].recorded == {}


def test_what_comes_of_the_new_one_too_early_is_parked_and_taken_once() -> None:
    world = World("ab")
    for name in "ab":
        order(world, name)
        restored(world[name])
    world.version += 1
    # b is told to begin first, and sends at once, repeatedly.
    members = world.members()
    world["b"].control(TopologyChanged, incarnation=2, version=world.version, members=members)
    world["b"].pay("a", 5)
    world["b"].flush()
    world.deliver()
    world.pass_time(600)
    world.deliver()
    assert world["a"].received == []
    world["a"].control(TopologyChanged, incarnation=2, version=world.version, members=members)
    world.run()
    assert world["a"].received == [("agent/b", 5)]


def test_frames_of_an_incarnation_that_was_not_ordered_yet_are_parked_too() -> None:
    world = World("ab")
    order(world, "b")
    restored(world["b"])
    world.version += 1
    members = world.members()
    world["b"].control(TopologyChanged, incarnation=2, version=world.version, members=members)
    world["b"].pay("a", 5)
    world["b"].flush()
    world.deliver()
    assert world["a"].received == []
    order(world, "a", version=world.version)
    restored(world["a"])
    world["a"].control(TopologyChanged, incarnation=2, version=world.version, members=members)
    world.run()
    assert world["a"].received == [("agent/b", 5)]


def test_unrouted_messages_of_the_epoch_go_on_before_what_came_meanwhile() -> None:
    world = World("ab")
    for name in "ab":
        order(world, name)
    world["a"].step(MessageIngested(message("outside", "b", 3)))
    restored(world["a"], unrouted=(message("old", "b", 1), message("old", "b", 2)))
    restored(world["b"])
    begin(world)
    world.run()
    assert [amount for _, amount in world["b"].received] == [1, 2, 3]
    assert world["a"].machine.unrouted_bytes == 0


def test_registration_alone_takes_nobody_into_a_newer_incarnation() -> None:
    world = World("ab")
    world["a"].control(Registered, incarnation=2, lease_ns=1)
    assert world["a"].machine.incarnation == 1
    assert world["a"].machine.topology is not None


def test_life_that_joins_has_its_incarnation_on_the_disk_first() -> None:
    machine = machine_with_disk()
    world = World("ab")
    topology = TopologyChanged(term=1, session=1, incarnation=1, version=1, members=world.members())
    assert kinds(list(machine.step(ControlArrived(message=topology), 1))) == ["PersistIncarnation"]
    assert list(machine.step(ControlArrived(message=topology), 2)) == []
    effects = list(machine.step(IncarnationPersisted(incarnation=1), 3))
    assert [effect.first for effect in effects if isinstance(effect, EnterTopology)] == [True]
    assert not [effect for effect in effects if isinstance(effect, EnterTopology) and effect.restored]


def test_restore_order_for_a_life_that_is_about_to_join_wins() -> None:
    machine = machine_with_disk()
    world = World("ab")
    topology = TopologyChanged(term=1, session=1, incarnation=1, version=1, members=world.members())
    machine.step(ControlArrived(message=topology), 1)
    machine.step(restore(2), 2)
    assert list(machine.step(IncarnationPersisted(incarnation=1), 3)) == []
    assert kinds(list(machine.step(IncarnationPersisted(incarnation=2), 4))) == ["RestoreLocal"]


def test_who_wanted_to_leave_says_so_again_in_the_new_incarnation() -> None:
    world = World("ab")
    world["a"].step(LeaveRequested())
    for name in "ab":
        order(world, name)
        restored(world[name])
    begin(world)
    assert len(world["a"].said(Leave)) == 2


@pytest.mark.parametrize("seed", range(60))
def test_any_order_of_repeated_and_late_orders_enters_each_incarnation_once(seed: int) -> None:
    """Orders of three incarnations, two terms and two lives, answers of the disk and the loader, in any order."""
    chance = random.Random(seed)
    world = World("ab")
    machine = machine_with_disk()
    waiting: list = []
    entered: list[int] = []
    persisted = 0
    loaded: list[int] = []
    for now in range(1, 80):
        if waiting and chance.random() < 0.4:
            event = waiting.pop(chance.randrange(len(waiting)))
        elif chance.random() < 0.2:
            event = ControlArrived(
                message=TopologyChanged(
                    term=1, session=1, incarnation=chance.choice([1, 2, 3, 4]), version=2, members=world.members()
                )
            )
        else:
            event = restore(chance.choice([2, 3, 4]), session=chance.choice([1, 1, 9]), world=world)
        for effect in machine.step(event, now):
            match effect:
                case HaltAgents():
                    entered.append(machine.incarnation)
                case PersistIncarnation(incarnation=number):
                    waiting.append(IncarnationPersisted(incarnation=number))
                case RestoreLocal(order=what):
                    persisted = machine.entered
                    assert what.incarnation <= persisted
                    loaded.append(what.incarnation)
                    waiting.append(LocalRestored(incarnation=what.incarnation, state="b3:x"))
                case EnterTopology(restored=True):
                    assert machine.incarnation in loaded
                case SendControl(message=Restored() as answer):
                    assert answer.incarnation == machine.incarnation
                case _:
                    pass
    assert entered == sorted(set(entered)), "entered again, or back"
    assert loaded == sorted(set(loaded))


def test_stale_frames_of_two_incarnations_do_not_reach_agents() -> None:
    world = World("ab")
    world["b"].pay("a", 1)
    world["b"].flush()
    old = list(world.network)
    for name in "ab":
        order(world, name)
        restored(world[name])
    begin(world)
    for source, frame in old:
        effects = world["a"].step(FrameArrived(world.header(source, frame), frame.body))
        assert not [effect for effect in effects if isinstance(effect, DeliverToAgents)]


@pytest.mark.parametrize("loaded", [False, True])
def test_start_order_while_it_comes_back_is_refused_at_once_and_not_met_with_silence(loaded: bool) -> None:
    """Not ready: its part is being loaded, or is there and nobody has said that all begin."""
    world = World("ab")
    order(world, "a")
    if loaded:
        restored(world["a"])
    world["a"].control(StartEpoch, incarnation=2, epoch=4, topology=world.version + 1, deadline_ns=10**9)
    (failed,) = world["a"].said(EpochFailed)
    assert (failed.epoch, failed.incarnation, failed.phase) == (4, 2, "order")
    assert f"a is in topology 0, the epoch in {world.version + 1}" in failed.cause
    assert world["a"].recorded == {}
    # The one after works.
    if not loaded:
        restored(world["a"])
    order(world, "b")
    restored(world["b"])
    begin(world)
    for part in world.parts.values():
        part.control(StartEpoch, incarnation=2, epoch=5, topology=world.version, deadline_ns=10**9)
    assert set(world["a"].recorded) == {5}
