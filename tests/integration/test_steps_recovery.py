"""Steps through crashes and rollbacks: the bank's own ledger shows each charge once, or somebody is asked."""

import asyncio
import errno
import functools
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from participant import (
    Agent,
    Context,
    DidNotHappen,
    Happened,
    Participant,
    Restoration,
    Retry,
    TakeRecorded,
    handler,
    keyed,
    value,
)
from participant.effects.backend import MemoryEffects
from participant.effects.entries import Entry, State
from participant.effects.ledger import Claimed, Known
from participant.failure import Backoff
from participant.runtime.effects_local import NAME_FILE
from participant.runtime.log_files import FolderFiles, LocalFolder
from participant.runtime.turn_base import BASE_NAME, read_base
from participant.runtime.turn_keeper import TurnKeeper
from participant.testing import Cluster, EpochView
from protocol.digests import snapshot_key
from protocol.documents import decode_local_snapshot, encode_local_snapshot
from protocol.errors import FencedError, StoreError, Unreachable
from protocol.limits import MIB
from protocol.manifest import LocalSnapshot
from protocol.outputs import FencingToken

FAST = Backoff(first=0, maximum=0)


class Order(msgspec.Struct, frozen=True):
    id: str
    cents: int = 500


class Bank:
    """Outside; all that is left of a crashed process."""

    charges: ClassVar[list[str]] = []
    by_token: ClassVar[dict[str, str]] = {}
    calls = 0
    gate: asyncio.Event | None = None
    hang: str = ""
    """``before`` or ``after`` the charge: the call waits for `gate`."""

    @classmethod
    def reset(cls) -> None:
        cls.charges, cls.by_token, cls.calls, cls.gate, cls.hang = [], {}, 0, None, ""

    @classmethod
    async def charge(cls, order_id: str, cents: int, *, token: str) -> str:
        cls.calls += 1
        if cls.hang == "before":
            assert cls.gate is not None
            await cls.gate.wait()
        cls.charges.append(order_id)
        cls.by_token[token] = f"receipt {len(cls.charges)} for {order_id}"
        if cls.hang == "after":
            assert cls.gate is not None
            await cls.gate.wait()
        return cls.by_token[token]

    @classmethod
    async def charge_once(cls, order_id: str, cents: int, *, token: str) -> str:
        """The same at a bank that knows tokens."""
        if token in cls.by_token:
            cls.calls += 1
            return cls.by_token[token]
        return await cls.charge(order_id, cents, token=token)

    @classmethod
    async def find(cls, token: str) -> str | DidNotHappen:
        return cls.by_token.get(token, DidNotHappen())


@pytest.fixture(autouse=True)
def fresh_bank() -> None:
    Bank.reset()


class Shop(Agent, kind="shop"):
    """Charges a minute after it starts: the order is a timer, part of the epoch before."""

    receipts = keyed(str, str)
    how: ClassVar[dict[str, Any]] = {}
    charge: Callable[..., Any] = staticmethod(Bank.charge)
    failure = Retry(attempts=3, backoff=FAST)

    async def on_start(self, ctx: Context) -> None:
        ctx.after(60, Order("o1"))

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        self.receipts[order.id] = await ctx.step(type(self).charge, order.id, order.cents, name="charge", **self.how)


@pytest.fixture(autouse=True)
def plain_shop() -> None:
    Shop.how = {}
    Shop.charge = staticmethod(Bank.charge)


def receipts(cluster: Cluster) -> dict[str, str]:
    shop = cluster["shop/main"]
    assert isinstance(shop, Shop)
    return dict(shop.receipts)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


async def test_after_a_rollback_the_same_place_has_its_receipt_and_the_bank_sees_one_call():
    """A4, P7: rolled back to the epoch before the charge."""
    async with Cluster(Shop("main")) as cluster:
        epoch = await cluster.epoch()
        await cluster.advance(61)
        assert receipts(cluster) == {"o1": "receipt 1 for o1"}
        for crash in (False, True):
            if crash:
                await cluster.crash("p1")
            await cluster.restore(epoch)
            await cluster.idle()
            assert receipts(cluster) == {}
            await cluster.advance(61)
            assert receipts(cluster) == {"o1": "receipt 1 for o1"}
        assert Bank.calls == 1


class Later(msgspec.Struct, frozen=True):
    pass


class Payer(Agent, kind="payer"):
    """Pays a minute after it starts, with a reference that is another one each time."""

    receipts = keyed(str, str)
    later = value(int, default=0)
    wants: ClassVar[tuple[str, int]] = ("baker", 500)
    references: ClassVar[list[str]] = []
    failure = Retry(attempts=3, backoff=FAST)

    async def on_start(self, ctx: Context) -> None:
        ctx.after(60, Order("o1"))

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        payee, cents = self.wants
        reference = f"reference {len(self.references)}"
        self.receipts[order.id] = await ctx.step(self.pay, payee, cents, reference, intent=(payee, cents))

    @handler
    async def on_later(self, ctx: Context, later: Later) -> None:
        self.later += 1

    @staticmethod
    async def pay(payee: str, cents: int, reference: str, *, token: str) -> str:
        Payer.references.append(reference)
        return await Bank.charge(payee, cents, token=token)


