"""What was taken on six hosts comes back on two, and then on twelve (D12); a twin that freezes inside a charge (A8)."""

import asyncio
import signal

import msgspec
import pytest

from simulations.demo import bank, charges, summary
from simulations.demo.cluster import LocalCluster
from simulations.demo.process import EXIT_ENDED
from simulations.demo.recovery import recovery_of
from tests.e2e.process import OddSpec
from tests.e2e.real_cluster import cleancut, real_cluster, until
from tests.e2e.test_recovery import kill, recovered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

AUTO = {"recovery": "auto", "takeover_after_ms": 0, "max_rollbacks": 0}


async def test_what_was_taken_on_six_hosts_is_restored_on_two_and_then_on_twelve(tmp_path):
    """In-flight messages come once, in order per original channel: every sum holds, and every cut verifies offline."""
    async with real_cluster(tmp_path, participants=6, policy=AUTO, takes=True) as cluster:
        record = await cluster.commit_one()
        while not record["in_flight"]:
            record = await cluster.commit_one()
        six = hosts_of(cluster, record["epoch"])
        assert len(six) == 6

        await asyncio.gather(*(kill(cluster, name) for name in cluster.specs))
        two = await others_start(cluster, "few", 2)
        last = await recovered(cluster, 2)
        assert last["epoch"] == record["epoch"], "and its messages in flight"
        assert last["members_count"] == 2
        record = await cluster.commit_one()
        assert sorted(record["members"]) == ["few-1", "few-2"]
        placed = hosts_of(cluster, record["epoch"])
        assert everybody(placed) == everybody(six)
        assert sorted(len(agents) for agents in placed.values()) == [7, 8], "fair shares"
        while not record["in_flight"]:
            record = await cluster.commit_one()

        for child in two:
            child.kill()
            await child.wait()
        await others_start(cluster, "many", 12)
        last = await recovered(cluster, 3)
        assert (last["epoch"], last["members_count"]) == (record["epoch"], 12)
        record = await cluster.commit_one()
        assert len(record["members"]) == 12
        again = hosts_of(cluster, record["epoch"])
        assert everybody(again) == everybody(six)
        assert sorted(len(agents) for agents in again.values()) == [1] * 9 + [2] * 3, "fair shares"
        await cluster.judge()


def hosts_of(cluster, epoch):
    """Participant -> its agents, as the manifest has them."""
    manifest = summary.read_manifest(cluster.open_store(), epoch)
    return {member.participant: list(member.agents) for member in manifest.members}


def everybody(placed):
    """All agents."""
    return sorted(agent for agents in placed.values() for agent in agents)


async def others_start(cluster, prefix, count):
    """Hosts that nobody knew take over what the lost ones had, once all of them are there."""
    await cluster.call("PUT", "/v1/policy", {"takeover_after_ms": 0})
    first = next(iter(cluster.specs.values()))
    names = [f"{prefix}-{index + 1}" for index in range(count)]
    specs = [msgspec.structs.replace(first, id=name, agents=(), odd=(), takes=True) for name in names]
    started = await asyncio.gather(*(cluster.start_alone(spec) for spec in specs))

    async def there():
        known = (await cluster.call("GET", "/v1/participants?fresh=1"))["participants"]
        return {each["id"] for each in known if each["state"] in {"joining", "member"}} >= set(names)

    await until(there, f"{count} spares have registered", 90)
    await cluster.call("PUT", "/v1/policy", {"takeover_after_ms": 200})
    return started


HELD = pytest.mark.parametrize("held", [True, False], ids=["held by an epoch", "held by none"])
LATE = "notebook/late"


@HELD
async def test_host_that_comes_back_has_what_it_was_given_and_nobody_waits_for_anybody_else(tmp_path, held):
    """Its own program does not name the agent. Nobody takes agents over here: what is not placed is waited for for ever."""
    async with real_cluster(tmp_path, policy=AUTO, takes=True) as cluster:
        await a_newcomer_gives_its_agent_to(cluster, "bank-3", held=held)
        await kill(cluster, "bank-3")
        await cluster.join("bank-3")
        await recovered(cluster, 3)
        placed = hosts_of(cluster, (await cluster.commit_one())["epoch"])
        assert (LATE in placed["bank-3"], placed["late"]) == (True, [])
        await cluster.judge()


@HELD
async def test_agent_is_at_home_again_if_the_host_that_it_was_given_to_never_comes_back(tmp_path, held):
    """Where no epoch holds it the rollback goes to before it was there; it begins there, and nobody waits for it."""
    async with real_cluster(tmp_path, policy={**AUTO, "takeover_after_ms": 500}, takes=True) as cluster:
        await a_newcomer_gives_its_agent_to(cluster, "bank-3", held=held)
        cluster.participants["bank-3"].ended_on_purpose = True
        await kill(cluster, "bank-3")
        await recovered(cluster, 3)
        placed = hosts_of(cluster, (await cluster.commit_one())["epoch"])
        assert LATE in placed["late"]
        assert sorted(placed) == ["bank-1", "bank-2", "late"]
        await cluster.judge()


