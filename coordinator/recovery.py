"""The leader's work on rollbacks: seeing the need, placing agents, fences, restore orders, the order to begin.

By level, like `coordinator.keeper`: after each event `keep` compares the ledger with this leader's notes and does what is
missing, so a leader that takes over in the middle of a restore runs the same code.

==========  ====================================================================================================
ledger      what is missing
==========  ====================================================================================================
need        the manifest of the epoch to go to is read; agents without a host are waited for, or adopted; then
            the rollback is proposed
fencing     each store and sink is told, again and again, until it has acknowledged
restoring   a restore order for each member that has not got its part; acknowledgements into the ledger
done        the topology of the incarnation is told: the order to begin (`coordinator.registry`)
failed      a need again, for an older epoch if an object was corrupt
==========  ====================================================================================================

The need: a member is lost, or a rollback has failed, or an operator asks. A suspicion only ever leads to a proposal; whoever
was suspected wrongly is a zombie of the old incarnation, and what it does has no effect (P6).

Until all agents have a host the others go on in the old incarnation: what they do then is given up, but one rollback is
enough for a whole cluster that comes back piece by piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.events import RaiseFence, ReadEpoch, RestoreRequested
from coordinator.ledger import (
    AdoptCommand,
    FenceCommand,
    RestoredCommand,
    RestoredNote,
    RollbackCommand,
    RollbackFailedCommand,
)
from coordinator.ledger.commands import command_bytes, sentence, word
from coordinator.ledger.records import COMMITTED, FAILED, FENCING, RESTORING, SEALED
from coordinator.placement import missing_in_words, place
from protocol.ids import Instant
from protocol.limits import (
    COMMAND_BYTES_MAX,
    DROPPED_MAX,
    RESTORE_DEADLINE_NS,
    ROLLBACK_PAUSE_NS,
    ROLLBACK_PAUSE_NS_MAX,
    STORE_RETRY_NS,
    STORE_RETRY_NS_MAX,
)
from protocol.messages import Restore
from protocol.renames import rename_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from coordinator.attendance import Attendee
    from coordinator.desk import Desk
    from coordinator.events import EpochRead, EpochUnreadable, FenceFailed, FenceRaised
    from coordinator.ledger import Ledger, RollbackRecord
    from protocol.messages import Restored, RestoreFailed

_BATCH_BYTES = COMMAND_BYTES_MAX - 1024
_CAUSE_CHARS = 200


class _Retry:
    """When something that failed may be tried again."""

    __slots__ = ("at", "pause_ns", "under_way")

    def __init__(self) -> None:
        self.under_way = False
        self.at = Instant(0)
        self.pause_ns = STORE_RETRY_NS

    def failed(self, now: Instant) -> None:
        self.under_way = False
        self.at = Instant(now + self.pause_ns)
        self.pause_ns = min(2 * self.pause_ns, STORE_RETRY_NS_MAX)


class RecoveryKeeper:
    """Rollbacks of one leader. Part of `Leader`; acts only while it leads.

    Args:
        desk: Shared with the other parts.
        fences: Names of the stores and sinks that must acknowledge each incarnation.
    """

    def __init__(self, desk: Desk, fences: tuple[str, ...]) -> None:
        self._desk = desk
        self._fences = fences
        self.waiting = ""
        """What a rollback that is needed waits for, in words; "" if none is, or it waits for nothing."""
        self._request: RestoreRequested | None = None
        self._tried = False
        """The epoch that the operator named could not be read now, whatever was known of it before."""
        self._forget()

    def _forget(self) -> None:
        self.waiting = ""
        self._ordered = 0
        """Incarnation whose restore orders this leader has sent."""
        self._ordered_at = Instant(0)
        self._raising: dict[str, _Retry] = {}
        self._restored: dict[str, RestoredNote] = {}
        """Said, not proposed yet."""
        self._failed: dict[str, tuple[int, str, str]] = {}
        """Participant -> session, kind and cause of a failure that was said and not proposed yet."""
        self._contents: dict[int, Mapping[str, str]] = {}
        """Epoch -> agent -> participant, of manifests that were read."""
        self._reading = _Retry()
        self._spoilt: dict[int, str] = {}
        """Epochs that cannot be restored -> why."""
        self._need_since: Instant | None = None
        self._gone_since: dict[str, Instant] = {}
        """Participant whose agents have no host -> since when this leader has waited for it."""
        self._begun_at = Instant(0)
        """When this leader saw the newest rollback begin."""
        self._seen = 0
        """Incarnation that this leader saw last."""

    @property
    def _ledger(self) -> Ledger:
        return self._desk.ledger

    # --- leadership ---------------------------------------------------------------------------------------------------

    def begin(self, now: Instant) -> None:
        """This leader's own entry is applied."""
        self._forget()
        self._seen = self._ledger.state.incarnation
        self._begun_at = now

    def end(self) -> None:
        """Leadership is over."""
        if self._request is not None:
            self._desk.refuse(self._request.request, "unknown-outcome", "leadership was lost on the way")
            self._request = None
        self._forget()

    # --- requests and messages ----------------------------------------------------------------------------------------

    def requested(self, event: RestoreRequested) -> None:
        """An operator wants the cluster back at an epoch."""
        desk = self._desk
        number = event.epoch
        record = None if not number else self._ledger.epoch(number)
        if self._request is not None or desk.proposals.busy("rollback"):
            desk.refuse(event.request, "busy", "another rollback is being prepared")
        elif number and (record is None or record.state != COMMITTED):
            text = f"there is no epoch {number}" if record is None else f"epoch {number} is {record.state}"
            desk.refuse(event.request, "unknown" if record is None else "not-committed", text)
        elif (running := self._ledger.rollback) is not None and self._is_under_way(running, event):
            # The same command again: its answer was lost, or somebody else was first.
            desk.answer(event.request, ok=True, outcome="begun", incarnation=running.incarnation, epoch=running.epoch)
        elif refusal := self._immovable(event.moves):
            desk.refuse(event.request, "not-placed", refusal)
        else:
            self._request = event
            self._tried = False

    def _is_under_way(self, record: RollbackRecord, event: RestoreRequested) -> bool:
        wanted = self._ledger.recovery_epoch if event.epoch is None else event.epoch
        # Who names no epoch and no agent takes the names as they are.
        takes_names = event.epoch is None and not event.renames
        if wanted:
            same_names = takes_names or tuple(sorted(event.renames)) == record.renames
        else:
            # To the start, a map comes on top of all that were ever carried out: is it what this rollback made of the names before?
            called, before = self._ledger.ancestry.called, record.incarnation - 1
            same_names = all(old != new and called(old, before) == new for old, new in event.renames)
        if self._ledger.lost_members():
            return False  # it cannot come through any more: asked again, it is another one
        return record.running and record.epoch == wanted and same_names and not event.moves

    def _immovable(self, moves: tuple[tuple[str, str], ...]) -> str:
        """Why an agent cannot go where it is to; "" if all can."""
        for agent, name in moves:
            target = self._ledger.state.participants.get(name)
            if target is None or not target.live:
                return f"{name} is not there"
            if self._ledger.host_of(agent) is None:
                return f"nobody hosts {agent}"
            if agent.partition("/")[0] not in target.kinds and agent not in target.declared:
                return f"{name} does not take agents of kind {agent.partition('/')[0]}"
        return ""

    def restored(self, attendee: Attendee, message: Restored) -> None:
        """A participant has its part; into the ledger with the next batch."""
        record = self._ledger.rollback
        if record is None or message.incarnation != record.incarnation or record.state != RESTORING:
            return
        member = record.members.get(attendee.participant)
        if member is None or member.session != attendee.session or member.restored:
            return
        note = RestoredNote(
            participant=attendee.participant,
            session=attendee.session,
            state=message.state,
            took_ns=message.took_ns,
        )
        try:
            # One note that the ledger cannot take would refuse the whole batch, and with it the others'.
            msgspec.convert(msgspec.to_builtins(note), RestoredNote)
        except (msgspec.ValidationError, OverflowError) as error:
            self._failed[attendee.participant] = (attendee.session, "unfit", f"its acknowledgement is none: {error}")
            return
        self._restored[attendee.participant] = note

    def failed(self, attendee: Attendee, message: RestoreFailed) -> None:
        """A participant cannot take its part: this incarnation never runs (I28)."""
        record = self._ledger.rollback
        if record is None or message.incarnation != record.incarnation or not record.running:
            return
        member = record.members.get(attendee.participant)
        if member is not None and member.session == attendee.session:
            self._failed[attendee.participant] = (attendee.session, message.kind, message.cause)

    def _propose_failed(self, record: RollbackRecord) -> None:
        desk = self._desk
        if not self._failed or desk.proposals.busy("rollback-failed"):
            return
        participant = min(self._failed)
        session, why, cause = self._failed.pop(participant)
        if why == "corrupt" and record.epoch:
            self._spoilt.setdefault(record.epoch, cause)
        stamp = desk.proposals.stamp()
        desk.propose(
            ("rollback-failed",),
            RollbackFailedCommand(
                id=stamp.id,
                done=stamp.done,
                term=desk.term,
                incarnation=record.incarnation,
                participant=participant,
                session=session,
                why=word(why),
                cause=sentence(cause),
            ),
        )

    def brief(self, session: int) -> None:
        """A session has just registered: if its part is missing, it gets its order."""
        record = self._ledger.rollback
        if record is None or record.state != RESTORING:
            return
        for name, member in sorted(record.members.items()):
            if member.session == session and not member.restored:
                self._order(name, session, record)

    # --- answers of the driver ----------------------------------------------------------------------------------------

    def fence_raised(self, event: FenceRaised, now: Instant) -> None:
        """A store or sink refuses what is older."""
        record = self._ledger.rollback
        retry = self._raising.get(event.fence)
        if record is None or record.incarnation != event.incarnation or retry is None:
            return
        desk = self._desk
        if record.fences.get(event.fence, True):
            return
        if desk.proposals.busy("fence", event.fence):
            retry.failed(now)  # the entry of an incarnation that is over is still on its way: say it again after it
            return
        stamp = desk.proposals.stamp()
        desk.propose(
            ("fence", event.fence),
            FenceCommand(
                id=stamp.id,
                done=stamp.done,
                term=desk.term,
                incarnation=record.incarnation,
                fence=event.fence,
                took_ns=max(0, now - self._begun_at),
            ),
        )

    def fence_failed(self, event: FenceFailed, now: Instant) -> None:
        """It did not: again, for as long as it takes; no order leaves before it has."""
        retry = self._raising.get(event.fence)
        if retry is not None and event.incarnation == self._ledger.state.incarnation:
            retry.failed(now)
            self.waiting = f"{event.fence} has not acknowledged incarnation {event.incarnation}: {event.cause}"

    def epoch_read(self, event: EpochRead) -> None:
        """A manifest is good."""
        self._reading = _Retry()
        self._contents = {event.epoch: event.agents}

    def epoch_unreadable(self, event: EpochUnreadable, now: Instant) -> None:
        """A manifest is not: an older epoch, if this one never will be."""
        self._reading.failed(now)
        if event.final:
            self._tried = True
            self._spoilt[event.epoch] = event.cause
            self._reading = _Retry()
        else:
            self.waiting = f"epoch {event.epoch} cannot be read: {event.cause}"

    def answered(self, slot: str, result: Mapping[str, object], now: Instant) -> None:
        """A `RollbackCommand` has its result; what was refused because something moved is prepared anew."""
        if slot == "rollback" and result["ok"] and result.get("outcome") == "begun":
            self._need_since = None
            self._gone_since.clear()
            self._begun_at = now

    # --- the level ----------------------------------------------------------------------------------------------------

    def keep(self, now: Instant) -> None:
        """Do what is missing."""
        state = self._ledger.state
        if self._seen != state.incarnation:
            self._seen = state.incarnation
            self._raising.clear()
            self._restored.clear()
            self._failed.clear()
        record = self._ledger.rollback
        if record is not None and record.state == FENCING:
            self._keep_fencing(record, now)
        elif record is not None and record.state == RESTORING:
            self._keep_restoring(record, now)
            self._propose_failed(record)
        cause = self._need()
        if not cause:
            self._need_since = None
            self.waiting = "" if record is None or not record.running else self.waiting
            return
        if self._need_since is None:
            self._need_since = now
        self._prepare(cause, now)

    def _keep_fencing(self, record: RollbackRecord, now: Instant) -> None:
        for fence, raised in sorted(record.fences.items()):
            retry = self._raising.setdefault(fence, _Retry())
            if not raised and not retry.under_way and now >= retry.at:
                retry.under_way = True
                self._desk.out.append(RaiseFence(fence=fence, incarnation=record.incarnation, epoch=record.epoch))

    def _keep_restoring(self, record: RollbackRecord, now: Instant) -> None:
        if self._ordered != record.incarnation:
            self._ordered = record.incarnation
            self._ordered_at = now
            self.waiting = ""
            for name, member in sorted(record.members.items()):
                if not member.restored:
                    self._order(name, member.session, record)
        self._propose_restored(record, now)
        if now >= self._ordered_at + RESTORE_DEADLINE_NS and not self._failed:
            missing = next((name for name, member in sorted(record.members.items()) if not member.restored), "")
            if missing:
                cause = f"it has not taken its part within {RESTORE_DEADLINE_NS // 1_000_000_000} s"
                self._failed[missing] = (record.members[missing].session, "store", cause)

    def _order(self, name: str, session: int, record: RollbackRecord) -> None:
        state = self._ledger.state
        self._desk.send(
            session,
            Restore(
                term=self._desk.term,
                session=session,
                incarnation=record.incarnation,
                epoch=record.epoch,
                manifest=record.manifest,
                newest_epoch=state.epoch,
                elapsed_ns=record.elapsed_ns,
                version=state.topology.version,
                members=state.topology.members,
                renames=record.renames,
                ancestry=self._ledger.ancestry,
                elsewhere=self._ledger.elsewhere(name),
                returns=bool(state.participants[name].before),
            ),
        )

    def _propose_restored(self, record: RollbackRecord, now: Instant) -> None:
        desk = self._desk
        if not self._restored or desk.proposals.busy("restored"):
            return
        batch: list[RestoredNote] = []
        size = 0
        for name in sorted(self._restored):
            size += command_bytes(self._restored[name])
            if size > _BATCH_BYTES and batch:
                break
            batch.append(self._restored.pop(name))
        stamp = desk.proposals.stamp()
        desk.propose(
            ("restored",),
            RestoredCommand(
                id=stamp.id,
                done=stamp.done,
                term=desk.term,
                incarnation=record.incarnation,
                restored=tuple(batch),
                took_ns=max(1, now - self._begun_at),
            ),
        )

    # --- the need -----------------------------------------------------------------------------------------------------

    def _need(self) -> str:
        """Why a rollback is needed now; "" if none is."""
        if self._request is not None:
            return self._request.reason or "an operator asked for it"
        ledger = self._ledger
        origin = ledger.state.origin
        if origin is not None and not ledger.state.rollbacks and not ledger.state.stopped:
            # Whatever the policy: without it nothing here ever runs.
            live = any(record.live for record in ledger.state.participants.values())
            return f"this cluster begins as a fork of epoch {origin.epoch} of {origin.cluster}" if live else ""
        if ledger.policy.recovery != "auto" or ledger.state.policy is None or ledger.state.stopped:
            return ""
        lost = ledger.lost_members()
        if lost:
            first = ledger.state.participants.get(lost[0].id)
            why = "" if first is None else first.cause or first.before
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            return f"{lost[0].id}{more} lost{': ' if why else ''}{why[:_CAUSE_CHARS]}"
        record = ledger.rollback
        if record is not None and record.state == FAILED:
            return f"{record.participant} could not be restored: {record.failure[:_CAUSE_CHARS]}"
        return ""

    def state(self) -> tuple[str, str]:
        """What recovery is doing, for people: ``running``, ``waiting``, ``restoring``, ``failed``, ``stopped`` and why."""
        ledger = self._ledger
        record = ledger.rollback
        if ledger.state.stopped:
            return "stopped", ledger.state.stopped
        if record is not None and record.running:
            return "restoring", self.waiting or record.cause
        cause = self._need()
        if cause:
            return "waiting", f"{cause}; {self.waiting}" if self.waiting else cause
        if record is not None and record.state == FAILED:
            return "failed", f"{record.participant}: {record.failure}"
        if ledger.policy.recovery == "manual" and ledger.lost_members():
            return "waiting", f"{ledger.lost_members()[0].id} is lost; an operator has to restore"
        return "running", ""

    def _prepare(self, cause: str, now: Instant) -> None:
        """Read, place, propose; as far as it goes now."""
        desk, ledger = self._desk, self._ledger
        if desk.proposals.busy("rollback") or any(each.state == SEALED for each in ledger.open_epochs()):
            return
        if self._request is None and now < self._not_before():
            self.waiting = "a pause after the last rollbacks"
            return
        suspected = desk.attendance.suspected()
        if suspected:
            # Back or lost within a second: one rollback for all that fail together.
            self.waiting = f"{suspected} is suspected"
            return
        epoch = self._choose()
        if epoch is None:
            return
        last = {agent: member.id for member in ledger.state.topology.members for agent in member.agents}
        agents: Mapping[str, str]
        if epoch:
            known = self._contents.get(epoch)
            if known is None:
                self._read(epoch, now)
                return
            agents = known
        else:
            agents = last
        names = self._names(epoch, agents)
        if names is None:
            return
        new = last.keys() - self._held(epoch, agents, names) if epoch else frozenset[str]()
        agents = {names.get(agent, agent): name for agent, name in agents.items()}
        dropped = self._dropped(epoch, agents)
        agents = {agent: name for agent, name in agents.items() if agent not in dropped}
        live = [record for record in ledger.participants() if record.live]
        takeover_ns = ledger.policy.takeover_after_ns
        given_up = {name: bool(takeover_ns) and now >= since + takeover_ns for name, since in self._gone_since.items()}
        adopted = ledger.state.adoptions
        placement = place(
            agents,
            ledger.participants(),
            given_up,
            adopted=adopted,
            last=last,
            new=new - agents.keys(),
            anybody=self._request is not None,
        )
        for name in placement.missing:
            self._gone_since.setdefault(name, now)
        if placement.missing and live and self._request is not None and self._request.allow_unclaimed:
            dropped = tuple(sorted({*dropped, *(agent for names in placement.missing.values() for agent in names)}))
            placement = placement._replace(missing={})
            if len(dropped) > DROPPED_MAX:
                self._give_up("not-placed", f"{len(dropped)} agents would be given up; at most {DROPPED_MAX} can be")
                return
        awaited = self._awaited(now)
        if placement.missing or awaited or not live:
            self._not_placed(missing_in_words(placement.missing) or awaited or "any participant")
            return
        moves = {} if self._request is None else dict(self._request.moves)
        present = frozenset(record.id for record in live)
        absent = sorted(name for name in moves.values() if name not in present)
        if absent:
            self._give_up("not-placed", f"{absent[0]} is not there any more")
            return
        moves = {agent: to for agent, to in moves.items() if (adopted.get(agent) or ledger.host_of(agent)) != to}
        if placement.adoptions or moves:
            self._adopt({**placement.adoptions, **_by_target(moves)}, move=bool(moves))
            return
        self.waiting = ""
        renames = names if epoch else self._since_the_start(names)
        self._propose(epoch, cause, now, renames=tuple(sorted(renames.items())), dropped=dropped)

    def _awaited(self, now: Instant) -> str:
        """Who may come back with its log of turns, so that nobody has to go back; also where the epoch does not know it. "": nobody."""
        ledger = self._ledger
        if self._request is not None or ledger.policy.durability != "turn":
            return ""
        absent = []
        for member in ledger.lost_members():
            record = ledger.state.participants.get(member.id)
            if record is None or record.live or record.damaged:
                return ""  # it came back without, or it never will with it
            absent.append(member.id)
        takeover_ns = ledger.policy.takeover_after_ns
        for name in absent:
            since = self._gone_since.setdefault(name, now)
            if not takeover_ns or now < since + takeover_ns:
                return f"{name}, which may have its log"
        return ""

    def _keeps(self) -> bool:
        """Whether names and losses of all rollbacks since the epoch are those of the next one, too.

        An operator who names an epoch says all of it anew. Everybody else goes on with what is.
        """
        request = self._request
        return request is None or (request.epoch is None and not request.renames)

    def _names(self, epoch: int, agents: Mapping[str, str]) -> Mapping[str, str] | None:
        """Old -> new, of those that the epoch holds, or that are here now where all go to the start; None: the request was refused."""
        request = self._request
        if self._keeps():
            return self._ledger.names_since(epoch, agents) if epoch else {}
        assert request is not None
        renames = dict(request.renames)
        hosted = {agent for each in self._ledger.participants() if each.live for agent in each.agents}
        problem = rename_problem(renames, agents, hosted)
        if problem:
            self._give_up("bad-map", problem)
            return None
        return renames

    def _held(self, epoch: int, agents: Iterable[str], names: Mapping[str, str]) -> frozenset[str]:
        """What agents that an epoch holds are called now, whatever an operator has said (`names`) that they are to be called."""
        called = names if self._keeps() else self._ledger.names_since(epoch, agents)
        return frozenset(called.get(agent, agent) for agent in agents)

    def _since_the_start(self, names: Mapping[str, str]) -> Mapping[str, str]:
        """First name of each agent that was ever renamed -> its name from now on.

        Args:
            names: Name now -> name from now on.
        """
        first = self._ledger.names_since(0, ())
        found = {old: names.get(now, now) for old, now in first.items()}
        for now, new in names.items():
            if now not in first.values():
                found.setdefault(now, new)
        return {old: new for old, new in found.items() if old != new}

    def _dropped(self, epoch: int, agents: Mapping[str, str]) -> tuple[str, ...]:
        if not self._keeps():
            return ()
        given_up = self._ledger.given_up_since(epoch)
        return tuple(sorted(agent for agent in given_up if agent in agents and self._ledger.host_of(agent) is None))

    def _give_up(self, code: str, text: str) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._desk.refuse(request.request, code, text)

    def _not_placed(self, what: str) -> None:
        self.waiting = f"no host for {what}"
        self._give_up("not-placed", f"no participant that is there hosts, or can take, {what}")

    def _adopt(self, adoptions: Mapping[str, tuple[str, ...]], *, move: bool) -> None:
        desk = self._desk
        if any(desk.proposals.busy("adopt", name) for name in self._ledger.state.participants):
            return  # What is not answered yet would be shared out once more, and unevenly.
        for name, agents in adoptions.items():
            size, part = 0, []
            for agent in agents:
                size += len(agent) + 3
                if size > _BATCH_BYTES:
                    break
                part.append(agent)
            stamp = desk.proposals.stamp()
            session = self._ledger.state.participants[name].session
            desk.propose(
                ("adopt", name),
                AdoptCommand(
                    id=stamp.id, done=stamp.done, term=desk.term, session=session, agents=tuple(part), move=move
                ),
            )

    def _propose(
        self,
        epoch: int,
        cause: str,
        now: Instant,
        *,
        renames: tuple[tuple[str, str], ...] = (),
        dropped: tuple[str, ...] = (),
    ) -> None:
        desk, state = self._desk, self._ledger.state
        request, self._request = self._request, None
        stamp = desk.proposals.stamp()
        wanted = self._ledger.recovery_epoch
        back = self._further_back(epoch, wanted) if wanted in self._spoilt and epoch != wanted else ""
        desk.propose(
            ("rollback",),
            RollbackCommand(
                id=stamp.id,
                done=stamp.done,
                term=desk.term,
                incarnation=state.incarnation + 1,
                epoch=epoch,
                membership=state.membership,
                cause=sentence(cause + back),
                automatic=request is None,
                fences=self._fences,
                newest=wanted if request is None or request.epoch is None else None,
                waited_ns=0 if self._need_since is None else now - self._need_since,
                renames=renames,
                dropped=dropped,
            ),
            request="" if request is None else request.request,
        )

    def _further_back(self, epoch: int, wanted: int) -> str:
        """How far back an older epoch is than the one that is damaged, and why."""
        epochs = self._ledger.state.epochs
        taken, instead = epochs.get(wanted), epochs.get(epoch)
        span = ""
        if taken is not None and instead is not None:
            between = sum(epoch < each.epoch <= wanted and each.state == COMMITTED for each in epochs.values())
            seconds = max(0, taken.started_at - instead.started_at) / 1e9
            span = (
                f", {between} epochs and {seconds:.0f} s further back"
                if between > 1
                else f", {seconds:.0f} s further back"
            )
        return f"; epoch {epoch} in place of {wanted}{span}: {self._spoilt[wanted][:_CAUSE_CHARS]}"

    def _choose(self) -> int | None:
        """The epoch to go to; None: there is nothing to go to any more."""
        ledger = self._ledger
        request = self._request
        for record in ledger.state.rollbacks.values():
            if record.why == "corrupt" and record.epoch:
                self._spoilt.setdefault(record.epoch, record.failure)  # a leader before this one saw it
        wanted = ledger.recovery_epoch if request is None or request.epoch is None else request.epoch
        named = request is not None and request.epoch is not None and not self._tried
        if wanted not in self._spoilt or named:
            return wanted
        if request is not None and request.epoch is not None:
            self._request = None
            self._desk.refuse(request.request, "corrupt", f"epoch {wanted} cannot be restored: {self._spoilt[wanted]}")
            return None
        # The newest good one of those that the present comes from: an operator's step back stays. The start is none of them: it
        # would give up everything that was ever released.
        older = [
            number
            for number in sorted(ledger.state.epochs, reverse=True)
            if number < wanted
            and ledger.state.epochs[number].state == COMMITTED
            and number not in self._spoilt
            and ledger.descends_from(number)
        ]
        refuses = ledger.policy.fallback == "refuse"
        if older and not refuses:
            return older[0]
        self.waiting = f"no committed epoch can be read; epoch {wanted}: {self._spoilt[wanted]}"
        if older:
            self.waiting = (
                f"epoch {wanted} cannot be restored, and the policy refuses to go back to {older[0]} by itself (fallback): "
                f"{self._spoilt[wanted]}"
            )
        if request is not None:
            self._request = None
            self._desk.refuse(request.request, "corrupt", self.waiting)
        return None

    def _read(self, epoch: int, now: Instant) -> None:
        record = self._ledger.epoch(epoch)
        assert record is not None
        if not self._reading.under_way and now >= self._reading.at:
            self._reading.under_way = True
            self._desk.out.append(ReadEpoch(epoch=epoch, manifest=record.manifest))

    def _not_before(self) -> Instant:
        """The pause that a crash loop gets: none before the second rollback of a window, then growing."""
        records = self._ledger.state.rollbacks
        if not records or self._need_since is None:
            return Instant(0)
        newest = records[max(records)]
        count = self._ledger.rollbacks_in_a_row(newest.started_at)
        if count < 2:
            return Instant(0)
        return Instant(self._need_since + min(ROLLBACK_PAUSE_NS << min(count - 2, 16), ROLLBACK_PAUSE_NS_MAX))

    # --- time ---------------------------------------------------------------------------------------------------------

    def next_instant(self) -> Iterator[Instant]:
        """When something here is due without any event."""
        for retry in self._raising.values():
            yield retry.at
        if self._ordered == self._ledger.state.incarnation:
            yield Instant(self._ordered_at + RESTORE_DEADLINE_NS)
        if self._need_since is None:
            return
        yield self._reading.at
        yield self._not_before()
        takeover_ns = self._ledger.policy.takeover_after_ns
        if takeover_ns:
            for since in self._gone_since.values():
                yield Instant(since + takeover_ns)


def _by_target(moves: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Participant -> agents that go to it."""
    targets = sorted(set(moves.values()))
    return {name: tuple(sorted(agent for agent, to in moves.items() if to == name)) for name in targets}
