"""Three coordinators as processes: elections in the middle of epochs, followers, writes that are passed on."""

from __future__ import annotations

import asyncio
import shutil
import signal

import aiohttp
import pytest

from protocol.digests import manifest_key
from protocol.ids import ClusterName
from protocol.messages import Register, RegisterRefused, decode_to_participant, encode_control
from protocol.storage import open_store
from tests.integration.coordinators import CLUSTER, Scripted, cluster, until

pytestmark = pytest.mark.slow


def manifests(running) -> list[str]:
    return list(open_store(running.store_url, ClusterName(CLUSTER), writable=False).list("epochs/"))


async def trigger(running, *, at, wait=True):
    status, document, _ = await running.call("POST", "/v1/epochs", {"reason": "test", "wait": wait}, at=at)
    assert status == 201, document
    return document


async def test_an_epoch_goes_on_when_its_leader_is_killed_in_the_middle(tmp_path):
    """D7: one report is in, the leader is killed, the other report goes to the next leader, which commits."""
    async with cluster(tmp_path, 3, deadline_ms=20_000) as running:
        leader = await running.leader()
        async with Scripted(running, "p1"), Scripted(running, "p2") as slow:
            slow.answers = False
            number = (await trigger(running, at=leader, wait=False))["epoch"]
            order = await until(lambda: slow.orders and slow.orders[-1], "p2 has the start order")

            async def reported():
                return (await running.get(f"/v1/epochs/{number}", at=leader))["reported_count"] == 1

            await until(reported, "p1's report is in the ledger")
            await leader.end(signal.SIGKILL)
            new = await running.leader(other_than=leader.name)
            again = await until(lambda: len(slow.orders) > 1 and slow.orders[-1], "p2 is told again")
            assert (again.epoch, again.session) == (order.epoch, order.session)
            assert again.term > order.term
            await slow.report(again)
            record = await running.epoch(number, "committed", at=new)
            assert len(record["terms"]) == 2
            assert manifests(running) == [manifest_key(number)]
            # The one that was killed comes back, follows, and knows all of it.
            slow.answers = True
            await leader.start()
            assert (await running.epoch(number, "committed", at=leader))["manifest"] == record["manifest"]
            assert (await trigger(running, at=leader))["state"] == "committed"


async def test_an_epoch_whose_leader_dies_before_any_report_ends_with_a_reason_or_commits(tmp_path):
    async with cluster(tmp_path, 3, deadline_ms=3_000) as running:
        leader = await running.leader()
        async with Scripted(running, "p1") as one, Scripted(running, "p2"):
            one.answers = False
            number = (await trigger(running, at=leader, wait=False))["epoch"]
            await leader.end(signal.SIGKILL)
            new = await running.leader(other_than=leader.name)
            record = await running.epoch(number, "aborted", at=new)
            assert record["abort"]["participant"] == "p1"
            assert record["abort"]["cause"]
            assert manifests(running) == []
            one.answers = True
            assert (await trigger(running, at=new))["state"] == "committed"


@pytest.mark.parametrize("step", ["epoch-started", "epoch-reported", "epoch-sealed", "epoch-committed"])
async def test_a_leader_that_is_killed_right_after_a_step_leaves_one_manifest_or_a_reason(tmp_path, step):
    """D7: what a follower sees in the log is the signal; participants answer at once, so later steps may be under way."""
    async with cluster(tmp_path, 3, deadline_ms=10_000) as running:
        leader = await running.leader()
        follower = next(each for each in running.coordinators if each is not leader)
        async with Scripted(running, "p1") as one, Scripted(running, "p2"):
            before = await trigger(running, at=leader)
            headers = {"Authorization": f"Bearer {running.keys.token('viewer')}"}
            async with running.session.get(f"{follower.url}/v1/events", headers=headers) as events:
                await events.content.readuntil(b"\n\n")
                # Its answer never comes: the leader is killed before.
                asking = asyncio.create_task(trigger(running, at=leader, wait=True))
                # The follower may hear of the epoch before only now.
                of_this = f'"epoch": {before["epoch"] + 1}'.encode()
                heard = b""
                while step.encode() not in heard or of_this not in heard:
                    heard = await asyncio.wait_for(events.content.readuntil(b"\n\n"), 10)
                await leader.end(signal.SIGKILL)
            await asyncio.gather(asking, return_exceptions=True)
            new = await running.leader(other_than=leader.name)
            number = before["epoch"] + 1
            record = await running.epoch(number, "committed", "aborted", at=new)
            assert record["state"] == "committed" or record["abort"]["cause"]
            assert len(manifests(running)) == 1 + (record["state"] == "committed")
            kept = await running.get(f"/v1/epochs/{before['epoch']}", at=new)
            assert (kept["manifest"], kept["members"]) == (before["manifest"], before["members"])
            after = await until(lambda: _commits(running, new), "the next epoch commits")
            assert after["epoch"] > number
            assert after["previous"] == (record["manifest"] or before["manifest"])
            heard = one.committed if record["state"] == "committed" else list(one.aborted)
            assert number in heard or number in one.committed


