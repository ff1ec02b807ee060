"""Frames to bytes and back: header, limits, version, MAC.

A frame carries items of one stream (channel, incarnation, source session, target session), or only an acknowledgement::

    magic      4s   b"CLCT"
    version    u8   1
    kind       u8   1 data, 2 acknowledgement only
    cluster    8s   first 8 bytes of BLAKE3(cluster name)
    incarnation, source session, target session   u64 each
    epoch      u64  the sender's newest epoch, 0 none
    first      u64  sequence number of the first item; 0 in an acknowledgement
    ack        u64  cumulative acknowledgement of the stream of the other direction; 0 nothing
    count      u32  items in the body
    length     u32  bytes of the body
    source length, target length                  u8 each
    source, target                                ASCII names
    body                                          items back to back (protocol.items)
    MAC        16s  keyed BLAKE3 over everything before it, with the channel's key

Big endian, no padding: 72 bytes, two names, body, 16 bytes.

Rules:
    * Cheap structural checks come first, then the MAC, and only then may anybody decode the body. A decoder raises
      `WireError` (its three subclasses) and nothing else, whatever the bytes.
    * All that gives a frame its meaning is under the MAC: cluster, incarnation, sessions, channel, sequence numbers. A
      frame that is captured and sent again is still genuine: that it is a repetition is for the channel machine to see
      (sequence numbers, sessions), not for this module.
    * A stranger's frame leaves nothing behind: a channel's key is kept only after a MAC under it has verified.

What it does not know: which sessions are alive, who may speak to whom, what an item is.
"""

from __future__ import annotations

import hmac
import struct
from typing import TYPE_CHECKING, Final

import msgspec
from blake3 import blake3

from protocol.errors import ForgedFrame, MalformedFrame, UnsupportedVersion
from protocol.ids import NAME_PATTERN, ChannelId, ClusterName, Epoch, Incarnation, ParticipantId, Session
from protocol.limits import FRAME_BYTES_MAX, FRAME_ITEMS_MAX, PARTICIPANTS_MAX

if TYPE_CHECKING:
    from protocol.keys import ClusterKeys

MAGIC: Final = b"CLCT"
FRAME_VERSION: Final = 1
KIND_DATA: Final = 1
KIND_ACK: Final = 2
MAC_BYTES: Final = 16
CLUSTER_TAG_BYTES: Final = 8

_HEADER: Final = struct.Struct(">4sBB8sQQQQQQIIBB")
HEADER_BYTES: Final = _HEADER.size
_LENGTHS_OFFSET: Final = HEADER_BYTES - 2
_JOIN_BYTES_MAX: Final = 16_384
"""Shorter bodies are copied once more rather than hashed in two calls: measured, the cheaper way below about here."""
_FRAME_BYTES_MIN: Final = HEADER_BYTES + 2 + MAC_BYTES
_ITEM_BYTES_MIN: Final = 5
"""An encoded item is at least its kind and its length (protocol.items)."""
CHANNELS_REMEMBERED_MAX: Final = PARTICIPANTS_MAX
"""Channels whose key is kept, each way: one participant speaks with at most all others. Past it keys are derived again."""


class FrameHeader(msgspec.Struct, frozen=True, gc=False):
    """What a frame says about its body. A Struct, not a dataclass: one is built for every frame that arrives."""

    kind: int
    """`KIND_DATA` or `KIND_ACK`."""
    incarnation: Incarnation
    source_session: Session
    target_session: Session
    epoch: Epoch
    """The sender's newest epoch, 0 none. A hint: only markers begin a cut."""
    first: int
    """Sequence number of the first item; 0 in an acknowledgement."""
    ack: int
    """Cumulative acknowledgement of the stream target->source; 0 nothing."""
    count: int
    source: ParticipantId
    target: ParticipantId

    @property
    def channel(self) -> ChannelId:
        """The channel that the body travels on."""
        return ChannelId(self.source, self.target)


