"""protocol.snapshot: one participant's machine, event by event. Scenarios are named after bugs that others had."""

from __future__ import annotations

import copy

import pytest

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import Epoch, ParticipantId
from protocol.items import encode_marker_item, encode_message_item, message_payload
from protocol.limits import ABORTED_EPOCHS_REMEMBERED_MAX
from protocol.snapshot import (
    ChannelClosed,
    ChannelEnded,
    ChannelOpened,
    DropReason,
    Effect,
    EpochAborted,
    EpochDropped,
    EpochsEnded,
    EpochStarted,
    Event,
    ItemsReceived,
    LocalPartComplete,
    MarkerReceived,
    RecordingOverflow,
    RecordState,
    SendMarkers,
    SnapshotMachine,
    TopologySet,
)
from tests.snapshot_world import NOW, World, channel

C1, C2, C3 = (channel(f"p{n}", "q") for n in (1, 2, 3))
OUT1, OUT2 = channel("q", "p1"), channel("q", "p2")
M = encode_message_item(b"m")


class Q:
    """A participant with three inputs and two outputs; numbers are kept for each channel as a stream would."""

    def __init__(self, incoming=(C1, C2, C3), outgoing=(OUT1, OUT2), **settings) -> None:
        self.machine = SnapshotMachine(ParticipantId("q"), **settings)
        self.incoming, self.outgoing = incoming, outgoing
        self.last = dict.fromkeys(incoming, 0)
        self.step(TopologySet(incoming=incoming, outgoing=outgoing))

    def step(self, event: Event) -> tuple[Effect, ...]:
        return self.machine.step(event, NOW)

    def marker(self, c, epoch: int) -> tuple[Effect, ...]:
        effects = self.step(MarkerReceived(channel=c, epoch=Epoch(epoch), number=self.last[c] + 1))
        self.last[c] += 1
        return effects

    def message(self, c, *items: bytes) -> tuple[Effect, ...]:
        effects = self.step(ItemsReceived(channel=c, first=self.last[c] + 1, items=items or (M,)))
        self.last[c] += len(items or (M,))
        return effects

    def end(self, c) -> tuple[Effect, ...]:
        effects = self.step(ChannelEnded(channel=c, number=self.last[c] + 1))
        self.last[c] += 1
        return effects

    def start(self, epoch: int) -> tuple[Effect, ...]:
        return self.step(EpochStarted(epoch=Epoch(epoch), incoming=self.incoming, outgoing=self.outgoing))

    def abort(self, epoch: int, ended_through: int = 0) -> tuple[Effect, ...]:
        return self.step(EpochAborted(epoch=Epoch(epoch), ended_through=ended_through))

    def count(self, name: str) -> int:
        return self.machine.statistics()[name]


