"""A leader that is stopped, not killed, and wakes up when another one has gone on (D6); and the journal's crash points."""

import asyncio
import shutil
import signal

import aiohttp
import pytest

from protocol.errors import SnapshotError
from tests.e2e.real_cluster import MANUAL, RealCluster, real_cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


async def test_leader_that_sleeps_after_all_reports_wakes_up_deposed(tmp_path):
    """SIGSTOP with all reports in, and again with the seal logged: the next leader commits that epoch and one more, then SIGCONT.

    The sleeper's own work goes on when it wakes: it assembles, and writes the manifest. There must be one manifest per
    epoch all the same, and no read that it answers as a leader.
    """
    points = {"cut.before_assemble": "sleep:1500", "manifest.before_put": "sleep:1500"}
    async with real_cluster(tmp_path, coordinators=3, participants=2, points=points) as cluster:
        for point, state in (("cut.before_assemble", "started"), ("manifest.before_put", "sealed")):
            await cluster.commit_one()
            sleeper = await cluster.leader()
            ticket = cluster.ticket(point)
            number = await cluster.begin()
            await until(lambda ticket=ticket: not ticket.exists(), "the leader has got that far")
            record = await cluster.epoch(number)
            assert (record["state"], record["reported_count"]) == (state, 2)
            cluster.signal(sleeper.child, signal.SIGSTOP)
            others = [each for each in cluster.coordinators if each is not sleeper]
            try:
                record, following = await _go_on_without(cluster, others, number)
            finally:
                cluster.signal(sleeper.child, signal.SIGCONT)
            assert await _never_answers_as_leader(cluster, sleeper, following["epoch"]) > 0
            assert cluster.fired(point) == [sleeper.id]
            assert following["previous"] == record["manifest"]
            assert sleeper.child.running
            await cluster.judge()


async def _go_on_without(cluster, others, number):
    """The others elect a leader, which commits the epoch and another one. Only they are asked: a stopped process hangs."""
    everybody = cluster.coordinators
    cluster.coordinators = others
    try:
        await cluster.wait_leader()
        record = await cluster.ended(number)
        assert record["state"] == "committed", record
        return record, await cluster.commit_one()
    finally:
        cluster.coordinators = everybody


async def _never_answers_as_leader(cluster, sleeper, newest):
    """From its first breath until it follows: no fresh read is answered as the leader, none shows the past."""
    answers = 0
    loop = asyncio.get_running_loop()
    limit = loop.time() + 40
    while loop.time() < limit:
        try:
            status, document, as_leader = await cluster.status_of(sleeper, "?fresh=1")
        except (aiohttp.ClientError, TimeoutError, OSError):
            continue
        if status != 200:
            continue
        answers += 1
        assert not as_leader, document
        assert document["epochs"]["newest"] >= newest, document
        if document["leader"] not in (None, sleeper.id):
            return answers
    raise AssertionError("it does not follow")


async def test_coordinator_that_dies_at_a_step_of_its_journal_comes_back_with_all_that_was_acknowledged(tmp_path):
    """One coordinator, so that nobody else knows: what was committed before the crash is what it starts with (I34)."""
    points = ["journal.before_sync", "journal.after_sync", "journal.before_vote_sync"]
    async with real_cluster(tmp_path, participants=1, points=dict.fromkeys(points, "exit")) as cluster:
        [only] = cluster.coordinators
        committed = await cluster.commit_one()
        for point in points:
            if point == "journal.before_vote_sync":
                only.child.kill()
                await only.child.wait()
                cluster.ticket(point)
                await cluster.start_coordinator(only)
                await cluster.has_ended_with(only.child)
            else:
                cluster.ticket(point)
                trigger = asyncio.create_task(cluster.call("POST", "/v1/epochs", {}))
                await cluster.has_ended_with(only.child)
                with pytest.raises(SnapshotError):
                    await trigger
            assert cluster.fired(point) == [only.id]
            await cluster.restart(only)
            await cluster.leader()
            assert (await cluster.epoch(committed["epoch"]))["manifest"] == committed["manifest"]
            following = await cluster.commit_one()
            assert following["epoch"] > committed["epoch"]
            committed = following
        await cluster.judge()


async def test_coordinator_that_dies_while_its_journal_is_made_starts_the_next_time(tmp_path):
    """The steps of a compaction, on the one file that every start of a new coordinator makes by them."""
    points = ["journal.before_rewrite", "file.before_rename", "file.after_rename", "journal.after_rewrite"]
    cluster = RealCluster(tmp_path, coordinator_count=1)
    cluster.failpoints(dict.fromkeys(points, "exit"))
    (tmp_path / "tickets").mkdir()
    cluster.prepare(MANUAL)
    [only] = cluster.coordinators
    try:
        for point in points:
            cluster.ticket(point)
            await cluster.start_coordinator(only)
            await cluster.has_ended_with(only.child)
            assert cluster.fired(point) == [only.id]
            if point == "file.after_rename":
                # Its journal is there and whole: it needs no other one. The last point is for one that is made anew.
                await cluster.start_coordinators()
                await only.child.stop()
                shutil.rmtree(tmp_path / only.id)
        await cluster.start_coordinator(only)
        await cluster.wait_leader()
    finally:
        await cluster.stop()
