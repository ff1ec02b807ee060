"""Steps in whole participants: done once, whatever the turn does; parked where nobody can tell."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from participant import (
    Agent,
    Context,
    DeadLetter,
    DidNotHappen,
    Happened,
    InDoubt,
    NotDone,
    Retry,
    StepDiverged,
    StepFailed,
    StepInDoubt,
    StepUndecided,
    TakeRecorded,
    TurnDiverged,
    handler,
    keyed,
    value,
)
from participant.effects.entries import State
from participant.failure import Backoff
from participant.testing import Cluster
from protocol.errors import LocalProtocolError, Refused, Unreachable, Unsavable

FAST = Backoff(first=0, maximum=0)


class Order(msgspec.Struct, frozen=True):
    id: str
    cents: int = 500


class Receipt(msgspec.Struct, frozen=True):
    number: int
    order: str


class Bank:
    """Outside of everything: it remembers each call, and does a token's thing once if `knows_tokens`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, str]] = []
        self.charges: list[str] = []
        self.known: dict[str, Receipt] = {}
        self.trouble: list[Exception | str] = []
        """One for each coming call: raised before the charge; ``lost``: the charge is made and its answer lost."""

    async def charge(self, order_id: str, cents: int, *, token: str) -> Receipt:
        self.calls.append((order_id, cents, token))
        trouble = self.trouble.pop(0) if self.trouble else None
        if isinstance(trouble, Exception):
            raise trouble
        if token in self.known:
            return self.known[token]
        self.charges.append(order_id)
        receipt = Receipt(len(self.charges), order_id)
        self.known[token] = receipt
        await asyncio.sleep(0)
        if trouble == "lost":
            raise ConnectionError("the answer was lost")
        return receipt

    async def find(self, token: str) -> Receipt | DidNotHappen:
        return self.known.get(token, DidNotHappen())


class Buyer(Agent, kind="buyer"):
    """Charges; then maybe fails, once."""

    receipts = keyed(str, Receipt)
    failure = Retry(attempts=3, backoff=FAST)
    bank: Bank
    how: dict[str, Any]
    fails: list[Exception]

    def __init__(self, name: str, bank: Bank, **how: Any) -> None:
        super().__init__(name)
        self.bank = bank
        self.how = how
        self.fails = []
        self.cents_seen: list[int] = []

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        cents = self.cents_seen.pop(0) if self.cents_seen else order.cents
        receipt = await ctx.step(self.bank.charge, order.id, cents, **self.how)
        self.receipts[order.id] = receipt
        if self.fails:
            raise self.fails.pop(0)


def told(cluster: Cluster, agent: str = "buyer/main") -> list[Any]:
    """Events of the agent's participant, from now on, as they come in."""
    found: list[Any] = []

    async def listen() -> None:
        async for event in cluster.events(agent):
            found.append(event)  # noqa: PERF401 - they are looked at meanwhile

    task = asyncio.get_running_loop().create_task(listen())
    found_tasks.append(task)
    return found


found_tasks: list[asyncio.Task[None]] = []


