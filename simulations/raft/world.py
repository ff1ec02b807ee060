"""A deterministic world of coordinators: one clock, one network, one disk each, and a schedule drawn from a seed.

The network behaves like TCP: each direction of a connection is first in, first out, without loss; a cut or a crash loses
what was under way. Everything else, who ticks, what is delivered, when time passes, is drawn.

What must hold at every moment (`check`): of any two coordinators' applied sequences one begins with the other; no
number is applied twice; no term has two leaders. What must hold at the end: every acknowledged number is in every
sequence, and all coordinators have caught up.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pysyncobj.syncobj

from coordinator.runtime.raft.journal import JournalPoisoned
from simulations.raft.disk import ProcessDied, SimulatedFiles
from simulations.raft.members import GuardedMember, SimulatedMember, StockMember
from simulations.raft.prng import Prng

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP_SECONDS = (0.0005, 0.002, 0.01)
HEALED_STEPS_MAX = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One kind of schedule. Probabilities are per step, in ten thousandths."""

    size: int = 3
    guarded: bool = True
    steps_min: int = 300
    steps_max: int = 1500
    crash_leader_at_end: bool = True
    """Kill the leader for good when the faulty phase ends, as the shortest way to what the stock library loses."""
    link_faults: int = 0
    crashes: int = 0
    """Crash of a coordinator (a quorum stays up); half of them lose power, and half die inside a file operation."""
    restarts: int = 0
    sync_errors: int = 0
    wipes: bool = False
    """Half of the restarts find an empty disk and rejoin, if nobody else is rejoining."""
    compact_entries: int = 10**9


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a schedule led to; `violations` is empty if all is well."""

    seed: int
    submitted: int = 0
    acknowledged: int = 0
    steps: int = 0
    term: int = 0
    crashes: int = 0
    wipes: int = 0
    guards: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    sequences: dict[str, list[int]] = field(default_factory=dict)


class World:
    """See the module. Use as ``with simulated_library(world): ...`` or call `run_schedule`."""

    def __init__(self, seed: int, options: Options) -> None:
        self.options = options
        self.prng = Prng(seed)
        self.now = 1000.0
        self.names = [f"c{number}" for number in range(1, options.size + 1)]
        self.outcome = Outcome(seed=seed)
        self.members: dict[str, SimulatedMember] = {}
        self._links: dict[tuple[str, str], bool] = {}
        self._queues: dict[tuple[str, str], deque[Any]] = {
            (a, b): deque() for a in self.names for b in self.names if a != b
        }
        self._disks = {name: SimulatedFiles(Prng(seed * 1000 + n)) for n, name in enumerate(self.names)}
        self._folder: Path | None = None
        self._acknowledged: dict[int, None] = {}
        self._leaders: dict[int, str] = {}
        self._rejoining = dict.fromkeys(self.names, False)
        self._needs_folder = not options.guarded and options.restarts > 0

    # Life.

    def open(self) -> None:
        """Start everybody and connect them."""
        if self._needs_folder:
            self._folder = Path(tempfile.mkdtemp(prefix="raft-simulation-"))
        for name in self.names:
            self.members[name] = self._make(name)
        for a, b in self._pairs():
            self.link(a, b, up=True)

    def close(self) -> None:
        """End everybody."""
        for member in self.members.values():
            member.end()
        self.members.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder)

    def crash(self, name: str, *, power: bool) -> None:
        """`name` is gone, with what it had under way."""
        self.outcome.crashes += 1
        member = self.members.pop(name)
        self._collect(member)
        for other in self.names:
            if other != name:
                self.link(name, other, up=False)
        member.end()
        disk = self._disks[name]
        disk.die_at = None
        disk.fail_next_sync = False
        if power:
            disk.lose_power()

    def restart(self, name: str) -> None:
        """`name` comes back with what its disk holds. Refusing to start after a mere crash is a violation."""
        if self.options.wipes and not any(map(self._is_rejoining, self.names)) and self.prng.chance(1, 2):
            self._disks[name].wipe()
            self._rejoining[name] = True
            self.outcome.wipes += 1
        while True:
            try:
                self.members[name] = self._make(name)
                break
            except ProcessDied:
                self._disks[name].die_at = None
        for other in self.names:
            if other in self.members and other != name:
                self.link(name, other, up=True)

    def link(self, a: str, b: str, *, up: bool) -> None:
        """Connect or cut two coordinators."""
        key = (min(a, b), max(a, b))
        if up == self._links.get(key, False):
            return
        if up and not (a in self.members and b in self.members):
            return
        self._links[key] = up
        self._queues[a, b].clear()
        self._queues[b, a].clear()
        for here, there in ((a, b), (b, a)):
            if here in self.members:
                if up:
                    self.members[here].connected(there, rejoining=self._is_rejoining(there))
                else:
                    self.members[here].disconnected(there)

    def heal(self, *, without: str | None) -> None:
        """No more faults: everybody but `without` is up and connected."""
        for name in self.names:
            self._disks[name].die_at = None
            self._disks[name].fail_next_sync = False
            if name not in self.members and name != without:
                self.restart(name)
        for a, b in self._pairs():
            self.link(a, b, up=True)

    # Steps.

    def step(self, *, submit: bool, faults: bool) -> None:
        """Something happens somewhere."""
        self.now += self.prng.pick(STEP_SECONDS)
        self.outcome.steps += 1
        if faults and self._fault():
            return
        draw = self.prng.below(100)
        if submit and draw < 22:
            leaders = [name for name, member in self.members.items() if member.raft._isLeader()]  # noqa: SLF001
            if leaders:
                self.outcome.submitted += 1
                self.members[self.prng.pick(leaders)].submit(self.outcome.submitted)
        elif draw < 52:
            self._run(self.prng.pick(sorted(self.members)), None)
        else:
            waiting = [key for key, queue in self._queues.items() if queue]
            if waiting:
                source, target = self.prng.pick(waiting)
                self._run(target, (source, self._queues[source, target].popleft()))

    def check(self) -> None:
        """Note violations of what must hold at every moment."""
        if self.outcome.violations:
            return
        longest = max((member.applied for member in self.members.values()), key=len)
        if len(set(longest)) != len(longest):
            self._violated("a command was applied twice")
        for name, member in self.members.items():
            if member.applied != longest[: len(member.applied)]:
                self._violated(f"{name} applied another sequence")
        for name, member in self.members.items():
            if member.raft._isLeader():  # noqa: SLF001 - the library's own name
                term = member.raft.raftCurrentTerm
                if self._leaders.setdefault(term, name) != name:
                    self._violated(f"term {term} has two leaders")

    def settled(self) -> bool:
        """Whether everybody has applied everything."""
        indexes = {member.raft.raftLastApplied for member in self.members.values()}
        return len(indexes) == 1 and any(
            member.raft._isLeader()  # noqa: SLF001 - the library's own name
            and member.raft.raftLastApplied == member.raft.raftCommitIndex == last(member)
            for member in self.members.values()
        )

    def finish(self) -> Outcome:
        """Judge the end."""
        outcome = self.outcome
        for member in self.members.values():
            self._collect(member)
        self.check()
        outcome.acknowledged = len(self._acknowledged)
        outcome.term = max(int(member.raft.raftCurrentTerm) for member in self.members.values())
        for name, member in self.members.items():
            outcome.sequences[name] = list(member.applied)
            there = set(member.applied)
            lost = [number for number in self._acknowledged if number not in there]
            if lost:
                self._violated(f"{name} lost {len(lost)} acknowledged commands, {lost[0]} first")
        return outcome

    # Inside.

    def _make(self, name: str) -> SimulatedMember:
        if not self.options.guarded:
            return StockMember(name, self.names, self._post, self._folder)
        return GuardedMember(
            name,
            self.names,
            self._post,
            self._disks[name],
            lambda: self.now,
            self.options.compact_entries,
            rejoin=self._rejoining[name],
        )

    def _post(self, source: str, target: str, message: Any) -> None:  # noqa: ANN401 - each kind has its own form
        if self._links.get((min(source, target), max(source, target)), False):
            self._queues[source, target].append(message)

    def _run(self, name: str, arrived: tuple[str, Any] | None) -> None:
        member = self.members[name]
        try:
            if arrived is None:
                member.tick()
            else:
                member.receive(*arrived)
        except ProcessDied:
            self.crash(name, power=self.prng.chance(1, 2))
            return
        except JournalPoisoned:
            self.crash(name, power=False)
            return
        self._collect(member)

    def _collect(self, member: SimulatedMember) -> None:
        for number in member.acknowledged:
            self._acknowledged[number] = None
        member.acknowledged.clear()
        if isinstance(member, GuardedMember):
            for rule, count in member.raft.guards.counts.items():
                self.outcome.guards[rule] = self.outcome.guards.get(rule, 0) + count
                member.raft.guards.counts[rule] = 0

    def _fault(self) -> bool:
        draw = self.prng.below(10_000)
        options = self.options
        if draw < options.link_faults:
            a, b = self.prng.pick(self._pairs())
            self.link(a, b, up=self.prng.chance(3, 5))
            return True
        draw -= options.link_faults
        doomed = sum(self._is_doomed(name) for name in self.members)
        spare = len(self.members) - doomed > self.options.size // 2 + 1
        if draw < options.crashes:
            if spare:
                self._hurt(self.prng.pick(sorted(self.members)))
            return True
        draw -= options.crashes
        if draw < options.restarts:
            down = [name for name in self.names if name not in self.members]
            if down:
                self.restart(self.prng.pick(down))
            return True
        draw -= options.restarts
        if draw < options.sync_errors:
            if spare and options.guarded:
                self._disks[self.prng.pick(sorted(self.members))].fail_next_sync = True
            return True
        return False

    def _hurt(self, name: str) -> None:
        disk = self._disks[name]
        if self.options.guarded and self.prng.chance(1, 2):
            disk.die_at = disk.operations + self.prng.between(1, 8)
        else:
            self.crash(name, power=self.prng.chance(1, 2))

    def _is_rejoining(self, name: str) -> bool:
        """Also of one that is down: what its disk says is known when it is back."""
        member = self.members.get(name)
        if isinstance(member, GuardedMember):
            self._rejoining[name] = member.raft.journal.rejoining
        return self._rejoining[name]

    def _is_doomed(self, name: str) -> bool:
        return self._disks[name].die_at is not None or self._disks[name].fail_next_sync

    def _pairs(self) -> list[tuple[str, str]]:
        return [(a, b) for n, a in enumerate(self.names) for b in self.names[n + 1 :]]

    def _violated(self, what: str) -> None:
        self.outcome.violations.append(f"step {self.outcome.steps}: {what}")


def last(member: SimulatedMember) -> int:
    """Index of the last entry of a member's log."""
    from coordinator.runtime.raft.pinned import log_of

    index: int = log_of(member.raft)[-1][1]
    return index


