from __future__ import annotations

import asyncio
import dataclasses
import typing

import msgspec
import pytest

from participant.agent import Agent, handler
from participant.failure import Backoff, DeadLetter, DeadLettered, Retry, RetryAfter, Stop, Stopped
from participant.host import START_TYPE, AgentHost, SavedField, decode_envelope
from participant.state import keyed, value
from protocol.errors import ConfigError, LocalProtocolError, RecoveryError, UndecodableMessage
from protocol.messages import Envelope
from tests.agents_world import AgentWorld

if typing.TYPE_CHECKING:
    from participant.context import Context


class Do(msgspec.Struct, frozen=True):
    n: int = 0


class Slow(msgspec.Struct, frozen=True):
    n: int = 0


class Other(msgspec.Struct, frozen=True):
    pass


class Worker(Agent, kind="worker"):
    done = value(int, default=0)
    notes = keyed(str, list[str])
    failure = Retry(attempts=2, backoff=Backoff(first=1))

    def __init__(self, name: str = "main") -> None:
        super().__init__(name)
        self.fails = 0
        self.gate: asyncio.Event | None = None

    @handler
    async def on_do(self, ctx: Context, do: Do) -> None:
        self.done += do.n
        if self.fails:
            self.fails -= 1
            raise ValueError("no")

    @handler
    async def on_slow(self, ctx: Context, slow: Slow) -> None:
        self.done += 1
        self.notes["x"] = ["early"]
        assert self.gate is not None
        await self.gate.wait()
        self.notes["x"].append("late")


def test_messages_are_handled_in_order_one_turn_at_a_time():
    world = AgentWorld(Worker())
    for n in (1, 2, 3):
        world.put(Do(n))
    host = world.host
    assert host.ready(0)
    turn = host.begin_turn(0)
    assert not host.ready(0)
    with pytest.raises(AssertionError, match="one turn at a time"):
        host.begin_turn(0)
    assert turn.start() is None
    turn.commit(0)
    assert (host.agent.done, len(host.mailbox), host.turns) == (1, 2, 1)


def test_a_handler_that_never_awaits_runs_without_a_coroutine_for_the_driver():
    world = AgentWorld(Worker())
    world.put(Do(5))
    turn = world.host.begin_turn(0)
    assert not turn.may_await
    assert turn.start() is None
    turn.commit(0)
    assert world.host.agent.done == 5


async def test_a_handler_that_awaits_gives_a_coroutine_and_hides_its_work_until_commit():
    worker = Worker()
    worker.gate = asyncio.Event()
    world = AgentWorld(worker)
    world.put(Slow())
    host = world.host
    turn = host.begin_turn(0)
    assert turn.may_await
    task = asyncio.ensure_future(turn.start())
    await asyncio.sleep(0)
    cut = world.clock.cut()
    cell = worker._cc_cells["done"]
    assert cell.stored_at(cut) == 0
    assert len(host.mailbox) == 1
    worker.gate.set()
    await task
    turn.commit(0)
    assert (worker.done, worker.notes["x"], len(host.mailbox)) == (1, ["early", "late"], 0)
    assert cell.stored_at(cut) == 0


def test_a_retry_keeps_the_message_at_the_head_and_the_agent_waits():
    worker = Worker()
    world = AgentWorld(worker)
    worker.fails = 1
    world.put(Do(1))
    world.put(Do(10))
    outcome = world.run_next()
    assert isinstance(outcome, RetryAfter)
    host = world.host
    assert not host.ready(outcome.at - 1)
    assert host.ready(outcome.at)
    assert host.next_wake() == outcome.at
    world.now = outcome.at
    world.run_next()
    assert worker.done == 1
    assert host.attempts == 0
    world.run_next()
    assert worker.done == 11


def test_after_the_last_attempt_the_message_is_a_dead_letter_and_the_next_is_handled():
    worker = Worker()
    worker.fails = 2
    world = AgentWorld(worker)
    world.put(Do(1))
    world.put(Do(10))
    world.run_next()
    world.now = world.host.wait_until
    letter = world.run_next()
    assert isinstance(letter, DeadLettered)
    assert (letter.attempts, letter.reason, letter.agent) == (2, "ValueError: no", "worker/main")
    world.run_next()
    assert worker.done == 10


def test_a_stopped_agent_keeps_its_message_and_handles_nothing_more():
    class Fragile(Worker, kind="fragile"):
        failure = Stop()

    worker = Fragile()
    worker.fails = 1
    world = AgentWorld(worker)
    world.put(Do(1))
    assert isinstance(world.run_next(), Stopped)
    host = world.host
    assert (host.dead, len(host.mailbox), host.ready(10**18), host.next_wake()) == (True, 1, False, None)


