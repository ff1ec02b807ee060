"""The participant's machine: membership, routing, fencing, its part of an epoch."""

from __future__ import annotations

import random

import pytest

from participant.machine import ParticipantMachine
from participant.machine_events import (
    ChannelsRecorded,
    ControlArrived,
    DeliverToAgents,
    EpochWanted,
    FrameArrived,
    LeaveRequested,
    LocalFailed,
    LocalPersisted,
    LocalProgressed,
    LocalRestored,
    MessageIngested,
    RecordLocal,
    SendControl,
    SendFrame,
    TurnCommitted,
)
from participant.peers import ChannelLimits
from protocol.items import KIND_END, KIND_MARKER, encode_marker_item, encode_message_item, item_kind, split_items
from protocol.messages import (
    AbortEpoch,
    EpochFailed,
    EpochProgress,
    EpochRequested,
    EpochSealed,
    Fenced,
    Leave,
    Left,
    LocalReport,
    Member,
    Registered,
    RegisterRefused,
    ReportRefused,
    Restore,
    StartEpoch,
    TopologyAccepted,
    TopologyChanged,
)
from protocol.wire import KIND_ACK, KIND_DATA, FrameHeader
from tests.unit.machine_world import MILLISECOND, World, encode, message

# --- membership -----------------------------------------------------------------------------------------------------


def test_a_participant_accepts_the_topology_that_names_it() -> None:
    world = World("ab")
    assert [accepted.version for accepted in world["a"].said(TopologyAccepted)] == [1]
    assert [(entered.first, dict(entered.peers)) for entered in world["a"].topologies] == [(True, {"b": "memory:b"})]


def test_a_repeated_topology_is_accepted_again_and_entered_once() -> None:
    world = World("ab")
    world["a"].control(TopologyChanged, incarnation=1, version=1, members=world.members())
    assert len(world["a"].said(TopologyAccepted)) == 2
    assert len(world["a"].topologies) == 1


def test_an_older_topology_is_ignored() -> None:
    world = World("ab")
    world.set_topology()
    world["a"].control(TopologyChanged, incarnation=1, version=1, members=world.members())
    assert world["a"].machine.topology.version == 2
    assert world["a"].machine.statistics()["orders_stale"] == 1


@pytest.mark.parametrize(
    "members",
    [
        (Member(id="b", session=2),),
        (Member(id="a", session=9), Member(id="b", session=2)),
        (Member(id="a", session=1, targets=("a",)),),
    ],
    ids=["without us", "another session of us", "impossible"],
)
def test_a_topology_that_is_not_for_us_changes_nothing(members: tuple[Member, ...]) -> None:
    world = World("ab")
    world["a"].control(TopologyChanged, incarnation=1, version=2, members=members)
    assert world["a"].machine.topology.version == 1
    assert len(world["a"].said(TopologyAccepted)) == 1


def test_orders_for_another_session_or_of_a_lower_term_are_ignored() -> None:
    world = World("ab")
    world["a"].control(StartEpoch, session=7, incarnation=1, epoch=1, topology=1, deadline_ns=1)
    world["a"].control(Registered, term=3, incarnation=1, lease_ns=1)
    world["a"].control(StartEpoch, term=2, incarnation=1, epoch=1, topology=1, deadline_ns=1)
    world["a"].control(Registered, term=2, incarnation=1, lease_ns=1)
    counts = world["a"].machine.statistics()
    assert (counts["orders_foreign"], counts["orders_stale"]) == (1, 2)
    assert not world["a"].recorded


def test_orders_of_another_incarnation_are_ignored() -> None:
    world = World("ab")
    world["a"].control(StartEpoch, incarnation=2, epoch=1, topology=1, deadline_ns=1)
    world["a"].control(TopologyChanged, incarnation=2, version=2, members=world.members())
    assert not world["a"].recorded
    assert world["a"].machine.topology.version == 1


