"""Whoever has a participant's token and breaks the rules of the control connection: the hub ends it, and harms nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.messages import Heartbeat, Register, encode_control
from simulations.prng import stream
from simulations.world import Process

if TYPE_CHECKING:
    from simulations.control import ControlLine
    from simulations.runtimes.cluster import RuntimeCluster

_NO_SESSION = 1_000_000


class Stranger(Process):
    """One connection to the leader; both the client of its line and the process behind it."""

    def __init__(self, cluster: RuntimeCluster, name: str, number: int) -> None:
        super().__init__(cluster.world, stream(cluster.options.seed, f"stranger:{name}:{number}"), name)
        self.cluster = cluster
        self.control_random = self.random
        self.life = self
        self.sockets: dict[int, object] = {}

    def begin(self) -> bool:
        """Connect, say something or nothing, and never read; whether there was somebody to connect to."""
        leader = self.cluster.log.leader
        if leader is None or not leader.alive or leader.asleep is not None:
            return False
        line = self.cluster.new_line(self, leader)
        leader.enter(leader.connected, line)
        for data in self._said():
            line.put(data, up=True)
        return True

    def _said(self) -> list[bytes]:
        random = self.random
        others = [name for name in self.cluster.participants if name != self.name]
        beat = encode_control(Heartbeat(session=1 + random.below(3)))
        match random.below(6):
            case 0:
                return []
            case 1:
                return [bytes(random.below(256) for _ in range(random.below(64)))]
            case 2:
                return [beat]
            case 3:
                return [self._register(self.name), beat]
            case 4:
                return [self._register(self.name), self._register(self.name)]
            case _:
                return [self._register(random.pick(others))]

    def _register(self, name: str) -> bytes:
        """With a session that never was: it is refused, whoever asks."""
        message = Register(
            cluster=self.cluster.name, participant=name, boot_id="0" * 32, session=_NO_SESSION, incarnation=1
        )
        return encode_control(message)

    def heard(self, line: ControlLine, data: bytes) -> None:
        """It does not listen."""

    def line_lost(self, line: ControlLine, reason: str) -> None:
        """It does not come back."""
