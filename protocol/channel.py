"""Exactly-once FIFO over transports that lose, repeat and reorder frames: the two ends of one stream.

A stream is a channel within one incarnation and one session at each side; its items are numbered from 1. `SendingEnd` and
`ReceivingEnd` know numbers, bytes and time, but no frames' headers, peers or sockets: the driver wraps what `frames` gives
and unwraps what it passes to `accept`.

How it works:

* Items are put in batches. A batch is joined once; these bytes are hashed, framed, and sent again as they are. Small
  batches that wait together share a frame. Nothing is made per item but the item.
* Acknowledgements are cumulative and say what was *handed on*, not what arrived.
* At most `window_bytes` are unacknowledged; one frame may always leave. More waits in the queue, numbered already: an item
  is *sent* when it is put, and so a cut counts it.
* After a reconnect everything unacknowledged leaves again. After a time without progress (doubling) the oldest frame does,
  and each sign of progress then doubles how many follow, until all that had left before is acknowledged: a lost frame costs
  one frame, a lost window a logarithm of round trips, and an acknowledgement that was merely slow costs one frame.
* The receiver drops what it had, to the item, and keeps what is ahead of a gap, within bounds, in order of its number.

The cut (DESIGN.md section 4) needs the position and the digest of each end. Both are exact between two calls of `put` or
`advance`; so the driver puts a marker by itself, and advances piecewise around one. The end item is the last of its
stream. It has a number, but no part in the digest: `cut_position` and `digest` stay what they were before it, for every
later cut.

A stream can outlive a session (`protocol.streams`). The end of the participant that comes back is `resume`d where its log says,
and both ends `rebase`: from there on the digest is over the items behind the base. What its log does not hold yet is kept back:
`frames` takes the number through which items may leave, `ack` the one that may be acknowledged.

Sources: TCP's cumulative acknowledgement and slow start (RFC 5681, RFC 6582) on batches. Differences: no congestion window;
the transport below paces.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from blake3 import blake3

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import Digest, Instant
from protocol.items import KIND_END, split_items
from protocol.limits import (
    CHANNEL_REORDER_BYTES,
    CHANNEL_RESEND_NS,
    CHANNEL_RESEND_NS_MAX,
    CHANNEL_WINDOW_BYTES,
    FRAME_ITEMS_MAX,
    FRAME_TARGET_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from protocol.ids import ChannelId

_ALL: Final = 1 << 62
_ITEM_OVERHEAD_BYTES: Final = 64
"""What one kept item costs beyond its bytes (object, slot in a list): a flood of tiny items is bounded, too."""


@dataclass(slots=True)
class OutFrame:
    """A batch as it leaves, each time with the same bytes. Not frozen: one is made for each batch."""

    first_seq: int
    """Number of its first item."""
    count: int
    body: bytes
    """The items, back to back."""

    @property
    def last_seq(self) -> int:
        """Number of its last item."""
        return self.first_seq + self.count - 1


class CutPosition(NamedTuple):
    """Where an end stands, as a cut reports it."""

    number: int
    """Items before the cut; the end item is not one of them."""
    digest: Digest
    """Running digest over exactly these."""
    ended: bool


def digest_text(hasher: blake3) -> Digest:
    """The hasher's state in the spelling of reports and manifests."""
    return Digest("b3:" + hasher.hexdigest())


def continued_digest(hasher: blake3, items: Sequence[bytes], *, skipped: int = 0) -> Digest:
    """Digest of a stream up to a closing marker: the hasher at the cut, continued over what was recorded.

    Args:
        hasher: From `ReceivingEnd.hasher` at the cut; not changed.
        items: The recorded items, in order.
        skipped: So many of them lie before the base of a stream that was resumed.
    """
    continued = hasher.copy()
    continued.update(b"".join(items[skipped:] if skipped else items))
    return digest_text(continued)


