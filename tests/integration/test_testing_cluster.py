"""`participant.testing.Cluster`, as users' own tests use it."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from participant import Agent, Context, DeadLetter, Participant, Retry, Stop, handler, keyed, value
from participant.failure import Backoff
from participant.testing import SECRET, Cluster, ManualClock
from protocol.errors import ConfigError, IllegalName, Overloaded, Refused, StoreError, UnknownAgent, Unsavable
from protocol.ids import cluster_name
from protocol.storage.memory import MemoryStore


class Pay(msgspec.Struct, frozen=True):
    cents: int
    hops: int = 0


class Remind(msgspec.Struct, frozen=True):
    what: str


class Note(msgspec.Struct, frozen=True):
    text: str


class Account(Agent, kind="account"):
    """Passes money on until its hops are used up."""

    cents = value(int, default=100)
    paid = keyed(str, int)

    def __init__(self, name: str, others: tuple[str, ...] = ()) -> None:
        super().__init__(name)
        self.others = others

    @handler
    async def on_pay(self, ctx: Context, pay: Pay) -> None:
        self.cents += pay.cents
        if pay.hops:
            target = self.others[pay.hops % len(self.others)]
            self.cents -= pay.cents
            self.paid[target] = self.paid.get(target, 0) + pay.cents
            ctx.send(target, Pay(pay.cents, pay.hops - 1))


class Diary(Agent, kind="diary"):
    lines = value(list[str], default=[])
    started = value(int, default=0)

    failure = Retry(attempts=3, backoff=Backoff(first=1.0), then=DeadLetter())

    async def on_start(self, ctx: Context) -> None:
        self.started += 1

    @handler
    async def on_note(self, ctx: Context, note: Note) -> None:
        self.lines.append(note.text)
        ctx.after(60, Remind(note.text))
        if note.text == "bad":
            raise ValueError("no bad notes")
        if note.text == "bad once" and ctx.attempt == 1:
            raise ValueError("try again")
        if note.text == "epoch":
            ctx.request_epoch("a note says so")

    @handler
    def on_remind(self, ctx: Context, remind: Remind) -> None:
        self.lines.append(f"remember {remind.what}")


class Thinker(Agent, kind="thinker"):
    """Waits for something outside, as a call to a model would."""

    thoughts = value(list[str], default=[])

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()

    @handler
    async def on_note(self, ctx: Context, note: Note) -> None:
        self.thoughts.append(note.text)
        self.began.set()
        await self.may_end.wait()
        self.thoughts.append("done")


def accounts(count: int) -> list[Account]:
    names = [f"account/{number}" for number in range(count)]
    return [Account(name.partition("/")[2], tuple(other for other in names if other != name)) for name in names]


async def test_cluster_with_logged_turns_resumes_who_crashed(tmp_path) -> None:
    async with Cluster(Account("a"), Account("b", ("account/a",)), local=str(tmp_path), durability="turn") as cluster:
        await cluster.send("account/b", Pay(5, hops=1))
        await cluster.idle()
        await cluster.crash("p1")
        await cluster.resume()
        await cluster.send("account/b", Pay(2, hops=1))
        await cluster.idle()
        assert cluster["account/a"].cents == 107
        assert cluster.participant_of("account/b").incarnation == 1
        await cluster.epoch()


async def test_a_message_is_handled_and_an_epoch_holds_the_state() -> None:
    async with Cluster(Account("main")) as cluster:
        await cluster.send("account/main", Pay(23))
        await cluster.idle()
        epoch = await cluster.epoch()
        assert epoch.agents() == ("account/main",)
        assert epoch.state("account/main") == {"cents": 123, "paid": {}}
        assert cluster["account/main"].cents == 123


@pytest.mark.slow
async def test_money_is_conserved_in_every_epoch_taken_under_traffic() -> None:
    dice = random.Random(3)
    async with Cluster(*accounts(4)) as cluster:
        flying = 0
        for _ in range(10):
            for _ in range(20):
                await cluster.send(f"account/{dice.randrange(4)}", Pay(dice.randint(1, 9), dice.randint(20, 60)))
            for _ in range(dice.randint(0, 3)):
                await asyncio.sleep(0)
            before = await cluster.epoch()
            total = before.total(lambda _agent, state: state["cents"], lambda pay: pay.cents)
            flying += len(before.messages())
            await cluster.idle()
            after = await cluster.epoch()
            assert after.messages() == []
            assert after.total(lambda _agent, state: state["cents"]) == total
        assert flying > 0


async def test_several_agents_of_one_participant_and_a_network_that_loses_frames() -> None:
    dice = random.Random(8)

    def faults(_source: str, _target: str, frame: bytes) -> list[tuple[float, bytes]]:
        return [(0.0, frame)] * dice.choice([0, 1, 1, 1, 2])

    agents = accounts(4)
    async with Cluster(agents[:2], agents[2:], faults=faults) as cluster:
        for number in range(20):
            await cluster.send(f"account/{number % 4}", Pay(1, 40))
        epoch = await cluster.epoch()
        assert epoch.total(lambda _agent, state: state["cents"], lambda pay: pay.cents) == 420
        await cluster.idle()
        assert sum(account.cents for account in agents) == 420
        assert cluster.statistics()["frames_resent"] > 0


async def test_start_hooks_run_once_before_anything_else() -> None:
    async with Cluster(Diary("main")) as cluster:
        assert cluster["diary/main"].started == 1
        await cluster.idle()
        assert (await cluster.epoch()).state("diary/main")["started"] == 1


async def test_a_start_hook_that_has_not_happened_is_nobodys_message() -> None:
    """It stands in the mailbox of the cut, and a restore would call it."""

    class Broken(Agent, kind="broken"):
        failure = Stop()

        async def on_start(self, ctx: Context) -> None:
            raise ValueError("cannot start")

    async with Cluster(Broken("main"), Diary("main")) as cluster:
        epoch = await cluster.epoch()
        assert epoch.mailbox("broken/main") == []
        assert epoch.messages() == []


async def test_durable_timers_fire_when_time_passes_and_are_part_of_an_epoch() -> None:
    async with Cluster(Diary("main")) as cluster:
        await cluster.send("diary/main", Note("milk"))
        await cluster.idle()
        await cluster.advance(20)
        epoch = await cluster.epoch()
        ((left, reminder),) = epoch.timers("diary/main")
        assert 39 < left <= 40
        assert reminder == Remind("milk")
        await cluster.advance(41)
        assert cluster["diary/main"].lines == ["milk", "remember milk"]


async def test_a_turn_that_raises_leaves_nothing_and_is_tried_again_after_its_backoff() -> None:
    async with Cluster(Diary("main")) as cluster:
        await cluster.send("diary/main", Note("bad once"))
        await cluster.send("diary/main", Note("after it"))
        await cluster.idle()
        assert cluster["diary/main"].lines == []
        await cluster.advance(1.5)
        assert cluster["diary/main"].lines == ["bad once", "after it"]


async def test_a_message_that_always_fails_becomes_a_dead_letter_and_an_event() -> None:
    async with Cluster(Diary("main")) as cluster:
        events = cluster.events("diary/main")
        waiting = asyncio.ensure_future(anext(events))
        await cluster.send("diary/main", Note("bad"))
        await cluster.advance(10)
        (letter,) = cluster.dead_letters
        assert (letter.agent, letter.attempts) == ("diary/main", 3)
        assert "no bad notes" in letter.reason
        assert await waiting == letter
        assert cluster["diary/main"].lines == []
        await events.aclose()


async def test_a_cut_does_not_wait_for_a_handler_that_awaits() -> None:
    thinker = Thinker("main")
    async with Cluster(thinker, Account("other")) as cluster:
        await cluster.send("thinker/main", Note("deep"))
        await cluster.send("thinker/main", Note("next"))
        await thinker.began.wait()
        epoch = await cluster.epoch()
        assert epoch.state("thinker/main") == {"thoughts": []}
        assert epoch.mailbox("thinker/main") == [Note("deep"), Note("next")]
        thinker.may_end.set()
        await cluster.idle()
        assert thinker.thoughts == ["deep", "done", "next", "done"]


async def test_an_epoch_holds_the_value_at_the_cut_whatever_grows_in_place_afterwards() -> None:
    store = MemoryStore(cluster_name("test"))
    async with Cluster(Diary("main"), store=store) as cluster:
        for number in range(100):
            await cluster.send("diary/main", Note(str(number)))
        await cluster.idle()
        number = cluster.conductor.start_epoch()
        # The cut is taken in one of the next turns of the loop; its encoding goes on while the list grows.
        while not cluster.participants["p1"].statistics()["capture_parts_begun"]:  # noqa: ASYNC110 - a counter
            await asyncio.sleep(0)
        for grown in range(100):
            await cluster.send("diary/main", Note(f"late {grown}"))
            await asyncio.sleep(0)
        epoch = await cluster.committed(number)
        assert epoch.state("diary/main")["lines"] == [str(number) for number in range(100)]
        await cluster.idle()
        assert len(cluster["diary/main"].lines) == 200


async def test_messages_to_nobody_wait_and_are_part_of_an_epoch() -> None:
    class Sender(Agent, kind="sender"):
        @handler
        def on_note(self, ctx: Context, note: Note) -> None:
            ctx.send("diary/missing", note)

    async with Cluster(Sender("main")) as cluster:
        await cluster.send("sender/main", Note("hello?"))
        await cluster.idle()
        assert (await cluster.epoch()).in_flight() == [Note("hello?")]


async def test_what_an_agent_wants_reaches_the_coordinator() -> None:
    async with Cluster(Diary("main")) as cluster:
        await cluster.send("diary/main", Note("epoch"))
        await cluster.idle()
        assert cluster.conductor.requested == ["a note says so"]


async def test_a_store_that_fails_for_a_moment_is_tried_again() -> None:
    store = MemoryStore(cluster_name("test"))
    async with Cluster(Diary("main"), store=store) as cluster:
        store.fail_next_put(StoreError("put", "packs/x", "no space", errno_name="ENOSPC"))
        await cluster.epoch()
        assert cluster.statistics()["capture_store_retries"] == 1


@pytest.mark.slow
async def test_a_store_that_fails_aborts_the_epoch_with_errno_and_the_next_one_works() -> None:
    store = MemoryStore(cluster_name("test"))

    def full(operation: str, key: str) -> None:
        if operation == "put":
            raise StoreError("put", key, "No space left on device", errno_name="ENOSPC")

    async with Cluster(Diary("main"), Account("other"), store=store) as cluster:
        store.before_operation = full
        with pytest.raises(Refused, match=r"upload: store put of .* failed: ENOSPC"):
            await cluster.epoch()
        store.before_operation = None
        epoch = await cluster.epoch()
        assert epoch.number == 2
        assert cluster.statistics()["capture_parts_open"] == 0


async def test_an_agents_capture_that_cannot_be_saved_fails_the_epoch_and_not_the_agent() -> None:
    class Stubborn(Agent, kind="stubborn"):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.secret: object = "fine"

        def capture(self) -> object:
            return {"memory": {"tools": [self.secret]}}

        def restore(self, state: object) -> None:
            pass

        @handler
        def on_note(self, ctx: Context, note: Note) -> None:
            self.secret = (i for i in range(3)) if note.text == "spoil" else note.text

    async with Cluster(Stubborn("main")) as cluster:
        await cluster.send("stubborn/main", Note("spoil"))
        await cluster.idle()
        with pytest.raises(Refused, match=r"stubborn/main.*memory.*generator"):
            await cluster.epoch()
        await cluster.send("stubborn/main", Note("good"))
        await cluster.idle()
        assert (await cluster.epoch()).state("stubborn/main")["capture"] == {"memory": {"tools": ["good"]}}


@pytest.mark.slow
async def test_unchanged_state_is_not_written_again() -> None:
    class Shelf(Agent, kind="shelf"):
        notes = keyed(str, str)

        @handler
        def on_note(self, ctx: Context, note: Note) -> None:
            self.notes[note.text] = f"{random.Random(note.text).random()}" * 10

    async with Cluster(Shelf("main")) as cluster:
        for number in range(2000):
            await cluster.send("shelf/main", Note(str(number)))
        await cluster.idle()
        first = await cluster.epoch()
        second = await cluster.epoch()
        await cluster.send("shelf/main", Note("one more"))
        await cluster.idle()
        third = await cluster.epoch()
        sizes = {number: reports["p1"].new_bytes for number, reports in cluster.conductor.reports.items()}
        assert sizes[second.number] < sizes[first.number] / 20
        assert sizes[third.number] < sizes[first.number] / 3
        assert second.state("shelf/main") == first.state("shelf/main")
        assert len(third.state("shelf/main")["notes"]) == 2001


async def test_outside_input_is_refused_when_too_much_is_in_flight() -> None:
    thinker = Thinker("main")
    async with Cluster(thinker) as cluster:
        participant = cluster.participant_of("thinker/main")
        object.__setattr__(participant.config, "in_flight_bytes_max", 1_000)
        for _ in range(7):
            participant.ingest_nowait("thinker/main", Note("x" * 100))
        with pytest.raises(Overloaded, match="the limit is 1000"):
            participant.ingest_nowait("thinker/main", Note("x"))
        thinker.may_end.set()
        await cluster.idle()
        participant.ingest_nowait("thinker/main", Note("x"))


async def test_outside_input_to_agents_that_nobody_hosts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Input is acknowledged when it is taken; so what would become a dead letter is refused instead."""
    monkeypatch.setattr("participant.machine_channels.UNROUTED_MESSAGES_MAX", 2)
    async with Cluster(Account("main")) as cluster:
        participant = cluster.participant_of("account/main")
        for _ in range(2):
            participant.ingest_nowait("account/nobody", Pay(1))
        with pytest.raises(Overloaded, match="nobody hosts account/nobody"):
            participant.ingest_nowait("account/nobody", Pay(1))
        object.__setattr__(participant.config, "in_flight_bytes_max", 1)
        with pytest.raises(Overloaded, match="in flight"):
            participant.ingest_nowait("account/main", Pay(1))
        assert cluster.dead_letters == ()


