from __future__ import annotations

import dataclasses
import threading

import msgspec
import pytest

from participant.agent import Agent, handler
from participant.failure import DeadLetter, DeadLettered
from participant.history import MISSING
from participant.state import keyed, value
from protocol.errors import LocalProtocolError, Unsavable
from tests.agents_world import AgentWorld


class Do(msgspec.Struct, frozen=True):
    what: str = ""


class Order(msgspec.Struct):
    id: str
    cents: int


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: int


@dataclasses.dataclass(frozen=True)
class Blob:
    data: bytes


class Shop(Agent, kind="shop"):
    orders = keyed(str, Order)
    counts = keyed(int, int)
    spent = value(int, default=0)
    ratio = value(float, default=0.0)
    title = value(str | None, default=None)
    place = value(Point, default=Point(0, 0))
    names = value(list[str], default=["first"])
    table = value(dict[str, int], default={})
    never_set = value(int)
    never_set_list = value(list[int])
    failure = DeadLetter()

    def __init__(self, name: str = "main") -> None:
        super().__init__(name)
        self.action = lambda agent: None

    @handler
    def on_do(self, ctx, do: Do) -> None:
        self.action(self)


def world() -> tuple[AgentWorld, Shop]:
    shop = Shop()
    return AgentWorld(shop), shop


def turn(world: AgentWorld, shop: Shop, action):
    shop.action = action
    result = world.handle(Do())
    shop.action = lambda agent: None
    return result


def failing(action):
    def run(agent):
        action(agent)
        raise ValueError("no")

    return run


def test_a_value_has_its_default_and_takes_what_a_turn_sets():
    cluster, shop = world()
    assert (shop.spent, shop.title, shop.names, shop.place) == (0, None, ["first"], Point(0, 0))
    turn(cluster, shop, lambda a: setattr(a, "spent", 7))
    assert shop.spent == 7


def test_two_agents_never_share_a_mutable_default():
    cluster, shop = world()
    turn(cluster, shop, lambda a: a.names.append("second"))
    assert shop.names == ["first", "second"]
    assert Shop("other").names == ["first"]


def test_a_value_without_default_raises_attribute_error_until_it_is_set():
    cluster, shop = world()
    with pytest.raises(AttributeError, match="never_set has no default and was never set"):
        _ = shop.never_set
    with pytest.raises(AttributeError, match="never_set_list"):
        _ = shop.never_set_list
    turn(cluster, shop, lambda a: setattr(a, "never_set_list", [1]))
    assert shop.never_set_list == [1]


def test_a_turn_that_raises_leaves_no_trace_in_any_field():
    cluster, shop = world()

    def change(a):
        a.spent = 5
        a.names.append("x")
        a.table["k"] = 1
        a.place = Point(1, 1)
        a.orders["o"] = Order("o", 1)
        a.counts[1] = 1
        a.never_set = 3

    turn(cluster, shop, change)
    before = (shop.spent, shop.names, shop.table, shop.place, dict(shop.orders), dict(shop.counts), shop.never_set)

    def more(a):
        a.spent += 1
        a.names.append("y")
        a.names = [*a.names, "z"]
        a.table.clear()
        a.place = Point(2, 2)
        a.orders["o"].cents = 99
        a.orders["p"] = Order("p", 1)
        del a.counts[1]
        a.counts[2] = 2
        a.never_set = 4

    assert isinstance(turn(cluster, shop, failing(more)), DeadLettered)
    after = (shop.spent, shop.names, shop.table, shop.place, dict(shop.orders), dict(shop.counts), shop.never_set)
    assert after == before


def test_a_list_grown_in_place_is_saved_at_turn_commit():
    cluster, shop = world()
    turn(cluster, shop, lambda a: a.names.append("second"))
    turn(cluster, shop, lambda a: a.names.extend(str(n) for n in range(100)))
    assert len(shop.names) == 102
    assert shop.names[-1] == "99"


def test_an_augmented_assignment_of_a_list_is_saved():
    cluster, shop = world()

    def grow(a):
        a.names += ["x"]
        a.names += ["y"]

    turn(cluster, shop, grow)
    assert shop.names == ["first", "x", "y"]


def test_an_object_in_a_keyed_field_changed_in_place_is_saved():
    cluster, shop = world()
    turn(cluster, shop, lambda a: a.orders.update({"o": Order("o", 1)}))

    def change(a):
        order = a.orders["o"]
        order.cents += 1
        assert a.orders["o"] is order

    turn(cluster, shop, change)
    assert shop.orders["o"].cents == 2


