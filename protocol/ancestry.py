"""What an incarnation comes from, so that a participant that was away can tell what is left of its earlier memberships. Pure.

A rollback begins an incarnation from an epoch. What happened in the epoch's own incarnation counts up to its cut, and of what
that one began from again what its epoch holds, and so on: a line of incarnations, each up to one epoch. All else has not
happened. Who was a member of something that has not happened and comes back finds its acknowledged input in its log alone.
"""

from __future__ import annotations

import msgspec


class Ancestry(msgspec.Struct, frozen=True, kw_only=True):
    """Of one incarnation, as far as the ledger remembers."""

    incarnation: int
    through: tuple[tuple[int, int], ...] = ()
    """Earlier incarnations that it comes from, newest first, each with the epoch up to whose cut it counts."""
    known_from: int = 1
    """Nothing is known of incarnations before this one."""

    def undone(self, incarnation: int, epoch: int) -> bool:
        """Whether nothing is left of a membership; False also where that is not known.

        Args:
            incarnation: In which it began.
            epoch: Highest that had been started by then: those that follow have the member.
        """
        if not self.known_from <= incarnation < self.incarnation:
            return False
        return next((until for each, until in self.through if each == incarnation), 0) <= epoch
