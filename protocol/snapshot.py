"""The Chandy-Lamport machine: one participant's part in global snapshots.

One per participant and incarnation. Rules, each for every epoch by itself (DESIGN.md section 4):

* The start order or the epoch's first marker, whichever comes first, begins the epoch here: record the local state, put a
  marker on *all* outgoing channels, and only then anything else. These are the first effects of the step.
* The channel of that first marker is closed and empty. Every other incoming channel is open: what arrives on it is
  recorded until its own marker. A *set* of open channels, never a count of markers.
* The part is complete when the state is recorded and no channel is open; so a participant without incoming channels
  completes in the step that begins the epoch.
* The orderly end of a channel is its marker for every epoch that still has it open, and for all later ones. A broken
  connection is not: channels resume, or the member is lost and the coordinator aborts.
* Duplicates, markers of ended epochs and repeated orders are outcomes: counted, without effects.

Numbers. An item's number is its place in its channel's stream. A marker numbered ``n`` closes its channel at ``n - 1``,
and what is recorded is then exactly ``received + 1 .. closed_at``, whatever kinds of item these are: the markers of other
epochs are among them, so that the range has no gaps and its bytes continue the stream's digest. The machine holds the
driver to that: a gap is the driver's bug (`LocalProtocolError`), never a silent loss. A marker that comes again by its own
number changes nothing; one that a peer put twice is an item like any other to the other epochs.

The driver feeds each marker, end and (while `recording`) run of messages *before* it advances the channel past them, in
the order of the stream, and carries out `RecordState` before it delivers anything else. What is recorded is still
delivered: recording keeps a second reference to the same immutable bytes.

Overlap. Epochs are independent; an item that arrives while two of them have its channel open is in both. Where the bound
on open epochs is reached, an older open epoch gives way to a newer one: a coordinator starts none beyond its own bound, so
one of the older has ended and only the news is late. An epoch older than all open ones is refused.

Memory. Ended epochs are remembered by a low-water mark and a bounded table above it. Recorded bytes are bounded per epoch;
past the bound the epoch is given up here and the memory is free at once.

Sources: Chandy & Lamport 1985, section 3, marker-sending and marker-receiving rules.
Differences: epochs overlap, channels end, epochs are given up. Each epoch by itself still obeys both rules to the letter,
and one that was given up anywhere is committed nowhere; so the paper's proof holds for each one that is complete everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import ChannelId, Epoch
from protocol.items import encode_marker_item
from protocol.limits import ABORTED_EPOCHS_REMEMBERED_MAX, CONCURRENT_EPOCHS_MAX, RECORDING_BYTES_MAX
from protocol.snapshot_events import (
    ChannelClosed,
    ChannelEnded,
    ChannelOpened,
    DropReason,
    Effect,
    EpochAborted,
    EpochDropped,
    EpochsEnded,
    EpochStarted,
    Event,
    ItemsReceived,
    LocalPartComplete,
    MarkerReceived,
    RecordingOverflow,
    RecordState,
    SendMarkers,
    TopologySet,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.ids import Instant, ParticipantId


__all__ = [
    "ChannelClosed",
    "ChannelEnded",
    "ChannelOpened",
    "DropReason",
    "Effect",
    "EpochAborted",
    "EpochDropped",
    "EpochStarted",
    "EpochsEnded",
    "Event",
    "ItemsReceived",
    "LocalPartComplete",
    "MarkerReceived",
    "RecordState",
    "RecordingOverflow",
    "SendMarkers",
    "SnapshotMachine",
    "TopologySet",
]


class _Recording:
    """One open channel of one epoch."""

    __slots__ = ("channel", "items", "next", "part")

    def __init__(self, part: _Part, channel: ChannelId) -> None:
        self.part = part
        self.channel = channel
        self.items: list[bytes] = []
        self.next = 0
        """Number of the item that must come next; 0 until the first one fixes it."""


class _Part:
    """One open epoch. Invariant: `open` is not empty between two steps."""

    __slots__ = ("bytes", "closed", "epoch", "incoming", "open")

    def __init__(self, epoch: Epoch, incoming: tuple[ChannelId, ...]) -> None:
        self.epoch = epoch
        self.incoming = incoming
        self.open: dict[ChannelId, _Recording] = {}
        self.closed: dict[ChannelId, int] = {}
        """Closed channels -> number of the last item before the marker or end."""
        self.bytes = 0


_COMPLETE: Final = "complete"
_DROPPED: Final = "dropped"


class SnapshotMachine:
    """Rules of the module, as a plain object: `step(event, now)` gives effects, to be carried out from left to right.

    A step that raises has changed nothing.
    """

    def __init__(
        self,
        participant: ParticipantId,
        *,
        max_concurrent_epochs: int = CONCURRENT_EPOCHS_MAX,
        recording_bytes_max: int = RECORDING_BYTES_MAX,
        ended_through: int = 0,
    ) -> None:
        """Begin with no channels and no epochs.

        Args:
            participant: Whose part this is: the target of all incoming and the source of all outgoing channels.
            max_concurrent_epochs: Bound on epochs that are open here at once.
            recording_bytes_max: Bound on the bytes that one epoch records here, over all its channels.
            ended_through: Low-water mark to begin with: a participant that was restarted knows nothing else of the
                epochs before it.
        """
        if max_concurrent_epochs < 1 or recording_bytes_max < 0:
            raise LocalProtocolError("a snapshot machine needs room for an epoch")
        self.participant = participant
        self._max_concurrent_epochs = max_concurrent_epochs
        self._recording_bytes_max = recording_bytes_max
        self._incoming: tuple[ChannelId, ...] = ()
        self._outgoing: tuple[ChannelId, ...] = ()
        self._ended: dict[ChannelId, int] = {}
        """Channels, both ways, that have ended in order -> number of the last item before the end."""
        self._parts: dict[Epoch, _Part] = {}
        """Open epochs, in the order in which they began here."""
        self._recordings: dict[ChannelId, list[_Recording]] = {}
        """Open channels -> who records them. Invariant: no empty lists."""
        self._past: dict[Epoch, str] = {}
        """Epochs above the low-water mark that are complete or over here."""
        self._ended_through = ended_through
        self._newest = ended_through
        self._counts: dict[str, int] = dict.fromkeys(_COUNTERS, 0)

    @property
    def recording(self) -> bool:
        """Whether any channel is open in any epoch: if not, messages need not be fed. O(1)."""
        return bool(self._recordings)

    def records(self, channel: ChannelId) -> bool:
        """Whether messages of this channel are being recorded. O(1)."""
        return channel in self._recordings

    @property
    def open_epochs(self) -> tuple[Epoch, ...]:
        """Epochs that are begun here and not complete, ascending."""
        return tuple(sorted(self._parts))

    def open_channels(self, epoch: Epoch) -> tuple[ChannelId, ...]:
        """Channels whose marker this epoch waits for, in the topology's order; empty for an epoch that is not open."""
        part = self._parts.get(epoch)
        return () if part is None else tuple(part.open)

    @property
    def newest_epoch(self) -> int:
        """Highest epoch heard of; 0: none."""
        return self._newest

    @property
    def ended_through(self) -> int:
        """Low-water mark: every epoch up to this number is over."""
        return self._ended_through

    def statistics(self) -> dict[str, int]:
        """Counts since the machine was made, and what is open now."""
        return {
            **self._counts,
            "open_epochs": len(self._parts),
            "open_channels": sum(len(part.open) for part in self._parts.values()),
            "recorded_bytes_held": sum(part.bytes for part in self._parts.values()),
            "epochs_remembered": len(self._past),
        }

    def step(self, event: Event, now: Instant) -> tuple[Effect, ...]:
        """Apply one event.

        Args:
            event: What happened, in the order in which it happened.
            now: Driver time, nanoseconds.

        Returns:
            Effects. Within one epoch: `RecordState`, `SendMarkers`, `ChannelClosed`..., `LocalPartComplete`.

        Raises:
            RemoteProtocolError: A peer's marker or end where none can be; the machine is unchanged.
            LocalProtocolError: A gap in the numbers or channels that are not this participant's; it is unchanged.
        """
        match event:
            case ItemsReceived():
                return self._items_received(event)
            case MarkerReceived():
                return self._marker_received(event)
            case EpochStarted():
                return self._epoch_started(event)
            case EpochAborted():
                return self._epoch_aborted(event)
            case EpochsEnded():
                return tuple(self._raise_mark(event.ended_through))
            case ChannelEnded():
                return self._channel_ended(event)
            case ChannelOpened():
                return self._channel_opened(event)
            case TopologySet():
                self._check_channels(event.incoming, event.outgoing)
                self._incoming, self._outgoing = event.incoming, event.outgoing
                current = {*event.incoming, *event.outgoing}
                self._ended = {channel: last for channel, last in self._ended.items() if channel in current}
                return ()
            case _:
                assert_never(event)

    # --- transitions ------------------------------------------------------------------------------------------------

    def _items_received(self, event: ItemsReceived) -> tuple[Effect, ...]:
        recordings = self._recordings.get(event.channel)
        if recordings is None or not event.items:
            return ()
        self._check_next(recordings, event.first)
        return tuple(self._record(recordings, event.first, event.items))

    def _marker_received(self, event: MarkerReceived) -> tuple[Effect, ...]:
        channel, epoch, number = event.channel, event.epoch, event.number
        recordings = self._recordings.get(channel, ())
        part = self._parts.get(epoch)
        is_new = part is None and self._is_new(epoch)
        if channel in self._ended:
            raise RemoteProtocolError(f"marker of epoch {epoch} on {channel} after its end")
        if (part is not None and channel not in part.incoming) or (is_new and channel not in self._incoming):
            raise RemoteProtocolError(
                f"marker of epoch {epoch} on {channel}, which does not lead to {self.participant}"
            )
        self._check_next(recordings, number, repeats=True)

        self._counts["markers_received"] += 1
        self._newest = max(self._newest, epoch)
        if part is not None and part.closed.get(channel) == number - 1:
            self._counts["markers_repeated"] += 1
            return ()
        effects = self._make_room(epoch) if is_new else []
        # Other epochs record this marker like any item: their range of numbers has no gaps.
        others = [
            other
            for other in self._recordings.get(channel, ())
            if other.part.epoch != epoch and other.next in (0, number)
        ]
        if others:
            effects += self._record(others, number, (encode_marker_item(epoch),))
        if self._is_new(epoch):
            effects += self._begin(epoch, self._incoming, self._outgoing, first=channel, closed_at=number - 1)
        elif part is not None and channel in part.open:
            effects += self._close(part, channel, number - 1)
        elif part is not None or self._past.get(epoch) == _COMPLETE:
            self._counts["markers_repeated"] += 1
        else:
            self._counts["markers_stale"] += 1
        return tuple(effects)

    def _epoch_started(self, event: EpochStarted) -> tuple[Effect, ...]:
        epoch = event.epoch
        if epoch in self._parts or self._past.get(epoch) == _COMPLETE:
            self._counts["orders_repeated"] += 1
            return ()
        if not self._is_new(epoch):
            self._counts["orders_refused"] += 1
            return ()
        self._check_channels(event.incoming, event.outgoing)
        self._newest = max(self._newest, epoch)
        effects = self._make_room(epoch)
        if self._is_new(epoch):
            effects += self._begin(epoch, event.incoming, event.outgoing, first=None, closed_at=0)
        return tuple(effects)

    def _epoch_aborted(self, event: EpochAborted) -> tuple[Effect, ...]:
        epoch = event.epoch
        effects: list[Effect] = []
        self._newest = max(self._newest, epoch)
        if epoch in self._parts or self._past.get(epoch) == _COMPLETE:
            effects += self._drop(epoch, DropReason.ABORTED)
        elif self._is_new(epoch):
            effects += self._remember(epoch, _DROPPED)
        effects += self._raise_mark(event.ended_through)
        return tuple(effects)

    def _channel_ended(self, event: ChannelEnded) -> tuple[Effect, ...]:
        channel, last = event.channel, event.number - 1
        if channel in self._ended:
            raise RemoteProtocolError(f"{channel} ended twice")
        if self.participant not in channel or channel.source == channel.target:
            raise LocalProtocolError(f"{channel} is not a channel of {self.participant}")
        recordings = self._recordings.get(channel, [])
        self._check_next(recordings, event.number)
        self._counts["channels_ended"] += 1
        self._ended[channel] = last
        effects: list[Effect] = []
        for part in [recording.part for recording in recordings]:
            effects += self._close(part, channel, last)
        return tuple(effects)

    def _channel_opened(self, event: ChannelOpened) -> tuple[Effect, ...]:
        self._ended.pop(event.channel, None)
        effects: list[Effect] = []
        for epoch in [recording.part.epoch for recording in self._recordings.get(event.channel, ())]:
            effects += self._drop(epoch, DropReason.CHANNEL_BROKEN)
        return tuple(effects)

    # --- one epoch's life -------------------------------------------------------------------------------------------

    def _is_new(self, epoch: Epoch) -> bool:
        return epoch > self._ended_through and epoch not in self._parts and epoch not in self._past

    def _make_room(self, epoch: Epoch) -> list[Effect]:
        """Hold the bound on open epochs before `epoch` begins; afterwards it is no longer new if it was refused."""
        if len(self._parts) < self._max_concurrent_epochs:
            return []
        oldest = min(self._parts)
        if oldest < epoch:
            return self._drop(oldest, DropReason.NEWER)
        self._counts["epochs_refused"] += 1
        dropped = EpochDropped(epoch=epoch, reason=DropReason.TOO_MANY, recorded=False)
        return [dropped, *self._remember(epoch, _DROPPED)]

    def _begin(
        self,
        epoch: Epoch,
        incoming: tuple[ChannelId, ...],
        outgoing: tuple[ChannelId, ...],
        *,
        first: ChannelId | None,
        closed_at: int,
    ) -> list[Effect]:
        """Record and send markers; `first` is the channel whose marker began the epoch, closed and empty.

        Source:
            Chandy & Lamport 1985, marker-sending rule, and the first half of the marker-receiving rule.
        """
        self._counts["epochs_begun"] += 1
        effects: list[Effect] = [RecordState(epoch=epoch)]
        marked = tuple(channel for channel in outgoing if channel not in self._ended)
        if marked:
            effects.append(SendMarkers(epoch=epoch, channels=marked))
        part = self._parts[epoch] = _Part(epoch, incoming)
        for channel in incoming:
            last = closed_at if channel == first else self._ended.get(channel)
            if last is None:
                recording = part.open[channel] = _Recording(part, channel)
                self._recordings.setdefault(channel, []).append(recording)
                continue
            part.closed[channel] = last
            effects.append(ChannelClosed(epoch=epoch, channel=channel, received=last, closed_at=last, items=()))
        return effects + self._complete_if_closed(part)

    def _record(self, recordings: Sequence[_Recording], first: int, items: Sequence[bytes]) -> list[Effect]:
        """Append items, without copying them, to every epoch that has their channel open."""
        size = sum(map(len, items))
        after = first + len(items)
        overflown: list[_Recording] = []
        for recording in recordings:
            recording.items.extend(items)
            recording.next = after
            part = recording.part
            part.bytes += size
            if part.bytes > self._recording_bytes_max:
                overflown.append(recording)
        self._counts["items_recorded"] += len(items)
        self._counts["bytes_recorded"] += size
        effects: list[Effect] = []
        for recording in overflown:
            part = recording.part
            effects.append(RecordingOverflow(epoch=part.epoch, channel=recording.channel, bytes=part.bytes))
            effects += self._drop(part.epoch, DropReason.RECORDING_LIMIT)
        return effects

    def _close(self, part: _Part, channel: ChannelId, closed_at: int) -> list[Effect]:
        """End recording on one channel.

        Source:
            Chandy & Lamport 1985, marker-receiving rule, second half: this channel and no other.
        """
        recording = part.open.pop(channel, None)
        if recording is None:  # closing another epoch has raised the low-water mark past this one
            return []
        self._forget(recording)
        part.closed[channel] = closed_at
        closed = ChannelClosed(
            epoch=part.epoch,
            channel=channel,
            received=closed_at - len(recording.items),
            closed_at=closed_at,
            items=tuple(recording.items),
        )
        return [closed, *self._complete_if_closed(part)]

    def _complete_if_closed(self, part: _Part) -> list[Effect]:
        if part.open:
            return []
        del self._parts[part.epoch]
        self._counts["epochs_completed"] += 1
        return [LocalPartComplete(epoch=part.epoch), *self._remember(part.epoch, _COMPLETE)]

    def _drop(self, epoch: Epoch, reason: DropReason) -> list[Effect]:
        """Give up an open or complete epoch; everything that it holds here is free afterwards."""
        part = self._parts.pop(epoch, None)
        if part is not None:
            for recording in part.open.values():
                self._forget(recording)
            part.open.clear()
        elif self._past.get(epoch) != _COMPLETE:
            return []
        self._counts["epochs_dropped"] += 1
        return [EpochDropped(epoch=epoch, reason=reason, recorded=True), *self._remember(epoch, _DROPPED)]

    def _forget(self, recording: _Recording) -> None:
        others = [other for other in self._recordings[recording.channel] if other is not recording]
        if others:
            self._recordings[recording.channel] = others
        else:
            del self._recordings[recording.channel]

    # --- memory of the past -----------------------------------------------------------------------------------------

    def _remember(self, epoch: Epoch, state: str) -> list[Effect]:
        """Keep that an epoch is complete or over; past the bound, the low-water mark stands for the oldest ones."""
        if epoch <= self._ended_through:
            return []
        self._past[epoch] = state
        while self._past.get(Epoch(self._ended_through + 1)) == _DROPPED:
            self._ended_through += 1
            del self._past[Epoch(self._ended_through)]
        if len(self._past) > ABORTED_EPOCHS_REMEMBERED_MAX:
            return self._raise_mark(min(self._past))
        return []

    def _raise_mark(self, ended_through: int) -> list[Effect]:
        if ended_through <= self._ended_through:
            return []
        self._ended_through = ended_through
        self._newest = max(self._newest, ended_through)
        self._past = {epoch: state for epoch, state in self._past.items() if epoch > ended_through}
        effects: list[Effect] = []
        for epoch in [epoch for epoch in self._parts if epoch <= ended_through]:
            effects += self._drop(epoch, DropReason.ENDED)
        return effects

    # --- checks that come before any change -------------------------------------------------------------------------

    @staticmethod
    def _check_next(recordings: Sequence[_Recording], number: int, *, repeats: bool = False) -> None:
        """Refuse a gap, and unless `repeats` also a number that was recorded already."""
        if number < 1:
            raise LocalProtocolError(f"{number} is not a sequence number")
        for recording in recordings:
            if recording.next not in (0, number) and not (repeats and number < recording.next):
                raise LocalProtocolError(
                    f"epoch {recording.part.epoch} records {recording.channel}: item {number} came, {recording.next} is next"
                )

    def _check_channels(self, incoming: tuple[ChannelId, ...], outgoing: tuple[ChannelId, ...]) -> None:
        mine = self.participant
        for channel in incoming:
            if channel.target != mine or channel.source == mine:
                raise LocalProtocolError(f"{channel} is not an incoming channel of {mine}")
        for channel in outgoing:
            if channel.source != mine or channel.target == mine:
                raise LocalProtocolError(f"{channel} is not an outgoing channel of {mine}")
        if len(set(incoming)) != len(incoming) or len(set(outgoing)) != len(outgoing):
            raise LocalProtocolError(f"a channel of {mine} is named twice")


_COUNTERS: Final = (
    "epochs_begun",
    "epochs_completed",
    "epochs_dropped",
    "epochs_refused",
    "orders_repeated",
    "orders_refused",
    "markers_received",
    "markers_repeated",
    "markers_stale",
    "channels_ended",
    "items_recorded",
    "bytes_recorded",
)
