"""An object store in a folder: create-only, durable when `put` returns, never half an object under a key.

Theory of a put (the order is the point; RELIABILITY.md I12, I13, I18)::

    open the folders one by one, without following links; create what is missing and fsync its parent
    create .tmp-<pid>-<random>  (O_EXCL, 0600, in the same folder)
    write all of it; fsync it; close it                   -> the bytes are durable, under no key
    link it to its key (fails if the key exists)          -> visible, whole
    unlink the temporary name; fsync the folder           -> the name is durable

A crash before the link leaves nothing but a temporary file, which no listing shows; a crash after it leaves the whole
object. Where the file system has no hard links, a rename under the folder's lock takes the link's place.

Rules:
    * A failed fsync is final for its file: the kernel may have marked the lost pages clean, and a second fsync would
      "succeed" (Rebello et al. 2020). The temporary file goes away; only another put, into a new file, can help. If the
      fsync of the folder failed after the link, the object may or may not outlive a power cut: the error says
      ``definite=False``, and the next put of that key writes it anew.
    * A key that holds the same bytes already is made durable (file and folder) before `ALREADY_THERE` is answered: who
      wrote it may not have come that far. The same holds for a folder that is there already. Whoever made it may also have
      met a failed fsync and died; then ours would "succeed" and write nothing. So the folder that holds the name is changed
      first: what is written then is the names as they are.
    * Every error carries errno and path. Nothing is cached that would outlive its cause: when the disk has room again, or
      the folder is mounted again, the next call works.

What it does not know: who may delete. What a file system does that lies about fsync.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from protocol.errors import ConfigError, ObjectConflict, ObjectCorrupt, ObjectMissing, StoreError
from protocol.limits import MIB
from protocol.ports import PutResult
from protocol.storage.names import SEGMENT, check_key, check_prefix
from protocol.storage.system import SystemCalls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol.ids import ClusterName

_STEP_BYTES: Final = MIB
"""Written, read and compared in steps of this size."""
_AHEAD_BYTES: Final = MIB
"""What follows a large range is asked of the disk already: whoever reads a pack from one end to the other opens it for each
range, so the kernel does not see by itself that he goes on."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""What link() says on file systems without hard links (FAT, some FUSE and network ones)."""
_NOT_A_FOLDER: Final = frozenset({errno.ELOOP, errno.ENOTDIR})


