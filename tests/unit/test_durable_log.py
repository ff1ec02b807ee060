"""A log on disk: what survives which crash, what is acknowledged, what is refused."""

import asyncio
import errno
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from participant.logs.recovery import LogIdentity
from participant.logs.segment import CorruptLog, segment_name
from participant.runtime.durable_log import DurableLog, LogPoisoned
from participant.runtime.group_commit import GroupCommit
from participant.runtime.log_files import FolderFiles, Life, LocalFolder
from protocol.errors import FencedError, StoreError
from simulations.log_disk import ProcessDied, SimulatedOwner
from tests.logs_world import IDENTITY, disk, found_in, opened, record, write_all, written


def test_written_records_are_there_after_a_power_loss_and_numbers_go_on():
    files = disk()
    log, found = opened(files)
    assert (found, log.next) == ([], 1)
    written(log, 1, 2, 3)
    written(log, 4)
    files.lose_power()
    log, found = opened(files, session=2)
    assert (found, log.next, log.durable) == ([1, 2, 3, 4], 5, 4)
    written(log, 5)
    assert found_in(files) == [1, 2, 3, 4, 5]


def test_all_records_that_wait_share_one_sync():
    files = disk()
    log, _ = opened(files)
    written(log, 1)
    before = files.operations
    written(log, *range(2, 66))
    assert files.operations - before == 2  # one append, one sync


def test_a_large_queue_is_written_in_batches_of_a_few_megabytes():
    files = disk()
    log, _ = opened(files)
    written(log, 1)
    for number in range(2, 12):
        log.append(record(number, 1 << 20))
    job = log.take()
    assert job is not None
    assert 2 < len(job.records) < 10
    log.write(job)
    write_all(log)
    assert found_in(files) == list(range(1, 12))


def test_each_life_writes_a_segment_of_its_own_and_only_with_its_first_record():
    files = disk()
    for session in (1, 2, 3):
        log, _ = opened(files, session=session)
        if session != 2:
            written(log, session)
    assert files.names() == [segment_name(1), segment_name(2)]


def test_a_torn_tail_is_cut_off_by_the_segment_that_follows():
    files = disk()
    log, _ = opened(files)
    written(log, 1)
    files.append(segment_name(1), b"CLB1 half a batch")
    log, found = opened(files, session=2)
    assert found == [1]
    assert log.torn_bytes == len(b"CLB1 half a batch")
    written(log, 2)
    assert found_in(files) == [1, 2]


def test_what_a_life_recovers_is_durable_before_it_is_believed():
    """An earlier life died between write and sync: its successor reads the page cache, and tells others what it has read."""
    files = disk()
    log, _ = opened(files)
    written(log, 1)
    log.append(record(2))
    job = log.take()
    assert job is not None
    files.die_soon(2)
    with pytest.raises(ProcessDied):
        log.write(job)
    files.die_at = None
    _, found = opened(files, session=2)
    assert found == [1, 2]
    files.lose_power()
    third, found = opened(files, session=3)
    assert found == [1, 2]
    written(third, 3)
    assert found_in(files) == [1, 2, 3]


def test_who_only_reads_a_log_syncs_nothing():
    files = disk()
    log, _ = opened(files)
    written(log, 1)
    before = files.operations
    assert len(list(DurableLog(files, IDENTITY).recover(only_read=True))) == 1
    assert files.operations == before


def test_what_a_process_that_was_declared_dead_writes_behind_its_successor_is_not_read():
    """It was suspended; its successor began another segment; it goes on where it was."""
    files = disk()
    zombie, _ = opened(files)
    written(zombie, 1)
    successor, found = opened(files, session=2)
    assert found == [1]
    written(successor, 2)
    written(zombie, 666)
    assert found_in(files) == [1, 2]


