"""protocol.cut: what is refused, and which violation is named first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.cut import Violation, check_channel, check_cut, check_recorded, violations
from protocol.ids import ParticipantId
from protocol.manifest import IncomingCut, LocalSnapshot, OutgoingCut
from tests.snapshot_world import World, channel

C = channel("a", "b")
OUT = OutgoingCut(target="b", sent=5, digest="b3:x")
IN = IncomingCut(source="a", received=2, closed_at=5, digest="b3:x", items=3, messages=3)


def good() -> tuple[World, dict[ParticipantId, LocalSnapshot]]:
    world = World({"a": 10, "b": 10, "c": 10}, [channel("a", "b"), channel("b", "a"), channel("c", "a")])
    world.send("a", "b", b"before", 1)
    world.deliver(C, amount=1)
    world.send("a", "b", b"in flight", 1)
    for name in "abc":
        world.start(name, 1)
    for c in world.channels:
        while world.queues[c]:
            world.deliver(c)
    return world, world.snapshots(1)


def changed(
    snapshots: dict[ParticipantId, LocalSnapshot], name: str, **fields: Any
) -> dict[ParticipantId, LocalSnapshot]:
    mine = ParticipantId(name)
    return {**snapshots, mine: msgspec.structs.replace(snapshots[mine], **fields)}


def test_good_cut_passes():
    world, snapshots = good()
    assert check_cut(world.topology, snapshots) is None
    assert list(violations(world.topology, snapshots)) == []


def test_good_channel_passes():
    assert check_channel(C, OUT, IN) is None


@pytest.mark.parametrize(
    ("outgoing", "incoming", "kind", "number"),
    [
        ({"sent": 1}, {}, "orphan", 2),
        ({"sent": 4}, {}, "orphan-in-channel", 5),
        ({"sent": 6}, {}, "lost", 6),
        ({}, {"items": 2, "messages": 2}, "lost", None),
        ({}, {"items": 4}, "duplicate", None),
        ({}, {"received": 4, "closed_at": 3, "items": 0, "messages": 0}, "counted-twice", 4),
        ({"digest": "b3:y"}, {}, "digest", None),
        ({"sent": -1}, {"received": -2}, "incomplete", None),
        ({}, {"messages": 4}, "incomplete", None),
    ],
)
def test_each_fault_of_a_channel_is_named(outgoing: dict, incoming: dict, kind: str, number: int | None):
    found = check_channel(C, msgspec.structs.replace(OUT, **outgoing), msgspec.structs.replace(IN, **incoming))
    assert found is not None
    assert (found.kind, found.number, found.channel) == (kind, number, C)
    assert found.detail


def test_missing_ends_are_incomplete_and_say_whose():
    no_sender, no_receiver = check_channel(C, None, IN), check_channel(C, OUT, None)
    assert no_sender is not None
    assert no_receiver is not None
    assert (no_sender.kind, no_receiver.kind) == ("incomplete", "incomplete")
    assert "a says nothing" in no_sender.detail
    assert "b never closed it" in no_receiver.detail


def test_missing_participant_is_named():
    world, snapshots = good()
    del snapshots[ParticipantId("b")]
    found = check_cut(world.topology, snapshots)
    assert found == Violation(kind="incomplete", participant=ParticipantId("b"), detail="no report")
    assert [str(violation).split(" (")[0] for violation in violations(world.topology, snapshots)] == [
        "incomplete at participant b: no report",
        "incomplete at a->b",
        "incomplete at b->a",
    ]


def test_stranger_is_foreign():
    world, snapshots = good()
    snapshots[ParticipantId("z")] = snapshots[ParticipantId("a")]
    found = check_cut(world.topology, snapshots)
    assert found is not None
    assert (found.kind, found.participant) == ("foreign", "z")


@pytest.mark.parametrize(
    "fields",
    [
        {"participant": "c"},
        {"session": 7},
        {"topology": 2},
        {"cluster": "other"},
        {"epoch": 2},
        {"incarnation": 2},
    ],
)
def test_report_of_another_cut_is_foreign(fields: dict[str, Any]):
    world, snapshots = good()
    found = check_cut(world.topology, changed(snapshots, "b", **fields))
    assert found is not None
    assert (found.kind, found.participant) == ("foreign", "b")
    assert str(next(iter(fields.values()))) in found.detail


@pytest.mark.parametrize(
    "fields",
    [
        {"outgoing": (OutgoingCut(target="c", sent=0, digest=""),)},
        {"incoming": (IncomingCut(source="c", received=0, closed_at=0, digest="", items=0, messages=0),)},
        {"outgoing": (OutgoingCut(target="b", sent=0, digest=""),)},
        {"outgoing": (OutgoingCut(target="a", sent=1, digest=""),) * 2},
    ],
    ids=["to a participant without channel", "from one", "to itself", "twice"],
)
def test_channel_that_is_not_there_is_foreign(fields: dict[str, Any]):
    world, snapshots = good()
    found = check_cut(world.topology, changed(snapshots, "b", **fields))
    assert found is not None
    assert (found.kind, found.participant) == ("foreign", "b")
    assert found.channel is not None


def test_channel_that_is_missing_from_a_report_is_incomplete():
    world, snapshots = good()
    for fields in ({"outgoing": ()}, {"incoming": ()}):
        found = check_cut(world.topology, changed(snapshots, "b", **fields))
        assert found is not None
        assert found.kind == "incomplete"
        assert found.channel is not None


def test_first_violation_is_the_same_whatever_order_the_reports_came_in():
    world, snapshots = good()
    bad = changed(changed(snapshots, "a", outgoing=()), "b", session=7, outgoing=())
    forwards, backwards = dict(sorted(bad.items())), dict(sorted(bad.items(), reverse=True))
    assert check_cut(world.topology, forwards) == check_cut(world.topology, backwards)
    assert [v.kind for v in violations(world.topology, bad)] == ["foreign", "incomplete", "incomplete"]


def test_violation_reads_as_a_sentence():
    text = str(check_channel(C, msgspec.structs.replace(OUT, sent=1), IN))
    assert text == "orphan at a->b (sent 1, received 2, item 2): received before the cut, sent after it"
    assert str(Violation(kind="incomplete", participant=ParticipantId("p"), detail="no report")) == (
        "incomplete at participant p: no report"
    )
    assert str(check_recorded([], 0, 1)[0]).startswith("lost at a channel (sent 1, received 0, item 1)")


# --- plain facts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "received", "sent", "expected"),
    [
        ([3, 4, 5], 2, 5, []),
        ([], 5, 5, []),
        ([], 0, 0, []),
        ([4, 5], 2, 5, [("lost", 3)]),
        ([3, 5], 2, 5, [("lost", 4)]),
        ([3, 4], 2, 5, [("lost", 5)]),
        ([3, 5, 4], 2, 5, [("order", 4)]),
        ([3, 4, 4, 5], 2, 5, [("duplicate", 4)]),
        ([3, 4, 5, 6], 2, 5, [("orphan-in-channel", 6)]),
        ([2, 3, 4, 5], 2, 5, [("counted-twice", 2)]),
        ([], 6, 5, [("orphan", 6)]),
        ([5, 4, 3, 3], 2, 6, [("duplicate", 3), ("lost", 6), ("order", 4)]),
        (None, 1, 1, [("incomplete", None)]),
        ([], None, 1, [("incomplete", None)]),
        ([], 1, None, [("incomplete", None)]),
    ],
)
def test_plain_facts_are_classified(numbers, received, sent, expected):
    found = check_recorded(numbers, received, sent, channel=C)
    assert [(violation.kind, violation.number) for violation in found] == expected
    assert all(violation.channel == C for violation in found)


@given(st.lists(st.integers(-2, 9), max_size=8), st.integers(0, 6), st.integers(0, 6))
def test_exactly_the_range_in_order_passes(numbers: list[int], received: int, sent: int):
    """Against the definition, said in one line."""
    consistent = received <= sent and numbers == list(range(received + 1, sent + 1))
    assert (check_recorded(numbers, received, sent) == ()) == consistent


def test_claimed_counts_cannot_make_the_check_slow():
    found = check_recorded([1], 0, 1 << 62)
    assert [(violation.kind, violation.number) for violation in found] == [("lost", 2)]
