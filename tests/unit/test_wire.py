"""protocol.wire: frames to bytes and back, and what is refused."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ForgedFrame, MalformedFrame, UnsupportedVersion, WireError
from protocol.keys import ClusterKeys
from protocol.limits import FRAME_BYTES_MAX, FRAME_ITEMS_MAX
from protocol.wire import HEADER_BYTES, KIND_ACK, KIND_DATA, MAC_BYTES, FrameCodec, FrameHeader, cluster_tag

DATA = Path(__file__).parent / "data"
KEYS = ClusterKeys.from_secret(bytes(range(32)))
BODY = b"\x01\x00\x00\x00\x05hello" + b"\x02\x00\x00\x00\x08" + (7).to_bytes(8, "big")
FIELDS = {
    "kind": KIND_DATA,
    "incarnation": 3,
    "source_session": 11,
    "target_session": 12,
    "epoch": 7,
    "first": 41,
    "ack": 99,
    "count": 2,
    "source": "buyer-1",
    "target": "ledger.main",
    "body": BODY,
}
ACK = FIELDS | {"kind": KIND_ACK, "first": 0, "count": 0, "body": b""}
HEADER = FrameHeader(KIND_DATA, 3, 11, 12, 7, 41, 99, 2, "buyer-1", "ledger.main")


@pytest.fixture
def codec():
    return FrameCodec("demo", KEYS)


def patched(frame, offset, form, value):
    changed = bytearray(frame)
    struct.pack_into(form, changed, offset, value)
    return bytes(changed)


@pytest.mark.parametrize(("name", "fields"), [("frame-v1-data", FIELDS), ("frame-v1-ack", ACK)])
def test_version_1_is_these_bytes_for_ever(codec, name, fields):
    """Golden bytes: a change here is a new format version."""
    golden = bytes.fromhex((DATA / f"{name}.hex").read_text())
    assert codec.encode(**fields) == golden
    header, body = codec.verify_and_open(golden)
    assert body == fields["body"]
    assert {name: getattr(header, name) for name in FIELDS if name != "body"} == {
        name: value for name, value in fields.items() if name != "body"
    }


def test_header_and_body_come_back_as_they_were_sent(codec):
    header, body = codec.verify_and_open(codec.encode(**FIELDS))
    assert header == HEADER
    assert header.channel == ("buyer-1", "ledger.main")
    assert body == BODY


def test_peek_reads_the_header_without_the_key(codec):
    stranger = FrameCodec("demo", ClusterKeys.from_secret(bytes(range(1, 33))))
    assert stranger.peek(codec.encode(**FIELDS)) == HEADER


@pytest.mark.parametrize("size", [100, 16_379, 16_384, 300_000])
def test_short_and_long_bodies_are_signed_alike(codec, size):
    """The encoder has two ways; the decoder has one."""
    body = b"\x01" + (size - 5).to_bytes(4, "big") + bytes(size - 5)
    header, opened = codec.verify_and_open(codec.encode(**(FIELDS | {"body": body, "count": 1})))
    assert opened == body
    assert header.count == 1


def test_a_frame_of_exactly_the_limit_passes_and_one_byte_more_does_not(codec):
    room = FRAME_BYTES_MAX - HEADER_BYTES - len("buyer-1ledger.main") - MAC_BYTES
    fields = FIELDS | {"count": 1, "body": bytes(room)}
    frame = codec.encode(**fields)
    assert len(frame) == FRAME_BYTES_MAX
    assert len(codec.verify_and_open(frame)[1]) == room
    with pytest.raises(AssertionError, match="larger than a frame"):
        codec.encode(**(fields | {"body": bytes(room + 1)}))
    with pytest.raises(MalformedFrame, match=f"at most {FRAME_BYTES_MAX}"):
        codec.verify_and_open(frame + b"x")


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 0},
        {"first": 0},
        {"count": FRAME_ITEMS_MAX + 1},
        {"kind": KIND_ACK},
        {"kind": 3, "count": 0, "first": 0, "body": b""},
        {"target": "buyer-1"},
    ],
)
def test_our_own_bugs_do_not_become_frames(wrong):
    with pytest.raises(AssertionError):
        FrameCodec("demo", KEYS).encode(**(FIELDS | wrong))


def test_every_truncation_is_refused(codec):
    frame = codec.encode(**FIELDS)
    for size in range(len(frame)):
        with pytest.raises(MalformedFrame):
            codec.verify_and_open(frame[:size])


def test_every_flipped_bit_is_refused(codec):
    frame = codec.encode(**FIELDS)
    codec.verify_and_open(frame)
    for offset in range(len(frame)):
        for bit in range(8):
            changed = bytearray(frame)
            changed[offset] ^= 1 << bit
            with pytest.raises(UnsupportedVersion if offset == 4 else WireError):
                codec.verify_and_open(bytes(changed))


@pytest.mark.parametrize(
    ("offset", "form", "value", "error", "says"),
    [
        (0, ">4s", b"HTTP", MalformedFrame, "begins with b'HTTP'"),
        (4, ">B", 2, UnsupportedVersion, "version 2; this build reads version 1"),
        (5, ">B", 9, MalformedFrame, "unknown kind 9"),
        (5, ">B", KIND_ACK, MalformedFrame, "acknowledgement with 2 items"),
        (6, ">8s", cluster_tag("other"), MalformedFrame, "another cluster"),
        (14, ">Q", 0, MalformedFrame, "incarnation or session 0"),
        (22, ">Q", 0, MalformedFrame, "incarnation or session 0"),
        (30, ">Q", 0, MalformedFrame, "incarnation or session 0"),
        (46, ">Q", 0, MalformedFrame, "2 items from number 0"),
        (62, ">I", 0, MalformedFrame, "says 0 items"),
        (62, ">I", 6, MalformedFrame, "says 6 items"),
        (62, ">I", 2**32 - 1, MalformedFrame, "says 4294967295 items"),
        (66, ">I", 2**31 - 1, MalformedFrame, "length that its header says"),
        (70, ">B", 255, MalformedFrame, "length that its header says"),
        (72, ">B", ord("/"), MalformedFrame, "not a legal name"),
        (72, ">B", 0, MalformedFrame, "not a legal name"),
        (72, ">B", 0xC3, MalformedFrame, "not a legal name"),
        (14, ">Q", 4, ForgedFrame, "from buyer-1 to ledger.main: the MAC"),
        (46, ">Q", 42, ForgedFrame, "MAC"),
        (54, ">Q", 100, ForgedFrame, "MAC"),
    ],
)
def test_each_wrong_field_is_named(codec, offset, form, value, error, says):
    with pytest.raises(error, match=says):
        codec.verify_and_open(patched(codec.encode(**FIELDS), offset, form, value))


def test_names_whose_border_was_moved_are_refused(codec):
    """Source and target lie back to back: shifting a letter from one to the other must not verify."""
    frame = bytearray(codec.encode(**FIELDS))
    frame[70] -= 1
    frame[71] += 1
    with pytest.raises(WireError):
        codec.verify_and_open(bytes(frame))


def test_a_frame_to_itself_is_refused(codec):
    frame = codec.encode(**(FIELDS | {"source": "aa", "target": "ab"})).replace(b"aaab", b"aaaa")
    with pytest.raises(MalformedFrame, match="from aa to itself"):
        codec.verify_and_open(frame)


def test_a_frame_made_with_another_secret_is_forged(codec):
    other = FrameCodec("demo", ClusterKeys.from_secret(bytes(range(1, 33))))
    with pytest.raises(ForgedFrame):
        codec.verify_and_open(other.encode(**FIELDS))


def test_the_key_of_one_channel_signs_for_no_other(codec):
    """Who holds buyer-1's key cannot speak as somebody else (RELIABILITY.md T1)."""
    frame = codec.encode(**FIELDS).replace(b"buyer-1", b"buyer-2")
    with pytest.raises(ForgedFrame):
        codec.verify_and_open(frame)


