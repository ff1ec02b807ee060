"""The Promela model: complete searches without error, planted bugs that are caught, rare states that are reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.model.configurations import CONFIGURATIONS, MUTANTS, PROBES, Configuration, Mutant, Probe
from tests.model.spin import ToolMissing, search

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

# Wall clock, of seconds of CPU: other tests may have both cores.
SEARCH_S = 240


@pytest.mark.timeout(2 * SEARCH_S)
@pytest.mark.parametrize("case", [case for case in CONFIGURATIONS if case.quick], ids=lambda case: case.name)
def test_the_complete_search_finds_no_error(case: Configuration, tmp_path: Path) -> None:
    got = search(case.switches, tmp_path, timeout_s=SEARCH_S, expected=case.states)
    assert not got.violated
    assert got.errors == 0
    assert got.complete
    assert got.states == case.states, (
        "meant? then put the number that check.py prints into configurations.py and README.md"
    )


@pytest.mark.timeout(SEARCH_S)
@pytest.mark.parametrize("case", MUTANTS, ids=lambda case: case.name)
def test_a_broken_rule_is_caught_by_the_invariant_named(case: Mutant, tmp_path: Path) -> None:
    got = search(f"{case.name} {case.switches}", tmp_path, timeout_s=SEARCH_S / 2)
    assert got.errors == 1
    assert got.invariant == case.invariant


@pytest.mark.timeout(SEARCH_S)
@pytest.mark.parametrize("case", PROBES, ids=lambda case: case.name)
def test_a_rare_state_is_reached(case: Probe, tmp_path: Path) -> None:
    got = search(f"REACH={case.name} {case.switches}", tmp_path, timeout_s=SEARCH_S / 2)
    assert got.errors == 1
    assert "||" not in got.violated, "an invariant failed before"


def test_a_missing_tool_is_an_error_that_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="spin gcc"):
        search("", tmp_path, timeout_s=1)
