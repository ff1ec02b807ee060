"""One participant, from Apache Flink's tests of unaligned checkpoints: plain, with channels that end, with epochs given up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.ids import Epoch, ParticipantId
from protocol.items import KIND_MESSAGE, encode_message_item, message_payload
from protocol.snapshot import (
    ChannelClosed,
    ChannelEnded,
    EpochAborted,
    EpochDropped,
    ItemsReceived,
    LocalPartComplete,
    MarkerReceived,
    SnapshotMachine,
    TopologySet,
)
from tests.shared import shared_path
from tests.snapshot_world import NOW, channel

CASES = json.loads(shared_path("vectors/flink-unaligned/cases.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_each_epoch_holds_what_flink_expects(case: dict[str, Any]) -> None:
    inputs = [channel(f"input-{index}", "operator") for index in range(case["inputs"])]
    machine = SnapshotMachine(ParticipantId("operator"))
    machine.step(TopologySet(incoming=tuple(inputs), outgoing=()), NOW)
    last = dict.fromkeys(inputs, 0)
    closed: dict[int, list[ChannelClosed]] = {}
    status: dict[int, str] = {}
    for place, op in enumerate(case["ops"]):
        c = inputs[op[1]]
        match op[0]:
            case "data":
                last[c] += 1
                item = encode_message_item(str(place).encode())
                effects = machine.step(ItemsReceived(channel=c, first=last[c], items=[item]), NOW)
            case "marker":
                last[c] += 1
                effects = machine.step(MarkerReceived(channel=c, epoch=Epoch(op[2]), number=last[c]), NOW)
            case "close":
                last[c] += 1
                effects = machine.step(ChannelEnded(channel=c, number=last[c]), NOW)
            case "cancel":
                effects = machine.step(EpochAborted(epoch=Epoch(op[2]), ended_through=op[2]), NOW)
                status.setdefault(op[2], "aborted")
            case _:
                raise AssertionError(f"an operation that nobody wrote a rule for: {op}")
        for effect in effects:
            if isinstance(effect, ChannelClosed):
                closed.setdefault(effect.epoch, []).append(effect)
            elif isinstance(effect, LocalPartComplete):
                status[effect.epoch] = "complete"
            elif isinstance(effect, EpochDropped):
                status[effect.epoch] = "aborted"
                closed.pop(effect.epoch, None)
    assert status == {int(text): expected["status"] for text, expected in case["expected"].items()}
    for text, expected in case["expected"].items():
        if expected["status"] == "complete":
            parts = closed[int(text)]
            assert sorted(part.channel for part in parts) == sorted(inputs)
            held = [[int(message_payload(item)) for item in part.items if item[0] == KIND_MESSAGE] for part in parts]
            assert all(positions == sorted(positions) for positions in held)
            assert sorted(position for positions in held for position in positions) == expected["in_flight"]
    assert not machine.open_epochs
    assert not machine.recording


def test_every_kind_of_case_is_there() -> None:
    assert {case["kind"] for case in CASES} == {"plain", "close", "cancel"}
