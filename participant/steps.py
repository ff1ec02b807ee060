"""Steps and questions as a turn makes them: `Context.step`, `Context.ask`, and what they can end in. Pure.

::

    receipt = await ctx.step(charge, order.id, order.cents, retry=Retry(attempts=5), resolve=find_charge)

    async def charge(order_id: str, cents: int, *, token: str) -> str: ...
    async def find_charge(token: str) -> str | InDoubt | DidNotHappen: ...

Rules:
    * A step's place is its name and its ordinal among the steps of that name in the turn, taken at the moment of the call: so
      steps that run side by side (``asyncio.gather``) keep theirs when the turn runs again.
    * What a step returned once it returns for ever, at this place. It is compared by *intent*: all its arguments, or what
      `intent` names. What must not count (a random reference, the wording of a model) is left out there.
    * A call that was begun and has no end (the process died, or the function raised something that does not say that nothing
      happened) is *in doubt*: `resolve` is asked; or it is made again, where the other side does a token's thing only once
      (`idempotent`); else the turn is parked, and an operator settles it. It is never made again in silence.

What the function may raise: `NotDone`: certainly nothing happened. `StepFailed`: a definite end that is no result; it is
recorded and raised again whenever the turn runs again. Anything else: in doubt.
"""

from __future__ import annotations

import functools
import inspect
import typing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

from participant.codec import is_message_type
from participant.effects.entries import Kind, State, intent_digest, shown_arguments
from participant.failure import Retry
from participant.schema import Schema, is_pydantic, type_name
from protocol.errors import LimitExceeded, LocalProtocolError, SnapshotError, Unsavable
from protocol.limits import EFFECT_RESULT_BYTES_MAX, QUESTION_BYTES_MAX, STEPS_PER_TURN_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from participant.context import Context
    from participant.effects.entries import Entry
    from protocol.journal import FinishedStep

OnDiverged = Literal["refuse", "replay", "ask"]
STEP_NAME_CHARS_MAX: Final = 128

IN_STEP: Final[ContextVar[str]] = ContextVar("cleancut step", default="")
"""Name of the step in which the code that runs now was started."""


class _Everything:
    """Stands for all arguments."""

    def __repr__(self) -> str:
        return "EVERYTHING"


EVERYTHING: Final = _Everything()


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A resolver cannot tell whether it happened."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """A resolver says that it certainly did not happen, and will not: it may be done now."""


class NotDone(Exception):
    """Raised by a step's function: certainly nothing happened, and nothing will. It may be tried again."""


class StepFailed(Exception):
    """Raised by a step's function: it has ended, definitely, without a result. Recorded, and raised again ever after."""


class QuestionExpired(TimeoutError):
    """Nobody answered in time."""


class Parking(SnapshotError):
    """Abstract: the turn cannot go on until somebody outside has decided something; its message stays the next to handle.

    A handler need not catch it, and cannot: if it does, its turn is parked all the same.

    Attributes:
        agent: Whose turn.
        step: Name of the step.
        token: Its token in the effect ledger.
        intent: Of this call.
        result: What a result must be, for whoever settles it.
    """

    cause: Literal["in-doubt", "diverged"]

    def __init__(self, agent: str, step: str, token: str, intent: bytes, result: Schema, sentence: str) -> None:
        self.agent = agent
        self.step = step
        self.token = token
        self.intent = intent
        self.result = result
        super().__init__(sentence)


class StepUndecided(Parking):
    """A step was begun and has no end, and nothing here can say whether it happened."""

    cause: Literal["in-doubt", "diverged"] = "in-doubt"
    definite = False


class StepDiverged(Parking):
    """The turn runs again, and at a place where a step was done it now wants something else.

    Attributes:
        recorded: What it was, for people.
        wanted: What it is now.
    """

    cause: Literal["in-doubt", "diverged"] = "diverged"

    def __init__(
        self, agent: str, step: str, token: str, intent: bytes, result: Schema, *, recorded: str, wanted: str
    ) -> None:
        self.recorded = recorded
        self.wanted = wanted
        super().__init__(
            agent,
            step,
            token,
            intent,
            result,
            f"agent {agent}: step {step} was done with {recorded}, and the same place now wants {wanted}. Take the recorded "
            f"result (`cleancut effects settle {token} --take-recorded`), or leave out of intent=... what may differ",
        )


