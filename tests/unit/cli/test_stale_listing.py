"""D5: what a store lists may be old, or empty: that is an error where somebody asks for the newest, and nothing else asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from protocol.storage.filesystem import FilesystemStore
from tests.unit.cli.store_maker import Made, make_store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.fake_api import Cli


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    made = make_store(tmp_path)
    monkeypatch.setattr(FilesystemStore, "list", lambda *_: iter(()))
    return made


@pytest.mark.parametrize("command", [("verify",), ("state",), ("restore", "--check")])
def test_an_empty_listing_is_an_error_for_latest_and_no_fresh_start(
    cli: Cli, made: Made, command: tuple[str, ...]
) -> None:
    name, *options = command
    ended = cli("epoch", name, "latest", *options, "--store", made.folder / "store", "--secret-file", made.secret_file)
    assert ended.code == 3, ended.err
    assert "no epoch" in ended.err
    assert "can be restored" not in ended.out


def test_an_epoch_that_is_named_by_its_number_is_found_whatever_is_listed(cli: Cli, made: Made) -> None:
    store = ("--store", made.folder / "store", "--secret-file", made.secret_file)
    assert cli("epoch", "verify", "3", *store).code == 0
    assert "buyer/main" in cli("epoch", "state", "3", *store).out
    ended = cli("epoch", "restore", "3", "--check", *store)
    assert (ended.code, "is not in" in ended.err) == (6, False), "found; no code was named"
