"""The bank outside of the demo's cluster: what it charged stands in its own ledger, and nothing is forgiven."""

import asyncio
import json
import sys

import aiohttp
import pytest

from simulations.demo.outside import Charge, OutsideBank, audit, read_ledger


def charge(number, *, order, token="t"):
    return Charge(receipt=f"r{number}", token=token, order=order, cents=100)


def test_an_order_charged_twice_is_a_duplicate_whatever_its_tokens():
    found = audit([charge(1, order="o1", token="a"), charge(2, order="o1", token="b")], paid=["o1"])
    assert found.duplicated == ("o1",)
    assert (found.charges, found.lost, found.cents) == (2, (), 200)


def test_an_order_that_counts_as_paid_without_a_charge_is_lost():
    assert audit([charge(1, order="o1")], paid=["o1", "o2"]).lost == ("o2",)


def test_a_charge_that_the_cluster_has_not_heard_of_yet_is_neither():
    found = audit([charge(1, order="o1")], paid=[])
    assert (found.duplicated, found.lost) == ((), ())


def test_every_request_is_one_more_charge_and_the_first_receipt_is_told(tmp_path):
    bank = OutsideBank(tmp_path / "ledger.jsonl")
    first = bank.charge("t1", "o1", 100)
    assert bank.charge("t1", "o1", 100) != first
    assert bank.receipt("t1") == first
    bank.close()
    again = OutsideBank(tmp_path / "ledger.jsonl")
    assert again.receipt("t1") == first
    assert [each.order for each in again.charges] == ["o1", "o1"]
    again.close()


async def test_a_charge_is_on_disk_before_it_is_answered(tmp_path):
    """The process is killed right after its answer."""
    ledger = tmp_path / "ledger.jsonl"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "simulations.demo.outside", str(ledger),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    url = json.loads(await process.stdout.readline())["url"]
    async with aiohttp.ClientSession(url) as session:
        async with session.post("/charges", json={"token": "t1", "order": "o1", "cents": 250}) as response:
            receipt = (await response.json())["receipt"]
        async with session.get("/charges/t1") as response:
            assert (await response.json())["receipt"] == receipt
        async with session.get("/charges/t2") as response:
            assert response.status == 404
        async with session.get("/ledger") as response:
            assert [each["order"] for each in await response.json()] == ["o1"]
    process.kill()
    await process.wait()
    assert read_ledger(ledger) == [Charge(receipt=receipt, token="t1", order="o1", cents=250)]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"token": "t", "order": "o", "cents": "many"}'])
async def test_what_is_no_charge_is_refused_and_charges_nothing(body, tmp_path):
    from aiohttp.test_utils import TestClient, TestServer

    bank = OutsideBank(tmp_path / "ledger.jsonl")
    async with TestClient(TestServer(bank.application())) as client:
        assert (await client.post("/charges", data=body)).status == 400
    bank.close()
    assert read_ledger(tmp_path / "ledger.jsonl") == []
