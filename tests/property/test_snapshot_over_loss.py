"""Snapshots on channels that lose, repeat and reorder: batches, markers inside them, reconnects; the cut is still the cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.ids import ChannelId, Instant
from protocol.items import KIND_MARKER, control_positions, item_kind, marker_epoch, message_payload, split_items
from protocol.snapshot import ItemsReceived, MarkerReceived
from tests.property.snapshot_schedules import NAMES, judge
from tests.snapshot_world import World, channel

if TYPE_CHECKING:
    from protocol.channel import OutFrame

ACTIONS = ("send", "send", "send", "flush", "flush", "arrive", "arrive", "arrive", "repeat", "lose", "break", "start")
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 10_000)), max_size=150)


class LossyWorld(World):
    """Frames arrive in any order, never or twice; a frame holds what was put since the last flush."""

    def __init__(self, names: str) -> None:
        channels = [channel(s, t) for s in names for t in names if s != t]
        super().__init__(dict.fromkeys(names, 100), channels)
        self.now = Instant(0)
        self.messages = 0

    def put(self, c: ChannelId, item: bytes) -> None:
        self.processes[c.source].sending[c].put([item])

    def flush(self, c: ChannelId) -> None:
        self.queues[c].extend(self.processes[c.source].sending[c].frames(self.now))

    def arrive(self, c: ChannelId, frame: OutFrame) -> None:
        """As a driver does it: piecewise around markers, each piece fed before the channel advances over it."""
        receiver = self.processes[c.target]
        end = receiver.receiving[c]
        for first, items in end.accept(frame.first_seq, split_items(frame.body, frame.count)):
            start = 0
            for position in [*control_positions(items), len(items)]:
                run = items[start:position]
                if run:
                    if receiver.machine.records(c):
                        self.step(c.target, ItemsReceived(channel=c, first=first + start, items=run))
                    end.advance(run)
                    for payload in map(message_payload, run):
                        receiver.state += payload[-1]
                        self.log.append(("receive", c, payload, payload[-1]))
                if position < len(items):
                    item = items[position]
                    assert item_kind(item) == KIND_MARKER
                    marker = MarkerReceived(channel=c, epoch=marker_epoch(item), number=first + position)
                    self.step(c.target, marker)
                    end.advance([item])
                start = position + 1
        if end.ack_due:
            self.processes[c.source].sending[c].acknowledged(end.ack(), self.now)

    def act(self, action: str, number: int, epochs: int) -> None:
        c = self.channels[number % len(self.channels)]
        queue = self.queues[c]
        match action:
            case "send":
                self.messages += 1
                amount = 1 + number % 3
                self.send(c.source, c.target, self.messages.to_bytes(4, "big") + bytes([amount]), amount)
            case "flush":
                self.flush(c)
            case "arrive" if queue:
                queue.rotate(number % 3)
                self.arrive(c, queue.popleft())
            case "repeat" if queue:
                self.arrive(c, queue[0])
            case "lose" if queue:
                queue.popleft()
            case "break":
                if number % 2:
                    queue.clear()
                self.processes[c.source].sending[c].reconnected(self.now)
            case "start":
                self.start(c.source, 1 + number % epochs)

    def heal(self, epochs: int) -> None:
        for name in self.processes:
            for epoch in range(1, epochs + 1):
                self.start(name, epoch)
        for c in self.channels:
            self.processes[c.source].sending[c].reconnected(self.now)
        while any(process.sending[c].unacknowledged for process in self.processes.values() for c in process.sending):
            for c in self.channels:
                self.flush(c)
                while self.queues[c]:
                    self.arrive(c, self.queues[c].popleft())


@settings(max_examples=120)
@given(STEPS, st.integers(2, 4), st.integers(1, 3))
def test_every_epoch_is_a_cut_whatever_the_network_does(steps: list[tuple[str, int]], size: int, epochs: int):
    world = LossyWorld(NAMES[:size])
    for action, number in steps:
        world.act(action, number, epochs)
    world.heal(epochs)
    judge(world, epochs)
    for epoch in range(1, epochs + 1):
        assert world.violation(epoch) is None
    sent = [entry[1:] for entry in world.log if entry[0] == "send"]
    received = [entry[1:] for entry in world.log if entry[0] == "receive"]
    for c in world.channels:
        assert [entry for entry in received if entry[0] == c] == [entry for entry in sent if entry[0] == c]
