"""Incremental: bytes that an epoch writes when 1 % has changed, against a full one.

Measured: everything that the store is given for an epoch: packs, local snapshots, manifest. 100 agents of 500 KB in one
participant; three kinds of change since the last committed epoch:

* appended: each agent's list grows by 1 %;
* edited in place: 1 % of each agent's items get other contents: keys of keyed state, or a run of items of a list;
* one agent: 1 % of one agent's state changes, the other 99 do not.

Reference: the first epoch of the same cluster, which writes all of it.

Bound: a change costs the block (32 items of a list) or the entries (keyed) that it touches, 1 % for keyed state; besides,
each epoch writes its local snapshot, which names every chunk of every agent: about 145 bytes per chunk of 64 KiB keyed state,
or of a block of a list.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import msgspec

from participant import Agent, Context, handler, keyed, value
from protocol.storage.memory import MemoryStore
from simulations.bench.local import CLUSTER, LocalParticipants
from simulations.bench.measure import Row, Settings, row_of
from simulations.bench.pages import Page, make_page, make_pages

if TYPE_CHECKING:
    from protocol.ids import ClusterName
    from protocol.ports import PutResult

NAME = "incremental"
ITEMS: Final = 500
CHANGED: Final = ITEMS // 100


class Change(msgspec.Struct, frozen=True):
    """Order to change 1 %."""

    how: str
    seed: int


class CountingStore(MemoryStore):
    """Counts what it is given."""

    def __init__(self, cluster: ClusterName) -> None:
        super().__init__(cluster)
        self.written = 0

    def put(self, key: str, data: bytes) -> PutResult:
        """See `protocol.ports.ObjectStore`."""
        self.written += len(data)
        return super().put(key, data)


class KeyedBook(Agent, kind="keyed-book"):
    """500 pages of 1 KB by key."""

    pages = keyed(int, Page)

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name)
        self.pages.update({page.number: page for page in make_pages(seed, ITEMS)})

    @handler
    async def on_change(self, ctx: Context, change: Change) -> None:
        """Change 1 %."""
        source = random.Random(change.seed)  # noqa: S311 - contents only
        if change.how == "append":
            first = len(self.pages)
            numbers = list(range(first, first + CHANGED))
        else:
            numbers = source.sample(range(ITEMS), CHANGED)
        for number in numbers:
            self.pages[number] = make_page(number, source)


class ListBook(Agent, kind="list-book"):
    """500 pages of 1 KB in a list."""

    pages = value(list[Page])

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name)
        self.pages = make_pages(seed, ITEMS)

    @handler
    async def on_change(self, ctx: Context, change: Change) -> None:
        """Change 1 %."""
        source = random.Random(change.seed)  # noqa: S311 - contents only
        pages = self.pages
        if change.how == "append":
            pages += [make_page(len(pages) + number, source) for number in range(CHANGED)]
            return
        first = source.randrange(ITEMS - CHANGED)
        for number in range(first, first + CHANGED):
            pages[number] = make_page(number, source)


CASES: Final = (
    ("appended", "append", False, 0.015),
    ("edited in place", "edit", False, 0.08),
    ("one agent changed", "edit", True, 0.006),
)


async def run(settings: Settings) -> list[Row]:
    """All kinds of change, for both kinds of state."""
    agents = settings.pick(4, 100, 100)
    cycles = settings.pick(1, 3, 14)
    rows: list[Row] = []
    for cls in (KeyedBook, ListBook):
        for case, how, only_one, bar in CASES:
            samples = await _case(cls, how, agents=agents, only_one=only_one, cycles=cycles)
            shown = "keyed state" if cls is KeyedBook else "a list"
            rows.append(
                row_of(NAME, f"{shown}: {case}", "bytes of an epoch / of a full one", samples, bar=bar, unit="bytes")
            )
    return rows


async def _case(
    cls: type[KeyedBook | ListBook], how: str, *, agents: int, only_one: bool, cycles: int
) -> list[tuple[float, float]]:
    store = CountingStore(CLUSTER)
    books = [cls(f"b{number}", number) for number in range(agents)]
    samples: list[tuple[float, float]] = []
    async with LocalParticipants([books], store=store) as cluster:
        participant = cluster.participants[0]
        await participant.wait_idle()
        full = await _written(cluster, store)
        for cycle in range(cycles):
            for number, book in enumerate(books[:1] if only_one else books):
                # Contents of its own for each agent: equal ones would be written once.
                participant.ingest_nowait(book.id, Change(how, cycle * len(books) + number))
            await participant.wait_idle()
            samples.append((await _written(cluster, store), full))
    return samples


async def _written(cluster: LocalParticipants, store: CountingStore) -> float:
    before = store.written
    await cluster.conductor.epoch()
    return float(store.written - before)
