"""The demo itself: accounts and orders at work, epoch after epoch, while participants and the leader are killed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from protocol.errors import Refused, SnapshotError
from protocol.ids import cluster_name
from protocol.storage import open_store
from simulations.demo import agents, charges, summary
from simulations.demo.cluster import ClusterFailed
from simulations.demo.process import Spec
from simulations.demo.recovery import Recovery, RecoverySeconds, epoch_open, incarnation_of, kill_participant

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulations.demo.charges import BankProcess
    from simulations.demo.cluster import LocalCluster

POLICY = {
    "kind": "periodic",
    "interval_ms": 1000,
    "pause_ms": 100,
    "deadline_ms": 10_000,
    "tolerable_failures": 100,
    "max_concurrent": 1,
    "recovery": "auto",
    "takeover_after_ms": 0,
}
KILL_WAIT_SECONDS = 15.0


class Result(msgspec.Struct, kw_only=True):
    """What a run of the demo saw; the document that ``--json`` prints."""

    epochs_committed: int = 0
    epochs_aborted: int = 0
    aborted: list[dict[str, Any]] = []
    """Epoch, participant, phase, cause."""
    participants: int = 0
    coordinators: int = 0
    agents: int = 0
    transport: str = ""
    messages: int = 0
    """Handled: one turn each."""
    in_flight_recorded: int = 0
    total_expected: int = 0
    totals: list[int] = []
    """Money in each committed cut, in cents."""
    orders_made: int = 0
    consistent: bool = False
    problems: list[str] = []
    max_stall_ms: float = 0.0
    """Longest time that a cut held a participant's event loop."""
    idle_stall_ms: float = 0.0
    """Longest gap of the same loops outside of cuts: what this machine does by itself."""
    leader_kills: int = 0
    election_seconds: list[float] = []
    """From the kill until another coordinator answers as the leader."""
    participant_kills: int = 0
    rollbacks: int = 0
    """Incarnations that began."""
    recoveries: list[Recovery] = []
    """One for each kill of a participant."""
    recovery_seconds: RecoverySeconds = msgspec.field(default_factory=RecoverySeconds)
    """Of the longest of them."""
    charges: int = 0
    """In the bank's own ledger."""
    charges_duplicated: int = 0
    """Orders that the bank charged more than once."""
    charges_lost: int = 0
    """Orders that count as paid and were never charged."""
    charges_cents: int = 0
    seconds: float = 0.0


async def run(
    cluster: LocalCluster,
    bank: BankProcess,
    *,
    participants: int,
    transport: str,
    seconds: float,
    say: Callable[[str], None],
    result: Result,
    careless: bool = False,
    durability: str = "epoch",
) -> None:
    """Start everything, let it work, kill two participants and the leader, let it work on; fill in `result`.

    Args:
        cluster: Its coordinators run.
        bank: Where orders are charged.
        participants: How many.
        transport: Setting of each.
        seconds: How long it works; recoveries count.
        say: The narrator.
        result: Filled in.
        careless: Charge without a step, so that the demo fails.
        durability: Of the cluster; its policy says the same.
    """
    loop = asyncio.get_running_loop()
    specs = make_specs(
        cluster, bank.url, participants=participants, transport=transport, careless=careless, durability=durability
    )
    result.participants = participants
    result.coordinators = len(cluster.coordinators)
    result.agents = sum(len(spec.agents) for spec in specs)
    result.transport = transport.split(":", 1)[0]
    result.total_expected = 2 * participants * agents.START_CENTS
    leader, took = await cluster.wait_leader()
    say(f"{len(cluster.coordinators)} coordinators are up; {leader} leads (after {took:.2f} s)")
    await asyncio.gather(*(cluster.start_participant(spec) for spec in specs))
    say(
        f"{participants} participants are members, with {result.agents} agents; money moves, orders are charged at a bank "
        "outside and cooked"
    )
    await cluster.call("PUT", "/v1/policy", POLICY)
    begun = loop.time()
    reporter = asyncio.create_task(_tell_epochs(cluster, say))
    try:
        await cluster.work_for(seconds / 5)
        await _kill_in_a_charge(cluster, bank, specs, say, result)
        await cluster.work_for(seconds / 5)
        await _kill_in_an_epoch(cluster, specs, say, result)
        if len(cluster.coordinators) > 1:
            await cluster.work_for(seconds / 10)
            await _kill_leader(cluster, say, result)
        await cluster.work_for(max(seconds - (loop.time() - begun), 2.0))
        await last_epoch(cluster)
    finally:
        reporter.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reporter
    result.seconds = round(loop.time() - begun, 1)
    for name in cluster.participants:
        answer = await cluster.ask(name, {"do": "statistics"})
        result.messages += answer["statistics"]["turns"]
        result.max_stall_ms = max(result.max_stall_ms, answer["stall"]["in_cut_ms"])
        result.idle_stall_ms = max(result.idle_stall_ms, answer["stall"]["outside_ms"])


