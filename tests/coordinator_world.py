"""A deterministic world for the coordinators: replicated ledger, a leader's machine each, participants that play along.

Everything runs on one queue of (virtual time, serial); there is no thread, clock or socket, and randomness comes from a
seed. The log is one list: what is in it is committed. What can go wrong is chosen per proposal (`fate`) or by hand:
proposals refused, lost without a word, applied without a word, applied twice; coordinators killed, restarted from a dump,
put to sleep and woken; participants that fall silent, die, fail, come back; a store that fails.

The world watches while it runs: replicas that applied as much have equal digests (I21), an epoch ends once and as one
thing for everybody (I11), numbers and commits only grow (I10), each epoch has one manifest's bytes (I9), and a manifest
is announced only when it is in the store (P2).
"""

from __future__ import annotations

import heapq
import itertools
import json
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from coordinator.assembler import assemble_from_store
from coordinator.events import (
    AbortRequested,
    Answer,
    AssembleCut,
    BecameLeader,
    CloseConnection,
    CommandAmbiguous,
    CommandApplied,
    CommandRefused,
    Disconnected,
    EpochTriggered,
    EpochUnreadable,
    FenceFailed,
    FenceRaised,
    ForsakeManifest,
    LostLeadership,
    ManifestFailed,
    ManifestForsaken,
    ManifestRefused,
    ManifestStored,
    MessageArrived,
    ParticipantConnected,
    PolicyChanged,
    Probe,
    Probed,
    Propose,
    RaiseFence,
    ReadEpoch,
    RestoreRequested,
    Send,
    SetTimer,
    SnapshotsUnreadable,
    StoreManifest,
    TimerFired,
)
from coordinator.fences import StoreFence, read_epoch_from_store
from coordinator.ledger import Ledger, encode_command, parse_result
from coordinator.machine import Leader
from coordinator.policy import PolicySettings
from protocol.digests import digest, fence_key, manifest_key, snapshot_key
from protocol.documents import encode_local_snapshot
from protocol.errors import ObjectConflict, ObjectMissing, StoreError
from protocol.ids import ClusterName, Instant
from protocol.keys import ClusterKeys
from protocol.limits import LEASE_NS
from protocol.manifest import AgentSnapshot, IncomingCut, LocalSnapshot, OutgoingCut
from protocol.messages import (
    AbortEpoch,
    EpochCommitted,
    EpochFailed,
    EpochProgress,
    EpochSealed,
    Fenced,
    Heartbeat,
    Left,
    LocalReport,
    Register,
    Registered,
    RegisterRefused,
    ReportRefused,
    Restore,
    Restored,
    RestoreFailed,
    StartEpoch,
    TopologyAccepted,
    TopologyChanged,
    decode_to_coordinator,
    decode_to_participant,
    encode_control,
)
from protocol.storage.memory import MemoryStore
from protocol.storage.repair import put_manifest, take_manifest_key
from protocol.tombstones import decode_tombstone
from protocol.topology import Topology

if TYPE_CHECKING:
    from protocol.forks import Fork
    from protocol.streams import Resumption

MS = 1_000_000
SECOND = 1_000_000_000
LEASE_S = LEASE_NS / SECOND
CLUSTER = ClusterName("shop")
KEYS = ClusterKeys.from_secret(b"a secret that is long enough for this test")
EMPTY = digest(b"")
WALL = 1_790_000_000 * SECOND
MANUAL = PolicySettings(kind="manual", pause_ns=0, deadline_ns=2 * SECOND, recovery="off")
EVERY_SECOND = PolicySettings(kind="periodic", interval_ns=SECOND, pause_ns=0, deadline_ns=2 * SECOND, recovery="off")
RECOVERING = PolicySettings(
    kind="manual", pause_ns=0, deadline_ns=2 * SECOND, recovery="auto", takeover_after_ns=5 * SECOND
)


