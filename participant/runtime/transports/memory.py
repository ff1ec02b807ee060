"""Frames between participants of one process: queues on one event loop, with faults to order.

A `MemoryHub` is the network: participants that share one reach each other. `hub_of(cluster)` gives the process's own one,
used when ``transport="memory"`` is all that a user says. Tests give their own hub, and with `faults` say what happens to
each frame: lost, repeated, held back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakValueDictionary

from protocol.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from protocol.ports import FrameSink

Faults: TypeAlias = "Callable[[str, str, bytes], Iterable[tuple[float, bytes]]]"
"""(source, target, frame) -> (delay in seconds, frame) for each copy that arrives; none: lost; two: repeated."""


class MemoryHub:
    """A network in memory.

    Attributes:
        faults: What happens to each frame; None: it arrives once, in order.
    """

    def __init__(self, *, faults: Faults | None = None) -> None:
        self.faults = faults
        self._ends: dict[str, MemoryTransport] = {}
        self._cut: set[tuple[str, str]] = set()

    @property
    def carrying(self) -> bool:
        """Whether frames are on their way; those that a fault holds back are not counted."""
        return any(end.holds_frames for end in self._ends.values())

    def disconnect(self, one: str, other: str, reason: str = "cut by the test") -> None:
        """Break the connection of two participants until `connect`."""
        self._cut.add((one, other))
        self._cut.add((other, one))
        for here, there in ((one, other), (other, one)):
            end = self._ends.get(here)
            if end is not None:
                end.lost(there, reason)

    def connect(self, one: str, other: str) -> None:
        """Mend what `disconnect` broke."""
        self._cut.discard((one, other))
        self._cut.discard((other, one))
        self._introduce(one, other)
        self._introduce(other, one)

    def attach(self, end: MemoryTransport) -> None:
        """A participant comes."""
        if end.participant in self._ends:
            raise ConfigError("id", f"a participant {end.participant} is already on this memory hub")
        self._ends[end.participant] = end
        for other in list(self._ends):
            self._introduce(other, end.participant)

    def detach(self, end: MemoryTransport) -> None:
        """A participant goes."""
        if self._ends.get(end.participant) is end:
            del self._ends[end.participant]
            for other in self._ends.values():
                other.lost(end.participant, "closed")

    def reachable(self, source: str, target: str) -> bool:
        """Whether a frame would arrive."""
        return target in self._ends and (source, target) not in self._cut

    def carry(self, source: str, target: str, frame: bytes) -> None:
        """Move one frame."""
        if self.faults is None:
            self._ends[target].arrive(frame)
            return
        loop = asyncio.get_running_loop()
        for delay, copy in self.faults(source, target, frame):
            if delay <= 0:
                self._ends[target].arrive(copy)
            else:
                loop.call_later(delay, self._late, target, copy)

    def _late(self, target: str, frame: bytes) -> None:
        end = self._ends.get(target)
        if end is not None:
            end.arrive(frame)

    def _introduce(self, here: str, there: str) -> None:
        end = self._ends.get(here)
        if end is not None and here != there and self.reachable(here, there):
            end.found(there)


class MemoryTransport:
    """One participant's end of a hub; a `protocol.ports.Transport`."""

    def __init__(self, participant: str, hub: MemoryHub) -> None:
        self.participant = participant
        self._hub = hub
        self._sink: FrameSink | None = None
        self._peers: dict[str, str] = {}
        self._up: dict[str, None] = {}
        self._inbox: list[bytes] = []
        self._counts = {"frames_sent": 0, "frames_received": 0, "frames_dropped": 0}

    @property
    def address(self) -> str:
        """Nothing to dial: the id is enough."""
        return "memory:"

    async def start(self, sink: FrameSink) -> None:
        """Join the hub.

        Raises:
            ConfigError: The hub has a participant of this id.
        """
        self._sink = sink
        self._hub.attach(self)

    def set_peers(self, peers: dict[str, str]) -> None:
        """Who may be sent to."""
        self._peers = dict(peers)
        for peer in [peer for peer in self._up if peer not in peers]:
            self.lost(peer, "not a peer any more")
        for peer in peers:
            if self._hub.reachable(self.participant, peer):
                self.found(peer)

    def send(self, peer: str, frame: bytes) -> bool:
        """Hand over a frame; it arrives in a later turn of the loop."""
        if peer not in self._up or not self._hub.reachable(self.participant, peer):
            self._counts["frames_dropped"] += 1
            return False
        self._counts["frames_sent"] += 1
        self._hub.carry(self.participant, peer, frame)
        return True

    async def close(self) -> None:
        """Leave the hub."""
        self._hub.detach(self)
        self._sink = None
        self._inbox.clear()

    def statistics(self) -> dict[str, int]:
        """Frames since the start."""
        return dict(self._counts)

    @property
    def holds_frames(self) -> bool:
        """Whether frames have arrived that the sink has not seen yet."""
        return bool(self._inbox)

    def arrive(self, frame: bytes) -> None:
        """The hub brings a frame: one call of the loop takes all that came since the last."""
        if not self._inbox:
            asyncio.get_running_loop().call_soon(self._take)
        self._inbox.append(frame)

    def found(self, peer: str) -> None:
        """The hub reaches a peer now."""
        if peer in self._peers and peer not in self._up and self._sink is not None:
            self._up[peer] = None
            self._sink.peer_connected(peer)

    def lost(self, peer: str, reason: str) -> None:
        """The hub does not reach a peer any more."""
        if peer in self._up:
            del self._up[peer]
            if self._sink is not None:
                self._sink.peer_disconnected(peer, reason)

    def _take(self) -> None:
        frames, self._inbox = self._inbox, []
        for frame in frames:
            # Asked each time: a frame may end the participant.
            if self._sink is None:
                return
            self._counts["frames_received"] += 1
            self._sink.frame_received(frame)


_hubs: WeakValueDictionary[str, MemoryHub] = WeakValueDictionary()


def hub_of(cluster: str) -> MemoryHub:
    """The process's hub of a cluster; gone with its last participant."""
    hub = _hubs.get(cluster)
    if hub is None:
        hub = _hubs[cluster] = MemoryHub()
    return hub
