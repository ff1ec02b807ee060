"""protocol.items: what a channel carries, and what is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import LimitExceeded, LocalProtocolError, MalformedFrame
from protocol.ids import Epoch
from protocol.items import (
    END_ITEM,
    KIND_END,
    KIND_MARKER,
    KIND_MESSAGE,
    control_positions,
    encode_marker_item,
    encode_message_item,
    item_kind,
    marker_epoch,
    message_count,
    message_payload,
    split_items,
)
from protocol.limits import MESSAGE_BYTES_MAX

MESSAGE = encode_message_item(b"hello")
MARKER = encode_marker_item(Epoch(7))


def test_encoded_items_are_exactly_these_bytes():
    """Golden: digests in stored manifests are over them."""
    assert MESSAGE == b"\x01\x00\x00\x00\x05hello"
    assert MARKER == b"\x02\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x07"
    assert END_ITEM == b"\x03\x00\x00\x00\x00"


def test_items_say_what_they_are():
    assert [item_kind(item) for item in (MESSAGE, MARKER, END_ITEM)] == [KIND_MESSAGE, KIND_MARKER, KIND_END]
    assert message_payload(MESSAGE) == b"hello"
    assert marker_epoch(MARKER) == 7


def test_asking_one_kind_for_what_another_has_is_refused():
    for item in (MARKER, END_ITEM):
        with pytest.raises(LocalProtocolError):
            message_payload(item)
    for item in (MESSAGE, END_ITEM):
        with pytest.raises(LocalProtocolError):
            marker_epoch(item)


def test_what_cannot_be_an_item_is_not_made():
    with pytest.raises(LocalProtocolError):
        encode_message_item(b"")
    with pytest.raises(LimitExceeded):
        encode_message_item(bytes(MESSAGE_BYTES_MAX + 1))
    for epoch in (0, -1, 1 << 63):
        with pytest.raises(LocalProtocolError):
            encode_marker_item(Epoch(epoch))


def test_largest_message_comes_back():
    item = encode_message_item(bytes(MESSAGE_BYTES_MAX))
    assert split_items(item, 1) == [item]


ITEMS = st.tuples(
    st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=40).map(encode_message_item),
            st.integers(1, (1 << 63) - 1).map(lambda epoch: encode_marker_item(Epoch(epoch))),
        ),
        max_size=20,
    ),
    st.sampled_from([[], [END_ITEM]]),
).map(lambda parts: parts[0] + parts[1])


@given(ITEMS)
def test_split_gives_back_what_was_joined(items: list[bytes]):
    body = b"".join(items)
    assert split_items(body, len(items)) == items
    assert split_items(memoryview(body), len(items)) == items


@given(ITEMS, st.data())
def test_cut_or_changed_bodies_are_refused_or_are_other_items(items: list[bytes], data):
    """Accepts what is well formed, or raises MalformedFrame; never anything else, and never other bytes."""
    body = bytearray(b"".join(items))
    if body:
        place = data.draw(st.integers(0, len(body) - 1))
        if data.draw(st.booleans()):
            body[place] = data.draw(st.integers(0, 255))
        else:
            del body[place:]
    count = len(items) + data.draw(st.integers(-1, 1))
    with suppress(MalformedFrame):
        assert b"".join(split_items(bytes(body), count)) == body


@given(st.binary(max_size=200), st.integers(-2, 50))
def test_any_bytes_split_or_are_malformed(body: bytes, count: int):
    with suppress(MalformedFrame):
        assert len(split_items(body, count)) == count


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (MESSAGE, 0),
        (MESSAGE, 2),
        (MESSAGE[:-1], 1),
        (MESSAGE + b"\x01", 1),
        (MESSAGE + b"\x01\x00\x00\x00", 1),
        (b"\x00\x00\x00\x00\x01x", 1),
        (b"\x04\x00\x00\x00\x01x", 1),
        (b"\x01\x00\x00\x00\x00", 1),
        (b"\x01\xff\xff\xff\xff" + bytes(10), 1),
        (b"\x02\x00\x00\x00\x07" + bytes(7), 1),
        (b"\x02\x00\x00\x00\x08" + bytes(8), 1),
        (b"\x02\x00\x00\x00\x08" + b"\xff" * 8, 1),
        (b"\x02\x00\x00\x00\x08" + bytes(5), 1),
        (b"\x03\x00\x00\x00\x01x", 1),
        (END_ITEM + MESSAGE, 2),
        (END_ITEM + END_ITEM, 2),
        (b"", 1),
        (b"", -1),
    ],
)
def test_odd_bodies_are_malformed(body: bytes, count: int):
    with pytest.raises(MalformedFrame):
        split_items(body, count)


def test_announced_count_cannot_make_us_allocate():
    with pytest.raises(MalformedFrame):
        split_items(MESSAGE, 1 << 40)


@given(ITEMS)
def test_control_positions_are_where_the_others_lie(items: list[bytes]):
    positions = control_positions(items)
    assert positions == [index for index, item in enumerate(items) if item_kind(item) != KIND_MESSAGE]
    assert message_count(items) == len(items) - len(positions)
