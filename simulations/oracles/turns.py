"""I17 to I19, I22 and I31 where turns are logged: a crash takes nothing back that anybody has seen, and takes nobody else with it.

At each boundary of the log (`TurnKeeper` binds what belongs together) the ghost takes down what the participant is: a *moment*.
A life that comes back from its log has to be one of these, with states, mailboxes, timers and unrouted messages, and none before:

* what its receivers have been given of its messages;
* what it has acknowledged to its senders;
* what a sink has taken of its outputs;
* its cut of an epoch that is sealed or committed.

Everything behind that moment has not happened: the ghost's streams, clocks and outputs go back to it, and the next life goes
on with them under the same line (`protocol.streams`). So all other judges, list by list, see one life.

A participant that was lost has to come back from its log, unless its disk was harmed, or its line had not begun to write; and an
incarnation begins only because somebody could not, or an operator wanted it so (I31: the distance of a crash is nothing).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from participant.restoring import RESTORED_TYPE
from protocol.digests import manifest_key
from protocol.ids import Epoch
from protocol.items import KIND_MESSAGE, item_kind, message_payload
from protocol.messages import Envelope
from protocol.streams import line_of
from simulations.operator import REASON
from simulations.options import PATIENT_NS
from simulations.violations import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from coordinator.ledger import Ledger
    from participant.host import AgentHost
    from participant.machine_events import Delivery
    from participant.peers import ResumedStreams
    from participant.runtime.turn_base import TurnBase
    from simulations.cluster import SimulatedCluster
    from simulations.coordinator_node import CoordinatorLife
    from simulations.ghost import GhostLife, GhostLog

_decode = msgspec.msgpack.Decoder(Envelope).decode


class Moment:
    """What a participant was at one boundary of its log."""

    __slots__ = ("agents", "clock", "delivered", "events", "had", "number", "outputs", "passed", "sent", "unrouted")

    def __init__(self, number: int, life: GhostLife, events: int, outputs: int) -> None:
        self.number = number
        """Of the log's last record before it."""
        self.agents = life.agents_now()
        self.sent = {stream: len(stream.sent) for stream in life.outgoing_ever}
        self.delivered = {stream: stream.delivered for stream in life.incoming_ever}
        self.passed = {stream: dict(stream.passed_over) for stream in life.incoming_ever if stream.passed_over}
        self.had = frozenset(life.had)
        self.unrouted = list(life.unrouted)
        self.clock = life.clock
        self.events = events
        """Entries of the ghost's history that are of its line."""
        self.outputs = outputs
        """That its line had emitted."""


class AgentNow(NamedTuple):
    """An agent, as far as a log has to bring it back."""

    state: bytes
    mailbox: list[bytes]
    timers: dict[bytes, None]
    """Encoded messages of timers that have not fired."""


def agent_now(host: AgentHost, state: bytes) -> AgentNow:
    """What the agent of a host is; what is said to it only because it came back does not count."""
    mailbox = [data for envelope, data in host.mailbox if envelope.type != RESTORED_TYPE]
    return AgentNow(state, mailbox, {data: None for *_, data in host.timers})


class _Line:
    """One line of a participant, in one incarnation."""

    def __init__(self, life: GhostLife, first: Moment) -> None:
        self.life = life
        """That has it now."""
        self.moments = [first]
        """Ascending."""
        self.cuts: list[tuple[int, int]] = []
        """Number of the log, epoch."""
        self.over = False
        """Its incarnation has ended, or it has left in order: nobody goes on from here."""


