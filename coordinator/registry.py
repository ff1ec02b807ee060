"""The leader's dealings with participants: registration, leases, leaves, topology.

Rules:
    * The ledger gives sessions. The same boot id on a new connection resumes its session without an entry in the log, so
      that a change of leader does not flood it with ten thousand registrations.
    * A new topology waits for the end of all open epochs, and a change that waits holds back the next start: neither can
      starve the other.
    * A participant is told everything again when it registers: topology, what is open, what has committed. Each repeated
      message from it is answered again (RELIABILITY.md rule 5).
    * A session that has ended stays ended: whoever speaks for it is fenced (D14).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.ledger import AnnounceCommand, LeaveCommand, MarkLostCommand, RegisterCommand, TopologyCommand
from coordinator.ledger.commands import command_bytes, sentence, word
from coordinator.ledger.records import JOINING
from coordinator.probing import Prober
from protocol.errors import IllegalName
from protocol.ids import Instant, agent_id, check_name, participant_id
from protocol.limits import (
    ADDRESS_CHARS_MAX,
    AGENTS_PER_PARTICIPANT_MAX,
    BOOT_ID_CHARS_MAX,
    COMMAND_BYTES_MAX,
    SUSPECT_NS,
    TOPOLOGY_ACCEPT_NS,
    TOPOLOGY_SETTLE_NS,
)
from protocol.messages import (
    PROTOCOL_VERSION,
    Fenced,
    Left,
    Register,
    Registered,
    RegisterRefused,
    StreamBroken,
    TopologyChanged,
)
from protocol.topology import check_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coordinator.attendance import Attendee
    from coordinator.desk import Desk
    from coordinator.events import Disconnected, Probed
    from coordinator.ledger import ParticipantRecord, Result
    from coordinator.ledger.commands import WaitingNote
    from protocol.streams import Resumption

    Where = Callable[[str, Instant], tuple[int, tuple[WaitingNote, ...], int]]

_STAMP_BYTES = 256
"""What id, term and numbers add to the command that is measured, at most."""


class Registry:
    """Who is there. Part of `Leader`; acts only while it leads.

    Args:
        desk: Shared with the other parts.
        where: Participant, now -> the newest open epoch that it is a member of (0: none), where those are that have not
            reported, and how many they are.
    """

    def __init__(self, desk: Desk, where: Where) -> None:
        self._desk = desk
        self._where = where
        self._prober = Prober(desk)
        self._told = 0
        """Version of the topology that this leader has told."""
        self._waiting: dict[int, Register] = {}
        """Connections whose registration has not been proposed yet, in order of arrival."""
        self._proposed: dict[str, tuple[int, Register]] = {}
        """Participant -> connection and message whose registration is on its way."""
        self._settled_at: Instant | None = None
        """When changes that wait have come together and make the next topology; None: none waits."""
        self._members: dict[str, int] = {}
        """Sessions of the topology that this leader saw last: who is in the next one and not here is new."""

    def begin(self, now: Instant) -> None:
        """This leader's own entry is applied: take stock."""
        ledger = self._desk.ledger
        self._proposed.clear()
        self._settled_at = None
        self._prober.clear()
        self._desk.attendance.begin(((each.id, each.session) for each in ledger.participants() if each.live), now)
        self._desk.attendance.topology_set(ledger.state.topology, (), now)
        self._members = {member.id: member.session for member in ledger.state.topology.members}
        self._told = ledger.state.topology.version if ledger.incarnation_begun else 0

    def end(self) -> None:
        """Leadership is over."""
        self._waiting.clear()
        self._proposed.clear()
        self._prober.clear()

    # --- registration -----------------------------------------------------------------------------------------------

    def register(self, connection: int, message: Register) -> None:
        """A participant introduces itself."""
        refusal = self._check(message)
        if refusal is None and (self._desk.attendance.attendee_of(connection) or connection in self._waiting):
            refusal = ("wrong-version", "this connection has registered already")
        if refusal is not None:
            self._refuse(connection, *refusal)
        else:
            self._waiting[connection] = message

    def disconnected(self, event: Disconnected, now: Instant) -> None:
        """A connection is gone: so is what it still wanted, and perhaps the process behind it."""
        self._waiting.pop(event.connection, None)
        session = self._desk.attendance.disconnected(event.connection, event.reason, now)
        if session is not None:
            self._prober.disconnected(session, now)

    def registered(self, participant: str, result: Result, now: Instant) -> Iterator[int]:
        """The ledger has decided; yields the session that may be told what is going on."""
        connection, _ = self._proposed.pop(participant)
        there = self._desk.attendance.is_open(connection)
        if not result["ok"]:
            if there:
                self._refuse(connection, str(result["code"]), str(result["sentence"]))
            return
        session = int(result["session"])
        if there:
            yield from self._attach(participant, session, connection, now)
        else:
            self._desk.attendance.expect(participant, session, now)

    def take_waiting(self, now: Instant) -> Iterator[int]:
        """Go on with the registrations that wait; yields sessions that were resumed."""
        desk = self._desk
        for connection, message in list(self._waiting.items()):
            if message.participant in self._proposed:
                continue  # another process of this name is being registered: its outcome decides
            known = desk.ledger.state.participants.get(message.participant)
            if known is not None and _resumes(known, message) and message.incarnation <= desk.ledger.state.incarnation:
                del self._waiting[connection]
                yield from self._attach(known.id, known.session, connection, now)
                continue
            if known is not None and self._is_replaced(known, message, now):
                continue
            if desk.proposals.full:
                return
            del self._waiting[connection]
            self._proposed[message.participant] = (connection, message)
            self._propose_next_part(message, 0)

    def _is_replaced(self, known: ParticipantRecord, message: Register, now: Instant) -> bool:
        """Another process has come in place of one whose connection is closed: that one is lost, and this one waits."""
        attendee = self._desk.attendance.attendee(known.session)
        if self._desk.ledger.policy.recovery == "off" or not known.live or known.boot_id == message.boot_id:
            return False
        if attendee is None or attendee.gone_at is None:
            return False  # it is there, or has not had the time to find this leader: ``id-taken``
        cause = (
            f"its connection closed ({attendee.why_gone or 'no reason given'}) and another process of its name has come"
        )
        self._mark_lost(attendee, cause, now)
        return True

    def announced(self, participant: str, result: Result) -> None:
        """A part of a long list of agents is in the ledger: on with the next."""
        connection, message = self._proposed[participant]
        if result["ok"]:
            self._propose_next_part(message, int(result["announced"]))
            return
        del self._proposed[participant]
        if self._desk.attendance.is_open(connection):
            self._refuse(connection, str(result["code"]), str(result["sentence"]))

    def _propose_next_part(self, message: Register, offset: int) -> None:
        """Register, if what is left of the agents fits one entry; else announce as many as fit."""
        desk = self._desk
        agents = tuple(sorted(message.agents))
        rest = agents[offset:]
        frame = msgspec.structs.replace(self._command_for_check(message), agents=())
        fit = _that_fit(rest, COMMAND_BYTES_MAX - _STAMP_BYTES - command_bytes(frame))
        if fit == len(rest):
            desk.propose(("register", message.participant), self._command(message, rest, offset))
            return
        stamp = desk.proposals.stamp()
        desk.propose(
            ("announce", message.participant),
            AnnounceCommand(
                id=stamp.id,
                done=stamp.done,
                term=desk.term,
                participant=message.participant,
                boot_id=message.boot_id,
                offset=offset,
                agents=rest[:fit],
            ),
        )

    def _command(self, message: Register, agents: tuple[str, ...], announced: int) -> RegisterCommand:
        stamp = self._desk.proposals.stamp()
        return RegisterCommand(
            id=stamp.id,
            done=stamp.done,
            term=self._desk.term,
            participant=message.participant,
            boot_id=message.boot_id,
            address=message.address,
            agents=agents,
            announced=announced,
            agent_versions=message.agent_versions,
            targets=message.targets,
            build=word(message.build),
            session=message.session,
            incarnation=message.incarnation,
            kinds=message.kinds,
            durability="turn" if message.durability == "turn" else "epoch",
            resumes=_short(message.resumes),
        )

    def _check(self, message: Register) -> tuple[str, str] | None:
        """Code and sentence of what no ledger needs to be asked about."""
        cluster = self._desk.ledger.state.cluster
        if message.protocol != PROTOCOL_VERSION:
            return "wrong-version", f"protocol version {message.protocol}; this coordinator speaks {PROTOCOL_VERSION}"
        if message.cluster != cluster:
            return "wrong-cluster", f"this is cluster {cluster}, not {ascii(message.cluster)[:80]}"
        origin = self._desk.ledger.state.origin
        if (origin is not None and origin.dry_run) != message.dry_run:
            return "dry-run", (
                f"cluster {cluster} is a fork in dry-run, and the store of {ascii(message.participant)[:80]} does not say so: "
                "use the fork's store"
                if not message.dry_run
                else f"the store of {ascii(message.participant)[:80]} is of a fork in dry-run, and cluster {cluster} is none"
            )
        if len(message.agents) > AGENTS_PER_PARTICIPANT_MAX:
            return "full", f"{len(message.agents)} agents; at most {AGENTS_PER_PARTICIPANT_MAX} are taken"
        try:
            participant_id(message.participant)
            for agent in message.agents:
                agent_id(agent)
            for kind in (*message.agent_versions, *message.kinds):
                check_name("agent kind", kind)
            for target in message.targets or ():
                participant_id(target)
            check_targets(message.participant, message.targets)
        except IllegalName as error:
            return "bad-name", str(error)
        boot_id = message.boot_id
        if not (0 < len(boot_id) <= BOOT_ID_CHARS_MAX and boot_id.isascii() and boot_id.isprintable()):
            return "bad-name", f"boot id {ascii(boot_id)[:80]} is not 1 to {BOOT_ID_CHARS_MAX} printable characters"
        if len(message.address) > ADDRESS_CHARS_MAX or not message.address.isprintable():
            return "bad-name", f"address {ascii(message.address)[:80]} is not one"
        if len(set(message.agents)) != len(message.agents):
            return "bad-name", "an agent is named twice"
        try:
            command = msgspec.convert(msgspec.to_builtins(self._command_for_check(message)), RegisterCommand)
        except (msgspec.ValidationError, OverflowError) as error:
            return "bad-name", f"registration cannot be recorded: {error}"
        rest = command_bytes(msgspec.structs.replace(command, agents=()))
        if rest > COMMAND_BYTES_MAX // 2:
            return "full", f"targets and agent kinds take {rest} bytes; {COMMAND_BYTES_MAX // 2} fit: name no targets"
        return None

    def _command_for_check(self, message: Register) -> RegisterCommand:
        """The command with an id that is never proposed: one bad field must not reach the log."""
        return RegisterCommand(
            id=("check", 1),
            term=0,
            participant=message.participant,
            boot_id=message.boot_id,
            address=message.address,
            agents=message.agents,
            agent_versions=message.agent_versions,
            targets=message.targets,
            build=word(message.build),
            session=message.session,
            incarnation=message.incarnation,
            kinds=message.kinds,
            durability="turn" if message.durability == "turn" else "epoch",
            resumes=_short(message.resumes),
        )

    def _refuse(self, connection: int, code: str, text: str, leader: str = "") -> None:
        self._desk.send_to(connection, RegisterRefused(code=code, sentence=sentence(text), leader=leader))
        self._desk.close(connection, code)

    def refuse_for_now(self, connection: int, text: str) -> None:
        """Come again in a moment."""
        self._refuse(connection, "full", text)

    def refuse_not_leader(self, connection: int, leader: str) -> None:
        """This coordinator does not lead: point to the one that does."""
        self._refuse(connection, "not-leader", "another coordinator leads", leader)

    def _attach(self, participant: str, session: int, connection: int, now: Instant) -> Iterator[int]:
        desk = self._desk
        replaced = desk.attendance.attach(participant, session, connection, now)
        if replaced is not None:
            desk.close(replaced, "superseded by a new connection of this session")
        state = desk.ledger.state
        record = desk.ledger.by_session(session)
        self._prober.attached(session, "" if record is None else record.address, now)
        desk.send(
            session,
            Registered(
                term=desk.term,
                session=session,
                incarnation=state.incarnation,
                lease_ns=desk.attendance.lease_ns,
                newest_epoch=state.epoch,
                aborted_through=state.ended_through,
                durability=desk.ledger.policy.durability,
                line=0 if record is None else record.line,
                ancestry=desk.ledger.ancestry,
            ),
        )
        if self._members.get(participant) == session and desk.ledger.incarnation_begun:
            self._tell_topology(session)
        yield session

    # --- leases and leaves ------------------------------------------------------------------------------------------

    def look_for_silent(self, now: Instant) -> None:
        """Declare those lost whose lease is over, and newcomers that hold up everybody."""
        desk = self._desk
        lease_ns = desk.attendance.lease_ns
        suspect_ns = None if desk.ledger.policy.recovery == "off" else min(SUSPECT_NS, lease_ns)
        for attendee in desk.attendance.silent(now, suspect_ns):
            gone = f"disconnected ({attendee.why_gone or 'no reason given'})"
            how = "silent" if attendee.connection is not None else gone
            silent_ns = now - attendee.heard_at
            self._mark_lost(attendee, f"{how} for {silent_ns / 1e9:.1f} s; its lease is {lease_ns / 1e9:.1f} s", now)
        if now - desk.attendance.topology_since > TOPOLOGY_ACCEPT_NS:
            version = desk.ledger.state.topology.version
            for session in desk.attendance.not_ready():
                newcomer = desk.attendance.attendee(session)
                if newcomer is not None and newcomer.newcomer:
                    self._mark_lost(
                        newcomer,
                        f"did not accept topology {version} within {TOPOLOGY_ACCEPT_NS / 1e9:.0f} s of joining",
                        now,
                    )

    def keep_probing(self, now: Instant) -> None:
        """Ask the addresses of those whose connection has closed."""
        self._prober.keep(now)

    def probed(self, event: Probed, now: Instant) -> None:
        """An address was asked: whoever does not listen there any more is lost."""
        attendee = self._prober.answered(event, now)
        if attendee is not None:
            gone = f"disconnected ({attendee.why_gone or 'no reason given'})"
            self._mark_lost(attendee, f"{gone}, and nothing listens at {event.address} any more", now)

    def broken(self, message: StreamBroken, now: Instant) -> None:
        """A member cannot go on with the streams of a peer whose log is not what it had promised."""
        record = self._desk.ledger.state.participants.get(message.peer)
        peer = self._desk.attendance.attendee(message.peer_session)
        if record is not None and peer is not None and record.session == message.peer_session:
            cause = f"its disk has lost what it had synced: {message.cause}"
            self._mark_lost(peer, cause, now, damaged=True)

    def _mark_lost(self, attendee: Attendee, cause: str, now: Instant, *, damaged: bool = False) -> None:
        desk = self._desk
        if desk.proposals.busy("mark-lost", str(attendee.session)) or desk.proposals.full:
            return  # the next look finds it again
        stamp = desk.proposals.stamp()
        epoch, waiting, count = self._where(attendee.participant, now)
        desk.propose(
            ("mark-lost", str(attendee.session)),
            MarkLostCommand(
                id=stamp.id,
                done=stamp.done,
                term=desk.term,
                session=attendee.session,
                cause=sentence(cause),
                damaged=damaged,
                epoch=epoch,
                waiting=waiting,
                waiting_count=count,
            ),
        )

    def leave(self, attendee: Attendee) -> None:
        """A participant wants to go, in order."""
        desk = self._desk
        record = desk.ledger.by_session(attendee.session)
        if record is None or not record.live:
            self.fence(attendee.session, "this session has ended")
        elif not desk.proposals.busy("leave", str(attendee.session)):
            stamp = desk.proposals.stamp()
            desk.propose(
                ("leave", str(attendee.session)),
                LeaveCommand(id=stamp.id, done=stamp.done, term=desk.term, session=attendee.session),
            )

    def lost(self, session: int) -> None:
        """The ledger has ended a session without a goodbye."""
        record = self._desk.ledger.by_session(session)
        self.fence(session, record.cause if record is not None else "this session has ended")

    def left(self, session: int) -> None:
        """The ledger has ended a session in order."""
        self._desk.send(session, Left(term=self._desk.term, session=session))
        self._desk.attendance.forget(session)
        self._prober.forget(session)

    def left_at_once(self, session: int) -> None:
        """A `LeaveCommand` was applied; one who was not a member yet has left with it."""
        record = self._desk.ledger.by_session(session)
        if record is None or not record.live:
            self.left(session)

    def fence(self, session: int, reason: str) -> None:
        """Tell a session that it has ended, and hang up."""
        self._desk.send(session, Fenced(term=self._desk.term, session=session, reason=sentence(reason)))
        connection = self._desk.attendance.forget(session)
        self._prober.forget(session)
        if connection is not None:
            self._desk.close(connection, "fenced")

    def fence_stranger(self, connection: int, session: int) -> None:
        """Somebody speaks for a session that is not the connection's."""
        self._desk.send_to(
            connection, Fenced(term=self._desk.term, session=session, reason=f"session {session} is not live here")
        )
        self._desk.close(connection, "fenced")

    # --- topology ---------------------------------------------------------------------------------------------------

    def keep_topology(self, now: Instant) -> None:
        """Propose the wanted topology once changes have settled and no epoch is open."""
        desk = self._desk
        ledger = desk.ledger
        if not ledger.incarnation_begun:
            return
        if self._told != ledger.state.topology.version:
            self.topology_changed([], now)  # a rollback is done: this is the order to begin
        if not ledger.topology_is_stale or (ledger.policy.recovery != "off" and ledger.lost_members()):
            self._settled_at = None
            return
        if self._settled_at is None:
            # Where the members are the same and only a session is another, all who are missed are back: nobody else comes.
            same = [each.id for each in ledger.wanted_members()] == [each.id for each in ledger.state.topology.members]
            self._settled_at = now if same else Instant(now + TOPOLOGY_SETTLE_NS)
        if desk.ledger.open_epochs() or desk.proposals.busy("topology"):
            return
        if now >= self._settled_at:
            stamp = desk.proposals.stamp()
            version = desk.ledger.state.topology.version + 1
            desk.propose(("topology",), TopologyCommand(id=stamp.id, done=stamp.done, term=desk.term, version=version))

    def topology_changed(self, left: list[int], now: Instant) -> None:
        """The ledger has another topology: tell its members, and those who are out of it."""
        desk = self._desk
        topology = desk.ledger.state.topology
        sessions = {member.id: member.session for member in topology.members}
        newcomers = [session for name, session in sorted(sessions.items()) if self._members.get(name) != session]
        self._members = sessions
        self._told = topology.version
        self._settled_at = None
        desk.attendance.topology_set(topology, newcomers, now)
        for member in topology.members:
            self._tell_topology(member.session)
        for session in left:
            self.left(session)

    def _tell_topology(self, session: int) -> None:
        desk = self._desk
        state = desk.ledger.state
        desk.send(
            session,
            TopologyChanged(
                term=desk.term,
                session=session,
                incarnation=state.incarnation,
                version=state.topology.version,
                members=state.topology.members,
            ),
        )

    @property
    def ready(self) -> bool:
        """The topology allows an epoch; asked after every event, so it names nobody."""
        ledger = self._desk.ledger
        return not ledger.topology_is_stale and ledger.incarnation_begun and self._desk.attendance.all_ready

    def not_ready(self) -> str:
        """Why no epoch can start now; "" if one can."""
        ledger = self._desk.ledger
        if not ledger.incarnation_begun:
            return f"incarnation {ledger.state.incarnation} has not begun"
        if not ledger.state.topology.members and not ledger.topology_is_stale:
            return "no participant is a member"
        if ledger.policy.recovery != "off" and ledger.lost_members():
            return f"{_listed([member.id for member in ledger.lost_members()])} lost: a rollback comes first"
        if ledger.topology_is_stale:
            joining = [each.id for each in ledger.participants() if each.state == JOINING]
            return f"a change of topology waits{f': {_listed(joining)} join' if joining else ''}"
        if self._desk.attendance.all_ready:
            return ""
        missing = set(self._desk.attendance.not_ready())
        names = [name for name, session in sorted(self._members.items()) if session in missing]
        return f"topology {ledger.state.topology.version} is not accepted yet by {_listed(names)}"

    def next_instant(self, now: Instant) -> Iterator[Instant]:
        """When something here is due without any event."""
        yield self._desk.attendance.next_check
        yield from self._prober.next_instant()
        if self._settled_at is not None and not self._desk.ledger.open_epochs():
            yield self._settled_at


def _resumes(known: ParticipantRecord, message: Register) -> bool:
    """The session goes on as it was: nothing for the ledger to decide."""
    return (
        known.live
        and known.boot_id == message.boot_id
        and known.address == message.address
        and (known.declared or known.agents) == tuple(sorted(message.agents))
        and known.kinds == tuple(sorted(set(message.kinds)))
        and known.targets == (None if message.targets is None else tuple(sorted(set(message.targets))))
        and known.agent_versions == message.agent_versions
        and known.build == word(message.build)
    )


def _short(resumption: Resumption | None) -> Resumption | None:
    """What a registration can carry; where streams are too many for one entry, everybody goes back to an epoch."""
    if resumption is None or command_bytes(resumption) > COMMAND_BYTES_MAX // 4:
        return None
    return resumption


def _that_fit(agents: tuple[str, ...], size: int) -> int:
    """How many of these ids fit into so many bytes of JSON."""
    for i, agent in enumerate(agents):
        size -= len(agent) + 3  # quotes and comma
        if size < 0:
            return i
    return len(agents)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
