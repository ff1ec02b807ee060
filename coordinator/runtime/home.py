"""The coordinator's data folder: one process at a time, and one coordinator for ever.

Two processes on one raft journal would vote twice; a folder that is given to another coordinator, or to one of another
cluster, would bring a foreign log. Both are refused before anything in the folder is read.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from typing import TYPE_CHECKING, Final

from protocol.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

LOCK_NAME: Final = "lock"
IDENTITY_NAME: Final = "identity.json"


class DataDir:
    """An open data folder; holds its lock until `close`.

    Args:
        path: Made with mode 0700 if it is not there.
        cluster: Must be what the folder was made for.
        coordinator: The same.

    Raises:
        ConfigError: In use, made for another identity, not a folder, not writable.
    """

    def __init__(self, path: Path, *, cluster: str, coordinator: str) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(path, error) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
                raise ConfigError("data_dir", f"{path} is in use by another running coordinator") from None
            raise _unusable(path, error) from None
        try:
            self._check_identity({"cluster": cluster, "id": coordinator})
        except BaseException:
            os.close(self._lock)
            raise

    def _check_identity(self, mine: dict[str, str]) -> None:
        file = self.path / IDENTITY_NAME
        try:
            found = json.loads(file.read_bytes())
        except FileNotFoundError:
            try:
                _write_durably(file, json.dumps(mine, sort_keys=True).encode())
            except OSError as error:
                raise _unusable(self.path, error) from None
            return
        except OSError as error:
            raise _unusable(self.path, error) from None
        except ValueError:
            raise ConfigError("data_dir", f"{file} is damaged; was this folder made by a coordinator?") from None
        if found != mine:
            was = (
                f"coordinator {found.get('id')!a} of cluster {found.get('cluster')!a}"
                if isinstance(found, dict)
                else "?"
            )
            raise ConfigError("data_dir", f"{self.path} belongs to {was}, not to {mine['id']!a} of {mine['cluster']!a}")

    def close(self) -> None:
        """Give the folder free. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _unusable(path: Path, error: OSError) -> ConfigError:
    name = errno.errorcode.get(error.errno or 0, "error")
    return ConfigError("data_dir", f"{path} cannot be used: {name}: {error.strerror}")


def _write_durably(file: Path, data: bytes) -> None:
    draft = file.with_suffix(".tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.replace(file)
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
