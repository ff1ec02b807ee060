"""The ghost log: what really happened, taken down beside the product and never by it.

Per stream (a channel within one pair of sessions) the messages that turns sent, in order, by a routing of its own; per
stream how many of them were handed to mailboxes; vector clocks; and at each participant's cut where all of these stood and
what the agents' states and mailboxes were. No sequence number, marker or digest of the product is read here.

Source: RELIABILITY.md section 3 (feeders of the oracles).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from participant.inputs import came_with_token
from protocol.ids import ParticipantId
from protocol.messages import Registered, Restore
from simulations.oracles.outputs import Outputs
from simulations.oracles.rollbacks import Rollbacks
from simulations.oracles.turns import AgentNow, Moment, Turns, agent_now
from simulations.state_forms import agent_fields
from simulations.violations import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from participant.host import AgentHost
    from participant.machine_events import (
        AnnounceEpoch,
        AnnounceRepeated,
        DeliverToAgents,
        Delivery,
        Effect,
        RecordLocal,
    )
    from participant.runtime.loader import Loaded
    from protocol.messages import ToParticipant
    from protocol.topology import Topology
    from simulations.coordinator_node import CoordinatorLife
    from simulations.oracles import Oracles
    from simulations.participant_node import ParticipantLife


class Stream:
    """One channel within one pair of sessions and one incarnation."""

    __slots__ = (
        "delivered",
        "incarnation",
        "passed_over",
        "sent",
        "source",
        "source_session",
        "stamps",
        "target",
        "target_session",
    )

    def __init__(self, source: str, source_session: int, target: str, target_session: int, incarnation: int) -> None:
        self.incarnation = incarnation
        self.source = source
        self.source_session = source_session
        self.target = target
        self.target_session = target_session
        self.sent: list[bytes] = []
        """Encoded envelopes in the order in which turns sent them."""
        self.stamps: list[dict[int, int]] = []
        """The sender's vector clock with each; shared by the messages of one moment."""
        self.delivered = 0
        self.passed_over: dict[int, None] = {}
        """Messages ahead that came and were not delivered: their agents had had them."""

    def __str__(self) -> str:
        return (
            f"{self.source}->{self.target} (sessions {self.source_session}, {self.target_session}, "
            f"incarnation {self.incarnation})"
        )


_NOWHERE = Stream("", 0, "", 0, 0)
"""Of agents that nobody hosts."""
_NO_WAY = Stream("", 0, "", 0, 0)
"""Of agents to whose participant there is no channel: what is sent to them is put aside."""


class GhostCut:
    """What one participant was at its cut of an epoch."""

    __slots__ = (
        "at",
        "clock",
        "had",
        "line",
        "mailboxes",
        "received",
        "sent",
        "session",
        "since",
        "states",
        "timers",
        "topology",
        "unrouted",
    )

    def __init__(self, life: GhostLife, at: int, states: dict[str, bytes], mailboxes: dict[str, list[bytes]]) -> None:
        self.at = at
        self.session = life.session
        self.line = life.line
        self.sent = {stream: len(stream.sent) for stream in life.outgoing_ever}
        self.received = {stream: stream.delivered for stream in life.incoming_ever}
        self.clock = dict(life.clock)
        self.states = states
        self.mailboxes = mailboxes
        self.timers: dict[str, int] = {}
        self.unrouted = [data for _, data in life.unrouted]
        self.topology = life.version
        self.had = frozenset(life.had)
        self.since = life.kept
        """The epoch that this one builds on: the newest that its life had been told to keep; 0: none."""