@pytest.mark.parametrize("crash", [False, True])
async def test_after_a_rollback_what_is_no_intent_may_read_otherwise(crash: bool):
    """A4: the model says it differently after the rollback; at the same position is the recorded receipt."""
    Payer.wants, Payer.references = ("baker", 500), []
    async with Cluster(Payer("main")) as cluster:
        epoch = await cluster.epoch()
        await cluster.advance(61)
        Payer.references.append("so that the next one is another")
        if crash:
            await cluster.crash("p1")
        await cluster.restore(epoch)
        await cluster.advance(61)
        payer = cluster["payer/main"]
        assert isinstance(payer, Payer)
        assert dict(payer.receipts) == {"o1": "receipt 1 for baker"}
        assert Bank.calls == 1
        assert cluster.participant_of("payer/main").parked == ()


@pytest.mark.parametrize("wants", [("baker", 700), ("butcher", 500)])
async def test_after_a_rollback_another_amount_or_payee_diverges_and_work_stops_there(wants: tuple[str, int]):
    """A4: `StepDiverged` with both versions, through further crashes, until somebody decides; the bank sees one call."""
    Payer.wants, Payer.references = ("baker", 500), []
    async with Cluster(Payer("main")) as cluster:
        epoch = await cluster.epoch()
        await cluster.advance(61)
        Payer.wants = wants
        for crash in (False, True):
            if crash:
                epoch = await cluster.epoch()
                await cluster.crash("p1")
            await cluster.restore(epoch)
            await cluster.advance(61)
            participant = cluster.participant_of("payer/main")
            (parked,) = participant.parked
            assert (parked.cause, parked.step) == ("diverged", "pay")
            for version in (("baker", 500), wants):
                assert f"{version[0]!r}, {version[1]}" in parked.reason
        await cluster.send("payer/main", Later())
        await cluster.idle()
        payer = cluster["payer/main"]
        assert isinstance(payer, Payer)
        assert (dict(payer.receipts), payer.later) == ({}, 0)
        await cluster.settle(parked.token, TakeRecorded())
        await cluster.idle()
        assert (dict(payer.receipts), payer.later) == ({"o1": "receipt 1 for baker"}, 1)
        assert Bank.calls == 1


HANGS = ["before", "after"]


async def hung(hang: str) -> tuple[Cluster, Any]:
    """A cluster whose only step hangs inside its call; an epoch was taken before."""
    Bank.gate, Bank.hang = asyncio.Event(), hang
    cluster = Cluster(Shop("main"))
    await cluster.__aenter__()
    epoch = await cluster.epoch()
    cluster.clock.move_to(cluster.clock.now() + 61 * 1_000_000_000)
    await until(lambda: Bank.calls == 1)
    await asyncio.sleep(0)
    return cluster, epoch


@pytest.mark.parametrize("hang", HANGS)
@pytest.mark.parametrize("how", ["token", "resolve", "nothing"])
async def test_killed_in_the_middle_of_a_call(hang: str, how: str):
    """A3: after the claim, and after the charge. With key support: exactly one. Without: in doubt, never two, never silent."""
    if how == "token":
        Shop.how, Shop.charge = {"idempotent": True}, staticmethod(Bank.charge_once)
    elif how == "resolve":
        Shop.how = {"resolve": Bank.find}
    cluster, epoch = await hung(hang)
    await cluster.crash("p1")
    Bank.hang = ""
    await cluster.restore(epoch)
    await cluster.idle()
    await cluster.advance(61)
    participant = cluster.participant_of("shop/main")
    if how == "nothing":
        (parked,) = participant.parked
        assert parked.cause == "in-doubt"
        assert Bank.charges == ([] if hang == "before" else ["o1"])
        (entry,) = await participant.effects()
        assert entry.token == parked.token
        await cluster.settle(
            parked.token, DidNotHappen() if hang == "before" else Happened(Bank.by_token[parked.token])
        )
        await cluster.idle()
    assert Bank.charges == ["o1"]
    assert receipts(cluster) == {"o1": "receipt 1 for o1"}
    assert participant.parked == ()
    await cluster.__aexit__(None, None, None)


class Curious(Shop, kind="shop"):
    """Looks, when it comes back, for what is in doubt."""

    found: ClassVar[list[Any]] = []

    async def on_restored(self, ctx: Context, what: Restoration) -> None:
        Curious.found.append(await ctx.in_doubt())


async def test_an_agent_that_comes_back_is_told_what_is_in_doubt():
    Curious.found, Curious.how = [], {}
    Bank.gate, Bank.hang = asyncio.Event(), "after"
    async with Cluster(Curious("main")) as cluster:
        epoch = await cluster.epoch()
        await cluster.restore(epoch)
        await cluster.idle()
        assert Curious.found == [()]
        cluster.clock.move_to(cluster.clock.now() + 61 * 1_000_000_000)
        await until(lambda: Bank.calls == 1)
        await cluster.restore(epoch)
        await until(lambda: len(Curious.found) == 2)
        assert Curious.found[1] == (), "it is being done: that is no doubt"
        await cluster.crash("p1")
        Bank.hang = ""
        await cluster.restore(epoch)
        await cluster.idle()
        ((doubtful,),) = Curious.found[2:]
        assert (doubtful.step, doubtful.ordinal, doubtful.shown) == ("charge", 0, "('o1', 500)")
        assert [doubtful.token] == list(Bank.by_token), "what the bank can be asked by"
        await cluster.advance(61)
        await cluster.settle(doubtful.token, Happened(Bank.by_token[doubtful.token]))
        await cluster.restore(epoch)
        await cluster.idle()
        assert Curious.found[3] == ()
        assert Bank.charges == ["o1"]


