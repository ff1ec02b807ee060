"""Seeded worlds: all is well under failures; the same seed is the same run; what was found once stays mended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulations.options import decode_run, encode_run
from simulations.run import run
from simulations.swarm import draw_faults, draw_run

ROOT = Path(__file__).parents[2]
REGRESS = sorted((Path(__file__).parent / "regress").glob("*.json"))

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", range(16))
def test_nothing_breaks_under_the_faults_of_a_seed(seed):
    """A failure prints the command that runs it again."""
    outcome = run(draw_run(seed))
    assert outcome.ok, f"{outcome.kind} {outcome.text}: cleancut simulate run --seed {seed}"


def test_the_same_seed_is_the_same_run_in_two_processes_with_other_hash_seeds():
    """Digest over every event, message and frame."""
    code = "from simulations.run import run; from simulations.swarm import draw_run; print(*(run(draw_run(s)).digest for s in (3, 13, 21)))"
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "4711")
    ]
    assert found[0] == found[1]
    assert len(set(found[0].split())) == 3


def test_leaving_out_one_kind_of_fault_leaves_the_others_as_they_were():
    what = draw_run(2)
    kinds = sorted({fault.kind for fault in what.faults})
    fewer = draw_faults(what.options, kinds[1:])
    assert fewer == [fault for fault in what.faults if fault.kind != kinds[0]]
    assert len(fewer) < len(what.faults)


def test_a_replay_file_is_the_same_run():
    what = draw_run(13)
    assert run(decode_run(encode_run(what))).digest == run(draw_run(13)).digest


@pytest.mark.parametrize("file", REGRESS, ids=lambda file: file.stem)
def test_what_was_found_once_stays_mended(file):
    """Fault lists of failures that were mended; each file's note says what it caught."""
    what = decode_run(file.read_bytes())
    outcome = run(what)
    assert outcome.ok, f"{outcome.kind} {outcome.text}: cleancut simulate replay {file}"
