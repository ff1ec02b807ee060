"""Replicated log of the coordinators: pysyncobj 0.3.17 with what it lacks around it.

What is whose: elections, the commit rule and replication are the library's. Ours are the transport (`transport.py`,
`connection.py`, `messages.py`), the rules that keep it from losing what it acknowledged (`guards.py`), the journal and
snapshot on disk (`journal.py`, `snapshot_file.py`) and the thread that drives it (`group.py`). `pinned.py` is the only
module that touches the library's private names.

Names are loaded when first used: the library is not imported for ``cleancut --help``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.runtime.raft.config import TIMINGS, RaftConfig, RaftTiming, TlsFiles, timing_preset

if TYPE_CHECKING:
    from coordinator.runtime.raft.group import RaftGroup
    from coordinator.runtime.raft.journal import CorruptJournal, JournalPoisoned
    from coordinator.runtime.raft.snapshot_file import CorruptSnapshot

__all__ = [
    "TIMINGS",
    "CorruptJournal",
    "CorruptSnapshot",
    "JournalPoisoned",
    "RaftConfig",
    "RaftGroup",
    "RaftTiming",
    "TlsFiles",
    "timing_preset",
]

_HOMES = {
    "CorruptJournal": "journal",
    "CorruptSnapshot": "snapshot_file",
    "JournalPoisoned": "journal",
    "RaftGroup": "group",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