def test_a_process_that_was_declared_dead_cannot_begin_the_segment_that_its_successor_has():
    files = disk()
    zombie, _ = opened(files, segment_bytes=1)
    written(zombie, 1)
    successor, _ = opened(files, session=2)
    written(successor, 2)
    zombie.append(record(666))
    with pytest.raises(FencedError, match="this life"):
        write_all(zombie)
    with pytest.raises(FencedError):
        zombie.append(record(667))
    assert found_in(files) == [1, 2]


def test_a_segment_that_an_earlier_life_began_in_this_very_moment_asks_for_another_start():
    """The successor has read the log; then the earlier life, not stopped yet, begins the next segment."""
    files = disk()
    zombie, _ = opened(files, segment_bytes=1)
    written(zombie, 1)
    successor, _ = opened(files, session=2, owner=SimulatedOwner())
    written(zombie, 2)
    successor.append(record(3))
    with pytest.raises(LogPoisoned, match="start again"):
        write_all(successor)
    assert found_in(files) == [1, 2]


def test_nothing_is_acknowledged_once_somebody_else_has_the_folder():
    """The record may be in the file; the successor sees it or not; nobody was told."""
    files, owner = disk(), SimulatedOwner()
    log, _ = opened(files, owner=owner)
    written(log, 1)
    owner.taken = True
    log.append(record(2))
    with pytest.raises(FencedError):
        write_all(log)
    assert log.durable == 1
    with pytest.raises(FencedError):
        log.append(record(3))
    with pytest.raises(FencedError):
        log.truncate(1)


def test_a_failed_sync_poisons_the_log_for_good():
    """I18: the second sync would succeed, and mean nothing."""
    files = disk()
    log, _ = opened(files)
    written(log, 1)
    log.append(record(2))
    files.fail_next_sync = errno.EIO
    with pytest.raises(LogPoisoned) as raised:
        write_all(log)
    assert raised.value.errno_name == "EIO"
    assert not raised.value.definite
    for _ in range(2):
        with pytest.raises(LogPoisoned):
            log.append(record(3))
        with pytest.raises(LogPoisoned):
            log.truncate(9)
    assert log.durable == 1
    assert found_in(files) == [1]


@pytest.mark.parametrize("where", ["append", "create"])
def test_a_full_disk_is_said_with_errno_and_path(where: str):
    files = disk()
    log, _ = opened(files, segment_bytes=1 if where == "create" else 1 << 20)
    written(log, 1)
    log.append(record(2))
    if where == "append":
        files.fail_next_append = errno.ENOSPC
    else:
        files.fail_next_sync = errno.ENOSPC
    with pytest.raises(LogPoisoned, match=r"ENOSPC") as raised:
        write_all(log)
    assert raised.value.key.startswith("/simulated/log/0000")
    assert found_in(files) == [1]


def test_segments_are_deleted_when_an_epoch_covers_them_oldest_first():
    files = disk()
    log, _ = opened(files, segment_bytes=1)
    for number in range(1, 8):
        written(log, number)
    assert log.truncate(4) == 3
    assert files.names() == [segment_name(number) for number in (4, 5, 6, 7)]
    assert found_in(files, after=3) == [4, 5, 6, 7]
    assert log.truncate(1_000) == 3
    assert found_in(files, after=6) == [7]
    assert log.truncate(1_000) == 0
    written(log, 8)
    assert found_in(files, after=7) == [8]


def test_a_crash_in_the_middle_of_deleting_leaves_no_hole():
    for die in range(1, 4):
        files = disk()
        log, _ = opened(files, segment_bytes=1)
        for number in range(1, 8):
            written(log, number)
        files.die_at = files.operations + die
        with pytest.raises(ProcessDied):
            log.truncate(4)
        files.die_at = None
        again, found = opened(files, after=3)
        assert found == [4, 5, 6, 7]
        again.truncate(4)
        assert files.names()[0] == segment_name(4)


def test_records_that_are_needed_and_gone_are_an_error():
    files = disk()
    log, _ = opened(files, segment_bytes=1)
    for number in range(1, 6):
        written(log, number)
    log.truncate(3)
    with pytest.raises(CorruptLog, match="begins with record 3; 2 is needed"):
        found_in(files, after=1)


