"""What an incarnation comes from, so that a participant that was away can tell what is left of its earlier memberships. Pure.

A rollback begins an incarnation from an epoch. What happened in the epoch's own incarnation counts up to its cut, and of what
that one began from again what its epoch holds, and so on: a line of incarnations, each up to one epoch. All else has not
happened. Who was a member of something that has not happened and comes back finds its acknowledged input in its log alone.

Rollbacks may give agents other names (`protocol.renames`), so a name says who is meant only together with its incarnation: two
agents may have exchanged theirs since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping


class Named(msgspec.Struct, frozen=True, array_like=True):
    """What agents are called in one incarnation."""

    incarnation: int
    base: int
    """That it began from; 0: from the start."""
    renames: tuple[tuple[str, str], ...] = ()
    """(name there, name here), of those that differ."""


class Ancestry(msgspec.Struct, frozen=True, kw_only=True):
    """Of one incarnation, as far as the ledger remembers."""

    incarnation: int
    through: tuple[tuple[int, int], ...] = ()
    """Earlier incarnations that it comes from, newest first, each with the epoch up to whose cut it counts."""
    known_from: int = 1
    """Nothing is known of incarnations before this one."""
    named: tuple[Named, ...] = ()
    """How incarnations began that are remembered, those that were given up included; empty where no agent was ever renamed."""

    def undone(self, incarnation: int, epoch: int) -> bool:
        """Whether nothing is left of a membership; False also where that is not known.

        Args:
            incarnation: In which it began.
            epoch: Highest that had been started by then: those that follow have the member.
        """
        if not self.known_from <= incarnation < self.incarnation:
            return False
        return next((until for each, until in self.through if each == incarnation), 0) <= epoch

    def first_name(self, agent: str) -> str:
        """What an agent was called when it began for the first time: its work is told by that name, whatever it is called now.

        Args:
            agent: What it is called now.
        """
        begun = {each.incarnation: each for each in self.named}
        for each in _line(self.incarnation, begun):
            agent = _name_before(begun, each, agent)
        return agent

    def called(self, agent: str, incarnation: int) -> str:
        """What an agent is called in this incarnation; as before, where that is not known.

        Args:
            agent: What it was called.
            incarnation: In which.
        """
        begun = {each.incarnation: each for each in self.named}
        here = _line(self.incarnation, begun)
        back = _line(incarnation, begun)
        shared = next((each for each in back if each in here), None)
        if shared is None:
            return agent
        for each in back[: back.index(shared)]:
            agent = _name_before(begun, each, agent)
        for each in reversed(here[: here.index(shared)]):
            agent = dict(_renames(begun, each)).get(agent, agent)
        return agent


def _line(incarnation: int, begun: Mapping[int, Named]) -> list[int]:
    """An incarnation, the one that it began from, and so on; 0 for the start, where that is known."""
    found = [incarnation]
    while (each := begun.get(found[-1])) is not None:
        found.append(each.base)
    if found[-1] == 1:
        found.append(0)
    return found


def _name_before(begun: Mapping[int, Named], incarnation: int, agent: str) -> str:
    return next((old for old, new in _renames(begun, incarnation) if new == agent), agent)


def _renames(begun: Mapping[int, Named], incarnation: int) -> tuple[tuple[str, str], ...]:
    each = begun.get(incarnation)
    return () if each is None else each.renames
