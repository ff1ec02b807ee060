"""The whole cluster comes back from real deaths: of participants, of leaders, of both in the middle of coming back."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest
import pytest_asyncio

from protocol.digests import fence_key
from tests.e2e.process import EXIT_ENDED
from tests.e2e.real_cluster import cleancut, real_cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

VICTIM = "bank-2"
LEASE_MS = 2_000
AUTO = {"recovery": "auto", "takeover_after_ms": 0, "max_rollbacks": 0}
STEPS = ("restore.halted", "restore.entered", "restore.loaded", "restored.after_send")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory):
    """One coordinator and three participants for all of this file."""
    folder = tmp_path_factory.mktemp("recovery")
    points = dict.fromkeys(STEPS, "exit")
    async with real_cluster(folder, policy=AUTO, points=points, lease_ms=LEASE_MS) as made:
        await made.commit_one()
        yield made


async def status(cluster):
    return await cluster.call("GET", "/v1/status?fresh=1")


async def recovered(cluster, incarnation, seconds=40):
    """All members run in this incarnation or a later one; the newest rollback's record."""

    async def found():
        document = await status(cluster)
        last = document["recovery"]["last"]
        running = document["recovery"]["state"] == "running" and last is not None and last["state"] == "done"
        return last if running and document["incarnation"] >= incarnation else None

    return await until(found, f"incarnation {incarnation} runs", seconds)


async def incarnation_of(cluster):
    return (await status(cluster))["incarnation"]


async def kill(cluster, name):
    child = cluster.participants[name]
    child.kill()
    await child.wait()


async def test_participant_that_is_killed_and_started_again_takes_everybody_to_the_newest_epoch(cluster):
    before = await incarnation_of(cluster)
    epoch = (await cluster.commit_one())["epoch"]
    await kill(cluster, VICTIM)
    await cluster.join(VICTIM)
    last = await recovered(cluster, before + 1)
    assert (last["epoch"], last["incarnation"], last["restored_count"]) == (epoch, before + 1, 3)
    assert VICTIM in last["cause"]
    assert cluster.open_store().size(fence_key(before + 1)) > 0
    record = await cluster.commit_one()
    assert record["incarnation"] == before + 1
    for name in cluster.specs:
        assert (await cluster.ask(name, {"do": "incarnation"}))["incarnation"] == before + 1
    await cluster.judge()
    code, document, _ = await cleancut("status", "--incarnations", "--dir", str(cluster.folder))
    assert code == 0
    assert document["rollbacks"][0]["incarnation"] == before + 1
    assert document["rollbacks"][0]["took_ms"] > 0


async def test_kill_in_the_middle_of_an_epoch_aborts_it_and_goes_back_to_the_one_before(cluster):
    before = await incarnation_of(cluster)
    epoch = (await cluster.commit_one())["epoch"]
    number = await cluster.begin()
    await kill(cluster, VICTIM)
    await cluster.join(VICTIM)
    last = await recovered(cluster, before + 1)
    assert last["epoch"] in {epoch, number}
    await cluster.commit_one()
    await cluster.judge()


async def test_frozen_twin_that_wakes_after_its_successor_has_started_ends_with_a_clear_error(cluster):
    """A8: everything that it still does is refused; its successor and the others never notice."""
    before = await incarnation_of(cluster)
    await cluster.commit_one()
    frozen = cluster.participants[VICTIM]
    frozen.ended_on_purpose = True
    cluster.signal(frozen, signal.SIGSTOP)
    try:
        await cluster.join(VICTIM)
        await recovered(cluster, before + 1)
        await cluster.commit_one()
    finally:
        cluster.signal(frozen, signal.SIGCONT)
    assert await asyncio.wait_for(frozen.wait(), 30) == EXIT_ENDED
    said = json.loads(await frozen.read_line())
    assert "FencedError" in said["ended"] or "fenced" in said["ended"]
    await cluster.commit_one()
    assert await incarnation_of(cluster) == before + 1
    await cluster.judge()


@pytest.mark.parametrize("step", STEPS)
async def test_another_one_that_is_killed_at_this_step_of_the_restore(cluster, step):
    before = await incarnation_of(cluster)
    await cluster.commit_one()
    other = "bank-3"
    cluster.ticket(step, of=other)
    await kill(cluster, VICTIM)
    joining = asyncio.create_task(cluster.join(VICTIM))
    await cluster.has_ended_with(cluster.participants[other])
    assert cluster.fired(step) == [other]
    await cluster.join(other)
    await joining
    last = await recovered(cluster, before + 1)
    assert last["incarnation"] >= before + 1
    await cluster.commit_one()
    await cluster.judge()