async def until(condition: Callable[[], bool]) -> None:
    """Without the cluster's help: while a step hangs it is never idle."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


async def test_a_step_returns_what_its_function_returned_and_is_recorded_with_its_token():
    bank = Bank()
    buyer = Buyer("main", bank)
    async with Cluster(buyer) as cluster:
        await cluster.send("buyer/main", Order("o1"))
        await cluster.idle()
        assert dict(buyer.receipts) == {"o1": Receipt(1, "o1")}
        (entry,) = await cluster.participant_of("buyer/main").effects(State.DONE)
        assert (entry.name, entry.ordinal, entry.agent) == ("charge", 0, "buyer/main")
        assert bank.calls == [("o1", 500, entry.token)]
        assert entry.shown == "('o1', 500)"
        assert entry.closed_after == 0


async def test_a_turn_that_fails_after_a_step_runs_again_and_the_step_does_not():
    bank = Bank()
    buyer = Buyer("main", bank)
    buyer.fails = [ValueError("first"), ValueError("second")]
    async with Cluster(buyer) as cluster:
        await cluster.send("buyer/main", Order("o1"))
        await cluster.idle()
        assert bank.charges == ["o1"]
        assert len(bank.calls) == 1
        assert buyer.receipts["o1"] == Receipt(1, "o1")


async def test_each_message_has_places_of_its_own():
    bank = Bank()
    async with Cluster(Buyer("main", bank)) as cluster:
        await cluster.send("buyer/main", Order("o1"))
        await cluster.send("buyer/main", Order("o1"))
        await cluster.idle()
        assert bank.charges == ["o1", "o1"]
        assert len({token for _, _, token in bank.calls}) == 2


async def test_a_lost_answer_without_resolver_parks_the_turn_until_an_operator_settles_it():
    """Never 2, never silent. Others go on meanwhile, and the parked agent's later messages wait."""
    bank = Bank()
    bank.trouble = ["lost"]
    buyer, other = Buyer("main", bank), Buyer("other", bank)
    async with Cluster([buyer, other]) as cluster:
        events = told(cluster)
        await cluster.send("buyer/main", Order("o1"))
        await cluster.send("buyer/main", Order("o2"))
        await cluster.idle()
        participant = cluster.participant_of("buyer/main")
        assert bank.charges == ["o1"]
        (parked,) = participant.parked
        assert (parked.agent, parked.cause, parked.step) == ("buyer/main", "in-doubt", "charge")
        (doubtful,) = await participant.effects()
        assert (doubtful.token, doubtful.state) == (parked.token, State.CLAIMED)
        assert [event for event in events if isinstance(event, StepInDoubt)] == [
            StepInDoubt(agent="buyer/main", step="charge", token=parked.token, reason=parked.reason)
        ]
        assert "ConnectionError" not in parked.reason or "no resolve" in parked.reason
        await cluster.send("buyer/other", Order("o3"))
        await cluster.idle()
        assert bank.charges == ["o1", "o3"]
        with pytest.raises(Unsavable, match=r"Receipt.* is wanted"):
            await cluster.settle(parked.token, Happened("yes"))
        await cluster.settle(parked.token, Happened({"number": 77, "order": "o1"}))
        await cluster.idle()
        assert participant.parked == ()
        assert dict(buyer.receipts) == {"o1": Receipt(77, "o1"), "o2": Receipt(3, "o2")}
        assert bank.charges == ["o1", "o3", "o2"]
        assert await participant.effects() == ()


@pytest.mark.parametrize("settlement", [Happened({"number": 7, "order": "o1"}), DidNotHappen()])
async def test_what_is_settled_at_another_participant_is_noticed(settlement: Any):
    """They share the ledger, as with Redis."""
    bank = Bank()
    bank.trouble = [ConnectionError("no route")]
    buyer = Buyer("main", bank)
    cluster = Cluster(buyer, Buyer("other", bank))
    cluster.effects.shared = True
    async with cluster:
        await cluster.send("buyer/main", Order("o1"))
        await cluster.idle()
        (parked,) = cluster.participant_of("buyer/main").parked
        await cluster.participant_of("buyer/other").settle(parked.token, settlement)
        await cluster.advance(3)
        assert cluster.participant_of("buyer/main").parked == ()
        assert buyer.receipts["o1"].number == (7 if isinstance(settlement, Happened) else 1)


async def test_an_operator_who_says_that_it_did_not_happen_has_it_done():
    bank = Bank()
    bank.trouble = [ConnectionError("no route")]
    buyer = Buyer("main", bank)
    async with Cluster(buyer) as cluster:
        await cluster.send("buyer/main", Order("o1"))
        await cluster.idle()
        (parked,) = cluster.participant_of("buyer/main").parked
        assert bank.charges == []
        await cluster.settle(parked.token, DidNotHappen())
        await cluster.idle()
        assert bank.charges == ["o1"]
        with pytest.raises(Refused, match="no turn here waits"):
            await cluster.settle(parked.token, TakeRecorded())


