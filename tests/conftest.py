"""What every test needs: settings of this machine's user must not leak in, and Hypothesis must not measure a busy machine."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Two shared cores: how long an example takes says nothing about the code. CI tries the same examples each time, so that
# a red run is the change's doing; people at their desks look further.
settings.register_profile("desk", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLEANCUT_* variables of the person who runs the tests would change what commands and configurations do."""
    for name in [name for name in os.environ if name.startswith("CLEANCUT_")]:
        monkeypatch.delenv(name)
