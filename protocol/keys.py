"""The cluster's secret and what is derived from it: frame keys, the manifest key, bearer tokens.

Theory: one secret of at least 32 bytes per cluster. BLAKE3's key derivation (a context string per purpose) turns it into
independent keys, so that a leaked token or frame key tells nothing about another one. A frame key belongs to one
channel: whoever learns it can speak as that source to that target and no more (RELIABILITY.md T1).

Rules:
    * Nothing here prints a secret or a key: representations are redacted, objects refuse to be pickled.
    * Everything that is compared with a guess is compared in constant time.
    * Roles are separate, not a ladder: the API says which role may do what. A participant's token opens only the control
      connection.

What it does not know: rotation. A new secret is a new cluster secret; participants and coordinators restart with it.
"""

from __future__ import annotations

import base64
import errno
import hmac
import os
import re
import stat
from typing import TYPE_CHECKING, Final, Literal, NoReturn, TypeAlias, get_args

from blake3 import blake3

from protocol.errors import ConfigError
from protocol.ids import NAME_PATTERN
from protocol.limits import SECRET_BYTES_MIN

if TYPE_CHECKING:
    import ssl

    from protocol.ids import ChannelId, ParticipantId

Role: TypeAlias = Literal["participant", "viewer", "operator"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""``participant``: the control connection only. ``viewer``: reads. ``operator``: reads and writes."""

TOKEN_PREFIX: Final = "cc1"  # noqa: S105 - names the format of a token, is none
SIGNATURE_PREFIX: Final = "b3k:"
"""Names the algorithm (keyed BLAKE3-256), so that it can change."""
SECRET_FILE_BYTES_MAX: Final = 4096

_FRAME_ROOT: Final = "cleancut v1 frame root"
_FRAME_CHANNEL: Final = "cleancut v1 frame key of one channel"
_MANIFEST: Final = "cleancut v1 manifest signature"
_TOKEN: Final = "cleancut v1 bearer token"  # noqa: S105 - a purpose, not a password

_HEX: Final = re.compile(rb"[0-9a-fA-F]+")
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/_-]+={0,2}")
_HOW_TO_MAKE: Final = "make one with: (umask 077; openssl rand -hex 32 > FILE)"


class ClusterKeys:
    """Keys of one cluster. Immutable; make it with `from_secret`."""

    __slots__ = ("_frame_root", "_manifest_key", "_token_key", "_tokens")

    def __init__(self, *, frame_root: bytes, manifest_key: bytes, token_key: bytes) -> None:
        self._frame_root = frame_root
        self._manifest_key = manifest_key
        self._token_key = token_key
        self._tokens: dict[str, str] = {
            role: f"{TOKEN_PREFIX}.{role}.{blake3(role.encode(), key=token_key).hexdigest()}" for role in ROLES
        }

    @classmethod
    def from_secret(cls, secret: bytes) -> ClusterKeys:
        """Derive all keys.

        Args:
            secret: At least `SECRET_BYTES_MIN` bytes with as much entropy, from `read_secret`.

        Raises:
            ConfigError: Too short, or one byte repeated.
        """
        check_secret(secret, "the cluster secret")
        return cls(
            frame_root=blake3(secret, derive_key_context=_FRAME_ROOT).digest(),
            manifest_key=blake3(secret, derive_key_context=_MANIFEST).digest(),
            token_key=blake3(secret, derive_key_context=_TOKEN).digest(),
        )

    def frame_key(self, channel: ChannelId) -> bytes:
        """The 32-byte MAC key of one channel. Costs about 1 µs; callers on a hot path keep it."""
        # A name holds no NUL, so source and target cannot be shifted against each other.
        material = b"\0".join((self._frame_root, channel.source.encode(), channel.target.encode()))
        return blake3(material, derive_key_context=_FRAME_CHANNEL).digest()

    def sign_manifest(self, data: bytes) -> str:
        """Signature over a manifest's canonical bytes with an empty signature field."""
        return SIGNATURE_PREFIX + blake3(data, key=self._manifest_key).hexdigest()

    def verify_manifest(self, data: bytes, signature: str) -> bool:
        """Whether `signature` is `sign_manifest(data)`; constant time."""
        return _same(self.sign_manifest(data), signature)

    def token(self, role: Role) -> str:
        """The bearer token of a role."""
        return self._tokens[role]

    def participant_token(self, participant: ParticipantId) -> str:
        """The bearer token with which only this participant can register."""
        return f"{TOKEN_PREFIX}.participant.{participant}.{self._participant_mac(participant)}"

    def role_of(self, token: str) -> Role | None:
        """The role that a bearer token proves, or None.

        Every role's token is compared, so that time tells nothing about which one was nearly right.
        """
        found: Role | None = None
        for role in ROLES:
            if _same(self._tokens[role], token):
                found = role
        return "participant" if found is None and self.participant_of(token) else found

    def participant_of(self, token: str) -> str:
        """The participant that a token is bound to; "" where it is bound to none, or proves nothing."""
        head, _, mac = token.rpartition(".")
        name = head.removeprefix(f"{TOKEN_PREFIX}.participant.")
        if name == head or not NAME_PATTERN.fullmatch(name) or not _same(self._participant_mac(name), mac):
            return ""
        return name

    def _participant_mac(self, participant: str) -> str:
        # The NUL keeps it apart from every role's: no role and no name holds one.
        data = b"participant\0" + participant.encode("utf-8", "surrogatepass")
        return blake3(data, key=self._token_key).hexdigest()

    def __repr__(self) -> str:
        return "ClusterKeys(redacted)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("ClusterKeys holds secrets and is not pickled; derive it again from the secret file")


def check_secret(secret: bytes, where: str) -> None:
    """Refuse what cannot be a secret.

    Args:
        secret: The decoded bytes.
        where: What to call it in the error.

    Raises:
        ConfigError: Never shows any of the bytes.
    """
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            "secret_file", f"{where} has {len(secret)} bytes; at least {SECRET_BYTES_MIN} are needed: {_HOW_TO_MAKE}"
        )
    if len(set(secret)) < 2:
        raise ConfigError("secret_file", f"{where} is one byte repeated, which anybody can guess: {_HOW_TO_MAKE}")


