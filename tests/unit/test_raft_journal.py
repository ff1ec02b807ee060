"""The journal: what it keeps, what it cuts off, what it refuses, at every byte and at every moment of a crash."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.runtime.raft.files import RealFiles
from coordinator.runtime.raft.journal import JOURNAL_NAME, CorruptJournal, DurableJournal, JournalPoisoned
from protocol.errors import StoreError
from simulations.raft.disk import ProcessDied, SimulatedFiles
from simulations.raft.prng import Prng

IDENTITY = {"cluster": "demo", "coordinator": "c1", "format": 1, "members": ["c1", "c2", "c3"]}


def disk() -> SimulatedFiles:
    return SimulatedFiles(Prng(7))


def opened(files: SimulatedFiles) -> DurableJournal:
    return DurableJournal(files, IDENTITY)


def filled(files: SimulatedFiles, count: int, per_sync: int = 3) -> DurableJournal:
    journal = opened(files)
    for index in range(1, count + 1):
        journal.add(b"command %d" % index, index, 1)
        if index % per_sync == 0:
            journal.sync()
    journal.sync()
    return journal


def content(journal: DurableJournal) -> tuple:
    return (journal[:], journal.getCurrentTerm(), journal.getVotedForNodeId())


def test_synced_entries_term_vote_and_commit_are_there_after_a_power_loss():
    files = disk()
    journal = filled(files, 7)
    journal.setCurrentTerm(4, "c2")
    journal.setRaftCommitIndex(5)
    journal.sync()
    files.lose_power()
    again = opened(files)
    assert content(again) == (journal[:], 4, "c2")
    assert again.getRaftCommitIndex() == 5


def test_nothing_is_written_before_sync_and_nothing_to_do_is_said_so():
    files = disk()
    journal = filled(files, 3)
    before = files.read(JOURNAL_NAME)
    journal.add(b"more", 4, 1)
    assert files.read(JOURNAL_NAME) == before
    assert journal.sync()
    assert not journal.sync()


def test_one_sync_serves_all_entries_of_a_tick():
    files = disk()
    journal = filled(files, 3)
    before = files.operations
    for index in range(4, 104):
        journal.add(b"x", index, 1)
    journal.setCurrentTerm(2, "c1")
    journal.sync()
    assert files.operations - before == 2  # one append, one fdatasync


def test_cutting_entries_off_is_durable_and_overwrites_nothing():
    files = disk()
    journal = filled(files, 9)
    before = files.read(JOURNAL_NAME)
    journal.deleteEntriesFrom(4)
    journal.add(b"other 5", 5, 2)
    journal.sync()
    assert files.read(JOURNAL_NAME).startswith(before)
    assert opened(files)[:] == [(b"command %d" % i, i, 1) for i in range(1, 5)] + [(b"other 5", 5, 2)]


def test_cutting_off_alone_is_durable_too():
    files = disk()
    journal = filled(files, 9)
    journal.deleteEntriesFrom(2)
    journal.sync()
    files.lose_power()
    assert len(opened(files)) == 2


OPERATIONS = st.sampled_from(["add", "add", "cut", "trim", "clear", "term", "sync", "crash"])


@settings(max_examples=100)
@given(st.lists(st.tuples(OPERATIONS, st.integers(0, 60)), max_size=25))
def test_any_sequence_of_operations_reads_back_as_it_was_synced(operations):
    files = disk()
    journal = filled(files, 1)
    model, synced = journal[:], content(journal)
    term = 1
    for operation, number in operations:
        if operation == "add":
            entry = (b"%d" % number * number, model[-1][1] + 1 if model else 1, term)
            model.append(entry)
            journal.add(*entry)
        elif operation == "cut" and model:
            position = 1 + number % len(model)
            del model[position:]
            journal.deleteEntriesFrom(position)
        elif operation == "trim" and model:
            position = number % len(model)
            del model[:position]
            journal.deleteEntriesTo(position)
        elif operation == "clear":
            model.clear()
            journal.clear()
        elif operation == "term":
            term += 1
            journal.setCurrentTerm(term, [None, "c1", "c2"][number % 3])
        elif operation == "sync":
            journal.sync()
            synced = content(journal)
        elif operation == "crash":
            files.lose_power()
            journal = opened(files)
            assert content(journal) == synced
            model, term = list(synced[0]), max(term, synced[1])
    journal.sync()
    assert opened(files)[:] == model == journal[:]


def test_a_file_cut_short_at_any_byte_keeps_a_prefix_and_says_how_much_it_cut():
    files = disk()
    journal = filled(files, 12)
    whole = files.read(JOURNAL_NAME)
    first_batch = len(disk_of_one_batch())
    lengths = []
    for size in range(first_batch, len(whole)):
        twin = disk()
        twin.put(JOURNAL_NAME, whole[:size])
        shorter = opened(twin)
        assert shorter[:] == journal[: len(shorter)]
        assert len(twin.read(JOURNAL_NAME)) == size - shorter.torn_bytes
        lengths.append(len(shorter))
    assert lengths == sorted(lengths)
    assert set(lengths) == {3, 6, 9}


def disk_of_one_batch() -> bytes:
    files = disk()
    filled(files, 3)
    return files.read(JOURNAL_NAME)


def test_a_torn_tail_is_cut_off_durably_before_anything_is_appended():
    files = disk()
    filled(files, 6)
    files.append(JOURNAL_NAME, b"CJB1 half a batch")
    journal = opened(files)
    files.lose_power()
    journal.add(b"command 7", 7, 1)
    journal.sync()
    assert len(opened(files)) == 7


def test_a_tail_whose_sectors_were_never_written_is_torn():
    files = disk()
    journal = filled(files, 6)
    whole = files.read(JOURNAL_NAME)
    journal.add(b"y" * 2000, 7, 1)
    journal.sync()
    longer = bytearray(files.read(JOURNAL_NAME))
    longer[1024:1536] = bytes(512)
    assert len(whole) < 1024
    files.put(JOURNAL_NAME, bytes(longer))
    assert len(opened(files)) == 6


def test_every_flipped_bit_is_found_and_refused_with_what_to_do():
    """Rot never passes as data, as term or vote, or as a torn tail that may be forgotten."""
    files = disk()
    journal = filled(files, 6)
    journal.setCurrentTerm(3, "c2")
    journal.sync()
    for byte in range(len(files.read(JOURNAL_NAME))):
        twin = files.copy()
        twin.flip_bit(JOURNAL_NAME, byte, byte % 8)
        with pytest.raises(CorruptJournal, match="put the whole folder back") as caught:
            opened(twin)
        assert caught.value.offset <= byte
        assert JOURNAL_NAME in str(caught.value)


def test_damage_before_valid_batches_names_the_place():
    files = disk()
    filled(files, 12)
    files.flip_bit(JOURNAL_NAME, len(disk_of_one_batch()) + 60, 1)
    with pytest.raises(CorruptJournal, match="a valid batch follows") as caught:
        opened(files)
    assert caught.value.offset == len(disk_of_one_batch())


def test_another_coordinators_folder_is_refused():
    files = disk()
    filled(files, 3)
    with pytest.raises(StoreError, match="belongs to coordinator c1"):
        DurableJournal(files, {**IDENTITY, "coordinator": "c2"})


def test_a_group_with_other_members_is_refused():
    files = disk()
    filled(files, 3)
    with pytest.raises(StoreError, match="fixed when it is created"):
        DurableJournal(files, {**IDENTITY, "members": ["c1", "c2", "c3", "c4", "c5"]})


def test_a_failed_sync_poisons_the_journal_even_if_the_next_one_would_succeed():
    """I18: after EIO the pages count as clean; a second fdatasync says nothing."""
    files = disk()
    journal = filled(files, 3)
    journal.add(b"lost", 4, 1)
    files.fail_next_sync = True
    with pytest.raises(JournalPoisoned, match="EIO"):
        journal.sync()
    with pytest.raises(JournalPoisoned, match="must end"):
        journal.sync()
    assert len(opened(files)) == 3


def test_dying_at_any_moment_of_a_compaction_keeps_every_acknowledged_entry():
    """I34. The stock journal empties the file first: 400 of 500 entries were lost there."""
    died = 0
    for moment in range(1, 10):
        for power in (False, True):
            files = disk()
            journal = filled(files, 1000, per_sync=50)
            files.die_at = files.operations + moment
            journal.deleteEntriesTo(500)
            try:
                journal.sync()
            except ProcessDied:
                died += 1
            files.die_at = None
            if power:
                files.lose_power()
            assert opened(files)[-500:] == [(b"command %d" % i, i, 1) for i in range(501, 1001)]
    assert died >= 4


def test_a_journal_full_of_old_terms_is_rewritten(monkeypatch):
    monkeypatch.setattr("coordinator.runtime.raft.journal.RAFT_JOURNAL_REWRITE_BYTES_MIN", 10_000)
    files = disk()
    journal = filled(files, 3)
    for term in range(2, 2000):
        journal.setCurrentTerm(term, "c1")
        journal.sync()
        assert journal.size < 10_200
    assert content(opened(files)) == (journal[:], 1999, "c1")


def test_the_real_folder_keeps_what_was_synced(tmp_path):
    files = RealFiles(tmp_path)
    journal = DurableJournal(files, IDENTITY)
    for index in range(1, 11):
        journal.add(b"command", index, 1)
        journal.sync()
    journal.deleteEntriesTo(4)
    journal.sync()
    journal.add(b"command", 11, 1)
    journal.sync()
    files.close()
    again = DurableJournal(RealFiles(tmp_path), IDENTITY)
    assert [index for _, index, _ in again[:]] == [5, 6, 7, 8, 9, 10, 11]
    assert sorted(path.name for path in tmp_path.iterdir()) == [JOURNAL_NAME]


def test_a_folder_that_cannot_be_written_poisons_with_the_systems_reason(tmp_path):
    journal = DurableJournal(RealFiles(tmp_path / "gone"), IDENTITY)
    journal.add(b"command", 1, 0)
    with pytest.raises(JournalPoisoned, match="ENOENT"):
        journal.sync()