@pytest.mark.parametrize(
    ("name", "version", "body", "reason"),
    [
        ("Unknown", 1, b"\x80", "'Unknown' is not registered here"),
        ("Do", 2, b"\x80", "has version 2; known here: 1"),
        ("Do", 1, b"\x81\xa1n\xa1x", "cannot be decoded"),
        ("Do", 1, b"\xc1", "cannot be decoded"),
        ("Other", 1, b"\x80", "worker/main has no handler for 'Other'"),
    ],
)
def test_a_message_that_nobody_here_can_take_is_a_dead_letter_with_a_reason(name, version, body, reason):
    world = AgentWorld(Worker(), messages=[Other])
    envelope = Envelope(b"1" * 16, "a/b", "worker/main", name, version, body)
    world.host.deliver(envelope, msgspec.msgpack.encode(envelope))
    world.put(Do(1))
    letter = world.run_next()
    assert isinstance(letter, DeadLettered)
    assert reason in letter.reason
    assert letter.message == envelope
    world.run_next()
    assert world.host.agent.done == 1


def test_on_start_is_the_first_turn_and_its_message_id_is_stable():
    class Starter(Agent, kind="starter"):
        started = value(int, default=0)

        async def on_start(self, ctx: Context) -> None:
            self.started += 1
            ctx.send("worker/main", Do(1))

    ids = []
    for session in (3, 3, 4):
        world = AgentWorld(Starter("main"), messages=[Do])
        world.host.start_fresh("shop", session)
        assert world.host.mailbox[0][0].type == START_TYPE
        result = world.run_next()
        ids.append(result.sends[0][0].id)
        assert world.host.agent.started == 1
    assert ids[0] == ids[1]
    assert ids[0] != ids[2], "an agent that begins anew among others does other work"


def test_a_plain_on_start_works_too_and_the_default_does_nothing():
    class Starter(Agent, kind="starter"):
        started = value(bool, default=False)

        def on_start(self, ctx: Context) -> None:
            self.started = True

    world = AgentWorld(Starter("main"))
    world.host.start_fresh("shop")
    world.run_next()
    assert world.host.agent.started
    world = AgentWorld(Worker())
    world.host.start_fresh("shop")
    assert world.run_next().sends == []


def test_a_plain_function_that_returns_an_awaitable_is_awaited():
    async def later(agent):
        agent.done += 1

    class Delegating(Agent, kind="delegating"):
        done = value(int, default=0)

        @handler
        def on_do(self, ctx: Context, do: Do):
            return later(self)

    world = AgentWorld(Delegating("main"))
    world.handle(Do())
    assert world.host.agent.done == 1


def test_an_agent_belongs_to_one_host():
    worker = Worker()
    world = AgentWorld(worker)
    with pytest.raises(LocalProtocolError, match="already belongs"):
        AgentHost(worker, world.registry, world.clock)


def test_an_agent_whose_init_forgot_its_base_is_refused():
    class Forgetful(Agent):
        def __init__(self) -> None:
            pass

    world = AgentWorld(Worker())
    with pytest.raises(LocalProtocolError, match="super"):
        AgentHost(Forgetful(), world.registry, world.clock)


def test_a_handled_type_must_be_registered():
    world = AgentWorld(Worker())

    class Late(Agent):
        @handler
        def on_other(self, ctx: Context, other: Other) -> None: ...

    with pytest.raises(ConfigError, match="not registered"):
        AgentHost(Late("x"), world.registry, world.clock)


async def test_an_abandoned_turn_leaves_state_and_mailbox_as_they_were():
    worker = Worker()
    worker.gate = asyncio.Event()
    world = AgentWorld(worker)
    world.put(Slow())
    turn = world.host.begin_turn(0)
    task = asyncio.ensure_future(turn.start())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    turn.abandon()
    assert (worker.done, len(world.host.mailbox), world.host.turn) == (0, 1, None)
    assert world.host.ready(0)


# --- agents with state of their own kind ------------------------------------------------------------------------------


class Own(Agent, kind="own"):
    failure = DeadLetter()

    def __init__(self, name: str = "main") -> None:
        super().__init__(name)
        self.things: list[object] = []
        self.captures = 0

    def capture(self):
        self.captures += 1
        return {"things": self.things}

    def restore(self, state):
        self.things = state["things"]

    @handler
    def on_do(self, ctx: Context, do: Do) -> None:
        self.things.append(do.n)
        if do.n < 0:
            raise ValueError("negative")

    @handler
    async def on_slow(self, ctx: Context, slow: Slow) -> None:
        self.things.append("early")
        await asyncio.sleep(0)
        self.things.append("late")

    @handler
    def on_other(self, ctx: Context, other: Other) -> None:
        self.things.append(object())


def test_own_state_is_rolled_back_by_restore():
    own = Own()
    world = AgentWorld(own)
    world.handle(Do(1))
    assert isinstance(world.handle(Do(-1)), DeadLettered)
    assert own.things == [1]


async def test_a_cut_that_meets_a_turn_holds_own_state_from_before_it():
    own = Own()
    world = AgentWorld(own)
    world.handle(Do(1))
    world.put(Slow())
    turn = world.host.begin_turn(0)
    coroutine = turn.start()
    coroutine.send(None)
    assert own.things == [1, "early"]
    cut = world.clock.cut()
    assert msgspec.msgpack.decode(world.host.whole.stored_at(cut)) == {"things": [1]}
    with pytest.raises(StopIteration):
        coroutine.send(None)
    turn.commit(0)
    assert msgspec.msgpack.decode(world.host.whole.stored_at(cut)) == {"things": [1]}
    later = world.clock.cut()
    assert msgspec.msgpack.decode(world.host.whole.stored_at(later)) == {"things": [1, "early", "late"]}