def test_another_session_in_place_of_ours_ends_the_participant() -> None:
    world = World("ab")
    world["a"].control(Registered, session=9, incarnation=1, lease_ns=1)
    assert "replaced by 9" in world["a"].ended[0]


def test_a_fenced_participant_ends_with_the_reason() -> None:
    world = World("ab")
    world["a"].control(Fenced, reason="lease ran out")
    assert world["a"].ended == ["session 1 has ended: lease ran out"]


def test_a_refusal_is_the_drivers_business() -> None:
    world = World("ab")
    assert world["a"].step(ControlArrived(message=RegisterRefused(code="full", sentence="x"))) == []


def test_there_is_no_heartbeat_before_there_is_a_session() -> None:
    machine = ParticipantMachine("a")
    assert machine.heartbeat() is None
    world = World("ab")
    world["a"].step(TurnCommitted([]))
    world.start(4, "a")
    assert world["a"].machine.heartbeat().open_epochs == (4,)


def test_leaving_is_said_again_after_a_reconnect_and_ends_the_channels() -> None:
    world = World("ab")
    world["a"].step(LeaveRequested())
    world["a"].control(Registered, incarnation=1, lease_ns=1)
    assert len(world["a"].said(Leave)) == 2
    world["a"].control(Left)
    assert world["a"].ended == [""]
    world["a"].flush()
    (_, frame) = world.network[-1]
    assert item_kind(split_items(frame.body, frame.count)[-1]) == KIND_END


def test_asking_for_an_epoch_goes_to_the_coordinator() -> None:
    world = World("ab")
    world["a"].step(EpochWanted(reason="before the deploy"))
    assert world["a"].said(EpochRequested)[0].reason == "before the deploy"


# --- routing --------------------------------------------------------------------------------------------------------


def test_a_message_to_an_agent_here_is_delivered_without_a_frame() -> None:
    world = World("ab")
    world["a"].pay("a", 5)
    world.flush()
    assert world["a"].received == [("agent/a", 5)]
    assert not world.network


def test_everything_sent_within_one_turn_of_the_loop_leaves_in_one_frame() -> None:
    world = World("ab")
    for amount in range(1, 11):
        world["a"].pay("b", amount)
    world["a"].flush()
    assert [(frame.first, frame.count) for _, frame in world.network] == [(1, 10)]
    world.run()
    assert [amount for _, amount in world["b"].received] == list(range(1, 11))


def test_outside_input_reaches_agents_anywhere() -> None:
    world = World("ab")
    world["a"].step(MessageIngested(message("x", "b", 3)))
    world["a"].step(MessageIngested(message("x", "a", 4)))
    world.run()
    assert world["b"].received == [("agent/x", 3)]
    assert world["a"].received == [("agent/x", 4)]


def test_a_message_that_no_channel_can_carry_is_a_dead_letter() -> None:
    world = World("abc", links={"a": "b", "b": "c", "c": "a"})
    world["a"].pay("c", 1)
    assert "no channel" in world["a"].dead[0].reason
    huge = message("a", "b", 1)[0]
    huge = type(huge)(huge.id, huge.source, huge.target, "Pay", 1, bytes(1 << 20))
    world["a"].step(TurnCommitted([(huge, encode(huge))]))
    assert "at most" in world["a"].dead[1].reason


def test_a_message_to_an_agent_that_nobody_hosts_waits_for_a_topology_that_has_it() -> None:
    world = World("ab")
    world["a"].pay("c", 7)
    assert world["a"].machine.statistics()["unrouted"] == 1
    world.start(1)
    assert len(world["a"].recorded[1][0].unrouted) == 1
    world.run()
    newcomer = World("abc")
    members = newcomer.members()
    world["a"].control(TopologyChanged, incarnation=1, version=2, members=members)
    world["a"].step(ControlArrived(message=AbortEpoch(term=1, session=1, epoch=1, reason="", ended_through=1)))
    world["a"].flush()
    assert world["a"].machine.statistics()["unrouted"] == 0
    assert world["a"].machine.outgoing_bytes > 0


