"""Participants whose connection has closed and that can be asked at their own address: gone, or only out of touch."""

from __future__ import annotations

from coordinator.events import Probed
from protocol.limits import RECONNECT_NS, SUSPECT_NS, TOPOLOGY_SETTLE_NS
from protocol.streams import Resumption
from tests.coordinator_world import LEASE_S, MANUAL, MS, RECOVERING, SECOND, World, replace_struct


def listening(*names, policy=RECOVERING, **attributes):
    world = World(policy=policy)
    world.elect(world.coordinators[0])
    for name in names:
        world.add(name, address=f"ws://{name}:7000", **attributes)
    world.run(until=world.ready)
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "committed")
    return world


def lost(world, name):
    return lambda: world.ledger.state.participants[name].state == "lost"


def seconds_until_lost(world, name):
    before = world.now
    world.run(until=lost(world, name))
    return (world.now - before) / SECOND


def stays_when_its_cable_is_pulled(world):
    """For half a second: its process lives, whatever a probe finds."""
    b = world.participants["b"]
    b.disconnect("cable")
    world.later(500 * MS, b.connect)
    world.run(3)
    assert world.ledger.state.participants["b"].state == "member"


def test_process_that_is_gone_is_lost_at_once():
    world = listening("a", "b", "c")
    world.kill_participant("b")
    assert seconds_until_lost(world, "b") < 0.05
    cause = world.ledger.state.participants["b"].cause
    assert cause == "disconnected (reset by peer), and nothing listens at ws://b:7000 any more"
    world.revive("b", address="ws://b:7000")
    world.run(until=lambda: world.running(2))
    assert world.replicas_agree()


def test_connection_that_comes_back_costs_nothing_however_often_it_is_asked():
    world = listening("a", "b")
    b = world.participants["b"]
    b.disconnect("cable")
    world.later(700 * MS, b.connect)
    world.run(5)
    assert world.ledger.state.incarnation == 1
    assert world.ledger.state.participants["b"].state == "member"
    assert set(b.probes) == {"listens"}
    assert 4 <= len(b.probes) <= 8  # one when it came, the others with growing pauses; none once it is back


def test_process_whose_control_connection_is_the_first_to_die_is_asked_again():
    world = listening("a", "b")
    b = world.participants["b"]
    b.disconnect("reset by peer")
    world.later(20 * MS, lambda: setattr(b, "dead", True))
    assert seconds_until_lost(world, "b") < 0.1
    assert b.probes[-2:] == ["listens", "refuses"]


def test_address_that_never_answered_proves_nothing_when_it_refuses():
    world = listening("a", "b", unwelcome=True)
    b = world.participants["b"]
    b.disconnect("cable")
    world.later(500 * MS, b.connect)
    world.run(3)
    assert world.ledger.state.incarnation == 1
    world.kill_participant("b")
    assert seconds_until_lost(world, "b") >= SUSPECT_NS / SECOND


def test_refusal_without_a_connection_before_it_proves_nothing_though_it_comes_once_the_participant_is_suspected():
    """The very first look at its address ends when its connection is gone already."""
    world = World(policy=RECOVERING)
    world.elect(world.coordinators[0])
    world.add("a", address="ws://a:7000")
    b = world.add("b", address="ws://b:7000", unwelcome=True)
    world.run(until=lambda: world.ledger.state.participants.get("b") is not None and b.session)
    probes = len(b.probes)
    b.disconnect("cable")
    world.leader.feed(Probed(session=b.session, address="ws://b:7000", found="refuses"))
    world.later(500 * MS, b.connect)
    world.run(3)
    assert len(b.probes) > probes
    assert world.ledger.state.participants["b"].state == "member"


def test_another_address_of_the_same_session_has_to_answer_itself():
    world = listening("a", "b")
    b = world.participants["b"]
    b.disconnect("cable")
    world.run(0.04)  # it has been asked once, and will be again
    b.address, b.unwelcome = "ws://b:7001", True
    b.connect()
    world.run(1)
    assert world.ledger.state.participants["b"].address == "ws://b:7001"
    assert b.probes[-1] == "refuses"
    stays_when_its_cable_is_pulled(world)