@pytest.mark.parametrize("hang", HANGS)
async def test_rolled_back_in_the_middle_of_a_call_the_new_turn_joins_the_old_call(hang: str):
    """The same process goes on in the next incarnation: what it has begun it knows about."""
    cluster, epoch = await hung(hang)
    restored = asyncio.ensure_future(cluster.restore(epoch))
    await restored
    cluster.clock.move_to(cluster.clock.now() + 61 * 1_000_000_000)
    await until(lambda: cluster.participant_of("shop/main").statistics()["turns"] >= 1)
    assert Bank.gate is not None
    Bank.gate.set()
    await cluster.idle()
    assert Bank.charges == ["o1"]
    assert Bank.calls == 1
    assert receipts(cluster) == {"o1": "receipt 1 for o1"}
    (entry,) = await cluster.participant_of("shop/main").effects(State.DONE)
    assert entry.result
    await cluster.__aexit__(None, None, None)


async def test_an_agent_that_moves_finds_its_steps_at_its_new_host():
    """One ledger for both: the receipt of the old host, and no second charge."""

    class Other(Agent, kind="other"):
        seen = value(int, default=0)

    async with Cluster(Shop("main"), Other("main")) as cluster:
        epoch = await cluster.epoch()
        await cluster.advance(61)
        await cluster.restore(epoch, placement={"p1": [], "p2": ["shop/main", "other/main"]})
        await cluster.idle()
        assert cluster.participant_of("shop/main").id == "p2"
        await cluster.advance(61)
        assert receipts(cluster) == {"o1": "receipt 1 for o1"}
        assert Bank.calls == 1


@pytest.mark.parametrize("moment", ["asking", "calling", "charging"])
async def test_an_agent_that_moves_in_the_middle_of_a_step_leaves_nobody_behind_who_calls(moment: str):
    """Its new host finds out what became of the claim, and calls if nothing did: were both to do so it would happen twice.

    The old one asks the bank what became of a call that failed; or is in a call, which fails, or comes to its end.
    """

    class Other(Agent, kind="other"):
        seen = value(int, default=0)

    gate = asyncio.Event()
    waiting = asyncio.Event()

    async def wait() -> None:
        if not gate.is_set():
            waiting.set()
            await gate.wait()

    async def charge(order_id: str, cents: int, *, token: str) -> str:
        first = Bank.calls == 0
        if first and moment != "asking":
            Bank.calls += 1
            await wait()
            Bank.calls -= 1
        if not first or moment == "charging":
            return await Bank.charge(order_id, cents, token=token)
        Bank.calls += 1
        raise ConnectionError

    async def find(token: str) -> str | DidNotHappen:
        await wait()
        return await Bank.find(token)

    Shop.charge = staticmethod(charge)
    Shop.how = {"resolve": find, "retry": Shop.failure}
    async with Cluster(Shop("main"), Other("main")) as cluster:
        epoch = await cluster.epoch()
        cluster.clock.move_to(cluster.clock.now() + 61 * 1_000_000_000)
        await asyncio.wait_for(waiting.wait(), 20)
        await cluster.restore(epoch, placement={"p1": [], "p2": ["shop/main", "other/main"]})
        gate.set()
        await until(lambda: not cluster.participants["p1"].statistics()["steps_running"])
        assert Bank.charges == (["o1"] if moment == "charging" else [])
        await cluster.advance(61)
        assert receipts(cluster) == {"o1": "receipt 1 for o1"}
        assert (Bank.charges, Bank.calls) == (["o1"], 1 if moment == "charging" else 2)
        (entry,) = await cluster.participants["p2"].effects(State.DONE)
        assert entry.participant == ("p1" if moment == "charging" else "p2")


async def test_two_that_exchange_names_and_hosts_in_the_middle_of_a_step_are_not_taken_for_each_other():
    """Whoever hosts the name of the one that has left has another agent."""
    gate, waiting, asked = asyncio.Event(), asyncio.Event(), []

    async def charge(order_id: str, cents: int, *, token: str) -> str:
        if not asked:
            asked.append(token)
            raise ConnectionError
        return await Bank.charge(f"{order_id} {token}", cents, token=token)

    async def find(token: str) -> str | DidNotHappen:
        if not gate.is_set():
            waiting.set()
            await gate.wait()
        return await Bank.find(token)

    Shop.charge = staticmethod(charge)
    Shop.how = {"resolve": find, "retry": Shop.failure}
    async with Cluster(Shop("main"), Shop("other")) as cluster:
        epoch = await cluster.epoch()
        cluster.clock.move_to(cluster.clock.now() + 61 * 1_000_000_000)
        await asyncio.wait_for(waiting.wait(), 20)
        await until(lambda: len(Bank.charges) == 1)
        await cluster.restore(
            epoch,
            renames={"shop/main": "shop/other", "shop/other": "shop/main"},
            placement={"p1": ["shop/main"], "p2": ["shop/other"]},
        )
        gate.set()
        await until(lambda: not any(each.statistics()["steps_running"] for each in cluster.participants.values()))
        assert len(Bank.charges) == 1, "who asked has gone elsewhere, and calls there"
        await cluster.advance(61)
        assert len(Bank.charges) == len({*Bank.charges}) == 2
        assert {*Bank.by_token} > {*asked}


