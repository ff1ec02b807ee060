"""What chunks hold, decoded without the user's classes: values, keyed segments, mailboxes, timers, channel states.

For verification and for showing an epoch to people. Only msgpack is ever decoded here, into plain Python values: nothing is
imported, no extension type becomes an object, and cloudpickle is never loaded (RELIABILITY.md T4).

Everything raises `ObjectCorrupt` with the name that the caller gives, and nothing else, whatever the bytes.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from protocol.errors import IllegalName, MalformedFrame, ObjectCorrupt, printable
from protocol.ids import MESSAGE_ID_BYTES, agent_id
from protocol.items import KIND_MESSAGE, item_kind, message_payload, split_items
from protocol.journal import FinishedStep, OpenQuestion
from protocol.limits import MESSAGE_BYTES_MAX, NESTING_MAX
from protocol.messages import Envelope
from protocol.outputs import Output

_T = TypeVar("_T")

_value: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder()
_pairs: Final = msgspec.msgpack.Decoder(list[tuple[Any, Any]])
_keys: Final = msgspec.msgpack.Decoder(list[Any])
_raws: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_timers: Final = msgspec.msgpack.Decoder(list[tuple[int, msgspec.Raw]])
_tokens: Final = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])
_outputs: Final = msgspec.msgpack.Decoder(list[Output])
_journal: Final = msgspec.msgpack.Decoder(list[FinishedStep])
_questions: Final = msgspec.msgpack.Decoder(list[OpenQuestion])
_envelope: Final = msgspec.msgpack.Decoder(Envelope)
_bytes: Final = msgspec.msgpack.Decoder(bytes)
_BIN_HEADERS: Final = frozenset({0xC4, 0xC5, 0xC6})
"""First byte of a msgpack byte string: an envelope may lie in the list as it is or wrapped as one."""


def decode_value(data: bytes, name: str) -> Any:  # noqa: ANN401 - any value
    """One msgpack value."""
    return _decode(_value, data, name)


def decode_segment(data: bytes, name: str) -> list[tuple[Any, Any]]:
    """Keys and values of one segment of a keyed field."""
    return _decode(_pairs, data, name)


def decode_keys(data: bytes, name: str) -> list[Any]:
    """Keys of a keyed field that have gone; none for no bytes."""
    return _decode(_keys, data, name) if data else []


def decode_envelope(data: bytes | msgspec.Raw, name: str) -> Envelope:
    """One agent message, with legal names and an id of the right length."""
    envelope = _decode(_envelope, data, name)
    if len(envelope.id) != MESSAGE_ID_BYTES:
        raise ObjectCorrupt("get", name, f"a message id of {len(envelope.id)} bytes, not {MESSAGE_ID_BYTES}")
    if len(envelope.body) > MESSAGE_BYTES_MAX:
        raise ObjectCorrupt("get", name, f"a message of {len(envelope.body)} bytes; at most {MESSAGE_BYTES_MAX}")
    try:
        agent_id(envelope.source)
        agent_id(envelope.target)
    except IllegalName as error:
        raise ObjectCorrupt("get", name, f"message {envelope.id.hex()}: {error}") from None
    return envelope


def decode_mailbox(data: bytes, name: str) -> list[Envelope]:
    """Messages in a mailbox, next to handle first; none for no bytes."""
    if not data:
        return []
    return [decode_envelope(_unwrapped(raw, name), name) for raw in _decode(_raws, data, name)]


def decode_timers(data: bytes, name: str) -> list[tuple[int, Envelope]]:
    """Nanoseconds after the cut and the message that comes then; none for no bytes."""
    if not data:
        return []
    return [(left, decode_envelope(_unwrapped(raw, name), name)) for left, raw in _decode(_timers, data, name)]


def decode_outputs(data: bytes, name: str) -> list[Output]:
    """Outputs that were held, in order; none for no bytes."""
    if not data:
        return []
    found = _decode(_outputs, data, name)
    for output in found:
        if len(output.id) != MESSAGE_ID_BYTES:
            raise ObjectCorrupt("get", name, f"an output id of {len(output.id)} bytes, not {MESSAGE_ID_BYTES}")
        try:
            agent_id(output.agent)
        except IllegalName as error:
            raise ObjectCorrupt("get", name, f"output {output.id.hex()}: {error}") from None
    return found


def decode_journal(data: bytes, name: str) -> list[FinishedStep]:
    """Finished steps of turns that were not over, in order of their ends; none for no bytes."""
    return _of_messages(_decode(_journal, data, name), name) if data else []


def decode_questions(data: bytes, name: str) -> list[OpenQuestion]:
    """Open questions of turns that were not over; none for no bytes."""
    return _of_messages(_decode(_questions, data, name), name) if data else []


_Saved = TypeVar("_Saved", FinishedStep, OpenQuestion)


def _of_messages(found: list[_Saved], name: str) -> list[_Saved]:
    for each in found:
        if len(each.message_id) != MESSAGE_ID_BYTES:
            raise ObjectCorrupt("get", name, f"a message id of {len(each.message_id)} bytes, not {MESSAGE_ID_BYTES}")
    return found


def decode_tokens(data: bytes, name: str) -> list[tuple[bytes, bytes]]:
    """Ids of messages of outside input (older builds: hashes of its tokens), each with the digest of what was asked for."""
    return _decode(_tokens, data, name)


def decode_channel(data: bytes, count: int, name: str) -> list[bytes]:
    """Recorded items of a channel, encoded, in order."""
    try:
        return split_items(data, count)
    except MalformedFrame as error:
        raise ObjectCorrupt("get", name, str(error)) from None


def messages_of(items: list[bytes], name: str) -> list[Envelope]:
    """The agent messages among recorded items, in order."""
    return [decode_envelope(message_payload(item), name) for item in items if item_kind(item) == KIND_MESSAGE]


def _unwrapped(raw: msgspec.Raw, name: str) -> bytes | msgspec.Raw:
    view = memoryview(raw)
    return _decode(_bytes, raw, name) if view and view[0] in _BIN_HEADERS else raw


def _decode(decoder: msgspec.msgpack.Decoder[_T], data: bytes | msgspec.Raw, name: str) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError, TypeError) as error:
        # TypeError: an unhashable key of a map.
        raise ObjectCorrupt("get", name, f"not what it must be: {printable(error)}") from None
    except RecursionError:
        raise ObjectCorrupt("get", name, f"nested far deeper than {NESTING_MAX} levels") from None
