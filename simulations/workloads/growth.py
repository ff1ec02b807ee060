"""Growth: keyed state that grows, changes here and there and loses its oldest entries; so that epochs build on each other.

Each archive adds entries, replaces and deletes some, writes some again with the same bytes, and shares new ones with others.
States are written in segments and packs of drawn sizes, from a few entries up to those of production: an epoch then writes
several chunks and packs, and names many more of older epochs.

An archive counts what it writes in its own state. That is what `simulations.oracles.growth` holds an epoch's new bytes
against.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
from blake3 import blake3

from participant import Agent, Context, handler, keyed, value
from protocol.limits import SEGMENT_TARGET_BYTES
from simulations.oracles.chunks import ChunkLedger
from simulations.oracles.growth import GrowthLedger
from simulations.workloads.base import Switch, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocol.messages import Envelope
    from protocol.reading import EpochReader
    from simulations.cluster import SimulatedCluster
    from simulations.options import Options

ENTRY_OVERHEAD: Final = 24
"""Bytes that an entry takes beside its key and value, at most."""
SHARED: Final = 3
"""One new entry in so many is for somebody else, too."""
LINE: Final = 40
IMAGE: Final = 6_000


class Share(msgspec.Struct, frozen=True):
    """An entry for somebody else's archive."""

    key: str
    data: bytes


class Grow(msgspec.Struct, frozen=True):
    """An archive's own timer."""


class Archive(Agent, kind="archive"):
    """Keeps entries up to a number, the newest ones."""

    entries = keyed(str, bytes)
    journal = value(list[bytes])
    image = value(bytes, default=b"")
    """A large value of which a part changes."""
    written = value(int, default=0)
    """Bytes that were written into all fields so far, or deleted from them."""
    touched = value(int, default=0)
    """Entries that were written or deleted so far."""
    number = value(int, default=0)
    given = value(int, default=0)
    taken = value(int, default=0)

    def __init__(
        self,
        name: str,
        *,
        life: int,
        others: tuple[str, ...],
        entry_bytes: int,
        most: int,
        tick: float,
        burst: int,
        switch: Switch,
    ) -> None:
        super().__init__(name)
        self._life = life
        self._others = others
        self._entry_bytes = entry_bytes
        self._most = most
        self._tick = tick
        self._burst = burst
        self._switch = switch

    async def on_start(self, ctx: Context) -> None:
        """Begin with something."""
        self.journal = []
        self.image = self._bytes("image", IMAGE)
        self.written += IMAGE
        for _ in range(self._most // 2):
            self._add()
        ctx.after(self._tick, Grow())

    @handler
    def on_grow(self, ctx: Context, due: Grow) -> None:
        """A step of growth; each kind of change now and then."""
        if not self._switch.on:
            return
        for _ in range(self._burst):
            key, data = self._add()
            if self._others and self.number % SHARED == 0:
                self.given -= 1
                ctx.send(f"archive/{self._others[self.number // SHARED % len(self._others)]}", Share(key, data))
        step = self.number // self._burst
        keys = list(self.entries)
        old = keys[step * 7 % len(keys)]
        if step % 2:
            self._put(old, self._bytes(f"{old} {step}", self._entry_bytes))
        if step % 3 == 0:
            self._put(old, self.entries[old])  # the same bytes again
        if step % 5 == 0:
            self._delete(keys[step * 11 % len(keys)])
        if step % 4 == 0:
            self.journal.append(self._bytes(f"line {step}", LINE))
            self.written += LINE + ENTRY_OVERHEAD
        if step % 6 == 0:
            at = step * 97 % (IMAGE - LINE)
            self.image = self.image[:at] + self._bytes(f"image {step}", LINE) + self.image[at + LINE :]
            self.written += LINE
        ctx.after(self._tick, Grow())

    @handler
    def on_share(self, ctx: Context, share: Share) -> None:
        """Keep it."""
        self.taken += 1
        self._put(share.key, share.data)

    def _add(self) -> tuple[str, bytes]:
        self.number += 1
        key = f"{self.id[8:]}.{self._life}.{self.number}"
        data = self._bytes(key, self._entry_bytes // 2 + self.number * 37 % self._entry_bytes)
        self._put(key, data)
        return key, data

    def _put(self, key: str, data: bytes) -> None:
        self.entries[key] = data
        self.written += len(key) + len(data) + ENTRY_OVERHEAD
        self.touched += 1
        if len(self.entries) > self._most:
            self._delete(next(iter(self.entries)))

    def _delete(self, key: str) -> None:
        if self.entries.pop(key, None) is not None:
            self.written += len(key) + ENTRY_OVERHEAD
            self.touched += 1

    def _bytes(self, name: str, size: int) -> bytes:
        """Bytes that do not compress, the same for the same name."""
        return blake3(f"{self.id} {self._life} {name}".encode()).digest(length=size)


class Growth(Workload):
    """An archive on each participant."""

    messages: ClassVar[tuple[type, ...]] = (Share, Grow)
    item_bytes: ClassVar[int] = 3200

    @classmethod
    def says(cls, options: Options, targets: Mapping[str, tuple[str, ...]]) -> float:
        """Of what an archive adds, one in `SHARED` to one target after the other."""
        return max((options.burst / SHARED / len(others) for others in targets.values() if others), default=0)

    def __init__(self, options: Options, targets: dict[str, tuple[str, ...]]) -> None:
        super().__init__(options, targets)
        self._lives = 0
        self._large = options.segment_bytes == SEGMENT_TARGET_BYTES
        """Entries of a size for which production's segments and packs are meant."""
        self.chunks = ChunkLedger()
        self.growth = GrowthLedger()

    def agents(self, participant: str) -> list[Agent]:
        """An archive that knows those of the targets."""
        self._lives += 1
        return [
            Archive(
                participant,
                life=self._lives,
                others=self.targets[participant],
                entry_bytes=2000 if self._large else 200,
                most=80 if self._large else 160,
                tick=self.options.tick_ns / 1e9,
                burst=self.options.burst,
                switch=self.switch,
            )
        ]

    def judge(self, cluster: SimulatedCluster, reader: EpochReader) -> None:
        """What an epoch names, and what is new in it.

        Raises:
            Violation: I12, L6.
        """
        self.chunks.named(cluster, reader)
        for member in reader.manifest.members:
            for agent in member.agents:
                self.growth.judge(cluster, reader, agent)

    def judge_end(self, cluster: SimulatedCluster) -> None:
        """Everything that any epoch has named is there, bit for bit.

        Raises:
            Violation: I12.
        """
        self.chunks.demand_whole(cluster.store.meant)

    def share(self, participant: str) -> int:
        """Nothing: what was given is a debt."""
        return 0

    def held(self, fields: dict[str, Any]) -> int:
        """What was taken and given."""
        return int(fields.get("given", 0)) + int(fields.get("taken", 0))

    def carried(self, envelope: Envelope) -> int:
        """An entry is one."""
        return int(envelope.type == "Share")
