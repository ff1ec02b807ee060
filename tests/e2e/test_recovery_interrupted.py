"""Real processes that freeze, die or die again and again while the cluster is on its way back."""

import asyncio
import json
import signal

import pytest
import pytest_asyncio

from protocol.failpoints import PERMISSION, VARIABLE
from tests.e2e.process import EXIT_ENDED
from tests.e2e.real_cluster import cleancut, real_cluster, until
from tests.e2e.test_recovery import kill, recovered, status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

VICTIM, OTHER = "bank-2", "bank-3"
LEASE_MS = 2_000
AUTO = {"recovery": "auto", "takeover_after_ms": 0, "max_rollbacks": 0}
PARTICIPANT_STEPS = (
    "restore.halted",
    "restore.before_read",
    "restore.entered",
    "restore.loaded",
    "restored.after_send",
)
LEADER_STEPS = (
    "rollback.before_propose",
    "rollback.applied",
    "fence.before_raise",
    "fence.after_raise",
    "restore.sent",
)
"""Where a leader still has something to do that must not be done by two."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory):
    """One coordinator and three participants for all tests that freeze participants."""
    folder = tmp_path_factory.mktemp("interrupted")
    points = dict.fromkeys(PARTICIPANT_STEPS, "sleep:1000")
    async with real_cluster(folder, policy=AUTO, points=points, lease_ms=LEASE_MS) as made:
        await made.commit_one()
        yield made


async def sessions_of(cluster, name):
    """The newest session that a name was given."""
    known = (await cluster.call("GET", "/v1/participants?fresh=1"))["participants"]
    return max((each["session"] for each in known if each["id"] == name), default=0)


@pytest.mark.parametrize("step", PARTICIPANT_STEPS)
async def test_participant_that_freezes_at_this_step_of_a_restore_and_wakes_after_its_successor_has_no_effect(
    cluster, step
):
    """A8 in the middle of a restore: one is killed, another falls asleep while it takes its part; both are started anew."""
    before = (await status(cluster))["incarnation"]
    await cluster.commit_one()
    cluster.ticket(step, of=OTHER)
    frozen = cluster.participants[OTHER]
    frozen.ended_on_purpose = True
    told = len(cluster.fired(step))
    await kill(cluster, VICTIM)
    joining = asyncio.create_task(cluster.join(VICTIM))
    await until(lambda: len(cluster.fired(step)) > told, f"{OTHER} passes {step}")
    cluster.signal(frozen, signal.SIGSTOP)
    try:
        await cluster.join(OTHER)
        await joining
        last = await recovered(cluster, before + 1)
        await cluster.commit_one()
    finally:
        cluster.signal(frozen, signal.SIGCONT)
    assert await asyncio.wait_for(frozen.wait(), 30) == EXIT_ENDED
    said = json.loads(await frozen.read_line())
    assert "FencedError" in said["ended"]
    record = await cluster.commit_one()
    assert record["incarnation"] == last["incarnation"], "what woke up has disturbed nobody"
    cluster.ticket(step, of=OTHER).unlink(missing_ok=True)
    await cluster.judge()


@pytest.mark.parametrize("step", LEADER_STEPS)
async def test_leader_that_freezes_at_this_step_of_a_rollback_wakes_as_a_follower(tmp_path, step):
    """Its successor finishes the rollback; what the old one still sends when it wakes is refused by term."""
    points = {step: "sleep:1500"}
    async with real_cluster(tmp_path, coordinators=3, policy=AUTO, points=points, lease_ms=LEASE_MS) as cluster:
        epoch = (await cluster.commit_one())["epoch"]
        leader = await cluster.leader()
        cluster.ticket(step)
        await kill(cluster, VICTIM)
        joining = asyncio.create_task(cluster.join(VICTIM))
        await until(lambda: cluster.fired(step), f"{leader.id} passes {step}")
        cluster.signal(leader.child, signal.SIGSTOP)
        others = [each for each in cluster.coordinators if each is not leader]
        cluster.coordinators[:] = others  # Who asks a frozen process waits for it.
        try:
            successor, _ = await cluster.wait_leader(other_than=leader.id)
            await joining
            last = await recovered(cluster, 2)
        finally:
            cluster.signal(leader.child, signal.SIGCONT)
            cluster.coordinators[:] = [*others, leader]
        assert last["epoch"] == epoch
        assert successor != leader.id

        async def follows():
            _, document, leads = await cluster.status_of(leader)
            return not leads and document["incarnation"] >= last["incarnation"]

        await until(follows, f"{leader.id} follows")
        record = await cluster.commit_one()
        assert record["incarnation"] == (await status(cluster))["incarnation"] == last["incarnation"]
        await cluster.judge()


async def test_participant_and_leader_that_are_killed_in_the_same_restore(tmp_path):
    points = {"restore.sent": "exit", "restore.loaded": "exit"}
    async with real_cluster(tmp_path, coordinators=3, policy=AUTO, points=points, lease_ms=LEASE_MS) as cluster:
        epoch = (await cluster.commit_one())["epoch"]
        leader = await cluster.leader()
        cluster.ticket("restore.sent")
        cluster.ticket("restore.loaded", of=OTHER)
        await kill(cluster, VICTIM)
        joining = asyncio.create_task(cluster.join(VICTIM))
        await cluster.has_ended_with(leader.child)
        await cluster.has_ended_with(cluster.participants[OTHER])
        await cluster.restart(leader)
        await asyncio.gather(joining, cluster.join(OTHER))
        last = await recovered(cluster, 2)
        assert last["epoch"] == epoch
        await cluster.commit_one()
        await cluster.judge()


async def test_crash_loop_ends_as_recovery_stopped_which_the_command_shows_and_resumes(tmp_path):
    """One participant dies of every restore. After three rollbacks in a row nobody tries again by himself."""
    policy = {**AUTO, "max_rollbacks": 3, "rollback_window_ms": 600_000}
    async with real_cluster(tmp_path, policy=policy, lease_ms=LEASE_MS) as cluster:
        epoch = (await cluster.commit_one())["epoch"]
        await kill(cluster, VICTIM)
        sound = dict(cluster.variables)
        cluster.variables |= {PERMISSION: "1", VARIABLE: "restored.after_send=exit"}

        async def started_again_and_again():
            while True:
                child = await cluster.spawn_participant(cluster.specs[VICTIM], module="tests.e2e.process")
                child.ended_on_purpose = True
                await child.wait()

        init = asyncio.create_task(started_again_and_again())

        async def stopped():
            return (await status(cluster))["recovery"]["state"] == "stopped"

        await until(stopped, "recovery stops", 120)
        init.cancel()
        code, document, _ = await cleancut("status", "--dir", str(cluster.folder))
        assert code == 0
        assert document["recovery"]["state"] == "stopped"
        assert "3 rollbacks within 600 s did not help" in document["recovery"]["why"]
        code, document, _ = await cleancut("status", "--incarnations", "--dir", str(cluster.folder))
        assert [each["automatic"] for each in document["rollbacks"]] == [True] * 3

        await kill(cluster, VICTIM)
        sessions = await sessions_of(cluster, VICTIM)
        cluster.variables = sound
        joining = asyncio.create_task(cluster.join(VICTIM))

        async def there():
            return await sessions_of(cluster, VICTIM) > sessions

        await until(there, f"{VICTIM} has registered")
        assert await stopped(), "nothing comes back by itself any more"
        code, document, text = await cleancut(
            "epoch", "restore", "latest", "--reason", "mended", "--yes", "--dir", str(cluster.folder)
        )
        assert code == 0, text
        assert (document["epoch"], document["state"]) == (epoch, "done")
        await joining
        await recovered(cluster, document["incarnation"])
        await cluster.commit_one()
        await cluster.judge()
