"""A segment's bytes: golden, chained, and what each kind of damage means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participant.logs.segment import (
    BATCH_OVERHEAD,
    CorruptLog,
    End,
    SegmentHeader,
    decode_segment_header,
    encode_batch,
    encode_segment_header,
    ordinal_of,
    read_batches,
    segment_name,
)

HEADER = SegmentHeader(
    kind="turns",
    cluster="demo",
    participant="p1",
    incarnation=3,
    session=9,
    ordinal=2,
    first=101,
    chain=b"c" * 16,
    size=77,
)


def segment(*batches: list[bytes]) -> tuple[bytes, list[End]]:
    data, end = encode_segment_header(HEADER)
    ends = [end]
    for records in batches:
        batch, end = encode_batch(end, records, at=5)
        data += batch
        ends.append(end)
    return data, ends


def read(data: bytes, size: int | None = None):
    header, start = decode_segment_header(data, "here")
    assert header == HEADER
    return read_batches(data, start, "here", size=size)


def test_what_was_written_is_read_with_its_numbers():
    data, ends = segment([b"\x01", b"\x02"], [b"\x03"])
    batches, end = read(data)
    assert [(batch.first, batch.records_count, batch.at, bytes(batch.body)) for batch in batches] == [
        (101, 2, 5, b"\x92\x01\x02"),
        (103, 1, 5, b"\x91\x03"),
    ]
    assert end == ends[-1] == End(len(data), 104, end.chain)


def test_bytes_are_those_of_format_1():
    """Golden: a log that was written by an earlier build must be read."""
    data, _ = segment([b"\x01"])
    assert data[:12].hex() == "434c43544c4f473100000072"
    batch = data[-(2 + BATCH_OVERHEAD) :]
    assert batch.hex() == (
        "434c4231785bc4e50000000000000082000000000000006500000000000000050000000100000002000000001db90ef23d77874284aa"
        "7d97b99b58ae91010a"
    )


@pytest.mark.parametrize("count", [1, 15, 16, 65_535, 65_536])
def test_any_number_of_records_makes_one_array(count: int):
    import msgspec

    data, _ = segment([b"\xc0"] * count)
    ((batch,), end) = read(data)
    assert msgspec.msgpack.decode(batch.body) == [None] * count
    assert end.next == 101 + count


def test_a_file_cut_at_any_byte_gives_whole_batches_or_is_refused_before_the_first():
    """I17: every cut point. The first batch is made together with the segment."""
    data, ends = segment([b"\x01", b"\x02"], [b"\x03"], [b"\x04"] * 20)
    for size in range(len(data)):
        try:
            batches, end = read(data[:size])
        except CorruptLog:
            assert size < ends[1].size
            continue
        whole = [end for end in ends if end.size <= size]
        assert end == whole[-1]
        assert len(batches) == len(whole) - 1


def test_a_flipped_bit_anywhere_is_noticed():
    """I16: in the middle it is a hole; in the last batch, which is complete, it is damage as well."""
    data, _ = segment([b"\x01", b"\x02"], [b"\x03"], [b"\x04", b"\x05"])
    for byte in range(len(data)):
        damaged = bytearray(data)
        damaged[byte] ^= 1 << (byte % 8)
        with pytest.raises(CorruptLog):
            read(bytes(damaged))


def test_two_swapped_batches_are_noticed():
    """Misdirected writes: both batches are whole."""
    data, ends = segment([b"\x00"], [b"\x01"], [b"\x02"])
    first, second = data[ends[1].size : ends[2].size], data[ends[2].size :]
    with pytest.raises(CorruptLog):
        read(data[: ends[1].size] + second + first)


def test_a_batch_of_another_log_in_the_same_place_breaks_the_chain():
    data, ends = segment([b"\x01"], [b"\x02"])
    other, _ = segment([b"\x07"], [b"\x08"])
    assert len(other) == len(data)
    with pytest.raises(CorruptLog):
        read(data[: ends[1].size] + other[ends[1].size :])


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_sectors_that_were_never_written_are_a_torn_tail(missing: int):
    """The file is as long as it should be; a power loss kept some of its sectors."""
    data, ends = segment([b"\x01"], [b"\xc4\xff" + b"x" * 255] * 6)
    start = ends[1].size - ends[1].size % 512 + 512 * missing
    torn = bytearray(data)
    torn[max(start, ends[1].size) : start + 512] = bytes(len(torn[max(start, ends[1].size) : start + 512]))
    batches, end = read(bytes(torn))
    assert (len(batches), end) == (1, ends[1])


def test_sectors_that_are_zeros_by_right_do_not_hide_damage():
    """A user's state may be all zeros. Damage in such a batch is damage, and a missing sector is a torn tail still."""
    data, _ = segment([b"\x01"], [b"\xc5\x10\x00" + bytes(4096), b"\xc4\xff" + b"x" * 255, b"\xc4\xff" + b"x" * 255])
    assert len(read(data)[0]) == 2
    damaged = bytearray(data)
    damaged[-50] ^= 1
    with pytest.raises(CorruptLog, match="written completely"):
        read(bytes(damaged))
    start = len(data) - len(data) % 512
    torn = data[:start] + bytes(len(data) - start)
    assert len(read(torn)[0]) == 1


def test_damage_before_a_good_batch_is_a_hole_even_if_it_looks_torn():
    data, ends = segment([b"\x01"], [b"\xc5\x04\x00" + b"x" * 1024], [b"\x03"])
    start = ends[1].size - ends[1].size % 512 + 512
    holed = data[:start] + bytes(512) + data[start + 512 :]
    with pytest.raises(CorruptLog, match="follows at byte"):
        read(holed)


def test_what_lies_behind_the_end_that_the_next_segment_names_is_not_read():
    data, ends = segment([b"\x01"], [b"\x02"])
    batches, end = read(data, size=ends[1].size)
    assert (len(batches), end) == (1, ends[1])
    assert len(read(data + b"garbage", size=len(data))[0]) == 2


def test_a_segment_shorter_than_the_next_one_says_has_lost_something():
    data, _ = segment([b"\x01"], [b"\x02"])
    with pytest.raises(CorruptLog, match="the segment after it"):
        read(data, size=len(data) + 1)
    with pytest.raises(CorruptLog, match="later segments follow"):
        read(data[:-1] + b"x", size=len(data))


def test_other_files_are_no_segments():
    assert ordinal_of(segment_name(7)) == 7
    for name in ("owner.json", ".tmp-1-a", "1.log", "00000000000a.log", "\u0660" * 12 + ".log"):
        assert ordinal_of(name) is None
    with pytest.raises(CorruptLog, match="not a log"):
        decode_segment_header(b"x" * 200, "here")
    with pytest.raises(CorruptLog, match="too short"):
        decode_segment_header(b"", "here")


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 30))
def test_any_bytes_in_place_of_any_others_are_read_or_refused_and_nothing_else(found: bytes, offset: int, cut: int):
    """Hostile or rotten: a log's reader raises `CorruptLog`, or gives whole batches that were written."""
    data, ends = segment([b"\x01", b"\x02"], [b"\x03"], [b"\x04"] * 9)
    damaged = data[:offset] + found + data[offset + len(found) :]
    damaged = damaged[: len(damaged) - cut]
    try:
        header, start = decode_segment_header(damaged, "here")
        batches, end = read_batches(damaged, start, "here")
    except CorruptLog as error:
        assert str(error).isprintable()  # noqa: PT017 - both outcomes are right
        return
    assert header == HEADER
    assert end in ends[: len(batches) + 1]
