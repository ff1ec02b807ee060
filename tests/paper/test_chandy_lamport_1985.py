"""Chandy & Lamport, "Distributed Snapshots: Determining Global States of Distributed Systems", ACM TOCS 3(1), 1985.

One test for each sentence of the algorithm's rules and of what the paper says follows from them. The sentences are restated
in our words: process = participant, channel = channel, marker = marker. Three parts each: set up, step, check.
"""

from __future__ import annotations

import pytest

from protocol.ids import ChannelId, Epoch, ParticipantId
from protocol.items import encode_message_item
from protocol.snapshot import (
    ChannelClosed,
    Effect,
    EpochStarted,
    ItemsReceived,
    LocalPartComplete,
    MarkerReceived,
    RecordState,
    SendMarkers,
    SnapshotMachine,
    TopologySet,
)
from tests.snapshot_world import NOW, World, channel

E1 = Epoch(1)
M1, M2, M3 = (encode_message_item(text) for text in (b"m1", b"m2", b"m3"))
INCOMING = tuple(channel(name, "q") for name in ("p", "r", "s"))
OUTGOING = tuple(channel("q", name) for name in ("p", "r"))
RING = [channel("p", "q"), channel("q", "r"), channel("r", "p")]


def make(incoming: tuple[ChannelId, ...] = INCOMING, outgoing: tuple[ChannelId, ...] = OUTGOING) -> SnapshotMachine:
    machine = SnapshotMachine(ParticipantId("q"))
    machine.step(TopologySet(incoming=incoming, outgoing=outgoing), NOW)
    return machine


def order(machine: SnapshotMachine) -> tuple[Effect, ...]:
    return machine.step(EpochStarted(epoch=E1, incoming=INCOMING, outgoing=OUTGOING), NOW)


def marker(machine: SnapshotMachine, c: ChannelId, number: int) -> tuple[Effect, ...]:
    return machine.step(MarkerReceived(channel=c, epoch=E1, number=number), NOW)


def message(machine: SnapshotMachine, c: ChannelId, first: int, *items: bytes) -> tuple[Effect, ...]:
    return machine.step(ItemsReceived(channel=c, first=first, items=items), NOW)


def drain(world: World) -> None:
    while any(world.queues.values()):
        for c in world.channels:
            if world.queues[c]:
                world.deliver(c)


# --- marker-sending rule --------------------------------------------------------------------------------------------


def test_one_marker_goes_along_each_channel_that_leads_away():
    """Reference: marker-sending rule, "for each channel c, incident on, and directed away from p"."""
    machine = make()
    effects = order(machine)
    assert [effect for effect in effects if isinstance(effect, SendMarkers)] == [
        SendMarkers(epoch=E1, channels=OUTGOING)
    ]


def test_no_marker_goes_along_a_channel_that_leads_to_the_participant():
    """Reference: marker-sending rule, "directed away from p"."""
    machine = make(outgoing=(OUTGOING[0],))
    effects = marker(machine, INCOMING[1], 1)
    assert SendMarkers(epoch=E1, channels=(OUTGOING[0],)) in effects


def test_marker_is_sent_after_the_state_is_recorded():
    """Reference: marker-sending rule, "p sends one marker along c after p records its state"."""
    for effects in (order(make()), marker(make(), INCOMING[0], 1)):
        kinds = [type(effect) for effect in effects]
        assert kinds.index(RecordState) < kinds.index(SendMarkers)


def test_marker_is_sent_before_any_further_message_along_the_channel():
    """Reference: marker-sending rule, "and before p sends further messages along c"."""
    world = World({"p": 3, "q": 0}, [channel("p", "q"), channel("q", "p")])
    world.send("p", "q", b"before", 1)
    world.start("p", 1)
    world.send("p", "q", b"after", 1)
    got = [world.deliver(channel("p", "q")) for _ in range(3)]
    assert got == [("message", b"before"), ("marker", 1), ("message", b"after")]


# --- marker-receiving rule ------------------------------------------------------------------------------------------


def test_marker_to_a_participant_that_has_not_recorded_makes_it_record():
    """Reference: marker-receiving rule, "if q has not recorded its state then q records its state"."""
    effects = marker(make(), INCOMING[0], 1)
    assert effects[0] == RecordState(epoch=E1)