def test_a_frame_of_another_cluster_is_refused_even_with_the_same_secret(codec):
    with pytest.raises(MalformedFrame, match="another cluster"):
        codec.verify_and_open(FrameCodec("demo-2", KEYS).encode(**FIELDS))


def test_a_replayed_frame_is_genuine_here(codec):
    """Repetition is for the channel machine to see: the frame opens the same way twice."""
    frame = codec.encode(**FIELDS)
    assert codec.verify_and_open(frame) == codec.verify_and_open(frame)


def test_strangers_frames_leave_nothing_behind():
    codec, stranger = FrameCodec("demo", KEYS), FrameCodec("demo", ClusterKeys.from_secret(bytes(range(1, 33))))
    for number in range(50):
        with pytest.raises(ForgedFrame):
            codec.verify_and_open(stranger.encode(**(FIELDS | {"source": f"p{number}"})))
    assert not codec._arriving


def test_the_memory_of_channels_is_bounded(monkeypatch):
    monkeypatch.setattr("protocol.wire.CHANNELS_REMEMBERED_MAX", 8)
    sender, receiver = FrameCodec("demo", KEYS), FrameCodec("demo", KEYS)
    for number in range(50):
        receiver.verify_and_open(sender.encode(**(FIELDS | {"source": f"p{number}"})))
    assert len(sender._leaving) <= 8
    assert len(receiver._arriving) <= 8


@pytest.mark.slow
@given(
    incarnation=st.integers(1, 2**64 - 1),
    first=st.integers(1, 2**64 - 1),
    ack=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**64 - 1),
    source=st.from_regex(r"[a-m][a-z0-9._-]{0,62}", fullmatch=True),
    target=st.from_regex(r"[n-z][a-z0-9._-]{0,62}", fullmatch=True),
    payload=st.binary(max_size=300),
)
def test_whatever_is_encoded_opens_as_itself(incarnation, first, ack, epoch, source, target, payload):
    codec = FrameCodec("demo", KEYS)
    fields = FIELDS | {
        "incarnation": incarnation,
        "first": first,
        "ack": ack,
        "epoch": epoch,
        "source": source,
        "target": target,
        "body": b"\x01" + len(payload).to_bytes(4, "big") + payload,
        "count": 1,
    }
    header, body = codec.verify_and_open(codec.encode(**fields))
    assert body == fields["body"]
    for name in ("incarnation", "first", "ack", "epoch", "source", "target", "count"):
        assert getattr(header, name) == fields[name]