def test_too_many_messages_to_nobody_are_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("participant.machine_channels.UNROUTED_MESSAGES_MAX", 2)
    world = World("ab")
    for _ in range(3):
        world["a"].pay("c", 1)
    assert "wait already" in world["a"].dead[0].reason


def test_messages_to_nobody_are_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("ab")
    world["a"].pay("c", 1)
    held = world["a"].machine.unrouted_bytes
    assert held > 0
    monkeypatch.setattr("participant.machine_channels.UNROUTED_BYTES_MAX", 2 * held)
    world["a"].pay("c", 1)
    assert not world["a"].dead
    world["a"].pay("c", 1)
    assert "wait already" in world["a"].dead[0].reason
    assert world["a"].machine.statistics()["unrouted_bytes"] == 2 * held
    world["a"].control(TopologyChanged, incarnation=1, version=2, members=World("abc").members())
    assert world["a"].machine.unrouted_bytes == 0


def test_messages_that_are_no_envelopes_count_as_received_and_go_nowhere() -> None:
    world = World("ab")
    body = encode_message_item(b"\xc1garbage") + encode_message_item(message("a", "b", 4)[1])
    world["b"].step(FrameArrived(FrameHeader(KIND_DATA, 1, 1, 2, 0, 1, 0, 2, "a", "b"), body))
    assert world["b"].machine.statistics()["messages_malformed"] == 1
    assert world["b"].received == [("agent/a", 4)]


# --- channels -------------------------------------------------------------------------------------------------------


def test_lost_frames_are_sent_again_until_all_have_arrived_in_order() -> None:
    world = World("ab")
    dice = random.Random(5)
    world.lose = lambda _source, _frame: dice.random() < 0.2
    for amount in range(1, 60):
        world["a"].pay("b", amount)
        world["a"].flush()
        world.deliver()
    world.run(rounds=20_000)
    assert [amount for _, amount in world["b"].received] == list(range(1, 60))
    assert world["a"].machine.outgoing_bytes == 0
    assert world["a"].machine.statistics()["frames_resent"] > 0


def test_a_reconnect_sends_what_was_not_acknowledged() -> None:
    world = World("ab")
    world["a"].pay("b", 1)
    world["a"].flush()
    world.break_between("a", "b")
    world["a"].pay("b", 2)
    world["a"].flush()
    assert not world.network
    world.mend("a", "b")
    world["a"].flush()
    world.deliver()
    assert [amount for _, amount in world["b"].received] == [1, 2]


def test_acknowledgements_ride_on_frames_or_leave_by_themselves() -> None:
    world = World("ab")
    world["a"].pay("b", 1)
    world.flush()
    world.deliver()
    world["b"].pay("a", 1)
    world["b"].flush()
    assert [(frame.kind, frame.ack) for _, frame in world.network] == [(KIND_DATA, 1)]
    world.deliver()
    world["a"].flush()
    assert not world.network
    world.pass_time(5)
    assert [(frame.kind, frame.ack) for _, frame in world.network] == [(KIND_ACK, 1)]


def test_much_received_is_acknowledged_at_once() -> None:
    world = World("ab")
    for number in range(3):
        envelope = message("a", "b", 1, number)[0]
        big = type(envelope)(envelope.id, envelope.source, envelope.target, "Pay", 1, encode(0) + bytes(900_000))
        world["a"].step(TurnCommitted([(big, encode(big))]))
    world["a"].flush()
    for source, frame in list(world.network):
        world["b"].machine.step(FrameArrived(world.header(source, frame), frame.body), world.now)
    world.network.clear()
    world["b"].flush()
    assert [(frame.kind, frame.ack) for _, frame in world.network] == [(KIND_ACK, 3)]


def test_replayed_frames_change_nothing() -> None:
    world = World("ab")
    world["a"].pay("b", 5)
    world["a"].flush()
    source, frame = world.network[0]
    for _ in range(3):
        world["b"].step(FrameArrived(world.header(source, frame), frame.body))
    assert world["b"].received == [("agent/a", 5)]
    assert world["b"].machine.statistics()["items_repeated"] == 2


