"""What the channels of simulated worlds carry, and what the agents there say."""

import pytest

from protocol.limits import CHANNEL_WINDOW_BYTES, MIB
from simulations.carrying import (
    DRAWN_LOAD_MAX,
    LOAD_MAX,
    SLICE_NS,
    captured_ns,
    drained_ns,
    frame_trip_ns,
    load,
    round_trip_ns,
    slow_down,
)
from simulations.cluster import SimulatedCluster
from simulations.options import Options
from simulations.swarm import draw_options, draw_run
from simulations.topologies import targets_of
from simulations.trace import Trace
from simulations.workloads import kind_of, workload_of
from simulations.world import MS, SECOND


def options_of(**changes):
    return Options(seed=5, **{"latency_ns": 3 * MS, "jitter_ns": MS, "turn_ns": 1000, "tick_ns": 100 * MS, **changes})


def played(options, seconds):
    """A world without faults, and how many messages its busiest channel was given and has brought."""
    cluster = SimulatedCluster(options, Trace(), workload_of)
    with cluster.surroundings():
        cluster.boot()
        assert cluster.world.run(10 * SECOND, until=cluster.all_members)
        cluster.world.run(cluster.world.now + seconds * SECOND)
        streams = [stream for life in cluster.lives.values() for stream in life.ghost.incoming.values()]
        cluster.unwind()
    return max((len(stream.sent), stream.delivered) for stream in streams)


@pytest.mark.parametrize("seed", [2005881, 2006150, 2007995, 2010833, 2014828, 2018814, 2019594, 2092149])
def test_agents_of_a_drawn_world_with_narrow_channels_say_no_more_than_these_carry(seed):
    """Each of these seeds had drawn agents that say more."""
    assert 0 < load(draw_run(seed).options) <= DRAWN_LOAD_MAX + 0.001


def test_narrow_channels_are_drawn_all_the_same_and_wide_ones_slow_nobody_down():
    narrow = 0
    for seed in range(600):
        options = draw_options(seed)
        narrow += options.window_bytes == 1
        assert load(options) <= DRAWN_LOAD_MAX + 0.001
        if options.window_bytes == CHANNEL_WINDOW_BYTES and max(options.reorder_bytes, options.frame_bytes) > MIB // 8:
            assert load(options) < 0.01
    assert narrow >= 5


@pytest.mark.parametrize("topology", ["line", "mesh", "star", "one-way", "isolated"])
@pytest.mark.parametrize("workload", ["bank", "pipeline", "growth"])
def test_what_agents_say_is_about_what_is_computed(workload, topology):
    options = options_of(workload=workload, topology=topology, nodes=3)
    given, _ = played(options, 12)
    computed = kind_of(options).says(options, targets_of(options)) * 12 * SECOND / options.tick_ns
    assert 0.6 * computed < given < 1.4 * computed


@pytest.mark.parametrize("turn_ns", [1000, MS])
@pytest.mark.parametrize("jitter_ns", [10_000, 3 * MS])
def test_a_window_of_one_frame_carries_at_least_what_is_computed(turn_ns, jitter_ns):
    options = options_of(
        nodes=2, turn_ns=turn_ns, jitter_ns=jitter_ns, window_bytes=1, frame_bytes=64, tick_ns=50 * MS, burst=8
    )
    assert load(options) > 1
    given, brought = played(options, 6)
    assert given > brought + 100, "there is a queue all the time"
    assert brought * frame_trip_ns(options) > 0.9 * 6 * SECOND
    assert brought * frame_trip_ns(options) < 2.5 * 6 * SECOND


def test_slower_agents_have_the_load_that_worlds_are_drawn_with():
    options = options_of(nodes=2, window_bytes=1, frame_bytes=1, tick_ns=20 * MS)
    assert load(options) > LOAD_MAX
    slow_down(options)
    assert load(options) == pytest.approx(DRAWN_LOAD_MAX, rel=0.01)
    before = options.tick_ns
    slow_down(options)
    assert options.tick_ns == pytest.approx(before, rel=0.01)


def test_drivers_keep_the_window_of_production():
    assert load(options_of(window_bytes=1, runtimes=True)) < 0.01 < load(options_of(window_bytes=1))


def test_a_queue_lasts_for_a_round_trip_a_message_and_longer_while_more_is_said():
    narrow = {"nodes": 2, "window_bytes": 1, "tick_ns": 200 * MS}
    quiet, busy = options_of(workload="ring", **narrow), options_of(workload="pipeline", burst=3, **narrow)
    assert drained_ns(quiet, 100) == 100 * round_trip_ns(quiet)
    assert drained_ns(busy, 100) == pytest.approx(100 * round_trip_ns(busy) / (1 - load(busy)))
    assert drained_ns(busy, 0) == 0
    flooded = options_of(workload="pipeline", burst=100, **narrow)
    assert load(flooded) > 1
    assert drained_ns(flooded, 100) == 100 * round_trip_ns(flooded), "asked for once they are at rest"


def test_a_mailbox_is_captured_piece_by_piece_and_never_in_more_pieces_than_messages():
    small = options_of(piece_bytes=1, slice_steps=1, turn_ns=0)
    assert captured_ns(small, 2400) == 2400 * SLICE_NS
    assert captured_ns(options_of(piece_bytes=1, slice_steps=8, turn_ns=0), 2400) == 300 * SLICE_NS
    assert captured_ns(options_of(piece_bytes=1, slice_steps=1, turn_ns=MS), 2400) > 10 * SECOND, "turns go on"
    assert captured_ns(options_of(slice_steps=1), 2400) < 10 * MS
    assert captured_ns(options_of(piece_bytes=1, slice_steps=1, runtimes=True), 2400) == 0
