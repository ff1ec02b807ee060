"""A participant's own disk: who owns its folder, and the logs in it, with what fsync promises and nothing more.

`LocalDisk` outlives the participant's lives; each life has a `SimulatedFolder`, which is to the product what its
`participant.runtime.log_files.LocalFolder` is. When a process ends, its machine may have lost power: then only what was
synced is there for the next life, and a frozen process of the same name is gone, too. `FolderOfLife` dies with its process:
no thread of a process that was killed goes on writing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from participant.runtime.turn_base import BASE_NAME
from protocol.errors import FencedError
from simulations.log_disk import ProcessDied, SimulatedLogFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from participant.runtime.log_files import Life
    from simulations.prng import Prng

ROOT: Final = Path("/simulated")


class LocalDisk:
    """Of one participant."""

    def __init__(self, participant: str, random: Prng, taken_over: Callable[[str, int], None]) -> None:
        """Make an empty one.

        Args:
            participant: Whose.
            random: Draws what a power loss leaves.
            taken_over: Told of each incarnation that is durable here.
        """
        self.participant = participant
        self.owner: Life | None = None
        self.takings = 0
        """Changes of the file that names the owner."""
        self.logs: dict[str, SimulatedLogFiles] = {}
        self.small: dict[str, bytes] = {}
        """Files beside the logs; each was replaced as a whole, durably."""
        self.harmed = False
        """It lost something that was durable since its participant began to log turns."""
        self._aside = 0
        self._random = random
        self._taken_over = taken_over

    def files(self, log: str) -> SimulatedLogFiles:
        """A log's folder."""
        found = self.logs.get(log)
        if found is None:
            where = str(ROOT / self.participant / log)
            found = self.logs[log] = SimulatedLogFiles(self._random, where)
        return found

    def take(self, life: Life) -> int:
        """The owner's file is replaced, durably; returns which one it is."""
        self.owner = life
        self.takings += 1
        self._taken_over(self.participant, life.incarnation)
        return self.takings

    def stops_with_its_process(self) -> bool:
        """A process has ended: whether its machine has, too. There is nothing to lose before there are logs."""
        return bool(self.logs) and self._random.chance(1, 2)

    def machine_stopped(self) -> None:
        """The power is gone. No process that writes here may live on: it would go on at the end of files that have shrunk."""
        for files in self.logs.values():
            files.lose_power()

    def set_aside(self, log: str, *, without: str) -> None:
        """A log is renamed, and a file beside it deleted, durably."""
        self.small.pop(without, None)
        found = self.logs.pop(log, None)
        if found is not None:
            self._aside += 1
            self.logs[f"{log}.damaged-{self._aside}"] = found

    # --- what no fsync keeps from happening ---------------------------------------------------------------------------

    def lose(self, how: int, *, log: str) -> bool:
        """Lose what was durable: all of it (0), one log (1), its base (2), or its oldest segment (3); whether there was any."""
        found = self.logs.get(log)
        if BASE_NAME not in self.small or found is None or not found.names():
            return False
        if how == 0:
            self.logs.clear()
            self.small.clear()
            self.owner = None
        elif how == 1:
            del self.logs[log]
        elif how == 2:
            del self.small[BASE_NAME]
        else:
            found.delete(found.names()[0])
        self.harmed = True
        return True

    def rot(self, log: str) -> bool:
        """A bit flips in what a log holds for certain, not in its last write: that would look like a torn one."""
        found = self.logs.get(log)
        if BASE_NAME not in self.small or found is None:
            return False
        names = [name for name in found.names() if found.older_bytes(name)]
        if not names:
            return False
        name = self._random.pick(names)
        found.flip_bit(name, self._random.below(found.older_bytes(name)), self._random.below(8))
        self.harmed = True
        return True


