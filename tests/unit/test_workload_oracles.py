"""What the workloads' own oracles see: each is shown a planted violation."""

import pytest

from protocol.manifest import AgentSnapshot, ChunkRef, FieldRef
from simulations.effects import Effects, Position
from simulations.oracles.arrival import arrived, check_arrival
from simulations.oracles.chunks import ChunkLedger
from simulations.oracles.effects import check_recorded
from simulations.oracles.growth import OVERLAYS, Part, judge_growth
from simulations.oracles.memory import check_bound, check_sums
from simulations.oracles.transcripts import OnItsWay, Side, check_talk
from simulations.violations import Violation
from simulations.workloads.pipeline import MAGIC, Parcel, Sink, padding_of
from tests.agents_world import AgentWorld

# --- transcripts ----------------------------------------------------------------------------------------------------------

TEXTS = ("a", "b", "c", "d")


def talk(left, right, *said, turns=True):
    check_talk(7, "one.1-two.1", left, right, [OnItsWay(*each) for each in said], turns=turns)


def test_transcripts_fit_where_the_floor_is_on_its_way_or_with_one_side():
    talk(Side("one", 3, TEXTS[:3]), Side("two", 2, TEXTS[:2]), ("two", 2, "c"))
    talk(Side("one", 3, TEXTS[:3]), Side("two", 3, TEXTS[1:3], floor=True))
    talk(Side("one", 4, TEXTS), Side("two", 2, TEXTS[:2]), ("two", 2, "c"), ("two", 3, "d"), turns=False)
    talk(Side("one", 4, TEXTS), Side("two", 0, ()), ("two", 3, "d"), turns=False)


@pytest.mark.parametrize(
    ("left", "right", "said", "turns", "words"),
    [
        (Side("one", 3, TEXTS[:3]), Side("two", 2, TEXTS[:2]), [], True, "the floor is with nobody"),
        (Side("one", 3, TEXTS[:3], floor=True), Side("two", 2, TEXTS[:2]), [], True, "on their way are"),
        (Side("one", 3, TEXTS[:3], floor=True), Side("two", 3, TEXTS[:3], floor=True), [], True, "the floor is with"),
        (Side("one", 3, TEXTS[:3]), Side("two", 2, TEXTS[:2]), [("two", 1, "b")], True, "on their way are"),
        (Side("one", 3, TEXTS[:3]), Side("two", 2, TEXTS[:2]), [("one", 2, "c")], True, "on its way to one"),
        (
            Side("one", 3, TEXTS[:3]),
            Side("two", 2, TEXTS[:2]),
            [("two", 2, "x")],
            True,
            "is 'x' for two and 'c' for one",
        ),
        (Side("one", 3, TEXTS[:3]), Side("two", 2, ("a", "x")), [("two", 2, "c")], True, "is 'x' for two and 'b'"),
        (Side("one", 4, TEXTS), Side("two", 2, TEXTS[:2]), [("two", 3, "d")], False, "on their way are"),
        (Side("one", 2, TEXTS[:2]), Side("two", 3, TEXTS[:3]), [], False, "has heard 3 of 2"),
    ],
)
def test_transcripts_that_do_not_fit_are_a_violation(left, right, said, turns, words):
    with pytest.raises(Violation, match=words) as caught:
        talk(left, right, *said, turns=turns)
    assert caught.value.invariant == "I5"


# --- effects --------------------------------------------------------------------------------------------------------------


def test_an_effect_that_is_done_twice_at_its_position_is_a_violation():
    effects = Effects()
    effects.apply(Position("p1-1", "talker/p1", b"m" * 16, 0), "say", 5)
    effects.apply(Position("p1-1", "talker/p1", b"m" * 16, 1), "say", 6)
    effects.apply(Position("p1-2", "talker/p1", b"m" * 16, 0), "say", 7)
    with pytest.raises(Violation, match=r"tool call 1: done at .* and again at"):
        effects.apply(Position("p1-1", "talker/p1", b"m" * 16, 1), "say", 8)