async def _commits(running, at):
    status, document, _ = await running.call("POST", "/v1/epochs", {"wait": True}, at=at)
    return document if status == 201 and document["state"] == "committed" else None


async def test_a_leader_that_slept_steps_down_and_there_is_one_manifest(tmp_path):
    """D6: the leader is stopped with an epoch open, another one finishes it and one more, then it wakes up."""
    async with cluster(tmp_path, 3, deadline_ms=20_000) as running:
        leader = await running.leader()
        async with Scripted(running, "p1"), Scripted(running, "p2") as slow:
            slow.answers = False
            number = (await trigger(running, at=leader, wait=False))["epoch"]
            await until(lambda: slow.orders, "p2 has the start order")
            slow.answers = True
            leader.process.send_signal(signal.SIGSTOP)
            others = [each for each in running.coordinators if each is not leader]
            record = None
            try:
                # Participants notice the silence by their own time-out; here they are told by a closed socket.
                for scripted in (slow,):
                    await scripted._socket.close()

                async def led():
                    for each in others:
                        status, document, headers = await running.call("GET", "/v1/status", at=each)
                        if status == 200 and headers["Cleancut-Leader"] == "1":
                            return each, document
                    return None

                new, _ = await until(led, "another leader")
                assert new is not leader
            finally:
                leader.process.send_signal(signal.SIGCONT)
            record = await running.epoch(number, "committed", "aborted", at=new)
            assert (await until(lambda: _follows(running, leader), "it follows"))["leader"] == new.name
            assert len(manifests(running)) == (record["state"] == "committed")
            seen = {each.name: (await running.epoch(number, record["state"], at=each))["manifest"] for each in others}
            assert len(set(seen.values())) == 1


async def _lets_go(running, one):
    """Its status, once it does not lead."""
    status, document, headers = await running.call("GET", "/v1/status", at=one)
    return document if status == 200 and headers["Cleancut-Leader"] == "0" else None


async def _follows(running, one):
    """Its status, once it knows another one as leader."""
    document = await _lets_go(running, one)
    return document if document and document["leader"] else None


async def test_a_leader_that_is_cut_off_from_the_others_lets_go_and_the_epoch_goes_on(tmp_path):
    """Participants and clients still reach it: it must not keep them."""
    async with cluster(tmp_path, 3, deadline_ms=20_000) as running:
        leader = await running.leader()
        others = [each for each in running.coordinators if each is not leader]
        async with Scripted(running, "p1"), Scripted(running, "p2") as slow:
            slow.answers = False
            number = (await trigger(running, at=leader, wait=False))["epoch"]
            order = await until(lambda: slow.orders and slow.orders[-1], "p2 has the start order")
            for line in running.lines_of(leader):
                line.cut()
            begun = asyncio.get_running_loop().time()
            await until(lambda: _lets_go(running, leader), "it lets go")
            # `slow` timing: 1.2 s without a quorum, and what this machine takes.
            assert asyncio.get_running_loop().time() - begun < 4
            status, document, _ = await running.call("GET", "/v1/status?fresh=1", at=leader)
            assert status == 503, document
            status, document, _ = await running.call("POST", "/v1/epochs", {}, at=leader)
            assert status == 503, document
            again = await until(
                lambda: slow.orders[-1].term > order.term and slow.orders[-1], "the next leader's order"
            )
            await slow.report(again)
            record = await running.epoch(number, "committed", at=others[0])
            for line in running.lines_of(leader):
                line.heal()
            assert (await running.epoch(number, "committed", at=leader))["manifest"] == record["manifest"]
            assert manifests(running) == [manifest_key(number)]


