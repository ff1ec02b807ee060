"""An agent's saved state: `value` and `keyed` fields, turns over them, and the past that cuts need.

Theory of operation:
    * Between turns each field holds its *committed* form: plain objects (int, str, ...) as they are, everything else as
      encoded bytes. Nothing that a handler can reach is ever in it, so a cut has nothing to copy.
    * A turn works on buffers: what it writes, and the working copies of mutable values that it read. At turn commit the
      touched mutable values are encoded again and compared; then all fields change together. A rollback drops the
      buffers. So an `await` in the middle of a turn hides nothing from a cut: it sees the committed form, the state
      before the turn.
    * The past that open cuts need is kept by `participant.history`: copy-on-write per key.
    * After a turn that set or changed a mutable value, the next turn gets a decoded copy of what came in: what an agent
      sees is what a restore would give it, two fields never share an object, and an object kept elsewhere (by a task that
      outlives its turn, in a plain attribute) has no way back into the state. A working copy that is kept from turn to turn
      is compared with the committed form when it is read.

A handler that reads a mutable value pays for its encoding when it is read and at turn commit, also if it did not change it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, Protocol, TypeVar, cast, overload

import msgspec

from participant.cells import KeyedState, ObjectCell, PlainCell, WholeCell
from participant.forms import BlocksForm, Form, PickleForm, WholeForm
from participant.history import MISSING, Cell, CutClock
from participant.schema import Kind, Schema, hook_in
from protocol.errors import LocalProtocolError, Unsavable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from participant.agent import Agent
    from participant.turnlog.records import Change

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

Serializer = Literal["msgpack", "cloudpickle"]


class TurnContext(Protocol):
    """What says whether a turn has ended."""

    closed: bool


TURN_CONTEXT: Final[ContextVar[TurnContext | None]] = ContextVar("cleancut turn", default=None)
"""The turn in which the code that runs now was started; a driver sets it. Tasks inherit it: so a task that outlives its turn
is told from the next turn, which may be open by then."""


class AgentState:
    """The fields of one agent and whether a turn is open."""

    __slots__ = ("adopted", "agent_id", "cells", "changes", "clock", "logged", "open", "touched")

    def __init__(self, agent_id: str, specs: Iterable[tuple[Field[Any], Serializer]]) -> None:
        self.agent_id = agent_id
        self.clock = CutClock()
        self.open = True
        """A turn runs. Also True until a participant adopts the agent: ``__init__`` may set first values."""
        self.adopted = False
        self.touched: list[Cell] = []
        self.logged = False
        """Turn commits go into a write-ahead log."""
        self.changes: list[Change] = []
        """What the last turn commit changed, if turn commits are logged."""
        self.cells: dict[str, Any] = {spec.name: spec.make_cell(self, serializer) for spec, serializer in specs}

    def adopt(self, clock: CutClock) -> None:
        """Make what ``__init__`` set the first committed state, on the participant's clock.

        Raises:
            Unsavable: A value grew in place into something that cannot be saved.
            LocalProtocolError: The agent already belongs to a participant.
        """
        if self.adopted:
            raise LocalProtocolError(f"agent {self.agent_id} already belongs to a participant")
        self.commit()
        self.adopted = True
        self.clock = clock
        for cell in self.cells.values():
            cell.start(clock)

    def in_turn(self) -> bool:
        """Whether a turn is open, and it is not a task of an earlier one that asks."""
        if not self.open:
            return False
        context = TURN_CONTEXT.get()
        return context is None or not context.closed or not self.adopted

    def begin(self) -> None:
        """Open a turn."""
        assert not self.open, "one turn at a time per agent"
        self.open = True

    def commit(self) -> None:
        """Make the turn's changes the committed state, all or none.

        Raises:
            Unsavable: A value grew in place into something that cannot be saved; the turn is still open, nothing changed.
        """
        touched = self.touched
        if touched:
            for cell in touched:
                cell.prepare()
            if self.logged:
                self.changes = [change for cell in touched if (change := cell.change()) is not None]
            for cell in touched:
                cell.apply()
            touched.clear()
        elif self.logged:
            self.changes = []
        self.open = False

    def rollback(self) -> None:
        """Drop the turn's changes."""
        for cell in self.touched:
            cell.drop()
        self.touched.clear()
        self.open = False

    def abandon(self) -> None:
        """Drop the turn's changes without asking the agent's own `restore`."""
        for cell in self.touched:
            if isinstance(cell, WholeCell):
                cell.touched = False
            else:
                cell.drop()
        self.touched.clear()
        self.open = False

    def refuse_write(self, name: str) -> NoReturn:
        """Raise the error of a write outside of a turn."""
        raise LocalProtocolError(
            f"agent {self.agent_id}: {name} was written outside of a turn. State changes only inside a handler, where "
            f"they take effect together with its sends or not at all; send the agent a message instead"
        )


