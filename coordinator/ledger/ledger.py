"""The replicated state machine of the coordinators.

Every replica applies the same commands in the same order, and every one of them gets the same state and gives the same
results. Therefore `apply`:

* never raises, whatever it is given: pysyncobj would run a raising entry again for ever, on some replicas only
  (RAFT_MQTT.md A8). Malformed input gives an error result and changes nothing;
* is all or nothing: each command is checked to its end before its first change;
* reads no clock and no randomness and never iterates in hash or insertion order;
* answers a command that was applied before with its recorded result.

Applying an entry only changes state. Orders are given by the leader's machine, for what is still open.

Results are JSON objects: ``{"ok": true, ...}`` or ``{"ok": false, "code": ..., "sentence": ...}``. Codes:

======================  ===============================================================================================
``malformed``           not a command (also: too large, not ASCII, unknown kind, field out of range)
``unsupported-version`` of a later build
``stale-id``            this id was answered and forgotten
``stale-term``          the proposer does not lead (any more)
``id-taken``            another process holds the participant's live session
``agent-taken``         a live participant hosts that agent
``fenced``              the session, or the incarnation, is not one that can go on
``durability``          a participant was started with another durability than the cluster's; or it is to be changed while
                        participants are there
``full``                `PARTICIPANTS_MAX` are live, a participant has more agents than are taken, or there are
                        `SAVEPOINTS_MAX` savepoints
``not-announced``       the announcement that this one goes on from is not there (any more): begin anew
``unknown``             no such session, epoch or savepoint
``ended``               the session or epoch has ended already
``epoch-open``          open epochs forbid it; ``epoch`` names the oldest
``topology-changed``    the proposal was made for another topology version
``topology-stale``      joins, leaves or losses wait for the next topology
``members-lost``        a rollback comes before any other topology
``rollback-open``       the incarnation has not begun: its rollback is running, or has failed
``incarnation-changed`` another rollback has begun
``membership-changed``  who is live, or who hosts what, has changed since a rollback was prepared
``sealed-open``         a sealed epoch is to be committed before a rollback
``not-committed``       a rollback to an epoch that is not, or a name for one
``name-taken``          the savepoint of that name is another epoch; ``epoch`` says which
``topology-unchanged``  the current topology is the wanted one
``no-members``          nobody is a member
``incomplete``          reports are missing
``sealed``              the epoch is sealed and not to be aborted, or was sealed with another manifest
``not-sealed``          an epoch that is not sealed is to be committed or forsaken
``earlier-open``        epochs are sealed and committed in order; ``epoch`` names the one that comes first
``chain-moved``         `previous` is not the manifest of the epoch sealed before
======================  ===============================================================================================

Epochs are sealed and committed in the order of their numbers (I10), so that the chain of manifests has one order and
`previous` is settled at the seal, whoever leads. A sealed epoch that is forsaken drops out of it: the next one to be sealed
follows the one before, and one that was sealed already names a manifest that never was.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, assert_never

import msgspec
from blake3 import blake3

from coordinator.ledger.commands import (
    COMMAND_VERSION,
    VERSIONS,
    AbortCommand,
    AdoptCommand,
    AnnounceCommand,
    Command,
    CommitCommand,
    ConfigureCommand,
    FenceCommand,
    ForsakeCommand,
    FoundCommand,
    LeadCommand,
    LeaveCommand,
    MarkLostCommand,
    PinCommand,
    RegisterCommand,
    Report,
    ReportsCommand,
    RestoredCommand,
    RollbackCommand,
    RollbackFailedCommand,
    SealCommand,
    StartCommand,
    TopologyCommand,
    UnpinCommand,
    to_ascii_json,
)
from coordinator.ledger.records import (
    ABORTED,
    COMMITTED,
    JOINING,
    LEAVING,
    LEDGER_FORMAT,
    LEFT,
    LOST,
    MEMBER,
    SAVEPOINTS_FORMAT,
    SEALED,
    STARTED,
    AbortRecord,
    AnnouncedRecord,
    ClientRecord,
    EpochRecord,
    LedgerState,
    MemberRecord,
    OriginRecord,
    ParticipantRecord,
    TopologyRecord,
)
from coordinator.ledger.rollbacks import Result, RollbackRules
from coordinator.ledger.rollbacks import no as _no
from coordinator.ledger.rollbacks import yes as _yes
from coordinator.ledger.savepoints import SavepointRules
from coordinator.policy import UNCOUNTED_PHASES, PolicySettings
from protocol.errors import RecoveryError
from protocol.limits import (
    AGENTS_PER_PARTICIPANT_MAX,
    ANNOUNCED_MAX,
    CLIENTS_REMEMBERED_MAX,
    COMMAND_BYTES_MAX,
    EPOCH_HISTORY_MAX,
    EPOCH_MEMBER_ROWS_MAX,
    LEDGER_RESULTS_REMEMBERED_MAX,
    PARTICIPANTS_ENDED_MAX,
    PARTICIPANTS_MAX,
)
from protocol.streams import line_of

if TYPE_CHECKING:
    from protocol.messages import Member
    from protocol.streams import Resumption


class _Head(msgspec.Struct):
    """Enough of a command to say what is wrong with it."""

    kind: str
    v: int = COMMAND_VERSION


class _Dump(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A snapshot of the ledger."""

    state: LedgerState
    clients: list[tuple[str, ClientRecord]]
    """Longest unused first."""