async def test_a_resolver_is_asked_and_the_call_is_not_made_again():
    """The answer was lost, with the charge made; then before it was made."""
    bank = Bank()
    bank.trouble = ["lost", None, ConnectionError("no route")]
    buyer = Buyer("main", bank, resolve=bank.find)
    async with Cluster(buyer) as cluster:
        await cluster.send("buyer/main", Order("o1"))
        await cluster.idle()
        assert bank.charges == ["o1"]
        assert len(bank.calls) == 1
        assert buyer.receipts["o1"] == Receipt(1, "o1")
        bank.trouble = [ConnectionError("no route")]
        await cluster.send("buyer/main", Order("o2"))
        await cluster.idle()
        assert bank.charges == ["o1", "o2"]
        assert buyer.receipts["o2"] == Receipt(2, "o2")


@pytest.mark.parametrize("verdict", [InDoubt("the bank is closed"), InDoubt, RuntimeError("no")])
async def test_a_resolver_that_cannot_tell_parks_the_turn(verdict: Any):
    bank = Bank()
    bank.trouble = ["lost"]

    async def resolve(token: str) -> InDoubt:
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    async with Cluster(Buyer("main", bank, resolve=resolve)) as cluster:
        await cluster.send("buyer/main", Order("o1"))
        await cluster.idle()
        (parked,) = cluster.participant_of("buyer/main").parked
        assert parked.cause == "in-doubt"
        assert bank.charges == ["o1"]


async def test_where_the_other_side_knows_tokens_a_call_is_made_again():
    bank = Bank()
    bank.trouble = ["lost", ConnectionError("no route")]
    buyer = Buyer("main", bank, idempotent=True, retry=Retry(attempts=5, backoff=FAST))
    async with Cluster(buyer) as cluster:
        await cluster.send("buyer/main", Order("o1"))
        await cluster.idle()
        assert bank.charges == ["o1"]
        assert len(bank.calls) == 3
        assert len({token for _, _, token in bank.calls}) == 1
        assert buyer.receipts["o1"] == Receipt(1, "o1")


async def test_retries_wait_by_the_clusters_clock():
    bank = Bank()
    bank.trouble = [ConnectionError("no route")] * 2
    buyer = Buyer("main", bank, idempotent=True, retry=Retry(attempts=3, backoff=Backoff(first=10, factor=2)))
    async with Cluster(buyer) as cluster:
        await cluster.send("buyer/main", Order("o1"))
        await cluster.idle()
        assert len(bank.calls) == 1
        await cluster.advance(10)
        assert len(bank.calls) == 2
        await cluster.advance(19)
        assert len(bank.calls) == 2
        await cluster.advance(1)
        assert len(bank.calls) == 3
        assert "o1" in buyer.receipts


async def test_what_certainly_was_not_done_is_tried_again_by_the_turn():
    bank = Bank()
    bank.trouble = [NotDone("the bank is closed"), NotDone("still closed")]
    buyer = Buyer("main", bank)
    async with Cluster(buyer) as cluster:
        await cluster.send("buyer/main", Order("o1"))
        await cluster.idle()
        assert (bank.charges, len(bank.calls)) == (["o1"], 3)


async def test_a_definite_failure_is_recorded_and_raised_again_without_a_call():
    bank = Bank()
    bank.trouble = [StepFailed("card declined")]
    buyer = Buyer("main", bank)
    async with Cluster(buyer) as cluster:
        await cluster.send("buyer/main", Order("o1"))
        await cluster.idle()
        (letter,) = cluster.dead_letters
        assert "StepFailed: card declined" in letter.reason
        assert letter.attempts == 3
        assert len(bank.calls) == 1


async def test_a_handler_cannot_swallow_a_doubt():
    bank = Bank()
    bank.trouble = ["lost", "lost"]

    class Careless(Buyer, kind="careless"):
        @handler
        async def on_order(self, ctx: Context, order: Order) -> None:
            for _ in range(2):
                try:
                    await ctx.step(self.bank.charge, order.id, order.cents, name="pay")
                except (StepUndecided, ConnectionError):
                    self.receipts["swallowed"] = Receipt(0, "x")
            if ctx.attempt < 2:
                raise ValueError("again")

    buyer = Careless("main", bank)
    async with Cluster(buyer) as cluster:
        await cluster.send("careless/main", Order("o1"))
        await cluster.idle()
        assert len(cluster.participant_of("careless/main").parked) == 1
        assert dict(buyer.receipts) == {}


