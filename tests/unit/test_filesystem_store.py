"""protocol.storage.filesystem: durability, crashes at every system call, errors of the disk, links, modes, opening."""

import errno
import os
import resource
import shutil
import stat
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol.errors import ConfigError, ObjectConflict, ObjectCorrupt, ObjectMissing, StoreError
from protocol.ports import PutResult
from protocol.storage import FilesystemStore, MemoryStore, ensure_format, open_store
from protocol.storage.system import SystemCalls

KEY = "packs/ab/abcdef"
DATA = b"data" * 100
ROOT = Path(__file__).parents[2]


class Crash(BaseException):
    """The process ends here: nothing after it runs, least of all error handling."""


class Scripted(SystemCalls):
    """The real kernel, with a record of the calls and an act at one of them.

    `act(name, arguments)` may raise; with `after=True` it acts when the call has been carried out.
    """

    def __init__(self, act=None, *, at=None, after=False):
        self.calls = []
        self.act = act
        self.at = at
        self.after = after

    def __getattribute__(self, name):
        method = object.__getattribute__(self, name)
        if name.startswith("_") or name in {
            "calls",
            "act",
            "at",
            "after",
            "close",
            "temporary_name",
            "status",
            "names",
        }:
            return method

        def call(*arguments):
            number = len(self.calls)
            self.calls.append((name, *(a for a in arguments if isinstance(a, str))))
            if self.act is not None and not self.after and self.at in {None, number, name}:
                self.act()
            try:
                return method(*arguments)
            finally:
                if self.act is not None and self.after and self.at in {None, number, name}:
                    self.act()

        return call


def crash():
    raise Crash


def failing(code):
    def act():
        raise OSError(code, os.strerror(code))

    return act


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path), "demo")


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- order, modes, names ---------------------------------------------------------------------------------------------


def test_a_put_writes_syncs_links_and_syncs_the_folder_in_this_order(store, tmp_path):
    system = Scripted()
    FilesystemStore(tmp_path, "demo", system=system).put("epochs/1", DATA)
    names = [call[0] for call in system.calls]
    assert names == [
        "open_root",
        "open_folder",
        "open_folder",
        "make_folder",
        "open_folder",
        "sync",
        "open_file",
        "create_file",
        "write",
        "sync",
        "link",
        "unlink",
        "sync",
    ]


def test_the_parents_of_new_folders_are_synced_once_and_of_old_ones_too(store, tmp_path):
    store.put(KEY, DATA)
    system = Scripted()
    again = FilesystemStore(tmp_path, "demo", system=system)
    again.put("packs/ab/2", DATA)
    assert [call[0] for call in system.calls].count("sync") == 2 + 2
    system.calls.clear()
    again.put("packs/ab/3", DATA)
    assert [call[0] for call in system.calls].count("sync") == 2


def test_files_and_folders_are_for_this_user_only_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        open_store(str(tmp_path), "demo").put(KEY, DATA)
    finally:
        os.umask(before)
    for path in (tmp_path / "demo").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert stat.S_IMODE((tmp_path / "demo").stat().st_mode) == 0o700


def test_temporary_names_are_unpredictable_and_no_file_stays(store, tmp_path):
    assert len({SystemCalls().temporary_name() for _ in range(100)}) == 100
    store.put(KEY, DATA)
    store.put(KEY, DATA)
    with pytest.raises(ObjectConflict):
        store.put(KEY, b"other")
    assert files(tmp_path) == ["demo/format.json", f"demo/{KEY}"]


def test_descriptors_do_not_leak(store):
    def count():
        return len(os.listdir("/proc/self/fd"))

    store.put(KEY, DATA)
    before = count()
    for number in range(20):
        store.put(f"a/b/{number}", DATA)
        store.put(KEY, DATA)
        store.get(KEY, size_max=1000)
        list(store.list(""))
        for wrong in (
            lambda: store.get("no/such", size_max=1),
            lambda: store.put(KEY, b"x"),
            lambda: store.get(KEY, size_max=1),
        ):
            with pytest.raises(StoreError):
                wrong()
    assert count() == before


# --- crashes ---------------------------------------------------------------------------------------------------------


def crash_points():
    """Every call of one put into a store that has the folder and of one that has not, before and after."""
    return [(number, after) for number in range(17) for after in (False, True)]


