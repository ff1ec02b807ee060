"""Settings of a coordinator: where they come from, what a wrong one says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from coordinator.config import Address, CoordinatorConfig, is_loopback, load_config, parse_address
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

MINIMAL = {"id": "c1", "cluster": "shop", "data_dir": "/tmp/c1", "store": "/tmp/store", "secret_file": "/tmp/secret"}
GROUP = """
id = "c1"
cluster = "shop"
data_dir = "c1"
store = "store"
secret_file = "shop.secret"
http = "0.0.0.0:7400"
allow_plain_http = true
raft = "0.0.0.0:7500"

[peers.c1]
raft = "10.0.0.1:7500"
http = "10.0.0.1:7400"
[peers.c2]
raft = "10.0.0.2:7500"
http = "10.0.0.2:7400"
[peers.c3]
raft = "[fd00::3]:7500"
http = "[fd00::3]:7400"

[tls]
ca = "tls/ca.pem"
cert = "tls/c1.pem"
key = "tls/c1.key"

[policy]
interval_ms = 1000
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "c1.toml"
    path.write_text(text)
    return path


def test_a_group_is_read_from_a_file_with_paths_relative_to_it(tmp_path):
    config = load_config(written(tmp_path, GROUP))
    assert config.members == ("c1", "c2", "c3")
    assert config.data_dir == tmp_path / "c1"
    assert config.store == str(tmp_path / "store")
    assert config.tls is not None
    assert config.tls.key == tmp_path / "tls" / "c1.key"
    assert config.http == Address("0.0.0.0", 7400)
    assert str(config.member("c1").http) == "10.0.0.1:7400"
    assert str(config.member("c3").raft) == "[fd00::3]:7500"
    assert config.policy.interval_ns == 1_000_000_000


def test_flags_beat_the_environment_and_both_beat_the_file(tmp_path):
    path = written(tmp_path, GROUP)
    env = {"CLEANCUT_POLICY_INTERVAL_MS": "2000", "CLEANCUT_LEASE_MS": "4000", "CLEANCUT_TIMING": "slow"}
    config = load_config(path, env=env, flags={"policy.interval_ms": 3000, "timing": None})
    assert config.policy.interval_ns == 3_000_000_000
    assert config.lease_ms == 4000
    assert config.timing == "slow"


def test_a_coordinator_without_a_file_needs_five_settings():
    config = load_config(flags=MINIMAL)
    assert config.members == ("c1",)
    assert config.http == Address("127.0.0.1", 7400)
    for name in MINIMAL:
        with pytest.raises(ConfigError, match=f"{name}: is not set"):
            load_config(flags={key: value for key, value in MINIMAL.items() if key != name})


def test_peers_can_come_from_the_environment():
    env = {
        "CLEANCUT_PEERS": "c2=host2:7500:7400, c3=host3:7500:7400",
        "CLEANCUT_TLS_CA": "ca",
        "CLEANCUT_TLS_CERT": "cert",
        "CLEANCUT_TLS_KEY": "key",
    }
    config = load_config(env=env, flags=MINIMAL)
    assert config.member("c3").http == Address("host3", 7400)
    assert config.member("c1").raft == config.raft


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("intervall_ms = 5", "c1.toml: intervall_ms: no such setting"),
        ("secret = 'x'", "c1.toml: secret: no such setting; did you mean 'secret_file'"),
        ("htpp = 'x:1'", "c1.toml: htpp: no such setting; did you mean 'http'"),
        ("[policy]\nintervall_ms = 5", "c1.toml: policy.intervall_ms: no such setting; did you mean 'interval_ms'"),
        ("[peers.c2]\nraf = 'x:1'", "c1.toml: peers.c2.raf: no such setting; did you mean 'raft'"),
        ("[tls]\ncaa = 'x'", "c1.toml: tls.caa: no such setting"),
        ("tls = 5", "c1.toml: tls: must be a table"),
        ("id = ", "c1.toml: is not TOML"),
    ],
)
def test_a_typo_in_a_file_names_file_key_and_the_nearest_setting(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        load_config(written(tmp_path, text), flags=MINIMAL)


def test_a_misspelt_variable_names_the_right_one_and_foreign_ones_are_left_alone():
    with pytest.raises(ConfigError, match="CLEANCUT_SECRET_FIL: no such variable; did you mean CLEANCUT_SECRET_FILE"):
        load_config(env={"CLEANCUT_SECRET_FIL": "x"}, flags=MINIMAL)
    load_config(env={"CLEANCUT_DIR": "x", "CLEANCUT_TOKEN_FILE": "y", "CLEANCUT_SOMETHING_ELSE": "z"}, flags=MINIMAL)


def test_an_unknown_flag_is_refused():
    with pytest.raises(ConfigError, match=r"flag: policy.pause: no such setting; did you mean 'pause_ms'"):
        load_config(flags={**MINIMAL, "policy.pause": 1})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"id": "../c1"}, "is not allowed"),
        ({"cluster": "Shop"}, "is not allowed"),
        ({"store": ""}, "store"),
        ({"http": "7400"}, "http: '7400' is not host:port"),
        ({"http": "host:70000"}, "is not host:port"),
        ({"http": "fd00::3:7400"}, "is not host:port"),
        ({"timing": "fast"}, "timing: 'fast' is not one of normal, slow"),
        ({"lease_ms": 10}, "lease_ms: 10 is under 1000"),
        ({"policy.kind": "hourly"}, "policy: Invalid enum value 'hourly'"),
        ({"policy.interval_ms": 0}, r"policy: Expected `int` >= 1 - at `\$.interval_ms`"),
        ({"policy.max_concurrent": 99}, r"policy: Expected `int` <= 8 - at `\$.max_concurrent`"),
        ({"policy.deadline_ms": "soon"}, "policy.deadline_ms: 'soon' is not a whole number"),
        ({"peers": {"c2": {"raft": "h:1", "http": "h:2"}}}, "tls: is required with more than one coordinator"),
        ({"peers": {"c2": {"raft": "h:1"}}}, "peers.c2.http: is not set"),
        ({"peers": "c2=h:1"}, "is not id=host:raftport:httpport"),
    ],
)
def test_a_wrong_value_says_which_and_what_is_right(changed, message):
    with pytest.raises(ConfigError, match=message):
        load_config(flags={**MINIMAL, **changed})


