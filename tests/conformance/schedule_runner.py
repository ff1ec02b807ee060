"""Runs executions with known snapshots (formats: the page beside the vectors) on the project's machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.shared import shared_path
from tests.snapshot_world import World, channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.snapshot import SnapshotMachine

FILES = ("single", "others", "overlapping-made-here")


def cases() -> list[dict[str, Any]]:
    return [case for name in FILES for case in json.loads(shared_path(f"vectors/schedules/{name}.json").read_text())]


def run(case: dict[str, Any], machine: Callable[..., SnapshotMachine], world_type: type[World] = World) -> World:
    """Apply the operations one by one; everything that the case states is asserted.

    Raises:
        AssertionError: The machines do not do what the case says: an item is not the next, an epoch completes too early,
            late or never, or holds something else.
    """
    numeric = isinstance(case["processes"], dict)
    names = list(case["processes"])
    world = world_type(
        dict(case["processes"]) if numeric else dict.fromkeys(names, 0),
        [channel(*pair) for pair in case["channels"]],
        machine=machine,
    )
    labels = dict(case.get("initial") or {})
    recorded: dict[tuple[str, int], str | None] = {}
    amounts: dict[str, int] = {}
    complete_after: dict[int, int] = {}
    for place, op in enumerate(case["ops"], start=1):
        log_length = len(world.log)
        match op:
            case ["start", name, snapshot]:
                world.start(name, snapshot + 1)
            case ["send", source, target, message, *rest]:
                amounts[message] = rest[0] if rest and isinstance(rest[0], int) else 0
                world.send(source, target, message.encode(), amounts[message])
                labels.update(rest[0] if rest and isinstance(rest[0], dict) else {})
            case ["deliver", source, target, "app", message, *rest]:
                what = world.deliver(channel(source, target), amount=amounts[message])
                assert what == ("message", message.encode()), f"operation {place}: {what}"
                labels.update(rest[0] if rest else {})
            case ["deliver", source, target, "marker", snapshot]:
                what = world.deliver(channel(source, target))
                assert what == ("marker", snapshot + 1), f"operation {place}: {what}"
            case _:
                raise AssertionError(f"an operation that nobody wrote a rule for: {op}")
        for entry in world.log[log_length:]:
            if entry[0] == "record":
                recorded[entry[1], entry[2]] = labels.get(entry[1])
        for snapshot in map(int, case["expected"]):
            if snapshot not in complete_after and world.complete(snapshot + 1):
                complete_after[snapshot] = place
    for text, expected in case["expected"].items():
        snapshot, epoch = int(text), int(text) + 1
        assert complete_after.get(snapshot) == expected["complete_after_op"]
        if expected["states"] is not None:
            states = world.states(epoch) if numeric else {name: recorded[name, epoch] for name in names}
            assert states == expected["states"]
        held = {str(c): [payload.decode() for payload in items] for c, items in world.in_flight(epoch).items()}
        assert held == {
            name: [entry[0] if isinstance(entry, list) else entry for entry in items]
            for name, items in expected["channels"].items()
        }
    return world
