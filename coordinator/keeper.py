"""The leader's work on epochs: orders, reports, deadline, assembling, seal, manifest, commit, announcements.

It works by level, not by edge: after each event `keep` compares the ledger with the notes of this leader and does what
is missing. So a leader that takes over in the middle of an epoch runs the same code as the one that started it:

=========  ==================================================================================================
state      what is missing
=========  ==================================================================================================
started    start orders to members that have not reported; reports into the ledger; all in: assemble, then
           seal; deadline: abort, with whom and why
sealed     the members are told; the manifest is made (again: the same bytes), stored (create-only), then commit.
           It cannot be made any more: its key in the store is taken, then it is forsaken
ended      the members are told
=========  ==================================================================================================

A sealed epoch is not aborted: while the store fails its manifest is tried again for as long as it takes (`trouble` says so),
and healing the store heals the epoch. One thing heals by nothing: a new leader has to make the manifest again, and a local
snapshot that it is made from is damaged or gone. Such an epoch could not be restored anyway, and while it is open no other
starts and nothing is rolled back; so it is *forsaken*. Whoever led before may still have the right bytes, and a put under
way, therefore the store decides first: `ForsakeManifest` takes the manifest's key, create-only, or finds the manifest there.
Only what is taken ends in the ledger without a commit (`ForsakeCommand`); what is found there commits.

Assembling waits until no earlier epoch is merely started, because the manifest names the one before.

Differences from Chandy and Lamport: the collection of the parts, which they leave open, is this file's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.assembler import request_for
from coordinator.blame import judge_deadline, missing, waiting_notes
from coordinator.events import AssembleCut, ForsakeManifest, StoreManifest
from coordinator.ledger import (
    AbortCommand,
    AbortRecord,
    CommitCommand,
    ForsakeCommand,
    Report,
    ReportsCommand,
    SealCommand,
)
from coordinator.ledger.commands import command_bytes, sentence, word
from coordinator.ledger.records import COMMITTED, SEALED, STARTED
from coordinator.progress import EpochNotes, begin_notes
from protocol.limits import COMMAND_BYTES_MAX
from protocol.messages import AbortEpoch, EpochCommitted, EpochSealed, ReportRefused, StartEpoch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.attendance import Attendee
    from coordinator.desk import Desk
    from coordinator.events import (
        CutAssembled,
        CutRefused,
        ManifestFailed,
        ManifestForsaken,
        ManifestRefused,
        ManifestStored,
        SnapshotsUnreadable,
    )
    from coordinator.ledger import EpochRecord, Result
    from coordinator.ledger.commands import WaitingNote
    from protocol.ids import Instant
    from protocol.messages import EpochFailed, EpochProgress, LocalReport

_BATCH_BYTES = COMMAND_BYTES_MAX - 1024
"""For the reports of one command; the rest is its frame."""


class EpochKeeper:
    """All open epochs of one leader. Part of `Leader`; acts only while it leads."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.notes: dict[int, EpochNotes] = {}
        """Of epochs that this leader knows as open, oldest first."""
        self.last_ended: Instant | None = None
        """When this leader saw an epoch end."""

    def begin(self) -> None:
        """This leader's own entry is applied."""
        self.notes.clear()
        self.last_ended = None

    def end(self) -> None:
        """Leadership is over: whoever waits for an epoch to be forsaken hears of it from the next leader."""
        for notes in self.notes.values():
            self._answer_forsaking(notes, "unknown-outcome", "leadership was lost on the way")

    # --- messages of participants -----------------------------------------------------------------------------------

    def report(self, attendee: Attendee, message: LocalReport, now: Instant) -> None:
        """A local snapshot is durable; its report goes into the ledger with the next batch."""
        desk = self._desk
        record = desk.ledger.epoch(message.epoch)
        if record is None or not record.open:
            self._tell_end(attendee.session, message.epoch, is_report=True)
            return
        member = record.members.get(attendee.participant)
        if (
            member is None
            or member.session != attendee.session
            or message.incarnation != record.incarnation
            or (member.snapshot and member.snapshot != message.snapshot)
        ):
            self._refuse_report(attendee.session, message.epoch, "it is not of this epoch's member and session")
            return
        if member.snapshot:  # a repetition is answered again, with what there is to say
            if record.state == SEALED:
                self._tell_sealed(attendee.session, record.epoch)
            return
        notes = self._notes_of(record, now)
        report = Report(
            epoch=record.epoch,
            participant=attendee.participant,
            session=attendee.session,
            incarnation=message.incarnation,
            snapshot=message.snapshot,
            state_bytes=message.state_bytes,
            new_bytes=message.new_bytes,
            in_flight=message.in_flight,
            timings={word(phase): ns for phase, ns in sorted(message.timings.items())},
            waited_ns=notes.elapsed_ns(now),
        )
        try:
            # One report that the ledger cannot take would refuse the whole batch, and with it the others'.
            msgspec.convert(msgspec.to_builtins(report), Report)
        except (msgspec.ValidationError, OverflowError) as error:
            self._refuse_report(attendee.session, message.epoch, f"it cannot be recorded: {error}")
            return
        notes.waiting_reports[attendee.participant] = report

    def failed(self, attendee: Attendee, message: EpochFailed, now: Instant) -> None:
        """A participant cannot complete its part: the epoch aborts at once (pitfall 43)."""
        record = self._desk.ledger.epoch(message.epoch)
        if record is None or not record.open:
            self._tell_end(attendee.session, message.epoch, is_report=False)
            return
        member = record.members.get(attendee.participant)
        if member is None or member.session != attendee.session or record.state != STARTED:
            return
        self.abort(
            record,
            participant=attendee.participant,
            phase=word(message.phase) or "unknown",
            cause=message.cause,
            now=now,
        )

    def progress(self, attendee: Attendee, message: EpochProgress, now: Instant) -> None:
        """A participant says how far it is."""
        record = self._desk.ledger.epoch(message.epoch)
        if record is None or record.state != STARTED:
            return
        member = record.members.get(attendee.participant)
        if member is not None and member.session == attendee.session:
            sources = tuple(name for name in message.open_channels if name in record.members)
            self._notes_of(record, now).told(attendee.participant, message.phase, sources, now)

    def heartbeat(self, session: int, open_epochs: tuple[int, ...]) -> None:
        """A participant says which epochs it believes open: it is told of those that have ended."""
        for number in open_epochs[:16]:
            record = self._desk.ledger.epoch(number)
            if record is None or not record.open:
                self._tell_end(session, number, is_report=False)

    def brief(self, session: int, now: Instant) -> None:
        """Tell a participant that has just registered where the epochs stand."""
        state = self._desk.ledger.state
        for number in sorted({state.committed, *range(state.ended_through + 1, state.epoch + 1)}):
            record = state.epochs.get(number)
            member = record.members.get(self._participant(session)) if record is not None else None
            if record is None or member is None or member.session != session:
                continue
            if record.state == STARTED and not member.snapshot:
                self._order(session, record, self._notes_of(record, now), now)
            elif record.state == SEALED:
                self._tell_sealed(session, number)
            elif not record.open:
                self._tell_end(session, number, is_report=False)

    # --- answers of the driver --------------------------------------------------------------------------------------

    def assembled(self, event: CutAssembled, now: Instant) -> None:
        """The cut passed."""
        notes = self.notes.get(event.epoch)
        if notes is None:
            return
        notes.assembling = False
        record = self._desk.ledger.epoch(event.epoch)
        assert record is not None
        if record.state == SEALED and event.digest != record.manifest:
            # Objects and entries are the same, so the bytes must be; if they are not, nothing may be written (I9). Another
            # build, or another secret, may have made them.
            notes.refused("", f"the manifest made here is {event.digest}, but {record.manifest} is sealed", now)
            return
        notes.assembled = event
        notes.refusals, notes.refused_since = 0, None
        notes.trouble = ""
        notes.phases["assemble"] = event.took_ns
        notes.retry_at = None

    def refused(self, event: CutRefused, now: Instant) -> None:
        """The cut did not pass: final for a started epoch; a sealed one, whose objects were good once, is given some time."""
        notes = self.notes.get(event.epoch)
        record = self._desk.ledger.epoch(event.epoch)
        if notes is None or record is None:
            return
        notes.assembling = False
        if record.state == STARTED:
            notes.failed(event.cause, now)
            self.abort(record, participant=event.participant, phase="assemble", cause=event.cause, now=now)
        elif notes.forsaking is None:
            notes.refused(event.participant, event.cause, now)

    def unreadable(self, event: SnapshotsUnreadable, now: Instant) -> None:
        """The store did not give an object: again, within the deadline; after the seal for as long as it takes.

        One that is gone from a store that answers is as good as damaged.
        """
        notes = self.notes.get(event.epoch)
        record = self._desk.ledger.epoch(event.epoch)
        if notes is None or record is None:
            return
        notes.assembling = False
        if event.gone and record.state == SEALED and notes.forsaking is None:
            notes.refused(event.participant, event.cause, now)
        else:
            notes.failed(event.cause, now)

    def stored(self, event: ManifestStored, now: Instant) -> None:
        """The manifest is durable."""
        notes = self.notes.get(event.epoch)
        record = self._desk.ledger.epoch(event.epoch)
        if notes is None or record is None or event.digest != record.manifest:
            return
        notes.storing = False
        notes.stored = True
        notes.forsaking = None
        notes.trouble = ""
        self._answer_forsaking(notes, "sealed", f"the manifest of epoch {event.epoch} is in the store: it commits")
        notes.retry_at = None
        notes.phases["manifest"] = event.took_ns

    def not_stored(self, event: ManifestFailed, now: Instant) -> None:
        """The manifest could not be stored, or not be forsaken: again, for as long as it takes."""
        notes = self.notes.get(event.epoch)
        if notes is not None:
            notes.storing = False
            notes.failed(event.cause, now)
            if notes.forsaking is not None and notes.forsaking.phase == "operator":
                # Asked while the store did not answer: as soon as it does there may be nothing to be forsaken any more.
                notes.forsaking = None
            self._answer_forsaking(notes, "store", f"the store has to agree, and did not: {event.cause}")

    def not_storable(self, event: ManifestRefused) -> None:
        """Something else lies under the key and stays there."""
        notes = self.notes.get(event.epoch)
        if notes is not None:
            notes.storing = False
            notes.trouble = event.cause
            notes.forsaking = notes.forsaking or AbortRecord(participant="", phase="manifest", cause=event.cause)
            notes.retry_at = None

    def forsaken(self, event: ManifestForsaken) -> None:
        """No manifest of this epoch will ever be in the store."""
        notes = self.notes.get(event.epoch)
        record = self._desk.ledger.epoch(event.epoch)
        if notes is not None and record is not None and event.digest == record.manifest:
            notes.storing = False
            notes.forsaken = True
            # This leadership may have another reason by now, or none yet: the order may be an earlier one's.
            why = notes.trouble or "its key in the store is taken: it gets no manifest any more"
            notes.forsaking = notes.forsaking or AbortRecord(participant="", phase="manifest", cause=why)
            notes.retry_at = None

    def reports_applied(self, result: Result) -> None:
        """The ledger has judged a batch of reports."""
        for outcome in result.get("outcomes", ()):
            record = self._desk.ledger.epoch(outcome["epoch"])
            member = record.members.get(outcome["participant"]) if record is not None else None
            if member is None or outcome["outcome"] in ("accepted", "duplicate"):
                continue  # what follows from an accepted one is told with the end of the epoch
            if outcome["outcome"] == "late":
                self._tell_end(member.session, outcome["epoch"], is_report=True)
            else:
                self._refuse_report(member.session, outcome["epoch"], f"it is {outcome['outcome']}")

    # --- the level --------------------------------------------------------------------------------------------------

    def keep(self, now: Instant) -> None:
        """Do what is missing for every open epoch, and announce those that have ended."""
        ledger = self._desk.ledger
        for number in list(self.notes):
            record = ledger.epoch(number)
            if record is None or not record.open:
                self._announce_end(number)
                self.last_ended = now
        earlier_started = False
        for record in ledger.open_epochs():
            notes = self._notes_of(record, now)
            if record.state == STARTED:
                self._keep_started(record, notes, now, earlier_started=earlier_started)
                earlier_started = True
            else:
                self._keep_sealed(record, notes, now)
        self._propose_reports()

    def where(self, participant: str, now: Instant) -> tuple[int, tuple[WaitingNote, ...], int]:
        """Where the members of a participant's newest open epoch are; see `Registry`."""
        for record in reversed(self._desk.ledger.open_epochs()):
            notes = self.notes.get(record.epoch)
            if record.state == STARTED and participant in record.members and notes is not None:
                # The one that is asked about comes first: the others may only be waiting for its markers.
                names = sorted(missing(record), key=lambda name: (name != participant, name))
                return record.epoch, waiting_notes(names, notes, now), len(names)
        return 0, (), 0

    def _notes_of(self, record: EpochRecord, now: Instant) -> EpochNotes:
        """This leader's notes; on first sight of the epoch its members get their orders."""
        notes = self.notes.get(record.epoch)
        if notes is None:
            notes = begin_notes(record, now)
            self.notes[record.epoch] = notes
            if record.state == STARTED:
                for _, member in sorted(record.members.items()):
                    if not member.snapshot:
                        self._order(member.session, record, notes, now)
        return notes

    def _order(self, session: int, record: EpochRecord, notes: EpochNotes, now: Instant) -> None:
        self._desk.send(
            session,
            StartEpoch(
                term=self._desk.term,
                session=session,
                incarnation=record.incarnation,
                epoch=record.epoch,
                topology=record.topology,
                deadline_ns=max(1, notes.deadline - now),
            ),
        )

    def _keep_started(self, record: EpochRecord, notes: EpochNotes, now: Instant, *, earlier_started: bool) -> None:
        if record.complete:
            if notes.complete_at is None:
                notes.complete_at = now
                notes.phases["collect"] = notes.elapsed_ns(now)
            if notes.assembled is not None and notes.assembled.previous != self._desk.ledger.state.sealed_manifest:
                notes.assembled = None  # refused as `chain-moved`: made for another place in the chain
            if not earlier_started:
                self._assemble_or_seal(record, notes, now)
        if now >= notes.deadline and not self._desk.proposals.busy("abort", str(record.epoch)):
            verdict = judge_deadline(record, notes, heard_at=self._heard_at, now=now)
            stamp = self._desk.proposals.stamp()
            self._desk.propose(
                ("abort", str(record.epoch)),
                AbortCommand(
                    id=stamp.id,
                    done=stamp.done,
                    term=self._desk.term,
                    epoch=record.epoch,
                    participant=verdict.participant,
                    phase=verdict.phase,
                    cause=sentence(f"deadline of {record.deadline_ns / 1e9:g} s: {verdict.cause}"),
                    took_ns=notes.elapsed_ns(now),
                    waiting=verdict.waiting,
                    waiting_count=verdict.waiting_count,
                ),
            )

    def _assemble_or_seal(self, record: EpochRecord, notes: EpochNotes, now: Instant) -> None:
        desk = self._desk
        if notes.assembled is None:
            self._assemble(record, notes, now)
            return
        if desk.proposals.busy("seal", str(record.epoch)) or desk.proposals.busy("abort", str(record.epoch)):
            return
        notes.seal_asked_at = now
        stamp = desk.proposals.stamp()
        desk.propose(
            ("seal", str(record.epoch)),
            SealCommand(
                id=stamp.id,
                done=stamp.done,
                term=desk.term,
                epoch=record.epoch,
                manifest=notes.assembled.digest,
                previous=notes.assembled.previous,
                took_ns=notes.elapsed_ns(now),
                phases=dict(notes.phases),
            ),
        )

    def _assemble(self, record: EpochRecord, notes: EpochNotes, now: Instant) -> None:
        refused = self._desk.proposals.busy("abort", str(record.epoch))
        if not notes.assembling and not refused and notes.may_try(now):
            notes.assembling = True
            self._desk.out.append(AssembleCut(epoch=record.epoch, request=request_for(self._desk.ledger.state, record)))

    def _keep_sealed(self, record: EpochRecord, notes: EpochNotes, now: Instant) -> None:
        desk = self._desk
        if not notes.seal_told:
            notes.seal_told = True
            if notes.seal_asked_at is not None:
                notes.phases["seal"] = now - notes.seal_asked_at
            for _, member in sorted(record.members.items()):
                self._tell_sealed(member.session, record.epoch)
        if notes.forsaken:
            self._propose_forsake(record, notes, now)
        elif notes.forsaking is not None and not notes.stored:
            if not notes.storing and notes.may_try(now):
                notes.storing = True
                request = request_for(desk.ledger.state, record)
                desk.out.append(ForsakeManifest(epoch=record.epoch, digest=record.manifest, request=request))
        elif notes.assembled is None and not notes.stored:
            self._assemble(record, notes, now)
        elif not notes.stored:
            assert notes.assembled is not None
            if not notes.storing and notes.may_try(now):
                assert notes.assembled.digest == record.manifest
                notes.storing = True
                desk.out.append(
                    StoreManifest(epoch=record.epoch, manifest=notes.assembled.manifest, digest=record.manifest)
                )
        elif desk.ledger.open_epochs()[0] is record and not desk.proposals.busy("commit", str(record.epoch)):
            stamp = desk.proposals.stamp()
            desk.propose(
                ("commit", str(record.epoch)),
                CommitCommand(
                    id=stamp.id,
                    done=stamp.done,
                    term=desk.term,
                    epoch=record.epoch,
                    manifest=record.manifest,
                    took_ns=notes.elapsed_ns(now),
                    phases=dict(notes.phases),
                ),
            )

    def _propose_forsake(self, record: EpochRecord, notes: EpochNotes, now: Instant) -> None:
        desk, why = self._desk, notes.forsaking
        if desk.proposals.busy("forsake", str(record.epoch)):
            return
        assert why is not None
        stamp = desk.proposals.stamp()
        desk.propose(
            ("forsake", str(record.epoch)),
            ForsakeCommand(
                id=stamp.id,
                done=stamp.done,
                term=desk.term,
                epoch=record.epoch,
                manifest=record.manifest,
                participant=why.participant,
                phase=why.phase,
                cause=sentence(why.cause),
                took_ns=notes.elapsed_ns(now),
            ),
            request=notes.forsake_request,
        )
        notes.forsake_request = ""

    def forsake(self, record: EpochRecord, cause: str, now: Instant, request: str) -> bool:
        """An operator wants a sealed epoch to end; False if nothing is wrong with it: it is about to commit."""
        notes = self._notes_of(record, now)
        if notes.stored or not notes.trouble:
            return False
        self._answer_forsaking(notes, "busy", "somebody else asked for the same")
        why = f"{cause}; it was sealed, and: {notes.trouble}"
        notes.forsaking = AbortRecord(participant="", phase="operator", cause=why)
        notes.forsake_request = request
        notes.retry_at = None
        return True

    def _answer_forsaking(self, notes: EpochNotes, code: str, text: str) -> None:
        request, notes.forsake_request = notes.forsake_request, ""
        if request:
            self._desk.refuse(request, code, text)

    def abort(
        self, record: EpochRecord, *, participant: str, phase: str, cause: str, now: Instant, request: str = ""
    ) -> bool:
        """Propose to abort; False if that is on its way already."""
        desk = self._desk
        if desk.proposals.busy("abort", str(record.epoch)):
            return False
        notes = self._notes_of(record, now)
        names = missing(record)
        stamp = desk.proposals.stamp()
        desk.propose(
            ("abort", str(record.epoch)),
            AbortCommand(
                id=stamp.id,
                done=stamp.done,
                term=desk.term,
                epoch=record.epoch,
                participant=participant,
                phase=phase,
                cause=sentence(cause),
                took_ns=notes.elapsed_ns(now),
                waiting=waiting_notes(names, notes, now),
                waiting_count=len(names),
            ),
            request=request,
        )
        return True

    def _propose_reports(self) -> None:
        """The reports that wait, in one entry as far as they fit. One batch on its way gathers the next."""
        desk = self._desk
        if desk.proposals.busy("reports"):
            return
        batch: list[Report] = []
        size = 0
        for number in sorted(self.notes):
            waiting = self.notes[number].waiting_reports
            for name in sorted(waiting):
                size += command_bytes(waiting[name])
                if size > _BATCH_BYTES and batch:
                    break
                batch.append(waiting.pop(name))
        if batch:
            stamp = desk.proposals.stamp()
            desk.propose(
                ("reports",),
                ReportsCommand(id=stamp.id, done=stamp.done, term=desk.term, reports=tuple(batch)),
            )

    # --- telling ----------------------------------------------------------------------------------------------------

    def _announce_end(self, number: int) -> None:
        request = self.notes.pop(number).forsake_request
        record = self._desk.ledger.epoch(number)
        if request:  # it came when the entry that ends the epoch was on its way
            self._desk.answer(request, ok=True, epoch=number)
        for _, member in sorted(record.members.items()) if record is not None else ():
            self._tell_end(member.session, number, is_report=False)

    def _tell_end(self, session: int, number: int, *, is_report: bool) -> None:
        """Tell a session how an epoch ended; a report that came too late is refused beside."""
        desk = self._desk
        state = desk.ledger.state
        record = desk.ledger.epoch(number)
        if record is not None and record.state == COMMITTED:
            desk.send(
                session,
                EpochCommitted(
                    term=desk.term,
                    session=session,
                    epoch=number,
                    manifest=record.manifest,
                    ended_through=state.ended_through,
                    kept=desk.ledger.kept_epochs(),
                ),
            )
            return
        if number > state.epoch:
            self._refuse_report(session, number, "there is no such epoch")
            return
        why = record.abort if record is not None else None
        reason = f"{why.phase}: {why.cause}" if why is not None else "it ended long ago"
        if is_report:
            self._refuse_report(session, number, f"epoch {number} was aborted: {reason}")
        desk.send(
            session,
            AbortEpoch(
                term=desk.term,
                session=session,
                epoch=number,
                reason=sentence(reason),
                ended_through=state.ended_through,
            ),
        )

    def _tell_sealed(self, session: int, number: int) -> None:
        self._desk.send(session, EpochSealed(term=self._desk.term, session=session, epoch=number))

    def _refuse_report(self, session: int, number: int, reason: str) -> None:
        self._desk.send(
            session,
            ReportRefused(term=self._desk.term, session=session, epoch=number, reason=sentence(reason)),
        )

    # --- small things -----------------------------------------------------------------------------------------------

    def next_instant(self) -> Iterator[Instant]:
        """When something here is due without any event."""
        for notes in self.notes.values():
            yield notes.deadline
            if notes.retry_at is not None:
                yield notes.retry_at

    def _heard_at(self, session: int) -> Instant | None:
        attendee = self._desk.attendance.attendee(session)
        return attendee.heard_at if attendee is not None else None

    def _participant(self, session: int) -> str:
        attendee = self._desk.attendance.attendee(session)
        return attendee.participant if attendee is not None else ""
