"""What can be saved: one declared type, its encoding, and the check that nothing is lost by it.

Rules:
    * A value is savable when its encoding, decoded by the *declared* type, is equal to it. So a lock, a lambda, a
      subclass with more fields, a tuple where a list is declared or a NaN in a Decimal field is refused at the moment it
      is set or sent, with agent, key path and type; nothing is found out at a restore.
    * That check runs in C (encode, decode, compare). Only where it fails does a walk in Python look for the part to
      blame. It may also find that nothing is wrong: a float NaN and classes without ``__eq__`` differ from their copies.
    * Three kinds of type. *Plain*: int, str, bool, float, bytes: kept as they are. *Frozen*: cannot change once made.
      *Mutable*: everything else; kept encoded, so that a cut never meets a live object.
    * Nothing here ever imports a class by its path, and nothing pickles.

What it does not know: an ``__eq__`` that lies. An object that claims to be equal to a dict is saved as that dict.

Sources: DESIGN.md section 6; scenarios D11 and A11; pitfall 11 (record by reference).
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import math
import types
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import msgspec.inspect

from protocol.errors import Unsavable
from protocol.limits import NESTING_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN_TYPES: Final = (int, str, bool, float, bytes)
INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 64) - 1


class Kind(enum.Enum):
    """How values of a declared type are kept between turns."""

    PLAIN = "plain"
    FROZEN = "frozen"
    MUTABLE = "mutable"


def is_pydantic(candidate: object) -> bool:
    """Whether a class is a pydantic model, without importing pydantic."""
    return isinstance(candidate, type) and hasattr(candidate, "model_validate") and hasattr(candidate, "model_fields")


def _hook_out(value: Any) -> Any:  # noqa: ANN401 - msgspec's hook takes and gives anything
    if is_pydantic(type(value)):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"objects of type {type_name(value)} have no schema")


def hook_in(declared: type, value: Any) -> Any:  # noqa: ANN401 - msgspec's hook takes and gives anything
    """Decoder hook: pydantic models validate themselves."""
    if is_pydantic(declared):
        return cast("Any", declared).model_validate(value)
    raise NotImplementedError(f"{declared.__qualname__} has no schema")


ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_hook_out)
"""Stateless; the one encoder of states and messages."""


def type_name(value: object) -> str:
    """The name of a value's type, with its module unless it is a builtin."""
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def step_into(path: str, key: object) -> str:
    """`path` extended by a mapping's key or a sequence's index: ``memory.tools[2]``."""
    if isinstance(key, str) and key.isidentifier():
        return f"{path}.{key}"
    shown = ascii(key)
    if len(shown) > 60:
        shown = f"{shown[:40]}...({len(shown)} characters)"
    return f"{path}[{shown}]"


