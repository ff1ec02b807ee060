"""Mutual TLS between coordinators: both sides show a certificate of the cluster's own authority, TLS 1.3 only."""

from __future__ import annotations

import ssl
import stat
from typing import TYPE_CHECKING, Any

from protocol.errors import ConfigError, RemoteProtocolError

if TYPE_CHECKING:
    from coordinator.runtime.raft.config import TlsFiles


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """For accepted connections; a client without a certificate of the cluster does not get through the handshake."""
    return _context(ssl.PROTOCOL_TLS_SERVER, files)


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """For dialled connections. Names in the certificate are ids, not hosts: `peer_name` compares them."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, files)


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    for setting, path in (("tls.ca", files.ca), ("tls.cert", files.certificate), ("tls.key", files.key)):
        if not path.is_file():
            raise ConfigError(setting, f"{path} is not there; make it with `cleancut keys init`")
    if stat.S_IMODE(files.key.stat().st_mode) & 0o077:
        raise ConfigError("tls.key", f"{files.key} can be read by others; `chmod 600` it")
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(files.ca)
        context.load_cert_chain(files.certificate, files.key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError("tls", f"certificate, key and authority do not fit together: {error}") from error
    return context


def peer_name(certificate: dict[str, Any] | None) -> str:
    """The one common name of a verified certificate.

    Raises:
        RemoteProtocolError: It has none, or several.
    """
    subject = (certificate or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    if len(names) != 1:
        raise RemoteProtocolError(f"a certificate with {len(names)} common names")
    return str(names[0])


def own_name(files: TlsFiles) -> str:
    """The common name of this coordinator's certificate, to find a mix-up at the start and not at the first peer.

    Raises:
        ConfigError: Unreadable.
    """
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError("tls.cert", f"{files.certificate} is unreadable: {error}") from error
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""
