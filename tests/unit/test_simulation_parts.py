"""The simulator's small parts."""

import pytest

from simulations.command import run_command
from simulations.options import TOPOLOGIES, WORKLOADS, Fault, Options, Run, decode_run, encode_run
from simulations.prng import log_uniform, sample, shuffled, stream
from simulations.probes import Probes
from simulations.swarm import draw_faults, draw_options, draw_run
from simulations.topologies import targets_of
from simulations.trace import Trace
from simulations.world import Process, StepsExhausted, World


def test_streams_of_two_names_or_seeds_differ_and_each_repeats():
    assert stream(1, "a").next() == stream(1, "a").next()
    assert len({stream(1, "a").next(), stream(1, "b").next(), stream(2, "a").next()}) == 3


def test_log_uniform_draws_stay_between_their_bounds_and_reach_both_ends():
    random = stream(0, "draws")
    found = [log_uniform(random, 3, 1000) for _ in range(5000)]
    assert min(found) == 3
    assert max(found) > 900
    assert all(3 <= each <= 1000 for each in found)


def test_shuffling_and_sampling_keep_what_they_are_given():
    random = stream(0, "items")
    assert sorted(shuffled(random, range(20))) == list(range(20))
    found = sample(random, range(20), 5)
    assert len(found) == 5
    assert found == sorted(found)


def test_events_of_one_instant_come_in_every_order_over_seeds_and_in_one_order_per_seed():
    def order(seed: int) -> list[int]:
        world, random, found = World(Trace(), steps_max=100), stream(seed, "ties"), []
        for number in range(3):
            world.at(10, random, found.append, number)
        world.run(20)
        return found

    assert order(5) == order(5)
    assert len({tuple(order(seed)) for seed in range(100)}) == 6


def test_a_process_that_sleeps_does_later_what_came_and_a_dead_one_never():
    world = World(Trace(), steps_max=100)
    process = Process(world, stream(0, "p"), "p")
    found: list[str] = []
    process.suspend()
    process.enter(found.append, "first")
    process.enter(found.append, "second")
    assert found == []
    process.resume()
    assert found == ["first", "second"]
    process.later(5, found.append, "third")
    process.die()
    world.run(10)
    assert found == ["first", "second"]


def test_a_timer_that_was_taken_back_does_not_ring():
    world = World(Trace(), steps_max=100)
    process = Process(world, stream(0, "p"), "p")
    found: list[str] = []
    process.call_at(5, lambda: found.append("rings"))
    process.call_at(6, lambda: found.append("does not")).cancel()
    world.run(10)
    assert found == ["rings"]


def test_a_world_that_spins_ends():
    world, random = World(Trace(), steps_max=50), stream(0, "spin")

    def again() -> None:
        world.after(0, random, again)

    again()
    with pytest.raises(StepsExhausted):
        world.run(1)


def test_the_digest_of_a_trace_depends_on_every_note():
    def digest(*marks: bytes) -> str:
        trace = Trace()
        for mark in marks:
            trace.note(1, "p1", "Event", mark=mark)
        return trace.digest()

    assert digest(b"a", b"b") == digest(b"a", b"b")
    assert len({digest(b"a", b"b"), digest(b"b", b"a"), digest(b"a")}) == 3


def test_a_point_acts_at_its_nth_passing_and_once():
    probes, found = Probes(), []
    probes.point("x", "p1")
    probes.arm("x", 2, found.append)
    for who in ("p2", "p3", "p4"):
        probes.point("x", who)
    assert found == ["p3"]
    assert probes.hits == {"x": 4}


def test_a_replay_file_reads_back_and_strangers_are_refused():
    run = Run(options=Options(seed=1), faults=[Fault(kind="cut", at_ns=5, who="p1", other="p2")], note="why")
    assert decode_run(encode_run(run)) == run
    for data in (b"{}", b"not json", encode_run(run).replace(b'"format": 1', b'"format": 99')):
        with pytest.raises(ValueError, match="replay file"):
            decode_run(data)


def test_of_many_seeds_some_have_no_fault_some_one_kind_and_most_several():
    kinds = [len({fault.kind for fault in draw_run(seed).faults}) for seed in range(400)]
    assert 5 <= kinds.count(0) <= 50
    assert 30 <= kinds.count(1) <= 100
    assert max(kinds) > 10


def test_no_fault_is_drawn_for_a_transport_that_cannot_have_it():
    for seed in range(200):
        options = draw_options(seed)
        found = {fault.kind for fault in draw_faults(options)}
        assert not found & ({"half-open"} if options.broker else {"duplicate", "reorder", "lose"})


def test_every_topology_names_only_others():
    for topology in TOPOLOGIES:
        targets = targets_of(Options(seed=3, nodes=5, topology=topology))
        assert len(targets) == 5
        assert all(name not in others for name, others in targets.items())


def test_an_isolated_member_has_no_channel_and_the_others_have_all():
    targets = targets_of(Options(seed=3, nodes=4, topology="isolated"))
    assert targets == {"p1": ("p2", "p3"), "p2": ("p1", "p3"), "p3": ("p1", "p2"), "p4": ()}


def test_the_command_offers_every_workload_and_topology():
    offered = {option.name: getattr(option.type, "choices", ()) for option in run_command.params}
    assert tuple(offered["workload"]) == WORKLOADS
    assert tuple(offered["topology"]) == TOPOLOGIES


def test_a_seed_has_the_workload_that_is_asked_for_and_what_that_one_needs():
    for seed in range(20):
        options = draw_options(seed, "growth")
        assert options.workload == "growth"
        assert options.pack_bytes >= 16 * 1024, "an epoch of many tiny packs would never be durable in time"