class FilesystemStore:
    """Objects of one cluster below ``<root>/<cluster>``. Thread safe; several processes may use one folder."""

    def __init__(
        self, root: str | os.PathLike[str], cluster: ClusterName, *, system: SystemCalls | None = None
    ) -> None:
        self._root = os.path.abspath(os.fspath(root))
        self._cluster = cluster
        self._system = system or SystemCalls()
        self._lock = threading.Lock()
        self._durable_folders: set[str] = set()
        """Folders whose own name is known to be durable: at most one per first digits of a pack, and a few more."""
        self._doubtful: set[str] = set()
        """Keys that are visible here and whose fsync failed: the next put writes them anew."""

    @property
    def url(self) -> str:
        """What a user would write to open this store."""
        return f"file:{self._root}"

    @property
    def cluster(self) -> ClusterName:
        """The cluster whose objects it holds."""
        return self._cluster

    def path(self, key: str) -> str:
        """Where an object lies, for people and error messages."""
        return os.path.join(self._root, self._cluster, key)

    # --- the port ---------------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> PutResult:
        """Create an object; durable, name included, on return."""
        folder_path, _, name = check_key("put", key).rpartition("/")
        with self._errors("put", key), self._folder(folder_path, create=True) as folder:
            existing = self._open_existing(name, folder)
            if existing is not None and key not in self._doubtful:
                with self._closing(existing):
                    return self._already_there(key, data, existing, folder)
            if existing is not None:
                with self._closing(existing):
                    self._compare(key, data, existing)
            return self._create(key, name, data, folder, replace=existing is not None)

    def replace(self, key: str, data: bytes) -> None:
        """Write an object in the place of whatever is there, in one step; durable, name included, on return."""
        folder_path, _, name = check_key("replace", key).rpartition("/")
        with self._errors("replace", key), self._folder(folder_path, create=True) as folder:
            self._create(key, name, data, folder, replace=True)

    def get(self, key: str, *, size_max: int) -> bytes:
        """The whole object."""
        with self._reading(key) as (descriptor, size):
            if size > size_max:
                raise ObjectCorrupt("get", key, f"{size} bytes; at most {size_max} are read")
            return self._read(key, descriptor, 0, size)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`."""
        assert offset >= 0, "a range begins in the object"
        assert length >= 0, "a range has a length"
        with self._reading(key) as (descriptor, size):
            # Before any memory is taken for it: the length may come from a hostile index.
            if offset + length > size:
                raise ObjectCorrupt("get", key, f"{size} bytes; {length} from {offset} were expected")
            data = self._read(key, descriptor, offset, length)
            rest = min(size - offset - length, _AHEAD_BYTES)
            if rest and length >= _AHEAD_BYTES // 4:
                with suppress(OSError):
                    self._system.expect(descriptor, offset + length, rest)
            return data

    def size(self, key: str) -> int:
        """Bytes of an object."""
        with self._reading(key) as (_, size):
            return size

    def list(self, prefix: str) -> Iterator[str]:
        """Keys that begin with `prefix`, sorted. Temporary files, links and names that are no keys are passed over."""
        folder_path, _, _ = check_prefix(prefix).rpartition("/")
        return self._walk(folder_path, prefix)

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is fine. Not made durable: an object that comes back is deleted again."""
        folder_path, _, name = check_key("delete", key).rpartition("/")
        with self._errors("delete", key):
            try:
                with self._folder(folder_path) as folder:
                    self._system.unlink(name, folder)
            except FileNotFoundError:
                return

    # --- opening ----------------------------------------------------------------------------------------------------

    def check_openable(self, *, writable: bool) -> None:
        """Say at once what would fail later.

        Args:
            writable: Also create the cluster's folder where it is missing, and try to write.

        Raises:
            ConfigError: The root is missing, is no folder, cannot be read or written. Says what to do.
        """
        try:
            root = self._system.open_root(self._root)
        except OSError as error:
            hint = {
                errno.ENOENT: f"there is no such folder; create it (mkdir -p {self._root}) or mount it first",
                errno.ENOTDIR: "this is not a folder; give the folder that holds, or is to hold, the store",
                errno.EACCES: "this user may not open it; change its owner or mode",
            }.get(error.errno or 0, error.strerror or str(error))
            raise ConfigError("store", f"{self._root}: {hint}") from None
        try:
            if writable:
                self._check_writable(root)
            else:
                self._check_readable(root)
        finally:
            self._system.close(root)

    def remove_leftovers(self, *, older_than_ns: int, now_ns: int) -> tuple[str, ...]:
        """Delete temporary files that crashed writers left behind.

        Args:
            older_than_ns: Younger ones may belong to a put that is running: choose more than any put takes.
            now_ns: Wall clock, as the file system's times are.

        Returns:
            Their paths below the cluster's folder.
        """
        removed = []
        with self._errors("delete", ""):
            for folder_path in self._folders(""):
                with self._folder(folder_path) as folder:
                    for name, is_folder in sorted(self._system.names(folder)):
                        if is_folder or not name.startswith(".tmp-"):
                            continue
                        with suppress(FileNotFoundError), self._closing(self._system.open_file(name, folder)) as file:
                            if self._system.status(file).st_mtime_ns <= now_ns - older_than_ns:
                                self._system.unlink(name, folder)
                                removed.append(f"{folder_path}/{name}".lstrip("/"))
        return tuple(removed)

    # --- creating ---------------------------------------------------------------------------------------------------

    def _create(self, key: str, name: str, data: bytes, folder: int, *, replace: bool) -> PutResult:
        system = self._system
        temporary = system.temporary_name()
        file = system.create_file(temporary, folder)
        try:
            with self._closing(file):
                self._write(file, data)
                system.sync(file)
            created = self._make_visible(temporary, name, folder, replace=replace)
        except OSError:
            # Only for errors: a crash in a test must leave what a crash leaves.
            with suppress(OSError):
                system.unlink(temporary, folder)
            raise
        if not created:
            existing = self._open_existing(name, folder)
            if existing is None:
                raise StoreError("put", key, "the key was taken and then deleted while it was being created")
            with self._closing(existing):
                return self._already_there(key, data, existing, folder)
        self._sync_name(key, folder)
        return PutResult.CREATED

    def _write(self, file: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            written = self._system.write(file, rest[:_STEP_BYTES])
            if written <= 0:
                raise OSError(errno.EIO, "the kernel wrote nothing and gave no reason")
            rest = rest[written:]

    def _make_visible(self, temporary: str, name: str, folder: int, *, replace: bool) -> bool:
        """Give the finished file its key and drop the temporary name; False if somebody else has the key now."""
        system = self._system
        if replace:
            system.rename(temporary, name, folder)
            return True
        try:
            system.link(temporary, name, folder)
        except FileExistsError:
            system.unlink(temporary, folder)
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._rename_if_free(temporary, name, folder)
        with suppress(OSError):
            # The object is there; a leftover name is litter, not a failure.
            system.unlink(temporary, folder)
        return True

    def _rename_if_free(self, temporary: str, name: str, folder: int) -> bool:
        # flock on the folder makes check and rename one step among all who use this class.
        system = self._system
        with self._closing(system.open_folder(".", folder)) as locked:
            system.lock(locked)
            existing = self._open_existing(name, folder)
            if existing is not None:
                system.close(existing)
                system.unlink(temporary, folder)
                return False
            system.rename(temporary, name, folder)
            return True

    def _already_there(self, key: str, data: bytes, existing: int, folder: int) -> PutResult:
        self._compare(key, data, existing)
        try:
            self._system.sync(existing)
        except OSError:
            with self._lock:
                self._doubtful.add(key)
            raise
        self._change(folder)
        self._sync_name(key, folder)
        return PutResult.ALREADY_THERE

    def _change(self, folder: int) -> None:
        """Have something in a folder that the next fsync must write."""
        name = self._system.temporary_name()
        self._system.close(self._system.create_file(name, folder))
        self._system.unlink(name, folder)

    def _sync_name(self, key: str, folder: int) -> None:
        try:
            self._system.sync(folder)
        except OSError as error:
            with self._lock:
                self._doubtful.add(key)
            reason = f"{error.strerror}: {self.path(key)} is visible, but may not outlive a power cut"
            raise StoreError("put", key, reason, errno_name=_name(error), definite=False) from error
        with self._lock:
            self._doubtful.discard(key)

    def _compare(self, key: str, data: bytes, existing: int) -> None:
        size = self._system.status(existing).st_size
        same = size == len(data) and all(
            self._system.read(existing, _STEP_BYTES, offset) == data[offset : offset + _STEP_BYTES]
            for offset in range(0, size, _STEP_BYTES)
        )
        if not same:
            raise ObjectConflict(
                "put", key, f"{self.path(key)} holds {size} other bytes already; these were {len(data)}"
            )

    # --- reading ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self, key: str) -> Iterator[tuple[int, int]]:
        folder_path, _, name = check_key("get", key).rpartition("/")
        with self._errors("get", key):
            try:
                with self._folder(folder_path) as folder:
                    file = self._system.open_file(name, folder)
            except FileNotFoundError:
                raise ObjectMissing("get", key, f"no such file: {self.path(key)}", errno_name="ENOENT") from None
            with self._closing(file):
                yield file, self._regular(key, file).st_size

    def _read(self, key: str, descriptor: int, offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        end = offset + length
        while offset < end:
            part = self._system.read(descriptor, end - offset, offset)
            if not part:
                raise ObjectCorrupt("get", key, f"ends after {offset} bytes; {end} were expected")
            parts.append(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _open_existing(self, name: str, folder: int) -> int | None:
        try:
            file = self._system.open_file(name, folder)
        except FileNotFoundError:
            return None
        try:
            self._regular(name, file)
        except BaseException:
            self._system.close(file)
            raise
        return file

    def _regular(self, key: str, descriptor: int) -> os.stat_result:
        status = self._system.status(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ObjectCorrupt("get", key, "not a regular file")
        return status

    # --- folders ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _folder(self, path: str, *, create: bool = False) -> Iterator[int]:
        """The descriptor of a folder below the cluster's; the cluster's own is never created here.

        A root or cluster folder that is gone is a `StoreError` in every operation, never a missing object: it means that
        a disk is not mounted.
        """
        try:
            current = self._system.open_root(self._root)
            with self._closing(current) as root:
                current = self._system.open_folder(self._cluster, root)
        except FileNotFoundError as error:
            gone = os.path.join(self._root, self._cluster)
            raise StoreError(
                "open", gone, "the store's folder is gone; is its disk mounted?", errno_name=_name(error)
            ) from error
        try:
            walked = ""
            for part in path.split("/") if path else ():
                walked = f"{walked}/{part}"
                child = self._enter(walked, part, current, create=create)
                self._system.close(current)
                current = child
            yield current
        finally:
            self._system.close(current)

    def _enter(self, walked: str, part: str, parent: int, *, create: bool) -> int:
        system = self._system
        made = False
        try:
            child = system.open_folder(part, parent)
            known = not create or walked in self._durable_folders
        except FileNotFoundError:
            if not create:
                raise
            with suppress(FileExistsError):
                system.make_folder(part, parent)
                made = True
            child = system.open_folder(part, parent)
            known = False
        if not known:
            # Also for a folder that was there: who made it may have crashed before its fsync.
            try:
                if not made:
                    self._change(parent)
                system.sync(parent)
            except BaseException:
                system.close(child)
                raise
            with self._lock:
                self._durable_folders.add(walked)
        return child

    def _walk(self, folder_path: str, prefix: str) -> Iterator[str]:
        with self._errors("list", prefix):
            try:
                with self._folder(folder_path) as folder:
                    names = self._system.names(folder)
            except FileNotFoundError:
                return
        base = f"{folder_path}/" if folder_path else ""
        # A folder sorts as its keys do, with the slash: "a-b" comes before "a/b".
        for name in sorted(f"{name}/" if is_folder else name for name, is_folder in names):
            key = base + name
            if SEGMENT.fullmatch(name.removesuffix("/")) is None or not (
                key.startswith(prefix) or prefix.startswith(key)
            ):
                continue
            if name.endswith("/"):
                yield from self._walk(key[:-1], prefix)
            elif key.startswith(prefix):
                yield key

    def _folders(self, path: str) -> Iterator[str]:
        with self._folder(path) as folder:
            names = self._system.names(folder)
        yield path
        for name, is_folder in sorted(names):
            if is_folder and SEGMENT.fullmatch(name):
                yield from self._folders(f"{path}/{name}".lstrip("/"))

    def _check_writable(self, root: int) -> None:
        system = self._system
        place = f"{self._root}/{self._cluster}"
        try:
            with suppress(FileExistsError):
                system.make_folder(self._cluster, root)
                system.sync(root)
            with self._closing(system.open_folder(self._cluster, root)) as folder:
                name = system.temporary_name()
                system.close(system.create_file(name, folder))
                system.unlink(name, folder)
        except OSError as error:
            raise ConfigError(
                "store",
                f"{place} is not writable: {_name(error)}: {error.strerror}; change its owner or mode, make room, or mount it "
                "for writing",
            ) from None

    def _check_readable(self, root: int) -> None:
        try:
            self._system.close(self._system.open_folder(self._cluster, root))
        except FileNotFoundError:
            others = sorted(
                name for name, is_folder in self._system.names(root) if is_folder and SEGMENT.fullmatch(name)
            )
            held = f"it holds: {', '.join(others[:20])}" if others else "it is empty"
            raise ConfigError("store", f"{self._root} holds no cluster {self._cluster!r}; {held}") from None
        except OSError as error:
            raise ConfigError(
                "store", f"{self._root}/{self._cluster} cannot be read: {_name(error)}: {error.strerror}"
            ) from None

    # --- errors and descriptors -------------------------------------------------------------------------------------

    @contextmanager
    def _closing(self, descriptor: int) -> Iterator[int]:
        try:
            yield descriptor
        finally:
            self._system.close(descriptor)

    @contextmanager
    def _errors(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"{error.strerror or error}: {self.path(key)}"
            if error.errno in _NOT_A_FOLDER:
                reason += " (symbolic links are not followed inside a store)"
            raise StoreError(operation, key, reason, errno_name=_name(error)) from error


def _name(error: OSError) -> str | None:
    return errno.errorcode.get(error.errno) if error.errno is not None else None
