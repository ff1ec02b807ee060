"""Participants with real transports: epochs under traffic, broken connections, strangers, late and stale things."""

from __future__ import annotations

import asyncio
import errno
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.certificates import make_certificates
from participant import (
    Agent,
    Context,
    EpochAborted,
    EpochCommitted,
    EpochPartFailed,
    Lost,
    Member,
    Participant,
    handler,
    value,
)
from participant.runtime.conductor import LocalControl
from participant.runtime.transports.memory import MemoryHub, MemoryTransport
from participant.runtime.transports.websocket import WebSocketTransport
from protocol.errors import ConfigError, FencedError, Refused, StoreError
from protocol.ids import coordinator_id
from protocol.items import encode_message_item
from protocol.keys import ClusterKeys
from protocol.storage import open_store
from protocol.wire import FrameCodec
from tests.integration.broker import Broker
from tests.integration.fleet import CLUSTER, KEYS, SECRET, Fleet, Holder, Token, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture(params=["memory", "websocket", "mqtt"])
async def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(request.param, tmp_path) as fleet:
        yield fleet


@pytest.fixture
async def sockets(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet("websocket", tmp_path) as fleet:
        yield fleet


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet("memory", tmp_path) as fleet:
        yield fleet


# --- epochs under traffic -------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_epochs_under_traffic_keep_the_total_on_a_mesh(fleet: Fleet) -> None:
    await fleet.mesh("abc")
    for number in range(30):
        await fleet.participants["abc"[number % 3]].ingest(f"holder/{'bca'[number % 3]}", Token(0, 100))
    flying = 0
    for _ in range(8):
        epoch = await fleet.conductor.epoch()
        states, moving = fleet.money(epoch)
        assert states + moving == 3000
        flying += moving
    await fleet.idle()
    assert sum(fleet.holder(name).cents for name in "abc") == 3000
    assert sum(fleet.holder(name).handled for name in "abc") == 30 * 101
    assert flying > 0


@pytest.mark.slow
async def test_a_ring_takes_epochs_while_its_handlers_await(fleet: Fleet) -> None:
    await fleet.ring("abcd", pause=0.0005)
    for name in "abcd":
        await fleet.participants["a" if name == "d" else name].ingest(
            f"holder/{'b' if name == 'd' else name}", Token(0, 60)
        )
    for _ in range(5):
        epoch = await fleet.conductor.epoch()
        assert sum(fleet.money(epoch)) == 4000
    await fleet.idle()
    assert sum(fleet.holder(name).cents for name in "abcd") == 4000


@pytest.mark.slow
async def test_overlapping_epochs_are_each_consistent(memory: Fleet) -> None:
    await memory.mesh("abc")
    for number in range(30):
        await memory.participants["a"].ingest("holder/b", Token(0, 500 + number))
    numbers = []
    for _ in range(4):
        numbers.append(memory.conductor.start_epoch())
        await asyncio.sleep(0)
    for number in numbers:
        await memory.conductor.wait_epoch(number)
        assert sum(memory.money(number)) == 3000


async def test_a_long_await_delays_no_epoch(fleet: Fleet) -> None:
    class Thinker(Agent, kind="thinker"):
        thoughts = value(list[int], default=[])

        @handler
        async def on_token(self, ctx: Context, token: Token) -> None:
            self.thoughts.append(token.cents)
            began.set()
            await asyncio.sleep(600)

    began = asyncio.Event()
    await fleet.join("a", Thinker("deep"))
    await fleet.join("b", Holder("b"))
    await fleet.conductor.wait_members("a", "b")
    await fleet.participants["b"].ingest("thinker/deep", Token(7, 0))
    await began.wait()
    start = time.monotonic()
    epoch = await fleet.conductor.epoch()
    assert time.monotonic() - start < 5
    reader = fleet.reader(epoch)
    assert reader.state("thinker/deep").fields == {"thoughts": []}
    assert reader.state("thinker/deep").running
    assert len(reader.mailbox("thinker/deep")) == 1


# --- networks -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_connection_that_breaks_in_mid_epoch_comes_back_and_the_epoch_commits(sockets: Fleet) -> None:
    await sockets.mesh("abc")
    for number in range(20):
        await sockets.participants["abc"[number % 3]].ingest("holder/a", Token(0, 300))
    breaks = 0
    for _ in range(5):
        number = sockets.conductor.start_epoch()
        wire = sockets.participants["a"]._wire
        assert isinstance(wire, WebSocketTransport)
        breaks += wire.disconnect("b")
        await asyncio.sleep(0)
        breaks += wire.disconnect("c")
        await sockets.conductor.wait_epoch(number)
        assert sum(sockets.money(number)) == 3000
        await until(lambda: sockets.participants["a"].statistics()["peers_connected"] == 2)
    assert breaks >= 5
    await sockets.idle()
    assert sum(sockets.holder(name).cents for name in "abc") == 3000
    assert sum(sockets.holder(name).handled for name in "abc") == 20 * 301


@pytest.mark.slow
async def test_a_broker_that_is_killed_costs_time_and_nothing_else(tmp_path: Path) -> None:
    async with Fleet("mqtt", tmp_path) as fleet:
        await fleet.mesh("ab")
        for _ in range(20):
            await fleet.participants["a"].ingest("holder/a", Token(0, 100))
        number = fleet.conductor.start_epoch()
        assert fleet.broker is not None
        fleet.broker.kill()
        await fleet.broker.start()
        await fleet.conductor.wait_epoch(number)
        assert sum(fleet.money(number)) == 2000
        await fleet.idle()
        assert sum(fleet.holder(name).handled for name in "ab") == 20 * 101


@pytest.mark.slow
async def test_lost_repeated_and_late_frames_change_nothing(memory: Fleet) -> None:
    dice = random.Random(4)

    def faults(_source: str, _target: str, frame: bytes) -> list[tuple[float, bytes]]:
        return dice.choice([[(0, frame)]] * 12 + [[], [(0, frame), (0.001, frame)], [(0.002, frame)]])

    memory.hub.faults = faults
    await memory.mesh("abc")
    for number in range(12):
        await memory.participants["abc"[number % 3]].ingest("holder/a", Token(0, 20))
    for _ in range(3):
        assert sum(memory.money(await memory.conductor.epoch())) == 3000
    await memory.idle()
    assert sum(memory.holder(name).handled for name in "abc") == 12 * 21


# --- strangers ------------------------------------------------------------------------------------------------------


def frame(keys: ClusterKeys, **changes) -> bytes:
    fields = {
        "incarnation": 1,
        "source_session": 1,
        "target_session": 2,
        "epoch": 0,
        "first": 1,
        "ack": 0,
        "count": 1,
        "source": "a",
        "target": "b",
        "body": encode_message_item(b"not an envelope"),
    }
    return FrameCodec(CLUSTER, keys).encode(**{**fields, **changes})


async def test_hostile_frames_are_dropped_counted_and_logged_once_per_peer(
    memory: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    await memory.mesh("ab")
    target = memory.participants["b"]
    good = frame(KEYS)
    strangers = ClusterKeys.from_secret(bytes(range(1, 33)))
    for attack in (b"", b"CLCT", good[:-1], good + b"x", bytes(5 << 20), b"\xff" * 200, good.replace(b"CLCT", b"CLCU")):
        for _ in range(10):
            target.frame_received(attack)
    for _ in range(10):
        target.frame_received(frame(strangers))
        target.frame_received(good[:-1] + bytes([good[-1] ^ 1]))
    counts = target.statistics()
    assert counts["frames_malformed"] == 70
    assert counts["frames_forged"] == 20
    assert counts["messages_received"] == 0
    assert len([record for record in caplog.records if "dropped a frame" in record.message]) == 2
    await memory.participants["a"].ingest("holder/b", Token(5, 0))
    await memory.idle()
    assert memory.holder("b").cents == 1005
    await memory.conductor.epoch()


async def test_captured_frames_that_are_sent_again_change_nothing(memory: Fleet) -> None:
    captured: list[bytes] = []

    def wiretap(_source: str, target: str, data: bytes) -> list[tuple[float, bytes]]:
        if target == "b":
            captured.append(data)
        return [(0, data)]

    memory.hub.faults = wiretap
    await memory.mesh("ab")
    await memory.participants["a"].ingest("holder/b", Token(5, 0))
    await memory.idle()
    assert captured
    for data in captured * 3:
        memory.participants["b"].frame_received(data)
    await memory.idle()
    assert memory.holder("b").cents == 1005
    assert memory.participants["b"].statistics()["items_repeated"] >= 3


async def test_frames_of_a_stale_session_have_no_effect(memory: Fleet) -> None:
    await memory.mesh("ab")
    target = memory.participants["b"]
    target.frame_received(frame(KEYS, target_session=1))
    target.frame_received(frame(KEYS, source="a", target="c"))
    counts = target.statistics()
    assert (counts["frames_stale"], counts["frames_misdirected"]) == (1, 1)
    assert counts["messages_received"] == 0


async def test_a_participant_with_another_secret_never_gets_a_frame_through(sockets: Fleet) -> None:
    await sockets.join("a", Holder("a", "b"))
    await sockets.join("b", Holder("b", "a"), secret=bytes(range(1, 33)))
    await sockets.conductor.wait_members("a", "b")
    await sockets.participants["a"].ingest("holder/b", Token(1, 0))
    await until(lambda: sockets.participants["b"].statistics()["transport_refused"] > 0)
    assert sockets.holder("b").cents == 1000
    assert not sockets.participants["a"].statistics()["peers_connected"]


# --- control ---------------------------------------------------------------------------------------------------------


async def test_a_lost_control_connection_is_resumed_and_the_report_said_again(memory: Fleet) -> None:
    await memory.mesh("ab")
    events = memory.participants["a"].events()
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    number = memory.conductor.start_epoch()
    memory.controls["a"].disconnect()
    await until(lambda: memory.participants["a"].statistics()["capture_parts_durable"] == 1)
    memory.controls["a"].reconnect()
    await memory.conductor.wait_epoch(number)
    assert await first == Lost(reason="cut by the test")
    assert await anext(events) == EpochCommitted(epoch=number, manifest=memory.conductor._previous)
    assert memory.participants["a"].session == 1
    await events.aclose()


async def test_a_fenced_participant_stops_at_once_with_a_clear_error(memory: Fleet) -> None:
    await memory.mesh("ab")
    with pytest.raises(FencedError, match="session 3 has ended: its lease ran out"):  # noqa: PT012 - one life
        async with Participant(
            Holder("c", "a"),
            id="c",
            cluster=CLUSTER,
            store=memory.store,
            secret=SECRET,
            control=LocalControl(memory.conductor),
            wire=MemoryTransport("c", memory.hub),
        ) as participant:
            await participant.wait_member()
            assert participant.heartbeat_message() is not None
            number = memory.conductor.start_epoch()
            memory.conductor.fence("c", "its lease ran out")
            with pytest.raises(FencedError):
                await anext(participant.events())
            # From here on it has no effect: no input, no turn, no upload, no claim to be alive.
            assert participant.heartbeat_message() is None
            assert participant.statistics()["capture_parts_open"] == 0
            with pytest.raises(Refused):
                await participant.ingest("holder/a", Token(1, 0))
            with pytest.raises(Refused, match="was lost"):
                await memory.conductor.wait_epoch(number)


async def test_a_twin_is_refused_and_the_first_one_goes_on(memory: Fleet) -> None:
    await memory.mesh("ab")
    with pytest.raises(Refused, match="registered by another process"):
        async with Participant(
            Holder("x"),
            id="a",
            cluster=CLUSTER,
            store=memory.store,
            secret=SECRET,
            control=LocalControl(memory.conductor),
            wire=MemoryTransport("a", MemoryHub()),
        ) as twin:
            await twin.wait_member()
    await memory.conductor.epoch()


async def test_an_aborted_epoch_is_an_event_with_its_reason(memory: Fleet) -> None:
    await memory.mesh("ab")
    events = memory.participants["a"].events()
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    number = memory.conductor.start_epoch()
    memory.conductor.abort(number, "an operator said so")
    assert await first == EpochAborted(epoch=number, reason="an operator said so")
    await memory.conductor.epoch()
    await events.aclose()


async def test_a_joiner_takes_part_in_the_next_epoch_and_a_leaver_in_no_more(memory: Fleet) -> None:
    await memory.mesh("ab")
    number = memory.conductor.start_epoch()
    await memory.join("c", Holder("c", "a"))
    await memory.conductor.wait_epoch(number)
    assert [member.participant for member in memory.conductor.manifests[number].members] == ["a", "b"]
    await memory.conductor.wait_members("a", "b", "c")
    number = await memory.conductor.epoch()
    assert [member.participant for member in memory.conductor.manifests[number].members] == ["a", "b", "c"]
    await memory.participants["c"].leave()
    await memory.conductor.wait_members("a", "b")
    number = await memory.conductor.epoch()
    assert [member.participant for member in memory.conductor.manifests[number].members] == ["a", "b"]
    with pytest.raises(Refused, match="leaving"):
        await memory.participants["c"].ingest("holder/a", Token(1, 0))


async def test_a_leaver_does_not_go_in_the_middle_of_an_epoch(memory: Fleet) -> None:
    await memory.mesh("ab")
    number = memory.conductor.start_epoch()
    leaving = asyncio.ensure_future(memory.participants["b"].leave())
    await memory.conductor.wait_epoch(number)
    await leaving
    assert [member.participant for member in memory.conductor.manifests[number].members] == ["a", "b"]


async def test_membership_is_told_as_an_event(memory: Fleet) -> None:
    participant = await memory.join("a", Holder("a"))
    events = participant.events()
    assert await anext(events) == Member(session=1, topology=1, participants=("a",))
    await events.aclose()


# --- stores ---------------------------------------------------------------------------------------------------------


async def test_a_folder_as_store_holds_whole_epochs(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = open_store(str(tmp_path / "store"), CLUSTER)
    async with Fleet("memory", tmp_path, store=store) as fleet:
        await fleet.mesh("ab")
        await fleet.participants["a"].ingest("holder/b", Token(5, 10))
        epoch = await fleet.conductor.epoch()
        assert sum(fleet.money(epoch)) == 2005


@pytest.mark.slow
async def test_a_full_disk_aborts_with_errno_while_agents_go_on_and_heals_by_itself(memory: Fleet) -> None:
    await memory.mesh("ab")
    store = memory.store

    def full(operation: str, key: str) -> None:
        if operation == "put" and key.startswith("snapshots/"):
            raise StoreError("put", key, "No space left on device", errno_name=errno.errorcode[errno.ENOSPC])

    store.before_operation = full
    memory.conductor._deadline_ns = 400_000_000
    told = {name: memory.participants[name].events() for name in "ab"}
    first = [asyncio.ensure_future(anext(events)) for events in told.values()]
    await asyncio.sleep(0)
    with pytest.raises(Refused, match="ENOSPC"):
        await memory.conductor.epoch()
    kinds = {type(await event) for event in first}
    assert EpochPartFailed in kinds
    assert kinds <= {EpochPartFailed, EpochAborted}
    await memory.participants["a"].ingest("holder/b", Token(5, 10))
    await memory.idle()
    store.before_operation = None
    assert sum(memory.money(await memory.conductor.epoch())) == 2005
    for events in told.values():
        await events.aclose()


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"id": "../a"}, "participant"),
        ({"id": "a\x00"}, "participant"),
        ({"id": "x" * 300}, "302 characters"),
        ({"id": "<b>a</b>"}, "participant"),
        ({"cluster": "\x1b[31mshop"}, "cluster"),
        ({"transport": "pigeon"}, "transport"),
        ({"store": ""}, "store"),
        ({"secret": None}, "secret_file"),
        ({"secret_file": "f"}, "not both"),
        ({"targets": ("a",)}, "channel"),
        ({"targets": ("b c",)}, "participant"),
        ({"max_concurrent_epochs": 0}, "not positive"),
        ({"transport": "mqtt://h:1", "mqtt_ca_file": "ca.pem"}, "mqtt_ca_file: is for a transport of mqtts"),
        ({"transport": "mqtts://h:1", "mqtt_cert_file": "c.pem"}, "together"),
        ({"listne": "127.0.0.1:0"}, "listne"),
    ],
)
def test_wrong_settings_are_refused_with_their_name(changes: dict[str, object], problem: str) -> None:
    settings = {"id": "a", "cluster": "shop", "store": "memory:x", "secret": SECRET, **changes}
    with pytest.raises(ConfigError, match=problem):
        Participant(Holder("a"), **settings)