def test_agents_that_were_restored_have_the_positions_of_their_former_life():
    effects = Effects()
    effects.apply(Position(effects.origin("p1-1"), "talker/p1", b"m" * 16, 0), "say", 5)
    effects.descends("p1-2", "p1-1")
    with pytest.raises(Violation, match="again at"):
        effects.apply(Position(effects.origin("p1-2"), "talker/p1", b"m" * 16, 0), "say", 9)


def test_what_a_state_counts_and_remembers_is_what_was_done_before_the_cut_but_for_the_running_turn():
    effects = Effects()
    first = Position("p1-1", "a/b", b"1" * 16, 0)
    result = effects.apply(first, "x", 10)
    effects.apply(Position("p1-1", "a/b", b"2" * 16, 0), "y", 20)
    effects.apply(Position("p1-1", "a/b", b"3" * 16, 0), "z", 30)
    done = effects.by_agent["p1-1", "a/b"]
    fields = {"calls": 1, "receipts": {first.token: result}}
    check_recorded("here", done, fields, at=25, running=[b"2" * 16])
    with pytest.raises(Violation, match="counts 1 effects, 2 were done"):
        check_recorded("here", done, fields, at=25, running=[])
    with pytest.raises(Violation, match="remembers 1 for token"):
        check_recorded("here", done, {"calls": 1, "receipts": {first.token: 1}}, at=15, running=[])


# --- growth and chunks ----------------------------------------------------------------------------------------------------


def snapshot(*segments):
    """An agent whose keyed field has these chunks: (name, bytes)."""
    refs = tuple((ChunkRef(name, f"pack of {name}", size),) for name, size in segments)
    field = FieldRef(name="entries", shape="keyed", serializer="msgpack", segments=refs, removed=())
    return AgentSnapshot(id="a/b", state_version=1, fields=(field,))


def step(before, segments, *, written, touched, keys=100):
    fields = {"written": written, "touched": touched, "entries": dict.fromkeys(range(keys), b"")}
    return judge_growth("here", before, snapshot(*segments), fields)


BASE = (("one", 500), ("two", 500))


def test_an_epoch_may_write_what_changed_and_what_takes_the_place_of_something():
    first, what = step(None, BASE, written=1000, touched=100)
    assert what == ""
    part, what = step(first, (*BASE, ("new", 300)), written=1300, touched=110)
    assert (what, part.overlays) == ("extended", 1)
    part, what = step(part, (*BASE, ("new", 300)), written=1300, touched=110)
    assert (what, part.overlays) == ("", 1)
    part, what = step(part, (("all", 1400),), written=1500, touched=150)
    assert (what, part.base_touched) == ("rewritten", 150)


def test_an_epoch_that_writes_more_than_what_changed_is_a_violation():
    first, _ = step(None, BASE, written=1000, touched=100)
    with pytest.raises(Violation, match="500 new bytes; 100 were written") as caught:
        step(first, (*BASE, ("new", 500)), written=1100, touched=110)
    assert caught.value.invariant == "L6"


def test_overlays_are_merged_only_when_there_are_many():
    part, _ = step(None, BASE, written=1000, touched=100)
    for number in range(OVERLAYS):
        if number == 2:
            with pytest.raises(Violation, match="2 overlays are merged"):
                step(part, (*BASE, ("merged", 20)), written=1020, touched=110)
        overlays = tuple((f"new {each}", 10) for each in range(number + 1))
        part, _ = step(part, (*BASE, *overlays), written=1010 + 10 * number, touched=101 + number)
    merged, what = step(part, (*BASE, ("merged", 120)), written=1120, touched=113)
    assert (what, merged.overlays) == ("merged", 1)


def test_a_field_is_written_anew_only_after_half_of_it_was_touched():
    first, _ = step(None, BASE, written=1000, touched=100)
    with pytest.raises(Violation, match="100 entries are written anew, and 10 were touched"):
        step(first, (("all", 1000),), written=1000, touched=110)
    assert isinstance(first, Part)


