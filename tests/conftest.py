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

LONGEST_FIRST = ("test_chaos.py", "tests/e2e", "tests/simulation", "tests/integration")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first: of two processes, none is left alone with it at the end."""
    items.sort(key=lambda item: next((rank for rank, part in enumerate(LONGEST_FIRST) if part in str(item.path)), 9))


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLEANCUT_* variables of the person who runs the tests would change what commands and configurations do."""
    for name in [name for name in os.environ if name.startswith("CLEANCUT_")]:
        monkeypatch.delenv(name)