def segment_decoder(key_type: Any, item_type: Any) -> Callable[[bytes], list[tuple[Any, Any]]]:  # noqa: ANN401 - type forms
    """The decoder of a keyed field's segment: ``[[key, value], ...]``."""
    pair = tuple[key_type, item_type]
    return msgspec.msgpack.Decoder(list[pair], dec_hook=hook_in).decode


def list_decoder(item_type: Any) -> Callable[[bytes], list[Any]]:  # noqa: ANN401 - a type form
    """The decoder of a list of keys."""
    items = list[item_type]
    return msgspec.msgpack.Decoder(items, dec_hook=hook_in).decode


class Field(Generic[T]):
    """Base of the two descriptors."""

    __slots__ = ("declared", "name", "problem", "schema")

    def __init__(self, declared: Any) -> None:  # noqa: ANN401 - a type form
        self.declared = declared
        self.problem = ""
        """Why msgpack cannot save values of this type; such a field is refused unless its agent uses cloudpickle."""
        try:
            self.schema = Schema(declared)
        except TypeError as error:
            self.problem = str(error)
            self.schema = Schema(Any)
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        if name.startswith("_cc_"):
            raise TypeError(f"{owner.__qualname__}.{name}: names that begin with _cc_ are taken")
        self.name = name

    def make_cell(self, state: AgentState, serializer: Serializer) -> Any:  # noqa: ANN401 - a cell
        """This field's values for one agent."""
        raise NotImplementedError


class Value(Field[T]):
    """A field with one value; made by `value`."""

    __slots__ = ("default",)

    def __init__(self, declared: Any, default: Any) -> None:  # noqa: ANN401 - a type form and its value
        super().__init__(declared)
        self.default: Any = MISSING
        if default is not MISSING:
            try:
                encoded, copy = self.schema.save(default, "", "default")
            except Unsavable as error:
                raise TypeError(str(error)) from None
            # Kept encoded, so that no two agents share a mutable default.
            self.default = copy if self.schema.kind is Kind.PLAIN else encoded

    def fresh_default(self) -> Any:  # noqa: ANN401 - of the declared type
        """The default, never the same mutable object twice; or MISSING."""
        if self.default is MISSING or self.schema.kind is Kind.PLAIN:
            return self.default
        return self.schema.decode(self.default)

    @overload
    def __get__(self, agent: None, owner: type) -> Self: ...
    @overload
    def __get__(self, agent: Agent, owner: type) -> T: ...
    def __get__(self, agent: Agent | None, owner: type) -> Self | T:
        if agent is None:
            return self
        current = agent._cc_cells[self.name].current  # noqa: SLF001 - the agent's state is ours
        if current is MISSING:
            raise AttributeError(f"agent {agent.id}: {self.name} has no default and was never set")
        return current  # type: ignore[no-any-return]  # `cast` is a call, and this is read in every turn

    def __set__(self, agent: Agent, value: T) -> None:
        agent._cc_cells[self.name].set(value)  # noqa: SLF001 - the agent's state is ours

    def make_cell(self, state: AgentState, serializer: Serializer) -> PlainCell | ObjectCell:
        """See `Field`."""
        if serializer == "cloudpickle":
            return ObjectCell(self, state, PickleForm(self.declared))
        if self.schema.kind is Kind.PLAIN:
            return PlainCell(self, state)
        form = BlocksForm(self.schema) if BlocksForm.fits(self.schema) else WholeForm(self.schema)
        return ObjectCell(self, state, form)


