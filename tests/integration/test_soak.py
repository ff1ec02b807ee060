"""A thousand epochs, and nothing is left of them: tasks, threads, file descriptors, objects, tables (RELIABILITY.md L7).

``CLEANCUT_SOAK_EPOCHS=20000 pytest tests/integration/test_soak.py`` for a long one.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from participant import Agent, Context, handler, keyed, value
from participant.runtime.threads import THREADS_MAX
from participant.testing import Cluster
from protocol.digests import manifest_key, snapshot_key
from protocol.errors import Refused
from protocol.storage import open_store
from tests.integration.fleet import CLUSTER, Fleet, Holder, Token, until

if TYPE_CHECKING:
    from participant import Participant
    from participant.runtime.conductor import Conductor
    from protocol.ports import ObjectStore

EPOCHS = int(os.environ.get("CLEANCUT_SOAK_EPOCHS", "1000"))
WARM_UP = 150
"""Epochs before the first look: caches are full, compiled code and buffers are there."""
OBJECTS_SLACK = 400
"""Objects of the collector that may come and go; one for each epoch would be a thousand."""
RSS_SLACK_BYTES = 24 << 20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + EPOCHS // 4)]

HELD = (
    "snapshot_open_epochs",
    "snapshot_open_channels",
    "snapshot_recorded_bytes_held",
    "capture_parts_open",
    "parked_frames",
    "unrouted",
    "unrouted_bytes",
    "mailbox_bytes",
    "outgoing_bytes",
    "timers_noted",
)
"""Statistics that say what is held now; with nothing on its way all are what they were."""


class Churn(msgspec.Struct, frozen=True):
    number: int


class Keeper(Agent, kind="keeper"):
    """Each kind of field; the same number of keys, ever other ones."""

    table = keyed(int, list[int])
    plain = keyed(str, int)
    log = value(list[str], default=[])
    count = value(int, default=0)

    @handler
    def on_churn(self, ctx: Context, churn: Churn) -> None:
        self.count += 1
        self.table[churn.number] = [churn.number]
        self.table.pop(churn.number - 50, None)
        self.plain[f"k{churn.number % 50}"] = churn.number
        self.log.append(f"entry {churn.number}")
        del self.log[:-200]
        if churn.number % 5 == 0:
            ctx.after(0.001, Churn(churn.number + 1))


class Look:
    """What the process holds."""

    def __init__(self, participants: list[Participant]) -> None:
        for _ in range(3):
            gc.collect()
        self.tasks = Counter(task.get_name().split(" ")[0] for task in asyncio.all_tasks())
        # Pools grow to their size as work comes, and no further: the loop's own, and that of what may hang.
        names = [one.name for one in threading.enumerate()]
        self.threads = sorted(name for name in names if not name.startswith(("asyncio_", "participant-store-")))
        self.pool = sum(name.startswith("asyncio_") for name in names)
        self.hanging = sum(name.startswith("participant-store-") for name in names)
        self.fds = len(os.listdir("/proc/self/fd"))
        self.objects = Counter(type(one).__qualname__ for one in gc.get_objects())
        self.rss = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self.held = [{name: one.statistics()[name] for name in HELD} for one in participants]
        self.histories = max(
            len(cell.history) for one in participants for host in one._hosts for cell in host.state.cells.values()
        )

    def assert_nothing_was_added(self, before: Look) -> None:
        assert self.tasks == before.tasks
        assert self.threads == before.threads
        assert self.pool <= min(32, (os.cpu_count() or 1) + 4)
        assert self.hanging <= THREADS_MAX
        assert self.fds <= before.fds
        assert self.held == before.held
        assert self.histories <= 3
        grown = self.objects - before.objects
        assert grown.total() - (before.objects - self.objects).total() < OBJECTS_SLACK, grown.most_common(12)
        assert self.rss - before.rss < RSS_SLACK_BYTES


def forget(conductor: Conductor, store: ObjectStore) -> None:
    """What a coordinator's retention does, and what the conductor, being for tests, keeps for them."""
    newest = max(conductor.manifests)
    kept = conductor.manifests[newest]
    named = {
        manifest_key(newest),
        *(snapshot_key(member.snapshot) for member in kept.members),
        *(key for pack in kept.packs for key in store.list("packs/") if pack.removeprefix("b3:") in key),
    }
    for prefix in ("packs/", "snapshots/", "epochs/"):
        for key in list(store.list(prefix)):
            if key not in named:
                store.delete(key)
    conductor.manifests = {newest: kept}
    conductor.reports = {newest: conductor.reports[newest]}
    conductor.aborted.clear()
    conductor.progress.clear()
    conductor.requested.clear()


