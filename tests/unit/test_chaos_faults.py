"""The failures of a chaos run are a function of its seed."""

from itertools import islice

from simulations.chaos.faults import FREEZE_MS, PAUSE_MS, WEIGHTS, faults


def test_same_seed_draws_the_same_failures():
    assert list(islice(faults(7, 4), 50)) == list(islice(faults(7, 4), 50))
    assert list(islice(faults(7, 4), 50)) != list(islice(faults(8, 4), 50))


def test_every_kind_comes_and_stays_within_its_bounds():
    drawn = list(islice(faults(1, 4), 400))
    assert {fault.kind for fault in drawn} == set(WEIGHTS)
    for fault in drawn:
        assert PAUSE_MS[0] <= 1000 * fault.pause <= PAUSE_MS[1]
        assert FREEZE_MS[0] <= 1000 * fault.seconds <= FREEZE_MS[1]
        assert set(fault.participants) <= set(range(4))
        assert len(fault.participants) == (len(set(fault.participants)) if fault.kind == "kill-participants" else 1)
    assert {len(fault.participants) for fault in drawn if fault.kind == "kill-participants"} == {2, 3, 4}
