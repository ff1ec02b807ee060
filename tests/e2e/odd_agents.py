"""Agents that make trouble on request: they await what never comes, grow a list for ever, hold what cannot be saved."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

from participant import Agent, Context, handler, value

GROW_SECONDS = 0.005


@dataclass(frozen=True)
class Ask:
    """A question whose answer never comes."""

    text: str


@dataclass(frozen=True)
class Grow:
    """The grower's own timer."""


@dataclass(frozen=True)
class Spoil:
    """Take something that cannot be saved into the state: `how` names it."""

    how: str


@dataclass(frozen=True)
class Mend:
    """Let go of it."""


@dataclass(frozen=True)
class Note:
    """To be noted."""

    text: str


class Waiter(Agent, kind="waiter"):
    """Its turn lasts for ever, as a model call that hangs."""

    asked = value(int, default=0)
    noted = value(list[str], default=[])

    @handler
    async def on_ask(self, ctx: Context, ask: Ask) -> None:
        """Change the state, then wait."""
        self.asked += 1
        self.noted.append(ask.text)
        await asyncio.Event().wait()


class Grower(Agent, kind="grower"):
    """Grows a list in place, turn after turn; `count` says how long it is."""

    items = value(list[int], default=[])
    count = value(int, default=0)

    async def on_start(self, ctx: Context) -> None:
        """Begin."""
        ctx.after(GROW_SECONDS, Grow())

    @handler
    def on_grow(self, ctx: Context, grow: Grow) -> None:
        """One more."""
        self.items.append(self.count)
        self.count += 1
        ctx.after(GROW_SECONDS, Grow())


class Hoarder(Agent, kind="hoarder"):
    """Keeps its state in its own way, and may keep there what nobody can save."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._tools: list[object] = ["hammer"]

    def capture(self) -> object:
        """All that it has."""
        return {"memory": {"tools": list(self._tools)}}

    def restore(self, state: object) -> None:
        """Not needed here."""

    @handler
    def on_spoil(self, ctx: Context, spoil: Spoil) -> None:
        """Take a lock: nothing that can be saved."""
        self._tools = ["hammer", threading.Lock()]

    @handler
    def on_mend(self, ctx: Context, mend: Mend) -> None:
        """Be good again."""
        self._tools = ["hammer", "nail"]


class Picky(Agent, kind="picky"):
    """Its fields have types: what does not fit is refused when it is set, and the turn with it."""

    names = value(list[str], default=[])
    turns = value(int, default=0)

    @handler
    def on_spoil(self, ctx: Context, spoil: Spoil) -> None:
        """Set what the type does not allow."""
        self.turns += 1
        bad: dict[str, object] = {"none": None, "lambda": lambda: 0, "lock": threading.Lock()}
        if spoil.how in bad:
            self.names = ["fine", bad[spoil.how]]  # type: ignore[list-item] # refused: that is the point


class Notebook(Agent, kind="notebook"):
    """No trouble at all: its state says what has come, how often and in which order."""

    noted = value(list[str], default=[])

    @handler
    def on_note(self, ctx: Context, note: Note) -> None:
        """One more."""
        self.noted.append(note.text)


KINDS: dict[str, type[Agent]] = {
    "waiter": Waiter,
    "grower": Grower,
    "hoarder": Hoarder,
    "picky": Picky,
    "notebook": Notebook,
}
MESSAGES: dict[str, type] = {"ask": Ask, "grow": Grow, "spoil": Spoil, "mend": Mend, "note": Note}
