"""The kinds of schedules that are swept. ``stock-*`` is the library as it comes: they are expected to lose commands."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from simulations.raft.world import Options

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEADER_CRASH = Options()
_FAULTS = Options(link_faults=80, crashes=60, restarts=90, steps_min=2000, steps_max=5000, crash_leader_at_end=False)
_STORAGE = replace(_FAULTS, compact_entries=12, sync_errors=10)

KINDS: Final[Mapping[str, Options]] = {
    "stock-leader-crash": replace(_LEADER_CRASH, guarded=False),
    "stock-faults": replace(_FAULTS, guarded=False),
    "leader-crash": _LEADER_CRASH,
    "faults": _FAULTS,
    "storage": _STORAGE,
    "storage-leader-crash": replace(_STORAGE, crash_leader_at_end=True),
    "rejoin": replace(_STORAGE, wipes=True),
    "rejoin-five": replace(_STORAGE, wipes=True, size=5),
    "storage-five": replace(_STORAGE, size=5),
}
"""leader-crash: no faults until the leader dies for good. faults: cuts, crashes, power losses, restarts. storage: the
same with frequent compaction, snapshots shipped, failing syncs, deaths inside file operations. rejoin: disks
are lost as a whole, one at a time."""
