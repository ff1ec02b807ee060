"""What a leader does: one machine per coordinator, leading or not.

`step` takes one event and returns the effects (`coordinator.events`). The machine reads the ledger of its own process,
which its driver keeps up to date, and never writes it: whatever must be agreed is a proposal.

A coordinator that the group has made its leader first proposes a `LeadCommand` and acts on nothing before that is
applied. From then on every command of an earlier term is refused by the ledger, so that what this machine sees there is
what it has to go on from, and a deposed leader that wakes up can do nothing (I20, D6). It then takes over what is open:
the same code runs for an epoch that it started itself (`coordinator.keeper`).

Every reported outcome of an own command is one of applied, refused (tried again), ambiguous (tried again with the same
id); see `coordinator.proposals`. The machine needs no wall clock: `now` is the driver's monotonic instant, and deadlines,
leases and the policy are measured on it alone (D15).

Parts: `coordinator.registry` (who is there), `coordinator.keeper` (epochs), `coordinator.recovery` (rollbacks),
`coordinator.policy` (when), `coordinator.desk` (what they share).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, assert_never

from coordinator import blame
from coordinator.desk import Desk
from coordinator.events import (
    AbortRequested,
    BecameLeader,
    CommandAmbiguous,
    CommandApplied,
    CommandRefused,
    CutAssembled,
    CutRefused,
    Disconnected,
    EpochRead,
    EpochTriggered,
    EpochUnreadable,
    FenceFailed,
    FenceRaised,
    LeaderKnown,
    LostLeadership,
    ManifestFailed,
    ManifestForsaken,
    ManifestRefused,
    ManifestStored,
    MessageArrived,
    ParticipantConnected,
    PinRequested,
    PolicyChanged,
    Probed,
    RestoreRequested,
    SetTimer,
    SnapshotsUnreadable,
    TimerFired,
    UnpinRequested,
)
from coordinator.keeper import EpochKeeper
from coordinator.ledger import (
    ConfigureCommand,
    FoundCommand,
    LeadCommand,
    PinCommand,
    StartCommand,
    UnpinCommand,
)
from coordinator.ledger.commands import sentence
from coordinator.ledger.records import SEALED, STARTED
from coordinator.policy import PolicySettings, earliest_start, is_struggling, next_start
from coordinator.recovery import RecoveryKeeper
from coordinator.registry import Registry
from protocol.ids import Instant
from protocol.limits import LEASE_NS
from protocol.messages import (
    EpochFailed,
    EpochProgress,
    EpochRequested,
    Heartbeat,
    Leave,
    LocalReport,
    Register,
    Restored,
    RestoreFailed,
    StreamBroken,
    TopologyAccepted,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.events import Effect, Event
    from coordinator.ledger import Ledger
    from protocol.forks import Fork
    from protocol.messages import ToCoordinator

_MS: Final = 1_000_000


class Leader:
    """One coordinator's machine.

    Args:
        ledger: This process's replica; read only.
        coordinator: This coordinator's id.
        client: Name for its commands, minted by the driver at each start of the process, such as ``c1.5f2a91c0``: a
            restarted process counts from 1 again and must not meet its own old numbers.
        policy: Configured if the ledger has none yet.
        lease_ns: A participant that is silent this long is lost.
        fences: Stores and sinks that acknowledge each incarnation before it is restored; the driver knows them by name.
        fork: What the store says that this cluster is a fork of.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        coordinator: str,
        client: str,
        policy: PolicySettings | None = None,
        lease_ns: int = LEASE_NS,
        fences: tuple[str, ...] = ("store",),
        fork: Fork | None = None,
    ) -> None:
        self._desk = Desk(ledger, client=client, lease_ns=lease_ns)
        self._keeper = EpochKeeper(self._desk)
        self._registry = Registry(self._desk, self._keeper.where)
        self._recovery = RecoveryKeeper(self._desk, fences)
        self._ledger = ledger
        self._fork = fork
        self._not_founded = "this fork has not been founded yet"
        """Why nobody is taken."""
        self._coordinator = coordinator
        self._first_policy = policy if policy is not None else PolicySettings()
        self._leader = ""
        """Where the leader is, for participants that come here."""
        self._active = False
        """The `LeadCommand` of this term is applied."""
        self._last_started = Instant(0)
        self._requested: str | None = None
        """Reason of an epoch that a participant asked for and that could not start yet."""
        self._timer: Instant | None = None

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        """This coordinator leads and has its own entry in the log: what it says is the group's word."""
        return self._active

    def waits_for(self, now: Instant) -> str:
        """Why the next epoch does not start, in words; "" if nothing holds it back but the policy."""
        return self._obstacle(now)[1]

    def why(self, epoch: int, now: Instant) -> dict[str, Any] | None:
        """What an epoch waits, or waited, for (`coordinator.blame.why`); None for an unknown one."""
        record = self._ledger.epoch(epoch)
        return None if record is None else blame.why(record, self._keeper.notes.get(epoch), now)

    def live(self, now: Instant) -> LiveNotes:
        """What only this leader knows, for the API."""
        return LiveNotes(self._desk, self._keeper, self._recovery, now)

    def statistics(self) -> dict[str, int]:
        """Counters for metrics."""
        return {
            "leading": int(self._active),
            "term": self._desk.term,
            "sessions": len(self._desk.attendance),
            "proposals": len(self._desk.proposals),
            "open_epochs": len(self._keeper.notes),
            "members_not_ready": len(self._desk.attendance.not_ready()),
            "struggling": int(is_struggling(self._ledger.policy, self._ledger.state.failures)),
        }

    # --- the step ---------------------------------------------------------------------------------------------------

    def step(self, event: Event, now: Instant) -> tuple[Effect, ...]:
        """Take one event.

        Args:
            event: See `coordinator.events`.
            now: Monotonic instant of the driver, nanoseconds; never less than in the step before.

        Returns:
            Effects, to be carried out from left to right.
        """
        if isinstance(event, MessageArrived) and self._is_small_talk(event, now):
            return self._desk.take_effects()
        self._take(event, now)
        desk = self._desk
        if len(desk.proposals):
            desk.out.extend(desk.proposals.retries(now))
        if self._active:
            self._keep(now)
            self._arm_timer(now)
        elif len(desk.proposals):
            self._arm_timer(now)
        return desk.take_effects()

    def _is_small_talk(self, event: MessageArrived, now: Instant) -> bool:
        """Heartbeats and progress: most of what arrives; nothing has to be looked at after them."""
        message = event.message
        if not self._active or not isinstance(message, Heartbeat | EpochProgress):
            return False
        attendee = self._desk.attendance.attendee_of(event.connection)
        if attendee is None or attendee.session != message.session:
            return False
        attendee.heard(now)
        if isinstance(message, Heartbeat):
            self._keeper.heartbeat(attendee.session, message.open_epochs)
        else:
            self._keeper.progress(attendee, message, now)
        return True

    def _take(self, event: Event, now: Instant) -> None:
        match event:
            case BecameLeader():
                self._stop("leadership begins anew")
                self._lead(event.term)
            case LostLeadership():
                self._leader = event.leader
                self._stop("not-leader")
            case LeaderKnown():
                self._leader = event.leader
            case CommandApplied():
                self._applied(event, now)
            case CommandRefused() | CommandAmbiguous():
                self._desk.proposals.attempt_failed(event.id, now)
            case ParticipantConnected():
                self._desk.attendance.connected(event.connection)
            case MessageArrived():
                self._message(event.connection, event.message, now)
            case Disconnected():
                self._registry.disconnected(event, now)
            case Probed():
                if self._active:
                    self._registry.probed(event, now)
            case CutAssembled():
                self._keeper.assembled(event, now)
            case CutRefused():
                self._keeper.refused(event, now)
            case SnapshotsUnreadable():
                self._keeper.unreadable(event, now)
            case ManifestStored():
                self._keeper.stored(event, now)
            case ManifestFailed():
                self._keeper.not_stored(event, now)
            case ManifestRefused():
                self._keeper.not_storable(event)
            case ManifestForsaken():
                self._keeper.forsaken(event)
            case TimerFired():
                self._timer = None
            case EpochTriggered():
                self._triggered(event, now)
            case AbortRequested():
                self._abort_requested(event, now)
            case PolicyChanged():
                self._policy_changed(event)
            case PinRequested() | UnpinRequested():
                self._name_requested(event)
            case FenceRaised():
                self._recovery.fence_raised(event, now)
            case FenceFailed():
                self._recovery.fence_failed(event, now)
            case EpochRead():
                self._recovery.epoch_read(event)
            case EpochUnreadable():
                self._recovery.epoch_unreadable(event, now)
            case RestoreRequested():
                if self._active:
                    self._recovery.requested(event)
                else:
                    self._desk.refuse(event.request, "not-leader", "this coordinator does not lead")
            case _:
                assert_never(event)

    # --- leadership -------------------------------------------------------------------------------------------------

    def _lead(self, term: int) -> None:
        assert term > 0
        self._desk.term = term
        stamp = self._desk.proposals.stamp()
        self._desk.propose(
            ("lead",), LeadCommand(id=stamp.id, done=stamp.done, term=term, coordinator=self._coordinator)
        )

    def _begin(self, now: Instant) -> None:
        """The own entry is applied."""
        self._active = True
        self._last_started = now
        self._requested = None
        self._registry.begin(now)
        self._keeper.begin()
        self._recovery.begin(now)
        if self._ledger.state.policy is None:
            stamp = self._desk.proposals.stamp()
            self._desk.propose(
                ("configure",),
                ConfigureCommand(id=stamp.id, done=stamp.done, term=self._desk.term, policy=self._first_policy),
            )
        fork = self._fork
        if fork is not None and self._ledger.state.origin is None:
            stamp = self._desk.proposals.stamp()
            self._desk.propose(
                ("found",),
                FoundCommand(
                    id=stamp.id,
                    done=stamp.done,
                    term=self._desk.term,
                    epoch=fork.epoch,
                    manifest=fork.manifest,
                    incarnation=fork.incarnation,
                    session=fork.session,
                    members=fork.members,
                    started_at=fork.started_at,
                    origin_cluster=fork.origin_cluster,
                    origin_manifest=fork.origin_manifest,
                    dry_run=fork.dry_run,
                ),
            )

    def _stop(self, reason: str) -> None:
        """Act no more. Participants have to go to the next leader, so they are hung up on."""
        was_leading = self._desk.term != 0
        self._active = False
        self._desk.term = 0
        self._registry.end()
        self._keeper.end()
        self._recovery.end()
        for request in self._desk.proposals.clear():
            self._desk.refuse(request, "unknown-outcome", "leadership was lost before the outcome was known")
        connections = self._desk.attendance.end()
        if was_leading:
            for connection in connections:
                self._desk.close(connection, reason)

    # --- commands ---------------------------------------------------------------------------------------------------

    def _applied(self, event: CommandApplied, now: Instant) -> None:
        proposal = self._desk.proposals.applied(event.id)
        result = event.result
        if proposal is not None and not result["ok"] and result["code"] == "stale-term" and proposal.request:
            self._desk.refuse(proposal.request, "not-leader", "another coordinator leads")
            proposal = None
        if 0 < self._desk.term < self._ledger.state.term:
            # Another leader has its entry in the log. The group will say so later; this one can do nothing any more.
            self._stop("not-leader")
            return
        if proposal is None:
            return
        if proposal.request:
            self._desk.answer(proposal.request, **result)
        match proposal.slot:
            case ("lead",):
                assert result["ok"], result  # a new id, and any other term is handled above
                self._begin(now)
            case ("register", participant):
                for session in self._registry.registered(participant, result, now):
                    self._brief(session, now)
            case ("announce", participant):
                self._registry.announced(participant, result)
            case ("mark-lost", session):
                self._registry.lost(int(session))
            case ("leave", session):
                self._registry.left_at_once(int(session))
            case ("topology",):
                if result["ok"]:
                    self._registry.topology_changed(list(result["left"]), now)
                    recovers = self._ledger.policy.recovery != "off"
                    if result["left"] and recovers and self._ledger.recovery_epoch and self._requested is None:
                        # Until the next commit a rollback would need the agents of those who have left, and find no host.
                        self._requested = "a participant has left"
            case ("reports",):
                self._keeper.reports_applied(result)
            case ("start",):
                if result["ok"]:
                    self._last_started = now
            case ("found",) if not result["ok"]:
                self._not_founded = (
                    f"the store says that this cluster is a fork, and the coordinators' folders say otherwise: {result['sentence']}; "
                    "start its coordinators with empty folders"
                )
            case ("rollback",):
                self._recovery.answered("rollback", result, now)
            case _:
                pass  # seal, commit, abort, forsake, configure, savepoint: the ledger says it all

    # --- messages ---------------------------------------------------------------------------------------------------

    def _message(self, connection: int, message: ToCoordinator, now: Instant) -> None:
        if not self._desk.attendance.is_open(connection):
            return
        if self._desk.term == 0:
            self._registry.refuse_not_leader(connection, self._leader)
            return
        if isinstance(message, Register):
            if self._fork is not None and self._ledger.state.origin is None:
                self._registry.refuse_for_now(connection, self._not_founded)
            else:
                self._registry.register(connection, message)
            return
        attendee = self._desk.attendance.attendee_of(connection)
        if attendee is None or attendee.session != message.session:
            self._stranger(connection, message.session)
            return
        attendee.heard(now)
        match message:
            case Heartbeat():
                self._keeper.heartbeat(attendee.session, message.open_epochs)
            case TopologyAccepted():
                self._desk.attendance.accepted(attendee.session, message.version)
            case EpochProgress():
                self._keeper.progress(attendee, message, now)
            case LocalReport():
                self._keeper.report(attendee, message, now)
            case EpochFailed():
                self._keeper.failed(attendee, message, now)
            case EpochRequested():
                self._requested = f"requested: {attendee.participant}: {message.reason}"
            case Restored():
                self._recovery.restored(attendee, message)
            case RestoreFailed():
                self._recovery.failed(attendee, message)
            case Leave():
                self._registry.leave(attendee)
            case StreamBroken():
                self._registry.broken(message, now)
            case _:
                assert_never(message)

    def _stranger(self, connection: int, session: int) -> None:
        """A message of a session that this connection has not registered."""
        record = self._ledger.by_session(session)
        if self._active and (record is None or not record.live):
            self._registry.fence_stranger(connection, session)
        else:
            # The session may be in its best health: its old connection speaks, or this leader has just begun. Fencing
            # would stop a process that only has to register again.
            self._desk.close(connection, "register first")

    # --- requests ---------------------------------------------------------------------------------------------------

    def _triggered(self, event: EpochTriggered, now: Instant) -> None:
        code, text = ("not-leader", "this coordinator does not lead") if not self._active else self._obstacle(now)
        if code:
            self._desk.refuse(event.request, code, text)
        else:
            self._start(event.reason or "manual", request=event.request)

    def _abort_requested(self, event: AbortRequested, now: Instant) -> None:
        record = self._ledger.epoch(event.epoch)
        if not self._active:
            self._desk.refuse(event.request, "not-leader", "this coordinator does not lead")
        elif record is None:
            self._desk.refuse(event.request, "unknown", f"there is no epoch {event.epoch}")
        elif record.state == SEALED and self._keeper.forsake(
            record, event.reason or "an operator asked for it", now, event.request
        ):
            pass  # answered when the store has agreed
        elif record.state != STARTED:
            code = "sealed" if record.abort is None else "ended"
            self._desk.refuse(event.request, code, f"epoch {event.epoch} is {record.state}")
        elif not self._keeper.abort(
            record,
            participant="",
            phase="operator",
            cause=event.reason or "an operator asked for it",
            now=now,
            request=event.request,
        ):
            self._desk.refuse(event.request, "busy", f"epoch {event.epoch} is being aborted already")

    def _policy_changed(self, event: PolicyChanged) -> None:
        if not self._active:
            self._desk.refuse(event.request, "not-leader", "this coordinator does not lead")
        elif self._desk.proposals.busy("configure"):
            self._desk.refuse(event.request, "busy", "another change of policy is on its way")
        else:
            stamp = self._desk.proposals.stamp()
            self._desk.propose(
                ("configure",),
                ConfigureCommand(id=stamp.id, done=stamp.done, term=self._desk.term, policy=event.policy),
                request=event.request,
            )

    def _name_requested(self, event: PinRequested | UnpinRequested) -> None:
        if not self._active:
            self._desk.refuse(event.request, "not-leader", "this coordinator does not lead")
        elif self._desk.proposals.busy("savepoint", event.name):
            self._desk.refuse(event.request, "busy", f"savepoint {event.name} is being changed already")
        else:
            stamp, term = self._desk.proposals.stamp(), self._desk.term
            command: PinCommand | UnpinCommand
            if isinstance(event, PinRequested):
                command = PinCommand(id=stamp.id, done=stamp.done, term=term, epoch=event.epoch, name=event.name)
            else:
                command = UnpinCommand(id=stamp.id, done=stamp.done, term=term, name=event.name)
            self._desk.propose(("savepoint", event.name), command, request=event.request)

    # --- the level --------------------------------------------------------------------------------------------------

    def _keep(self, now: Instant) -> None:
        """Do what is missing."""
        for session in self._registry.take_waiting(now):
            self._brief(session, now)
        self._registry.look_for_silent(now)
        self._registry.keep_probing(now)
        self._keeper.keep(now)
        self._recovery.keep(now)
        self._registry.keep_topology(now)
        due = self._due_at()
        asked = self._requested is not None
        wanted = asked or (due is not None and now >= due)
        if wanted and self._registry.ready and not self._obstacle(now)[0]:
            self._start(self._requested or "periodic")

    def _brief(self, session: int, now: Instant) -> None:
        """Tell a session that has registered what is going on."""
        self._recovery.brief(session)
        self._keeper.brief(session, now)

    def _due_at(self) -> Instant | None:
        """When the policy wants the next epoch."""
        if self._ledger.state.policy is None:
            return None
        return next_start(
            self._ledger.policy,
            last_started=self._last_started,
            last_ended=self._keeper.last_ended,
            failures=self._ledger.state.failures,
        )

    def _obstacle(self, now: Instant) -> tuple[str, str]:
        """Code and sentence of what forbids a start now; empty if nothing does."""
        ledger = self._ledger
        open_epochs = ledger.open_epochs()
        if len(open_epochs) >= ledger.policy.max_concurrent:
            return "epoch-open", f"epoch {open_epochs[0].epoch} is open"
        if self._desk.proposals.busy("start"):
            return "epoch-open", "an epoch is being started"
        if not ledger.state.topology.members and not ledger.topology_is_stale:
            return "no-members", "no participant is a member"
        not_ready = self._registry.not_ready()
        if not_ready:
            return "not-ready", not_ready
        earliest = earliest_start(ledger.policy, last_ended=self._keeper.last_ended)
        if now < earliest:
            return "too-soon", f"the minimum pause after the last epoch lasts another {(earliest - now) / 1e9:.2f} s"
        return "", ""

    def _start(self, reason: str, *, request: str = "") -> None:
        self._requested = None
        stamp = self._desk.proposals.stamp()
        self._desk.propose(
            ("start",),
            StartCommand(
                id=stamp.id,
                done=stamp.done,
                term=self._desk.term,
                topology=self._ledger.state.topology.version,
                reason=sentence(reason),
                deadline_ns=self._ledger.policy.deadline_ns,
            ),
            request=request,
        )

    # --- time -------------------------------------------------------------------------------------------------------

    def _arm_timer(self, now: Instant) -> None:
        # What is due already and could not be done waits for an event, not for time: a timer would spin.
        nearest: Instant | None = None
        for instant in self._instants(now):
            if instant > now and (nearest is None or instant < nearest):
                nearest = instant
        if nearest is not None and (self._timer is None or nearest < self._timer or self._timer <= now):
            self._timer = nearest
            self._desk.out.append(SetTimer(at=nearest))

    def _instants(self, now: Instant) -> Iterator[Instant]:
        retry = self._desk.proposals.next_retry()
        if retry is not None:
            yield retry
        if not self._active:
            return
        yield from self._registry.next_instant(now)
        yield from self._keeper.next_instant()
        yield from self._recovery.next_instant()
        due = self._due_at()
        if due is not None:
            yield due
        if self._requested is not None:
            yield earliest_start(self._ledger.policy, last_ended=self._keeper.last_ended)


