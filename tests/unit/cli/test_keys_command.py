"""What a new cluster needs, made once and never overwritten."""

import json
import os
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from coordinator.config import load_config
from protocol.ids import participant_id
from protocol.keys import ClusterKeys, read_secret
from tests.unit.cli.fake_api import Cli

THREE = "c1=10.0.0.1:7500:7400,c2=host-2.example:7500:7400,c3=10.0.0.3:7500:7400"


def test_every_coordinator_can_start_from_what_was_made(cli: Cli, tmp_path: Path) -> None:
    """The settings files are read by the coordinator's own reader; paths in them are relative, so the folder may move."""
    ended = cli("keys", "init", tmp_path / "made", "--coordinators", THREE, "--cluster", "shop")
    assert ended.code == 0, ended.err
    folder = (tmp_path / "made").rename(tmp_path / "moved")
    for name in ("c1", "c2", "c3"):
        config = load_config(folder / f"{name}.toml")
        assert (config.id, config.cluster) == (name, "shop")
        assert config.members == ("c1", "c2", "c3")
        assert str(config.member("c2").http) == "host-2.example:7400"
        assert config.tls is not None
        assert config.tls.ca.is_file()
        assert config.tls.key.is_file()
        ClusterKeys.from_secret(read_secret(config.secret_file))
        assert Path(config.store) == folder / "store"


def test_certificates_carry_the_coordinators_id_and_hosts(cli: Cli, tmp_path: Path) -> None:
    cli("keys", "init", tmp_path / "k", "--coordinators", THREE)
    certificate = x509.load_pem_x509_certificate((tmp_path / "k" / "tls" / "c2.pem").read_bytes())
    [name] = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == "c2"
    hosts = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert hosts.get_values_for_type(x509.DNSName) == ["host-2.example"]


