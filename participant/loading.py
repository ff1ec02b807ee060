"""The way back: an agent's part of a local snapshot into its host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from participant.host import SavedField
from protocol.contents import decode_outputs
from protocol.errors import ObjectCorrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from participant.host import AgentHost
    from participant.serializers import PickleAllowed
    from protocol.manifest import AgentSnapshot, ChunkRef

_raws: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_timers: Final = msgspec.msgpack.Decoder(list[tuple[int, msgspec.Raw]]).decode


def load_agent(
    host: AgentHost,
    snapshot: AgentSnapshot,
    read: Callable[[Iterable[ChunkRef]], bytes],
    *,
    now: int,
    allowed: PickleAllowed | None = None,
) -> None:
    """Give a host the state, mailbox and timers that it had at the cut.

    Args:
        host: Of an agent of the same kind; between turns.
        snapshot: The agent's part.
        read: Verified bytes of chunks, joined.
        now: Driver time, nanoseconds; timers run on from here.
        allowed: The right to unpickle, where a field was saved with cloudpickle.

    Raises:
        RecoveryError: The part does not fit the agent's class.
        StoreError: From `read`; `ObjectCorrupt` also for a mailbox that is none.
    """
    fields = {
        field.name: SavedField(
            field.shape, field.serializer, [read(segment) for segment in field.segments], read(field.removed)
        )
        for field in snapshot.fields
    }
    mailbox = split_envelopes(read(snapshot.mailbox), f"mailbox of {snapshot.id}")
    timers = split_timers(read(snapshot.timers), f"timers of {snapshot.id}")
    outputs = decode_outputs(read(snapshot.outputs), f"outputs of {snapshot.id}")
    host.load(fields, mailbox=mailbox, timers=timers, outputs=outputs, dead=snapshot.dead, now=now, allowed=allowed)


def split_envelopes(data: bytes, name: str) -> list[bytes]:
    """Encoded envelopes out of a msgpack array of them; none for no bytes."""
    try:
        return [bytes(raw) for raw in _raws(data)] if data else []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ObjectCorrupt("get", name, f"not what it must be: {error}") from None


def split_timers(data: bytes, name: str) -> list[tuple[int, bytes]]:
    """Nanoseconds left at the cut and encoded envelopes; none for no bytes."""
    try:
        return [(left, bytes(raw)) for left, raw in _timers(data)] if data else []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ObjectCorrupt("get", name, f"not what it must be: {error}") from None
