"""A folder on a simulated disk that can lose power, be killed between any two operations, and fail to sync.

`SimulatedFiles` keeps for each file what a power loss would leave for certain (the synced bytes) and what is only in
the page cache. A power loss keeps a random length of the unsynced rest, with random sectors of it never written.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from simulations.raft.prng import Prng

SECTOR: Final = 512


class ProcessDied(BaseException):
    """The simulated process ends here. Not an Exception: the library catches those."""


@dataclass(slots=True)
class _File:
    content: bytearray = field(default_factory=bytearray)
    synced: int = 0
    """Bytes from the start that survive a power loss."""


class SimulatedFiles:
    """`coordinator.runtime.raft.files.Files` for one simulated coordinator; outlives its processes."""

    def __init__(self, prng: Prng) -> None:
        self._prng = prng
        self._files: dict[str, _File] = {}
        self.operations = 0
        """Counted so that a test can die at each of them in turn."""
        self.die_at: int | None = None
        """The operation at which the process dies, before it takes effect."""
        self.fail_next_sync = False
        """The next sync reports EIO and drops what was unsynced, as Linux does; the one after would succeed."""

    # What a process calls.

    def read(self, name: str) -> bytes | None:
        """See `Files.read`."""
        file = self._files.get(name)
        return None if file is None else bytes(file.content)

    def append(self, name: str, data: bytes) -> None:
        """See `Files.append`. Dying here leaves a part of the data written."""
        file = self._files.setdefault(name, _File())
        if self._dies_here():
            file.content += data[: self._prng.below(len(data) + 1)]
            raise ProcessDied
        file.content += data

    def sync(self, name: str) -> None:
        """See `Files.sync`."""
        self._step()
        file = self._files[name]
        if self.fail_next_sync:
            self.fail_next_sync = False
            # The pages are marked clean and their content is whatever the disk has: here, nothing of them.
            file.content[file.synced :] = bytes(len(file.content) - file.synced)
            raise OSError(errno.EIO, "Input/output error")
        file.synced = len(file.content)

    def truncate(self, name: str, size: int) -> None:
        """See `Files.truncate`."""
        self._step()
        file = self._files[name]
        del file.content[size:]
        file.synced = len(file.content)

    def replace(self, name: str, data: bytes) -> None:
        """See `Files.replace`: dies before the new name, between name and its durability, or after."""
        self._step()
        old = self._files.get(name)
        self._files[name] = _File(bytearray(data), len(data))
        if self._dies_here():
            # The new name is in the cache: a kill shows the new file; power loss may bring the old one back.
            if self._prng.chance(1, 2):
                if old is None:
                    del self._files[name]
                else:
                    self._files[name] = old
            raise ProcessDied
        self._step()

    def close(self) -> None:
        """See `Files.close`."""

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

    def flip_bit(self, name: str, byte: int, bit: int) -> None:
        """Bit rot."""
        self._files[name].content[byte] ^= 1 << bit

    def copy(self) -> SimulatedFiles:
        """The same disk, to try something on."""
        twin = SimulatedFiles(self._prng)
        twin._files = {name: _File(bytearray(f.content), f.synced) for name, f in self._files.items()}
        return twin

    def delete(self, name: str) -> None:
        """An operator's mistake."""
        del self._files[name]

    def wipe(self) -> None:
        """A new, empty disk."""
        self._files.clear()

    def put(self, name: str, data: bytes) -> None:
        """A file as it is to be found, durable."""
        self._files[name] = _File(bytearray(data), len(data))

    def _dies_here(self) -> bool:
        self.operations += 1
        return self.die_at is not None and self.operations >= self.die_at

    def _step(self) -> None:
        if self._dies_here():
            raise ProcessDied