def test_what_a_turn_set_and_then_changed_in_place_is_saved_as_changed():
    cluster, shop = world()

    def change(a):
        order = Order("o", 1)
        a.orders["o"] = order
        order.cents = 5
        a.names = names = ["a"]
        names.append("b")

    turn(cluster, shop, change)
    assert (shop.orders["o"].cents, shop.names) == (5, ["a", "b"])


def test_an_object_kept_elsewhere_has_no_way_back_into_the_state():
    cluster, shop = world()
    kept = []

    def keep(a):
        order = Order("o", 1)
        kept.append(order)
        a.orders["o"] = order
        a.names = names = ["a"]
        kept.append(names)

    turn(cluster, shop, keep)
    kept[0].cents = 1000
    kept[1].append("leak")
    turn(cluster, shop, lambda a: (a.orders["o"], a.names))
    assert (shop.orders["o"].cents, shop.names) == (1, ["a"])


def test_an_object_put_into_a_value_in_place_has_no_way_back_either():
    """As a task does that outlives its turn, or a cache in a plain attribute."""
    cluster, shop = world()
    kept = {}

    def grow(agent):
        agent.names.append("second")
        agent.table["a"] = 1
        agent.orders["o"] = Order("o", 1)
        kept.update(names=agent.names, table=agent.table, order=agent.orders["o"])

    turn(cluster, shop, grow)

    def look(agent):
        kept.update(names=agent.names, table=agent.table, order=agent.orders["o"])
        seen.append((list(agent.names), dict(agent.table), agent.orders["o"].cents))

    seen = []
    for _ in range(3):
        kept["names"].append("from outside")
        kept["table"]["b"] = 2
        kept["order"].cents = 99
        turn(cluster, shop, look)
    assert seen == 3 * [(["first", "second"], {"a": 1}, 1)]
    assert (shop.names, shop.table, shop.orders["o"]) == (["first", "second"], {"a": 1}, Order("o", 1))


