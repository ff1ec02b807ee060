"""A cut in which any one fact is spoilt is refused, and a good one never is."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.cut import check_cut, violations
from protocol.ids import ParticipantId
from tests.property.snapshot_schedules import Schedule, play, schedules


@settings(max_examples=150)
@given(schedules(), st.data())
def test_one_changed_count_or_digest_is_refused_and_its_channel_is_named(schedule: Schedule, data):
    world = play(schedule)
    snapshots = world.snapshots(1)
    assert check_cut(world.topology, snapshots) is None
    c = data.draw(st.sampled_from(schedule.channels))
    at_source = data.draw(st.booleans())
    name = c.source if at_source else c.target
    snapshot = snapshots[ParticipantId(name)]
    ends = list(snapshot.outgoing if at_source else snapshot.incoming)
    place = next(
        index
        for index, end in enumerate(ends)
        if (c.target if at_source else c.source) in (getattr(end, "target", ""), getattr(end, "source", ""))
    )
    fact = data.draw(st.sampled_from(["sent", "digest"] if at_source else ["received", "closed_at", "items", "digest"]))
    old = getattr(ends[place], fact)
    new = data.draw(st.text(max_size=3) if fact == "digest" else st.integers(-3, 20).filter(lambda value: value != old))
    ends[place] = msgspec.structs.replace(ends[place], **{fact: new})
    field = "outgoing" if at_source else "incoming"
    spoilt = {**snapshots, ParticipantId(name): msgspec.structs.replace(snapshot, **{field: tuple(ends)})}
    found = check_cut(world.topology, spoilt)
    assert found is not None
    assert found.channel == c
    assert list(violations(world.topology, spoilt)) == [found]


@settings(max_examples=60)
@given(schedules(), st.data())
def test_report_of_another_epoch_is_refused(schedule: Schedule, data):
    """Reports of two epochs, mixed: refused by number even where the counts happen to fit."""
    world = play(schedule)
    if schedule.epochs == 1:
        return
    name = data.draw(st.sampled_from(sorted(world.topology.participants())[1:]))
    mixed = {**world.snapshots(1), name: world.snapshots(2)[name]}
    found = check_cut(world.topology, mixed)
    assert found is not None
    assert (found.kind, found.participant) == ("foreign", name)


@settings(max_examples=60)
@given(schedules(), st.randoms(use_true_random=False))
def test_verdict_does_not_depend_on_the_order_of_reports(schedule: Schedule, random):
    world = play(schedule)
    snapshots = world.snapshots(1)
    victim = random.choice(sorted(snapshots))
    del snapshots[victim]
    shuffled = list(snapshots.items())
    random.shuffle(shuffled)
    assert list(violations(world.topology, dict(shuffled))) == list(violations(world.topology, snapshots))