class SendingEnd:
    """The sender's half of one stream.

    Invariant: acknowledged <= left at least once <= in frames <= `sent`.
    """

    def __init__(
        self,
        channel: ChannelId,
        *,
        window_bytes: int = CHANNEL_WINDOW_BYTES,
        resend_ns: int = CHANNEL_RESEND_NS,
        resend_ns_max: int = CHANNEL_RESEND_NS_MAX,
        frame_bytes: int = FRAME_TARGET_BYTES,
    ) -> None:
        """An empty stream.

        Args:
            channel: For messages to people only.
            window_bytes: Bytes that may be unacknowledged.
            resend_ns: First time without progress after which the oldest frame leaves again.
            resend_ns_max: Bound of its doubling.
            frame_bytes: Batches are joined and split to about this size.
        """
        self.channel = channel
        self.sent = 0
        """Number of the last item put; queued ones count."""
        self.acknowledged_through = 0
        """Number of the last item that the receiver has handed on, as far as is known."""
        self.in_flight_bytes = 0
        """Queued and unacknowledged bytes."""
        self.ended = False
        """The end item was put; nothing more can be."""
        self._window_bytes = window_bytes
        self._frame_bytes = frame_bytes
        self._resend_ns_min = resend_ns
        self._resend_ns_max = max(resend_ns, resend_ns_max)
        self._resend_ns = resend_ns
        self._hasher = blake3()
        self._queue: deque[OutFrame] = deque()
        """Batches that never left; may be joined into larger frames until they do."""
        self._frames: deque[OutFrame] = deque()
        """Frames that left and are not acknowledged to their last item."""
        self._window_used = 0
        self._again = 0
        """How many of `_frames`, from the oldest, are to leave again."""
        self._burst = 0
        """Frames that the next sign of progress sends again; 0: not recovering."""
        self._recovered_at = 0
        """Recovery ends when this number is acknowledged."""
        self._deadline: int | None = None
        self._counts: dict[str, int] = dict.fromkeys(_SENDING_COUNTERS, 0)

    @property
    def cut_position(self) -> CutPosition:
        """What a cut taken now reports for this end."""
        return CutPosition(self.sent - self.ended, self.digest(), self.ended)

    @property
    def unacknowledged(self) -> int:
        """Items that are lost to the receiver if the stream ends now."""
        return self.sent - self.acknowledged_through

    def digest(self) -> Digest:
        """Running digest over the items put so far, the end item excepted."""
        return digest_text(self._hasher)

    def put(self, items: Sequence[bytes]) -> None:
        """Number these items and queue them; they leave with `frames`.

        Args:
            items: Encoded items. A marker may be among others; the end item must be the last of all.

        Raises:
            LocalProtocolError: The stream has ended; nothing is put.
        """
        if not items:
            return
        if self.ended:
            raise LocalProtocolError(f"{self.channel} has ended")
        count = len(items)
        body = b"".join(items)
        if items[-1][0] == KIND_END:
            self.ended = True
            self._hasher.update(body[: -len(items[-1])])
        else:
            self._hasher.update(body)
        first = self.sent + 1
        self.sent += count
        self.in_flight_bytes += len(body)
        if count == 1 or (len(body) <= self._frame_bytes and count <= FRAME_ITEMS_MAX):
            self._queue.append(OutFrame(first, count, body))
        else:
            self._queue.extend(self._split(first, items))

    def resume(self, sent: int, items: Sequence[bytes], now: Instant) -> None:
        """Go on where an earlier life's log ends; for an end that has put nothing.

        Args:
            sent: Number of the last item that it put.
            items: The last of those, encoded, up to that one: what the receiver may not have. All of it leaves again.
            now: Driver time.
        """
        assert not self.sent, "an end resumes before it puts anything"
        assert len(items) <= sent, "more items than numbers"
        self.sent = sent
        self.acknowledged_through = sent - len(items)
        self.ended = bool(items) and items[-1][0] == KIND_END
        self._frames.extend(self._split(self.acknowledged_through + 1, items) if items else ())
        self.in_flight_bytes = self._window_used = sum(len(frame.body) for frame in self._frames)
        self.reconnected(now)

    def rebase(self, number: int) -> None:
        """From here on the digest is over the items behind this number: the stream was resumed there.

        Raises:
            RemoteProtocolError: Items that the receiver has acknowledged would have to come again, or it names some that were
                never put; nothing is changed.
        """
        if not self.acknowledged_through <= number <= self.sent:
            raise RemoteProtocolError(
                f"{self.channel}: resumed behind item {number}; {self.acknowledged_through} to {self.sent} are possible"
            )
        self._hasher = blake3()
        for frame in (*self._frames, *self._queue):
            if frame.last_seq <= number:
                continue
            items = split_items(frame.body, frame.count)[max(0, number + 1 - frame.first_seq) :]
            self._hasher.update(b"".join(item for item in items if item[0] != KIND_END))

    def frames(self, now: Instant, through: int = _ALL) -> list[OutFrame]:
        """What is to leave now: what is to be sent again, then what is new, within the window.

        Args:
            now: Driver time; starts the time without progress.
            through: Number of the last item that may leave for the first time: the last of what some `put` numbered.
        """
        leaving: list[OutFrame] = []
        if self._again:
            leaving += [self._frames[index] for index in range(self._again)]
            self._counts["frames_resent"] += self._again
            self._counts["bytes_resent"] += sum(len(frame.body) for frame in leaving)
            self._again = 0
        queue = self._queue
        while (
            queue
            and queue[0].last_seq <= through
            and (not self._frames or self._window_used + len(queue[0].body) <= self._window_bytes)
        ):
            frame = self._next_frame(through)
            self._frames.append(frame)
            self._window_used += len(frame.body)
            leaving.append(frame)
            self._counts["frames_sent"] += 1
            self._counts["bytes_sent"] += len(frame.body)
        if leaving and self._deadline is None:
            self._deadline = now + self._resend_ns
        return leaving

    def acknowledged(self, upto: int, now: Instant) -> None:
        """The receiver has handed on all items up to this number.

        Raises:
            RemoteProtocolError: It names an item that never left; nothing is changed.
        """
        if upto <= self.acknowledged_through:
            # Repeated and overtaken acknowledgements are normal: each frame of the other direction carries one.
            self._counts["acks_stale"] += upto < self.acknowledged_through
            return
        frames = self._frames
        if not frames or upto > frames[-1].last_seq:
            raise RemoteProtocolError(f"{self.channel}: item {upto} was acknowledged, {self._left_through} had left")
        self.acknowledged_through = upto
        while frames and frames[0].last_seq <= upto:
            size = len(frames.popleft().body)
            self.in_flight_bytes -= size
            self._window_used -= size
            self._again -= self._again > 0
        self._resend_ns = self._resend_ns_min
        if upto >= self._recovered_at:
            self._burst = 0
        elif self._burst:
            self._burst *= 2
            self._again = min(len(frames), max(self._again, self._burst))
        self._deadline = now + self._resend_ns if frames else None

    def reconnected(self, now: Instant) -> None:
        """The transport begins anew: everything unacknowledged is to leave again, in order."""
        self._again = len(self._frames)
        self._burst = 0
        self._resend_ns = self._resend_ns_min
        self._deadline = now + self._resend_ns if self._frames else None

    def next_timeout(self) -> Instant | None:
        """When `timed_out` is to be called; None while nothing is unacknowledged."""
        return None if self._deadline is None else Instant(self._deadline)

    def timed_out(self, now: Instant) -> None:
        """Send the oldest frame again if there was no progress; early calls do nothing."""
        if self._deadline is None or now < self._deadline:
            return
        self._counts["timeouts"] += 1
        self._recovered_at = self._left_through
        self._burst = 1
        self._again = max(self._again, 1)
        self._resend_ns = min(2 * self._resend_ns, self._resend_ns_max)
        self._deadline = now + self._resend_ns

    def statistics(self) -> dict[str, int]:
        """Counts since the stream began, and where it stands."""
        return {
            **self._counts,
            "sent": self.sent,
            "acknowledged": self.acknowledged_through,
            "in_flight_bytes": self.in_flight_bytes,
            "window_used_bytes": self._window_used,
            "queued_batches": len(self._queue),
        }

    @property
    def _left_through(self) -> int:
        return self._frames[-1].last_seq if self._frames else self.acknowledged_through

    def _split(self, first: int, items: Sequence[bytes]) -> Iterator[OutFrame]:
        """Batches of about the target size; an item larger than that has one of its own."""
        start = size = 0
        for index, item in enumerate(items):
            if index > start and (size + len(item) > self._frame_bytes or index - start == FRAME_ITEMS_MAX):
                yield OutFrame(first + start, index - start, b"".join(items[start:index]))
                start, size = index, 0
            size += len(item)
        yield OutFrame(first + start, len(items) - start, b"".join(items[start:]))

    def _next_frame(self, through: int) -> OutFrame:
        """The oldest batches that fit into one frame, and into the window, and may leave."""
        queue = self._queue
        frame = queue.popleft()
        if not queue:
            return frame
        room = min(self._frame_bytes, self._window_bytes - self._window_used)
        size, count = len(frame.body), frame.count
        bodies = [frame.body]
        while (
            queue
            and queue[0].last_seq <= through
            and size + len(queue[0].body) <= room
            and count + queue[0].count <= FRAME_ITEMS_MAX
        ):
            batch = queue.popleft()
            bodies.append(batch.body)
            size += len(batch.body)
            count += batch.count
        return frame if len(bodies) == 1 else OutFrame(frame.first_seq, count, b"".join(bodies))