class Schema:
    """One declared type: how its values are checked, encoded and decoded.

    Raises:
        TypeError: The type, or a type inside it, has no schema (a custom class that is no dataclass, Struct or pydantic
            model). Raised when the class that declares it is made.
    """

    __slots__ = ("_decoder", "_depth_known", "_info", "_origin", "declared", "decode", "kind", "plain")

    def __init__(self, declared: Any) -> None:  # noqa: ANN401 - a type form: no narrower annotation exists in 3.11
        self.declared = Any if declared is object else declared
        try:
            self._info = msgspec.inspect.type_info(self.declared)
            self._decoder = msgspec.msgpack.Decoder(self.declared, dec_hook=hook_in)
        except (TypeError, NameError) as error:
            raise TypeError(f"{declared!r} cannot be declared as state or message: {error}") from None
        survey = _Survey()
        self.kind = Kind.FROZEN if survey.frozen(self._info) else Kind.MUTABLE
        self.plain: type | None = None
        if self.declared in PLAIN_TYPES:
            self.kind = Kind.PLAIN
            self.plain = self.declared
        self._depth_known = not survey.loose and survey.depth <= NESTING_MAX
        self._origin = _origin_of(self._info)
        self.decode = self._decoder.decode
        """bytes -> a new value; raises msgspec.MsgspecError, UnicodeDecodeError or RecursionError."""

    def check_plain(self, value: Any, agent: str, path: str) -> Any:  # noqa: ANN401 - int, str, bool, float or bytes
        """Return a plain value, converted from int to float where float is declared.

        Raises:
            Unsavable: Not of the declared type, out of range, or text that is not Unicode.
        """
        given = type(value)
        if given is self.plain:
            if given is int:
                if INT_MIN <= value <= INT_MAX:
                    return value
                raise Unsavable(agent, path, "int", "it does not fit into 64 bits")
            if given is str and not value.isascii():
                try:
                    value.encode()
                except UnicodeEncodeError as error:
                    raise Unsavable(agent, path, "str", f"it is not valid Unicode text ({error.reason})") from None
            return value
        if self.plain is float and given is int and INT_MIN <= value <= INT_MAX:
            return float(value)
        raise Unsavable(agent, path, type_name(value), f"the declared type is {self.shown}{_advice(value)}")

    def save(self, value: Any, agent: str, path: str) -> tuple[bytes, Any]:  # noqa: ANN401 - of the declared type
        """Encode and check.

        Args:
            value: The candidate.
            agent: Agent id, for the error; "" where none is known.
            path: Key path of the value, for the error.

        Returns:
            The encoding, and an independent copy as a later decode would give it.

        Raises:
            Unsavable: Naming the part that cannot be saved.
        """
        if self.plain is not None:
            checked = self.check_plain(value, agent, path)
            return ENCODER.encode(checked), checked
        failure = "its copy would differ from it"
        origin = self._origin
        if origin is None or isinstance(value, origin):
            try:
                data = ENCODER.encode(value)
                copy = self.decode(data)
                if copy == value and (self._depth_known or len(data) <= NESTING_MAX or _depth_is_legal(copy)):
                    return data, copy
            except Exception as error:  # noqa: BLE001 - a value's own __eq__ may raise anything; the walk explains
                failure = str(error) or type(error).__name__
        problem = _Walk(agent).look(value, self._info, path, 0)
        if problem is not None:
            raise problem
        try:
            data = ENCODER.encode(value)
            copy = self.decode(data)
        except Exception:  # noqa: BLE001 - as above
            raise Unsavable(agent, path, type_name(value), failure) from None
        return data, copy

    @property
    def container(self) -> type | None:
        """`list` or `dict` where the type is one of them, else None."""
        if isinstance(self._info, msgspec.inspect.ListType):
            return list
        return dict if isinstance(self._info, msgspec.inspect.DictType) else None

    @property
    def shown(self) -> str:
        """The declared type as a user would write it."""
        return getattr(self.declared, "__name__", None) or str(self.declared)


class _Survey:
    """What a type's structure says before any value is seen."""

    def __init__(self) -> None:
        self.loose = False
        """Something inside is Any or recursive: the depth of values is not bounded by the type."""
        self.depth = 0
        self._above: list[int] = []

    def frozen(self, info: msgspec.inspect.Type) -> bool:
        """Whether no value of the type can change once made; also gathers `loose` and `depth`."""
        if isinstance(info, msgspec.inspect.AnyType):
            self.loose = True
            return False
        if isinstance(info, msgspec.inspect.CustomType):
            if not is_pydantic(info.cls):
                raise TypeError(
                    f"{info.cls.__qualname__} has no schema: make it a dataclass, a msgspec Struct or a pydantic model"
                )
            self.loose = True
            return False
        if isinstance(info, msgspec.inspect.RawType | msgspec.inspect.MemoryViewType | msgspec.inspect.ExtType):
            raise TypeError(f"{type(info).__name__.removesuffix('Type')} cannot be declared")
        if id(info) in self._above:
            self.loose = True
            return True
        self._above.append(id(info))
        self.depth = max(self.depth, len(self._above))
        # No short cut: every branch must be surveyed for `loose`.
        inside = [self.frozen(part) for part in _parts(info)]
        self._above.pop()
        return _is_frozen_itself(info) and all(inside)