def test_no_answer_is_no_evidence():
    world = listening("a", "b")
    b = world.participants["b"]
    b.reached = False
    world.kill_participant("b")
    assert seconds_until_lost(world, "b") >= SUSPECT_NS / SECOND
    assert "for 1." in world.ledger.state.participants["b"].cause


def test_participant_without_an_address_is_not_asked():
    world = World(policy=RECOVERING)
    world.elect(world.coordinators[0])
    world.add("a", "b")
    world.run(until=world.ready)
    world.kill_participant("b")
    assert seconds_until_lost(world, "b") >= SUSPECT_NS / SECOND
    assert world.participants["b"].probes == []


def test_nobody_is_asked_where_nothing_would_follow():
    world = listening("a", "b", policy=MANUAL)
    world.kill_participant("b")
    assert seconds_until_lost(world, "b") > SUSPECT_NS / SECOND
    assert world.participants["b"].probes == []


def test_refusal_that_is_wrong_costs_a_rollback_and_nothing_else():
    world = listening("a", "b")
    b = world.participants["b"]
    b.unwelcome = True  # a firewall, from now on
    b.disconnect("cable")
    world.later(300 * MS, b.connect)
    assert seconds_until_lost(world, "b") < 0.1
    world.run(until=lambda: b.fenced)
    world.revive("b", address="ws://b:7000")
    world.run(until=lambda: world.running(2))
    assert world.ledger.rollback.state == "done"


def test_refusal_that_comes_late_does_not_harm_who_is_back():
    world = listening("a", "b")
    b = world.participants["b"]
    world.leader.feed(Probed(session=b.session, address="ws://b:7000", found="refuses"))
    world.leader.feed(Probed(session=99, address="ws://b:7000", found="refuses"))
    b.disconnect("cable")
    world.leader.feed(Probed(session=b.session, address="ws://elsewhere:7000", found="refuses"))
    b.connect()
    world.run(3)
    assert world.ledger.state.incarnation == 1
    assert world.ledger.state.participants["b"].state == "member"


def test_participant_that_goes_on_from_its_log_is_waited_for_by_nobody_else():
    """No other change can be meant to come into the same topology: none settles first."""
    world = listening("a", "b", policy=replace_struct(RECOVERING, durability="turn"), durability="turn")
    session = world.participants["b"].session
    world.kill_participant("b")
    world.run(until=lost(world, "b"))
    before = world.now
    log = Resumption(session=session, line=session, incarnation=1, streams=())
    world.revive("b", address="ws://b:7000", durability="turn", resumes=log)
    world.run(until=world.ready)
    assert world.now - before < TOPOLOGY_SETTLE_NS
    assert world.ledger.state.incarnation == 1
    assert world.participants["b"].session > session


def test_new_leader_that_never_met_a_participant_waits_for_its_lease():
    world = listening("a", "b")
    asked = len(world.participants["b"].probes)
    world.participants["b"].dead = True
    world.kill(world.coordinators[0])
    world.elect(world.coordinators[1])
    assert seconds_until_lost(world, "b") > LEASE_S
    assert world.now > RECONNECT_NS
    assert len(world.participants["b"].probes) == asked


def test_new_leader_that_has_met_a_participant_asks_it_too():
    world = listening("a", "b")
    world.kill(world.coordinators[0])
    world.elect(world.coordinators[1])
    world.run(until=world.ready)
    world.kill_participant("b")
    assert seconds_until_lost(world, "b") < 0.05


def test_leader_that_leads_again_starts_from_nothing():
    """What took its connection when it led before is as unknown as to any other new leader."""
    world = listening("a", "b")
    b = world.participants["b"]
    world.elect(world.coordinators[1])
    world.run(until=world.ready)
    b.unwelcome = True
    world.elect(world.coordinators[0])
    world.run(until=world.ready)
    world.run(0.1)
    stays_when_its_cable_is_pulled(world)


def test_sessions_that_have_ended_leave_nothing_behind():
    world = listening("a", "b")
    for incarnation in range(2, 5):
        world.kill_participant("b")
        world.run(until=lost(world, "b"))
        world.revive("b", address="ws://b:7000")
        world.run(until=lambda at=incarnation: world.running(at))
    sessions = {world.participants[name].session for name in ("a", "b")}
    assert set(world.leader.machine._registry._prober._targets) == sessions
