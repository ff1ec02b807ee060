from __future__ import annotations

import asyncio
import random
import tracemalloc
from typing import TYPE_CHECKING

import msgspec
import pytest

from participant.agent import Agent, handler
from participant.failure import DeadLetter, Stop
from participant.loading import split_envelopes, split_timers
from participant.machine_events import RecordedChannel
from participant.segments import OVERLAYS_MAX
from participant.state import keyed, value
from protocol.contents import decode_mailbox, decode_timers
from protocol.documents import decode_local_snapshot, encode_local_snapshot
from protocol.errors import LocalProtocolError, ObjectCorrupt
from protocol.items import encode_marker_item, encode_message_item
from protocol.manifest import OutgoingCut
from tests.agents_world import AgentWorld

if TYPE_CHECKING:
    from participant.context import Context


class Do(msgspec.Struct, frozen=True):
    n: int = 0


class Slow(msgspec.Struct, frozen=True):
    pass


class Order(msgspec.Struct):
    id: str
    cents: int
    text: str = ""


class Store(Agent, kind="store", state_version=4):
    orders = keyed(str, Order)
    counts = keyed(int, int)
    log = value(list[str], default=[])
    table = value(dict[str, int], default={})
    blob = value(bytes, default=b"")
    text = value(str, default="")
    spent = value(int, default=0)
    never = value(int)
    failure = DeadLetter()
    action = staticmethod(lambda agent, ctx: None)

    @handler
    def on_do(self, ctx: Context, do: Do) -> None:
        self.action(self, ctx)

    @handler
    async def on_slow(self, ctx: Context, slow: Slow) -> None:
        self.spent += 1000
        self.log.append("not yet")
        await asyncio.sleep(0)


def content(agent: Store):
    return (
        {key: (order.id, order.cents, order.text) for key, order in agent.orders.items()},
        dict(agent.counts),
        agent.log,
        agent.table,
        agent.blob,
        agent.text,
        agent.spent,
    )


def turn(world: AgentWorld, agent: Store, action):
    agent.action = action
    result = world.handle(Do(), agent.id)
    assert type(result).__name__ == "TurnResult", result
    return result


def store(action=None) -> tuple[AgentWorld, Store]:
    agent = Store("main")
    world = AgentWorld(agent)
    if action is not None:
        turn(world, agent, action)
    return world, agent


def fill(agent, ctx, orders=300):
    source = random.Random(1)
    for n in range(orders):
        agent.orders[f"k{n}"] = Order(f"k{n}", n, source.randbytes(200).hex())
    agent.counts.update({n: n for n in range(100)})
    agent.log = [source.randbytes(40).hex() for _ in range(1000)]
    agent.table = {f"t{n}": n for n in range(100)}
    agent.blob = source.randbytes(300_000)
    agent.text = "text ü"
    agent.spent = -5


def test_state_comes_back_from_an_epoch_as_it_was():
    world, agent = store(fill)
    snapshot = world.epoch(1)["store/main"]
    assert content(world.restored(Store("main"), snapshot).agent) == content(agent)
    assert (snapshot.state_version, snapshot.running, snapshot.dead) == (4, False, False)
    assert [field.name for field in snapshot.fields][:2] == ["orders", "counts"]
    with pytest.raises(AttributeError):
        _ = world.restored(Store("main"), snapshot).agent.never


def test_an_empty_agent_comes_back_empty():
    world, agent = store()
    assert content(world.restored(Store("main"), world.epoch(1)["store/main"]).agent) == content(agent)


def test_an_epoch_holds_the_value_at_the_cut_whatever_turns_do_while_it_is_encoded():
    """Between any two steps a turn changes everything; the epoch must not see any of it."""
    world, agent = store(fill)
    before = content(agent)
    frozen = world.capturer.freeze(1, world.hosts.values(), now=0)

    def meddle(agent, ctx):
        agent.spent += 1
        agent.log.append("later")
        agent.log[0] = "changed"
        agent.table["later"] = 1
        agent.blob += b"x"
        agent.counts.pop(agent.spent, None)
        agent.counts[-agent.spent] = 1
        for key in list(agent.orders)[:50]:
            agent.orders[key].cents += 1
        agent.orders.pop(next(iter(agent.orders)))

    for steps, pack in enumerate(frozen.slices()):
        if pack is not None:
            world.packs[pack.digest] = pack.data
        if steps < 40:
            turn(world, agent, meddle)
    world.drive(frozen.channel_slices([]))
    (snapshot,) = frozen.agent_snapshots()
    assert content(world.restored(Store("main"), snapshot).agent) == before
    assert content(agent) != before
    world.capturer.committed(1)
    assert content(world.restored(Store("main"), world.epoch(2)["store/main"]).agent) == content(agent)