async def test_a_call_under_way_is_tried_again_by_the_turn_that_joins_it_under_another_name():
    """The agent is here, whatever it is called by now: the step has the attempts that it had."""
    gate, waiting = asyncio.Event(), asyncio.Event()

    async def charge(order_id: str, cents: int, *, token: str) -> str:
        if not waiting.is_set():
            waiting.set()
            await gate.wait()
            raise ConnectionError
        return await Bank.charge(order_id, cents, token=token)

    Shop.charge = staticmethod(charge)
    Shop.how = {"resolve": Bank.find, "retry": Shop.failure}
    async with Cluster(Shop("main")) as cluster:
        epoch = await cluster.epoch()
        cluster.clock.move_to(cluster.clock.now() + 61 * 1_000_000_000)
        await asyncio.wait_for(waiting.wait(), 20)
        participant = cluster.participants["p1"]
        await cluster.restore(epoch, renames={"shop/main": "shop/new"}, placement={"p1": ["shop/new"]})
        cluster.clock.move_to(cluster.clock.now() + 61 * 1_000_000_000)
        steps = participant._steps
        assert steps is not None
        await until(lambda: any(steps._waiters.values()))
        gate.set()
        await cluster.idle()
        assert Bank.charges == ["o1"]
        assert participant.statistics()["turns_failed"] == 0


async def test_an_entry_that_a_rollback_may_bring_back_is_not_pruned():
    async with Cluster(Shop("main")) as cluster:
        first = await cluster.epoch()
        await cluster.advance(61)
        second = await cluster.epoch()
        steps = cluster.participant_of("shop/main")._steps
        assert steps is not None
        assert await steps.prune(first.number) == 0
        await cluster.restore(first)
        await cluster.idle()
        third = await cluster.epoch()
        assert third.number > second.number
        # Only epochs after the rollback are kept; the order is still a timer in them.
        assert await steps.prune(third.number) == 0
        await cluster.advance(61)
        assert Bank.calls == 1
        fourth = await cluster.epoch()
        assert await steps.prune(fourth.number) == 1


async def test_a_rollback_that_the_ledger_did_not_hear_of_is_told_by_the_life_that_goes_on_from_its_log(tmp_path: Path):
    """Else what the rollback brings back could be pruned, and done again."""

    class Deaf(MemoryEffects):
        deaf = False
        heard = 0

        async def reopen(self, base: int, fence: FencingToken) -> None:
            if self.deaf:
                raise Unreachable("no answer")
            await super().reopen(base, fence)
            self.heard += 1

    cluster = Cluster(Shop("main"), local=str(tmp_path), durability="turn")
    ledger = cluster.effects = Deaf()
    async with cluster:
        first = await cluster.epoch()
        await cluster.advance(61)
        assert Bank.calls == 1
        await cluster.epoch()
        ledger.deaf = True
        await cluster.restore(first)
        local = LocalFolder(tmp_path, "p1")
        await until(lambda: (base := read_base(local)) is not None and base.incarnation == 2)
        assert ledger.heard == 0
        await cluster.crash("p1")
        ledger.deaf = False
        await cluster.resume()
        await until(lambda: ledger.heard > 0)
        third = await cluster.epoch()
        steps = cluster.participant_of("shop/main")._steps
        assert steps is not None
        assert await steps.prune(third.number) == 0
        await cluster.advance(61)
        assert Bank.calls == 1


async def test_brothers_that_end_at_the_same_instant_as_a_crash_are_each_done_once():
    """A2: fan-out; the process goes down around the end of one of them; then all runs again."""
    for moment in range(12):
        Bank.reset()

        class Fan(Agent, kind="fan"):
            total = value(int, default=0)

            async def on_start(self, ctx: Context) -> None:
                ctx.after(60, Order("o1"))

            @handler
            async def on_order(self, ctx: Context, order: Order) -> None:
                results = await asyncio.gather(
                    *(
                        ctx.step(Bank.charge_once, f"{order.id}-{part}", 5, name="charge", idempotent=True)
                        for part in range(3)
                    )
                )
                self.total += len(results)

        async with Cluster(Fan("main")) as cluster:
            epoch = await cluster.epoch()
            cluster.clock.move_to(cluster.clock.now() + 61 * 1_000_000_000)
            for _ in range(moment):
                await asyncio.sleep(0)
            await cluster.crash("p1")
            await cluster.restore(epoch)
            await cluster.advance(61)
            await cluster.idle()
            assert sorted(Bank.charges) == ["o1-0", "o1-1", "o1-2"]
            assert cluster["fan/main"].total == 3  # type: ignore[attr-defined]


async def test_the_ledger_in_a_participants_own_folder_outlives_it_and_its_incarnations(tmp_path: Any):
    """As configured for users: `local` alone."""
    cluster = Cluster(Shop("main"), local=str(tmp_path))
    cluster.effects = ""  # type: ignore[assignment]
    async with cluster:
        epoch = await cluster.epoch()
        await cluster.advance(61)
        assert receipts(cluster) == {"o1": "receipt 1 for o1"}
        for crash in (False, True, False, True):
            if crash:
                await cluster.crash("p1")
            await cluster.restore(epoch)
            await cluster.idle()
            await cluster.advance(61)
            assert receipts(cluster) == {"o1": "receipt 1 for o1"}
        assert Bank.calls == 1
        (entry,) = await cluster.participant_of("shop/main").effects(State.DONE)
        assert entry.incarnation == 1
        assert entry.closed_after >= epoch.number, "that epoch is kept, and brings the place back"
    assert (tmp_path / "p1" / "effects").is_dir()


