"""The channel machine over a hostile network: every item exactly once, in order, and both ends agree on every cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.channel import OutFrame, ReceivingEnd, SendingEnd
from protocol.errors import RemoteProtocolError
from protocol.ids import Instant
from protocol.items import encode_message_item, split_items
from tests.snapshot_world import channel

C = channel("p", "q")
ACTIONS = ("put", "send", "deliver", "deliver", "repeat", "lose", "ack", "ack", "lose ack", "reconnect", "wait")
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1_000)), max_size=120)
SETTINGS = st.fixed_dictionaries(
    {"window_bytes": st.sampled_from([0, 40, 200, 1 << 20]), "frame_bytes": st.sampled_from([1, 30, 1 << 20])}
)


class Network:
    """Frames and acknowledgements in flight, in any order."""

    def __init__(self, reorder_bytes: int, **settings: int) -> None:
        self.sender = SendingEnd(C, resend_ns=100, resend_ns_max=1_000, **settings)
        self.receiver = ReceivingEnd(C, reorder_bytes=reorder_bytes)
        self.frames: list[OutFrame] = []
        self.acks: list[int] = []
        self.put: list[bytes] = []
        self.got: list[bytes] = []
        self.positions: dict[int, str] = {0: self.sender.digest()}
        self.now = Instant(0)

    def put_items(self, count: int) -> None:
        items = [encode_message_item(f"{len(self.put) + index}".encode()) for index in range(count)]
        self.put += items
        self.sender.put(items)
        self.positions[self.sender.sent] = self.sender.digest()

    def send(self) -> None:
        self.frames += self.sender.frames(self.now)

    def deliver(self, frame: OutFrame, cut_at: int = 0) -> None:
        """Hand on in two pieces, as a driver does around a marker."""
        for first, run in self.receiver.accept(frame.first_seq, split_items(frame.body, frame.count)):
            assert first == len(self.got) + 1
            middle = cut_at % (len(run) + 1)
            for piece in (run[:middle], run[middle:]):
                self.receiver.advance(piece)
                self.got += piece
                position = self.receiver.cut_position
                assert self.positions.get(position.number, position.digest) == position.digest
        if self.receiver.ack_due:
            self.acks.append(self.receiver.ack())

    def act(self, action: str, number: int) -> None:
        match action:
            case "put":
                self.put_items(1 + number % 5)
            case "send":
                self.send()
            case "deliver" if self.frames:
                self.deliver(self.frames.pop(number % len(self.frames)), number)
            case "repeat" if self.frames:
                self.deliver(self.frames[number % len(self.frames)], number)
            case "lose" if self.frames:
                del self.frames[number % len(self.frames)]
            case "ack" if self.acks:
                self.sender.acknowledged(self.acks.pop(number % len(self.acks)), self.now)
            case "lose ack" if self.acks:
                del self.acks[number % len(self.acks)]
            case "reconnect":
                self.frames = self.frames[: number % 3]  # some of the old connection's bytes come late
                self.sender.reconnected(self.now)
            case "wait":
                self.now = Instant(self.now + number)
                self.sender.timed_out(self.now)

    def check(self) -> None:
        assert self.got == self.put[: len(self.got)]
        assert self.sender.acknowledged_through <= self.receiver.received <= self.sender.sent == len(self.put)
        assert self.sender.in_flight_bytes <= len(b"".join(self.put))
        assert self.receiver.statistics()["ahead_bytes"] >= 0

    def heal(self) -> None:
        """From here on nothing is lost; only timers and acknowledgements drive it."""
        for _ in range(10_000):
            if self.sender.unacknowledged == 0:
                return
            self.send()
            for frame in self.frames:
                self.deliver(frame)
            self.frames.clear()
            for number in self.acks:
                self.sender.acknowledged(number, self.now)
            self.acks.clear()
            deadline = self.sender.next_timeout()
            if deadline is not None:
                self.now = Instant(max(self.now, deadline))
                self.sender.timed_out(self.now)
        raise AssertionError("the channel never gets through")


@settings(max_examples=200)
@given(STEPS, SETTINGS, st.sampled_from([0, 200, 1 << 20]))
def test_every_item_is_delivered_exactly_once_in_order(steps, sizes, reorder_bytes):
    network = Network(reorder_bytes, **sizes)
    for action, number in steps:
        network.act(action, number)
        network.check()
    network.heal()
    assert network.got == network.put
    assert network.sender.in_flight_bytes == 0
    assert network.sender.next_timeout() is None
    assert network.sender.cut_position == network.receiver.cut_position
    assert network.receiver.statistics()["ahead_bytes"] == 0


@settings(max_examples=100)
@given(STEPS, st.integers(-5, 200))
def test_any_acknowledgement_is_taken_or_refused_and_never_loses_an_item(steps, bogus):
    network = Network(1 << 20, window_bytes=200, frame_bytes=30)
    for action, number in steps:
        network.act(action, number)
    before = network.sender.statistics()
    if bogus > network.receiver.received:
        try:
            network.sender.acknowledged(bogus, network.now)
        except RemoteProtocolError:
            assert network.sender.statistics() == before
        else:
            assert bogus <= network.sender.sent, "a liar may only claim what had left"
            return
    else:
        network.sender.acknowledged(bogus, network.now)
    network.heal()
    assert network.got == network.put
