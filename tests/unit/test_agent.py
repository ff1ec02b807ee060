from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import msgspec
import pytest

from participant.agent import Agent, handler, handler_never_awaits
from participant.failure import Retry
from participant.state import keyed, value
from protocol.errors import IllegalName

if TYPE_CHECKING:
    from participant.context import Context


class Ping(msgspec.Struct, frozen=True):
    n: int = 0


@dataclasses.dataclass
class Pong:
    n: int = 0


class Plain(Agent, kind="plain", state_version=3):
    count = value(int, default=0)

    @handler
    async def on_ping(self, ctx: Context, ping: Ping) -> None: ...

    @handler
    def on_pong(self, ctx: Context, pong: Pong) -> None: ...


def test_an_agent_has_the_id_of_kind_and_name():
    assert Plain("main").id == "plain/main"
    assert (Plain.kind, Plain.state_version, Plain.serializer) == ("plain", 3, "msgpack")
    assert repr(Plain("main")) == "<agent plain/main>"


def test_the_kind_is_the_class_name_in_lower_case_by_default():
    class Seller(Agent):
        pass

    assert Seller("x").id == "seller/x"


@pytest.mark.parametrize("name", ["", "A", "../x", "a/b", "x" * 300, "a\0", "\x1b[31m", "<b>", 7])
def test_hostile_names_are_refused(name):
    with pytest.raises(IllegalName):
        Plain(name)


def test_an_illegal_kind_is_refused_when_the_class_is_made():
    with pytest.raises(IllegalName):

        class Bad(Agent, kind="../bad"):
            pass


def test_the_base_class_itself_is_no_agent():
    with pytest.raises(TypeError, match="subclass Agent"):
        Agent("x")


def test_handlers_are_found_by_the_annotated_type():
    assert set(Plain.__cleancut_handlers__) == {Ping, Pong}
    assert Plain.__cleancut_handlers__[Ping].name == "on_ping"


def test_one_handler_may_take_several_types():
    class Both(Agent):
        @handler
        def on_any(self, ctx: Context, message: Ping | Pong) -> None: ...

    assert set(Both.__cleancut_handlers__) == {Ping, Pong}


def test_local_message_types_are_found():
    @dataclasses.dataclass
    class Local:
        n: int

    class Agent1(Agent):
        @handler
        def on_local(self, ctx: Context, message: Local) -> None: ...

    assert set(Agent1.__cleancut_handlers__) == {Local}


def test_two_handlers_of_one_type_are_refused():
    with pytest.raises(TypeError, match="on_a and on_b both handle Ping"):

        class Twice(Agent):
            @handler
            def on_a(self, ctx: Context, ping: Ping) -> None: ...

            @handler
            def on_b(self, ctx: Context, ping: Ping) -> None: ...


def test_a_handler_without_annotation_is_refused():
    with pytest.raises(TypeError, match="annotate ping"):

        class Bare(Agent):
            @handler
            def on_ping(self, ctx, ping): ...


def test_a_handler_with_other_parameters_is_refused():
    with pytest.raises(TypeError, match="takes self, ctx and one message"):

        class Few(Agent):
            @handler
            def on_ping(self, ping: Ping) -> None: ...


def test_a_handler_of_what_is_no_message_is_refused():
    with pytest.raises(TypeError, match="neither a dataclass"):

        class Odd(Agent):
            @handler
            def on_int(self, ctx: Context, n: int) -> None: ...


def test_a_type_that_is_not_there_at_runtime_is_named():
    with pytest.raises(TypeError, match="'Nowhere' cannot be found"):

        class Odd(Agent):
            @handler
            def on_it(self, ctx: Context, it: Nowhere) -> None: ...  # noqa: F821


def test_a_subclass_inherits_fields_and_handlers_and_may_replace_them():
    class More(Plain, kind="more"):
        extra = keyed(str, int)

        @handler
        async def on_ping(self, ctx: Context, ping: Ping) -> None: ...

    assert set(More.__cleancut_fields__) == {"count", "extra"}
    assert More.__cleancut_handlers__[Ping].function is More.on_ping
    assert More.__cleancut_handlers__[Pong].function is Plain.on_pong
    assert set(Plain.__cleancut_fields__) == {"count"}
    assert More("x").count == 0


def test_a_subclass_may_take_a_field_away():
    class Less(Plain, kind="less"):
        count = None

    assert not Less.__cleancut_fields__


@pytest.mark.parametrize("version", [0, -1, True, "1"])
def test_a_wrong_state_version_is_refused(version):
    with pytest.raises(TypeError, match="versions start at 1"):

        class Odd(Agent, state_version=version):
            pass


def test_a_wrong_serializer_or_failure_policy_is_refused():
    with pytest.raises(TypeError, match="serializer 'pickle' is none of msgpack, cloudpickle"):

        class Odd(Agent, serializer="pickle"):
            pass

    with pytest.raises(TypeError, match="failure is 'retry'"):

        class Odder(Agent):
            failure = "retry"

    assert Retry() == Agent.failure


def test_capture_and_restore_come_together_and_are_plain():
    with pytest.raises(TypeError, match="implemented together"):

        class Half(Agent):
            def capture(self):
                return 1

    with pytest.raises(TypeError, match="plain functions"):

        class Waits(Agent):
            async def capture(self):
                return 1

            def restore(self, state): ...


async def never() -> int:
    def inner():
        yield 1

    return sum(inner())


async def awaits() -> None:
    await asyncio.sleep(0)


async def iterates() -> None:
    async for _ in never():
        pass


async def enters() -> None:
    async with never():
        pass


async def comprehends() -> list:
    return [x async for x in never()]


async def generates():
    yield 1


def plain() -> None: ...


def test_coroutines_that_never_await_are_told_by_their_bytecode():
    assert handler_never_awaits(never)
    assert handler_never_awaits(Plain.on_ping)
    for function in (awaits, iterates, enters, comprehends, generates, plain, len, None):
        assert not handler_never_awaits(function)


def test_a_field_name_that_the_agent_needs_is_refused():
    with pytest.raises((TypeError, RuntimeError)):

        class Odd(Agent):
            _cc_cells = value(int, default=0)
