from __future__ import annotations

import math

import msgspec
import pytest

from participant import context as context_module
from participant.agent import Agent, handler
from participant.context import Context, child_id
from participant.failure import DeadLetter, DeadLettered
from participant.host import decode_envelope
from protocol.errors import IllegalName, LimitExceeded, LocalProtocolError, Unsavable
from protocol.limits import MESSAGE_BYTES_MAX
from tests.agents_world import AgentWorld


class Do(msgspec.Struct, frozen=True):
    n: int = 0


class Out(msgspec.Struct):
    items: list[int]


class Sender(Agent, kind="sender"):
    failure = DeadLetter()

    @handler
    def on_do(self, ctx: Context, do: Do) -> None:
        self.action(ctx)


def sender(action):
    agent = Sender("main")
    agent.action = action
    return AgentWorld(agent, messages=[Out])


def test_sends_leave_at_turn_commit_in_order_and_encoded():
    def act(ctx):
        out = Out([1])
        ctx.send("ledger/a", out)
        out.items.append(2)
        ctx.send("ledger/b", out)

    result = sender(act).handle(Do())
    assert [envelope.target for envelope, _ in result.sends] == ["ledger/a", "ledger/b"]
    assert [msgspec.msgpack.decode(envelope.body) for envelope, _ in result.sends] == [
        {"items": [1]},
        {"items": [1, 2]},
    ]
    for envelope, data in result.sends:
        assert decode_envelope(data) == envelope
        assert (envelope.source, envelope.type, envelope.version) == ("sender/main", "Out", 1)


def test_nothing_leaves_when_the_handler_raises():
    def act(ctx):
        ctx.send("ledger/a", Out([1]))
        ctx.after(1, Do())
        raise ValueError("no")

    world = sender(act)
    assert isinstance(world.handle(Do()), DeadLettered)
    assert not world.host.timers
    assert not world.host.mailbox


def test_message_ids_are_lineage():
    def act(ctx):
        ctx.send("ledger/a", Out([1]))
        ctx.after(1, Do())
        ctx.send("ledger/b", Out([1]))

    first, again = sender(act), sender(act)
    one, two = first.handle(Do()), again.handle(Do())
    ids = [envelope.id for envelope, _ in one.sends]
    assert ids == [envelope.id for envelope, _ in two.sends]
    parent = (1).to_bytes(16, "big")
    assert ids == [child_id(parent, b"sender/main", 0), child_id(parent, b"sender/main", 2)]
    assert first.host.timers[0][2].id == child_id(parent, b"sender/main", 1)
    assert all(len(identity) == 16 for identity in ids)


def test_other_arguments_give_the_same_id_and_other_positions_another():
    ids = {
        child_id(parent, agent, n) for parent in (b"a" * 16, b"b" * 16) for agent in (b"x/y", b"x/z") for n in (0, 1)
    }
    assert len(ids) == 8


def test_a_handler_sees_who_sent_what():
    seen = []
    world = sender(lambda ctx: seen.append((ctx.self_id, ctx.source, ctx.message_id, ctx.attempt)))
    world.handle(Do())
    assert seen == [("sender/main", "outside/ingest", (1).to_bytes(16, "big"), 1)]


@pytest.mark.parametrize("target", ["ledger", "../x/y", "a/b/c", "", "A/b"])
def test_an_illegal_target_is_refused_in_the_handler(target):
    caught = []

    def act(ctx):
        with pytest.raises(IllegalName) as error:
            ctx.send(target, Out([1]))
        caught.append(error)

    assert sender(act).handle(Do()).sends == []
    assert caught


def test_an_unsavable_message_is_refused_in_the_handler():
    caught = []

    def act(ctx):
        with pytest.raises(Unsavable, match=r"agent sender/main: Out\.items\[0\] of type str") as error:
            ctx.send("ledger/a", Out(["x"]))
        caught.append(error)
        with pytest.raises(Unsavable, match="knows no such message type"):
            ctx.send("ledger/a", {"a": 1})

    sender(act).handle(Do())
    assert caught


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, 1e12])
def test_a_delay_that_is_none_is_refused(seconds):
    caught = []

    def act(ctx):
        with pytest.raises(ValueError, match="delay must be"):
            ctx.after(seconds, Do())
        caught.append(1)

    sender(act).handle(Do())
    assert caught


def test_a_timer_is_due_after_its_delay_from_commit_on():
    world = sender(lambda ctx: ctx.after(1.5, Do(7)))
    world.now = 1000
    result = world.handle(Do())
    assert result.timer_due == 1000 + 1_500_000_000
    host = world.host
    assert host.next_wake() == result.timer_due
    assert host.fire_timers(result.timer_due - 1) == 0
    assert host.fire_timers(result.timer_due) == 1
    assert msgspec.msgpack.decode(host.mailbox[0][0].body) == {"n": 7}
    assert host.next_wake() is None


def test_timers_of_one_instant_fire_in_the_order_in_which_they_were_set():
    def act(ctx):
        for n in (3, 1, 2):
            ctx.after(1, Do(n))
        ctx.after(0.5, Do(0))

    world = sender(act)
    world.handle(Do())
    world.host.fire_timers(10**10)
    assert [msgspec.msgpack.decode(envelope.body)["n"] for envelope, _ in world.host.mailbox] == [0, 3, 1, 2]


def test_a_wish_for_an_epoch_is_part_of_the_result():
    def act(ctx):
        for n in range(100):
            ctx.request_epoch(f"why {n}")

    assert list(sender(act).handle(Do()).epoch_requests)[:2] == ["why 0", "why 1"]


def test_a_context_is_of_no_use_after_its_turn():
    kept = []
    sender(kept.append).handle(Do())
    for use in (
        lambda: kept[0].send("ledger/a", Out([1])),
        lambda: kept[0].after(1, Do()),
        lambda: kept[0].request_epoch("x"),
    ):
        with pytest.raises(LocalProtocolError, match="after its turn"):
            use()


def test_an_endless_loop_of_sends_ends_with_an_error(monkeypatch):
    monkeypatch.setattr(context_module, "SENDS_MAX", 10)

    def act(ctx):
        while True:
            ctx.send("ledger/a", Out([1]))

    letter = sender(act).handle(Do())
    assert isinstance(letter, DeadLettered)
    assert LimitExceeded.__name__ in letter.reason


def test_remembered_targets_are_bounded(monkeypatch):
    monkeypatch.setattr(context_module, "TARGETS_REMEMBERED_MAX", 3)

    def act(ctx):
        for n in range(10):
            ctx.send(f"ledger/a{n}", Out([1]))

    world = sender(act)
    assert len(world.handle(Do()).sends) == 10
    assert len(world.host.targets) <= 3


@pytest.mark.parametrize("use", [lambda ctx, out: ctx.send("ledger/a", out), lambda ctx, out: ctx.after(1, out)])
def test_a_message_that_no_channel_would_carry_is_refused_in_the_handler(use):
    """Its body alone is below the limit; with its envelope it is above."""

    def act(ctx):
        with pytest.raises(LimitExceeded, match="its envelope included"):
            use(ctx, Out([0] * (MESSAGE_BYTES_MAX - 20)))
        use(ctx, Out([0] * (MESSAGE_BYTES_MAX - 200)))

    result = sender(act).handle(Do())
    assert not isinstance(result, DeadLettered), result
    assert all(len(data) <= MESSAGE_BYTES_MAX for _, data in result.sends)
