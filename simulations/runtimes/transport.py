"""The transport of frames between participants: a `Transport` over `simulations.network`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol.ports import FrameSink
    from simulations.runtimes.cluster import RuntimeCluster
    from simulations.runtimes.participant import RuntimeParticipantLife


class SimulatedTransport:
    """One life's."""

    def __init__(self, cluster: RuntimeCluster, life: RuntimeParticipantLife) -> None:
        self._cluster = cluster
        self._life = life
        self._sink: FrameSink | None = None

    @property
    def address(self) -> str:
        """See `Transport`."""
        return self._cluster.address_of(self._life.name)

    async def start(self, sink: FrameSink) -> None:
        """See `Transport`."""
        self._sink = sink
        self._cluster.network.lives[self._life.name] = self._life
        self._life.entered()

    def set_peers(self, peers: dict[str, str]) -> None:
        """See `Transport`."""
        if self._life.alive:
            self._life.peers = dict(peers)
            self._cluster.network.set_peers(self._life, self._life.peers)

    def send(self, peer: str, frame: bytes) -> bool:
        """See `Transport`."""
        if not self._life.alive or peer not in self._life.peers:
            return False
        self._cluster.network.send(self._life, peer, frame)
        return True

    async def close(self) -> None:
        """See `Transport`."""
        self._sink = None
        self.set_peers({})

    # --- from the network, as callbacks of the loop -------------------------------------------------------------------

    def frame_received(self, frame: bytes) -> None:
        """A frame is here."""
        if self._sink is not None:
            self._sink.frame_received(frame)

    def peer_connected(self, peer: str) -> None:
        """A connection is there."""
        if self._sink is not None:
            self._sink.peer_connected(peer)

    def peer_disconnected(self, peer: str, reason: str) -> None:
        """A connection is gone."""
        if self._sink is not None:
            self._sink.peer_disconnected(peer, reason)
