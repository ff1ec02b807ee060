"""Vectors that are missing are a failure that says what to do, never a skip."""

import pytest

from tests.shared import ROOT, shared_path


def test_missing_vector_is_named_with_the_place_where_it_must_be():
    with pytest.raises(FileNotFoundError, match=r"shared/vectors/nothing\.json is missing: the tests need the folder"):
        shared_path("vectors/nothing.json")


def test_root_is_the_repository():
    assert (ROOT / "pyproject.toml").is_file()