def test_marker_that_makes_a_participant_record_leaves_its_channel_empty():
    """Reference: marker-receiving rule, "q records the state of c as the empty sequence"."""
    machine = make()
    effects = marker(machine, INCOMING[0], 3)
    assert ChannelClosed(epoch=E1, channel=INCOMING[0], received=2, closed_at=2, items=()) in effects


def test_participant_that_records_by_a_marker_follows_the_sending_rule_too():
    """Reference: marker-receiving rule with section 3.2: whoever records obeys the marker-sending rule."""
    effects = marker(make(), INCOMING[0], 1)
    assert SendMarkers(epoch=E1, channels=OUTGOING) in effects


def test_marker_to_a_participant_that_has_recorded_makes_it_record_nothing_again():
    """Reference: marker-receiving rule, "else" part: the state is recorded once."""
    machine = make()
    order(machine)
    effects = marker(machine, INCOMING[0], 1)
    assert [type(effect) for effect in effects] == [ChannelClosed]


def test_channel_state_is_what_came_after_the_own_record():
    """Reference: marker-receiving rule, "messages received along c after q's state was recorded"."""
    machine = make()
    message(machine, INCOMING[0], 1, M1)
    order(machine)
    message(machine, INCOMING[0], 2, M2)
    (closed,) = marker(machine, INCOMING[0], 3)
    assert isinstance(closed, ChannelClosed)
    assert closed.items == (M2,)


def test_channel_state_is_what_came_before_the_marker_along_that_channel():
    """Reference: marker-receiving rule, "and before q received the marker along c"."""
    machine = make()
    order(machine)
    message(machine, INCOMING[0], 1, M1, M2)
    (closed,) = marker(machine, INCOMING[0], 3)
    message(machine, INCOMING[0], 4, M3)
    assert isinstance(closed, ChannelClosed)
    assert closed.items == (M1, M2)
    others = [*marker(machine, INCOMING[1], 1), *marker(machine, INCOMING[2], 1)]
    assert not any(isinstance(effect, ChannelClosed) and effect.items for effect in others)


def test_channel_state_is_a_sequence_in_order_of_arrival():
    """Reference: section 2, the state of a channel is the sequence of messages sent and not yet received."""
    machine = make()
    order(machine)
    message(machine, INCOMING[0], 1, M2)
    message(machine, INCOMING[0], 2, M1, M3)
    (closed,) = marker(machine, INCOMING[0], 4)
    assert isinstance(closed, ChannelClosed)
    assert closed.items == (M2, M1, M3)


def test_marker_along_one_channel_ends_the_recording_of_that_channel_only():
    """Reference: marker-receiving rule, "the state of c": of no other channel."""
    machine = make()
    order(machine)
    marker(machine, INCOMING[0], 1)
    message(machine, INCOMING[1], 1, M1)
    (closed,) = marker(machine, INCOMING[1], 2)
    assert isinstance(closed, ChannelClosed)
    assert closed.items == (M1,)


# --- termination ----------------------------------------------------------------------------------------------------


def test_any_participant_may_begin_by_itself():
    """Reference: section 3.2, the algorithm can be initiated by one or more processes, without a marker."""
    for starter in "pqr":
        world = World(dict.fromkeys("pqr", 1), RING)
        world.start(starter, 1)
        drain(world)
        assert world.complete(1)


def test_several_participants_may_begin_at_once():
    """Reference: section 3.2, "initiated by one or more processes, each of which records its state spontaneously"."""
    world = World(dict.fromkeys("pqr", 1), RING)
    for starter in "pqr":
        world.start(starter, 1)
    drain(world)
    assert world.complete(1)
    assert world.violation(1) is None


def test_every_participant_records_when_there_is_a_path_of_markers_from_one_that_did():
    """Reference: section 3.3, "if p records its state and there is a channel from p to q, then q will record"."""
    world = World(dict.fromkeys("pqrs", 1), [*RING, channel("r", "s")])
    world.start("p", 1)
    drain(world)
    assert all(E1 in process.cuts for process in world.processes.values())


