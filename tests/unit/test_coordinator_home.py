"""The data folder: one process, one identity."""

from __future__ import annotations

import json

import pytest

from coordinator.runtime.home import DataDir
from protocol.errors import ConfigError


def test_a_new_folder_is_private_and_remembers_whose_it_is(tmp_path):
    path = tmp_path / "a" / "c1"
    with DataDir(path, cluster="shop", coordinator="c1"):
        assert path.stat().st_mode & 0o777 == 0o700
        assert json.loads((path / "identity.json").read_text()) == {"cluster": "shop", "id": "c1"}
    with DataDir(path, cluster="shop", coordinator="c1"):
        pass


def test_a_folder_is_held_until_it_is_closed(tmp_path):
    held = DataDir(tmp_path, cluster="shop", coordinator="c1")
    with pytest.raises(ConfigError, match="is in use by another running coordinator"):
        DataDir(tmp_path, cluster="shop", coordinator="c1")
    held.close()
    held.close()
    DataDir(tmp_path, cluster="shop", coordinator="c1").close()


@pytest.mark.parametrize(("cluster", "name"), [("shop", "c2"), ("other", "c1")])
def test_a_folder_of_another_is_refused_and_given_back(tmp_path, cluster, name):
    DataDir(tmp_path, cluster="shop", coordinator="c1").close()
    with pytest.raises(ConfigError, match="belongs to coordinator 'c1' of cluster 'shop'"):
        DataDir(tmp_path, cluster=cluster, coordinator=name)
    DataDir(tmp_path, cluster="shop", coordinator="c1").close()


def test_a_damaged_identity_and_a_file_in_place_of_the_folder_are_named(tmp_path):
    (tmp_path / "identity.json").write_text("{")
    with pytest.raises(ConfigError, match=r"identity.json is damaged"):
        DataDir(tmp_path, cluster="shop", coordinator="c1")
    (tmp_path / "identity.json").write_text("[]")
    with pytest.raises(ConfigError, match="belongs to"):
        DataDir(tmp_path, cluster="shop", coordinator="c1")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used: E"):
        DataDir(tmp_path / "file", cluster="shop", coordinator="c1")