@pytest.mark.parametrize(("number", "after"), crash_points())
def test_after_a_crash_at_any_call_the_object_is_wholly_there_or_wholly_not(tmp_path, number, after):
    """I13 for one put: then a second process puts the same object, and a third other bytes."""
    open_store(str(tmp_path), "demo")
    system = Scripted(crash, at=number, after=after)
    crashed = False
    try:
        FilesystemStore(tmp_path, "demo", system=system).put(KEY, DATA)
    except Crash:
        crashed = True
    assert crashed
    survivor = open_store(str(tmp_path), "demo")
    listed = list(survivor.list("packs/"))
    if listed:
        assert any(call[0] == "link" for call in system.calls)
        assert listed == [KEY]
        assert survivor.get(KEY, size_max=1000) == DATA
    else:
        with pytest.raises(ObjectMissing):
            survivor.get(KEY, size_max=1000)
    assert survivor.put(KEY, DATA) is (PutResult.ALREADY_THERE if listed else PutResult.CREATED)
    assert survivor.get(KEY, size_max=1000) == DATA
    with pytest.raises(ObjectConflict):
        survivor.put(KEY, b"other")
    survivor.remove_leftovers(older_than_ns=0, now_ns=time.time_ns() + 10**9)
    assert files(tmp_path) == ["demo/format.json", f"demo/{KEY}"]


def test_the_crash_points_cover_every_call_of_a_put(tmp_path):
    open_store(str(tmp_path), "demo")
    system = Scripted()
    FilesystemStore(tmp_path, "demo", system=system).put(KEY, DATA)
    assert len(system.calls) == 1 + max(number for number, _ in crash_points())


def test_leftovers_of_crashes_are_never_listed_and_removed_only_when_old(store, tmp_path):
    with pytest.raises(Crash):
        FilesystemStore(tmp_path, "demo", system=Scripted(crash, at="link")).put(KEY, DATA)
    (leftover,) = [name for name in files(tmp_path) if ".tmp-" in name]
    assert list(store.list("")) == ["format.json"]
    assert store.remove_leftovers(older_than_ns=3600 * 10**9, now_ns=time.time_ns()) == ()
    assert store.remove_leftovers(older_than_ns=0, now_ns=time.time_ns() + 10**9) == (leftover.removeprefix("demo/"),)
    assert files(tmp_path) == ["demo/format.json"]


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT, errno.EROFS, errno.EFBIG])
@pytest.mark.parametrize("call", ["create_file", "write", "sync", "link"])
def test_an_error_of_the_disk_carries_errno_and_path_leaves_nothing_and_heals(tmp_path, store, code, call):
    (tmp_path / "demo" / "epochs").mkdir()
    system = Scripted(failing(code), at=call)
    broken = FilesystemStore(tmp_path, "demo", system=system)
    broken._durable_folders.add("/epochs")
    with pytest.raises(StoreError) as caught:
        broken.put("epochs/1", DATA)
    error = caught.value
    assert type(error) is StoreError
    assert (error.operation, error.key, error.errno_name, error.definite) == (
        "put",
        "epochs/1",
        errno.errorcode[code],
        True,
    )
    assert f"{tmp_path}/demo/epochs/1" in str(error)
    assert os.strerror(code) in str(error)
    assert files(tmp_path) == ["demo/format.json"]
    system.act = None
    assert broken.put("epochs/1", DATA) is PutResult.CREATED


def test_a_failed_fsync_is_final_for_its_file(tmp_path, store):
    """I18: the next put writes a new file; nothing is synced a second time in the hope of better news."""
    (tmp_path / "demo" / "epochs").mkdir()
    system = Scripted(failing(errno.EIO), at="sync")
    broken = FilesystemStore(tmp_path, "demo", system=system)
    broken._durable_folders.add("/epochs")
    with pytest.raises(StoreError, match="EIO"):
        broken.put("epochs/1", DATA)
    calls = [call[0] for call in system.calls]
    assert calls[calls.index("sync") :] == ["sync", "unlink"]
    first = next(call[1] for call in system.calls if call[0] == "create_file")
    system.act = None
    system.calls.clear()
    broken.put("epochs/1", DATA)
    assert next(call[1] for call in system.calls if call[0] == "create_file") != first


def test_a_failed_fsync_of_the_folder_is_indefinite_and_the_next_put_writes_anew(tmp_path, store):
    (tmp_path / "demo" / "epochs").mkdir()
    system = Scripted()
    broken = FilesystemStore(tmp_path, "demo", system=system)
    broken._durable_folders.add("/epochs")

    def second_sync_fails():
        if [call[0] for call in system.calls].count("sync") == 2:
            raise OSError(errno.EIO, "I/O error")

    system.act, system.at = second_sync_fails, "sync"
    with pytest.raises(StoreError, match="may not outlive a power cut") as caught:
        broken.put("epochs/1", DATA)
    assert not caught.value.definite
    assert caught.value.errno_name == "EIO"
    system.act = None
    system.calls.clear()
    assert broken.put("epochs/1", DATA) is PutResult.CREATED
    assert [call[0] for call in system.calls][-5:] == ["create_file", "write", "sync", "rename", "sync"]
    system.calls.clear()
    assert broken.put("epochs/1", DATA) is PutResult.ALREADY_THERE
    assert "write" not in [call[0] for call in system.calls]


