"""Seeded worlds: all is well under failures; the same seed is the same run; what was found once stays mended."""

from collections import Counter
from pathlib import Path

import pytest

from simulations.faults import OUTSIDE_POINTS, POINTS, RECOVERY_POINTS, SEALED_POINTS
from simulations.options import decode_run, encode_run
from simulations.run import run
from simulations.swarm import draw_faults, draw_run
from tests.simulation.hash_seeds import run_under_two_hash_seeds

REGRESS = sorted((Path(__file__).parent / "regress").glob("*.json"))

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", range(16))
def test_nothing_breaks_under_the_faults_of_a_seed(seed):
    """A failure prints the command that runs it again."""
    outcome = run(draw_run(seed))
    assert outcome.ok, f"{outcome.kind} {outcome.text}: cleancut simulate run --seed {seed}"


def test_the_same_seed_is_the_same_run_in_two_processes_with_other_hash_seeds():
    """Digest over every event, message and frame."""
    code = "from simulations.run import run; from simulations.swarm import draw_run; print(*(run(draw_run(s)).digest for s in (3, 9, 13, 21)))"
    found = [each.stdout for each in run_under_two_hash_seeds(code)]
    assert found[0] == found[1]
    assert len(set(found[0].split())) == 4


def test_leaving_out_one_kind_of_fault_leaves_the_others_as_they_were():
    what = draw_run(2)
    kinds = sorted({fault.kind for fault in what.faults})
    every = draw_faults(what.options, kinds)
    fewer = draw_faults(what.options, kinds[1:])
    assert fewer == [fault for fault in every if fault.kind != kinds[0]]
    assert 0 < len(fewer) < len(every)


def test_one_seed_in_twenty_has_no_fault_and_three_have_exactly_one_kind():
    found = Counter(min(2, len({fault.kind for fault in draw_run(seed).faults})) for seed in range(2000))
    assert 70 <= found[0] <= 130
    assert 240 <= found[1] <= 360


def test_as_many_seeds_in_a_row_as_there_are_points_force_a_crash_at_nearly_each_of_them():
    """Those that have no fault, or one kind only, force none: the next ones of the same remainder do."""
    every = {*POINTS, *SEALED_POINTS, *RECOVERY_POINTS}
    forced = {fault.point for seed in range(16 * len(every)) for fault in forced_of(seed)}
    assert forced - {*OUTSIDE_POINTS} == every


def forced_of(seed):
    what = draw_run(seed)
    without = draw_faults(what.options, force=False)
    return [fault for fault in what.faults if fault.kind == "crash-at" and fault not in without]


def test_a_replay_file_is_the_same_run():
    what = draw_run(13)
    assert run(decode_run(encode_run(what))).digest == run(draw_run(13)).digest


@pytest.mark.parametrize("file", REGRESS, ids=lambda file: file.stem)
def test_what_was_found_once_stays_mended(file):
    """Fault lists of failures that were mended; each file's note says what it caught."""
    what = decode_run(file.read_bytes())
    outcome = run(what)
    assert outcome.ok, f"{outcome.kind} {outcome.text}: cleancut simulate replay {file}"