class Cancellable(Protocol):
    """A future, as far as it matters here."""

    def cancel(self) -> object:
        """Have nobody wait for it any more; a finished one stays as it is."""
        ...


Position = tuple[str, str, int]
"""Kind, name, ordinal."""


class Calls:
    """The steps and questions of one running turn; most turns have none."""

    __slots__ = ("futures", "parking", "positions", "running", "tokens", "total", "waiting")

    def __init__(self) -> None:
        self.positions: dict[tuple[Kind, str], int] = {}
        """Next ordinal."""
        self.total = 0
        self.running = 0
        """Begun and not over."""
        self.waiting = 0
        """Among them: for an answer, or for time to pass."""
        self.futures: list[Cancellable] = []
        """What is waited for, and is to be waited for no longer when the turn is over."""
        self.tokens: dict[str, None] = {}
        """Places that the turn came to, in order."""
        self.parking: Parking | None = None
        """Why the turn cannot end well, whatever its handler makes of it."""

    def place(self, kind: Kind, name: str) -> int:
        """The ordinal of a call that is made now.

        Raises:
            LimitExceeded: Too many in one turn.
        """
        if self.total >= STEPS_PER_TURN_MAX:
            raise LimitExceeded(f"more than {STEPS_PER_TURN_MAX} steps and questions in one turn")
        self.total += 1
        ordinal = self.positions.get((kind, name), 0)
        self.positions[kind, name] = ordinal + 1
        return ordinal

    def check_over(self, agent: str) -> None:
        """Raise if the turn cannot commit: it is to be parked, or something that it began still runs."""
        if self.parking is not None:
            raise self.parking
        if self.running:
            raise LocalProtocolError(
                f"agent {agent}: the turn ended while {self.running} of its steps were running; await them: what a turn "
                "started must not outlive it"
            )


@dataclass(slots=True)
class StepCall:
    """One step as it was called."""

    name: str
    ordinal: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    wants_token: bool
    result: Schema
    retry: Retry
    resolve: Callable[[str], Any] | None
    idempotent: bool
    intent: bytes
    shown: str
    diverged: OnDiverged


@dataclass(slots=True)
class AskCall:
    """One question as it was asked."""

    name: str
    """Empty, but for questions that a participant puts by itself."""
    ordinal: int
    question: bytes
    shown: str
    answer: Schema
    timeout_ns: int | None
    intent: bytes
    diverged: OnDiverged


class DoubtfulStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was begun, and whose end nobody knows yet."""

    step: str
    """Its name."""
    ordinal: int
    """Among those of this name in its turn, from 0."""
    token: str
    """Its place's: what the other side was given."""
    shown: str
    """Its arguments, on one bounded line."""


class Steps(Protocol):
    """What a context needs of its participant."""

    async def in_doubt(self, agents: Collection[str]) -> tuple[DoubtfulStep, ...]:
        """Steps of these agents that have no end, and are not being done here now; oldest first."""
        ...

    def step(self, context: Context, calls: Calls, call: StepCall) -> Awaitable[Any]:
        """Do a step, or find what it came to."""
        ...

    def ask(self, context: Context, calls: Calls, call: AskCall) -> Awaitable[Any]:
        """Put a question, or find its answer."""
        ...

    def turn_over(self, context: Context, calls: Calls, *, done: bool) -> None:
        """A turn that made calls has ended; `done`: its message will never be handled again."""
        ...


# --- making calls -----------------------------------------------------------------------------------------------------


