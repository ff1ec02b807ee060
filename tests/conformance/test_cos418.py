"""Vectors of the Princeton assignment: each expected snapshot exactly, and the rules under other delays."""

from __future__ import annotations

from itertools import cycle

import pytest

from protocol.snapshot import SnapshotMachine
from tests.conformance.cos418_runner import CASES, Cos418World, read_snap, recorded_draws
from tests.shared import shared_path


def test_every_script_of_the_folder_is_a_case() -> None:
    folder = shared_path("vectors/cos418")
    assert {path.stem for path in folder.glob("*.events")} == set(CASES)
    assert {path.name for path in folder.glob("*.snap")} == {name for _, names in CASES.values() for name in names}


@pytest.mark.parametrize("case", CASES)
def test_each_expected_snapshot_is_reproduced_exactly(case: str) -> None:
    top, expected = CASES[case]
    world = Cos418World(top, recorded_draws(), machine=SnapshotMachine)
    assert world.run(f"{case}.events") == len(expected)
    for name in expected:
        snap = read_snap(name)
        assert world.snap(snap.id + 1) == snap


@pytest.mark.parametrize("case", CASES)
def test_each_snapshot_passes_the_cut_check_and_conserves_the_tokens(case: str) -> None:
    top, expected = CASES[case]
    world = Cos418World(top, recorded_draws(), machine=SnapshotMachine)
    world.run(f"{case}.events")
    for epoch in range(1, len(expected) + 1):
        assert world.violation(epoch) is None
        snap = world.snap(epoch)
        assert sum(snap.states.values()) + sum(map(sum, snap.channels.values())) == world.total


@pytest.mark.parametrize("case", CASES)
def test_under_other_delays_each_snapshot_is_the_cut_by_its_definition(case: str) -> None:
    """The files draw one sequence of delays; shifted ones reach interleavings that the expected files do not."""
    top, expected = CASES[case]
    draws = recorded_draws()
    for shift in range(1, 60):
        world = Cos418World(top, cycle(draws[shift:]), machine=SnapshotMachine)
        world.run(f"{case}.events")
        for epoch in range(1, len(expected) + 1):
            assert world.violation(epoch) is None
            assert (world.states(epoch), world.in_flight(epoch)) == world.expected_cut(epoch)
