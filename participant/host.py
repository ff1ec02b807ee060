"""One agent in its participant: mailbox, timers, and one turn at a time. Pure: the driver runs what `Turn.start` gives.

How a driver uses it::

    turn = host.begin_turn(now)                       # needs host.ready(now)
    if type(turn) is DeadLettered: ...                # nobody here can decode or handle the message
    try:
        coroutine = turn.start()                      # None: the handler has run already
        if coroutine is not None:
            await coroutine
        result = turn.commit(now)
    except Exception as error:
        outcome = turn.rollback(error, now)

The message of a running turn stays at the head of the mailbox until commit: that is how a cut that meets a running turn
records it as the next to handle, and how a retry finds it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from blake3 import blake3

from participant.agent import Agent, Handler
from participant.context import Context, encode_envelope
from participant.effects.reach import added
from participant.failure import DeadLettered, FailureOutcome, Parked, RetryAfter, Stopped, decide, describe
from participant.migrations import upgraded
from participant.restoring import RESTORED_TYPE, Restoration, restored_message
from participant.steps import Parking
from protocol.errors import LocalProtocolError, RecoveryError, UndecodableMessage
from protocol.ids import MESSAGE_ID_BYTES, AgentId
from protocol.journal import OpenQuestion
from protocol.messages import Envelope

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine, Iterable, Mapping, Sequence

    from participant.codec import MessageRegistry
    from participant.schema import Schema
    from participant.serializers import PickleAllowed
    from participant.state import CutClock
    from participant.steps import Position, Steps
    from participant.turnlog.records import Change
    from protocol.journal import FinishedStep
    from protocol.outputs import Output

START_TYPE: Final = "cleancut.start"
"""Registered name of the message that has `Agent.on_start` called."""

_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
_decode_restoration = msgspec.msgpack.Decoder(Restoration).decode


def decode_envelope(data: bytes) -> Envelope:
    """An encoded envelope.

    Raises:
        UndecodableMessage: It is none.
    """
    try:
        return _decode_envelope(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableMessage(f"envelope of {len(data)} bytes: {error}") from None


class TurnResult(NamedTuple):
    """What a committed turn gives to the rest of the participant."""

    sends: list[tuple[Envelope, bytes]]
    """In order; each decoded and encoded."""
    timer_due: int | None
    """Instant of the agent's earliest timer if the turn set one, else None."""
    epoch_requests: Sequence[str]
    """Reasons why the agent wants an epoch."""
    outputs: Sequence[tuple[bytes, str, bytes]] = ()
    """Id, sink and encoded payload of each, in order."""
    timers: Sequence[tuple[int, Envelope, bytes]] = ()
    """Delay in nanoseconds, and what then comes, of each timer that the turn set."""
    changes: Sequence[Change] = ()
    """What it made of the agent's state, if turn commits are logged."""
    steps: Sequence[FinishedStep] = ()
    """Its finished steps, in order of their ends, if turn commits are logged."""


@dataclass(slots=True)
class WaitingQuestion:
    """A question of the running turn that nobody has answered yet."""

    token: str
    message_id: bytes
    """Of the message that the turn handles."""
    ordinal: int
    question: bytes
    """msgpack."""
    deadline: int | None
    """Instant at which it expires."""
    answer: Schema | None
    """What an answer must be; None: the turn has not asked again since a restore."""
    at: int
    """Instant at which it was asked."""


class SavedField(NamedTuple):
    """One field as it comes out of a store."""

    shape: str
    serializer: str
    segments: list[bytes]
    """Each segment's chunks, joined and verified."""
    removed: bytes = b""
    """The same of `FieldRef.removed`."""