def test_algorithm_does_not_end_where_no_path_leads():
    """Reference: section 3.3, termination needs a path from a process that records spontaneously to each other one."""
    world = World(dict.fromkeys("pqrs", 1), [*RING, channel("s", "p")])
    world.start("p", 1)
    drain(world)
    assert not world.complete(1)
    assert world.topology.unreachable_from([ParticipantId("p")]) == ("s",)
    world.start("s", 1)
    drain(world)
    assert world.complete(1)


def test_no_marker_stays_in_a_channel_and_then_all_states_are_recorded():
    """Reference: section 3.3, L1 and L2: no marker stays forever in a channel; each process records in finite time."""
    world = World(dict.fromkeys("pqr", 5), RING)
    world.start("q", 1)
    for number in range(20):
        world.send("p", "q", f"{number}".encode(), 0)
    assert not world.complete(1)
    drain(world)
    assert world.complete(1)


def test_part_is_complete_when_a_marker_has_come_along_every_incoming_channel():
    """Reference: section 3.3, each process has recorded its state and the states of all its incoming channels."""
    machine = make()
    order(machine)
    assert not any(isinstance(effect, LocalPartComplete) for effect in marker(machine, INCOMING[0], 1))
    assert not any(isinstance(effect, LocalPartComplete) for effect in marker(machine, INCOMING[1], 1))
    assert marker(machine, INCOMING[2], 1)[-1] == LocalPartComplete(epoch=E1)


# --- properties of the recorded global state ------------------------------------------------------------------------


def test_recorded_channel_holds_what_was_sent_before_the_senders_record_and_not_received_before_the_receivers():
    """Reference: section 4.1, the recorded state of c is (sent before q records) minus (received before r records)."""
    world = World({"p": 9, "q": 9}, [channel("p", "q"), channel("q", "p")])
    world.send("p", "q", b"received before the record", 0)
    world.deliver(channel("p", "q"))
    world.send("p", "q", b"in flight", 0)
    world.start("q", 1)
    world.start("p", 1)
    world.send("p", "q", b"sent after the record", 0)
    drain(world)
    assert world.in_flight(1) == {channel("p", "q"): [b"in flight"], channel("q", "p"): []}
    assert (world.states(1), world.in_flight(1)) == world.expected_cut(1)


def test_no_message_is_recorded_as_received_that_is_not_recorded_as_sent():
    """Reference: section 2.2, number of messages received along c before the record never exceeds those sent before it."""
    world = World({"p": 9, "q": 9}, [channel("p", "q"), channel("q", "p")])
    world.start("p", 1)
    world.send("p", "q", b"after", 1)
    drain(world)
    received = world.processes["q"].cuts[E1].incoming[channel("p", "q")][0].number
    sent = world.processes["p"].cuts[E1].outgoing[channel("p", "q")].number
    assert received <= sent
    assert world.states(1) == {"p": 9, "q": 9}


@pytest.mark.parametrize("starter", "pq")
def test_single_token_is_in_exactly_one_place(starter: str):
    """Reference: example 2.1, the single-token conservation system: the token is in one process or one channel."""
    world = World({"p": 1, "q": 0}, [channel("p", "q"), channel("q", "p")])
    world.send("p", "q", b"token", 1)
    world.start(starter, 1)
    for c in world.channels:
        while world.queues[c]:
            is_token = world.queues[c][0].body[0] == 1
            world.deliver(c, amount=1 if is_token else 0)
    drain(world)
    places = [*world.states(1).values(), *(len(held) for held in world.in_flight(1).values())]
    assert sorted(places) == [0, 0, 0, 1]


def test_recorded_state_need_not_have_occurred():
    """Reference: section 4, the recorded global state may be none of those that the run passed through.

    In the run p's message leaves before q's; in the recorded state q's is on its way and p has not sent.
    """
    world = World({"p": 1, "q": 1}, [channel("p", "q"), channel("q", "p")])
    seen = [dict.fromkeys("pq", 1)]
    world.start("p", 1)
    world.send("p", "q", b"M", 1)
    seen.append({name: process.state for name, process in world.processes.items()})
    world.send("q", "p", b"M'", 1)
    seen.append({name: process.state for name, process in world.processes.items()})
    drain(world)
    assert world.states(1) == {"p": 1, "q": 0}
    assert world.states(1) not in seen
    assert world.in_flight(1) == {channel("p", "q"): [], channel("q", "p"): [b"M'"]}
    assert world.violation(1) is None