def test_a_doubtful_object_is_not_replaced_by_other_bytes(tmp_path, store):
    store.put("epochs/1", DATA)
    store._doubtful.add("epochs/1")
    with pytest.raises(ObjectConflict):
        store.put("epochs/1", b"other")
    assert store.get("epochs/1", size_max=1000) == DATA


def test_what_is_already_there_is_made_durable_before_it_is_said(tmp_path, store):
    store.put("epochs/1", DATA)
    system = Scripted()
    again = FilesystemStore(tmp_path, "demo", system=system)
    assert again.put("epochs/1", DATA) is PutResult.ALREADY_THERE
    # The folder is changed before it is synced: after somebody else's failed fsync nothing else would be written.
    assert [call[0] for call in system.calls][-5:] == ["read", "sync", "create_file", "unlink", "sync"]


def test_an_existing_file_that_cannot_be_synced_is_written_anew_by_the_next_put(tmp_path, store):
    store.put("epochs/1", DATA)
    system = Scripted(failing(errno.EIO), at="sync")
    again = FilesystemStore(tmp_path, "demo", system=system)
    again._durable_folders.add("/epochs")
    with pytest.raises(StoreError, match="EIO"):
        again.put("epochs/1", DATA)
    system.act = None
    assert again.put("epochs/1", DATA) is PutResult.CREATED
    assert "rename" in [call[0] for call in system.calls]


def test_short_writes_are_continued_and_a_write_of_nothing_is_an_error(tmp_path, store):
    class Short(SystemCalls):
        step = 7

        def write(self, descriptor, data):
            return os.write(descriptor, data[: self.step]) if self.step else 0

    system = Short()
    short = FilesystemStore(tmp_path, "demo", system=system)
    short.put("epochs/1", DATA)
    assert store.get("epochs/1", size_max=1000) == DATA
    system.step = 0
    with pytest.raises(StoreError, match="wrote nothing"):
        short.put("epochs/2", DATA)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_where_there_are_no_hard_links_a_rename_under_a_lock_creates(tmp_path, store, code):
    system = Scripted(failing(code), at="link")
    linkless = FilesystemStore(tmp_path, "demo", system=system)
    assert linkless.put("epochs/1", DATA) is PutResult.CREATED
    assert linkless.put("epochs/1", DATA) is PutResult.ALREADY_THERE
    with pytest.raises(ObjectConflict):
        linkless.put("epochs/1", b"other")
    calls = [call[0] for call in system.calls]
    assert calls.index("lock") < calls.index("rename")
    assert files(tmp_path) == ["demo/epochs/1", "demo/format.json"]


def test_without_links_a_key_that_was_taken_meanwhile_is_not_replaced(tmp_path, store):
    system = Scripted(failing(errno.EPERM), at="link")
    linkless = FilesystemStore(tmp_path, "demo", system=system)
    real = system.lock

    def taken_while_waiting(descriptor):
        store.put("epochs/1", b"theirs")
        real(descriptor)

    system.lock = taken_while_waiting
    with pytest.raises(ObjectConflict):
        linkless.put("epochs/1", DATA)
    assert store.get("epochs/1", size_max=100) == b"theirs"
    assert files(tmp_path) == ["demo/epochs/1", "demo/format.json"]


def test_a_key_that_was_taken_and_deleted_meanwhile_is_an_error_that_may_be_tried_again(tmp_path, store):
    system = Scripted(failing(errno.EEXIST), at="link")
    with pytest.raises(StoreError, match="taken and then deleted"):
        FilesystemStore(tmp_path, "demo", system=system).put("epochs/1", DATA)
    assert files(tmp_path) == ["demo/format.json"]
    assert store.put("epochs/1", DATA) is PutResult.CREATED
    assert store.cluster == "demo"


def test_a_store_whose_folder_went_away_is_not_an_empty_store(tmp_path, store):
    """An unmounted disk must not look like missing objects, and nothing may be written beside the mount."""
    store.put(KEY, DATA)
    (tmp_path / "demo").rename(tmp_path / "elsewhere")
    for operation in (
        lambda: store.get(KEY, size_max=1000),
        lambda: store.put(KEY, DATA),
        lambda: list(store.list("")),
        lambda: store.delete(KEY),
    ):
        with pytest.raises(StoreError, match="is its disk mounted") as caught:
            operation()
        assert not isinstance(caught.value, ObjectMissing)
        assert caught.value.errno_name == "ENOENT"
    (tmp_path / "elsewhere").rename(tmp_path / "demo")
    assert store.get(KEY, size_max=1000) == DATA


