"""What can go wrong, and how a run's faults are carried out.

A fault is an entry of a list: kind, instant, length, whom it hits. `inject` puts them into a world; what comes of each is
counted by kind (`Injector.fired`), because a fault that never happened has tested nothing. `simulations.swarm` draws lists.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from coordinator.events import AbortRequested, EpochTriggered, RestoreRequested
from participant.runtime.turn_logger import LOG_NAME
from protocol.digests import manifest_key
from protocol.ids import Epoch
from simulations.control import PATIENCE_NS
from simulations.forking import take_fork
from simulations.names import first_of
from simulations.operator import REASON
from simulations.options import PATIENT_NS, Fault
from simulations.oracles.rot import check_listing
from simulations.prng import sample, shuffled, stream
from simulations.wishes import Wish
from simulations.world import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulations.cluster import SimulatedCluster
    from simulations.coordinator_node import CoordinatorLife

POINTS: Final = (
    "local.frozen",
    "local.encoded",
    "pack.before_put",
    "pack.after_put",
    "snapshot.before_put",
    "snapshot.after_put",
    "report.before_send",
    "report.after_send",
    "start.before_propose",
    "start.applied",
    "order.sent",
    "reports.before_propose",
    "reports.applied",
    "cut.before_assemble",
    "cut.assembled",
    "seal.before_propose",
    "seal.applied",
    "manifest.before_put",
    "manifest.after_put",
    "commit.before_propose",
    "commit.applied",
    "commit.announced",
    "abort.before_propose",
    "abort.applied",
    "journal.before_sync",
    "journal.after_sync",
    "journal.before_vote_sync",
    "journal.before_rewrite",
    "file.before_rename",
    "file.after_rename",
    "journal.after_rewrite",
)
"""Points at which a process can be made to crash: all of `protocol.failpoints`, in the order of an epoch, then the journal's."""


SEALED_POINTS: Final = (
    "tombstone.before_put",
    "tombstone.after_put",
    "forsake.before_propose",
    "forsake.applied",
)
"""Of a leader that forsakes a sealed epoch, in order: `store-rot-sealed` makes one."""
RECOVERY_POINTS: Final = (
    "rollback.before_propose",
    "rollback.applied",
    "fence.before_raise",
    "fence.after_raise",
    "restore.sent",
    "restore.halted",
    "restore.entered",
    "restore.before_read",
    "restore.loaded",
    "restored.after_send",
    "restored.applied",
)
"""Of worlds that recover, in the order of a rollback."""
OUTSIDE_POINTS: Final = (
    "log.before_append",
    "log.before_sync",
    "log.after_sync",
    "log.before_rotate",
    "log.after_rotate",
    "output.before_deliver",
    "output.after_deliver",
    "input.durable",
    "effect.before_claim",
    "effect.claimed",
    "effect.called",
    "effect.before_record",
    "effect.recorded",
)
"""Of participants in the second mode that make steps, emit, and take logged input: `orders`."""
TURN_POINTS: Final = (
    "turns.before_replay",
    "turns.base_written",
    "log.before_truncate",
)
"""Of participants in the second mode whose turns are logged, beside those of every log."""
NOT_IN_WORLDS: Final = ("sink.",)
"""Beginnings of the points that no simulated participant passes: sinks of the product."""

TAKEOVER_NS: Final = 20 * SECOND
"""Until who died is surely a member again: a lease, a registration, two topologies."""


class Injector:
    """Carries out the faults of one run."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._random = stream(cluster.options.seed, "faults")
        self.fired: dict[str, int] = {}
        """Kind -> how often one of it did something."""

    def inject(self, faults: list[Fault]) -> None:
        """Put them onto the world's queue."""
        for fault in faults:
            self._cluster.world.at(fault.at_ns, self._random, self._begin, fault)

    def _begin(self, fault: Fault) -> None:
        cluster = self._cluster
        if cluster.healing:
            return
        cluster.trace.note(cluster.world.now, "fault", fault.kind, fault)
        begin, end = KINDS[fault.kind]
        if begin(cluster, fault, self):
            self.count(fault.kind)
            if end is not None:
                cluster.world.after(fault.for_ns, self._random, self._end, fault, end)

    def _end(self, fault: Fault, end: _End) -> None:
        cluster = self._cluster
        if cluster.healing:
            return  # healing has ended it
        cluster.trace.note(cluster.world.now, "fault over", fault.kind, fault)
        end(cluster, fault)

    def count(self, kind: str) -> None:
        """A fault of this kind did something."""
        self.fired[kind] = self.fired.get(kind, 0) + 1
        self._cluster.probes.hit(f"fault.{kind}")