def test_a_running_turn_has_not_happened_and_its_message_is_the_next_to_handle():
    world, agent = store(fill)
    before = content(agent)
    world.put(Slow())
    world.put(Do(7))
    running = world.host.begin_turn(0)
    coroutine = running.start()
    coroutine.send(None)
    assert agent.spent == 995
    snapshot = world.epoch(1)["store/main"]
    assert (snapshot.running, snapshot.mailbox_count) == (True, 2)
    host = world.restored(Store("main"), snapshot)
    assert content(host.agent) == before
    assert [envelope.type for envelope, _ in host.mailbox] == ["Slow", "Do"]
    with pytest.raises(StopIteration):
        coroutine.send(None)
    running.commit(0)
    assert agent.log[-1] == "not yet"


def test_mailbox_and_timers_are_part_of_the_cut():
    world, agent = store()
    world.now = 5_000_000_000

    def act(agent, ctx):
        for n in (3, 1, 2):
            ctx.after(n, Do(n))

    turn(world, agent, act)
    for n in range(10):
        world.put(Do(n))
    mailbox = list(world.host.mailbox)
    world.now += 1_500_000_000
    snapshot = world.epoch(1, during=world.host.mailbox.clear)["store/main"]
    assert (snapshot.mailbox_count, snapshot.timers_count) == (10, 3)
    assert decode_mailbox(world.read(snapshot.mailbox), "mailbox") == [envelope for envelope, _ in mailbox]
    left = [left for left, _ in decode_timers(world.read(snapshot.timers), "timers")]
    assert left == [0, 500_000_000, 1_500_000_000]
    world.now = 77
    host = world.restored(Store("main"), snapshot)
    assert list(host.mailbox) == mailbox
    assert [due for due, *_ in sorted(host.timers)] == [77, 500_000_077, 1_500_000_077]


def test_a_stopped_agent_stays_stopped():
    class Fragile(Store, kind="fragile"):
        failure = Stop()

    agent = Fragile("main")
    world = AgentWorld(agent)
    agent.action = lambda agent, ctx: 1 / 0
    world.handle(Do())
    snapshot = world.epoch(1)["fragile/main"]
    assert snapshot.dead
    host = world.restored(Fragile("main"), snapshot)
    assert (host.dead, len(host.mailbox)) == (True, 1)


def test_nothing_is_written_again_when_nothing_has_changed():
    world, _ = store(fill)
    first = world.epoch(1)
    second = world.epoch(2)
    assert world.new_bytes == 0
    assert first == second


def test_one_changed_key_writes_about_itself():
    world, agent = store(fill)
    world.epoch(1)
    full = world.written_bytes
    turn(world, agent, lambda a, ctx: setattr(a.orders["k5"], "cents", 999))
    snapshot = world.epoch(2)["store/main"]
    assert world.written_bytes < full / 300
    assert content(world.restored(Store("main"), snapshot).agent) == content(agent)


def test_an_append_to_a_list_writes_one_block():
    world, agent = store(fill)
    world.epoch(1)
    turn(world, agent, lambda a, ctx: a.log.append("one more"))
    snapshot = world.epoch(2)["store/main"]
    assert world.written_bytes < 33 * 90
    assert world.restored(Store("main"), snapshot).agent.log == agent.log


def test_an_append_to_large_bytes_writes_its_last_piece():
    world, agent = store(fill)
    world.epoch(1)
    turn(world, agent, lambda a, ctx: setattr(a, "blob", a.blob + b"tail"))
    snapshot = world.epoch(2)["store/main"]
    assert world.written_bytes < 70_000
    assert world.restored(Store("main"), snapshot).agent.blob == agent.blob


