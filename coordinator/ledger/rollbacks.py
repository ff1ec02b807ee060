"""The ledger's rules of rollbacks: which incarnation it is, what it began from, who has its part.

A rollback is the beginning of an incarnation. Its record goes ``fencing → restoring → done``, or ends as ``failed`` (a
participant cannot take its part) or ``superseded`` (the next rollback began). Rules:

* Incarnations only grow; the number of an epoch is never used again (I10): a rollback aborts what is started and waits for
  what is sealed, so that nothing released for a committed epoch is ever rolled back.
* It names sessions (rule 1): all that are live when it begins, each with the agents that it hosts then.
* Its restore orders may leave when all fences are acknowledged (rule 2, I23), and its agents may run when all members have
  their parts (I28). Both are states here, so any leader goes on from them.
* A member that is lost meanwhile leaves the record as it is, and it never gets done: the next rollback takes its place.

Source: model/cut.pml, processes C and P; RELIABILITY.md rules 1 to 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.ledger.records import (
    ABORTED,
    COMMITTED,
    DONE,
    FAILED,
    FENCING,
    JOINING,
    LEAVING,
    MEMBER,
    RESTORING,
    SEALED,
    STARTED,
    SUPERSEDED,
    AbortRecord,
    RestoreRecord,
    RollbackRecord,
    TopologyRecord,
)
from protocol.ancestry import Ancestry, Named
from protocol.limits import ROLLBACKS_REMEMBERED_MAX
from protocol.stays import elsewhere, note_stays
from protocol.streams import line_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.ledger.commands import (
        AdoptCommand,
        FenceCommand,
        RestoredCommand,
        RestoredNote,
        RollbackCommand,
        RollbackFailedCommand,
    )
    from coordinator.ledger.records import EpochRecord, LedgerState, ParticipantRecord
    from coordinator.policy import PolicySettings
    from protocol.messages import Member

Result = dict[str, Any]


def yes(**fields: Any) -> Result:  # noqa: ANN401 - JSON values
    """The result of what was done."""
    return {"ok": True, **fields}


def no(code: str, text: str, **fields: Any) -> Result:  # noqa: ANN401 - JSON values
    """The result of what was refused."""
    return {"ok": False, "code": code, "sentence": text, **fields}


def _hosts_in(members: Iterable[Member]) -> dict[str, str]:
    return {agent: member.id for member in members for agent in member.agents}


def _given_up(line: Iterable[RollbackRecord]) -> frozenset[str]:
    found: set[str] = set()
    for record in line:
        renames = dict(record.renames)
        found = {renames.get(agent, agent) for agent in found} | {*record.dropped}
    return frozenset(found)


def _over(record: RollbackRecord | RollbackCommand) -> frozenset[str]:
    """Names that nobody has after a rollback, and that others have heard of."""
    renames = dict(record.renames)
    return frozenset((*record.dropped, *(renames.keys() - renames.values())))


class RollbackRules:
    """Rules of the module; `coordinator.ledger.Ledger` is the only subclass."""

    state: LedgerState
    _hosts: dict[str, str]
    _joining_count: int
    _gone_count: int
    _ancestry: Ancestry | None
    """Of the incarnation that it names; None: not asked for yet."""

    # --- what the ledger provides -------------------------------------------------------------------------------------

    @property
    def policy(self) -> PolicySettings:
        """The policy in force."""
        raise NotImplementedError

    def open_epochs(self) -> tuple[EpochRecord, ...]:
        """Started and sealed ones, oldest first."""
        raise NotImplementedError

    def participants(self) -> tuple[ParticipantRecord, ...]:
        """All that are remembered, by id."""
        raise NotImplementedError

    def wanted_members(self) -> tuple[Member, ...]:
        """Members of the next topology."""
        raise NotImplementedError

    def _session_of(self, session: int) -> ParticipantRecord | Result:
        raise NotImplementedError

    def _end_aborted(self, record: EpochRecord, why: AbortRecord, *, at: int, took_ns: int) -> None:
        raise NotImplementedError

    def _membership_changed(self) -> None:
        raise NotImplementedError

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def rollback(self) -> RollbackRecord | None:
        """The rollback that began this incarnation, running or ended; None for the first incarnation."""
        return self.state.rollbacks.get(self.state.incarnation)

    @property
    def incarnation_begun(self) -> bool:
        """Agents may run in this incarnation. Before that no epoch starts and no topology changes."""
        record = self.rollback
        if record is None:
            # A fork has no agents before it has been taken to the epoch that it begins from.
            return self.state.origin is None
        return record.state == DONE

    @property
    def recovery_epoch(self) -> int:
        """The epoch that a rollback goes to now: the newest that was committed in this incarnation, or its own beginning.

        Not the newest of all: where an operator went back further than that, what came after was given up.
        """
        record = self.state.epochs.get(self.state.committed)
        if record is not None and record.incarnation == self.state.incarnation:
            return record.epoch
        return self.state.base

    @property
    def ancestry(self) -> Ancestry:
        """What this incarnation comes from, as far as rollbacks and their epochs are remembered."""
        if self._ancestry is None or self._ancestry.incarnation != self.state.incarnation:
            self._ancestry = self._find_ancestry()
        return self._ancestry

    def _find_ancestry(self) -> Ancestry:
        through: list[tuple[int, int]] = []
        known_from = self.state.incarnation
        while (record := self.state.rollbacks.get(known_from)) is not None:
            if not record.epoch:
                known_from = 1
                break
            base = self.state.epochs.get(record.epoch)
            if base is None:
                break
            through.append((base.incarnation, base.epoch))
            known_from = base.incarnation
        return Ancestry(
            incarnation=self.state.incarnation, through=tuple(through), known_from=known_from, named=self._beginnings()
        )

    def _beginnings(self) -> tuple[Named, ...]:
        records = self.state.rollbacks.values()
        if not any(record.renames for record in records):
            return ()
        found = []
        for record in records:
            base = self.state.epochs.get(record.epoch)
            if base is not None or not record.epoch:
                found.append(Named(record.incarnation, 0 if base is None else base.incarnation, record.renames))
        return tuple(found)

    def elsewhere(self, participant: str) -> dict[str, tuple[str, ...]]:
        """Of the agents that this incarnation has at a participant: where else they have run since its epoch (`protocol.stays`)."""
        record = self.state.participants.get(participant)
        if record is None or not self.state.stays:
            return {}
        base = self.state.epochs.get(self.state.base)
        return elsewhere(self.state.stays, record.agents, participant, 0 if base is None else base.incarnation)

    def descends_from(self, epoch: int) -> bool:
        """Whether what runs now comes from this epoch: no rollback has given it up by going back further.

        Rollbacks that are not remembered any more count as none.
        """
        record = self.state.epochs.get(epoch)
        return record is not None and all(
            epoch <= rollback.epoch
            for rollback in self.state.rollbacks.values()
            if rollback.incarnation > record.incarnation
        )

    def _line(self, epoch: int) -> list[RollbackRecord]:
        """The rollbacks that lie between an epoch and what runs now, oldest first; empty: it does not come from there.

        Args:
            epoch: 0: the start, as far as is remembered.
        """
        target = self.state.epochs.get(epoch)
        if target is None:
            return [] if epoch else self._line_of_all()
        found: list[RollbackRecord] = []
        incarnation = self.state.incarnation
        while incarnation > target.incarnation:
            record = self.state.rollbacks.get(incarnation)
            base = None if record is None else self.state.epochs.get(record.epoch)
            if record is None or base is None or base.incarnation < target.incarnation:
                return []
            found.insert(0, record)
            incarnation = base.incarnation
        return found

    def _line_of_all(self) -> list[RollbackRecord]:
        found: list[RollbackRecord] = []
        incarnation = self.state.incarnation
        while (record := self.state.rollbacks.get(incarnation)) is not None:
            found.insert(0, record)
            base = self.state.epochs.get(record.epoch)
            if base is None:
                break
            incarnation = base.incarnation
        return found

    def names_since(self, epoch: int, agents: Iterable[str]) -> dict[str, str]:
        """What agents are called now that were renamed since an epoch: name there, or first name since -> name now.

        Args:
            epoch: 0: the start.
            agents: Those that it holds.
        """
        names = {agent: agent for agent in agents}
        for record in self._line(epoch):
            renames = dict(record.renames)
            here = {*names.values()}
            for agent, name in names.items():
                names[agent] = renames.get(name, name)
            for old, new in renames.items():
                if old not in here:
                    names.setdefault(old, new)  # it had begun since
        return {agent: name for agent, name in names.items() if agent != name}

    def given_up_since(self, epoch: int) -> frozenset[str]:
        """Agents that rollbacks since an epoch have given up, by what they would be called now."""
        return _given_up(self._line(epoch))

    def _ever_over(self) -> frozenset[str]:
        """Names that an agent has had which was given up since, or renamed, as far as is remembered and what runs now comes from."""
        return frozenset(name for record in self._line_of_all() for name in _over(record))

    def lost_members(self) -> tuple[Member, ...]:
        """Members of the topology whose session has ended without a goodbye, by id."""
        if not self._gone_count:
            return ()
        found = []
        for member in self.state.topology.members:
            record = self.state.participants.get(member.id)
            if (
                record is None
                or not record.live
                or (record.session != member.session and (record.line or record.session) != line_of(member))
            ):
                found.append(member)
        return tuple(found)

    def rollbacks_in_a_row(self, at: int) -> int:
        """Automatic rollbacks in the policy's window before this wall clock, ns. Clocks that step only shift the window."""
        window = self.policy.rollback_window_ns
        return sum(
            record.automatic and abs(at - record.started_at) <= window for record in self.state.rollbacks.values()
        )

    # --- commands -----------------------------------------------------------------------------------------------------

    def _adopt(self, command: AdoptCommand) -> Result:
        record = self._session_of(command.session)
        if isinstance(record, dict):
            return record
        for agent in command.agents:
            host = self._hosts.get(agent)
            if host is not None and host != record.id and not command.move:
                return no("agent-taken", f"{agent} is hosted by {host}", agent=agent, host=host)
        for agent in command.agents:
            self.state.adoptions[agent] = record.id
        self.state.membership += 1
        return yes(participant=record.id, agents=len(command.agents))

    def _carry_out_adoptions(self, renames: Iterable[tuple[str, str]]) -> None:
        """Agents come to their new hosts, in the entry that takes everybody back to an epoch: nothing of them is lost.

        Whoever was to take an agent that gets another name does not: under the old one it would begin anew.
        """
        names = dict(renames)
        gone = names.keys() - {*names.values()}
        declared_by: dict[str, list[ParticipantRecord]] = {agent: [] for agent in self.state.adoptions}
        for participant in self.state.participants.values():
            for agent in participant.declared:
                if agent in declared_by:
                    declared_by[agent].append(participant)
        members = self.state.topology.members
        numbers = {agent: each.fresh for each in members for agent in each.agents if agent in declared_by}
        numbers.update(pair for each in members for pair in each.fresh_of if pair[0] in declared_by)
        leave: dict[str, set[str]] = {}
        fresh: dict[str, dict[int, list[str]]] = {}
        come: dict[str, set[str]] = {}
        for agent, name in sorted(self.state.adoptions.items()):
            if agent in gone:
                continue
            record = self.state.participants[name]
            host = self._hosts.get(agent)
            before = declared_by[agent]
            if host is not None and host != name:
                leave.setdefault(host, set()).add(agent)
                before = [*before, self.state.participants[host]]
            # Should no epoch hold it, it begins anew here as it did there, and not as one that was before.
            number = numbers.get(agent)
            if number is None:
                number = max((each.fresh_as(agent) for each in before), default=record.fresh_as(agent))
            fresh.setdefault(name, {}).setdefault(number, []).append(agent)
            come.setdefault(name, set()).add(agent)
            self._hosts[agent] = name
        # Host by host: a host may have twenty thousand agents, and all of them move when it is gone.
        for host, agents in leave.items():
            left = self.state.participants[host]
            left.agents = tuple(each for each in left.agents if each not in agents)
            left.adopted = tuple(each for each in left.adopted if each not in agents)
        for name, agents in come.items():
            record = self.state.participants[name]
            record.adopted = tuple(sorted(agents.union(record.adopted)))
            record.agents = tuple(sorted(agents.union(record.agents)))
            for number, named in fresh[name].items():
                record.name_fresh(named, number)
        self.state.adoptions = {}

    def _note_over(self, command: RollbackCommand) -> None:
        """Others have heard of these agents, and go on: should they begin anew, they are not the ones that were (`Member.fresh`).

        Once: one that has begun anew since, and is undone by this rollback, is the same one again.
        """
        over = _over(command).difference(*map(_over, self._line(command.epoch)))
        if not over:
            return
        for name in sorted(self.state.participants):
            participant = self.state.participants[name]
            # Whoever took over an agent of a name that two have exchanged may begin the one of them that the epoch does not hold yet.
            agents = over.intersection((*participant.declared, *participant.adopted))
            if agents:
                participant.name_fresh(agents, self._new_number())

    def _note_ended(self, epoch: int) -> None:
        """The same of agents that have left in order with a host that had taken them, unless going back to this epoch undoes that."""
        for name in sorted(self.state.participants):
            participant = self.state.participants[name]
            if participant.ended is not None and participant.ended < epoch:
                participant.begin_as_new(self._new_number())
            participant.ended = None

    def _new_number(self) -> int:
        self.state.session += 1  # a number that no session has
        return self.state.session

    def _drop_adoptions(self, participant: str, agents: tuple[str, ...]) -> None:
        """A host of agents has come or gone: what was to be adopted by it, or from nobody, is decided anew."""
        gone = [agent for agent, name in self.state.adoptions.items() if name == participant or agent in agents]
        for agent in sorted(gone):
            del self.state.adoptions[agent]

    def _begin_rollback(self, command: RollbackCommand) -> Result:
        state = self.state
        if command.incarnation != state.incarnation + 1:
            return no("incarnation-changed", f"the cluster is in incarnation {state.incarnation}")
        if command.membership != state.membership:
            return no("membership-changed", "who is live, or who hosts what, has changed since")
        sealed = [record for record in self.open_epochs() if record.state == SEALED]
        if sealed:
            return no(
                "sealed-open", f"epoch {sealed[0].epoch} is sealed: its commit comes first", epoch=sealed[0].epoch
            )
        if command.newest is not None and command.newest != self.recovery_epoch:
            return no("epoch-committed", f"epoch {self.recovery_epoch} has been committed since: it would be given up")
        base = state.epochs.get(command.epoch)
        if command.epoch and (base is None or base.state != COMMITTED):
            return no("not-committed", f"epoch {command.epoch} is {'not known' if base is None else base.state}")
        if not any(record.live for record in state.participants.values()):
            return no("no-members", "no participant is there to be restored")
        most = self.policy.max_rollbacks
        if command.automatic and most and self.rollbacks_in_a_row(command.at) >= most:
            seconds = self.policy.rollback_window_ns / 1e9
            state.stopped = f"{most} rollbacks within {seconds:g} s did not help; the next was for: {command.cause}"[
                :400
            ]
            return yes(outcome="stopped", sentence=state.stopped)

        ran = self.incarnation_begun
        before = self.rollback
        if before is not None:
            before.members = {}
            if before.running:
                before.state, before.ended_at = SUPERSEDED, command.at
        aborted = [record.epoch for record in self.open_epochs()]
        for record in self.open_epochs():
            assert record.state == STARTED
            why = AbortRecord(participant="", phase="rollback", cause=command.cause)
            self._end_aborted(record, why, at=command.at, took_ns=0)
            assert record.state == ABORTED
        hosts = _hosts_in(state.topology.members)
        self._carry_out_adoptions(command.renames)
        self._note_over(command)
        self._note_ended(command.epoch)
        for name in sorted(state.participants):
            participant = state.participants[name]
            # Who was about to leave is needed again, and says so again once it has its agents.
            if participant.state in (JOINING, LEAVING):
                participant.state = MEMBER
            participant.line, participant.streams, participant.resumed_from = 0, (), 0
        self._membership_changed()
        members = self.wanted_members()
        state.topology = TopologyRecord(version=state.topology.version + 1, members=members)
        self._joining_count = self._gone_count = 0
        self._membership_changed()
        if ran:
            note_stays(state.stays, hosts, _hosts_in(members), command.renames, state.incarnation)
        state.incarnation = command.incarnation
        state.base = command.epoch
        if not command.automatic:
            state.stopped = ""
        state.rollbacks[state.incarnation] = RollbackRecord(
            incarnation=state.incarnation,
            epoch=command.epoch,
            manifest="" if base is None else base.manifest,
            cause=command.cause,
            automatic=command.automatic,
            state=FENCING if command.fences else RESTORING,
            terms=(command.term,),
            topology=state.topology.version,
            fences=dict.fromkeys(sorted(command.fences), False),
            members={member.id: RestoreRecord(session=member.session) for member in members},
            members_count=len(members),
            elapsed_ns=0 if base is None else max(0, command.at - base.started_at),
            renames=command.renames,
            dropped=command.dropped,
            waited_ns=command.waited_ns,
            started_at=command.at,
        )
        for incarnation in sorted(state.rollbacks)[: max(0, len(state.rollbacks) - ROLLBACKS_REMEMBERED_MAX)]:
            del state.rollbacks[incarnation]
        return yes(
            outcome="begun",
            incarnation=state.incarnation,
            epoch=command.epoch,
            members=len(members),
            aborted=aborted,
        )

    def _fence(self, command: FenceCommand) -> Result:
        record = self.rollback
        if record is None or record.incarnation != command.incarnation:
            return no("incarnation-changed", f"the cluster is in incarnation {self.state.incarnation}")
        if command.fence not in record.fences:
            return no("unknown", f"incarnation {record.incarnation} has no fence {command.fence}")
        record.fences[command.fence] = True
        if record.state == FENCING and all(record.fences.values()):
            record.state = RESTORING
            record.fenced_ns = command.took_ns
        return yes(state=record.state)

    def _restored(self, command: RestoredCommand) -> Result:
        record = self.rollback
        if record is None or record.incarnation != command.incarnation:
            return no("incarnation-changed", f"the cluster is in incarnation {self.state.incarnation}")
        outcomes = [self._restored_one(record, note) for note in command.restored]
        if record.state == RESTORING and record.restored_count == record.members_count:
            record.state = DONE
            record.ended_at = command.at
            record.took_ns = command.took_ns or max(0, command.at - record.started_at)
        return yes(outcomes=outcomes, state=record.state)

    def _restored_one(self, record: RollbackRecord, note: RestoredNote) -> str:
        member = record.members.get(note.participant)
        if member is None or member.session != note.session or not note.state:
            return "foreign"
        if member.restored:
            return "duplicate"
        if record.state != RESTORING:
            return "late"
        member.state = note.state
        member.took_ns = note.took_ns
        record.restored_count += 1
        return "accepted"

    def _rollback_failed(self, command: RollbackFailedCommand) -> Result:
        record = self.rollback
        if record is None or record.incarnation != command.incarnation:
            return no("incarnation-changed", f"the cluster is in incarnation {self.state.incarnation}")
        member = record.members.get(command.participant)
        if member is None or member.session != command.session:
            return no("foreign", f"session {command.session} is not a member of incarnation {record.incarnation}")
        if not record.running:
            return no("ended", f"the rollback to incarnation {record.incarnation} is {record.state}")
        record.state = FAILED
        record.ended_at = command.at
        record.participant, record.session = command.participant, command.session
        record.why, record.failure = command.why, command.cause
        if command.why == "unfit":
            self.state.stopped = f"{command.participant} cannot take its part of epoch {record.epoch}: {command.cause}"[
                :400
            ]
        return yes(state=record.state)

    def _newcomer(self, participant: str) -> None:
        """A new session of this participant: if its last one could not take its part, this one may (other code)."""
        record = self.rollback
        if (
            record is not None
            and record.state == FAILED
            and record.why == "unfit"
            and record.participant == participant
        ):
            self.state.stopped = ""