@contextmanager
def tiny_disk(folder):
    """64 KiB of room: a tmpfs where we are root, else a limit on the size of a file. Yields the errno to expect."""
    folder.mkdir()
    if os.geteuid() == 0:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=False, capture_output=True
        )
        if mounted.returncode == 0:
            try:
                yield "ENOSPC"
            finally:
                subprocess.run(["umount", "-l", folder], check=True)
            return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, hard))
    try:
        yield "EFBIG"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_named_leaves_nothing_and_heals_when_there_is_room(tmp_path):
    with tiny_disk(tmp_path / "disk") as expected:
        store = open_store(str(tmp_path / "disk"), "demo")
        store.put("a/first", bytes(20_000))
        with pytest.raises(StoreError) as caught:
            store.put("a/second", bytes(70_000))
        assert caught.value.errno_name == expected
        assert caught.value.definite
        assert f"{tmp_path}/disk/demo/a/second" in str(caught.value)
        assert list(store.list("a/")) == ["a/first"]
        assert files(tmp_path / "disk") == ["demo/a/first", "demo/format.json"]
        store.delete("a/first")
        assert store.put("a/second", bytes(30_000)) is PutResult.CREATED


def test_an_fsync_that_the_kernel_fails_is_reported_once_and_the_next_put_succeeds(tmp_path):
    """The real system call, failed by strace in a child: EIO on the object's first fsync only."""
    strace = shutil.which("strace")
    assert strace, "this test needs strace (Debian package strace)"
    open_store(str(tmp_path), "demo").put("epochs/0", DATA)
    script = (
        "import sys\n"
        "from protocol.errors import StoreError\n"
        "from protocol.storage import FilesystemStore\n"
        f"store = FilesystemStore({str(tmp_path)!r}, 'demo')\n"
        "try:\n"
        f"    store.put('epochs/1', {DATA!r})\n"
        "except StoreError as error:\n"
        "    print(error.errno_name, error.definite, sorted(store.list('epochs/')))\n"
        f"print(store.put('epochs/1', {DATA!r}).value)\n"
    )
    command = [strace, "-f", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=2"]
    done = subprocess.run(
        [*command, sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.stdout.splitlines() == ["EIO True ['epochs/0']", "created"], done.stderr
    assert files(tmp_path) == ["demo/epochs/0", "demo/epochs/1", "demo/format.json"]


# --- links and other things under an object's name -------------------------------------------------------------------


def test_symbolic_links_inside_a_store_are_not_followed(tmp_path, store):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (tmp_path / "demo" / "packs").symlink_to(outside)
    (tmp_path / "demo" / "link").symlink_to(outside / "secret")
    for operation in (
        lambda: store.get("packs/secret", size_max=100),
        lambda: store.put("packs/new", b"x"),
        lambda: store.delete("packs/secret"),
        lambda: store.get("link", size_max=100),
        lambda: store.put("link", b"secret"),
    ):
        with pytest.raises(StoreError, match="symbolic links are not followed") as caught:
            operation()
        assert caught.value.errno_name in {"ELOOP", "ENOTDIR"}
    assert list(store.list("")) == ["format.json"]
    assert files(outside) == ["secret"]


def test_the_cluster_folder_may_not_be_a_link_but_the_root_may(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    open_store(str(tmp_path / "root"), "demo").put(KEY, DATA)
    (tmp_path / "real" / "other").symlink_to(tmp_path / "real" / "demo")
    with pytest.raises(ConfigError, match=r"ENOTDIR|ELOOP"):
        open_store(str(tmp_path / "real"), "other")


def test_a_fifo_or_folder_under_an_objects_name_is_refused_without_hanging(tmp_path, store):
    os.mkfifo(tmp_path / "demo" / "fifo")
    (tmp_path / "demo" / "folder").mkdir()
    for key in ("fifo", "folder"):
        with pytest.raises(ObjectCorrupt, match="not a regular file"):
            store.get(key, size_max=10)
        with pytest.raises(ObjectCorrupt, match="not a regular file"):
            store.put(key, b"x")


def test_a_file_that_shrinks_while_it_is_read_is_corrupt(tmp_path, store):
    store.put("epochs/1", DATA)

    class Shrinking(SystemCalls):
        def read(self, descriptor, length, offset):
            return os.pread(descriptor, min(length, 50), offset) if offset < 100 else b""

    with pytest.raises(ObjectCorrupt, match="ends after 100 bytes; 400 were expected"):
        FilesystemStore(tmp_path, "demo", system=Shrinking()).get("epochs/1", size_max=1000)


def test_a_key_below_an_object_is_an_error_of_the_disk_not_a_crash(store):
    store.put("a", b"1")
    with pytest.raises(StoreError, match="ENOTDIR"):
        store.put("a/b", b"2")


# --- opening ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://localhost{}"])
def test_a_folder_may_be_written_in_these_ways(tmp_path, form):
    store = open_store(form.format(tmp_path), "demo")
    assert store.url == f"file:{tmp_path}"
    assert (tmp_path / "demo" / "format.json").read_bytes() == b'{"cluster":"demo","format":1}'


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://bucket/x", "unknown scheme 's3'; use a folder"),
        ("", "names no folder"),
        ("file:", "names no folder"),
        ("file://host/x", "names no host"),
        ("a\0b", "names no folder"),
    ],
)
def test_a_url_that_names_no_store_is_refused(url, says):
    with pytest.raises(ConfigError, match=says) as caught:
        open_store(url, "demo")
    assert caught.value.setting == "store"


def test_a_missing_root_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"no such folder; create it \(mkdir -p .*nothing\) or mount it"):
        open_store(str(tmp_path / "nothing"), "demo")


def test_a_file_as_root_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="not a folder"):
        open_store(str(tmp_path / "file"), "demo")


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize("call", ["make_folder", "create_file"])
def test_a_root_that_cannot_be_written_is_refused_when_it_is_opened(tmp_path, code, call):
    store = FilesystemStore(tmp_path, "demo", system=Scripted(failing(code), at=call))
    with pytest.raises(ConfigError, match=rf"demo is not writable: {errno.errorcode[code]}: "):
        store.check_openable(writable=True)


