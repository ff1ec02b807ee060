"""Outside input of whole participants: once per token, over crashes and rollbacks, and over the coordinators' API."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import msgspec
import pytest

from participant import Agent, Context, Participant, handler, value
from participant.inputs import token_message_id
from participant.sinks import MemorySink
from participant.testing import Cluster
from protocol.errors import LimitExceeded, Overloaded, Refused
from tests.integration.coordinators import CLUSTER, cluster, until


class Pay(msgspec.Struct, frozen=True):
    cents: int
    note: bytes = b""


class Till(Agent, kind="till"):
    """Adds up; passes on what it is told to."""

    cents = value(int, default=0)
    seen = value(list[int], default=[])

    @handler
    async def on_pay(self, ctx: Context, pay: Pay) -> None:
        self.cents += pay.cents
        self.seen.append(pay.cents)
        ctx.emit("receipts", pay.cents)
        if pay.cents >= 1_000:
            ctx.send("till/b", Pay(pay.cents // 1_000))


def sums(made: Cluster) -> tuple[int, ...]:
    return tuple(made[agent].cents for agent in sorted(made._agents))


async def test_input_that_an_epoch_does_not_hold_comes_again_after_a_rollback_in_order_and_once(tmp_path) -> None:
    sink = MemorySink("receipts")
    async with Cluster(Till("a"), Till("b"), sinks=[sink], local=str(tmp_path)) as made:
        await made.send("till/a", Pay(1))
        await made.idle()
        epoch = await made.epoch()
        for cents in (2, 3_000, 5):
            await made.send("till/a", Pay(cents), token=f"t{cents}")
        await made.idle()
        assert sums(made) == (3_008, 3)
        await made.restore(epoch)
        await made.idle()
        assert made["till/a"].seen == [1, 2, 3_000, 5]
        assert sums(made) == (3_008, 3)
        # A client that never heard sends again: nothing happens twice.
        await made.send("till/a", Pay(3_000), token="t3000")
        await made.idle()
        assert sums(made) == (3_008, 3)
        await made.epoch()
        await made.idle()
        assert sorted(sink.values) == [1, 2, 3, 5, 3_000]


async def test_a_crashed_participant_brings_its_acknowledged_input_back_from_its_disk(tmp_path) -> None:
    sink = MemorySink("receipts")
    async with Cluster(Till("a"), Till("b"), sinks=[sink], local=str(tmp_path)) as made:
        await made.send("till/a", Pay(1))
        await made.idle()
        epoch = await made.epoch()
        await made.send("till/a", Pay(2_000), token="t")
        await made.idle()
        await made.crash("p1")
        await made.restore(epoch)
        await made.idle()
        assert sums(made) == (2_001, 2)
        await made.send("till/a", Pay(2_000), token="t")
        await made.idle()
        assert sums(made) == (2_001, 2)


@pytest.mark.parametrize("durability", ["epoch", "turn"])
async def test_who_is_away_while_all_go_back_to_an_epoch_without_it_brings_its_input_back(tmp_path, durability) -> None:
    sinks = [MemorySink("receipts")]
    async with Cluster(Till("a"), sinks=sinks, local=str(tmp_path), durability=durability) as made:
        epoch = await made.epoch()
        for incarnation in (1, 2, 3):
            # Also a second time: what came again is lost with the membership, and comes again once more.
            await made._start("p2", [Till("b")])
            await made.conductor.wait_members("p1", "p2")
            await made.send("till/b", Pay(incarnation), token=f"t{incarnation}")
            await made.participant_of("till/b").ingest("till/a", Pay(10 * incarnation))
            await made.idle()
            assert made["till/b"].seen == [1, 2, 3][:incarnation]
            assert made["till/a"].seen == [10, 20, 30][:incarnation]
            await made.send("till/b", Pay(1), token="t1")
            if incarnation < 3:
                await made.crash("p2")
                await made.conductor.begin_rollback(epoch.number)
                await made.idle()
                assert made["till/a"].seen == []
        await made.idle()
        assert sums(made) == (60, 6)
        # From an epoch that knows it, it comes back as everybody does.
        epoch = await made.epoch()
        await made.send("till/b", Pay(4))
        await made.idle()
        await made.crash("p2")
        await made.restore(epoch)
        await made.idle()
        assert made["till/b"].seen == [1, 2, 3, 4]


@pytest.mark.parametrize("durability", ["epoch", "turn"])
async def test_who_has_no_agents_is_not_waited_for_and_its_input_comes_again_when_it_is_back(
    tmp_path, durability
) -> None:
    """The epoch that the others go back to holds some of it: nothing of that comes twice."""
    sinks = [MemorySink("receipts")]
    async with Cluster(Till("a"), [], sinks=sinks, local=str(tmp_path), durability=durability) as made:
        expected: list[int] = []
        for round_ in range(3):
            for number in (1, 2):
                await made.participants["p2"].ingest("till/a", Pay(10 * round_ + number), token=f"t{round_}-{number}")
                expected.append(10 * round_ + number)
                await made.idle()
                if number == 1:
                    epoch = await made.epoch()
            await made.crash("p2")
            await made.conductor.begin_rollback(epoch.number)
            await made.idle()
            assert made["till/a"].seen == expected[:-1]
            await made._start("p2", [])
            await made.conductor.wait_members("p1", "p2")
            await made.idle()
            assert made["till/a"].seen == expected
        # It leaves in order, and comes again: nothing of it was undone.
        left = made.participants.pop("p2")
        await left.leave()
        await left.__aexit__(None, None, None)
        await made._start("p2", [])
        await made.conductor.wait_members("p1", "p2")
        await made.idle()
        assert made["till/a"].seen == expected


async def test_before_the_first_epoch_everything_comes_again_from_the_start(tmp_path) -> None:
    async with Cluster(Till("a"), Till("b"), sinks=[MemorySink("receipts")], local=str(tmp_path)) as made:
        await made.send("till/a", Pay(7))
        await made.send("till/b", Pay(8))
        await made.idle()
        await made.crash("p1")
        await made.restore()
        await made.idle()
        assert sums(made) == (7, 8)


async def test_a_rollback_over_several_epochs_replays_from_the_position_of_each(tmp_path) -> None:
    async with Cluster(Till("a"), Till("b"), sinks=[MemorySink("receipts")], local=str(tmp_path)) as made:
        epochs = []
        for cents in range(1, 6):
            await made.send("till/a", Pay(cents))
            await made.idle()
            epochs.append(await made.epoch())
        for epoch in reversed(epochs):
            await made.restore(epoch)
            await made.idle()
            assert made["till/a"].seen == [1, 2, 3, 4, 5]


async def test_input_while_epochs_commit_and_clusters_roll_back_is_never_lost_nor_doubled(tmp_path) -> None:
    async with Cluster(Till("a"), Till("b"), sinks=[MemorySink("receipts")], local=str(tmp_path)) as made:
        epoch = await made.epoch()
        expected = 0
        for number in range(1, 40):
            sending = asyncio.ensure_future(made.send("till/a", Pay(number), token=f"t{number}"))
            expected += number
            if number % 5 == 0:
                epoch = await made.epoch()
            if number % 7 == 0:
                await made.restore(epoch)
            await sending
        await made.idle()
        assert made["till/a"].cents == expected
        assert made["till/a"].seen == list(range(1, 40))


async def test_a_token_is_known_wherever_its_agent_goes(tmp_path) -> None:
    """An agent is taken over by another participant, whose own log never heard of the token."""
    async with Cluster(Till("a"), Till("b"), sinks=[MemorySink("receipts")], local=str(tmp_path)) as made:
        await made.send("till/a", Pay(5), token="early")
        await made.idle()
        epoch = await made.epoch()
        await made.send("till/a", Pay(6), token="late")
        await made.idle()
        await made.restore(epoch, placement={"p1": (), "p2": ("till/a", "till/b")})
        await made.idle()
        # Its own log brings back what the epoch does not hold; the client's second tries go to the new host.
        assert made["till/a"].seen == [5, 6]
        two = made.participants["p2"]
        assert made.participant_of("till/a") is two
        again = await two.ingest("till/a", Pay(5), token="early")
        assert again.duplicate
        with pytest.raises(Refused, match="came before with another"):
            await two.ingest("till/a", Pay(7), token="early")
        await made.idle()
        assert made["till/a"].seen == [5, 6]
        # And from there on, to a third place, through another epoch.
        second = await made.epoch()
        await made.restore(second, placement={"p1": ("till/a", "till/b"), "p2": ()})
        await made.idle()
        assert (await made.participants["p1"].ingest("till/a", Pay(5), token="early")).duplicate


async def test_a_token_that_a_rollback_undid_elsewhere_can_come_again(tmp_path) -> None:
    async with Cluster(Till("a"), Till("b"), sinks=[MemorySink("receipts")], local=str(tmp_path)) as made:
        before = await made.epoch()
        await made.send("till/a", Pay(5), token="t")
        await made.idle()
        after = await made.epoch()
        await made.restore(after, placement={"p1": (), "p2": ("till/a", "till/b")})
        await made.idle()
        two = made.participants["p2"]
        assert (await two.ingest("till/a", Pay(5), token="t")).duplicate
        await made.restore(before, placement={"p1": (), "p2": ("till/a", "till/b")})
        await made.idle()
        assert made["till/a"].seen == [5], "its own log brought it back"


async def test_epochs_write_only_the_tokens_that_are_new(tmp_path) -> None:
    async with Cluster(Till("a"), sinks=[MemorySink("receipts")], local=str(tmp_path)) as made:
        participant = made.participant_of("till/a")
        for number in range(600):
            participant._machine.inputs._put(token_message_id(number.to_bytes(16, "big")), bytes(16))
        first = await made.epoch()
        await made.send("till/a", Pay(1), token="t")
        await made.idle()
        second = await made.epoch()
        one, two = (set(epoch._reader.snapshot("p1").input_tokens) for epoch in (first, second))
        assert len(one) == len(two) == 2
        assert len(one & two) == 1, "the full block is named again"
        assert len(second._reader.input_tokens("p1")) == 601


async def test_without_a_local_folder_a_token_is_refused_and_input_is_volatile() -> None:
    async with Cluster(Till("a"), sinks=[MemorySink("receipts")]) as made:
        epoch = await made.epoch()
        with pytest.raises(Refused, match="keeps no input") as error:
            await made.send("till/a", Pay(1), token="t")
        assert error.value.code == "no-input-log"
        await made.send("till/a", Pay(1))
        await made.idle()
        await made.restore(epoch)
        await made.idle()
        assert made["till/a"].cents == 0


async def test_one_token_for_two_things_is_an_error(tmp_path) -> None:
    async with Cluster(Till("a"), sinks=[MemorySink("receipts")], local=str(tmp_path)) as made:
        await made.send("till/a", Pay(1), token="t")
        with pytest.raises(Refused, match="came before with another"):
            await made.send("till/a", Pay(2), token="t")
        with pytest.raises(LimitExceeded, match="a token is"):
            await made.send("till/a", Pay(2), token="x" * 300)
        await made.idle()
        assert made["till/a"].cents == 1


async def test_a_full_log_overloads_input_and_not_the_cluster(tmp_path) -> None:
    async with Cluster(Till("a"), sinks=[MemorySink("receipts")], local=str(tmp_path)) as made:
        participant = made.participant_of("till/a")
        participant._intake._bytes_max = 200_000

        async def send_for_ever() -> None:
            while True:
                await made.send("till/a", Pay(1, bytes(10_000)))

        with pytest.raises(Overloaded, match="no committed epoch has"):
            await send_for_ever()
        await made.idle()
        taken = made["till/a"].cents
        assert taken > 10
        assert (await made.epoch()).state("till/a")["cents"] == taken


# --- over HTTP --------------------------------------------------------------------------------------------------------


def make(made, name: str, agent: Agent, local, **options) -> Participant:
    return Participant(
        agent,
        id=name,
        cluster=CLUSTER,
        coordinators=[each.http for each in made.coordinators],
        store=made.store_url,
        secret_file=str(made.secret_file),
        sinks=[MemorySink("receipts")],
        local=None if local is None else str(local),
        **options,
    )


async def post(made, agent: str, body: object, **options):
    status, document, _ = await made.call("POST", f"/v1/agents/{agent}/messages", body, **options)
    return status, document


@pytest.mark.slow
async def test_a_message_over_the_api_is_durable_at_its_participant_when_it_is_acknowledged(tmp_path) -> None:
    async with cluster(tmp_path) as made, AsyncExitStack() as stack:
        one = await stack.enter_async_context(make(made, "p1", Till("a"), tmp_path / "local"))
        two = await stack.enter_async_context(make(made, "p2", Till("b"), tmp_path / "local"))
        await one.wait_member()
        await two.wait_member()
        (a,), (b,) = one.agents, two.agents
        order = {"type": "Pay", "body": {"cents": 3_000, "note": "aGVsbG8="}, "token": "order-17"}
        status, first = await post(made, "till/a", order)
        assert (status, first["participant"], first["duplicate"]) == (201, "p1", False)
        await until(lambda: (a.cents, b.cents) == (3_000, 3), "both were paid")
        status, again = await post(made, "till%2Fa", order)
        assert (status, again["duplicate"], again["message"]) == (200, True, first["message"])
        assert again["position"] == first["position"]
        # The participant's own way in knows the token, too.
        assert (await one.ingest("till/a", Pay(3_000, b"hello"), token="order-17")).duplicate
        status, error = await post(made, "till/a", {**order, "body": {"cents": 1}})
        assert (status, error["error"]["code"]) == (409, "token-conflict")
        assert (a.cents, b.cents) == (3_000, 3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sending a large body")
async def test_what_is_no_message_for_an_agent_is_refused_with_its_reason(tmp_path) -> None:
    async with cluster(tmp_path) as made, AsyncExitStack() as stack:
        one = await stack.enter_async_context(make(made, "p1", Till("a"), tmp_path / "local"))
        two = await stack.enter_async_context(make(made, "p2", Till("b"), None))
        await one.wait_member()
        await two.wait_member()
        good = {"type": "Pay", "body": {"cents": 1}}
        for agent, body, status, code in [
            ("till/nobody", good, 404, "no-agent"),
            ("till", good, 400, "bad-agent"),
            ("till/a/b", good, 400, "bad-agent"),
            ("till/A", good, 400, "bad-agent"),
            ("till/a", {"type": "Other", "body": {}}, 400, "bad-message"),
            ("till/a", {"type": "Pay", "version": 9, "body": {}}, 400, "bad-message"),
            ("till/a", {"type": "Pay", "body": {"cents": "many"}}, 400, "bad-message"),
            ("till/a", {"type": "Pay", "body": []}, 400, "bad-message"),
            ("till/a", {"type": "Pay"}, 400, "bad-value"),
            ("till/a", {"body": {}}, 400, "bad-value"),
            ("till/a", {"type": "Pay", "body": {}, "version": -1}, 400, "bad-value"),
            ("till/a", {"type": "Pay", "body": {}, "extra": 1}, 400, "unknown-key"),
            ("till/a", {"type": 7, "body": {}}, 400, "bad-value"),
            ("till/a", [], 400, "bad-json"),
            ("till/a", {**good, "token": "x" * 300}, 413, "too-large"),
            ("till/a", {"type": "Pay", "body": {"cents": 1, "note": "A" * (2 << 20)}}, 413, "too-large"),
            ("till/b", {**good, "token": "t"}, 409, "no-input-log"),
        ]:
            found, document = await post(made, agent, body)
            assert (found, document["error"]["code"]) == (status, code), (agent, str(body)[:100], document)
        assert (await post(made, "till/b", good))[0] == 201
        (a,) = one.agents
        assert a.cents == 0


@pytest.mark.slow
async def test_operators_and_participants_may_send_and_nobody_else(tmp_path) -> None:
    async with cluster(tmp_path) as made, AsyncExitStack() as stack:
        one = await stack.enter_async_context(make(made, "p1", Till("a"), tmp_path / "local"))
        await one.wait_member()
        good = {"type": "Pay", "body": {"cents": 1}}
        assert (await post(made, "till/a", good, role="operator"))[0] == 201
        assert (await post(made, "till/a", good, role="participant"))[0] == 201
        assert (await post(made, "till/a", good, role="viewer"))[0] == 403
        assert (await post(made, "till/a", good, role=None))[0] == 401


@pytest.mark.slow
async def test_any_coordinator_takes_a_message_and_the_leader_hands_it_over(tmp_path) -> None:
    async with cluster(tmp_path, 3) as made, AsyncExitStack() as stack:
        leader = await made.leader()
        one = await stack.enter_async_context(make(made, "p1", Till("a"), tmp_path / "local"))
        await one.wait_member()
        (a,) = one.agents
        for number, coordinator in enumerate(made.coordinators):
            order = {"type": "Pay", "body": {"cents": 1}, "token": f"t{number}"}
            assert (await post(made, "till/a", order, at=coordinator))[0] == 201
        await until(lambda: a.cents == 3, "all three came")
        other = next(each for each in made.coordinators if each is not leader)
        status, document = await post(made, "till/a", {"type": "Pay", "body": {"cents": 2}, "token": "t0"}, at=other)
        assert (status, document["error"]["code"]) == (409, "token-conflict")


@pytest.mark.slow
async def test_a_full_log_is_429_and_what_was_acknowledged_is_there_and_epochs_go_on(tmp_path) -> None:
    async with cluster(tmp_path) as made, AsyncExitStack() as stack:
        one = await stack.enter_async_context(
            make(made, "p1", Till("a"), tmp_path / "local", input_log_bytes_max=200_000)
        )
        await one.wait_member()
        (a,) = one.agents
        big = {"type": "Pay", "body": {"cents": 1, "note": "A" * 40_000}}
        statuses = []
        while not statuses or statuses[-1] == 201:
            status, document = await post(made, "till/a", big)
            statuses.append(status)
        assert (status, document["error"]["code"]) == (429, "overloaded")
        assert "no committed epoch has" in document["error"]["message"]
        taken = statuses.count(201)
        await until(lambda: a.cents == taken, "what was acknowledged came")
        status, record, _ = await made.call("POST", "/v1/epochs", {"reason": "test", "wait": True})
        assert (status, record["state"]) == (201, "committed")


@pytest.mark.slow
async def test_a_participant_that_does_not_answer_leaves_the_outcome_open_and_the_token_settles_it(
    tmp_path, monkeypatch
) -> None:
    async with cluster(tmp_path) as made, AsyncExitStack() as stack:
        one = await stack.enter_async_context(make(made, "p1", Till("a"), tmp_path / "local"))
        await one.wait_member()
        (a,) = one.agents
        real = one._control.send
        dropped = []

        def send(message) -> bool:
            if type(message).__name__ == "Ingested" and not dropped:
                dropped.append(message)
                return True
            return real(message)

        monkeypatch.setattr(one._control, "send", send)
        order = {"type": "Pay", "body": {"cents": 5}, "token": "t"}
        asking = asyncio.ensure_future(post(made, "till/a", order))
        await until(lambda: dropped, "the answer was lost")
        await until(lambda: a.cents == 5, "it was taken")
        status, document = await asking
        assert (status, document["error"]["code"]) == (504, "unknown-outcome")
        status, document = await post(made, "till/a", order)
        assert (status, document["duplicate"]) == (200, True)
        assert a.cents == 5