async def test_steps_side_by_side_keep_their_places_whatever_the_order_of_their_ends():
    calls: list[tuple[int, str]] = []
    gates: dict[int, asyncio.Event] = {}

    async def work(number: int, *, token: str) -> int:
        calls.append((number, token))
        if gates:
            await gates[number].wait()
        return number * 10

    class Wide(Agent, kind="wide"):
        found = value(list[int])
        failure = Retry(attempts=2, backoff=FAST)

        @handler
        async def on_order(self, ctx: Context, order: Order) -> None:
            results = await asyncio.gather(*(ctx.step(work, number) for number in range(4)))
            self.found = list(results)
            if ctx.attempt == 1:
                raise ValueError("once more")

    gates = {number: asyncio.Event() for number in range(4)}
    wide = Wide("main")
    async with Cluster(wide) as cluster:
        await cluster.send("wide/main", Order("o1"))
        for number in (2, 0, 3, 1):
            await until(lambda: len(calls) == 4)
            gates[number].set()
            for _ in range(5):
                await asyncio.sleep(0)
        await cluster.idle()
        assert wide.found == [0, 10, 20, 30]
        assert len(calls) == 4
        entries = await cluster.participant_of("wide/main").effects(State.DONE)
        assert {(entry.ordinal, entry.token) for entry in entries} == set(calls)


async def test_a_call_that_outlives_its_turn_is_joined_by_the_next_attempt():
    """One of two steps raises; the turn is tried again while the other still runs."""
    gate = asyncio.Event()
    slow_calls: list[str] = []

    async def slow(*, token: str) -> str:
        slow_calls.append(token)
        await gate.wait()
        return "slow"

    async def fails() -> None:
        raise NotDone("not today")

    class Twin(Agent, kind="twin"):
        found = value(str, default="")
        failure = Retry(attempts=2, backoff=FAST)

        @handler
        async def on_order(self, ctx: Context, order: Order) -> None:
            steps = [ctx.step(slow)]
            if ctx.attempt == 1:
                steps.append(ctx.step(fails))
            self.found = (await asyncio.gather(*steps))[0]

    twin = Twin("main")
    async with Cluster(twin) as cluster:
        await cluster.send("twin/main", Order("o1"))
        participant = cluster.participant_of("twin/main")
        await until(lambda: participant.statistics()["turns_failed"] == 1)
        gate.set()
        await cluster.idle()
        assert twin.found == "slow"
        assert len(slow_calls) == 1


async def test_a_turn_that_is_cancelled_by_its_own_timeout_leaves_the_call_alone():
    gate = asyncio.Event()
    calls: list[str] = []

    async def slow(*, token: str) -> str:
        calls.append(token)
        await gate.wait()
        return "done"

    class Hasty(Agent, kind="hasty"):
        found = value(str, default="")
        failure = Retry(attempts=2, backoff=FAST)

        @handler
        async def on_order(self, ctx: Context, order: Order) -> None:
            async with asyncio.timeout(0.01 if ctx.attempt == 1 else 30):
                self.found = await ctx.step(slow)

    hasty = Hasty("main")
    async with Cluster(hasty) as cluster:
        await cluster.send("hasty/main", Order("o1"))
        participant = cluster.participant_of("hasty/main")
        await until(lambda: participant.statistics()["turns_failed"] == 1)
        gate.set()
        await cluster.idle()
        assert (hasty.found, len(calls)) == ("done", 1)


class Misuse(Agent, kind="misuse"):
    failure = DeadLetter()
    what: Any

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        await type(self).what(ctx)


async def reason_of(what: Any) -> str:
    Misuse.what = staticmethod(what)
    async with Cluster(Misuse("main")) as cluster:
        await cluster.send("misuse/main", Order("o1"))
        await cluster.idle()
        (letter,) = cluster.dead_letters
        return letter.reason


async def nothing() -> None: ...


async def test_a_step_inside_a_step_is_refused():
    async def nested(ctx: Context) -> None:
        async def outer() -> None:
            await ctx.step(nothing)

        await ctx.step(outer, idempotent=True)

    reason = await reason_of(nested)
    assert "LocalProtocolError" in reason
    assert "a step inside of step outer" in reason