class FrameCodec:
    """Encodes and opens frames of one cluster. Not thread safe: it belongs to one driver."""

    __slots__ = ("_arriving", "_keys", "_leaving", "_tag")

    def __init__(self, cluster: ClusterName, keys: ClusterKeys) -> None:
        self._tag = cluster_tag(cluster)
        self._keys = keys
        self._leaving: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        """Channel -> its names as bytes, its key."""
        self._arriving: dict[bytes, tuple[ParticipantId, ParticipantId, bytes]] = {}
        """Lengths and names as they lie in a frame -> source, target, key; only channels whose MAC has verified."""

    def encode(
        self,
        *,
        kind: int = KIND_DATA,
        incarnation: int,
        source_session: int,
        target_session: int,
        epoch: int,
        first: int,
        ack: int,
        count: int,
        source: str,
        target: str,
        body: bytes,
    ) -> bytes:
        """One frame, ready for a transport.

        Args:
            kind: `KIND_DATA` with items, `KIND_ACK` without.
            incarnation: From 1.
            source_session: From 1.
            target_session: From 1.
            epoch: Newest epoch that the sender knows, 0 none.
            first: Number of the first item in `body`, from 1; 0 in an acknowledgement.
            ack: Last number received on the stream of the other direction, 0 none.
            count: Items in `body`.
            source: A checked participant id.
            target: A checked participant id, not `source`.
            body: Encoded items back to back; empty in an acknowledgement.

        Returns:
            At most `FRAME_BYTES_MAX` bytes: the caller batches by `FRAME_TARGET_BYTES`, far below.
        """
        names, key = self._leaving.get((source, target)) or self._learn(source, target)
        head = (
            _HEADER.pack(
                MAGIC,
                FRAME_VERSION,
                kind,
                self._tag,
                incarnation,
                source_session,
                target_session,
                epoch,
                first,
                ack,
                count,
                len(body),
                len(source),
                len(target),
            )
            + names
        )
        length = len(body)
        assert length <= FRAME_BYTES_MAX - MAC_BYTES - len(head), "a batch larger than a frame"
        assert count <= FRAME_ITEMS_MAX, "more items than a frame may hold"
        assert (
            (count > 0 and first > 0) if kind == KIND_DATA else (kind == KIND_ACK and not (count or first or body))
        ), "a data frame holds items, an acknowledgement none"
        if length < _JOIN_BYTES_MAX:
            signed = head + body
            return signed + blake3(signed, key=key).digest(MAC_BYTES)
        hasher = blake3(head, key=key)
        hasher.update(body)
        return b"".join((head, body, hasher.digest(MAC_BYTES)))

    def peek(self, frame: bytes) -> FrameHeader:
        """The header after cheap checks only: nobody has proved yet who wrote it.

        For routing and counting; act on a frame only after `verify_and_open`.

        Raises:
            MalformedFrame: Not a frame, cut short, oversized, contradicts itself, or of another cluster.
            UnsupportedVersion: Another format version.
        """
        size = len(frame)
        if size > FRAME_BYTES_MAX:
            raise MalformedFrame(f"frame of {size} bytes; at most {FRAME_BYTES_MAX} are taken")
        if size < _FRAME_BYTES_MIN:
            raise MalformedFrame(f"frame of {size} bytes; the shortest has {_FRAME_BYTES_MIN}")
        (
            magic,
            version,
            kind,
            tag,
            incarnation,
            source_session,
            target_session,
            epoch,
            first,
            ack,
            count,
            length,
            source_length,
            target_length,
        ) = _HEADER.unpack_from(frame)
        if magic != MAGIC:
            raise MalformedFrame(f"frame begins with {magic!r}, not with {MAGIC!r}")
        if version != FRAME_VERSION:
            raise UnsupportedVersion(f"frame of format version {version}; this build reads version {FRAME_VERSION}")
        if tag != self._tag:
            raise MalformedFrame("frame of another cluster")
        if HEADER_BYTES + source_length + target_length + length + MAC_BYTES != size:
            raise MalformedFrame(f"frame of {size} bytes does not have the length that its header says")
        if not (incarnation and source_session and target_session):
            raise MalformedFrame("frame with incarnation or session 0")
        if kind == KIND_DATA:
            if not (count and first) or count > FRAME_ITEMS_MAX or length < count * _ITEM_BYTES_MIN:
                raise MalformedFrame(f"data frame says {count} items from number {first} in {length} bytes")
        elif kind != KIND_ACK:
            raise MalformedFrame(f"frame of unknown kind {kind}")
        elif count or first or length:
            raise MalformedFrame(f"acknowledgement with {count} items from number {first} in {length} bytes")
        known = self._arriving.get(frame[_LENGTHS_OFFSET : HEADER_BYTES + source_length + target_length])
        if known is not None:
            source, target, _ = known
        else:
            source, target = _names(frame, source_length, target_length)
        return FrameHeader(kind, incarnation, source_session, target_session, epoch, first, ack, count, source, target)

    def verify_and_open(self, frame: bytes) -> tuple[FrameHeader, bytes]:
        """Header and body of a frame that a holder of the channel's key wrote.

        Raises:
            MalformedFrame: As `peek`.
            UnsupportedVersion: As `peek`.
            ForgedFrame: The MAC does not verify: another secret, or a changed bit.
        """
        header = self.peek(frame)
        body_offset = HEADER_BYTES + len(header.source) + len(header.target)
        names = frame[_LENGTHS_OFFSET:body_offset]
        known = self._arriving.get(names)
        key = known[2] if known is not None else self._keys.frame_key(header.channel)
        mac = blake3(memoryview(frame)[:-MAC_BYTES], key=key).digest(MAC_BYTES)
        if not hmac.compare_digest(mac, frame[-MAC_BYTES:]):
            raise ForgedFrame(f"frame that says it is from {header.source} to {header.target}: the MAC does not verify")
        if known is None:
            if len(self._arriving) >= CHANNELS_REMEMBERED_MAX:
                self._arriving.clear()
            self._arriving[names] = (header.source, header.target, key)
        return header, frame[body_offset:-MAC_BYTES]

    def _learn(self, source: str, target: str) -> tuple[bytes, bytes]:
        """Names as bytes and the key of a channel that this side sends on, kept for the next frame."""
        assert source != target, "a channel has two ends"
        if len(self._leaving) >= CHANNELS_REMEMBERED_MAX:
            self._leaving.clear()
        channel = ChannelId(ParticipantId(source), ParticipantId(target))
        entry = (source.encode("ascii") + target.encode("ascii"), self._keys.frame_key(channel))
        self._leaving[source, target] = entry
        return entry


def cluster_tag(cluster: ClusterName) -> bytes:
    """The 8 bytes by which a frame names its cluster: tells mistakes apart cheaply; the MAC is what keeps others out."""
    return blake3(cluster.encode()).digest(CLUSTER_TAG_BYTES)


def _names(frame: bytes, source_length: int, target_length: int) -> tuple[ParticipantId, ParticipantId]:
    middle = HEADER_BYTES + source_length
    # latin-1 never fails; the pattern then refuses whatever is not an ASCII name.
    source = str(frame[HEADER_BYTES:middle], "latin-1")
    target = str(frame[middle : middle + target_length], "latin-1")
    if NAME_PATTERN.fullmatch(source) is None or NAME_PATTERN.fullmatch(target) is None:
        raise MalformedFrame("frame whose source or target is not a legal name")
    if source == target:
        raise MalformedFrame(f"frame from {source} to itself")
    return ParticipantId(source), ParticipantId(target)