def _parts(info: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    match info:
        case msgspec.inspect.Metadata():
            yield info.type
        case msgspec.inspect.UnionType():
            yield from info.types
        case msgspec.inspect.TupleType():
            yield from info.item_types
        case (
            msgspec.inspect.ListType()
            | msgspec.inspect.VarTupleType()
            | msgspec.inspect.SetType()
            | msgspec.inspect.FrozenSetType()
        ):
            yield info.item_type
        case msgspec.inspect.DictType():
            yield info.key_type
            yield info.value_type
        case (
            msgspec.inspect.StructType()
            | msgspec.inspect.DataclassType()
            | msgspec.inspect.NamedTupleType()
            | msgspec.inspect.TypedDictType()
        ):
            for field in info.fields:
                yield field.type
        case _:
            return


def _is_frozen_itself(info: msgspec.inspect.Type) -> bool:
    match info:
        case msgspec.inspect.StructType():
            return bool(info.cls.__struct_config__.frozen)
        case msgspec.inspect.DataclassType():
            parameters = getattr(info.cls, "__dataclass_params__", None)
            return bool(parameters is not None and parameters.frozen)
        case (
            msgspec.inspect.ListType()
            | msgspec.inspect.SetType()
            | msgspec.inspect.DictType()
            | msgspec.inspect.TypedDictType()
            | msgspec.inspect.ByteArrayType()
        ):
            return False
        case _:
            return True


def _origin_of(info: msgspec.inspect.Type) -> type | None:
    """The class that a value must be an instance of, where the type names just one."""
    match info:
        case msgspec.inspect.ListType():
            return list
        case msgspec.inspect.DictType() | msgspec.inspect.TypedDictType():
            return dict
        case msgspec.inspect.SetType():
            return set
        case msgspec.inspect.FrozenSetType():
            return frozenset
        case msgspec.inspect.TupleType() | msgspec.inspect.VarTupleType():
            return tuple
        case msgspec.inspect.StructType() | msgspec.inspect.DataclassType() | msgspec.inspect.NamedTupleType():
            return info.cls
        case _:
            return None


def _depth_is_legal(value: Any) -> bool:  # noqa: ANN401 - what a decoder made
    """Whether a decoded value nests at most `NESTING_MAX` levels; level by level, so that it cannot recurse itself."""
    level = [value]
    for _ in range(NESTING_MAX):
        below: list[Any] = []
        for part in level:
            below.extend(_children(part))
        if not below:
            return True
        level = below
    return False


def _children(part: Any) -> Any:  # noqa: ANN401 - any iterable
    cls = type(part)
    if cls in PLAIN_TYPES or part is None:
        return ()
    if cls is dict:
        return part.values()
    if cls in {list, tuple, set, frozenset}:
        return part
    if isinstance(part, msgspec.Struct):
        return [getattr(part, name) for name in part.__struct_fields__]
    if dataclasses.is_dataclass(part):
        return [getattr(part, field.name) for field in dataclasses.fields(part)]
    return part if isinstance(part, tuple) else ()


class _Walk:
    """Finds the part of a value to blame, or nothing."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._above: list[int] = []

    def look(self, value: Any, info: msgspec.inspect.Type, path: str, depth: int) -> Unsavable | None:  # noqa: ANN401
        """The first unsavable part of `value` in its own order, or None."""
        if isinstance(info, msgspec.inspect.Metadata):
            return self.look(value, info.type, path, depth)
        if isinstance(info, msgspec.inspect.UnionType):
            return self._look_union(value, info, path, depth)
        if depth > NESTING_MAX:
            return self._bad(value, path, f"it is nested more than {NESTING_MAX} levels deep")
        if id(value) in self._above:
            return self._bad(value, path, "it contains itself")
        self._above.append(id(value))
        try:
            return self._look_inside(value, info, path, depth)
        finally:
            self._above.pop()

    def _bad(self, value: object, path: str, problem: str) -> Unsavable:
        return Unsavable(self._agent, path, type_name(value), problem)

    def _look_union(
        self,
        value: Any,  # noqa: ANN401 - anything a user put there
        info: msgspec.inspect.UnionType,
        path: str,
        depth: int,
    ) -> Unsavable | None:
        problems = [self.look(value, option, path, depth) for option in info.types]
        found = [problem for problem in problems if problem is not None]
        if len(found) < len(problems):
            return None
        return max(found, key=lambda problem: len(problem.path))

    def _look_inside(
        self,
        value: Any,  # noqa: ANN401 - anything a user put there
        info: msgspec.inspect.Type,
        path: str,
        depth: int,
    ) -> Unsavable | None:
        origin = _origin_of(info)
        if origin is not None:
            exact = not isinstance(
                info, msgspec.inspect.ListType | msgspec.inspect.DictType | msgspec.inspect.TypedDictType
            )
            if not isinstance(value, origin) or (exact and type(value) is not origin):
                return self._bad(value, path, f"the declared type is {origin.__qualname__}{_advice(value)}")
        any_type = msgspec.inspect.AnyType()
        if isinstance(info, msgspec.inspect.AnyType):
            if isinstance(value, list):
                return self._look_items(value, any_type, path, depth)
            if isinstance(value, dict):
                return self._look_dict(value, any_type, any_type, path, depth)
            return self._look_leaf(value, Any, path)
        match info:
            case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
                return self._look_items(value, info.item_type, path, depth)
            case msgspec.inspect.SetType() | msgspec.inspect.FrozenSetType():
                return self._look_items(value, info.item_type, path, depth)
            case msgspec.inspect.TupleType():
                if len(value) != len(info.item_types):
                    return self._bad(value, path, f"the declared tuple has {len(info.item_types)} items")
                pairs = zip(value, info.item_types, strict=True)
                return self._first(
                    self.look(item, kind, f"{path}[{index}]", depth + 1) for index, (item, kind) in enumerate(pairs)
                )
            case msgspec.inspect.DictType():
                return self._look_dict(value, info.key_type, info.value_type, path, depth)
            case msgspec.inspect.TypedDictType():
                fields = {field.name: field.type for field in info.fields}
                unknown = [key for key in value if key not in fields]
                if unknown:
                    return self._bad(value, step_into(path, unknown[0]), "the declared TypedDict has no such key")
                return self._first(
                    self.look(item, fields[key], step_into(path, key), depth + 1) for key, item in value.items()
                )
            case msgspec.inspect.StructType() | msgspec.inspect.DataclassType() | msgspec.inspect.NamedTupleType():
                return self._first(
                    self.look(getattr(value, field.name, None), field.type, f"{path}.{field.name}", depth + 1)
                    for field in info.fields
                )
            case _:
                return self._look_leaf(value, _leaf_type(info), path)

    def _look_items(self, value: Any, item: msgspec.inspect.Type, path: str, depth: int) -> Unsavable | None:  # noqa: ANN401
        return self._first(self.look(part, item, f"{path}[{index}]", depth + 1) for index, part in enumerate(value))

    def _look_dict(
        self,
        value: dict[Any, Any],
        key_type: msgspec.inspect.Type,
        value_type: msgspec.inspect.Type,
        path: str,
        depth: int,
    ) -> Unsavable | None:
        for key, item in value.items():
            inner = step_into(path, key)
            problem = self.look(key, key_type, f"key {inner}", depth + 1) or self.look(
                item, value_type, inner, depth + 1
            )
            if problem is not None:
                return problem
        return None

    @staticmethod
    def _first(problems: Iterator[Unsavable | None]) -> Unsavable | None:
        return next((problem for problem in problems if problem is not None), None)

    def _look_leaf(self, value: Any, declared: Any, path: str) -> Unsavable | None:  # noqa: ANN401
        wanted = "" if declared is Any else f"the declared type is {getattr(declared, '__name__', declared)}"
        if isinstance(value, float) and type(value) is float and math.isnan(value) and declared in {Any, float}:
            return None
        if type(value) is int and not INT_MIN <= value <= INT_MAX:
            return self._bad(value, path, "it does not fit into 64 bits")
        try:
            copy = msgspec.msgpack.decode(ENCODER.encode(value), type=declared, dec_hook=hook_in)
            # A leaf that is not equal to its copy and has no `__eq__` of its own cannot be told apart from a wrong one.
            if copy == value or (is_pydantic(type(value)) and type(copy) is type(value)):
                return None
        except Exception as error:  # noqa: BLE001 - see Schema.save
            reason = wanted or f"{error}"
            return self._bad(value, path, f"{reason}{_advice(value)}")
        if declared is Any:
            return self._bad(value, path, f"it would come back as {type_name(copy)}: declare its type{_advice(value)}")
        return self._bad(value, path, f"{wanted}, and its copy would differ{_advice(value)}")


def _leaf_type(info: msgspec.inspect.Type) -> Any:  # noqa: ANN401 - a type form
    if isinstance(info, msgspec.inspect.EnumType | msgspec.inspect.CustomType):
        return info.cls
    if isinstance(info, msgspec.inspect.LiteralType):
        return Any
    return _LEAVES.get(type(info), Any)


def _leaves() -> dict[type, Any]:
    import datetime
    import decimal
    import uuid  # noqa: TID251 - the type's name only; ids are minted by drivers

    return {
        msgspec.inspect.NoneType: type(None),
        msgspec.inspect.BoolType: bool,
        msgspec.inspect.IntType: int,
        msgspec.inspect.FloatType: float,
        msgspec.inspect.StrType: str,
        msgspec.inspect.BytesType: bytes,
        msgspec.inspect.ByteArrayType: bytearray,
        msgspec.inspect.DateTimeType: datetime.datetime,
        msgspec.inspect.DateType: datetime.date,
        msgspec.inspect.TimeType: datetime.time,
        msgspec.inspect.TimeDeltaType: datetime.timedelta,
        msgspec.inspect.UUIDType: uuid.UUID,
        msgspec.inspect.DecimalType: decimal.Decimal,
    }


_LEAVES: Final = _leaves()


def _advice(value: object) -> str:
    """What to do instead, where the type tells."""
    if isinstance(value, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        return "; a function is code: save what it was made from"
    if isinstance(value, types.CoroutineType | types.GeneratorType | types.AsyncGeneratorType):
        return "; a coroutine or generator is a running call: save its input"
    if isinstance(value, io.IOBase):
        return "; open files belong into a plain attribute: save the path"
    with contextlib.suppress(Exception):
        if callable(getattr(value, "fileno", None)) or callable(getattr(value, "acquire", None)):
            return "; connections and locks belong into a plain attribute, made again after a restore"
    return ""