class Turns:
    """Of one run."""

    def __init__(self, ghost: GhostLog) -> None:
        self.cluster: SimulatedCluster
        self._ghost = ghost
        self._lines: dict[tuple[str, int, int], _Line] = {}
        """By participant, incarnation and line: a session may go through several incarnations."""
        self._line_of: dict[tuple[int, int], int] = {}
        """(incarnation, session) -> first session of its line, of those that go on from a log."""
        self._registered: dict[str, tuple[int, int]] = {}
        """Participant -> session and line of its newest registration."""
        self._came_back: dict[str, tuple[tuple[str, int, int], int]] = {}
        """Participant -> line that its newest life has read from its log, and up to which record."""
        self._bases: dict[str, TurnBase | None] = {}
        """Participant -> what its newest life found on its disk to build on."""
        self._declared: dict[str, tuple[str, ...]] = {}
        """Participant -> what its newest registration declares."""
        self._adopting: dict[str, None] = {}
        """Agents that are to have another host when the next incarnation begins."""
        self._begun_anew: dict[str, None] = {}
        """Participants because of which an incarnation may begin."""
        self._claimed: dict[str, GhostLife] = {}
        """Participant -> the life that closed its log for those before it, until a line begins there."""
        self.events: dict[int, int] = {}
        """Line -> entries of it in the ghost's history."""

    # --- as things happen ---------------------------------------------------------------------------------------------

    def began(self, life: GhostLife, number: int, before: Moment | None = None) -> None:
        """A line begins: what its base says is all that there is."""
        moment = before or self.moment(life, number)
        moment.number = number
        moment.agents = life.agents_now()
        self._lines[_key(life)] = _Line(life, moment)
        self._claimed.pop(life.name, None)

    def moment(self, life: GhostLife, number: int) -> Moment:
        """Now."""
        events = self.events.get(life.line, 0)
        return Moment(number, life, events, self._ghost.outputs.count(life.line, life.incarnation))

    def flushed(self, life: GhostLife, number: int) -> None:
        """All that happened so far is covered by the log up to this number."""
        line = self._lines.get(_key(life))
        if line is None or line.life is not life or line.over or life.superseded:
            return
        if self._claimed.get(life.name, life) is not life:
            return  # a twin has the log: this one's next records are nowhere, and their numbers are those of the twin's
        if line.moments[-1].number < number:
            line.moments.append(self.moment(life, number))

    def cut(self, life: GhostLife, epoch: int, number: int) -> None:
        """Its local state was recorded behind this number of the log."""
        line = self._lines.get(_key(life))
        if line is not None and line.life is life:
            line.cuts.append((number, epoch))

    def committed(self, life: GhostLife, epoch: int) -> None:
        """Nothing goes back behind its cut of this epoch any more."""
        line = self._lines.get(_key(life))
        if line is not None and line.life is life:
            number = next((each for each, cut in line.cuts if cut == epoch), 0)
            first = max(0, bisect_right(line.moments, number, key=_number) - 1)
            del line.moments[:first]

    def halted(self, life: GhostLife) -> None:
        """Its incarnation is over."""
        line = self._lines.get(_key(life))
        if line is not None:
            line.over = True

    left = halted

    # --- the way back -------------------------------------------------------------------------------------------------

    def recovered(
        self,
        life: GhostLife,
        found: TurnBase | None,
        base: TurnBase | None,
        number: int,
        streams: Mapping[str, ResumedStreams],
        unrouted: Iterable[Delivery],
        hosts: Iterable[AgentHost],
    ) -> None:
        """A life has read its log, and has not registered.

        Args:
            life: It.
            found: What was on its disk to build on.
            base: What it builds on; None: nothing.
            number: Of the log's last record.
            streams: Where its streams go on.
            unrouted: What waits for agents to appear.
            hosts: Of the agents that its log brings back.

        Raises:
            Violation: I17, I6.
        """
        cluster, name = self.cluster, life.name
        self._came_back.pop(name, None)
        self._bases[name] = found
        if base is None:
            return
        key = (name, base.incarnation, base.line)
        line = self._lines.get(key)
        if line is None:
            raise Violation("I17", f"{name} comes back from the log of line {base.line}, which never began")
        self._came_back[name] = key, number
        if line.over:
            return
        moment = self._moment_of(name, line, number)
        where = f"{name}, line {base.line}, comes back from record {number} (moment {moment.number})"
        self._compare(where, life.agents_now(hosts), moment, unrouted)
        self._check_seen(where, line, moment)
        self._check_acknowledged(where, name, base, streams)
        self._check_flying(where, line, moment, streams)
        lost = line.moments[-1].number - moment.number
        cluster.probes.hit("turns.recovered")
        if lost:
            cluster.probes.hit("turns.unseen_lost")
        self._go_back(line, moment)

    def claimed(self, life: GhostLife, number: int) -> None:
        """A life has closed what it read with this record: of no other one is there anything behind it.

        A twin that was frozen before may still have the session, and become a member: it begins turns, and its log refuses them.
        """
        self._claimed[life.name] = life
        key, _ = self._came_back.get(life.name, (None, 0))
        line = None if key is None else self._lines[key]
        if line is not None and line.life is not life:
            line.moments = [moment for moment in line.moments if moment.number < number]

    def _moment_of(self, name: str, line: _Line, number: int) -> Moment:
        index = bisect_right(line.moments, number, key=_number) - 1
        if index < 0:
            raise Violation("I17", f"{name} comes back from record {number}, behind which its epoch is committed")
        return line.moments[index]

    def _compare(self, where: str, now: Mapping[str, AgentNow], moment: Moment, unrouted: Iterable[Delivery]) -> None:
        if sorted(now) != sorted(moment.agents):
            raise Violation("I17", f"{where}: it has {sorted(now)}, there were {sorted(moment.agents)}")
        for agent, there in moment.agents.items():
            here = now[agent]
            if here.state != there.state and here.state and there.state:
                raise Violation(
                    "I17", f"{where}: {agent} is {_shown(here.state)}, it was {_shown(there.state)} in that moment"
                )
            # A timer that has fired is a message; from a log it comes back as a timer that is overdue.
            wanted = [data for data in there.mailbox if data not in here.timers]
            if here.mailbox != wanted:
                raise Violation(
                    "I17", f"{where}: {agent} has {_types(here.mailbox)} before it, there were {_types(wanted)}"
                )
            fired = [data for data in there.mailbox if data in here.timers]
            if sorted(here.timers) != sorted({**there.timers, **dict.fromkeys(fired)}):
                raise Violation("I17", f"{where}: {agent} has {len(here.timers)} timers of {len(there.timers)}")
        found = [(envelope.target, data) for envelope, data in unrouted]
        if found != moment.unrouted:
            raise Violation("I17", f"{where}: {len(found)} unrouted messages, there were {len(moment.unrouted)}")

    def _check_seen(self, where: str, line: _Line, moment: Moment) -> None:
        for stream in line.life.outgoing_ever:
            if stream.delivered > moment.sent.get(stream, 0):
                raise Violation(
                    "I17",
                    f"{where}: {stream.delivered} messages of {stream} were received, it has sent {moment.sent.get(stream, 0)}",
                )
        taken = self._ghost.outputs.taken_of(line.life.line, line.life.incarnation)
        if taken > moment.outputs:
            raise Violation("I30", f"{where}: a sink has its output {taken}, it has emitted {moment.outputs}")
        states = self.cluster.oracles.history.states
        for number, epoch in line.cuts:
            if number > moment.number and states.get(epoch) in ("sealed", "committed"):
                raise Violation(
                    "I17", f"{where}: epoch {epoch} is {states[epoch]}, and its cut was behind record {number}"
                )

    def _check_acknowledged(self, where: str, name: str, base: TurnBase, streams: Mapping[str, ResumedStreams]) -> None:
        """What a sender has forgotten is here."""
        for other in self.cluster.lives.values():
            peer = other.machine._peers.get(name) if other.alive else None  # type: ignore[call-overload]  # noqa: SLF001 - an oracle looks at what the machine has
            if (
                peer is None
                or peer.sending is None
                or peer.line != base.line
                or other.machine.incarnation != base.incarnation
            ):
                continue
            known = streams.get(other.name)
            received = known.received if known is not None and known.line == other.machine.line else 0
            if peer.sending.acknowledged_through > received:
                raise Violation(
                    "I17",
                    f"{where}: {other.name} was told that it has {peer.sending.acknowledged_through} items, it has {received}",
                )

    def _check_flying(self, where: str, line: _Line, moment: Moment, streams: Mapping[str, ResumedStreams]) -> None:
        """What it will send again is what its line had sent last, and nothing is missing of what nobody has."""
        for stream in line.life.outgoing.values():
            resumed = streams.get(stream.target)
            if resumed is None or stream.target_session != resumed.line:
                continue
            again = [message_payload(item) for item in resumed.items if item_kind(item) == KIND_MESSAGE]
            sent = stream.sent[: moment.sent.get(stream, 0)]
            if again != sent[len(sent) - len(again) :]:
                raise Violation("I6", f"{where}: what it sends again on {stream} is not what it had sent")
            if len(sent) - len(again) > stream.delivered:
                raise Violation(
                    "I6",
                    f"{where}: {stream.delivered} of {len(sent)} messages of {stream} arrived, it sends {len(again)} again",
                )

    def _go_back(self, line: _Line, moment: Moment) -> None:
        ghost, life = self._ghost, line.life
        for stream in life.outgoing_ever:
            kept = moment.sent.get(stream, 0)
            del stream.sent[kept:]
            del stream.stamps[kept:]
        for stream in life.incoming_ever:
            stream.delivered = moment.delivered.get(stream, 0)
            stream.passed_over = dict(moment.passed.get(stream, ()))
        if self.events.get(life.line, 0) > moment.events:
            ghost.forget(life.line, moment.events)
            self.events[life.line] = moment.events
        ghost.outputs.forget(life.line, life.incarnation, moment.outputs)
        del line.moments[line.moments.index(moment) + 1 :]
        line.cuts = [cut for cut in line.cuts if cut[0] <= moment.number]
        life.superseded = True

    def goes_on(self, life: GhostLife) -> None:
        """A life is a member again, as the next session of its line.

        Raises:
            Violation: I22, I24.
        """
        key, number = self._came_back.get(life.name, (None, 0))
        line = None if key is None else self._lines[key]
        incarnation = life.machine_incarnation
        named = self.line(life.session, incarnation)
        if line is None or key != (life.name, incarnation, named):
            raise Violation("I24", f"{life.name} goes on in {incarnation} as line {named}, and its log is {key}")
        if line.over:
            raise Violation("I22", f"{life.name} goes on from incarnation {line.life.incarnation}, which is over")
        if self._claimed.get(life.name, life) is not life and line.moments[0].number > number:
            # It slept while a twin went on from its log, and that one's epochs were committed: nothing that it does counts.
            life.superseded = True
            return
        if line.life is not life:
            # Another life may have gone on since, from the same log: what it did has to be nobody's.
            moment = self._moment_of(life.name, line, number)
            self._check_seen(f"{life.name} goes on from record {number}", line, moment)
            self._go_back(line, moment)
        life.adopt(line.life, line.moments[-1])
        line.life = life
        self.cluster.disk_of(life.name).harmed = False
        self.cluster.probes.hit("turns.resumed")
        if sorted(line.moments[-1].agents) != sorted(self._declared.get(life.name, ())):
            self.cluster.probes.hit("turns.resumed_elsewhere")

    def line(self, session: int, incarnation: int) -> int:
        """First session of the line that a session is of in an incarnation."""
        return self._line_of.get((incarnation, session), session)

    # --- from the log of the coordinators -----------------------------------------------------------------------------

    def entry_applied(self, coordinator: CoordinatorLife, command: dict[str, Any]) -> None:
        """An entry has had its effect, for the first time.

        Raises:
            Violation: I24, I31.
        """
        ledger = coordinator.ledger
        if command["kind"] == "adopt":
            self._adopting.update(dict.fromkeys(command["agents"]))
        elif command["kind"] == "register":
            record = ledger.state.participants[command["participant"]]
            before = self._registered.get(record.id)
            line = record.line or record.session
            if before is not None and before[0] == record.session:
                return
            self._registered[record.id] = (record.session, line)
            declared = self._declared.get(record.id, record.declared)
            self._declared[record.id] = record.declared
            if line != record.session:
                if before is None or before[1] != line:
                    raise Violation("I24", f"{record.id} goes on as line {line}, it was {before}")
                self._line_of[ledger.state.incarnation, record.session] = line
            elif before is not None and any(
                member.id == record.id and line_of(member) == before[1] for member in ledger.state.topology.members
            ):
                key = (record.id, ledger.state.incarnation, before[1])
                has_changed = declared != record.declared or self._has_lost(key, ledger)
                self._begins_anew(record.id, key, begun=ledger.incarnation_begun and not has_changed)

    def _begins_anew(self, name: str, before: tuple[str, int, int], *, begun: bool) -> None:
        """A member that was lost comes back as nobody's successor: everybody has to go back."""
        disk = self.cluster.disk_of(name)
        line = self._lines.get(before)
        if disk.harmed:
            disk.harmed = False
            self.cluster.probes.hit("turns.harmed_disk")
        elif begun and line is not None and not line.over and self._was_seen(line) and not self._base_is_gone(name):
            raise Violation(
                "I31",
                f"{name} comes back anew; nothing has happened to its disk, and others have seen what it was, {before}",
            )
        self._begun_anew[name] = None

    def _has_lost(self, key: tuple[str, int, int], ledger: Ledger) -> bool:
        """Whether somebody else has agents of a line by now, or is to have them."""
        line = self._lines.get(key)
        agents = () if line is None else line.moments[-1].agents
        return any(agent in self._adopting or ledger.host_of(agent) not in {None, key[0]} for agent in agents)

    def _was_seen(self, line: _Line) -> bool:
        """Whether anybody knows of anything that the line did."""
        states = self.cluster.oracles.history.states
        return (
            any(stream.delivered for stream in line.life.outgoing_ever)
            or bool(self._ghost.outputs.taken_of(line.life.line, line.life.incarnation))
            or any(states.get(epoch) in ("sealed", "committed") for _, epoch in line.cuts)
        )

    def _base_is_gone(self, name: str) -> bool:
        """What its log builds on has rotted in the store."""
        base = self._bases.get(name)
        order = None if base is None or base.snapshot else base.order
        return (
            order is not None
            and bool(order.epoch)
            and manifest_key(Epoch(order.epoch)) in self.cluster.store.spoiled.meant
        )

    def rolled_back(self, incarnation: int, cause: str) -> None:
        """An incarnation begins, because of this.

        Raises:
            Violation: I31.
        """
        self._adopting.clear()
        operator = self.cluster.operator
        asked = cause.startswith(REASON) or operator.asked_by(cause) is not None
        # Whoever stays away is waited for as long as the policy says.
        patience_ns = self.cluster.options.takeover_ns
        stays_away = 0 < patience_ns < PATIENT_NS or cause.partition(" ")[0] in self.cluster.absent
        unfinished = incarnation > 2 and not self._ghost.rollbacks.has_begun(incarnation - 1)
        if not (self._begun_anew or unfinished or asked or stays_away):
            raise Violation("I31", f"incarnation {incarnation} begins, and nobody had to begin anew: {cause}")
        self._begun_anew.clear()
        # Lines end with their incarnation.
        self._registered = {name: (session, session) for name, (session, _) in self._registered.items()}


def _key(life: GhostLife) -> tuple[str, int, int]:
    return life.name, life.incarnation, life.line


def _number(moment: Moment) -> int:
    return moment.number


def _shown(state: bytes) -> str:
    return repr(msgspec.msgpack.decode(state))[:300]


def _types(mailbox: Sequence[bytes]) -> list[str]:
    return [_decode(data).type for data in mailbox]
