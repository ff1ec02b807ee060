"""protocol.channel: the two ends of a stream, call by call."""

from __future__ import annotations

import pytest
from blake3 import blake3

from protocol.channel import CutPosition, OutFrame, ReceivingEnd, SendingEnd, continued_digest
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import Epoch, Instant
from protocol.items import END_ITEM, encode_marker_item, encode_message_item, split_items
from protocol.limits import FRAME_ITEMS_MAX
from tests.snapshot_world import channel

C = channel("p", "q")
NOW = Instant(0)


def items(first: int, count: int, size: int = 8) -> list[bytes]:
    """Items first .. first + count - 1, each recognisable by its number."""
    return [encode_message_item(f"{number:0{size}}".encode()) for number in range(first, first + count)]


def digest_of(encoded: list[bytes]) -> str:
    return "b3:" + blake3(b"".join(encoded)).hexdigest()


def numbers(frames: list[OutFrame]) -> list[tuple[int, int]]:
    return [(frame.first_seq, frame.count) for frame in frames]


def hand_on(end: ReceivingEnd, first: int, encoded: list[bytes]) -> list[bytes]:
    """Accept and advance, as a driver does."""
    handed = []
    for start, run in end.accept(first, list(encoded)):
        assert start == end.received + 1
        end.advance(run)
        handed += run
    return handed


# --- sending --------------------------------------------------------------------------------------------------------


def test_items_are_numbered_when_they_are_put():
    end = SendingEnd(C)
    end.put(items(1, 3))
    end.put([])
    assert end.sent == 3
    assert end.cut_position == CutPosition(3, digest_of(items(1, 3)), ended=False)
    assert end.in_flight_bytes == len(b"".join(items(1, 3)))
    assert end.unacknowledged == 3


def test_batches_that_wait_together_share_a_frame():
    end = SendingEnd(C)
    end.put(items(1, 2))
    end.put(items(3, 1))
    (frame,) = end.frames(NOW)
    assert (frame.first_seq, frame.count, frame.last_seq) == (1, 3, 3)
    assert split_items(frame.body, 3) == items(1, 3)
    assert end.frames(NOW) == []


def test_frames_are_split_between_items_near_the_target():
    size = len(items(1, 1)[0])
    end = SendingEnd(C, frame_bytes=2 * size)
    end.put(items(1, 5))
    frames = end.frames(NOW)
    assert numbers(frames) == [(1, 2), (3, 2), (5, 1)]
    assert b"".join(frame.body for frame in frames) == b"".join(items(1, 5))


def test_item_larger_than_the_target_has_a_frame_of_its_own():
    end = SendingEnd(C, frame_bytes=30)
    end.put([*items(1, 1), *items(2, 1, size=100), *items(3, 1)])
    assert numbers(end.frames(NOW)) == [(1, 1), (2, 1), (3, 1)]


def test_no_frame_holds_more_items_than_the_bound():
    end = SendingEnd(C, frame_bytes=1 << 30, window_bytes=1 << 30)
    end.put(items(1, FRAME_ITEMS_MAX + 1, size=1))
    end.put(items(1, 2))
    assert [frame.count for frame in end.frames(NOW)] == [FRAME_ITEMS_MAX, 3]


def test_digest_does_not_depend_on_batches():
    one, many = SendingEnd(C), SendingEnd(C)
    one.put(items(1, 6))
    for number in range(1, 7):
        many.put(items(number, 1))
    assert one.digest() == many.digest() == digest_of(items(1, 6))


def test_window_holds_back_what_does_not_fit():
    size = len(items(1, 1)[0])
    end = SendingEnd(C, frame_bytes=size, window_bytes=2 * size)
    end.put(items(1, 4))
    assert numbers(end.frames(NOW)) == [(1, 1), (2, 1)]
    assert end.sent == 4
    assert end.frames(NOW) == []
    end.acknowledged(1, NOW)
    assert numbers(end.frames(NOW)) == [(3, 1)]
    assert end.in_flight_bytes == 3 * size


def test_joined_batches_stay_within_the_window():
    size = len(items(1, 1)[0])
    end = SendingEnd(C, window_bytes=2 * size)
    for number in range(1, 5):
        end.put(items(number, 1))
    assert numbers(end.frames(NOW)) == [(1, 2)]


def test_one_frame_always_leaves_however_small_the_window():
    end = SendingEnd(C, window_bytes=0)
    end.put(items(1, 1))
    end.put(items(2, 1))
    assert numbers(end.frames(NOW)) == [(1, 1)]
    end.acknowledged(1, NOW)
    assert numbers(end.frames(NOW)) == [(2, 1)]