@pytest.mark.parametrize("length", [0, 3, 100])
def test_two_fields_never_share_an_object(length: int):
    """An append to a long list decodes one block only, and it must be the right one."""

    class Pair(Agent, kind="pair"):
        one = value(list[Order], default=[])
        other = value(dict[str, Order], default={})
        failure = DeadLetter()

        @handler
        def on_do(self, ctx, do: Do) -> None:
            self.action()

    pair = Pair("main")
    pair.action = lambda: (
        pair.one.extend(Order(str(n), n) for n in range(length)),
        pair.other.update({str(n): Order(str(n), n) for n in range(length)}),
    )
    cluster = AgentWorld(pair)
    cluster.handle(Do())

    def put():
        shared = Order("shared", 1)
        pair.one.append(shared)
        pair.other["shared"] = shared

    pair.action = put
    cluster.handle(Do())

    def change():
        pair.one[-1].cents = 7
        assert pair.other["shared"].cents == 1
        pair.one[length // 2].id = "middle"

    pair.action = change
    result = cluster.handle(Do())
    assert not isinstance(result, DeadLettered), result
    assert [order.cents for order in pair.one] == [*range(length), 7]
    assert pair.one[length // 2].id == "middle"
    assert [order.cents for order in pair.other.values()] == [*range(length), 1]


def test_a_frozen_value_holds_nothing_that_can_still_change():
    class Holder(Agent, kind="holder"):
        blob = value(Blob, default=Blob(b""))
        failure = DeadLetter()

        @handler
        def on_do(self, ctx, do: Do) -> None:
            self.blob = Blob(outside)

    outside = bytearray(b"abc")
    holder = Holder("main")
    AgentWorld(holder).handle(Do())
    outside.extend(b"never")
    assert holder.blob == Blob(b"abc")
    assert type(holder.blob.data) is bytes


@pytest.mark.parametrize("key", [True, 1.0], ids=repr)
def test_a_key_of_another_type_that_is_equal_is_saved_as_the_key_that_is_there(key):
    """To a dict True is 1; in an epoch it would be an entry that no restore can read."""

    class Tables(Agent, kind="tables"):
        lists = keyed(int, list[int])
        failure = DeadLetter()

        @handler
        def on_do(self, ctx, do: Do) -> None:
            self.action()

    tables = Tables("main")
    cluster = AgentWorld(tables)
    tables.action = lambda: tables.lists.update({n: [n] for n in range(20)})
    cluster.handle(Do())
    cluster.epoch(1)
    tables.action = lambda: tables.lists[key].append(7)
    cluster.handle(Do())
    restored = cluster.restored(Tables("main"), cluster.epoch(2)["tables/main"]).agent
    assert restored.lists[1] == [1, 7]
    tables.action = lambda: tables.lists.pop(key)
    cluster.handle(Do())
    restored = cluster.restored(Tables("main"), cluster.epoch(3)["tables/main"]).agent
    assert sorted(restored.lists) == [0, *range(2, 20)]


def test_reads_outside_of_a_turn_give_copies_of_mutable_values():
    cluster, shop = world()
    turn(cluster, shop, lambda a: a.orders.update({"o": Order("o", 1)}))
    shop.names.append("leak")
    shop.orders["o"].cents = 1000
    turn(cluster, shop, lambda a: (a.orders["o"], a.names))
    assert (shop.names, shop.orders["o"].cents) == (["first"], 1)


@pytest.mark.parametrize(
    "write",
    [
        lambda a: setattr(a, "spent", 1),
        lambda a: setattr(a, "names", []),
        lambda a: a.counts.update({1: 1}),
        lambda a: a.orders.update({"o": Order("o", 1)}),
    ],
)
def test_writes_outside_of_a_turn_are_refused_with_the_reason(write):
    _, shop = world()
    with pytest.raises(LocalProtocolError, match="outside of a turn"):
        write(shop)


def test_deleting_outside_of_a_turn_is_refused():
    cluster, shop = world()
    turn(cluster, shop, lambda a: a.counts.update({1: 1}))
    with pytest.raises(LocalProtocolError, match="outside of a turn"):
        del shop.counts[1]


def test_init_may_set_first_values():
    class Account(Agent, kind="account"):
        balance = value(int, default=0)
        notes = keyed(str, list[str])

        def __init__(self, name: str, balance: int) -> None:
            self.balance = balance
            super().__init__(name)
            self.notes["n"] = ["a"]

        @handler
        def on_do(self, ctx, do: Do) -> None: ...

    account = Account("a", 100)
    AgentWorld(account)
    assert (account.balance, dict(account.notes)) == (100, {"n": ["a"]})


def test_a_keyed_field_is_a_mapping_inside_a_turn():
    cluster, shop = world()

    def fill(a):
        a.counts.update({1: 1, 2: 2, 3: 3})

    turn(cluster, shop, fill)

    def use(a):
        counts = a.counts
        del counts[2]
        counts[4] = 4
        counts[1] = 10
        assert 2 not in counts
        assert 4 in counts
        assert len(counts) == 3
        assert dict(counts) == {1: 10, 3: 3, 4: 4}
        assert counts.pop(3) == 3
        assert counts.get(3) is None
        assert counts.setdefault(5, 5) == 5
        with pytest.raises(KeyError):
            counts[2]
        with pytest.raises(KeyError):
            del counts[2]

    result = turn(cluster, shop, use)
    assert not isinstance(result, DeadLettered), result
    assert dict(shop.counts) == {1: 10, 4: 4, 5: 5}
    turn(cluster, shop, lambda a: a.counts.clear())
    assert len(shop.counts) == 0


def test_iterating_while_deleting_is_safe_inside_a_turn():
    cluster, shop = world()
    turn(cluster, shop, lambda a: a.counts.update({n: n for n in range(10)}))

    def sweep(a):
        for key in a.counts:
            if key % 2:
                del a.counts[key]

    assert not isinstance(turn(cluster, shop, sweep), DeadLettered)
    assert sorted(shop.counts) == [0, 2, 4, 6, 8]


def test_a_keyed_field_cannot_be_replaced():
    cluster, shop = world()
    shop.action = lambda a: setattr(a, "counts", {})
    letter = cluster.handle(Do())
    assert "keyed field" in letter.reason


@pytest.mark.parametrize(
    ("write", "path", "type_name"),
    [
        (lambda a: setattr(a, "spent", "7"), "spent", "str"),
        (lambda a: setattr(a, "spent", True), "spent", "bool"),
        (lambda a: setattr(a, "spent", 1 << 64), "spent", "int"),
        (lambda a: setattr(a, "title", 7), "title", "int"),
        (lambda a: setattr(a, "place", (1, 2)), "place", "tuple"),
        (lambda a: setattr(a, "names", ["a", None]), "names[1]", "NoneType"),
        (lambda a: setattr(a, "names", ("a",)), "names", "tuple"),
        (lambda a: a.counts.update({"1": 1}), "key counts['1']", "str"),
        (lambda a: a.counts.update({1: "1"}), "counts[1]", "str"),
        (lambda a: a.orders.update({"o": {"id": "o", "cents": 1}}), "orders.o", "dict"),
        (lambda a: a.orders.update({"o": Order("o", threading.Lock())}), "orders.o.cents", "_thread.lock"),
    ],
)
def test_what_cannot_be_saved_is_refused_where_it_is_set(write, path, type_name):
    cluster, shop = world()
    caught = []

    def attempt(a):
        try:
            write(a)
        except Unsavable as error:
            caught.append(error)
            raise

    assert isinstance(turn(cluster, shop, attempt), DeadLettered)
    (error,) = caught
    assert error.agent == "shop/main"
    assert error.path.endswith(path.removeprefix("key ")) or error.path == path
    assert error.type_name.endswith(type_name)


def test_a_list_that_grows_in_place_into_something_unsavable_fails_its_turn_with_the_path():
    cluster, shop = world()
    turn(cluster, shop, lambda a: a.names.extend(str(n) for n in range(40)))
    letter = turn(cluster, shop, lambda a: a.names.append(threading.Lock()))
    assert isinstance(letter, DeadLettered)
    assert "names[41] of type _thread.lock" in letter.reason
    assert len(shop.names) == 41


def test_an_int_is_taken_where_a_float_is_declared():
    cluster, shop = world()
    turn(cluster, shop, lambda a: setattr(a, "ratio", 3))
    assert shop.ratio == 3.0
    assert type(shop.ratio) is float


def test_a_cut_keeps_the_old_value_whatever_later_turns_do():
    cluster, shop = world()
    turn(cluster, shop, lambda a: (setattr(a, "spent", 1), a.counts.update({1: 1, 2: 2})))
    cut = cluster.clock.cut()
    turn(cluster, shop, lambda a: (setattr(a, "spent", 2), a.counts.pop(1), a.counts.update({2: 20, 3: 3})))
    turn(cluster, shop, lambda a: (setattr(a, "spent", 3), a.counts.update({1: 100})))
    spent, counts = shop._cc_cells["spent"], shop._cc_cells["counts"]
    assert spent.stored_at(cut) == 1
    at_cut = {key: counts.stored_at(cut, key) for key in counts.keys_at(cut)}
    assert {key: old for key, old in at_cut.items() if old is not MISSING} == {1: 1, 2: 2}
    assert counts.stored_at(cut, 3) is MISSING


def test_two_open_cuts_each_keep_their_own_value():
    cluster, shop = world()
    cell = shop._cc_cells["spent"]
    first = cluster.clock.cut()
    turn(cluster, shop, lambda a: setattr(a, "spent", 1))
    second = cluster.clock.cut()
    turn(cluster, shop, lambda a: setattr(a, "spent", 2))
    assert (cell.stored_at(first), cell.stored_at(second), shop.spent) == (0, 1, 2)


def test_the_keys_changed_between_two_cuts_are_known():
    cluster, shop = world()
    cell = shop._cc_cells["counts"]
    turn(cluster, shop, lambda a: a.counts.update({1: 1, 2: 2, 3: 3}))
    first = cluster.clock.cut()
    turn(cluster, shop, lambda a: a.counts.update({2: 20, 4: 4}))
    second = cluster.clock.cut()
    turn(cluster, shop, lambda a: a.counts.pop(1))
    assert list(cell.changed(first, second)) == [2, 4]
    assert list(cell.changed(second, second + 1)) == [1]


def test_no_old_value_is_kept_when_no_cut_is_open():
    cluster, shop = world()
    cluster.clock.close(cluster.clock.cut())
    turn(cluster, shop, lambda a: a.counts.update({1: 1}))
    cell = shop._cc_cells["counts"]
    assert all(type(old).__name__ == "_Mark" for old in cell.changes.values())


def test_a_declared_type_without_schema_is_refused_when_the_class_is_made():
    class Socketish:
        pass

    with pytest.raises(TypeError, match=r"Bad1\.field: .*Socketish has no schema"):

        class Bad1(Agent):
            field = value(Socketish)

    with pytest.raises(TypeError, match=r"Bad2\.field: .*Socketish has no schema"):

        class Bad2(Agent):
            field = keyed(str, list[Socketish])

    with pytest.raises(TypeError, match="keys of type list"):
        keyed(list[str], int)
    with pytest.raises(TypeError, match="default of type str"):
        value(int, default="x")
