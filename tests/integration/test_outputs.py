"""Outputs of real participants: held, saved with the epoch, released by its commit, taken once by their sinks."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import msgspec
import pytest

from participant import (
    Agent,
    Context,
    DeadLetter,
    OutputDiverged,
    OutputRefused,
    Participant,
    SinkFailing,
    handler,
    value,
)
from participant.sinks import FileSink, MemorySink
from participant.testing import Cluster
from protocol.errors import ConfigError, FencedError, Overloaded, RecoveryError, Unsavable
from protocol.reading import EpochReader
from tests.integration.fleet import Fleet, until


class Order(msgspec.Struct, frozen=True):
    number: int
    fail: bool = False


@dataclass(frozen=True)
class Receipt:
    number: int
    text: str


class Buyer(Agent, kind="buyer"):
    """Emits a receipt for each order."""

    orders = value(int, default=0)
    failure = DeadLetter()

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        self.orders += 1
        ctx.emit("receipts", {"n": order.number})
        if order.fail:
            raise ValueError("after the emit")


class Typed(Agent, kind="typed"):
    problem = value(str, default="")
    failure = DeadLetter()

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        ctx.emit("receipts", Receipt(order.number, "paid"))
        for bad in ({"x": object()}, {"x": lambda: 0}):
            try:
                ctx.emit("receipts", bad)
            except Unsavable as error:
                self.problem = str(error)
        try:
            ctx.emit("nowhere", 1)
        except ConfigError as error:
            self.problem += f"; {error}"


async def test_an_output_waits_for_the_commit_of_the_epoch_that_has_its_turn() -> None:
    sink = MemorySink("receipts")
    async with Cluster(Buyer("main"), sinks=[sink]) as cluster:
        await cluster.send("buyer/main", Order(1))
        await cluster.send("buyer/main", Order(2))
        await cluster.idle()
        assert sink.values == []
        epoch = await cluster.epoch()
        assert epoch.outputs("buyer/main") == [("receipts", {"n": 1}), ("receipts", {"n": 2})]
        await cluster.idle()
        assert sink.values == [{"n": 1}, {"n": 2}]
        assert [output.after for output in sink.outputs] == [0, 0]
        await cluster.send("buyer/main", Order(3))
        await cluster.idle()
        assert (await cluster.epoch()).outputs("buyer/main") == [("receipts", {"n": 3})]
        await cluster.idle()
        assert sink.values == [{"n": 1}, {"n": 2}, {"n": 3}]
        assert sink.outputs[2].after == epoch.number
        statistics = cluster.statistics()
        assert (statistics["outputs_delivered"], statistics["outputs_waiting"]) == (3, 0)


async def test_an_aborted_epoch_releases_nothing() -> None:
    sink = MemorySink("receipts")
    async with Cluster(Buyer("main"), sinks=[sink]) as cluster:
        await cluster.send("buyer/main", Order(1))
        await cluster.idle()
        number = cluster.conductor.start_epoch("test")
        cluster.conductor.abort(number, "a test")
        await cluster.idle()
        assert sink.values == []
        await cluster.epoch()
        await cluster.idle()
        assert sink.values == [{"n": 1}]


async def test_a_turn_that_raises_emits_nothing() -> None:
    sink = MemorySink("receipts")
    async with Cluster(Buyer("main"), sinks=[sink]) as cluster:
        await cluster.send("buyer/main", Order(1, fail=True))
        await cluster.send("buyer/main", Order(2))
        await cluster.idle()
        await cluster.epoch()
        await cluster.idle()
        assert sink.values == [{"n": 2}]


async def test_typed_payloads_become_maps_and_what_cannot_be_saved_is_named_where_it_is_emitted() -> None:
    sink = MemorySink("receipts")
    async with Cluster(Typed("main"), sinks=[sink]) as cluster:
        await cluster.send("typed/main", Order(1))
        await cluster.idle()
        epoch = await cluster.epoch()
        await cluster.idle()
        assert sink.values == [{"number": 1, "text": "paid"}]
        problem = epoch.state("typed/main")["problem"]
        assert "agent typed/main: output.x of type function" in problem
        assert "sinks: agent typed/main emits to 'nowhere', and its participant has no such sink" in problem


async def test_a_failing_sink_is_told_of_tried_again_and_holds_up_no_epoch() -> None:
    sink = MemorySink("receipts")
    sink.failures = 3
    async with Cluster(Buyer("main"), sinks=[sink]) as cluster:
        events = cluster.events("buyer/main")
        await cluster.send("buyer/main", Order(1))
        await cluster.idle()
        waiting = asyncio.ensure_future(_first(events, SinkFailing))
        await asyncio.sleep(0)
        await cluster.epoch()
        assert (await waiting).sink == "receipts"
        await cluster.idle()
        await cluster.advance(10)
        assert sink.values == [{"n": 1}]
        assert sink.deliveries == 4


async def test_a_lost_answer_makes_no_second_output() -> None:
    sink = MemorySink("receipts")
    sink.failures_after = 1
    async with Cluster(Buyer("main"), sinks=[sink]) as cluster:
        await cluster.send("buyer/main", Order(1))
        await cluster.idle()
        await cluster.epoch()
        await cluster.idle()
        await cluster.advance(1)
        assert sink.values == [{"n": 1}]
        assert cluster.statistics()["outputs_duplicate"] == 1


async def test_a_refused_output_is_told_with_its_reason() -> None:
    sink = MemorySink("receipts", refuse=lambda payload: "odd" if payload["n"] % 2 else "")
    async with Cluster(Buyer("main"), sinks=[sink]) as cluster:
        events = cluster.events("buyer/main")
        waiting = asyncio.ensure_future(_first(events, OutputRefused))
        await asyncio.sleep(0)
        for number in (1, 2):
            await cluster.send("buyer/main", Order(number))
        await cluster.idle()
        await cluster.epoch()
        refused = await waiting
        assert (refused.reason, refused.output.agent) == ("odd", "buyer/main")
        await cluster.idle()
        assert sink.values == [{"n": 2}]


async def _first(events, kind):
    async for event in events:
        if isinstance(event, kind):
            return event
    raise AssertionError("the participant has ended")


async def test_too_many_held_outputs_stop_emitting_until_they_have_left() -> None:
    sink = MemorySink("receipts")
    async with Cluster(Buyer("main"), sinks=[sink]) as cluster:
        participant = cluster.participant_of("buyer/main")
        participant._outlet._outbox._bytes_max = 10
        await cluster.send("buyer/main", Order(1))
        await cluster.idle()
        await cluster.send("buyer/main", Order(2))
        await cluster.idle()
        (letter,) = cluster.dead_letters
        assert letter.reason.startswith(f"{Overloaded.__name__}: agent buyer/main cannot emit to 'receipts' now")
        await cluster.epoch()
        await cluster.idle()
        await cluster.send("buyer/main", Order(3))
        await cluster.idle()
        await cluster.epoch()
        await cluster.idle()
        assert sink.values == [{"n": 1}, {"n": 3}]


# --- a rollback, by hand ----------------------------------------------------------------------------------------------


def load(participant: Participant, reader: EpochReader, *, epoch: int) -> None:
    """What a restore does with the agents of one participant: state back, mailboxes and held outputs with it."""
    from participant.loading import load_agent

    for host in participant._hosts:
        load_agent(host, reader.agent_snapshot(host.id), reader.read, now=0)
    participant._outlet.restored(participant._hosts, epoch=epoch)


async def test_after_a_rollback_the_epoch_s_outputs_come_again_and_the_sink_drops_them() -> None:
    sink = MemorySink("receipts")
    async with Cluster(Buyer("main"), sinks=[sink]) as cluster:
        participant = cluster.participant_of("buyer/main")
        await cluster.send("buyer/main", Order(1))
        await cluster.idle()
        epoch = await cluster.epoch()
        await cluster.idle()
        assert sink.values == [{"n": 1}]
        await cluster.send("buyer/main", Order(2))
        await cluster.idle()
        load(participant, EpochReader(cluster.store, epoch.manifest), epoch=epoch.number)
        await cluster.idle()
        assert sink.values == [{"n": 1}], "the second one was rolled back before it was released"
        assert cluster.statistics()["outputs_duplicate"] == 1
        assert cluster.statistics()["outputs_waiting"] == 0


async def test_work_that_is_done_again_after_going_back_further_repeats_no_output_and_says_what_differs() -> None:
    """Going back beyond what was released: outputs at the same positions are known, whatever they are now."""
    sink = MemorySink("receipts")
    async with Cluster(Buyer("main"), sinks=[sink]) as cluster:
        participant = cluster.participant_of("buyer/main")
        first = await cluster.epoch()
        name, version, body = participant._registry.encode(Order(1))
        from participant.context import encode_envelope
        from participant.machine_events import MessageIngested
        from protocol.messages import Envelope

        def ingest(body: bytes) -> None:
            envelope = Envelope(b"a token's message", "outside/ingest", "buyer/main", name, version, body)
            participant._step(MessageIngested((envelope, encode_envelope(envelope))))

        ingest(body)
        await cluster.idle()
        await cluster.epoch()
        await cluster.idle()
        assert sink.values == [{"n": 1}]
        # Back before the order; the same input comes again, and comes out differently.
        load(participant, EpochReader(cluster.store, first.manifest), epoch=first.number)
        waiting = asyncio.ensure_future(_first(cluster.events("buyer/main"), OutputDiverged))
        await asyncio.sleep(0)
        ingest(participant._registry.encode(Order(7))[2])
        await cluster.idle()
        await cluster.epoch()
        diverged = await waiting
        await cluster.idle()
        assert msgspec.msgpack.decode(diverged.output.payload) == {"n": 7}
        assert sink.values == [{"n": 1}]


async def test_an_epoch_whose_outputs_have_no_sink_here_is_refused_by_name() -> None:
    sink = MemorySink("receipts")
    async with Cluster(Buyer("main"), sinks=[sink]) as cluster:
        await cluster.send("buyer/main", Order(1))
        await cluster.idle()
        sink.failures = 1_000
        epoch = await cluster.epoch()
        reader = EpochReader(cluster.store, epoch.manifest)
        async with Cluster(Buyer("main"), sinks=[MemorySink("other")]) as second:
            with pytest.raises(RecoveryError, match=r"buyer/main holds outputs for sink 'receipts'.*its sinks: other"):
                load(second.participant_of("buyer/main"), reader, epoch=epoch.number)
        sink.failures = 0


async def test_a_participant_that_its_sink_calls_a_zombie_ends() -> None:
    sink = MemorySink("receipts")
    cluster = Cluster(Buyer("main"), sinks=[sink])

    async def fenced() -> None:
        async with cluster:
            await cluster.send("buyer/main", Order(1))
            await cluster.idle()
            await sink.raise_fence(9)
            await cluster.epoch()
            await cluster.idle()
            assert not cluster.participant_of("buyer/main")._ended.is_set(), "it may be about to enter incarnation 9"
            await cluster.advance(61)
            await until(cluster.participant_of("buyer/main")._ended.is_set)

    with pytest.raises(FencedError, match="incarnation 1, and 9 has begun"):
        await fenced()
    assert sink.values == []


async def test_a_rollback_whose_fence_is_raised_while_outputs_are_on_their_way_costs_no_participant() -> None:
    sink = MemorySink("receipts")
    async with Cluster(Buyer("main"), sinks=[sink]) as cluster:
        await cluster.send("buyer/main", Order(1))
        await cluster.idle()
        sink.failures = 1
        epoch = await cluster.epoch()
        await sink.raise_fence(2)
        await cluster.advance(1)
        assert sink.values == []
        await cluster.restore(epoch)
        await cluster.idle()
        assert sink.values == [{"n": 1}]


async def test_two_sinks_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="the same name"):
        async with Cluster(Buyer("main"), sinks=[MemorySink("receipts"), MemorySink("receipts")]):
            pass


# --- real files, real sockets -----------------------------------------------------------------------------------------


async def test_participants_of_a_real_fleet_write_each_order_once_and_a_leaving_one_takes_its_outputs_out(
    tmp_path,
) -> None:
    async with Fleet("websocket", tmp_path) as fleet:
        sinks = [FileSink("receipts", tmp_path / "out.jsonl") for _ in range(2)]
        for number, sink in enumerate(sinks):
            await fleet.join(f"p{number}", Buyer(f"b{number}"), sinks=[sink])
        await fleet.conductor.wait_members("p0", "p1")
        for number in range(40):
            await fleet.participants["p0"].ingest(f"buyer/b{number % 2}", Order(number))
        await fleet.idle()
        number = fleet.conductor.start_epoch("test")
        await fleet.conductor.wait_epoch(number)
        path = tmp_path / "out.jsonl"
        await until(lambda: len(path.read_bytes().splitlines()) == 40)
        taken = [json.loads(line)["n"] for line in path.read_bytes().splitlines()]
        assert sorted(taken) == list(range(40))
        assert [n for n in taken if n % 2] == list(range(1, 40, 2))
        # One more, and an orderly leave: it asks for the epoch that lets it go.
        await fleet.participants["p1"].ingest("buyer/b1", Order(99))
        leaving = asyncio.ensure_future(fleet.participants["p1"].leave())
        await until(lambda: fleet.conductor.requested)
        assert "1 outputs are to be released" in fleet.conductor.requested[-1]
        await fleet.conductor.wait_epoch(fleet.conductor.start_epoch("requested"))
        await leaving
        assert path.read_bytes().endswith(b'{"n":99}\n')