async def test_a_step_that_nobody_awaits_is_noticed():
    async def forgetful(ctx: Context) -> None:
        gate = asyncio.Event()
        Misuse.task = asyncio.ensure_future(ctx.step(gate.wait))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    assert "while 1 of its steps were running" in await reason_of(forgetful)


async def test_a_retry_that_could_do_it_twice_is_refused_before_anything_happens():
    async def careless(ctx: Context) -> None:
        await ctx.step(nothing, retry=Retry(attempts=2))

    reason = await reason_of(careless)
    assert "ValueError" in reason
    assert "idempotent=True" in reason


async def test_arguments_that_cannot_be_compared_are_refused_with_what_to_do():
    async def opaque(ctx: Context) -> None:
        async def use(client: object) -> None: ...

        await ctx.step(use, object())

    reason = await reason_of(opaque)
    assert "Unsavable" in reason
    assert "intent=" in reason


async def test_a_result_that_cannot_be_recorded_was_done_all_the_same_and_is_never_done_again():
    calls = []

    async def gives(*, token: str) -> object:
        calls.append(token)
        return object()

    async def use(ctx: Context) -> None:
        with pytest.raises(StepFailed, match="it was done, and"):
            await ctx.step(gives)
        await ctx.step(gives, name="gives")

    assert "StepFailed: it was done, and" in await reason_of(use)
    assert len(calls) == 2, "another ordinal is another place"


async def test_plain_functions_run_in_a_thread_and_partials_and_lambdas_have_names():
    import functools
    import threading

    found: dict[str, Any] = {}

    def plain(number: int) -> int:
        found["thread"] = threading.current_thread() is not threading.main_thread()
        return number + 1

    class Plain(Agent, kind="plain"):
        results = value(list[int])

        @handler
        async def on_order(self, ctx: Context, order: Order) -> None:
            one = await ctx.step(plain, 1)
            two = await ctx.step(functools.partial(plain, number=2))
            three = await ctx.step(lambda: 4, name="four")
            self.results = [one, two, three]

    agent = Plain("main")
    async with Cluster(agent) as cluster:
        await cluster.send("plain/main", Order("o1"))
        await cluster.idle()
        assert (agent.results, found["thread"]) == ([2, 3, 4], True)
        entries = await cluster.participant_of("plain/main").effects(State.DONE)
        assert [(entry.name, entry.ordinal) for entry in entries] == [("plain", 0), ("plain", 1), ("four", 0)]


@pytest.mark.parametrize("policy", ["refuse", "replay", "ask-replay", "ask-no"])
async def test_a_turn_that_wants_something_else_at_the_same_place_diverges(policy: str):
    """A4: the amount differs when the turn runs again. Work stops there, both versions are shown; or as the policy says."""
    bank = Bank()
    buyer = Buyer("main", bank, diverged=policy.partition("-")[0])
    buyer.cents_seen = [500, 700, 700, 700]
    buyer.fails = [ValueError("again")]
    async with Cluster(buyer) as cluster:
        events = told(cluster)
        await cluster.send("buyer/main", Order("o1"))
        await cluster.idle()
        participant = cluster.participant_of("buyer/main")
        if policy.startswith("ask"):
            (question,) = cluster.questions()
            assert question.question["recorded"] == "('o1', 500)"
            assert question.question["wanted"] == "('o1', 700)"
            await cluster.answer(question.token, policy.removeprefix("ask-"))
            await cluster.idle()
        if policy in {"refuse", "ask-no"}:
            (parked,) = participant.parked
            assert parked.cause == "diverged"
            assert "('o1', 500)" in parked.reason
            assert "('o1', 700)" in parked.reason
            assert [type(event) for event in events if isinstance(event, TurnDiverged | StepInDoubt)] == [TurnDiverged]
            assert dict(buyer.receipts) == {}
            await cluster.settle(parked.token, TakeRecorded())
            await cluster.idle()
        assert participant.parked == ()
        assert buyer.receipts["o1"] == Receipt(1, "o1")
        assert len(bank.calls) == 1


