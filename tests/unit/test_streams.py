"""Streams that outlive a session: which base both ends name, and what an end that is resumed does."""

from __future__ import annotations

import itertools

import pytest
from blake3 import blake3

from protocol.channel import ReceivingEnd, SendingEnd, continued_digest
from protocol.errors import RemoteProtocolError
from protocol.ids import ChannelId
from protocol.items import END_ITEM, encode_message_item, split_items
from protocol.messages import Member
from protocol.streams import StreamEnd, line_of, stream_base

CHANNEL = ChannelId("a", "b")
ITEMS = [encode_message_item(bytes([number]) * number) for number in range(1, 30)]


def digest_of(items: list[bytes]) -> str:
    return "b3:" + blake3(b"".join(items)).hexdigest()


def member(name: str, session: int, line: int = 0, *streams: StreamEnd) -> Member:
    return Member(id=name, session=session, line=line, streams=streams)


def test_a_member_that_begins_is_a_line_of_its_own():
    assert line_of(member("a", 7)) == 7
    assert line_of(member("a", 7, 3)) == 3


def test_the_later_session_says_where_the_digest_begins():
    a = member("a", 9, 1, StreamEnd("b", 2, 40, 50))
    b = member("b", 2)
    assert stream_base(a, b) == 40
    assert stream_base(b, a) == 50
    # Later still, the other one came back, too: now it is its word that counts, in both directions.
    again = member("b", 11, 2, StreamEnd("a", 1, 55, 45))
    assert stream_base(a, again) == 45
    assert stream_base(again, a) == 55


def test_a_stream_with_somebody_new_is_computed_from_its_beginning():
    a = member("a", 9, 1, StreamEnd("b", 2, 40, 50))
    assert stream_base(a, member("b", 12)) == 0, "b began after a came back"
    assert stream_base(a, member("b", 5)) == 0, "a's log knows an earlier b"
    assert stream_base(a, member("c", 3)) == 0, "a's log knows no c"


@pytest.mark.parametrize("acknowledged", [0, 1, 7, 20])
def test_a_sender_that_is_resumed_sends_what_may_be_missing_again_with_its_numbers(acknowledged: int):
    sent = 20
    end = SendingEnd(CHANNEL, frame_bytes=64)
    end.resume(sent, ITEMS[acknowledged:sent], 0)
    end.rebase(sent)
    assert end.in_flight_bytes == sum(map(len, ITEMS[acknowledged:sent]))
    receiver = ReceivingEnd(CHANNEL)
    receiver.resume(acknowledged)
    receiver.rebase(sent)
    end.put(ITEMS[sent:25])
    for frame in end.frames(0):
        for _, items in receiver.accept(frame.first_seq, split_items(frame.body, frame.count)):
            receiver.advance(items)
    assert receiver.received == end.sent == 25
    assert receiver.digest() == end.digest() == digest_of(ITEMS[sent:25])
    end.acknowledged(receiver.ack(), 0)
    assert end.in_flight_bytes == 0


@pytest.mark.parametrize("base", range(5, 13))
def test_a_survivor_computes_the_digest_from_the_base_on(base: int):
    end = SendingEnd(CHANNEL, frame_bytes=50)
    end.put(ITEMS[:8])
    end.frames(0)
    end.put(ITEMS[8:12])
    end.acknowledged(5, 0)
    end.rebase(base)
    assert end.digest() == digest_of(ITEMS[base:12])
    end.put([ITEMS[12], END_ITEM])
    assert end.digest() == digest_of(ITEMS[base:13])


def test_a_base_that_is_none_is_refused():
    end = SendingEnd(CHANNEL)
    end.put(ITEMS[:8])
    end.frames(0)
    end.acknowledged(5, 0)
    for wrong in (4, 9):
        with pytest.raises(RemoteProtocolError):
            end.rebase(wrong)
    receiver = ReceivingEnd(CHANNEL)
    receiver.accept(1, ITEMS[:3])
    receiver.advance(ITEMS[:3])
    with pytest.raises(RemoteProtocolError):
        receiver.rebase(2)


@pytest.mark.parametrize(("cut", "base"), [*itertools.product(range(3, 9), repeat=2)])
def test_a_cut_before_the_base_has_the_digest_of_what_follows_it(cut: int, base: int):
    receiver = ReceivingEnd(CHANNEL)
    receiver.resume(3)
    receiver.rebase(base)
    receiver.accept(4, ITEMS[3:10])
    receiver.advance(ITEMS[3:cut])
    hasher = receiver.hasher()
    receiver.advance(ITEMS[cut:10])
    assert continued_digest(hasher, ITEMS[cut:10], skipped=max(0, base - cut)) == digest_of(ITEMS[base:10])
    assert receiver.digest() == digest_of(ITEMS[base:10])


def test_nothing_leaves_beyond_what_may_and_what_may_be_acknowledged():
    end = SendingEnd(CHANNEL)
    end.put(ITEMS[:3])
    end.put(ITEMS[3:5])
    assert end.frames(0, 0) == []
    assert [(frame.first_seq, frame.count) for frame in end.frames(0, 3)] == [(1, 3)]
    assert [(frame.first_seq, frame.count) for frame in end.frames(0, 5)] == [(4, 2)]
    receiver = ReceivingEnd(CHANNEL)
    receiver.accept(1, ITEMS[:5])
    receiver.advance(ITEMS[:5])
    assert (receiver.ack(3), receiver.ack_due) == (3, True)
    assert (receiver.ack(), receiver.ack_due) == (5, False)