def frame_from_a(world: World, **changes) -> FrameArrived:
    body = encode_message_item(message("a", "b", 5)[1])
    fields = {
        "kind": KIND_DATA,
        "incarnation": 1,
        "source_session": 1,
        "target_session": 2,
        "epoch": 0,
        "first": 1,
        "ack": 0,
        "count": 1,
        "source": "a",
        "target": "b",
        **changes,
    }
    return FrameArrived(FrameHeader(**fields), body)


@pytest.mark.parametrize(
    ("changes", "counter"),
    [
        ({"incarnation": 0}, "frames_stale"),
        ({"source_session": 0}, "frames_stale"),
        ({"target_session": 1}, "frames_stale"),
        ({"target": "c"}, "frames_misdirected"),
        ({"count": 2}, "frames_impossible"),
        ({"ack": 99}, "frames_impossible"),
    ],
)
def test_frames_of_an_older_life_or_that_make_no_sense_are_counted(changes: dict[str, int], counter: str) -> None:
    world = World("ab")
    world["b"].step(frame_from_a(world, **changes))
    assert world["b"].machine.statistics()[counter] == 1
    assert not world["b"].received


def test_frames_of_a_session_that_the_next_topology_brings_are_parked() -> None:
    world = World("ab")
    world["b"].step(frame_from_a(world, source_session=5))
    assert not world["b"].received
    world.sessions["a"] = 5
    world["b"].control(TopologyChanged, incarnation=1, version=2, members=world.members())
    assert world["b"].received == [("agent/a", 5)]


def test_what_is_parked_is_bounded() -> None:
    world = World("ab", channel_limits=ChannelLimits(parked_bytes=1000))
    for _ in range(100):
        world["b"].step(frame_from_a(world, incarnation=2))
    counts = world["b"].machine.statistics()
    assert counts["parked_frames"] < 5
    assert counts["frames_dropped_early"] > 95


def test_items_on_a_channel_that_the_topology_does_not_have_are_refused() -> None:
    world = World("ab", links={"a": "", "b": "a"})
    world["b"].step(frame_from_a(world))
    assert world["b"].machine.statistics()["frames_impossible"] == 1


def test_a_new_session_of_a_peer_begins_new_streams_and_counts_what_is_lost() -> None:
    world = World("ab")
    world["b"].pay("a", 1)
    world["b"].pay("a", 2)
    world["b"].flush()
    world.network.clear()
    world.sessions["a"] = 5
    world["b"].control(TopologyChanged, incarnation=1, version=2, members=world.members())
    assert world["b"].machine.statistics()["items_lost"] == 2
    assert world["b"].machine.outgoing_bytes == 0
    world["b"].pay("a", 3)
    world["b"].flush()
    assert [(frame.first, frame.target_session) for _, frame in world.network] == [(1, 5)]


def test_a_channel_that_comes_and_goes_with_the_topology_begins_anew() -> None:
    world = World("ab")
    world["a"].pay("b", 1)
    world.run()
    world.links = {"a": "", "b": "a"}
    world.set_topology()
    world["a"].pay("b", 1)
    assert len(world["a"].dead) == 1
    world.links = None
    world.set_topology()
    world["a"].pay("b", 2)
    world.run()
    assert [amount for _, amount in world["b"].received] == [1, 2]


# --- epochs ---------------------------------------------------------------------------------------------------------


def test_a_start_order_records_first_and_then_puts_markers_on_all_channels() -> None:
    world = World("abc")
    world["a"].pay("b", 5)
    world["a"].log.clear()
    world.start(1, "a")
    assert isinstance(world["a"].log[0], RecordLocal)
    assert [(cut.target, cut.sent) for cut in world["a"].log[0].outgoing] == [("b", 1), ("c", 0)]
    world["a"].pay("b", 6)
    world["a"].flush()
    kinds = {
        frame.target: [item_kind(item) for item in split_items(frame.body, frame.count)] for _, frame in world.network
    }
    assert kinds == {"b": [1, KIND_MARKER, 1], "c": [KIND_MARKER]}


