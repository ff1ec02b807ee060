"""The write-ahead log of turn commits on a participant's disk: the driver of `participant.turnlog`.

::

    logger = TurnLogger(folder, cluster=..., participant=..., on_durable=..., on_failure=...)
    replayed = logger.recover(hosts, after=position, ...)     # blocking: in a thread; the hosts have the epoch's state
    logger.begin(life, hosts)                                 # turns are logged from here on
    logger.writer.received(...) / .turn(...) / ...            # as things happen, on the loop
    number = logger.flush()                                   # before anything of it is told to anybody
    ... on_durable(number)                                    # now sends, acknowledgements and outputs may leave

Rules for who uses it:
    * What a turn sent, and the acknowledgement of what it was given, leave when `on_durable` has come to the number that
      `flush` gave: they are what others would lose.
    * A local part is reported only when `on_durable` has come to the position at its cut (`position`): an epoch never holds
      what a crash can still take back from the log.
    * `keep` follows each commit; it deletes what the epoch covers. Until then the log is the agents' history.
    * After a rollback `begin_anew` comes in place of `begin`: what was logged behind the epoch has not happened.
"""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING

from participant.logs.recovery import LogIdentity
from participant.runtime.durable_log import DurableLog
from participant.runtime.group_commit import GroupCommit
from participant.turnlog.replay import Replay
from participant.turnlog.writer import TurnLogWriter
from protocol.limits import LOG_SEGMENT_BYTES
from protocol.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from participant.host import AgentHost
    from participant.runtime.durable_log import Job
    from participant.runtime.log_files import Life, LogFiles, Owner
    from participant.serializers import PickleAllowed
    from participant.turnlog.replay import Replayed
    from protocol.errors import FencedError, StoreError

LOG_NAME = "turns"


