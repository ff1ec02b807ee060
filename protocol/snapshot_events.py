"""What a snapshot machine is told and what it orders: the vocabulary of `protocol.snapshot`.

Events are facts, in the past tense; effects are orders, to be carried out from left to right before the next event.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from protocol.plain import Plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.ids import ChannelId, Epoch


# --- events ---------------------------------------------------------------------------------------------------------


class TopologySet(Plain, frozen=True, kw_only=True):
    """The channels of this participant from now on; open epochs keep the ones that they began with."""

    incoming: tuple[ChannelId, ...]
    outgoing: tuple[ChannelId, ...]


class EpochStarted(Plain, frozen=True, kw_only=True):
    """The coordinator's start order, with the channels that the ledger froze for the epoch."""

    epoch: Epoch
    incoming: tuple[ChannelId, ...]
    outgoing: tuple[ChannelId, ...]


class MarkerReceived(Plain, frozen=True, kw_only=True):
    """A marker is the next item of a channel. Fed whether or not anything records."""

    channel: ChannelId
    epoch: Epoch
    number: int
    """The marker's own sequence number."""


class ItemsReceived(Plain, frozen=True, kw_only=True):
    """A run of messages is next on a channel; needs to be fed only while `SnapshotMachine.recording`."""

    channel: ChannelId
    first: int
    """Sequence number of the first item."""
    items: Sequence[bytes]
    """Encoded messages, never markers or ends: those have events of their own."""


class ChannelOpened(Plain, frozen=True, kw_only=True):
    """A new stream begins on this channel, at 1, in place of an ended or broken one."""

    channel: ChannelId


class ChannelEnded(Plain, frozen=True, kw_only=True):
    """The end item of a channel is next (incoming), or was put on it (outgoing)."""

    channel: ChannelId
    number: int
    """The end item's own sequence number: the items before it are ``number - 1``."""


class EpochAborted(Plain, frozen=True, kw_only=True):
    """The epoch has ended without a manifest; it may be unknown here."""

    epoch: Epoch
    ended_through: int = 0
    """Every epoch up to this number has ended, too; 0: nothing is said."""


class EpochsEnded(Plain, frozen=True, kw_only=True):
    """Every epoch up to this number has ended, committed or aborted."""

    ended_through: int


Event: TypeAlias = (
    ItemsReceived
    | MarkerReceived
    | EpochStarted
    | EpochAborted
    | EpochsEnded
    | ChannelEnded
    | ChannelOpened
    | TopologySet
)


# --- effects --------------------------------------------------------------------------------------------------------


class DropReason(StrEnum):
    """Why an epoch is over at this participant."""

    ABORTED = "aborted"
    """The coordinator said so."""
    ENDED = "ended"
    """It lies at or below the low-water mark."""
    NEWER = "newer"
    """It gave way to a newer epoch at the bound on open ones."""
    TOO_MANY = "too-many"
    """It was refused at that bound: older than all open ones."""
    RECORDING_LIMIT = "recording-limit"
    """It would have recorded more than `RECORDING_BYTES_MAX`."""
    CHANNEL_BROKEN = "channel-broken"
    """A new stream took the place of one that it was recording."""


class RecordState(Plain, frozen=True, kw_only=True):
    """Record the local state and the position of every channel, now: before anything else is delivered or sent."""

    epoch: Epoch


class SendMarkers(Plain, frozen=True, kw_only=True):
    """Put the epoch's marker on these channels, ahead of any later message."""

    epoch: Epoch
    channels: tuple[ChannelId, ...]


class ChannelClosed(Plain, frozen=True, kw_only=True):
    """The channel state of one incoming channel is known."""

    epoch: Epoch
    channel: ChannelId
    received: int
    """Number of the last item before the local cut, as the recording has it: ``closed_at - len(items)``."""
    closed_at: int
    """Number of the last item before the marker or end."""
    items: tuple[bytes, ...]
    """The items ``received + 1 .. closed_at``, encoded: the very objects that were fed, and other epochs' markers."""


class LocalPartComplete(Plain, frozen=True, kw_only=True):
    """State recorded, all channels closed: nothing more comes for this epoch."""

    epoch: Epoch


class EpochDropped(Plain, frozen=True, kw_only=True):
    """Free what is held for this epoch. Unless the coordinator ended it, tell the coordinator that it failed here."""

    epoch: Epoch
    reason: DropReason
    recorded: bool
    """Whether a `RecordState` had been given for it."""


class RecordingOverflow(Plain, frozen=True, kw_only=True):
    """Whom to blame; always followed by `EpochDropped` of the same epoch."""

    epoch: Epoch
    channel: ChannelId
    """The channel whose items passed the bound."""
    bytes: int
    """What the epoch would have held over all its channels."""


Effect: TypeAlias = RecordState | SendMarkers | ChannelClosed | LocalPartComplete | EpochDropped | RecordingOverflow
