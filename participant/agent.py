"""What users write: an agent is a class with saved fields and handlers.

::

    class Buyer(Agent, kind="buyer", state_version=2):
        orders = keyed(str, Order)
        spent = value(int, default=0)
        failure = Retry(attempts=5)

        @handler
        async def on_order(self, ctx: Context, order: Order) -> None:
            self.orders[order.id] = order
            self.spent += order.cents
            ctx.send("ledger/main", Paid(order.id))

Rules:
    * A handler is found by the annotated type of its message, exactly that type. ``async def`` and ``def`` are both fine.
    * One message is one turn: state, sends and timers take effect together when the handler returns, or not at all when it
      raises. What then happens to the message is the agent's `failure` policy.
    * Only `value` and `keyed` fields are saved. Other attributes are the agent's own business: caches, connections.
    * `__init__` may set first values of saved fields. After that they change only inside turns.
    * An agent with its own kind of state implements `capture` and `restore`; both are called between turns, and each of its
      turns costs one `capture`.
"""

from __future__ import annotations

import builtins
import inspect
import sys
import types
import typing
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, get_args, get_origin

from participant.codec import MessageRegistry, is_message_type
from participant.failure import DeadLetter, Retry, Stop
from participant.migrations import migrations_of
from participant.serializers import SERIALIZERS
from participant.state import AgentState, Field, Serializer, whole_cell
from protocol.ids import AgentId, agent_id, check_name
from protocol.restore_plan import AgentCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from participant.context import Context
    from participant.failure import FailurePolicy
    from participant.restoring import Restoration

F = TypeVar("F", bound="Callable[..., Any]")

_MARK: Final = "__cleancut_handler__"


def handler(function: F) -> F:
    """Mark a method ``(self, ctx, message: Type)`` as the handler of a message type, or of a union of types."""
    setattr(function, _MARK, True)
    return function


class Handler:
    """One handler, looked at once.

    Attributes:
        function: Called with agent, context and message.
        never_awaits: A coroutine that runs to its end at its first step: no task is needed.
        may_await: The turn may last: neither plain function nor `never_awaits`.
    """

    __slots__ = ("function", "may_await", "name", "never_awaits")

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function
        self.never_awaits = handler_never_awaits(function)
        self.may_await = inspect.iscoroutinefunction(function) and not self.never_awaits


def handler_never_awaits(function: object) -> bool:
    """Whether a coroutine function has no place where it could be suspended, by its bytecode.

    ``await``, ``async for`` and ``async with`` all compile to SEND; a driver can run such a coroutine with one ``send(None)``.
    """
    code = getattr(function, "__code__", None)
    return isinstance(code, types.CodeType) and bool(code.co_flags & inspect.CO_COROUTINE) and _never_awaits(code)


@lru_cache(1024)
def _never_awaits(code: types.CodeType) -> bool:
    import dis

    return not any(
        instruction.opname in {"SEND", "GET_AWAITABLE", "YIELD_VALUE", "GET_ANEXT"}
        for instruction in dis.get_instructions(code)
    )


