"""From an epoch to the last logged turn: records applied to agents' hosts, in order. No user code runs.

How a driver uses it, after the epoch was loaded into the hosts::

    replay = Replay(hosts, received=..., sent=...)
    for batch in log.recover(after=position): replay.batch(batch.body, batch.first, after=position)
    replayed = replay.finish(now, wall_now)

It finds what a restart needs beside the agents: where each incoming channel was, and what may have to be sent again on each
outgoing one, with the numbers that it had. A record that does not fit is an error, never a guess: what was logged was
acknowledged to somebody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from participant.cells import KeyedState, WholeCell
from participant.codec import RESERVED_PREFIX
from participant.failure import describe
from participant.host import decode_envelope
from participant.inputs import NO_DIGEST, came_with_token, message_digest
from participant.turnlog.records import (
    NOTHING,
    AcknowledgedRecord,
    DeliveredRecord,
    EndedRecord,
    LifeRecord,
    PositionRecord,
    ReceivedRecord,
    SentRecord,
    StreamRecord,
    TakenRecord,
    TurnRecord,
    decode_records,
)
from protocol.errors import RecoveryError
from protocol.items import KIND_MESSAGE, item_kind, message_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from participant.host import AgentHost
    from participant.inputs import TokenPair
    from participant.serializers import PickleAllowed
    from participant.turnlog.records import EmittedOutput, Send


Unacknowledged: TypeAlias = tuple[int, bytes, bool]
"""Something that was sent, and is to be sent again unless its receiver has it: its number; the encoded envelope of a turn's message,
or an encoded item; whether it is the former. A plain tuple: there may be many."""


class Replayed(NamedTuple):
    """What the log held beside the agents' own."""

    turns: int
    """Turns that were applied."""
    received: dict[str, int]
    """Incoming channel -> number up to which everything has been taken in."""
    sent: dict[str, int]
    """Outgoing channel -> number of the last thing that was sent."""
    unacknowledged: dict[str, list[Unacknowledged]]
    """Outgoing channel -> what may have to be sent again, in order."""
    unrouted: list[bytes]
    """Encoded envelopes to agents that nobody hosted."""
    outputs: list[tuple[str, EmittedOutput]]
    """Agent and output, in order: emitted, and not known to have reached their sinks."""
    input_position: int
    """Of the input log: everything up to it has been taken in."""
    lines: dict[str, int]
    """Peer -> its line, whose streams these positions are of."""
    last: LifeRecord | None
    """The last life that wrote; None: none did."""
    inputs: list[TokenPair]
    """Outside input with tokens that the agents have had."""


class _Host:
    """One agent while records are applied to it."""

    __slots__ = ("apply", "host", "latest", "mailbox")

    def __init__(self, host: AgentHost) -> None:
        self.host = host
        self.mailbox = host.mailbox
        self.apply: dict[str, Callable[[msgspec.Raw, msgspec.Raw, PickleAllowed | None], None] | None] = {}
        self.latest: dict[str, msgspec.Raw] = {}
        """Fields of which only the last change counts: decoded once, at the end."""
        for name, cell in host.state.cells.items():
            whole = not isinstance(cell, KeyedState) and getattr(cell, "form", None) is None
            self.apply[name] = None if whole or isinstance(cell, WholeCell) else cell.replay


