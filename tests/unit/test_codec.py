from __future__ import annotations

import dataclasses
import decimal
import enum
import socket
import threading
import typing
from typing import Any

import msgspec
import pytest

from participant.codec import MessageRegistry, message
from participant.schema import Kind, Schema
from protocol.errors import ConfigError, LimitExceeded, UndecodableMessage, Unsavable
from protocol.limits import MESSAGE_BYTES_MAX, NESTING_MAX


class Order(msgspec.Struct, frozen=True):
    id: str
    cents: int = 0


@message("order", version=2)
@dataclasses.dataclass
class NewOrder:
    id: str
    tags: list[str] = dataclasses.field(default_factory=list)


class Loose(msgspec.Struct):
    memory: dict[str, Any]


class Color(enum.Enum):
    RED = "red"


class Model:
    """The surface of a pydantic model, as far as it is used."""

    model_fields: typing.ClassVar[dict[str, Any]] = {"name": str}

    def __init__(self, name: str) -> None:
        self.name = name

    def model_dump(self, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"name": self.name}

    @classmethod
    def model_validate(cls, plain: dict[str, Any]) -> Model:
        if not isinstance(plain.get("name"), str):
            raise TypeError("name: not a str")
        return cls(plain["name"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.name == self.name

    __hash__ = None


def refused(declared: Any, candidate: Any, path: str = "memory") -> Unsavable:
    with pytest.raises(Unsavable) as caught:
        Schema(declared).save(candidate, "agent/one", path)
    assert caught.value.agent == "agent/one"
    return caught.value


def test_name_and_version_travel_and_no_class_path():
    registry = MessageRegistry([Order, NewOrder])
    assert registry.encode(Order("a", 1)) == ("Order", 1, msgspec.msgpack.encode({"id": "a", "cents": 1}))
    name, version, body = registry.encode(NewOrder("a", ["x"]))
    assert (name, version) == ("order", 2)
    assert b"NewOrder" not in body
    assert registry.decode(name, version, body) == NewOrder("a", ["x"])


def test_two_types_of_one_name_and_version_are_refused():
    @message("Order", version=1)
    class Other(msgspec.Struct):
        x: int

    with pytest.raises(ConfigError, match="both registered as 'Order' version 1"):
        MessageRegistry([Order, Other])


def test_two_versions_of_one_name_live_side_by_side():
    @message("Order", version=3)
    class Other(msgspec.Struct):
        x: int

    registry = MessageRegistry([Order, Other, Order])
    assert registry.decode("Order", 3, b"\x81\xa1x\x01") == Other(1)
    assert registry.types() == (Order, Other)


def test_the_mark_of_a_base_class_is_not_inherited():
    class Special(NewOrder):
        pass

    assert MessageRegistry([Special]).encode(dataclasses.replace(Special("a")))[:2] == ("Special", 1)


def test_two_registries_know_nothing_of_each_other():
    MessageRegistry([Order])
    with pytest.raises(Unsavable, match=r"knows no such message type \(known: NewOrder\)"):
        MessageRegistry([NewOrder]).encode(Order("a"))


@pytest.mark.parametrize(
    ("name", "version", "body", "reason"),
    [
        ("Unknown", 1, b"\x80", "'Unknown' is not registered here"),
        ("Order", 9, b"\x80", "has version 9; known here: 1"),
        ("Order", 1, b"\x80", "missing required field `id`"),
        ("Order", 1, b"\x81\xa2id\x01", "Expected `str`"),
        ("Order", 1, b"\xc1", "cannot be decoded"),
        ("Order", 1, b"", "cannot be decoded"),
        ("Order", 1, b"\x81\xa2id\xa1\xff", "cannot be decoded"),
        ("Order", 1, b"\x82\xa2id\xa1a\xa1x" + b"\x91" * 200_000 + b"\xc0", "cannot be decoded"),
        ("x\x1b[31m" * 50, 1, b"", "is not registered here"),
    ],
)
def test_what_cannot_be_decoded_says_why(name, version, body, reason):
    with pytest.raises(UndecodableMessage) as caught:
        MessageRegistry([Order]).decode(name, version, body)
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_message_too_long_is_refused_at_the_sender():
    with pytest.raises(LimitExceeded, match="at most"):
        MessageRegistry([Order]).encode(Order("x" * (MESSAGE_BYTES_MAX + 1)))


def test_a_message_is_checked_like_state_when_it_is_sent():
    registry = MessageRegistry([Order, Loose])
    with pytest.raises(Unsavable, match=r"Order\.cents of type str cannot be saved"):
        registry.encode(Order("a", "1"), "buyer/main")
    with pytest.raises(Unsavable, match=r"agent buyer/main: Loose\.memory\.tools\[2\]\.client of type _thread\.lock"):
        registry.encode(Loose({"tools": [1, 2, {"client": threading.Lock()}]}), "buyer/main")


def test_a_type_that_is_no_message_is_refused():
    with pytest.raises(ConfigError, match="neither a dataclass nor"):
        MessageRegistry([int])


def test_a_message_type_with_a_field_without_schema_is_refused():
    class Holder(msgspec.Struct):
        lock: threading.Event

    with pytest.raises(ConfigError, match="no schema"):
        MessageRegistry([Holder])


@pytest.mark.parametrize(("name", "version"), [("", 1), ("cleancut.start", 1), ("a\nb", 1), ("x" * 200, 1), ("ok", 0)])
def test_illegal_message_names_are_refused(name, version):
    with pytest.raises(ConfigError):
        message(name, version=version)


def test_pydantic_models_are_messages_without_importing_pydantic():
    registry = MessageRegistry([Model])
    name, version, body = registry.encode(Model("a"))
    assert registry.decode(name, version, body) == Model("a")
    with pytest.raises(UndecodableMessage, match="not a str"):
        registry.decode("Model", 1, b"\x81\xa4name\x01")


# --- what can be saved (participant.schema) ---------------------------------------------------------------------------


def test_kinds_of_types():
    kinds = {
        int: Kind.PLAIN,
        str: Kind.PLAIN,
        bytes: Kind.PLAIN,
        Order: Kind.FROZEN,
        Color: Kind.FROZEN,
        decimal.Decimal: Kind.FROZEN,
        NewOrder: Kind.MUTABLE,
    }
    assert {declared: Schema(declared).kind for declared in kinds} == kinds
    assert Schema(int | None).kind is Kind.FROZEN
    assert Schema(tuple[Order, ...]).kind is Kind.FROZEN
    assert Schema(tuple[list[int], ...]).kind is Kind.MUTABLE
    assert Schema(list[int]).kind is Kind.MUTABLE
    assert Schema(Any).kind is Kind.MUTABLE
    assert Schema(object).kind is Kind.MUTABLE


async def coroutine_function() -> None: ...


class Deep:
    def __init__(self) -> None:
        self.client = object()


def test_live_things_are_refused_with_path_and_type():
    with socket.socket() as connection, open(__file__) as opened:
        coroutine = coroutine_function()
        things = {
            "_thread.lock": threading.Lock(),
            "socket.socket": connection,
            "coroutine": coroutine,
            "function": lambda: None,
            "generator": (n for n in ()),
            "_io.TextIOWrapper": opened,
            "Deep": Deep(),
        }
        for name, thing in things.items():
            error = refused(dict[str, Any], {"tools": [1, 2, {"client": thing}]})
            assert error.path == "memory.tools[2].client"
            assert error.type_name.endswith(name)
        coroutine.close()


@pytest.mark.parametrize(
    ("declared", "candidate", "path"),
    [
        (decimal.Decimal, decimal.Decimal("NaN"), "memory"),
        (dict[str, decimal.Decimal], {"a": decimal.Decimal("sNaN")}, "memory.a"),
        (list[str], ["a", None], "memory[1]"),
        (dict[str, Any], {"x": 1 << 64}, "memory.x"),
        (dict[str, Any], {"x": (1, 2)}, "memory.x"),
        (dict[str, Any], {"x": {1, 2}}, "memory.x"),
        (dict[str, Any], {"x": decimal.Decimal(1)}, "memory.x"),
        (dict[str, Any], {"a b": [object()]}, "memory['a b'][0]"),
        (dict[str, Any], {"x": Order("a")}, "memory.x"),
        (list[Order], [{"id": "a"}], "memory[0]"),
        (typing.Literal["a", "b"], "c", "memory"),
        (int | list[str], ["a", 1], "memory[1]"),
        (tuple[int, str], (1,), "memory"),
        (tuple[int, str], (1, 2), "memory[1]"),
        (set[str], {"a", 1}, "memory"),
        (Any, "\ud800", "memory"),
        (dict[str, Any], {"\ud800": 1}, "memory"),
        (Color, "red", "memory"),
    ],
)
def test_values_that_would_come_back_different_are_refused(declared, candidate, path):
    error = refused(declared, candidate)
    assert error.path.removeprefix("key ").startswith(path)


def test_a_subclass_whose_extra_fields_would_be_lost_is_refused():
    class Base(msgspec.Struct):
        a: int

    class More(Base):
        b: int = 0

    assert refused(list[Base], [Base(1), More(1, 2)]).path == "memory[1]"


def test_a_cycle_is_named():
    ring: list[Any] = []
    ring.append({"next": ring})
    error = refused(list[Any], ring)
    assert "contains itself" in error.problem
    assert error.path == "memory[0].next"


def test_nesting_beyond_the_limit_is_refused_and_at_the_limit_taken():
    def nested(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = [value]
        return value

    assert Schema(Any).save(nested(NESTING_MAX - 1), "", "x")
    assert f"more than {NESTING_MAX} levels" in refused(Any, nested(NESTING_MAX + 10)).problem
    assert f"more than {NESTING_MAX} levels" in refused(Any, nested(100_000)).problem


def test_a_float_that_is_not_a_number_is_a_float():
    data, copy = Schema(dict[str, Any]).save({"x": float("nan")}, "", "x")
    assert copy["x"] != copy["x"]
    assert Schema(dict[str, Any]).decode(data)["x"] != 0


def test_a_class_without_equality_is_taken_after_a_look():
    @dataclasses.dataclass(eq=False)
    class Plain:
        a: int

    data, copy = Schema(Plain).save(Plain(1), "", "x")
    assert (data, copy.a) == (b"\x81\xa1a\x01", 1)


def test_the_order_of_a_dict_is_kept():
    assert list(Schema(dict[str, int]).save({"b": 1, "a": 2}, "", "x")[1]) == ["b", "a"]


def test_nothing_is_pickled_on_the_way(monkeypatch):
    import pickle

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("pickled")

    class Evil:
        def __reduce__(self):
            raise AssertionError("pickled")

    monkeypatch.setattr(pickle, "dumps", never)
    refused(dict[str, Any], {"x": Evil()})