def test_what_came_before_a_marker_in_its_frame_is_delivered_before_the_record_and_the_rest_after() -> None:
    world = World("ab")
    world["a"].pay("b", 5)
    world.start(1, "a")
    world["a"].pay("b", 6)
    world["a"].flush()
    world["b"].log.clear()
    world.deliver()
    kinds = [type(effect) for effect in world["b"].log]
    assert kinds == [DeliverToAgents, RecordLocal, SendControl, ChannelsRecorded, SendControl, DeliverToAgents]
    assert world["b"].recorded[1][1] == 105
    assert world["b"].balance == 111


def test_an_epoch_under_traffic_is_a_consistent_cut_that_keeps_the_total() -> None:
    world = World("abcd")
    dice = random.Random(11)
    flying = 0
    for epoch in range(1, 21):
        for step in range(30):
            source, target = dice.sample("abcd", 2)
            world[source].pay(target, dice.randint(1, 9))
            if dice.random() < 0.5:
                world[source].flush()
            if dice.random() < 0.5 and world.network:
                world.deliver(1)
            if step == 15:
                world.start(epoch, dice.choice(["a", "bc", "abcd", "d"]))
        world.run()
        assert world.reports(epoch) == list("abcd")
        flying += world.check(epoch, total=400)
        world.commit(epoch)
    assert flying != 0
    assert world["a"].kept == list(range(1, 21))
    assert world["a"].machine.open_epochs == ()


def test_in_a_ring_nobody_waits_for_anybody() -> None:
    world = World("abcd", links={"a": "b", "b": "c", "c": "d", "d": "a"})
    for name, target in zip("abcd", "bcda", strict=True):
        world[name].pay(target, 7)
    world.start(1, "c")
    world.run()
    assert world.check(1, total=400) == 7


def test_epochs_overlap_without_touching_each_other() -> None:
    world = World("abc")
    world["a"].pay("b", 5)
    world.start(1, "a")
    world["b"].pay("c", 6)
    world.start(2, "c")
    world["c"].pay("a", 7)
    world.start(3, "b")
    world.run()
    for epoch in (1, 2, 3):
        world.check(epoch, total=300)
        world.commit(epoch)


def test_a_lost_marker_is_sent_again_and_the_epoch_ends() -> None:
    world = World("ab")
    world.start(1)
    world.lose = lambda source, _frame: source == "a"
    world.flush()
    world.deliver()
    assert world["b"].machine.open_epochs == (1,)
    world.lose = lambda _source, _frame: False
    world.run(rounds=500)
    assert world.reports(1) == ["a", "b"]
    world.check(1, total=200)


def test_a_broken_connection_in_the_middle_of_an_epoch_loses_nothing_of_it() -> None:
    world = World("ab")
    world["a"].pay("b", 5)
    world.start(1, "b")
    world.flush()
    world.break_between("a", "b")
    world["a"].pay("b", 6)
    world.mend("a", "b")
    world.run()
    assert world.check(1, total=200) == 11


def test_reports_and_failures_are_said_again_after_a_reconnect_until_they_are_answered() -> None:
    world = World("ab")
    world.start(1)
    world.run()
    world["a"].step(LocalFailed(epoch=9, phase="encode", cause="of no epoch"))
    world.start(2)
    world["a"].step(LocalFailed(epoch=2, phase="encode", cause="agent/a: state.x of type socket cannot be saved"))
    world["a"].controls.clear()
    world["a"].control(Registered, incarnation=1, lease_ns=1)
    assert [failed.epoch for failed in world["a"].said(EpochFailed)] == [2]
    assert [report.epoch for report in world["a"].said(LocalReport)] == [1]
    world.abort(2)
    world.commit(1)
    world["a"].controls.clear()
    world["a"].control(Registered, incarnation=1, lease_ns=1)
    assert [type(one) for one in world["a"].controls] == [TopologyAccepted]


