"""A leader is killed between seal and manifest, and what only the manifest could be made from rots: real processes, real files."""

import os
from pathlib import Path

import pytest
import pytest_asyncio

from protocol.digests import manifest_key, snapshot_key
from protocol.tombstones import decode_tombstone
from tests.e2e.real_cluster import cleancut, real_cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

POINTS = {
    # Long enough to spoil a file that the leader has read for the last time.
    "seal.before_propose": "sleep:700",
    "seal.applied": "exit",
    "tombstone.before_put": "exit",
    "tombstone.after_put": "exit",
    "forsake.before_propose": "exit",
    "forsake.applied": "exit",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sealed")
    async with real_cluster(folder, coordinators=3, points=POINTS, policy={"deadline_ms": 20_000}) as made:
        await made.commit_one()
        yield made


async def orphaned(cluster, spoil):
    """The epoch that its leader left sealed, with a part that is not what was sealed; and the leader."""
    victim = await cluster.leader()
    parts = os.path.join(cluster.store, cluster.name, "snapshots")
    before = set(os.listdir(parts))
    ticket = cluster.ticket("seal.before_propose")
    cluster.ticket("seal.applied")
    number = await cluster.begin()

    async def is_about_to_seal():
        return not ticket.exists()

    await until(is_about_to_seal, "the leader has read all parts")
    spoil(Path(parts, min(set(os.listdir(parts)) - before)))
    await cluster.has_ended_with(victim.child)
    await cluster.wait_leader(other_than=victim.id)
    assert (await cluster.epoch(number))["state"] == "sealed"
    return number, victim


async def goes_on(cluster, number, victim):
    """Nothing of it is left but its history: the next epoch commits, and the store has no manifest of it."""
    stone = decode_tombstone(cluster.open_store().get(manifest_key(number), size_max=1000))
    assert stone is not None
    assert stone.epoch == number
    await cluster.restart(victim)
    assert (await cluster.commit_one())["epoch"] == number + 1
    await cluster.judge()


def flip(path):
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


async def test_an_epoch_whose_part_has_rotted_is_named_given_up_and_followed_by_the_next(cluster):
    number, victim = await orphaned(cluster, flip)

    leader = await cluster.leader()

    async def doctor_names_it():
        async with cluster._session.get(f"http://{leader.http}/v1/doctor") as response:
            checks = {each["name"]: each for each in (await response.json())["checks"]}
        return not checks["epochs"]["ok"] and "cannot be committed" in checks["epochs"]["detail"] and checks["epochs"]

    found = await until(doctor_names_it, "doctor says what is wrong")
    assert f"epoch {number} is sealed and cannot be committed: " in found["detail"]
    assert "expected digest" in found["detail"]
    assert f"`cleancut epoch abort {number}`" in found["hint"]
    assert (await cluster.status_of(leader))[1]["epochs"]["stuck"][0]["epoch"] == number
    record = await cluster.ended(number)
    assert (record["state"], record["abort"]["phase"]) == ("aborted", "manifest")
    assert record["abort"]["participant"] in cluster.specs
    snapshot = record["members"][record["abort"]["participant"]]["snapshot"]
    assert snapshot_key(snapshot) in record["abort"]["cause"]
    await goes_on(cluster, number, victim)


async def test_an_operator_aborts_at_once_what_would_be_given_up(cluster):
    number, victim = await orphaned(cluster, Path.unlink)
    leader = await cluster.leader()
    arguments = ("epoch", "abort", str(number), "--coordinators", leader.http, "--secret-file", cluster.secret_file)

    async def accepted():
        code, document, err = await cleancut(*arguments)
        assert code in (0, 6), err
        return code == 0 and document

    document = await until(accepted, "the operator's word counts as soon as the trouble is known")
    assert (document["state"], document["abort"]["phase"]) == ("aborted", "operator")
    await goes_on(cluster, number, victim)


@pytest.mark.parametrize("point", sorted(each for each in POINTS if not each.startswith("seal.")))
async def test_a_leader_that_dies_while_it_gives_up_an_epoch_leaves_that_to_the_next(cluster, point):
    number, victim = await orphaned(cluster, flip)
    await cluster.restart(victim)
    second = await cluster.leader()
    cluster.ticket(point)
    await cluster.has_ended_with(second.child)
    assert second.id in cluster.fired(point)
    await cluster.wait_leader(other_than=second.id)
    record = await cluster.ended(number)
    assert record["state"] == "aborted"
    await goes_on(cluster, number, second)
