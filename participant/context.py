"""What a handler may do besides changing its state. All of it takes effect at turn commit, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload

import msgspec
from blake3 import blake3

from participant.codec import is_message_type
from participant.schema import Schema
from participant.steps import EVERYTHING, Calls, ask_call, step_call
from protocol.errors import ConfigError, LimitExceeded, LocalProtocolError, Overloaded, Unsavable
from protocol.ids import MESSAGE_ID_BYTES, AgentId, MessageId, agent_id
from protocol.limits import MESSAGE_BYTES_MAX
from protocol.messages import Envelope
from protocol.outputs import output_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container

    from participant.codec import MessageRegistry
    from participant.failure import Retry
    from participant.steps import DoubtfulStep, OnDiverged, Steps

NS_PER_SECOND: Final = 1_000_000_000
DELAY_SECONDS_MAX: Final = 100 * 366 * 24 * 3600
"""A century: the instant still fits into 64 bits."""
SENDS_MAX: Final = 100_000
"""Messages of one turn: a handler that sends in an endless loop ends with an error, not with the process."""
TARGETS_REMEMBERED_MAX: Final = 4_096
REQUESTS_MAX: Final = 16
REASON_LENGTH_MAX: Final = 200
OUTPUTS_MAX: Final = 100_000
"""Outputs of one turn, as for messages."""

T = TypeVar("T")

encode_envelope = msgspec.msgpack.Encoder().encode


def child_id(parent: bytes, agent: bytes, ordinal: int) -> MessageId:
    """The id of a turn's n-th message: lineage, so the same work done again gives the same ids.

    Args:
        parent: Id of the message that the turn handles.
        agent: Id of the sending agent, UTF-8.
        ordinal: From 0, counted over the sends and timers of the turn.
    """
    return child_id_with(blake3(), parent, agent, ordinal)


def child_id_with(hasher: blake3, parent: bytes, agent: bytes, ordinal: int) -> MessageId:
    """`child_id` with a hasher of the caller's, whatever is in it: to make one costs twice as much as to use one."""
    hasher.reset()
    hasher.update(parent + agent + ordinal.to_bytes(4, "big"))
    return MessageId(hasher.digest(length=MESSAGE_ID_BYTES))


_PLAIN: Final = Schema(Any)


_schemas: Final[dict[type, Schema]] = {}
_SCHEMAS_MAX: Final = 256


def encode_payload(payload: object, agent: str = "") -> bytes:
    """An output's payload as msgpack.

    Raises:
        Unsavable: A part of it cannot be saved.
    """
    schema = _PLAIN
    if is_message_type(type(payload)):
        schema = _schemas.get(type(payload)) or _schema_of(type(payload), agent)
    return schema.save(payload, agent, "output")[0]


def _schema_of(cls: type, agent: str) -> Schema:
    try:
        schema = Schema(cls)
    except TypeError as error:
        raise Unsavable(agent, "output", cls.__qualname__, str(error)) from None
    if len(_schemas) >= _SCHEMAS_MAX:
        _schemas.clear()
    _schemas[cls] = schema
    return schema


def too_long(name: str, size: int) -> LimitExceeded:
    """The error of a message that no channel carries; what counts is its envelope, ids and all."""
    return LimitExceeded(
        f"message {name!r} of {size} bytes, its envelope included; at most {MESSAGE_BYTES_MAX} are sent. Larger things "
        f"belong into a store, with a reference in the message"
    )


class ContextHost(Protocol):
    """What a context needs of its host."""

    id: AgentId
    id_bytes: bytes
    registry: MessageRegistry
    targets: dict[str, AgentId]
    steps: Steps | None
    """None: the participant has no effect ledger."""
    sinks: Container[str]
    """Names of the sinks that the participant has."""
    emits_refused: str
    """Why nothing can be emitted now; "": it can."""


class SinkName(Protocol):
    """A sink, as far as an agent is concerned."""

    @property
    def name(self) -> str:
        """Unique in the cluster."""
        ...