def decode_secret(text: bytes) -> bytes:
    """Bytes of a secret as it lies in a file: hex, base64 (standard or URL-safe), else the raw bytes.

    What looks like hex is hex, and what looks like base64 is base64: one file gives the same secret everywhere.
    """
    stripped = text.strip()
    if _HEX.fullmatch(stripped) and len(stripped) % 2 == 0:
        return bytes.fromhex(stripped.decode("ascii"))
    if _BASE64.fullmatch(stripped) and len(stripped) % 4 == 0:
        return base64.b64decode(stripped.replace(b"-", b"+").replace(b"_", b"/"), validate=True)
    return text


def read_secret(path: str | os.PathLike[str]) -> bytes:
    """The cluster secret from its file.

    Args:
        path: A regular file (or a symbolic link to one) of hex, base64 or raw bytes, readable by its owner and at most
            its group: container platforms mount secrets for a group.

    Raises:
        ConfigError: Missing, unreadable, open to others, empty, too short or too large. Names the file, what is wrong
            and what to do; never shows its content.
    """
    shown = ascii(os.fspath(path))
    try:
        # O_NONBLOCK: a FIFO in place of the file must give an error, not hang.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise ConfigError("secret_file", f"{shown} cannot be read: {_why(error)}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError("secret_file", f"{shown} is not a regular file; name the file that holds the secret")
        if status.st_mode & 0o027:
            mode = stat.S_IMODE(status.st_mode)
            raise ConfigError(
                "secret_file",
                f"{shown} has mode {mode:04o}: others can read it or its group can change it; run: chmod 600 {shown}",
            )
        text = os.read(descriptor, SECRET_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError("secret_file", f"{shown} cannot be read: {_why(error)}") from None
    finally:
        os.close(descriptor)
    if len(text) > SECRET_FILE_BYTES_MAX:
        raise ConfigError(
            "secret_file", f"{shown} is larger than {SECRET_FILE_BYTES_MAX} bytes; is it the right file? {_HOW_TO_MAKE}"
        )
    secret = decode_secret(text)
    check_secret(secret, shown)
    return secret


def trust(setting: str, path: str | os.PathLike[str]) -> ssl.SSLContext:
    """What a coordinator's HTTPS certificate is checked with: the cluster's own authority, and the host's name.

    Args:
        setting: What named the file, for the error.
        path: ``ca.pem`` of ``cleancut keys init``.

    Raises:
        ConfigError: Cannot be read, or holds no certificate.
    """
    import ssl

    try:
        context = ssl.create_default_context(cafile=os.fspath(path))
    except (ssl.SSLError, OSError) as error:
        why = error.strerror if not isinstance(error, ssl.SSLError) and error.strerror else "it holds no certificate"
        raise ConfigError(setting, f"{os.fspath(path)!a} cannot be used: {why}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _why(error: OSError | ValueError) -> str:
    if not isinstance(error, OSError):
        return f"{error}; give the path of a file"
    if error.errno == errno.ENOENT:
        return f"no such file; {_HOW_TO_MAKE}"
    if error.errno == errno.EACCES:
        return "permission denied; make it readable for this user (chown), mode 600"
    return f"{errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror}"


def _same(expected: str, given: str) -> bool:
    # Over bytes: compare_digest of text refuses non-ASCII with a TypeError, and a stranger chooses `given`.
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "surrogatepass"))