class Agent:
    """One actor. Subclass it; see the module's documentation.

    Class arguments:
        kind: First half of the id; default: the class's name in lower case.
        state_version: Version of the saved fields, from 1; raise it when they change, with a `migration` from the one before.
        renamed_from: Kinds that this class had before. It takes their agents, too, under the ids that they always had: an
            agent's id is for ever, since messages and other agents' states name it.
        serializer: ``msgpack``, or ``cloudpickle`` for state that only Python can describe: slower, loaded only where the
            participant allows it and the manifest's signature verifies.

    Args:
        name: Second half of the id; or a whole id, ``kind/name``, for an agent of a kind that the class had before.
    """

    kind: ClassVar[str] = ""
    state_version: ClassVar[int] = 1
    serializer: ClassVar[Serializer] = "msgpack"
    if TYPE_CHECKING:

        @property
        def failure(self) -> FailurePolicy:
            """What happens to a message whose handler raised; a class attribute, ``failure = Retry(attempts=5)``."""

    else:
        # A property for type checkers: a subclass may then set any of the policies without an annotation.
        failure = Retry(attempts=3, then=DeadLetter())

    __cleancut_fields__: ClassVar[Mapping[str, Field[Any]]] = {}
    __cleancut_handlers__: ClassVar[Mapping[type, Handler]] = {}
    __cleancut_captures__: ClassVar[bool] = False
    __cleancut_migrations__: ClassVar[Mapping[int, Callable[[dict[str, Any]], Any]]] = {}
    __cleancut_kinds__: ClassVar[tuple[str, ...]] = ()
    """Its own kind, and those that it had before."""

    id: AgentId
    """``kind/name``."""
    _cc_state: AgentState
    _cc_cells: dict[str, Any]

    def __init_subclass__(
        cls,
        *,
        kind: str | None = None,
        state_version: int | None = None,
        renamed_from: Sequence[str] = (),
        serializer: Serializer | None = None,
        **rest: Any,  # noqa: ANN401 - for other bases' class arguments
    ) -> None:
        super().__init_subclass__(**rest)
        cls.kind = check_name("agent kind", cls.__name__.lower() if kind is None else kind)
        if state_version is not None:
            cls.state_version = state_version
        if type(cls.state_version) is not int or cls.state_version < 1:
            raise TypeError(f"{cls.__qualname__}: state_version is {cls.state_version!r}; versions start at 1")
        if serializer is not None:
            cls.serializer = serializer
        if cls.serializer not in SERIALIZERS:
            raise TypeError(f"{cls.__qualname__}: serializer {cls.serializer!r} is none of {', '.join(SERIALIZERS)}")
        cls.__cleancut_kinds__ = (cls.kind, *(check_name("agent kind", old) for old in renamed_from))
        cls.__cleancut_migrations__ = migrations_of(cls)
        policy: object = cls.failure
        if not isinstance(policy, Retry | DeadLetter | Stop):
            raise TypeError(f"{cls.__qualname__}.failure is {policy!r}; it must be Retry(...), DeadLetter() or Stop()")
        cls.__cleancut_captures__ = _captures(cls)
        cls.__cleancut_fields__ = _fields(cls)
        cls.__cleancut_handlers__ = _handlers(cls, sys._getframe(1).f_locals)  # noqa: SLF001 - as typing.NamedTuple does

    def __new__(cls, *args: Any, **kwargs: Any) -> Agent:  # noqa: ANN401, PYI034 - users' __init__ takes anything
        """State exists before any ``__init__`` runs, so that subclasses may set fields in any order."""
        if cls is Agent:
            raise TypeError("subclass Agent; it has no state and no handlers of its own")
        agent = super().__new__(cls)
        state = AgentState("", [(field, cls.serializer) for field in cls.__cleancut_fields__.values()])
        if cls.__cleancut_captures__:
            state.cells["capture"] = whole_cell(agent, state, cls.serializer)
        agent._cc_state = state
        agent._cc_cells = state.cells
        return agent

    def __init__(self, name: str) -> None:
        kind = self.kind
        for known in self.__cleancut_kinds__:
            if str(name).startswith(f"{known}/"):
                kind, name = known, name[len(known) + 1 :]
                break
        self.id = agent_id(f"{kind}/{check_name('agent name', name)}")
        self._cc_state.agent_id = self.id

    def __repr__(self) -> str:
        return f"<agent {getattr(self, 'id', self.kind)}>"

    async def on_start(self, ctx: Context) -> None:
        """Called once, as a turn, before the first message of a fresh agent; not after a restore."""

    async def on_restored(self, ctx: Context, what: Restoration) -> None:
        """Called after each restore, as a turn, before any message: to reopen files and connections, to warm caches.

        A turn like any other: it may change state and send. A plain attribute still holds what the abandoned incarnation left
        in it, or what ``__init__`` set where the agent came to another participant. `what` tells the epoch, what comes again and
        what is overdue; `ctx.in_doubt` what is in doubt.
        """

    @classmethod
    def __cleancut_code__(cls) -> AgentCode:
        """What a plan of a restore needs to know of this class."""
        state = AgentState("", [(field, cls.serializer) for field in cls.__cleancut_fields__.values()])
        fields = tuple((name, cell.shape, cell.serializer) for name, cell in state.cells.items())
        if cls.__cleancut_captures__:
            fields = (*fields, ("capture", "whole", cls.serializer))
        registry = MessageRegistry.of_agents([cls])
        return AgentCode(
            kind=cls.kind,
            state_version=cls.state_version,
            renamed_from=cls.__cleancut_kinds__[1:],
            migrations=tuple(cls.__cleancut_migrations__),
            fields=fields,
            messages=registry.names(),
        )

    def capture(self) -> Any:  # noqa: ANN401 - whatever can be saved
        """The agent's own kind of state, as plain data; implemented together with `restore`."""
        raise NotImplementedError

    def restore(self, state: Any) -> None:  # noqa: ANN401 - what capture gave
        """Take back what `capture` gave: after a restore, and when a turn raised."""
        raise NotImplementedError


