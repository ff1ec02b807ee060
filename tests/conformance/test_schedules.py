"""Executions with known snapshots: others' simulator, a machine-checked proof, and overlapping epochs."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.snapshot import SnapshotMachine
from tests.conformance.schedule_runner import cases, run


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["name"])
def test_each_execution_gives_its_snapshots(case: dict[str, Any]) -> None:
    """States, channel states in order, and the very operation after which each epoch is complete."""
    run(case, SnapshotMachine)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["name"])
def test_each_snapshot_passes_the_cut_check_and_fits_the_definition(case: dict[str, Any]) -> None:
    world = run(case, SnapshotMachine)
    for epoch in (int(text) + 1 for text in case["expected"]):
        assert world.violation(epoch) is None
        assert (world.states(epoch), world.in_flight(epoch)) == world.expected_cut(epoch)


def test_there_are_as_many_cases_as_the_page_says() -> None:
    assert len(cases()) == 27 + 2 + 10
