"""Wire tax: what a channel costs over a bare length-prefixed asyncio Protocol, when idle of epochs and while recording.

Measured: 100-byte messages through a channel's whole machinery: item headers, `SendingEnd` (numbers, digest, window),
`FrameCodec` (header, MAC), a TCP socket on loopback, the MAC's check, `ReceivingEnd` (order, duplicates, digest), the
recording of a snapshot machine where there is one, and acknowledgements back.

Reference: the same messages, as many per turn of the loop, through the least that delivers messages over a socket: a length
before each, joined into one write, cut apart at the other side. Both sides run on this process's loop; CPU time of both.

Bound: per message the reference packs 4 bytes, joins, slices and appends: about 0.4 us, 2.5 M messages a CPU-second (a bare
protocol that writes each message by itself has 0.63 M). The channel adds per message four passes of BLAKE3 over 105 bytes
(digest and MAC on both sides, 2.4 GB/s: 0.17 us), the join of items (0.05), the header in front of each (0.05), the look for
markers (0.04) and the slice behind the header (0.07): 0.38 us at the least, so 0.5 of this reference is what Python can have.
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import TYPE_CHECKING

from protocol.channel import ReceivingEnd, SendingEnd
from protocol.ids import ChannelId, ClusterName, Epoch, Instant, ParticipantId
from protocol.items import KIND_MESSAGE, control_positions, split_items
from protocol.keys import ClusterKeys
from protocol.limits import CHANNEL_WINDOW_BYTES
from protocol.snapshot import EpochStarted, ItemsReceived, SnapshotMachine, TopologySet
from protocol.wire import KIND_ACK, FrameCodec
from simulations.bench.measure import Row, Settings, interleave, row_of

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "wire-tax"
CHANNEL = ChannelId(ParticipantId("a"), ParticipantId("b"))
SILENT = ChannelId(ParticipantId("c"), ParticipantId("b"))
"""A second incoming channel whose marker never comes: it keeps nothing else from being recorded."""
MESSAGE = bytes(100)
PER_TURN = 256
"""Messages of one turn of the loop: what a busy participant sends at once."""
_LENGTH = struct.Struct(">I")
_ITEM_HEADER = struct.Struct(">BI")


async def run(settings: Settings) -> list[Row]:
    """Both cases."""
    count = settings.pick(4, 400, 1200) * PER_TURN
    cycles = settings.pick(1, 9, 15)
    rows = []
    for recording, bar in ((False, 0.75), (True, 0.65)):

        async def channel(recording: bool = recording) -> float:  # noqa: FBT001 - bound for this turn of the loop
            sender, receiver = _ChannelSender(), _ChannelReceiver(recording=recording)
            return count / await _transfer(sender, receiver, count)

        async def bare() -> float:
            return count / await _transfer(_BareSender(), _BareReceiver(), count)

        samples = await interleave(channel, bare, cycles)
        rows.append(
            row_of(
                NAME,
                "while recording" if recording else "no epoch",
                "messages per CPU-s / bare length-prefixed Protocol",
                samples,
                bar=bar,
                at_least=True,
                unit="1/s",
            )
        )
    return rows


async def _transfer(sender: _Side, receiver: _Side, count: int) -> float:
    """CPU seconds until the receiver has handed on `count` messages."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: receiver, "127.0.0.1", 0)
    await loop.create_connection(lambda: sender, *server.sockets[0].getsockname()[:2])
    try:
        done = receiver.expect(count)
        batch = [MESSAGE] * PER_TURN
        before = time.process_time()
        for _ in range(0, count, PER_TURN):
            sender.give(batch)
            await asyncio.sleep(0)
            while sender.full:
                await sender.room()
        await done
        return time.process_time() - before
    finally:
        sender.close()
        receiver.close()
        server.close()
        await server.wait_closed()


class _Side(asyncio.Protocol):
    """One end of the socket: length-prefixed blocks."""

    def __init__(self) -> None:
        self._stream: asyncio.WriteTransport | None = None
        self._rest = b""
        self._paused = False
        self._wake: asyncio.Event = asyncio.Event()
        self._left = 0
        self._done: asyncio.Future[None] | None = None
        self.delivered: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._stream = transport

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._paused = True

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._paused = False
        self._wake.set()

    @property
    def full(self) -> bool:
        """Nothing more is to be given now."""
        return self._paused

    async def room(self) -> None:
        """Until there may be room again."""
        self._wake.clear()
        await self._wake.wait()

    def expect(self, count: int) -> asyncio.Future[None]:
        """Done when so many messages were handed on."""
        self._left = count
        self._done = asyncio.get_running_loop().create_future()
        return self._done

    def give(self, messages: list[bytes]) -> None:
        """Send these."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Onto the socket."""
        assert self._stream is not None
        self._stream.write(data)

    def close(self) -> None:
        """End the connection."""
        if self._stream is not None:
            self._stream.abort()

    def hand_on(self, messages: list[bytes]) -> None:
        """To whoever they are for."""
        self.delivered = messages
        self._left -= len(messages)
        if self._left <= 0 and self._done is not None and not self._done.done():
            self._done.set_result(None)


