"""Each benchmark runs in a tiny size and gives a well-formed document. Nothing here looks at a number: no timed tests."""

import json
import math

import pytest
from click.testing import CliRunner

from simulations.bench.catalog import MODULES, module_of, run_benchmark, title_of
from simulations.bench.command import bench
from simulations.bench.measure import Row, Settings, row_of

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", MODULES)
async def test_each_benchmark_runs_tiny_and_gives_rows_with_their_samples(name):
    rows = await run_benchmark(name, Settings(size="tiny"))
    assert rows
    for row in rows:
        assert row.benchmark == name == module_of(name).NAME
        assert row.case
        assert row.metric
        assert row.unit
        assert row.samples
        assert row.low <= row.ratio <= row.high
        assert all(math.isfinite(value) and value > 0 for sample in row.samples for value in sample)


@pytest.mark.parametrize("name", MODULES)
def test_each_benchmark_says_what_it_measures_against_what_and_what_is_the_bound(name):
    text = module_of(name).__doc__
    assert "Reference" in text
    assert "Bound:" in text
    assert title_of(name).endswith(".")


def test_the_command_writes_a_document_with_machine_versions_and_samples(tmp_path):
    result = CliRunner().invoke(bench, ["--tiny", "--json", "out/found.json", "wire-tax"])
    assert result.exit_code == 0, result.output
    assert "wire-tax" in result.output
    document = json.loads((tmp_path / "out" / "found.json").read_text())
    assert document["size"] == "tiny"
    assert document["failed"] == []
    assert document["machine"]["libraries"]["msgspec"]
    assert document["machine"]["cores"] >= 1
    [benchmark] = document["benchmarks"]
    assert benchmark["name"] == "wire-tax"
    for row in benchmark["rows"]:
        assert row["samples"]
        assert row["met"] in {True, False}


def test_the_command_names_the_benchmarks_that_there_are_when_one_is_unknown():
    result = CliRunner().invoke(bench, ["no-such"])
    assert result.exit_code == 2
    assert "no-such" in result.output
    assert "wire-tax" in result.output


def test_a_benchmark_that_fails_is_named_and_the_command_ends_with_1(monkeypatch):
    monkeypatch.setitem(MODULES, "broken", "no_such_module")
    result = CliRunner().invoke(bench, ["--tiny", "--json", "found.json", "broken"])
    assert result.exit_code == 1
    assert "broken" in result.output


def test_a_row_tells_the_median_the_spread_and_whether_the_bar_is_met():
    row = row_of("b", "c", "m", [(1.0, 2.0), (3.0, 2.0), (2.0, 2.0)], bar=0.9)
    assert (row.low, row.ratio, row.high) == (0.5, 1.0, 1.5)
    assert row.met is False
    assert row_of("b", "c", "m", [(1.0, 1.0)], bar=0.9, at_least=True).met is True
    assert row_of("b", "c", "m", [(1.0, 1.0)]).met is None


def test_a_row_without_samples_or_with_an_empty_reference_is_refused():
    with pytest.raises(ValueError, match="nothing was measured"):
        row_of("b", "c", "m", [])
    with pytest.raises(ValueError, match="nothing was measured"):
        row_of("b", "c", "m", [(1.0, 0.0)])


def test_rows_survive_their_way_through_json():
    import msgspec

    row = row_of("b", "c", "m", [(1.0, 2.0)], bar=1.0, unit="s", notes="n")
    assert msgspec.json.decode(msgspec.json.encode(row), type=Row) == row
