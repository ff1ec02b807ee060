"""Agents that get into doubt, diverge and ask, on real coordinators: what an operator looks at and decides."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from participant import Agent, Context, Participant, Retry, handler, value
from participant.failure import Backoff
from participant.logs.recovery import LogIdentity
from participant.runtime.durable_log import DurableLog
from participant.runtime.log_files import FolderFiles, Life
from participant.turnlog.records import NOTHING, EndedRecord, TurnRecord, encode_record
from protocol.journal import FinishedStep
from protocol.messages import Envelope
from tests.integration.coordinators import CLUSTER, cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.integration.coordinators import Cluster


class Order(msgspec.Struct, frozen=True):
    id: str
    how: str = "lost"
    """``lost``: the charge is made and its answer lost; ``diverge``: the turn runs again with another amount; ``slow``: the
    charge takes until `Buyer.slow` is set; else it works."""


class Ask(msgspec.Struct, frozen=True):
    text: str
    timeout: float | None = None


class Receipt(msgspec.Struct, frozen=True):
    number: int
    note: str = ""


class Buyer(Agent, kind="buyer"):
    """Charges, and asks."""

    receipts = value(list[int], default=[])
    answers = value(list[Any], default=[])
    failure = Retry(attempts=3, backoff=Backoff(first=0, maximum=0))

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[str] = []
        self.turns = 0
        self.slow = asyncio.Event()

    async def charge(self, order: Order, cents: int) -> Receipt:
        self.calls.append(order.id)
        if order.how == "lost" and self.calls.count(order.id) == 1:
            raise ConnectionError("the answer was lost")
        if order.how == "slow":
            await self.slow.wait()
        return Receipt(len(self.calls))

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        self.turns += 1
        cents = min(self.turns, 2) if order.how == "diverge" else 1
        receipt = await ctx.step(self.charge, order, cents)
        if order.how == "diverge" and self.turns == 1:
            raise ValueError("once more")
        self.receipts = [*self.receipts, receipt.number]

    @handler
    async def on_ask(self, ctx: Context, ask: Ask) -> None:
        found = await ctx.ask(ask.text, answer=bool, timeout=ask.timeout)
        self.answers = [*self.answers, found]


class Shop:
    """Coordinators and participants, each with a folder of its own."""

    def __init__(self, made: Cluster, folder: Path, stack: AsyncExitStack) -> None:
        self.made = made
        self.local = folder / "local"
        self.stacks: dict[str, AsyncExitStack] = {}
        self.participants: dict[str, Participant] = {}
        self._stack = stack

    async def join(self, name: str, *agents: Agent, **options: Any) -> Participant:
        own = self.stacks[name] = await self._stack.enter_async_context(AsyncExitStack())
        participant = await own.enter_async_context(
            Participant(
                *agents,
                id=name,
                cluster=CLUSTER,
                coordinators=[each.http for each in self.made.coordinators],
                store=self.made.store_url,
                secret_file=str(self.made.secret_file),
                **{"local": str(self.local), **options},
            )
        )
        await participant.wait_member()
        self.participants[name] = participant
        return participant

    async def crash(self, name: str) -> None:
        """End a participant without a word to anybody."""
        await self.stacks.pop(name).aclose()
        del self.participants[name]

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        status, document, _ = await self.made.call(method, path, body, **options)
        return status, document

    async def refused(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, str, str]:
        """Status, code and message of an error."""
        status, document = await self.call(method, path, body, **options)
        assert "error" in document, (status, document)
        return status, document["error"]["code"], document["error"]["message"]

    async def in_doubt(self, count: int = 1) -> list[dict[str, Any]]:
        """What waits for a decision, once it is so many."""
        async with asyncio.timeout(20):
            while True:
                status, document = await self.call("GET", "/v1/effects?in_doubt=1")
                assert status == 200, document
                if len(document["effects"]) == count and all(row["waits"] for row in document["effects"]):
                    return list(document["effects"])
                await asyncio.sleep(0.02)

    async def open_questions(self, count: int = 1) -> list[dict[str, Any]]:
        """Open questions, once they are so many."""
        async with asyncio.timeout(20):
            while True:
                status, document = await self.call("GET", "/v1/questions")
                assert status == 200, document
                if len(document["questions"]) == count and all(row["waits"] for row in document["questions"]):
                    return list(document["questions"])
                await asyncio.sleep(0.02)


@asynccontextmanager
async def shop(folder: Path, count: int = 1, *, extra: str = "", **policy: Any) -> AsyncIterator[Shop]:
    async with cluster(folder, count, extra=extra, **policy) as made, AsyncExitStack() as stack:
        yield Shop(made, folder, stack)


def turn_record(agent: str, number: int, payload: int = 0) -> bytes:
    """A turn as it is logged: it sends the number, does a step that gives it, and emits it."""
    identity = number.to_bytes(16, "big")
    body = msgspec.msgpack.encode(number)
    sent = msgspec.msgpack.encode(Envelope(bytes(16), agent, "buyer/other", "Number", 1, body))  # type: ignore[arg-type]
    return encode_record(
        TurnRecord(
            agent,
            identity,
            "p9",
            number + 1,
            [("receipts", NOTHING, NOTHING)],
            [("p9", number + 1, msgspec.Raw(sent))],
            [(5_000_000_000, msgspec.Raw(sent))],
            [(identity, "receipts", msgspec.msgpack.encode([number, bytes(payload)] if payload else number))],
            [FinishedStep(identity, "step", "charge", 0, "done", body, "", b"", "")],
            "Order",
            "buyer/other",
            1,
            1_796_000_000_000_000_000 + number,
        )
    )


def log_turns(participant: Path, agent: str, count: int, *, segment_bytes: int = 1 << 20, payload: int = 0) -> None:
    """Turns in a participant's turn log, as if it had had them; one batch each.

    Args:
        participant: Its folder.
        agent: Whose turns.
        count: How many; the n-th sends n, does a step that gives n, and emits n.
        segment_bytes: A segment is closed at this size.
        payload: Bytes that each output has on top.
    """
    log = DurableLog(
        FolderFiles(participant / "turns"),
        LogIdentity("turns", CLUSTER, participant.name),
        segment_bytes=segment_bytes,
    )
    assert list(log.recover()) == []
    log.begin(Life(1, 1))
    for number in range(count):
        log.append(turn_record(agent, number, payload))
        job = log.take()
        assert job is not None
        log.write(job)
    reason = EndedRecord(agent, bytes(16), "p9", count + 1, stopped=False, reason="ValueError: no", message_type="Order",
                         sender="buyer/other", attempts=3, at=1_796_000_001_000_000_000)  # fmt: skip
    log.append(encode_record(reason))
    job = log.take()
    assert job is not None
    log.write(job)
    log.close()