async def test_what_is_no_intent_may_differ():
    """A4: a random reference is in the arguments; the declared intent is the same."""
    references: list[str] = []

    async def pay(cents: int, reference: str) -> str:
        references.append(reference)
        return f"paid {cents}"

    class Payer(Agent, kind="payer"):
        found = value(str, default="")
        failure = Retry(attempts=2, backoff=FAST)

        @handler
        async def on_order(self, ctx: Context, order: Order) -> None:
            reference = f"ref {ctx.attempt}"
            self.found = await ctx.step(pay, order.cents, reference, intent=(order.cents,))
            if ctx.attempt == 1:
                raise ValueError("again")

    payer = Payer("main")
    async with Cluster(payer) as cluster:
        await cluster.send("payer/main", Order("o1"))
        await cluster.idle()
        assert (payer.found, references) == ("paid 500", ["ref 1"])


async def test_a_claim_with_other_arguments_and_no_end_is_never_called():
    """It may have happened with 500: 700 under the same token would be something else."""
    bank = Bank()
    bank.trouble = ["lost"]
    buyer = Buyer("main", bank, idempotent=True)
    buyer.cents_seen = [500, 700]
    async with Cluster(buyer) as cluster:
        await cluster.send("buyer/main", Order("o1"))
        await cluster.idle()
        (parked,) = cluster.participant_of("buyer/main").parked
        assert parked.cause == "diverged"
        assert len(bank.calls) == 1


async def test_the_journal_is_part_of_a_cut_and_goes_when_the_turn_is_over():
    gate = asyncio.Event()
    bank = Bank()

    class Long(Buyer, kind="long"):
        @handler
        async def on_order(self, ctx: Context, order: Order) -> None:
            self.receipts[order.id] = await ctx.step(self.bank.charge, order.id, order.cents)
            await gate.wait()

    agent = Long("main", bank)
    async with Cluster(agent) as cluster:
        await cluster.send("long/main", Order("o1"))
        participant = cluster.participant_of("long/main")
        await until(lambda: bool(participant._hosts[0].journals))
        epoch = await cluster.epoch()
        (step,) = epoch.steps("long/main")
        assert (step.kind, step.name, step.ordinal, step.state) == ("step", "charge", 0, "done")
        assert msgspec.msgpack.decode(step.result, type=Receipt) == Receipt(1, "o1")
        shown = epoch._reader.document("long/main")
        assert shown["steps"][0]["result"] == {"number": 1, "order": "o1"}
        gate.set()
        await cluster.idle()
        assert (await cluster.epoch()).steps("long/main") == []
        (entry,) = await participant.effects(State.DONE)
        assert entry.closed_after == epoch.number


async def test_a_ledger_that_does_not_answer_is_asked_again_and_the_agent_waits():
    bank = Bank()
    buyer, other = Buyer("main", bank), Buyer("other", bank)
    async with Cluster([buyer, other]) as cluster:
        real, down = cluster.effects.claim, True

        async def claim(entry: Any, fence: Any) -> Any:
            if down and entry.agent == "buyer/main":
                raise Unreachable("no answer")
            return await real(entry, fence)

        cluster.effects.claim = claim
        await cluster.send("buyer/main", Order("o1"))
        await cluster.send("buyer/other", Order("o2"))
        await until(lambda: bank.charges == ["o2"])
        down = False
        while "o1" not in bank.charges:
            await asyncio.sleep(0.001)
            cluster.clock.move_to(cluster.clock.now() + 100_000_000)
        await cluster.idle()
        assert bank.charges == ["o2", "o1"]


async def test_without_a_ledger_steps_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("participant.runtime.parts.make_backend", lambda *_args, **_more: None)
    bank = Bank()
    async with Cluster(Buyer("main", bank)) as cluster:
        await cluster.send("buyer/main", Order("o1"))
        await cluster.idle()
        (letter,) = cluster.dead_letters
        assert "local=..., or effects=..." in letter.reason
        with pytest.raises(Refused, match="no effect ledger"):
            await cluster.participant_of("buyer/main").effects()
    assert issubclass(LocalProtocolError, Exception)
    assert issubclass(StepDiverged, Exception)
    assert issubclass(Unsavable, Exception)
