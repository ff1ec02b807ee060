"""Runs the scripts of the Princeton assignment (formats and rules: the page beside the vectors) on the project's machines."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.shared import shared_path
from tests.snapshot_world import World, channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from protocol.ids import ChannelId
    from protocol.snapshot import SnapshotMachine

CASES = {
    "2nodes-simple": ("2nodes.top", ["2nodes-simple.snap"]),
    "2nodes-message": ("2nodes.top", ["2nodes-message.snap"]),
    "3nodes-simple": ("3nodes.top", ["3nodes-simple.snap"]),
    "3nodes-bidirectional-messages": ("3nodes.top", ["3nodes-bidirectional-messages.snap"]),
    "8nodes-sequential-snapshots": (
        "8nodes.top",
        ["8nodes-sequential-snapshots0.snap", "8nodes-sequential-snapshots1.snap"],
    ),
}


@dataclass
class Snap:
    """One `.snap` file."""

    id: int
    states: dict[str, int] = field(default_factory=dict)
    channels: dict[ChannelId, list[int]] = field(default_factory=dict)


def fields(name: str) -> Iterator[list[str]]:
    for line in shared_path(f"vectors/cos418/{name}").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.split()


def read_top(name: str) -> tuple[dict[str, int], list[ChannelId]]:
    lines = fields(name)
    count = int(next(lines)[0])
    states = {row[0]: int(row[1]) for row in (next(lines) for _ in range(count))}
    return states, [channel(*row) for row in lines if row[0] != row[1]]


def read_snap(name: str) -> Snap:
    lines = fields(name)
    snap = Snap(int(next(lines)[0]))
    for row in lines:
        if len(row) == 2:
            snap.states[row[0]] = int(row[1])
        else:
            amount = int(row[2].removeprefix("token(").removesuffix(")"))
            snap.channels.setdefault(channel(row[0], row[1]), []).append(amount)
    return snap


def recorded_draws() -> list[int]:
    return json.loads(shared_path("vectors/cos418/delays.json").read_text())["draws"]


class Cos418World(World):
    """Adds ticks and delays: one draw for each item sent, at most one delivery a tick for each sender."""

    def __init__(self, top: str, draws: Iterable[int], *, machine: Callable[..., SnapshotMachine]) -> None:
        states, channels = read_top(top)
        self.draws = iter(draws)
        self.time = 0
        self.due: dict[ChannelId, deque[int]] = {c: deque() for c in channels}
        super().__init__(states, channels, machine=machine)

    def left(self, c: ChannelId) -> None:
        self.due[c].append(self.time + 1 + next(self.draws))

    def tick(self) -> None:
        self.time += 1
        for source in sorted(self.processes):
            for c in self.processes[source].sending:  # sorted by target
                if self.due[c] and self.due[c][0] <= self.time:
                    self.due[c].popleft()
                    # The amount is in the payload: look before it is delivered.
                    frame = self.queues[c][0]
                    is_token = frame.body[0] == 1
                    self.deliver(c, amount=int(frame.body[5:]) if is_token else 0)
                    break

    def run(self, events: str, *, ticks_max: int = 2_000) -> int:
        """Play a script until all its snapshots are complete.

        Returns:
            How many snapshots there are. Snapshot ``n`` is epoch ``n + 1``.
        """
        snapshots = 0
        for row in fields(events):
            match row[0]:
                case "send":
                    self.send(row[1], row[2], row[3].encode(), int(row[3]))
                case "snapshot":
                    snapshots += 1
                    self.start(row[1], snapshots)
                case "tick":
                    for _ in range(int(row[1]) if len(row) > 1 else 1):
                        self.tick()
        while not all(self.complete(epoch) for epoch in range(1, snapshots + 1)):
            assert self.time < ticks_max, "a snapshot never ends"
            self.tick()
        return snapshots

    def snap(self, epoch: int) -> Snap:
        channels = {c: [int(payload) for payload in held] for c, held in self.in_flight(epoch).items() if held}
        return Snap(epoch - 1, self.states(epoch), channels)
