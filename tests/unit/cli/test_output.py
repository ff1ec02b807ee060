"""What reaches a terminal, and numbers as people read them."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cli.exits import Exit, as_failure, from_http
from coordinator.cli.output import CELL_CHARACTERS_MAX, listed, moment, print_table, safe, size, span
from protocol import errors


@given(st.text())
def test_nothing_that_a_terminal_obeys_passes(text: str) -> None:
    shown = safe(text)
    assert shown.isprintable(), ascii(shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("grüße, 世界", "grüße, 世界"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\u202eevil", "\\u202eevil"),
        ("\u200bzero", "\\u200bzero"),
        ("\x9b31m", "\\x9b31m"),
        ("\ud800", "\\ud800"),
        ("a\u2028b", "a\\u2028b"),
        (None, "None"),
    ],
)
def test_what_is_escaped_and_what_is_not(text: object, shown: str) -> None:
    assert safe(text) == shown


def test_a_long_text_is_cut_with_its_length() -> None:
    assert safe("x" * 10_000).endswith("x... (10000 characters)")
    assert len(safe("x" * CELL_CHARACTERS_MAX)) == CELL_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (3 * 10**15, "3000.0 TB"),
        (None, ""),
    ],
)
def test_sizes(count: object, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "0 ms"),
        (3, "3 ms"),
        (0.31, "0.3 ms"),
        (9.96, "10 ms"),
        (999, "999 ms"),
        (1000, "1.0 s"),
        (59_949, "59.9 s"),
        (60_000, "1 min 00 s"),
        (7_800_000, "2 h 10 min"),
        (None, ""),
    ],
)
def test_durations(milliseconds: object, shown: str) -> None:
    assert span(milliseconds) == shown


def test_moments_are_utc_and_impossible_ones_are_numbers() -> None:
    assert moment(0) == "1970-01-01 00:00:00Z"
    assert moment(10**20) == f"{10**20} ms"
    assert moment(None) == ""


def test_long_lists_end_with_a_count() -> None:
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more"


def test_a_table_on_a_terminal_that_knows_only_ascii_does_not_crash(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "N"), [("x", 1), ("", 22)], numbers=("N",))
    assert capsys.readouterr().out.splitlines() == ["A   N", "x   1", "-  22"]


def every_error(base: type[BaseException] = errors.SnapshotError) -> list[type[BaseException]]:
    return [base, *(each for child in base.__subclasses__() for each in every_error(child))]


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_of_the_tree_has_an_exit_code(kind: type[errors.SnapshotError]) -> None:
    failure = as_failure(kind.__new__(kind))
    assert failure.exit in set(Exit) - {Exit.DONE}


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (errors.ConfigError("store", "is empty"), Exit.USAGE),
        (errors.IllegalName("agent", "../x"), Exit.USAGE),
        (errors.ObjectMissing("get", "k", "no such object"), Exit.NOT_FOUND),
        (errors.ObjectCorrupt("get", "k", "digest differs"), Exit.INCONSISTENT),
        (errors.InconsistentCut("orphan on a->b"), Exit.INCONSISTENT),
        (errors.Unreachable("no answer"), Exit.UNREACHABLE),
        (errors.Refused("id-taken", "taken"), Exit.REFUSED),
        (errors.StoreError("get", "k", "Input/output error", errno_name="EIO"), Exit.FAILED),
        (PermissionError(13, "Permission denied", "/root/x"), Exit.FAILED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_an_error_ends_with(error: errors.SnapshotError | OSError, exit_code: Exit) -> None:
    assert as_failure(error).exit is exit_code


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "bad-value", Exit.USAGE),
        (401, "no-token", Exit.REFUSED),
        (403, "wrong-role", Exit.REFUSED),
        (404, "no-epoch", Exit.NOT_FOUND),
        (409, "epoch-open", Exit.REFUSED),
        (422, "object-corrupt", Exit.INCONSISTENT),
        (429, "busy", Exit.REFUSED),
        (500, "internal", Exit.FAILED),
        (503, "no-leader", Exit.UNREACHABLE),
        (503, "store-failed", Exit.FAILED),
    ],
)
def test_what_an_answer_of_the_api_ends_with(status: int, code: str, exit_code: Exit) -> None:
    assert from_http(status, code, "m", "h").exit is exit_code


def test_the_test_runs_where_output_is_not_a_terminal() -> None:
    assert not sys.stdout.isatty()