def test_a_root_that_may_not_be_opened_is_refused(tmp_path):
    store = FilesystemStore(tmp_path, "demo", system=Scripted(failing(errno.EACCES), at="open_root"))
    with pytest.raises(ConfigError, match="this user may not open it"):
        store.check_openable(writable=False)
    store = FilesystemStore(tmp_path, "demo", system=Scripted(failing(errno.EIO), at="open_root"))
    with pytest.raises(ConfigError, match=os.strerror(errno.EIO)):
        store.check_openable(writable=False)


def test_reading_touches_nothing_and_says_which_clusters_there_are(tmp_path):
    with pytest.raises(ConfigError, match="holds no cluster 'demo'; it is empty"):
        open_store(str(tmp_path), "demo", writable=False)
    open_store(str(tmp_path), "shop")
    with pytest.raises(ConfigError, match="holds no cluster 'demo'; it holds: shop"):
        open_store(str(tmp_path), "demo", writable=False)
    (tmp_path / "demo").mkdir()
    with pytest.raises(ConfigError, match="no epoch was ever written there"):
        open_store(str(tmp_path), "demo", writable=False)
    (tmp_path / "link").symlink_to(tmp_path / "demo")
    with pytest.raises(ConfigError, match="cannot be read"):
        open_store(str(tmp_path), "link", writable=False)
    assert files(tmp_path) == ["shop/format.json"]
    assert list(open_store(str(tmp_path), "shop", writable=False).list("")) == ["format.json"]


@pytest.mark.parametrize(
    ("found", "error", "says"),
    [
        (b'{"cluster":"demo","format":2}', ConfigError, "layout version 2, this build reads version 1: use a build"),
        (b'{"cluster":"other","format":1}', ConfigError, "belongs to cluster 'other', not to 'demo': check"),
        (b"{}", ObjectCorrupt, "not a format document"),
        (b"\xff", ObjectCorrupt, "not a format document"),
        (b"[" * 4000, ObjectCorrupt, "not a format document"),
        (b"x" * 5000, ObjectCorrupt, "at most 4096"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_store_of_another_layout_or_cluster_is_refused(tmp_path, found, error, says):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "format.json").write_bytes(found)
    with pytest.raises(error, match=says):
        open_store(str(tmp_path), "demo")
    assert (tmp_path / "demo" / "format.json").read_bytes() == found


def test_two_that_open_a_new_store_at_once_agree():
    store = MemoryStore("demo")
    raced = []

    def other_was_first(operation, key):
        if operation == "put" and not raced:
            raced.append(True)
            store.put(key, b'{"cluster":"demo", "format":1}')

    store.before_operation = other_was_first
    ensure_format(store, "demo")
    assert store.get("format.json", size_max=100) == b'{"cluster":"demo", "format":1}'
