"""Who is at the other end of a connection: proof of the cluster's secret before any frame flows.

Four short binary messages; D dials, A accepts, key = the MAC key of the channel D->A::

    D -> A   hello       cluster, D, A, nonce
    A -> D   challenge   nonce, MAC("accept", hello, nonce)
    D -> A   proof       MAC("dial", hello, both nonces)
    A -> D   welcome

Frames carry their own MAC, so a stranger could do no harm without this either; the handshake keeps him from holding buffers
and tells a wrong secret from a broken network. The MAC inputs begin with words that no frame begins with, so neither
can be taken for the other.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

import msgspec
from blake3 import blake3

from protocol.errors import ForgedFrame, IllegalName, MalformedFrame, UnsupportedVersion
from protocol.ids import ChannelId, ParticipantId, participant_id

if TYPE_CHECKING:
    from protocol.keys import ClusterKeys

HANDSHAKE_VERSION: Final = 1
NONCE_BYTES: Final = 16
MAC_BYTES: Final = 16
HANDSHAKE_BYTES_MAX: Final = 1024
"""One handshake message: four names and a nonce are far below."""
WELCOME: Final = b"welcome"


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The dialer's first message."""

    version: int
    cluster: str
    source: str
    target: str
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True, array_like=True):
    """The acceptor's answer, which proves that it knows the secret."""

    nonce: bytes
    mac: bytes


_encoder = msgspec.msgpack.Encoder()
_hello = msgspec.msgpack.Decoder(Hello)
_challenge = msgspec.msgpack.Decoder(Challenge)


def encode_hello(*, cluster: str, source: str, target: str, nonce: bytes) -> bytes:
    """The dialer's first message."""
    return _encoder.encode(Hello(HANDSHAKE_VERSION, cluster, source, target, nonce))


def open_hello(data: bytes, *, cluster: str, me: str) -> ParticipantId:
    """Who dials.

    Raises:
        MalformedFrame: Not a hello, or meant for another cluster or participant.
        UnsupportedVersion: Of a later build.
    """
    if len(data) > HANDSHAKE_BYTES_MAX:
        raise MalformedFrame(f"hello of {len(data)} bytes")
    try:
        hello = _hello.decode(data)
        source = participant_id(hello.source)
    except (msgspec.MsgspecError, UnicodeDecodeError, IllegalName) as error:
        raise MalformedFrame(f"hello: {error}") from None
    if hello.version != HANDSHAKE_VERSION:
        raise UnsupportedVersion(f"handshake version {hello.version}; this build speaks {HANDSHAKE_VERSION}")
    if hello.cluster != cluster:
        raise MalformedFrame("hello of another cluster")
    if hello.target != me or source == me:
        raise MalformedFrame("hello for another participant")
    if len(hello.nonce) != NONCE_BYTES:
        raise MalformedFrame("hello with a nonce of the wrong length")
    return source


def answer_hello(keys: ClusterKeys, channel: ChannelId, hello: bytes, nonce: bytes) -> bytes:
    """The acceptor's challenge; `channel` is dialer -> acceptor."""
    return _encoder.encode(Challenge(nonce, _mac(keys, channel, b"accept", hello, nonce)))


def answer_challenge(keys: ClusterKeys, channel: ChannelId, hello: bytes, challenge: bytes) -> bytes:
    """The dialer's proof.

    Raises:
        MalformedFrame: Not a challenge.
        ForgedFrame: The acceptor does not know the secret.
    """
    if len(challenge) > HANDSHAKE_BYTES_MAX:
        raise MalformedFrame(f"challenge of {len(challenge)} bytes")
    try:
        opened = _challenge.decode(challenge)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedFrame(f"challenge: {error}") from None
    if len(opened.nonce) != NONCE_BYTES:
        raise MalformedFrame("challenge with a nonce of the wrong length")
    if not hmac.compare_digest(_mac(keys, channel, b"accept", hello, opened.nonce), opened.mac):
        raise ForgedFrame(f"{channel.target} does not know the secret of this cluster")
    return _mac(keys, channel, b"dial", hello, opened.nonce)


def check_proof(keys: ClusterKeys, channel: ChannelId, hello: bytes, nonce: bytes, proof: bytes) -> None:
    """Take the dialer for who it says it is.

    Raises:
        ForgedFrame: The dialer does not know the secret.
    """
    if not hmac.compare_digest(_mac(keys, channel, b"dial", hello, nonce), proof):
        raise ForgedFrame(f"somebody who says to be {channel.source} does not know the secret of this cluster")


def check_welcome(data: bytes) -> None:
    """The acceptor took the proof.

    Raises:
        MalformedFrame: It says something else.
    """
    if data != WELCOME:
        raise MalformedFrame("no welcome")


def _mac(keys: ClusterKeys, channel: ChannelId, word: bytes, hello: bytes, nonce: bytes) -> bytes:
    text = b"cleancut handshake " + word + b"\0" + nonce + hello
    return blake3(text, key=keys.frame_key(channel)).digest(MAC_BYTES)