async def test_followers_answer_reads_and_pass_writes_on(tmp_path):
    async with cluster(tmp_path, 3) as running:
        leader = await running.leader()
        follower = next(each for each in running.coordinators if each is not leader)
        async with Scripted(running, "p1"):
            record = await trigger(running, at=follower)
            assert record["state"] == "committed"
            status, document, headers = await running.call("GET", "/v1/status?fresh=1", at=follower)
            assert status == 200
            assert headers["Cleancut-Leader"] == "0"
            assert document["leader"] == leader.name
            assert document["epochs"]["committed"] == 1
            assert [each["up"] for each in document["coordinators"]] == [True, True, True]
            status, document, headers = await running.call("PUT", "/v1/policy", {"pause_ms": 5}, at=follower)
            assert (status, document["pause_ms"], headers["Cleancut-Leader"]) == (200, 5, "0")
            status, document, _ = await running.call("POST", "/v1/epochs/1/abort", {}, at=follower)
            assert (status, document["error"]["code"]) == (409, "sealed")
            status, document, _ = await running.call("POST", "/v1/epochs/99/abort", {}, at=follower)
            assert (status, document["error"]["code"]) == (404, "no-epoch")


async def test_a_request_is_passed_on_once_and_never_again(tmp_path):
    async with cluster(tmp_path, 3) as running:
        leader = await running.leader()
        follower = next(each for each in running.coordinators if each is not leader)
        headers = {"Authorization": f"Bearer {running.keys.token('operator')}", "Cleancut-Forwarded-By": "c9"}
        async with running.session.post(f"{follower.url}/v1/epochs", json={}, headers=headers) as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "no-leader"


async def test_a_follower_points_participants_to_the_leader(tmp_path):
    async with cluster(tmp_path, 3) as running:
        leader = await running.leader()
        follower = next(each for each in running.coordinators if each is not leader)
        await until(lambda: _follows(running, follower), "the follower knows the leader")
        headers = {"Authorization": f"Bearer {running.keys.token('participant')}"}
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{follower.url}/v1/participant", headers=headers) as socket,
        ):
            await socket.send_bytes(encode_control(Register(cluster=CLUSTER, participant="p1", boot_id="0" * 32)))
            answer = decode_to_participant((await socket.receive(10)).data)
            assert isinstance(answer, RegisterRefused)
            assert (answer.code, answer.leader) == ("not-leader", leader.url)
            assert (await socket.receive(10)).type is aiohttp.WSMsgType.CLOSE


async def test_without_a_quorum_nothing_is_claimed_and_nothing_hangs(tmp_path):
    async with cluster(tmp_path, 3) as running:
        leader = await running.leader()
        others = [each for each in running.coordinators if each is not leader]
        await asyncio.gather(*(each.end(signal.SIGKILL) for each in others))

        async def stepped_down():
            _, document, headers = await running.call("GET", "/v1/status", at=leader)
            return headers["Cleancut-Leader"] == "0" and document

        await until(stepped_down, "the cut-off leader steps down", 5)
        status, document, _ = await running.call("GET", "/v1/status?fresh=1", at=leader)
        assert status in {409, 503}, document
        status, document, _ = await running.call("POST", "/v1/epochs", {}, at=leader)
        assert (status, document["error"]["code"]) == (503, "no-leader")
        status, document, _ = await running.call("GET", "/healthz", at=leader, role=None)
        assert status == 503
        assert "no leader" in document["reasons"]
        await others[0].start()
        again = await running.leader()
        status, document, _ = await running.call("GET", "/healthz", at=again, role=None)
        assert (status, document) == (200, {"ready": True, "reasons": []})


async def test_a_coordinator_whose_folder_is_lost_rejoins_and_then_counts_for_the_quorum(tmp_path):
    """It has all epochs again, and with it and one other the group goes on when the third one dies."""
    async with cluster(tmp_path, 3) as running:
        leader = await running.leader()
        async with Scripted(running, "p1"), Scripted(running, "p2"):
            first = await trigger(running, at=leader)
            lost = next(each for each in running.coordinators if each is not leader)
            await lost.end(signal.SIGKILL)
            shutil.rmtree(tmp_path / lost.name)
            second = await trigger(running, at=leader)
            lost.variables["CLEANCUT_REJOIN"] = "1"
            await lost.start()
            for record in (first, second):
                again = await running.epoch(record["epoch"], "committed", at=lost)
                assert again["manifest"] == record["manifest"]
            await until(lambda: "votes again" in lost.text(), "it votes again")
            await leader.end(signal.SIGKILL)
            new = await running.leader(other_than=leader.name)

            async def triggered():  # as soon as the participants have come over
                status, document, _ = await running.call("POST", "/v1/epochs", {"wait": True}, at=new)
                return document if status == 201 else None

            third = await until(triggered, "an epoch starts under the next leader")
            assert third["state"] == "committed"
            # It may stay set: the folder holds something now.
            await lost.end()
            await lost.start()
            again = await running.epoch(third["epoch"], "committed", at=lost)
            assert again["manifest"] == third["manifest"]
