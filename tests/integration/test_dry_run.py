"""Participants on a fork's store: nothing is charged and no sink is touched, whatever the program says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from participant import Agent, Context, handler, value
from participant.effects.backend import MemoryEffects
from participant.effects.entries import Entry, Kind, State, effect_token
from participant.sinks import MemorySink
from protocol import DryRun
from protocol.documents import canonical_json
from protocol.errors import ConfigError, ObjectCorrupt
from protocol.forks import FORK_KEY, Fork, _signed_bytes
from protocol.outputs import FencingToken
from protocol.storage.memory import MemoryStore
from tests.integration.fleet import CLUSTER, KEYS, Fleet, until

if TYPE_CHECKING:
    from pathlib import Path

DIGEST = "b3:" + 64 * "0"


class Charge(msgspec.Struct, frozen=True):
    """An order to charge."""

    cents: int


class Teller(Agent, kind="teller"):
    """Charges, and says so."""

    charged = value(int, default=0)
    refused = value(int, default=0)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[int] = []

    @handler
    async def on_charge(self, ctx: Context, order: Charge) -> None:
        try:
            self.charged += await ctx.step(self.charge, order.cents, diverged="replay")
        except DryRun:
            self.refused += 1
        ctx.emit("receipts", {"cents": order.cents})

    async def charge(self, cents: int) -> int:
        self.calls.append(cents)
        return cents


class UntouchedSink(MemorySink):
    """Fails whatever opens it or writes to it."""

    async def open(self, writer):
        raise AssertionError("the original's sink was opened")

    async def deliver(self, writer, outputs):
        raise AssertionError("the original's sink was written to")


def fork_store(**changes) -> MemoryStore:
    """A store that says that its cluster is a fork."""
    store = MemoryStore(CLUSTER)
    fork = Fork(
        **{
            "cluster": CLUSTER,
            "epoch": 7,
            "manifest": DIGEST,
            "incarnation": 1,
            "session": 3,
            "members": 1,
            "started_at": 1,
            "origin_cluster": "original",
            "origin_manifest": DIGEST,
            **changes,
        }
    )
    fork = msgspec.structs.replace(fork, signature=KEYS.sign_manifest(_signed_bytes(fork)))
    store.put(FORK_KEY, canonical_json(fork))
    return store


async def test_steps_are_refused_and_outputs_are_noted_down_once(tmp_path: Path) -> None:
    teller = Teller("main")
    async with Fleet("memory", tmp_path, store=fork_store()) as fleet:
        one = await fleet.join("p1", teller, sinks=[UntouchedSink("receipts")], local=str(tmp_path / "local"))
        assert one.dry_run
        await one.wait_member()
        await one.ingest("teller/main", Charge(5), token="order-1")
        await until(lambda: teller.refused == 1)
        assert (teller.calls, teller.charged) == ([], 0)
        await fleet.conductor.epoch("test")
        noted = tmp_path / "local" / ".forks" / CLUSTER / "p1" / "dry-run" / "receipts.jsonl"
        await until(lambda: noted.exists() and noted.read_bytes())
        (line,) = [json.loads(each) for each in noted.read_text().splitlines()]
        assert (line["agent"], line["value"]) == ("teller/main", {"cents": 5})
        assert not (tmp_path / "local" / "p1").exists(), "the original's own folder is not touched"


async def test_a_result_that_the_original_recorded_at_the_same_position_is_taken(tmp_path: Path) -> None:
    known = MemoryEffects()
    teller = Teller("main")
    async with Fleet("memory", tmp_path, store=fork_store()) as fleet:
        one = await fleet.join("p1", teller, sinks=[UntouchedSink("receipts")], effects=known)
        await one.wait_member()
        taken = await one.ingest("teller/main", Charge(5))
        await until(lambda: teller.refused == 1)
        # What the original's own ledger says, had it come to this position.
        taken_next = int.from_bytes(taken.id[8:], "big") + 1
        message = taken.id[:8] + taken_next.to_bytes(8, "big")
        place = effect_token("original", "teller/main", message, Kind.STEP, "charge", 0)
        before = FencingToken("p1", 1, 1)
        entry = Entry(place, Kind.STEP, "teller/main", message, "charge", 0, b"", "", b"", "p1", 1, 1, b"c", 1)
        await known.claim(entry, before)
        await known.end(place, before, b"c", State.DONE, result=msgspec.msgpack.encode(9))
        await one.ingest("teller/main", Charge(9))
        await until(lambda: teller.charged == 9 or teller.refused == 2)
        assert teller.calls == []
        assert list(known.ledger.entries) == [place], "the original's ledger is only read"
        assert known.ledger.fence.incarnation <= 1


async def test_a_store_whose_fork_document_is_wrong_is_not_used(tmp_path: Path) -> None:
    store = fork_store(cluster="another")
    async with Fleet("memory", tmp_path, store=store) as fleet:
        with pytest.raises(ConfigError, match="of cluster another"):
            await fleet.join("p1", Teller("main"))
    broken = MemoryStore(CLUSTER)
    broken.put(FORK_KEY, b"{}")
    async with Fleet("memory", tmp_path, store=broken) as fleet:
        with pytest.raises(ObjectCorrupt, match=r"fork\.json"):
            await fleet.join("p1", Teller("main"))