class Other(Agent, kind="other"):
    seen = value(int, default=0)


Placement = dict[str, Sequence[str]]
WAYS = ["moved", "moved at the start", "disk lost", "disk lost at the start"]
ELSEWHERE: Placement = {"p1": [], "p2": ["shop/main", "other/main"]}


def ledgers_of_their_own(folder: Path, **settings: Any) -> Cluster:
    cluster = Cluster(Shop("main"), Other("main"), local=str(folder), **settings)
    cluster.effects = ""  # type: ignore[assignment]
    return cluster


async def gone_elsewhere(cluster: Cluster, folder: Path, why: str) -> tuple[str, Placement | None, EpochView | None]:
    """The order is charged; then its place comes back where the ledger does not reach, and waits: host, placement, from where."""
    epoch = None if "start" in why else await cluster.epoch()
    await cluster.advance(61)
    assert receipts(cluster) == {"o1": "receipt 1 for o1"}
    await cluster.crash("p1")
    placement = ELSEWHERE if "moved" in why else None
    if placement is None:
        shutil.rmtree(folder / "p1")
    await cluster.restore(epoch, placement=placement)
    await cluster.idle()
    return ("p1" if placement is None else "p2"), placement, epoch


@pytest.mark.parametrize("how", ["token", "resolve", "nothing"])
@pytest.mark.parametrize("why", WAYS)
async def test_what_was_done_where_the_ledger_here_does_not_reach_is_found_out_or_in_doubt(
    tmp_path: Path, how: str, why: str
):
    """Each participant has a ledger of its own. The agent comes back elsewhere, or its disk is lost: never done twice in silence."""
    if how == "token":
        Shop.how, Shop.charge = {"idempotent": True}, staticmethod(Bank.charge_once)
    elif how == "resolve":
        Shop.how = {"resolve": Bank.find}

    async with ledgers_of_their_own(tmp_path) as cluster:
        host, _, _ = await gone_elsewhere(cluster, tmp_path, why)
        await cluster.advance(61)
        participant = cluster.participant_of("shop/main")
        assert participant.id == host
        if how == "nothing":
            (parked,) = participant.parked
            assert parked.cause == "in-doubt"
            assert "may have been done before: its agent was at" in parked.reason
            assert receipts(cluster) == {}
            await cluster.settle(parked.token, Happened(Bank.by_token[parked.token]))
            await cluster.idle()
        assert Bank.charges == ["o1"]
        assert receipts(cluster) == {"o1": "receipt 1 for o1"}
        # What was certainly not done is done, once somebody says so.
        await cluster.send("shop/main", Order("o2"))
        await cluster.idle()
        if how == "nothing":
            (parked,) = participant.parked
            await cluster.settle(parked.token, DidNotHappen())
            await cluster.idle()
        assert Bank.charges == ["o1", "o2"]
        assert participant.parked == ()


async def crash_with_log(cluster: Cluster, folder: Path, name: str) -> None:
    """After its life has begun to write the log."""
    local, session = LocalFolder(folder, name), cluster.participants[name].session
    await until(lambda: (base := read_base(local)) is not None and base.session == session)
    await cluster.crash(name)


async def in_doubt(cluster: Cluster) -> str:
    """The charge comes, and is not made; the reason."""
    await cluster.advance(61)
    (parked,) = cluster.participant_of("shop/main").parked
    assert parked.cause == "in-doubt"
    assert "may have been done before: its agent was at" in parked.reason
    assert Bank.charges == ["o1"]
    return parked.reason


AGAIN = [(why, epochs, crash) for why in WAYS for epochs in (0, 1, 3) for crash in (False, True)]
# The new process is given the agent as its own, and nothing was ever saved of it: as if it had always been there.
AGAIN.remove(("moved at the start", 0, True))


@pytest.mark.parametrize(("why", "epochs", "crash"), AGAIN)
async def test_doubt_about_what_was_done_elsewhere_outlives_the_process_that_took_the_agent_over(
    tmp_path: Path, why: str, epochs: int, crash: bool
):
    """The work still waits when that one goes back, or starts anew: from epochs of its own, or from the same as before."""
    async with ledgers_of_their_own(tmp_path) as cluster:
        host, placement, epoch = await gone_elsewhere(cluster, tmp_path, why)
        for _ in range(max(1, epochs)):
            if epochs:
                epoch = await cluster.epoch()
            if crash:
                await cluster.crash(host)
            await cluster.restore(epoch, placement=placement)
            await cluster.idle()
        await in_doubt(cluster)
        (parked,) = cluster.participant_of("shop/main").parked
        await cluster.settle(parked.token, Happened(Bank.by_token[parked.token]))
        await cluster.idle()
        assert receipts(cluster) == {"o1": "receipt 1 for o1"}
        assert Bank.charges == ["o1"]