async def soak(fleet: Fleet, epochs: int) -> None:
    """Commits, aborts, overlaps, broken connections and lost control connections, all under traffic."""
    conductor = fleet.conductor
    names = sorted(fleet.participants)
    for number in range(epochs):
        participant = fleet.participants[names[number % 3]]
        participant.ingest_nowait(f"keeper/{names[number % 3]}", Churn(number))
        participant.ingest_nowait(f"holder/{names[number % 3]}", Token(1, 8))
        if number % 10 == 3:
            conductor.abort(conductor.start_epoch(), "for the test")
        if number % 10 == 4:
            await asyncio.gather(*(conductor.wait_epoch(conductor.start_epoch()) for _ in range(2)))
        if number % 25 == 7:
            epoch = conductor.start_epoch()
            fleet.hub.disconnect(names[0], names[1])
            await asyncio.sleep(0)
            fleet.hub.connect(names[0], names[1])
            await conductor.wait_epoch(epoch)
        if number % 50 == 9:
            fleet.controls[names[2]].disconnect()
            fleet.controls[names[2]].reconnect()
        await conductor.epoch()
        if number % 20 == 19:
            forget(conductor, fleet.store)
    await fleet.idle()
    await conductor.epoch()
    forget(conductor, fleet.store)
    await quiet(fleet)


async def quiet(fleet: Fleet) -> None:
    """Until nothing is on its way, the last epoch's markers and their acknowledgements included."""
    await until(
        lambda: all(
            not one.busy and not any(one.statistics()[name] for name in HELD) for one in fleet.participants.values()
        )
    )


async def join(fleet: Fleet) -> None:
    names = ("a", "b", "c")
    for name in names:
        await fleet.join(name, Holder(name, *(other for other in names if other != name)), Keeper(name))
    await fleet.conductor.wait_members(*names)


async def test_a_thousand_epochs_leave_nothing_behind(tmp_path: Path) -> None:
    async with Fleet("memory", tmp_path) as fleet:
        await join(fleet)
        participants = list(fleet.participants.values())
        await soak(fleet, WARM_UP)
        before = Look(participants)
        await soak(fleet, EPOCHS)
        Look(participants).assert_nothing_was_added(before)
        reader = fleet.reader(max(fleet.conductor.manifests))
        cents = sum(reader.state(agent).fields.get("cents", 0) for agent in reader.agents())
        tokens = sum(one.statistics()["messages_ingested"] for one in participants) // 2
        assert cents == 3 * 1000 + tokens


async def test_epochs_on_a_disk_leave_no_temporary_files(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    async with Fleet("memory", tmp_path, store=open_store(f"file:{tmp_path}/store", CLUSTER)) as fleet:
        await join(fleet)
        await soak(fleet, 20)
        before = Look(list(fleet.participants.values()))
        files = sum(1 for path in (tmp_path / "store").rglob("*") if path.is_file())
        await soak(fleet, max(40, EPOCHS // 25))
        after = Look(list(fleet.participants.values()))
        assert (after.tasks, after.fds, after.held) == (before.tasks, before.fds, before.held)
        assert sum(1 for path in (tmp_path / "store").rglob("*") if path.is_file()) <= files + 40


async def test_epochs_that_all_abort_leave_nothing_behind(tmp_path: Path) -> None:
    """A store that is away for long: what was changed meanwhile is kept as keys, and each at most once."""
    async with Fleet("memory", tmp_path) as fleet:
        await join(fleet)
        await soak(fleet, 50)
        participants = list(fleet.participants.values())

        async def aborts(count: int) -> None:
            for number in range(count):
                fleet.participants["a"].ingest_nowait("keeper/a", Churn(number % 40))
                epoch = fleet.conductor.start_epoch()
                if number % 3:
                    await asyncio.sleep(0)
                fleet.conductor.abort(epoch, "the store is away")
                with pytest.raises(Refused):
                    await fleet.conductor.wait_epoch(epoch)
            await quiet(fleet)
            fleet.conductor.aborted.clear()
            fleet.conductor.progress.clear()

        await aborts(200)
        before = Look(participants)
        await aborts(EPOCHS // 2)
        Look(participants).assert_nothing_was_added(before)
        await fleet.conductor.epoch()


async def test_epochs_of_a_cluster_in_virtual_time_leave_nothing_behind() -> None:
    async with Cluster(Keeper("a"), Keeper("b")) as cluster:

        async def epochs(count: int) -> None:
            for number in range(count):
                await cluster.send("keeper/a", Churn(number))
                await cluster.epoch()
                if number % 10 == 9:
                    await cluster.advance(1)
                    forget(cluster.conductor, cluster.store)

        await epochs(60)
        participants = list(cluster.participants.values())
        before = Look(participants)
        await epochs(EPOCHS // 5)
        Look(participants).assert_nothing_was_added(before)
