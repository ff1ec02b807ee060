"""The few file operations that journal and snapshot stand on, so that a simulated disk can lose power.

What each promises is exactly what Linux promises: appended bytes are in the file at once for every reader, also after
``kill -9``; they survive a power loss only after `sync`. A name survives only after its folder is synced.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Protocol

from protocol.failpoints import fp

if TYPE_CHECKING:
    from pathlib import Path


class Files(Protocol):
    """Files of one folder. Every method raises `OSError` as the system gives it."""

    def read(self, name: str) -> bytes | None:
        """The whole file; None if there is none."""
        ...

    def append(self, name: str, data: bytes) -> None:
        """Write all of `data` at the end; makes the file. Not durable."""
        ...

    def sync(self, name: str) -> None:
        """Make the file's content and length durable (not its name).

        After an error the content is unknown: Linux marks the pages clean and a second call would succeed (I18).
        """
        ...

    def truncate(self, name: str, size: int) -> None:
        """Cut the file to `size` bytes; durable."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Put `data` in the place of the file, atomically and durably: after a crash it is the old or the new one.

        Everything named before is durable first: a journal never loses entries to a snapshot whose name is not there.
        """
        ...

    def close(self) -> None:
        """Let go of open files."""
        ...


class RealFiles:
    """`Files` on the system's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, int] = {}

    def path(self, name: str) -> Path:
        """Where a file lies, for messages."""
        return self._folder / name

    def read(self, name: str) -> bytes | None:
        """See `Files.read`."""
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            return None

    def append(self, name: str, data: bytes) -> None:
        """See `Files.append`."""
        handle = self._handle(name)
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]

    def sync(self, name: str) -> None:
        """See `Files.sync`."""
        os.fdatasync(self._handle(name))

    def truncate(self, name: str, size: int) -> None:
        """See `Files.truncate`."""
        handle = self._handle(name)
        os.ftruncate(handle, size)
        os.fsync(handle)

    def replace(self, name: str, data: bytes) -> None:
        """See `Files.replace`."""
        fresh = f"{name}.new"
        self._forget(fresh)
        self.path(fresh).unlink(missing_ok=True)
        self.append(fresh, data)
        self.sync(fresh)
        self._forget(fresh)
        self._forget(name)
        self._sync_folder()
        fp("file.before_rename")
        self.path(fresh).rename(self.path(name))
        fp("file.after_rename")
        self._sync_folder()

    def close(self) -> None:
        """See `Files.close`."""
        for name in list(self._open):
            self._forget(name)

    def _handle(self, name: str) -> int:
        handle = self._open.get(name)
        if handle is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            handle = self._open[name] = os.open(self.path(name), flags, 0o600)
        return handle

    def _forget(self, name: str) -> None:
        handle = self._open.pop(name, None)
        if handle is not None:
            with contextlib.suppress(OSError):
                os.close(handle)

    def _sync_folder(self) -> None:
        handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
