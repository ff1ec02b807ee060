"""An epoch of a running cluster becomes another cluster, with real processes: both go on, neither knows of the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from simulations.demo import summary
from tests.e2e.real_cluster import ROOT, OddSpec, RealCluster, cleancut, real_cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

POLICY = {"recovery": "auto", "kind": "manual", "pause_ms": 0}


def bytes_of(folder: Path, keys: list[str]) -> dict[str, bytes]:
    return {key: (folder / key).read_bytes() for key in keys}


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def start_fork(original: RealCluster, folder: Path, number: int, hosts: int) -> RealCluster:
    """Fork an epoch and start its cluster, on another number of participants.

    They have the original's folder for local files, as somebody who copies a program with its settings would.
    """
    fork = RealCluster(folder, name="demo-fork", coordinator_count=1)
    fork.variables["PYTHONPATH"] = str(ROOT)
    (folder / "tickets").mkdir()
    await asyncio.to_thread(fork.prepare, POLICY)
    code, document, errors = await cleancut(
        "epoch", "fork", str(number), "--dir", str(original.folder), "--into", str(folder)
    )
    assert code == 0, errors
    assert (document["cluster"], document["epoch"], document["dry_run"]) == ("demo-fork", number, True)
    await fork.start_coordinators()
    agents = [agent for spec in original.specs.values() for agent in spec.agents]
    first = next(iter(original.specs.values()))
    for index in range(hosts):
        name = f"fork-{index + 1}"
        fork.specs[name] = msgspec.structs.replace(
            first,
            id=name,
            cluster=fork.name,
            coordinators=tuple(each.http for each in fork.coordinators),
            store=fork.store,
            secret_file=fork.secret_file,
            agents=tuple(agents[index::hosts]),
        )
    return fork


def sums(cluster: RealCluster, number: int, accounts: int) -> tuple[int, int, int]:
    found = summary.sum_bank(cluster.open_store(), number, cluster.keys, accounts=accounts)
    assert found.consistent, found.findings
    return found.total, found.expected, found.orders_made - found.orders_found


async def test_a_fork_goes_on_by_itself_while_the_original_goes_on(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    (tmp_path / "fork").mkdir()
    async with real_cluster(tmp_path / "original", policy=POLICY) as original:
        await original.commit_one()
        taken: dict[str, Any] = await original.commit_one()
        number = taken["epoch"]
        folder = Path(original.store) / original.name
        before = bytes_of(folder, files(folder))
        fork = await start_fork(original, tmp_path / "fork", number, hosts=2)
        try:
            status = await fork.call("GET", "/v1/status?fresh=1")
            assert status["fork_of"]["cluster"] == original.name
            assert status["fork_of"]["dry_run"] is True
            assert status["epochs"]["newest"] == number
            await asyncio.gather(*(fork.join(name) for name in fork.specs))
            own = await fork.commit_one()
            assert own["epoch"] == number + 1
            accounts = 2 * len(original.specs)
            total, expected, lost = sums(fork, own["epoch"], accounts)
            assert (total, lost) == (expected, 0)

            again = await original.commit_one()
            total, expected, lost = sums(original, again["epoch"], accounts)
            assert (total, lost) == (expected, 0)
            assert bytes_of(folder, list(before)) == before, "nothing of the original was touched"
            record = await original.call("GET", "/v1/status?fresh=1")
            assert (record["incarnation"], record["fork_of"]) == (1, None), "the original was never disturbed"

            code, report, errors = await cleancut(
                "epoch", "verify", str(number), "--store", fork.store, "--secret-file", fork.secret_file
            )
            assert code == 0, errors
            assert report["signature"] == "verified"

            # A crash of the fork is the fork's own: it goes back to its own epoch, and on.
            first = next(iter(fork.specs))
            fork.participants[first].ended_on_purpose = True
            await fork.participants[first].stop()
            await fork.join(first)

            async def restored() -> bool:
                return (await fork.call("GET", "/v1/status?fresh=1"))["recovery"]["state"] == "running"

            await until(restored, "the fork recovers")
            own = await fork.commit_one()
            assert sums(fork, own["epoch"], accounts)[:2] == (expected, expected)
        finally:
            await fork.stop()


async def test_whoever_mixes_up_fork_and_original_is_refused(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    (tmp_path / "fork").mkdir()
    async with real_cluster(tmp_path / "original", participants=2, policy=POLICY) as original:
        number = (await original.commit_one())["epoch"]
        fork = await start_fork(original, tmp_path / "fork", number, hosts=1)
        try:
            await fork.join("fork-1")
            # The fork's name, and a store that does not say that nothing may be done: this one would charge.
            (tmp_path / "elsewhere").mkdir()
            stray: OddSpec = msgspec.structs.replace(
                fork.specs["fork-1"], id="stray", agents=(), store=str(tmp_path / "elsewhere")
            )
            child = await fork.start_alone(stray)
            await fork.has_ended_with(child, 3)
            assert "fork in dry-run" in child.last_lines()
            wrong = msgspec.structs.replace(fork.specs["fork-1"], id="wrong", agents=(), store=original.store)
            child = await fork.start_alone(wrong)
            await fork.has_ended_with(child, 3)
            assert "fork in dry-run" in child.last_lines()
            await fork.commit_one()
            await original.commit_one()
        finally:
            await fork.stop()
