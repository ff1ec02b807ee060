"""A disk under the product's filesystem store, with what fsync really promises.

What is written lies in the cache; only `sync` of a file makes its bytes durable, and only `sync` of a folder the names in it.
A power cut keeps what is durable; of the rest it keeps, drops, tears or garbles by draw. A sync that fails has lost the
pages: they count as clean, and the next sync "works" (Rebello et al. 2020).

It takes the place of `protocol.storage.system.SystemCalls`: folders and files are numbers here, no real file is touched.

What it does not know: several disks, quotas, times (all files are as old as the world).
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

from protocol.storage.system import SystemCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simulations.prng import Prng

_GARBAGE: Final = b"\xde\xad\xbe\xef"


class _File:
    __slots__ = ("data", "durable")

    def __init__(self, data: bytes = b"", durable: bytes | None = None) -> None:
        self.data = data
        self.durable = durable
        """What a power cut leaves for certain; None: not even its length."""


class _Folder:
    __slots__ = ("changed", "durable", "entries", "lost")

    def __init__(self) -> None:
        self.entries: dict[str, _File | _Folder] = {}
        self.durable: dict[str, _File | _Folder] = {}
        self.changed: dict[str, None] = {}
        """Names that may not be durable as they are: all others are, so a sync looks at these only."""
        self.lost: dict[str, _File | _Folder | None] = {}
        """Changes that a failed sync has thrown away: they count as clean until something else in the folder changes, for a
        file system writes a folder's block whole."""

    def note(self, *names: str) -> None:
        """These are others than before."""
        self.changed.update(dict.fromkeys(names))
        self.lost.clear()


