"""The leader is killed at each step of an epoch (D7): real processes, which die at the named point itself."""

import asyncio
import signal

import aiohttp
import pytest
import pytest_asyncio

from tests.e2e.real_cluster import real_cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

STEPS = {
    "start.applied": "the trigger is logged, no order has left",
    "order.sent": "the first order has left",
    "reports.applied": "the first reports are logged",
    "cut.before_assemble": "all reports are logged",
    "cut.assembled": "the cut has passed its check",
    "seal.before_propose": "the seal is about to be proposed",
    "seal.applied": "the seal is logged",
    "manifest.after_put": "the manifest is written",
    "commit.before_propose": "the commit is about to be proposed",
    "commit.applied": "the commit is logged",
    "commit.announced": "one participant knows of the commit",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory):
    """Three coordinators and three participants for all steps of this file."""
    folder = tmp_path_factory.mktemp("leaders")
    points = dict.fromkeys([*STEPS, "start.before_propose", "abort.applied"], "exit")
    async with real_cluster(folder, coordinators=3, points=points, policy={"deadline_ms": 20_000}) as made:
        await made.commit_one()
        yield made


@pytest.mark.parametrize("step", STEPS)
async def test_leader_killed_at_this_step_costs_time_and_nothing_else(cluster, step):
    """D7: the next leader finishes the epoch, or aborts it with a reason; the one after works; history is all there."""
    victim = await cluster.leader()
    before = (await cluster.call("GET", "/v1/status"))["epochs"]["newest"]
    cluster.ticket(step)
    trigger = asyncio.create_task(_trigger(cluster))
    await cluster.has_ended_with(victim.child)
    assert victim.id in cluster.fired(step)
    await trigger
    successor, _ = await cluster.wait_leader(other_than=victim.id)
    assert successor != victim.id
    record = await cluster.ended(before + 1)
    assert record["state"] == "committed", f"nothing was lost but the leader: {record['abort']}"
    await cluster.restart(victim)
    following = await cluster.commit_one()
    assert following["epoch"] == before + 2
    assert following["previous"] == record["manifest"]
    await cluster.judge()


async def test_leader_killed_before_the_trigger_is_logged_leaves_no_trace_of_it(cluster):
    """Nothing was promised: the number is the next epoch's."""
    victim = await cluster.leader()
    before = (await cluster.call("GET", "/v1/status"))["epochs"]["newest"]
    cluster.ticket("start.before_propose")
    await asyncio.gather(_trigger(cluster), cluster.has_ended_with(victim.child))
    await cluster.wait_leader(other_than=victim.id)
    await cluster.restart(victim)
    assert (await cluster.commit_one())["epoch"] == before + 1
    await cluster.judge()


async def test_leader_killed_when_an_abort_is_logged_and_told_to_nobody(cluster):
    """The next leader tells it; participants hold on to nothing, and the reason is the one that was logged."""
    victim = await cluster.leader()
    frozen = cluster.participants["bank-2"]
    await cluster.call("PUT", "/v1/policy", {"deadline_ms": 700})
    cluster.ticket("abort.applied")
    cluster.signal(frozen, signal.SIGSTOP)
    try:
        number = await cluster.begin()
        await cluster.has_ended_with(victim.child)
    finally:
        cluster.signal(frozen, signal.SIGCONT)
    await cluster.wait_leader(other_than=victim.id)
    record = await cluster.ended(number)
    assert (record["state"], record["abort"]["participant"]) == ("aborted", "bank-2")
    assert record["abort"]["cause"].startswith("deadline of 0.7 s")
    await cluster.call("PUT", "/v1/policy", {"deadline_ms": 20_000})
    await cluster.restart(victim)
    assert (await cluster.commit_one())["epoch"] == number + 1
    await cluster.judge()


async def _trigger(cluster):
    """Ask whoever leads; its death may take the answer with it, and another one must not be asked again."""
    leader = await cluster.leader()
    try:
        async with cluster._session.post(f"http://{leader.http}/v1/epochs", json={"reason": "test"}) as response:
            await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError):
        return


async def test_every_participant_saw_the_same_end_of_each_epoch_and_none_was_restarted(cluster):
    """Leaders came and went, participants stayed: their sessions are those of the beginning."""
    rows = (await cluster.call("GET", "/v1/participants?fresh=1"))["participants"]
    assert [(row["id"], row["state"]) for row in rows] == [(name, "member") for name in sorted(cluster.specs)]
    history = await cluster.judge()
    members = [(await cluster.epoch(each["epoch"]))["members"] for each in history]
    assert len({tuple((name, one["session"]) for name, one in sorted(each.items())) for each in members}) == 1

    async def closed():
        found = [await cluster.statistics(name) for name in cluster.specs]
        return all(each["capture_parts_open"] == each["snapshot_open_epochs"] == 0 for each in found)

    await until(closed, "no participant holds on to an epoch that has ended")
