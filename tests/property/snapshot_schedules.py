"""Random executions of a small cluster, from a list of integers that Hypothesis can shrink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from protocol.ids import ChannelId, Epoch
from protocol.items import KIND_MARKER, item_kind, marker_epoch
from protocol.snapshot import MarkerReceived, SnapshotMachine
from tests.snapshot_world import World, channel

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = "abcde"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A topology, how many epochs, and choices that drive the run."""

    participants: str
    channels: tuple[ChannelId, ...]
    epochs: int
    start_everywhere: bool
    ends: bool = False
    """Some channels end in order while the run goes on; start orders then go to all, as no marker follows an end."""
    choices: tuple[int, ...]


@st.composite
def schedules(draw: st.DrawFn, *, ends: bool = False) -> Schedule:
    participants = NAMES[: draw(st.integers(2, 5))]
    pairs = [channel(s, t) for s in participants for t in participants if s != t]
    channels = draw(st.lists(st.sampled_from(pairs), unique=True, min_size=1))
    return Schedule(
        participants=participants,
        channels=tuple(sorted(channels)),
        epochs=draw(st.integers(1, 3)),
        start_everywhere=ends or draw(st.booleans()),
        ends=ends,
        choices=tuple(draw(st.lists(st.integers(0, 10_000), min_size=20, max_size=150))),
    )


class RepeatingWorld(World):
    """Feeds every marker to its machine twice: to be an outcome without effect."""

    def deliver(self, c: ChannelId, *, amount: int = 0) -> tuple[str, bytes | int]:
        frame = self.queues[c][0]
        what = super().deliver(c, amount=amount)
        if item_kind(frame.body) == KIND_MARKER:
            again = MarkerReceived(channel=c, epoch=Epoch(marker_epoch(frame.body)), number=frame.first_seq)
            assert self.step(c.target, again) == ()
        return what


def play(
    schedule: Schedule,
    *,
    machine: Callable[..., SnapshotMachine] = SnapshotMachine,
    world_type: type[World] = World,
    repeat_orders: bool = False,
) -> World:
    """Run to the end: all orders obeyed, all channels empty.

    Messages move 1 to 3 units. Each epoch's start orders go to all, or to one participant of each source component, at
    moments that the choices pick; those that were never picked come at the end.
    """
    world = world_type(dict.fromkeys(schedule.participants, 100), schedule.channels, machine=machine)
    starters = world.topology.starters("all" if schedule.start_everywhere else "minimal")
    orders = [(name, epoch) for epoch in range(1, schedule.epochs + 1) for name in starters]
    obeyed: list[tuple[str, int]] = []
    messages = 0
    open_channels = list(schedule.channels)

    def deliver(c: ChannelId) -> None:
        body = world.queues[c][0].body
        is_message = item_kind(body) == 1
        world.deliver(c, amount=body[-1] if is_message else 0)

    def obey(place: int) -> None:
        name, epoch = orders.pop(place % len(orders))
        world.start(name, epoch)
        obeyed.append((name, epoch))

    for choice in schedule.choices:
        kind, rest = choice % 10, choice // 10
        if kind < 4 and open_channels:
            c = open_channels[rest % len(open_channels)]
            messages += 1
            amount = 1 + rest % 3
            world.send(c.source, c.target, messages.to_bytes(4, "big") + bytes([amount]), amount)
        elif kind < 8:
            full = [c for c in schedule.channels if world.queues[c]]
            if full:
                deliver(full[rest % len(full)])
        elif kind == 8 and orders:
            obey(rest)
        elif schedule.ends and open_channels and rest % 3 == 0:
            world.end(open_channels.pop(rest % len(open_channels)))
        elif repeat_orders and obeyed:
            assert world.start(*obeyed[rest % len(obeyed)]) == ()
    while orders:
        obey(0)
    while any(world.queues.values()):
        for c in schedule.channels:
            if world.queues[c]:
                deliver(c)
    return world


def judge(world: World, epochs: int) -> None:
    """What must hold for every epoch of a finished run; nothing here asks the machines for their opinion.

    Raises:
        AssertionError: With the epoch and what is wrong.
    """
    for epoch in range(1, epochs + 1):
        assert world.complete(epoch), f"epoch {epoch} never ends"
        states, channels = world.states(epoch), world.in_flight(epoch)
        moving = sum(payload[-1] for payloads in channels.values() for payload in payloads)
        assert sum(states.values()) + moving == world.total, f"epoch {epoch} does not conserve the total"
        assert (states, channels) == world.expected_cut(epoch), f"epoch {epoch} is not the cut by its definition"
