"""The few file operations that logs stand on, so that a simulated disk can lose power; and whose folder it is.

What each promises is what Linux promises: appended bytes are in the file at once for every reader, also after ``kill -9``;
they survive a power loss only after `sync`. A name survives only after its folder is synced.

Ownership. A participant that was declared dead may only sleep, and its successor may run on the same disk. Who comes later,
by (incarnation, session) as the ledger gave them out, takes the folder over *before* it reads the logs; whoever wrote looks
*after* its sync whether the folder is still its own, and before it tells anybody. So a record either is seen by the
successor, or was never acknowledged (RELIABILITY.md I22, I24).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import threading
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from participant.logs.segment import CorruptLog
from protocol.errors import FencedError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

OWNER_NAME: Final = "owner.json"
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class Life(NamedTuple):
    """One life of a participant; later ones compare greater."""

    incarnation: int
    session: int


class LogFiles(Protocol):
    """Files of one log's folder. Every method raises `OSError` as the system gives it."""

    where: str
    """The folder's path, for messages."""

    def names(self) -> list[str]:
        """What is there."""
        ...

    def read_head(self, name: str, size: int) -> bytes:
        """The first bytes of a file."""
        ...

    def read(self, name: str) -> bytes:
        """A whole file."""
        ...

    def create(self, name: str, data: bytes) -> None:
        """A new file with this content, durable, name and content, or not there at all; `FileExistsError` if it is there."""
        ...

    def append(self, name: str, data: bytes) -> None:
        """Write all of `data` at the end of a file. Not durable."""
        ...

    def sync(self, name: str) -> None:
        """Make a file's content and length durable. After an error the content is unknown (I18)."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Delete files, in this order; then make it durable. Missing ones are fine."""
        ...

    def close(self) -> None:
        """Let go of open files."""
        ...


class Owner(Protocol):
    """Whose local folder it is."""

    def check(self) -> None:
        """Raise `FencedError` if somebody else has taken the folder over."""
        ...