def test_two_coordinators_at_one_address_are_refused():
    tls = {"ca": "ca", "cert": "cert", "key": "key"}
    peers = {"c2": {"raft": "127.0.0.1:7500", "http": "127.0.0.1:7401"}}
    with pytest.raises(ConfigError, match=r"peers.c2.raft: 127.0.0.1:7500 is also c1's raft"):
        load_config(flags={**MINIMAL, "peers": peers, **{f"tls.{key}": value for key, value in tls.items()}})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.toml: cannot be read: No such file"):
        load_config(tmp_path / "nowhere.toml")


def test_settings_hold_no_secret_and_can_be_printed():
    config = load_config(flags=MINIMAL)
    assert isinstance(config, CoordinatorConfig)
    assert "/tmp/secret" in repr(config)


def test_an_address_prints_as_it_is_written():
    assert str(parse_address("http", "[::1]:7400")) == "[::1]:7400"
    assert str(parse_address("http", "localhost:1")) == "localhost:1"


def test_an_api_beyond_loopback_speaks_https_or_is_told_not_to(tmp_path):
    """Tokens would cross the network in the clear (P8)."""
    settings = {"id": "c1", "cluster": "shop", "data_dir": "/d", "store": "/s", "secret_file": "/f"}
    for host in ("10.0.0.1", "0.0.0.0", "coordinator.example", "[::]"):
        with pytest.raises(ConfigError, match="not on loopback") as raised:
            load_config(flags={**settings, "http": f"{host}:7400"})
        assert raised.value.setting == "http"
        assert "allow_plain_http" in str(raised.value)
        assert load_config(flags={**settings, "http": f"{host}:7400"}, env={"CLEANCUT_ALLOW_PLAIN_HTTP": "1"})
    for host in ("127.0.0.1", "localhost", "[::1]", "127.8.8.8"):
        assert load_config(flags={**settings, "http": f"{host}:7400"}).http_tls is None
    path = tmp_path / "c1.toml"
    path.write_text(
        'id = "c1"\ncluster = "shop"\ndata_dir = "d"\nstore = "s"\nsecret_file = "f"\nhttp = "10.0.0.1:7400"\n'
        '[http_tls]\ncert = "c.pem"\nkey = "c.key"\n'
    )
    tls = load_config(path).http_tls
    assert (tls.cert, tls.key, tls.ca) == (tmp_path / "c.pem", tmp_path / "c.key", None)
    path.write_text(path.read_text().replace("cert", "certificate"))
    with pytest.raises(ConfigError, match=r"http_tls\.certificate: no such setting; did you mean 'cert'"):
        load_config(path)
    with pytest.raises(ConfigError, match=r"http_tls\.key"):
        load_config(flags={**settings, "http_tls": {"cert": "c.pem"}})


def test_only_this_machine_reaches_loopback():
    assert all(map(is_loopback, ("localhost", "127.0.0.9", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "example.org", "localhost.example.org")))


def test_a_lost_folder_is_said_in_the_file_the_environment_or_a_flag_and_needs_others(tmp_path):
    path = written(tmp_path, "rejoin = true\n" + GROUP)
    assert load_config(path).rejoin
    path.write_text(GROUP)
    assert not load_config(path).rejoin
    assert load_config(path, env={"CLEANCUT_REJOIN": "1"}).rejoin
    assert load_config(path, flags={"rejoin": True}).rejoin
    assert not load_config(path, flags={"rejoin": None}).rejoin
    with pytest.raises(ConfigError, match="needs peers"):
        load_config(flags={**MINIMAL, "rejoin": True})
    with pytest.raises(ConfigError, match="rejoin: must be a text"):
        load_config(flags={**MINIMAL, "rejoin": 1})


def test_fences_come_as_a_table_or_a_text_and_are_checked(tmp_path: Path) -> None:
    base = {"id": "c1", "cluster": "shop", "data_dir": "/d", "store": "/s", "secret_file": "/k"}
    file = tmp_path / "c.toml"
    file.write_text("".join(f'{key} = "{value}"\n' for key, value in base.items()) + '[fences]\nbank = "https://b/f"\n')
    assert load_config(file).fences == {"bank": "https://b/f"}
    env = {f"CLEANCUT_{key.upper()}": value for key, value in base.items()}
    assert load_config(env={**env, "CLEANCUT_FENCES": "a=file:/x#y, b=https://c/d"}).fences == {
        "a": "file:/x#y",
        "b": "https://c/d",
    }
    for wrong in ("store=file:/x", "A=file:/x", "a=", "a"):
        with pytest.raises(ConfigError):
            load_config(env={**env, "CLEANCUT_FENCES": wrong})
    many = ",".join(f"f{number}=file:/x" for number in range(16))
    with pytest.raises(ConfigError, match="at most 15"):
        load_config(env={**env, "CLEANCUT_FENCES": many})
