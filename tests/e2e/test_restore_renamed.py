"""`epoch restore --map` with real processes: accounts come back under other names on another host, with all their money."""

import msgspec
import pytest

from simulations.demo import summary
from tests.e2e.real_cluster import cleancut, real_cluster, until
from tests.e2e.test_recovery import kill

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def test_accounts_come_back_under_other_names_with_their_money(tmp_path):
    async with real_cluster(tmp_path, policy={"recovery": "manual"}, lease_ms=2_000) as cluster:
        number = (await cluster.commit_one())["epoch"]
        await kill(cluster, "bank-3")
        cluster.participants["bank-3"].ended_on_purpose = True
        spec = cluster.specs["bank-3"]
        names = {agent: agent.replace("account/a", "account/z") for _, agent in _ids(spec.agents) if "/a" in agent}
        renamed = msgspec.structs.replace(
            spec,
            id="bank-4",
            agents=tuple((kind, name.replace("a", "z") if kind == "account" else name) for kind, name in spec.agents),
            accounts=tuple(names.get(each, each) for each in spec.accounts),
        )
        newcomer = await cluster.start_alone(renamed)

        async def registered():
            rows = (await cluster.call("GET", "/v1/participants?fresh=1"))["participants"]
            return {row["id"]: row["state"] for row in rows}.get("bank-4")

        async def lost():
            rows = (await cluster.call("GET", "/v1/participants?fresh=1"))["participants"]
            return {row["id"]: row["state"] for row in rows}["bank-3"] == "lost"

        await until(registered, "the newcomer registers")
        await until(lost, "bank-3 is lost")
        base = ("epoch", "restore", str(number), "--yes", "--dir", str(cluster.folder))
        code, _, text = await cleancut(*base)
        assert code == 6, "nobody hosts the old names"
        assert next(iter(names)) in text
        code, _, text = await cleancut(*base, "--map", "account/nobody=account/z3")
        assert code == 6
        assert "holds no agent account/nobody" in text
        maps = [part for old, new in names.items() for part in ("--map", f"{old}={new}")]
        code, document, text = await cleancut(*base, *maps)
        assert code == 0, text
        assert (document["state"], document["epoch"]) == ("done", number)
        again = (await cluster.commit_one())["epoch"]
        sums = summary.sum_bank(cluster.open_store(), again, cluster.keys, accounts=2 * 3)
        assert sums.consistent, sums.findings
        assert sums.total == sums.expected, "what still goes to the old names waits, and is not lost"
        manifest = summary.read_manifest(cluster.open_store(), again)
        held = {agent for member in manifest.members for agent in member.agents}
        assert held.issuperset(names.values())
        assert held.isdisjoint(names)
        await newcomer.stop()


def _ids(agents):
    return [(kind, f"{kind}/{name}") for kind, name in agents]