class FolderFiles:
    """`LogFiles` on the system's own.

    Args:
        folder: Made, with its parents, durably, if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, int] = {}
        self.where = str(folder)
        _make_folder(folder)

    def names(self) -> list[str]:
        """See `LogFiles.names`."""
        return sorted(os.listdir(self._folder))

    def read_head(self, name: str, size: int) -> bytes:
        """See `LogFiles.read_head`."""
        with (self._folder / name).open("rb") as file:
            return file.read(size)

    def read(self, name: str) -> bytes:
        """See `LogFiles.read`."""
        return (self._folder / name).read_bytes()

    def create(self, name: str, data: bytes) -> None:
        """See `LogFiles.create`."""
        _create(self._folder, name, data, replace=False)

    def append(self, name: str, data: bytes) -> None:
        """See `LogFiles.append`."""
        handle = self._handle(name)
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]

    def sync(self, name: str) -> None:
        """See `LogFiles.sync`."""
        handle = self._open.get(name)
        if handle is not None:
            os.fdatasync(handle)
            return
        # A log that is only read back has nothing open, and stays so.
        handle = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(handle)
        finally:
            os.close(handle)

    def remove(self, names: Iterable[str]) -> None:
        """See `LogFiles.remove`."""
        for name in names:
            self._forget(name)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._folder / name)
        _sync_folder(self._folder)

    def close(self) -> None:
        """See `LogFiles.close`."""
        for name in list(self._open):
            self._forget(name)

    def _handle(self, name: str) -> int:
        handle = self._open.get(name)
        if handle is None:
            for other in list(self._open):
                self._forget(other)
            # Not made here: a segment that somebody deleted under us is an error, not a new file without a header.
            handle = self._open[name] = os.open(self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        return handle

    def _forget(self, name: str) -> None:
        handle = self._open.pop(name, None)
        if handle is not None:
            with contextlib.suppress(OSError):
                os.close(handle)


class LocalFolder:
    """``<local>/<participant>/``: the logs of one participant, and who writes them.

    Args:
        root: The configured folder for local files; shared by the participants of a machine.
        participant: Checked id: a legal name is a legal file name.

    Raises:
        StoreError: The folder cannot be made.
    """

    def __init__(self, root: Path, participant: str) -> None:
        self.path = root / participant
        self._owner: int | None = None
        self._life: Life | None = None
        self._taking = threading.Lock()
        """Several logs take the folder over, each from a thread of its own."""
        try:
            _make_folder(self.path)
        except OSError as error:
            raise store_error("open", str(self.path), error) from error

    def files(self, log: str) -> FolderFiles:
        """A log's own folder.

        Raises:
            StoreError: It cannot be made.
        """
        try:
            return FolderFiles(self.path / log)
        except OSError as error:
            raise store_error("open", str(self.path / log), error) from error

    def get(self, name: str) -> bytes | None:
        """A file beside the logs; None: it is not there.

        Raises:
            StoreError: The system's error.
        """
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise store_error("get", str(self.path / name), error) from error

    def has(self, name: str) -> bool:
        """Whether a file is there beside the logs."""
        return (self.path / name).exists()

    def replace(self, name: str, data: bytes) -> None:
        """Have a file of this content beside the logs, durably, in place of one that is there.

        Raises:
            StoreError: The system's error.
        """
        try:
            _create(self.path, name, data, replace=True)
        except OSError as error:
            raise store_error("put", str(self.path / name), error) from error

    def set_aside(self, log: str, *, without: str) -> None:
        """Rename a log's folder, for whoever wants to look at it, and delete a file beside it first; durably.

        Raises:
            StoreError: The system's error.
        """
        folder = self.path / log
        number = 1
        while (aside := folder.with_name(f"{log}.damaged-{number}")).exists():
            number += 1
        try:
            (self.path / without).unlink(missing_ok=True)
            # Before the log goes: a file that comes back after a power cut must not find another log than its own.
            _sync_folder(self.path)
            with contextlib.suppress(FileNotFoundError):
                os.rename(folder, aside)
            _sync_folder(self.path)
        except OSError as error:
            raise store_error("put", str(aside), error) from error

    def highest(self) -> Life | None:
        """The last life that owned the folder, None before the first.

        Raises:
            CorruptLog: The file that says so is unreadable.
            StoreError: The system's error.
        """
        path = self.path / OWNER_NAME
        try:
            found = json.loads(path.read_bytes())
            return Life(int(found["incarnation"]), int(found["session"]))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise store_error("get", str(path), error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptLog(str(path), 0, f"not what it must be: {error}") from None

    def take_over(self, life: Life) -> None:
        """Be the one who writes here, durably; again by the same life is fine.

        Raises:
            FencedError: A later life owns the folder.
            StoreError: The system's error.
        """
        with self._taking:
            self._take_over(life)

    def _take_over(self, life: Life) -> None:
        if self._life == life:
            self._check()
            return
        highest = self.highest()
        if highest is not None and life < highest:
            raise self._fenced(life, highest)
        data = json.dumps({"incarnation": life.incarnation, "session": life.session}).encode()
        try:
            _create(self.path, OWNER_NAME, data, replace=True)
            self._close_owner()
            # Kept open: as long as it is, no other file gets its inode's number.
            self._owner = os.open(self.path / OWNER_NAME, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise store_error("put", str(self.path / OWNER_NAME), error) from error
        self._life = life

    def check(self) -> None:
        """See `Owner.check`; a microsecond, or as long as this process's own taking over."""
        # Not in the middle of a taking over by this very process: the folder would look like somebody else's.
        with self._taking:
            self._check()

    def _check(self) -> None:
        assert self._owner is not None, "taken over before"
        assert self._life is not None, "taken over before"
        try:
            mine = os.fstat(self._owner).st_ino
            now = os.stat(self.path / OWNER_NAME).st_ino
        except OSError as error:
            raise store_error("get", str(self.path / OWNER_NAME), error) from error
        if now != mine:
            raise self._fenced(self._life, self.highest())

    def close(self) -> None:
        """Let go of the owner's file; the folder stays ours until somebody else takes it over."""
        self._close_owner()
        self._life = None

    def _close_owner(self) -> None:
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None

    def _fenced(self, life: Life, highest: Life | None) -> FencedError:
        other = (
            "somebody else" if highest is None else f"session {highest.session} of incarnation {highest.incarnation}"
        )
        return FencedError(
            f"{self.path} belongs to {other} now; session {life.session} of incarnation {life.incarnation} must stop"
        )


def store_error(operation: str, path: str, error: OSError, *, definite: bool = True) -> StoreError:
    """The system's error with errno and path."""
    name = None if error.errno is None else errno.errorcode.get(error.errno)
    return StoreError(operation, path, error.strerror or str(error), errno_name=name, definite=definite)


def _make_folder(folder: Path) -> None:
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(path.parent)


def _create(folder: Path, name: str, data: bytes, *, replace: bool) -> None:
    """A whole file under its name, durable, or nothing."""
    temporary = f".tmp-{os.getpid()}-{secrets.token_hex(8)}"
    handle = os.open(folder / temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        if replace:
            os.rename(folder / temporary, folder / name)
        else:
            try:
                os.link(folder / temporary, folder / name)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                # No hard links here: nobody else creates this name but a process that has been fenced.
                if (folder / name).exists():
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from None
                os.rename(folder / temporary, folder / name)
            else:
                os.unlink(folder / temporary)
        _sync_folder(folder)
    except OSError:
        # Only for errors: a crash in a test must leave what a crash leaves.
        with contextlib.suppress(OSError):
            os.unlink(folder / temporary)
        raise


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
