"""A control connection in the second mode: the line of the first one, with a window, and ends that may part ways.

A line on which nothing moves is noticed by the participant's ping. The coordinator, which does not ping, keeps its end
until the partition is over or the participant comes back on another connection: that is when a hub has two of one session.
"""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from simulations.control import ControlLine
from simulations.runtimes.sockets import ClientSocket
from simulations.world import MS

if TYPE_CHECKING:
    from simulations.control import ControlClient
    from simulations.coordinator_node import CoordinatorLife
    from simulations.runtimes.cluster import RuntimeCluster
    from simulations.runtimes.participant import RuntimeParticipantLife

PING_SECONDS: Final = 1.0
"""As the product's client."""
PONG_SECONDS: Final = 0.5
_GRACE_NS: Final = 1 * MS


class RuntimeLine(ControlLine):
    """One connection. `None` among its data is a farewell."""

    def __init__(self, number: int, client: ControlClient, coordinator: CoordinatorLife, window: int) -> None:
        super().__init__(number, client, coordinator)
        self._window = window
        self._untaken = {True: 0, False: 0}
        """Bytes that were handed over and not taken, upwards and downwards."""
        self._reason = ""
        self.probes = client.life.cluster.probes
        self.dead = False
        """Nothing crosses it any more, in either direction, and nobody is told: a path that forgot the connection."""
        self.client_gone = False
        """The participant has given up; the coordinator does not know."""

    # --- from the sockets ---------------------------------------------------------------------------------------------

    def put(self, data: bytes, *, up: bool) -> None:
        """A message leaves."""
        if not self.open or (up and self.client_gone):
            return
        self._untaken[up] += len(data)
        if up:
            self.to_coordinator(data)
        else:
            self.to_participant(data)

    def is_full(self, *, up: bool) -> bool:
        """Whether the sender has to wait."""
        return self.open and self._untaken[up] > self._window

    def taken(self, size: int, *, up: bool) -> None:
        """The receiver has read so many bytes."""
        self._untaken[up] -= size
        if not up:
            self.coordinator.enter(self._room, up)
        else:
            self.client.life.enter(self._room, up)

    def _room(self, up: bool) -> None:  # noqa: FBT001 - of the queue
        found = self._client_socket() if up else self._server_socket()
        if found is not None:
            found.room()

    def hang_up(self, reason: str, *, up: bool) -> None:
        """One end says farewell, after what it said before."""
        if not self.open:
            return
        self._reason = reason
        data: Any = None
        if up:
            self.to_coordinator(data)
        else:
            self.to_participant(data)

    def drop(self, reason: str, *, up: bool) -> None:
        """One end gives up. The other one hears of it if anything can be heard."""
        if not up or not (self._blocked() or self.coordinator.asleep is not None):
            self.cut(reason)
        elif self.open and not self.client_gone:
            self.client_gone = True
            self._held = [(way, data) for way, data in self._held if way]
            self.probes.hit("control.half_gone")
            self.client.life.enter(self.client.line_lost, self, reason)

    def _blocked(self) -> bool:
        return self.dead or super()._blocked()

    # --- on the way ---------------------------------------------------------------------------------------------------

    def close_from_coordinator(self, reason: str) -> None:
        """As `hang_up`."""
        self.hang_up(reason, up=False)

    def unblocked(self) -> None:
        """A partition is over."""
        if self.dead:
            return
        super().unblocked()
        if self.client_gone:
            life = self.client.life
            life.world.after(_GRACE_NS, life.control_random, self.cut, "reset by peer")

    def _up(self, data: bytes | None) -> None:
        if data is None and self.open and not (self._held or self._blocked()):
            self.cut(self._reason)
            return
        super()._up(data)  # type: ignore[arg-type]  # a farewell is held back like what was said before

    def _down(self, data: bytes | None) -> None:
        if self.client_gone:
            return
        if data is None and self.open and not (self._held or self._blocked()):
            self.cut(self._reason)
            return
        super()._down(data)  # type: ignore[arg-type]  # as above

    def _out_of_patience(self) -> None:
        """Nothing: here a ping tells."""

    def _client_socket(self) -> Any:  # noqa: ANN401 - one of ours
        return self.client.sockets.get(self.number)  # type: ignore[attr-defined]  # a SimulatedDialer

    def _server_socket(self) -> Any:  # noqa: ANN401 - one of ours
        return self.coordinator.sockets.get(self.number)  # type: ignore[attr-defined]  # a RuntimeCoordinatorLife


class SimulatedDialer:
    """A participant's way to the coordinators: the `Dialer` of its control client, and the client of its lines."""

    def __init__(self, cluster: RuntimeCluster, life: RuntimeParticipantLife) -> None:
        self._cluster = cluster
        self.life = life
        self.line: RuntimeLine | None = None
        """The newest."""
        self.sockets: dict[int, ClientSocket] = {}

    async def __aenter__(self) -> None:
        """Nothing to get ready."""

    async def __aexit__(self, *error: object) -> None:
        """Hang up."""
        for socket in list(self.sockets.values()):
            await socket.close()

    async def dial(self, url: str) -> ClientSocket:
        """As `Dialer.dial`."""
        cluster, life = self._cluster, self.life
        name = urlsplit(url).hostname or ""
        options = cluster.options
        travel = 2 * options.latency_ns + life.control_random.below(2 * options.jitter_ns + 1)
        await asyncio.sleep(travel / 1e9)
        coordinator = cluster.log.lives.get(name)
        if coordinator is None or not coordinator.alive:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        if cluster.control_blocked(life.name, name) or coordinator.asleep is not None:
            await life.loop.create_future()
        line = cluster.new_line(self, coordinator)
        coordinator.enter(coordinator.connected, line)
        if not line.open:
            raise ConnectionResetError("503 of the coordinator")
        socket = self.sockets[line.number] = ClientSocket(line, life.loop)
        self.line = line
        life.loop.call_later(PING_SECONDS, self._ping, line)
        return socket

    # --- from the line ------------------------------------------------------------------------------------------------

    def heard(self, line: RuntimeLine, data: bytes) -> None:
        """The coordinator said something."""
        socket = self.sockets.get(line.number)
        if socket is not None:
            socket.arrived(data)

    def line_lost(self, line: RuntimeLine, reason: str) -> None:
        """A connection is gone."""
        socket = self.sockets.pop(line.number, None)
        if socket is not None:
            self.life.note("ControlLost", reason)
            socket.lost(reason)
        if self.line is line:
            self.line = None

    # --- pings --------------------------------------------------------------------------------------------------------

    def _silent(self, line: RuntimeLine) -> bool:
        return line._blocked() or line.coordinator.asleep is not None  # noqa: SLF001 - one module

    def _ping(self, line: RuntimeLine) -> None:
        if line.number in self.sockets:
            if self._silent(line):
                self.life.loop.call_later(PONG_SECONDS, self._no_pong, line)
            else:
                self.life.loop.call_later(PING_SECONDS, self._ping, line)

    def _no_pong(self, line: RuntimeLine) -> None:
        if line.number not in self.sockets:
            return
        if self._silent(line):
            line.drop("no answer to a ping", up=True)
        else:
            self.life.loop.call_later(PING_SECONDS, self._ping, line)
