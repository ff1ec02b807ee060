"""One manifest in front of the judges: every object that it names is read, checked and decoded once, for all of them.

Objects never change, so what was read from a pack or local snapshot is kept for the next manifest that names it, together
with the very bytes it came from: once other bytes lie there, they are read again. So each judge sees what is in the store at
this moment, at the price of one look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.digests import digest, pack_key, snapshot_key
from protocol.documents import decode_local_snapshot
from protocol.errors import ObjectCorrupt, ObjectMissing
from protocol.pack import ChunkReader, PackReader
from protocol.reading import EpochReader

if TYPE_CHECKING:
    from protocol.manifest import ChunkRef, LocalSnapshot, Manifest
    from protocol.messages import Envelope
    from protocol.reading import AgentState
    from simulations.store_view import StoreView


class _Pack:
    """A pack that was read, and its chunks as far as somebody asked."""

    __slots__ = ("chunks", "data", "reader")

    def __init__(self, name: str, data: bytes) -> None:
        key = pack_key(name)
        found = digest(data)
        if found != name:
            raise ObjectCorrupt("get", key, f"the pack's bytes have digest {found}")
        self.data = data
        self.reader = PackReader.from_bytes(data, key=key)
        self.chunks: dict[str, bytes] = {}


class SeenObjects(ChunkReader):
    """What one run has read from its store, checked against its digest."""

    __slots__ = ("_fresh", "_packs", "_snapshots", "_view")

    def __init__(self, view: StoreView) -> None:
        super().__init__(view)
        self._view = view
        self._packs: dict[str, _Pack] = {}
        self._fresh: dict[str, _Pack] = {}
        """Of these, what was looked at in the judgement that runs, during which nothing changes."""
        self._snapshots: dict[str, tuple[bytes, LocalSnapshot]] = {}

    def begin(self) -> None:
        """Another judgement: look at the store again."""
        self._fresh.clear()

    def bytes_of(self, key: str) -> bytes:
        """An object. Raises `ObjectMissing`."""
        data = self._view.find(key)
        if data is None:
            raise ObjectMissing("get", key, "no such object")
        return data

    def snapshot(self, name: str) -> LocalSnapshot:
        """A local snapshot by its digest. Raises `ObjectMissing`, `ObjectCorrupt`."""
        data = self.bytes_of(snapshot_key(name))
        known = self._snapshots.get(name)
        if known is None or known[0] is not data:
            known = data, decode_local_snapshot(data, expected=name, name=snapshot_key(name))
            self._snapshots[name] = known
        return known[1]

    def pack(self, name: str) -> PackReader:
        """See `ChunkReader`; the whole pack was checked against its digest."""
        return self._pack(name).reader

    def read(self, ref: ChunkRef) -> bytes:
        """See `ChunkReader`."""
        pack = self._pack(ref.pack)
        chunk = pack.chunks.get(ref.digest)
        if chunk is None:
            chunk = pack.chunks[ref.digest] = pack.reader.chunk(ref.digest)
        if len(chunk) != ref.bytes:
            raise ObjectCorrupt("get", pack_key(ref.pack), f"chunk {ref.digest}: {len(chunk)} bytes, not {ref.bytes}")
        return chunk

    def _pack(self, name: str) -> _Pack:
        fresh = self._fresh.get(name)
        if fresh is not None:
            return fresh
        data = self.bytes_of(pack_key(name))
        known = self._packs.get(name)
        if known is None or known.data is not data:
            known = self._packs[name] = _Pack(name, data)
        self._fresh[name] = known
        return known


class Judgement(EpochReader):
    """A reader that decodes everything once. Whoever gets a list or state of it must not change it."""

    def __init__(self, view: StoreView, manifest: Manifest, seen: SeenObjects) -> None:
        super().__init__(view, manifest, chunks=seen)
        self.seen = seen
        seen.begin()
        self._members = {member.participant: member.snapshot for member in manifest.members}
        self._states: dict[str, AgentState] = {}
        self._mailboxes: dict[str, list[Envelope]] = {}
        self._unrouted: dict[str, list[Envelope]] = {}
        self._channels: dict[tuple[str, str], list[Envelope]] = {}

    def snapshot(self, participant: str) -> LocalSnapshot:
        """See `EpochReader`."""
        name = self._members.get(participant)
        return super().snapshot(participant) if name is None else self.seen.snapshot(name)

    def state(self, agent: str) -> AgentState:
        """See `EpochReader`."""
        found = self._states.get(agent)
        if found is None:
            found = self._states[agent] = super().state(agent)
        return found

    def mailbox(self, agent: str) -> list[Envelope]:
        """See `EpochReader`."""
        found = self._mailboxes.get(agent)
        if found is None:
            found = self._mailboxes[agent] = super().mailbox(agent)
        return found

    def unrouted(self, participant: str) -> list[Envelope]:
        """See `EpochReader`."""
        found = self._unrouted.get(participant)
        if found is None:
            found = self._unrouted[participant] = super().unrouted(participant)
        return found

    def channel(self, source: str, target: str) -> list[Envelope]:
        """See `EpochReader`."""
        found = self._channels.get((source, target))
        if found is None:
            found = self._channels[source, target] = super().channel(source, target)
        return found