@pytest.mark.parametrize("why", WAYS)
async def test_doubt_goes_with_an_agent_to_its_next_hosts(tmp_path: Path, why: str):
    """Also to one that has hosted it: what was done at the others is not in its ledger."""
    async with ledgers_of_their_own(tmp_path) as cluster:
        await gone_elsewhere(cluster, tmp_path, why)
        for placement in (ELSEWHERE, {"p1": ["shop/main"], "p2": ["other/main"]}):
            epoch = await cluster.epoch()
            for name in ("p1", "p2"):
                await cluster.crash(name)
            await cluster.restore(epoch, placement=placement)
            await cluster.idle()
        assert cluster.participant_of("shop/main").id == "p1"
        if "lost" in why:
            assert "p2" in await in_doubt(cluster)
            return
        # What it did here is known here; what comes later may have been done at the other one.
        await cluster.advance(61)
        assert receipts(cluster) == {"o1": "receipt 1 for o1"}
        await cluster.send("shop/main", Order("o2"))
        await cluster.idle()
        (parked,) = cluster.participant_of("shop/main").parked
        assert "p2, whose effect ledger is not known here" in parked.reason
        assert Bank.charges == ["o1"]


@pytest.mark.parametrize("durability", ["epoch", "turn"])
@pytest.mark.parametrize("epoch", ["none", "passed over", "none, from the start"])
async def test_agent_that_comes_back_to_an_epoch_from_before_it_was_elsewhere_has_left_doubt_there(
    tmp_path: Path, epoch: str, durability: str
):
    """Nothing that its host has on the disk or in the store tells of it: the other one committed no epoch, or one that is passed over."""
    async with ledgers_of_their_own(tmp_path, durability=durability) as cluster:
        first = None if "start" in epoch else await cluster.epoch()
        await cluster.restore(first, placement=ELSEWHERE)
        await cluster.advance(61)
        (parked,) = cluster.participant_of("shop/main").parked
        await cluster.settle(parked.token, DidNotHappen())
        await cluster.idle()
        assert Bank.charges == ["o1"]
        if epoch == "passed over":
            await cluster.epoch()
        for name in ("p1", "p2"):
            await cluster.crash(name)
        if first is None:
            # A process that hosts an agent of others is not given it as its own.
            cluster._crashed.update(p1=(Shop("main"),), p2=(Other("main"),))
        back: Placement = {"p1": ["shop/main"], "p2": ["other/main"]}
        await cluster.restore(first, placement=back)
        await cluster.idle()
        if durability == "turn":
            await crash_with_log(cluster, tmp_path, "p1")
            await cluster.resume()
        else:
            await cluster.crash("p1")
            await cluster.restore(first, placement=back)
        await cluster.idle()
        assert cluster.participant_of("shop/main").id == "p1"
        assert "its agent was at p2" in await in_doubt(cluster)


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("start", [False, True])
async def test_what_the_ledger_at_hand_knows_of_is_in_no_doubt_and_costs_an_epoch_nothing(
    tmp_path: Path, start: bool, crash: bool
):
    """Also of agents that began here, and begin again."""
    async with ledgers_of_their_own(tmp_path) as cluster:
        for _ in range(2):
            epoch = None if start else await cluster.epoch()
            for part in () if epoch is None else parts_of(cluster, epoch):
                assert str(part.ledger).startswith(f"{part.participant}/")
                assert b"ledgers" not in encode_local_snapshot(part)
            if crash:
                await cluster.crash("p1")
            await cluster.restore(epoch)
            await cluster.idle()
        await cluster.advance(61)
        assert receipts(cluster) == {"o1": "receipt 1 for o1"}


@pytest.mark.parametrize("epoch", [False, True])
async def test_who_comes_for_the_first_time_with_a_rollback_has_done_nothing_elsewhere(tmp_path: Path, epoch: bool):
    """Its agents begin: no epoch has them."""
    cluster = Cluster(Other("main"), local=str(tmp_path))
    cluster.effects = ""  # type: ignore[assignment]
    async with cluster:
        before = await cluster.epoch() if epoch else None
        cluster._crashed["p2"] = (Shop("main"),)
        for _ in range(2):
            await cluster.restore(before)
            await cluster.idle()
        await cluster.advance(61)
        assert receipts(cluster) == {"o1": "receipt 1 for o1"}
        # What it does from here on is known in its folder, and nowhere without it.
        for name in ("p1", "p2"):
            await cluster.crash(name)
        shutil.rmtree(tmp_path / "p2")
        await cluster.restore(before)
        await in_doubt(cluster)


@pytest.mark.parametrize("epoch", [False, True])
async def test_doubt_is_carried_by_the_log_of_turns(tmp_path: Path, epoch: bool):
    """The new host goes on from its log: from the order that brought the agent, or from a part of its own."""
    async with ledgers_of_their_own(tmp_path, durability="turn") as cluster:
        host, _, _ = await gone_elsewhere(cluster, tmp_path, "disk lost")
        for _ in range(2):
            if epoch:
                await cluster.epoch()
            await crash_with_log(cluster, tmp_path, host)
            await cluster.resume()
            await cluster.idle()
        await in_doubt(cluster)


def unnamed_keeper(*args: Any, **settings: Any) -> TurnKeeper:
    return TurnKeeper(*args, **(settings | {"ledger": ""}))


