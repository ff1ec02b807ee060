"""What crosses a connection between two coordinators: msgpack of a closed set of shapes, never pickle.

A frame is ``u32 length | msgpack``; length 0 is a sign of life. The first frame of each connection is a `Hello`. The rest
are the library's messages, which it takes and gives as dictionaries; the classes here only check them. The library's
chunked transmission of one huge entry does not exist here: commands are far smaller than a batch.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from coordinator.runtime.raft.commands import check_entry
from protocol.errors import LimitExceeded, MalformedFrame
from protocol.limits import RAFT_FRAME_BYTES_MAX, RAFT_HELLO_BYTES_MAX

PROTOCOL_VERSION: Final = 1
LENGTH: Final = struct.Struct(">I")
ALIVE_FRAME: Final = LENGTH.pack(0)

Counter: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]
_Entry: TypeAlias = tuple[bytes, Counter, Counter]
_Piece: TypeAlias = tuple[bytes, bool, bool]


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is calling whom. Believed only as far as the certificate says the same."""

    version: Counter
    cluster: str
    source: str
    target: str
    rejoining: bool = False
    """The source has lost its folder: what it acknowledged before does not count any more."""


class _RequestVote(msgspec.Struct, tag_field="type", tag="request_vote", forbid_unknown_fields=True):
    term: Counter
    last_log_index: Counter
    last_log_term: Counter


class _ResponseVote(msgspec.Struct, tag_field="type", tag="response_vote", forbid_unknown_fields=True):
    term: Counter


class _AppendEntries(msgspec.Struct, tag_field="type", tag="append_entries", forbid_unknown_fields=True):
    term: Counter
    commit_index: Counter
    entries: list[_Entry] | msgspec.UnsetType = msgspec.UNSET
    prevLogIdx: Counter | msgspec.UnsetType | None = msgspec.UNSET  # noqa: N815 - the library's name
    prevLogTerm: Counter | msgspec.UnsetType | None = msgspec.UNSET  # noqa: N815 - the library's name
    serialized: _Piece | msgspec.UnsetType | None = msgspec.UNSET


class _NextNodeIndex(msgspec.Struct, tag_field="type", tag="next_node_idx", forbid_unknown_fields=True):
    next_node_idx: Annotated[int, msgspec.Meta(ge=1, le=(1 << 62))]
    reset: bool
    success: bool
    term: Counter


class _ApplyCommand(msgspec.Struct, tag_field="type", tag="apply_command", forbid_unknown_fields=True):
    command: bytes
    request_id: Counter | msgspec.UnsetType = msgspec.UNSET


class _ApplyCommandResponse(msgspec.Struct, tag_field="type", tag="apply_command_response", forbid_unknown_fields=True):
    request_id: Counter
    error: Counter | msgspec.UnsetType | None = msgspec.UNSET
    log_idx: Counter | msgspec.UnsetType = msgspec.UNSET
    log_term: Counter | msgspec.UnsetType = msgspec.UNSET


class _TimeoutNow(msgspec.Struct, tag_field="type", tag="timeout_now", forbid_unknown_fields=True):
    term: Counter


_AnyMessage: TypeAlias = (
    _RequestVote | _ResponseVote | _AppendEntries | _NextNodeIndex | _ApplyCommand | _ApplyCommandResponse | _TimeoutNow
)
_hello_decoder = msgspec.msgpack.Decoder(Hello)
_message_decoder: msgspec.msgpack.Decoder[_AnyMessage] = msgspec.msgpack.Decoder(_AnyMessage)
_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: dict[str, Any] | Hello) -> bytes:
    """One frame.

    Raises:
        LimitExceeded: Our own message is larger than a peer takes.
    """
    body = _encoder.encode(message)
    if len(body) > RAFT_FRAME_BYTES_MAX:
        raise LimitExceeded(f"a frame of {len(body)} bytes to another coordinator")
    return LENGTH.pack(len(body)) + body


def frame_length(header: bytes | bytearray, *, known: bool) -> int:
    """Length of the frame that begins with these four bytes, checked before anything of it is buffered.

    Raises:
        MalformedFrame: Longer than a frame (of an unknown peer: than a hello) may be.
    """
    length: int = LENGTH.unpack_from(header)[0]
    limit = RAFT_FRAME_BYTES_MAX if known else RAFT_HELLO_BYTES_MAX
    if length > limit:
        raise MalformedFrame(f"a frame of {length} bytes; at most {limit} are taken")
    return length


def decode_hello(body: bytes) -> Hello:
    """The first frame's content.

    Raises:
        MalformedFrame: Anything else.
    """
    try:
        return _hello_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedFrame(f"not a hello: {error}") from error


def decode_message(body: bytes) -> dict[str, Any]:
    """A message as the library wants it, its shape and the commands in it checked.

    Raises:
        MalformedFrame: Anything else. Nothing of it was used.
    """
    try:
        message = _message_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedFrame(f"not a message between coordinators: {error}") from error
    if isinstance(message, _AppendEntries):
        _check_append(message)
    elif isinstance(message, _ApplyCommand):
        check_entry(message.command)
    elif isinstance(message, _ApplyCommandResponse):
        _check_response(message)
    plain: dict[str, Any] = msgspec.structs.asdict(message)
    fields = {name: value for name, value in plain.items() if value is not msgspec.UNSET}
    fields["type"] = message.__struct_config__.tag
    return fields


def _check_response(message: _ApplyCommandResponse) -> None:
    failed = message.error is not msgspec.UNSET and message.error is not None
    if not failed and msgspec.UNSET in (message.log_idx, message.log_term):
        raise MalformedFrame("an answer without outcome")


def _check_append(message: _AppendEntries) -> None:
    if message.serialized is not msgspec.UNSET:
        if message.entries is not msgspec.UNSET or message.prevLogIdx is not msgspec.UNSET:
            raise MalformedFrame("an append that is both entries and snapshot")
        return
    if message.entries is msgspec.UNSET or msgspec.UNSET in (message.prevLogIdx, message.prevLogTerm):
        raise MalformedFrame("an append with neither entries nor snapshot")
    for command, _, term in message.entries:
        if term > message.term:
            raise MalformedFrame("an append holds an entry of a later term")
        check_entry(command)
