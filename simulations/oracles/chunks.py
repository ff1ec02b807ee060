"""I12 over time: every chunk that any committed manifest names stays where it was, whole.

`simulations.oracles.durability` looks at an epoch when it becomes visible. Later epochs name its packs again, an epoch that
is aborted leaves packs behind, and whoever deletes must leave alone what is named. So all that was ever named is kept here,
and read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.digests import pack_key
from protocol.documents import chunk_refs
from protocol.errors import StoreError
from protocol.pack import PackReader
from simulations.violations import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from protocol.manifest import AgentSnapshot, ChunkRef
    from protocol.ports import ObjectStore
    from protocol.reading import EpochReader
    from simulations.cluster import SimulatedCluster


class ChunkLedger:
    """All chunks of all manifests of a run."""

    def __init__(self) -> None:
        self._chunks: dict[str, dict[str, int]] = {}
        """Pack -> chunk -> bytes."""
        self._epochs: dict[str, int] = {}
        """Pack -> the first epoch that names it."""

    def named(self, cluster: SimulatedCluster, reader: EpochReader) -> None:
        """A manifest has become visible: all that it names is there.

        Raises:
            Violation: I12, a pack is not there.
        """
        epoch = int(reader.manifest.epoch)
        probe = cluster.probes.hit
        for member in reader.manifest.members:
            new, old = self.name(epoch, chunk_refs(reader.snapshot(member.participant)))
            if old:
                probe("chunk.of_older_epoch")
            if len(new) > 1:
                probe("pack.several_of_one_part")
            if any(len(self._chunks[pack]) > 1 for pack in new):
                probe("pack.several_chunks")
            for pack in (*new, *old):
                try:
                    cluster.store.meant.size(pack_key(pack))
                except StoreError as error:
                    raise Violation("I12", f"epoch {epoch} names pack {pack}, which cannot be read: {error}") from error

    def name(self, epoch: int, refs: Iterable[ChunkRef]) -> tuple[list[str], list[str]]:
        """An epoch names these; its packs, new ones and those that an older epoch names, too."""
        packs: dict[str, None] = {}
        for ref in refs:
            self._chunks.setdefault(ref.pack, {})[ref.digest] = ref.bytes
            self._epochs.setdefault(ref.pack, epoch)
            packs[ref.pack] = None
        new = [pack for pack in packs if self._epochs[pack] == epoch]
        return new, [pack for pack in packs if self._epochs[pack] < epoch]

    def demand_whole(self, store: ObjectStore) -> None:
        """Read everything.

        Raises:
            Violation: I12, a chunk is gone or another.
        """
        for pack, chunks in self._chunks.items():
            try:
                reader = PackReader.open(store, pack)
                for name, size in chunks.items():
                    found = len(reader.chunk(name))
                    if found != size:
                        raise Violation("I12", f"chunk {name} of pack {pack} has {found} bytes; epochs name {size}")
            except StoreError as error:
                raise Violation(
                    "I12", f"pack {pack}, named since epoch {self._epochs[pack]}, is not whole any more: {error}"
                ) from error


def state_refs(agent: AgentSnapshot) -> Iterator[ChunkRef]:
    """Every chunk of an agent's fields."""
    for field in agent.fields:
        yield from field.removed
        for segment in field.segments:
            yield from segment