def test_an_aborted_epoch_is_forgotten_and_its_chunks_are_never_named_again():
    world, agent = store(fill)
    world.epoch(1)
    turn(world, agent, lambda a, ctx: a.orders.update({"new": Order("new", 1)}))
    known = set(world.packs)
    world.epoch(2, commit=False)
    for garbage in set(world.packs) - known:
        del world.packs[garbage]
    turn(world, agent, lambda a, ctx: a.counts.update({5: 50}))
    snapshot = world.epoch(3)["store/main"]
    assert content(world.restored(Store("main"), snapshot).agent) == content(agent)


def test_deleted_keys_do_not_come_back():
    world, agent = store(fill)
    world.epoch(1)
    turn(world, agent, lambda a, ctx: (a.orders.pop("k1"), a.orders.pop("k2"), a.counts.pop(3)))
    snapshot = world.epoch(2)["store/main"]
    assert "k1" not in world.restored(Store("main"), snapshot).agent.orders
    turn(world, agent, lambda a, ctx: a.orders.update({"k1": Order("again", 1)}))
    snapshot = world.epoch(3)["store/main"]
    assert content(world.restored(Store("main"), snapshot).agent) == content(agent)
    turn(world, agent, lambda a, ctx: a.orders.clear())
    snapshot = world.epoch(4)["store/main"]
    assert content(world.restored(Store("main"), snapshot).agent) == content(agent)


@pytest.mark.slow
def test_overlays_are_merged_and_a_field_is_written_anew_when_much_has_changed():
    """Many epochs of small changes: the number of segments stays bounded, and so do the bytes per epoch."""
    world, agent = store(fill)
    source = random.Random(2)
    world.epoch(1)
    full = world.written_bytes
    written = []
    for number in range(2, 80):

        def change(agent, ctx):
            for key in source.sample(sorted(agent.orders), 3):
                agent.orders[key].cents += 1
            key = source.choice(sorted(agent.orders))
            del agent.orders[key]
            agent.orders[f"n{ctx.message_id.hex()}"] = Order("n", 1, "x" * 400)

        turn(world, agent, change)
        snapshot = world.epoch(number, commit=source.random() < 0.8)["store/main"]
        written.append(world.written_bytes)
        orders = next(field for field in snapshot.fields if field.name == "orders")
        assert len(orders.segments) <= 4 + OVERLAYS_MAX + 1
        if number % 7 == 0:
            assert content(world.restored(Store("main"), snapshot).agent) == content(agent)
    assert sum(written) / len(written) < full / 20


def test_overlapping_epochs_hold_each_their_own_cut():
    world, agent = store(fill)
    first_content = content(agent)
    first = world.capturer.freeze(1, world.hosts.values(), now=0)
    turn(world, agent, lambda a, ctx: (setattr(a, "spent", 1), a.orders.pop("k7"), a.log.append("x")))
    second_content = content(agent)
    second = world.capturer.freeze(2, world.hosts.values(), now=0)
    turn(world, agent, lambda a, ctx: (setattr(a, "spent", 2), a.orders.pop("k8"), a.log.append("y")))
    later, earlier = second.slices(), first.slices()
    for _ in range(3):
        for slices in (later, earlier):
            world.drive(iter([next(slices)]))
    world.drive(later)
    turn(world, agent, lambda a, ctx: (setattr(a, "spent", 3), a.orders.pop("k9"), a.log.append("z")))
    world.drive(earlier)
    for frozen in (second, first):
        world.drive(frozen.channel_slices([]))
    restored = [world.restored(Store("main"), frozen.agent_snapshots()[0]).agent for frozen in (first, second)]
    assert [content(agent) for agent in restored] == [first_content, second_content]
    world.capturer.committed(2)
    world.capturer.committed(1)
    assert content(world.restored(Store("main"), world.epoch(3)["store/main"]).agent) == content(agent)


def test_three_open_cuts_keep_what_each_still_needs():
    """Reading the oldest must not let go of what the newer ones need."""
    world, agent = store(lambda a, ctx: a.counts.update({1: 0}))
    frozen, contents = [], []
    for number in (1, 2, 3):
        turn(world, agent, lambda a, ctx, n=number: (a.counts.update({1: n, n + 10: n}), setattr(a, "spent", n)))
        contents.append(content(agent))
        frozen.append(world.capturer.freeze(number, world.hosts.values(), now=0))
    turn(world, agent, lambda a, ctx: (a.counts.update({1: 99}), setattr(a, "spent", 99)))
    for part, expected in zip(frozen, contents, strict=True):
        world.drive(part.slices())
        world.drive(part.channel_slices([]))
        assert content(world.restored(Store("main"), part.agent_snapshots()[0]).agent) == expected


