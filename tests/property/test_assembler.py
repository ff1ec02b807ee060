"""Assembling is a function of the set of reports: any order and any repetition give the same bytes (I8)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.assembler import Assembled, Refusal, assemble, request_for
from coordinator.ledger import Report, ReportsCommand
from tests.coordinator_world import KEYS
from tests.unit.test_assembler import MEMBERS, objects, request
from tests.unit.test_ledger import Log, cluster


@settings(deadline=None)
@given(st.permutations(["a", "b", "c"]))
def test_order_of_the_objects_does_not_matter(order):
    found = objects()
    expected = assemble(request(found), found, KEYS)
    shuffled = assemble(request(found), {name: found[name] for name in order}, KEYS)
    assert isinstance(expected, Assembled)
    assert shuffled.data == expected.data


@settings(deadline=None)
@given(st.permutations(["a", "b", "c"]), st.sampled_from(["a", "b", "c"]), st.sampled_from(["a", "b", "c"]))
def test_the_same_refusal_whatever_the_order(order, one, other):
    from tests.coordinator_world import replace_struct

    found = objects()
    for name in {one, other}:
        found[name] = replace_struct(found[name], epoch=4)
    result = assemble(request(objects()), {name: found[name] for name in order}, KEYS)
    assert isinstance(result, Refusal)
    assert result.participant == min(one, other)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=0, max_size=6), st.permutations(["a", "b", "c"]))
def test_any_order_and_repetition_of_reports_gives_one_request(noise, order):
    found = objects()
    named = dict(request(found).snapshots)
    requests = set()
    for script in (["a", "b", "c"], [*noise, *order, *noise]):
        log: Log = cluster("a", "b", "c")
        log.at = 50_000  # the start entry's time is part of the manifest
        log.start()
        for name in script:
            session = next(m.session for m in MEMBERS if m.id == name)
            report = Report(epoch=1, participant=name, session=session, incarnation=1, snapshot=named[name])
            log.do(ReportsCommand, reports=(report, report))
        requests.add(request_for(log.ledger.state, log.ledger.epoch(1)))
    assert len(requests) == 1