@pytest.mark.parametrize("begun", ["here", "by an older build", "behind an epoch"])
async def test_log_of_turns_whose_effect_ledger_is_lost_is_in_doubt_about_what_it_does_again(
    tmp_path: Path, begun: str, monkeypatch: pytest.MonkeyPatch
):
    """Its turn had begun, and was not logged; then the disk keeps the log alone."""
    older = begun == "by an older build"
    Bank.gate, Bank.hang = asyncio.Event(), "after"
    if older:
        monkeypatch.setattr("participant.runtime.participant.TurnKeeper", unnamed_keeper)
    async with ledgers_of_their_own(tmp_path, durability="turn") as cluster:
        if older:
            monkeypatch.undo()
            await crash_with_log(cluster, tmp_path, "p1")
            assert b"ledgers" not in (tmp_path / "p1" / BASE_NAME).read_bytes()
            await cluster.resume()
            await cluster.idle()
        if begun == "behind an epoch":
            number, local = (await cluster.epoch()).number, LocalFolder(tmp_path, "p1")
            await until(lambda: (base := read_base(local)) is not None and base.epoch == number)
        cluster.clock.move_to(cluster.clock.now() + 61 * 1_000_000_000)
        await until(lambda: Bank.calls == 1)
        for _ in range(2):
            await crash_with_log(cluster, tmp_path, "p1")
            if Bank.hang:
                Bank.hang = ""
                shutil.rmtree(tmp_path / "p1" / "effects")
            await cluster.resume()
            await cluster.idle()
        await in_doubt(cluster)


async def test_ledger_that_somebody_has_seen_to_is_asked_for_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with ledgers_of_their_own(tmp_path) as cluster:
        await gone_elsewhere(cluster, tmp_path, "moved")
        epoch = await cluster.epoch()
        ledgers = {name for part in parts_of(cluster, epoch) for agent in part.agents for name in agent.ledgers}
        (name,) = ledgers
        assert f"({name})" in await in_doubt(cluster)
        settled = functools.partial(Participant, settled_ledgers=(name,))
        monkeypatch.setattr("participant.testing.Participant", settled)
        await cluster.crash("p2")
        await cluster.restore(epoch, placement=ELSEWHERE)
        await cluster.idle()
        after = await cluster.epoch()
        assert [agent.ledgers for part in parts_of(cluster, after) for agent in part.agents] == [(), ()]
        await cluster.advance(61)
        # It was claimed here before somebody said so.
        (parked,) = cluster.participant_of("shop/main").parked
        await cluster.settle(parked.token, DidNotHappen())
        await cluster.send("shop/main", Order("o2"))
        await cluster.idle()
        assert Bank.charges == ["o1", "o1", "o2"]


@pytest.mark.parametrize("why", ["same folder", "moved", "disk lost"])
async def test_epoch_that_names_no_ledger_is_of_the_one_that_its_host_had_then(tmp_path: Path, why: str):
    """An older build wrote it, and left a ledger without a name. In its folder nothing is in doubt."""
    async with ledgers_of_their_own(tmp_path) as cluster:
        for participant in cluster.participants.values():
            participant._uploader._ledger = ""
        epoch = await cluster.epoch()
        assert {part.ledger for part in parts_of(cluster, epoch)} == {msgspec.UNSET}
        await cluster.advance(61)
        for name in ("p1", "p2"):
            await cluster.crash(name)
            (tmp_path / name / "effects" / NAME_FILE).unlink()
        if why == "disk lost":
            shutil.rmtree(tmp_path / "p1")
        placement = ELSEWHERE if why == "moved" else None
        await cluster.restore(epoch, placement=placement)
        await cluster.idle()
        epoch = await cluster.epoch()
        await cluster.crash("p2" if why == "moved" else "p1")
        await cluster.restore(epoch, placement=placement)
        await cluster.idle()
        if why == "same folder":
            await cluster.advance(61)
            assert receipts(cluster) == {"o1": "receipt 1 for o1"}
            assert Bank.calls == 1
        else:
            await in_doubt(cluster)


def parts_of(cluster: Cluster, epoch: EpochView) -> list[LocalSnapshot]:
    return [
        decode_local_snapshot(cluster.store.get(snapshot_key(member.snapshot), size_max=MIB))
        for member in epoch.manifest.members
    ]


