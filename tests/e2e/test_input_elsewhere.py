"""Acknowledged input whose agent others have taken: its first host comes back and replays it, and it happens once."""

from contextlib import asynccontextmanager

import pytest

from protocol.reading import EpochReader
from simulations.demo import summary
from tests.e2e.real_cluster import cleancut, real_cluster, until
from tests.e2e.test_recovery import kill, recovered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FIRST_HOST = "bank-3"
AGENT = "notebook/main"
NOTES = ["one", "two", "three"]


async def test_who_comes_back_after_others_took_its_agents_replays_what_it_had_acknowledged(tmp_path):
    """Also behind an epoch that they have committed without it. Who has the agent now knows the tokens then."""
    async with notes_acknowledged_and_taken_over(tmp_path) as cluster:
        assert await noted(cluster) == []
        await cluster.join(FIRST_HOST)
        await has_replayed(cluster, FIRST_HOST, 3)
        assert await noted(cluster) == NOTES
        for text in NOTES:
            again = await give(cluster, text)
            assert again["participant"] != FIRST_HOST
            assert again["duplicate"]
        assert await noted(cluster) == NOTES
        await cluster.judge()


async def test_what_is_given_again_at_the_new_host_before_the_first_one_is_back_happens_once(tmp_path):
    """It is in both logs then. All go back to before both, and it comes from both again."""
    async with notes_acknowledged_and_taken_over(tmp_path) as cluster:
        again = await give(cluster, "two")
        assert again["participant"] != FIRST_HOST
        assert not again["duplicate"]
        await cluster.join(FIRST_HOST)
        await has_replayed(cluster, FIRST_HOST, 3)
        assert await noted(cluster) == ["two", "one", "three"]

        folder = str(cluster.folder)
        code, document, _ = await cleancut("epoch", "restore", "1", "--reason", "test", "--yes", "--dir", folder)
        assert (code, document["state"], document["incarnation"]) == (0, "done", 3)
        await has_replayed(cluster, FIRST_HOST, 6)
        await has_replayed(cluster, again["participant"], 1)
        assert sorted(await noted(cluster)) == sorted(NOTES)
        await cluster.judge()


@asynccontextmanager
async def notes_acknowledged_and_taken_over(folder):
    """Epoch 1 holds no note, the killed host's log has all of them, and the others have its agents."""
    policy = {"recovery": "auto", "takeover_after_ms": 500, "max_rollbacks": 0}
    odd = {FIRST_HOST: [("notebook", "main")]}
    async with real_cluster(folder, policy=policy, odd=odd, takes=True) as cluster:
        assert (await cluster.commit_one())["epoch"] == 1
        for text in NOTES:
            taken = await give(cluster, text)
            assert (taken["participant"], taken["duplicate"]) == (FIRST_HOST, False)
        cluster.participants[FIRST_HOST].ended_on_purpose = True
        await kill(cluster, FIRST_HOST)
        last = await recovered(cluster, 2)
        assert (last["epoch"], last["incarnation"], last["members_count"]) == (1, 2, 2)
        yield cluster


async def give(cluster, text):
    """By the coordinators' API, as a client that gives it again with the same token when it is not sure."""
    note = {"type": "Note", "body": {"text": text}, "token": f"note {text}"}
    return await cluster.call("POST", f"/v1/agents/{AGENT}/messages", note)


async def has_replayed(cluster, name, count):
    """So much of the log of input, since the process began."""

    async def replayed():
        return (await cluster.statistics(name))["inputs_replayed"] == count

    await until(replayed, f"{name} has replayed {count} notes")


async def noted(cluster):
    """What the agent's state has in a new epoch that holds no note on its way."""

    async def settled():
        manifest = summary.read_manifest(cluster.open_store(), (await cluster.commit_one())["epoch"])
        reader = EpochReader(cluster.open_store(), manifest)
        if any(envelope.type == "Note" for envelope in summary.envelopes(reader, manifest)):
            return None
        return (summary.fields(reader, AGENT)["noted"],)

    (found,) = await until(settled, "no note is on its way any more")
    return found
