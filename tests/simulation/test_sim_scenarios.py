"""What went wrong in systems like this one, played by the simulator."""

import pytest

from simulations.scenarios import SCENARIOS, play

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.timeout(300)]


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_scenario_comes_out_right(name):
    """What is right is said in the scenario."""
    play(SCENARIOS[name])