class Keyed(Field[V], Generic[K, V]):
    """A field with many values by key; made by `keyed`."""

    __slots__ = ("decode_keys", "decode_plain", "decode_raw", "key_schema")

    def __init__(self, key_type: Any, value_type: Any) -> None:  # noqa: ANN401 - type forms
        super().__init__(value_type)
        self.key_schema = Schema(key_type)
        if self.key_schema.kind is Kind.MUTABLE:
            raise TypeError(f"keys of type {self.key_schema.shown} can change: use str, int, bytes or tuples of them")
        key, item = self.key_schema.declared, self.schema.declared
        self.decode_keys = list_decoder(key)
        self.decode_plain = segment_decoder(key, item)
        self.decode_raw = segment_decoder(key, msgspec.Raw)

    @overload
    def __get__(self, agent: None, owner: type) -> Self: ...
    @overload
    def __get__(self, agent: Agent, owner: type) -> KeyedState[K, V]: ...
    def __get__(self, agent: Agent | None, owner: type) -> Self | KeyedState[K, V]:
        if agent is None:
            return self
        return cast("KeyedState[K, V]", agent._cc_cells[self.name])  # noqa: SLF001 - the agent's state is ours

    def __set__(self, agent: Agent, value: KeyedState[K, V]) -> None:
        if value is agent._cc_cells[self.name]:  # noqa: SLF001 - `self.orders |= {...}` sets what it got
            return
        raise AttributeError(f"{self.name} is a keyed field: change it by key, or use .clear() and .update(...)")

    def make_cell(self, state: AgentState, serializer: Serializer) -> KeyedState[K, V]:
        """See `Field`."""
        if serializer == "cloudpickle":
            return KeyedState(self, state, PickleForm(self.declared))
        return KeyedState(self, state, None if self.schema.kind is Kind.PLAIN else WholeForm(self.schema))


_WHOLE_FIELD: Final = Field[Any](Any)
_WHOLE_FIELD.name = "capture"


def whole_cell(agent: Agent, state: AgentState, serializer: Serializer) -> WholeCell:
    """The one cell of what an agent captures by itself."""
    schema = _WHOLE_FIELD.schema
    form: Form = PickleForm(Any) if serializer == "cloudpickle" else WholeForm(schema)
    return WholeCell(_WHOLE_FIELD, state, form, agent)


@overload
def value(declared: type[T], *, default: T = ...) -> Value[T]: ...
@overload
def value(declared: object, *, default: Any = ...) -> Value[Any]: ...  # noqa: ANN401 - of the declared type
def value(declared: object, *, default: Any = MISSING) -> Value[Any]:
    """One saved value of an agent.

    Args:
        declared: Its type: int, str, list[str], a dataclass, a msgspec Struct, ... What is set is checked against it.
        default: First value; each agent gets its own copy. Without one, reading before the first write raises
            AttributeError.

    Raises:
        TypeError: The default is not of the type. A type without schema is refused when the agent's class is made.
    """
    return Value(declared, default)


@overload
def keyed(key_type: type[K], value_type: type[V]) -> Keyed[K, V]: ...
@overload
def keyed(key_type: type[K], value_type: object) -> Keyed[K, Any]: ...
def keyed(key_type: Any, value_type: Any) -> Keyed[Any, Any]:
    """Many saved values of an agent by key; only what changed is written in an epoch.

    Raises:
        TypeError: Keys of the type can change or have no schema. A value type without schema is refused when the agent's
            class is made.
    """
    return Keyed(key_type, value_type)


__all__ = [
    "AgentState",
    "CutClock",
    "Field",
    "Keyed",
    "KeyedState",
    "Serializer",
    "Value",
    "keyed",
    "value",
    "whole_cell",
]
