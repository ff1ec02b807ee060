"""Which coordinator answers a read, and with what: one that has just started, followers, groups without a quorum."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.integration.coordinators import Scripted, cluster, until

pytestmark = pytest.mark.slow

READS = ("/v1/status", "/v1/participants", "/v1/topology", "/v1/epochs", "/v1/epochs/1", "/v1/epochs/1/why")
MORE_READS = ("/v1/epochs/latest/manifest", "/v1/epochs/1/agents", "/v1/policy", "/v1/events")


async def trigger(running, *, at, wait=True):
    status, document, _ = await running.call("POST", "/v1/epochs", {"reason": "test", "wait": wait}, at=at)
    assert status == 201, document
    return document


async def test_a_coordinator_that_cannot_catch_up_answers_no_read_but_readiness_and_doctor(tmp_path):
    async with cluster(tmp_path, 3) as running:
        leader = await running.leader()
        async with Scripted(running, "p1"):
            await trigger(running, at=leader)
        for each in running.coordinators:
            await each.end(signal.SIGKILL)
        # Alone of three: its journal has an epoch, but nobody can say whether that is the newest.
        alone = leader
        await alone.start()
        for path in (*READS, *MORE_READS):
            status, document, headers = await running.call("GET", path, at=alone)
            assert (status, document["error"]["code"]) == (503, "not-ready"), path
            assert document["error"]["hint"]
            assert headers["Retry-After"] == "1"
        status, document, _ = await running.call("POST", "/v1/epochs/1/verify", {}, at=alone)
        assert (status, document["error"]["code"]) == (503, "not-ready")
        status, document, _ = await running.call("GET", "/healthz", at=alone, role=None)
        assert status == 503
        assert "the replica has not caught up" in document["reasons"]
        document = await running.get("/v1/doctor", at=alone)
        assert {"leader", "replica"} <= {check["name"] for check in document["checks"] if not check["ok"]}
        # With a second one there is a quorum, and nothing is lost.
        await next(each for each in running.coordinators if each is not alone).start()

        async def listed():
            status, document, _ = await running.call("GET", "/v1/epochs", at=alone)
            return status == 200 and document["epochs"]

        assert [each["epoch"] for each in await until(listed, "it answers")] == [1]


async def test_a_restarted_follower_never_answers_without_the_newest_epochs(tmp_path):
    async with cluster(tmp_path, 3) as running:
        leader = await running.leader()
        follower = next(each for each in running.coordinators if each is not leader)
        async with Scripted(running, "p1"):
            await trigger(running, at=leader)
            await follower.end(signal.SIGKILL)
            for _ in range(3):
                newest = (await trigger(running, at=leader))["epoch"]
            await follower.start()
            answers = []

            async def answered():
                status, document, _ = await running.call("GET", "/v1/epochs", at=follower)
                answers.append((status, document))
                return status == 200

            await until(answered, "it answers")
            assert answers[-1][1]["epochs"][0]["epoch"] == newest == 4


async def test_all_coordinators_killed_at_once_keep_history_and_numbers(tmp_path):
    async with cluster(tmp_path, 3) as running:
        leader = await running.leader()
        async with Scripted(running, "p1"):
            kept = await trigger(running, at=leader)
            for each in running.coordinators:
                await each.end(signal.SIGKILL)
            for each in running.coordinators:
                await each.start()
            leader = await running.leader()
            found = await running.epoch(kept["epoch"], "committed", at=leader)
            assert (found["manifest"], found["members"]) == (kept["manifest"], kept["members"])

            async def next_one():
                status, document, _ = await running.call("POST", "/v1/epochs", {"wait": True}, at=leader)
                return status == 201 and document

            after = await until(next_one, "the next epoch")
            assert (after["state"], after["previous"]) == ("committed", kept["manifest"])
            assert after["epoch"] == kept["epoch"] + 1


async def test_a_coordinator_whose_journal_disk_is_full_ends_with_a_sentence_and_the_others_go_on(tmp_path):
    async with cluster(tmp_path, 3) as running:
        leader = await running.leader()
        full = next(each for each in running.coordinators if each is not leader)
        ticket = tmp_path / "full"
        await full.end()
        full.variables = {
            "CLEANCUT_ALLOW_FAILPOINTS": "1",
            "CLEANCUT_FAILPOINTS": f"journal.before_sync=error:ENOSPC?{ticket}",
        }
        await full.start()
        async with Scripted(running, "p1"):
            leader = await running.leader()
            ticket.touch()
            assert (await trigger(running, at=leader))["state"] == "committed"
            assert await asyncio.wait_for(full.process.wait(), 20) == 1
            (line,) = [each for each in full.text().splitlines() if "this coordinator ends: " in each]
            assert "ENOSPC" in line
            assert "free space" in line
            assert "Traceback" not in full.text()
            leader = await running.leader()
            newest = (await trigger(running, at=leader))["epoch"]
            # There is room again.
            full.variables = {}
            await full.start()
            assert (await running.epoch(newest, "committed", at=full))["state"] == "committed"


async def test_live_facts_are_the_leaders_whoever_is_asked(tmp_path):
    async with cluster(tmp_path, 3, deadline_ms=20_000) as running:
        leader = await running.leader()
        follower = next(each for each in running.coordinators if each is not leader)
        async with Scripted(running, "p1") as slow:
            slow.answers = False
            number = (await trigger(running, at=follower, wait=False))["epoch"]
            status, document, headers = await running.call("GET", "/v1/participants?fresh=1", at=follower)
            assert (status, headers["Cleancut-Leader"]) == (200, "0")
            assert document["participants"][0]["heartbeat_age_ms"] is not None
            assert document["participants"][0]["up"] is True
            record = await running.get(f"/v1/epochs/{number}?fresh=1", at=follower)
            assert record["members"]["p1"]["phase"] == "record"
            assert record["duration_ms"] is not None
            told = await running.get(f"/v1/epochs/{number}/why?fresh=1", at=follower)
            assert "p1 has been waiting to record its state" in " ".join(told["sentences"])
            listed = await running.get("/v1/epochs?fresh=1", at=follower)
            assert listed["epochs"][0]["duration_ms"] is not None


async def test_a_leader_that_does_not_answer_does_not_keep_a_follower_from_answering(tmp_path):
    async with cluster(tmp_path, 3) as running:
        leader = await running.leader()
        follower = next(each for each in running.coordinators if each is not leader)
        async with Scripted(running, "p1"):
            await trigger(running, at=follower)
            leader.process.send_signal(signal.SIGSTOP)
            status, document, _ = await running.call("GET", "/v1/participants", at=follower)
            assert (status, [each["id"] for each in document["participants"]]) == (200, ["p1"])


async def test_doctor_finds_nothing_wrong_with_an_empty_cluster(tmp_path):
    async with cluster(tmp_path) as running:
        await running.leader()
        document = await running.get("/v1/doctor")
        assert document["ok"] is True, document
        details = {check["name"]: check["detail"] for check in document["checks"]}
        assert (details["participants"], details["epochs"]) == ("no participants yet", "no epochs yet")


async def test_doctor_says_when_all_participants_are_gone(tmp_path):
    async with cluster(tmp_path, extra="lease_ms = 1000") as running:
        async with Scripted(running, "p1"):
            pass

        async def wrong():
            checks = (await running.get("/v1/doctor"))["checks"]
            return next(
                (each for each in checks if each["name"] == "participants" and "all are gone" in each["detail"]), None
            )

        found = await until(wrong, "p1 is lost")
        assert (found["ok"], found["detail"]) == (False, "all are gone; lost: p1")