class Context:
    """One turn's context; of no use after it."""

    __slots__ = (
        "_host",
        "_ordinal",
        "_outputs",
        "_requests",
        "_timers",
        "attempt",
        "calls",
        "closed",
        "message_id",
        "sends",
        "source",
    )

    # Positional, and lists that most turns do not need are made late: one context is made per message.
    def __init__(self, host: ContextHost, message_id: bytes, source: AgentId, attempt: int) -> None:
        self._host = host
        self.message_id = message_id
        """Id of the message being handled: the same whenever it is handled again."""
        self.source = source
        """The agent that sent it; ``outside/ingest`` for outside input."""
        self.attempt = attempt
        """From 1; above 1 when the handler raised before and the policy retries."""
        self.sends: list[tuple[Envelope, bytes]] = []
        """What leaves at turn commit, in order."""
        self.closed = False
        self.calls: Calls | None = None
        """Steps and questions of the turn; None: it has made none."""
        self._timers: list[tuple[int, Envelope, bytes]] | None = None
        self._requests: list[str] | None = None
        self._outputs: list[tuple[bytes, str, bytes]] | None = None
        self._ordinal = 0

    @property
    def host(self) -> ContextHost:
        """For the participant, not for handlers."""
        return self._host

    @property
    def self_id(self) -> AgentId:
        """This agent."""
        return self._host.id

    @property
    def timers(self) -> list[tuple[int, Envelope, bytes]] | tuple[()]:
        """Delay in nanoseconds, and what then goes into this agent's own mailbox."""
        return self._timers or ()

    @property
    def outputs(self) -> list[tuple[bytes, str, bytes]] | tuple[()]:
        """Id, sink and encoded payload of each output, in order."""
        return self._outputs or ()

    @property
    def epoch_requests(self) -> list[str] | tuple[()]:
        """Reasons why this turn wants an epoch."""
        return self._requests or ()

    def send(self, target: str, message: object) -> None:
        """Send a message to an agent anywhere in the cluster; it leaves at turn commit, in order per target.

        The message is encoded now: what happens to the object later has no effect.

        Args:
            target: ``kind/name``.
            message: Of a type that this participant knows.

        Raises:
            IllegalName: `target` is no agent id.
            Unsavable: A part of the message cannot be saved, or its type is not registered.
            LimitExceeded: Too long, or too many in one turn.
        """
        targets = self._host.targets
        known = targets.get(target)
        if known is None:
            known = agent_id(target)
            if len(targets) >= TARGETS_REMEMBERED_MAX:
                targets.clear()
            targets[target] = known
        self.sends.append(self._envelope(known, message))

    def after(self, seconds: float, message: object) -> None:
        """Send a message to this agent itself, later.

        The timer is durable: it is part of each cut, with the time that is left.

        Args:
            seconds: From turn commit on; 0 or more.
            message: Of a type that this participant knows.

        Raises:
            ValueError: `seconds` is negative, not finite or beyond a century.
            Unsavable: As for `send`.
        """
        if not 0 <= seconds <= DELAY_SECONDS_MAX:
            raise ValueError(f"after({seconds!r}, ...): the delay must be 0 to {DELAY_SECONDS_MAX} seconds")
        envelope, data = self._envelope(self._host.id, message)
        if self._timers is None:
            self._timers = []
        self._timers.append((round(seconds * NS_PER_SECOND), envelope, data))

    def emit(self, sink: SinkName | str, payload: object) -> None:
        """Give something to the world outside: it reaches the sink once, when it cannot be rolled back any more.

        The output is part of the turn: it is dropped if the turn raises. It is held until the epoch that contains this
        turn is committed (with turn durability: until the turn is logged), through crashes and rollbacks. What reaches one
        sink from one agent does so in the order in which it was emitted.

        Args:
            sink: One of the participant's sinks, or its name.
            payload: Plain data (None, bool, int, float, str, bytes, list, dict), or an instance of a dataclass, msgspec Struct
                or pydantic model, which becomes a map. It is encoded now.

        Raises:
            ConfigError: The participant has no such sink.
            Unsavable: A part of the payload cannot be saved.
            LimitExceeded: Too long, or too many in one turn.
            Overloaded: Too many outputs wait already, since no epoch commits or a sink takes none. Let it fail the turn: its
                message comes again by the agent's failure policy.
        """
        self.check_open()
        host = self._host
        name = sink if isinstance(sink, str) else sink.name
        if name not in host.sinks:
            raise ConfigError("sinks", f"agent {host.id} emits to {name[:80]!a}, and its participant has no such sink")
        if host.emits_refused:
            raise Overloaded(f"agent {host.id} cannot emit to {name!r} now: {host.emits_refused}")
        data = encode_payload(payload, host.id)
        if len(data) > MESSAGE_BYTES_MAX:
            raise LimitExceeded(f"output of {len(data)} bytes to {name!r}; at most {MESSAGE_BYTES_MAX} are emitted")
        if self._outputs is None:
            self._outputs = []
        ordinal = len(self._outputs)
        if ordinal >= OUTPUTS_MAX:
            raise LimitExceeded(f"agent {host.id}: more than {OUTPUTS_MAX} outputs in one turn")
        self._outputs.append((output_id(self.message_id, host.id_bytes, ordinal), name, data))

    @overload
    def step(
        self,
        function: Callable[..., Awaitable[T]],
        /,
        *arguments: Any,  # noqa: ANN401 - as the function's
        name: str | None = None,
        retry: Retry | None = None,
        resolve: Callable[[str], Any] | None = None,
        idempotent: bool = False,
        intent: object = EVERYTHING,
        diverged: OnDiverged = "refuse",
        **keywords: Any,  # noqa: ANN401 - as the function's
    ) -> Awaitable[T]: ...
    @overload
    def step(
        self,
        function: Callable[..., T],
        /,
        *arguments: Any,  # noqa: ANN401 - as the function's
        name: str | None = None,
        retry: Retry | None = None,
        resolve: Callable[[str], Any] | None = None,
        idempotent: bool = False,
        intent: object = EVERYTHING,
        diverged: OnDiverged = "refuse",
        **keywords: Any,  # noqa: ANN401 - as the function's
    ) -> Awaitable[T]: ...
    def step(
        self,
        function: Callable[..., Any],
        /,
        *arguments: Any,
        name: str | None = None,
        retry: Retry | None = None,
        resolve: Callable[[str], Any] | None = None,
        idempotent: bool = False,
        intent: object = EVERYTHING,
        diverged: OnDiverged = "refuse",
        **keywords: Any,
    ) -> Awaitable[Any]:
        """Do something to the world outside, once, whatever crashes and rolls back; await what this gives.

        The claim is durable before the call, the result after it. When the turn runs again, for whatever reason, the step at
        the same place (its name, and its ordinal among those of that name) has its result already. Steps may run side by side
        (``asyncio.gather``): their places are taken in the order of these calls.

        Args:
            function: ``async def``, or a plain function, which runs in a thread. If it takes ``token``, it is given one: 32 hex
                digits that belong to this place for ever; give it to the other side.
            arguments: Its arguments.
            name: Of the step; default: the function's name. A step that is renamed is another step.
            retry: How often the function is called at most, and with which pauses, when it raises. Needs `idempotent` or
                `resolve`: a call that raised may have been done.
            resolve: ``async def resolve(token)``, asked where a call was begun and has no end, and where the agent came from a
                place whose effect ledger is not known here: gives the result, `DidNotHappen()` or `InDoubt()`.
            idempotent: The other side does a token's thing only once, or the function only reads: a call may be made again.
            intent: What must be the same when the turn runs again; default: all arguments.
            diverged: When it is not: ``refuse`` parks the turn with `StepDiverged`; ``replay`` takes the recorded result; ``ask``
                puts a question to whoever answers questions: ``replay``, or anything else to refuse.
            keywords: More of the function's arguments. Names of settings above are not among them: use `functools.partial`.

        Returns:
            What the function returned, as it was recorded.

        Raises:
            StepFailed: The function raised it, this time or when the step was done.
            Exception: What else the function raised, from its last attempt.
            Parking: The step is in doubt, or has diverged: the turn is parked, whatever the handler makes of it.
            Unsavable: The intent or the result cannot be saved.
            LocalProtocolError: A step inside a step, after the turn, or in a participant without an effect ledger.
        """
        calls, steps = self._calls_begun()
        call = step_call(
            self._host.id,
            calls,
            function,
            arguments,
            keywords,
            name=name,
            retry=retry,
            resolve=resolve,
            idempotent=idempotent,
            intent=intent,
            diverged=diverged,
        )
        return steps.step(self, calls, call)

    @overload
    def ask(
        self,
        question: object,
        *,
        answer: type[T],
        timeout: float | None = None,
        intent: object = EVERYTHING,
        diverged: OnDiverged = "refuse",
    ) -> Awaitable[T]: ...
    @overload
    def ask(
        self,
        question: object,
        *,
        answer: object = Any,
        timeout: float | None = None,
        intent: object = EVERYTHING,
        diverged: OnDiverged = "refuse",
    ) -> Awaitable[Any]: ...
    def ask(
        self,
        question: object,
        *,
        answer: Any = Any,
        timeout: float | None = None,
        intent: object = EVERYTHING,
        diverged: OnDiverged = "refuse",
    ) -> Awaitable[Any]:
        """Ask somebody outside, and wait for the answer; await what this gives.

        The agent handles nothing else meanwhile. The question is part of each cut, with the time that is left, and keeps its
        token through restarts and rollbacks; an answer that was given stays given.

        Args:
            question: Plain data: a sentence, or a map with more.
            answer: The type that an answer must have.
            timeout: Seconds until it expires; None: never.
            intent: What must be the same when the turn runs again; default: the question.
            diverged: When it is not: as for `step`. A question that nobody has answered yet is put anew instead.

        Raises:
            QuestionExpired: Nobody answered in time.
            Parking: An answered question has diverged: the turn is parked.
            Unsavable: The question cannot be saved, or the recorded answer is none of this type.
            LocalProtocolError: Inside a step, after the turn, or in a participant without an effect ledger.
        """
        calls, steps = self._calls_begun()
        call = ask_call(
            self._host.id, calls, question, answer=answer, timeout=timeout, intent=intent, diverged=diverged
        )
        return steps.ask(self, calls, call)

    async def in_doubt(self) -> tuple[DoubtfulStep, ...]:
        """Steps of this agent that were begun and have no end: for `on_restored`, to look after what they were about.

        When their turns run again, each is resolved, made again, or parked, as its step says: nothing has to be done here.
        What an agent did on another participant is not known here unless all have one effect ledger.

        Raises:
            LocalProtocolError: After the turn.
        """
        self.check_open()
        host = self._host
        steps = host.steps
        return () if steps is None else await steps.in_doubt((host.id, host.id_bytes.decode()))

    def _calls_begun(self) -> tuple[Calls, Steps]:
        self.check_open()
        steps = self._host.steps
        if steps is None:
            raise LocalProtocolError(
                f"agent {self._host.id}: its participant has no effect ledger, which steps and questions need: give it "
                "local=..., or effects=..."
            )
        if self.calls is None:
            self.calls = Calls()
        return self.calls, steps

    def request_epoch(self, reason: str) -> None:
        """Ask the coordinators for an epoch once this turn has committed."""
        self.check_open()
        if self._requests is None:
            self._requests = []
        if len(self._requests) < REQUESTS_MAX:
            self._requests.append(str(reason)[:REASON_LENGTH_MAX])

    def check_open(self) -> None:
        """Raise if the turn is over."""
        if self.closed:
            raise LocalProtocolError(
                f"agent {self.self_id}: the context was used after its turn; what a turn started must not outlive it"
            )

    def _envelope(self, target: AgentId, message: object) -> tuple[Envelope, bytes]:
        if self.closed:
            self.check_open()
        host = self._host
        name, version, body = host.registry.encode(message, host.id)
        ordinal = self._ordinal
        if ordinal >= SENDS_MAX:
            raise LimitExceeded(f"agent {host.id}: more than {SENDS_MAX} messages in one turn")
        identity = child_id_with(host.registry.hasher, self.message_id, host.id_bytes, ordinal)
        envelope = Envelope(identity, host.id, target, name, version, body)
        data = encode_envelope(envelope)
        if len(data) > MESSAGE_BYTES_MAX:
            raise too_long(name, len(data))
        self._ordinal = ordinal + 1
        return envelope, data