def test_acknowledgement_within_a_frame_keeps_the_frame():
    end = SendingEnd(C)
    end.put(items(1, 3))
    (frame,) = end.frames(NOW)
    end.acknowledged(2, NOW)
    assert end.acknowledged_through == 2
    end.reconnected(NOW)
    assert end.frames(NOW) == [frame]
    end.acknowledged(3, NOW)
    assert end.in_flight_bytes == 0


def test_stale_acknowledgements_are_counted_and_change_nothing():
    end = SendingEnd(C)
    end.put(items(1, 3))
    end.frames(NOW)
    end.acknowledged(3, NOW)
    end.acknowledged(3, NOW)
    end.acknowledged(1, NOW)
    assert end.acknowledged_through == 3
    assert end.statistics()["acks_stale"] == 1


@pytest.mark.parametrize("bogus", [4, 1 << 62])
def test_acknowledgement_of_what_never_left_is_refused_and_changes_nothing(bogus: int):
    size = len(items(1, 1)[0])
    end = SendingEnd(C, frame_bytes=size, window_bytes=3 * size)
    end.put(items(1, 5))
    end.frames(NOW)
    before = end.statistics()
    with pytest.raises(RemoteProtocolError):
        end.acknowledged(bogus, NOW)
    assert end.statistics() == before
    end.acknowledged(3, NOW)


def test_acknowledgement_of_a_queued_item_is_refused():
    end = SendingEnd(C)
    end.put(items(1, 1))
    with pytest.raises(RemoteProtocolError):
        end.acknowledged(1, NOW)


def test_reconnect_sends_everything_unacknowledged_again_with_the_same_bytes():
    size = len(items(1, 1)[0])
    end = SendingEnd(C, frame_bytes=size)
    end.put(items(1, 4))
    first_time = end.frames(NOW)
    end.acknowledged(1, NOW)
    end.reconnected(NOW)
    end.put(items(5, 1))
    again = end.frames(NOW)
    assert numbers(again) == [(2, 1), (3, 1), (4, 1), (5, 1)]
    assert all(new.body is old.body for new, old in zip(again, first_time[1:], strict=False))
    assert end.statistics()["frames_resent"] == 3


def test_acknowledgement_while_frames_wait_to_leave_again_takes_them_out():
    end = SendingEnd(C, frame_bytes=1)
    end.put(items(1, 3))
    end.frames(NOW)
    end.reconnected(NOW)
    end.acknowledged(2, NOW)
    assert numbers(end.frames(NOW)) == [(3, 1)]


def test_marker_lost_on_reconnect():
    """A marker is an item: numbered, kept and sent again like any other."""
    end = SendingEnd(C)
    end.put(items(1, 1))
    end.put([encode_marker_item(Epoch(5))])
    end.frames(NOW)
    end.acknowledged(1, NOW)
    end.reconnected(NOW)
    (frame,) = end.frames(NOW)
    receiver = ReceivingEnd(C)
    hand_on(receiver, 1, items(1, 1))
    assert hand_on(receiver, frame.first_seq, split_items(frame.body, frame.count)) == [encode_marker_item(Epoch(5))]


def test_time_without_progress_sends_the_oldest_frame_again_and_doubles():
    end = SendingEnd(C, frame_bytes=1, resend_ns=100, resend_ns_max=300)
    assert end.next_timeout() is None
    end.put(items(1, 2))
    assert end.next_timeout() is None, "nothing has left"
    end.frames(Instant(1_000))
    waits = []
    now = 1_000
    for _ in range(4):
        deadline = end.next_timeout()
        assert deadline is not None
        end.timed_out(Instant(deadline - 1))
        assert end.frames(Instant(deadline - 1)) == []
        end.timed_out(deadline)
        assert numbers(end.frames(deadline)) == [(1, 1)]
        waits.append(deadline - now)
        now = deadline
    assert waits == [100, 200, 300, 300]
    end.acknowledged(1, Instant(now))
    assert end.next_timeout() == now + 100, "progress ends the doubling"
    end.acknowledged(2, Instant(now))
    assert end.next_timeout() is None
    end.timed_out(Instant(now + 1_000_000))
    assert end.frames(Instant(now + 1_000_000)) == []


