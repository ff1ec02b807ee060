from __future__ import annotations

import os

import msgspec
import pytest

from participant.agent import Agent, handler
from participant.failure import DeadLetter, DeadLettered
from participant.serializers import PickleAllowed, allow_pickle, pickle_bytes, unpickle
from participant.state import keyed, value
from protocol.documents import sign_manifest
from protocol.errors import ConfigError, ObjectCorrupt, RecoveryError
from protocol.keys import ClusterKeys
from protocol.manifest import Manifest
from tests.agents_world import AgentWorld

KEYS = ClusterKeys.from_secret(bytes(range(32)))


class Do(msgspec.Struct, frozen=True):
    what: str = ""


class Strange:
    """No schema: only Python can describe it."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.function = lambda x: x + n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Strange) and other.n == self.n

    __hash__ = None


class Pickler(Agent, kind="pickler", serializer="cloudpickle"):
    thing = value(object, default=None)
    things = keyed(str, Strange)
    count = value(int, default=0)
    failure = DeadLetter()
    action = staticmethod(lambda agent: None)

    @handler
    def on_do(self, ctx, do: Do) -> None:
        self.action(self)


def signed() -> bytes:
    return sign_manifest(
        Manifest(
            cluster="shop",
            epoch=3,
            incarnation=1,
            topology=1,
            started_at=0,
            members=(),
            channels=(),
            packs=(),
            merkle_root="",
        ),
        KEYS,
    )


def fill(agent):
    agent.thing = Strange(1)
    agent.things["a"] = Strange(2)
    agent.count += 1


def filled() -> tuple[AgentWorld, Pickler]:
    agent = Pickler("main")
    world = AgentWorld(agent)
    agent.action = fill
    result = world.handle(Do())
    assert not isinstance(result, DeadLettered), result
    return world, agent


def test_the_right_to_unpickle_comes_only_from_a_verified_manifest_and_the_setting():
    assert allow_pickle(signed(), KEYS, allow_cloudpickle=True).epoch == 3
    with pytest.raises(ConfigError, match="allow_cloudpickle"):
        allow_pickle(signed(), KEYS, allow_cloudpickle=False)
    with pytest.raises(ObjectCorrupt, match="signature"):
        allow_pickle(signed(), ClusterKeys.from_secret(bytes(range(1, 33))), allow_cloudpickle=True)
    with pytest.raises(ObjectCorrupt):
        allow_pickle(signed().replace(b'"epoch":3', b'"epoch":4'), KEYS, allow_cloudpickle=True)
    with pytest.raises(TypeError):
        PickleAllowed(3, object())


def test_stored_bytes_are_not_unpickled_without_the_right(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    data = pickle_bytes(Evil())
    with pytest.raises(TypeError, match="PickleAllowed"):
        unpickle(data, None)
    assert not (tmp_path / "ran").exists()


def test_state_that_only_python_can_describe_goes_through_an_epoch():
    world, agent = filled()
    snapshot = world.epoch(1)["pickler/main"]
    assert {field.serializer for field in snapshot.fields} == {"cloudpickle"}
    restored = world.restored(Pickler("main"), snapshot, allow_pickle(signed(), KEYS, allow_cloudpickle=True)).agent
    assert (restored.thing, dict(restored.things), restored.count) == (agent.thing, dict(agent.things), 1)
    assert restored.thing.function(1) == 2


def test_a_restore_without_the_right_is_refused_and_runs_nothing():
    world, _ = filled()
    snapshot = world.epoch(1)["pickler/main"]
    with pytest.raises(RecoveryError, match="no PickleAllowed"):
        world.restored(Pickler("main"), snapshot)


def test_a_turn_over_pickled_state_rolls_back():
    world, agent = filled()

    def change(agent):
        agent.thing.n = 99
        agent.things["a"].n = 99
        raise ValueError("no")

    agent.action = change
    assert isinstance(world.handle(Do()), DeadLettered)
    assert (agent.thing.n, agent.things["a"].n) == (1, 2)


def test_what_cloudpickle_refuses_is_refused_where_it_is_set():
    world, agent = filled()
    agent.action = lambda agent: setattr(agent, "thing", (n for n in ()))
    letter = world.handle(Do())
    assert "thing of type generator cannot be saved: cloudpickle refuses it" in letter.reason
    agent.action = lambda agent: setattr(agent, "count", "x")
    assert "count of type str" in world.handle(Do()).reason


def test_bytes_of_the_other_serializer_are_refused_by_a_restore():
    world, _ = filled()
    snapshot = world.epoch(1)["pickler/main"]

    class Other(Agent, kind="pickler"):
        thing = value(object, default=None)
        things = keyed(str, object)
        count = value(int, default=0)

    with pytest.raises(RecoveryError, match="saved as value with cloudpickle, its class says value with msgpack"):
        world.restored(Other("main"), snapshot, allow_pickle(signed(), KEYS, allow_cloudpickle=True))
