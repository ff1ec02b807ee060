"""The system calls of the filesystem store, as an object that tests replace to stop or fail at any one of them."""

from __future__ import annotations

import fcntl
import os
import secrets


class SystemCalls:
    """The kernel, one method per call. Every method raises `OSError` as `os` does.

    Paths are relative to a folder's descriptor, except the root's, so that nobody can swap a folder for a symbolic link
    between the check and the use (RELIABILITY.md T22).
    """

    def open_root(self, path: str) -> int:
        """The store's root; it may be reached through symbolic links: it is the operator's choice."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_folder(self, name: str, folder: int) -> int:
        """A folder inside a folder; a symbolic link is refused (ELOOP or ENOTDIR)."""
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)

    def open_file(self, name: str, folder: int) -> int:
        """A file to read. O_NONBLOCK: a FIFO under an object's name must not hang the reader."""
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)

    def create_file(self, name: str, folder: int) -> int:
        """A new file to write, for this user only."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=folder)

    def make_folder(self, name: str, folder: int) -> None:
        """A new folder, for this user only."""
        os.mkdir(name, 0o700, dir_fd=folder)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Bytes written, maybe fewer than given."""
        return os.write(descriptor, data)

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        """Bytes at an offset, maybe fewer than asked; none at the end."""
        return os.pread(descriptor, length, offset)

    def expect(self, descriptor: int, offset: int, length: int) -> None:
        """Say that these bytes will be read soon, so that they are on their way from the disk meanwhile."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)

    def sync(self, descriptor: int) -> None:
        """Make a file or a folder durable. A failure is final for this descriptor."""
        os.fsync(descriptor)

    def link(self, source: str, target: str, folder: int) -> None:
        """A second name, create-only (EEXIST)."""
        os.link(source, target, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)

    def rename(self, source: str, target: str, folder: int) -> None:
        """Another name; replaces what has it."""
        os.rename(source, target, src_dir_fd=folder, dst_dir_fd=folder)

    def lock(self, descriptor: int) -> None:
        """Wait for the folder's lock; closing the descriptor gives it back."""
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def unlink(self, name: str, folder: int) -> None:
        """Take a name away."""
        os.unlink(name, dir_fd=folder)

    def status(self, descriptor: int) -> os.stat_result:
        """What a descriptor is."""
        return os.fstat(descriptor)

    def names(self, descriptor: int) -> list[tuple[str, bool]]:
        """Names in a folder and whether each is a folder; other than files and folders (links, devices) are left out."""
        found: list[tuple[str, bool]] = []
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found.append((entry.name, True))
                elif entry.is_file(follow_symlinks=False):
                    found.append((entry.name, False))
        return found

    def close(self, descriptor: int) -> None:
        """Give a descriptor back."""
        os.close(descriptor)

    def temporary_name(self) -> str:
        """A name that nobody can foresee and that no key can have."""
        return f".tmp-{os.getpid()}-{secrets.token_hex(8)}"
