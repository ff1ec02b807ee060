"""The replicated log, as far as a coordinator can tell: entries that are committed, and a leader who changes.

What may happen to a proposal: it is committed and its proposer hears of it, or does not; it is lost, heard or unheard; it is
committed seconds later, under the next leader (as one that was on its way); it is committed twice. What is committed is
applied by every replica in order, each when it gets there.

A leader is told so only when its replica has applied all that was committed before. A deposed one learns of it late, and who
does not lead may name somebody who does not either. A replica that was away may be sent a snapshot in place of the entries.

Every replica writes what it gets to its journal, a vote too, and rewrites it now and then; the points of these steps are
those of the real one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from coordinator.ledger import parse_result
from simulations.prng import stream
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from coordinator.ledger import Result
    from simulations.coordinator_node import CoordinatorLife
    from simulations.options import Options
    from simulations.probes import Probes
    from simulations.world import World

ELECTION_NS: Final = 400 * MS
SUBMIT_NS: Final = 5 * SECOND
"""After this long without an answer the outcome counts as unknown."""


class ReplicatedLog:
    """The log and the group's idea of its leader."""

    def __init__(self, world: World, options: Options, probes: Probes) -> None:
        self._world = world
        self._options = options
        self._probes = probes
        self._random = stream(options.seed, "log")
        self.names = [f"c{number + 1}" for number in range(options.coordinators)]
        self.lives: dict[str, CoordinatorLife] = {}
        self.entries: list[str] = []
        self.commands: list[dict[str, Any]] = []
        """The same, decoded; for those who only look."""
        self._results: dict[str, Result] = {}
        self.term = 0
        self.leader: CoordinatorLife | None = None
        self.isolated: dict[str, int] = {}
        """Coordinators that a partition keeps from the others -> how many partitions do."""
        self.refuse = self.lose = self.silent = self.late = self.twice = 0
        """Chances in 1,000."""
        self.lag = 0
        """Added to the time until a follower applies, ns at most."""
        self.stale = 0
        """Chances in 1,000 that who does not lead names a coordinator that may not lead either."""
        self.wants_snapshot: set[str] = set()
        """Replicas whose missing entries the others have compacted; asked, never iterated."""
        self._election_due = False

    # --- elections ----------------------------------------------------------------------------------------------------

    def healthy(self, life: CoordinatorLife) -> bool:
        """Whether this one could lead or vote now."""
        return life.alive and life.asleep is None and not self.isolated.get(life.name)

    def _majority(self) -> list[CoordinatorLife]:
        up = [self.lives[name] for name in self.names if name in self.lives and self.healthy(self.lives[name])]
        return up if 2 * len(up) > len(self.names) else []

    def look(self) -> None:
        """Something changed about who is there: elect if need be, after a while."""
        leader = self.leader
        if (leader is None or not self.healthy(leader)) and not self._election_due:
            self._election_due = True
            self._world.after(ELECTION_NS + self._random.below(ELECTION_NS), self._random, self._elect, "")

    def depose(self) -> bool:
        """Have somebody else elected while the leader is well: it does not know at once."""
        others = [life for life in self._majority() if life is not self.leader]
        if self.leader is None or not others:
            return False
        self._elect(others[self._random.below(len(others))].name)
        return True

    def _elect(self, wanted: str) -> None:
        self._election_due = False
        if not wanted and self.leader is not None and self.healthy(self.leader):
            return
        for life in self._majority():
            life.point("journal.before_vote_sync")
        voters = self._majority()
        if not voters:
            return  # `look` is called again when somebody comes back
        chosen = next((life for life in voters if life.name == wanted), None) or voters[self._random.below(len(voters))]
        old = self.leader
        self.term += 1
        self.leader = chosen
        self._probes.hit("log.elected")
        if old is not None and old is not chosen and old.alive:
            notice = self._random.below(2 * SECOND) if self._random.chance(1, 2) else 5 * MS
            self._world.after(notice, self._random, old.enter, old.lost_leadership, chosen.name, self.term)
        # In this very step: nothing is committed between catching up and leading.
        chosen.enter(chosen.became_leader, self.term, len(self.entries))
        for life in voters:
            if life is not chosen:
                self._world.after(10 * MS, self._random, life.enter, life.leader_known, chosen.name)

    # --- proposals ----------------------------------------------------------------------------------------------------

    def submit(self, life: CoordinatorLife, text: str, identity: tuple[str, int]) -> None:
        """A coordinator proposes a command with this id; the answer comes back to it as an event, or not at all."""
        world, random = self._world, self._random
        if self.isolated.get(life.name):
            self._give_up_later(life, identity)
            if random.chance(1, 2):
                self._probes.hit("log.late")
                world.after(random.below(8 * SECOND), random, self._append, text)
            return
        if self.leader is None or not self.healthy(self.leader) or not self._majority():
            if random.chance(1, 2):
                world.after(5 * MS, random, life.enter, life.command_refused, identity)
            else:
                self._give_up_later(life, identity)
            return
        draw = random.below(1000)
        for name in ("refuse", "lose", "silent", "late", "twice"):
            chances: int = getattr(self, name)
            if draw < chances:
                self._fated(name, life, text, identity)
                return
            draw -= chances
        self._give_up_later(life, identity)
        world.after(self._travel(), random, self._append, text)

    def result_of(self, answer: str) -> Result:
        """What a replica's ledger answered, decoded; replicas that answer the same are given the same, to look at."""
        found = self._results.get(answer)
        if found is None:
            found = self._results[answer] = parse_result(answer)
        return found

    def _give_up_later(self, life: CoordinatorLife, identity: tuple[str, int]) -> None:
        """As the real submit: whatever became of the proposal, whoever made it is not left without a word."""
        self._world.after(SUBMIT_NS, self._random, life.enter, life.command_overdue, identity)

    def _travel(self) -> int:
        return self._options.latency_ns + self._random.below(2 * MS)

    def _fated(self, fate: str, life: CoordinatorLife, text: str, identity: tuple[str, int]) -> None:
        world, random = self._world, self._random
        self._probes.hit(f"log.{fate}")
        if fate == "refuse":
            world.after(2 * MS, random, life.enter, life.command_refused, identity)
            return
        if fate == "lose":
            self._give_up_later(life, identity)
            return
        world.after(random.below(6 * SECOND) if fate == "late" else self._travel(), random, self._append, text)
        if fate == "twice":
            self._give_up_later(life, identity)
            world.after(self._travel() + random.below(SECOND), random, self._append, text)
        elif fate in {"silent", "late"}:
            world.after(random.below(SECOND), random, life.enter, life.command_ambiguous, identity)

    def _append(self, text: str) -> None:
        if not self._majority():
            self._probes.hit("log.no_quorum")
            return  # it was on its way, and there is nobody to commit it
        self.entries.append(text)
        self.commands.append(msgspec.json.decode(text))
        index = len(self.entries)
        for name in self.names:
            life = self.lives.get(name)
            if life is None or not life.alive or self.isolated.get(name):
                continue
            lag = 0 if life is self.leader else self._random.below(3 * MS)
            if self.lag and life is not self.leader:
                lag += self._random.below(self.lag)
            self._world.after(lag, self._random, life.enter, life.entries_arrived, index)

    def hint(self, life: CoordinatorLife) -> str:
        """Whom this one takes for the leader; "" for nobody."""
        if self.isolated.get(life.name):
            return ""
        if self.stale and self._random.chance(self.stale, 1000):
            self._probes.hit("log.stale_hint")
            return self.names[self._random.below(len(self.names))]
        return self.leader.name if self.leader is not None and self.leader is not life else ""

    # --- partitions ---------------------------------------------------------------------------------------------------

    def isolate(self, name: str) -> None:
        """This one hears nothing of the others, and they nothing of it."""
        self.isolated[name] = self.isolated.get(name, 0) + 1
        self.look()

    def rejoin(self, name: str) -> None:
        """A partition is over: it catches up, and learns who leads."""
        self.isolated[name] -= 1
        life = self.lives.get(name)
        if self.isolated[name] or life is None or not life.alive:
            self.look()
            return
        if name in self.wants_snapshot and self.leader is not None and self.leader is not life:
            self.wants_snapshot.discard(name)
            self._world.after(self._travel(), self._random, life.enter, life.install, self.leader)
        self._world.after(self._travel(), self._random, life.enter, life.apply_through, len(self.entries))
        if self.leader is not None and self.leader is not life:
            self._world.after(20 * MS, self._random, life.enter, life.lost_leadership, self.leader.name, self.term)
        self.look()

    def started(self, life: CoordinatorLife) -> None:
        """A coordinator is (again) there."""
        self.lives[life.name] = life
        self._world.after(self._travel(), self._random, life.enter, life.apply_through, len(self.entries))
        if self.leader is not None and self.leader.alive and self.leader is not life:
            self._world.after(20 * MS, self._random, life.enter, life.leader_known, self.leader.name)
        self.look()

    def heal(self) -> None:
        """No faults any more."""
        self.refuse = self.lose = self.silent = self.late = self.twice = self.lag = self.stale = 0
        self.wants_snapshot.clear()
        for name, count in list(self.isolated.items()):
            for _ in range(count):
                self.rejoin(name)
        self.look()
