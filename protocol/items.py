"""Items: what a channel carries, as bytes.

An item is ``u8 kind | u32 length | payload``, big endian. Items lie back to back in a frame's body and in a recorded
channel state, and the running digest of a stream is over these bytes, so that the same bytes serve the wire, the digest
and the recording, and how they were batched never matters.

========  ====  ==================================================
kind      byte  payload
========  ====  ==================================================
message   1     an encoded `protocol.messages.Envelope`, not empty
marker    2     u64 epoch, from 1
end       3     empty; nothing follows on this stream
========  ====  ==================================================

Every item takes one sequence number, whatever its kind: a cut's position on a channel is its marker's number, and there
is no second counter that could disagree (DESIGN.md section 4).
"""

from __future__ import annotations

from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Final

from protocol.errors import LimitExceeded, LocalProtocolError, MalformedFrame
from protocol.ids import Epoch
from protocol.limits import MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

KIND_MESSAGE: Final = 1
KIND_MARKER: Final = 2
KIND_END: Final = 3

ITEM_HEADER_BYTES: Final = 5
MARKER_ITEM_BYTES: Final = ITEM_HEADER_BYTES + 8
END_ITEM: Final[bytes] = b"\x03\x00\x00\x00\x00"
"""The orderly end of a stream: counts as its marker for every open epoch."""

_header: Final = Struct(">BI")
_pack_header: Final = _header.pack
_unpack_header: Final = _header.unpack_from
_marker: Final = Struct(">BIQ")
_EPOCH_MAX: Final = (1 << 63) - 1
_first_byte: Final = itemgetter(0)


def encode_message_item(envelope_bytes: bytes) -> bytes:
    """One agent message as an item.

    Args:
        envelope_bytes: The encoded envelope.

    Raises:
        LimitExceeded: More than `MESSAGE_BYTES_MAX`.
        LocalProtocolError: Empty: no envelope is.
    """
    length = len(envelope_bytes)
    if length > MESSAGE_BYTES_MAX:
        raise LimitExceeded(f"a message of {length} bytes; at most {MESSAGE_BYTES_MAX} are carried")
    if not length:
        raise LocalProtocolError("an empty message")
    return _pack_header(KIND_MESSAGE, length) + envelope_bytes


def encode_marker_item(epoch: Epoch) -> bytes:
    """The marker of an epoch as an item.

    Raises:
        LocalProtocolError: Not an epoch's number.
    """
    if not 1 <= epoch <= _EPOCH_MAX:
        raise LocalProtocolError(f"{epoch} is not an epoch")
    return _marker.pack(KIND_MARKER, 8, epoch)


def split_items(body: bytes | memoryview, count: int) -> list[bytes]:
    """Cut a frame's body, or a recorded channel state, into its items.

    Args:
        body: Items back to back.
        count: How many there must be. The bytes bound it: at least five for each. A frame's own bound
            (`FRAME_ITEMS_MAX`) belongs to the wire format; a recording may hold more.

    Returns:
        The encoded items, in order; each a `bytes` of its own, so that one kept item does not keep the frame.

    Raises:
        MalformedFrame: Anything odd: an unknown kind, a wrong length, a wrong count, bytes left over, items after an end.
    """
    data = body if type(body) is bytes else bytes(body)
    end = len(data)
    if count < 0 or count * ITEM_HEADER_BYTES > end:
        raise MalformedFrame(f"{count} items cannot lie in {end} bytes")
    items: list[bytes] = []
    append = items.append
    unpack = _unpack_header
    start = 0
    # The header of the last item may be cut short: stop before it, and let the sums below find out.
    last_header = end - ITEM_HEADER_BYTES
    while start <= last_header:
        kind, length = unpack(data, start)
        if kind != KIND_MESSAGE:
            _check_control(data, start, kind, length)
        elif not 0 < length <= MESSAGE_BYTES_MAX:
            raise MalformedFrame(f"a message of {length} bytes; 1 to {MESSAGE_BYTES_MAX} are taken")
        stop = start + ITEM_HEADER_BYTES + length
        append(data[start:stop])
        start = stop
    if start != end:
        raise MalformedFrame(f"the items do not fill their {end} bytes: {start - end:+d}")
    if len(items) != count:
        raise MalformedFrame(f"{len(items)} items where {count} were announced")
    return items


def _check_control(data: bytes, start: int, kind: int, length: int) -> None:
    """Refuse a marker or end that is not exactly one; `kind` is not a message's."""
    if kind == KIND_MARKER:
        if length != 8:
            raise MalformedFrame(f"a marker of {length} bytes")
        if start + MARKER_ITEM_BYTES > len(data):
            raise MalformedFrame("a marker is cut short")
        epoch = int.from_bytes(data[start + ITEM_HEADER_BYTES : start + MARKER_ITEM_BYTES], "big")
        if not 1 <= epoch <= _EPOCH_MAX:
            raise MalformedFrame(f"a marker of epoch {epoch}")
    elif kind == KIND_END:
        if length:
            raise MalformedFrame(f"an end of {length} bytes")
        if start + ITEM_HEADER_BYTES != len(data):
            raise MalformedFrame("items after the end")
    else:
        raise MalformedFrame(f"an item of unknown kind {kind}")


def item_kind(item: bytes) -> int:
    """`KIND_MESSAGE`, `KIND_MARKER` or `KIND_END` of an item from `split_items` or an encoder."""
    return item[0]


def marker_epoch(item: bytes) -> Epoch:
    """Epoch of a marker.

    Raises:
        LocalProtocolError: The item is not a marker.
    """
    if item[0] != KIND_MARKER:
        raise LocalProtocolError(f"an item of kind {item[0]} is not a marker")
    return Epoch(int.from_bytes(item[ITEM_HEADER_BYTES:], "big"))


def message_payload(item: bytes) -> bytes:
    """Envelope bytes of a message.

    Raises:
        LocalProtocolError: The item is not a message.
    """
    if item[0] != KIND_MESSAGE:
        raise LocalProtocolError(f"an item of kind {item[0]} is not a message")
    return item[ITEM_HEADER_BYTES:]


def control_positions(items: Sequence[bytes]) -> list[int]:
    """Where markers and ends lie among items: nearly always nowhere, and that answer costs no Python loop.

    Returns:
        Indices, ascending; empty when all items are messages.
    """
    kinds = bytes(map(_first_byte, items))
    if kinds.count(KIND_MESSAGE) == len(kinds):
        return []
    return [index for index, kind in enumerate(kinds) if kind != KIND_MESSAGE]


def message_count(items: Sequence[bytes]) -> int:
    """How many of the items are messages."""
    return bytes(map(_first_byte, items)).count(KIND_MESSAGE)
