"""`durability="turn"` with real processes: one is killed while money moves, and the others notice nothing."""

from __future__ import annotations

import signal

import pytest
import pytest_asyncio

from tests.e2e.process import EXIT_ENDED
from tests.e2e.real_cluster import cleancut, real_cluster, until
from tests.e2e.test_recovery import AUTO, LEASE_MS, incarnation_of, kill, recovered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

VICTIM = "bank-2"
POINTS = dict.fromkeys(
    (
        "log.before_append",
        "log.before_sync",
        "log.after_sync",
        "turns.base_written",
        "local.encoded",
        "report.before_send",
    ),
    "exit",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory):
    """One coordinator and three participants for all of this file."""
    folder = tmp_path_factory.mktemp("turns")
    policy = {**AUTO, "durability": "turn"}
    async with real_cluster(folder, policy=policy, points=POINTS, lease_ms=LEASE_MS) as made:
        await made.commit_one()
        yield made


async def sessions(cluster):
    listed = (await cluster.call("GET", "/v1/participants?fresh=1"))["participants"]
    return {each["id"]: each["session"] for each in listed if each["state"] == "member"}


async def comes_back(cluster, before):
    """The victim, and nobody else is touched."""
    await cluster.join(VICTIM)
    after = await sessions(cluster)
    assert {name: session for name, session in after.items() if name != VICTIM} == {
        name: session for name, session in before.items() if name != VICTIM
    }
    assert after[VICTIM] > before[VICTIM]
    await cluster.commit_one()
    assert await incarnation_of(cluster) == 1
    await cluster.judge()


async def test_participant_that_is_killed_goes_on_and_nobody_else_notices(cluster):
    for _ in range(3):
        before = await sessions(cluster)
        await kill(cluster, VICTIM)
        await comes_back(cluster, before)


@pytest.mark.parametrize("point", sorted(POINTS))
async def test_death_at_this_step_loses_and_repeats_nothing(cluster, point):
    before = await sessions(cluster)
    cluster.ticket(point, of=VICTIM)
    if not point.startswith("log."):
        await cluster.begin()
    await cluster.has_ended_with(cluster.participants[VICTIM])
    await comes_back(cluster, before)


async def test_frozen_twin_acknowledges_nothing_more_and_ends(cluster):
    before = await sessions(cluster)
    twin = cluster.participants[VICTIM]
    cluster.signal(twin, signal.SIGSTOP)

    async def lost():
        return VICTIM not in await sessions(cluster)

    await until(lost, "the frozen one is lost")
    await cluster.join(VICTIM)
    cluster.signal(twin, signal.SIGCONT)
    await cluster.has_ended_with(twin, EXIT_ENDED)
    after = await sessions(cluster)
    assert {name for name in after if after[name] != before[name]} == {VICTIM}
    await cluster.commit_one()
    assert await incarnation_of(cluster) == 1
    await cluster.judge()


async def test_lost_disk_takes_everybody_to_the_newest_epoch(cluster):
    await kill(cluster, VICTIM)
    (cluster.folder / "local" / VICTIM / "turns.json").unlink()
    await cluster.join(VICTIM)
    await recovered(cluster, 2)
    await cluster.commit_one()
    await cluster.judge()


async def test_who_was_given_an_agent_goes_on_with_it_and_who_gave_it_without(tmp_path):
    """Neither takes anybody else back, though their programs name the same agents as ever."""
    policy = {**AUTO, "durability": "turn"}
    async with real_cluster(tmp_path, policy=policy, lease_ms=LEASE_MS, takes=True) as cluster:
        await cluster.commit_one()
        code, document, _ = await cleancut("agent", "move", "account/a1", "bank-3", "--dir", str(cluster.folder))
        assert code == 0, document
        for name in ("bank-3", "bank-1", "bank-3"):
            # Whoever dies before its life is written down has no log: an epoch holds nothing that no log has.
            await cluster.commit_one()
            await kill(cluster, name)
            await cluster.join(name)
            assert await incarnation_of(cluster) == 2
        await cluster.commit_one()
        assert "account/a1" in (await cluster.ask("bank-3", {"do": "incarnation"}))["agents"]
        assert "account/a1" not in (await cluster.ask("bank-1", {"do": "incarnation"}))["agents"]
        await cluster.judge()
