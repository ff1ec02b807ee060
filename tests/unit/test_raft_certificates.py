"""The cluster's own authority and the coordinators' certificates."""

import datetime
import stat

import pytest
from cryptography import x509

from coordinator.certificates import make_certificates
from coordinator.runtime.raft.config import TlsFiles
from coordinator.runtime.raft.tls import client_context, own_name, peer_name, server_context
from protocol.errors import ConfigError, IllegalName, RemoteProtocolError


def files(folder, name: str) -> TlsFiles:
    return TlsFiles(ca=folder / "ca.pem", certificate=folder / f"{name}.pem", key=folder / f"{name}.key")


def test_each_coordinator_gets_a_certificate_that_carries_its_id_and_hosts(tmp_path):
    make_certificates(tmp_path, {"c1": ["127.0.0.1", "one.example"], "c2": []}, cluster="demo")
    assert own_name(files(tmp_path, "c1")) == "c1"
    certificate = x509.load_pem_x509_certificate((tmp_path / "c1.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["127.0.0.1", "one.example"]
    assert certificate.issuer.rfc4514_string() == "CN=demo coordinators"
    server_context(files(tmp_path, "c1"))
    client_context(files(tmp_path, "c2"))


def test_keys_are_readable_for_the_owner_only(tmp_path):
    make_certificates(tmp_path / "keys", {"c1": []})
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    for key in (tmp_path / "keys").glob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_making_them_again_adds_what_is_missing_and_changes_nothing(tmp_path):
    make_certificates(tmp_path, {"c1": []})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    make_certificates(tmp_path, {"c1": [], "c2": []})
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.items() <= after.items()
    assert sorted(after) == ["c1.key", "c1.pem", "c2.key", "c2.pem", "ca.key", "ca.pem"]
    server_context(files(tmp_path, "c2"))


def test_half_a_pair_is_refused_by_name(tmp_path):
    make_certificates(tmp_path, {"c1": []})
    (tmp_path / "c1.key").unlink()
    with pytest.raises(ConfigError, match=r"c1\.pem and c1\.key"):
        make_certificates(tmp_path, {"c1": []})


@pytest.mark.parametrize("name", ["ca", "../c1", "C1", ""])
def test_names_that_are_none_are_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises((ConfigError, IllegalName)):
        make_certificates(tmp_path / "keys", {name: []})
    assert not (tmp_path / "keys").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        make_certificates(tmp_path / "file" / "keys", {"c1": []})


def test_validity_begins_a_day_early_because_clocks_differ(tmp_path):
    now = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    make_certificates(tmp_path, {"c1": []}, now=now)
    certificate = x509.load_pem_x509_certificate((tmp_path / "c1.pem").read_bytes())
    assert certificate.not_valid_before_utc == now - datetime.timedelta(days=1)


def test_a_certificate_without_exactly_one_name_is_nobodys():
    assert peer_name({"subject": ((("commonName", "c1"),),)}) == "c1"
    for certificate in (None, {}, {"subject": ((("commonName", "c1"), ("commonName", "c2")),)}):
        with pytest.raises(RemoteProtocolError):
            peer_name(certificate)
