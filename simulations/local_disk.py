"""A participant's own disk: who owns its folder, and the logs in it, with what fsync promises and nothing more.

`LocalDisk` outlives the participant's lives; each life has a `SimulatedFolder`, which is to the product what its
`participant.runtime.log_files.LocalFolder` is. When a process ends, its machine may have lost power: then only what was
synced is there for the next life.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from protocol.errors import FencedError
from simulations.log_disk import SimulatedLogFiles

if TYPE_CHECKING:
    from collections.abc import Callable

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

    def machine_stopped(self) -> None:
        """A process has ended, by itself or with its machine."""
        if self.logs and self._random.chance(1, 2):
            for files in self.logs.values():
                files.lose_power()


class SimulatedFolder:
    """As `LocalFolder`, for one process."""

    def __init__(self, disk: LocalDisk) -> None:
        self.disk = disk
        self.path: Path | None = ROOT / disk.participant
        """As it is shown; None: whoever asks for files that are none of a log's is told that there is no place."""
        self._life: Life | None = None
        self._taking = 0

    def files(self, log: str) -> SimulatedLogFiles:
        """See `LocalFolder`."""
        return self.disk.files(log)

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
