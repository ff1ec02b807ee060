"""The snapshot file: verified before anything is built on it, aligned with the journal, never a step back."""

import json

import pytest

from coordinator.runtime.raft.journal import DurableJournal
from coordinator.runtime.raft.snapshot_file import (
    SNAPSHOT_NAME,
    CorruptSnapshot,
    Snapshot,
    SnapshotStore,
    align,
    decode_snapshot,
    encode_snapshot,
    read_snapshot,
)
from protocol.errors import StoreError
from simulations.raft.disk import SimulatedFiles
from simulations.raft.members import GuardedMember
from simulations.raft.prng import Prng

IDENTITY = {"cluster": "simulated", "coordinator": "c1", "format": 1, "members": ["c1", "c2", "c3"]}
NAMES = ["c1", "c2", "c3"]


def disk() -> SimulatedFiles:
    return SimulatedFiles(Prng(3))


def entry(index: int, term: int = 1) -> tuple[bytes, int, int]:
    return (b"command %d" % index, index, term)


def snapshot_at(index: int, state: str = "[]") -> Snapshot:
    return Snapshot(state=state, last=entry(index), previous=entry(index - 1))


def journal_of(files: SimulatedFiles, first: int, last: int, term: int = 1) -> DurableJournal:
    journal = DurableJournal(files, IDENTITY)
    for index in range(first, last + 1):
        journal.add(*entry(index, term))
    journal.sync()
    return DurableJournal(files, IDENTITY)


def indexes(journal: DurableJournal) -> list[int]:
    return [index for _, index, _ in journal[:]]


def member(files: SimulatedFiles, name: str = "c1", compact_entries: int = 10**9) -> GuardedMember:
    return GuardedMember(name, NAMES, lambda *_: None, files, lambda: 0.0, compact_entries)


def test_what_is_written_reads_back_and_equal_input_gives_equal_bytes():
    snapshot = Snapshot(state='{"ö": 1}', last=(b"\x00\xff", 9, 2), previous=(b"", 8, 2))
    data = encode_snapshot(snapshot, IDENTITY)
    assert decode_snapshot(data, IDENTITY, "there") == snapshot
    assert encode_snapshot(snapshot, dict(reversed(IDENTITY.items()))) == data


def test_every_flipped_bit_and_every_cut_is_found_and_refused_with_what_to_do():
    data = encode_snapshot(snapshot_at(9), IDENTITY)
    for byte in range(len(data)):
        rotten = bytearray(data)
        rotten[byte] ^= 1 << byte % 8
        for damaged in (bytes(rotten), data[:byte]):
            with pytest.raises(CorruptSnapshot, match="put the whole folder back"):
                decode_snapshot(damaged, IDENTITY, "there")


def test_a_corrupt_snapshot_keeps_the_library_from_being_built():
    """The stock library logs the error and runs on with an empty state."""
    files = disk()
    journal_of(files, 8, 12)
    files.put(SNAPSHOT_NAME, encode_snapshot(snapshot_at(9), IDENTITY)[:-1])
    with pytest.raises(CorruptSnapshot):
        member(files)


def test_another_groups_snapshot_is_refused():
    files = disk()
    files.put(SNAPSHOT_NAME, encode_snapshot(snapshot_at(9), {**IDENTITY, "cluster": "other"}))
    with pytest.raises(StoreError, match="belongs to"):
        read_snapshot(files, IDENTITY)


def test_align_trims_a_journal_that_a_crash_left_long_and_keeps_what_follows_the_snapshot():
    """The stock library clears the whole journal here, acknowledged entries 10 to 15 included."""
    files = disk()
    align(journal_of(files, 1, 15), snapshot_at(9))
    assert indexes(DurableJournal(files, IDENTITY)) == [8, 9, 10, 11, 12, 13, 14, 15]


def test_align_raises_the_commit_index_to_the_snapshot():
    files = disk()
    align(journal_of(files, 1, 15), snapshot_at(9))
    assert DurableJournal(files, IDENTITY).getRaftCommitIndex() == 9


def test_align_replaces_a_journal_that_is_behind_or_differs():
    files = disk()
    align(journal_of(files, 1, 5), snapshot_at(9))
    assert indexes(DurableJournal(files, IDENTITY)) == [8, 9]
    files = disk()
    align(journal_of(files, 1, 15, term=7), snapshot_at(9))
    assert indexes(DurableJournal(files, IDENTITY)) == [8, 9]


def test_align_leaves_a_fitting_journal_alone():
    files = disk()
    journal = journal_of(files, 8, 15)
    journal.setRaftCommitIndex(9)
    before = files.operations
    align(journal, snapshot_at(9))
    assert files.operations == before


def test_an_older_snapshot_than_the_journal_allows_is_refused():
    files = disk()
    with pytest.raises(CorruptSnapshot, match="begins only at entry 20"):
        align(journal_of(files, 20, 25), snapshot_at(9))


