"""What the write-ahead log of turn commits holds, record by record.

Flat msgpack arrays with a number for their kind, a batch at a time: one call in C decodes them all. Fields are only ever
appended: old readers skip the rest.

A field's change has the form that it has in an epoch (`protocol.manifest.FieldRef`):

=========  ===================================================================================================
shape      `Change`
=========  ===================================================================================================
value      payload: the encoded value
value, in  payload: ``[number of blocks, [[index, encoded block], ...]]``: only blocks that are others now
blocks
keyed      payload: ``[[key, value], ...]`` of keys that were set; removed: ``[key, ...]``
whole      payload: what the agent's `capture` gave, encoded
=========  ===================================================================================================

cloudpickle values are byte strings.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from protocol.journal import FinishedStep

NOTHING: Final = msgspec.Raw(b"\xc0")
"""No payload, or no removed keys: msgpack's nil."""


# Plain tuples: a named one takes three times as long to decode, and these are most of what a replay decodes.
Change: TypeAlias = tuple[str, msgspec.Raw, msgspec.Raw]
"""What a turn made of one field: its name, payload, removed keys."""
Send: TypeAlias = tuple[str, int, msgspec.Raw]
"""One message of a turn: participant whose channel it took (empty: it went to an agent here, or to one that nobody hosts yet),
number on that channel (0: none), encoded envelope."""
Timer: TypeAlias = tuple[int, msgspec.Raw]
"""One timer that a turn set: nanoseconds from turn commit on, encoded envelope."""
EmittedOutput: TypeAlias = tuple[bytes, str, bytes]
"""One output of a turn: id, sink, msgpack of plain data."""


class TurnRecord(msgspec.Struct, array_like=True, tag=1, gc=False):
    """A turn committed: all of it takes effect, in this order."""

    agent: str
    message: bytes
    """Id of the message that it handled."""
    source: str
    """Participant over whose channel the message came; empty: from an agent here, a timer, or from outside."""
    number: int
    """On that channel; 0: none."""
    changes: list[Change]
    sends: list[Send]
    timers: list[Timer]
    outputs: list[EmittedOutput]
    steps: list[FinishedStep]
    """For the agent's history; replay has the effect ledger."""
    message_type: str
    """Of the message: registered name. For the agent's history, as what follows."""
    sender: str
    """Agent that had sent it."""
    attempt: int
    at: int
    """Wall clock, nanoseconds."""


class EndedRecord(msgspec.Struct, array_like=True, tag=2, gc=False):
    """A message was put aside, or its agent stopped: no turn committed."""

    agent: str
    message: bytes
    source: str
    number: int
    stopped: bool
    """The agent has stopped, and the message stays the next to handle."""
    reason: str
    message_type: str
    sender: str
    attempts: int
    at: int


class ReceivedRecord(msgspec.Struct, array_like=True, tag=3, gc=False):
    """A message came over a channel and had not been handled by the end of its batch: it is in its agent's mailbox."""

    source: str
    number: int
    envelope: msgspec.Raw


class PositionRecord(msgspec.Struct, array_like=True, tag=4, gc=False):
    """Everything up to this number of an incoming channel has been taken in: markers too, which no other record names."""

    source: str
    number: int


class SentRecord(msgspec.Struct, array_like=True, tag=5, gc=False):
    """An outgoing channel has come to this number with something that no turn sent.

    A marker; or a message from outside or from another channel, or one that had waited for an agent to appear: it was logged
    before, as taken, received or sent.
    """

    target: str
    number: int
    item: bytes
    """Encoded."""


class AcknowledgedRecord(msgspec.Struct, array_like=True, tag=6, gc=False):
    """The peer has everything up to this number for good: it need not be sent again."""

    target: str
    number: int


class LifeRecord(msgspec.Struct, array_like=True, tag=7, gc=False):
    """A life of the participant begins to write."""

    incarnation: int
    session: int
    versions: dict[str, int]
    """Agent -> state version of its class."""
    build: str


class TakenRecord(msgspec.Struct, array_like=True, tag=8, gc=False):
    """A message from outside is in its agent's mailbox; it was in the input log before."""

    position: int
    """In the input log."""
    envelope: msgspec.Raw


class DeliveredRecord(msgspec.Struct, array_like=True, tag=9, gc=False):
    """Sinks have these outputs for good."""

    outputs: list[bytes]
    """Their ids."""


class StreamRecord(msgspec.Struct, array_like=True, tag=10, gc=False):
    """Channels to and from a peer are these streams from here on: where its line is another, they begin anew."""

    peer: str
    line: int


Record: TypeAlias = (
    TurnRecord
    | EndedRecord
    | ReceivedRecord
    | PositionRecord
    | SentRecord
    | AcknowledgedRecord
    | LifeRecord
    | TakenRecord
    | DeliveredRecord
    | StreamRecord
)

encode_record = msgspec.msgpack.Encoder().encode
decode_records = msgspec.msgpack.Decoder(list[Record]).decode
"""A batch's body."""