class Turn:
    """The handling of one message: ends with exactly one `commit` or `rollback`."""

    __slots__ = ("_handler", "_host", "_message", "context", "data", "envelope")

    def __init__(
        self,
        host: AgentHost,
        handler: Handler,
        message: Any,  # noqa: ANN401 - of a registered type
        envelope: Envelope,
        data: bytes,
        context: Context,
    ) -> None:
        self._host = host
        self._handler = handler
        self._message = message
        self.envelope = envelope
        self.data = data
        self.context = context

    @property
    def may_await(self) -> bool:
        """`start` may give a coroutine."""
        return self._handler.may_await

    def start(self) -> Coroutine[Any, Any, None] | None:
        """Run the handler, or begin to.

        Returns:
            None if it has run to its end; else a coroutine to be awaited.

        Raises:
            Exception: Whatever the handler raises; roll back with it.
        """
        host = self._host
        if host.whole is not None:
            host.whole.capture_before_turn()
        handler = self._handler
        result = handler.function(host.agent, self.context, self._message)
        if result is None:
            return None
        if handler.never_awaits:
            try:
                result.send(None)
            except StopIteration:
                return None
            raise LocalProtocolError(f"{handler.name} was found never to await, and did")
        if hasattr(result, "__await__"):
            return result  # type: ignore[no-any-return]  # a handler may also be a plain function that returns an awaitable
        return None

    def commit(self, now: int) -> TurnResult:
        """Make state, sends and timers take effect together.

        Args:
            now: Driver time, nanoseconds; timers run from here.

        Raises:
            Unsavable: A value grew in place into something that cannot be saved: roll back with it.
            Parking: It is to be parked, though its handler returned: roll back with it.
            LocalProtocolError: Steps that it began still run: roll back with it.
        """
        host = self._host
        assert host.turn is self, "a turn ends once"
        context = self.context
        calls = context.calls
        if calls is not None:
            calls.check_over(host.id)
        state = host.state
        state.commit()
        context.closed = True
        steps: Sequence[FinishedStep] = ()
        if calls is not None:
            if state.logged:
                steps = tuple(host.journals.get(context.message_id, {}).values())
            host.end_calls(context, done=True)
        host.turn = None
        host.mailbox.popleft()
        host.attempts = 0
        host.turns += 1
        due = None
        if context.timers:
            for delay, envelope, data in context.timers:
                host.set_timer(now + delay, envelope, data)
            due = host.timers[0][0]
        outputs = context.outputs
        if not state.logged:
            return TurnResult(context.sends, due, context.epoch_requests, outputs)
        return TurnResult(context.sends, due, context.epoch_requests, outputs, context.timers, state.changes, steps)

    def rollback(self, error: BaseException, now: int) -> FailureOutcome | Parked:
        """Undo the turn; the failure policy says what becomes of its message.

        Args:
            error: What the handler, or `commit`, raised.
            now: Driver time, nanoseconds.
        """
        host = self._host
        assert host.turn is self, "a turn ends once"
        calls = self.context.calls
        try:
            host.state.rollback()
        except Exception as broken:  # noqa: BLE001 - a user's restore() raised: the state is not known any more
            self.context.closed = True
            host.end_calls(self.context, done=False)
            host.state.abandon()
            host.turn = None
            host.dead = True
            reason = f"{describe(error)}; then its restore() failed: {describe(broken)}"
            return Stopped(agent=host.id, message=self.envelope, reason=reason, attempts=host.attempts, at=now)
        self.context.closed = True
        host.turn = None
        parking = calls.parking if calls is not None else None
        if parking is None and isinstance(error, Parking):
            parking = error
        if parking is not None:
            host.end_calls(self.context, done=False)
            return self._park(parking, now)
        outcome = decide(
            host.agent.failure,
            agent=host.id,
            message=self.envelope,
            data=self.data,
            error=error,
            attempt=host.attempts,
            now=now,
        )
        host.end_calls(self.context, done=type(outcome) is DeadLettered)
        if type(outcome) is RetryAfter:
            host.wait_until = outcome.at
        elif type(outcome) is DeadLettered:
            host.mailbox.popleft()
            host.attempts = 0
        else:
            host.dead = True
        return outcome

    def abandon(self) -> None:
        """End the turn without an outcome: its participant stops. The message stays at the head."""
        host = self._host
        self.context.closed = True
        host.end_calls(self.context, done=False)
        host.state.abandon()
        host.turn = None

    def _park(self, parking: Parking, now: int) -> Parked:
        host = self._host
        # Not an attempt that failed.
        host.attempts -= 1
        host.parked = Parked(
            agent=host.id,
            message=self.envelope,
            step=parking.step,
            token=parking.token,
            intent=parking.intent,
            result=parking.result,
            cause=parking.cause,
            reason=str(parking),
            at=now,
        )
        return host.parked


