"""Coordinators whom strangers, operators and the system's scheduler make life hard: epochs go on, nobody is fenced."""

import asyncio
import contextlib
import resource
import signal

import pytest

from protocol.errors import SnapshotError
from tests.e2e.real_cluster import real_cluster, until

IDLE_COUNT = 1_100
"""More than the usual limit of open files."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@contextlib.contextmanager
def _few_files(count):
    """What is started inside gets the usual soft limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _sessions(cluster):
    document = await cluster.call("GET", "/v1/participants")
    return {each["id"]: (each["session"], each["state"]) for each in document["participants"]}


async def test_idle_connections_to_the_http_port_do_not_stop_epochs(tmp_path):
    """They are silent, prove nothing and cost nothing to open; and a process starts with 1,024 open files at most."""
    with _few_files(1024):
        opened = real_cluster(tmp_path, participants=2)
        cluster = await opened.__aenter__()
    try:
        await cluster.commit_one()
        before = await _sessions(cluster)
        [only] = cluster.coordinators
        host, _, port = only.http.rpartition(":")
        idle = await asyncio.gather(*(asyncio.open_connection(host, int(port)) for _ in range(IDLE_COUNT)))
        for _ in range(3):
            await cluster.commit_one()
        assert await _sessions(cluster) == before
        for _, writer in idle:
            writer.close()
        await cluster.judge()
    finally:
        await opened.__aexit__(None, None, None)


async def test_a_flood_of_triggers_starts_one_epoch_after_the_other_and_loses_no_participant(tmp_path):
    async with real_cluster(tmp_path, participants=2) as cluster:
        before = await _sessions(cluster)
        await cluster.call("PUT", "/v1/policy", {"kind": "periodic", "interval_ms": 500})
        answers = {"started": 0, "refused": 0}
        flooding = True

        async def flood():
            while flooding:
                try:
                    await cluster.call("POST", "/v1/epochs", {"reason": "flood " * 50})
                    answers["started"] += 1
                except SnapshotError:
                    answers["refused"] += 1

        floods = [asyncio.create_task(flood()) for _ in range(40)]
        await asyncio.sleep(4)  # how long the flood lasts
        flooding = False
        await asyncio.gather(*floods)
        ended = await cluster.call("GET", "/v1/status")
        assert ended["epochs"]["newest"] >= 3, (ended["epochs"], answers)
        assert answers["refused"] > 100, answers
        assert await _sessions(cluster) == before
        await cluster.call("PUT", "/v1/policy", {"kind": "manual"})
        await until(lambda: _nothing_open(cluster), "the last epoch ends")
        history = await cluster.judge()
        assert {record["state"] for record in history} == {"committed"}


async def _nothing_open(cluster):
    return not (await cluster.call("GET", "/v1/status"))["epochs"]["open"]


async def test_leader_that_sleeps_longer_than_all_leases_costs_nobody_its_session(tmp_path):
    """Participants go over to the next leader within their leases; the sleeper wakes up with old clocks and fences nobody."""
    async with real_cluster(tmp_path, coordinators=3, participants=3) as cluster:
        await cluster.commit_one()
        before = await _sessions(cluster)
        sleeper = await cluster.leader()
        everybody = cluster.coordinators
        cluster.signal(sleeper.child, signal.SIGSTOP)
        try:
            cluster.coordinators = [each for each in everybody if each is not sleeper]
            await cluster.commit_one()
            await asyncio.sleep(7)  # more than two leases of 3 s, on the sleeper's clock
            await cluster.commit_one()
            assert await _sessions(cluster) == before
        finally:
            cluster.coordinators = everybody
            cluster.signal(sleeper.child, signal.SIGCONT)
        for _ in range(3):
            await cluster.commit_one()
        await asyncio.sleep(4)  # a lease: whatever the sleeper began on waking has had its effect
        await cluster.commit_one()
        assert await _sessions(cluster) == before
        assert sleeper.child.running
        await cluster.judge()


async def test_only_coordinator_that_sleeps_longer_than_all_leases_costs_nobody_its_session(tmp_path):
    """Nobody takes over: on waking, its timers are due before it has read what lies in its sockets."""
    async with real_cluster(tmp_path, participants=2) as cluster:
        await cluster.commit_one()
        before = await _sessions(cluster)
        [only] = cluster.coordinators
        cluster.signal(only.child, signal.SIGSTOP)
        await asyncio.sleep(8)  # more than two leases
        cluster.signal(only.child, signal.SIGCONT)
        await cluster.commit_one()
        await asyncio.sleep(4)  # a lease
        await cluster.commit_one()
        assert await _sessions(cluster) == before
        await cluster.judge()
