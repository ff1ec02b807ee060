"""Keyed state in segments: every entry of the cut once, each segment as long as it has to be and no longer."""

from __future__ import annotations

import random

import msgspec
import pytest

from participant.agent import Agent
from participant.codec import MessageRegistry
from participant.history import CutClock
from participant.host import AgentHost
from participant.packing import ChunkWriter, EncodingLimits
from participant.segments import encode_cell
from participant.state import keyed
from protocol.pack import PackReader

_split = msgspec.msgpack.Decoder(list[tuple[str, msgspec.Raw]]).decode


class Note(msgspec.Struct, frozen=True):
    text: str


class Book(Agent, kind="book"):
    notes = keyed(str, Note)  # kept encoded
    counts = keyed(str, int)  # kept as they are

    def __init__(self, name, notes, counts):
        super().__init__(name)
        self.notes.update(notes)
        self.counts.update(counts)


def host_of(notes, counts, clock):
    return AgentHost(Book("b", notes, counts), MessageRegistry(()), clock)


def segments_of(cell, generation, since, limits, saved=None):
    """What is written of a field: the saved cell, and the bytes of each segment."""
    writer = ChunkWriter(limits)
    steps = encode_cell(cell, generation, since, saved, writer)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
            break
    writer.finish_pack()
    readers = [PackReader.from_bytes(pack.data) for pack in writer.ready]
    return found, [
        b"".join(next(reader.chunk(chunk.digest) for reader in readers if chunk.digest in reader) for chunk in segment)
        for segment in found.segments
    ]


@pytest.mark.parametrize("target", [1, 60, 700, 64 * 1024])
@pytest.mark.parametrize("field", ["notes", "counts"])
def test_segments_hold_every_entry_once_and_end_with_the_one_that_reaches_the_target(field, target):
    source = random.Random(target)
    lengths = [source.choice([0, 1, 3, 40, 300, 5000]) for _ in range(700)]
    notes = {f"k{number}": Note("x" * length) for number, length in enumerate(lengths)}
    counts = {f"k{number}": source.getrandbits(source.choice([1, 8, 40])) for number in range(700)}
    clock = CutClock()
    cell = host_of(notes, counts, clock).state.cells[field]
    cut = clock.cut()
    _, segments = segments_of(cell, cut, 0, EncodingLimits(segment_bytes=target))
    entries = [(key, bytes(raw)) for segment in segments for key, raw in _split(segment)]
    wanted = notes if field == "notes" else counts
    assert [key for key, _ in entries] == list(wanted)
    assert all(msgspec.msgpack.decode(data, type=type(wanted[key])) == wanted[key] for key, data in entries)
    sizes = [[1 + len(msgspec.msgpack.encode(key)) + len(raw) for key, raw in _split(segment)] for segment in segments]
    assert all(sum(each) >= target for each in sizes[:-1])
    assert all(sum(each[:-1]) < target for each in sizes)


@pytest.mark.parametrize("target", [1, 200, 64 * 1024])
def test_keys_that_came_or_went_after_the_cut_make_no_difference_to_it(target):
    notes = {f"k{number}": Note("x" * number) for number in range(300)}
    clock = CutClock()
    host = host_of(notes, {}, clock)
    cell = host.state.cells["notes"]
    cut = clock.cut()
    host.state.begin()
    for number in range(0, 300, 3):
        del cell[f"k{number}"]
    for number in range(300, 500):
        cell[f"k{number}"] = Note("late")
    cell["k1"] = Note("other")
    host.state.commit()
    _, segments = segments_of(cell, cut, 0, EncodingLimits(segment_bytes=target))
    found = {key: msgspec.msgpack.decode(raw, type=Note) for segment in segments for key, raw in _split(segment)}
    assert found == notes