class LiveNotes:
    """What only a leader knows of sessions and open epochs, at one instant."""

    def __init__(self, desk: Desk, keeper: EpochKeeper, recovery: RecoveryKeeper, now: Instant) -> None:
        self._desk = desk
        self._keeper = keeper
        self._recovery = recovery
        self._now = now

    def heartbeat_age_ms(self, session: int) -> int | None:
        """Since the session was last heard; None: not known here."""
        attendee = self._desk.attendance.attendee(session)
        return (self._now - attendee.heard_at) // _MS if attendee is not None else None

    def phase_of(self, epoch: int, participant: str) -> str | None:
        """The phase that a participant is in, as far as it told; None: not known here."""
        notes = self._keeper.notes.get(epoch)
        progress = notes.progress.get(participant) if notes is not None else None
        return progress.phase if progress is not None else None

    def elapsed_ms(self, epoch: int) -> int | None:
        """Monotonic time since an open epoch started; None: not known here."""
        notes = self._keeper.notes.get(epoch)
        return notes.elapsed_ns(self._now) // _MS if notes is not None else None

    def trouble(self, epoch: int) -> str:
        """What holds up an open epoch, as far as this leader tried; "" while all goes well."""
        notes = self._keeper.notes.get(epoch)
        return notes.trouble if notes is not None else ""

    def recovery(self) -> tuple[str, str]:
        """What recovery is doing and why (`RecoveryKeeper.state`)."""
        return self._recovery.state()

    def connected(self, session: int) -> bool:
        """Whether the session has a control connection here."""
        attendee = self._desk.attendance.attendee(session)
        return attendee is not None and attendee.connection is not None
