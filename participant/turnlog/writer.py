"""Turns, and what came over channels meanwhile, as records in their order. Pure.

How a driver uses it::

    writer.received(source, number, envelope, data)     # for each message that goes into a mailbox here
    writer.turn(...)                                    # in the moment of turn commit
    for record in writer.take(): log.append(record)     # before anything of it is told to anybody

A message that came and was handled between two calls of `take` costs its turn's record and no more: that record says where it
came from. What is in a mailbox at `take` is logged with its content, since its sender is to forget it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from participant.turnlog.records import (
    AcknowledgedRecord,
    DeliveredRecord,
    EndedRecord,
    LifeRecord,
    PositionRecord,
    ReceivedRecord,
    SentRecord,
    StreamRecord,
    TakenRecord,
    TurnRecord,
    encode_record,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from participant.host import TurnResult
    from participant.turnlog.records import Change
    from protocol.journal import FinishedStep
    from protocol.messages import Envelope

_LOGGED = -1


class Committed(NamedTuple):
    """A turn that committed, for the log."""

    envelope: Envelope
    attempt: int
    result: TurnResult


class _Origin(NamedTuple):
    """Where a message came from that is not done with."""

    source: str
    number: int
    place: int
    """Of its record among those that wait; `_LOGGED`: it has left."""


_HERE = _Origin("", 0, _LOGGED)


class TurnLogWriter:
    """The records of one participant's life, in order."""

    def __init__(self) -> None:
        self._waiting: list[bytes | tuple[bytes, ReceivedRecord] | None] = []
        self._origins: dict[bytes, _Origin] = {}
        self._positions: dict[str, int] = {}
        """Incoming channel -> highest number that some record names."""

    def life(self, incarnation: int, session: int, versions: Mapping[str, int], build: str) -> None:
        """Whose records follow."""
        self._waiting.append(encode_record(LifeRecord(incarnation, session, dict(versions), build)))

    def received(self, source: str, number: int, envelope: Envelope, data: bytes) -> None:
        """A message came over a channel, and is in its agent's mailbox."""
        self._origins[envelope.id] = _Origin(source, number, len(self._waiting))
        self._positions[source] = number
        self._waiting.append((envelope.id, ReceivedRecord(source, number, msgspec.Raw(data))))

    def taken(self, position: int, data: bytes) -> None:
        """A message came out of the input log, and is in its agent's mailbox."""
        self._waiting.append(encode_record(TakenRecord(position, msgspec.Raw(data))))

    def turn(
        self,
        envelope: Envelope,
        *,
        changes: list[Change],
        sends: Iterable[tuple[str, int, bytes]],
        timers: Iterable[tuple[int, Envelope, bytes]],
        outputs: Iterable[tuple[bytes, str, bytes]],
        steps: Sequence[FinishedStep],
        attempt: int,
        at: int,
    ) -> None:
        """A turn committed.

        Args:
            envelope: Of the message that it handled; its target is the agent.
            changes: Of the agent's state.
            sends: Participant of the channel (or empty), number on it (or 0), encoded envelope; in order.
            timers: Delay in nanoseconds, envelope, encoded envelope.
            outputs: Id, sink, encoded payload.
            steps: In order of their ends.
            attempt: From 1.
            at: Wall clock, nanoseconds.
        """
        source, number = self._done(envelope.id)
        raw = msgspec.Raw
        self._waiting.append(
            encode_record(
                TurnRecord(
                    envelope.target,
                    envelope.id,
                    source,
                    number,
                    changes,
                    [(target, on, raw(data)) for target, on, data in sends],
                    [(delay, raw(data)) for delay, _, data in timers],
                    list(outputs),
                    list(steps),
                    envelope.type,
                    envelope.source,
                    attempt,
                    at,
                )
            )
        )

    def ended(self, envelope: Envelope, *, stopped: bool, reason: str, attempts: int, at: int) -> None:
        """A message was put aside, or its agent has stopped."""
        if stopped:
            origin = self._origins.get(envelope.id, _HERE)
            source, number = origin.source, origin.number
        else:
            source, number = self._done(envelope.id)
        self._waiting.append(
            encode_record(
                EndedRecord(
                    envelope.target,
                    envelope.id,
                    source,
                    number,
                    stopped,
                    reason,
                    envelope.type,
                    envelope.source,
                    attempts,
                    at,
                )
            )
        )

    def position(self, source: str, number: int) -> None:
        """An incoming channel has come to this number, with whatever it was."""
        if self._positions.get(source, 0) < number:
            self._positions[source] = number
            self._waiting.append(encode_record(PositionRecord(source, number)))

    def sent(self, target: str, number: int, item: bytes) -> None:
        """Something that is no message took a number of an outgoing channel."""
        self._waiting.append(encode_record(SentRecord(target, number, item)))

    def passed_on(self, identity: bytes) -> None:
        """A message that was received is not for an agent here: it left again, and `sent` says where to."""
        self._origins.pop(identity, None)

    def stream(self, peer: str, line: int) -> None:
        """Channels to and from this peer are streams of its line."""
        self._waiting.append(encode_record(StreamRecord(peer, line)))
        self._positions.pop(peer, None)

    def acknowledged(self, target: str, number: int) -> None:
        """A peer has everything up to this number for good."""
        self._waiting.append(encode_record(AcknowledgedRecord(target, number)))

    def delivered(self, outputs: Iterable[bytes]) -> None:
        """Sinks have these outputs for good."""
        self._waiting.append(encode_record(DeliveredRecord(list(outputs))))

    @property
    def waiting(self) -> bool:
        """There is something to take."""
        return bool(self._waiting)

    def take(self) -> list[bytes]:
        """What is to be appended now, in order."""
        records: list[bytes] = []
        for waiting in self._waiting:
            if waiting is None:
                continue
            if isinstance(waiting, bytes):
                records.append(waiting)
                continue
            identity, record = waiting
            records.append(encode_record(record))
            if identity in self._origins:
                self._origins[identity] = _Origin(record.source, record.number, _LOGGED)
        self._waiting = []
        return records

    def _done(self, identity: bytes) -> tuple[str, int]:
        """Where a message came from that is done with now."""
        origin = self._origins.pop(identity, _HERE)
        if origin.place != _LOGGED:
            self._waiting[origin.place] = None
        return origin.source, origin.number