class SimulatedDisk(SystemCalls):
    """One disk.

    Attributes:
        trouble: Asked before each call with its name; an errno fails the call, 0 lets it pass. May raise, as a process
            that dies in the middle does.
        calls: How many were made.
    """

    def __init__(self) -> None:
        self.root = _Folder()
        self.trouble: Callable[[str], int] = lambda _: 0
        self.calls = 0
        self._open: dict[int, _File | _Folder] = {}
        self._descriptor = 10
        self._temporary = 0

    def is_folder(self, descriptor: int) -> bool:
        """What a descriptor is."""
        return isinstance(self._open[descriptor], _Folder)

    # --- power cuts ---------------------------------------------------------------------------------------------------

    def image(self, random: Prng | None = None) -> SimulatedDisk:
        """Another disk with what a power cut at this moment leaves.

        Args:
            random: Decides what happens to all that is not durable; None: all of it is gone, the worst that is allowed
                for what was promised.
        """
        disk = SimulatedDisk()
        disk.root = _folder_after_cut(self.root, random, {})
        return disk

    def spoil(self, path: str, data: bytes | None) -> None:
        """Change what lies under a name behind everybody's back, cache and platter; None: it is gone."""
        *folders, name = path.strip("/").split("/")
        folder = self.root
        for each in folders:
            found = folder.entries[each]
            assert isinstance(found, _Folder), f"{each} of {path} is no folder"
            folder = found
        if data is None:
            folder.entries.pop(name)
            folder.durable.pop(name, None)
            return
        file = folder.entries[name]
        assert isinstance(file, _File), f"{path} is no file"
        file.data = data
        if file.durable is not None:
            file.durable = data

    def everything(self) -> SimulatedDisk:
        """Another disk with all that is visible: for readers that must not disturb this one."""
        disk = SimulatedDisk()
        disk.root = self.root
        return disk

    # --- for judges ---------------------------------------------------------------------------------------------------

    def find(self, path: str) -> bytes | None:
        """The bytes of a file, as everybody sees them; None: there is no such file."""
        found: _File | _Folder | None = self.root
        for name in path.split("/"):
            if not isinstance(found, _Folder):
                return None
            found = found.entries.get(name)
        return found.data if isinstance(found, _File) else None

    def find_durable(self, path: str) -> bytes | None:
        """The bytes of a file that the worst power cut at this moment leaves, as in `image`."""
        found: _File | _Folder | None = self.root
        for name in path.split("/"):
            if not isinstance(found, _Folder):
                return None
            found = found.durable.get(name)
        return (found.durable or b"") if isinstance(found, _File) else None

    def paths(self, *, durable: bool) -> Iterator[str]:
        """All files by path; `durable`: of those that the worst power cut leaves."""
        return _paths_under(self.root, "", durable=durable)

    # --- the calls ----------------------------------------------------------------------------------------------------

    def _begin(self, call: str) -> None:
        self.calls += 1
        number = self.trouble(call)
        if number:
            raise OSError(number, os.strerror(number))

    def _opened(self, what: _File | _Folder) -> int:
        self._descriptor += 1
        self._open[self._descriptor] = what
        return self._descriptor

    def _folder(self, descriptor: int) -> _Folder:
        found = self._open[descriptor]
        if not isinstance(found, _Folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return found

    def _file(self, descriptor: int) -> _File:
        found = self._open[descriptor]
        if not isinstance(found, _File):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return found

    def open_root(self, path: str) -> int:
        """Any path is this disk's root."""
        self._begin("open_root")
        return self._opened(self.root)

    def open_folder(self, name: str, folder: int) -> int:
        """A folder in a folder."""
        self._begin("open_folder")
        parent = self._folder(folder)
        found = parent if name == "." else parent.entries.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not isinstance(found, _Folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return self._opened(found)

    def open_file(self, name: str, folder: int) -> int:
        """A file to read."""
        self._begin("open_file")
        found = self._folder(folder).entries.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self._opened(found)

    def create_file(self, name: str, folder: int) -> int:
        """A new file."""
        self._begin("create_file")
        parent = self._folder(folder)
        if name in parent.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        created = parent.entries[name] = _File()
        parent.note(name)
        return self._opened(created)

    def make_folder(self, name: str, folder: int) -> None:
        """A new folder."""
        self._begin("make_folder")
        parent = self._folder(folder)
        if name in parent.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        parent.entries[name] = _Folder()
        parent.note(name)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Into the cache."""
        self._begin("write")
        file = self._file(descriptor)
        file.data += bytes(data)
        return len(data)

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        """From the cache."""
        self._begin("read")
        return self._file(descriptor).data[offset : offset + length]

    def expect(self, descriptor: int, offset: int, length: int) -> None:
        """All of it is in memory."""

    def sync(self, descriptor: int) -> None:
        """Make durable what is in the cache; where it fails, it is lost and counts as clean."""
        what = self._open[descriptor]
        try:
            self._begin("sync_folder" if isinstance(what, _Folder) else "sync_file")
        except OSError:
            if isinstance(what, _File) and what.durable is None:
                what.durable = b""
            elif isinstance(what, _Folder):
                for name in what.changed:
                    if what.entries.get(name) is not what.durable.get(name):
                        what.lost[name] = what.entries.get(name)
            raise
        if isinstance(what, _Folder):
            for name in list(what.changed):
                now = what.entries.get(name)
                if name in what.lost and what.lost[name] is now:
                    continue
                del what.changed[name]
                if now is None:
                    what.durable.pop(name, None)
                else:
                    what.durable[name] = now
        elif what.durable is None:
            what.durable = what.data

    def link(self, source: str, target: str, folder: int) -> None:
        """A second name."""
        self._begin("link")
        entries = self._folder(folder).entries
        if target in entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        entries[target] = entries[source]
        self._folder(folder).note(target)

    def rename(self, source: str, target: str, folder: int) -> None:
        """Another name."""
        self._begin("rename")
        entries = self._folder(folder).entries
        entries[target] = entries.pop(source)
        self._folder(folder).note(source, target)

    def lock(self, descriptor: int) -> None:
        """Nobody else is in the middle of anything."""

    def unlink(self, name: str, folder: int) -> None:
        """Take a name away."""
        self._begin("unlink")
        if self._folder(folder).entries.pop(name, None) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self._folder(folder).note(name)

    def status(self, descriptor: int) -> os.stat_result:
        """Kind and size."""
        what = self._open[descriptor]
        mode = stat.S_IFDIR | 0o700 if isinstance(what, _Folder) else stat.S_IFREG | 0o600
        size = 0 if isinstance(what, _Folder) else len(what.data)
        return os.stat_result((mode, 0, 0, 1, 0, 0, size, 0, 0, 0))

    def names(self, descriptor: int) -> list[tuple[str, bool]]:
        """Names in a folder."""
        self._begin("names")
        return [(name, isinstance(what, _Folder)) for name, what in self._folder(descriptor).entries.items()]

    def close(self, descriptor: int) -> None:
        """Give it back."""
        del self._open[descriptor]

    def temporary_name(self) -> str:
        """One for each call."""
        self._temporary += 1
        return f".tmp-0-{self._temporary:016x}"


def _paths_under(folder: _Folder, path: str, *, durable: bool) -> Iterator[str]:
    for name, what in sorted((folder.durable if durable else folder.entries).items()):
        if isinstance(what, _Folder):
            yield from _paths_under(what, f"{path}{name}/", durable=durable)
        else:
            yield path + name


def _folder_after_cut(folder: _Folder, random: Prng | None, done: dict[int, _File | _Folder]) -> _Folder:
    """A folder after a power cut; `done`: what was there under another name already."""
    after = _Folder()
    for name in sorted({*folder.entries, *folder.durable}):
        before, now = folder.durable.get(name), folder.entries.get(name)
        kept = before if random is None or before is now or random.chance(1, 2) else now
        if kept is None:
            continue
        if id(kept) not in done:
            done[id(kept)] = (
                _folder_after_cut(kept, random, done) if isinstance(kept, _Folder) else _file_after_cut(kept, random)
            )
        after.entries[name] = done[id(kept)]
    after.durable = dict(after.entries)
    return after


def _file_after_cut(file: _File, random: Prng | None) -> _File:
    data = file.durable
    if data is None:
        data = b"" if random is None else _torn(file.data, random)
    return _File(data, data)


def _torn(data: bytes, random: Prng) -> bytes:
    how = random.below(4)
    if how == 0:
        return data
    if how == 1:
        return b""
    cut = random.below(len(data) + 1)
    return data[:cut] if how == 2 else data[:cut] + (_GARBAGE * (len(data) // 4 + 1))[: len(data) - cut]
