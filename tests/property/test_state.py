"""Agents' saved state against plain dicts: turns that commit or fail, cuts at any moment, epochs that end either way."""

from __future__ import annotations

import copy

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from participant.agent import Agent, handler
from participant.failure import DeadLetter
from participant.schema import Schema
from participant.state import keyed, value
from protocol.errors import Unsavable
from tests.agents_world import AgentWorld


class Do(msgspec.Struct, frozen=True):
    pass


class Box(Agent, kind="box"):
    numbers = keyed(str, int)
    lists = keyed(int, list[int])
    count = value(int, default=0)
    log = value(list[str], default=[])
    table = value(dict[str, list[int]], default={})
    failure = DeadLetter()
    action = staticmethod(lambda agent: None)

    @handler
    def on_do(self, ctx, do: Do) -> None:
        self.action(self)


def fields(agent):
    return {
        "numbers": dict(agent.numbers),
        "lists": {key: list(items) for key, items in agent.lists.items()},
        "count": agent.count,
        "log": list(agent.log),
        "table": copy.deepcopy(dict(agent.table)),
    }


def apply(state, change):
    """One change on an agent inside a turn, or on the model: both are mappings of the same shape."""
    kind, *arguments = change
    get = state.get if isinstance(state, dict) else lambda name: getattr(state, name)

    def put(name, item):
        if isinstance(state, dict):
            state[name] = item
        else:
            setattr(state, name, item)

    match kind, arguments:
        case "number", [key, n]:
            get("numbers")[key] = n
        case "unnumber", [key]:
            get("numbers").pop(key, None)
        case "list", [key, items]:
            get("lists")[key] = list(items)
        case "grow", [key, n]:
            if key in get("lists"):
                get("lists")[key].append(n)
        case "unlist", [key]:
            get("lists").pop(key, None)
        case "count", [n]:
            put("count", n)
        case "log", [text, times]:
            for _ in range(times):
                get("log").append(text)
        case "cut", [n]:
            del get("log")[n : n + 5]
        case "set", [n]:
            get("log")[n:n] = ["here"]
        case "table", [key, n]:
            get("table").setdefault(key, []).append(n)
        case "untable", [key]:
            get("table").pop(key, None)
        case _:
            raise AssertionError(change)


KEYS = st.sampled_from(["a", "b", "c", "d", "ü"])
NUMBERS = st.integers(-(2**63), 2**64 - 1)
SMALL = st.integers(0, 4)
CHANGES = st.one_of(
    st.tuples(st.just("number"), KEYS, NUMBERS),
    st.tuples(st.just("unnumber"), KEYS),
    st.tuples(st.just("list"), SMALL, st.lists(SMALL, max_size=3)),
    st.tuples(st.just("grow"), SMALL, SMALL),
    st.tuples(st.just("unlist"), SMALL),
    st.tuples(st.just("count"), NUMBERS),
    st.tuples(st.just("log"), KEYS, st.integers(1, 40)),
    st.tuples(st.just("cut"), st.integers(0, 100)),
    st.tuples(st.just("set"), st.integers(0, 100)),
    st.tuples(st.just("table"), KEYS, SMALL),
    st.tuples(st.just("untable"), KEYS),
)


class States(RuleBasedStateMachine):
    """Every epoch, whenever it is encoded and however it ends, holds what the model held at its cut."""

    frozen = Bundle("frozen")

    @initialize()
    def begin(self):
        self.agent = Box("main")
        self.world = AgentWorld(self.agent)
        self.model = fields(self.agent)
        self.epoch = 0
        self.open = []

    @rule(changes=st.lists(CHANGES, max_size=8), fails=st.booleans())
    def turn(self, changes, fails):
        def act(agent):
            for change in changes:
                apply(agent, change)
            inside = copy.deepcopy(self.model)
            for change in changes:
                apply(inside, change)
            assert fields(agent) == inside
            if fails:
                raise ValueError

        self.agent.action = act
        outcome = self.world.handle(Do())
        assert (type(outcome).__name__ == "DeadLettered") == fails, outcome
        if not fails:
            for change in changes:
                apply(self.model, change)

    @rule()
    def cut(self):
        if len(self.open) < 3:
            self.epoch += 1
            frozen = self.world.capturer.freeze(self.epoch, self.world.hosts.values(), now=0)
            self.open.append((self.epoch, frozen, frozen.slices(), copy.deepcopy(self.model)))

    @rule(steps=st.integers(1, 5))
    def encode(self, steps):
        for _ in range(steps):
            for _, _, slices, _ in self.open:
                pack = next(slices, None)
                if pack is not None:
                    self.world.packs[pack.digest] = pack.data

    @rule(commit=st.booleans(), which=st.integers(0, 2), finish=st.booleans())
    def end(self, commit, which, finish):
        if not self.open:
            return
        epoch, frozen, slices, model = self.open.pop(which % len(self.open))
        older = [entry for entry in self.open if entry[0] < epoch]
        if finish:
            for _, _, earlier, _ in older:
                self.world.drive(earlier)
            self.world.drive(slices)
            self.world.drive(frozen.channel_slices([]))
            (snapshot,) = frozen.agent_snapshots()
            assert fields(self.world.restored(Box("main"), snapshot).agent) == model
        (self.world.capturer.committed if commit and finish else self.world.capturer.dropped)(epoch)

    @invariant()
    def agrees(self):
        if hasattr(self, "agent"):
            assert fields(self.agent) == self.model


States.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestStates = pytest.mark.slow(States.TestCase)

PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
ODD = st.one_of(
    st.tuples(st.integers()),
    st.just(object()),
    st.just(lambda: None),
    st.sets(st.integers()),
    st.just(2**64),
    st.decimals(),
)


@pytest.mark.slow
@given(PLAIN)
def test_plain_data_is_saved_as_it_is(plain):
    schema = Schema(object)
    data, copied = schema.save(plain, "", "x")
    assert copied == plain
    assert schema.decode(data) == plain


@pytest.mark.slow
@given(st.recursive(ODD, lambda inner: st.lists(inner | PLAIN, min_size=1, max_size=3), max_leaves=5))
def test_data_with_an_odd_part_is_refused_or_equal_to_its_copy(odd):
    schema = Schema(object)
    try:
        _, copied = schema.save(odd, "a/b", "x")
    except Unsavable:
        return
    assert copied == odd