def test_a_missing_snapshot_or_journal_beside_the_other_is_refused():
    files = disk()
    with pytest.raises(CorruptSnapshot, match="missing"):
        align(journal_of(files, 20, 25), None)
    fresh = disk()
    with pytest.raises(CorruptSnapshot, match="journal beside it is missing"):
        align(DurableJournal(fresh, IDENTITY), snapshot_at(9))


def test_a_full_disk_costs_no_entries_and_is_tried_again_later(monkeypatch):
    files, now, taken = disk(), [0.0], []
    store = SnapshotStore(files, IDENTITY, take=lambda: taken.append(1) or "[]", restore=print, now=lambda: now[0])

    def full(name: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "replace", full)
        store.serialize((None, entry(9), entry(8), None), 8)
        assert store.checkSerializing() == (0, None)
        store.serialize((None, entry(9), entry(8), None), 8)
        assert len(taken) == 1
    now[0] = 6.0
    store.serialize((None, entry(9), entry(8), None), 8)
    assert store.checkSerializing()[1] == 8
    assert read_snapshot(files, IDENTITY).last == entry(9)


def shipped(snapshot: Snapshot) -> dict:
    data = encode_snapshot(snapshot, IDENTITY)
    return {"type": "append_entries", "term": 5, "commit_index": snapshot.last[1], "serialized": (data, True, True)}


def deliver(target: GuardedMember, message: dict) -> list[dict]:
    sent: list[dict] = []
    target._wire._send = lambda _peer, answer: sent.append(target.raft.guards.outgoing(answer)) or True
    from coordinator.runtime.raft.pinned import Member

    node = Member("c2")
    return sent + target.raft.guards.receive(node, message, lambda m: target._wire._onMessageReceived(node, m))


def test_an_installed_snapshot_keeps_agreeing_entries_behind_it():
    """Raft section 7: "retain log entries following it". The stock library clears them though they were acknowledged."""
    files = disk()
    journal_of(files, 1, 15)
    follower = member(files)
    answers = deliver(follower, shipped(snapshot_at(9, json.dumps([1, 2, 3]))))
    assert indexes(follower.raft.journal) == [8, 9, 10, 11, 12, 13, 14, 15]
    assert follower.applied == [1, 2, 3]
    assert [(a["next_node_idx"], a["success"]) for a in answers] == [(10, True)]
    follower.raft.journal.sync()
    files.lose_power()
    assert indexes(member(files).raft.journal) == [8, 9, 10, 11, 12, 13, 14, 15]
    follower.end()


def test_an_installed_snapshot_replaces_a_log_that_differs():
    files = disk()
    journal_of(files, 1, 15, term=3)
    follower = member(files)
    deliver(follower, shipped(snapshot_at(9)))
    assert indexes(follower.raft.journal) == [8, 9]
    follower.end()


def test_a_snapshot_of_what_is_applied_already_is_ignored_and_answered():
    files = disk()
    journal_of(files, 1, 15)
    follower = member(files)
    deliver(follower, shipped(snapshot_at(9, "[9]")))
    answers = deliver(follower, shipped(snapshot_at(7, "[7]")))
    assert follower.applied == [9]
    assert [(a["type"], a["success"], a["reset"]) for a in answers] == [("next_node_idx", False, False)]
    follower.end()


def test_a_snapshot_damaged_under_way_is_dropped_and_the_own_one_stays():
    files = disk()
    journal_of(files, 1, 15)
    follower = member(files)
    message = shipped(snapshot_at(9))
    data = bytearray(message["serialized"][0])
    data[-3] ^= 4
    deliver(follower, {**message, "serialized": (bytes(data), True, True)})
    assert files.read(SNAPSHOT_NAME) is None
    assert indexes(follower.raft.journal) == list(range(1, 16))
    follower.end()


def test_rot_in_the_own_snapshot_is_found_before_it_is_shipped():
    files = disk()
    files.put(SNAPSHOT_NAME, encode_snapshot(snapshot_at(9), IDENTITY))
    files.flip_bit(SNAPSHOT_NAME, 40, 2)
    store = SnapshotStore(files, IDENTITY, take=str, restore=print, now=lambda: 0.0)
    from coordinator.runtime.raft.pinned import Member

    with pytest.raises(CorruptSnapshot):
        store.getTransmissionData(Member("c2"))
    with pytest.raises(CorruptSnapshot):
        store.check()


def test_a_state_machine_that_cannot_restore_ends_the_group(monkeypatch):
    files = disk()
    journal_of(files, 8, 15)
    files.put(SNAPSHOT_NAME, encode_snapshot(snapshot_at(9, "not json"), IDENTITY))
    with pytest.raises(ValueError, match="Expecting value"):
        member(files)
