"""One coordinator as a process: epochs from start to manifest, and what can come between."""

from __future__ import annotations

import asyncio
import signal

import pytest

from protocol.digests import digest, manifest_key
from protocol.documents import decode_manifest, verify_signature
from protocol.ids import ClusterName
from protocol.manifest import IncomingCut
from protocol.messages import (
    EpochFailed,
    Fenced,
    Leave,
    Left,
    Register,
    RegisterRefused,
    ReportRefused,
)
from protocol.storage import open_store
from tests.integration.coordinators import CLUSTER, Scripted, cluster, until

pytestmark = pytest.mark.slow


def stored_manifest(running, epoch):
    """The manifest in the store, its signature checked."""
    store = open_store(running.store_url, ClusterName(CLUSTER), writable=False)
    data = store.get(manifest_key(epoch), size_max=1 << 20)
    manifest = decode_manifest(data)
    assert verify_signature(data, manifest, running.keys)
    return manifest, digest(data)


async def trigger(running, *, wait=True, at=None, reason="test"):
    status, document, _ = await running.call("POST", "/v1/epochs", {"reason": reason, "wait": wait}, at=at)
    assert status == 201, document
    return document


async def test_an_epoch_of_two_participants_commits_and_its_manifest_is_in_the_store(tmp_path):
    async with cluster(tmp_path) as running:
        await running.leader()
        async with Scripted(running, "p1") as one, Scripted(running, "p2") as two:
            record = await trigger(running)
            assert record["state"] == "committed"
            assert sorted(record["members"]) == ["p1", "p2"]
            manifest, named = stored_manifest(running, record["epoch"])
            assert named == record["manifest"]
            assert [(each.source, each.target) for each in manifest.channels] == [("p1", "p2"), ("p2", "p1")]
            assert manifest.policy == "test"
            await until(lambda: one.committed == two.committed == [1], "both heard of the commit")
            second = await trigger(running)
            assert stored_manifest(running, second["epoch"])[0].previous == named
            latest = await running.get("/v1/epochs/latest")
            assert latest["epoch"] == 2
            listed = await running.get("/v1/epochs?limit=1")
            assert [each["epoch"] for each in listed["epochs"]] == [2]
            assert listed["more"]
            assert [each["epoch"] for each in (await running.get("/v1/epochs?before=2"))["epochs"]] == [1]
            status, text, headers = await running.call("GET", "/v1/epochs/1/manifest")
            assert status == 200
            assert text["epoch"] == 1
            assert headers["Cleancut-Manifest"] == named


