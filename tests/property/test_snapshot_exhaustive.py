"""Every interleaving of a small system, not a sample: two overlapping epochs, a message each way, who starts and who hears."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.property.snapshot_schedules import judge
from tests.snapshot_world import World, channel

if TYPE_CHECKING:
    from collections.abc import Iterator

PQ, QP = channel("p", "q"), channel("q", "p")
Act = tuple[str, ...]


def play(acts: list[Act], names: str, channels: list) -> World:
    world = World(dict.fromkeys(names, 10), channels)
    for act in acts:
        match act:
            case ("send", source, target):
                world.send(source, target, f"{source}{len(world.log)}".encode() + b"\x01", 1)
            case ("start", name, epoch):
                world.start(name, int(epoch))
            case ("deliver", source, target):
                c = channel(source, target)
                is_message = world.queues[c][0].body[0] == 1
                world.deliver(c, amount=1 if is_message else 0)
    return world


def runs(names: str, channels: list, todo: list[Act]) -> Iterator[World]:
    """All complete runs: each order of what is to do, with each placement of the deliveries."""
    stack: list[tuple[list[Act], list[Act]]] = [([], todo)]
    while stack:
        done, left = stack.pop()
        world = play(done, names, channels)
        ahead = [("deliver", *c) for c in channels if world.queues[c]]
        if not ahead and not left:
            yield world
            continue
        stack += [([*done, act], left) for act in ahead]
        # Equal acts lead to equal runs: take each once.
        stack += [
            ([*done, act], [a for i, a in enumerate(left) if i != left.index(act)]) for act in dict.fromkeys(left)
        ]


@pytest.mark.parametrize(
    ("names", "channels", "todo", "count"),
    [
        ("pq", [PQ, QP], [("send", "p", "q"), ("send", "q", "p"), ("start", "p", "1")], 102),
        ("pq", [PQ, QP], [("send", "p", "q"), ("start", "p", "1"), ("start", "q", "1")], 80),
        ("pq", [PQ, QP], [("send", "p", "q"), ("start", "p", "1"), ("start", "q", "2")], 173),
        ("pq", [PQ, QP], [("send", "q", "p"), ("start", "p", "1"), ("start", "p", "2")], 150),
        (
            "pqr",
            [PQ, channel("q", "r"), channel("r", "p")],
            [("send", "p", "q"), ("send", "q", "r"), ("start", "p", "1")],
            206,
        ),
    ],
    ids=["one epoch", "one epoch, two starts", "two epochs", "two epochs from one start", "ring of three"],
)
def test_every_interleaving_gives_the_cut_by_its_definition(names, channels, todo, count):
    epochs = max(int(act[2]) for act in todo if act[0] == "start")
    seen = 0
    for world in runs(names, channels, todo):
        seen += 1
        judge(world, epochs)
        for epoch in range(1, epochs + 1):
            assert world.violation(epoch) is None
    assert seen == count, "a change of this number is a change of what can happen: explain it"
