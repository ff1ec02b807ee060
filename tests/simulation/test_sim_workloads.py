"""Workloads in whole clusters: nothing breaks, rare states are reached, and planted bugs of the product are seen by their own oracles."""

from dataclasses import dataclass

import pytest

from participant import Agent, Context, handler, value
from participant.capture import Capturer
from participant.host import AgentHost
from participant.packing import ChunkWriter
from participant.runtime.pump import Pump
from protocol.errors import ConfigError
from simulations import simulate
from simulations.mutants import Patcher
from simulations.options import Options, Run
from simulations.participant_node import ParticipantLife
from simulations.run import run
from simulations.swarm import draw_faults, draw_options, for_drivers
from simulations.world import MS, SECOND

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.timeout(300)]

REACHED = {
    "conversation": {"cut.inside_turn", "input.approved", "cut.message_in_flight"},
    "growth": {
        "chunk.of_older_epoch",
        "pack.several_chunks",
        "pack.several_of_one_part",
        "state.extended",
        "state.rewritten",
    },
    "hot-spot": {"cut.inside_turn", "cut.long_mailbox", "input.overloaded"},
    "pipeline": {"cut.message_in_flight"},
}


def world(workload, **changes):
    """A calm one."""
    options = Options(seed=3, nodes=3, workload=workload, faults_ns=6 * SECOND, tick_ns=100 * MS, interval_ns=500 * MS)
    for name, changed in changes.items():
        setattr(options, name, changed)
    return options


@pytest.mark.parametrize("workload", sorted(REACHED))
def test_nothing_breaks_under_the_faults_of_some_seeds_and_rare_states_are_reached(workload):
    reached = set()
    for seed in range(40):
        if seed >= 8 and REACHED[workload] <= reached:
            break
        options = draw_options(seed, workload)
        outcome = run(Run(options=options, faults=draw_faults(options)))
        assert outcome.ok, f"{outcome.text}: cleancut simulate run --seed {seed} --workload {workload}"
        reached.update(outcome.probes)
    assert REACHED[workload] <= reached


@pytest.mark.parametrize("workload", ["conversation", "growth", "hot-spot"])
def test_a_workload_lives_in_the_second_mode_too(workload):
    for seed in (1, 2):
        options = draw_options(seed, workload)
        for_drivers(options)
        outcome = run(Run(options=options, faults=draw_faults(options)))
        assert outcome.ok, f"{outcome.text}: cleancut simulate run --seed {seed} --workload {workload} --runtimes"


@pytest.mark.parametrize("topology", ["isolated", "one-way", "line", "ring", "random"])
@pytest.mark.parametrize("workload", ["conversation", "hot-spot"])
def test_a_workload_lives_on_any_topology(workload, topology):
    options = world(workload, topology=topology, nodes=4)
    outcome = run(Run(options=options, faults=[]))
    assert outcome.ok, outcome.text
    assert outcome.commits >= 5


def test_the_same_seed_of_a_conversation_is_the_same_run():
    options = draw_options(5, "conversation")
    what = Run(options=options, faults=draw_faults(options))
    assert run(what).digest == run(what).digest


# --- users' agents --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Word:
    """Something said."""

    first: bool


class Peer(Agent, kind="peer"):
    """Tells both others once how often it was told."""

    heard = value(int, default=0)

    @handler
    def on_word(self, ctx: Context, word: Word) -> None:
        self.heard += 1
        if word.first:
            for other in ("a", "b", "c"):
                if ctx.self_id != f"peer/{other}":
                    ctx.send(f"peer/{other}", Word(first=False))


def peers():
    return [Peer(name) for name in ("a", "b", "c")]


@pytest.mark.parametrize(("topology", "aside"), [("mesh", 0), ("star", 1), ("line", 0), ("isolated", 1)])
def test_users_agents_run_on_any_topology_and_what_has_no_channel_is_put_aside(topology, aside):
    seen = []
    simulate(
        peers,
        start=[("peer/b", Word(first=True))],
        invariant=lambda cut: seen.append(cut.put_aside),
        faults=[],
        seeds=[4],
        topology=topology,
    )
    assert len(seen[-1]) == aside
    assert all("has no channel" in reason for reason in seen[-1])


