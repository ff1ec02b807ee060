"""protocol.topology: channels, hosts, and who must start."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError, IllegalName
from protocol.ids import AgentId, ParticipantId, TopologyVersion
from protocol.messages import Member
from protocol.topology import Topology, check_targets
from tests.snapshot_world import channel


def topology(*members: Member) -> Topology:
    return Topology(TopologyVersion(1), members)


def member(name: str, *targets: str, agents: tuple[str, ...] = ()) -> Member:
    return Member(id=name, session=1, targets=targets, agents=agents)


def everyone(*names: str) -> Topology:
    return topology(*(Member(id=name, session=1) for name in names))


def test_no_targets_named_means_all_others():
    assert everyone("b", "a", "c").channels() == tuple(channel(s, t) for s in "abc" for t in "abc" if s != t)


def test_targets_that_are_no_members_have_no_channel():
    t = topology(member("a", "b", "gone"), member("b"))
    assert t.channels() == (channel("a", "b"),)
    assert t.has_channel(channel("a", "b"))
    assert not t.has_channel(channel("b", "a"))
    assert not t.has_channel(channel("a", "gone"))
    assert not t.has_channel(channel("gone", "a"))


def test_channels_are_sorted_whatever_the_order_of_members_and_targets():
    one = topology(member("c", "a"), member("a", "c", "b"), member("b", "a"))
    two = topology(member("b", "a"), member("a", "b", "c"), member("c", "a"))
    assert one.channels() == two.channels() == tuple(sorted(one.channels()))


def test_incoming_and_outgoing_are_the_two_views_of_the_channels():
    t = topology(member("a", "b", "c"), member("b", "c"), Member(id="c", session=1))
    for name in t.participants():
        assert t.outgoing(name) == tuple(c for c in t.channels() if c.source == name)
        assert t.incoming(name) == tuple(c for c in t.channels() if c.target == name)
    assert t.outgoing(ParticipantId("stranger")) == t.incoming(ParticipantId("stranger")) == ()


def test_own_name_among_the_targets_is_refused():
    with pytest.raises(IllegalName, match="source and target must differ"):
        topology(member("a", "a"))
    with pytest.raises(IllegalName):
        check_targets("a", ("b", "a"))
    check_targets("a", None)
    check_targets("a", ("b",))


def test_two_members_of_one_id_are_refused():
    with pytest.raises(ConfigError, match="two members"):
        topology(member("a"), member("a"))


def test_hosts_are_found_by_agent():
    t = topology(member("a", agents=("bank/1", "bank/3")), member("b", agents=("bank/2",)))
    assert t.host_of(AgentId("bank/2")) == "b"
    assert t.host_of(AgentId("bank/9")) is None
    assert t.agents() == ("bank/1", "bank/2", "bank/3")
    assert t.member(ParticipantId("a")) == member("a", agents=("bank/1", "bank/3"))
    assert t.member(ParticipantId("x")) is None


def test_one_agent_on_two_members_is_refused():
    with pytest.raises(ConfigError, match="bank/1"):
        topology(member("a", agents=("bank/1",)), member("b", agents=("bank/1",)))


def test_ring_needs_one_starter():
    t = topology(member("a", "b"), member("b", "c"), member("c", "a"))
    assert t.components() == (("a", "b", "c"),)
    assert t.starters("minimal") == ("a",)
    assert t.starters() == ("a", "b", "c")
    assert t.unreachable_from(["b"]) == ()


def test_pipeline_needs_its_source_and_the_isolated_needs_itself():
    t = topology(member("sink"), member("mid", "sink"), member("src", "mid"), member("alone"))
    assert t.source_components() == (("alone",), ("src",))
    assert t.starters("minimal") == ("alone", "src")
    assert t.unreachable_from(["mid"]) == ("alone", "src")
    assert t.unreachable_from(["stranger"]) == ("alone", "mid", "sink", "src")


def test_source_component_may_be_a_ring_of_its_own():
    t = topology(member("a", "b"), member("b", "a", "c"), member("c", "d"), member("d", "c"))
    assert t.components() == (("a", "b"), ("c", "d"))
    assert t.source_components() == (("a", "b"),)


def test_full_mesh_and_nothing_at_all_need_no_graph():
    assert everyone("a", "b", "c").starters("minimal") == ("a",)
    assert topology().starters("minimal") == ()
    assert topology().components() == ()
    assert topology().channels() == ()
    assert everyone("a").components() == (("a",),)


def test_graph_holds_each_member_and_channel():
    t = topology(member("a", "b"), member("b"), member("c"))
    graph = t.graph()
    assert sorted(graph.nodes) == ["a", "b", "c"]
    assert sorted(graph.edges) == [("a", "b")]


def test_importing_the_module_does_not_import_networkx():
    code = "import protocol.topology, sys; sys.exit('networkx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_equal_versions_are_equal_and_hashable_members_stay_out_of_the_repr():
    assert everyone("a", "b") == everyone("a", "b")
    assert "_targets" not in repr(everyone("a"))


NAMES = "abcdef"
GRAPHS = st.dictionaries(st.sampled_from(NAMES), st.sets(st.sampled_from(NAMES)), min_size=1).map(
    lambda graph: topology(*(member(name, *sorted(targets - {name})) for name, targets in graph.items()))
)


@given(GRAPHS)
def test_minimal_starters_reach_everybody_and_none_is_superfluous(t: Topology):
    starters = t.starters("minimal")
    assert t.unreachable_from(starters) == ()
    for starter in starters:
        assert starter in t.unreachable_from([other for other in starters if other != starter])


@given(GRAPHS)
def test_components_partition_the_members(t: Topology):
    flat = [name for component in t.components() for name in component]
    assert sorted(flat) == sorted(t.participants())
    for component in t.components():
        for name in component:
            mutual = {
                other
                for other in t.participants()
                if other not in t.unreachable_from([name]) and name not in t.unreachable_from([other])
            }
            assert mutual == set(component)
