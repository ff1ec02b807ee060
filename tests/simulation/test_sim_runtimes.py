"""The second mode: the asyncio drivers in seeded worlds. All is well under failures, and a driver's bug is caught."""

import asyncio
import threading

import pytest

from participant import Agent, Participant
from participant.runtime import parts as parts_module
from protocol.errors import StoreError
from protocol.storage import MemoryStore
from simulations.mutants import MUTANTS
from simulations.options import Fault, Options, Run, decode_run, encode_run
from simulations.run import run
from simulations.runtimes.knobs import Knobs
from simulations.swarm import draw_run
from simulations.sweep import run_seed, run_seed_of_drivers
from simulations.world import MS, SECOND
from tests.simulation.hash_seeds import run_under_two_hash_seeds

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", [2, 3, 4, 6, 16, 17])
def test_drivers_keep_their_promises_under_the_faults_of_a_seed(seed):
    """Found by them: 17, a participant that hung for ever because its store did at the start."""
    outcome = run_seed_of_drivers(seed)
    assert outcome.ok, f"{outcome.kind} {outcome.text}: cleancut simulate run --seed {seed} --runtimes"
    assert outcome.commits


def test_the_same_seed_of_drivers_is_the_same_run_in_two_processes_with_other_hash_seeds():
    code = "from simulations.sweep import run_seed_of_drivers as run; print(*(run(seed).digest for seed in (2, 3, 13)))"
    found = run_under_two_hash_seeds(code)
    assert found[0].stdout == found[1].stdout
    assert len(set(found[0].stdout.split())) == 3
    assert [each.stderr for each in found] == ["", ""], "nothing of a run is left for the interpreter to complain about"


def test_a_replay_file_of_drivers_is_the_same_run():
    what = draw_run(4, runtimes=True)
    assert run(decode_run(encode_run(what))).digest == run_seed_of_drivers(4).digest


@pytest.mark.parametrize(
    ("name", "seeds", "caught_by"),
    [
        ("unheard-report", 20, {"I12"}),
        ("effects-reversed", 20, {"I1", "I6", "I22", "P1", "L1", "L2", "L3"}),
        ("orders-reversed", 20, {"L1", "L2", "L3"}),
        ("replaced-kept", 20, {"L7"}),
        ("timer-kept", 20, {"L1", "L2", "L3"}),
        ("lost-unsaid", 20, {"L7"}),
    ],
)
def test_a_planted_bug_of_a_driver_is_caught(name, seeds, caught_by):
    caught = next((found for seed in range(seeds) if not (found := run_seed(seed, name)).ok), None)
    assert caught is not None, f"{name}: {MUTANTS[name].what}: not caught within {seeds} seeds"
    assert caught.invariant in caught_by, f"{name} is caught as {caught.invariant}: {caught.text}"


def hangs_at(point: str, *, mutant: str = "", **options: object) -> Run:
    """A small world in which the store hangs just when a driver turns to it, twice; a thread may never come back."""
    stuck = [Fault(kind="store-stuck", at_ns=2 * SECOND, for_ns=SECOND, point=point, nth=nth) for nth in (2, 3)]
    given = {"seed": 8, "nodes": 2, "coordinators": 1, "faults_ns": 8 * SECOND, "interval_ns": 300 * MS, **options}
    return Run(options=Options(runtimes=True, mutant=mutant, **given), faults=stuck)


def test_a_manifest_whose_put_hangs_for_ever_is_written_by_another_attempt():
    assert 2 * Knobs(8).store_seconds < 60, "a seed whose leader is not that patient"
    outcome = run(hangs_at("seal.applied"))
    assert outcome.ok, outcome.text
    assert outcome.probes["driver.thread_lost"]
    caught = run(hangs_at("seal.applied", mutant="store-awaited"))
    assert (caught.kind, caught.invariant) == ("liveness", "L1"), caught.text