_commands: Final[msgspec.json.Decoder[Command]] = msgspec.json.Decoder(Command)
_heads: Final = msgspec.json.Decoder(_Head)
_dumps: Final = msgspec.json.Decoder(_Dump)
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
"""In JSON these stand inside strings only, where an escape means the same."""


class Ledger(RollbackRules, SavepointRules):
    """One replica of the ledger.

    Attributes:
        state: For reading. It changes only in `apply` and is replaced in `load`.
    """

    def __init__(self, cluster: str) -> None:
        self.state = LedgerState(cluster=cluster)
        self._clients: dict[str, ClientRecord] = {}
        self._wanted: tuple[Member, ...] | None = None
        self._stale: bool | None = None
        self._ancestry = None
        self._derive()

    # --- the log ----------------------------------------------------------------------------------------------------

    def apply(self, command_json: str) -> str:
        """Apply one entry of the log.

        Args:
            command_json: From `encode_command`, or anything else.

        Returns:
            The result as JSON. Equal on all replicas. Never raises.
        """
        command = _decode(command_json)
        if isinstance(command, dict):
            return _result_text(command)
        client_name, number = command.id
        client = self._clients.get(client_name)
        if client is not None:
            recorded = client.results.get(number)
            if recorded is not None:
                return recorded
            if number <= client.floor:
                return _result_text(_no("stale-id", f"command {number} of {client_name} was answered and forgotten"))
        result = self._fenced(command) or self._execute(command)
        if not result["ok"] and result["code"] == "stale-term" and command.term < self.state.term:
            # Not remembered: terms only grow, so it is refused for ever, and a deposed leader costs no memory. One of a
            # term that has not begun is remembered: the same command must not take effect when it comes again later.
            return _result_text(result)
        text = _result_text(result)
        self._remember(command, text)
        return text

    def dump(self) -> str:
        """The whole state as canonical ASCII JSON; equal on replicas that applied the same log.

        The group takes it on the thread that sends Raft's signs of life, so it must be fast: megabytes through Python's
        own `json` take longer than an election timeout. Only dictionaries that do not grow in order are sorted here; all
        others are filled in order (members, timings, phases) and keep it over `load`.
        """
        state = msgspec.structs.replace(
            self.state,
            participants=dict(sorted(self.state.participants.items())),
            announced=dict(sorted(self.state.announced.items())),
            adoptions=dict(sorted(self.state.adoptions.items())),
            epochs=dict(sorted(self.state.epochs.items())),
            savepoints=dict(sorted(self.state.savepoints.items())),
            format=SAVEPOINTS_FORMAT if self.state.savepoints else LEDGER_FORMAT,
        )
        clients = [
            (name, ClientRecord(floor=client.floor, results=dict(sorted(client.results.items()))))
            for name, client in self._clients.items()
        ]
        text = msgspec.json.encode(_Dump(state=state, clients=clients)).decode()
        return text if text.isascii() else _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)

    def load(self, text: str) -> None:
        """Take the state of a `dump`.

        Raises:
            RecoveryError: Not a dump of this cluster's ledger that this build can read; nothing has changed.
        """
        try:
            dump = _dumps.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError, ValueError) as error:
            raise RecoveryError(f"ledger snapshot of {len(text)} characters cannot be read: {error}") from None
        if dump.state.format not in (LEDGER_FORMAT, SAVEPOINTS_FORMAT):
            known = f"{LEDGER_FORMAT} and {SAVEPOINTS_FORMAT}"
            raise RecoveryError(f"ledger snapshot has format {dump.state.format}; this build reads {known}")
        if dump.state.cluster != self.state.cluster:
            raise RecoveryError(f"ledger snapshot is of cluster {dump.state.cluster!r}, not {self.state.cluster!r}")
        self.state = dump.state
        self._clients = dict(dump.clients)
        self._derive()

    def digest(self) -> str:
        """``b3:`` hash of `dump`: equal on replicas that applied the same log (I21)."""
        return f"b3:{blake3(self.dump().encode('ascii')).hexdigest()}"

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def policy(self) -> PolicySettings:
        """The policy in force."""
        return self.state.policy if self.state.policy is not None else PolicySettings()

    def epoch(self, number: int) -> EpochRecord | None:
        """The record of an epoch; None if there is none (any more)."""
        return self.state.epochs.get(number)

    def open_epochs(self) -> tuple[EpochRecord, ...]:
        """Started and sealed ones, oldest first."""
        return tuple([self.state.epochs[number] for number in self._open]) if self._open else ()

    def newest_committed(self) -> EpochRecord | None:
        """The newest committed epoch."""
        return self.state.epochs.get(self.state.committed)

    def by_session(self, session: int) -> ParticipantRecord | None:
        """The participant whose newest session this is."""
        participant = self._by_session.get(session)
        return None if participant is None else self.state.participants[participant]

    def participants(self) -> tuple[ParticipantRecord, ...]:
        """All that are remembered, by id."""
        return tuple(record for _, record in sorted(self.state.participants.items()))

    def host_of(self, agent: str) -> str | None:
        """The live participant that hosts this agent."""
        return self._hosts.get(agent)

    def wanted_members(self) -> tuple[Member, ...]:
        """Members of the next topology: all who joined and stay, by id."""
        if self._wanted is None:
            self._wanted = tuple(
                record.member()
                for _, record in sorted(self.state.participants.items())
                if record.state in (JOINING, MEMBER)
            )
        return self._wanted

    @property
    def topology_is_stale(self) -> bool:
        """Joins, leaves or losses wait for the next topology."""
        if self._stale is None:
            # Ten thousand that join, or are lost, one by one must not each cost a comparison of all.
            surely = self._joining_count > 0 or self._gone_count > 0
            self._stale = surely or self.wanted_members() != self.state.topology.members
        return self._stale

    # --- inside -----------------------------------------------------------------------------------------------------

    def _derive(self) -> None:
        """Build what is not part of the dump."""
        state = self.state
        self._ancestry = None
        self._open = sorted(number for number, record in state.epochs.items() if record.open)
        self._members_most = max((record.members_count for record in state.epochs.values()), default=0)
        """Members of any epoch since then, at most."""
        self._by_session = {record.session: name for name, record in sorted(state.participants.items())}
        self._hosts = {
            agent: name for name, record in sorted(state.participants.items()) if record.live for agent in record.agents
        }
        self._live_count = sum(record.live for record in state.participants.values())
        self._joining_count = sum(record.state == JOINING for record in state.participants.values())
        members = {record.session for record in state.participants.values() if record.state == MEMBER}
        self._gone_count = sum(member.session not in members for member in state.topology.members)
        self._derive_names()
        self._forget_derived()

    def _forget_derived(self) -> None:
        self._wanted = None
        self._stale = None

    def _membership_changed(self) -> None:
        self.state.membership += 1
        self._forget_derived()

    def _remember(self, command: Command, text: str) -> None:
        name, number = command.id
        client = self._clients.pop(name, None) or ClientRecord()
        self._clients[name] = client  # to the end: the longest unused stands first
        client.results[number] = text
        floor = max(client.floor, min(command.done, number - 1))
        for answered in sorted(client.results):
            if answered > floor and len(client.results) <= LEDGER_RESULTS_REMEMBERED_MAX:
                break
            del client.results[answered]
            floor = max(floor, answered)
        client.floor = floor
        while len(self._clients) > CLIENTS_REMEMBERED_MAX:
            del self._clients[next(iter(self._clients))]

    def _fenced(self, command: Command) -> Result | None:
        """Refuse a command of a proposer that does not lead."""
        state = self.state
        if isinstance(command, LeadCommand):
            if command.term > state.term or (command.term == state.term and command.coordinator == state.leader):
                return None
        elif command.term == state.term and state.term > 0:
            return None
        return _no(
            "stale-term",
            f"command of term {command.term}; {state.leader or 'nobody'} leads in term {state.term}",
            term=state.term,
        )

    def _execute(self, command: Command) -> Result:
        match command:
            case LeadCommand():
                return self._lead(command)
            case ConfigureCommand():
                return self._configure(command)
            case FoundCommand():
                return self._found(command)
            case AnnounceCommand():
                return self._announce(command)
            case RegisterCommand():
                return self._register(command)
            case MarkLostCommand():
                return self._mark_lost(command)
            case LeaveCommand():
                return self._leave(command)
            case TopologyCommand():
                return self._change_topology(command)
            case StartCommand():
                return self._start(command)
            case ReportsCommand():
                return _yes(outcomes=[self._report(report, command) for report in command.reports])
            case AbortCommand():
                return self._abort(command)
            case ForsakeCommand():
                return self._forsake(command)
            case SealCommand():
                return self._seal(command)
            case CommitCommand():
                return self._commit(command)
            case AdoptCommand():
                return self._adopt(command)
            case RollbackCommand():
                return self._begin_rollback(command)
            case FenceCommand():
                return self._fence(command)
            case RestoredCommand():
                return self._restored(command)
            case RollbackFailedCommand():
                return self._rollback_failed(command)
            case PinCommand():
                return self._pin(command)
            case UnpinCommand():
                return self._unpin(command)
            case _:
                assert_never(command)

    def _lead(self, command: LeadCommand) -> Result:
        self.state.term = command.term
        self.state.leader = command.coordinator
        for record in self.open_epochs():
            if record.terms[-1] != command.term:
                record.terms = (*record.terms, command.term)
        rollback = self.rollback
        if rollback is not None and rollback.running and rollback.terms[-1] != command.term:
            rollback.terms = (*rollback.terms, command.term)
        return _yes(term=command.term)

    def _configure(self, command: ConfigureCommand) -> Result:
        if command.policy.durability != self.policy.durability and self._live_count:
            live = next(record.id for record in self.participants() if record.live)
            return _no(
                "durability",
                f"durability is {self.policy.durability} as long as participants are there; {live} is: stop all first",
            )
        self.state.policy = command.policy
        self.state.failures = 0
        self.state.stopped = ""
        return _yes()

    def _found(self, command: FoundCommand) -> Result:
        state = self.state
        if state.origin is not None:
            return _yes(outcome="duplicate", epoch=state.origin.epoch)
        if state.epoch or state.rollbacks or state.topology.version:
            return _no("not-new", "something has happened in this cluster: it cannot become a fork any more")
        state.origin = OriginRecord(
            cluster=command.origin_cluster,
            epoch=command.epoch,
            manifest=command.origin_manifest,
            dry_run=command.dry_run,
        )
        # Numbers only grow (I10), and nobody here may be taken for one of the original's.
        state.incarnation, state.session = command.incarnation, max(state.session, command.session)
        state.base = state.epoch = state.ended_through = state.committed = command.epoch
        state.committed_count = 1
        state.sealed_manifest = command.manifest
        state.epochs[command.epoch] = EpochRecord(
            epoch=command.epoch,
            state=COMMITTED,
            reason=f"fork of {command.origin_cluster}",
            started_at=command.started_at,
            deadline_ns=1,
            terms=(command.term,),
            incarnation=command.incarnation,
            topology=0,
            members_count=command.members,
            reported_count=command.members,
            trimmed=True,
            manifest=command.manifest,
            sealed_at=command.at,
            ended_at=command.at,
        )
        self._derive()
        return _yes(outcome="founded", epoch=command.epoch)

    # --- participants -----------------------------------------------------------------------------------------------

    def _announce(self, command: AnnounceCommand) -> Result:
        state = self.state
        known = state.announced.get(command.participant)
        if command.offset + len(command.agents) > AGENTS_PER_PARTICIPANT_MAX:
            return _no("full", f"more than {AGENTS_PER_PARTICIPANT_MAX} agents on {command.participant}")
        if command.offset == 0:
            state.announcements += 1
            known = AnnouncedRecord(boot_id=command.boot_id, number=state.announcements)
            state.announced[command.participant] = known
            if len(state.announced) > ANNOUNCED_MAX:
                del state.announced[min(state.announced, key=lambda name: state.announced[name].number)]
        elif known is None or known.boot_id != command.boot_id or len(known.agents) != command.offset:
            return _no("not-announced", f"no {command.offset} agents of {command.participant} are announced")
        known.agents = (*known.agents, *command.agents)
        return _yes(announced=len(known.agents))

    def _register(self, command: RegisterCommand) -> Result:
        """Decide on a session; one that is given uses up what was announced for it."""
        if command.announced:
            announced = self.state.announced.get(command.participant)
            if announced is None or announced.boot_id != command.boot_id or len(announced.agents) != command.announced:
                return _no("not-announced", f"{command.announced} agents of {command.participant} are not announced")
            command = msgspec.structs.replace(command, agents=(*announced.agents, *command.agents))
        result = self._decide(command)
        if result["ok"]:
            self.state.announced.pop(command.participant, None)
        return result

    def _decide(self, command: RegisterCommand) -> Result:
        state = self.state
        known = state.participants.get(command.participant)
        if command.incarnation > state.incarnation:
            return _no(
                "fenced",
                f"{command.participant} has entered incarnation {command.incarnation}; this ledger knows only "
                f"{state.incarnation}: it is not the cluster's, or it lost its data",
            )
        if known is not None and known.boot_id == command.boot_id:
            if not known.live:
                return _no("fenced", f"session {known.session} of {known.id} has ended: {known.cause or known.state}")
        elif known is not None and known.live:
            return _no("id-taken", f"another process holds {known.id}, session {known.session}")
        elif command.session:
            return _no("fenced", f"session {command.session} of {command.participant} has ended")
        if command.durability != self.policy.durability:
            return _no(
                "durability",
                f"{command.participant} was started with durability {command.durability!r}, the cluster's is "
                f"{self.policy.durability!r}",
            )
        given_up: set[str] = set()
        for agent in command.agents:
            host = self._hosts.get(agent)
            if host is None or host == command.participant:
                continue
            if agent not in state.participants[host].adopted:
                return _no("agent-taken", f"{agent} is hosted by {host}", agent=agent, host=host)
            given_up.add(agent)  # it was away too long: another participant has taken this agent
        resumed = known is not None and known.live
        goes_on = self._goes_on(known, command)
        if not resumed and self._live_count >= PARTICIPANTS_MAX:
            return _no("full", f"{PARTICIPANTS_MAX} participants are live, which is the limit")

        if resumed:
            assert known is not None
            record = known
            for agent in record.agents:
                self._hosts.pop(agent, None)
        else:
            state.session += 1
            if known is not None:
                del self._by_session[known.session]
            record = ParticipantRecord(
                id=command.participant,
                session=state.session,
                boot_id=command.boot_id,
                state=JOINING,
                registered_at=command.at,
                before="" if known is None else known.cause,
                fresh=self._fresh_after(known, state.session),
                ended=None if known is None or not self._goes_back(known) else known.ended,
            )
            if goes_on is not None:
                assert known is not None
                # A member as before: it is in no topology yet, and in all that follow.
                record.state = MEMBER
                record.line, record.streams = goes_on.line, goes_on.streams
                record.resumed_from = goes_on.session
                record.fresh = known.fresh
                # What it has given away may be nobody's at this moment: its host has been lost as well, and comes back with it.
                given_up |= set(command.agents) - set(known.agents)
            if known is not None and record.fresh == known.fresh:
                record.fresh_of = dict(known.fresh_of)
            elif known is None:
                record.name_fresh(self._ever_over().intersection(command.agents), state.session)
            state.participants[record.id] = record
            self._by_session[record.session] = record.id
            self._live_count += 1
            self._joining_count += goes_on is None
            self._newcomer(record.id)
        record.address = command.address
        if not resumed and known is not None and known.state == LOST:
            record.adopted = self._has_again(known, command)
        if resumed and record.state != JOINING:
            # What it has given away does not begin in the middle of its life.
            given_up |= set(record.declared) - set(record.agents)
        record.declared = tuple(sorted(set(command.agents)))
        record.agents = tuple(sorted({*(each for each in record.declared if each not in given_up), *record.adopted}))
        record.kinds = tuple(sorted(set(command.kinds)))
        record.agent_versions = dict(sorted(command.agent_versions.items()))
        record.targets = None if command.targets is None else tuple(sorted(set(command.targets)))
        record.build = command.build
        for agent in record.agents:
            self._hosts[agent] = record.id
        self._drop_adoptions("", record.agents)
        self._membership_changed()
        return _yes(session=record.session, resumed=resumed)

    def _has_again(self, known: ParticipantRecord, command: RegisterCommand) -> tuple[str, ...]:
        """What a member that was lost had been given: its program does not declare it, and nobody else is to have it yet."""
        member = next((each for each in self.state.topology.members if each.id == known.id), None)
        if member is None or self.policy.recovery == "off":
            return ()  # there was a rollback without it, or there is none that would bring them back
        return tuple(
            agent
            for agent in known.adopted
            if agent in member.agents
            and agent.partition("/")[0] in command.kinds
            and agent not in self._hosts
            and agent not in self.state.adoptions
        )

    def _goes_on(self, known: ParticipantRecord | None, command: RegisterCommand) -> Resumption | None:
        """What a lost participant that comes back goes on from, if it can: nobody else need notice."""
        resumption = command.resumes
        if (
            resumption is None
            or known is None
            or known.state != LOST
            or known.damaged
            or self.policy.durability != "turn"
            or self.policy.recovery == "off"
            or not self.incarnation_begun
            or resumption.incarnation != self.state.incarnation
            or resumption.line != (known.line or known.session)
            # A session that had not written anything yet has changed nothing.
            or resumption.session not in (known.session, known.resumed_from)
            or tuple(sorted(set(command.agents))) != known.declared
            or (known.declared if resumption.agents is None else resumption.agents) != known.agents
            or (None if command.targets is None else tuple(sorted(set(command.targets)))) != known.targets
            or any(agent in self.state.adoptions or agent in self._hosts for agent in known.agents)
        ):
            return None
        member = next((each for each in self.state.topology.members if each.id == known.id), None)
        return resumption if member is not None and line_of(member) == resumption.line else None

    def _fresh_after(self, known: ParticipantRecord | None, session: int) -> int:
        """What fresh agents of a new session are named after; `known` is its participant's record before."""
        if known is None:
            return 0
        comes_back = known.state == LOST and self.policy.recovery != "off"
        # Of a lost member, the rollback that comes first says what of its agents is over.
        is_over = known.ended is not None and not self._goes_back(known)
        return known.fresh if comes_back and not is_over else session

    def _goes_back(self, known: ParticipantRecord) -> bool:
        """It is a lost member of which an agent has left with another host."""
        return known.ended is not None and any(member.id == known.id for member in self.lost_members())

    def _session_of(self, session: int) -> ParticipantRecord | Result:
        """The live participant with this session, or the refusal."""
        record = self.by_session(session)
        if record is None:
            return _no("ended" if session <= self.state.session else "unknown", f"no live session {session}")
        if not record.live:
            return _no("ended", f"session {session} of {record.id} has ended: {record.cause or record.state}")
        return record

    def _mark_lost(self, command: MarkLostCommand) -> Result:
        record = self._session_of(command.session)
        if isinstance(record, dict):
            return record
        aborted = [
            epoch.epoch
            for epoch in self.open_epochs()
            if epoch.state == STARTED
            and (member := epoch.members.get(record.id)) is not None
            and member.session == record.session
        ]
        record.damaged = command.damaged
        self._end_session(record, LOST, command.cause, command.at)
        for number in aborted:
            known = number == command.epoch
            self._end_aborted(
                self.state.epochs[number],
                AbortRecord(
                    participant=record.id,
                    phase="lost",
                    cause=command.cause,
                    waiting=command.waiting if known else (),
                    waiting_count=command.waiting_count if known else 0,
                ),
                at=command.at,
                took_ns=0,
            )
        return _yes(participant=record.id, aborted=aborted)

    def _leave(self, command: LeaveCommand) -> Result:
        record = self._session_of(command.session)
        if isinstance(record, dict):
            return record
        if record.state == JOINING:  # member of nothing yet: nothing to wait for
            self._end_session(record, LEFT, "", command.at)
        else:
            self._gone_count += record.state == MEMBER
            record.state = LEAVING
            self._membership_changed()
        return _yes(participant=record.id, state=record.state)

    def _end_session(self, record: ParticipantRecord, state: str, cause: str, at: int) -> None:
        assert state in (LOST, LEFT)
        self._joining_count -= record.state == JOINING
        self._gone_count += record.state == MEMBER
        record.state = state
        record.cause = cause
        record.ended_at = at
        for agent in record.agents:
            self._hosts.pop(agent, None)
        if state == LEFT and record.adopted:
            for other in self.state.participants.values():
                if other is not record and not set(record.adopted).isdisjoint(other.declared):
                    other.ended = self.state.epoch
        self._drop_adoptions(record.id, ())
        self._live_count -= 1
        self._membership_changed()
        ended = sorted((each.session, each.id) for each in self.state.participants.values() if not each.live)
        for session, name in ended[: max(0, len(ended) - PARTICIPANTS_ENDED_MAX)]:
            del self.state.participants[name]
            del self._by_session[session]

    def _change_topology(self, command: TopologyCommand) -> Result:
        state = self.state
        if self._open:
            return _no("epoch-open", f"epoch {self._open[0]} is open", epoch=self._open[0])
        if not self.incarnation_begun:
            return _no("rollback-open", f"incarnation {state.incarnation} has not begun")
        if self.policy.recovery != "off" and self.lost_members():
            return _no("members-lost", f"{self.lost_members()[0].id} is lost: a rollback comes first")
        if command.version != state.topology.version + 1:
            return _no("topology-changed", f"the topology has version {state.topology.version}")
        if not self.topology_is_stale:
            return _no("topology-unchanged", f"topology {state.topology.version} has all who are wanted")
        self._join_without_a_rollback()
        members = self.wanted_members()
        leavers = [record for record in self.participants() if record.state == LEAVING]
        for member in members:
            state.participants[member.id].state = MEMBER
        state.topology = TopologyRecord(version=command.version, members=members)
        self._joining_count = self._gone_count = 0
        for record in leavers:
            self._end_session(record, LEFT, "", command.at)
        self._membership_changed()
        return _yes(version=command.version, members=len(members), left=[record.session for record in leavers])

    def _join_without_a_rollback(self) -> None:
        """Members that were lost and come back had one coming when they registered, which would have made them the same again."""
        for member in self.lost_members():
            record = self.state.participants.get(member.id)
            if record is not None and record.state == JOINING and record.fresh != record.session:
                record.begin_as_new(record.session)
                self._forget_derived()

    # --- epochs -----------------------------------------------------------------------------------------------------

    def _start(self, command: StartCommand) -> Result:
        state = self.state
        if command.topology != state.topology.version:
            return _no("topology-changed", f"the topology has version {state.topology.version}")
        if len(self._open) >= self.policy.max_concurrent:
            return _no("epoch-open", f"epoch {self._open[0]} is open", epoch=self._open[0])
        if not self.incarnation_begun:
            return _no("rollback-open", f"incarnation {state.incarnation} has not begun")
        if self.topology_is_stale:
            return _no("topology-stale", "joins, leaves or losses wait for the next topology")
        if not state.topology.members:
            return _no("no-members", "no participant is a member")
        state.epoch += 1
        record = EpochRecord(
            epoch=state.epoch,
            reason=command.reason,
            started_at=command.at,
            deadline_ns=command.deadline_ns,
            terms=(command.term,),
            incarnation=state.incarnation,
            topology=state.topology.version,
            members={member.id: MemberRecord(session=member.session) for member in state.topology.members},
            members_count=len(state.topology.members),
        )
        assert record.epoch not in state.epochs
        state.epochs[record.epoch] = record
        self._open.append(record.epoch)
        self._members_most = max(self._members_most, record.members_count)
        return _yes(epoch=record.epoch, topology=record.topology, members=record.members_count)

    def _report(self, report: Report, command: ReportsCommand) -> Result:
        """One report; the outcome is one of ``accepted duplicate conflict late foreign unknown``."""
        outcome = self._judge(report)
        if outcome == "accepted":
            record = self.state.epochs[report.epoch]
            member = record.members[report.participant]
            member.snapshot = report.snapshot
            member.state_bytes = report.state_bytes
            member.new_bytes = report.new_bytes
            member.in_flight = report.in_flight
            member.timings = dict(sorted(report.timings.items()))
            member.waited_ns = report.waited_ns
            member.reported_at = command.at
            member.term = command.term
            record.reported_count += 1
            record.elapsed_ns = max(record.elapsed_ns, report.waited_ns)
            record.state_bytes += report.state_bytes
            record.new_bytes += report.new_bytes
            record.in_flight += report.in_flight
        return {"epoch": report.epoch, "participant": report.participant, "outcome": outcome}

    def _judge(self, report: Report) -> str:
        record = self.state.epochs.get(report.epoch)
        if record is None:
            return "late" if report.epoch <= self.state.epoch else "unknown"
        member = record.members.get(report.participant)
        if member is None or member.session != report.session or report.incarnation != record.incarnation:
            return "late" if record.trimmed else "foreign"
        if member.snapshot == report.snapshot and record.state != ABORTED:
            return "duplicate"
        if record.state != STARTED:
            return "late"
        return "conflict" if member.snapshot else "accepted"

    def _abort(self, command: AbortCommand) -> Result:
        record = self.state.epochs.get(command.epoch)
        if record is None:
            return self._no_epoch(command.epoch)
        if record.state in (SEALED, COMMITTED):
            return _no(
                "sealed", f"epoch {record.epoch} is {record.state}: it is not aborted any more", state=record.state
            )
        if record.state == ABORTED:
            return _no("ended", f"epoch {record.epoch} is aborted already", state=record.state)
        why = AbortRecord(
            participant=command.participant,
            phase=command.phase,
            cause=command.cause,
            waiting=command.waiting,
            waiting_count=max(command.waiting_count, len(command.waiting)),
        )
        self._end_aborted(record, why, at=command.at, took_ns=command.took_ns)
        return _yes(epoch=record.epoch)

    def _forsake(self, command: ForsakeCommand) -> Result:
        record = self.state.epochs.get(command.epoch)
        if record is None:
            return self._no_epoch(command.epoch)
        if record.state != SEALED:
            code = "not-sealed" if record.state == STARTED else "ended"
            return _no(code, f"epoch {record.epoch} is {record.state}", state=record.state)
        if record.manifest != command.manifest:
            return _no("sealed", f"epoch {record.epoch} is sealed with manifest {record.manifest}", state=record.state)
        if self.state.sealed_manifest == record.manifest:
            self.state.sealed_manifest = self._head_without(record.epoch)
        why = AbortRecord(participant=command.participant, phase=command.phase, cause=command.cause)
        self._end_aborted(record, why, at=command.at, took_ns=command.took_ns)
        record.manifest = ""
        return _yes(epoch=record.epoch)

    def _head_without(self, epoch: int) -> str:
        """Manifest of the newest epoch that is sealed or committed, this one not counted."""
        sealed = [n for n in self._open if n != epoch and self.state.epochs[n].state == SEALED]
        newest = self.state.epochs.get(sealed[-1] if sealed else self.state.committed)
        return "" if newest is None else newest.manifest

    def _seal(self, command: SealCommand) -> Result:
        record = self.state.epochs.get(command.epoch)
        if record is None:
            return self._no_epoch(command.epoch)
        if record.state in (SEALED, COMMITTED):
            if record.manifest == command.manifest:
                return _yes(epoch=record.epoch, outcome="already")
            return _no("sealed", f"epoch {record.epoch} is sealed with manifest {record.manifest}", state=record.state)
        if record.state == ABORTED:
            return _no("ended", f"epoch {record.epoch} is aborted", state=record.state)
        if not record.complete:
            missing = record.members_count - record.reported_count
            return _no("incomplete", f"{missing} of {record.members_count} reports of epoch {record.epoch} are missing")
        first = self._open[0]
        if first != record.epoch and self.state.epochs[first].state == STARTED:
            return _no("earlier-open", f"epoch {first} must end first", epoch=first)
        # With `first` sealed, started epochs may still stand between it and this one.
        for number in self._open:
            if number < record.epoch and self.state.epochs[number].state == STARTED:
                return _no("earlier-open", f"epoch {number} must end first", epoch=number)
        if command.previous != self.state.sealed_manifest:
            return _no("chain-moved", "another epoch was sealed since this manifest was made")
        record.state = SEALED
        record.manifest = command.manifest
        record.previous = command.previous
        record.sealed_at = command.at
        record.elapsed_ns = max(record.elapsed_ns, command.took_ns)
        record.phases = dict(sorted({**record.phases, **command.phases}.items()))
        self.state.sealed_manifest = command.manifest
        return _yes(epoch=record.epoch, outcome="sealed")

    def _commit(self, command: CommitCommand) -> Result:
        record = self.state.epochs.get(command.epoch)
        if record is None:
            return self._no_epoch(command.epoch)
        if record.state not in (SEALED, COMMITTED):
            return _no("not-sealed", f"epoch {record.epoch} is {record.state}", state=record.state)
        if record.manifest != command.manifest:
            return _no("sealed", f"epoch {record.epoch} is sealed with manifest {record.manifest}", state=record.state)
        if record.state == COMMITTED:
            return _yes(epoch=record.epoch, outcome="already")
        if self._open[0] != record.epoch:
            return _no("earlier-open", f"epoch {self._open[0]} must end first", epoch=self._open[0])
        assert record.epoch > self.state.committed
        record.state = COMMITTED
        record.phases = dict(sorted({**record.phases, **command.phases}.items()))
        self.state.committed = record.epoch
        self.state.committed_count += 1
        self.state.failures = 0
        self._end(record, at=command.at, took_ns=command.took_ns)
        return _yes(epoch=record.epoch, outcome="committed")

    def _no_epoch(self, number: int) -> Result:
        if number <= self.state.epoch:
            return _no("ended", f"epoch {number} ended long ago")
        return _no("unknown", f"there is no epoch {number}")

    def _end_aborted(self, record: EpochRecord, why: AbortRecord, *, at: int, took_ns: int) -> None:
        assert record.open
        record.state = ABORTED
        record.abort = why
        self.state.aborted_count += 1
        if why.phase not in UNCOUNTED_PHASES:
            self.state.failures += 1
        self._end(record, at=at, took_ns=took_ns)

    def _end(self, record: EpochRecord, *, at: int, took_ns: int) -> None:
        assert not record.open
        record.ended_at = at
        # The leader's monotonic measure where it has one. Else the wall clocks of two entries, which may have stepped
        # back between them (D15): no less than what is known to have passed.
        record.took_ns = took_ns or max(at - record.started_at, record.elapsed_ns, 0)
        record.elapsed_ns = max(record.elapsed_ns, took_ns)
        self._open.remove(record.epoch)
        self.state.ended_through = self._open[0] - 1 if self._open else self.state.epoch
        self._forget()

    def _forget(self) -> None:
        """Keep the history within its bounds.

        The newest committed epoch stays whole. What a rollback may go to stays: where this incarnation began, and savepoints.
        """
        state = self.state
        if len(state.epochs) <= min(EPOCH_HISTORY_MAX, EPOCH_MEMBER_ROWS_MAX // max(1, self._members_most)):
            return  # within all bounds: not looked at one by one at each end of an epoch
        ended = [
            number for number in sorted(state.epochs) if number != state.committed and not state.epochs[number].open
        ]
        of_no_use = [number for number in ended if number != state.base and not self.names_of(number)]
        for number in of_no_use[: max(0, len(of_no_use) - EPOCH_HISTORY_MAX)]:
            del state.epochs[number]
        rows = 0
        for number in reversed([each for each in ended if each in state.epochs]):
            record = state.epochs[number]
            rows += record.members_count
            if rows > EPOCH_MEMBER_ROWS_MAX and not record.trimmed:
                record.members = {}
                record.trimmed = True


def parse_result(text: str) -> Result:
    """The result of `Ledger.apply` as a dictionary."""
    result = msgspec.json.decode(text)
    assert isinstance(result, dict)
    return result


def _result_text(result: Result) -> str:
    return to_ascii_json(result)


def _decode(text: object) -> Command | Result:
    """The command, or the error result."""
    if not isinstance(text, str):
        return _no("malformed", f"a command is text, not {type(text).__name__}")
    if len(text) > COMMAND_BYTES_MAX:
        return _no("malformed", f"command of {len(text)} characters; at most {COMMAND_BYTES_MAX} are taken")
    if not text.isascii():
        return _no("malformed", "a command is ASCII")
    try:
        command = _commands.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        return _refusal(text, error)
    if command.v != command.command_version:
        return _unsupported(command.kind, command.v)
    return command


def _unsupported(kind: str, version: int) -> Result:
    known = VERSIONS.get(kind, COMMAND_VERSION)
    return _no("unsupported-version", f"command {kind[:40]!a} of version {version}; this build applies {known}")


def _refusal(text: str, error: Exception) -> Result:
    try:
        head = _heads.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        return _no("malformed", f"not a command: {error}")
    if head.v != VERSIONS.get(head.kind, COMMAND_VERSION):
        return _unsupported(head.kind, head.v)
    return _no("malformed", f"command {head.kind[:40]!a}: {error}")