def test_two_agents_of_one_id_are_refused() -> None:
    with pytest.raises(ConfigError, match="two agents"):
        Participant(Holder("a"), Holder("a"), id="a", cluster="shop", store="memory:x", secret=SECRET)


def test_what_is_no_agent_or_comes_twice_is_refused_and_may_be_given_again() -> None:
    settings: dict[str, Any] = {"id": "a", "cluster": "shop", "store": "memory:x", "secret": SECRET}
    one = Holder("a")
    with pytest.raises(ConfigError, match="holder/a was given twice"):
        Participant(one, one, **settings)
    with pytest.raises(ConfigError, match=r"Holder\(name\) is one"):
        Participant(one, Holder, **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'a' is no agent"):
        Participant("a", **settings)  # type: ignore[arg-type]
    Participant(one, **settings)


def test_an_interpreter_without_assertions_is_refused() -> None:
    code = "from participant import Participant; Participant(id='a', cluster='shop', store='memory:x', secret=bytes(range(32)))"
    found = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "python -O: assertions are part of a participant's safety" in found.stderr


# paho leaves the socket of a handshake that failed to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_broker_over_tls_that_asks_for_certificates(tmp_path: Path) -> None:
    tls = tmp_path / "tls"
    make_certificates(tls, {coordinator_id("broker"): ["127.0.0.1"], coordinator_id("a"): ["127.0.0.1"]})
    fleet = Fleet("mqtt", tmp_path)
    fleet.broker = Broker(tmp_path, tls=tls)
    files = {"mqtt_ca_file": f"{tls}/ca.pem", "mqtt_cert_file": f"{tls}/a.pem", "mqtt_key_file": f"{tls}/a.key"}
    async with fleet:
        await fleet.join("a", Holder("a", "b"), **files)
        await fleet.join("b", Holder("b", "a"), **files)
        await fleet.conductor.wait_members("a", "b")
        await fleet.participants["a"].ingest("holder/a", Token(1, 5))
        number = await fleet.conductor.epoch()
        assert sum(fleet.money(number)) == 2001
        with pytest.raises(ConfigError, match="mqtt_cert_file"):
            await fleet.join("c", Holder("c"), **{**files, "mqtt_key_file": f"{tls}/ca.pem"})
        with pytest.raises(ConfigError, match="mqtt_ca_file"):
            await fleet.join("c", Holder("c"), **{**files, "mqtt_ca_file": str(tmp_path / "none")})
        del files["mqtt_ca_file"]
        with pytest.raises(ConfigError, match=r"not trusted.*mqtt_ca_file"):
            await fleet.join("c", Holder("c"), **files)


def test_pickled_state_must_be_allowed() -> None:
    class Pickled(Agent, kind="pickled", serializer="cloudpickle"):
        anything = value(object, default=None)

    with pytest.raises(ConfigError, match="allow_cloudpickle"):
        Participant(Pickled("a"), id="a", cluster="shop", store="memory:x", secret=SECRET)
    Participant(Pickled("a"), id="a", cluster="shop", store="memory:x", secret=SECRET, allow_cloudpickle=True)


async def test_a_missing_secret_file_and_missing_coordinators_are_told_at_the_start(tmp_path: Path) -> None:
    lost = Participant(Holder("a"), id="a", cluster="shop", store="memory:x", secret_file=str(tmp_path / "no"))
    with pytest.raises(ConfigError, match="secret_file"):
        await lost.__aenter__()
    alone = Participant(Holder("a"), id="a", cluster="shop", store="memory:x", secret=SECRET)
    with pytest.raises(ConfigError, match="coordinators"):
        await alone.__aenter__()


async def test_one_object_is_one_life(memory: Fleet) -> None:
    participant = await memory.join("a", Holder("a"))
    with pytest.raises(ConfigError, match="one life"):
        await participant.__aenter__()


def test_a_config_does_not_print_its_secrets() -> None:
    settings: dict[str, Any] = {"id": "a", "cluster": "shop", "store": "memory:x", "secret": SECRET}
    participant = Participant(Holder("a"), transport="mqtt://me:sesame@broker:1883", **settings)
    assert repr(SECRET) not in repr(participant.config)
    assert "sesame" not in repr(participant.config)
    with pytest.raises(ConfigError) as refused:
        Participant(Holder("a"), transport="mqt://me:sesame@broker:1883", **settings)
    assert "sesame" not in str(refused.value)


async def test_a_bug_of_ours_ends_the_participant_wherever_it_shows(memory: Fleet) -> None:
    """A timer that raises would be a line in a log, and a participant that never sends again."""
    participant = await memory.join("a", Holder("a"))
    await memory.conductor.wait_members("a")

    def broken(*_: object) -> None:
        raise AssertionError("broken")

    participant._machine.step = broken  # type: ignore[method-assign]
    participant._timer_fired()
    with pytest.raises(Refused, match="AssertionError: broken"):
        await participant.ingest("holder/a", Token(1, 1))
    participant._failure = None
