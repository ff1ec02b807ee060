"""The control connection of a participant: dials one coordinator after the other, follows where they point, beats.

The rules are those of `participant.runtime.control.ControlClient`: registered or refused, redirected, tried again with
growing pauses; what is said without a connection is lost. Bytes cross both ways in order, until the line is cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocol.limits import HEARTBEAT_NS, RECONNECT_NS
from protocol.messages import Fenced, Registered, RegisterRefused, decode_to_participant, encode_control
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from protocol.messages import ToCoordinator
    from simulations.coordinator_node import CoordinatorLife
    from simulations.participant_node import ParticipantLife

REGISTER_NS: Final = 3 * SECOND
PATIENCE_NS: Final = 2 * SECOND
"""A line on which nothing can move is given up after this long (the real one pings)."""
ID_TAKEN_LEASES: Final = 3
"""Half leases for which a taken id is tried again, after what a new leader adds."""


class ControlLine:
    """One connection between a participant's life and a coordinator's."""

    def __init__(self, number: int, client: ControlClient, coordinator: CoordinatorLife) -> None:
        self.number = number
        self.client = client
        self.coordinator = coordinator
        self.open = True
        self.registered = False
        self._last_up = 0
        self._last_down = 0
        self._held: list[tuple[bool, bytes]] = []

    def _blocked(self) -> bool:
        return self.client.life.cluster.control_blocked(self.client.life.name, self.coordinator.name)

    def to_coordinator(self, data: bytes) -> None:
        """From the participant."""
        life = self.client.life
        at = max(self._last_up + 1, life.now + self._travel())
        self._last_up = at
        life.world.at(at, life.random, self._up, data)

    def to_participant(self, data: bytes) -> None:
        """From the coordinator."""
        coordinator = self.coordinator
        at = max(self._last_down + 1, coordinator.now + self._travel())
        self._last_down = at
        coordinator.world.at(at, coordinator.random, self._down, data)

    def close_from_coordinator(self, reason: str) -> None:
        """The coordinator hangs up, after what it said before."""
        coordinator = self.coordinator
        at = max(self._last_down + 1, coordinator.now + self._travel())
        coordinator.world.at(at, coordinator.random, self.cut, reason)

    def cut(self, reason: str) -> None:
        """The connection is gone; both sides notice."""
        if not self.open:
            return
        self.open = False
        self._held.clear()
        self.coordinator.enter(self.coordinator.disconnected, self, reason)
        self.client.life.enter(self.client.line_lost, self, reason)

    def unblocked(self) -> None:
        """A partition is over: what was held back goes on, in order."""
        held, self._held = self._held, []
        for up, data in held:
            if up:
                self._up(data)
            else:
                self._down(data)

    def _travel(self) -> int:
        options = self.client.life.cluster.options
        return options.latency_ns + self.client.life.control_random.below(options.jitter_ns + 1)

    def _up(self, data: bytes) -> None:
        if not self.open:
            return
        if self._held or self._blocked():
            self._hold(up=True, data=data)
        else:
            self.coordinator.enter(self.coordinator.message_arrived, self, data)

    def _down(self, data: bytes) -> None:
        if not self.open:
            return
        if self._held or self._blocked():
            self._hold(up=False, data=data)
        else:
            self.client.life.enter(self.client.heard, self, data)

    def _hold(self, *, up: bool, data: bytes) -> None:
        if not self._held:
            life = self.client.life
            life.world.after(PATIENCE_NS, life.control_random, self._out_of_patience)
        self._held.append((up, data))

    def _out_of_patience(self) -> None:
        if self.open and self._held and self._blocked():
            self.cut("no answer to a ping")


class ControlClient:
    """A participant's way to the coordinators."""

    def __init__(self, life: ParticipantLife) -> None:
        self.life = life
        self.line: ControlLine | None = None
        self._turn = life.control_random.below(life.cluster.options.coordinators)
        self._pause = 50 * MS
        self._id_taken_since: int | None = None
        self._sent_at = 0
        self._followed = 0
        """Times in a row that it went where it was pointed."""

    def start(self) -> None:
        """Dial in a moment."""
        self.life.later(self.life.control_random.below(50 * MS), self._dial, "")

    def say(self, message: ToCoordinator) -> bool:
        """Lost where there is no registered connection."""
        line = self.line
        if line is None or not line.registered:
            return False
        self._sent_at = self.life.now
        line.to_coordinator(encode_control(message))
        return True

    def _dial(self, pointed: str) -> None:
        cluster = self.life.cluster
        names = cluster.log.names
        name = pointed or names[self._turn % len(names)]
        coordinator = cluster.log.lives.get(name)
        if coordinator is None or not coordinator.alive or cluster.control_blocked(self.life.name, name):
            self._again("")
            return
        line = self.line = cluster.new_line(self, coordinator)
        coordinator.enter(coordinator.connected, line)
        line.to_coordinator(encode_control(self.life.register_message()))
        self.life.later(REGISTER_NS, self._register_overdue, line)

    def _again(self, pointed: str) -> None:
        if pointed and self._followed < self.life.cluster.options.coordinators:
            self._followed += 1
            self.life.later(10 * MS, self._dial, pointed)
            return
        self._followed = 0
        self._turn += 1
        pause = 5 * MS
        if self._turn % self.life.cluster.options.coordinators == 0:
            pause = self._pause // 2 + self.life.control_random.below(self._pause)
            self._pause = min(2 * self._pause, SECOND)
        self.life.later(pause, self._dial, "")

    def _register_overdue(self, line: ControlLine) -> None:
        if self.line is line and not line.registered:
            line.cut("no answer to register")

    def line_lost(self, line: ControlLine, reason: str) -> None:
        """The connection of the moment, or an earlier one, is gone."""
        if self.line is not line:
            return
        self.line = None
        self.life.note("ControlLost", reason)
        self._again("")

    def heard(self, line: ControlLine, data: bytes) -> None:
        """The coordinator said something."""
        if self.line is not line:
            return
        message = decode_to_participant(data)
        if not line.registered:
            if isinstance(message, RegisterRefused):
                self._refused(line, message)
                return
            if not isinstance(message, Registered):
                line.cut("not an answer to register")
                return
            line.registered = True
            self._id_taken_since = None
            self._followed = 0
            self._pause = 50 * MS
            self.life.later(HEARTBEAT_NS, self._beat, line)
        self.life.control_received(message)
        if isinstance(message, Fenced):
            self.life.end(f"fenced: {message.reason}")

    def _refused(self, line: ControlLine, answer: RegisterRefused) -> None:
        self.line = None
        line.open = False
        line.coordinator.enter(line.coordinator.disconnected, line, "refused")
        if answer.code == "not-leader":
            pointed = answer.leader.removeprefix("http://")
            self._again("" if pointed == line.coordinator.name else pointed)
            return
        if answer.code == "id-taken":
            now = self.life.now
            if self._id_taken_since is None:
                self._id_taken_since = now
            patience = ID_TAKEN_LEASES * self.life.cluster.options.lease_ns // 2 + RECONNECT_NS
            if now - self._id_taken_since < patience:
                self._again("")
                return
        if answer.code == "full":
            self._again("")
            return
        self.life.end(f"{answer.code}: {answer.sentence}")

    def _beat(self, line: ControlLine) -> None:
        if self.line is not line or not self.life.alive:
            return
        quiet = self.life.now - self._sent_at
        if quiet < HEARTBEAT_NS:
            self.life.later(HEARTBEAT_NS - quiet, self._beat, line)
            return
        beat = self.life.machine.heartbeat()
        if beat is not None:
            self.say(beat)
        self.life.later(HEARTBEAT_NS, self._beat, line)
