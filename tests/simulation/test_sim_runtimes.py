"""The second mode: the asyncio drivers in seeded worlds. All is well under failures, and a driver's bug is caught."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from participant import Agent, Participant
from participant.runtime import participant as participant_module
from protocol.errors import StoreError
from protocol.storage import MemoryStore
from simulations.mutants import MUTANTS
from simulations.options import decode_run, encode_run
from simulations.run import run
from simulations.swarm import draw_run
from simulations.sweep import run_seed, run_seed_of_drivers

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", [2, 3, 4, 6, 16, 17])
def test_drivers_keep_their_promises_under_the_faults_of_a_seed(seed):
    """Found by them: 17, a participant that hung for ever because its store did at the start."""
    outcome = run_seed_of_drivers(seed)
    assert outcome.ok, f"{outcome.kind} {outcome.text}: cleancut simulate run --seed {seed} --runtimes"
    assert outcome.commits


def test_the_same_seed_of_drivers_is_the_same_run_in_two_processes_with_other_hash_seeds():
    code = "from simulations.sweep import run_seed_of_drivers as run; print(*(run(seed).digest for seed in (2, 3, 13)))"
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        for hash_seed in ("1", "4711")
    ]
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
        ("effects-reversed", 20, {"I1", "I6", "P1", "L1", "L2", "L3"}),
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
    monkeypatch.setattr(participant_module, "STORE_SECONDS_MAX", 0.05)
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