def test_a_repeated_start_order_is_answered_with_the_report_again() -> None:
    world = World("ab")
    world.start(1)
    world.run()
    world.start(1, "a")
    assert len(world["a"].said(LocalReport)) == 2
    assert len([effect for effect in world["a"].log if isinstance(effect, RecordLocal)]) == 1


def test_an_aborted_epoch_leaves_nothing_and_its_late_markers_start_nothing() -> None:
    world = World("ab")
    world.start(1, "a")
    world["a"].flush()
    world.abort(1)
    assert [(drop.epoch, drop.reason) for drop in world["a"].dropped] == [(1, "aborted")]
    world.run()
    assert not world["b"].recorded
    assert world["b"].machine.statistics()["snapshot_markers_stale"] == 1
    assert world["a"].announced[0].reason == "test"
    world.start(2)
    world.run()
    world.check(2, total=200)


def test_a_part_that_becomes_durable_after_its_epoch_was_aborted_is_not_reported() -> None:
    world = World("ab")
    world.auto_persist = False
    world.start(1)
    world.run()
    world.abort(1)
    world["a"].step(LocalPersisted(epoch=1, snapshot="b3:x", timings={}))
    assert not world["a"].said(LocalReport)
    assert world["a"].machine.statistics()["parts_late"] == 1


def test_a_participant_that_hears_nothing_gives_the_epoch_up_by_itself() -> None:
    world = World("ab")
    world.start(1, "a", deadline_ms=2_000)
    world.network.clear()
    world.lose = lambda _source, _frame: True
    world["a"].flush()
    world.pass_time(1_900)
    assert world["a"].machine.open_epochs == (1,)
    world.pass_time(200)
    assert world["a"].machine.open_epochs == ()
    (failed,) = world["a"].said(EpochFailed)
    assert (failed.phase, failed.epoch) == ("deadline", 1)
    assert "no marker came from b" in failed.cause
    assert [drop.epoch for drop in world["a"].dropped] == [1]


def test_news_of_an_epoch_prolongs_the_wait() -> None:
    world = World("ab")
    world.start(1, deadline_ms=2_000)
    world.run()
    world.pass_time(1_500)
    for part in world.parts.values():
        part.control(EpochSealed, epoch=1)
    world.pass_time(1_500)
    assert world["a"].machine.open_epochs == (1,)
    world.pass_time(1_500)
    assert world["a"].machine.open_epochs == ()
    assert "did not say how it ended" in world["a"].said(EpochFailed)[0].cause


def test_recording_past_the_limit_fails_the_epoch_and_names_the_channel() -> None:
    world = World("ab", recording_bytes_max=200)
    world.start(1, "b")
    for _ in range(20):
        world["a"].pay("b", 1)
    world["a"].flush()
    world.deliver()
    (failed,) = world["b"].said(EpochFailed)
    assert failed.phase == "record"
    assert "a->b passed the limit of 200" in failed.cause
    assert len(world["b"].received) == 20


def test_a_start_order_in_a_topology_that_is_not_here_fails_at_once() -> None:
    world = World("ab")
    world["a"].control(StartEpoch, incarnation=1, epoch=1, topology=9, deadline_ns=1)
    (failed,) = world["a"].said(EpochFailed)
    assert (failed.phase, failed.cause) == ("order", "a is in topology 1, the epoch in 9")


def test_a_session_that_changes_while_recording_fails_the_epoch() -> None:
    world = World("ab")
    world.start(1, "b")
    world.sessions["a"] = 7
    world["b"].control(TopologyChanged, incarnation=1, version=2, members=world.members())
    assert world["b"].machine.open_epochs == ()
    assert [drop.epoch for drop in world["b"].dropped] == [1]