class GhostLife:
    """The ghost of one life of a participant."""

    def __init__(self, ghost: GhostLog, life: ParticipantLife) -> None:
        self._ghost = ghost
        self._life = life
        self.name = life.name
        self.number = life.number
        self.boot_id = life.boot_id
        self.session: int = 0
        self.incarnation: int = 0
        """That its agents are in, or are being restored for."""
        self.had: set[bytes] = set()
        """Ids of outside input with tokens that its agents have had; asked, never iterated."""
        self.opening: int | None = None
        """What its agents held of the workload's total when they were restored; None: they began fresh."""
        self._obeyed = 0
        """Incarnation that it was ordered into last."""
        self.is_restored = False
        """It has its part, and its agents have not begun."""
        self.version: int = 0
        self.term = 0
        self.routes: dict[str, Stream | None] = {}
        """Agent -> stream; None: hosted here."""
        self.hosts: dict[str, str] = {}
        """Agent -> participant, in the topology that it is in."""
        self.inherited: list[bytes] = []
        """What it was given for agents that were not there."""
        self.outgoing: dict[str, Stream] = {}
        self.incoming: dict[str, Stream] = {}
        self.outgoing_ever: list[Stream] = []
        self.incoming_ever: list[Stream] = []
        self.unrouted: list[tuple[str, bytes]] = []
        self.clock: dict[int, int] = {}
        """Session -> moments of it that this participant has heard of."""
        self.reported: dict[int, str] = {}
        self.ends: dict[int, str] = {}
        """Epoch -> how it ended, as this life was told."""
        self.kept: int = 0
        """The newest epoch that this life builds on."""
        self._beginning: Moment | None = None
        self.superseded = False
        """Another life has read the log that this one wrote: what it still does by itself has not happened."""

    @property
    def line(self) -> int:
        """Session after which its line is named (`simulations.oracles.turns`): without a log, its own."""
        return self._ghost.turns.line(self.session, self.incarnation)

    @property
    def machine_incarnation(self) -> int:
        """That its machine is in now."""
        return int(self._life.machine.incarnation)

    def agents_now(self, hosts: Iterable[AgentHost] | None = None) -> dict[str, AgentNow]:
        """What its agents are, or those that it is about to have."""
        forms = self._life.cluster.workload.forms
        found = self._life.hosts if hosts is None else hosts
        return {host.id: agent_now(host, forms.at_cut(host)) for host in found}

    def adopt(self, before: GhostLife, moment: Moment) -> None:
        """Go on where another life of the line was in a moment."""
        self.incarnation, self.opening, self.kept = before.incarnation, before.opening, before.kept
        self.outgoing_ever, self.incoming_ever = before.outgoing_ever, before.incoming_ever
        self.unrouted, self.clock, self.had = list(moment.unrouted), moment.clock, set(moment.had)
        self.is_restored = before.is_restored

    # --- messages -----------------------------------------------------------------------------------------------------

    def sent(self, sends: Sequence[Delivery]) -> None:
        """Turns have committed; these are their sends, in order."""
        if self.superseded:
            return
        clock = self.clock = dict(self.clock)
        line = self.line
        clock[line] = clock.get(line, 0) + 1
        routes = self.routes
        happened = self._ghost.happened
        for envelope, data in sends:
            stream = routes.get(envelope.target, _NOWHERE)
            if stream is None:
                continue
            if stream is _NOWHERE:
                self.unrouted.append((envelope.target, data))
                continue
            if stream is _NO_WAY:
                continue
            sent = stream.sent
            happened("send", line, stream, len(sent), 1)
            sent.append(data)
            stream.stamps.append(clock)
        self._ghost.sends += len(sends)

    def delivered(self, effect: DeliverToAgents) -> None:
        """These go into mailboxes here: a run of messages from one participant, or of this one's own."""
        if self.superseded:
            return
        deliveries, source = effect.deliveries, effect.source
        self.had.update(message.id for message, _ in deliveries if came_with_token(message.source, message.id))
        if not source:
            return
        stream = self.incoming.get(source)
        if stream is None:
            raise Violation("I22", f"{self.name} takes a message of {source}, with which it shares no channel")
        got = [data for _, data in deliveries]
        while got:
            self._pass(stream)
            ahead = min(stream.passed_over, default=stream.delivered + len(got)) - stream.delivered
            run, got = got[:ahead], got[ahead:]
            if run != stream.sent[stream.delivered : stream.delivered + len(run)]:
                self._explain(stream, run)
            self._came(stream, len(run))
        self._pass(stream)

    def passed_over(self, effect: AnnounceRepeated) -> None:
        """An input came whose agent has had it."""
        if self.superseded:
            return
        message, data = effect.message
        stream = self.incoming[effect.source] if effect.source else None
        # Or it came twice in the frame that is being taken in.
        if message.id not in self.had and (stream is None or stream.sent[stream.delivered :].count(data) < 2):
            raise Violation("I19", f"{self.name} passes over input {message.id.hex()}, which no agent here has had")
        if stream is None:
            return
        at = self._ahead(stream, data, stream.delivered)
        if message.id not in self.had:
            at = self._ahead(stream, data, at + 1)  # the first of them is still to be delivered
        stream.passed_over[at] = None
        self._pass(stream)

    @staticmethod
    def _ahead(stream: Stream, data: bytes, at: int) -> int:
        while stream.sent[at : at + 1] != [data] or at in stream.passed_over:
            if at >= len(stream.sent):
                raise Violation("I6", f"{stream}: an input is passed over that was never sent on it")
            at += 1
        return at

    def _pass(self, stream: Stream) -> None:
        while stream.delivered in stream.passed_over:
            del stream.passed_over[stream.delivered]
            self._came(stream, 1)

    def _came(self, stream: Stream, count: int) -> None:
        position = stream.delivered
        stream.delivered = position + count
        self._ghost.happened("recv", self.line, stream, position, count)
        self._ghost.deliveries += count
        theirs = stream.stamps[position + count - 1]
        clock = self.clock = dict(self.clock)
        for line, moments in theirs.items():
            if clock.get(line, 0) < moments:
                clock[line] = moments
        clock[self.line] = clock.get(self.line, 0) + 1

    def _explain(self, stream: Stream, got: list[bytes]) -> None:
        for offset, data in enumerate(got):
            number = stream.delivered + offset
            if number < len(stream.sent) and stream.sent[number] == data:
                continue
            where = [index for index, sent in enumerate(stream.sent) if sent == data]
            what = f"is message {where[0]} of it" if where else "was never sent on it"
            raise Violation("I6", f"{stream}: what arrives as message {number} {what}; {len(stream.sent)} were sent")
        raise AssertionError("lists that differ differ somewhere")

    def emitted(self, outputs: Sequence[tuple[bytes, str, bytes]]) -> None:
        """A turn has committed and emits these: id, sink, payload."""
        if not self.superseded:
            self._ghost.outputs.emitted(self.line, self.incarnation, outputs)

    def ingested(self, message: Delivery) -> None:
        """A message from outside was accepted here."""
        self.sent((message,))

    # --- orders -------------------------------------------------------------------------------------------------------

    def ordered(self, message: ToParticipant, effects: Sequence[Effect]) -> None:
        """An order arrived; `effects` is what it brought about."""
        if isinstance(message, Registered) and not self.session:
            self.session = int(self._life.machine.session)
            self._ghost.registered(self)
        elif (
            not isinstance(message, Registered) and effects and getattr(message, "session", 0) not in (0, self.session)
        ):
            raise Violation(
                "I24",
                f"{self.name}, session {self.session}, obeys an order for another: {type(message).__name__} {message!r}",
            )
        if isinstance(message, Restore) and message.session == self.session:
            self._ghost.rollbacks.ordered(self._life, message, effects)
        term = getattr(message, "term", self.term)
        if term < self.term and effects:
            raise Violation("I20", f"{self.name} obeys term {term} after {self.term}: {message!r}")
        self.term = max(self.term, term)

    def entered(self, topology: Topology) -> None:
        """It is a member of this version."""
        if topology.version <= self.version:
            raise Violation("I7", f"{self.name} enters topology {topology.version} after {self.version}")
        self.version = int(topology.version)
        self.incarnation = int(self._life.machine.incarnation)
        me = ParticipantId(self.name)
        out: dict[str, Stream] = {}
        incoming: dict[str, Stream] = {}
        for other in topology.targets_of(me):
            member = topology.member(other)
            assert member is not None
            out[other] = self._ghost.stream(self.name, self.session, other, member.session, self.incarnation)
        for other in topology.sources_of(me):
            member = topology.member(other)
            assert member is not None
            incoming[other] = self._ghost.stream(other, member.session, self.name, self.session, self.incarnation)
        self.outgoing_ever += [stream for stream in out.values() if stream not in self.outgoing_ever]
        self.incoming_ever += [stream for stream in incoming.values() if stream not in self.incoming_ever]
        self.outgoing, self.incoming = out, incoming
        self.routes, self.hosts = {}, {}
        if self.opening is None and self._life.cluster.options.elsewhere:
            mine = [agent for agent in topology.agents() if topology.host_of(agent) == me]
            self.opening = sum(map(self._life.cluster.workload.brings, mine))
        for agent in topology.agents():
            host = topology.host_of(agent)
            if host is not None:
                self.hosts[agent] = host
            if host == self.name:
                self.routes[agent] = None
            else:
                self.routes[agent] = out.get(host, _NO_WAY) if host is not None else _NOWHERE
        unrouted, self.unrouted = self.unrouted, []
        if unrouted:
            clock = self.clock
            for target, data in unrouted:
                stream = self.routes.get(target, _NOWHERE)
                if stream is _NOWHERE:
                    self.unrouted.append((target, data))
                elif stream is not None and stream is not _NO_WAY:
                    self._ghost.happened("send", self.line, stream, len(stream.sent), 1)
                    stream.sent.append(data)
                    stream.stamps.append(clock)

    # --- rollbacks ----------------------------------------------------------------------------------------------------

    def halted(self) -> None:
        """It has obeyed a restore order: nothing of what it was in goes on."""
        outputs = self._ghost.outputs
        moments = self.clock.get(self.line, 0)
        outputs.halted(self.line, self.incarnation)
        self._ghost.turns.halted(self)
        self.incarnation = int(self._life.machine.incarnation)
        outputs.entered = max(outputs.entered, self.incarnation)
        self._obeyed = self.incarnation
        self.is_restored = False
        self.had = set()
        self.routes, self.outgoing, self.incoming = {}, {}, {}
        self.outgoing_ever, self.incoming_ever, self.unrouted = [], [], []
        # What it knows of others is of an incarnation that is over; its own moments go on.
        self.clock = {self.line: moments}

    def persisted(self, incarnation: int) -> None:
        """An incarnation is on its disk: if it was ordered into it, it has entered it."""
        if incarnation == self._obeyed:
            self._ghost.rollbacks.enters(self._life, incarnation)

    def restored(self, order: Restore, loaded: Loaded) -> None:
        """Its agents were loaded just now."""
        self._ghost.rollbacks.restored(self._life, order, loaded)
        self.is_restored = True
        self.unrouted = [(envelope.target, data) for envelope, data in loaded.unrouted]
        self.inherited = [data for _, data in loaded.unrouted]
        workload = self._life.cluster.workload
        self.opening = sum(workload.carried_bytes(data) for _, data in self.unrouted)
        for host in loaded.hosts:
            self.opening += workload.held(agent_fields(host.agent))
            self.opening += sum(workload.carried_bytes(data) for _, data in host.mailbox)
        self.kept = order.epoch

    def begun(self, *, restored: bool) -> None:
        """Its agents run from here on."""
        if restored:
            self._ghost.rollbacks.begun(self._life)

    # --- the log of turns ---------------------------------------------------------------------------------------------

    def will_begin(self) -> None:
        """It becomes a member, and its line begins: what it is before anything is sent on its channels."""
        self._beginning = self._ghost.turns.moment(self, 0)

    def begins_line(self, number: int) -> None:
        """Its line begins behind this number of its log."""
        assert self._beginning is not None, "it becomes a member"
        self._ghost.turns.began(self, number, self._beginning)

    def flushed(self, number: int) -> None:
        """All that has happened is covered by its log up to this number."""
        self._ghost.turns.flushed(self, number)

    def logged_cut(self, epoch: int, number: int) -> None:
        """It recorded its local state behind this number of its log."""
        self._ghost.turns.cut(self, epoch, number)

    def logged_commit(self, epoch: int) -> None:
        """It is told that an epoch is committed."""
        self._ghost.turns.committed(self, epoch)

    def recovered(self, *found: Any) -> None:  # noqa: ANN401 - as `Turns.recovered`
        """It has read its log."""
        self._ghost.turns.recovered(self, *found)

    def claimed(self, number: int) -> None:
        """What it has read is closed with this record of its own."""
        self._ghost.turns.claimed(self, number)

    def goes_on(self) -> None:
        """It becomes a member, as the next session of its line."""
        self._ghost.turns.goes_on(self)

    # --- epochs -------------------------------------------------------------------------------------------------------

    def cut(self, effect: RecordLocal) -> None:
        """The local state is recorded now."""
        key = (self.session, int(effect.epoch))
        if key in self._ghost.cuts:
            raise Violation("I10", f"{self.name} records epoch {effect.epoch} twice")
        forms = self._life.cluster.workload.forms
        states: dict[str, bytes] = {}
        mailboxes: dict[str, list[bytes]] = {}
        timers: dict[str, int] = {}
        for host in self._life.hosts:
            states[host.id] = forms.at_cut(host)
            mailboxes[host.id] = [data for _, data in host.mailbox]
            timers[host.id] = len(host.timers)
        cut = GhostCut(self, self._life.now, states, mailboxes)
        cut.timers = timers
        self._ghost.outputs.cut(self.line, self.incarnation, int(effect.epoch))
        self._ghost.cuts[key] = cut
        self._ghost.happened("cut", self.line, None, int(effect.epoch), 0)

    def announced(self, effect: AnnounceEpoch) -> None:
        """It is told how an epoch ended."""
        how = "committed" if effect.committed else "aborted"
        known = self.ends.setdefault(int(effect.epoch), how)
        if known != how:
            raise Violation("I11", f"{self.name} hears that epoch {effect.epoch} is {how}, before: {known}")
        self._ghost.oracles.told(self.name, int(effect.epoch), how)


