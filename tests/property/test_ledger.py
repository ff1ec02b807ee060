"""Any interleaving and repetition of commands: replicas agree and the ledger's invariants hold (I9, I10, I11, I21)."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.ledger import (
    AbortCommand,
    CommitCommand,
    ConfigureCommand,
    ForsakeCommand,
    LeadCommand,
    LeaveCommand,
    Ledger,
    MarkLostCommand,
    RegisterCommand,
    Report,
    ReportsCommand,
    SealCommand,
    StartCommand,
    TopologyCommand,
    encode_command,
    parse_result,
)
from coordinator.ledger.commands import to_ascii_json
from coordinator.policy import PolicySettings
from protocol.digests import digest

NAMES = st.sampled_from(["a", "b", "c"])
SMALL = st.integers(1, 5)
DIGESTS = st.sampled_from([digest(bytes([i])) for i in range(3)])
TERMS = st.sampled_from([1, 1, 1, 1, 2, 3])


def commands():
    """Commands as builders: session, version, chain and the like are mostly taken from the ledger of the moment."""

    def of(kind, **fields):
        return st.fixed_dictionaries(fields).map(lambda chosen: (kind, chosen))

    reports = st.lists(
        st.builds(
            Report,
            epoch=SMALL,
            participant=NAMES,
            session=SMALL,
            incarnation=st.sampled_from([1, 1, 1, 2]),
            snapshot=DIGESTS,
        ),
        min_size=1,
        max_size=4,
    )
    often = (
        of(TopologyCommand, version=SMALL),
        of(StartCommand, topology=SMALL, reason=st.text(max_size=5), deadline_ns=st.just(9)),
        of(ReportsCommand, reports=reports.map(tuple)),
        of(SealCommand, epoch=SMALL, manifest=DIGESTS, previous=st.sampled_from(["", digest(b"\0")])),
        of(CommitCommand, epoch=SMALL, manifest=DIGESTS),
    )
    seldom = (
        of(LeadCommand, coordinator=st.sampled_from(["c1", "c2"])),
        of(ConfigureCommand, policy=st.builds(PolicySettings, max_concurrent=st.integers(1, 3))),
        of(
            RegisterCommand,
            participant=NAMES,
            boot_id=st.sampled_from(["x", "x", "y"]),
            agents=st.lists(st.sampled_from(["w/a", "w/b", "w/c"]), max_size=2, unique=True).map(tuple),
            session=st.sampled_from([0, 0, 0, 1]),
        ),
        of(MarkLostCommand, session=SMALL, cause=st.just("silent")),
        of(LeaveCommand, session=SMALL),
        of(ForsakeCommand, epoch=SMALL, manifest=DIGESTS, phase=st.just("manifest"), cause=st.just("x")),
        of(AbortCommand, epoch=SMALL, phase=st.sampled_from(["record", "operator"]), cause=st.just("x")),
    )
    return st.one_of(*often, *often, *often, *seldom)


def guided(ledger, kind, fields):
    """The same command with what a leader would fill in, so that runs get far; the raw one is tried as well."""
    state = ledger.state
    open_epochs = ledger.open_epochs()
    if kind is TopologyCommand:
        return {"version": state.topology.version + 1}
    if kind is StartCommand:
        return {**fields, "topology": max(1, state.topology.version)}
    if kind is SealCommand and open_epochs:
        return {**fields, "epoch": open_epochs[0].epoch, "previous": state.sealed_manifest}
    if kind is CommitCommand and open_epochs:
        return {"epoch": open_epochs[0].epoch, "manifest": open_epochs[0].manifest or fields["manifest"]}
    if kind is ReportsCommand and open_epochs:
        record = open_epochs[-1]
        return {
            "reports": tuple(
                Report(epoch=record.epoch, participant=name, session=m.session, incarnation=1, snapshot=digest(b"s"))
                for name, m in sorted(record.members.items())
            )
        }
    return fields


ALLOWED = {
    None: {"started"},
    "started": {"started", "sealed", "aborted"},
    "sealed": {"sealed", "committed"},
    "committed": {"committed"},
    "aborted": {"aborted"},
}


class Watch:
    """Sees the ledger after each entry and remembers what must not change."""

    def __init__(self):
        self.states = {}
        self.manifests = {}
        self.members = {}
        self.committed = 0
        self.session = 0

    def look(self, ledger):
        state = ledger.state
        for number, record in sorted(state.epochs.items()):
            before = self.states.get(number)
            assert record.state in ALLOWED[before]
            if before is None:
                assert number == max(self.states, default=0) + 1
            if record.state == "committed" and before != "committed":
                assert number > self.committed
                self.committed = number
            if record.manifest:
                assert self.manifests.setdefault(number, record.manifest) == record.manifest
                assert record.complete
            sessions = {name: member.session for name, member in record.members.items()}
            assert self.members.setdefault(number, sessions) == sessions
            assert record.reported_count == sum(bool(m.snapshot) for m in record.members.values())
            assert (record.abort is not None) == (record.state == "aborted")
            if record.open:
                assert record.topology == state.topology.version
            self.states[number] = record.state
        assert state.session >= self.session
        self.session = state.session
        assert state.committed == self.committed
        live = [p for p in ledger.participants() if p.live]
        assert len({p.session for p in live}) == len(live)
        hosted = [agent for p in live for agent in p.agents]
        assert len(set(hosted)) == len(hosted)
        assert all(ledger.host_of(agent) == p.id for p in live for agent in p.agents)
        assert state.ended_through == min((e.epoch for e in ledger.open_epochs()), default=state.epoch + 1) - 1


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(commands(), TERMS, st.booleans(), st.integers(0, 30)), max_size=60),
    st.integers(0, 60),
)
def test_replicas_agree_and_invariants_hold_for_any_interleaving_and_repetition(script, dump_at):
    first = Ledger("shop")
    log = [encode_command(LeadCommand(id=("c0", 1), term=1, coordinator="c1"), at=1)]
    watch = Watch()
    dump, dump_index = first.dump(), 0
    for i, ((kind, fields), term, guide, repeat) in enumerate(script):
        chosen = guided(first, kind, fields) if guide else fields
        log.append(encode_command(kind(id=("c1", i + 1), term=term, **chosen), at=1000 - i))
        if repeat < 10:  # an entry of before comes again
            log.append(log[repeat % len(log)])
        while dump_index < len(log):
            before = first.dump()
            result = parse_result(first.apply(log[dump_index]))
            if not result["ok"]:
                after, earlier = json.loads(first.dump()), json.loads(before)
                assert after["state"] == earlier["state"], "a refused command changes nothing but the table of ids"
            watch.look(first)
            dump_index += 1
            if dump_index == dump_at:
                dump = first.dump()
    if dump_at > dump_index or dump_at == 0:
        dump, taken = Ledger("shop").dump(), 0
    else:
        taken = dump_at

    second = Ledger("shop")
    results = [second.apply(text) for text in log[:dump_index]]
    third = Ledger("shop")
    third.load(dump)
    assert [third.apply(text) for text in log[taken:dump_index]] == results[taken:]
    assert first.digest() == second.digest() == third.digest()
    # The whole log again: nothing is applied twice.
    for text in log[:dump_index]:
        second.apply(text)
    assert second.state.epoch == first.state.epoch
    assert second.state.session == first.state.session


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.one_of(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps), st.binary()))
def test_apply_never_raises_and_refuses_what_is_not_a_command(text):
    ledger = Ledger("shop")
    before = ledger.dump()
    assert parse_result(ledger.apply(text))["ok"] is False
    assert ledger.dump() == before


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_command_with_any_field_replaced_never_raises_and_never_half_applies(data):
    ledger = Ledger("shop")
    ledger.apply(encode_command(LeadCommand(id=("c0", 1), term=1, coordinator="c1"), at=1))
    kind, fields = data.draw(commands())
    document = json.loads(encode_command(kind(id=("c1", 1), term=1, **fields), at=1))
    key = data.draw(st.sampled_from(sorted(document)))
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    )
    document[key] = data.draw(json_values)
    before = json.loads(ledger.dump())["state"]
    result = parse_result(ledger.apply(json.dumps(document)))
    if not result["ok"]:
        assert json.loads(ledger.dump())["state"] == before
    copy = Ledger("shop")
    copy.load(ledger.dump())
    assert copy.digest() == ledger.digest()


@pytest.mark.slow
def test_scripts_reach_committed_epochs():
    """The strategy above is worth something only if guided runs get to the end of epochs."""
    reached = set()

    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    @given(st.lists(commands(), min_size=50, max_size=90))
    def run(script):
        ledger = Ledger("shop")
        ledger.apply(encode_command(LeadCommand(id=("c0", 1), term=1, coordinator="c1"), at=1))
        for i, (kind, fields) in enumerate(script):
            ledger.apply(encode_command(kind(id=("c1", i + 1), term=1, **guided(ledger, kind, fields)), at=1))
            reached.update(record.state for record in ledger.state.epochs.values())

    run()
    assert reached == {"started", "sealed", "committed", "aborted"}


_PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text()


@given(st.recursive(_PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_what_replicas_compare_is_one_text_for_one_value_whatever_wrote_it(value):
    """Commands, results and dumps hold no fractions; of all else there is one spelling."""
    assert to_ascii_json(value) == json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