async def test_outside_input_before_the_start_and_after_the_end_is_refused() -> None:
    cluster = Cluster(Account("main"))
    async with cluster:
        participant = cluster.participant_of("account/main")
    with pytest.raises(Refused, match="takes no input"):
        participant.ingest_nowait("account/main", Pay(1))
    unstarted = Participant(
        Account("main"), id="p1", cluster="test", transport="memory", store="memory:x", secret=SECRET
    )
    with pytest.raises(Refused, match="has not been started"):
        await unstarted.ingest("account/main", Pay(1))


async def test_wrong_use_is_refused_with_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="at least one agent"):
        Cluster()
    async with Cluster(Account("main")) as cluster:
        with pytest.raises(UnknownAgent, match="account/other"):
            await cluster.send("account/other", Pay(1))
        with pytest.raises(Unsavable):
            await cluster.send("account/main", Note("not a type that anybody here knows"))
        with pytest.raises(IllegalName):
            await cluster.participant_of("account/main").ingest("../etc", Pay(1))


async def test_two_clusters_live_in_one_process() -> None:
    async with Cluster(Account("main")) as one, Cluster(Account("main")) as other:
        await one.send("account/main", Pay(1))
        await one.idle()
        await other.idle()
        assert (one["account/main"].cents, other["account/main"].cents) == (101, 100)


async def test_nothing_is_left_running_afterwards() -> None:
    before = len(asyncio.all_tasks())
    thinker = Thinker("main")
    async with Cluster(thinker, Diary("main")) as cluster:
        await cluster.send("thinker/main", Note("deep"))
        await thinker.began.wait()
        cluster.conductor.start_epoch()
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before


async def test_manual_time_calls_in_order_and_forgets_what_was_cancelled() -> None:
    clock = ManualClock()
    start = clock.now()
    called: list[int] = []
    clock.call_at(start + 20, lambda: called.append(20))
    clock.call_at(start + 10, lambda: called.append(10))
    clock.call_at(start + 5, lambda: called.append(5)).cancel()
    assert clock.next_at == start + 10
    clock.move_to(start + 30)
    assert called == [10, 20]
    assert clock.now() == start + 30