async def test_a_report_after_the_end_of_its_epoch_is_refused_and_changes_nothing(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1"), Scripted(running, "p2") as late:
        late.answers = False
        number = (await trigger(running, wait=False))["epoch"]
        order = await until(lambda: late.orders and late.orders[-1], "p2 has the start order")
        status, record, _ = await running.call("POST", f"/v1/epochs/{number}/abort", {"reason": "no time"})
        assert status == 200
        assert record["abort"] == record["abort"] | {"participant": None, "phase": "operator", "cause": "no time"}
        await until(lambda: number in late.aborted, "p2 heard of the abort")
        await late.report(order)
        refused = await until(
            lambda: [each for each in late.received if isinstance(each, ReportRefused)], "p2's report is refused"
        )
        assert refused[0].epoch == number
        assert (await running.get(f"/v1/epochs/{number}"))["state"] == "aborted"
        status, document, _ = await running.call("POST", f"/v1/epochs/{number}/abort", {})
        assert (status, document["error"]["code"]) == (409, "ended")
        late.answers = True
        assert (await trigger(running))["state"] == "committed"


async def test_a_silent_participant_is_named_when_the_deadline_is_over(tmp_path):
    async with (
        cluster(tmp_path, deadline_ms=700) as running,
        Scripted(running, "p1"),
        Scripted(running, "p2") as silent,
    ):
        silent.answers = False
        record = await trigger(running)
        assert record["state"] == "aborted"
        assert record["abort"]["participant"] == "p2"
        assert record["abort"]["phase"] == "record"
        assert 700 <= record["duration_ms"] < 2_500
        why = await running.get(f"/v1/epochs/{record['epoch']}/why")
        assert "p2 never said that it recorded its state" in " ".join(why["sentences"])


async def test_a_participant_that_fails_its_part_aborts_the_epoch_with_its_cause(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1"), Scripted(running, "p2") as failing:
        failing.answers = False
        number = (await trigger(running, wait=False))["epoch"]
        order = await until(lambda: failing.orders and failing.orders[-1], "p2 has the start order")
        cause = "store put failed: ENOSPC: No space left\x1b[31m on device"
        await failing.send(
            EpochFailed(
                session=failing.session, incarnation=order.incarnation, epoch=number, phase="upload", cause=cause
            )
        )
        record = await running.epoch(number, "aborted")
        assert record["abort"]["participant"] == "p2"
        assert record["abort"]["phase"] == "upload"
        assert "ENOSPC" in record["abort"]["cause"]
        assert "\x1b" not in record["abort"]["cause"]
        assert "\x1b" not in running.c1.text()


async def test_a_cut_that_is_not_consistent_is_refused_and_the_channel_named(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1"), Scripted(running, "p2") as liar:
        liar.answers = False
        number = (await trigger(running, wait=False))["epoch"]
        order = await until(lambda: liar.orders and liar.orders[-1], "p2 has the start order")
        honest = liar.snapshot(order).incoming[0]
        orphan = IncomingCut(source="p1", received=3, closed_at=3, digest=honest.digest, items=0, messages=0)
        await liar.report(order, incoming=(orphan,))
        record = await running.epoch(number, "aborted")
        assert record["abort"]["participant"] == "p2"
        assert record["abort"]["phase"] == "assemble"
        assert "p1->p2" in record["abort"]["cause"]
        status, document, _ = await running.call("GET", f"/v1/epochs/{number}/manifest")
        assert (status, document["error"]["code"]) == (409, "not-committed")


async def test_a_participant_that_vanishes_is_lost_and_its_epoch_aborts(tmp_path):
    async with cluster(tmp_path, extra="lease_ms = 1000") as running, Scripted(running, "p1"):
        async with Scripted(running, "p2") as leaver:
            leaver.answers = False
            number = (await trigger(running, wait=False))["epoch"]
            await until(lambda: leaver.orders, "p2 has the start order")
        record = await running.epoch(number, "aborted")
        assert record["abort"]["participant"] == "p2"
        assert record["abort"]["phase"] == "lost"
        states = {each["id"]: each["state"] for each in (await running.get("/v1/participants"))["participants"]}
        assert states == {"p1": "member", "p2": "lost"}
        alone = await until(lambda: _committed_alone(running), "p1 alone commits an epoch")
        assert sorted(alone["members"]) == ["p1"]


async def _committed_alone(running):
    status, document, _ = await running.call("POST", "/v1/epochs", {"wait": True})
    return document if status == 201 and document["state"] == "committed" else None


async def test_an_orderly_leave_takes_effect_between_epochs(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1"), Scripted(running, "p2") as leaver:
        await leaver.send(Leave(session=leaver.session))
        await until(lambda: [each for each in leaver.received if isinstance(each, Left)], "p2 may go")
        topology = await running.get("/v1/topology")
        assert [each["id"] for each in topology["members"]] == ["p1"]
        assert topology["channels"] == []


async def test_an_id_that_is_held_by_another_process_is_refused(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1") as holder:
        other = Scripted(running, "p1")
        other._task = asyncio.create_task(other._run())
        refused = await until(
            lambda: [each for each in other.received if isinstance(each, RegisterRefused)], "the second is refused"
        )
        await other.vanish()
        assert refused[0].code == "id-taken"
        assert holder.session == 1
        assert (await trigger(running))["state"] == "committed"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster": "other"}, "wrong-cluster"),
        ({"participant": "../p1"}, "bad-name"),
        ({"participant": "p\x00"}, "bad-name"),
        ({"participant": "x" * 300}, "bad-name"),
        ({"participant": "<img src=x>"}, "bad-name"),
        ({"agents": ("buyer/\x1b[31m",)}, "bad-name"),
        ({"protocol": 99}, "wrong-version"),
        ({"session": 77}, "fenced"),
        ({"agents": ("buyer/p1",)}, "agent-taken"),
    ],
)
async def test_a_registration_that_cannot_be_is_refused_with_its_code(tmp_path, changes, code):
    async with cluster(tmp_path) as running, Scripted(running, "p1"):
        other = Scripted(running, "p2")
        import aiohttp

        from protocol.messages import decode_to_participant, encode_control

        headers = {"Authorization": f"Bearer {running.keys.token('participant')}"}
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{running.c1.url}/v1/participant", headers=headers) as socket,
        ):
            fields = {"cluster": CLUSTER, "participant": "p2", "boot_id": other.boot_id, "agents": ("buyer/p2",)}
            await socket.send_bytes(encode_control(Register(**{**fields, **changes})))
            answer = decode_to_participant((await socket.receive(10)).data)
        assert isinstance(answer, RegisterRefused | Fenced)
        assert isinstance(answer, Fenced) or answer.code == code
        assert (await trigger(running))["state"] == "committed"


async def test_a_coordinator_that_was_killed_goes_on_with_its_history_and_the_sessions(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1") as one, Scripted(running, "p2") as two:
        assert (await trigger(running))["state"] == "committed"
        sessions = (one.session, two.session)
        await running.c1.end(signal.SIGKILL)
        await running.c1.start()
        await running.leader()
        await until(
            lambda: len([each for each in one.received if each.__class__.__name__ == "Registered"]) == 2, "back"
        )
        record = await until(lambda: _committed_alone(running), "an epoch after the restart")
        assert record["epoch"] == 2
        assert (one.session, two.session) == sessions
        assert (await running.get("/v1/epochs/1"))["state"] == "committed"
        assert record["previous"] == (await running.get("/v1/epochs/1"))["manifest"]


async def test_the_policy_is_changed_live_and_starts_epochs_by_itself(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1"):
        assert (await running.get("/v1/policy"))["kind"] == "manual"
        status, document, _ = await running.call("PUT", "/v1/policy", {"kind": "periodic", "interval_ms": 50})
        assert status == 200
        assert document["interval_ms"] == 50
        assert document["deadline_ms"] == 8_000
        record = await running.epoch(3, "committed")
        assert record["reason"] == "periodic"
        await running.call("PUT", "/v1/policy", {"kind": "manual"})
        for body, code in (({"kind": "hourly"}, "bad-value"), ({"intervall_ms": 1}, "unknown-key"), ([], "bad-json")):
            status, document, _ = await running.call("PUT", "/v1/policy", body)
            assert (status, document["error"]["code"]) == (400, code)
        status, document, _ = await running.call("PUT", "/v1/policy", {"interval_ms": 0})
        assert (status, document["error"]["code"]) == (400, "bad-value")


async def test_a_trigger_without_members_and_one_beside_an_open_epoch_are_refused(tmp_path):
    async with cluster(tmp_path) as running:
        await running.leader()
        status, document, _ = await running.call("POST", "/v1/epochs", {})
        assert (status, document["error"]["code"]) == (409, "no-members")
        assert document["error"]["hint"]
        async with Scripted(running, "p1") as silent:
            silent.answers = False
            await trigger(running, wait=False)
            status, document, _ = await running.call("POST", "/v1/epochs", {})
            assert (status, document["error"]["code"]) == (409, "epoch-open")


async def test_sigterm_ends_in_order_with_open_connections(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1"):
        assert running.c1.ready == f"coordinator c1 of {CLUSTER} ready at {running.c1.url}"
        assert await running.c1.end(signal.SIGTERM) == 0
        assert "ended" in running.c1.text().splitlines()[-1]
        await running.c1.start()
        assert await running.c1.end(signal.SIGINT) == 0


async def test_neither_secret_nor_token_is_in_any_output(tmp_path):
    async with cluster(tmp_path) as running, Scripted(running, "p1"):
        await trigger(running)
        await running.call("GET", "/v1/status", role=None)
        told = [str(await running.call("GET", path)) for path in ("/v1/status", "/v1/doctor", "/metrics", "/healthz")]
        await running.c1.end()
        secret = running.secret_file.read_text().strip()
        for text in (running.c1.text(), running.c1.ready, *told):
            assert secret not in text
            assert "cc1." not in text
