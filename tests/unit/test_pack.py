"""protocol.pack: building, reading, bombs, corruption that is named."""

import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from protocol import pack as pack_module
from protocol.digests import digest
from protocol.errors import LimitExceeded, ObjectCorrupt, ObjectMissing, StoreError
from protocol.limits import CHUNK_BYTES_MAX, MIB, PACK_TARGET_BYTES
from protocol.manifest import ChunkRef
from protocol.pack import ChunkReader, PackBuilder, PackReader
from protocol.storage.memory import MemoryStore

DATA = Path(__file__).parent / "data"
TEXT = b"the same words again and again. " * 100


def packed(*chunks):
    builder = PackBuilder()
    for chunk in chunks:
        builder.add(chunk)
    return builder.finish()


def forged(payload, *, name=None, stored=None, length=None, offset=8, method=1, version=1, count=1):
    """A pack whose digests all fit but whose index says what we want: the work of somebody who can write to the store."""
    index = struct.pack(
        ">32sQIIB",
        bytes.fromhex((name or digest(b"x"))[3:]),
        offset,
        len(payload) if stored is None else stored,
        length if length is not None else 100,
        method,
    )
    header = struct.pack(">4sB3x", b"CLPK", version)
    check = pack_module.blake3(header + index).digest()
    return header + payload + index + struct.pack(">32sQIB4s", check, 8 + len(payload), count, version, b"KPLC")


def test_chunks_come_back_by_their_digest():
    chunks = [b"", b"x", TEXT, os.urandom(5000), TEXT + b"!"]
    data, name, index = packed(*chunks)
    assert name == digest(data)
    reader = PackReader.from_bytes(data)
    assert [reader.chunk(digest(chunk)) for chunk in chunks] == chunks
    assert [chunk for _, chunk in reader.chunks()] == chunks
    assert reader.entries == index
    assert digest(TEXT) in reader
    assert digest(b"other") not in reader


def test_what_shrinks_is_compressed_and_what_does_not_is_stored():
    noise = os.urandom(5000)
    _, _, (small, text, random) = packed(b"x" * 20, TEXT, noise)
    assert (small.method, small.stored) == (pack_module.STORED, 20)
    assert text.method == pack_module.ZSTD
    assert text.stored < len(TEXT) // 4
    assert (random.method, random.stored) == (pack_module.STORED, 5000)


def test_a_chunk_that_is_added_twice_lies_there_once():
    builder = PackBuilder()
    assert builder.add(TEXT) == builder.add(bytes(TEXT)) == digest(TEXT)
    assert len(builder) == 1
    assert digest(TEXT) in builder


def test_an_empty_pack_is_a_pack():
    data, _, index = packed()
    assert index == ()
    assert PackReader.from_bytes(data).entries == ()


def test_version_1_is_these_bytes_for_ever():
    """Golden bytes, read only: another version of zstd may compress differently, but must read this."""
    data = bytes.fromhex((DATA / "pack-v1.hex").read_text())
    reader = PackReader.from_bytes(data)
    assert [chunk for _, chunk in reader.chunks()] == [b"stored as it is", TEXT]
    assert [entry.method for entry in reader.entries] == [pack_module.STORED, pack_module.ZSTD]


def test_a_pack_is_full_at_its_target_and_says_how_large_it_is(monkeypatch):
    monkeypatch.setattr(pack_module, "PACK_TARGET_BYTES", 10_000)
    builder = PackBuilder()
    assert not builder.full
    builder.add(os.urandom(9_000))
    assert not builder.full
    builder.add(os.urandom(1_000))
    assert builder.full
    assert builder.size_bytes == 8 + 10_000


def test_a_finished_builder_takes_nothing_more():
    builder = PackBuilder()
    builder.finish()
    with pytest.raises(AssertionError):
        builder.add(b"x")
    with pytest.raises(AssertionError):
        builder.finish()


def test_a_chunk_over_the_limit_is_refused_and_changes_nothing():
    builder = PackBuilder()
    with pytest.raises(LimitExceeded, match="at most 8388608"):
        builder.add(bytes(CHUNK_BYTES_MAX + 1))
    assert builder.finish() == PackBuilder().finish()