def test_an_epoch_compares_with_the_base_that_it_was_frozen_over():
    """The second commits while the third and fourth are open: what had changed before it is still news to the fourth."""
    world, agent = store(fill)
    world.epoch(1)
    frozen, contents = {}, {}
    for number in (2, 3, 4):
        turn(world, agent, lambda a, ctx, n=number: (a.counts.update({n: -n}), a.log.append(str(n))))
        contents[number] = content(agent)
        frozen[number] = world.capturer.freeze(number, world.hosts.values(), now=0)
    for number, part in frozen.items():
        world.drive(part.slices())
        world.drive(part.channel_slices([]))
        assert content(world.restored(Store("main"), part.agent_snapshots()[0]).agent) == contents[number]
        world.capturer.committed(number)


def test_blocks_of_small_items_share_chunks_and_stay_right_as_they_grow():
    class Numbers(Agent, kind="numbers"):
        items = value(list[int], default=[])
        grow = 0

        @handler
        def on_do(self, ctx: Context, do: Do) -> None:
            self.items.extend(range(self.grow))

    numbers = Numbers("main")
    world = AgentWorld(numbers)
    for epoch in range(1, 40):
        numbers.grow = 32 if epoch % 3 else 31
        world.handle(Do())
        snapshot = world.epoch(epoch)["numbers/main"]
        assert world.restored(Numbers("main"), snapshot).agent.items == numbers.items
        assert len(snapshot.fields[0].segments[0]) <= 2 + len(numbers.items) // 32


def test_a_dropped_epoch_ends_its_slices_and_lets_the_next_begin():
    world, agent = store(fill)
    first = world.capturer.freeze(1, world.hosts.values(), now=0)
    slices = first.slices()
    next(slices)
    world.capturer.dropped(1)
    world.capturer.dropped(1)
    assert world.clock.open == []
    assert content(world.restored(Store("main"), world.epoch(2)["store/main"]).agent) == content(agent)


def test_an_epoch_is_frozen_once():
    world, _ = store()
    world.capturer.freeze(1, world.hosts.values(), now=0)
    with pytest.raises(LocalProtocolError, match="frozen before"):
        world.capturer.freeze(1, world.hosts.values(), now=0)
    assert world.capturer.open_epochs == (1,)


def test_an_unknown_epoch_may_end():
    world, _ = store()
    world.capturer.committed(9)
    world.capturer.dropped(9)


def test_the_local_snapshot_names_channels_and_unrouted_messages():
    world, _ = store(fill)
    messages = [world.envelope(Do(n))[1] for n in range(3)]
    items = (encode_message_item(messages[0]), encode_marker_item(4), encode_message_item(messages[1]))
    channels = [
        RecordedChannel(source="z", received=5, closed_at=5, digest="b3:" + "0" * 64, items=()),
        RecordedChannel(source="a", received=2, closed_at=5, digest="b3:" + "1" * 64, items=items),
    ]
    frozen = world.capturer.freeze(3, world.hosts.values(), unrouted=[messages[2]], now=0)
    world.drive(frozen.slices())
    world.drive(frozen.channel_slices(channels))
    snapshot = frozen.local_snapshot(
        cluster="shop",
        participant="p",
        incarnation=1,
        session=2,
        topology=3,
        outgoing=[OutgoingCut(target="a", sent=1, digest="b3:" + "2" * 64)],
        channels=channels,
    )
    assert [(cut.source, cut.items, cut.messages) for cut in snapshot.incoming] == [("a", 3, 2), ("z", 0, 0)]
    assert world.read(snapshot.incoming[0].chunks) == b"".join(items)
    assert split_envelopes(world.read(snapshot.unrouted), "unrouted") == [messages[2]]
    assert snapshot.unrouted_count == 1
    assert snapshot.state_bytes > 300_000
    assert decode_local_snapshot(encode_local_snapshot(snapshot)) == snapshot


