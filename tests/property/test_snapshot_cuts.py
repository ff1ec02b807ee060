"""The snapshot machine under random topologies, schedules and overlapping epochs, against the definition of a cut."""

from __future__ import annotations

from hypothesis import given, settings

from tests.property.snapshot_schedules import RepeatingWorld, Schedule, judge, play, schedules

EXAMPLES = settings(max_examples=150)


@EXAMPLES
@given(schedules())
def test_every_epoch_is_the_cut_by_its_definition(schedule: Schedule):
    world = play(schedule)
    judge(world, schedule.epochs)


@EXAMPLES
@given(schedules())
def test_every_epoch_passes_the_cut_check(schedule: Schedule):
    """Digests of both ends included: other epochs' markers are recorded where they belong."""
    world = play(schedule)
    for epoch in range(1, schedule.epochs + 1):
        assert world.violation(epoch) is None


@settings(max_examples=60)
@given(schedules())
def test_repeated_markers_and_orders_change_nothing(schedule: Schedule):
    plain = play(schedule)
    repeated = play(schedule, world_type=RepeatingWorld, repeat_orders=True)
    judge(repeated, schedule.epochs)
    for epoch in range(1, schedule.epochs + 1):
        assert repeated.snapshots(epoch) == plain.snapshots(epoch)


@settings(max_examples=60)
@given(schedules())
def test_epochs_do_not_disturb_the_run(schedule: Schedule):
    """The application's history is the same; the same run twice is the same to the byte."""
    one, two = play(schedule), play(schedule)
    assert one.log == two.log
    for process in one.processes.values():
        assert not process.machine.recording
        assert process.machine.statistics()["recorded_bytes_held"] == 0
    moved = [entry[1:] for entry in one.log if entry[0] == "receive"]
    assert sorted(moved) == sorted(entry[1:] for entry in one.log if entry[0] == "send")


@settings(max_examples=60)
@given(schedules())
def test_each_channel_carries_one_marker_for_each_epoch(schedule: Schedule):
    """The paper's cost: as many markers as channels."""
    world = play(schedule)
    for name, process in world.processes.items():
        markers = process.machine.statistics()["markers_received"]
        assert markers == schedule.epochs * len(world.processes[name].receiving)


@EXAMPLES
@given(schedules(ends=True))
def test_orderly_ends_of_channels_leave_every_epoch_a_cut(schedule: Schedule):
    """An end is the marker of every open epoch and of all later ones, at both of its ends."""
    world = play(schedule)
    judge(world, schedule.epochs)
    for epoch in range(1, schedule.epochs + 1):
        assert world.violation(epoch) is None
