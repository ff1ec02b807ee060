"""State of an older version of an agent's class: taken through its migrations, one version at a time. Pure.

::

    class Buyer(Agent, kind="buyer", state_version=3):
        orders = keyed(str, Order)
        total_cents = value(int, default=0)

        @staticmethod
        @migration(1)
        def _total_in_cents(state: dict[str, Any]) -> dict[str, Any]:      # from version 1 to 2
            state["total_cents"] = round(100 * state.pop("total", 0))
            return state

        @staticmethod
        @migration(2)
        def _orders_have_a_currency(state: dict[str, Any]) -> dict[str, Any]:
            for order in state["orders"].values():
                order["currency"] = "EUR"
            return state

Rules:
    * A migration is a function of the saved state, as plain data, and nothing else: field name to value, a dict for a keyed
      field; a field that was never set is missing. It runs before the agent has its state, maybe several times, maybe in a
      check that changes nothing. What it gets is its own copy.
    * The chain must be whole, from the epoch's version to the class's. What comes out is checked against the declared types.
    * State of a later version than the class's is refused: code cannot go back where state has gone on.
    * Fields that were added get their default and need no migration, nor a new version; fields that went, were renamed or have
      another type do.

Sources: DESIGN.md section 7; scenario A12.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from participant.failure import describe
from participant.schema import ENCODER
from participant.serializers import pickle_bytes, unpickle
from protocol.contents import decode_keys, decode_segment, decode_value
from protocol.errors import RecoveryError
from protocol.reading import hashable
from protocol.restore_plan import version_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from participant.agent import Agent
    from participant.host import SavedField
    from participant.serializers import PickleAllowed

    Step: TypeAlias = Callable[[dict[str, Any]], Any]

F = TypeVar("F", bound="Callable[..., Any]")

_MARK: Final = "__cleancut_migration__"


def migration(from_version: int) -> Callable[[F], F]:
    """Mark a static method of an agent's class as the way from one state version to the next.

    Args:
        from_version: That it takes; it gives the next one.
    """

    def mark(function: F) -> F:
        setattr(function, _MARK, from_version)
        return function

    return mark


def migrations_of(cls: type) -> dict[int, Step]:
    """The migrations of a class and its bases, by the version that they take.

    Raises:
        TypeError: Two take the same version, one takes something else than a state, or leads beyond the class's version.
    """
    found: dict[int, tuple[str, Step]] = {}
    for base in reversed(cls.__mro__):
        for name, attribute in vars(base).items():
            function = attribute.__func__ if isinstance(attribute, staticmethod) else attribute
            version = getattr(function, _MARK, None)
            if version is None:
                continue
            where = f"{cls.__qualname__}.{name}"
            if type(version) is not int or version < 1:
                raise TypeError(f"{where}: versions start at 1, not {version!r}")
            if inspect.iscoroutinefunction(function) or len(inspect.signature(function).parameters) != 1:
                raise TypeError(f"{where}: a migration is a plain function of one argument, the state")
            other = found.get(version)
            if other is not None and other[0] != name:
                raise TypeError(f"{cls.__qualname__}: {other[0]} and {name} both lead on from version {version}")
            found[version] = (name, function)
    highest = max(found, default=0)
    state_version = getattr(cls, "state_version", 1)
    if highest >= state_version:
        raise TypeError(
            f"{cls.__qualname__}: {found[highest][0]} leads to version {highest + 1}, and state_version is {state_version}"
        )
    return {version: step for version, (_, step) in sorted(found.items())}


def check_version(agent: str, saved: int, code: int, known: Mapping[int, object]) -> None:
    """Whether there is a way from a saved state to the class.

    Args:
        agent: For the error.
        saved: Version in the epoch.
        code: Version of the class.
        known: Versions that migrations lead on from.

    Raises:
        RecoveryError: Names what is missing.
    """
    problem = version_problem(saved, code, known)
    if problem:
        raise RecoveryError(f"agent {agent}: {problem}")


def migrate(agent: str, steps: Mapping[int, Step], state: dict[str, Any], *, saved: int, code: int) -> dict[str, Any]:
    """Take a plain state through the chain.

    Args:
        agent: For errors.
        steps: By the version that they take.
        state: Field name to value; given away.
        saved: Its version.
        code: The version that is wanted.

    Raises:
        RecoveryError: A step is missing, raised, or gave no state.
    """
    check_version(agent, saved, code, steps)
    for version in range(saved, code):
        step = steps[version]
        try:
            given: Any = step(state)
        except Exception as error:
            raise RecoveryError(
                f"agent {agent}: the migration from version {version} to {version + 1} failed: {describe(error)}"
            ) from error
        if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
            raise RecoveryError(
                f"agent {agent}: the migration from version {version} to {version + 1} gave {type(given).__name__}, not a dict of "
                f"fields"
            )
        state = given
    return state


def upgraded(
    agent: Agent, fields: Mapping[str, SavedField], saved: int, allowed: PickleAllowed | None
) -> Mapping[str, SavedField]:
    """Saved fields in the form that the agent's class has now; the very same where nothing is to be done.

    Args:
        agent: Whose they become; nothing of it is changed.
        fields: As an epoch has them.
        saved: The state version that they are of.
        allowed: The right to unpickle, where a field was saved with cloudpickle.

    Raises:
        RecoveryError: The class cannot take them; names the version, step or field.
    """
    code = type(agent).state_version
    if saved == code:
        return fields
    check_version(agent.id, saved, code, type(agent).__cleancut_migrations__)
    state = {name: plain_field(agent.id, name, field, allowed) for name, field in fields.items() if _is_set(field)}
    state = migrate(agent.id, type(agent).__cleancut_migrations__, state, saved=saved, code=code)
    cells = agent._cc_state.cells  # noqa: SLF001 - the agent's state is ours
    unclaimed = sorted(name for name in state if name not in cells)
    if unclaimed:
        raise RecoveryError(
            f"agent {agent.id}: after its migrations the state has {', '.join(unclaimed)}, and the class has no such field"
        )
    return {name: _saved_field(agent.id, cells[name], value) for name, value in state.items()}


def _is_set(field: SavedField) -> bool:
    return bool(field.segments) or field.shape == "keyed"


def plain_field(agent: str, name: str, field: SavedField, allowed: PickleAllowed | None) -> Any:  # noqa: ANN401 - any value
    """A saved field as plain data; what was pickled as it was.

    Raises:
        RecoveryError: It was pickled, and that is not allowed.
        ObjectCorrupt: It cannot be decoded.
    """
    where = f"field {name} of {agent}"
    pickled = field.serializer == "cloudpickle"
    if pickled and allowed is None:
        raise RecoveryError(
            f"agent {agent}: field {name} was saved with cloudpickle, and loading it runs code: allow_cloudpickle is off"
        )

    def item(value: Any) -> Any:  # noqa: ANN401 - any value
        if not pickled:
            return value
        assert allowed is not None, "checked above"
        return unpickle(value, allowed)

    if field.shape != "keyed":
        data = b"".join(field.segments)
        return item(data) if pickled else decode_value(data, where)
    values = {hashable(key): item(value) for segment in field.segments for key, value in decode_segment(segment, where)}
    for key in decode_keys(field.removed, where):
        values.pop(hashable(key), None)
    return values


def _saved_field(agent: str, cell: Any, value: Any) -> SavedField:  # noqa: ANN401 - a cell, any value
    from participant.host import SavedField

    pickled = cell.serializer == "cloudpickle"
    if cell.shape == "keyed" and not isinstance(value, dict):
        raise RecoveryError(
            f"agent {agent}: keyed field {cell.name} is {type(value).__name__} after its migrations, not a dict"
        )
    try:
        if cell.shape == "keyed":
            value = [[key, pickle_bytes(item) if pickled else item] for key, item in value.items()]
        data = pickle_bytes(value) if pickled and cell.shape != "keyed" else ENCODER.encode(value)
    except Exception as error:
        raise RecoveryError(
            f"agent {agent}: field {cell.name} cannot be saved after its migrations: {describe(error)}"
        ) from error
    return SavedField(cell.shape, cell.serializer, [data])