def step_call(
    agent: str,
    calls: Calls,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    *,
    name: str | None,
    retry: Retry | None,
    resolve: Callable[[str], Any] | None,
    idempotent: bool,
    intent: object,
    diverged: OnDiverged,
) -> StepCall:
    """Check a step before anything of it takes effect, and give it its place.

    Raises:
        LocalProtocolError: A step inside a step.
        TypeError: The function's declared result cannot be saved, or it is no function.
        ValueError: A setting that makes no sense, or a retry that could do a thing twice.
        Unsavable: The intent cannot be encoded.
        LimitExceeded: Too many in one turn.
    """
    inside = IN_STEP.get()
    if inside:
        raise LocalProtocolError(
            f"agent {agent}: a step inside of step {inside}: what it did would be repeated or lost with it; make two steps"
        )
    if not callable(function):
        raise TypeError(f"step({function!r}): give a function and its arguments, not what it returned")
    shown_name = name if name is not None else _name_of(function)
    if not shown_name or len(shown_name) > STEP_NAME_CHARS_MAX or not shown_name.isprintable():
        raise ValueError(f"step: {ascii(shown_name)[:80]} is no name for a step; give one with name=...")
    if diverged not in {"refuse", "replay", "ask"}:
        raise ValueError(f"step {shown_name}: diverged is {diverged!r}; it must be refuse, replay or ask")
    if retry is not None and retry.attempts > 1 and resolve is None and not idempotent:
        raise ValueError(
            f"step {shown_name}: a call that raised may have been done. To have it tried again, say idempotent=True (the other "
            "side does a token's thing only once) or give resolve=... to ask whether it was"
        )
    wants_token, result = _signature(function)
    counts: Any = (arguments, keywords) if intent is EVERYTHING else intent
    declared = _encoded_intent(agent, shown_name, counts)
    return StepCall(
        name=shown_name,
        ordinal=calls.place(Kind.STEP, shown_name),
        function=function,
        arguments=arguments,
        keywords=keywords,
        wants_token=wants_token and "token" not in keywords,
        result=result,
        retry=retry or _ONCE,
        resolve=resolve,
        idempotent=idempotent,
        intent=intent_digest(declared),
        shown=shown_arguments((*arguments, *keywords.values()) if intent is EVERYTHING else intent),
        diverged=diverged,
    )


def ask_call(
    agent: str,
    calls: Calls,
    question: object,
    *,
    answer: Any,  # noqa: ANN401 - a type form
    timeout: float | None,
    intent: object,
    diverged: OnDiverged,
    name: str = "",
) -> AskCall:
    """Check a question, and give it its place.

    Raises:
        LocalProtocolError: Inside of a step.
        TypeError: Answers of the type cannot be saved.
        ValueError: A setting that makes no sense.
        Unsavable: The question cannot be encoded.
        LimitExceeded: Too long, or too many in one turn.
    """
    if IN_STEP.get():
        raise LocalProtocolError(f"agent {agent}: a question inside of step {IN_STEP.get()}; ask beside it")
    if timeout is not None and not 0 < timeout <= _TIMEOUT_SECONDS_MAX:
        raise ValueError(
            f"ask: the timeout is {timeout!r} seconds; it must be above 0 and at most {_TIMEOUT_SECONDS_MAX}"
        )
    if diverged not in {"refuse", "replay", "ask"}:
        raise ValueError(f"ask: diverged is {diverged!r}; it must be refuse, replay or ask")
    schema = Schema(answer)
    data = PLAIN.save(question, agent, "question")[0]
    if len(data) > QUESTION_BYTES_MAX:
        raise LimitExceeded(f"agent {agent}: a question of {len(data)} bytes; at most {QUESTION_BYTES_MAX}")
    return AskCall(
        name=name,
        ordinal=calls.place(Kind.QUESTION, name),
        question=data,
        shown=shown_arguments(question),
        answer=schema,
        timeout_ns=None if timeout is None else round(timeout * 1_000_000_000),
        intent=intent_digest(data if intent is EVERYTHING else _encoded_intent(agent, "question", intent)),
        diverged=diverged,
    )


def encode_given(schema: Schema | None, value: object, what: str) -> bytes:
    """A result or an answer that somebody outside gives.

    Args:
        schema: What is wanted; None: that is not known here.
        value: Of the wanted type, or plain data that has its form.
        what: For the error.

    Raises:
        Unsavable: It is not what is wanted.
    """
    own = Schema(type(value)) if is_message_type(type(value)) else PLAIN
    data = encode_result(own, value, "", what)
    if schema is not None:
        try:
            schema.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise Unsavable("", what, type_name(value), f"{schema.shown} is wanted: {error}") from None
    return data