class Coordinator:
    """One process: a replica of the ledger and a machine over it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.up = True
        self.asleep: list[Any] | None = None
        """Events that wait for it to wake; None: awake."""
        self.ledger = Ledger(CLUSTER)
        self.applied = 0
        self.boots = 0
        self.connections: dict[int, FakeParticipant] = {}
        self.start()

    def start(self) -> None:
        self.boots += 1
        self.machine = Leader(
            self.ledger,
            coordinator=self.name,
            client=f"{self.name}.{self.boots}",
            policy=self.world.policy,
            fork=self.world.fork,
        )
        self.timer = 0

    def feed(self, event: Any) -> None:
        if not self.up:
            return
        if self.asleep is not None:
            self.asleep.append(event)
            return
        now = Instant(self.world.now)
        if isinstance(event, CommandApplied):
            self.world.watch(self)
        for effect in self.machine.step(event, now):
            self.world.carry_out(self, effect)

    def apply_through(self, index: int) -> None:
        """Apply entries of the log up to this many."""
        while self.up and self.asleep is None and self.applied < index:
            text = self.world.log[self.applied]
            result = parse_result(self.ledger.apply(text))
            self.applied += 1
            self.feed(CommandApplied(id=_command_id(text), result=result))


@dataclass
class FakeParticipant:
    """Plays a participant: one agent, no messages. Attributes change how it behaves."""

    world: World
    id: str
    boot: str = "boot-1"
    targets: tuple[str, ...] | None = None
    agents: tuple[str, ...] = ()
    session: int = 0
    connection: int | None = None
    at: Coordinator | None = None
    silent: bool = False
    """Says nothing, but its connection stays."""
    accepts: bool = True
    reports: bool = True
    fails: str = ""
    """Cause with which it fails its part."""
    dead: bool = False
    fenced: str = ""
    refused: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    """Sentences of the refusals."""
    term: int = 0
    topologies: dict[int, TopologyChanged] = field(default_factory=dict)
    orders: list[StartEpoch] = field(default_factory=list)
    ends: dict[int, str] = field(default_factory=dict)
    sealed: list[int] = field(default_factory=list)
    refusals: list[ReportRefused] = field(default_factory=list)
    left: bool = False
    kinds: tuple[str, ...] = ()
    durability: str = "epoch"
    resumes: Resumption | None = None
    """What its log of turns says."""
    address: str = ""
    """Where it listens; "": in memory."""
    reached: bool = True
    """Coordinators reach its machine; where they do not, nothing answers a probe."""
    unwelcome: bool = False
    """Something between the coordinators and its machine refuses all connections."""
    probes: list[str] = field(default_factory=list)
    """What the leader found at its address, probe by probe."""
    dry_run: bool | None = None
    """What its store says; None: what the cluster's says."""
    restores: bool = True
    """Answers restore orders."""
    restore_fails: tuple[str, str] | None = None
    """Kind and cause with which it fails to take its part."""
    entered: int = 0
    """Highest incarnation entered by any life, as on its disk."""
    incarnation: int = 0
    """That this life is in."""
    runs: int = 0
    """Incarnation that its agents run in."""
    placed: tuple[str, ...] = ()
    """Agents of the newest restore order or topology."""
    restore_orders: list[Restore] = field(default_factory=list)
    received: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agents = self.agents or (f"worker/{self.id}",)

    # connection

    def connect(self) -> None:
        leader = self.world.leader
        if self.dead or self.left or self.fenced or self.connection is not None:
            return
        if leader is None or not leader.up or leader.asleep is not None:
            self.world.later(50 * MS, self.connect)
            return
        self.connection = next(self.world.connections)
        self.at = leader
        leader.connections[self.connection] = self
        leader.feed(ParticipantConnected(connection=self.connection))
        self.say(
            Register(
                cluster=CLUSTER,
                participant=self.id,
                boot_id=self.boot,
                address=self.address or f"memory:{self.id}",
                agents=self.agents,
                targets=self.targets,
                session=self.session,
                incarnation=self.entered,
                kinds=self.kinds,
                durability=self.durability,
                resumes=self.resumes,
                dry_run=self.dry_run if self.dry_run is not None else self.world.fork is not None,
            )
        )

    def disconnect(self, reason: str = "gone") -> None:
        if self.connection is None or self.at is None:
            return
        connection, at = self.connection, self.at
        self.connection, self.at = None, None
        at.connections.pop(connection, None)
        at.feed(Disconnected(connection=connection, reason=reason))

    def hung_up(self, connection: int) -> None:
        if self.connection == connection:
            self.disconnect("closed by the coordinator")
            self.world.later(20 * MS, self.connect)

    def say(self, message: Any) -> None:
        if self.dead or self.silent or self.connection is None or self.at is None:
            return
        at, connection = self.at, self.connection
        event = MessageArrived(connection=connection, message=decode_to_coordinator(encode_control(message)))
        self.world.later(self.world.delay(), lambda: connection in at.connections and at.feed(event), lane=self.id)

    def beat(self) -> None:
        if self.dead or self.left or self.fenced:
            return
        if self.session and self.connection is not None:
            self.say(Heartbeat(session=self.session))
        self.world.later(500 * MS, self.beat)

    # messages

    def hear(self, connection: int, message: Any) -> None:
        if self.dead or connection != self.connection:
            return
        message = decode_to_participant(encode_control(message))
        self.received.append(message)
        if isinstance(message, RegisterRefused):
            if message.code != "not-leader":
                self.refused.append(message.code)
                self.told.append(message.sentence)
                self.fenced = message.sentence  # final: it gives up
            return
        assert message.term >= self.term, "orders of an earlier term reach nobody who has seen a later one"
        self.term = message.term
        match message:
            case Registered():
                self.session = message.session
            case TopologyChanged():
                self.topologies[message.version] = message
                self._begin(message)
                if self.accepts:
                    self.say(TopologyAccepted(session=self.session, version=message.version))
            case Restore():
                self._restore(message)
            case StartEpoch():
                self.orders.append(message)
                self.world.note(("ordered", self.id, message.epoch))
                if message.incarnation == self.runs:
                    self._take_part(message)
            case AbortEpoch():
                self._ended(message.epoch, "aborted")
            case EpochCommitted():
                assert self.world.store_has(message.epoch), "announced before it was durable"
                self._ended(message.epoch, "committed")
            case EpochSealed():
                self.sealed.append(message.epoch)
            case ReportRefused():
                self.refusals.append(message)
            case Left():
                self.left = True
            case Fenced():
                self.fenced = message.reason

    def _begin(self, message: TopologyChanged) -> None:
        """The topology of an incarnation is the order to run in it."""
        assert message.incarnation >= self.incarnation
        if message.incarnation != self.runs:
            self.world.begins(self, message)
        self.incarnation = self.runs = message.incarnation
        self.entered = max(self.entered, message.incarnation)
        self.placed = next(member.agents for member in message.members if member.id == self.id)

    def _restore(self, message: Restore) -> None:
        self.restore_orders.append(message)
        self.world.ordered_restore(self, message)
        if message.incarnation < self.incarnation or not self.restores:
            return
        if message.incarnation > self.incarnation:
            self.incarnation = message.incarnation
            self.runs = 0
            self.world.enters(self, message)
            self.entered = message.incarnation
        if self.restore_fails is not None:
            kind, cause = self.restore_fails
            failed = RestoreFailed(session=self.session, incarnation=message.incarnation, kind=kind, cause=cause)
            self.say(failed)
            return
        self.placed = next(member.agents for member in message.members if member.id == self.id)
        state = digest(f"{message.epoch} {self.placed}".encode())
        self.say(Restored(session=self.session, incarnation=message.incarnation, state=state))

    def _ended(self, epoch: int, how: str) -> None:
        assert self.ends.setdefault(epoch, how) == how, f"epoch {epoch} ended twice at {self.id}"

    def _take_part(self, order: StartEpoch) -> None:
        if self.fails:
            self.say(
                EpochFailed(
                    session=self.session,
                    incarnation=order.incarnation,
                    epoch=order.epoch,
                    phase="encode",
                    cause=self.fails,
                )
            )
            return
        self.say(EpochProgress(session=self.session, epoch=order.epoch, phase="channels"))
        if self.reports:
            self.say(self.report(order.epoch))

    def report(self, epoch: int, **changes: Any) -> LocalReport:
        """Its report, after its object is in the store. The same each time."""
        order = next(each for each in self.orders if each.epoch == epoch)
        snapshot = replace_struct(self.snapshot(order), **changes.pop("snapshot_changes", {}))
        data = encode_local_snapshot(snapshot)
        self.world.store.put(snapshot_key(digest(data)), data)
        fields = {
            "session": self.session,
            "incarnation": order.incarnation,
            "epoch": epoch,
            "snapshot": digest(data),
            "state_bytes": 100,
            "new_bytes": 10,
            "timings": {"record": 1000, "channels": 2000, "encode": 3000, "upload": 4000},
        }
        return LocalReport(**{**fields, **changes})

    def snapshot(self, order: StartEpoch) -> LocalSnapshot:
        members = self.topologies[order.topology].members
        topology = Topology(order.topology, members)
        return LocalSnapshot(
            cluster=CLUSTER,
            participant=self.id,
            incarnation=order.incarnation,
            session=self.session,
            epoch=order.epoch,
            topology=order.topology,
            agents=tuple(AgentSnapshot(id=agent) for agent in sorted(self.placed)),
            outgoing=tuple(
                OutgoingCut(target=channel.target, sent=0, digest=EMPTY) for channel in topology.outgoing(self.id)
            ),
            incoming=tuple(
                IncomingCut(source=channel.source, received=0, closed_at=0, digest=EMPTY, items=0, messages=0)
                for channel in topology.incoming(self.id)
            ),
        )