class TurnLogger:
    """One participant's turn log.

    Args:
        files: Of the log's own folder.
        cluster: The cluster's name.
        participant: This one.
        owner: Asked after each fsync: whoever lost the folder acknowledges nothing.
        on_durable: Called on the loop with the number up to which all records are durable.
        on_failure: Called on the loop, once: the participant must end.
        segment_bytes: For tests.
    """

    def __init__(
        self,
        files: LogFiles,
        *,
        cluster: str,
        participant: str,
        owner: Owner | None = None,
        on_durable: Callable[[int], None] | None = None,
        on_failure: Callable[[StoreError | FencedError], None] | None = None,
        segment_bytes: int = LOG_SEGMENT_BYTES,
    ) -> None:
        identity = LogIdentity("turns", cluster, participant)
        self.log = DurableLog(files, identity, owner=owner, segment_bytes=segment_bytes)
        self.writer = TurnLogWriter()
        self._group = GroupCommit(self.log, on_durable=on_durable, on_failure=on_failure)
        self._beginning: Job | None = None
        """That is to be written before all else."""

    @property
    def position(self) -> int:
        """Number of the last record so far, those not flushed yet left out: what a cut notes after a `flush`."""
        return self.log.next - 1

    def recover(
        self,
        hosts: Mapping[str, AgentHost],
        *,
        after: int = 0,
        received: Mapping[str, int] | None = None,
        sent: Mapping[str, int] | None = None,
        lines: Mapping[str, int] | None = None,
        unrouted: Iterable[bytes] = (),
        allowed: PickleAllowed | None = None,
        now: int,
    ) -> Replayed:
        """Apply what was logged after the epoch. Blocks.

        Args:
            hosts: By agent, with the epoch's state.
            after: The epoch's position.
            received: Incoming channel -> position at the epoch's cut.
            sent: Outgoing channel -> position at the epoch's cut.
            lines: Peer -> its line at the epoch's cut.
            unrouted: Encoded envelopes that waited for an agent to appear.
            allowed: The right to unpickle.
            now: Driver time.

        Raises:
            CorruptLog: Damage that is no torn tail, or records that are needed are gone: fall back to a rollback.
            RecoveryError: A record does not fit these agents.
            StoreError: Somebody else's log, or the system's error.
        """
        replay = Replay(hosts, received=received, sent=sent, lines=lines, unrouted=unrouted, allowed=allowed)
        for batch in self.log.recover(after=after):
            replay.batch(batch.body, batch.first, after=after)
        return replay.finish(now, time_ns())

    def claim(self, life: Life, hosts: Iterable[AgentHost]) -> None:
        """Begin a segment behind what was recovered, durably: nothing that a former owner of the folder writes now counts. Blocks.

        Raises:
            StoreError: The system's error; or the former owner has begun that segment in this very moment: recover again.
            FencedError: The folder is somebody else's now.
        """
        self.log.begin(life)
        writer = TurnLogWriter()
        writer.life(life.incarnation, life.session, {host.id: host.agent.state_version for host in hosts}, __version__)
        for record in writer.take():
            self.log.append(record)
        job = self.log.take()
        assert job is not None, "a record waits"
        self.log.write(job)

    def begin(self, life: Life, hosts: Iterable[AgentHost]) -> None:
        """Log turns of these agents from now on, behind what was recovered."""
        self.log.begin(life)
        self._begin(life, hosts)

    def read(self) -> None:
        """Know where the log ends, and nothing of what it holds. Blocks.

        Raises:
            CorruptLog: It cannot be read; `discard` it.
            StoreError: Somebody else's log, or the system's error.
        """
        for _ in self.log.recover():
            pass

    def hold(self) -> None:
        """Write nothing until `release`."""
        self._group.hold()

    def release(self) -> None:
        """Write what waits."""
        self._group.release()

    async def wait_idle(self) -> None:
        """Until nothing is being written."""
        await self._group.wait_idle()

    def start_over(self, life: Life, hosts: Iterable[AgentHost]) -> int:
        """As `begin_anew`, without waiting for it, behind all that was logged; nothing may wait or be under way.

        `write_beginning` has to follow before `release`.

        Returns:
            The number of the record with which the log begins anew.
        """
        position = self.position
        self.log.begin(life)
        self.writer = TurnLogWriter()
        self._begin(life, hosts)
        number = self.log.start_anew(self.writer.take(), first=position + 1)
        self._beginning = self.log.take()
        return number

    async def write_beginning(self) -> None:
        """Make what `start_over` began with durable, by itself, if it was the last beginning.

        Raises:
            LogPoisoned: It may never be.
            FencedError: It never counts.
        """
        beginning, self._beginning = self._beginning, None
        if beginning is not None:
            await self._group.write_job(beginning)

    async def begin_anew(self, life: Life, hosts: Iterable[AgentHost], *, after: int) -> None:
        """Log turns of these agents from now on, behind an epoch: what had been logged after its position has not happened.

        Raises:
            StoreError: It could not be made durable.
            FencedError: The folder is somebody else's now.
        """
        await self._group.wait_idle()
        self.log.begin(life)
        self.writer = TurnLogWriter()
        self._begin(life, hosts)
        number = self.log.start_anew(self.writer.take(), first=after + 1)
        await self._group.wait_durable(number)
        await self._group.truncate(0)

    def flush(self) -> int:
        """Have everything that the writer holds written; returns the number to wait for."""
        for record in self.writer.take():
            self._group.append(record)
        # Which of several turns came first is in none of them: all are there, or none.
        self.log.bind()
        return self.log.next - 1

    async def wait_durable(self, number: int) -> None:
        """Until everything up to this number is durable.

        Raises:
            LogPoisoned: It may never be.
            FencedError: It never counts.
        """
        await self._group.wait_durable(number)

    async def keep(self, position: int) -> int:
        """An epoch is committed whose cut was at this position: what it covers is deleted; returns how many segments.

        Raises:
            StoreError: It did not work; it is done with the next epoch.
        """
        return await self._group.truncate(position + 1)

    async def close(self) -> None:
        """Write what waits, and let go of the file."""
        await self._group.close()

    def _begin(self, life: Life, hosts: Iterable[AgentHost]) -> None:
        versions: dict[str, int] = {}
        for host in hosts:
            host.state.logged = True
            versions[host.id] = host.agent.state_version
        self.writer.life(life.incarnation, life.session, versions, __version__)