@contextlib.contextmanager
def simulated_library(world: World) -> Iterator[None]:
    """Put the world's clock and dice where the library looks for its own, for as long as this lasts."""
    module = pysyncobj.syncobj
    real_clock, real_dice, disabled = module.monotonicTime, module.random, logging.root.manager.disable
    module.monotonicTime = lambda: world.now
    module.random = Prng(world.outcome.seed ^ 0x5EED)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        module.monotonicTime, module.random = real_clock, real_dice
        logging.disable(disabled)


def run_schedule(seed: int, options: Options) -> Outcome:
    """One schedule from start to judgement."""
    world = World(seed, options)
    with simulated_library(world):
        try:
            world.open()
            return _run_phases(world)
        finally:
            world.close()


def _run_phases(world: World) -> Outcome:
    options = world.options
    for step in range(world.prng.between(options.steps_min, options.steps_max)):
        world.step(submit=True, faults=True)
        if step % 20 == 0:
            world.check()
    gone = None
    if options.crash_leader_at_end:
        leaders = [name for name, member in world.members.items() if member.raft._isLeader()]  # noqa: SLF001
        if leaders:
            gone = max(leaders, key=lambda name: int(world.members[name].raft.raftCurrentTerm))
            world.crash(gone, power=True)
    world.heal(without=gone)
    for step in range(HEALED_STEPS_MAX):
        world.step(submit=False, faults=False)
        if step % 100 == 99:
            world.check()
            if world.outcome.violations or (world.settled() and step > 1000):
                break
    else:
        world.outcome.violations.append("not settled: the group did not catch up after all faults had ended")
    return world.finish()