def test_a_log_that_ends_before_the_epoch_has_lost_records():
    files = disk()
    log, _ = opened(files)
    written(log, 1, 2)
    assert found_in(files, after=2) == []
    with pytest.raises(CorruptLog, match="ends with record 2; an epoch was taken after record 3"):
        found_in(files, after=3)
    with pytest.raises(CorruptLog, match="empty"):
        found_in(disk(), after=3)


def test_a_segment_missing_in_the_middle_is_a_hole():
    files = disk()
    log, _ = opened(files, segment_bytes=1)
    for number in range(1, 6):
        written(log, number)
    files.delete(segment_name(3))
    with pytest.raises(CorruptLog, match="what was between is gone"):
        found_in(files)


def test_an_older_copy_of_a_segment_is_noticed():
    """Stale block: an earlier state of a file in the place of the later one."""
    files = disk()
    log, _ = opened(files)
    written(log, 1)
    old = files.read(segment_name(1))
    written(log, 2)
    log, _ = opened(files, session=2)
    written(log, 3)
    files.put(segment_name(1), old)
    with pytest.raises(CorruptLog):
        found_in(files)


def test_a_segment_of_an_older_life_behind_a_newer_one_is_refused():
    files = disk()
    log, _ = opened(files, session=5)
    written(log, 1)
    log, _ = opened(files, session=4)
    written(log, 2)
    with pytest.raises(CorruptLog, match="older life"):
        found_in(files)


def test_somebody_elses_log_is_refused_by_name():
    files = disk()
    log, _ = opened(files)
    written(log, 1)
    other = DurableLog(files, LogIdentity("turns", "demo", "p2"))
    with pytest.raises(StoreError, match=r"participant p1 in cluster demo; turns of p2"):
        list(other.recover())


def test_a_log_that_begins_anew_forgets_what_was_before():
    files = disk()
    log, _ = opened(files)
    written(log, 1, 2, 3)
    log.start_anew([record(10), record(11)])
    write_all(log)
    written(log, 12)
    assert found_in(files) == [10, 11, 12]
    log.truncate(0)
    assert files.names() == [segment_name(2)]
    assert found_in(files) == [10, 11, 12]


def test_a_rolled_back_log_goes_on_at_the_number_of_the_epoch():
    files = disk()
    log, _ = opened(files)
    written(log, 1, 2, 3, 4)
    log, _ = opened(files, incarnation=2, session=2, after=2)
    log.start_anew([record(30)], first=3)
    write_all(log)
    assert found_in(files, after=2) == [30]
    assert log.next == 4


def test_a_crash_while_a_log_begins_anew_leaves_the_old_or_the_new_one():
    outcomes = set()
    for seed in range(20):
        files = disk(seed)
        log, _ = opened(files)
        written(log, 1, 2)
        files.die_at = files.operations + 1
        log.start_anew([record(10)])
        with pytest.raises(ProcessDied):
            write_all(log)
        files.lose_power()
        outcomes.add(tuple(found_in(files)))
    assert outcomes == {(1, 2), (10,)}


def test_a_flipped_bit_in_any_byte_of_any_segment_is_noticed():
    files = disk()
    for session in (1, 2):
        log, _ = opened(files, session=session)
        written(log, session * 10)
        written(log, session * 10 + 1)
    for name in files.names():
        for byte in range(len(files.read(name))):
            twin = files.copy()
            twin.flip_bit(name, byte, byte % 8)
            with pytest.raises(StoreError):
                found_in(twin)


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "write", "restart", "truncate", "anew"]), st.integers(0, 700)), max_size=30
)


