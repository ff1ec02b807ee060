"""Agents of scenario D2: one awaits a language model's answer for ten minutes, the others go on talking to it."""

from __future__ import annotations

import asyncio  # noqa: TID251 - as an agent of a user does
from typing import TYPE_CHECKING, Final

import msgspec

from participant import Agent, Context, handler, value
from simulations.user_workload import UserPlan
from simulations.world import SECOND

if TYPE_CHECKING:
    from participant import Agent as AnyAgent

CALL_SECONDS: Final = 600
CALLER: Final = "caller/main"
ASK: Final = "a question that takes ten minutes"


class Ask(msgspec.Struct, frozen=True):
    """What the model is asked."""

    text: str


class Note(msgspec.Struct, frozen=True):
    """Something that somebody else says meanwhile."""

    number: int


class Speak(msgspec.Struct, frozen=True):
    """A talker's own timer."""


class Caller(Agent, kind="caller"):
    """Asks a model."""

    calls = value(int, default=0)
    notes = value(int, default=0)

    @handler
    async def on_ask(self, ctx: Context, ask: Ask) -> None:
        """The call itself: nothing of this turn has happened before it ends."""
        self.calls += 1
        await asyncio.sleep(CALL_SECONDS)

    @handler
    def on_note(self, ctx: Context, note: Note) -> None:
        """Handled when the call is over."""
        self.notes += 1


class Talker(Agent, kind="talker"):
    """Says something to the caller now and then."""

    said = value(int, default=0)

    async def on_start(self, ctx: Context) -> None:
        """Begin."""
        ctx.after(0.1, Speak())

    @handler
    def on_speak(self, ctx: Context, due: Speak) -> None:
        """The next note."""
        self.said += 1
        ctx.send(CALLER, Note(self.said))
        ctx.after(0.1, Speak())


def long_call_plan() -> UserPlan:
    """The agents, each on a participant of its own."""

    def make_agents() -> list[AnyAgent]:
        return [Caller("main"), Talker("a"), Talker("b")]

    return UserPlan(
        make_agents,
        start=((CALLER, Ask(ASK)),),
        invariants=(),
        participants=None,
        messages=(),
        after_loss=True,
        patience_ns=2 * CALL_SECONDS * SECOND,
    )