def replace_struct(struct: Any, **changes: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(struct, **changes)


class World:
    """See the module."""

    def __init__(
        self,
        *,
        coordinators: int = 3,
        policy: PolicySettings = MANUAL,
        seed: int = 0,
        jitter_ns: int = 0,
        fork: Fork | None = None,
    ) -> None:
        self.fork = fork
        """What the store says that the cluster is a fork of."""
        self.now = 1000
        self.wall_offset = 0
        self.policy = policy
        self.random = Random(seed)
        self.jitter_ns = jitter_ns
        self.serial = itertools.count()
        self.connections = itertools.count(1)
        self.queue: list[tuple[int, int, Any]] = []
        self.lanes: dict[str, int] = {}
        self.log: list[str] = []
        self.term = 0
        self.leader: Coordinator | None = None
        self.store = MemoryStore(CLUSTER)
        self.store_fails = ""
        self.answers: dict[str, dict[str, Any]] = {}
        self.requests = itertools.count(1)
        self.fates: dict[str, str] = {}
        """Command kind -> fate of its next proposal: refuse, lose, silent, twice."""
        self.fate_odds = 0.0
        self.happened: list[tuple[Any, ...]] = []
        self.stop_when: Any = None
        self.fence_fails = ""
        self.corrupt: set[int] = set()
        """Epochs whose manifest cannot be read."""
        self.lives: dict[tuple[str, int], int] = {}
        """(participant, incarnation) -> the session that entered it with a restore order."""
        self.bases: dict[int, tuple[int, str]] = {}
        """Incarnation -> epoch and manifest of its first restore order."""
        self.manifest_bytes: dict[int, bytes] = {}
        self.digests: dict[int, str] = {}
        self.digest_every = 5
        self.watched = 0
        self.seen: dict[int, str] = {}
        self.committed = 0
        self.coordinators = [Coordinator(self, f"c{i + 1}") for i in range(coordinators)]
        self.participants: dict[str, FakeParticipant] = {}

    # time

    def later(self, after: int, action: Any, lane: str = "") -> None:
        at = self.now + after
        if lane:  # first in, first out
            at = max(at, self.lanes.get(lane, 0))
            self.lanes[lane] = at
        heapq.heappush(self.queue, (at, next(self.serial), action))

    def delay(self) -> int:
        return MS + (self.random.randrange(self.jitter_ns) if self.jitter_ns else 0)

    def run(self, seconds: float = 0, *, until: Any = None, limit: float = 60) -> None:
        """Run for so long, or until a condition holds; fails if it never does."""
        end = self.now + int((limit if until is not None else seconds) * SECOND)
        while self.queue and self.queue[0][0] <= end:
            if until is not None and until():
                return
            at, _, action = heapq.heappop(self.queue)
            self.now = max(self.now, at)
            action()
        if until is None:
            self.now = end
        else:
            assert until(), "the condition never held"

    # participants

    def add(self, *names: str, **attributes: Any) -> FakeParticipant:
        participant = None
        for name in names:
            participant = FakeParticipant(self, name, **attributes)
            self.participants[name] = participant
            self.later(0, participant.connect)
            self.later(500 * MS, participant.beat)
        assert participant is not None
        return participant

    def revive(self, name: str, **attributes: Any) -> FakeParticipant:
        """Another life of a participant that was killed, with its disk."""
        old = self.participants[name]
        assert old.dead or old.fenced or old.refused
        boot = f"boot-{int(old.boot.partition('-')[2]) + 1}"
        kept = {"agents": old.agents, "targets": old.targets, "kinds": old.kinds, "entered": old.entered}
        return self.add(name, boot=boot, **{**kept, **attributes})

    def kill_participant(self, name: str) -> None:
        participant = self.participants[name]
        participant.dead = True
        participant.disconnect("reset by peer")

    # coordinators

    def elect(self, coordinator: Coordinator) -> None:
        """This one leads from now on; it has all that was committed before."""
        old = self.leader
        self.term += 1
        term = self.term
        self.leader = coordinator
        coordinator.apply_through(len(self.log))
        if old is not None and old is not coordinator:
            old.feed(LostLeadership(leader=f"http://{coordinator.name}"))
        coordinator.feed(BecameLeader(term=term))

    def kill(self, coordinator: Coordinator) -> None:
        coordinator.up = False
        for connection, participant in sorted(coordinator.connections.items()):
            participant.connection, participant.at = None, None
            assert connection
            self.later(20 * MS, participant.connect)
        coordinator.connections.clear()
        if self.leader is coordinator:
            self.leader = None

    def restart(self, coordinator: Coordinator) -> None:
        """From its own snapshot, taken at the moment of the kill."""
        dump = coordinator.ledger.dump()
        coordinator.ledger = Ledger(CLUSTER)
        coordinator.ledger.load(dump)
        coordinator.up = True
        coordinator.asleep = None
        coordinator.start()
        coordinator.apply_through(len(self.log))

    def sleep(self, coordinator: Coordinator) -> None:
        coordinator.asleep = []
        for _, participant in sorted(coordinator.connections.items()):  # they give up on it and look for another
            self.later(500 * MS, lambda p=participant: self._give_up(p, coordinator))
        if self.leader is coordinator:
            self.leader = None

    def _give_up(self, participant: FakeParticipant, coordinator: Coordinator) -> None:
        if participant.at is coordinator and coordinator.asleep is not None:
            participant.disconnect("no answer")
            participant.connect()

    def wake(self, coordinator: Coordinator) -> None:
        waiting, coordinator.asleep = coordinator.asleep or [], None
        for event in waiting:
            coordinator.feed(event)
        coordinator.apply_through(len(self.log))

    def submit(self, coordinator: Coordinator, text: str) -> None:
        """A proposal. A coordinator that does not lead passes it on to the one that does, as the library does."""
        id_ = _command_id(text)
        fate = self.fates.pop(_kind(text), "") or (
            self.random.choice(["refuse", "lose", "silent", "twice"]) if self.random.random() < self.fate_odds else ""
        )
        if self.leader is None or fate == "refuse":
            coordinator.feed(CommandRefused(id=id_, reason="no leader"))
            return
        if fate == "lose":
            coordinator.feed(CommandAmbiguous(id=id_, reason="no answer"))
            return
        self.append(text)
        if fate == "twice":
            self.later(30 * MS, lambda: self.append(text))
        if fate == "silent":
            self.later(self.delay(), lambda: coordinator.feed(CommandAmbiguous(id=id_, reason="no answer")))

    def append(self, text: str) -> None:
        self.log.append(text)
        index = len(self.log)
        for coordinator in self.coordinators:
            lag = 0 if coordinator is self.leader else self.random.choice([0, 3 * MS, 40 * MS])
            self.later(lag, lambda c=coordinator: c.apply_through(index))

    # effects

    def carry_out(self, coordinator: Coordinator, effect: Any) -> None:
        match effect:
            case Propose():
                text = encode_command(effect.command, at=WALL + self.now + self.wall_offset)
                self.note(("proposed", effect.command.kind))
                self.later(self.delay(), lambda: self.submit(coordinator, text))
            case Send():
                participant = coordinator.connections.get(effect.connection)
                if participant is not None:
                    lane = f"{coordinator.name}>{effect.connection}"
                    self.later(self.delay(), lambda: participant.hear(effect.connection, effect.message), lane=lane)
            case CloseConnection():
                participant = coordinator.connections.get(effect.connection)
                if participant is not None:
                    lane = f"{coordinator.name}>{effect.connection}"
                    self.later(MS, lambda: participant.hung_up(effect.connection), lane=lane)
            case Probe():
                self.later(self.delay(), lambda: coordinator.feed(self._probe(effect)))
            case AssembleCut():
                self.later(self.delay(), lambda: coordinator.feed(self._assemble(effect)))
            case ForsakeManifest():
                self.later(self.delay(), lambda: coordinator.feed(self._forsake_manifest(effect)))
            case StoreManifest():
                self.later(self.delay(), lambda: coordinator.feed(self._store_manifest(effect)))
            case RaiseFence():
                self.later(self.delay(), lambda: coordinator.feed(self._raise_fence(effect)))
            case ReadEpoch():
                self.later(
                    self.delay(),
                    lambda: coordinator.feed(
                        EpochUnreadable(epoch=effect.epoch, final=False, cause=self.store_fails)
                        if self.store_fails
                        else EpochUnreadable(epoch=effect.epoch, final=True, cause="bad checksum")
                        if effect.epoch in self.corrupt
                        else read_epoch_from_store(effect.epoch, effect.manifest, self.store)
                    ),
                )
            case SetTimer():
                coordinator.timer += 1
                serial, machine = coordinator.timer, coordinator.machine
                self.later(
                    max(0, effect.at - self.now),
                    lambda: (
                        serial == coordinator.timer
                        and machine is coordinator.machine
                        and coordinator.feed(TimerFired())
                    ),
                )
            case Answer():
                assert effect.request not in self.answers, "answered twice"
                self.answers[effect.request] = effect.result
        if self.stop_when is not None:
            self.stop_when()

    def _probe(self, effect: Probe) -> Probed:
        (target,) = (each for each in self.participants.values() if each.address == effect.address)
        refuses = target.dead or target.unwelcome
        found = ("refuses" if refuses else "listens") if target.reached else ""
        target.probes.append(found)
        return Probed(session=effect.session, address=effect.address, found=found)

    def _assemble(self, effect: AssembleCut) -> Any:
        if self.store_fails:
            return SnapshotsUnreadable(epoch=effect.epoch, participant="", cause=self.store_fails)
        event = assemble_from_store(effect.request, self.store, KEYS)
        self.note(("assembled", effect.epoch, type(event).__name__))
        return event

    def _store_manifest(self, effect: StoreManifest) -> Any:
        if self.store_fails:
            return ManifestFailed(epoch=effect.epoch, cause=self.store_fails)
        known = self.manifest_bytes.setdefault(effect.epoch, effect.manifest)
        assert known == effect.manifest, f"two manifests of epoch {effect.epoch} (I9)"
        try:
            put_manifest(self.store, manifest_key(effect.epoch), effect.manifest)
        except ObjectConflict as error:
            return ManifestRefused(epoch=effect.epoch, cause=str(error))
        except StoreError as error:
            return ManifestFailed(epoch=effect.epoch, cause=str(error))
        self.note(("stored", effect.epoch))
        return ManifestStored(epoch=effect.epoch, digest=digest(effect.manifest))

    def _forsake_manifest(self, effect: ForsakeManifest) -> Any:
        if self.store_fails:
            return ManifestFailed(epoch=effect.epoch, cause=self.store_fails)
        taken = take_manifest_key(
            self.store,
            effect.epoch,
            cluster=effect.request.cluster,
            sealed=effect.digest,
            snapshots=dict(effect.request.snapshots),
        )
        self.note(("forsaken" if taken else "found", effect.epoch))
        if taken:
            return ManifestForsaken(epoch=effect.epoch, digest=effect.digest)
        return ManifestStored(epoch=effect.epoch, digest=effect.digest)

    def _raise_fence(self, effect: RaiseFence) -> Any:
        if self.fence_fails:
            return FenceFailed(fence=effect.fence, incarnation=effect.incarnation, cause=self.fence_fails)
        StoreFence(self.store, CLUSTER).raise_to(effect.incarnation, effect.epoch)
        self.note(("fenced", effect.incarnation))
        return FenceRaised(fence=effect.fence, incarnation=effect.incarnation)

    def ordered_restore(self, participant: FakeParticipant, order: Restore) -> None:
        """Checked at the arrival of each restore order."""
        assert self.store.size(fence_key(order.incarnation)) > 0, "ordered before the store was fenced (I23)"
        base = self.bases.setdefault(order.incarnation, (order.epoch, order.manifest))
        assert base == (order.epoch, order.manifest), "two bases of one incarnation (I28)"
        assert order.session == participant.session, "an order for another life (rule 1)"
        assert order.epoch == 0 or self.state_of(order.epoch) == "committed"

    def enters(self, participant: FakeParticipant, order: Restore) -> None:
        """A life enters an incarnation by a restore order."""
        assert order.incarnation > participant.entered, f"{participant.id} enters {order.incarnation} again (rule 1)"
        life = self.lives.setdefault((participant.id, order.incarnation), participant.session)
        assert life == participant.session, "two lives in one incarnation (I24)"

    def begins(self, participant: FakeParticipant, order: TopologyChanged) -> None:
        """A participant's agents run in an incarnation."""
        record = self.ledger.state.rollbacks.get(order.incarnation)
        if record is not None:
            assert record.state == "done", f"{participant.id} runs in {order.incarnation}: {record.state} (I28)"

    def restore(self, epoch: int | None, reason: str = "", moves: tuple[tuple[str, str], ...] = (), **how: Any) -> str:
        return self.ask(RestoreRequested(request="", epoch=epoch, reason=reason, moves=moves, **how))

    def store_has(self, epoch: int) -> bool:
        try:
            return self.store.size(manifest_key(epoch)) > 0
        except ObjectMissing:
            return False

    # requests

    def ask(self, event: Any) -> str:
        request = f"r{next(self.requests)}"
        assert self.leader is not None
        self.leader.feed(replace(event, request=request))
        return request

    def trigger(self, reason: str = "manual") -> str:
        return self.ask(EpochTriggered(request="", reason=reason))

    def abort(self, epoch: int, reason: str = "") -> str:
        return self.ask(AbortRequested(request="", epoch=epoch, reason=reason))

    def set_policy(self, policy: PolicySettings) -> str:
        return self.ask(PolicyChanged(request="", policy=policy))

    # watching

    def note(self, what: tuple[Any, ...]) -> None:
        self.happened.append(what)
        if self.stop_when is not None:
            self.stop_when()

    def running(self, incarnation: int) -> bool:
        """All members run in this incarnation."""
        members = self.ledger.state.topology.members
        return bool(members) and all(self.participants[member.id].runs == incarnation for member in members)

    def watch(self, coordinator: Coordinator) -> None:
        """After each entry that a replica applied."""
        index = coordinator.applied
        if index % self.digest_every == 0:
            found = coordinator.ledger.digest()
            assert self.digests.setdefault(index, found) == found, f"replicas differ after entry {index} (I21)"
        first = index > self.watched
        self.watched = max(self.watched, index)
        state = coordinator.ledger.state
        if not first:
            return
        for number, record in sorted(state.epochs.items())[-12:]:
            before = self.seen.get(number)
            allowed = {
                None: ("started",),
                "started": ("started", "sealed", "aborted"),
                "sealed": ("sealed", "committed", "aborted"),
                "committed": ("committed",),
                "aborted": ("aborted",),
            }
            assert record.state in allowed[before], f"epoch {number}: {before} -> {record.state} (I11)"
            if before == "sealed" and record.state == "aborted":
                assert decode_tombstone(self.store.get(manifest_key(number), size_max=1 << 20)), (
                    "the store has not agreed"
                )
            if before is None:
                assert number == max(self.seen, default=0) + 1, "numbers only grow, by one (I10)"
            if record.state == "committed" and before != "committed":
                assert number > self.committed, "committed epochs strictly increase (I10)"
                self.committed = number
                assert self.store_has(number), "committed before it was durable (P2)"
            self.seen[number] = record.state
            assert record.took_ns >= 0
        if self.stop_when is not None:
            self.stop_when()

    def replicas_agree(self) -> bool:
        """All that are up have equal digests once they applied the whole log (I21)."""
        up = [each for each in self.coordinators if each.up and each.asleep is None]
        for each in up:
            each.apply_through(len(self.log))
        return len({each.ledger.digest() for each in up}) == 1

    # what most tests begin with

    @property
    def ledger(self) -> Ledger:
        """The most advanced replica."""
        return max(self.coordinators, key=lambda c: c.applied).ledger

    def epoch(self, number: int) -> Any:
        record = self.ledger.epoch(number)
        assert record is not None
        return record

    def state_of(self, number: int) -> str:
        record = self.ledger.epoch(number)
        return record.state if record is not None else "none"

    def ready(self) -> bool:
        """An epoch could start now."""
        leader = self.leader
        return leader is not None and leader.machine.leading and not leader.machine.waits_for(Instant(self.now))


def cluster(*names: str, **attributes: Any) -> World:
    """A world with a leader and these members, ready to start an epoch."""
    world = World(**attributes)
    world.elect(world.coordinators[0])
    world.add(*names)
    if world.policy.kind == "manual":
        world.run(until=world.ready)
    return world


def _command_id(text: str) -> tuple[str, int]:
    client, number = json.loads(text)["id"]
    return client, number


def _kind(text: str) -> str:
    return str(json.loads(text)["kind"])