class Replay:
    """One participant's log, applied.

    Args:
        hosts: By agent; with the epoch's state, before their first turn.
        received: Incoming channel -> position at the epoch's cut.
        sent: Outgoing channel -> position at the epoch's cut.
        lines: Peer -> its line at the epoch's cut.
        unrouted: Encoded envelopes that waited for an agent to appear at the epoch's cut.
        allowed: The right to unpickle, where an agent keeps its state with cloudpickle.
    """

    def __init__(
        self,
        hosts: Mapping[str, AgentHost],
        *,
        received: Mapping[str, int] | None = None,
        sent: Mapping[str, int] | None = None,
        lines: Mapping[str, int] | None = None,
        unrouted: Iterable[bytes] = (),
        allowed: PickleAllowed | None = None,
    ) -> None:
        self._lines = dict(lines or {})
        self._hosts = {agent: _Host(host) for agent, host in hosts.items()}
        self._allowed = allowed
        self._turns = 0
        self._received = dict(received or {})
        self._sent = dict(sent or {})
        self._flying: dict[str, list[Send | tuple[int, bytes]]] = {}
        """Outgoing channel -> sends, and number and item of markers, in order."""
        self._acknowledged: dict[str, int] = {}
        self._unrouted: list[bytes] = list(unrouted)
        self._outputs: dict[bytes, tuple[str, EmittedOutput]] = {}
        self._delivered: dict[bytes, None] = {}
        """Outputs that an epoch held, and sinks have."""
        self._timers: dict[bytes, tuple[str, int, int, bytes]] = {}
        """Timers that logged turns set, by message id: agent, wall clock of setting, delay, encoded envelope."""
        self._input_position = 0
        self._inputs: dict[bytes, bytes] = {}
        self._last: LifeRecord | None = None

    def batch(self, body: memoryview | bytes, first: int, *, after: int = 0) -> None:
        """Apply the records of one batch.

        Args:
            body: msgpack array of records.
            first: Number of the first.
            after: Records up to this number are in the epoch: passed over.

        Raises:
            RecoveryError: A record is none of ours, or does not fit what came before it.
        """
        try:
            records: Iterable[Any] = decode_records(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise RecoveryError(f"the log's records from {first} on are none of ours: {error}") from None
        if first <= after:
            records = list(records)[after + 1 - first :]
        for record in records:
            if type(record) is TurnRecord:
                self._turn(record)
            else:
                self._other(record)

    def finish(self, now: int, wall_now: int) -> Replayed:
        """Give the agents what they came to.

        Args:
            now: Driver time, from which timers run on.
            wall_now: Wall clock: what has passed since a timer was set.

        Raises:
            RecoveryError: A value does not fit its declared type.
        """
        for agent in self._hosts.values():
            if self._delivered and agent.host.outputs:
                held = agent.host.outputs.items()
                agent.host.outputs = {number: each for number, each in held if each.id not in self._delivered}
            cells = agent.host.state.cells
            field = ""
            try:
                for field, payload in agent.latest.items():
                    cells[field].replay(payload, NOTHING, self._allowed)
                whole = agent.host.whole
                if whole is not None and agent.latest:
                    whole.give_to_agent()
            except Exception as error:
                raise self._misfit(agent, field, error) from error
        for target, set_at, delay, data in self._timers.values():
            left = max(0, delay - max(0, wall_now - set_at))
            self._hosts[target].host.set_timer(now + left, decode_envelope(data), data)
        sent = dict(self._sent)
        unacknowledged: dict[str, list[Unacknowledged]] = {}
        for target, flying in self._flying.items():
            known = self._acknowledged.get(target, 0)
            found = [
                (each[1], bytes(each[2]), True) if len(each) == 3 else (each[0], each[1], False) for each in flying
            ]
            sent[target] = found[-1][0]
            if left_over := [each for each in found if each[0] > known]:
                unacknowledged[target] = left_over
        return Replayed(
            turns=self._turns,
            received=self._received,
            sent=sent,
            unacknowledged=unacknowledged,
            unrouted=self._unrouted,
            outputs=list(self._outputs.values()),
            input_position=self._input_position,
            lines=self._lines,
            last=self._last,
            inputs=list(self._inputs.items()),
        )

    # --- records ------------------------------------------------------------------------------------------------------

    def _turn(self, record: TurnRecord) -> None:
        name = record.agent
        agent = self._hosts.get(name) or self._agent(name)
        mailbox = agent.mailbox
        source = record.source
        host = agent.host
        if mailbox and mailbox[0][0].id == record.message:
            mailbox.popleft()
        elif not source or mailbox or host.timers or self._timers:
            self._take_message(agent, record)
        if came_with_token(record.sender, record.message):
            self._inputs.setdefault(record.message, NO_DIGEST)
        # Agents take their turns in an order of their own: a later message of a channel may be done first.
        if source and record.number > self._received.get(source, 0):
            self._received[source] = record.number
        apply = agent.apply
        field = ""
        try:
            for field, payload, removed in record.changes:
                function = apply[field]
                if function is None:
                    agent.latest[field] = payload
                else:
                    function(payload, removed, self._allowed)
        except Exception as error:
            raise self._misfit(agent, field, error) from error
        for send in record.sends:
            target = send[0]
            if target:
                flying = self._flying.get(target)
                if flying is None:
                    flying = self._flying[target] = []
                flying.append(send)
            else:
                self._deliver(bytes(send[2]))
        if record.timers:
            for delay, envelope in record.timers:
                data = bytes(envelope)
                self._timers[decode_envelope(data).id] = (name, record.at, delay, data)
        for output in record.outputs:
            self._outputs[output[0]] = (name, output)
        host.turns += 1
        if host.journals or host.questions:
            host.forget_journal(record.message)
        self._turns += 1

    def _misfit(self, agent: _Host, field: str, error: Exception) -> RecoveryError:
        if field not in agent.apply:
            return RecoveryError(f"agent {agent.host.id}: its class has no field {field} that the log holds")
        return RecoveryError(
            f"agent {agent.host.id}: what is logged of field {field} does not fit its declared type: {describe(error)}"
        )

    def _take_message(self, agent: _Host, record: TurnRecord | EndedRecord) -> None:
        """Remove a message from wherever it is: it has been handled."""
        identity = record.message
        # Set by a logged turn, and fired.
        if self._timers.pop(identity, None) is not None:
            return
        for index, (envelope, _) in enumerate(agent.mailbox):
            if envelope.id == identity:
                del agent.mailbox[index]
                return
        timers = agent.host.timers
        for index, timer in enumerate(timers):
            if timer[2].id == identity:
                timers[index] = timers[-1]
                timers.pop()
                agent.host.restore_timers()
                return
        # It came and was handled between two batches: only its turn was logged. Or a host had made it for its own agent.
        if not record.source and not record.message_type.startswith(RESERVED_PREFIX):
            raise RecoveryError(
                f"agent {record.agent}: the log holds a turn over message {identity.hex()}, and neither epoch nor log has it"
            )

    def _deliver(self, data: bytes) -> None:
        """Into a mailbox here, if it is for one."""
        envelope = decode_envelope(data)
        agent = self._hosts.get(envelope.target)
        if agent is None:
            self._unrouted.append(data)
        else:
            agent.mailbox.append((envelope, data))
            if came_with_token(envelope.source, envelope.id):
                self._inputs[envelope.id] = message_digest(envelope)

    def _other(self, record: Any) -> None:  # noqa: ANN401 - one of the other records
        match record:
            case ReceivedRecord():
                self._received[record.source] = max(record.number, self._received.get(record.source, 0))
                self._deliver(bytes(record.envelope))
            case TakenRecord():
                self._input_position = max(record.position, self._input_position)
                self._deliver(bytes(record.envelope))
            case PositionRecord():
                self._received[record.source] = max(record.number, self._received.get(record.source, 0))
            case SentRecord():
                if item_kind(record.item) == KIND_MESSAGE:
                    self._leaves(decode_envelope(message_payload(record.item)).id)
                self._flying.setdefault(record.target, []).append((record.number, record.item))
            case AcknowledgedRecord():
                self._acknowledged[record.target] = max(record.number, self._acknowledged.get(record.target, 0))
            case DeliveredRecord():
                for identity in record.outputs:
                    if self._outputs.pop(identity, None) is None:
                        self._delivered[identity] = None
            case EndedRecord():
                self._ended(record)
            case StreamRecord():
                if self._lines.get(record.peer) != record.line:
                    self._lines[record.peer] = record.line
                    for positions in (self._received, self._sent, self._flying, self._acknowledged):
                        positions.pop(record.peer, None)
            case LifeRecord():
                self._begun(record)
            case _:
                raise RecoveryError(f"the log holds a {type(record).__name__}, and it is not known what that is")

    def _leaves(self, identity: bytes) -> None:
        """A message that waited for a way has found one."""
        for index, data in enumerate(self._unrouted):
            if decode_envelope(data).id == identity:
                del self._unrouted[index]
                return

    def _ended(self, record: EndedRecord) -> None:
        agent = self._agent(record.agent)
        if record.stopped:
            agent.host.dead = True
            return
        self._take_message(agent, record)
        if record.source:
            self._received[record.source] = max(record.number, self._received.get(record.source, 0))
        if came_with_token(record.sender, record.message):
            self._inputs.setdefault(record.message, NO_DIGEST)
        agent.host.forget_journal(record.message)

    def _begun(self, record: LifeRecord) -> None:
        self._last = record
        for name, version in record.versions.items():
            agent = self._hosts.get(name)
            if agent is not None and agent.host.agent.state_version != version:
                raise RecoveryError(
                    f"agent {name}: its turns were logged with state_version {version}, its class has "
                    f"{agent.host.agent.state_version}. Logged turns are not migrated: start the code that wrote them once more "
                    "and take an epoch"
                )

    def _agent(self, name: str) -> _Host:
        agent = self._hosts.get(name)
        if agent is None:
            raise RecoveryError(f"the log holds turns of agent {name}, which is not here")
        return agent