@settings(max_examples=150)
@given(STEPS, st.integers(0, 2**32), st.integers(1, 60), st.sampled_from([1, 300, 5_000]))
def test_whatever_happens_a_power_loss_leaves_a_prefix_with_all_that_was_acknowledged(
    steps, seed, die_at, segment_bytes
):
    """I17: recovered = f(prefix), and the prefix holds everything acked; the process dies at any operation."""
    files = disk(seed)
    session = 1
    log, _ = opened(files, segment_bytes=segment_bytes)
    all_records: dict[int, int] = {}
    covered = 0
    begun_anew: list[int] = [1]
    label = 0
    files.die_at = die_at
    try:
        for step, size in steps:
            if step == "append":
                label += 1
                all_records[log.append(record(label, size))] = label
            elif step == "write":
                write_all(log)
            elif step == "restart":
                write_all(log)
                session += 1
                log, _ = opened(files, session=session, after=covered, segment_bytes=segment_bytes)
            elif step == "truncate" and log.durable:
                covered = max(covered, min(log.durable, size % (log.durable + 1)))
                log.truncate(covered + 1)
            elif step == "anew" and not log.waiting:
                label += 1
                number = log.start_anew([record(label, size)])
                all_records[number] = label
                begun_anew.append(number)
                write_all(log)
                covered = number - 1
        acknowledged = log.durable
    except ProcessDied:
        acknowledged = log.durable
    files.lose_power()
    begin = max(number for number in begun_anew if number <= acknowledged + 1) - 1
    after = max(min(covered, acknowledged), begin if begin <= acknowledged else 0)
    again = DurableLog(files, IDENTITY)
    try:
        batches = list(again.recover(after=after))
    except CorruptLog:
        # The one that died was a beginning, and its file is there: it begins behind what was asked for.
        assert begun_anew[-1] > acknowledged
        batches = list(again.recover(after=begun_anew[-1] - 1))
    import msgspec

    numbers = {}
    for batch in batches:
        for offset, item in enumerate(msgspec.msgpack.decode(batch.body)):
            numbers[batch.first + offset] = item[0]
    assert all(all_records[number] == label for number, label in numbers.items())
    assert sorted(numbers) == list(range(min(numbers), max(numbers) + 1)) if numbers else True
    assert again.durable >= acknowledged
    for number in range(max(after + 1, again.next if not numbers else min(numbers)), acknowledged + 1):
        assert numbers[number] == all_records[number]


async def test_group_commit_acknowledges_in_order_and_gathers_while_it_writes(tmp_path):
    log, _ = opened(FolderFiles(tmp_path / "turns"))
    reached: list[int] = []
    group = GroupCommit(log, on_durable=reached.append)
    numbers = [group.append(record(number)) for number in range(64)]
    await group.wait_durable(numbers[-1])
    await asyncio.gather(*(group.write(record(number)) for number in range(64, 128)))
    assert reached == sorted(reached)
    assert reached[-1] == 128
    assert log.syncs <= 4
    await group.close()
    assert found_in(FolderFiles(tmp_path / "turns")) == list(range(128))


async def test_group_commit_tells_everybody_who_waits_of_a_failure_and_says_it_once():
    files = disk()
    log, _ = opened(files)
    failures: list[Exception] = []
    group = GroupCommit(log, on_failure=failures.append)
    await group.write(record(1))
    files.fail_next_sync = errno.EIO
    results = await asyncio.gather(*(group.write(record(number)) for number in (2, 3)), return_exceptions=True)
    assert [type(result) for result in results] == [LogPoisoned, LogPoisoned]
    with pytest.raises(LogPoisoned):
        group.append(record(4))
    with pytest.raises(LogPoisoned):
        await group.wait_durable(3)
    assert len(failures) == 1
    await group.close()


async def test_closing_writes_what_waits():
    files = disk()
    log, _ = opened(files)
    group = GroupCommit(log)
    group.append(record(1))
    await group.close()
    assert found_in(files) == [1]


