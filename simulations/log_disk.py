"""A folder of logs on a simulated disk that can lose power, be killed between any two operations, and fail to sync.

`SimulatedLogFiles` keeps for each file what a power loss would leave for certain (the synced bytes) and what is only in the
page cache. A power loss keeps a random length of the unsynced rest, with random sectors of it never written.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from protocol.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simulations.prng import Prng

SECTOR: Final = 512


class ProcessDied(BaseException):
    """The simulated process ends here. Not an Exception: nobody may catch it by accident."""


@dataclass(slots=True)
class _File:
    content: bytearray = field(default_factory=bytearray)
    synced: int = 0
    """Bytes from the start that survive a power loss."""
    last: int = 0
    """Where the last write began."""


class SimulatedLogFiles:
    """`participant.runtime.log_files.LogFiles` for one log; outlives its processes."""

    def __init__(self, prng: Prng, where: str = "/simulated/log") -> None:
        self._prng = prng
        self._files: dict[str, _File] = {}
        self.where = where
        self.operations = 0
        """Counted so that a test can die at each of them in turn."""
        self.die_at: int | None = None
        """The operation at which the process dies, before it takes effect or in the middle of it."""
        self.fail_next_sync = 0
        """An errno: the next sync reports it and drops what was unsynced, as Linux does; the one after would succeed."""
        self.fail_next_append = 0
        """An errno: the next write stops in the middle and reports it."""

    # What a process calls.

    def names(self) -> list[str]:
        """See `LogFiles.names`."""
        return sorted(self._files)

    def read_head(self, name: str, size: int) -> bytes:
        """See `LogFiles.read_head`."""
        return bytes(self._files[name].content[:size])

    def read(self, name: str) -> bytes:
        """See `LogFiles.read`."""
        return bytes(self._files[name].content)

    def create(self, name: str, data: bytes) -> None:
        """See `LogFiles.create`: dies with the file there or not."""
        dies = self._dies_here()
        if self.fail_next_sync:
            number, self.fail_next_sync = self.fail_next_sync, 0
            raise OSError(number, "simulated")
        if name in self._files:
            raise FileExistsError(errno.EEXIST, "File exists", name)
        if not dies or self._prng.chance(1, 2):
            self._files[name] = _File(bytearray(data), len(data))
        if dies:
            raise ProcessDied

    def append(self, name: str, data: bytes) -> None:
        """See `LogFiles.append`. Dying here leaves a part of the data written."""
        file = self._files[name]
        file.last = len(file.content)
        if self._dies_here():
            file.content += data[: self._prng.below(len(data) + 1)]
            raise ProcessDied
        if self.fail_next_append:
            number, self.fail_next_append = self.fail_next_append, 0
            file.content += data[: len(data) // 2]
            raise OSError(number, "simulated")
        file.content += data

    def sync(self, name: str) -> None:
        """See `LogFiles.sync`."""
        if self._dies_here():
            raise ProcessDied
        file = self._files[name]
        if self.fail_next_sync:
            number, self.fail_next_sync = self.fail_next_sync, 0
            # The pages are marked clean and their content is whatever the disk has: here, nothing of them.
            file.content[file.synced :] = bytes(len(file.content) - file.synced)
            raise OSError(number, "simulated")
        file.synced = len(file.content)

    def remove(self, names: Iterable[str]) -> None:
        """See `LogFiles.remove`: dying leaves the later ones."""
        for name in names:
            if self._dies_here():
                raise ProcessDied
            self._files.pop(name, None)

    def close(self) -> None:
        """See `LogFiles.close`."""

    # What the world does to it.

    def lose_power(self) -> None:
        """Forget what was not synced, in an unpleasant way."""
        self.die_at = None
        for file in self._files.values():
            kept = self._prng.between(file.synced, len(file.content))
            del file.content[kept:]
            start = file.synced
            while start < kept:
                stop = min(kept, start - start % SECTOR + SECTOR)
                if self._prng.chance(1, 2):
                    file.content[start:stop] = bytes(stop - start)
                start = stop
            file.synced = kept

    def die_soon(self, operations: int) -> None:
        """The process dies in the so many-th operation from now on, from 1."""
        self.die_at = self.operations + operations

    def older_bytes(self, name: str) -> int:
        """How many bytes of a file lie before its last write, and are durable."""
        file = self._files[name]
        return min(file.last, file.synced)

    def flip_bit(self, name: str, byte: int, bit: int) -> None:
        """Bit rot."""
        self._files[name].content[byte] ^= 1 << bit

    def put(self, name: str, data: bytes) -> None:
        """A file as it is to be found, durable."""
        self._files[name] = _File(bytearray(data), len(data))

    def delete(self, name: str) -> None:
        """An operator's mistake."""
        del self._files[name]

    def copy(self) -> SimulatedLogFiles:
        """The same disk, to try something on."""
        twin = SimulatedLogFiles(self._prng, self.where)
        twin._files = {name: _File(bytearray(f.content), f.synced) for name, f in self._files.items()}
        return twin

    def _dies_here(self) -> bool:
        self.operations += 1
        return self.die_at is not None and self.operations >= self.die_at


class SimulatedOwner:
    """`participant.runtime.log_files.Owner` that a test takes away."""

    def __init__(self) -> None:
        self.taken = False

    def check(self) -> None:
        """See `Owner.check`."""
        if self.taken:
            raise FencedError("somebody else has the folder")