def test_a_mailbox_that_is_none_is_corrupt():
    assert split_envelopes(b"", "x") == []
    assert split_timers(b"", "x") == []
    for data in (b"\xc1", b"\x01", b"\x91"):
        with pytest.raises(ObjectCorrupt):
            split_envelopes(data, "x")
        with pytest.raises(ObjectCorrupt):
            split_timers(data, "x")


def test_a_step_is_small_and_so_is_the_cut():
    """In work, not in time: the cut touches no field, and no step puts more than two pieces."""
    world, _ = store(fill)
    frozen = world.capturer.freeze(1, world.hosts.values(), now=0)
    written = 0
    for _ in frozen.slices():
        assert frozen._writer.written_bytes - written <= 160 * 1024
        written = frozen._writer.written_bytes
    assert written > 500_000


@pytest.mark.slow
def test_memory_for_an_epoch_is_a_small_part_of_the_state():
    """Packs are given away while encoding goes on."""
    agents = [Store(f"s{n}") for n in range(20)]
    world = AgentWorld(*agents)
    source = random.Random(3)
    for agent in agents:
        turn(
            world,
            agent,
            lambda a, ctx: a.orders.update({f"k{n}": Order("k", n, source.randbytes(512).hex()) for n in range(1000)}),
        )
    tracemalloc.start()
    frozen = world.capturer.freeze(1, world.hosts.values(), now=0)
    state = 0
    for pack in frozen.slices():
        state += 0 if pack is None else len(pack.data)
    for pack in frozen.channel_slices([]):
        state += 0 if pack is None else len(pack.data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert frozen._writer.written_bytes > 20_000_000
    assert peak < 0.30 * frozen._writer.written_bytes


@pytest.mark.parametrize("encoded", [True, False], ids=["encoded", "aborted before it was encoded"])
def test_a_long_run_of_aborted_epochs_is_not_remembered_one_by_one(encoded: bool):
    """A store is away for hours: what is kept of the past grows with the keys that changed, not with the epochs."""
    world, agent = store(fill)
    world.epoch(1)
    cells = world.host.state.cells
    for number in range(2, 200):
        turn(
            world, agent, lambda a, ctx, n=number: (a.counts.update({n % 7: n, 500 + n % 5: n}), setattr(a, "spent", n))
        )
        if encoded:
            world.epoch(number, commit=False)
        else:
            world.capturer.freeze(number, world.hosts.values(), now=0)
            turn(world, agent, lambda a, ctx, n=number: a.counts.update({3: -n}))
            world.capturer.dropped(number)
    for cell in cells.values():
        assert len(cell.history) <= 2
        assert not any(holds_old for _, _, holds_old in cell.history[:-1])
    snapshot = world.epoch(200)["store/main"]
    assert content(world.restored(Store("main"), snapshot).agent) == content(agent)
    assert world.new_bytes < 10_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_what_is_kept_of_the_past_is_enough_whatever_epochs_do(seed: int):
    """Epochs that overlap, commit, abort before or after they are encoded, in any order, against whole copies."""
    source = random.Random(seed)
    world, agent = store(fill)
    open_parts: dict[int, list] = {}
    for number in range(1, 40):
        for _ in range(source.randrange(3)):
            key = source.randrange(12)

            def change(a, ctx, key=key, n=number):
                a.spent += 1
                a.orders[f"k{key}"] = Order("o", n, "y" * source.randrange(9))
                if source.random() < 0.3:
                    a.counts.pop(key, None)
                else:
                    a.counts[key] = n
                if source.random() < 0.5:
                    a.log.append(str(n))

            turn(world, agent, change)
        part = world.capturer.freeze(number, world.hosts.values(), now=0)
        open_parts[number] = [part, content(agent), False]
        while open_parts and (len(open_parts) > 3 or source.random() < 0.6):
            chosen = source.choice(sorted(open_parts))
            part, expected, encoded = open_parts[chosen]
            if not encoded and source.random() < 0.7:
                world.drive(part.slices())
                world.drive(part.channel_slices([]))
                assert content(world.restored(Store("main"), part.agent_snapshots()[0]).agent) == expected
                open_parts[chosen][2] = encoded = True
            if source.random() < 0.7:
                del open_parts[chosen]
                commit = encoded and source.random() < 0.6
                (world.capturer.committed if commit else world.capturer.dropped)(chosen)
    for cell in world.host.state.cells.values():
        assert len(cell.history) <= 10, "as many as cuts that were of interest at once"
