"""A store that is full, gone, or slow, under agents that work on (D8 as far as folders go; A9's late upload)."""

import asyncio
import subprocess
from contextlib import contextmanager

import pytest

from tests.e2e.real_cluster import real_cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@contextmanager
def small_disk(folder, size="8m"):
    """A file system of its own, which can be full."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk):
    """Take what room there is; the ballast."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


async def turns(cluster):
    return sum([(await cluster.statistics(name))["turns"] for name in cluster.specs])


async def test_full_disk_aborts_with_errno_while_agents_work_on_and_room_heals_it_without_a_restart(tmp_path):
    """The disk fills up between two epochs; the epoch names participant, phase and ENOSPC; the one after has room again."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with small_disk(tmp_path / "disk") as disk:
        async with real_cluster(folder, participants=2, store=disk / "store", policy={"deadline_ms": 4_000}) as cluster:
            good = await cluster.commit_one()
            ballast = await asyncio.to_thread(fill, disk)
            before = await turns(cluster)
            number = await cluster.begin()
            record = await cluster.ended(number)
            assert record["state"] == "aborted"
            assert record["abort"]["participant"] in cluster.specs
            assert record["abort"]["phase"] == "upload"
            assert "ENOSPC" in record["abort"]["cause"]
            assert record["duration_ms"] < 4_000, "the reason comes before the deadline"
            assert await turns(cluster) > before
            assert (await cluster.call("POST", f"/v1/epochs/{good['epoch']}/verify", {}))["ok"]
            ballast.unlink()
            following = await cluster.commit_one()
            assert following["epoch"] == number + 1
            leftovers = [path.name for path in (disk / "store").rglob(".tmp-*")]
            assert leftovers == [], "what could not be written is gone"
            await cluster.judge()


async def test_folder_that_cannot_be_written_aborts_with_errno_and_the_next_epoch_works_once_it_can(tmp_path):
    """The folder of the packs is a file for a while: no permission stops root, this does."""
    points = {"manifest.before_put": "error:ENOSPC"}
    async with real_cluster(tmp_path, participants=2, points=points, policy={"deadline_ms": 3_000}) as cluster:
        await cluster.commit_one()
        root = tmp_path / "store" / cluster.name
        for name in ("packs", "snapshots"):
            (root / name).rename(root / f"{name}-away")
            (root / name).touch()
        record = await cluster.ended(await cluster.begin())
        assert record["state"] == "aborted"
        assert record["abort"]["participant"] in cluster.specs
        assert record["abort"]["phase"] == "upload"
        assert "ENOTDIR" in record["abort"]["cause"]
        for name in ("packs", "snapshots"):
            (root / name).unlink()
            (root / f"{name}-away").rename(root / name)
        await cluster.commit_one()
        cluster.ticket("manifest.before_put")
        assert (await cluster.commit_one())["epoch"] == 4, "a manifest that cannot be written is written later"
        assert cluster.fired("manifest.before_put") == ["c1"]
        await cluster.judge()


async def test_upload_that_ends_after_its_epoch_was_aborted_changes_nothing(tmp_path):
    """A9: the upload of N stalls, N is aborted by its deadline, N+1 commits, then the upload ends. Latest stays N+1."""
    points = {"pack.before_put": "sleep:3000"}
    async with real_cluster(tmp_path, participants=3, points=points, policy={"deadline_ms": 1_000}) as cluster:
        await cluster.commit_one()
        cluster.ticket("pack.before_put", of="bank-2")
        number = await cluster.begin()
        record = await cluster.ended(number)
        assert cluster.fired("pack.before_put") == ["bank-2"]
        assert (record["state"], record["abort"]["participant"]) == ("aborted", "bank-2")
        following = await cluster.commit_one()
        packs = set(cluster.open_store().list("packs/"))

        def late():
            return set(cluster.open_store().list("packs/")) - packs

        [pack] = await until(late, "the late pack arrives")
        assert (await cluster.call("GET", "/v1/epochs/latest?fresh=1"))["epoch"] == following["epoch"]
        assert (await cluster.epoch(number))["state"] == "aborted"
        counts = await cluster.statistics("bank-2")
        assert counts["capture_parts_open"] == 0
        after = await cluster.commit_one()
        report = await cluster.call("POST", f"/v1/epochs/{after['epoch']}/verify", {})
        assert report["ok"]
        assert after["epoch"] == number + 2
        assert pack not in str((await cluster.epoch(after["epoch"]))["members"])
        await cluster.judge()