def test_a_field_that_is_written_anew_may_begin_with_the_same_segments():
    """Of entries that nobody has touched: what was added since is more than half of them, and is in segments of its own now."""
    part, _ = step(None, BASE, written=1000, touched=100)
    for each in (1, 2):
        overlays = tuple((f"new {number}", 300) for number in range(each))
        part, _ = step(part, (*BASE, *overlays), written=1000 + 300 * each, touched=100 + 30 * each)
    part, what = step(part, (*BASE, ("rest", 700)), written=1700, touched=170, keys=170)
    assert (what, part.overlays, part.base_keys) == ("rewritten", 0, 170)


class OneObject:
    """A store in which there is one pack."""

    def __init__(self, data):
        self.data = data

    def size(self, key):
        return len(self.data)

    def get_range(self, key, offset, length):
        return self.data[offset : offset + length]


def test_a_chunk_that_some_epoch_names_and_that_is_gone_or_another_is_a_violation():
    from protocol.pack import PackBuilder

    builder = PackBuilder()
    chunk = builder.add(b"some state" * 20)
    data, name, _ = builder.finish()
    ledger = ChunkLedger()
    refs = (ChunkRef(chunk, name, 200),)
    ledger.name(3, refs)
    ledger.demand_whole(OneObject(data))
    with pytest.raises(Violation, match="named since epoch 3, is not whole any more") as caught:
        ledger.demand_whole(OneObject(data[:20] + b"\0" + data[21:]))
    assert caught.value.invariant == "I12"
    ledger.name(4, (ChunkRef("b3:" + "0" * 64, name, 7),))
    with pytest.raises(Violation, match="not in this pack"):
        ledger.demand_whole(OneObject(data))


# --- arrival and memory ---------------------------------------------------------------------------------------------------


def test_a_receiver_tells_lost_late_and_twice_apart():
    next_of, gaps = {}, {}
    found = [arrived(next_of, gaps, 1, number) for number in (4, 5, 8, 7, 7, 4)]
    assert found == ["", "", "", "late", "twice", "twice"]
    assert gaps == {"1:6": 1}
    check_arrival("here", {"gaps": {}, "late": 0})
    with pytest.raises(Violation, match="here: 1 never came"):
        check_arrival("here", {"gaps": gaps})


@pytest.mark.parametrize(
    ("parcels", "count"),
    [
        ([Parcel(MAGIC, 1, 0, padding_of(1, 0)), Parcel(MAGIC, 1, 2, padding_of(1, 2))], "never came"),
        ([Parcel(MAGIC, 1, 3, padding_of(1, 3)), Parcel(MAGIC, 1, 3, padding_of(1, 3))], "came twice"),
        ([Parcel(MAGIC, 1, n, padding_of(1, n)) for n in (0, 2, 1)], "came after one"),
        ([Parcel(MAGIC + 1, 1, 0, padding_of(1, 0))], "wrong header or other bytes"),
        ([Parcel(MAGIC, 1, 1, padding_of(2, 1))], "wrong header or other bytes"),
    ],
)
def test_the_pipelines_sink_sees_what_is_lost_late_twice_or_spoiled(parcels, count):
    world = AgentWorld(Sink("p1"), messages=[Parcel])
    for parcel in parcels:
        world.handle(parcel)
    sink = world.host.agent
    fields = {name: getattr(sink, name) for name in ("gaps", "late", "twice", "spoiled")}
    with pytest.raises(Violation, match=count):
        check_arrival("here", fields)


def test_a_sink_that_takes_everything_in_order_finds_nothing():
    world = AgentWorld(Sink("p1"), messages=[Parcel])
    for number in range(5, 9):
        world.handle(Parcel(MAGIC, 1, number, padding_of(1, number)))
    sink = world.host.agent
    check_arrival("here", {name: getattr(sink, name) for name in ("gaps", "late", "twice", "spoiled")})
    assert sink.taken == 4


def test_sums_that_drift_and_memory_beyond_its_bound_are_violations():
    check_sums("p1", {"in mailboxes": (5, 5)})
    check_bound("p1", 100, 100)
    with pytest.raises(Violation, match="p1 counts 5 bytes in mailboxes; there are 4"):
        check_sums("p1", {"in mailboxes": (5, 4)})
    with pytest.raises(Violation, match="101 bytes in flight"):
        check_bound("p1", 101, 100)
