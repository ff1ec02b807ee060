"""The leader's machine and savepoints: whom it refuses, and that a name is given once whatever becomes of the proposal."""

from __future__ import annotations

import pytest

from coordinator.events import LostLeadership, PinRequested, RestoreRequested, UnpinRequested
from coordinator.ledger import Ledger
from coordinator.machine import Leader
from protocol.ids import Instant
from protocol.messages import EpochCommitted
from tests.coordinator_world import RECOVERING, World, cluster


def committed(**how) -> World:
    world = cluster("a", "b", **how)
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "committed")
    return world


def pin(world: World, epoch: int, name: str) -> str:
    return world.ask(PinRequested(request="", epoch=epoch, name=name))


def unpin(world: World, name: str) -> str:
    return world.ask(UnpinRequested(request="", name=name))


def test_one_that_does_not_lead_names_nothing():
    machine = Leader(Ledger("shop"), coordinator="c1", client="c1.1")
    for event in (PinRequested(request="r", epoch=1, name="x"), UnpinRequested(request="r", name="x")):
        (answer,) = machine.step(event, Instant(5))
        assert answer.result["code"] == "not-leader"


def test_two_at_once_for_one_name_are_one_after_the_other_and_for_two_names_are_not():
    world = committed()
    first, again, other = pin(world, 1, "x"), pin(world, 1, "x"), pin(world, 1, "y")
    gone = unpin(world, "x")
    world.run(0.1)
    assert world.answers[first]["outcome"] == "pinned"
    assert world.answers[again]["code"] == world.answers[gone]["code"] == "busy"
    assert world.answers[other]["outcome"] == "pinned"
    assert world.ledger.names_of(1) == ("x", "y")


@pytest.mark.parametrize("fate", ["refuse", "lose", "silent", "twice"])
def test_whatever_becomes_of_the_proposal_the_name_is_given_once_and_taken_back_once(fate):
    world = committed()
    world.fates["pin"] = fate
    request = pin(world, 1, "x")
    world.run(until=lambda: request in world.answers)
    assert world.answers[request]["outcome"] == "pinned"
    world.fates["unpin"] = fate
    request = unpin(world, "x")
    world.run(until=lambda: request in world.answers)
    assert world.answers[request]["epoch"] == 1
    world.run(0.5)
    assert world.ledger.state.savepoints == {}
    assert world.replicas_agree()


def test_what_the_ledger_refuses_is_the_answer():
    world = committed()
    request = pin(world, 7, "x")
    world.run(0.1)
    assert world.answers[request]["code"] == "unknown"
    request = unpin(world, "x")
    world.run(0.1)
    assert world.answers[request]["code"] == "unknown"


def test_request_on_its_way_when_leadership_is_lost_is_answered_as_unknown_and_may_be_asked_again():
    world = committed()
    world.fates["pin"] = "lose"
    request = pin(world, 1, "x")
    world.run(0.01)
    world.leader.feed(LostLeadership(leader=""))
    assert world.answers[request]["code"] == "unknown-outcome"
    world.elect(world.coordinators[1])
    world.run(1)
    request = pin(world, 1, "x")
    world.run(0.1)
    assert world.answers[request]["outcome"] in {"pinned", "already"}


def test_participants_hear_with_each_commit_which_epochs_are_kept():
    """So that they keep what a way back to one of them needs."""
    world = committed()
    pin(world, 1, "x")
    pin(world, 1, "y")
    world.run(0.1)
    world.trigger()
    world.run(until=lambda: world.state_of(2) == "committed")
    world.run(0.1)
    unpin(world, "x")
    unpin(world, "y")
    pin(world, 2, "z")
    world.run(0.1)
    world.trigger()
    world.run(until=lambda: world.state_of(3) == "committed")
    world.run(0.1)
    for participant in world.participants.values():
        heard = [each for each in participant.received if isinstance(each, EpochCommitted)]
        assert [(each.epoch, each.kept) for each in heard] == [(1, ()), (2, (1,)), (3, (2,))]


def test_names_outlive_leaders_that_die_and_restart_and_rollbacks():
    world = committed(policy=RECOVERING)
    pin(world, 1, "x")
    world.run(0.1)
    world.trigger()
    world.run(until=lambda: world.state_of(2) == "committed")
    first = world.leader
    world.kill(first)
    world.elect(world.coordinators[1])
    world.restart(first)
    world.run(until=world.ready)
    request = world.ask(RestoreRequested(request="", epoch=1, reason="an operator"))
    world.run(until=lambda: request in world.answers and world.running(2))
    assert world.answers[request]["epoch"] == 1
    assert [each.ledger.names_of(1) for each in world.coordinators] == [("x",)] * 3
    assert world.replicas_agree()
