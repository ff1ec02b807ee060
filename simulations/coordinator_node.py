"""A coordinator: the product's ledger and leader's machine, with the simulator as their driver.

Its memory is gone when it dies; what the log has committed is not. A restarted one begins with a snapshot of its ledger, as
old as the replicated log's compaction left it, and applies the rest again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, assert_never

from coordinator.assembler import assemble_from_store
from coordinator.events import (
    Answer,
    AssembleCut,
    BecameLeader,
    CloseConnection,
    CommandAmbiguous,
    CommandApplied,
    CommandRefused,
    CutAssembled,
    Disconnected,
    EpochUnreadable,
    FenceFailed,
    FenceRaised,
    ForsakeManifest,
    LeaderKnown,
    LostLeadership,
    ManifestFailed,
    ManifestForsaken,
    ManifestRefused,
    ManifestStored,
    MessageArrived,
    ParticipantConnected,
    Probe,
    Probed,
    Propose,
    RaiseFence,
    ReadEpoch,
    Send,
    SetTimer,
    SnapshotsUnreadable,
    StoreManifest,
    TimerFired,
)
from coordinator.fences import fence_document, read_epoch_from_store
from coordinator.ledger import Ledger, encode_command
from coordinator.machine import Leader
from coordinator.policy import PolicySettings
from protocol.digests import fence_key, manifest_key
from protocol.errors import ObjectConflict
from protocol.ids import Epoch, Instant
from protocol.messages import Register, decode_to_coordinator, encode_control
from simulations.mutants import on
from simulations.oracles.rot import check_noticed
from simulations.prng import stream
from simulations.world import Process, Timer

if TYPE_CHECKING:
    from coordinator.events import Effect, Event
    from protocol.errors import StoreError
    from simulations.cluster import SimulatedCluster
    from simulations.control import ControlLine
    from simulations.options import Options

COMPACTED_EVERY: Final = 32
"""Entries between two compactions."""
_BEFORE_PROPOSE: Final = frozenset({"start", "reports", "seal", "commit", "abort", "forsake", "rollback"})
"""Commands with points of the protocol around them; asked, never iterated."""


_APPLIED: Final = _BEFORE_PROPOSE | {"restored"}


class CoordinatorLife(Process):
    """One process of a coordinator."""

    def __init__(self, cluster: SimulatedCluster, name: str, number: int, dump: tuple[str, int] | None) -> None:
        """Start.

        Args:
            cluster: Where it lives.
            name: Of the coordinator.
            number: Of this life, from 1.
            dump: Snapshot of a ledger and how many entries are in it.
        """
        super().__init__(cluster.world, stream(cluster.options.seed, f"coordinator:{name}"), name)
        self.cluster = cluster
        options = cluster.options
        self.ledger = Ledger(cluster.name)
        self.applied = 0
        if dump is not None:
            self.ledger.load(dump[0])
            self.applied = dump[1]
        self._compacted = self.applied
        self._client = f"{name}.{number}"
        self._answered: set[int] = set()
        """Numbers of its own commands whose attempt has ended; asked, never iterated."""
        self.machine = Leader(
            self.ledger,
            coordinator=name,
            client=self._client,
            policy=PolicySettings(
                kind="periodic",
                interval_ns=options.interval_ns,
                pause_ns=options.pause_ns,
                deadline_ns=options.deadline_ns,
                max_concurrent=options.max_concurrent,
                recovery=_policy_word(options),
                durability="turn" if options.turns else "epoch",
                takeover_after_ns=options.takeover_ns,
                max_rollbacks=0,
                fallback="refuse" if options.refuse and not on("policy-ignored") else "newest-good",
            ),
            lease_ns=options.lease_ns,
            fences=cluster.fences,
            fork=None if cluster.forked is None else cluster.forked.fork,
        )
        self.lines: dict[int, ControlLine] = {}
        self.leads_in: int | None = None
        """Term of the leadership that the machine knows of."""
        self._timer: Timer | None = None
        self._events: list[Event] = []
        self._running = False

    # --- feeding ------------------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Give the machine an event, now or right after the one that it is handling."""
        events = self._events
        events.append(event)
        if self._running:
            return
        self._running = True
        step, note = self.machine.step, self.cluster.trace.note
        try:
            while events and self.alive:
                event = events.pop(0)
                effects = step(event, Instant(self.now))
                note(self.now, self.name, type(event).__name__, event, b"%d" % len(effects))
                for effect in effects:
                    self._carry_out(effect)
                    if self.is_gone():
                        return
        finally:
            self._running = False

    # --- the log ------------------------------------------------------------------------------------------------------

    def apply_through(self, index: int) -> None:
        """Apply entries of the log up to this many."""
        log = self.cluster.log
        commands, entries = log.commands, log.entries
        while self.alive and self.applied < index and not log.isolated.get(self.name):
            command = commands[self.applied]
            result = log.result_of(self.ledger.apply(entries[self.applied]))
            self.applied += 1
            self.cluster.ghost.entry_applied(self, command, result)
            if self.machine.leading and result["ok"] and command["kind"] in _APPLIED:
                self.point(f"{command['kind']}.applied")
                if self.is_gone():
                    return
            client, number = command["id"]
            if client == self._client:
                self._answered.add(number)
            self.feed(CommandApplied(id=(client, number), result=result))

    def entries_arrived(self, index: int) -> None:
        """The log has grown to this many entries: into the journal, then apply them."""
        self.point("journal.before_sync")
        if self.alive:
            self.point("journal.after_sync")
        if self.alive:
            self.apply_through(index)
        if self.alive and self.applied - self._compacted >= COMPACTED_EVERY:
            self._compact()

    def _compact(self) -> None:
        """Write a snapshot of the ledger, and the journal without the entries in it; it may die at each step."""
        self._compacted = self.applied
        dump = (self.ledger.dump(), self.applied)
        for step in ("journal.before_rewrite", "file.before_rename", "file.after_rename", "journal.after_rewrite"):
            if step == "file.after_rename":
                self.cluster.keep_dump(self.name, dump)
            self.point(step)
            if self.is_gone():
                return

    def install(self, leader: CoordinatorLife) -> None:
        """The leader sends a snapshot in place of entries that it has compacted."""
        if self.leads_in is None and leader.alive and leader.applied > self.applied:
            self.ledger.load(leader.ledger.dump())
            self.applied = leader.applied
            self.cluster.probes.hit("log.snapshot_installed")

    def became_leader(self, term: int, index: int) -> None:
        """The group made this one its leader."""
        self.apply_through(index)
        if self.is_gone():
            return
        if self.leads_in is not None:
            self.leads_in = None
            self.feed(LostLeadership(leader=""))
        self.leads_in = term
        self.feed(BecameLeader(term=term))

    def lost_leadership(self, leader: str, term: int) -> None:
        """It hears that another one leads since a term."""
        if self.leads_in is not None and self.leads_in < term:
            self.leads_in = None
            self.feed(LostLeadership(leader=_url(leader)))
        else:
            self.leader_known(leader)

    def leader_known(self, leader: str) -> None:
        """It hears who leads."""
        if self.leads_in is None and leader != self.name:
            self.feed(LeaderKnown(leader=_url(leader)))

    def command_refused(self, identity: tuple[str, int]) -> None:
        """A proposal did not get into the log."""
        self.feed(CommandRefused(id=identity, reason="injected"))

    def command_ambiguous(self, identity: tuple[str, int]) -> None:
        """Nobody knows."""
        self.feed(CommandAmbiguous(id=identity, reason="no answer"))

    def command_overdue(self, identity: tuple[str, int]) -> None:
        """Whoever waits for a proposal's result stops waiting now."""
        if identity[1] not in self._answered:
            self.command_ambiguous(identity)

    # --- connections --------------------------------------------------------------------------------------------------

    def connected(self, line: ControlLine) -> None:
        """A participant has dialed."""
        self.lines[line.number] = line
        self.feed(ParticipantConnected(connection=line.number))

    def message_arrived(self, line: ControlLine, data: bytes) -> None:
        """A participant said something."""
        if line.number not in self.lines:
            return
        message = decode_to_coordinator(data)
        if isinstance(message, Register) and self.leads_in is None:
            self.feed(LeaderKnown(leader=_url(self.cluster.log.hint(self))))
        self.feed(MessageArrived(connection=line.number, message=message))

    def disconnected(self, line: ControlLine, reason: str) -> None:
        """A connection is gone."""
        if self.lines.pop(line.number, None) is not None:
            self.feed(Disconnected(connection=line.number, reason=reason))

    def point(self, name: str) -> None:
        """Pass a point of the protocol."""
        self.cluster.probes.point(name, self.name)

    # --- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(connection=connection, message=message):
                line = self.lines.get(connection)
                if line is not None:
                    line.to_participant(encode_control(message))
                    kind = type(message).__name__
                    if kind in _SENT:
                        self.point(_SENT[kind])
            case SetTimer(at=at):
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self.call_at(at, self._timer_fired)
            case Propose(command=command):
                if command.kind in _BEFORE_PROPOSE:
                    self.point(f"{command.kind}.before_propose")
                if self.alive:
                    text = encode_command(command, at=self.cluster.wall(self.name))
                    self.cluster.log.submit(self, text, command.id)
            case CloseConnection(connection=connection, reason=reason):
                line = self.lines.pop(connection, None)
                if line is not None:
                    self.feed(Disconnected(connection=connection, reason=reason))
                    line.close_from_coordinator(reason)
            case Probe():
                self.later(self.cluster.probe_travel(), self._probed, effect)
            case AssembleCut():
                self.later(self.cluster.store.delay(), self._assemble, effect, self.now)
            case StoreManifest():
                self.point("manifest.before_put")
                if self.alive:
                    key = manifest_key(Epoch(effect.epoch))
                    began = self.now
                    self.cluster.store.put(
                        self.name, key, effect.manifest, lambda error: self.enter(self._stored, effect, began, error)
                    )
            case ForsakeManifest():
                self.point("tombstone.before_put")
                if self.alive:
                    self.cluster.store.forsake(
                        self.name, effect, lambda taken, error: self.enter(self._forsaken, effect, taken, error)
                    )
            case RaiseFence():
                self.point("fence.before_raise")
                if self.alive and effect.fence != "store":
                    self.later(self.cluster.store.delay(), self._fence_sink, effect)
                elif self.alive:
                    key, data = fence_key(effect.incarnation), fence_document(self.cluster.name, effect.incarnation)
                    self.cluster.store.put(self.name, key, data, lambda error: self.enter(self._fenced, effect, error))
            case ReadEpoch():
                self.later(self.cluster.store.delay(), self._read_epoch, effect)
            case Answer():
                self.cluster.answers[effect.request] = effect.result
            case _:
                assert_never(effect)

    def _probed(self, order: Probe) -> None:
        found = self.cluster.found_at(self.name, order.address)
        self.feed(Probed(session=order.session, address=order.address, found=found))

    def _timer_fired(self) -> None:
        self._timer = None
        self.feed(TimerFired())

    def _fence_sink(self, order: RaiseFence) -> None:
        self.cluster.workload.raise_fence(order.incarnation)
        self._fenced(order, None)

    def _fenced(self, order: RaiseFence, error: StoreError | None) -> None:
        if error is not None:
            self.feed(FenceFailed(fence=order.fence, incarnation=order.incarnation, cause=str(error)))
            return
        self.point("fence.after_raise")
        if self.alive:
            self.feed(FenceRaised(fence=order.fence, incarnation=order.incarnation))

    def _read_epoch(self, order: ReadEpoch) -> None:
        store = self.cluster.store
        trouble = store.trouble(self.name, "get", f"manifest of epoch {order.epoch}")
        if trouble is not None:
            self.feed(EpochUnreadable(epoch=order.epoch, final=False, cause=str(trouble)))
            return
        self.feed(read_epoch_from_store(order.epoch, order.manifest, store.reader()))

    def _assemble(self, order: AssembleCut, began: int) -> None:
        self.point("cut.before_assemble")
        if not self.alive:
            return
        store = self.cluster.store
        event: Any
        trouble = None
        for participant, _ in order.request.snapshots:
            trouble = trouble or store.trouble(self.name, "get", f"snapshot of {participant}")
        if trouble is not None:
            event = SnapshotsUnreadable(epoch=order.epoch, participant="", cause=str(trouble))
        else:
            reader = store.reader()
            event = assemble_from_store(order.request, reader, self.cluster.keys)
            if reader.rotten:
                self.cluster.rotten_reads.add(order.epoch)
                self.cluster.probes.hit("rot.noticed_by_assembler")
            if isinstance(event, CutAssembled):
                check_noticed(self.cluster, order.epoch, reader.rotten)
        if isinstance(event, CutAssembled):
            self.point("cut.assembled")
            event = CutAssembled(
                epoch=event.epoch,
                previous=event.previous,
                manifest=event.manifest,
                digest=event.digest,
                took_ns=self.now - began,
            )
        if self.alive:
            self.feed(event)

    def _forsaken(self, order: ForsakeManifest, taken: bool, error: StoreError | None) -> None:  # noqa: FBT001 - of the store
        if error is not None:
            self.feed(ManifestFailed(epoch=order.epoch, cause=str(error)))
            return
        self.point("tombstone.after_put")
        if self.alive and taken:
            self.feed(ManifestForsaken(epoch=order.epoch, digest=order.digest))
        elif self.alive:
            self.cluster.probes.hit("epoch.found_stored")
            self.feed(ManifestStored(epoch=order.epoch, digest=order.digest))

    def _stored(self, order: StoreManifest, began: int, error: StoreError | None) -> None:
        if isinstance(error, ObjectConflict):
            self.cluster.probes.hit("manifest.refused")
            self.feed(ManifestRefused(epoch=order.epoch, cause=str(error)))
            return
        if error is not None:
            self.feed(ManifestFailed(epoch=order.epoch, cause=str(error)))
            return
        self.point("manifest.after_put")
        if self.alive:
            self.feed(ManifestStored(epoch=order.epoch, digest=order.digest, took_ns=self.now - began))


_SENT: Final = {"StartEpoch": "order.sent", "EpochCommitted": "commit.announced", "Restore": "restore.sent"}


def _policy_word(options: Options) -> Literal["auto", "manual", "off"]:
    if not options.recovery:
        return "off"
    return "manual" if options.by_hand else "auto"


def _url(name: str) -> str:
    return f"http://{name}" if name else ""