def _captures(cls: type[Agent]) -> bool:
    own = (cls.capture is not Agent.capture, cls.restore is not Agent.restore)
    if own[0] != own[1]:
        raise TypeError(f"{cls.__qualname__}: capture and restore are implemented together")
    if own[0] and (inspect.iscoroutinefunction(cls.capture) or inspect.iscoroutinefunction(cls.restore)):
        raise TypeError(f"{cls.__qualname__}: capture and restore are plain functions: a cut waits for nobody")
    return own[0]


def _fields(cls: type[Agent]) -> dict[str, Field[Any]]:
    found: dict[str, Field[Any]] = {}
    for base in reversed(cls.__mro__):
        for name, attribute in vars(base).items():
            if isinstance(attribute, Field):
                found[name] = attribute
            elif name in found:
                del found[name]
    for name, field in found.items():
        if field.problem and cls.serializer == "msgpack":
            raise TypeError(f"{cls.__qualname__}.{name}: {field.problem}")
    return found


def _handlers(cls: type[Agent], names: Mapping[str, Any]) -> dict[type, Handler]:
    functions: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, attribute in vars(base).items():
            if getattr(attribute, _MARK, False):
                functions[name] = attribute
            elif name in functions:
                del functions[name]
    found: dict[type, Handler] = {}
    for name, function in functions.items():
        entry = Handler(name, function)
        for message_type in _message_types(cls, function, names):
            if message_type in found:
                raise TypeError(
                    f"{cls.__qualname__}: {found[message_type].name} and {name} both handle {message_type.__qualname__}"
                )
            found[message_type] = entry
    return found


def _message_types(cls: type[Agent], function: Any, names: Mapping[str, Any]) -> tuple[type, ...]:  # noqa: ANN401
    where = f"{cls.__qualname__}.{function.__name__}"
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 3:
        raise TypeError(f"{where}: a handler takes self, ctx and one message")
    annotation = parameters[2].annotation
    if annotation is inspect.Parameter.empty:
        raise TypeError(f"{where}: annotate {parameters[2].name} with the message type that it handles")
    if isinstance(annotation, str):
        scope = {**vars(builtins), **getattr(inspect.unwrap(function), "__globals__", {}), **names, **vars(cls)}
        try:
            annotation = eval(annotation, scope)  # noqa: S307 - the class's own source, as typing.get_type_hints does
        except Exception as error:  # noqa: BLE001 - an annotation is the user's code
            raise TypeError(
                f"{where}: the type {annotation!r} cannot be found when the class is made ({error}); import it at runtime, "
                f"not under TYPE_CHECKING"
            ) from None
    options = get_args(annotation) if get_origin(annotation) in {types.UnionType, typing.Union} else (annotation,)
    for option in options:
        if not is_message_type(option):
            raise TypeError(f"{where}: {option!r} is neither a dataclass nor a msgspec Struct nor a pydantic model")
    return tuple(options)
