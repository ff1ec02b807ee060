"""Frames between participants: streams that break, or a broker that repeats, overtakes and loses.

Streams: one connection for each direction, dialed by the source. Frames arrive in order, or not at all from where it was
cut, which may be in the middle of one. A partition holds frames back, as TCP does, and the connection breaks when it lasts too long. Half-open: frames vanish
without a word until somebody notices.

Broker: no connections. While a fault says so, frames are repeated, overtake each other, or are lost.

Frames that were on a channel are remembered; a fault sends old ones again, or forges new ones from them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from simulations.prng import Prng, stream
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simulations.options import Options
    from simulations.participant_node import ParticipantLife
    from simulations.probes import Probes
    from simulations.world import World

REDIAL_NS: Final = 50 * MS
CONNECTION_PATIENCE_NS: Final = 6 * SECOND
"""A connection that can move nothing for this long breaks."""
REMEMBERED: Final = 32


class Pipe:
    """One direction between two participants."""

    __slots__ = (
        "blocked",
        "connected",
        "cut_next",
        "dialing",
        "duplicate",
        "first",
        "first_wanted",
        "generation",
        "half_open",
        "held",
        "last_at",
        "lose",
        "old",
        "random",
        "reorder",
        "slow",
        "source",
        "target",
        "threshold",
    )

    def __init__(self, source: str, target: str, random: Prng) -> None:
        self.source = source
        self.target = target
        self.random = random
        self.connected: ParticipantLife | None = None
        """The life whose connection this is."""
        self.dialing = False
        self.generation = 0
        """Of the connection: what left on an earlier one may still arrive, up to `threshold`."""
        self.threshold = 0
        self.last_at = 0
        self.blocked = 0
        """Partitions that lie on it."""
        self.held: list[tuple[int, bytes]] = []
        self.half_open = 0
        self.slow = 0
        """Added to the latency, ns."""
        self.duplicate = 0
        self.reorder = 0
        self.lose = 0
        """Chances in 1,000."""
        self.old: deque[bytes] = deque(maxlen=REMEMBERED)
        """The newest frames."""
        self.first: deque[bytes] = deque(maxlen=REMEMBERED)
        """The first frames of each connection: after a restart their numbers come up once more."""
        self.first_wanted = 0
        self.cut_next = False
        """The connection is cut in the middle of the next frame; only its beginning arrives."""


class Network:
    """All pipes."""

    def __init__(self, world: World, options: Options, probes: Probes) -> None:
        self._world = world
        self._options = options
        self._probes = probes
        self._pipes: dict[tuple[str, str], Pipe] = {}
        self.lives: dict[str, ParticipantLife] = {}
        """Who listens under an address now."""
        self.frames = 0
        self.zombies = 0
        """Chances in 1,000 that old frames of a pipe arrive when one of its ends enters a topology."""
        self.takeover_until = 0
        """Until then they surely do, also in a healed world: what a broker has kept does not know that all is well."""

    def pipe(self, source: str, target: str) -> Pipe:
        """The pipe, made when first asked for."""
        found = self._pipes.get((source, target))
        if found is None:
            random = stream(self._options.seed, f"network:{source}->{target}")
            found = self._pipes[source, target] = Pipe(source, target, random)
        return found

    def pipes(self) -> list[Pipe]:
        """All that were used."""
        return list(self._pipes.values())

    # --- what a transport does ----------------------------------------------------------------------------------------

    def set_peers(self, life: ParticipantLife, peers: Mapping[str, str]) -> None:
        """A life wants to send to these."""
        if self.zombies or self._world.now < self.takeover_until:
            self._late_frames(life.name)
        for peer in peers:
            pipe = self.pipe(life.name, peer)
            if pipe.connected is not life:
                self._dial(pipe, life, 0)
        for pipe in self.pipes():
            if pipe.connected is life and pipe.target not in peers:
                self._break(pipe, "no peer any more")

    def send(self, life: ParticipantLife, target: str, frame: bytes) -> None:
        """A frame leaves."""
        pipe = self.pipe(life.name, target)
        if pipe.connected is not life:
            self._probes.hit("network.not_connected")
            return
        self.frames += 1
        pipe.old.append(frame)
        if pipe.cut_next:
            pipe.cut_next = False
            self._probes.hit("network.cut_mid_frame")
            beginning = frame[: pipe.random.below(len(frame))]
            self._world.after(self._options.latency_ns, pipe.random, self._intrude, target, beginning)
            self._world.at(life.now, pipe.random, self._break_of, pipe, pipe.generation, "cut in the middle of a frame")
            return
        if pipe.first_wanted:
            pipe.first_wanted -= 1
            pipe.first.append(frame)
        if pipe.half_open:
            self._probes.hit("network.half_open_loss")
            return
        options = self._options
        random = pipe.random
        at = life.now + options.latency_ns + pipe.slow + random.next() % (options.jitter_ns + 1)
        if options.broker:
            if pipe.lose and random.chance(pipe.lose, 1000):
                self._probes.hit("network.lost")
                return
            if pipe.reorder and random.chance(pipe.reorder, 1000):
                at += random.below(40 * MS)
                self._probes.hit("network.reordered")
            elif not pipe.reorder:
                at = max(at, pipe.last_at + 1)
                pipe.last_at = at
            if pipe.duplicate and random.chance(pipe.duplicate, 1000):
                self._probes.hit("network.duplicated")
                self._world.at(at + random.below(200 * MS), random, self._arrive, pipe, pipe.generation, frame)
        else:
            at = max(at, pipe.last_at + 1)
            pipe.last_at = at
        self._world.at(at, random, self._arrive, pipe, pipe.generation, frame)

    def _arrive(self, pipe: Pipe, generation: int, frame: bytes) -> None:
        if generation != pipe.generation and self._world.now > pipe.threshold:
            self._probes.hit("network.cut_in_flight")
            return
        if pipe.blocked:
            if self._options.broker:
                self._probes.hit("network.blocked_loss")
            else:
                pipe.held.append((generation, frame))
            return
        target = self.lives.get(pipe.target)
        if target is None or not target.alive:
            return
        target.enter(target.frame_received, frame)

    def _late_frames(self, name: str) -> None:
        """Frames of earlier lives turn up just when the new one begins: from a broker's queue, or a slow path."""
        rate = 1000 if self._world.now < self.takeover_until else self.zombies
        for pipe in self.pipes():
            if name in (pipe.source, pipe.target) and pipe.random.chance(rate, 1000):
                self._probes.hit("network.zombie_frames")
                for frame in pipe.first:
                    self._world.after(pipe.random.below(60 * MS), pipe.random, self._intrude, pipe.target, frame)

    # --- connections --------------------------------------------------------------------------------------------------

    def _dial(self, pipe: Pipe, life: ParticipantLife, attempt: int) -> None:
        if pipe.dialing:
            return
        pipe.dialing = True
        delay = self._options.latency_ns * 2 + pipe.random.below(REDIAL_NS << min(attempt, 4))
        self._world.after(delay, pipe.random, self._dialed, pipe, life, attempt)

    def _dialed(self, pipe: Pipe, life: ParticipantLife, attempt: int) -> None:
        pipe.dialing = False
        current = self.lives.get(pipe.source)
        if current is None or not current.alive:
            return
        if current is not life:
            life, attempt = current, 0
        if pipe.connected is life or pipe.target not in life.peers:
            return
        target = self.lives.get(pipe.target)
        if not self._options.broker and (target is None or not target.alive or pipe.blocked):
            self._dial(pipe, life, attempt + 1)
            return
        pipe.connected = life
        pipe.half_open = 0
        pipe.first_wanted = 4
        pipe.generation += 1
        pipe.last_at = max(pipe.last_at, self._world.now)
        life.enter(life.peer_connected, pipe.target)

    def _break(self, pipe: Pipe, reason: str, *, survivors_ns: int = 0) -> None:
        """End a connection: what is on its way arrives if it does so within `survivors_ns`."""
        life = pipe.connected
        if life is None:
            return
        pipe.connected = None
        pipe.threshold = self._world.now + survivors_ns
        pipe.generation += 1
        pipe.held.clear()
        pipe.half_open = 0
        if life.alive:
            life.enter(life.peer_disconnected, pipe.target, reason)
            self._dial(pipe, life, 0)

    def died(self, life: ParticipantLife) -> None:
        """A process is gone: its connections break, others' to it do after a round trip."""
        for pipe in self.pipes():
            if pipe.connected is life:
                pipe.connected = None
                pipe.threshold = self._world.now + pipe.random.below(self._options.latency_ns * 2)
                pipe.generation += 1
                pipe.held.clear()
            elif pipe.target == life.name and pipe.connected is not None and not self._options.broker:
                self._world.after(
                    self._options.latency_ns, pipe.random, self._break_of, pipe, pipe.generation, "reset by peer"
                )

    def _break_of(self, pipe: Pipe, generation: int, reason: str) -> None:
        if pipe.generation == generation:
            self._break(pipe, reason)

    # --- faults -------------------------------------------------------------------------------------------------------

    def cut(self, one: str, other: str) -> bool:
        """Break both directions, now or in the middle of the next frame; a random part of what is on its way still arrives."""
        found = False
        for pipe in (self.pipe(one, other), self.pipe(other, one)):
            if pipe.connected is not None:
                found = True
                survivors = pipe.random.below(2 * (self._options.latency_ns + self._options.jitter_ns + pipe.slow))
                if not self._options.broker and pipe.random.chance(1, 2):
                    pipe.cut_next = True
                    continue
                self._break(pipe, "cut", survivors_ns=survivors)
        return found

    def block(self, source: str, target: str) -> None:
        """A partition begins on one direction."""
        pipe = self.pipe(source, target)
        pipe.blocked += 1
        if not self._options.broker:
            self._world.after(CONNECTION_PATIENCE_NS, pipe.random, self._out_of_patience, pipe, pipe.generation)

    def unblock(self, source: str, target: str) -> None:
        """It ends: what was held back arrives."""
        pipe = self.pipe(source, target)
        pipe.blocked -= 1
        if not pipe.blocked and pipe.held:
            held, pipe.held = pipe.held, []
            self._probes.hit("network.held")
            for generation, frame in held:
                pipe.last_at = max(self._world.now + self._options.latency_ns, pipe.last_at) + 1
                self._world.at(pipe.last_at, pipe.random, self._arrive, pipe, generation, frame)

    def _out_of_patience(self, pipe: Pipe, generation: int) -> None:
        if pipe.blocked and pipe.generation == generation:
            self._probes.hit("network.patience_over")
            self._break(pipe, "timed out")

    def half_open(self, source: str, target: str, for_ns: int) -> bool:
        """Frames vanish; after a while the connection is found dead."""
        pipe = self.pipe(source, target)
        if pipe.connected is None or self._options.broker:
            return False
        pipe.half_open = 1
        self._world.after(for_ns, pipe.random, self._break_of, pipe, pipe.generation, "no answer")
        return True

    def replay(self, source: str, target: str, count: int) -> bool:
        """Old frames of a pipe arrive again, of old sessions too."""
        pipe = self.pipe(source, target)
        old = [*pipe.first, *list(pipe.old)[-8:]]
        for _ in range(min(count, len(old))):
            frame = old[pipe.random.below(len(old))]
            self._world.after(pipe.random.below(20 * MS), pipe.random, self._intrude, target, frame)
        return bool(old)

    def forge(self, source: str, target: str, count: int) -> bool:
        """Frames that nobody with the key wrote arrive: a genuine one with a changed bit, cut short, or with more."""
        pipe = self.pipe(source, target)
        random = pipe.random
        old = list(pipe.old)
        for _ in range(count if old else 0):
            frame = bytearray(old[random.below(len(old))])
            how = random.below(4)
            if how == 0:
                del frame[random.below(len(frame)) :]
            elif how == 1:
                frame += bytes(1 + random.below(64))
            else:
                position = random.below(len(frame))
                frame[position] ^= 1 << random.below(8)
            self._world.after(random.below(20 * MS), random, self._intrude, target, bytes(frame))
        return bool(old)

    def _intrude(self, target: str, frame: bytes) -> None:
        life = self.lives.get(target)
        if life is not None and life.alive:
            life.enter(life.frame_received, frame)

    def heal(self) -> None:
        """No faults any more."""
        self.zombies = 0
        for pipe in self.pipes():
            pipe.cut_next = False
            pipe.slow = pipe.duplicate = pipe.reorder = pipe.lose = 0
            if pipe.half_open:
                self._break(pipe, "no answer")
            while pipe.blocked:
                self.unblock(pipe.source, pipe.target)