def make_specs(
    cluster: LocalCluster,
    bank: str,
    *,
    participants: int,
    transport: str,
    careless: bool = False,
    durability: str = "epoch",
) -> list[Spec]:
    """What each participant process is to be.

    Args:
        cluster: Its folder and coordinators.
        bank: Where orders are charged.
        participants: How many.
        transport: Setting of each.
        careless: Charge without a step.
        durability: Of the cluster.
    """
    accounts = tuple(f"account/a{index + 1}" for index in range(2 * participants))
    return [
        Spec(
            id=f"bank-{index + 1}",
            cluster=cluster.name,
            coordinators=tuple(each.http for each in cluster.coordinators),
            transport=transport,
            store=cluster.store,
            secret_file=cluster.secret_file,
            agents=tuple(hosted),
            accounts=accounts,
            local=str(cluster.folder / "local"),
            bank=bank,
            careless=careless,
            durability=durability,
        )
        for index, hosted in enumerate(agents.place(participants, cashier=True))
    ]


async def _kill_in_a_charge(
    cluster: LocalCluster, bank: BankProcess, specs: list[Spec], say: Callable[[str], None], result: Result
) -> None:
    victim = next(spec for spec in specs if ("cashier", "main") in spec.agents)
    before = await incarnation_of(cluster)
    charge = await bank.wait_charge()
    _recovered(
        result,
        await kill_participant(
            cluster, victim, say, before=before, where=f"while the bank charges {charge.order} and has not answered"
        ),
    )


async def _kill_in_an_epoch(
    cluster: LocalCluster, specs: list[Spec], say: Callable[[str], None], result: Result
) -> None:
    victim = next(spec for spec in specs if ("kitchen", "main") in spec.agents)
    before = await incarnation_of(cluster)
    epoch = await epoch_open(cluster, KILL_WAIT_SECONDS)
    where = f"in the middle of epoch {epoch}" if epoch else "between two epochs"
    _recovered(result, await kill_participant(cluster, victim, say, before=before, where=where))


def _recovered(result: Result, recovery: Recovery) -> None:
    result.participant_kills += 1
    result.recoveries.append(recovery)
    result.recovery_seconds = max((each.seconds for each in result.recoveries), key=lambda seconds: seconds.total)


async def _tell_epochs(cluster: LocalCluster, say: Callable[[str], None]) -> None:
    told: set[int] = set()
    while True:
        try:
            document = await cluster.call("GET", "/v1/epochs?limit=10")
        except SnapshotError as error:  # nobody leads just now, say; the next round asks again
            say(f"  (asking for epochs: {error})")
            document = {"epochs": []}
        for epoch in reversed(document["epochs"]):
            if epoch["epoch"] in told or epoch["state"] not in {"committed", "aborted"}:
                continue
            told.add(epoch["epoch"])
            if epoch["state"] == "committed":
                in_flight = f"{epoch['in_flight']} message{'s' * (epoch['in_flight'] != 1)} in flight"
                say(f"  epoch {epoch['epoch']} committed in {epoch['duration_ms']} ms, {in_flight}")
            else:
                say(f"  epoch {epoch['epoch']} aborted: {abort_words(epoch.get('abort') or {})}")
        await asyncio.sleep(0.3)


def abort_words(abort: dict[str, Any]) -> str:
    """Who, in which phase, why."""
    who = f"{abort['participant']}, " if abort.get("participant") else ""
    return f"{who}phase {abort.get('phase', 'unknown')}: {abort.get('cause', 'no cause given')}"