def test_lost_window_comes_back_in_a_logarithm_of_round_trips():
    end = SendingEnd(C, frame_bytes=1, resend_ns=100)
    end.put(items(1, 64))
    end.frames(NOW)
    receiver = ReceivingEnd(C)
    deadline = end.next_timeout()
    assert deadline is not None
    end.timed_out(deadline)
    rounds = 0
    while receiver.received < 64:
        frames = end.frames(deadline)
        assert frames, "progress alone must keep the recovery going"
        for frame in frames:
            hand_on(receiver, frame.first_seq, split_items(frame.body, frame.count))
        end.acknowledged(receiver.ack(), deadline)
        rounds += 1
    assert rounds <= 8
    assert end.statistics()["timeouts"] == 1


def test_one_lost_frame_costs_one_frame():
    end = SendingEnd(C, frame_bytes=1, resend_ns=100)
    end.put(items(1, 8))
    receiver = ReceivingEnd(C)
    for frame in end.frames(NOW)[1:]:
        hand_on(receiver, frame.first_seq, split_items(frame.body, frame.count))
    end.timed_out(Instant(100))
    (frame,) = end.frames(Instant(100))
    hand_on(receiver, frame.first_seq, split_items(frame.body, frame.count))
    end.acknowledged(receiver.ack(), Instant(110))
    assert receiver.received == 8
    assert end.frames(Instant(120)) == []
    assert end.statistics()["frames_resent"] == 1


def test_reconnect_takes_the_place_of_a_recovery():
    end = SendingEnd(C, frame_bytes=1, resend_ns=100)
    end.put(items(1, 4))
    end.frames(NOW)
    end.timed_out(Instant(100))
    end.reconnected(Instant(110))
    assert numbers(end.frames(Instant(110))) == [(1, 1), (2, 1), (3, 1), (4, 1)]
    end.acknowledged(1, Instant(120))
    assert end.frames(Instant(120)) == []


def test_nothing_is_put_after_the_end():
    end = SendingEnd(C)
    end.put(items(1, 2))
    before = end.digest()
    end.put([END_ITEM])
    assert end.cut_position == CutPosition(2, before, ended=True)
    assert end.sent == 3
    with pytest.raises(LocalProtocolError):
        end.put(items(4, 1))
    assert end.sent == 3


def test_end_may_close_a_batch():
    end = SendingEnd(C)
    end.put([*items(1, 2), END_ITEM])
    assert end.cut_position == CutPosition(2, digest_of(items(1, 2)), ended=True)


# --- receiving ------------------------------------------------------------------------------------------------------


def test_items_in_order_pass_through():
    end = ReceivingEnd(C)
    run = items(1, 3)
    assert end.accept(1, run) == [(1, run)]
    assert end.received == 0, "not before they are handed on"
    end.advance(run)
    assert end.cut_position == CutPosition(3, digest_of(run), ended=False)
    assert end.accept(4, []) == []


def test_frame_that_comes_again_is_dropped_and_acknowledged_again():
    end = ReceivingEnd(C)
    hand_on(end, 1, items(1, 3))
    assert end.ack_due
    assert end.ack() == 3
    assert not end.ack_due
    assert end.accept(1, items(1, 3)) == []
    assert end.ack_due
    assert end.statistics()["items_repeated"] == 3


def test_frame_that_comes_again_before_the_first_was_handed_on_is_dropped():
    end = ReceivingEnd(C)
    end.accept(1, items(1, 3))
    assert end.accept(1, items(1, 3)) == []
    assert end.ack() == 0, "what was not handed on is not acknowledged"


def test_batch_that_overlaps_what_was_received_is_cut_to_the_item():
    end = ReceivingEnd(C)
    hand_on(end, 1, items(1, 3))
    assert end.accept(2, items(2, 4)) == [(4, items(4, 2))]


def test_what_is_ahead_of_a_gap_waits_in_order():
    end = ReceivingEnd(C)
    assert end.accept(5, items(5, 2)) == []
    assert end.accept(3, items(3, 2)) == []
    assert not end.ack_due
    assert end.accept(1, items(1, 2)) == [(1, items(1, 2)), (3, items(3, 2)), (5, items(5, 2))]
    assert end.statistics()["ahead_bytes"] == 0


def test_overlapping_runs_ahead_are_cut_to_the_item():
    end = ReceivingEnd(C)
    end.accept(3, items(3, 3))
    end.accept(4, items(4, 4))
    end.accept(4, items(4, 1))
    assert end.accept(1, items(1, 2)) == [(1, items(1, 2)), (3, items(3, 3)), (6, items(6, 2))]
    end.accept(9, items(9, 1))
    assert end.accept(8, items(8, 2)) == [(8, items(8, 2))], "the run ahead held nothing more"
    assert end.statistics()["ahead_runs"] == 0
    assert end.statistics()["ahead_bytes"] == 0