class _BareSender(_Side):
    def give(self, messages: list[bytes]) -> None:
        pack = _LENGTH.pack
        parts: list[bytes] = []
        for message in messages:
            parts += (pack(len(message)), message)
        self.write(b"".join(parts))


class _BareReceiver(_Side):
    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        messages, self._rest = _blocks(data)
        self.hand_on(messages)


def _blocks(data: bytes) -> tuple[list[bytes], bytes]:
    """Length-prefixed blocks, and what is left over."""
    unpack = _LENGTH.unpack_from
    blocks: list[bytes] = []
    append = blocks.append
    start, end = 0, len(data)
    while start + 4 <= end:
        stop = start + 4 + unpack(data, start)[0]
        if stop > end:
            break
        append(data[start + 4 : stop])
        start = stop
    return blocks, data[start:]


class _Channel(_Side):
    """What both ends of the channel have: a codec, and frames in length-prefixed blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.codec = FrameCodec(ClusterName("bench"), ClusterKeys.from_secret(b"a secret for benchmarks, 32 bytes"))
        self.on_frame: Callable[[bytes], None] = lambda _frame: None

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        frames, self._rest = _blocks(data)
        for frame in frames:
            self.on_frame(frame)

    def send_frame(self, frame: bytes) -> None:
        self.write(_LENGTH.pack(len(frame)) + frame)


class _ChannelSender(_Channel):
    def __init__(self) -> None:
        super().__init__()
        self._end = SendingEnd(CHANNEL)
        self.on_frame = self._acknowledged

    @property
    def full(self) -> bool:
        return self._paused or self._end.in_flight_bytes > CHANNEL_WINDOW_BYTES

    def give(self, messages: list[bytes]) -> None:
        # As the participant's machine makes items: `encode_message_item`, written out in its loop.
        pack = _ITEM_HEADER.pack
        self._end.put([pack(KIND_MESSAGE, len(message)) + message for message in messages])
        self._flush()

    def _flush(self) -> None:
        for frame in self._end.frames(Instant(time.monotonic_ns())):
            self.send_frame(
                self.codec.encode(
                    incarnation=1,
                    source_session=1,
                    target_session=2,
                    epoch=1,
                    first=frame.first_seq,
                    ack=0,
                    count=frame.count,
                    source="a",
                    target="b",
                    body=frame.body,
                )
            )

    def _acknowledged(self, frame: bytes) -> None:
        header, _ = self.codec.verify_and_open(frame)
        self._end.acknowledged(header.ack, Instant(time.monotonic_ns()))
        self._flush()
        self._wake.set()


class _ChannelReceiver(_Channel):
    def __init__(self, *, recording: bool) -> None:
        super().__init__()
        self._end = ReceivingEnd(CHANNEL)
        self._unacknowledged = 0
        self._snapshot = SnapshotMachine(ParticipantId("b"))
        self.on_frame = self._arrived
        if recording:
            incoming = (CHANNEL, SILENT)
            self._snapshot.step(TopologySet(incoming=incoming, outgoing=()), Instant(0))
            self._snapshot.step(EpochStarted(epoch=Epoch(1), incoming=incoming, outgoing=()), Instant(0))

    def _arrived(self, frame: bytes) -> None:
        header, body = self.codec.verify_and_open(frame)
        for first, items in self._end.accept(header.first, split_items(body, header.count)):
            assert not control_positions(items), "messages only"
            if self._snapshot.records(CHANNEL):
                self._snapshot.step(ItemsReceived(channel=CHANNEL, first=first, items=items), Instant(0))
            self._end.advance(items)
            self.hand_on([item[5:] for item in items])
        self._unacknowledged += len(body)
        # As the participant's machine does: at a quarter of the window, or when nothing else is to come.
        if self._unacknowledged >= CHANNEL_WINDOW_BYTES // 4 or self._left <= 0:
            self._unacknowledged = 0
            self.send_frame(
                self.codec.encode(
                    kind=KIND_ACK,
                    incarnation=1,
                    source_session=2,
                    target_session=1,
                    epoch=1,
                    first=0,
                    ack=self._end.ack(),
                    count=0,
                    source="b",
                    target="a",
                    body=b"",
                )
            )
