"""One coordinator's replica: the library's object with everything of ours put around it. No I/O of its own.

The real driver (`group.py`) and the simulated one (`simulations/raft`) build the same `Replica` and differ in files,
transport and clock only.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from coordinator.runtime.raft import pinned
from coordinator.runtime.raft.config import RaftTiming
from coordinator.runtime.raft.guards import Guards
from coordinator.runtime.raft.journal import DurableJournal
from coordinator.runtime.raft.pinned import Member, SyncObj, SyncObjConf, Transport, replicated
from coordinator.runtime.raft.snapshot_file import CorruptSnapshot, SnapshotStore, align, read_snapshot
from protocol.errors import UnsupportedVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coordinator.runtime.raft.files import Files
    from protocol.ids import CoordinatorId

logger = logging.getLogger(__name__)

BARRIER: Final = ""
"""A command that never reaches the state machine: applied, it proves that all before it was."""
_ALONE: Final = RaftTiming(heartbeat=0.01, election_min=0.04, election_max=0.05)
"""A group of one has nobody to wait for before it elects itself."""
APPLY_FAILED: Final = '{"error":{"code":"apply-failed","message":"the ledger could not apply this command"}}'
"""Result of a command whose application raised. The same on every coordinator, as the exception is."""


def identity_of(coordinator: CoordinatorId, cluster: str, members: tuple[str, ...]) -> dict[str, object]:
    """What journal and snapshot say about whose they are."""
    return {"cluster": cluster, "coordinator": coordinator, "format": 1, "members": list(members)}


class Replica(SyncObj):  # type: ignore[misc] # the library is untyped
    """The replicated log, with one replicated method.

    Building it opens and verifies the files, aligns them and loads the snapshot.

    Args:
        coordinator: This coordinator.
        members: All ids of the group.
        cluster: The cluster's name.
        files: The coordinator's folder.
        transport: Carries the library's messages; calls `guards`.
        timing: Clocks.
        apply: The state machine: one command, all or nothing, deterministic; gives a result for the submitter.
        snapshot: Its whole state as text, a function of the commands applied.
        restore: The inverse.
        applied: Told of each command and result, in order.
        now: Seconds, monotonic.
        compact_entries: See `RaftConfig`.
        compact_seconds: See `RaftConfig`.
        batch_bytes: Entries in one append, about.
        where: The folder, for messages.
        rejoin: See `RaftConfig`.

    Raises:
        CorruptJournal, CorruptSnapshot, JournalPoisoned, StoreError: The folder must not be started from.
    """

    def __init__(
        self,
        *,
        coordinator: CoordinatorId,
        members: tuple[CoordinatorId, ...],
        cluster: str,
        files: Files,
        transport: Transport,
        timing: RaftTiming,
        apply: Callable[[str], str],
        snapshot: Callable[[], str],
        restore: Callable[[str], None],
        applied: Callable[[str, str], None],
        now: Callable[[], float],
        compact_entries: int = 5000,
        compact_seconds: float = 300.0,
        batch_bytes: int = 1 << 20,
        where: str = ".",
        rejoin: bool = False,
    ) -> None:
        identity = identity_of(coordinator, cluster, members)
        self.journal = DurableJournal(files, identity, f"{where}/journal")
        found = read_snapshot(files, identity, f"{where}/snapshot")
        if rejoin and self.journal.is_new and found is None:
            self.journal.rejoining = True
        align(self.journal, found, f"{where}/snapshot")
        self.store = SnapshotStore(files, identity, take=snapshot, restore=restore, now=now)
        self._hold_seconds = 2 * timing.election_max
        self._machine_apply = apply
        self._machine_applied = applied
        super().__init__(
            Member(coordinator),
            [Member(member) for member in members if member != coordinator],
            _library_settings(
                timing if len(members) > 1 else _ALONE,
                self.journal,
                self.store,
                compact_entries,
                compact_seconds,
                batch_bytes,
            ),
            transport=transport,
        )
        self.store.raft = self
        self.guards = Guards(self, self.store)
        pinned.set_serializer(self, self.store)
        pinned.load_snapshot(self, present=found is not None)
        self.store.check()
        if found is not None and self.raftLastApplied != found.last[1]:
            raise CorruptSnapshot(f"{where}/snapshot", "the library did not take it")

    @replicated  # type: ignore[untyped-decorator] # the library is untyped
    def apply(self, command: str) -> str:
        """The one replicated method. Runs on every coordinator for every committed command; never raises.

        An exception here would be raised again at each attempt, on every coordinator, and after every restart: the
        library retries the entry for ever and the group stands still. MemoryError is let through all the same: it is
        this process's alone, and a restart applies the entry properly. So is UnsupportedVersion: a replica that passes
        over an entry which newer ones understand drifts from them; it must stand before it until it is replaced.
        """
        if command == BARRIER:
            return ""
        try:
            result = self._machine_apply(command)
        except (MemoryError, UnsupportedVersion):
            raise
        except Exception:
            logger.exception("the ledger raised; the command counts as applied without effect")
            result = APPLY_FAILED
        self._machine_applied(command, result)
        return result

    def doTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803 - the library's names
        """The library's tick; while rejoining without an election in it."""
        if not self.journal.rejoining:
            super().doTick(timeToWait)
            return
        pinned.hold_election(self, self._hold_seconds)
        super().doTick(timeToWait)
        if self.guards.has_caught_up:
            logger.info("caught up: this coordinator votes again")
            self.journal.rejoining = False

    @property
    def leads(self) -> bool:
        """Whether this coordinator leads and its state holds everything committed before it did."""
        if not self._isLeader():
            return False
        index = pinned.first_own_index(self)
        return index is not None and bool(self.raftLastApplied >= index)


def _library_settings(
    timing: RaftTiming,
    journal: DurableJournal,
    store: SnapshotStore,
    compact_entries: int,
    compact_seconds: float,
    batch_bytes: int,
) -> SyncObjConf:
    settings: Mapping[str, object] = {
        "autoTick": False,  # Our driver ticks: at once after traffic, and syncs before anything leaves.
        "appendEntriesUseBatch": False,  # True waits for the next heartbeat: 100 ms per commit.
        "appendEntriesPeriod": timing.heartbeat,
        "raftMinTimeout": timing.election_min,
        "raftMaxTimeout": timing.election_max,
        "leaderFallbackTimeout": timing.leader_fallback,
        "connectionTimeout": timing.connection,
        "connectionRetryTime": timing.reconnect,
        "commandsWaitLeader": False,  # Refuse at once; waiting is the caller's choice.
        "commandsQueueSize": 10_000,
        "appendEntriesBatchSizeBytes": batch_bytes,
        "logCompactionMinEntries": compact_entries,
        "logCompactionMinTime": compact_seconds,
        "logCompactionSplit": False,
        "useFork": False,  # A forked child inherits listening sockets and locks.
        "journalFile": journal,
        "fullDumpFile": "snapshot",  # Only a name to the library: our store reads and writes.
        "serializer": store.serialize,
        "deserializer": store.deserialize,
        "dynamicMembershipChange": False,  # Members are fixed, so no message can add one.
        "password": None,  # Mutual TLS with an identity per coordinator instead of one shared password.
    }
    return SyncObjConf(**settings)
