"""One peer of a participant: the two streams that join them, and what waits to leave to it.

Both ends belong to one pair of sessions. When a session changes, the peer is made anew: streams begin at 1 again, and what
the old sending end had not seen acknowledged is lost to this incarnation (an epoch brings it back).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
    from protocol.ids import ParticipantId, Session


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


class Peer:
    """Streams from and to one other member. Invariant: at least one of `sending` and `receiving` is there."""

    __slots__ = (
        "connected",
        "id",
        "incoming",
        "limits",
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
    ) -> None:
        """New streams.

        Args:
            me: This participant.
            peer: The other one.
            session: Of the other one.
            sends: There is a channel to it.
            receives: There is a channel from it.
            limits: Of both streams.
        """
        assert sends or receives, "a peer without a channel"
        self.id = peer
        self.session = session
        self.connected = False
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
        if not receives:
            self.receiving = None
        elif self.receiving is None:
            self.receiving = self.limits.receiving(self.incoming)

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
