"""Participants with real coordinator processes: the control connection, its end, and a leader that is killed."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import msgspec
import pytest

from participant import EpochCommitted, Lost, Participant
from participant.runtime import control
from protocol.errors import ConfigError, FencedError, Refused
from protocol.messages import Fenced, Heartbeat, Register, Registered, encode_control
from protocol.reading import EpochReader
from protocol.storage import open_store
from tests.integration.coordinators import CLUSTER, cluster, until
from tests.integration.fleet import Holder, Token

if TYPE_CHECKING:
    from pathlib import Path

    from participant.events import ParticipantEvent
    from tests.integration.coordinators import Cluster

pytestmark = pytest.mark.slow


def make(made: Cluster, name: str, *neighbours: str, **options) -> Participant:
    settings = {
        "coordinators": [each.http for each in made.coordinators],
        "store": made.store_url,
        "secret_file": str(made.secret_file),
        **options,
    }
    return Participant(Holder(name, *neighbours), id=name, cluster=CLUSTER, **settings)


async def watch(participant: Participant, events: list[ParticipantEvent]) -> None:
    async for event in participant.events():
        events.append(event)  # noqa: PERF401 - looked at while it grows


def money(made: Cluster, epoch: int) -> int:
    reader = EpochReader.open(open_store(made.store_url, CLUSTER), epoch)
    total = sum(reader.state(agent).fields["cents"] for agent in reader.agents())
    envelopes = [envelope for agent in reader.agents() for envelope in reader.mailbox(agent)]
    for channel in reader.manifest.channels:
        envelopes += reader.channel(channel.source, channel.target)
    return total + sum(
        msgspec.msgpack.decode(envelope.body, type=Token).cents for envelope in envelopes if envelope.type == "Token"
    )


async def test_a_leader_that_is_killed_costs_time_and_no_consistency(tmp_path: Path) -> None:
    """Epochs under traffic on three coordinators; the leader dies by SIGKILL; every committed epoch keeps the total."""
    async with cluster(tmp_path, 3, kind="periodic", interval_ms=100, pause_ms=20) as made, AsyncExitStack() as stack:
        participants = [make(made, name, *set("abc") - {name}) for name in "abc"]
        events: dict[str, list[ParticipantEvent]] = {"a": [], "b": [], "c": []}
        for participant in participants:
            await stack.enter_async_context(participant)
        watches = [asyncio.ensure_future(watch(one, events[one.id])) for one in participants]
        for participant in participants:
            await participant.wait_member()
        # Epochs up to here may be of the first one or two that were members, with their part of the money.
        alone = (await made.get("/v1/status"))["epochs"]["newest"]
        for number in range(6):
            await participants[number % 3].ingest("holder/a", Token(0, 1_000_000))

        def committed() -> list[int]:
            return [event.epoch for event in events["a"] if isinstance(event, EpochCommitted)]

        await until(lambda: len(committed()) >= 3, "three epochs")
        leader = await made.leader()
        before = committed()[-1]
        await leader.end(signal.SIGKILL)
        await until(lambda: committed() and committed()[-1] >= before + 3, "three epochs of the next leader", 30)
        assert all(any(isinstance(event, Lost) for event in seen) for seen in events.values())
        assert {participant.session for participant in participants} == {1, 2, 3}
        for task in watches:
            task.cancel()
        for epoch in (number for number in committed() if number > alone):
            assert money(made, epoch) == 3000


async def test_a_second_process_with_the_same_id_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ID_TAKEN_SECONDS", 0.3)
    async with cluster(tmp_path) as made, make(made, "a") as first:
        await first.wait_member()
        with pytest.raises(Refused) as refused:
            async with make(made, "a") as twin:
                await twin.wait_member()
        assert refused.value.code == "id-taken"
        await first.leave()


async def test_a_wrong_secret_and_a_wrong_cluster_are_told(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        with pytest.raises(Refused) as refused:
            async with make(made, "a", secret=bytes(range(32)), secret_file=None) as participant:
                await participant.wait_member()
        assert refused.value.code == "wrong-token"
        other = Participant(
            Holder("a"),
            id="a",
            cluster="another",
            coordinators=[made.c1.http],
            store="memory:another",
            secret_file=str(made.secret_file),
        )
        with pytest.raises(Refused) as refused:
            async with other:
                await other.wait_member()
        assert refused.value.code == "wrong-cluster"


async def test_two_epochs_that_overlap_under_real_coordinators_both_commit(tmp_path: Path) -> None:
    """Ordered back to back under traffic: each is a cut of its own, with all of the money."""
    async with cluster(tmp_path, max_concurrent=2) as made, AsyncExitStack() as stack:
        participants = [make(made, name, *set("abc") - {name}) for name in "abc"]
        for participant in participants:
            await stack.enter_async_context(participant)
        for participant in participants:
            await participant.wait_member()

        async def members() -> bool:
            return len((await made.get("/v1/topology"))["members"]) == 3

        await until(members, "a topology of three")
        for number in range(6):
            await participants[number % 3].ingest("holder/a", Token(0, 1_000_000))
        overlapped = 0
        for number in range(6):
            answers = [
                await made.call("POST", "/v1/epochs", {"reason": f"pair {number}", "wait": False}) for _ in range(2)
            ]
            assert [status for status, _, _ in answers] == [201, 201], [document for _, document, _ in answers]
            first, second = [await made.epoch(document["epoch"], "committed", "aborted") for _, document, _ in answers]
            assert (first["state"], second["state"]) == ("committed", "committed"), (first["abort"], second["abort"])
            assert money(made, first["epoch"]) == money(made, second["epoch"]) == 3000
            overlapped += second["started_at_ms"] <= first["ended_at_ms"]
        assert overlapped


async def test_leaving_in_order_lets_the_others_go_on(tmp_path: Path) -> None:
    policy = {"kind": "periodic", "interval_ms": 100, "pause_ms": 20}
    async with cluster(tmp_path, **policy) as made, make(made, "a", "b") as stays:
        async with make(made, "b", "a") as leaves:
            await leaves.wait_member()
            await leaves.ingest("holder/b", Token(0, 20))
            await leaves.leave()
        events: list[ParticipantEvent] = []
        task = asyncio.ensure_future(watch(stays, events))
        await until(lambda: any(isinstance(event, EpochCommitted) for event in events), "an epoch without it")
        task.cancel()


@pytest.mark.parametrize("address", ["", "c1", "http://c1", "ftp://c1:1", "c1:port", "http://c1:1/path"])
def test_what_is_not_a_coordinators_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="coordinators"):
        control.ControlClient(coordinators=[address], token="t")


class Sink:
    """A participant as the control connection sees it."""

    def __init__(self) -> None:
        self.received: list = []
        self.lost: list[str] = []
        self.ended: list[Exception] = []
        self.session = 0

    def register_message(self) -> Register:
        return Register(cluster=CLUSTER, participant="a", boot_id="0" * 32, session=self.session)

    def heartbeat_message(self) -> Heartbeat | None:
        return Heartbeat(session=self.session) if self.session else None

    def control_received(self, message) -> None:
        self.received.append(message)
        self.session = getattr(message, "session", self.session)

    def control_disconnected(self, reason: str) -> None:
        self.lost.append(reason)

    def control_ended(self, error: Exception) -> None:
        self.ended.append(error)


async def test_a_coordinator_that_talks_nonsense_is_left_and_tried_again(tmp_path: Path) -> None:
    """A scripted coordinator: first garbage, then silence after the registration, then a fence."""
    from aiohttp import web

    answers = [
        [b"\xc1 garbage"],
        [encode_control(Heartbeat(session=1))],
        [encode_control(Registered(term=1, session=1, incarnation=1, lease_ns=40_000_000)), b"\xc1"],
        [
            encode_control(Registered(term=1, session=1, incarnation=1, lease_ns=40_000_000)),
            None,
            encode_control(Fenced(term=1, session=1, reason="lease")),
        ],
    ]
    heard: list[bytes] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer token"
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        script = answers.pop(0)
        heard.append(await connection.receive_bytes())
        for answer in script:
            if answer is None:
                # The lease is kept by heartbeats as long as nothing else is said.
                heard.extend([await connection.receive_bytes() for _ in range(3)])
            else:
                await connection.send_bytes(answer)
        await connection.close()
        return connection

    application = web.Application()
    application.router.add_get("/v1/participant", serve)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    sink = Sink()
    client = control.ControlClient(coordinators=[f"127.0.0.1:{port}"], token="token")
    assert not client.send(Heartbeat(session=1))
    await client.start(sink)
    try:
        await until(lambda: sink.ended, "the fence")
    finally:
        await client.close()
        await runner.cleanup()
    assert isinstance(sink.ended[0], FencedError)
    assert [type(message) for message in sink.received] == [Registered, Registered, Fenced]
    assert len(sink.lost) == 1
    assert client.statistics()["malformed"] == 3
    assert len(heard) == 7


class DeadDialer:
    """Nobody is there; each time in words that name the address, as asyncio does."""

    def __init__(self) -> None:
        self.dialed: list[str] = []

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *error: object) -> None:
        pass

    async def dial(self, url: str) -> control.ControlSocket:
        self.dialed.append(url)
        raise ConnectionRefusedError(f"Connect call failed {url}")


async def test_coordinators_that_are_all_gone_are_named_once_each(caplog: pytest.LogCaptureFixture) -> None:
    dialer = DeadDialer()
    client = control.ControlClient(coordinators=["one:1", "two:2", "three:3"], token="token", dialer=dialer)
    await client.start(Sink())
    try:
        await until(lambda: len(dialer.dialed) > 9, "a fourth round")
    finally:
        await client.close()
    said = [record.getMessage() for record in caplog.records if "trying on" in record.getMessage()]
    assert said == [
        f"coordinator {url}: Connect call failed {url}; trying on"
        for url in ("http://one:1", "http://two:2", "http://three:3")
    ]
