"""The store under a running coordinator: reading epochs, damage, a broken and a full disk."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from protocol.digests import digest, manifest_key, pack_key, snapshot_key
from protocol.documents import encode_local_snapshot
from protocol.manifest import AgentSnapshot, ChunkRef, FieldRef
from protocol.messages import LocalReport
from protocol.pack import PackBuilder
from tests.integration.coordinators import CLUSTER, Scripted, cluster, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def with_cash(scripted: Scripted, cents: int) -> AgentSnapshot:
    """Write a pack with one value; the agent that refers to it."""
    builder = PackBuilder()
    chunk = msgspec.msgpack.encode(cents)
    named = builder.add(chunk)
    data, pack, _ = builder.finish()
    scripted.store.put(pack_key(pack), data)
    field = FieldRef(name="cents", shape="value", segments=((ChunkRef(named, pack, len(chunk)),),))
    return AgentSnapshot(id=scripted.agents[0], fields=(field,))


async def an_epoch_with_state(running, scripted) -> int:
    scripted.answers = False
    _, document, _ = await running.call("POST", "/v1/epochs", {})
    order = await until(lambda: scripted.orders and scripted.orders[-1], "the start order")
    await scripted.report(order, agents=(with_cash(scripted, 4_200),), state_bytes=3)
    await running.epoch(document["epoch"], "committed")
    return document["epoch"]


async def test_agents_and_their_state_are_read_from_a_committed_epoch(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1") as one:
        number = await an_epoch_with_state(running, one)
        agents = await running.get(f"/v1/epochs/{number}/agents")
        assert [(each["agent"], each["participant"]) for each in agents["agents"]] == [("buyer/p1", "p1")]
        state = await running.get("/v1/epochs/latest/state?agent=buyer/p1")
        assert state["fields"] == {"cents": 4200}
        assert (state["mailbox"], state["timers"]) == ([], [])
        for query, status, code in (
            ("buyer/p9", 404, "no-agent"),
            ("../../etc", 400, "bad-agent"),
            ("", 400, "bad-agent"),
        ):
            found, document, _ = await running.call("GET", f"/v1/epochs/{number}/state?agent={query}")
            assert (found, document["error"]["code"]) == (status, code)
        report = (await running.call("POST", f"/v1/epochs/{number}/verify", {"deep": True}))[1]
        assert report["ok"], report
        assert report["signature"] == "verified"
        assert report["counts"]["packs"] == 1


async def test_damage_is_found_and_named(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1") as one:
        number = await an_epoch_with_state(running, one)
        pack = next((tmp_path / "store" / CLUSTER / "packs").rglob("*/*"))
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 1
        pack.chmod(0o600)
        pack.write_bytes(data)
        report = (await running.call("POST", f"/v1/epochs/{number}/verify", {}))[1]
        assert not report["ok"]
        assert any(pack.name in finding["key"] for finding in report["findings"])
        assert (await running.call("POST", f"/v1/epochs/{number}/verify", {"deep": False}))[1]["ok"]
        manifest = tmp_path / "store" / CLUSTER / manifest_key(number)
        manifest.unlink()
        status, document, _ = await running.call("GET", f"/v1/epochs/{number}/manifest")
        assert (status, document["error"]["code"]) == (404, "object-missing")
        report = (await running.call("POST", f"/v1/epochs/{number}/verify", {}))[1]
        assert [each["kind"] for each in report["findings"]] == ["missing"]


async def test_a_snapshot_that_the_store_does_not_have_aborts_the_epoch_with_its_name(tmp_path):
    async with cluster(tmp_path, deadline_ms=1_500) as running, Scripted(running, "p1") as one:
        one.answers = False
        number = (await running.call("POST", "/v1/epochs", {}))[1]["epoch"]
        order = await until(lambda: one.orders and one.orders[-1], "the start order")
        named = digest(encode_local_snapshot(one.snapshot(order)))
        await one.send(LocalReport(session=one.session, incarnation=order.incarnation, epoch=number, snapshot=named))
        record = await running.epoch(number, "aborted")
        assert record["abort"]["phase"] == "assemble"
        assert snapshot_key(named) in record["abort"]["cause"]
        one.answers = True
        assert (await running.call("POST", "/v1/epochs", {"wait": True}))[1]["state"] == "committed"


async def test_a_folder_that_takes_no_manifest_holds_a_sealed_epoch_up_until_it_is_mended(tmp_path):
    """ENOTDIR, which even root cannot ignore: the folder of the manifests is a file."""
    async with cluster(tmp_path, deadline_ms=1_000) as running, Scripted(running, "p1") as one:
        one.answers = False
        number = (await running.call("POST", "/v1/epochs", {}))[1]["epoch"]
        order = await until(lambda: one.orders and one.orders[-1], "the start order")
        blocked = tmp_path / "store" / CLUSTER / "epochs"
        blocked.write_text("in the way")
        await one.report(order)
        await running.epoch(number, "sealed")

        async def told():
            return "ENOTDIR" in " ".join((await running.get(f"/v1/epochs/{number}/why"))["sentences"])

        await until(told, "the trouble is told with its errno")
        # The deadline is long over; a sealed epoch waits for the store, and nobody can abort it without the store either.
        assert (await running.call("POST", f"/v1/epochs/{number}/abort", {}))[1]["error"]["code"] == "store"
        doctor = await running.get("/v1/doctor")
        assert "store" in {each["name"] for each in doctor["checks"]}
        blocked.unlink()
        record = await running.epoch(number, "committed")
        one.answers = True
        after = (await running.call("POST", "/v1/epochs", {"wait": True}))[1]
        assert (after["state"], after["previous"]) == ("committed", record["manifest"])


@contextmanager
def small_disk(path: Path):
    """A tmpfs of 1 MiB; needs the right to mount, as CI has it."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "cleancut-test", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def write_on(file) -> None:
    while True:
        file.write(b"\0" * 4096)


def fill(path: Path) -> Path:
    """Leave no room on the disk."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        write_on(file)
    return filler


async def test_a_full_disk_is_told_with_its_errno_and_heals_without_a_restart(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        store = disk / "store"
        store.mkdir()
        async with cluster(tmp_path, deadline_ms=1_000, store=str(store)) as running, Scripted(running, "p1") as one:
            assert (await running.call("POST", "/v1/epochs", {"wait": True}))[1]["state"] == "committed"
            one.answers = False
            number = (await running.call("POST", "/v1/epochs", {}))[1]["epoch"]
            order = await until(lambda: one.orders[-1].epoch == number and one.orders[-1], "the start order")
            data = encode_local_snapshot(one.snapshot(order))
            await asyncio.to_thread(one.store.put, snapshot_key(digest(data)), data)
            filler = await asyncio.to_thread(fill, disk)
            await one.report(order)
            record = await running.epoch(number, "sealed", "aborted")

            async def told():
                return "ENOSPC" in " ".join((await running.get(f"/v1/epochs/{number}/why"))["sentences"])

            await until(told, "the full disk is told with its errno")
            checks = {each["name"]: each for each in (await running.get("/v1/doctor"))["checks"]}
            assert not checks["store"]["ok"]
            assert "ENOSPC" in checks["store"]["detail"]
            filler.unlink()
            record = await running.epoch(number, "committed", "aborted")
            one.answers = True
            after = (await running.call("POST", "/v1/epochs", {"wait": True}))[1]
            assert after["state"] == "committed"
            assert record["state"] == "committed"
