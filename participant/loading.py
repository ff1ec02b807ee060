"""The way back: an agent's part of a local snapshot into its host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from participant.host import SavedField
from protocol.contents import decode_journal, decode_outputs, decode_questions
from protocol.errors import ObjectCorrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from participant.host import AgentHost
    from participant.serializers import PickleAllowed
    from protocol.journal import FinishedStep, OpenQuestion
    from protocol.manifest import AgentSnapshot, ChunkRef
    from protocol.outputs import Output

_raws: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_timers: Final = msgspec.msgpack.Decoder(list[tuple[int, msgspec.Raw]]).decode


class SavedAgent(NamedTuple):
    """An agent's part as it comes out of a store, verified and not yet decoded."""

    fields: dict[str, SavedField]
    mailbox: list[bytes]
    timers: list[tuple[int, bytes]]
    outputs: list[Output]
    journal: list[FinishedStep]
    questions: list[OpenQuestion]


def read_agent(snapshot: AgentSnapshot, read: Callable[[Iterable[ChunkRef]], bytes]) -> SavedAgent:
    """All bytes of an agent's part; may run in a thread.

    Args:
        snapshot: The agent's part.
        read: Verified bytes of chunks, joined.

    Raises:
        StoreError: From `read`; `ObjectCorrupt` also for a mailbox that is none.
    """
    fields = {
        field.name: SavedField(
            field.shape, field.serializer, [read(segment) for segment in field.segments], read(field.removed)
        )
        for field in snapshot.fields
    }
    return SavedAgent(
        fields,
        split_envelopes(read(snapshot.mailbox), f"mailbox of {snapshot.id}"),
        split_timers(read(snapshot.timers), f"timers of {snapshot.id}"),
        list(decode_outputs(read(snapshot.outputs), f"outputs of {snapshot.id}")),
        decode_journal(read(snapshot.journal), f"finished steps of {snapshot.id}"),
        decode_questions(read(snapshot.questions), f"questions of {snapshot.id}"),
    )


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
    saved = read_agent(snapshot, read)
    host.load(
        saved.fields,
        state_version=snapshot.state_version,
        mailbox=saved.mailbox,
        timers=saved.timers,
        outputs=saved.outputs,
        journal=saved.journal,
        questions=saved.questions,
        dead=snapshot.dead,
        now=now,
        allowed=allowed,
    )


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