def test_the_largest_chunk_comes_back():
    chunk = os.urandom(1024) * (CHUNK_BYTES_MAX // 1024)
    data, _, (entry,) = packed(chunk)
    assert entry.method == pack_module.ZSTD
    assert PackReader.from_bytes(data).chunk(digest(chunk)) == chunk


# --- hostile and damaged ---------------------------------------------------------------------------------------------


def test_a_bomb_is_refused_after_one_byte_too_many():
    """200 KB that unfold into 2 GB: never more is unfolded than the index says, whatever the zstd frame says."""
    bomb = zstd.compress(bytes(64 * MIB))
    data = forged(bomb, length=100)
    with pytest.raises(ObjectCorrupt, match="unfolds into more than the 100 bytes"):
        PackReader.from_bytes(data).chunk(digest(b"x"))


def test_a_bomb_with_an_honest_size_is_refused_from_the_index():
    data = forged(zstd.compress(bytes(64 * MIB)), length=64 * MIB)
    with pytest.raises(ObjectCorrupt, match="67108864 unfolded"):
        PackReader.from_bytes(data)


def test_a_frame_with_a_huge_window_is_refused():
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    # Streamed, so that the frame must declare the window itself.
    frame = compressor.compress(os.urandom(1000), zstd.ZstdCompressor.FLUSH_BLOCK) + compressor.flush()
    with pytest.raises(ObjectCorrupt, match=f"chunk {digest(b'x')}: "):
        PackReader.from_bytes(forged(frame, length=1000)).chunk(digest(b"x"))


def test_refusing_a_bomb_takes_no_more_memory_than_the_index_allows():
    """T8: 200 KB that want to be 2 GB; what is refused has cost less than twice what a chunk may have."""
    data = forged(zstd.compress(bytes(CHUNK_BYTES_MAX)) * 200, length=CHUNK_BYTES_MAX)
    tracemalloc.start()
    try:
        with pytest.raises(ObjectCorrupt):
            PackReader.from_bytes(data).chunk(digest(b"x"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * CHUNK_BYTES_MAX + 2 * MIB


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"not zstd at all", "chunk b3:.*: "),
        (zstd.compress(TEXT)[:-3], "not one zstd frame"),
        (zstd.compress(TEXT) + b"tail", "not one zstd frame"),
        (zstd.compress(TEXT[:50]), f"expected {len(TEXT)} bytes, found 50"),
        (zstd.compress(TEXT), f"expected this digest, found {digest(TEXT)}"),
        (b"", "not one zstd frame"),
    ],
)
def test_a_chunk_that_does_not_fit_is_named_with_what_was_found(payload, says):
    reader = PackReader.from_bytes(forged(payload, length=len(TEXT)), key="packs/ab/abcd")
    with pytest.raises(ObjectCorrupt, match=says) as caught:
        reader.chunk(digest(b"x"))
    assert caught.value.key == "packs/ab/abcd"


@pytest.mark.parametrize(
    "wrong",
    [
        {"offset": 0},
        {"offset": 2**63},
        {"stored": 2**32 - 1},
        {"length": 2**31 - 1},
        {"method": 2},
        {"method": 0, "length": 99},
    ],
)
def test_an_index_entry_that_points_outside_is_refused(wrong):
    with pytest.raises(ObjectCorrupt, match="index entry of chunk b3:"):
        PackReader.from_bytes(forged(b"payload", **wrong))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"count": 2}, "index of 2 chunks"),
        ({"count": 2**32 - 1}, "index of 4294967295"),
        ({"version": 2}, "version 2; this build"),
    ],
)
def test_a_footer_that_lies_is_refused(wrong, says):
    with pytest.raises(ObjectCorrupt, match=says):
        PackReader.from_bytes(forged(b"payload", **wrong))


def test_a_header_that_lies_is_refused():
    data = forged(b"payload")
    index = data[15:64]
    header = b"CLPX\x01\0\0\0"
    check = pack_module.blake3(header + index).digest()
    with pytest.raises(ObjectCorrupt, match="expected header b'CLPK' version 1, found b'CLPX"):
        PackReader.from_bytes(header + data[8:64] + check + data[96:])


def test_every_truncation_is_refused():
    data, _, _ = packed(TEXT, b"second")
    for size in range(len(data)):
        with pytest.raises(ObjectCorrupt):
            PackReader.from_bytes(data[:size])


def test_every_flipped_bit_is_noticed():
    """Mutate each byte (I16): either the pack does not open, or the chunk whose byte it is does not."""
    data, name, index = packed(b"stored as it is", TEXT)
    for offset in range(len(data)):
        changed = bytearray(data)
        changed[offset] ^= 1 << (offset % 8)
        with pytest.raises(ObjectCorrupt):
            for _ in PackReader.from_bytes(bytes(changed)).chunks():
                pass
        assert digest(bytes(changed)) != name
    assert len(index) == 2


