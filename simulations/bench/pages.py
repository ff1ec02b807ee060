"""State of a given size: agents of 500 KB each, as pages of 1 KB by key."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import msgspec

from participant import Agent, Context, handler, keyed

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGES: Final = 500
AGENT_BYTES: Final = 500_000


class Page(msgspec.Struct, frozen=True, array_like=True):
    """About 1,000 bytes of state; half of it can be compressed away."""

    number: int
    title: str
    text: str
    scores: tuple[int, ...]


class Rewrite(msgspec.Struct, frozen=True):
    """Order to an agent: give these pages other contents."""

    pages: tuple[int, ...]
    seed: int


class Notebook(Agent, kind="notebook"):
    """Keyed state: what a participant of ordinary agents holds."""

    pages = keyed(int, Page)

    def __init__(self, name: str, pages: Sequence[Page]) -> None:
        super().__init__(name)
        self.pages.update({page.number: page for page in pages})

    @handler
    async def on_rewrite(self, ctx: Context, order: Rewrite) -> None:
        """Change what is told."""
        source = random.Random(order.seed)  # noqa: S311 - contents only
        for number in order.pages:
            self.pages[number] = make_page(number, source)


def make_page(number: int, source: random.Random) -> Page:
    """A page of about 1,000 bytes."""
    return Page(
        number=number,
        title=f"page {number}",
        text=source.randbytes(465).hex(),
        scores=tuple(source.choices(range(128), k=45)),
    )


def make_pages(seed: int, count: int = PAGES) -> list[Page]:
    """Pages of one agent."""
    source = random.Random(seed)  # noqa: S311 - contents only
    return [make_page(number, source) for number in range(count)]