class GhostLog:
    """All of it."""

    def __init__(self) -> None:
        self.oracles: Oracles
        self.streams: dict[tuple[int, int, int], Stream] = {}
        """By incarnation and lines of source and target: sessions, where nobody goes on from a log."""
        self.cuts: dict[tuple[int, int], GhostCut] = {}
        """(session, epoch) -> cut."""
        self.lives: dict[int, GhostLife] = {}
        """By session."""
        self.rollbacks = Rollbacks()
        self.outputs = Outputs()
        self.turns = Turns(self)
        self.history: list[tuple[str, int, Stream | None, int, int]] = []
        """In real order: ``send`` or ``recv``, line, stream, number of the first message, count; or ``cut``, line, None,
        epoch, 0."""
        self.sends = 0
        self.deliveries = 0

    def born(self, life: ParticipantLife) -> GhostLife:
        """A life begins."""
        return GhostLife(self, life)

    def registered(self, life: GhostLife) -> None:
        """A life has a session."""
        if life.session in self.lives:
            raise Violation(
                "I24", f"session {life.session} is given to {life.name} and {self.lives[life.session].name}"
            )
        self.lives[life.session] = life

    def stream(self, source: str, source_session: int, target: str, target_session: int, incarnation: int) -> Stream:
        """The stream, made by whoever knows of it first."""
        line = self.turns.line
        source_session, target_session = line(source_session, incarnation), line(target_session, incarnation)
        key = (incarnation, source_session, target_session)
        found = self.streams.get(key)
        if found is None:
            found = self.streams[key] = Stream(source, source_session, target, target_session, incarnation)
        return found

    def happened(self, what: str, line: int, stream: Stream | None, first: int, count: int) -> None:
        """Take it down."""
        self.history.append((what, line, stream, first, count))
        events = self.turns.events
        events[line] = events.get(line, 0) + 1

    def forget(self, line: int, kept: int) -> None:
        """Of what a line did only so much has happened."""
        seen = 0
        left = []
        for entry in self.history:
            if entry[1] == line:
                seen += 1
                if seen > kept:
                    continue
            left.append(entry)
        self.history[:] = left

    def entry_applied(self, coordinator: CoordinatorLife, command: dict[str, Any], result: dict[str, Any]) -> None:
        """A replica has applied an entry of the log."""
        self.oracles.entry_applied(coordinator, command, result)
