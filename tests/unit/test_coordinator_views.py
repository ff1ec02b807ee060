"""What the API shows of the ledger."""

from __future__ import annotations

from coordinator.ledger import Ledger
from coordinator.ledger.records import TopologyRecord
from coordinator.runtime.views import CHANNELS_LISTED_MAX, topology
from protocol.messages import Member


def ledger_of(*members: Member) -> Ledger:
    ledger = Ledger("shop")
    ledger.state.topology = TopologyRecord(version=1, members=members)
    return ledger


def test_the_answer_about_a_large_topology_does_not_grow_with_the_square_of_its_members():
    """A thousand members have a million channels: making and sending them stalled the leader for seconds."""
    members = [Member(id=f"p{i:04}", session=i + 1, address="") for i in range(1_000)]
    shown = topology(ledger_of(*members))
    assert shown["channels_count"] == 999_000
    assert len(shown["channels"]) == CHANNELS_LISTED_MAX
    assert shown["channels"][0] == ["p0000", "p0001"]


def test_a_small_topology_is_shown_whole():
    a = Member(id="a", session=1, address="", targets=("b", "gone"))
    b = Member(id="b", session=2, address="")
    shown = topology(ledger_of(a, b))
    assert shown["channels"] == [["a", "b"], ["b", "a"]]
    assert shown["channels_count"] == 2
