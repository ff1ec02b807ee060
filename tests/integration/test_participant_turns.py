"""Turns on the loop: which run in a task, what a handler may do there, and what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from time import monotonic_ns

import msgspec
import pytest

from participant import Agent, Context, DeadLetter, Stop, handler, keyed, value
from participant.state import TURN_CONTEXT
from participant.testing import Cluster
from protocol.errors import LocalProtocolError, Refused
from protocol.limits import TURN_SLICE_NS

tag: contextvars.ContextVar[str] = contextvars.ContextVar("tag", default="clean")


class Do(msgspec.Struct, frozen=True):
    what: str
    count: int = 0


class Worker(Agent, kind="worker"):
    seen = value(list[str], default=[])

    failure = DeadLetter()

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.tasks: list[object] = []
        self.gate = asyncio.Event()

    @handler
    async def on_do(self, ctx: Context, do: Do) -> None:
        self.tasks.append(asyncio.current_task())
        self.seen.append(f"{do.what} {tag.get()}")
        match do.what:
            case "time out":
                try:
                    async with asyncio.timeout(0.001):
                        await asyncio.sleep(60)
                except TimeoutError:
                    self.seen.append("timed out")
            case "tag":
                tag.set("dirty")
            case "cancel":
                raise asyncio.CancelledError
            case "swallow":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    self.seen.append("swallowed")
            case "wait":
                await self.gate.wait()
            case "outlive":
                self.leaked = ctx
            case "use leaked":
                self.leaked.send("worker/main", Do("never"))
            case _:
                await asyncio.sleep(0)


class Counter(Agent, kind="counter"):
    """Never awaits: plain, and async without a place to wait."""

    count = value(int, default=0)
    failure = Stop()

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.tasks: list[object] = []

    @handler
    async def on_do(self, ctx: Context, do: Do) -> None:
        self.tasks.append(asyncio.current_task())
        self.count += 1
        if do.what == "busy":
            until = monotonic_ns() + TURN_SLICE_NS
            while monotonic_ns() < until:
                pass
        if do.what == "stop":
            raise RuntimeError("broken for good")
        if do.count:
            ctx.send("counter/main", Do("again", do.count - 1))


async def test_handlers_that_never_await_run_without_a_task() -> None:
    async with Cluster(Counter("main")) as cluster:
        await cluster.send("counter/main", Do("count", 500))
        await cluster.idle()
        assert cluster["counter/main"].count == 501
        assert set(cluster["counter/main"].tasks) == {None}


async def test_whoever_drives_the_turns_is_in_none_afterwards() -> None:
    """A driver that calls the pump from a context of its own must not look like a task of the last turn."""
    async with Cluster(Counter("main")) as cluster:
        participant = cluster.participant_of("counter/main")
        participant.ingest_nowait("counter/main", Do("count"))
        participant._pump.run()
        assert cluster["counter/main"].count == 1
        assert TURN_CONTEXT.get() is None


async def test_slow_turns_of_one_agent_leave_the_loop_to_others_between_two_of_them() -> None:
    """Each turn here takes a whole slice: a slice ends after one, however many messages the agent has."""
    async with Cluster(Counter("main")) as cluster:
        participant = cluster.participant_of("counter/main")
        for _ in range(20):
            participant.ingest_nowait("counter/main", Do("busy"))
        before = participant._pump.turns
        more = participant._pump.run()
        assert more
        assert participant._pump.turns - before == 1
        await cluster.idle()
        assert cluster["counter/main"].count == 20


async def test_handlers_that_await_run_in_a_task_that_is_used_again() -> None:
    async with Cluster(Worker("main")) as cluster:
        for _ in range(20):
            await cluster.send("worker/main", Do("plain"))
        await cluster.idle()
        tasks = cluster["worker/main"].tasks
        assert None not in tasks
        assert len(set(tasks)) == 1


async def test_a_timeout_in_a_handler_works() -> None:
    async with Cluster(Worker("main")) as cluster:
        await cluster.send("worker/main", Do("time out"))
        await cluster.send("worker/main", Do("after"))
        await cluster.idle()
        assert cluster["worker/main"].seen == ["time out clean", "timed out", "after clean"]


async def test_context_variables_of_one_turn_are_not_the_next_ones() -> None:
    async with Cluster(Worker("main")) as cluster:
        await cluster.send("worker/main", Do("tag"))
        await cluster.send("worker/main", Do("after"))
        await cluster.idle()
        assert cluster["worker/main"].seen == ["tag clean", "after clean"]


async def test_a_cancellation_that_a_handler_raises_or_swallows_harms_nobody_else() -> None:
    async with Cluster(Worker("main")) as cluster:
        for what in ("cancel", "swallow", "time out", "after"):
            await cluster.send("worker/main", Do(what))
        await cluster.idle()
        (letter,) = cluster.dead_letters
        assert "CancelledError" in letter.reason
        assert cluster["worker/main"].seen == [
            "swallow clean",
            "swallowed",
            "time out clean",
            "timed out",
            "after clean",
        ]


async def test_agents_of_one_participant_do_not_wait_for_each_other() -> None:
    slow, quick = Worker("slow"), Counter("main")
    async with Cluster([slow, quick]) as cluster:
        await cluster.send("worker/slow", Do("wait"))
        await cluster.send("worker/slow", Do("after"))
        await cluster.send("counter/main", Do("count", 3))
        while quick.count < 4:  # noqa: ASYNC110 - turns of the loop
            await asyncio.sleep(0)
        assert "after clean" not in slow.seen
        slow.gate.set()
        await cluster.idle()
        assert slow.seen == ["wait clean", "after clean"]


async def test_a_busy_agent_does_not_starve_another_one() -> None:
    class Endless(Agent, kind="endless"):
        turns = value(int, default=0)

        @handler
        def on_do(self, ctx: Context, do: Do) -> None:
            self.turns += 1
            if not stop.is_set():
                ctx.send(self.id, do)

    stop = asyncio.Event()
    endless, quick = Endless("main"), Counter("main")
    async with Cluster([endless, quick]) as cluster:
        await cluster.send("endless/main", Do("spin"))
        await cluster.send("counter/main", Do("count", 10))
        while quick.count < 11:  # noqa: ASYNC110 - turns of the loop
            await asyncio.sleep(0)
        assert endless.turns > 0
        stop.set()
        await cluster.idle()
        assert cluster.statistics()["turn_slice_ns_max"] >= 0


async def test_a_context_that_outlives_its_turn_is_of_no_use() -> None:
    async with Cluster(Worker("main")) as cluster:
        await cluster.send("worker/main", Do("outlive"))
        await cluster.send("worker/main", Do("use leaked"))
        await cluster.idle()
        (letter,) = cluster.dead_letters
        assert "after its turn" in letter.reason


async def test_an_agent_that_stops_keeps_its_message_and_says_so_in_an_epoch() -> None:
    async with Cluster(Counter("main")) as cluster:
        await cluster.send("counter/main", Do("stop"))
        await cluster.send("counter/main", Do("behind"))
        await cluster.idle()
        epoch = await cluster.epoch()
        assert epoch.mailbox("counter/main") == [Do("stop"), Do("behind")]
        assert epoch.state("counter/main") == {"count": 0}


async def test_a_turn_that_runs_at_the_end_has_not_happened() -> None:
    worker = Worker("main")
    async with Cluster(worker) as cluster:
        await cluster.send("worker/main", Do("wait"))
        while not worker.tasks:  # noqa: ASYNC110 - turns of the loop
            await asyncio.sleep(0)
    assert worker.seen == []


async def test_memory_of_mailboxes_is_counted_to_the_byte() -> None:
    worker = Worker("main")
    async with Cluster(worker) as cluster:
        await cluster.send("worker/main", Do("wait"))
        for what in ("cancel", "time out", "after"):
            await cluster.send("worker/main", Do(what))
        assert cluster.statistics()["mailbox_bytes"] > 0
        worker.gate.set()
        await cluster.idle()
        assert cluster.statistics()["mailbox_bytes"] == 0


async def test_an_exit_that_a_handler_raises_is_not_swallowed() -> None:
    class Leaver(Agent, kind="leaver"):
        @handler
        async def on_do(self, ctx: Context, do: Do) -> None:
            await asyncio.sleep(0)
            raise GeneratorExit(do.what)

    with pytest.raises(Exception, match="GeneratorExit: gone"):  # noqa: PT012 - one life
        async with Cluster(Leaver("main")) as cluster:
            await cluster.send("leaver/main", Do("gone"))
            await cluster.idle()


class Timed(Agent, kind="timed"):
    """Never awaits; sets timers."""

    seen = value(list[str], default=[])
    failure = DeadLetter()

    @handler
    async def on_do(self, ctx: Context, do: Do) -> None:
        match do.what:
            case "cancel":
                raise asyncio.CancelledError
            case "exit":
                raise GeneratorExit(do.what)
            case "far":
                ctx.after(3600, Do("never"))
            case "near":
                ctx.after(1, Do("now"))
            case "two":
                ctx.after(0.5, Do("first"))
                ctx.after(1, Do("second"))
            case "first" | "second":
                self.seen.append(do.what)
            case "spin" if not {"first", "second"} <= {*self.seen}:
                ctx.send(self.id, do)


async def test_a_cancellation_raised_where_nothing_is_awaited_is_a_failure_like_any_other() -> None:
    async with Cluster([Timed("main"), Counter("main")]) as cluster:
        for agent, what in (("timed/main", "cancel"), ("timed/main", "first"), ("counter/main", "count")):
            await cluster.send(agent, Do(what))
        await cluster.idle()
        (letter,) = cluster.dead_letters
        assert "CancelledError" in letter.reason
        assert cluster["timed/main"].seen == ["first"]
        assert cluster["counter/main"].count == 1


async def test_an_exit_raised_where_nothing_is_awaited_ends_the_participant() -> None:
    with pytest.raises(Refused, match="GeneratorExit: exit"):  # noqa: PT012 - one life
        async with Cluster(Timed("main")) as cluster:
            await cluster.send("timed/main", Do("exit"))
            await cluster.idle()


async def test_a_far_timer_costs_one_entry_however_many_near_ones_come_first() -> None:
    async with Cluster(Timed("main")) as cluster:
        await cluster.send("timed/main", Do("far"))
        for _ in range(20):
            await cluster.send("timed/main", Do("near"))
            await cluster.advance(2)
        assert cluster.statistics()["timers_noted"] == 1


async def test_timers_of_an_agent_that_is_never_idle_fire() -> None:
    timed = Timed("main")
    async with Cluster(timed) as cluster:
        for _ in range(1_000):
            await cluster.send("timed/main", Do("spin"))
        await cluster.send("timed/main", Do("two"))
        for _ in range(500):
            await asyncio.sleep(0)
            cluster.clock.move_to(cluster.clock.now() + 10_000_000)
            if timed.seen == ["first", "second"]:
                break
        assert timed.seen == ["first", "second"]
        await cluster.idle()


class Haunted(Agent, kind="haunted"):
    """Starts tasks that go on when their turn has ended, while the next turn is open."""

    count = value(int, default=0)
    plain = keyed(str, int)
    items = value(list[int], default=[1])
    table = keyed(str, list[int])
    failure = DeadLetter()

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.table["a"] = [1]
        self.next_turn = asyncio.Event()
        self.done = asyncio.Event()
        self.refused: list[str] = []

    @handler
    async def on_do(self, ctx: Context, do: Do) -> None:
        if do.what == "start":
            self.task = asyncio.create_task(self._outlive())
        elif do.what == "start, awaiting":
            await asyncio.sleep(0)
            self.task = asyncio.create_task(self._outlive())
        else:
            self.items.append(2)
            self.table["a"].append(2)
            self.next_turn.set()
            await self.done.wait()
            await asyncio.gather(self._help(), asyncio.to_thread(self._write))

    async def _help(self) -> None:
        self.count += 1

    def _write(self) -> None:
        self.plain["thread"] = 1

    async def _outlive(self) -> None:
        await self.next_turn.wait()
        writes = (
            lambda: setattr(self, "count", 100),
            lambda: setattr(self, "items", [100]),
            lambda: self.plain.update(x=100),
            lambda: self.table.update(x=[100]),
            lambda: self.table.pop("a"),
            lambda: self.plain.update({"y": 100}),
        )
        for write in writes:
            try:
                write()
            except LocalProtocolError as error:
                self.refused.append(str(error))
        for found in (self.items, self.table["a"]):
            found.append(100)
        self.done.set()


@pytest.mark.parametrize("start", ["start", "start, awaiting"])
async def test_a_task_that_outlives_its_turn_has_no_part_in_the_next_one(start: str) -> None:
    """Tasks and threads of the turn itself, on the other hand, have."""
    agent = Haunted("main")
    async with Cluster(agent) as cluster:
        await cluster.send("haunted/main", Do(start))
        await cluster.idle()
        await cluster.send("haunted/main", Do("next"))
        await cluster.idle()
        assert cluster.dead_letters == ()
        assert (agent.count, agent.items, dict(agent.plain), dict(agent.table)) == (
            1,
            [1, 2],
            {"thread": 1},
            {"a": [1, 2]},
        )
    assert len(agent.refused) == 6
    assert "outside of a turn" in agent.refused[0]


async def test_a_handler_that_will_not_be_cancelled_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("participant.runtime.tasks.CANCEL_SECONDS", 0.01)

    class Deaf(Agent, kind="deaf"):
        count = value(int, default=0)

        @handler
        async def on_do(self, ctx: Context, do: Do) -> None:
            self.count += 1
            while not end.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    began.set()
                    await end.wait()

    end, began = asyncio.Event(), asyncio.Event()
    deaf = Deaf("main")
    async with Cluster(deaf) as cluster:
        await cluster.send("deaf/main", Do("listen"))
        await began.wait()
    assert "tasks do not end though they were cancelled: agent turns" in caplog.text
    end.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert deaf.count == 0, "what it did has not happened"