class AgentHost:
    """One agent's mailbox, timers and turns.

    Args:
        agent: Belongs to this host from now on.
        registry: The participant's message types.
        clock: The participant's cuts; shared by all its hosts.

    Raises:
        Unsavable: First values cannot be saved.
        LocalProtocolError: The agent already has a host.
    """

    __slots__ = (
        "_dispatch",
        "_timer_ordinal",
        "_wants_restored",
        "agent",
        "attempts",
        "dead",
        "emits_refused",
        "id",
        "id_bytes",
        "journals",
        "lineage",
        "mailbox",
        "outputs",
        "parked",
        "questions",
        "registry",
        "sinks",
        "state",
        "steps",
        "targets",
        "timers",
        "turn",
        "turns",
        "unheard",
        "wait_until",
        "whole",
    )

    def __init__(self, agent: Agent, registry: MessageRegistry, clock: CutClock) -> None:
        if not hasattr(agent, "id"):
            raise LocalProtocolError(f"{type(agent).__qualname__}.__init__ must call super().__init__(name)")
        self.agent = agent
        self.id: AgentId = agent.id
        self.state = agent._cc_state  # noqa: SLF001 - the agent's state is ours
        self.state.adopt(clock)
        self.whole = self.state.cells.get("capture") if agent.__cleancut_captures__ else None
        self.mailbox: deque[tuple[Envelope, bytes]] = deque()
        """Next to handle first; the message of a running turn stays the first until it commits."""
        self.timers: list[tuple[int, int, Envelope, bytes]] = []
        """Heap of (due instant, order of setting, envelope, encoded envelope)."""
        self.turn: Turn | None = None
        self.dead = False
        """Stopped by its failure policy."""
        self.wait_until = 0
        """Instant before which no turn begins: a retry waits."""
        self.attempts = 0
        """Attempts at the message at the head so far."""
        self.turns = 0
        """Committed turns."""
        self.registry = registry
        self.lineage: str = self.id
        """What positions of its turns are named after: its id, or the one that it had before a restore renamed it."""
        self.id_bytes = self.id.encode()
        self.unheard: dict[str, None] = {}
        """Effect ledgers that may hold what the agent has done, and that the one at hand does not cover (`effects.reach`)."""
        self.outputs: dict[int, Output] = {}
        """Outputs that are not known to have reached their sink, by the number that the outbox gave them, ascending."""
        self.sinks: Container[str] = ()
        """Names of the participant's sinks."""
        self.emits_refused = ""
        """Why nothing can be emitted now; "": it can."""
        self.steps: Steps | None = None
        """How turns make steps; the participant sets it."""
        self.parked: Parked | None = None
        """The message at the head waits for a decision from outside."""
        self.journals: dict[bytes, dict[Position, FinishedStep]] = {}
        """Finished steps of messages that are not done with, in order of their ends; by message id. Mostly none."""
        self.questions: dict[str, WaitingQuestion] = {}
        """Open questions of messages that are not done with, by token."""
        self.targets: dict[str, AgentId] = {}
        """Agent ids that were sent to and found legal."""
        self._timer_ordinal = 0
        self._dispatch: dict[tuple[str, int], tuple[Callable[[bytes], Any], Handler]] = {
            (START_TYPE, 1): (_no_message, _start_handler(type(agent).on_start)),
            (RESTORED_TYPE, 1): (_decode_restoration, Handler("on_restored", type(agent).on_restored)),
        }
        self._wants_restored = type(agent).on_restored is not Agent.on_restored
        for cls, entry in agent.__cleancut_handlers__.items():
            registered = registry.type_of(cls)
            for name in (registered.name, *registered.old_names):
                self._dispatch[name, registered.version] = (registered.schema.decode, entry)

    def start_fresh(self, cluster: str, session: int = 0) -> None:
        """Have `on_start` called as the first turn; for an agent that was not restored.

        Args:
            cluster: Its name.
            session: In which the agent begins. An agent that begins anew among others that go on does other work: were the
                ids of its messages those of before, whoever hears from it again would take them for the same.
        """
        text = f"{START_TYPE}\0{cluster}\0{self.lineage}\0{session}"
        identity = blake3(text.encode()).digest(length=MESSAGE_ID_BYTES)
        envelope = Envelope(identity, self.id, self.id, START_TYPE, 1, b"\xc0")
        self.mailbox.appendleft((envelope, encode_envelope(envelope)))

    def come_back(self, cluster: str, what: Restoration, flying: Iterable[tuple[Envelope, bytes]]) -> None:
        """After `load`: what was in flight comes behind the mailbox, and `on_restored` is called as the first turn.

        Args:
            cluster: Its name.
            what: What the agent is told.
            flying: Messages that were in flight to it, each channel in its order.
        """
        # What told of an earlier restore, and was not handled before the cut, is not news any more.
        self.mailbox = deque(delivery for delivery in self.mailbox if delivery[0].type != RESTORED_TYPE)
        self.mailbox.extend(flying)
        if self._wants_restored:
            self.mailbox.appendleft(restored_message(self.id, cluster, what))

    def descend(self, lineage: str) -> None:
        """Name positions after this agent id from now on."""
        self.lineage = lineage
        self.id_bytes = lineage.encode()

    def has_done(self, ledgers: Iterable[str]) -> None:
        """These effect ledgers, which are not at hand, may hold what the agent has done."""
        self.unheard = added(self.unheard, ledgers)

    def deliver(self, envelope: Envelope, data: bytes) -> None:
        """Put a message at the end of the mailbox. Drivers may append to `mailbox` themselves."""
        self.mailbox.append((envelope, data))

    def ready(self, now: int) -> bool:
        """Whether a turn can begin."""
        return (
            bool(self.mailbox)
            and self.turn is None
            and not self.dead
            and self.parked is None
            and self.wait_until <= now
        )

    def next_wake(self) -> int | None:
        """Instant at which something becomes due by itself: a timer, or the end of a retry's wait."""
        due = self.timers[0][0] if self.timers else None
        if self.wait_until and self.mailbox and self.turn is None and not self.dead and self.parked is None:
            return self.wait_until if due is None else min(due, self.wait_until)
        return due

    def set_timer(self, due: int, envelope: Envelope, data: bytes) -> None:
        """Put a message into the mailbox at this instant."""
        self._timer_ordinal += 1
        heappush(self.timers, (due, self._timer_ordinal, envelope, data))

    def restore_timers(self) -> None:
        """Make the timers a heap again, after one was taken out."""
        heapify(self.timers)

    def fire_timers(self, now: int) -> int:
        """Move the messages of timers that are due into the mailbox; returns how many."""
        fired = 0
        timers = self.timers
        while timers and timers[0][0] <= now:
            _, _, envelope, data = heappop(timers)
            self.mailbox.append((envelope, data))
            fired += 1
        return fired

    def begin_turn(self, now: int) -> Turn | DeadLettered:
        """Begin to handle the message at the head of the mailbox.

        Args:
            now: Driver time, nanoseconds.

        Returns:
            The turn; or, if no handler here can take the message, its dead letter: it has left the mailbox.
        """
        assert self.turn is None, "one turn at a time per agent"
        envelope, data = self.mailbox[0]
        entry = self._dispatch.get((envelope.type, envelope.version))
        if entry is None:
            return self._unhandled(self.registry.why_not(envelope.type, envelope.version, self.id), envelope, data, now)
        decode, handler = entry
        try:
            message = decode(envelope.body)
        except Exception as error:  # noqa: BLE001 - a message class's own __post_init__ or validation may raise anything
            reason = f"message {envelope.type!r} version {envelope.version} cannot be decoded: {describe(error)}"
            return self._unhandled(reason, envelope, data, now)
        self.attempts += 1
        self.wait_until = 0
        self.state.begin()
        context = Context(self, envelope.id, envelope.source, self.attempts)
        self.turn = turn = Turn(self, handler, message, envelope, data, context)
        return turn

    def load(
        self,
        fields: Mapping[str, SavedField],
        *,
        state_version: int | None = None,
        mailbox: Iterable[bytes] = (),
        timers: Iterable[tuple[int, bytes]] = (),
        outputs: Iterable[Output] = (),
        journal: Iterable[FinishedStep] = (),
        questions: Iterable[OpenQuestion] = (),
        dead: bool = False,
        now: int = 0,
        allowed: PickleAllowed | None = None,
    ) -> None:
        """Take the agent's part of an epoch as its state.

        Args:
            fields: By name.
            state_version: Of these fields; an older one goes through the class's migrations. None: the class's own.
            mailbox: Encoded envelopes, next to handle first.
            timers: Nanoseconds that were left at the cut, and the encoded envelope.
            outputs: Held at the cut, in order; whoever restores hands them to the participant's outbox, which numbers them
                anew.
            journal: Finished steps of turns that were not over.
            questions: Their open questions; they go on with the time that was left.
            dead: It had been stopped by its failure policy.
            now: Driver time from which timers run on.
            allowed: The right to unpickle, where a field was saved with cloudpickle.

        Raises:
            RecoveryError: A field does not fit this agent's class; nothing was taken over from it.
        """
        assert self.turn is None, "restored between turns"
        cells = self.state.cells
        if state_version is not None:
            fields = upgraded(self.agent, fields, state_version, allowed)
        unclaimed = sorted(name for name in fields if name not in cells)
        if unclaimed:
            raise RecoveryError(
                f"agent {self.id}: its class has no field {', '.join(unclaimed)} that the epoch holds; raise its state_version, "
                f"with a migration"
            )
        for name, cell in cells.items():
            saved = fields.get(name)
            if saved is None:
                if cell is not self.whole:
                    cell.load([], b"", allowed)
                continue
            if saved.shape != cell.shape or saved.serializer != cell.serializer:
                raise RecoveryError(
                    f"agent {self.id}: field {name} was saved as {saved.shape} with {saved.serializer}, its class says "
                    f"{cell.shape} with {cell.serializer}; raise its state_version, with a migration"
                )
            try:
                cell.load(saved.segments, saved.removed, allowed)
            except Exception as error:
                raise RecoveryError(
                    f"agent {self.id}: field {name} does not fit its declared type: {describe(error)}"
                ) from error
        self.mailbox = deque((decode_envelope(data), data) for data in mailbox)
        self.timers = []
        for left, data in timers:
            self.set_timer(now + left, decode_envelope(data), data)
        self.outputs = dict(enumerate(outputs))
        self.parked = None
        self._load_journal(journal, questions, now)
        self.dead = dead
        self.attempts = 0
        self.wait_until = 0

    def _load_journal(self, journal: Iterable[FinishedStep], questions: Iterable[OpenQuestion], now: int) -> None:
        self.journals = {}
        for step in journal:
            self.journals.setdefault(step.message_id, {})[step.kind, step.name, step.ordinal] = step
        self.questions = {}
        for saved in questions:
            self.questions[saved.token] = WaitingQuestion(
                token=saved.token,
                message_id=saved.message_id,
                ordinal=saved.ordinal,
                question=saved.question,
                deadline=None if saved.left_ns < 0 else now + saved.left_ns,
                answer=None,
                at=now,
            )

    def frozen_journal(self, now: int) -> tuple[tuple[FinishedStep, ...], tuple[OpenQuestion, ...]]:
        """What a cut saves of turns that are not over."""
        if not self.journals and not self.questions:
            return (), ()
        steps = tuple(step for journal in self.journals.values() for step in journal.values())
        questions = tuple(
            OpenQuestion(
                message_id=question.message_id,
                ordinal=question.ordinal,
                token=question.token,
                question=question.question,
                left_ns=-1 if question.deadline is None else max(0, question.deadline - now),
            )
            for question in self.questions.values()
        )
        return steps, questions

    def end_calls(self, context: Context, *, done: bool) -> None:
        """The turn of this context has ended; `done`: its message will never be handled again."""
        calls = context.calls
        if calls is not None and self.steps is not None:
            self.steps.turn_over(context, calls, done=done)
        if done and (self.journals or self.questions):
            self.forget_journal(context.message_id)

    def forget_journal(self, message_id: bytes) -> None:
        """This message is done with."""
        self.journals.pop(message_id, None)
        for token in [token for token, question in self.questions.items() if question.message_id == message_id]:
            del self.questions[token]

    def _unhandled(self, reason: str, envelope: Envelope, data: bytes, now: int) -> DeadLettered:
        self.mailbox.popleft()
        self.attempts = 0
        if self.journals or self.questions:
            self.forget_journal(envelope.id)
        return DeadLettered(agent=self.id, message=envelope, data=data, reason=reason, attempts=0, at=now)


def _no_message(_body: bytes) -> None:
    return None


def _start_handler(on_start: Callable[..., Any]) -> Handler:
    """`on_start` in the shape of a handler."""
    entry = Handler("on_start", on_start)
    entry.function = lambda agent, ctx, _message: on_start(agent, ctx)
    return entry
