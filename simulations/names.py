"""What agents are called, where an operator has some come back under other names.

An agent's *first* name is the one that its world began with; its work is told by that one. What programs that are started now
declare may differ (`declare`), and what others have to call it is what the incarnation that runs says (`began`): the ghost's
own account of the renames along the line of epochs, from what operators asked for.
"""

from __future__ import annotations

from typing import Final

SEPARATOR: Final = "."
"""Between a first name and the number of a later one."""


def first_of(agent: str) -> str:
    """The first name of an agent that a program declares or takes."""
    return agent.partition(SEPARATOR)[0]


class Names:
    """Of all agents of a run. Like a program's code, no part of any state."""

    def __init__(self) -> None:
        self._called: dict[str, str] = {}
        self._declared: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._books: dict[int, dict[str, str]] = {}
        """Incarnation -> first name -> name, of those that differ."""

    def now(self, first: str) -> str:
        """What others call an agent."""
        return self._called.get(first, first)

    def called_in(self, incarnation: int, first: str) -> str:
        """What an agent is called in an incarnation, which need not be the newest."""
        return self._books.get(incarnation, {}).get(first, first)

    def declared(self, first: str) -> str:
        """What a program that is started now calls it."""
        return self._declared.get(first, first)

    def declare(self, first: str) -> str:
        """Have programs that are started from now on call an agent by a name that no agent had."""
        number = self._numbers[first] = self._numbers.get(first, 0) + 1
        self._declared[first] = f"{first}{SEPARATOR}{number}"
        return self._declared[first]

    def began(self, incarnation: int, base: int, renames: dict[str, str]) -> None:
        """An incarnation begins.

        Args:
            incarnation: That begins.
            base: Incarnation of the epoch that it begins from.
            renames: Name in that epoch -> name from now on.
        """
        kept = self._books.get(base, {})
        firsts = {name: first for first, name in kept.items()}
        book = dict(kept)
        for old, new in renames.items():
            book[firsts.get(old, old)] = new
        self._books[incarnation] = self._called = book