def encode_result(schema: Schema, value: object, agent: str, step: str) -> bytes:
    """A step's result as it is recorded.

    Raises:
        Unsavable: It cannot be saved, or is too long.
    """
    data = schema.save(value, agent, f"result of {step}")[0]
    if len(data) > EFFECT_RESULT_BYTES_MAX:
        raise Unsavable(
            agent,
            f"result of {step}",
            type_name(value),
            f"{len(data)} bytes; at most {EFFECT_RESULT_BYTES_MAX} are kept",
        )
    return data


def finished_of(entry: Entry) -> FinishedStep:
    """What a turn's journal keeps of a ledger's entry that has an end."""
    from protocol.journal import FinishedStep

    assert entry.ended, "only an end is kept"
    return FinishedStep(
        message_id=entry.message_id,
        kind=entry.kind.value,
        name=entry.name,
        ordinal=entry.ordinal,
        state=entry.state.value,
        result=entry.result,
        reason=entry.reason,
        intent=entry.intent,
        shown=entry.shown,
    )


def outcome_of(finished: FinishedStep, schema: Schema, agent: str) -> Any:  # noqa: ANN401 - of the declared type
    """What the call returns.

    Raises:
        StepFailed: It ended without a result.
        QuestionExpired: Nobody answered.
        Unsavable: What is recorded does not fit what the code declares now.
    """
    if finished.state == State.FAILED.value:
        raise StepFailed(finished.reason)
    if finished.state == State.EXPIRED.value:
        raise QuestionExpired(f"agent {agent}: nobody answered in time: {finished.shown}")
    what = f"result of {finished.name}" if finished.kind == Kind.STEP.value else "answer"
    try:
        return schema.decode(finished.result)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Unsavable(agent, what, "what is recorded", f"it does not fit the declared type: {error}") from None


PLAIN: Final = Schema(Any)
_ONCE: Final = Retry(attempts=1)
_TIMEOUT_SECONDS_MAX: Final = 100 * 366 * 24 * 3600


def _hook_out(value: Any) -> Any:  # noqa: ANN401 - msgspec's hook takes and gives anything
    if is_pydantic(type(value)):
        return value.model_dump(mode="json")
    raise TypeError(type_name(value))


_INTENT: Final = msgspec.msgpack.Encoder(enc_hook=_hook_out, order="deterministic")
"""One spelling: the order of a dict's keys or a set's items is no intent."""


def _encoded_intent(agent: str, step: str, counts: object) -> bytes:
    try:
        return _INTENT.encode(counts)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Unsavable(
            agent,
            f"arguments of step {step}",
            type_name(counts),
            f"they could not be compared when the turn runs again ({error}); say what counts with intent=(...)",
        ) from None


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    # Where a function was defined is no part of what it does: it may move into another function, or out of a class.
    return str(name).rpartition(".")[2]


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call gives a coroutine; else it may block, and runs in a thread."""
    while isinstance(function, functools.partial):
        function = function.func
    call = type(function).__call__ if not inspect.isroutine(function) else function
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _signature(function: Callable[..., Any]) -> tuple[bool, Schema]:
    try:
        return _signature_cached(function)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _signature_cached.__wrapped__(function)


@functools.lru_cache(maxsize=256)
def _signature_cached(function: Callable[..., Any]) -> tuple[bool, Schema]:
    """Whether it takes ``token``, and what it returns."""
    try:
        parameter = inspect.signature(function).parameters.get("token")
    except (TypeError, ValueError):
        parameter = None
    wants = parameter is not None and parameter.kind in {parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD}
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    try:
        declared = typing.get_type_hints(inner).get("return", Any)
    except Exception:  # noqa: BLE001 - annotations are the user's code, and may name what is not there at run time
        declared = Any
    try:
        return wants, Schema(declared)
    except TypeError as error:
        raise TypeError(f"step {_name_of(function)}: what it returns cannot be recorded: {error}") from None