async def a_newcomer_gives_its_agent_to(cluster, name, *, held):
    """It joins behind epoch 1. The command takes an epoch before it moves anything; a restore of epoch 1 does not."""
    assert (await cluster.commit_one())["epoch"] == 1
    first = next(iter(cluster.specs.values()))
    late = msgspec.structs.replace(first, id="late", agents=(), odd=(("notebook", "late"),), takes=False)
    await cluster.start_participant(late, module="tests.e2e.process")
    if held:
        code, document, _ = await cleancut("agent", "move", LATE, name, "--dir", str(cluster.folder))
        assert code == 0, document
    else:
        await cluster.call("POST", "/v1/epochs/1/restore", {"moves": {LATE: name}, "wait": True})
    await recovered(cluster, 2)


async def test_charges_of_one_that_never_comes_back_are_found_out_by_who_takes_its_agents(tmp_path):
    """Killed inside a charge, with more of them since the epoch. Its effect ledger is on its own disk: nobody asks that any more."""
    cluster = LocalCluster(tmp_path, coordinator_count=1)
    await asyncio.to_thread(cluster.prepare, {"kind": "manual", "pause_ms": 0})
    outside = await charges.start_bank(tmp_path)
    try:
        await cluster.start_coordinators()
        specs = [
            OddSpec(**msgspec.structs.asdict(spec), takes=True)
            for spec in bank.make_specs(cluster, outside.url, participants=3, transport="websocket")
        ]
        await asyncio.gather(*(cluster.start_participant(spec, module="tests.e2e.process") for spec in specs))
        await cluster.call("PUT", "/v1/policy", {**bank.POLICY, "interval_ms": 2_000, "takeover_after_ms": 500})
        await outside.wait_charge()
        cashier = next(spec for spec in specs if ("cashier", "main") in spec.agents)
        killed = cluster.participants[cashier.id]
        killed.ended_on_purpose = True
        for _ in range(3):
            charge = await outside.wait_charge()
        killed.kill()
        await killed.wait()

        async def taken():
            found = await recovery_of(cluster)
            return found and found["state"] == "running" and found["incarnation"] == 2 and found["last"]

        last = await until(taken, "incarnation 2 runs without it")
        assert last["members_count"] == 2
        await outside.wait_charge()
        await bank.last_epoch(cluster)
        result = bank.Result(participants=3)
        await bank.judge(cluster, outside, result)
        assert result.problems == []
        assert [each.order for each in outside.charges()].count(charge.order) == 1
        assert (result.charges_duplicated, result.charges_lost, result.rollbacks) == (0, 0, 1)
    finally:
        await cluster.stop()
        await outside.child.stop()


async def test_twin_that_freezes_inside_a_charge_and_wakes_after_its_successor_charges_nothing(tmp_path):
    """Its successor finds out at the bank what became of the charge. The twin's claim, result and sends are refused."""
    cluster = LocalCluster(tmp_path, coordinator_count=1)
    await asyncio.to_thread(cluster.prepare, {"kind": "manual", "pause_ms": 0})
    outside = await charges.start_bank(tmp_path)
    try:
        await cluster.start_coordinators()
        specs = bank.make_specs(cluster, outside.url, participants=3, transport="websocket")
        await asyncio.gather(*(cluster.start_participant(spec) for spec in specs))
        await cluster.call("PUT", "/v1/policy", bank.POLICY)
        await outside.wait_charge()
        cashier = next(spec for spec in specs if ("cashier", "main") in spec.agents)
        frozen = cluster.participants[cashier.id]
        frozen.ended_on_purpose = True
        charge = await outside.wait_charge()
        frozen.signal(signal.SIGSTOP)
        try:
            await cluster.start_participant(cashier)

            async def begun():
                found = await recovery_of(cluster)
                return found and found["state"] == "running" and found["incarnation"] == 2

            await until(begun, "incarnation 2 runs")
        finally:
            frozen.signal(signal.SIGCONT)
        assert await asyncio.wait_for(frozen.wait(), 30) == EXIT_ENDED
        log = frozen.log.read_text()
        assert "ended: FencedError: " in log
        assert "Traceback" not in log
        await outside.wait_charge()
        await bank.last_epoch(cluster)
        result = bank.Result(participants=3)
        await bank.judge(cluster, outside, result)
        assert result.problems == []
        assert [each.order for each in outside.charges()].count(charge.order) == 1
        assert result.rollbacks == 1
    finally:
        await cluster.stop()
        await outside.child.stop()
