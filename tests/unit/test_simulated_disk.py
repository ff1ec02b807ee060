"""The simulated disk, and the product's filesystem store on it: what a power cut leaves."""

import errno

import pytest

from protocol.errors import ObjectMissing, StoreError
from protocol.storage.filesystem import FilesystemStore
from simulations.disk import SimulatedDisk
from simulations.prng import stream


def store_on(disk: SimulatedDisk) -> FilesystemStore:
    return FilesystemStore("/store", "demo", system=disk)


def new_store() -> tuple[SimulatedDisk, FilesystemStore]:
    disk = SimulatedDisk()
    store = store_on(disk)
    store.check_openable(writable=True)
    return disk, store


def test_what_was_put_outlives_a_power_cut_whatever_happens_to_the_rest():
    disk, store = new_store()
    store.put("packs/aa/one", b"some bytes")
    for random in (None, *(stream(seed, "cut") for seed in range(20))):
        assert store_on(disk.image(random)).get("packs/aa/one", size_max=100) == b"some bytes"


def test_bytes_that_were_not_synced_are_kept_dropped_torn_or_garbled():
    disk = SimulatedDisk()
    root = disk.open_root("/")
    file = disk.create_file("x", root)
    disk.write(file, memoryview(b"0123456789"))
    disk.sync(root)
    found = set()
    for seed in range(200):
        image = disk.image(stream(seed, "cut"))
        found.add(image.read(image.open_file("x", image.open_root("/")), 100, 0))
    assert b"0123456789" in found
    assert b"" in found
    assert any(0 < len(data) < 10 for data in found)
    assert any(len(data) == 10 and data != b"0123456789" for data in found)


def test_a_name_that_was_not_synced_may_be_gone():
    disk = SimulatedDisk()
    root = disk.open_root("/")
    file = disk.create_file("x", root)
    disk.sync(file)
    gone = disk.image()
    assert gone.names(gone.open_root("/")) == []
    kept = sum(bool(image.names(image.open_root("/"))) for image in (disk.image(stream(s, "cut")) for s in range(50)))
    assert 0 < kept < 50


def test_after_a_failed_sync_of_a_file_the_next_one_succeeds_and_saves_nothing():
    disk = SimulatedDisk()
    root = disk.open_root("/")
    file = disk.create_file("x", root)
    disk.write(file, memoryview(b"data"))
    disk.trouble = lambda call: errno.EIO if call == "sync_file" else 0
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(file)
    disk.trouble = lambda _: 0
    disk.sync(file)
    disk.sync(root)
    image = disk.image()
    assert image.read(image.open_file("x", image.open_root("/")), 100, 0) == b""


def fails_once(disk: SimulatedDisk, call: str) -> None:
    """The next such call fails."""

    def trouble(now: str) -> int:
        if now != call:
            return 0
        disk.trouble = lambda _: 0
        return errno.EIO

    disk.trouble = trouble


@pytest.mark.parametrize("same_process", [True, False])
def test_a_folder_whose_name_was_lost_in_a_failed_fsync_is_made_durable_by_the_next_put(same_process):
    """Found by seed 120: the folder was there, its parent's second fsync succeeded and wrote nothing."""
    disk, store = new_store()
    fails_once(disk, "sync_folder")
    with pytest.raises(StoreError, match="EIO"):
        store.put("packs/aa/one", b"some bytes")
    (store if same_process else store_on(disk)).put("packs/aa/one", b"some bytes")
    assert store_on(disk.image()).get("packs/aa/one", size_max=100) == b"some bytes"


def test_a_name_that_another_process_lost_in_a_failed_fsync_is_durable_once_it_is_already_there():
    """A leader's manifest whose folder could not be synced, and the next leader that finds the same bytes there."""
    disk, store = new_store()
    store.put("epochs/1", b"first")
    calls = 0

    def second_sync_fails(call: str) -> int:
        nonlocal calls
        calls += call == "sync_folder"
        return errno.EIO if call == "sync_folder" and calls == 1 else 0

    disk.trouble = second_sync_fails
    with pytest.raises(StoreError, match="may not outlive"):
        store.put("epochs/2", b"manifest")
    disk.trouble = lambda _: 0
    with pytest.raises(ObjectMissing):
        store_on(disk.image()).get("epochs/2", size_max=100)
    store_on(disk).put("epochs/2", b"manifest")
    assert store_on(disk.image()).get("epochs/2", size_max=100) == b"manifest"


class _Cut(BaseException):
    """The power fails before this system call."""


def test_a_power_cut_at_any_call_of_a_replacement_leaves_the_old_bytes_or_the_new_and_never_nothing():
    found = set()
    for last in range(20):
        disk, store = new_store()
        store.put("packs/aa/one", b"damaged")
        calls = 0

        def cut(_call: str, *, last: int = last) -> int:
            nonlocal calls
            calls += 1
            if calls > last:
                raise _Cut
            return 0

        disk.trouble = cut
        try:
            store.replace("packs/aa/one", b"right")
        except _Cut:
            pass
        else:
            assert store_on(disk.image()).get("packs/aa/one", size_max=100) == b"right"
        disk.trouble = lambda _: 0
        for random in (None, *(stream(seed, "cut") for seed in range(10))):
            found.add(store_on(disk.image(random)).get("packs/aa/one", size_max=100))
    assert found == {b"damaged", b"right"}