def test_asking_for_a_chunk_that_is_not_there_names_it():
    data, _, _ = packed(b"a")
    with pytest.raises(ObjectCorrupt, match=f"chunk {digest(b'b')} is not in this pack's index of 1 chunks"):
        PackReader.from_bytes(data).chunk(digest(b"b"))
    with pytest.raises(ObjectCorrupt, match="not a digest"):
        PackReader.from_bytes(data).chunk("../../etc/passwd")


# --- over a store ----------------------------------------------------------------------------------------------------


def stored(*chunks):
    store = MemoryStore("demo")
    data, name, index = packed(*chunks)
    store.put(pack_module.pack_key(name), data)
    return store, [ChunkRef(entry.digest, name, entry.bytes) for entry in index]


def test_chunks_are_read_by_range_through_a_store():
    store, refs = stored(TEXT, b"second", os.urandom(100_000))
    reader = ChunkReader(store)
    assert reader.read(refs[1]) == b"second"
    assert reader.join(refs[:2], size_max=10_000) == TEXT + b"second"
    assert all(operation != "get" for operation, _ in store.operations)


def test_a_reference_that_lies_about_its_size_is_refused():
    store, (ref,) = stored(b"12345")
    with pytest.raises(ObjectCorrupt, match="its reference says 6 bytes, it has 5"):
        ChunkReader(store).read(ChunkRef(ref.digest, ref.pack, 6))


def test_a_join_over_the_limit_reads_nothing():
    store, (ref,) = stored(b"12345")
    operations = len(store.operations)
    with pytest.raises(ObjectCorrupt, match="2 chunks of 10 bytes; at most 9"):
        ChunkReader(store).join([ref, ref], size_max=9)
    assert len(store.operations) == operations


def test_a_pack_that_is_gone_is_missing_not_corrupt():
    store, _ = stored(b"1")
    with pytest.raises(ObjectMissing):
        ChunkReader(store).read(ChunkRef(digest(b"1"), digest(b"other pack"), 1))


def test_only_the_indexes_that_were_used_last_are_kept(monkeypatch):
    monkeypatch.setattr(pack_module, "READERS_REMEMBERED_MAX", 2)
    store = MemoryStore("demo")
    refs = []
    for number in range(4):
        data, name, index = packed(b"%d" % number)
        store.put(pack_module.pack_key(name), data)
        refs.append(ChunkRef(index[0].digest, name, 1))
    reader = ChunkReader(store)
    assert reader.join([*refs, refs[3]], size_max=100) == b"01233"
    assert list(reader._readers) == [refs[2].pack, refs[3].pack]


@given(st.lists(st.binary(max_size=400), max_size=12))
def test_whatever_is_packed_comes_back(chunks):
    data, name, index = packed(*chunks)
    assert digest(data) == name
    reader = PackReader.from_bytes(data)
    assert len(index) == len(set(chunks))
    for chunk in chunks:
        assert reader.chunk(digest(chunk)) == chunk
    assert len(data) < PACK_TARGET_BYTES


class CountingSource(pack_module.BytesSource):
    """Counts what is read; `torn` cannot be read."""

    def __init__(self, data, torn=None):
        super().__init__(data)
        self.reads = []
        self.torn = torn

    def read(self, offset, length):
        self.reads.append((offset, length))
        if self.torn is not None and offset <= self.torn < offset + length:
            raise StoreError("get", "pack", "a torn sector", errno_name="EIO")
        return super().read(offset, length)


def test_who_reads_chunk_after_chunk_is_read_ahead_for_and_who_picks_one_gets_no_more_than_that():
    chunks = [os.urandom(1000) for _ in range(100)]
    data, _, index = packed(*chunks)
    source = CountingSource(data)
    reader = PackReader(source)
    source.reads.clear()
    assert reader.chunk(index[50].digest) == chunks[50]
    assert source.reads == [(index[50].offset, 1000)]
    source.reads.clear()
    assert [reader.chunk(entry.digest) for entry in index[51:]] == chunks[51:]
    assert source.reads == [(index[51].offset, 49_000)]


def test_reading_ahead_into_what_cannot_be_read_does_not_spoil_what_can():
    chunks = [os.urandom(1000) for _ in range(10)]
    data, _, index = packed(*chunks)
    reader = PackReader(CountingSource(data, torn=index[7].offset + 10))
    assert [reader.chunk(entry.digest) for entry in index[:7]] == chunks[:7]
    with pytest.raises(StoreError, match="torn"):
        reader.chunk(index[7].digest)
    assert [reader.chunk(entry.digest) for entry in index[8:]] == chunks[8:]