def test_secret_and_private_keys_are_for_their_owner_alone(cli: Cli, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cli("keys", "init", tmp_path / "k", "--coordinators", THREE)
    finally:
        os.umask(before)
    private = [tmp_path / "k" / "cluster.secret", *(tmp_path / "k" / "tls").glob("*.key")]
    assert len(private) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o700


def test_the_secret_is_never_printed(cli: Cli, tmp_path: Path) -> None:
    ended = cli("keys", "init", tmp_path / "k", "--coordinators", THREE)
    assert (tmp_path / "k" / "cluster.secret").read_text().strip() not in ended.out + ended.err


def test_two_clusters_get_two_secrets(cli: Cli, tmp_path: Path) -> None:
    for name in ("a", "b"):
        cli("keys", "init", tmp_path / name, "--coordinators", "c1=127.0.0.1:7500:7400")
    assert (tmp_path / "a" / "cluster.secret").read_text() != (tmp_path / "b" / "cluster.secret").read_text()


def test_nothing_is_ever_overwritten(cli: Cli, tmp_path: Path) -> None:
    cli("keys", "init", tmp_path / "k", "--coordinators", THREE)
    before = {path: path.read_bytes() for path in (tmp_path / "k").rglob("*") if path.is_file()}
    ended = cli("keys", "init", tmp_path / "k", "--coordinators", THREE)
    assert ended.code == 6
    assert "never overwritten" in ended.err
    assert {path: path.read_bytes() for path in (tmp_path / "k").rglob("*") if path.is_file()} == before
    (tmp_path / "file").write_text("x")
    assert cli("keys", "init", tmp_path / "file", "--coordinators", THREE).code == 6


def test_an_empty_folder_is_taken(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    assert cli("keys", "init", tmp_path / "k", "--coordinators", THREE).code == 0


def test_a_failure_half_way_leaves_nothing_behind(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "ca.pem")

    monkeypatch.setattr("coordinator.certificates.make_certificates", full)
    ended = cli("keys", "init", tmp_path / "k", "--coordinators", THREE)
    assert ended.code == 1
    assert "No space left" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_single_coordinator_needs_no_certificates(cli: Cli, tmp_path: Path) -> None:
    assert cli("keys", "init", tmp_path / "k", "--coordinators", "only=127.0.0.1:7500:7400").code == 0
    assert not (tmp_path / "k" / "tls").exists()
    assert load_config(tmp_path / "k" / "only.toml").tls is None


def test_what_was_made_is_what_the_command_line_reads(cli: Cli, tmp_path: Path) -> None:
    cli("keys", "init", tmp_path / "k", "--coordinators", "c1=127.0.0.1:1:2")
    token = cli("keys", "token", "viewer", "--dir", tmp_path / "k")
    keys = ClusterKeys.from_secret(read_secret(tmp_path / "k" / "cluster.secret"))
    assert token.out.strip() == keys.token("viewer")
    assert "127.0.0.1:2: connection refused" in cli("status", "--dir", tmp_path / "k").err


def test_a_participants_token_can_be_bound_to_it(cli: Cli, tmp_path: Path) -> None:
    cli("keys", "init", tmp_path / "k", "--coordinators", "c1=127.0.0.1:1:2")
    keys = ClusterKeys.from_secret(read_secret(tmp_path / "k" / "cluster.secret"))
    command = ("keys", "token", "participant", "--dir", tmp_path / "k")
    assert cli(*command, "--id", "buyer-1").out.strip() == keys.participant_token(participant_id("buyer-1"))
    assert cli(*command, "--id", "../x").code == 2
    assert cli("keys", "token", "viewer", "--dir", tmp_path / "k", "--id", "buyer-1").code == 2


def test_a_token_goes_into_a_new_file_for_its_owner_alone(cli: Cli, tmp_path: Path) -> None:
    cli("keys", "init", tmp_path / "k", "--coordinators", "c1=127.0.0.1:1:2")
    command = ("keys", "token", "operator", "--dir", tmp_path / "k", "--out", tmp_path / "t")
    assert "cc1." not in cli(*command).out
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == 0o600
    assert cli(*command).code == 6
    assert cli("keys", "token", "operator").code == 2


def test_the_document_names_files_and_no_secret(cli: Cli, tmp_path: Path) -> None:
    ended = cli("keys", "init", tmp_path / "k", "--coordinators", "c1=127.0.0.1:1:2", "--json")
    assert ended.document["cluster"] == "cleancut"
    assert str(tmp_path / "k" / "c1.toml") in ended.document["files"]
    assert json.loads((tmp_path / "k" / "cleancut.json").read_text())["coordinators"] == ["127.0.0.1:2"]


@pytest.mark.parametrize(
    ("listed", "problem"),
    [
        ("c1", "is not ID=HOST:RAFTPORT:HTTPPORT"),
        ("c1=host:7400", "is not ID=HOST:RAFTPORT:HTTPPORT"),
        ("c1=:1:2", "is not host:port"),
        ("c1=h:1:x", "is not host:port"),
        ("c1=h:0:2", "port 0"),
        ("../x=h:1:2", "not allowed"),
        ("c1=h:1:2,c1=h:3:4,c2=h:5:6", "twice"),
        ("c1=h:1:2,c2=h:3:4", "take 1, 3 or 5"),
    ],
)
def test_a_wrong_list_of_coordinators_is_exit_2(cli: Cli, tmp_path: Path, listed: str, problem: str) -> None:
    ended = cli("keys", "init", tmp_path / "k", "--coordinators", listed)
    assert ended.code == 2, ended.err
    assert problem in ended.err
    assert not (tmp_path / "k").exists()


def test_coordinators_beyond_loopback_get_https_unless_it_is_refused(cli: Cli, tmp_path: Path) -> None:
    listed = "c1=10.0.0.1:7500:7400"
    assert cli("keys", "init", tmp_path / "a", "--coordinators", listed).code == 0
    config = load_config(tmp_path / "a" / "c1.toml")
    assert config.http_tls is not None
    assert config.http_tls.cert.is_file()
    description = json.loads((tmp_path / "a" / "cleancut.json").read_text())
    assert (description["coordinators"], description["ca"]) == (["https://10.0.0.1:7400"], "tls/ca.pem")
    ended = cli("keys", "init", tmp_path / "b", "--coordinators", listed, "--http")
    assert ended.code == 0
    assert "plain HTTP beyond loopback" in ended.err
    assert load_config(tmp_path / "b" / "c1.toml").allow_plain_http
    assert cli("keys", "init", tmp_path / "c", "--coordinators", "c1=127.0.0.1:1:2", "--https").code == 0
    assert load_config(tmp_path / "c" / "c1.toml").http_tls is not None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--coordinators", "c1=h:7:8,c2=h:7:9,c3=h:10:11"), "h:7 is both c1's raft address and c2's raft address"),
        (("--coordinators", "c1=h:7:7"), "h:7 is both c1's raft address and c1's http address"),
        (("--coordinators", "c1=h:7:8", "--store", "s3://bucket"), "'s3://bucket' is not a folder"),
        (("--coordinators", "c1=h:7:8", "--store", "memory:x"), "'memory:x' is not a folder"),
    ],
)
def test_what_could_not_start_is_refused_before_anything_is_made(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    ended = cli("keys", "init", tmp_path / "k", *arguments)
    assert ended.code == 2
    assert words in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_coordinator_without_any_settings_is_told_where_they_come_from(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLEANCUT_ID", raising=False)
    ended = cli("coordinator")
    assert ended.code == 2
    assert "--config" in ended.err
    assert "keys init" in ended.err
