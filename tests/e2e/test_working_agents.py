"""Agents that never stop working while epochs are taken: money, endless awaits, lists that grow, state that cannot be saved."""

import asyncio
import itertools

import pytest
import pytest_asyncio

from protocol.reading import EpochReader
from simulations.demo import summary
from tests.e2e.real_cluster import real_cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

ODD = {
    "bank-1": [("picky", "main")],
    "bank-2": [("waiter", "main"), ("grower", "main")],
    "bank-3": [("hoarder", "main")],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory):
    """One coordinator and three participants under traffic for all of this file."""
    folder = tmp_path_factory.mktemp("working")
    async with real_cluster(folder, odd=ODD, points={"pack.before_put": "sleep:2000"}) as made:
        yield made


def reader_of(cluster, number):
    store = cluster.open_store()
    return EpochReader(store, summary.read_manifest(store, number))


async def test_money_is_conserved_in_each_of_thirty_epochs_under_traffic(cluster):
    """A1: the sum of balances and of money on its way is the same in every cut; the agents never stop for one."""
    numbers = []
    turns = []
    for _ in range(30):
        numbers.append((await cluster.commit_one())["epoch"])
        turns.append([(await cluster.statistics(name))["turns"] for name in cluster.specs])
    assert numbers == list(range(numbers[0], numbers[0] + 30))
    for earlier, later in itertools.pairwise(turns):
        assert all(after > before for before, after in zip(earlier, later, strict=True)), "somebody did nothing"
    store = cluster.open_store()
    sums = [summary.sum_bank(store, number, cluster.keys, accounts=6) for number in numbers]
    # Where processes starve, what is sent is received before the marker comes: go on until a cut catches a message.
    while not any(each.in_flight for each in sums):
        number = (await cluster.commit_one())["epoch"]
        sums.append(summary.sum_bank(store, number, cluster.keys, accounts=6))
    assert {each.total for each in sums} == {600_000}
    assert all(each.right for each in sums)
    await cluster.judge()


async def test_epoch_commits_while_a_handler_awaits_what_never_comes(cluster):
    """D2: the snapshot holds the state before the turn, and the turn's message as the next to handle, marked as running."""
    await cluster.send("waiter/main", "ask", text="are you there?")
    record = await cluster.commit_one()
    # What is sent from outside needs its way to the agent: until an epoch shows the turn.
    reader = reader_of(cluster, record["epoch"])
    while not reader.agent_snapshot("waiter/main").running:
        record = await cluster.commit_one()
        reader = reader_of(cluster, record["epoch"])
    assert record["duration_ms"] < record["deadline_ms"]
    fields = reader.state("waiter/main").fields
    assert (fields["asked"], fields["noted"]) == (0, []), "what the turn has done so far has not happened"
    [first] = reader.mailbox("waiter/main")
    assert first.type == "Ask"
    await cluster.send("waiter/main", "ask", text="still there?")

    async def second():
        found = reader_of(cluster, (await cluster.commit_one())["epoch"])
        return len(found.mailbox("waiter/main")) == 2 and found

    later = await until(second, "the second question waits in its mailbox")
    assert later.mailbox("waiter/main")[0] == first
    assert later.agent_snapshot("waiter/main").running
    shown = await cluster.call("GET", f"/v1/epochs/{record['epoch']}/state?agent=waiter/main")
    assert shown["fields"] == {"asked": 0, "noted": []}
    await cluster.judge()


async def test_epoch_holds_the_list_as_it_was_at_the_cut_however_it_grows_during_a_slow_upload(cluster):
    """A7: one object, changed in place two hundred times a second; its upload takes two seconds."""
    grown = 0
    for _ in range(3):
        cluster.ticket("pack.before_put", of="bank-2")
        number = await cluster.begin()
        record = await cluster.ended(number)
        assert record["state"] == "committed", record["abort"]
        assert record["duration_ms"] > 1_500, "the upload was slow"
        fields = reader_of(cluster, number).state("grower/main").fields
        assert fields["items"] == list(range(fields["count"]))
        assert fields["count"] > grown, "it went on growing"
        grown = fields["count"]
        again = reader_of(cluster, number)
        again.state("grower/main").fields["items"].append(-1)
        assert again.state("grower/main").fields == fields, "what was read is the reader's own"
    assert (await cluster.call("POST", f"/v1/epochs/{number}/verify", {}))["ok"]
    await cluster.judge()


async def test_state_that_cannot_be_saved_aborts_its_epoch_by_name_and_nothing_else(cluster):
    """A11: agent, key path and type, in under a second; agents work on, the last epoch stays good, and mending is enough."""
    good = await cluster.commit_one()
    before = await cluster.statistics("bank-3")
    await cluster.send("hoarder/main", "spoil", how="lock")

    async def aborted():
        record = await cluster.ended(await cluster.begin())
        return record if record["state"] == "aborted" else None

    record = await until(aborted, "the lock has reached the state")
    abort = record["abort"]
    assert record["duration_ms"] < 1_000
    assert (abort["participant"], abort["phase"]) == ("bank-3", "encode")
    for word in ("hoarder/main", "memory.tools[1]", "lock"):
        assert word in abort["cause"], abort
    assert (await cluster.statistics("bank-3"))["turns"] > before["turns"]
    assert (await cluster.call("POST", f"/v1/epochs/{good['epoch']}/verify", {}))["ok"]
    events = cluster.participants["bank-3"].log.read_text()
    assert "EpochPartFailed" in events, "a failing epoch is an event, not only a line in a log"
    await cluster.send("hoarder/main", "mend")

    async def committed():
        found = await cluster.ended(await cluster.begin())
        return found if found["state"] == "committed" else None

    record = await until(committed, "mended")
    state = reader_of(cluster, record["epoch"]).state("hoarder/main").fields
    assert state == {"capture": {"memory": {"tools": ["hammer", "nail"]}}}
    await cluster.judge()


@pytest.mark.parametrize("how", ["none", "lambda", "lock"])
async def test_value_that_does_not_fit_its_field_is_refused_where_it_is_set_and_no_epoch_notices(cluster, how):
    """A11: None in list[str], a lambda, a lock: the turn fails and leaves nothing; the message is put aside with the reason."""
    count = len((await cluster.ask("bank-1", {"do": "dead-letters"}))["reasons"])
    await cluster.send("picky/main", "spoil", how=how)

    async def put_aside():
        reasons = (await cluster.ask("bank-1", {"do": "dead-letters"}))["reasons"]
        return reasons[-1] if len(reasons) > count else None

    reason = await until(put_aside, "the message is put aside")
    assert "picky/main" in reason
    assert "names" in reason
    record = await cluster.commit_one()
    assert reader_of(cluster, record["epoch"]).state("picky/main").fields == {"names": [], "turns": 0}
    await cluster.judge()


async def test_all_of_it_ends_with_every_participant_at_work(cluster):
    """Nothing above has cost a session, left a part open or stopped an agent."""
    await asyncio.gather(
        *(until(lambda name=name: _rests(cluster, name), f"{name} holds no part") for name in cluster.specs)
    )
    rows = (await cluster.call("GET", "/v1/participants?fresh=1"))["participants"]
    assert [row["state"] for row in rows] == ["member"] * 3


async def _rests(cluster, name):
    return (await cluster.statistics(name))["capture_parts_open"] == 0
