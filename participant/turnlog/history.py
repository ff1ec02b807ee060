"""An agent's history out of the log: its turns with what they did, for people. Decodes no user's class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from participant.turnlog.records import EndedRecord, TurnRecord, decode_records
from protocol.contents import decode_envelope, decode_value
from protocol.errors import ObjectCorrupt
from protocol.reading import shown, shown_message, shown_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from participant.logs.segment import Batch


def agent_history(batches: Iterable[Batch], agent: str) -> Iterator[dict[str, Any]]:
    """Turns of one agent, oldest first, as JSON documents.

    Args:
        batches: Of its participant's log.
        agent: Its id.

    Raises:
        ObjectCorrupt: A batch is none of ours.
    """
    for batch in batches:
        try:
            records = decode_records(batch.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise ObjectCorrupt("get", f"records from {batch.first} on", str(error)) from None
        for number, record in enumerate(records, batch.first):
            if isinstance(record, TurnRecord) and record.agent == agent:
                yield _turn(number, record)
            elif isinstance(record, EndedRecord) and record.agent == agent:
                yield {
                    "number": number,
                    "at": record.at,
                    "message": {"id": record.message.hex(), "type": record.message_type, "source": record.sender},
                    "outcome": "stopped" if record.stopped else "dead-letter",
                    "reason": record.reason,
                    "attempt": record.attempts,
                }


def _turn(number: int, record: TurnRecord) -> dict[str, Any]:
    name = f"record {number}"
    return {
        "number": number,
        "at": record.at,
        "message": {"id": record.message.hex(), "type": record.message_type, "source": record.sender},
        "outcome": "committed",
        "attempt": record.attempt,
        "fields": sorted(field for field, _, _ in record.changes),
        "steps": [shown_step(step) for step in record.steps],
        "sends": [shown_message(decode_envelope(envelope, name)) for _, _, envelope in record.sends],
        "timers": [
            {"in_ns": delay, **shown_message(decode_envelope(envelope, name))} for delay, envelope in record.timers
        ],
        "outputs": [
            {"id": identity.hex(), "sink": sink, "payload": _shown(payload)}
            for identity, sink, payload in record.outputs
        ],
    }


def _shown(data: bytes) -> Any:  # noqa: ANN401 - any value
    try:
        return shown(decode_value(data, "output"))
    except ObjectCorrupt:
        return shown(data)
