"""The table in tests/README.md that says which test covers what names tests that exist."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"`([a-z0-9_/]+\.py)::(test_\w+)`")


def names_in(path: Path) -> set[str]:
    return {
        each.name
        for each in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_test_that_the_table_names_exists() -> None:
    named = NAMED.findall((TESTS / "README.md").read_text(encoding="utf-8"))
    assert len(named) > 80
    known = {name: names_in(TESTS / name) for name in sorted({name for name, _ in named})}
    assert [f"{name}::{test}" for name, test in named if test not in known[name]] == []


def test_table_has_a_row_for_every_pitfall_from_1_to_46() -> None:
    text = (TESTS / "README.md").read_text(encoding="utf-8")
    assert [int(number) for number in re.findall(r"^\| (\d+) ", text, re.MULTILINE)] == list(range(1, 47))


def test_table_has_a_row_for_every_scenario_of_epochs_and_recovery() -> None:
    text = (TESTS / "README.md").read_text(encoding="utf-8")
    assert {f"D{number}" for number in (*range(1, 9), *range(10, 16))} <= set(
        re.findall(r"^\| (D\d+) ", text, re.MULTILINE)
    )
    assert {f"A{number}" for number in (*range(1, 10), 11, 12, 13, 15)} <= set(
        re.findall(r"^\| (A\d+) ", text, re.MULTILINE)
    )