if TYPE_CHECKING:
    _Begin = Callable[[SimulatedCluster, Fault, Injector], bool]
    _End = Callable[[SimulatedCluster, Fault], None]


# --- participants and coordinators ------------------------------------------------------------------------------------


def _crash_participant(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    return _now_or_at(cluster, fault, injector, lambda _: cluster.crash_participant(fault.who, fault.for_ns))


def _now_or_at(cluster: SimulatedCluster, fault: Fault, injector: Injector, do: Callable[[str], bool]) -> bool:
    """Do it now, or when somebody passes the fault's point; whether it is done already."""

    def strike(who: str) -> None:
        # Behind the step in which the point lies: only a crash of the process itself may cut a step short.
        cluster.world.at(cluster.world.now, injector._random, strike_now, who)  # noqa: SLF001 - one module

    def strike_now(who: str) -> None:
        if not cluster.healing and do(who):
            injector.count(fault.kind)

    if not fault.point:
        return do("")
    cluster.probes.arm(fault.point, fault.nth, strike)
    return False


def _crash_coordinator(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    return cluster.crash_coordinator(fault.who, fault.for_ns)


def _crash_leader(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    leader = cluster.log.leader
    return leader is not None and cluster.crash_coordinator(leader.name, fault.for_ns)


def _crash_all(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    crashed = [name for name in cluster.log.names if cluster.crash_coordinator(name, fault.for_ns)]
    return bool(crashed)


def _crash_at(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    def crash(who: str) -> None:
        crashed = cluster.crash_participant if who in cluster.targets else cluster.crash_coordinator
        if not cluster.healing and crashed(who, fault.for_ns):
            injector.count("crash-at")
            injector.count(f"crash-at {fault.point}")

    cluster.probes.arm(fault.point, fault.nth, crash)
    return False  # it has done nothing yet


def _abort(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """An operator aborts the newest epoch: now, or when the leader passes a point."""

    def ask(who: str) -> None:
        life = cluster.log.lives.get(who)
        newest = max(cluster.oracles.history.states, default=0)
        if cluster.healing or life is None or not life.alive or not newest:
            return
        injector.count("abort")
        life.feed(AbortRequested(request=f"abort-{newest}", epoch=newest, reason=REASON))

    if fault.point:
        cluster.probes.arm(fault.point, fault.nth, ask)
    elif cluster.log.leader is not None:
        leader = cluster.log.leader
        leader.enter(ask, leader.name)
    return False  # counted when it is asked


def _trigger(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """An operator wants an epoch, and another one in the same instant."""
    leader = cluster.log.leader
    if leader is None or not leader.alive:
        return False
    for number in range(2):
        leader.enter(leader.feed, EpochTriggered(request=f"trigger-{fault.at_ns}-{number}", reason="an operator"))
    return True


def _pause(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    life = cluster.lives.get(fault.who)
    if life is None or not life.alive or life.asleep is not None:
        return False
    life.suspend()
    cluster.world.after(fault.for_ns, injector._random, life.resume)  # noqa: SLF001 - one module
    return True


def _pause_coordinator(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    def pause(who: str) -> bool:
        life = cluster.log.leader if not fault.who else cluster.log.lives.get(fault.who)
        if who:
            life = cluster.log.lives.get(who)
        if life is None or not life.alive or life.asleep is not None:
            return False
        life.suspend()
        cluster.log.look()
        random = injector._random  # noqa: SLF001 - one module
        cluster.world.after(fault.for_ns, random, _wake_coordinator, cluster, life)
        cluster.world.after(PATIENCE_NS, random, _unanswered, life)
        return True

    return _now_or_at(cluster, fault, injector, pause)


def _unanswered(life: CoordinatorLife) -> None:
    """Who is connected to a coordinator that has stopped gets no answer to pings, and looks for another one."""
    if life.alive and life.asleep is not None:
        for line in list(life.lines.values()):
            line.cut("no answer to a ping")


def _wake_coordinator(cluster: SimulatedCluster, life: object) -> None:
    from simulations.coordinator_node import CoordinatorLife

    assert isinstance(life, CoordinatorLife)
    leader = cluster.log.leader
    life.resume()
    if life.alive:
        life.apply_through(len(cluster.log.entries))
        if leader is not None and leader is not life:
            life.enter(life.lost_leadership, leader.name, cluster.log.term)
    cluster.log.look()


def _leave(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    def leave(_: str) -> bool:
        life = cluster.lives.get(fault.who)
        if life is None or not life.alive or not life.member:
            return False
        life.enter(life.leave)
        return True

    return _now_or_at(cluster, fault, injector, leave)


# --- network ----------------------------------------------------------------------------------------------------------


def _cut(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    return cluster.network.cut(fault.who, fault.other)


def _half_open(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    return cluster.network.half_open(fault.who, fault.other, fault.for_ns)


def _block(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    cluster.network.block(fault.who, fault.other)
    return True


def _unblock(cluster: SimulatedCluster, fault: Fault) -> None:
    cluster.network.unblock(fault.who, fault.other)


def _partition(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """One participant from all others; both directions, or only its outgoing one (`other` is ``out``)."""
    for name in cluster.participants:
        if name != fault.who:
            cluster.network.block(fault.who, name)
            if fault.other != "out":
                cluster.network.block(name, fault.who)
    return True


def _end_partition(cluster: SimulatedCluster, fault: Fault) -> None:
    for name in cluster.participants:
        if name != fault.who:
            cluster.network.unblock(fault.who, name)
            if fault.other != "out":
                cluster.network.unblock(name, fault.who)


def _split(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    for source, target in _severed(cluster, fault):
        cluster.network.block(source, target)
    return bool(_severed(cluster, fault))


def _end_split_of(cluster: SimulatedCluster, fault: Fault) -> None:
    for source, target in _severed(cluster, fault):
        cluster.network.unblock(source, target)


def _severed(cluster: SimulatedCluster, fault: Fault) -> list[tuple[str, str]]:
    """The directions that a partition of this shape takes away; by the fault alone, so that its end undoes its begin.

    ``partition-ring``: each still reaches its two neighbours. ``partition-bridge``: two halves, and one participant that
    reaches both. ``partition-halves``: two halves; with `other` ``out`` only one direction between them.
    """
    order = shuffled(stream(fault.at_ns, "partition"), cluster.participants)
    count = len(order)
    place = {name: index for index, name in enumerate(order)}
    found = []
    for source in order:
        for target in order:
            one, other = place[source], place[target]
            apart = (one - other) % count
            across = (one < count // 2) != (other < count // 2)
            if (
                (fault.kind == "partition-ring" and apart not in {0, 1, count - 1})
                or (fault.kind == "partition-bridge" and across and count - 1 not in (one, other))
                or (fault.kind == "partition-halves" and across and (fault.other != "out" or one < other))
            ):
                found.append((source, target))
    return found


def _swizzle(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """Some participants are clogged one after the other, and then unclogged one after the other in another order."""
    random = injector._random  # noqa: SLF001 - one module
    half = max(1, fault.for_ns // 2)
    chosen = sample(random, cluster.participants, random.between(1, len(cluster.participants)))
    for name in chosen:
        clog = Fault(kind="swizzle", who=name)
        # Once begun it ends: what heals the world has taken it away by then, and says so.
        cluster.world.after(random.below(half), random, _clog, cluster, clog, half + random.below(half), injector)
    return True


def _clog(cluster: SimulatedCluster, fault: Fault, for_ns: int, injector: Injector) -> None:
    if cluster.healing:
        return
    cluster.probes.hit("network.clogged")
    _partition(cluster, fault, injector)
    cluster.world.after(for_ns, injector._random, _unclog, cluster, fault)  # noqa: SLF001 - one module


def _unclog(cluster: SimulatedCluster, fault: Fault) -> None:
    if not cluster.healing:
        _end_partition(cluster, fault)


def _takeover(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """A participant dies, and when it is back what its earlier life had sent turns up as well."""
    if not cluster.crash_participant(fault.who, fault.for_ns):
        return False
    cluster.network.takeover_until = cluster.world.now + fault.for_ns + TAKEOVER_NS
    return True


def _slow(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    cluster.network.pipe(fault.who, fault.other).slow = fault.rate * 1_000_000
    return True


def _end_slow(cluster: SimulatedCluster, fault: Fault) -> None:
    cluster.network.pipe(fault.who, fault.other).slow = 0


def _rate(attribute: str) -> tuple[_Begin, _End]:
    """A likelihood of every pipe."""

    def begin(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
        for pipe in cluster.network.pipes():
            setattr(pipe, attribute, fault.rate)
        return cluster.options.broker

    def end(cluster: SimulatedCluster, fault: Fault) -> None:
        for pipe in cluster.network.pipes():
            setattr(pipe, attribute, 0)

    return begin, end


def _zombies(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    cluster.network.zombies = fault.rate
    return True


def _end_zombies(cluster: SimulatedCluster, fault: Fault) -> None:
    cluster.network.zombies = 0


def _replay(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    return cluster.network.replay(fault.who, fault.other, 8)


def _forge(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    return cluster.network.forge(fault.who, fault.other, 8)


# --- control connections ----------------------------------------------------------------------------------------------


def _cut_control(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    life = cluster.lives.get(fault.who)
    line = life.control.line if life is not None and life.alive else None
    if line is None:
        return False
    line.cut("cut")
    return True


def _block_control(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    cluster.block_control(fault.who, fault.other)
    return True


def _unblock_control(cluster: SimulatedCluster, fault: Fault) -> None:
    cluster.unblock_control(fault.who, fault.other)


# --- the replicated log -----------------------------------------------------------------------------------------------


def _isolate(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    cluster.log.isolate(fault.who)
    return True


def _rejoin(cluster: SimulatedCluster, fault: Fault) -> None:
    cluster.log.rejoin(fault.who)


def _depose(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    return cluster.log.depose()


def _split_leader(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """The leader is cut off from the others, not from the participants, which come and go between it and its successor."""
    leader = cluster.log.leader
    if leader is None or not leader.alive or len(cluster.log.names) < 3:
        return False
    cluster.log.isolate(leader.name)
    random = injector._random  # noqa: SLF001 - one module
    for name in cluster.participants:
        for _ in range(4):
            cut = Fault(kind="cut-control", who=name)
            cluster.world.after(random.below(fault.for_ns), random, _cut_control, cluster, cut, injector)
    cluster.world.after(fault.for_ns, random, _end_split, cluster, leader.name)
    return True


def _end_split(cluster: SimulatedCluster, name: str) -> None:
    if not cluster.healing:
        cluster.log.rejoin(name)


def _log_rate(attribute: str) -> tuple[_Begin, _End]:
    def begin(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
        setattr(cluster.log, attribute, fault.rate)
        return True

    def end(cluster: SimulatedCluster, fault: Fault) -> None:
        setattr(cluster.log, attribute, 0)

    return begin, end


def _install(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """A coordinator is away for so long that it must be sent a snapshot."""
    cluster.log.wants_snapshot.add(fault.who)
    cluster.log.isolate(fault.who)
    return True


def _lag(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    cluster.log.lag = fault.rate * 1_000_000
    return True


def _end_lag(cluster: SimulatedCluster, fault: Fault) -> None:
    cluster.log.lag = 0


# --- store and clocks -------------------------------------------------------------------------------------------------


def _store_down(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    cluster.store.down.add(fault.who)
    return True


def _end_store_down(cluster: SimulatedCluster, fault: Fault) -> None:
    cluster.store.down.discard(fault.who)


def _store_rate(attribute: str) -> tuple[_Begin, _End]:
    def begin(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
        setattr(cluster.store, attribute, fault.rate)
        return True

    def end(cluster: SimulatedCluster, fault: Fault) -> None:
        setattr(cluster.store, attribute, 0)

    return begin, end


def _rot(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """An object that lies in the store is spoiled, whatever it is."""
    return cluster.store.rot()


def _rot_sealed(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """A leader dies right behind a seal, and then a part of that epoch is spoiled: nobody can make its manifest again.

    With `other` ``operator`` somebody does not wait until that is certain, and aborts the epoch. With ``asleep`` the leader does
    not die: it wakes after a while, has the right bytes, and puts them.
    """
    if fault.other == "asleep" and not cluster.options.recovery:  # where it is the first, a damaged epoch commits
        return _rot_sealed_asleep(cluster, fault, injector)

    def strike(who: str) -> None:
        key = cluster.unstored_part(who, injector._random)  # noqa: SLF001 - one module
        # Its manifest may be under way: then it commits, and there has to be another one to go back to.
        alone = cluster.options.recovery and not cluster.operator.there()
        if (
            cluster.healing
            or alone
            or not key
            or not cluster.store.spoil(key)
            or not cluster.crash_coordinator(who, fault.for_ns)
        ):
            return
        injector.count(fault.kind)
        if fault.other == "operator":
            _abort(cluster, Fault(kind="abort", at_ns=fault.at_ns, point="cut.before_assemble", nth=3), injector)

    cluster.probes.arm("seal.applied", fault.nth, strike)
    return False  # counted when it has done it


def _rot_sealed_asleep(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    def spoil(who: str) -> None:
        key = cluster.unstored_part(who, injector._random)  # noqa: SLF001 - one module
        if not cluster.healing and key and cluster.store.spoil(key):
            injector.count(fault.kind)

    # Its proposal is under way; the next leader finds the seal, and what it is about to read is spoiled.
    point = "seal.before_propose"
    cluster.probes.arm(point, fault.nth, lambda _: cluster.probes.arm("cut.before_assemble", 1, spoil))
    asleep = Fault(kind="pause-coordinator", at_ns=fault.at_ns, for_ns=fault.for_ns, point=point, nth=fault.nth)
    return _pause_coordinator(cluster, asleep, injector)


def _stale_list(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """Listings are behind, or empty, just when somebody looks."""
    behind = cluster.store.stale(fault.for_ns if fault.rate else cluster.world.now)
    looked = check_listing(cluster, behind)
    if looked:
        cluster.probes.hit("store.stale_list")
    return bool(looked)


def _power_cut(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    return cluster.options.disk and cluster.power_cut(fault.for_ns)


def _spoil_newest(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """The newest epoch rots in the store just when it is needed: a participant dies in that moment. Another one is there."""
    history, spoiled = cluster.oracles.history, cluster.store.spoiled.meant
    keys = [
        manifest_key(Epoch(number))
        for number, state in history.states.items()
        if state == "committed" and number <= history.recoverable and number not in history.given_up
    ]
    if len([key for key in keys if key not in spoiled]) < 2 or not history.recoverable:
        return False
    key = manifest_key(Epoch(history.recoverable))
    if key in spoiled or not cluster.store.spoil(key):
        return False
    cluster.crash_participant(fault.who, fault.for_ns)
    return True


def _twin(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """A participant freezes, another process of its name is started, and then it wakes."""
    frozen = cluster.freeze_with_twin(fault.who)
    if frozen is None:
        return False
    cluster.world.after(fault.for_ns, injector._random, frozen.resume)  # noqa: SLF001 - one module
    return True


def _queued_orders(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """Orders for sessions that have ended come to those that follow."""
    cluster.late_orders = fault.rate
    return True


def _end_queued_orders(cluster: SimulatedCluster, fault: Fault) -> None:
    cluster.late_orders = 0


def _clock(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    cluster.jump_wall(fault.who, -fault.for_ns if fault.rate else fault.for_ns)
    cluster.probes.hit("clock.stepped_back" if fault.rate else "clock.stepped_forward")
    return True


def _fork(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """The newest epoch becomes the beginning of another cluster, which is run when this run is over."""
    if cluster.forks or cluster.forked is not None or cluster.options.elsewhere:
        return False
    forked = take_fork(cluster)
    if forked is not None:
        cluster.forks.append(forked)
    return forked is not None


# --- logs of turns ----------------------------------------------------------------------------------------------------


def _crash_together(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """Several participants die in one instant, and come back each in its own time."""
    random = injector._random  # noqa: SLF001 - one module
    chosen = sample(random, cluster.participants, random.between(2, len(cluster.participants)))
    crashed = [cluster.crash_participant(name, fault.for_ns + random.below(2 * fault.for_ns)) for name in chosen]
    return any(crashed)


def _lose_local(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """A participant dies, and its disk comes back without what `rate` says (`LocalDisk.lose`)."""
    if not cluster.crash_participant(fault.who, fault.for_ns):
        return False
    cluster.stop_machine(fault.who)  # no process goes on with files of a disk that comes back as another one
    # Where it holds more than turns, only those can be done without: an effect that nobody remembers is done again.
    how = fault.rate % 4 or int(cluster.workload.outside_world)
    return cluster.disk_of(fault.who).lose(how, log=LOG_NAME)


def _rot_local(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """A participant dies, and its log of turns has rotted."""
    return cluster.crash_participant(fault.who, fault.for_ns) and cluster.disk_of(fault.who).rot(LOG_NAME)


def _fail_local(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """The next sync of a log of turns fails, and what was not synced is gone; or its next write does not fit."""
    files = cluster.disk_of(fault.who).files(LOG_NAME)
    if fault.rate % 2:
        files.fail_next_sync = errno.EIO
    else:
        files.fail_next_append = errno.ENOSPC
    return True


def _restore_all(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """An operator wants everybody back at an epoch."""
    leader = cluster.log.leader
    if leader is None or not leader.alive or not leader.machine.leading or not cluster.oracles.history.recoverable:
        return False
    request = RestoreRequested(request=f"restore-at-{fault.at_ns}", epoch=None, reason=REASON)
    leader.enter(leader.feed, request)
    return True


# --- the operator (worlds in which agents go elsewhere) -----------------------------------------------------------------


def _wish(kind: str) -> _Begin:
    """An operator wants something, now or just when somebody passes a point."""

    def begin(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
        if not cluster.options.elsewhere:
            return False

        def want(_: str) -> bool:
            cluster.operator.wants(Wish(kind=kind, who=fault.who, variant=fault.rate))
            return True

        return _now_or_at(cluster, fault, injector, want)

    return begin


def _gone(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """Participants go away for good (`who`, or all but two), if others take their agents."""
    if not 0 < cluster.options.takeover_ns < PATIENT_NS:
        return False
    names = [fault.who]
    if not fault.who:
        here = [name for name in cluster.participants if name not in cluster.absent]
        names = shuffled(stream(fault.at_ns, "gone"), here)[2:]
    away = [name for name in names if cluster.goes_away(name, for_good=True)]
    return bool(away)


def _grow(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """The spare participants begin, and agents are spread over all."""
    if (
        not cluster.spares
        or not cluster.options.takeover_ns
        or any(name not in cluster.absent for name in cluster.spares)
    ):
        return False
    for name in cluster.spares:
        cluster.comes_back(name)
    cluster.operator.wants(Wish(kind="spread"))
    return True


def _give_up(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """A participant is away for long, and an operator gives its agents up; then it is back."""
    if not cluster.options.elsewhere or not cluster.goes_away(fault.who, for_good=False):
        return False
    cluster.operator.wants(Wish(kind="give-up", who=fault.who))
    return True


def _end_give_up(cluster: SimulatedCluster, fault: Fault) -> None:
    cluster.comes_back(fault.who)


def _rename(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """A participant comes back as a program that calls its agents otherwise, and an operator maps their names."""
    if not cluster.options.elsewhere or fault.who in cluster.spares or fault.who in cluster.absent:
        return False
    for agent in cluster.workload.agents(fault.who):
        cluster.workload.names.declare(first_of(agent.id))
    if not cluster.crash_participant(fault.who, fault.for_ns):
        cluster.world.after(fault.for_ns, injector._random, cluster.start_participant, fault.who)  # noqa: SLF001 - one module
    cluster.operator.wants(Wish(kind="rename", who=fault.who))
    return True


# --- drivers (the second mode) ------------------------------------------------------------------------------------------


def _stop(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    return cluster.stop_in_order(fault.who)


def _stranger(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    return cluster.stranger(fault.who)


def _half_open_control(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    return cluster.half_open_control(fault.who)


def _stuck(cluster: SimulatedCluster, fault: Fault, injector: Injector) -> bool:
    """Now, or for whoever passes a point: just when it turns to the store."""

    def begin(who: str) -> None:
        if not cluster.healing and cluster.drivers_stuck(who):
            injector.count(fault.kind)
            cluster.world.after(fault.for_ns, injector._random, end, who)  # noqa: SLF001 - one module

    def end(who: str) -> None:
        if not cluster.healing:
            cluster.drivers_freed(who)

    if not fault.point:
        return cluster.drivers_stuck(fault.who)
    cluster.probes.arm(fault.point, fault.nth, begin)
    return False  # counted when it begins


def _end_stuck(cluster: SimulatedCluster, fault: Fault) -> None:
    cluster.drivers_freed(fault.who)


KINDS: Final[dict[str, tuple[_Begin, _End | None]]] = {
    "crash": (_crash_participant, None),
    "crash-coordinator": (_crash_coordinator, None),
    "crash-leader": (_crash_leader, None),
    "crash-coordinators": (_crash_all, None),
    "crash-at": (_crash_at, None),
    "takeover": (_takeover, None),
    "abort": (_abort, None),
    "trigger": (_trigger, None),
    "pause": (_pause, None),
    "pause-coordinator": (_pause_coordinator, None),
    "leave": (_leave, None),
    "cut": (_cut, None),
    "half-open": (_half_open, None),
    "block": (_block, _unblock),
    "partition": (_partition, _end_partition),
    "partition-ring": (_split, _end_split_of),
    "partition-bridge": (_split, _end_split_of),
    "partition-halves": (_split, _end_split_of),
    "swizzle": (_swizzle, None),
    "slow": (_slow, _end_slow),
    "duplicate": _rate("duplicate"),
    "reorder": _rate("reorder"),
    "lose": _rate("lose"),
    "replay": (_replay, None),
    "zombies": (_zombies, _end_zombies),
    "forge": (_forge, None),
    "cut-control": (_cut_control, None),
    "block-control": (_block_control, _unblock_control),
    "isolate-coordinator": (_isolate, _rejoin),
    "depose": (_depose, None),
    "split-leader": (_split_leader, None),
    "log-refuse": _log_rate("refuse"),
    "log-lose": _log_rate("lose"),
    "log-silent": _log_rate("silent"),
    "log-late": _log_rate("late"),
    "log-twice": _log_rate("twice"),
    "log-lag": (_lag, _end_lag),
    "log-install": (_install, _rejoin),
    "log-stale": _log_rate("stale"),
    "store-down": (_store_down, _end_store_down),
    "store-fail": _store_rate("fail"),
    "store-unheard": _store_rate("unheard"),
    "store-slow": _store_rate("slow"),
    "store-busy": _store_rate("busy"),
    "store-hang": _store_rate("hang"),
    "store-lose-delete": _store_rate("lose_delete"),
    "store-rot": (_rot, None),
    "store-rot-sealed": (_rot_sealed, None),
    "store-rot-upload": _store_rate("rot_upload"),
    "store-rot-manifest": _store_rate("rot_manifest"),
    "store-rot-read": _store_rate("rot_read"),
    "store-stale-list": (_stale_list, None),
    "disk-fsync": _store_rate("fsync_fails"),
    "disk-died": _store_rate("die_in_put"),
    "power-cut": (_power_cut, None),
    "clock": (_clock, None),
    "epoch-spoilt": (_spoil_newest, None),
    "twin": (_twin, None),
    "queued-orders": (_queued_orders, _end_queued_orders),
    "crash-together": (_crash_together, None),
    "local-lost": (_lose_local, None),
    "local-rot": (_rot_local, None),
    "local-fails": (_fail_local, None),
    "restore": (_restore_all, None),
    "gone": (_gone, None),
    "grow": (_grow, None),
    "give-up": (_give_up, _end_give_up),
    "move": (_wish("move"), None),
    "rename": (_rename, None),
    "swap": (_wish("swap"), None),
    "go-back": (_wish("back"), None),
    "wrong-restore": (_wish("wrong"), None),
    "fork": (_fork, None),
    "stop": (_stop, None),
    "stop-coordinator": (_stop, None),
    "store-stuck": (_stuck, _end_stuck),
    "half-open-control": (_half_open_control, None),
    "stranger": (_stranger, None),
}
"""Kind -> what begins it (whether it did anything), and what ends it after its length."""

STUCK_AT: Final = ("local.frozen", "local.encoded", "reports.applied", "seal.applied")
"""Points behind which a driver turns to the store."""
TURNS_ONLY: Final = ("crash-together", "local-fails", "local-lost", "local-rot", "restore")
"""Kinds of worlds in which turns are logged."""
DRIVERS_ONLY: Final = ("half-open-control", "stop", "stop-coordinator", "store-stuck", "stranger")
"""Kinds that do nothing where the simulator itself is the driver: not drawn there."""
