"""Recover all: the agents of one participant out of an epoch, with nothing of it in memory.

Measured: from the restore order to all agents loaded, by the loader that a participant uses: manifest, local snapshot and
packs are read and checked against their digests, and each agent's state is checked against its class and taken over. Agents of
500 KB, keyed state of 1 KB each.

Reference: read the packs whole, unfold the chunks, take the checksum of each and decode them into dicts of objects, with the
garbage collector off: the least that gives Python objects.

Before each of them the kernel is told to drop the store's files from its cache, so both begin at the disk.

Bound: besides, each entry is split off and its bytes are copied, since they are what the state keeps: about a fifth of the
decoding. What a thread reads and unfolds beside the loop can win that back where a core is free; where none is, each
change of threads waits for its turn.
"""

from __future__ import annotations

import gc
import os
import time
from typing import TYPE_CHECKING

import msgspec

from participant.codec import MessageRegistry
from participant.history import CutClock
from participant.host import AgentHost
from participant.runtime.clock import LoopClock
from participant.runtime.loader import Loader
from protocol.digests import digest, manifest_key, pack_key, snapshot_key
from protocol.documents import decode_local_snapshot
from protocol.ids import Epoch, ParticipantId
from protocol.keys import ClusterKeys
from protocol.limits import MANIFEST_BYTES_MAX, SNAPSHOT_OBJECT_BYTES_MAX
from protocol.messages import Member, Restore
from protocol.pack import BytesSource, PackReader
from protocol.storage import open_store
from protocol.storage.filesystem import FilesystemStore
from simulations.bench.local import CLUSTER, SECRET, LocalParticipants
from simulations.bench.measure import Row, Settings, interleave, median, row_of, scratch_folder
from simulations.bench.pages import AGENT_BYTES, Notebook, Page, Rewrite, make_pages

if TYPE_CHECKING:
    from pathlib import Path

    from protocol.manifest import AgentSnapshot

NAME = "recover-all"
_decode = msgspec.msgpack.Decoder(list[tuple[int, Page]]).decode


async def run(settings: Settings) -> list[Row]:
    """One size."""
    count = settings.pick(3, 100, 1000)
    cycles = settings.pick(1, 7, 9)
    with scratch_folder() as folder:
        world = await _filled(folder, count)
        both = await interleave(world.measured, world.reference, cycles)
    samples = [(measured[0], reference[0]) for measured, reference in both]
    work = [(measured[1], reference[1]) for measured, reference in both]
    notes = (
        f"{1000 * median([took for took, _ in samples]):.0f} ms, "
        f"reference {1000 * median([floor for _, floor in samples]):.0f}"
    )
    case = f"{count} x {AGENT_BYTES // 1000} KB"
    metric = "restore / (cold read, checksum, decode)"
    return [
        row_of(NAME, case, metric, samples, bar=1.3, unit="s", notes=notes),
        row_of(NAME, case, "CPU time of the same, threads included", work, unit="CPU-s"),
    ]


async def _filled(folder: Path, count: int) -> _World:
    """A store with one committed epoch."""
    store = open_store(str(folder), CLUSTER)
    assert isinstance(store, FilesystemStore), "a folder"
    agents = [Notebook(f"n{number:04}", make_pages(number)) for number in range(count)]
    names = tuple(agent.id for agent in agents)
    async with LocalParticipants([agents], store=store) as cluster:
        participant = cluster.participants[0]
        await participant.wait_idle()
        epoch = Epoch(await cluster.conductor.epoch())
        (member,) = cluster.conductor.manifests[epoch].members
    manifest = store.get(manifest_key(epoch), size_max=MANIFEST_BYTES_MAX)
    key = snapshot_key(member.snapshot)
    data = store.get(key, size_max=SNAPSHOT_OBJECT_BYTES_MAX)
    snapshots = decode_local_snapshot(data, expected=member.snapshot, name=key).agents
    order = Restore(
        term=1,
        session=1,
        incarnation=2,
        epoch=epoch,
        manifest=digest(manifest),
        newest_epoch=epoch,
        elapsed_ns=0,
        version=2,
        members=(Member(id=ParticipantId("p0"), session=1, address="", agents=names, targets=None),),
    )
    return _World(folder, store, order, snapshots)


class _World:
    """A store on disk, and both ways to read it."""

    def __init__(
        self, folder: Path, store: FilesystemStore, order: Restore, snapshots: tuple[AgentSnapshot, ...]
    ) -> None:
        self._folder = folder
        self._store = store
        self._order = order
        self._snapshots = snapshots
        self._packs = sorted(
            {
                (ref.pack, store.path(pack_key(ref.pack)))
                for agent in snapshots
                for field in agent.fields
                for segment in field.segments
                for ref in segment
            }
        )
        self._registry = MessageRegistry((Rewrite,))

    async def measured(self) -> tuple[float, float]:
        """Seconds and CPU seconds of a restore into agents that have nothing."""
        clock = CutClock()
        hosts: dict[str, AgentHost] = {
            host.id: host
            for host in (
                AgentHost(Notebook(snapshot.id.partition("/")[2], ()), self._registry, clock)
                for snapshot in self._snapshots
            )
        }
        loader = Loader(
            store=self._store,
            keys=ClusterKeys.from_secret(SECRET),
            cluster=CLUSTER,
            participant=ParticipantId("p0"),
            allow_cloudpickle=False,
            clock=LoopClock(),
            host_of=hosts.__getitem__,
            fresh=_nobody_is_fresh,
        )
        self._forget()
        began, worked = time.perf_counter(), time.process_time()
        loaded = await loader.load(self._order)
        took, work = time.perf_counter() - began, time.process_time() - worked
        assert len(loaded.hosts) == len(self._snapshots)
        return took, work

    async def reference(self) -> tuple[float, float]:
        """Seconds and CPU seconds of the shortest way to the same objects."""
        self._forget()
        gc.disable()
        try:
            began, worked = time.perf_counter(), time.process_time()
            states = self._decoded()
            took, work = time.perf_counter() - began, time.process_time() - worked
        finally:
            gc.enable()
        assert len(states) == len(self._snapshots)
        return took, work

    def _decoded(self) -> list[dict[int, Page]]:
        readers: dict[str, PackReader] = {}
        for pack, path in self._packs:
            with open(path, "rb", buffering=0) as file:
                readers[pack] = PackReader(BytesSource(file.readall()))
        states = []
        for agent in self._snapshots:
            state: dict[int, Page] = {}
            for field in agent.fields:
                for segment in field.segments:
                    state.update(_decode(b"".join(readers[ref.pack].chunk(ref.digest) for ref in segment)))
            states.append(state)
        return states

    def _forget(self) -> None:
        """Have the kernel drop what it knows of the store; and collect what the round before left."""
        gc.collect()
        for path in self._folder.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _nobody_is_fresh(host: AgentHost, now: int) -> None:
    raise AssertionError(f"{host.id} is in the epoch")