async def test_all_participants_at_once(cluster):
    before = await incarnation_of(cluster)
    epoch = (await cluster.commit_one())["epoch"]
    await asyncio.gather(*(kill(cluster, name) for name in cluster.specs))
    await asyncio.gather(*(cluster.join(name) for name in cluster.specs))
    last = await recovered(cluster, before + 1)
    assert last["epoch"] == epoch
    await cluster.commit_one()
    await cluster.judge()


async def test_operator_goes_back_by_the_command(cluster):
    before = await incarnation_of(cluster)
    first = (await cluster.commit_one())["epoch"]
    await cluster.commit_one()
    code, document, _ = await cleancut(
        "epoch", "restore", str(first), "--reason", "test", "--yes", "--dir", str(cluster.folder)
    )
    assert code == 0
    assert (document["state"], document["epoch"], document["incarnation"]) == ("done", first, before + 1)
    await cluster.commit_one()
    code, document, _ = await cleancut("epoch", "restore", "9999", "--yes", "--dir", str(cluster.folder))
    assert code == 3
    await cluster.judge()


async def test_agents_of_one_that_stays_away_go_to_the_others(tmp_path):
    policy = {**AUTO, "takeover_after_ms": 1_000}
    async with real_cluster(tmp_path, policy=policy, lease_ms=LEASE_MS, takes=True) as cluster:
        await cluster.commit_one()
        await kill(cluster, "bank-3")
        cluster.participants["bank-3"].ended_on_purpose = True
        last = await recovered(cluster, 2)
        assert last["members_count"] == 2
        record = await cluster.commit_one()
        assert sorted(record["members"]) == ["bank-1", "bank-2"]
        placed = [(await cluster.ask(name, {"do": "incarnation"}))["agents"] for name in ("bank-1", "bank-2")]
        assert sum(len(agents) for agents in placed) == 9
        # It comes back as a spare, and the sums still hold.
        await cluster.join("bank-3")
        record = await cluster.commit_one()
        assert sorted(record["members"]) == ["bank-1", "bank-2", "bank-3"]
        await cluster.judge()


async def test_agent_is_moved_with_its_money_by_the_command(tmp_path):
    async with real_cluster(tmp_path, policy=AUTO, lease_ms=LEASE_MS, takes=True) as cluster:
        await cluster.commit_one()
        code, document, _ = await cleancut("agent", "move", "account/a1", "bank-3", "--dir", str(cluster.folder))
        assert code == 0, document
        assert document["incarnation"] == 2
        record = await cluster.commit_one()
        assert record["incarnation"] == 2
        assert "account/a1" in (await cluster.ask("bank-3", {"do": "incarnation"}))["agents"]
        assert "account/a1" not in (await cluster.ask("bank-1", {"do": "incarnation"}))["agents"]
        code, document, _ = await cleancut("agent", "move", "account/a1", "bank-3", "--dir", str(cluster.folder))
        assert (code, document["moved"]) == (0, False), "the same command again does nothing"
        for agent, target, exit_code, words in (
            ("account/a1", "bank-9", 3, "bank-9 is not there"),
            ("account/nobody", "bank-2", 3, "nobody hosts account/nobody"),
        ):
            code, _, text = await cleancut("agent", "move", agent, target, "--dir", str(cluster.folder))
            assert code == exit_code
            assert words in text
        await cluster.judge()


@pytest.mark.parametrize("step", ["rollback.applied", "fence.after_raise", "restore.sent", "restored.applied"])
async def test_leader_that_is_killed_at_this_step_of_the_restore(tmp_path, step):
    points = {step: "exit"}
    async with real_cluster(
        tmp_path, coordinators=3, participants=3, policy=AUTO, points=points, lease_ms=LEASE_MS
    ) as cluster:
        epoch = (await cluster.commit_one())["epoch"]
        leader = await cluster.leader()
        cluster.ticket(step)
        await kill(cluster, VICTIM)
        joining = asyncio.create_task(cluster.join(VICTIM))
        await cluster.has_ended_with(leader.child)
        await joining
        last = await recovered(cluster, 2)
        assert (last["epoch"], last["incarnation"]) == (epoch, 2)
        await cluster.restart(leader)
        await cluster.commit_one()
        await cluster.judge()
