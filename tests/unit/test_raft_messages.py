"""Frames between coordinators: a closed set of shapes, bounded before they are buffered."""

import contextlib
import struct
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.runtime.raft.messages import Hello, decode_hello, decode_message, encode_frame, frame_length
from protocol.errors import LimitExceeded, MalformedFrame
from protocol.limits import RAFT_FRAME_BYTES_MAX, RAFT_HELLO_BYTES_MAX

NO_OP = (b"\x01", 5, 2)
GOOD = [
    {"type": "request_vote", "term": 3, "last_log_index": 7, "last_log_term": 2},
    {"type": "response_vote", "term": 3},
    {"type": "append_entries", "term": 3, "commit_index": 4, "entries": [NO_OP], "prevLogIdx": 4, "prevLogTerm": 2},
    {"type": "append_entries", "term": 3, "commit_index": 4, "entries": [], "prevLogIdx": None, "prevLogTerm": None},
    {"type": "append_entries", "term": 3, "commit_index": 4, "serialized": (b"piece", True, False)},
    {"type": "append_entries", "term": 3, "commit_index": 4, "serialized": None},
    {"type": "next_node_idx", "next_node_idx": 6, "reset": False, "success": True, "term": 3},
    {"type": "apply_command", "command": b"\x01", "request_id": 1},
    {"type": "apply_command", "command": b"\x01"},
    {"type": "apply_command_response", "request_id": 1, "log_idx": 5, "log_term": 2},
    {"type": "apply_command_response", "request_id": 1, "error": 4},
    {"type": "timeout_now", "term": 3},
]


@pytest.mark.parametrize("message", GOOD, ids=lambda m: m["type"])
def test_the_librarys_messages_cross_unchanged(message):
    frame = encode_frame(message)
    assert frame_length(frame[:4], known=True) == len(frame) - 4
    assert decode_message(frame[4:]) == message


@pytest.mark.parametrize(
    "message",
    [
        {"type": "add", "node": "127.0.0.1:39699"},
        {"type": "status"},
        {"type": "request_vote", "term": -1, "last_log_index": 7, "last_log_term": 2},
        {"type": "request_vote", "term": "3", "last_log_index": 7, "last_log_term": 2},
        {"type": "response_vote", "term": 3, "extra": 1},
        {"type": "append_entries", "term": 3, "commit_index": 4},
        {"type": "append_entries", "term": 3, "commit_index": 4, "entries": [NO_OP], "serialized": None},
        {**GOOD[2], "transmission": "start", "data": b""},
        {**GOOD[2], "entries": [(b"\x01", 5, 9)]},
        {**GOOD[2], "entries": [(b"\x02phantom", 5, 2)]},
        {"type": "next_node_idx", "next_node_idx": 0, "reset": True, "success": False, "term": 3},
        {"type": "apply_command", "command": b"\x02"},
        {"type": "apply_command_response", "request_id": 1},
    ],
)
def test_other_shapes_are_refused(message):
    with pytest.raises(MalformedFrame):
        decode_message(msgspec.msgpack.encode(message))


def test_a_frame_is_refused_by_its_length_alone():
    """The stock library buffers 2^31-1 announced bytes; here four bytes decide."""
    assert frame_length(struct.pack(">I", RAFT_FRAME_BYTES_MAX), known=True) == RAFT_FRAME_BYTES_MAX
    for length, known in ((2**31 - 1, True), (RAFT_FRAME_BYTES_MAX + 1, True), (RAFT_HELLO_BYTES_MAX + 1, False)):
        with pytest.raises(MalformedFrame, match="at most"):
            frame_length(struct.pack(">I", length), known=known)


def test_a_frame_that_would_inflate_is_not_inflated():
    """194 KB that zlib blows up to 200 MB: nothing here decompresses."""
    bomb = zlib.compress(bytes(200_000_000), 9)
    assert len(bomb) < RAFT_FRAME_BYTES_MAX
    with pytest.raises(MalformedFrame):
        decode_message(bomb)


def test_deep_nesting_and_huge_announced_arrays_are_refused():
    for body in (b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"):
        with pytest.raises(MalformedFrame):
            decode_message(body)


def test_our_own_oversized_frame_is_an_error_here_and_not_at_the_peer():
    with pytest.raises(LimitExceeded):
        encode_frame({"type": "apply_command", "command": bytes(RAFT_FRAME_BYTES_MAX)})


def test_hellos_cross_and_nothing_else_is_one():
    hello = Hello(version=1, cluster="demo", source="c1", target="c2")
    assert decode_hello(encode_frame(hello)[4:]) == hello
    with pytest.raises(MalformedFrame):
        decode_hello(encode_frame(GOOD[0])[4:])


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_malformed_frame(data):
    for decode in (decode_message, decode_hello):
        with contextlib.suppress(MalformedFrame):
            decode(data)
