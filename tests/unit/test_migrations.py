"""State of older versions: the chain of migrations, what is refused and how it is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from participant import Agent, Context, Participant, handler, keyed, message, migration, value
from participant.serializers import allow_own_pickle
from protocol.errors import ConfigError, IllegalName, RecoveryError
from tests.agents_world import AgentWorld


class Order(msgspec.Struct):
    cents: int
    currency: str = "EUR"


class Note(msgspec.Struct, frozen=True):
    text: str


class V1(Agent, kind="shop", state_version=1):
    total = value(float, default=0.0)
    orders = keyed(int, dict[str, int])
    gone = value(str, default="")
    never = value(str)

    @handler
    def on_note(self, ctx: Context, note: Note) -> None:
        self.total += 1.5
        self.orders[len(self.orders)] = {"cents": 150}
        self.gone = note.text


class V3(Agent, kind="shop", state_version=3):
    total_cents = value(int, default=0)
    orders = keyed(int, Order)
    added = value(list[str], default=["new"])

    @staticmethod
    @migration(1)
    def _cents(state: dict[str, Any]) -> dict[str, Any]:
        state["total_cents"] = round(100 * state.pop("total", 0))
        return state

    @staticmethod
    @migration(2)
    def _currency(state: dict[str, Any]) -> dict[str, Any]:
        del state["gone"]
        for order in state["orders"].values():
            order["currency"] = "USD"
        return state


def old_state(*texts: str):
    """A world with an agent of version 1 and its part of an epoch."""
    world = AgentWorld(V1("main"))
    for text in texts:
        world.handle(Note(text))
    return world, world.epoch(1)["shop/main"]


def test_state_goes_through_every_step_in_order_and_fields_that_were_added_get_their_default():
    world, snapshot = old_state("a", "b")
    host = world.restored(V3("main"), snapshot)
    agent = host.agent
    assert agent.total_cents == 300
    assert dict(agent.orders) == {0: Order(150, "USD"), 1: Order(150, "USD")}
    assert agent.added == ["new"]


def test_an_epoch_of_migrated_state_is_of_the_new_version_and_needs_no_migration():
    world, snapshot = old_state("a")
    host = world.restored(V3("main"), snapshot)
    again = AgentWorld()
    again.clock, again.registry, again.hosts = host.state.clock, host.registry, {host.id: host}
    from participant.capture import Capturer

    again.capturer = Capturer(host.state.clock)
    after = again.epoch(2)["shop/main"]
    assert after.state_version == 3
    world.packs.update(again.packs)
    agent = world.restored(V3("main"), after).agent
    assert (agent.total_cents, agent.orders[0]) == (150, Order(150, "USD"))


def test_keyed_state_with_overlays_and_removed_keys_is_whole_before_its_migration():
    class Big(Agent, kind="big", state_version=1):
        items = keyed(int, int)

        @handler
        def on_note(self, ctx: Context, note: Note) -> None:
            what, _, number = note.text.partition(" ")
            if what == "fill":
                self.items.update({key: key for key in range(1_000)})
            elif what == "set":
                self.items[int(number)] = -1
            else:
                del self.items[int(number)]

    class Bigger(Agent, kind="big", state_version=2):
        items = keyed(str, int)

        @staticmethod
        @migration(1)
        def _texts(state: dict[str, Any]) -> dict[str, Any]:
            return {"items": {str(key): item for key, item in state["items"].items()}}

    world = AgentWorld(Big("main"))
    world.handle(Note("fill"))
    world.epoch(1)
    world.handle(Note("set 7"))
    world.handle(Note("remove 8"))
    snapshot = world.epoch(2)["big/main"]
    (field,) = snapshot.fields
    assert len(field.segments) > 1
    assert field.removed
    agent = world.restored(Bigger("main"), snapshot).agent
    assert len(agent.items) == 999
    assert (agent.items["7"], agent.items.get("8"), agent.items["9"]) == (-1, None, 9)


def test_an_agent_with_a_state_of_its_own_is_migrated_too():
    class Own1(Agent, kind="own", state_version=1):
        seen = 0

        def capture(self) -> Any:
            return {"seen": self.seen}

        def restore(self, state: Any) -> None:
            self.seen = state["seen"]

        @handler
        def on_note(self, ctx: Context, note: Note) -> None:
            self.seen += 1

    class Own2(Own1, kind="own", state_version=2):
        def capture(self) -> Any:
            return [self.seen]

        def restore(self, state: Any) -> None:
            (self.seen,) = state

        @staticmethod
        @migration(1)
        def _list(state: dict[str, Any]) -> dict[str, Any]:
            return {"capture": [state["capture"]["seen"]]}

    world = AgentWorld(Own1("main"))
    world.handle(Note("x"))
    snapshot = world.epoch(1)["own/main"]
    assert world.restored(Own2("main"), snapshot).agent.seen == 1


@dataclass
class Live:
    number: int


def test_pickled_fields_come_to_a_migration_as_they_were_and_only_where_that_is_allowed():
    class Pickled1(Agent, kind="pickled", state_version=1, serializer="cloudpickle"):
        live = value(Live, default=Live(0))
        many = keyed(str, Live)

        @handler
        def on_note(self, ctx: Context, note: Note) -> None:
            self.live = Live(5)
            self.many["a"] = Live(6)

    class Pickled2(Agent, kind="pickled", state_version=2, serializer="cloudpickle"):
        number = value(int, default=0)
        many = keyed(str, Live)

        @staticmethod
        @migration(1)
        def _number(state: dict[str, Any]) -> dict[str, Any]:
            return {"number": state["live"].number, "many": {"b": Live(state["many"]["a"].number + 1)}}

    world = AgentWorld(Pickled1("main"))
    world.handle(Note("x"))
    snapshot = world.epoch(1)["pickled/main"]
    with pytest.raises(RecoveryError, match="allow_cloudpickle is off"):
        world.restored(Pickled2("main"), snapshot)
    agent = world.restored(Pickled2("main"), snapshot, allow_own_pickle()).agent
    assert (agent.number, agent.many["b"]) == (5, Live(7))


# --- refused ----------------------------------------------------------------------------------------------------------


def test_a_missing_step_is_named_and_the_agent_untouched():
    class Gap(Agent, kind="shop", state_version=4):
        total_cents = value(int, default=7)

        @staticmethod
        @migration(2)
        def _two(state: dict[str, Any]) -> dict[str, Any]:
            return state

    world, snapshot = old_state("a")
    agent = Gap("main")
    with pytest.raises(RecoveryError, match=r"agent shop/main.*no migration from 1 to 2, 3 to 4"):
        world.restored(agent, snapshot)
    assert agent.total_cents == 7


def test_a_downgrade_is_refused():
    world, snapshot = old_state("a")
    newer = msgspec.structs.replace(snapshot, state_version=2)
    with pytest.raises(RecoveryError, match="in version 2, its class is of version 1: code cannot go back"):
        world.restored(V1("main"), newer)


def test_a_step_that_raises_is_named_with_its_cause():
    class Broken(Agent, kind="shop", state_version=2):
        @staticmethod
        @migration(1)
        def _broken(state: dict[str, Any]) -> dict[str, Any]:
            return {"x": state["nothing"]}

    world, snapshot = old_state("a")
    with pytest.raises(RecoveryError, match="from version 1 to 2 failed: KeyError: 'nothing'"):
        world.restored(Broken("main"), snapshot)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (None, "gave NoneType, not a dict of fields"),
        ({1: 2}, "gave dict, not a dict of fields"),
        ({"unknown": 1}, "the state has unknown, and the class has no such field"),
        ({"total_cents": "text"}, "field total_cents does not fit its declared type"),
        ({"orders": [1]}, "keyed field orders is list after its migrations"),
        ({"total_cents": object()}, "field total_cents cannot be saved after its migrations"),
    ],
)
def test_what_a_migration_gives_is_checked(given, problem):
    class Gives(Agent, kind="shop", state_version=2):
        total_cents = value(int, default=0)
        orders = keyed(int, int)

        @staticmethod
        @migration(1)
        def _gives(state: dict[str, Any]) -> Any:
            return given

    world, snapshot = old_state("a")
    with pytest.raises(RecoveryError, match=problem):
        world.restored(Gives("main"), snapshot)


def test_the_same_version_with_other_fields_says_what_to_do():
    class Forgot(Agent, kind="shop", state_version=1):
        total = value(int, default=0)
        orders = keyed(int, dict[str, int])
        never = value(str)

    world, snapshot = old_state("a")
    with pytest.raises(RecoveryError, match="no field gone that the epoch holds; raise its state_version"):
        world.restored(Forgot("main"), snapshot)


def test_a_migration_gets_its_own_copy_each_time():
    world, snapshot = old_state("a")
    for _ in range(2):
        assert world.restored(V3("main"), snapshot).agent.total_cents == 150


@pytest.mark.parametrize(
    ("version", "functions", "problem"),
    [
        (2, {"a": (2, lambda state: state)}, "leads to version 3, and state_version is 2"),
        (3, {"a": (1, lambda state: state), "b": (1, lambda state: state)}, "both lead on from version 1"),
        (2, {"a": (0, lambda state: state)}, "versions start at 1"),
        (2, {"a": ("1", lambda state: state)}, "versions start at 1"),
        (2, {"a": (1, lambda: None)}, "one argument, the state"),
        (2, {"a": (1, lambda self, state: None)}, "one argument, the state"),
    ],
)
def test_a_class_with_impossible_migrations_is_refused_when_it_is_made(version, functions, problem):
    names = {name: migration(start)(function) for name, (start, function) in functions.items()}
    with pytest.raises(TypeError, match=problem):
        type(Agent)("Odd", (Agent,), names, kind="odd", state_version=version)


def test_an_async_migration_is_refused():
    async def wait(state: dict[str, Any]) -> dict[str, Any]:
        return state

    with pytest.raises(TypeError, match="a plain function"):
        type(Agent)("Odd", (Agent,), {"wait": migration(1)(wait)}, kind="odd", state_version=2)


def test_a_subclass_takes_the_place_of_a_base_s_migration_by_its_name():
    class Base(Agent, kind="base", state_version=2):
        x = value(int, default=0)

        @staticmethod
        @migration(1)
        def _one(state: dict[str, Any]) -> dict[str, Any]:
            return {"x": 1}

    class Sub(Base, kind="sub", state_version=2):
        @staticmethod
        @migration(1)
        def _one(state: dict[str, Any]) -> dict[str, Any]:
            return {"x": 2}

    assert Sub.__cleancut_migrations__[1]({}) == {"x": 2}
    assert Base.__cleancut_migrations__[1]({}) == {"x": 1}


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_class_that_was_renamed_takes_agents_of_its_old_kinds_under_their_own_ids():
    class Store(Agent, kind="store", state_version=1, renamed_from=("shop",)):
        total = value(float, default=0.0)
        orders = keyed(int, dict[str, int])
        gone = value(str, default="")
        never = value(str)

    world, snapshot = old_state("a")
    agent = Store("shop/main")
    assert agent.id == "shop/main"
    assert world.restored(agent, snapshot).agent.total == 1.5
    assert Store("main").id == "store/main"
    assert Store("store/main").id == "store/main"
    with pytest.raises(IllegalName):
        Store("other/main")


def test_a_class_that_moved_or_has_another_python_name_is_the_same_kind():
    """Kinds are names: no class path is ever written down."""
    Elsewhere = type(Agent)("Elsewhere", (V1,), {"__module__": "another.module"}, kind="shop")  # noqa: N806
    world, snapshot = old_state("a")
    assert world.restored(Elsewhere("main"), snapshot).agent.total == 1.5


def test_a_message_that_was_renamed_is_still_taken_under_its_old_name():
    @message("note-2", renamed_from=("Note",))
    class Renamed(msgspec.Struct, frozen=True):
        text: str

    class Reader(Agent, kind="reader"):
        texts = value(list[str], default=[])

        @handler
        def on_note(self, ctx: Context, note: Renamed) -> None:
            self.texts.append(note.text)

    old = AgentWorld(V1("main"))
    envelope = old.envelope(Note("hello"), target="reader/main")
    world = AgentWorld(Reader("main"))
    world.host.deliver(*envelope)
    world.run_next()
    assert world.host.agent.texts == ["hello"]
    assert world.registry.encode(Renamed("x"))[0] == "note-2"
    assert world.registry.decode("Note", 1, envelope[0].body) == Renamed("hello")
    assert world.registry.names() == (("Note", 1), ("note-2", 1))


def test_two_messages_that_claim_one_old_name_are_refused():
    @message("a", renamed_from=("old",))
    class A(msgspec.Struct):
        pass

    @message("old")
    class B(msgspec.Struct):
        pass

    class Both(Agent, kind="both"):
        @handler
        def on(self, ctx: Context, note: A | B) -> None: ...

    with pytest.raises(ConfigError, match="both registered as 'old'"):
        AgentWorld(Both("main"))


def test_what_a_class_is_can_be_told_without_an_agent():
    code = V3.__cleancut_code__()
    assert (code.kind, code.state_version, code.migrations) == ("shop", 3, (1, 2))
    assert set(code.fields) == {
        ("total_cents", "value", "msgpack"),
        ("orders", "keyed", "msgpack"),
        ("added", "value", "msgpack"),
    }
    assert V1.__cleancut_code__().messages == (("Note", 1),)


def test_a_json_message_is_checked_against_its_type_and_newest_version():
    world = AgentWorld(V1("main"))
    name, version, body = world.registry.encode_json("Note", 0, b'{"text": "hi"}')
    assert (name, version, msgspec.msgpack.decode(body)) == ("Note", 1, {"text": "hi"})
    from protocol.errors import UndecodableMessage

    for bad in (b"{}", b'{"text": 7}', b"[]", b"nonsense", b""):
        with pytest.raises(UndecodableMessage, match="cannot be made of this"):
            world.registry.encode_json("Note", 1, bad)
    with pytest.raises(UndecodableMessage, match="not registered here"):
        world.registry.encode_json("Other", 0, b"{}")
    with pytest.raises(UndecodableMessage, match="known here: 1"):
        world.registry.encode_json("Note", 2, b"{}")


def test_participants_and_their_factories_know_a_class_by_its_old_kinds_too():
    class Store(Agent, kind="store", renamed_from=("shop",)):
        pass

    from participant.runtime.parts import agent_factories

    made = agent_factories([Store])
    assert sorted(made) == ["shop", "store"]
    assert made["shop"]("main").id == "shop/main"
    assert made["store"]("main").id == "store/main"
    assert isinstance(Participant, type)
