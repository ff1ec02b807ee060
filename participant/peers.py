"""One peer of a participant: the two streams that join them, and what waits to leave to it.

Both ends belong to one pair of sessions. When a session changes, the peer is made anew: streams begin at 1 again, and what
the old sending end had not seen acknowledged is lost to this incarnation (an epoch brings it back). Unless the new session is
of the same line (`protocol.streams`): then it goes on from its participant's log, and the streams with it.

Where turns are logged, items and acknowledgements wait at a *gate* for the log: `note_logging` says which number of the log
covers what there is by now, `logged` opens it up to there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from protocol.channel import ReceivingEnd, SendingEnd
from protocol.ids import ChannelId
from protocol.limits import (
    CHANNEL_REORDER_BYTES,
    CHANNEL_RESEND_NS,
    CHANNEL_RESEND_NS_MAX,
    CHANNEL_WINDOW_BYTES,
    FRAME_TARGET_BYTES,
    PARKED_FRAMES_BYTES_MAX,
)

if TYPE_CHECKING:
    from protocol.ids import Instant, ParticipantId, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """Bounds of all channels of one participant. Those of production are the defaults; whoever tests goes to the edges."""

    frame_bytes: int = FRAME_TARGET_BYTES
    window_bytes: int = CHANNEL_WINDOW_BYTES
    reorder_bytes: int = CHANNEL_REORDER_BYTES
    resend_ns: int = CHANNEL_RESEND_NS
    resend_ns_max: int = CHANNEL_RESEND_NS_MAX
    parked_bytes: int = PARKED_FRAMES_BYTES_MAX

    def sending(self, channel: ChannelId) -> SendingEnd:
        """A sending end within these bounds."""
        return SendingEnd(
            channel,
            window_bytes=self.window_bytes,
            resend_ns=self.resend_ns,
            resend_ns_max=self.resend_ns_max,
            frame_bytes=self.frame_bytes,
        )

    def receiving(self, channel: ChannelId) -> ReceivingEnd:
        """A receiving end within these bounds."""
        return ReceivingEnd(channel, reorder_bytes=self.reorder_bytes)


PRODUCTION: Final = ChannelLimits()
ALL: Final = 1 << 62
"""Beyond any number of an item."""


class ResumedStreams(NamedTuple):
    """Where the two streams with a peer stand, by our own log."""

    line: int
    """Of the peer."""
    sent: int
    received: int
    items: tuple[bytes, ...]
    """The last ones that were sent, encoded, up to `sent`: what the peer may not have."""


class _Gate(NamedTuple):
    number: int
    """Of the log."""
    sent: int
    received: int


class Peer:
    """Streams from and to one other member. Invariant: at least one of `sending` and `receiving` is there."""

    __slots__ = (
        "acknowledged",
        "connected",
        "gates",
        "id",
        "incoming",
        "limits",
        "line",
        "may_acknowledge",
        "may_leave",
        "outgoing",
        "receiving",
        "sending",
        "session",
        "unacknowledged_bytes",
        "waiting",
        "waiting_bytes",
    )

    def __init__(
        self,
        me: ParticipantId,
        peer: ParticipantId,
        session: Session,
        *,
        sends: bool,
        receives: bool,
        limits: ChannelLimits = PRODUCTION,
        line: int = 0,
        logged: bool = False,
    ) -> None:
        """New streams.

        Args:
            me: This participant.
            peer: The other one.
            session: Of the other one.
            sends: There is a channel to it.
            receives: There is a channel from it.
            limits: Of both streams.
            line: Of the other one's session.
            logged: Nothing leaves before `logged` says so.
        """
        assert sends or receives, "a peer without a channel"
        self.id = peer
        self.session = session
        self.line = line or session
        self.connected = False
        self.may_leave = 0 if logged else ALL
        """Number of the last item that may leave."""
        self.may_acknowledge = 0 if logged else ALL
        """Number of the last received item that may be acknowledged."""
        self.acknowledged = 0
        """Newest number that was acknowledged to the peer, where there is a gate."""
        self.gates: deque[_Gate] = deque()
        """What waits for the log; ascending in all numbers."""
        self.outgoing = ChannelId(me, peer)
        self.incoming = ChannelId(peer, me)
        self.limits = limits
        self.sending = limits.sending(self.outgoing) if sends else None
        self.receiving = limits.receiving(self.incoming) if receives else None
        self.waiting: list[bytes] = []
        """Encoded items of this turn of the loop; numbered when it is flushed, or by a cut."""
        self.waiting_bytes = 0
        self.unacknowledged_bytes = 0
        """Received since our last acknowledgement."""

    def set_channels(self, *, sends: bool, receives: bool) -> None:
        """The topology gave or took a channel; the other one's stream goes on."""
        if not sends:
            self.sending = None
            self.waiting.clear()
            self.waiting_bytes = 0
        elif self.sending is None:
            self.sending = self.limits.sending(self.outgoing)
            self._close_gate()
        if not receives:
            self.receiving = None
        elif self.receiving is None:
            self.receiving = self.limits.receiving(self.incoming)
            self._close_gate()

    def _close_gate(self) -> None:
        """A stream begins: none of its numbers has been logged."""
        if self.may_leave != ALL:
            self.may_leave = self.may_acknowledge = self.acknowledged = 0
            self.gates.clear()

    def resume(self, streams: ResumedStreams, now: Instant) -> None:
        """Have both ends go on where our log ends; for a peer that was just made. All of it is durable."""
        if self.sending is not None:
            self.sending.resume(streams.sent, streams.items, now)
            self.may_leave = max(self.may_leave, streams.sent)
        if self.receiving is not None:
            self.receiving.resume(streams.received)
            self.may_acknowledge = max(self.may_acknowledge, streams.received)

    def note_logging(self, number: int) -> bool:
        """Everything so far is covered by the log up to this number; whether anything is new."""
        self.number_waiting()
        sent = 0 if self.sending is None else self.sending.sent
        received = 0 if self.receiving is None else self.receiving.received
        last = self.gates[-1] if self.gates else _Gate(0, self.may_leave, self.may_acknowledge)
        if sent <= last.sent and received <= last.received:
            return False
        self.gates.append(_Gate(number, sent, received))
        return True

    def logged(self, number: int) -> bool:
        """The log is durable up to this number; whether that lets anything leave."""
        opened = False
        while self.gates and self.gates[0].number <= number:
            _, self.may_leave, self.may_acknowledge = self.gates.popleft()
            opened = True
        return opened

    @property
    def acknowledgement_due(self) -> bool:
        """There is something to acknowledge that may be."""
        receiving = self.receiving
        if receiving is None or not receiving.ack_due:
            return False
        return self.may_acknowledge >= receiving.received or self.may_acknowledge > self.acknowledged

    def acknowledge(self) -> int:
        """Number to acknowledge now."""
        assert self.receiving is not None, "nothing to acknowledge"
        self.acknowledged = self.receiving.ack(self.may_acknowledge)
        return self.acknowledged

    def number_waiting(self) -> None:
        """Put what waits on the stream: from here on it counts as sent."""
        if self.waiting and self.sending is not None:
            self.sending.put(self.waiting)
            self.waiting = []
            self.waiting_bytes = 0

    @property
    def outgoing_bytes(self) -> int:
        """Waiting, queued and unacknowledged bytes."""
        return self.waiting_bytes + (0 if self.sending is None else self.sending.in_flight_bytes)