class ReceivingEnd:
    """The receiver's half of one stream.

    `accept` gives what may be handed on; `advance` says that it was. Invariant: `received` <= accepted.
    """

    def __init__(self, channel: ChannelId, *, reorder_bytes: int = CHANNEL_REORDER_BYTES) -> None:
        """An empty stream.

        Args:
            channel: For messages to people only.
            reorder_bytes: Bytes, with the objects' own, that may be kept ahead of a gap.
        """
        self.channel = channel
        self.received = 0
        """Number of the last item that was handed on."""
        self.ended = False
        """The end item was handed on; nothing may follow."""
        self.ack_due = False
        """There is something to acknowledge that no frame has said yet."""
        self._accepted = 0
        self._end_accepted = False
        self._reorder_bytes = reorder_bytes
        self._ahead: list[tuple[int, list[bytes]]] = []
        """Runs beyond a gap, in order of their first number. Invariant: no two have the same one."""
        self._ahead_bytes = 0
        self._hasher = blake3()
        self.base = 0
        """The digest is over the items behind this number; nothing, as long as `received` is below it."""
        self._counts: dict[str, int] = dict.fromkeys(_RECEIVING_COUNTERS, 0)

    @property
    def cut_position(self) -> CutPosition:
        """What a cut taken now reports for this end."""
        return CutPosition(self.received - self.ended, self.digest(), self.ended)

    def digest(self) -> Digest:
        """Running digest over the items handed on, the end item excepted."""
        return digest_text(self._hasher)

    def hasher(self) -> blake3:
        """A copy of the running hasher, at `received`."""
        return self._hasher.copy()

    def resume(self, received: int) -> None:
        """Go on where an earlier life's log ends; for an end that has received nothing."""
        assert not self._accepted, "an end resumes before it accepts anything"
        self.received = self._accepted = received
        self.ack_due = received > 0

    def rebase(self, number: int) -> None:
        """From here on the digest is over the items behind this number: the stream was resumed there.

        Raises:
            RemoteProtocolError: Items behind it were handed on already; nothing is changed.
        """
        if number < self.received:
            raise RemoteProtocolError(
                f"{self.channel}: resumed behind item {number}, and {self.received} was handed on"
            )
        self.base = number
        self._hasher = blake3()

    def accept(self, first_seq: int, items: list[bytes]) -> list[tuple[int, list[bytes]]]:
        """Take the items of one frame.

        Args:
            first_seq: Number of the first one.
            items: Encoded items; the list belongs to this end from now on.

        Returns:
            Runs ``(first number, items)`` that are next, in order and without gaps; hand each on and `advance` over it.
            Usually the frame itself, or nothing: duplicates are dropped, what is ahead of a gap is kept or, past the
            bound, dropped to be sent again.

        Raises:
            RemoteProtocolError: An impossible number, or items after the end; nothing is changed.
        """
        if not items:
            return []
        last = first_seq + len(items) - 1
        if first_seq < 1:
            raise RemoteProtocolError(f"{self.channel}: item number {first_seq}")
        if last <= self._accepted:
            # The sender does not know that we have them: say it again.
            self._counts["items_repeated"] += len(items)
            self.ack_due = True
            return []
        if self._end_accepted or self.ended:
            raise RemoteProtocolError(f"{self.channel}: item {last} after the end, which was {self._accepted}")
        following = self._accepted + 1
        if first_seq > following:
            self._keep(first_seq, items)
            return []
        if first_seq < following:
            self._counts["items_repeated"] += following - first_seq
            items = items[following - first_seq :]
            self.ack_due = True
        runs = [(following, items)]
        self._take(items, last)
        if self._ahead:
            runs += self._drain()
        return runs

    def advance(self, items: Sequence[bytes]) -> None:
        """The next items of the accepted runs have been handed on.

        Raises:
            LocalProtocolError: More than was accepted; nothing is changed.
            RemoteProtocolError: Items after the end; nothing is changed.
        """
        if not items:
            return
        if self.ended:
            raise RemoteProtocolError(f"{self.channel}: item {self.received + 1} after the end")
        count = len(items)
        if self.received + count > self._accepted:
            raise LocalProtocolError(
                f"{self.channel}: {count} items were handed on, {self._accepted - self.received} were accepted"
            )
        hashed = items if self.received >= self.base else items[self.base - self.received :]
        if items[-1][0] == KIND_END:
            self.ended = True
            hashed = hashed[:-1]
        self._hasher.update(b"".join(hashed))
        self.received += count
        self.ack_due = True

    def ack(self, through: int = _ALL) -> int:
        """Number to acknowledge, at most `through`; unless more was handed on than that, it is no longer due."""
        if through < self.received:
            return through
        self.ack_due = False
        return self.received

    def statistics(self) -> dict[str, int]:
        """Counts since the stream began, and where it stands."""
        return {
            **self._counts,
            "received": self.received,
            "ahead_runs": len(self._ahead),
            "ahead_bytes": self._ahead_bytes,
        }

    def _keep(self, first_seq: int, items: list[bytes]) -> None:
        """Keep a run that is ahead of a gap, unless it is kept already or there is no room."""
        position = bisect_left(self._ahead, first_seq, key=_run_first)
        known = (
            self._ahead[position][1] if position < len(self._ahead) and self._ahead[position][0] == first_seq else None
        )
        if known is not None and len(known) >= len(items):
            self._counts["items_repeated"] += len(items)
            return
        size = _run_bytes(items) - (0 if known is None else _run_bytes(known))
        if self._ahead_bytes + size > self._reorder_bytes:
            self._counts["frames_dropped"] += 1
            return
        self._ahead_bytes += size
        self._counts["frames_reordered"] += 1
        if known is None:
            self._ahead.insert(position, (first_seq, items))
        else:
            self._ahead[position] = (first_seq, items)

    def _take(self, items: list[bytes], last: int) -> None:
        self._accepted = last
        self._end_accepted = items[-1][0] == KIND_END

    def _drain(self) -> list[tuple[int, list[bytes]]]:
        """Runs that are next now that the gap is filled."""
        runs: list[tuple[int, list[bytes]]] = []
        taken = 0
        for first_seq, items in self._ahead:
            following = self._accepted + 1
            if first_seq > following:
                break
            taken += 1
            self._ahead_bytes -= _run_bytes(items)
            last = first_seq + len(items) - 1
            self._counts["items_repeated"] += min(len(items), following - first_seq)
            if last < following:
                continue
            if self._end_accepted:
                self._counts["frames_dropped"] += 1
                continue
            runs.append((following, items[following - first_seq :]))
            self._take(items, last)
        del self._ahead[:taken]
        return runs


def _run_first(run: tuple[int, list[bytes]]) -> int:
    return run[0]


def _run_bytes(items: list[bytes]) -> int:
    return sum(map(len, items)) + _ITEM_OVERHEAD_BYTES * len(items)


_SENDING_COUNTERS: Final = (
    "frames_sent",
    "bytes_sent",
    "frames_resent",
    "bytes_resent",
    "timeouts",
    "acks_stale",
)
_RECEIVING_COUNTERS: Final = ("items_repeated", "frames_reordered", "frames_dropped")