def test_a_refused_report_drops_the_part() -> None:
    world = World("ab")
    world.start(1)
    world.run()
    world["a"].control(ReportRefused, epoch=1, reason="too late")
    assert world["a"].machine.open_epochs == ()
    assert world["a"].machine.statistics()["reports_refused"] == 1


def test_a_low_water_mark_ends_parts_whose_end_was_not_heard() -> None:
    world = World("ab")
    world.start(1)
    world.run()
    world["a"].control(Registered, incarnation=1, lease_ns=1, aborted_through=1)
    assert [(drop.epoch, drop.reason) for drop in world["a"].dropped] == [(1, "ended")]
    assert world["a"].machine.open_epochs == ()


def test_a_newcomer_takes_no_part_in_an_epoch_that_was_started_before_it_came() -> None:
    world = World("ab")
    fresh = ParticipantMachine("c")
    fresh.step(
        ControlArrived(message=Registered(term=1, session=3, incarnation=1, lease_ns=1, newest_epoch=4)), world.now
    )
    members = (*world.members(), Member(id="c", session=3))
    fresh.step(
        ControlArrived(message=TopologyChanged(term=1, session=3, incarnation=1, version=2, members=members)), world.now
    )
    header = FrameHeader(KIND_DATA, 1, 1, 3, 4, 1, 0, 1, "a", "c")
    effects = fresh.step(FrameArrived(header, encode_marker_item(4)), world.now)
    assert not [effect for effect in effects if isinstance(effect, RecordLocal)]
    assert fresh.newest_epoch == 4


def test_progress_is_told_with_the_channels_that_are_open() -> None:
    world = World("abc")
    world.start(1, "a")
    (recorded,) = world["a"].said(EpochProgress)
    assert (recorded.phase, recorded.open_channels) == ("channels", ("b", "c"))
    world["a"].flush()
    world.deliver(1)
    world["b"].flush()
    world.lose = lambda source, _frame: source == "c"
    world.deliver()
    world["b"].flush()
    world.deliver()
    assert [progress.open_channels for progress in world["a"].machine.still_recording()] == [("c",)]
    world.lose = lambda _source, _frame: False
    world.run()
    assert [progress.phase for progress in world["a"].said(EpochProgress)] == ["channels", "encode"]
    assert world["a"].machine.still_recording() == []


def test_a_part_that_is_encoded_before_its_markers_are_in_still_waits_for_them() -> None:
    world = World("ab")
    world.start(1, "a")
    world["a"].step(LocalProgressed(epoch=1, phase="encode"))
    assert [told.phase for told in world["a"].said(EpochProgress)] == ["channels", "channels"]
    world.run()
    assert [told.phase for told in world["a"].said(EpochProgress)][2:] == ["upload"]


def test_a_marker_behind_an_end_is_counted_and_starts_nothing() -> None:
    world = World("ab")
    world["a"].control(Left)
    world["a"].flush()
    world.deliver()
    header = FrameHeader(KIND_DATA, 1, 1, 2, 0, 2, 0, 1, "a", "b")
    world["b"].step(FrameArrived(header, encode_marker_item(1)))
    assert world["b"].machine.statistics()["frames_impossible"] == 1
    assert not world["b"].recorded


def test_an_end_closes_its_channel_for_an_open_epoch() -> None:
    world = World("ab")
    world["a"].pay("b", 5)
    world.start(1, "b")
    world["a"].control(Left)
    world["a"].flush()
    world.deliver()
    (channel,) = world["b"].channels[1].channels
    assert (channel.received, channel.closed_at, len(channel.items)) == (0, 1, 1)


def test_a_timer_is_set_only_when_something_is_due_earlier() -> None:
    world = World("ab")
    world["a"].pay("b", 1)
    first = world["a"].machine.flush(world.now)
    assert [type(effect) for effect in first] == [SendFrame, type(first[-1])]
    assert first[-1].at == world.now + 500 * MILLISECOND
    world["a"].pay("b", 1)
    assert [type(effect) for effect in world["a"].machine.flush(world.now + 1)] == [SendFrame]
    assert not world["a"].machine.flush_wanted


