"""What the API shows of the ledger."""

from __future__ import annotations

from coordinator.ledger import Ledger
from coordinator.ledger.records import TopologyRecord
from coordinator.runtime.views import CHANNELS_LISTED_MAX, STUCK_AFTER_SECONDS, status, stuck, topology
from protocol.messages import Member
from tests.unit.test_ledger import sealed


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


def test_a_sealed_epoch_is_stuck_when_the_leader_has_trouble_or_elsewhere_when_it_takes_long():
    class Live:
        def trouble(self, epoch: int) -> str:
            return f"the parts of {epoch} are gone"

    log = sealed("a")
    at = log.ledger.epoch(1).sealed_at
    assert stuck(log.ledger, None, at) == []
    assert stuck(log.ledger, Live(), at) == [{"epoch": 1, "why": "the parts of 1 are gone"}]  # type: ignore[arg-type]
    late = at + STUCK_AFTER_SECONDS * 1_000_000_000
    long_ago = [{"epoch": 1, "why": f"it was sealed {STUCK_AFTER_SECONDS} s ago"}]
    assert stuck(log.ledger, None, late) == long_ago
    shown = status(log.ledger, None, coordinators=[], leader=None, version="1", wall=late)
    assert shown["epochs"]["stuck"] == long_ago
    log.commit(1)
    assert stuck(log.ledger, Live(), late) == []  # type: ignore[arg-type]
