"""Which effect ledgers hold what an agent has done: their names, and which of them the one at hand stands for. Pure.

A local snapshot says which effect ledger was at hand, and of each agent which others may hold what it has done (`AgentHost.unheard`).
Whoever restores the agent has *one* at hand. What that one does not cover is unheard of: a step at a place that the ledger at
hand knows nothing of may have been done, and is resolved or in doubt.

An agent keeps what it is unheard of for good, through epochs and restarts. Work that is done again has the places that it had, and so
has all that follows from it, however late: when the last of it is over, nobody can tell. Only somebody's word ends it
(`ParticipantConfig.settled_ledgers`).

Names:
    * ``<participant>/<hex>``: a log in a participant's folder; begun anew with each folder.
    * ``shared``: one that all participants have, and that goes on for ever.
    * ``none``: there was none, so no step was made.
    * ``<participant>@<session>``: no local snapshot says which it was: an older build wrote it, or none was written (session 0). Without a
      participant: another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from protocol.limits import LEDGERS_CARRIED_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

SHARED: Final = "shared"
NONE: Final = "none"
MANY: Final = "many/others"
"""In place of more than are carried."""


def unnamed(participant: str, session: int) -> str:
    """What a participant had at hand in a session, and after it."""
    return f"{participant}@{session}"


def is_unnamed(name: str) -> bool:
    """Nobody has written down which it was."""
    return "@" in name


def covered_by_shared(name: str) -> bool:
    """Whether a ledger that all have holds what this one does."""
    return name in (SHARED, NONE) or is_unnamed(name)


def covered_by_none(name: str) -> bool:
    """Whether there is nothing to remember of this one where no step is made."""
    return name == NONE or is_unnamed(name)


class Reach(NamedTuple):
    """A ledger in a participant's folder."""

    name: str
    participant: str
    adopted: bool
    """The folder was in use before the ledger had a name: whatever this participant has done is in it."""
    late: bool
    """An earlier life of this participant had begun in another folder."""

    def covers(self, name: str) -> bool:
        """Whether what may be in that one is in this one, if it is anywhere."""
        if name in (self.name, NONE):
            return True
        participant, at, session = name.rpartition("@")
        if not at or participant != self.participant:
            return False
        return self.adopted or (session == "0" and not self.late)


def added(known: dict[str, None], names: Iterable[str]) -> dict[str, None]:
    """Names in order of their coming, and not too many."""
    new = [name for name in names if name not in known]
    if not new:
        return known
    found = {**known, **dict.fromkeys(new)}
    return found if len(found) <= LEDGERS_CARRIED_MAX else {MANY: None}


def shown(names: Iterable[str]) -> str:
    """For people: where an agent was, and the names."""
    ordered = sorted(names)
    hosts = dict.fromkeys(name.partition("/")[0].partition("@")[0] or "another participant" for name in ordered)
    return f"{', '.join(hosts)}, whose effect ledger is not known here ({', '.join(ordered)})"