def test_a_message_to_an_agent_that_has_moved_is_passed_on() -> None:
    world = World("abc")
    world["a"].step(TurnCommitted([message("a", "b", 7)]))
    world["a"].flush()
    source, frame = world.network.popleft()
    moved = dict(zip("abc", world.members(), strict=True))
    members = (
        moved["a"],
        Member(id="b", session=2, agents=()),
        Member(id="c", session=3, agents=("agent/c", "agent/b")),
    )
    for part in world.parts.values():
        part.control(TopologyChanged, incarnation=1, version=2, members=members)
    world["b"].step(FrameArrived(world.header(source, frame), frame.body))
    world.run()
    assert not world["b"].received
    assert world["c"].received == [("agent/a", 7)]


def test_an_unreachable_peer_gets_its_acknowledgement_when_it_is_back() -> None:
    world = World("ab")
    world["a"].pay("b", 1)
    world["a"].flush()
    world.deliver()
    world["b"].flush()
    world.break_between("a", "b")
    world.pass_time(2_000)
    assert not world.network
    world.mend("a", "b")
    world.run()
    assert world["a"].machine.outgoing_bytes == 0
    assert world["b"].received == [("agent/a", 1)]


def test_a_later_incarnation_begins_with_nothing_of_the_earlier_one() -> None:
    world = World("ab")
    world["a"].pay("b", 1)
    world.start(1, "a")
    world["a"].pay("c", 1)
    world["a"].control(Registered, incarnation=2, lease_ns=1, newest_epoch=1)
    assert world["a"].machine.incarnation == 1  # a registration alone takes nobody there
    world["a"].control(
        Restore,
        incarnation=2,
        epoch=0,
        manifest="",
        newest_epoch=1,
        elapsed_ns=0,
        version=2,
        members=world.members(),
    )
    world["a"].step(LocalRestored(incarnation=2, state="b3:x"))
    assert [drop.epoch for drop in world["a"].dropped] == [1]
    assert world["a"].machine.statistics()["unrouted"] == 0
    assert (world["a"].machine.incarnation, world["a"].machine.topology) == (2, None)
    assert world["a"].machine.open_epochs == ()
    assert world["a"].machine.outgoing_bytes == 0
    world["a"].control(TopologyChanged, incarnation=2, version=2, members=world.members())
    assert world["a"].topologies[-1].first
    world["a"].pay("b", 2)
    world["a"].flush()
    assert [(frame.incarnation, frame.first) for _, frame in world.network] == [(2, 1)]


def test_an_older_epoch_gives_way_at_the_bound_and_says_why() -> None:
    world = World("ab", max_concurrent_epochs=1)
    world.start(1, "a")
    world.start(2, "a")
    (failed,) = world["a"].said(EpochFailed)
    assert (failed.epoch, failed.phase) == (1, "channels")
    assert "a newer epoch began" in failed.cause
    assert world["a"].machine.open_epochs == (2,)


def test_failures_that_nobody_answers_are_bounded() -> None:
    world = World("ab")
    for epoch in range(1, 200):
        world["a"].control(StartEpoch, incarnation=1, epoch=epoch, topology=9, deadline_ns=1)
    world["a"].controls.clear()
    world["a"].control(Registered, incarnation=1, lease_ns=1)
    said = [failed.epoch for failed in world["a"].said(EpochFailed)]
    assert len(said) < 50
    assert said[-1] == 199


def test_leaving_before_there_is_a_session_is_said_with_the_registration() -> None:
    machine = ParticipantMachine("a")
    assert machine.step(LeaveRequested(), 1) == []
    effects = machine.step(ControlArrived(message=Registered(term=1, session=3, incarnation=1, lease_ns=1)), 2)
    assert [effect.message for effect in effects if isinstance(effect, SendControl)] == [Leave(session=3)]
