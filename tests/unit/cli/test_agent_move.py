"""`agent move`: what it looks at before it takes an epoch, and how it ends."""

import pytest

from tests.unit.cli.fake_api import Cli, FakeApi, error

MOVE = ("agent", "move", "worker/a", "p2")
PARTICIPANTS = {
    "participants": [
        {"id": "p1", "state": "member", "agents": ["worker/a"], "declared": ["worker/a"], "kinds": []},
        {"id": "p2", "state": "member", "agents": [], "declared": [], "kinds": ["worker"]},
        {"id": "p3", "state": "member", "agents": [], "declared": [], "kinds": ["other"]},
        {"id": "p4", "state": "lost", "agents": ["worker/lost"], "declared": [], "kinds": ["worker"]},
    ]
}
COMMITTED = {"epoch": 7, "state": "committed"}
DONE = {"incarnation": 2, "state": "done", "took_ms": 1_200}


@pytest.fixture
def world(api: FakeApi) -> FakeApi:
    api.on("GET", "/v1/participants", PARTICIPANTS)
    api.on("POST", "/v1/epochs", COMMITTED)
    api.on("POST", "/v1/epochs/7/restore", DONE)
    return api


def changes(api: FakeApi) -> list[str]:
    return [asked.path for asked in api.asked if asked.method != "GET"]


def test_takes_an_epoch_and_goes_on_from_it(ask: Cli, world: FakeApi) -> None:
    ended = ask(*MOVE)
    assert ended.code == 0, ended.err
    assert "worker/a is on p2; the cluster stood still for 1.2 s" in ended.out
    assert changes(world) == ["/v1/epochs", "/v1/epochs/7/restore"]
    assert world.asked[-1].body["moves"] == {"worker/a": "p2"}


@pytest.mark.parametrize(
    ("agent", "target", "code", "words"),
    [
        ("worker/a", "p9", 3, "p9 is not there"),
        ("worker/a", "p4", 3, "p4 is not there"),
        ("worker/z", "p2", 3, "nobody hosts worker/z"),
        ("worker/lost", "p2", 3, "nobody hosts worker/lost"),
        ("worker/a", "p3", 6, "p3 does not take agents of kind worker"),
        ("nonsense", "p2", 2, "nonsense"),
    ],
)
def test_what_cannot_be_moved_is_said_before_an_epoch_is_taken(
    ask: Cli, world: FakeApi, agent: str, target: str, code: int, words: str
) -> None:
    ended = ask("agent", "move", agent, target)
    assert ended.code == code
    assert words in ended.err
    assert changes(world) == []


def test_an_agent_that_is_there_already_costs_nothing(ask: Cli, world: FakeApi) -> None:
    ended = ask("agent", "move", "worker/a", "p1")
    assert ended.code == 0
    assert "already" in ended.out
    assert ask("agent", "move", "worker/a", "p1", "--json").document["moved"] is False
    assert changes(world) == []


def test_an_epoch_that_is_under_way_is_waited_for(ask: Cli, world: FakeApi) -> None:
    world.on(
        "POST", "/v1/epochs", error(409, "epoch-open", "epoch 6 is open"), error(409, "too-soon", "in 0.1 s"), COMMITTED
    )
    assert ask(*MOVE).code == 0
    assert changes(world).count("/v1/epochs") == 3


def test_an_epoch_that_is_aborted_moves_nothing(ask: Cli, world: FakeApi) -> None:
    world.on("POST", "/v1/epochs", {"epoch": 7, "state": "aborted"})
    ended = ask(*MOVE)
    assert ended.code == 1
    assert "was not moved: epoch 7 was aborted" in ended.err
    assert changes(world) == ["/v1/epochs"]


def test_a_target_that_cannot_take_the_state_is_named(ask: Cli, world: FakeApi) -> None:
    failure = {"participant": "p2", "kind": "unfit", "cause": "agent worker/a: no field x"}
    world.on("POST", "/v1/epochs/7/restore", {"incarnation": 2, "state": "failed", "failure": failure})
    ended = ask(*MOVE)
    assert ended.code == 1
    assert "p2: agent worker/a: no field x" in ended.err