def test_a_topology_is_drawn_for_each_seed_if_asked_for_and_one_that_is_not_there_is_refused():
    found = simulate(peers, faults=[], seeds=range(6), topology="any")
    assert found.statistics()["seeds"] == 6
    with pytest.raises(ConfigError, match="there is no 'circle'; there are any, mesh"):
        simulate(peers, topology="circle")


# --- planted bugs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def patcher():
    made = Patcher()
    yield made
    made.undo()


def caught(options, *, kinds=(), seeds=range(8)):
    """What the first seed that fails is caught as."""
    for seed in seeds:
        options.seed = seed
        outcome = run(Run(options=options, faults=draw_faults(options, kinds)))
        if not outcome.ok:
            return outcome
    raise AssertionError("not caught")


def forget_mailboxes(freeze):
    def without(self, *args, **more):
        frozen = freeze(self, *args, **more)
        for name, agent in list(frozen._busy.items()):
            frozen._busy[name] = agent._replace(mailbox=())
        return frozen

    return without


def test_mailboxes_that_are_not_part_of_a_cut_break_transcripts(patcher):
    """The oracles that compare list by list look away."""
    import simulations.oracles as oracles
    import simulations.workloads.conversation as conversation

    patcher.method(Capturer, "freeze", forget_mailboxes)
    patcher.method(conversation, "check_effects", lambda _: lambda *_args: None)
    patcher.method(oracles, "check_channel_states", lambda _: lambda *_args: 0)
    patcher.method(oracles, "check_conservation", lambda _: lambda *_args: None)
    patcher.method(oracles, "check_reachable", lambda _: lambda *_args: None)
    patcher.method(oracles, "check_verified", lambda _: lambda *_args, **_more: None)
    outcome = caught(world("conversation"))
    assert (outcome.invariant, "talk" in outcome.text) == ("I5", True), outcome.text


def test_an_agent_that_begins_anew_with_the_ids_of_before_does_effects_at_their_positions_again(patcher):
    """The ids of what a start sends are those of its message; the others take them for the same work."""
    patcher.method(AgentHost, "start_fresh", lambda start: lambda self, cluster, session=0: start(self, cluster))
    outcome = caught(world("conversation"), kinds=["crash"], seeds=range(40))
    assert outcome.invariant == "I29", outcome.text


def test_an_epoch_that_names_nothing_again_writes_more_than_what_changed(patcher):
    patcher.method(ChunkWriter, "put", lambda put: lambda self, data, known: put(self, data, {}))
    import participant.capture as capture

    patcher.method(
        capture,
        "encode_cell",
        lambda encode: lambda cell, generation, since, saved, writer: encode(cell, generation, 0, None, writer),
    )
    outcome = caught(world("growth"))
    assert outcome.invariant == "L6", outcome.text


def test_a_sum_of_waiting_messages_that_drifts_is_seen(patcher):
    def careless(deliver):
        def more(self, deliveries):
            deliver(self, deliveries)
            self.mailbox_bytes -= 1

        return more

    patcher.method(Pump, "deliver", careless)
    outcome = caught(world("hot-spot"))
    assert outcome.invariant == "I33", outcome.text
    assert "in mailboxes" in outcome.text


def test_input_that_is_never_refused_is_seen_in_the_memory_of_senders(patcher):
    def hungry(ingest):
        def without_limit(self, agent, message):
            workload = self.cluster.workload
            limit, workload.in_flight_bytes_max = workload.in_flight_bytes_max, 1 << 40
            try:
                return ingest(self, agent, message)
            finally:
                workload.in_flight_bytes_max = limit

        return without_limit

    patcher.method(ParticipantLife, "ingest", hungry)
    outcome = caught(world("hot-spot", latency_ns=300 * MS, burst=8, topology="star"), seeds=range(30))
    assert outcome.invariant == "I33", outcome.text
    assert "in flight" in outcome.text