def test_longer_run_takes_the_place_of_a_shorter_one_of_the_same_number():
    end = ReceivingEnd(C)
    end.accept(2, items(2, 1))
    end.accept(2, items(2, 3))
    end.accept(2, items(2, 2))
    assert end.statistics()["ahead_runs"] == 1
    assert end.accept(1, items(1, 1)) == [(1, items(1, 1)), (2, items(2, 3))]


def test_gap_between_runs_ahead_is_respected():
    end = ReceivingEnd(C)
    end.accept(2, items(2, 1))
    end.accept(5, items(5, 1))
    assert end.accept(1, items(1, 1)) == [(1, items(1, 1)), (2, items(2, 1))]
    assert end.accept(3, items(3, 2)) == [(3, items(3, 2)), (5, items(5, 1))]


def test_reorder_buffer_is_bounded_in_bytes_and_counts_tiny_items_by_what_they_cost():
    end = ReceivingEnd(C, reorder_bytes=1_000)
    for first in range(3, 2_000, 2):
        end.accept(first, items(first, 1))
    statistics = end.statistics()
    assert statistics["ahead_bytes"] <= 1_000
    assert statistics["ahead_runs"] < 20
    assert statistics["frames_dropped"] > 900
    assert hand_on(end, 1, items(1, 2))[:2] == items(1, 2)


def test_advance_moves_the_cut_item_by_item():
    """A marker splits a run: position and digest are exact on both sides of it."""
    end = ReceivingEnd(C)
    run = [*items(1, 2), encode_marker_item(Epoch(1)), *items(4, 1)]
    end.accept(1, run)
    end.advance(run[:2])
    assert end.cut_position == CutPosition(2, digest_of(run[:2]), ended=False)
    at_cut = end.hasher()
    end.advance(run[2:3])
    end.advance(run[3:])
    end.advance([])
    assert end.digest() == digest_of(run)
    assert continued_digest(at_cut, run[2:]) == end.digest()
    assert continued_digest(at_cut, run[2:]) == end.digest(), "the hasher at the cut is not used up"


def test_handing_on_more_than_was_accepted_is_our_own_bug():
    end = ReceivingEnd(C)
    end.accept(1, items(1, 2))
    with pytest.raises(LocalProtocolError):
        end.advance(items(1, 3))
    assert end.received == 0


@pytest.mark.parametrize("first", [0, -1, -5])
def test_impossible_numbers_are_refused(first: int):
    end = ReceivingEnd(C)
    with pytest.raises(RemoteProtocolError):
        end.accept(first, items(1, 9))
    assert end.accept(1, items(1, 1)) == [(1, items(1, 1))]


def test_end_has_a_number_and_no_part_in_the_cut():
    end = ReceivingEnd(C)
    hand_on(end, 1, [*items(1, 2), END_ITEM])
    assert end.ended
    assert end.ack() == 3
    assert end.cut_position == CutPosition(2, digest_of(items(1, 2)), ended=True)


def test_nothing_follows_the_end():
    end = ReceivingEnd(C)
    end.accept(1, [END_ITEM, *items(2, 1)])
    end.advance([END_ITEM])
    with pytest.raises(RemoteProtocolError):
        end.advance(items(2, 1))
    with pytest.raises(RemoteProtocolError):
        end.accept(3, items(3, 1))
    assert end.received == 1
    assert end.accept(1, [END_ITEM]) == [], "the end itself may come again"


def test_nothing_follows_an_end_that_is_accepted_and_not_yet_handed_on():
    end = ReceivingEnd(C)
    end.accept(3, items(3, 1))
    end.accept(5, items(5, 1))
    assert end.accept(1, [*items(1, 1), END_ITEM]) == [(1, [*items(1, 1), END_ITEM])], "what was kept ahead is dropped"
    assert end.statistics()["frames_dropped"] == 1
    with pytest.raises(RemoteProtocolError):
        end.accept(3, items(3, 1))
    end.advance([*items(1, 1), END_ITEM])
    assert end.cut_position.number == 1


def test_both_ends_agree_on_every_cut_position():
    sender, receiver = SendingEnd(C, frame_bytes=40), ReceivingEnd(C)
    for first in range(1, 20, 3):
        sender.put(items(first, 3))
        for frame in sender.frames(NOW):
            hand_on(receiver, frame.first_seq, split_items(frame.body, frame.count))
        assert sender.cut_position == receiver.cut_position