def test_a_real_folder_is_made_durably_and_its_files_are_nobody_elses(tmp_path):
    folder = LocalFolder(tmp_path / "deep" / "local", "p1")
    files = folder.files("turns")
    log, _ = opened(files)
    written(log, 1, 2)
    written(log, 3)
    assert found_in(folder.files("turns")) == [1, 2, 3]
    assert files.names() == [segment_name(1)]
    assert (tmp_path / "deep/local/p1/turns" / segment_name(1)).stat().st_mode & 0o077 == 0
    with pytest.raises(FileExistsError):
        files.create(segment_name(1), b"")
    files.remove([segment_name(1), segment_name(2)])
    assert files.names() == []


def test_who_reads_a_real_log_back_syncs_it_and_leaves_no_file_open(tmp_path, monkeypatch):
    """Not even one that may not be written."""
    log, _ = opened(FolderFiles(tmp_path / "turns"))
    written(log, 1, 2)
    (tmp_path / "turns" / segment_name(1)).chmod(0o400)
    synced = []
    sync = os.fdatasync
    monkeypatch.setattr(
        os, "fdatasync", lambda handle: (synced.append(os.readlink(f"/proc/self/fd/{handle}")), sync(handle))
    )
    before = os.listdir("/proc/self/fd")
    files = FolderFiles(tmp_path / "turns")
    assert found_in(files) == [1, 2]
    assert synced == [str(tmp_path / "turns" / segment_name(1))]
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert not files._open


def test_a_real_file_cut_at_every_byte_is_read_as_a_prefix_or_refused(tmp_path):
    files = FolderFiles(tmp_path / "turns")
    log, _ = opened(files)
    for number in range(1, 6):
        written(log, number)
    path = tmp_path / "turns" / segment_name(1)
    whole = path.read_bytes()
    lengths = []
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        try:
            found = found_in(files)
        except CorruptLog:
            assert not lengths
            continue
        assert found == list(range(1, len(found) + 1))
        lengths.append(len(found))
    assert lengths == sorted(lengths)
    assert set(lengths) == {1, 2, 3, 4, 5}


def test_a_file_that_vanished_is_an_error_with_its_path_not_a_new_file(tmp_path):
    files = FolderFiles(tmp_path / "turns")
    log, _ = opened(files)
    written(log, 1)
    files.close()
    (tmp_path / "turns" / segment_name(1)).unlink()
    log.append(record(2))
    with pytest.raises(LogPoisoned, match=r"ENOENT.*No such file") as raised:
        write_all(log)
    assert raised.value.key == str(tmp_path / "turns" / segment_name(1))


def test_a_folder_belongs_to_the_latest_life_that_took_it(tmp_path):
    """I22, I24: who slept meanwhile finds out before it tells anybody anything."""
    folder = LocalFolder(tmp_path, "p1")
    assert folder.highest() is None
    folder.take_over(Life(1, 3))
    folder.take_over(Life(1, 3))
    folder.check()
    log, _ = opened(folder.files("turns"), owner=folder)
    written(log, 1)
    successor = LocalFolder(tmp_path, "p1")
    successor.take_over(Life(2, 4))
    assert successor.highest() == Life(2, 4)
    log.append(record(2))
    with pytest.raises(FencedError, match="session 4 of incarnation 2 now; session 3 of incarnation 1 must stop"):
        write_all(log)
    with pytest.raises(FencedError):
        folder.take_over(Life(1, 3))
    with pytest.raises(FencedError):
        LocalFolder(tmp_path, "p1").take_over(Life(2, 3))
    successor.check()
    successor.close()
    folder.close()


def test_an_unreadable_owner_is_damage(tmp_path):
    folder = LocalFolder(tmp_path, "p1")
    (folder.path / "owner.json").write_bytes(b"{")
    with pytest.raises(CorruptLog):
        folder.take_over(Life(1, 1))


def test_a_folder_that_cannot_be_made_is_said_with_errno_and_path(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"EEXIST|ENOTDIR"):
        LocalFolder(tmp_path / "file", "p1")