def test_own_state_goes_through_an_epoch_and_later_turns_do_not_change_it():
    own = Own()
    world = AgentWorld(own)
    world.handle(Do(1))
    snapshot = world.epoch(1, during=lambda: world.handle(Do(2)))["own/main"]
    assert world.restored(Own(), snapshot).agent.things == [1]
    assert own.things == [1, 2]


def test_unsavable_own_state_fails_the_epoch_and_not_the_agent():
    from protocol.errors import Unsavable

    own = Own()
    world = AgentWorld(own)
    world.handle(Other())
    with pytest.raises(Unsavable, match=r"agent own/main: capture\.things\[0\] of type object"):
        world.epoch(1)
    world.capturer.dropped(1)
    world.handle(Do(3))
    assert own.things[1] == 3
    own.things.pop(0)
    assert world.restored(Own(), world.epoch(2)["own/main"]).agent.things == [3]


def test_an_agent_that_cannot_be_rolled_back_stops_and_says_why():
    world = AgentWorld(Own())
    world.handle(Other())
    outcome = world.handle(Do(-1))
    assert isinstance(outcome, Stopped)
    assert "negative; then its restore() failed: Unsavable" in outcome.reason
    assert world.host.dead


def test_a_capture_that_raises_fails_the_epoch_with_its_reason():
    from protocol.errors import Unsavable

    class Broken(Own, kind="broken"):
        def capture(self):
            raise KeyError("gone")

    world = AgentWorld(Broken())
    with pytest.raises(Unsavable, match=r"capture\(\) raised KeyError: 'gone'"):
        world.epoch(1)


# --- restore ----------------------------------------------------------------------------------------------------------


def field(data: bytes, shape: str = "value") -> SavedField:
    return SavedField(shape, "msgpack", [data])


def test_a_load_takes_state_mailbox_timers_and_whether_it_was_stopped():
    world = AgentWorld(Worker())
    (_, first), (_, second) = world.envelope(Do(1)), world.envelope(Do(2))
    host = world.host
    host.load({"done": field(b"\x07")}, mailbox=[first], timers=[(5, second)], dead=False, now=100)
    assert (host.agent.done, dict(host.agent.notes)) == (7, {})
    assert [data for _, data in host.mailbox] == [first]
    assert host.next_wake() == 105
    host.load({}, dead=True)
    assert (host.agent.done, host.dead, host.ready(10**18)) == (0, True, False)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"gone": field(b"\x01")}, "has no field gone"),
        ({"done": field(b"\xa1x")}, "field done does not fit its declared type"),
        ({"done": field(b"\xc1")}, "field done does not fit"),
        ({"notes": field(b"\x91\x92\xa1k\x01", "keyed")}, "field notes does not fit"),
        ({"notes": field(b"\x91\x91\xa1k", "keyed")}, "field notes does not fit"),
        ({"done": field(b"\x01", "keyed")}, "saved as keyed"),
        ({"done": SavedField("value", "msgpack", [b"\x01", b"\x02"])}, "2 segments where one"),
    ],
)
def test_state_that_does_not_fit_the_class_is_refused_by_name(fields, reason):
    world = AgentWorld(Worker())
    with pytest.raises(RecoveryError, match="agent worker/main") as caught:
        world.host.load(fields)
    assert reason in str(caught.value)


def test_bytes_that_are_no_envelope_are_refused():
    for data in (b"", b"\xc1", b"\x91\x01", b"\x91" * 100_000):
        with pytest.raises(UndecodableMessage):
            decode_envelope(data)


@dataclasses.dataclass
class Moody:
    """Is taken where it is sent, and not where it arrives: another build, another environment."""

    n: int
    refuse: typing.ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.refuse:
            raise KeyError("mood")


class Host(Agent, kind="host"):
    kept = keyed(int, Moody)
    failure = DeadLetter()

    @handler
    def on_moody(self, ctx: Context, moody: Moody) -> None:
        self.kept[moody.n] = moody


def test_a_message_whose_own_code_refuses_it_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch):
    world = AgentWorld(Host("main"))
    world.put(Moody(1))
    monkeypatch.setattr(Moody, "refuse", True)
    letter = world.run_next()
    assert isinstance(letter, DeadLettered)
    assert "KeyError" in letter.reason
    assert not world.host.mailbox
    with pytest.raises(UndecodableMessage, match="mood"):
        world.registry.decode("Moody", 1, b"\x81\xa1n\x01")


def test_state_whose_own_code_refuses_it_is_told_by_name(monkeypatch: pytest.MonkeyPatch):
    world = AgentWorld(Host("main"))
    monkeypatch.setattr(Moody, "refuse", True)
    with pytest.raises(RecoveryError, match=r"agent host/main: field kept does not fit .* KeyError"):
        world.host.load({"kept": field(b"\x91\x92\x01\x81\xa1n\x01", "keyed")})
