"""Participants that die, freeze, fall silent, come and go while epochs are taken (D1, D14)."""

import asyncio
import json
import re
import signal

import pytest
import pytest_asyncio

from tests.e2e.process import EXIT_ENDED
from tests.e2e.real_cluster import real_cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

VICTIM = "bank-2"
LEASE_MS = 2_000
STEPS = {
    "local.frozen": "before its report: the cut is taken, its markers have not left",
    "pack.after_put": "before its report: a part of it is durable",
    "snapshot.after_put": "before its report: all of it is durable, and nobody knows",
    "report.before_send": "during its report: decided, not sent",
    "report.after_send": "after its report: it may have arrived",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory):
    """One coordinator and three participants for all of this file."""
    folder = tmp_path_factory.mktemp("participants")
    points = {**dict.fromkeys(STEPS, "exit"), "local.encoded": "sleep:1200"}
    async with real_cluster(folder, points=points, lease_ms=LEASE_MS) as made:
        made.conserved_through = (await made.commit_one())["epoch"]
        yield made


@pytest.mark.parametrize("step", STEPS)
async def test_participant_killed_at_this_step_aborts_its_epoch_by_name_and_may_come_back(cluster, step):
    """The epoch ends as soon as the lease does, long before its deadline; a new life under the old name is in the next one."""
    cluster.ticket(step, of=VICTIM)
    number = await cluster.begin()
    await cluster.has_ended_with(cluster.participants[VICTIM])
    assert cluster.fired(step) == [VICTIM]
    record = await cluster.ended(number, 12)
    if record["state"] == "aborted":
        assert record["abort"]["participant"] == VICTIM, record["abort"]
        assert re.search(r"lost|silent|lease|connection", record["abort"]["cause"]), record["abort"]
    else:
        assert step == "report.after_send", record
    why = (await cluster.call("GET", f"/v1/epochs/{number}/why"))["sentences"]
    assert record["state"] == "committed" or VICTIM in " ".join(why)
    old = record["members"][VICTIM]["session"]
    without = await cluster.commit_one()
    assert without["epoch"] > number
    await cluster.join(VICTIM)
    back = await cluster.commit_one()
    assert back["members"][VICTIM]["session"] > old
    await cluster.judge()


async def test_silent_participant_is_named_within_the_deadline_and_a_slack(cluster):
    """D1: shorter than its lease, longer than the deadline. The record names it, its phase, and when it was last heard."""
    await cluster.call("PUT", "/v1/policy", {"deadline_ms": 1_000})
    before = await cluster.commit_one()
    stopped = cluster.participants[VICTIM]
    cluster.signal(stopped, signal.SIGSTOP)
    try:
        number = await cluster.begin()
        record = await cluster.ended(number, 10)
    finally:
        cluster.signal(stopped, signal.SIGCONT)
        await cluster.call("PUT", "/v1/policy", {"deadline_ms": 15_000})
    assert record["state"] == "aborted"
    assert record["abort"]["participant"] == VICTIM
    assert record["abort"]["phase"] not in {"", "operator"}
    assert record["abort"]["cause"].startswith("deadline of 1 s")
    assert re.search(r"heard|heartbeat|silent", " ".join([record["abort"]["cause"], *await _why(cluster, number)]))
    assert 1_000 <= record["duration_ms"] < 2_000, "deadline and slack"
    left = [key for key in cluster.open_store().list("epochs/") if key.endswith(f"{number:020}.json")]
    assert left == []
    assert (await cluster.call("POST", f"/v1/epochs/{before['epoch']}/verify", {}))["ok"]
    following = await cluster.commit_one()
    assert following["epoch"] == number + 1
    assert following["members"][VICTIM]["session"] == before["members"][VICTIM]["session"], "it kept its session"
    await cluster.judge()


async def _why(cluster, number):
    return (await cluster.call("GET", f"/v1/epochs/{number}/why"))["sentences"]


async def test_participant_that_sleeps_past_its_lease_is_fenced_and_ends_with_a_clear_error(cluster):
    """SIGSTOP in the middle of an epoch, SIGCONT when it is lost: it has no effect any more and says why."""
    frozen = cluster.participants[VICTIM]
    cluster.signal(frozen, signal.SIGSTOP)
    number = await cluster.begin()
    try:
        record = await cluster.ended(number, 12)
        assert record["state"] == "aborted"
        assert record["abort"]["participant"] == VICTIM
        without = await cluster.commit_one()
        assert VICTIM not in without["members"]
    finally:
        cluster.signal(frozen, signal.SIGCONT)
    await cluster.has_ended_with(frozen, EXIT_ENDED)
    said = json.loads(await frozen.read_line())
    assert "FencedError" in said["ended"]
    assert re.search(r"session \d+", said["ended"])
    assert "Traceback" not in frozen.log.read_text().rsplit("FencedError", 1)[-1]
    await cluster.commit_one()
    await cluster.join(VICTIM)
    await cluster.commit_one()
    await cluster.judge()


async def test_a_join_a_leave_and_a_return_in_the_middle_of_an_epoch(cluster):
    """D14: while an epoch is open one leaves in order, one is removed and comes back under its name. Nobody waits for the dead."""
    cluster.ticket("local.encoded", of="bank-1")  # One participant's part takes 1.2 s: time for all of this.
    number = await cluster.begin()
    await until(lambda: cluster.fired("local.encoded"), "the epoch is held open")
    leaving = asyncio.create_task(cluster.ask("bank-3", {"do": "leave"}))
    record = await cluster.ended(number)
    assert record["state"] == "committed", record["abort"]
    assert sorted(record["members"]) == ["bank-1", "bank-2", "bank-3"], "the leaver's last state is in it"
    assert await leaving == {"ok": True}
    await cluster.has_ended_with(cluster.participants["bank-3"], 0)
    without = await cluster.commit_one()
    assert sorted(without["members"]) == ["bank-1", "bank-2"]

    number = await cluster.begin()
    joining = asyncio.create_task(cluster.join("bank-3"))
    cluster.participants[VICTIM].kill()
    record = await cluster.ended(number, 15)
    assert "bank-3" not in record["members"], "joins take effect between epochs"
    await joining
    after = await cluster.commit_one()
    assert "bank-3" in after["members"]
    assert VICTIM not in after["members"]
    await cluster.join(VICTIM)
    again = await cluster.commit_one()
    assert sorted(again["members"]) == ["bank-1", "bank-2", "bank-3"]
    assert again["members"][VICTIM]["session"] > record["members"][VICTIM]["session"]
    history = await cluster.judge()
    assert {each["state"] for each in history} == {"committed", "aborted"}