async def _kill_leader(cluster: LocalCluster, say: Callable[[str], None], result: Result) -> None:
    leader, _ = await cluster.wait_leader()
    victim = cluster.coordinator(leader)
    epoch = await epoch_open(cluster, KILL_WAIT_SECONDS)
    assert victim.child is not None
    victim.child.kill()
    await victim.child.wait()
    where = f"in the middle of epoch {epoch}" if epoch else "between two epochs"
    say(f"SIGKILL to {leader} (process {victim.child.pid}), the leader, {where}")
    result.leader_kills += 1
    successor, took = await cluster.wait_leader(other_than=leader)
    result.election_seconds.append(round(took, 3))
    say(f"{successor} leads after {took:.2f} s")
    await cluster.start_coordinator(victim)
    say(f"{leader} is started again and catches up")


async def last_epoch(cluster: LocalCluster) -> None:
    """No epoch by itself any more, and one that holds what was done until now.

    Raises:
        ClusterFailed: It does not commit.
    """
    await cluster.call("PUT", "/v1/policy", {**POLICY, "kind": "manual", "pause_ms": 0})
    await _wait_no_open_epoch(cluster)
    epoch = await _begin_epoch(cluster)
    await _wait_no_open_epoch(cluster)
    state = (await cluster.call("GET", f"/v1/epochs/{epoch}?fresh=1"))["state"]
    if state != "committed":
        raise ClusterFailed(f"the last epoch, {epoch}, is {state}")


async def _begin_epoch(cluster: LocalCluster) -> int:
    loop = asyncio.get_running_loop()
    limit = loop.time() + KILL_WAIT_SECONDS
    while True:
        try:
            return int((await cluster.call("POST", "/v1/epochs", {"reason": "the last one"}))["epoch"])
        except Refused as error:
            # Right after a recovery not everybody may have heard of the topology.
            if error.code not in {"not-ready", "epoch-open"} or loop.time() > limit:
                raise
        await asyncio.sleep(0.02)


async def _wait_no_open_epoch(cluster: LocalCluster) -> None:
    for _ in range(1000):
        if not (await cluster.call("GET", "/v1/status?fresh=1"))["epochs"]["open"]:
            return
        await asyncio.sleep(0.02)
    raise ClusterFailed("an epoch is still open, although no new one is started and its deadline has passed")


async def judge(cluster: LocalCluster, bank: BankProcess, result: Result) -> list[summary.EpochSums]:
    """Verify every manifest offline, add each cut up, and audit the bank's own ledger; fill in `result`."""
    document = await cluster.call("GET", "/v1/epochs?limit=1000&fresh=1")
    for epoch in document["epochs"]:
        if epoch["state"] == "aborted":
            result.epochs_aborted += 1
            result.aborted.append({"epoch": epoch["epoch"], **(epoch.get("abort") or {})})
    listed = {epoch["epoch"] for epoch in document["epochs"] if epoch["state"] == "committed"}
    store = open_store(cluster.store, cluster_name(cluster.name))
    keys = cluster.keys
    accounts = 2 * result.participants
    sums = [summary.sum_bank(store, epoch, keys, accounts=accounts) for epoch in summary.committed_epochs(store)]
    found = {each.epoch for each in sums}
    if found != listed:
        result.problems.append(
            f"the ledger lists epochs {sorted(listed)} as committed, the store holds {sorted(found)}"
        )
    for each in sums:
        result.problems += [f"epoch {each.epoch}: {finding}" for finding in each.findings]
        if each.total != each.expected:
            result.problems.append(f"epoch {each.epoch}: {each.total} cents instead of {each.expected}")
        if each.orders_made != each.orders_found:
            result.problems.append(f"epoch {each.epoch}: {each.orders_found} orders found, {each.orders_made} made")
    result.epochs_committed = len(sums)
    result.totals = [each.total for each in sums]
    result.in_flight_recorded = sum(each.in_flight for each in sums)
    result.orders_made = max((each.orders_made for each in sums), default=0)
    if sums:
        audit, problems = charges.audit_orders(bank.charges(), charges.paid_orders(store, sums[-1].epoch))
        result.problems += problems
        result.charges = audit.charges
        result.charges_duplicated = len(audit.duplicated)
        result.charges_lost = len(audit.lost)
        result.charges_cents = audit.cents
    known = (await cluster.call("GET", "/v1/incarnations?fresh=1"))["rollbacks"]
    result.rollbacks = len(known)
    if known and known[0]["state"] != "done":
        result.problems.append(f"incarnation {known[0]['incarnation']} never began: {known[0]['state']}")
    result.consistent = bool(sums) and not result.problems
    return sums