class SimulatedFolder:
    """As `LocalFolder`, for one process."""

    def __init__(self, disk: LocalDisk) -> None:
        self.disk = disk
        self.path: Path | None = ROOT / disk.participant
        """As it is shown; None: whoever asks for files that are none of a log's is told that there is no place."""
        self._life: Life | None = None
        self._taking = 0

    def files(self, log: str) -> SimulatedLogFiles | FilesOfLife:
        """See `LocalFolder`."""
        return self.disk.files(log)

    def get(self, name: str) -> bytes | None:
        """See `LocalFolder`."""
        return self.disk.small.get(name)

    def has(self, name: str) -> bool:
        """See `LocalFolder`."""
        return name in self.disk.small

    def replace(self, name: str, data: bytes) -> None:
        """See `LocalFolder`."""
        self.disk.small[name] = data

    def set_aside(self, log: str, *, without: str) -> None:
        """See `LocalFolder`."""
        self.disk.set_aside(log, without=without)

    def highest(self) -> Life | None:
        """See `LocalFolder`."""
        return self.disk.owner

    def take_over(self, life: Life) -> None:
        """See `LocalFolder`."""
        if self._life == life:
            self.check()
            return
        highest = self.disk.owner
        if highest is not None and life < highest:
            raise self._fenced(life)
        self._taking = self.disk.take(life)
        self._life = life

    def check(self) -> None:
        """See `LocalFolder`."""
        assert self._life is not None, "taken over before"
        if self.disk.takings != self._taking:
            raise self._fenced(self._life)

    def close(self) -> None:
        """See `LocalFolder`."""
        self._life = None

    def _fenced(self, life: Life) -> FencedError:
        return FencedError(f"{self.path} belongs to {self.disk.owner} now; {life} must stop")


class FolderOfLife(SimulatedFolder):
    """As `SimulatedFolder`; once its process is dead, whatever still calls it dies, too."""

    def __init__(self, disk: LocalDisk) -> None:
        super().__init__(disk)
        self.dead = False

    def look_alive(self) -> None:
        """To be passed by each call of a process."""
        if self.dead:
            raise ProcessDied

    def files(self, log: str) -> FilesOfLife:
        """See `LocalFolder`."""
        return FilesOfLife(self, self.disk.files(log))

    def get(self, name: str) -> bytes | None:
        """See `LocalFolder`."""
        self.look_alive()
        return super().get(name)

    def replace(self, name: str, data: bytes) -> None:
        """See `LocalFolder`."""
        self.look_alive()
        super().replace(name, data)

    def set_aside(self, log: str, *, without: str) -> None:
        """See `LocalFolder`."""
        self.look_alive()
        super().set_aside(log, without=without)

    def take_over(self, life: Life) -> None:
        """See `LocalFolder`."""
        self.look_alive()
        super().take_over(life)

    def check(self) -> None:
        """See `LocalFolder`."""
        self.look_alive()
        super().check()


class FilesOfLife:
    """`SimulatedLogFiles` as one process has them."""

    def __init__(self, folder: FolderOfLife, files: SimulatedLogFiles) -> None:
        self._folder = folder
        self._files = files
        self.where = files.where

    def names(self) -> list[str]:
        """See `LogFiles.names`."""
        return self._living.names()

    def read_head(self, name: str, size: int) -> bytes:
        """See `LogFiles.read_head`."""
        return self._living.read_head(name, size)

    def read(self, name: str) -> bytes:
        """See `LogFiles.read`."""
        return self._living.read(name)

    def create(self, name: str, data: bytes) -> None:
        """See `LogFiles.create`."""
        self._living.create(name, data)

    def append(self, name: str, data: bytes) -> None:
        """See `LogFiles.append`."""
        self._living.append(name, data)

    def sync(self, name: str) -> None:
        """See `LogFiles.sync`."""
        self._living.sync(name)

    def remove(self, names: Iterable[str]) -> None:
        """See `LogFiles.remove`."""
        self._living.remove(names)

    def close(self) -> None:
        """See `LogFiles.close`."""

    @property
    def _living(self) -> SimulatedLogFiles:
        self._folder.look_alive()
        return self._files