def kinds(effects: tuple[Effect, ...]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def closed(effects: tuple[Effect, ...]) -> ChannelClosed:
    (found,) = [effect for effect in effects if isinstance(effect, ChannelClosed)]
    return found


def deep_state(machine: SnapshotMachine) -> object:
    """Everything that the machine knows, comparable."""
    return (
        machine.statistics(),
        machine.open_epochs,
        [(epoch, machine.open_channels(epoch)) for epoch in machine.open_epochs],
        {
            c: [(r.part.epoch, r.next, list(r.items)) for r in recordings]
            for c, recordings in machine._recordings.items()
        },
        copy.deepcopy((machine._ended, machine._past, machine._incoming, machine._outgoing)),
        machine.ended_through,
        machine.newest_epoch,
    )


# --- the rules at one participant -----------------------------------------------------------------------------------


def test_first_marker_records_state_before_sending_markers_before_anything_else():
    effects = Q().marker(C1, 1)
    assert effects == (
        RecordState(epoch=Epoch(1)),
        SendMarkers(epoch=Epoch(1), channels=(OUT1, OUT2)),
        ChannelClosed(epoch=Epoch(1), channel=C1, received=0, closed_at=0, items=()),
    )


def test_start_order_records_and_sends_markers_and_leaves_all_channels_open():
    q = Q()
    assert kinds(q.start(1)) == ["RecordState", "SendMarkers"]
    assert q.machine.open_channels(Epoch(1)) == (C1, C2, C3)
    assert q.machine.recording
    assert q.machine.records(C2)
    assert not q.machine.records(OUT1)


def test_marker_overtakes_a_message():
    """A marker that would arrive ahead of an earlier message is held back with it: both have numbers of one stream."""
    world = World({"p": 10, "q": 0}, [channel("p", "q"), channel("q", "p")])
    c = channel("p", "q")
    world.send("p", "q", b"m1", 1)
    world.start("p", 1)
    world.queues[c].rotate(1)  # the transport swaps message and marker
    receiver = world.processes["q"]
    frame = world.queues[c].popleft()
    assert receiver.receiving[c].accept(frame.first_seq, [frame.body]) == []
    assert receiver.machine.open_epochs == ()
    message = world.queues[c].popleft()
    runs = receiver.receiving[c].accept(message.first_seq, [message.body])
    assert [first for first, _items in runs] == [1, 2]
    assert [items[0][0] for _first, items in runs] == [1, 2], "the message, then the marker"


def test_message_after_the_marker_handled_before_the_record():
    """Marker and next message back to back: the record is an effect of the marker's step, so it precedes the message."""
    q = Q()
    effects = q.marker(C1, 1)
    assert isinstance(effects[0], RecordState)
    assert q.message(C1) == ()
    assert closed(effects).items == ()


def test_send_slips_in_between_record_and_marker():
    """Both are effects of one step, next to each other: nothing can be sent between them."""
    for effects in (Q().marker(C1, 1), Q().start(1)):
        assert kinds(effects)[:2] == ["RecordState", "SendMarkers"]


def test_first_markers_channel_is_closed_and_empty_at_once():
    q = Q()
    q.message(C1)
    q.message(C1)
    effects = q.marker(C1, 1)
    assert closed(effects) == ChannelClosed(epoch=Epoch(1), channel=C1, received=2, closed_at=2, items=())
    assert C1 not in q.machine.open_channels(Epoch(1))


def test_second_marker_closes_no_more_than_its_channel():
    q = Q()
    q.marker(C1, 1)
    q.marker(C2, 1)
    q.message(C3, M)
    effects = q.marker(C3, 1)
    assert closed(effects).items == (M,)
    assert kinds(effects) == ["ChannelClosed", "LocalPartComplete"]


def test_message_after_the_marker_on_the_same_channel_while_others_are_open_is_not_recorded():
    q = Q()
    q.marker(C1, 1)
    assert closed(q.marker(C2, 1)).items == ()
    q.message(C2)
    assert closed(q.marker(C3, 1)).items == ()


def test_message_before_the_record_is_only_in_the_state():
    q = Q()
    q.message(C2)
    q.marker(C1, 1)
    assert closed(q.marker(C2, 1)) == ChannelClosed(epoch=Epoch(1), channel=C2, received=1, closed_at=1, items=())


def test_recorded_message_is_still_delivered():
    """Recording keeps a reference and takes nothing out of the run: the driver delivers the same list."""
    q = Q()
    q.start(1)
    run = [M, encode_message_item(b"n")]
    assert q.message(C1, *run) == ()
    assert run == [M, encode_message_item(b"n")]
    world = World({"p": 5, "q": 0}, [channel("p", "q"), channel("q", "p")])
    world.send("p", "q", b"m", 5)
    world.start("q", 1)
    world.deliver(channel("p", "q"), amount=5)
    assert world.processes["q"].state == 5
    assert world.processes["q"].cuts[Epoch(1)].state == 0


def test_empty_channel_is_reported_as_closed_and_unknown_channel_is_not():
    q = Q()
    q.start(1)
    assert closed(q.marker(C1, 1)) == ChannelClosed(epoch=Epoch(1), channel=C1, received=0, closed_at=0, items=())
    assert q.machine.open_channels(Epoch(1)) == (C2, C3)


@pytest.mark.parametrize("again", [0, 1], ids=["the same item again", "put twice by the peer"])
def test_duplicate_marker_is_idempotent(again: int):
    q = Q(incoming=(C1, C2))
    q.marker(C1, 1)
    q.last[C1] -= 1 - again
    assert q.marker(C1, 1) == ()
    assert q.machine.open_channels(Epoch(1)) == (C2,)
    q.message(C2)
    assert closed(q.marker(C2, 1)).items == (M,)
    assert q.marker(C1, 1) == ()
    assert q.count("markers_repeated") == 2


def test_marker_that_comes_again_by_its_number_is_not_recorded_for_another_epoch():
    q = Q(incoming=(C1, C2))
    q.start(2)
    q.message(C1, M)
    q.marker(C1, 1)
    q.message(C1, M)
    q.step(MarkerReceived(channel=C1, epoch=Epoch(1), number=2))
    effects = q.marker(C1, 2)
    assert closed(effects).items == (M, encode_marker_item(Epoch(1)), M)
    assert closed(effects).received == 0


def test_record_by_reference():
    """What is recorded is the immutable bytes; a list that the driver goes on using may change."""
    q = Q()
    q.start(1)
    run = [M]
    q.message(C1, *run)
    q.step(ItemsReceived(channel=C2, first=1, items=run))
    q.last[C2] = 1
    run[0] = b"changed"
    run.append(b"grown")
    assert closed(q.marker(C2, 1)).items == (M,)
    assert closed(q.marker(C1, 1)).items[0] is M, "and not a copy either"


def test_wrong_channel_identity():
    """Two peers with one local number each, and the opposite direction to one of them: only the marker's channel closes."""
    q = Q(incoming=(C1, C2), outgoing=(OUT1, OUT2))
    q.start(1)
    q.marker(C1, 1)
    assert q.machine.open_channels(Epoch(1)) == (C2,)


@pytest.mark.parametrize(
    "event",
    [
        TopologySet(incoming=(channel("q", "q"),), outgoing=()),
        TopologySet(incoming=(), outgoing=(channel("q", "q"),)),
        EpochStarted(epoch=Epoch(1), incoming=(channel("q", "q"),), outgoing=()),
        ChannelEnded(channel=channel("q", "q"), number=1),
    ],
)
def test_self_channels_are_refused_loudly(event: Event):
    with pytest.raises(LocalProtocolError):
        Q().step(event)


def test_source_without_inputs_is_complete_in_the_step_of_its_order():
    q = Q(incoming=())
    assert kinds(q.start(1)) == ["RecordState", "SendMarkers", "LocalPartComplete"]
    assert not q.machine.recording


def test_sink_without_outputs_sends_no_marker_and_still_completes():
    q = Q(incoming=(C1,), outgoing=())
    assert kinds(q.marker(C1, 1)) == ["RecordState", "ChannelClosed", "LocalPartComplete"]


def test_participant_without_any_channel_completes():
    assert kinds(Q(incoming=(), outgoing=()).start(1)) == ["RecordState", "LocalPartComplete"]


def test_participant_that_no_marker_can_reach_takes_part_by_its_order():
    world = World({"p": 1, "q": 2, "r": 3}, [channel("p", "q"), channel("q", "p"), channel("r", "p")])
    assert world.topology.unreachable_from([ParticipantId("p")]) == ("r",)
    for name in world.topology.starters("minimal"):
        world.start(name, 1)
    for c in world.channels * 3:
        if world.queues[c]:
            world.deliver(c)
    assert world.complete(1)
    assert world.violation(1) is None


def test_several_starts_of_one_epoch_cross():
    world = World({"p": 5, "q": 5}, [channel("p", "q"), channel("q", "p")])
    world.start("p", 1)
    world.send("p", "q", b"after p's record", 1)
    world.send("q", "p", b"before q's record", 1)
    world.start("q", 1)
    for c in (channel("p", "q"), channel("q", "p")):
        while world.queues[c]:
            world.deliver(c, amount=0)
    assert world.complete(1)
    assert world.in_flight(1) == {channel("p", "q"): [], channel("q", "p"): [b"before q's record"]}
    assert world.violation(1) is None


def test_start_order_that_arrives_after_a_marker_is_a_no_op():
    q = Q()
    q.marker(C1, 1)
    before = q.machine.open_channels(Epoch(1))
    assert q.start(1) == ()
    assert q.machine.open_channels(Epoch(1)) == before
    q.marker(C2, 1)
    q.marker(C3, 1)
    assert q.start(1) == (), "also when the part is complete"
    assert q.count("orders_repeated") == 2


def test_start_order_for_an_ended_epoch_is_refused():
    q = Q()
    q.abort(4, ended_through=4)
    assert q.start(3) == ()
    assert q.start(4) == ()
    q.abort(6)
    assert q.start(6) == ()
    assert q.count("orders_refused") == 3
    assert kinds(q.start(5))[0] == "RecordState"


def test_cut_that_never_was_is_accepted():
    """The example of the paper's section 4: the recorded state occurred at no instant of the run."""
    world = World({"p": 1, "q": 0}, [channel("p", "q"), channel("q", "p")])
    world.start("p", 1)  # p has the token
    world.send("p", "q", b"token", 1)
    world.send("q", "p", b"other", 0)
    world.deliver(channel("p", "q"))  # the marker: q records without the token
    world.deliver(channel("p", "q"), amount=1)
    world.deliver(channel("q", "p"))
    world.deliver(channel("q", "p"))
    assert world.complete(1)
    assert world.states(1) == {"p": 1, "q": 0}
    assert world.in_flight(1)[channel("q", "p")] == [b"other"]
    assert world.violation(1) is None


# --- several epochs -------------------------------------------------------------------------------------------------


def test_one_message_in_two_open_epochs_is_in_both():
    q = Q(incoming=(C1, C2))
    q.start(4)
    q.start(5)
    q.message(C1, M)
    four = closed(q.marker(C1, 4))
    five = closed(q.marker(C1, 5))
    assert four.items == (M,)
    assert five.items == (M, encode_marker_item(Epoch(4))), "the other epoch's marker is an item of the stream"
    assert (five.received, five.closed_at) == (0, 2)
    assert four.items[0] is five.items[0], "recorded without copying"


def test_newer_marker_first_with_overlap_allowed():
    q = Q(incoming=(C1, C2))
    q.marker(C1, 5)
    q.message(C2)
    assert kinds(q.marker(C2, 4))[0] == "RecordState"
    q.message(C2)
    five = q.marker(C2, 5)
    assert [message_payload(item) for item in closed(five).items if item[0] == 1] == [b"m", b"m"]
    assert len(closed(five).items) == 3
    four = q.marker(C1, 4)
    assert closed(four).items == ()
    assert isinstance(four[-1], LocalPartComplete)


def test_newer_marker_first_one_at_a_time():
    """The late marker of the older epoch is dropped and does not reset the newer one."""
    q = Q(incoming=(C1, C2), max_concurrent_epochs=1)
    q.marker(C1, 5)
    q.message(C2)
    assert q.marker(C2, 4) == (EpochDropped(epoch=Epoch(4), reason=DropReason.TOO_MANY, recorded=False),)
    assert q.marker(C1, 4) == (), "and it stays out"
    q.message(C2)
    five = closed(q.marker(C2, 5))
    assert five.items == (M, encode_marker_item(Epoch(4)), M)
    assert q.count("epochs_refused") == 1


def test_at_the_bound_an_older_open_epoch_gives_way_to_a_newer_one():
    q = Q(incoming=(C1, C2), max_concurrent_epochs=2)
    q.start(3)
    q.start(4)
    effects = q.marker(C1, 5)
    assert effects[0] == EpochDropped(epoch=Epoch(3), reason=DropReason.NEWER, recorded=True)
    assert kinds(effects[1:]) == ["RecordState", "SendMarkers", "ChannelClosed"]
    assert q.machine.open_epochs == (4, 5)


@pytest.mark.parametrize("learned", ["before any marker", "after its first marker", "before a restart"])
def test_marker_of_an_aborted_epoch_does_not_bring_it_back(learned: str):
    q = Q(ended_through=6) if learned == "before a restart" else Q()
    if learned == "after its first marker":
        q.marker(C1, 6)
        assert q.abort(6) == (EpochDropped(epoch=Epoch(6), reason=DropReason.ABORTED, recorded=True),)
    elif learned == "before any marker":
        assert q.abort(6) == ()
    assert q.marker(C2, 6) == ()
    assert q.marker(C3, 6) == ()
    assert not q.machine.recording
    assert q.count("markers_stale") == 2


def test_abort_leaves_nothing_behind():
    q = Q(incoming=(C1, C2))
    q.start(6)
    q.message(C1)
    q.abort(6)
    assert not q.machine.recording
    assert q.count("recorded_bytes_held") == 0
    assert q.abort(6) == (), "a duplicate abort is harmless"
    q.start(7)
    q.message(C1)
    assert closed(q.marker(C1, 7)).items == (M,)


def test_abort_of_one_epoch_leaves_the_overlapping_one_alone():
    q = Q(incoming=(C1, C2))
    q.start(6)
    q.start(7)
    q.message(C1)
    q.abort(6)
    q.message(C1)
    assert closed(q.marker(C1, 7)).items == (M, M)


def test_final_snapshot_while_one_runs_leaves_one_whole_epoch():
    q = Q(incoming=(C1, C2), max_concurrent_epochs=1)
    q.marker(C1, 7)
    effects = q.start(8)
    assert effects[0] == EpochDropped(epoch=Epoch(7), reason=DropReason.NEWER, recorded=True)
    q.marker(C1, 8)
    assert kinds(q.marker(C2, 8)) == ["ChannelClosed", "LocalPartComplete"]
    assert q.marker(C2, 7) == ()
    assert q.machine.open_epochs == ()


# --- ends and new streams -------------------------------------------------------------------------------------------


def test_orderly_end_of_a_channel_is_its_marker_for_every_open_epoch():
    q = Q(incoming=(C1, C2))
    q.marker(C1, 1)
    q.start(2)
    q.message(C2)
    effects = q.end(C2)
    assert kinds(effects) == ["ChannelClosed", "LocalPartComplete", "ChannelClosed"]
    assert effects[0] == ChannelClosed(epoch=Epoch(1), channel=C2, received=0, closed_at=1, items=(M,))
    assert q.machine.open_channels(Epoch(2)) == (C1,)


def test_later_epochs_do_not_wait_for_an_ended_channel():
    q = Q(incoming=(C1, C2))
    q.message(C1)
    q.end(C1)
    effects = q.start(1)
    assert effects[-1] == ChannelClosed(epoch=Epoch(1), channel=C1, received=1, closed_at=1, items=())
    assert q.machine.open_channels(Epoch(1)) == (C2,)


def test_no_marker_is_put_on_an_outgoing_channel_that_has_ended():
    q = Q()
    q.step(ChannelEnded(channel=OUT1, number=1))
    assert q.start(1)[1] == SendMarkers(epoch=Epoch(1), channels=(OUT2,))


def test_nothing_follows_an_end():
    q = Q()
    q.end(C1)
    with pytest.raises(RemoteProtocolError):
        q.marker(C1, 1)
    with pytest.raises(RemoteProtocolError):
        q.end(C1)


def test_end_of_a_strangers_channel_is_refused():
    with pytest.raises(LocalProtocolError):
        Q().step(ChannelEnded(channel=channel("a", "b"), number=1))


def test_new_stream_drops_the_epochs_that_recorded_the_old_one():
    q = Q(incoming=(C1, C2))
    q.start(1)
    q.marker(C1, 1)
    assert q.step(ChannelOpened(channel=C1)) == (), "closed already: its state is known"
    dropped = EpochDropped(epoch=Epoch(1), reason=DropReason.CHANNEL_BROKEN, recorded=True)
    assert q.step(ChannelOpened(channel=C2)) == (dropped,)


def test_new_stream_in_place_of_an_ended_one_is_waited_for_again():
    q = Q(incoming=(C1,))
    q.end(C1)
    q.step(ChannelOpened(channel=C1))
    q.start(1)
    assert q.machine.open_channels(Epoch(1)) == (C1,)


def test_open_epochs_keep_the_channels_that_they_began_with():
    q = Q(incoming=(C1, C2))
    q.start(1)
    q.step(TopologySet(incoming=(C1, C3), outgoing=()))
    assert q.machine.open_channels(Epoch(1)) == (C1, C2)
    q.abort(1)
    assert kinds(q.step(EpochStarted(epoch=Epoch(2), incoming=(C1, C3), outgoing=()))) == ["RecordState"]
    assert q.machine.open_channels(Epoch(2)) == (C1, C3)


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_recording_past_its_bound_gives_the_epoch_up_and_frees_its_memory():
    q = Q(incoming=(C1, C2), recording_bytes_max=3 * len(M))
    q.start(1)
    q.message(C1, M, M)
    q.message(C2, M)
    assert q.message(C2, M) == (
        RecordingOverflow(epoch=Epoch(1), channel=C2, bytes=4 * len(M)),
        EpochDropped(epoch=Epoch(1), reason=DropReason.RECORDING_LIMIT, recorded=True),
    )
    assert q.count("recorded_bytes_held") == 0
    assert q.message(C2) == ()
    assert q.start(1) == ()
    assert kinds(q.start(2))[0] == "RecordState"


def test_markers_of_others_count_against_the_bound():
    q = Q(incoming=(C1, C2), recording_bytes_max=0)
    q.start(1)
    effects = q.marker(C1, 2)
    assert kinds(effects)[:2] == ["RecordingOverflow", "EpochDropped"]
    assert kinds(effects)[2:] == ["RecordState", "SendMarkers", "ChannelClosed"]


def test_low_water_mark_ends_what_lies_below_it():
    q = Q()
    q.start(1)
    q.start(3)
    dropped = EpochDropped(epoch=Epoch(1), reason=DropReason.ENDED, recorded=True)
    assert q.step(EpochsEnded(ended_through=2)) == (dropped,)
    assert q.step(EpochsEnded(ended_through=1)) == (), "it never falls"
    assert q.machine.open_epochs == (3,)
    assert q.machine.ended_through == 2
    assert q.start(2) == ()


def test_complete_epoch_that_is_aborted_is_dropped_once():
    q = Q(incoming=())
    q.start(1)
    assert q.abort(1) == (EpochDropped(epoch=Epoch(1), reason=DropReason.ABORTED, recorded=True),)
    assert q.abort(1) == ()


def test_memory_of_ended_epochs_is_bounded():
    q = Q(incoming=())
    for epoch in range(2, 2 * (ABORTED_EPOCHS_REMEMBERED_MAX + 50), 2):  # the odd ones stay unknown
        if epoch % 4:
            q.start(epoch)
        else:
            q.abort(epoch)
    assert q.count("epochs_remembered") <= ABORTED_EPOCHS_REMEMBERED_MAX
    assert q.machine.ended_through > 0
    assert q.start(q.machine.ended_through) == ()


def test_contiguous_aborts_are_remembered_by_the_mark_alone():
    q = Q()
    for epoch in range(1, 100):
        q.abort(epoch)
    assert q.machine.ended_through == 99
    assert q.count("epochs_remembered") == 0


def test_stuck_epoch_below_the_remembered_ones_is_dropped_with_them():
    q = Q(incoming=(C1,))
    q.start(1)
    for epoch in range(2, ABORTED_EPOCHS_REMEMBERED_MAX + 3):
        q.abort(epoch)
    assert 1 not in q.machine.open_epochs
    assert not q.machine.recording


@pytest.mark.parametrize("event", [ChannelEnded(channel=C1, number=1), ChannelOpened(channel=C1)])
def test_mark_that_rises_within_a_step_ends_each_epoch_once(event: Event):
    """The older epoch goes with the remembered ones while the same step deals with both."""
    q = Q(incoming=(C1,))
    newer, older = 4 * ABORTED_EPOCHS_REMEMBERED_MAX, 1
    q.start(newer)
    q.start(older)
    for epoch in range(3, 3 + 2 * ABORTED_EPOCHS_REMEMBERED_MAX, 2):
        q.abort(epoch)
    effects = q.step(event)
    assert [e for e in effects if getattr(e, "epoch", None) == older] == [
        EpochDropped(epoch=Epoch(older), reason=DropReason.ENDED, recorded=True)
    ]
    assert not q.machine.recording


def test_order_of_an_epoch_older_than_all_open_ones_is_refused_at_the_bound():
    q = Q(max_concurrent_epochs=1)
    q.start(5)
    assert q.start(4) == (EpochDropped(epoch=Epoch(4), reason=DropReason.TOO_MANY, recorded=False),)
    assert q.start(4) == ()
    assert q.machine.open_epochs == (5,)


def test_what_is_no_event_is_refused():
    with pytest.raises(AssertionError):
        Q().machine.step(object(), NOW)


def test_a_machine_without_room_for_an_epoch_is_refused():
    with pytest.raises(LocalProtocolError):
        SnapshotMachine(ParticipantId("q"), max_concurrent_epochs=0)


# --- a failed step leaves the machine as it was ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (MarkerReceived(channel=channel("x", "q"), epoch=Epoch(1), number=1), RemoteProtocolError),
        (MarkerReceived(channel=channel("x", "q"), epoch=Epoch(9), number=1), RemoteProtocolError),
        (MarkerReceived(channel=C3, epoch=Epoch(9), number=9), RemoteProtocolError),
        (MarkerReceived(channel=C1, epoch=Epoch(1), number=3), LocalProtocolError),
        (MarkerReceived(channel=C1, epoch=Epoch(9), number=0), LocalProtocolError),
        (ItemsReceived(channel=C1, first=3, items=[M]), LocalProtocolError),
        (ItemsReceived(channel=C1, first=1, items=[M]), LocalProtocolError),
        (ChannelEnded(channel=C1, number=3), LocalProtocolError),
        (ChannelEnded(channel=C3, number=5), RemoteProtocolError),
        (EpochStarted(epoch=Epoch(2), incoming=(OUT1,), outgoing=()), LocalProtocolError),
        (EpochStarted(epoch=Epoch(2), incoming=(), outgoing=(C1,)), LocalProtocolError),
        (EpochStarted(epoch=Epoch(2), incoming=(C1, C1), outgoing=()), LocalProtocolError),
        (TopologySet(incoming=(), outgoing=(OUT1, OUT1)), LocalProtocolError),
    ],
)
def test_failed_step_leaves_the_machine_as_it_was(event: Event, error: type[Exception]):
    q = Q()
    q.end(C3)
    q.start(1)
    q.message(C1)
    before = deep_state(q.machine)
    with pytest.raises(error):
        q.step(event)
    assert deep_state(q.machine) == before


def test_items_are_ignored_where_nothing_records():
    q = Q()
    assert not q.machine.recording
    assert q.message(C1) == ()
    assert q.step(ItemsReceived(channel=channel("x", "y"), first=1, items=[M])) == ()
    q.start(1)
    assert q.step(ItemsReceived(channel=C1, first=2, items=[])) == ()
    assert q.count("items_recorded") == 0


def test_newest_epoch_is_the_highest_that_was_heard_of():
    q = Q()
    assert q.machine.newest_epoch == 0
    q.start(3)
    q.marker(C1, 2)
    assert q.machine.newest_epoch == 3
    q.abort(8)
    assert q.machine.newest_epoch == 8
    q.step(EpochsEnded(ended_through=9))
    assert q.machine.newest_epoch == 9
