"""Certificates of a cluster: its own authority, and one certificate per coordinator.

The authority's key is used once and only kept to add or renew certificates: store it away from the coordinators. A
coordinator's certificate carries its id as common name; that is its identity between coordinators. The hosts stand in
it for people and for tools that look at them.

Files in the folder: ``ca.pem``, ``ca.key``, and ``<id>.pem``, ``<id>.key`` for each coordinator. A coordinator needs
``ca.pem`` and its own two, nothing else.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from typing import TYPE_CHECKING, Final

from protocol.errors import ConfigError
from protocol.ids import check_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from protocol.ids import CoordinatorId

VALID_DAYS: Final = 3650
"""Ten years: an expired certificate stops a cluster for no gain, as the authority is the cluster's own."""
_SLACK: Final = datetime.timedelta(days=1)
"""Certificates are valid from a day ago: clocks differ."""


def make_certificates(
    folder: Path,
    names: Mapping[CoordinatorId, Iterable[str]],
    *,
    cluster: str = "cleancut",
    now: datetime.datetime | None = None,
) -> None:
    """Make the authority (if the folder has none yet) and a certificate for each coordinator that has none.

    Args:
        folder: Made with mode 700 if missing. Keys get mode 600.
        names: Coordinator -> its host names or IP addresses.
        cluster: For the authority's name.
        now: Start of validity; the current time if None.

    Raises:
        ConfigError: An illegal id, or the folder has only half of a pair, or cannot be written.
    """
    for name in names:
        check_name("coordinator", name)
    if "ca" in names:
        raise ConfigError("coordinators", "a coordinator cannot be called ca: that is the authority's file")
    moment = datetime.datetime.now(datetime.UTC) if now is None else now  # noqa: TID251 - validity begins at a real time
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority, authority_key = _authority(folder, cluster, moment)
        for name, hosts in sorted(names.items()):
            if not _pair_exists(folder, name):
                key = _new_key()
                _write_pair(folder, name, _issue(name, hosts, key, authority, authority_key, moment), key)
    except OSError as error:
        raise ConfigError("keys", f"{folder} cannot be written: {error.strerror}") from error


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _authority(folder: Path, cluster: str, now: datetime.datetime) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    if _pair_exists(folder, "ca"):
        certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
        if not isinstance(key, EllipticCurvePrivateKey):
            raise ConfigError("keys", f"{folder / 'ca.key'} is not a key that this program made")
        return certificate, key
    key = _new_key()
    name = _name(f"{cluster} coordinators")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, name, key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_pair(folder, "ca", certificate, key)
    return certificate, key


def _issue(
    name: str,
    hosts: Iterable[str],
    key: EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: EllipticCurvePrivateKey,
    now: datetime.datetime,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.x509.oid import ExtendedKeyUsageOID

    public = authority_key.public_key()
    assert isinstance(public, EllipticCurvePublicKey), "the authority's key is ours"
    builder = (
        _builder(_name(name), authority.subject, key, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
    )
    alternatives = [_general_name(host) for host in hosts]
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(authority_key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
    )


def _name(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pair_exists(folder: Path, name: str) -> bool:
    present = [(folder / f"{name}.{kind}").exists() for kind in ("pem", "key")]
    if present[0] != present[1]:
        raise ConfigError(
            "keys", f"{folder} has only one of {name}.pem and {name}.key; put the other back or delete it"
        )
    return present[0]


def _write_pair(folder: Path, name: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives import serialization

    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write_new(folder / f"{name}.key", private, 0o600)
    _write_new(folder / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
