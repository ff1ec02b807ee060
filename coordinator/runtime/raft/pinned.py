"""The one place that knows pysyncobj's private names.

Everything here holds for pysyncobj 0.3.17 and no other version: an upgrade means reading this folder again and running
the simulations (`simulations/raft`) against the new library. Importing this module

* refuses any other version, and ``python -O`` (the library validates with ``assert``; so do we);
* makes the library take a ready-made journal object where it expects a file name;
* replaces its unpickling by one that knows no classes (see `commands.py`). The log still *is* pickles: the library
  pickles each call of the replicated method, ``(method number, (text,))``.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import pysyncobj.pickle
import pysyncobj.syncobj
import pysyncobj.version
from pysyncobj.config import FAIL_REASON, SyncObjConf
from pysyncobj.journal import Journal
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj, replicated
from pysyncobj.transport import Transport

from coordinator.runtime.raft import commands
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.runtime.raft.journal import Entry

__all__ = ["FAIL_REASON", "Journal", "Member", "SyncObj", "SyncObjConf", "Transport", "replicated"]

PINNED_VERSION = "0.3.17"


class Member(Node):  # type: ignore[misc] # the library is untyped
    """A coordinator as the library knows it: by its id; where it lives is the transport's business.

    Its hash is the same in every process, so that the library's sets are iterated in the same order in every replay.
    """

    def __hash__(self) -> int:
        return zlib.crc32(self.id.encode())


def check_interpreter(*, assertions: bool = __debug__, version: str = pysyncobj.version.VERSION) -> None:
    """Refuse an interpreter or a library in which the guards would not hold.

    Raises:
        ConfigError: ``python -O``, or another pysyncobj than the pinned one.
    """
    if not assertions:
        raise ConfigError("python -O", "assertions are part of the coordinator's safety; start it without -O")
    if version != PINNED_VERSION:
        raise ConfigError("pysyncobj", f"version {PINNED_VERSION} is required, {version} is installed")


check_interpreter()

_create_journal = pysyncobj.syncobj.createJournal


def _journal_or_file(journal: object = None) -> object:
    """What `SyncObjConf.journalFile` names: our journal object itself, or (the unmodified library) a file."""
    return journal if isinstance(journal, Journal) else _create_journal(journal)


pysyncobj.syncobj.createJournal = _journal_or_file
pysyncobj.pickle.loads = commands.restricted_loads
pysyncobj.pickle.load = commands.restricted_load


def log_of(raft: Any) -> Any:  # noqa: ANN401 - the library is untyped
    """The journal object."""
    return raft._SyncObj__raftLog  # noqa: SLF001 - pinned


def entry_at(raft: Any, index: int) -> Entry | None:  # noqa: ANN401 - the library is untyped
    """The log entry of that index, None where the log does not have it (yet, or any more)."""
    log = log_of(raft)
    position = index - log[0][1]
    entry: Entry | None = log[position] if 0 <= position < len(log) else None
    return entry


def next_index_of(raft: Any) -> dict[Any, int]:  # noqa: ANN401 - the library is untyped
    """A leader's next entry to send, per follower."""
    table: dict[Any, int] = raft._SyncObj__raftNextIndex  # noqa: SLF001 - pinned
    return table


def match_index_of(raft: Any) -> dict[Any, int]:  # noqa: ANN401 - the library is untyped
    """A leader's knowledge of each follower's acknowledged entries."""
    table: dict[Any, int] = raft._SyncObj__raftMatchIndex  # noqa: SLF001 - pinned
    return table


def first_own_index(raft: Any) -> int | None:  # noqa: ANN401 - the library is untyped
    """Index of the no-op that the latest leadership of this coordinator began with."""
    index: int | None = raft._SyncObj__noopIDx  # noqa: SLF001 - pinned
    return index


def forget_match(raft: Any, node: Member) -> None:  # noqa: ANN401 - the library is untyped
    """As a leader: that follower has nothing any more."""
    if node in match_index_of(raft):
        match_index_of(raft)[node] = 0


def hold_election(raft: Any, seconds: float) -> None:  # noqa: ANN401 - the library is untyped
    """Do not stand for election within the next seconds."""
    raft._SyncObj__raftElectionDeadline = pysyncobj.syncobj.monotonicTime() + seconds  # noqa: SLF001 - pinned


def set_serializer(raft: Any, serializer: object) -> None:  # noqa: ANN401 - the library is untyped
    """Put our snapshot store where the library's was; before the first tick."""
    raft._SyncObj__serializer = serializer  # noqa: SLF001 - pinned


def load_snapshot(raft: Any, *, present: bool) -> None:  # noqa: ANN401 - the library is untyped
    """Load the snapshot now instead of in the first tick (where the library asks the file system for a file)."""
    if present:
        raft._SyncObj__loadDumpFile(clearJournal=False)  # noqa: SLF001 - pinned
    raft._SyncObj__needLoadDumpFile = False  # noqa: SLF001 - pinned


def forget_callbacks(raft: Any) -> None:  # noqa: ANN401 - the library is untyped
    """Drop callbacks of entries that a snapshot jumped over: the library never calls nor drops them."""
    waiting = raft._SyncObj__commandsWaitingCommit  # noqa: SLF001 - pinned
    for index in [index for index in waiting if index <= raft.raftLastApplied]:
        del waiting[index]


def close_notifier(raft: Any) -> None:  # noqa: ANN401 - the library is untyped
    """Close the wake-up pipe, which the library leaves open."""
    import os

    notifier = getattr(raft, "_SyncObj__pipeNotifier", None)
    if notifier is not None:
        raft._poller.unsubscribe(notifier._PipeNotifier__pipeR)  # noqa: SLF001 - pinned
        os.close(notifier._PipeNotifier__pipeR)  # noqa: SLF001 - pinned
        os.close(notifier._PipeNotifier__pipeW)  # noqa: SLF001 - pinned
        del raft._SyncObj__pipeNotifier  # noqa: SLF001 - pinned