async def test_a_ledger_that_cannot_be_written_ends_the_participant_and_nothing_is_called(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    """I18: the claim is not durable, so there is no call, now or later."""
    cluster = Cluster(Shop("main"), local=str(tmp_path))
    cluster.effects = ""  # type: ignore[assignment]

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    await cluster.__aenter__()
    monkeypatch.setattr("participant.runtime.log_files.FolderFiles.create", full)
    monkeypatch.setattr("participant.runtime.log_files.FolderFiles.append", full)
    cluster.clock.move_to(cluster.clock.now() + 61 * 1_000_000_000)
    await until(lambda: cluster.participants["p1"]._failure is not None)
    with pytest.raises(StoreError, match="ENOSPC"):
        await cluster.__aexit__(None, None, None)
    assert Bank.calls == 0


async def test_the_claim_is_on_the_disk_before_the_call_and_the_result_before_the_turn_goes_on(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    """Each waits for its own sync, however long that takes."""
    lets, waiting = threading.Semaphore(0), [0]
    real = FolderFiles.sync
    held = [False]

    def sync(files: FolderFiles, name: str) -> None:
        if files._folder.name == "effects" and held[0]:
            waiting[0] += 1
            assert lets.acquire(timeout=30)
        real(files, name)

    monkeypatch.setattr(FolderFiles, "sync", sync)
    went_on: list[str] = []

    class Careful(Agent, kind="careful"):
        receipts = keyed(str, str)

        @handler
        async def on_order(self, ctx: Context, order: Order) -> None:
            receipt = await ctx.step(Bank.charge, order.id, order.cents)
            went_on.append(order.id)
            self.receipts[order.id] = receipt

    class Other(Agent, kind="other"):
        @handler
        def on_order(self, ctx: Context, order: Order) -> None:
            meanwhile.append(order.id)

    meanwhile: list[str] = []

    async def others_work_meanwhile() -> None:
        for _ in range(30):
            before = len(meanwhile)
            await cluster.send("other/main", Order("another"))
            await until(lambda before=before: len(meanwhile) > before)

    cluster = Cluster(Careful("main"), Other("main"), local=str(tmp_path))
    cluster.effects = ""  # type: ignore[assignment]
    async with cluster:
        await cluster.send("careful/main", Order("first"))
        await cluster.idle()
        assert (Bank.charges, went_on) == (["first"], ["first"])
        # That the first turn has ended is noted, too, and nobody waits for it.
        steps = cluster.participants["p1"]._steps
        await until(lambda: not steps._others)
        await steps.backend._group.wait_idle()
        held[0] = True
        await cluster.send("careful/main", Order("second"))
        await until(lambda: waiting[0] == 1)
        await others_work_meanwhile()
        assert Bank.charges == ["first"], "the claim is not durable"
        lets.release()
        await until(lambda: waiting[0] == 2)
        await others_work_meanwhile()
        assert (Bank.charges, went_on) == (["first", "second"], ["first"]), "the result is not durable"
        held[0] = False
        lets.release()
        await cluster.idle()
        assert went_on == ["first", "second"]


def test_the_example_that_users_copy_works():
    """In a pytest of its own, as a user runs it."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "examples/test_charged_once.py"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


class Freezing(MemoryEffects):
    """Its first answer to a claim comes to a process that was frozen meanwhile."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self.frozen = 6.0
        self.meanwhile: Callable[[Entry], None] = lambda _: None
        self.takes = 0

    async def claim(self, entry: Entry, fence: FencingToken) -> Claimed | Known:
        answer = await super().claim(entry, fence)
        frozen, self.frozen = self.frozen, 0.0
        if frozen:
            clock = self._cluster.clock
            clock.move_to(clock.now() + round(frozen * 1e9))
            self.meanwhile(entry)
        return answer

    async def take(self, token: str, fence: FencingToken, claim_id: bytes, *, before: bytes) -> Claimed | Known:
        self.takes += 1
        return await super().take(token, fence, claim_id, before=before)


@pytest.mark.parametrize("frozen", [0.1, 6.0])
async def test_a_claim_that_is_answered_late_is_confirmed_before_the_call(frozen: float) -> None:
    cluster = Cluster(Shop("main"))
    ledger = cluster.effects = Freezing(cluster)
    ledger.frozen = frozen
    async with cluster:
        await cluster.advance(60)
        assert receipts(cluster) == {"o1": "receipt 1 for o1"}
        assert ledger.takes == (frozen > 1)


async def test_a_process_that_wakes_up_between_its_claim_and_the_call_charges_nothing_once_it_has_a_successor() -> None:
    cluster = Cluster(Shop("main"))
    ledger = cluster.effects = Freezing(cluster)

    def succeeded(_: Entry) -> None:
        ledger.ledger.admit(FencingToken("p1", 9, 99))

    ledger.meanwhile = succeeded

    async def run() -> None:
        async with cluster:
            await cluster.advance(60)
            await until(lambda: ledger.takes > 0)

    with pytest.raises(FencedError):
        await run()
    assert Bank.charges == []


async def test_a_claim_that_somebody_else_holds_by_then_is_not_carried_out() -> None:
    cluster = Cluster(Shop("main"))
    ledger = cluster.effects = Freezing(cluster)

    def taken(entry: Entry) -> None:
        ledger.ledger.take(
            entry.token, FencingToken("p2", entry.incarnation, 7), b"theirs", before=entry.claim_id, at=0
        )

    ledger.meanwhile = taken
    async with cluster:
        await cluster.advance(60)
        await until(lambda: ledger.takes > 0)
        await cluster.advance(60)
        assert Bank.charges == []


@pytest.mark.parametrize("happened", [True, False])
async def test_a_claim_that_was_settled_by_then_has_that_end(happened: bool) -> None:
    cluster = Cluster(Shop("main"))
    ledger = cluster.effects = Freezing(cluster)

    def settled(entry: Entry) -> None:
        fence = FencingToken("p1", entry.incarnation, entry.session)
        state, result = (State.DONE, msgspec.msgpack.encode("said so")) if happened else (State.RELEASED, b"")
        ledger.ledger.settle(entry.token, fence, state, result=result, at=0)

    ledger.meanwhile = settled
    async with cluster:
        await cluster.advance(60)
        assert receipts(cluster) == {"o1": "said so" if happened else "receipt 1 for o1"}
        assert Bank.charges == ([] if happened else ["o1"])
