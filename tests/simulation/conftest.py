"""What all simulations in tests need."""

import pytest


@pytest.fixture(autouse=True)
def failures_elsewhere(monkeypatch, tmp_path_factory):
    """Runs that fail on purpose leave no replay files in the tree."""
    monkeypatch.setenv("SIM_DIR", str(tmp_path_factory.mktemp("failures")))
