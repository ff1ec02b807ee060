"""A process that is killed is lost as soon as its machine refuses a connection: long before suspicion alone would do."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.e2e.real_cluster import real_cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

AUTO = {"recovery": "auto", "takeover_after_ms": 0, "max_rollbacks": 0}


async def cause_of(cluster, name):
    participants = (await cluster.call("GET", "/v1/participants?fresh=1"))["participants"]
    return next((each["cause"] for each in participants if each["id"] == name and each["state"] == "lost"), "")


async def test_killed_participants_are_lost_by_what_their_addresses_say(tmp_path):
    async with real_cluster(tmp_path, policy=AUTO) as cluster:
        await cluster.commit_one()
        for name in ("bank-2", "bank-3"):
            child = cluster.participants[name]
            child.kill()
            await child.wait()
        for name in ("bank-2", "bank-3"):
            cause = await until(lambda name=name: cause_of(cluster, name), f"{name} is lost")
            assert "nothing listens at ws://127.0.0.1:" in cause
        await asyncio.gather(cluster.join("bank-2"), cluster.join("bank-3"))
        await cluster.commit_one()
        await cluster.judge()


async def test_frozen_participant_is_not_taken_for_a_dead_one(tmp_path):
    """It takes no message, but its machine still takes connections for it."""
    async with real_cluster(tmp_path, policy=AUTO) as cluster:
        await cluster.commit_one()
        frozen = cluster.participants["bank-2"]
        cluster.signal(frozen, signal.SIGSTOP)
        try:
            cause = await until(lambda: cause_of(cluster, "bank-2"), "bank-2 is lost")
        finally:
            cluster.signal(frozen, signal.SIGCONT)
        assert "silent" in cause
        frozen.ended_on_purpose = True
        await frozen.wait()
        await cluster.join("bank-2")
        await cluster.commit_one()
        await cluster.judge()