def test_an_upload_that_hangs_costs_its_epoch_and_no_later_one():
    outcome = run(hangs_at("local.encoded", deadline_ns=SECOND))
    assert outcome.ok, outcome.text
    assert outcome.probes["store.hung"]
    assert outcome.aborts
    assert outcome.commits


def test_drivers_that_are_told_to_end_leave_nothing_behind():
    """Tasks are cancelled in the middle of an epoch; the next life begins with none of them."""
    told = [Fault(kind="stop", at_ns=(2 + at) * SECOND, who=f"p{1 + at % 2}") for at in range(4)]
    told += [Fault(kind="stop-coordinator", at_ns=2500 * MS + at * SECOND) for at in range(4)]
    options = Options(seed=1, nodes=2, runtimes=True, faults_ns=8 * SECOND, interval_ns=200 * MS)
    outcome = run(Run(options=options, faults=told))
    assert outcome.ok, outcome.text
    assert outcome.fired == {"stop": 4, "stop-coordinator": 4}


def test_a_connection_that_only_the_participant_knows_to_be_lost_is_replaced():
    lost = [Fault(kind="half-open-control", at_ns=at * SECOND, who="p1") for at in (2, 5)]
    options = Options(seed=1, nodes=2, coordinators=1, runtimes=True, faults_ns=8 * SECOND)
    outcome = run(Run(options=options, faults=lost))
    assert outcome.ok, outcome.text
    assert outcome.probes["control.half_gone"] == 2


def test_whoever_breaks_the_rules_of_the_control_connection_loses_it_and_harms_nobody():
    """Silence, garbage, another one's session or name, two registrations: with a token that is right."""
    faults = [Fault(kind="stranger", at_ns=2 * SECOND + at * 100 * MS, who=f"p{1 + at % 3}") for at in range(30)]
    outcome = run(Run(options=Options(seed=5, nodes=3, runtimes=True, faults_ns=8 * SECOND), faults=faults))
    assert outcome.ok, outcome.text
    assert {"hub.handshake", "hub.malformed", "hub.foreign_session", "hub.refused"} <= outcome.probes.keys()


def test_a_participant_that_takes_no_orders_loses_its_connection_and_comes_back():
    """It is stopped while an operator starts and aborts epochs; what waits for it is bounded (`WAITING_BYTES_MAX`)."""
    assert (Knobs(4).waiting_bytes, Knobs(4).window) == (4096, 256), "a seed with little room"
    begin, step = 3 * SECOND, 45 * MS
    faults = [Fault(kind="pause", at_ns=begin, for_ns=2800 * MS, who="p1")]
    faults += [Fault(kind="trigger", at_ns=begin + at * step) for at in range(60)]
    faults += [Fault(kind="abort", at_ns=begin + at * step + 30 * MS) for at in range(60)]
    options = Options(seed=4, nodes=2, coordinators=1, runtimes=True, faults_ns=8 * SECOND, deadline_ns=8 * SECOND)
    outcome = run(Run(options=options, faults=faults))
    assert outcome.ok, outcome.text
    assert outcome.probes["hub.too_slow"]


class Idle(Agent, kind="idle"):
    pass


class HangingStore(MemoryStore):
    def __init__(self, go_on):
        super().__init__("shop")
        self._go_on = go_on

    def get(self, key, *, size_max):
        self._go_on.wait()
        return super().get(key, size_max=size_max)

    def put(self, key, data):
        self._go_on.wait()
        return super().put(key, data)


async def test_a_participant_whose_store_hangs_at_the_start_says_so(monkeypatch):
    """Or it would be neither there nor gone, for ever and without a word."""
    monkeypatch.setattr(parts_module, "STORE_SECONDS_MAX", 0.05)
    go_on = threading.Event()
    participant = Participant(
        Idle("a"), id="p1", cluster="shop", transport="memory", store=HangingStore(go_on), secret=bytes(range(32)),
        coordinators=["127.0.0.1:1"],
    )  # fmt: skip
    try:
        with pytest.raises(StoreError, match="did not answer within"):
            async with asyncio.timeout(10), participant:
                pass
    finally:
        go_on.set()
