"""A log on a simulated disk, and how tests read it."""

import msgspec

from participant.logs.recovery import LogIdentity
from participant.runtime.durable_log import DurableLog
from participant.runtime.log_files import Life, LogFiles, Owner
from simulations.log_disk import SimulatedLogFiles
from simulations.raft.prng import Prng

IDENTITY = LogIdentity("turns", "demo", "p1")


def disk(seed: int = 7) -> SimulatedLogFiles:
    return SimulatedLogFiles(Prng(seed))


def record(number: int, size: int = 0) -> bytes:
    return msgspec.msgpack.encode([number, bytes(size)])


def opened(
    files: LogFiles, *, session: int = 1, incarnation: int = 1, after: int = 0, owner: Owner | None = None, **settings
) -> tuple[DurableLog, list[int]]:
    """A log that can be written, and the numbers in the records that were found."""
    log = DurableLog(files, IDENTITY, owner=owner, now=lambda: 42, **settings)
    found = [item[0] for batch in log.recover(after=after) for item in msgspec.msgpack.decode(batch.body)]
    log.begin(Life(incarnation, session))
    return log, found


def write_all(log: DurableLog) -> None:
    while (job := log.take()) is not None:
        log.write(job)


def written(log: DurableLog, *numbers: int, size: int = 0) -> None:
    """One batch of these."""
    for number in numbers:
        log.append(record(number, size))
    write_all(log)


def found_in(files: LogFiles, after: int = 0) -> list[int]:
    return opened(files, after=after)[1]
