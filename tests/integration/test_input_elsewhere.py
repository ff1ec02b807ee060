"""Input that was acknowledged by one participant and is given again, with its token, where its agent went: it happens once.

Who took it first replays it after the rollback, and so may the second. Whoever hosts the agent knows what it has had.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from participant import Agent, handler, value
from participant.context import encode_envelope
from participant.inputs import CAME_OTHERWISE, OUTSIDE, HadInputs, token_hash, token_message_id
from participant.testing import Cluster
from protocol.errors import Refused
from protocol.ids import AgentId
from protocol.messages import Envelope


class Pay(msgspec.Struct, frozen=True):
    """Take this."""

    cents: int


class Till(Agent, kind="till"):
    """Keeps what it was paid."""

    seen = value(list[int], default=[])

    @handler
    async def on_pay(self, ctx, pay: Pay) -> None:
        """Note it."""
        self.seen.append(pay.cents)


AWAY = {"p1": (), "p2": ("till/a", "till/b")}
"""till/a is with till/b."""


def made(tmp_path, *, names="ab", **settings) -> Cluster:
    return Cluster(*map(Till, names), local=str(tmp_path), **settings)


class Held:
    """What a participant replays waits for a word."""

    def __init__(self, participant) -> None:
        self.comes = asyncio.Event()
        replay = participant._intake._replay

        async def held(ticket: int) -> int:
            await self.comes.wait()
            return await replay(ticket)

        participant._intake._replay = held


@pytest.mark.parametrize("durability", ["epoch", "turn"])
async def test_given_again_at_the_new_host_after_the_first_has_replayed_it(tmp_path, durability):
    async with made(tmp_path, durability=durability) as cluster:
        before = await cluster.epoch()
        await cluster.send("till/a", Pay(5), token="t")
        await cluster.idle()
        await cluster.restore(before, placement=AWAY)
        await cluster.idle()
        assert cluster["till/a"].seen == [5], "its first host replays it"
        two = cluster.participants["p2"]
        assert (await two.ingest("till/a", Pay(5), token="t")).duplicate
        assert not (await two.ingest("till/a", Pay(6), token="u")).duplicate
        await cluster.idle()
        assert cluster["till/a"].seen == [5, 6]
        for token in ("t", "u"):
            with pytest.raises(Refused, match="came before with another"):
                await two.ingest("till/a", Pay(7), token=token)


@pytest.mark.parametrize("durability", ["epoch", "turn"])
async def test_given_again_at_the_new_host_before_the_first_has_replayed_it(tmp_path, durability):
    async with made(tmp_path, durability=durability) as cluster:
        before = await cluster.epoch()
        await cluster.send("till/a", Pay(5), token="t")
        await cluster.idle()
        held = Held(cluster.participants["p1"])
        await cluster.restore(before, placement=AWAY)
        two = cluster.participants["p2"]
        assert not (await two.ingest("till/a", Pay(5), token="t")).duplicate
        held.comes.set()
        await cluster.idle()
        assert cluster["till/a"].seen == [5]
        assert two.statistics()["inputs_repeated"] == 1
        await cluster.restore(before, placement=AWAY)
        await cluster.idle()
        assert cluster["till/a"].seen == [5], "both have it in their logs"
        assert two.statistics()["inputs_repeated"] == 2


@pytest.mark.parametrize("durability", ["epoch", "turn"])
async def test_an_epoch_and_who_has_the_agent_after_it_know_what_came_over_a_channel(tmp_path, durability):
    async with made(tmp_path, names="abc", durability=durability) as cluster:
        before = await cluster.epoch()
        await cluster.send("till/a", Pay(5), token="t")
        await cluster.idle()
        away = {"p1": (), "p2": ("till/a", "till/b"), "p3": ("till/c",)}
        await cluster.restore(before, placement=away)
        await cluster.idle()
        after = await cluster.epoch()
        assert len(after._reader.input_tokens("p2")) == 1
        await cluster.restore(after, placement={"p1": (), "p2": ("till/b",), "p3": ("till/a", "till/c")})
        await cluster.idle()
        assert (await cluster.participants["p3"].ingest("till/a", Pay(5), token="t")).duplicate
        assert (await cluster.participants["p2"].ingest("till/a", Pay(5), token="t")).duplicate, "it was there"
        for name in ("p1", "p2"):
            assert not (await cluster.participants[name].ingest("till/a", Pay(6), token="u")).duplicate, "it goes there"
        await cluster.idle()
        assert cluster["till/a"].seen == [5, 6]
        assert cluster.participants["p3"].statistics()["inputs_repeated"] == 1


async def test_who_goes_on_from_its_log_of_turns_knows_what_came_over_a_channel(tmp_path):
    async with made(tmp_path, durability="turn") as cluster:
        before = await cluster.epoch()
        await cluster.send("till/a", Pay(5), token="t")
        await cluster.idle()
        await cluster.restore(before, placement=AWAY)
        await cluster.idle()
        back = await cluster.epoch()
        await cluster.restore(back, placement={"p1": ("till/a",), "p2": ("till/b",)})
        await cluster.participants["p2"].ingest("till/a", Pay(6), token="u")
        await cluster.participants["p1"].ingest("till/a", Pay(7), token="v")
        await cluster.idle()
        await cluster.crash("p1")
        await cluster.resume()
        await cluster.idle()
        one = cluster.participants["p1"]
        for cents, token in ((5, "t"), (6, "u"), (7, "v")):
            assert (await one.ingest("till/a", Pay(cents), token=token)).duplicate
        assert not (await cluster.participants["p2"].ingest("till/a", Pay(7), token="v")).duplicate
        await cluster.idle()
        assert sorted(one.agents[0].seen) == [5, 6, 7]


async def test_what_its_own_log_brings_after_it_came_over_a_channel_is_logged_once_as_a_turn(tmp_path):
    async with made(tmp_path, durability="turn") as cluster:
        before = await cluster.epoch()
        await cluster.participants["p1"].ingest("till/b", Pay(5), token="t")
        await cluster.idle()
        await cluster.restore(before, placement={"p1": (), "p2": ("till/a", "till/b")})
        await cluster.idle()
        two = cluster.participants["p2"]
        # In its own log, too: who takes it does not know, and the host does.
        two._machine.inputs = HadInputs()
        assert not (await two.ingest("till/b", Pay(5), token="t")).duplicate
        await cluster.idle()
        assert cluster["till/b"].seen == [5, 5], "it was made to forget"
        held = Held(two)
        await cluster.restore(before, placement={"p1": ("till/a",), "p2": ("till/b",)})
        while cluster["till/b"].seen != [5]:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)
        held.comes.set()
        await cluster.idle()
        assert two.statistics()["inputs_repeated"] == 1
        await cluster.crash("p2")
        await cluster.resume()
        await cluster.idle()
        assert cluster.participants["p2"].agents[0].seen == [5]


async def test_what_was_on_its_way_at_the_cut_and_had_come_by_another_way_comes_once(tmp_path):
    async with made(tmp_path) as cluster:
        one, two = cluster.participants["p1"], cluster.participants["p2"]
        await two.ingest("till/b", Pay(5), token="t")
        await cluster.idle()
        # Sent before the marker and after the other's cut: recorded in the channel.
        for cents, token in ((5, "t"), (6, "u")):
            name, version, body = one._registry.encode(Pay(cents))
            identity = token_message_id(token_hash("test", token))
            envelope = Envelope(identity, OUTSIDE, AgentId("till/b"), name, version, body)
            one._input_enters((envelope, encode_envelope(envelope)), 1)
        epoch = await cluster.epoch()
        assert [each.cents for each in epoch.in_flight()] == [5, 6]
        await cluster.idle()
        assert cluster["till/b"].seen == [5, 6]
        await cluster.restore(epoch)
        await cluster.idle()
        assert cluster["till/b"].seen == [5, 6]
        assert (await two.ingest("till/b", Pay(6), token="u")).duplicate


async def test_what_waits_for_an_agent_that_nobody_hosts_is_not_had_by_who_took_it(tmp_path):
    async with made(tmp_path) as cluster:
        one = cluster.participants["p1"]
        await one.ingest("till/c", Pay(5), token="t")
        await cluster.idle()
        waits = await cluster.epoch()
        assert [each.cents for each in waits.messages()] == [5]
        assert waits._reader.input_tokens("p1") == []
        await cluster.restore(waits)
        await cluster.idle()
        again = await cluster.epoch()
        assert [each.cents for each in again.messages()] == [5]


async def test_a_token_that_came_with_something_else_at_another_participant_is_no_second_message(tmp_path):
    async with made(tmp_path) as cluster:
        await cluster.participants["p1"].ingest("till/b", Pay(5), token="t")
        await cluster.idle()
        await cluster.participants["p1"].ingest("till/a", Pay(1), token="u")
        await cluster.participants["p2"].ingest("till/b", Pay(2), token="u")
        await cluster.idle()
        assert (cluster["till/a"].seen, cluster["till/b"].seen) == ([1], [5, 2]), "of two agents on two hosts"
        with pytest.raises(Refused, match="came before with another"):
            await cluster.participants["p2"].ingest("till/b", Pay(6), token="t")
        # Taken by somebody who could not know.
        await cluster.participants["p2"].ingest("till/b", Pay(7), token="v")
        await cluster.participants["p1"].ingest("till/b", Pay(8), token="v")
        await cluster.idle()
        assert cluster["till/b"].seen == [5, 2, 7]
        assert [each.reason for each in cluster.dead_letters] == [CAME_OTHERWISE]


async def test_an_agent_that_came_back_under_another_name_has_what_it_had(tmp_path):
    async with made(tmp_path) as cluster:
        before = await cluster.epoch()
        for token, cents in (("t", 5), ("u", 6)):
            await cluster.send("till/a", Pay(cents), token=token)
            await cluster.idle()
        after = await cluster.epoch()
        placed = {"p1": (), "p2": ("till/b", "till/c")}
        await cluster.restore(before, placement=placed, renames={"till/a": "till/c"})
        await cluster.idle()
        two = cluster.participants["p2"]
        assert (await two.ingest("till/c", Pay(5), token="t")).duplicate, "replayed to its new name"
        await cluster.restore(after, placement=placed, renames={"till/a": "till/c"})
        await cluster.idle()
        assert (await two.ingest("till/c", Pay(5), token="t")).duplicate, "in the epoch under its old name"
        await cluster.idle()
        assert cluster["till/c"].seen == [5, 6]
