"""One run: the demo's cluster at work, failures by seed, then calm, then the judgement."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from protocol.errors import SnapshotError
from simulations.chaos.faults import faults
from simulations.chaos.keeper import Keeper, Slot
from simulations.demo import agents, bank, charges
from simulations.demo.broker import start_broker
from simulations.demo.cluster import ClusterFailed, LocalCluster
from simulations.demo.recovery import recovery_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from simulations.chaos.faults import Fault
    from simulations.demo.charges import BankProcess

POLICY = {
    **bank.POLICY,
    "interval_ms": 700,
    "tolerable_failures": 1_000_000,
    "max_rollbacks": 0,
    "rollback_window_ms": 2_000,
}
"""What is done here would stop any cluster that had a bound; here it has none, and no growing pauses either."""
CALM_SECONDS = 90.0
"""From the last failure until everybody works again; a machine with other work on it takes its time."""
ANSWER_SECONDS = 1.0
LAST_TRIES = 3
CHARGE_SECONDS = 2.0
REST_SECONDS = 15.0
POLL_SECONDS = 0.1


class Outcome(bank.Result, kw_only=True):
    """What the run saw; the document that ``--json`` prints."""

    seed: int = 0
    faults: dict[str, int] = msgspec.field(default_factory=dict)
    """How many of each kind."""
    ended_by_themselves: int = 0
    """Processes that were fenced, and said so."""
    calm_seconds: float = 0.0
    """From the end of the failures until everybody worked again."""
    incarnation: int = 0


async def run(
    folder: Path,
    *,
    seed: int,
    seconds: float,
    participants: int,
    say: Callable[[str], None],
    transport: str = "websocket",
) -> Outcome:
    """A whole run; every process is ended at its end.

    Args:
        folder: Exists and is empty.
        seed: Of the failures.
        seconds: How long there are failures.
        participants: How many.
        say: The narrator.
        transport: ``websocket`` or ``mqtt``, with a broker of its own.
    """
    outcome = Outcome(seed=seed, participants=participants, coordinators=3, transport=transport)
    cluster = LocalCluster(folder, coordinator_count=3)
    await asyncio.to_thread(cluster.prepare, {"kind": "manual", "pause_ms": 0})
    outside = await charges.start_bank(folder)
    keeper: Keeper | None = None
    broker, setting = None, transport
    try:
        if transport == "mqtt":
            (folder / "broker").mkdir()
            broker, setting = await start_broker(folder / "broker")
        await cluster.start_coordinators()
        specs = bank.make_specs(cluster, outside.url, participants=participants, transport=setting)
        outcome.agents = sum(len(spec.agents) for spec in specs)
        outcome.total_expected = 2 * participants * agents.START_CENTS
        keeper = Keeper(cluster, specs, say)
        keeper.begin()
        await _all_ready(keeper)
        await cluster.call("PUT", "/v1/policy", POLICY)
        say(f"{participants} participants and 3 coordinators work; {seconds:.0f} s of failures by seed {seed}")
        await _Nemesis(cluster, keeper, outside, say, outcome).work(seed, seconds)
        await _come_to_rest(cluster, keeper, say, outcome)
        await bank.judge(cluster, outside, outcome)
    except (ClusterFailed, SnapshotError) as error:
        outcome.problems.append(f"{type(error).__name__}: {error}")
        if keeper is not None:
            await _note_statistics(cluster, keeper, folder)
    finally:
        if keeper is not None:
            await keeper.stop()
            outcome.problems += keeper.findings
            outcome.ended_by_themselves = keeper.fenced
        outcome.consistent = outcome.epochs_committed > 0 and not outcome.problems
        await cluster.stop()
        await outside.child.stop()
        if broker is not None:
            await broker.stop()
    return outcome


async def _note_statistics(cluster: LocalCluster, keeper: Keeper, folder: Path) -> None:
    """What every participant counts, beside its log, for whoever looks into it."""
    found: dict[str, Any] = {}
    for slot in keeper.participants:
        try:
            found[slot.name] = await _ask(cluster, slot, "statistics")
        except (ClusterFailed, TimeoutError, ValueError) as error:
            found[slot.name] = str(error)
    (folder / "statistics.json").write_bytes(msgspec.json.format(msgspec.json.encode(found)))


async def _all_ready(keeper: Keeper) -> None:
    if late := await keeper.wait_ready(CALM_SECONDS):
        raise ClusterFailed(f"{', '.join(late)} did not become members")


class _Nemesis:
    """Carries the failures out."""

    def __init__(
        self, cluster: LocalCluster, keeper: Keeper, outside: BankProcess, say: Callable[[str], None], outcome: Outcome
    ) -> None:
        self._cluster = cluster
        self._keeper = keeper
        self._outside = outside
        self._say = say
        self._outcome = outcome
        self._begun = asyncio.get_running_loop().time()

    async def work(self, seed: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        counts: Counter[str] = Counter()
        for fault in faults(seed, len(self._keeper.participants)):
            await asyncio.sleep(min(fault.pause, max(self._begun + seconds - loop.time(), 0.0)))
            if loop.time() >= self._begun + seconds:
                break
            if fault.rested:
                await self._rest(min(loop.time() + REST_SECONDS, self._begun + seconds))
            await self._do(fault)
            counts[fault.kind] += 1
        self._outcome.faults = dict(sorted(counts.items()))
        self._outcome.seconds = round(loop.time() - self._begun, 1)

    async def _rest(self, until: float) -> None:
        """Until the cluster runs, all there, and has committed an epoch in this incarnation; not for ever."""
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            status = await self._status()
            recovery = status.get("recovery") or {}
            newest = (status.get("epochs") or {}).get("newest_committed", 0)
            there = (status.get("participants") or {}).get("up") == len(self._keeper.participants)
            if (
                there
                and recovery.get("state") == "running"
                and newest > ((recovery.get("last") or {}).get("epoch") or 0)
            ):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _do(self, fault: Fault) -> None:
        victims = [self._keeper.participants[index] for index in fault.participants]
        leader = await self._leader() if fault.kind not in {"kill-participant", "freeze-participant", "twin"} else None
        if fault.in_charge and fault.kind in {"kill-participant", "kill-both"}:
            victims = [await self._cashier_in_a_charge(victims[0])]
        names = ", ".join(slot.name for slot in victims)
        match fault.kind:
            case "kill-participant" | "kill-participants":
                self._tell(f"SIGKILL to {names}")
                self._kill_participants(victims)
            case "kill-leader" | "kill-follower":
                chosen = leader if fault.kind == "kill-leader" else self._follower(leader)
                what = fault.kind.removeprefix("kill-")
                self._tell(f"SIGKILL to {chosen.name if chosen else 'no'} {what}")
                self._kill_leader(chosen)
            case "kill-both":
                self._tell(f"SIGKILL to {names} and {leader.name if leader else 'no leader'}")
                self._kill_participants(victims)
                self._kill_leader(leader)
            case "freeze-participant":
                self._tell(f"SIGSTOP to {names} for {fault.seconds:.1f} s")
                self._keeper.freeze(victims[0], fault.seconds)
            case "freeze-leader" | "freeze-both":
                self._tell(f"SIGSTOP to {leader.name if leader else 'no leader'} for {fault.seconds:.1f} s")
                if leader is not None:
                    self._keeper.freeze(leader, fault.seconds)
                if fault.kind == "freeze-both":
                    self._tell(f"SIGSTOP to {names} for {fault.seconds:.1f} s")
                    self._keeper.freeze(victims[0], fault.seconds)
            case "twin":
                self._tell(f"SIGSTOP to {names} for {fault.seconds:.1f} s, and a successor at once")
                self._keeper.twin(victims[0], fault.seconds)

    def _kill_participants(self, victims: list[Slot]) -> None:
        for slot in victims:
            self._keeper.kill(slot)
            self._outcome.participant_kills += 1

    def _kill_leader(self, slot: Slot | None) -> None:
        if slot is not None:
            self._keeper.kill(slot)
            self._outcome.leader_kills += 1

    async def _cashier_in_a_charge(self, otherwise: Slot) -> Slot:
        """The cashier's participant, while the bank charges; another where nothing is charged now."""
        try:
            await asyncio.wait_for(self._outside.wait_charge(), CHARGE_SECONDS)
        except (TimeoutError, ClusterFailed):
            return otherwise
        return self._keeper.participants[1 % len(self._keeper.participants)]

    def _follower(self, leader: Slot | None) -> Slot:
        return next(slot for slot in self._keeper.coordinators if slot is not leader)

    async def _leader(self) -> Slot | None:
        name = (await self._status()).get("leader")
        return next((slot for slot in self._keeper.coordinators if slot.name == name), None)

    async def _status(self) -> dict[str, Any]:
        """By the highest term that any coordinator tells of, soon; empty when none does."""
        token = self._cluster.keys.token("viewer")
        answers = await asyncio.gather(*(_status(one.http, token) for one in self._cluster.coordinators))
        known = [answer for answer in answers if answer.get("leader")]
        return max(known, key=lambda answer: int(answer["term"]), default={})

    def _tell(self, line: str) -> None:
        at = asyncio.get_running_loop().time() - self._begun
        self._say(f"{at:7.2f}  {line}")


async def _status(http: str, token: str) -> dict[str, Any]:
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers={"Authorization": f"Bearer {token}"}) as session,
            session.get(f"http://{http}/v1/status") as response,
        ):
            if response.status != 200:
                return {}
            document: dict[str, Any] = await response.json()
            return document
    except (TimeoutError, aiohttp.ClientError, OSError):
        return {}


async def _come_to_rest(cluster: LocalCluster, keeper: Keeper, say: Callable[[str], None], outcome: Outcome) -> None:
    """Calm, and a last epoch. A twin's successor may end once more after that, and take everybody back with it."""
    for left in reversed(range(LAST_TRIES)):
        await _calm(cluster, keeper, say, outcome)
        try:
            await bank.last_epoch(cluster)
        except ClusterFailed as error:
            if not left:
                raise
            say(f"once more: {error}")
            await cluster.call("PUT", "/v1/policy", POLICY)
        else:
            return


async def _calm(cluster: LocalCluster, keeper: Keeper, say: Callable[[str], None], outcome: Outcome) -> None:
    """Nothing fails any more: everybody must be back, in one incarnation, and work."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await keeper.calm()
    doing: dict[str, Any] = {}
    while loop.time() - begun < CALM_SECONDS:
        late = await keeper.wait_ready(POLL_SECONDS)
        doing = await recovery_of(cluster) or doing
        if not late and doing.get("state") == "running" and await _all_work(cluster, keeper, doing):
            outcome.incarnation = int(doing["incarnation"])
            outcome.calm_seconds = round(loop.time() - begun, 1)
            say(f"all in incarnation {outcome.incarnation}, {outcome.calm_seconds:.1f} s after the last failure")
            return
        await asyncio.sleep(POLL_SECONDS)
    last = {slot.name: slot.ready.is_set() for slot in keeper.participants}
    raise ClusterFailed(
        f"not everybody was back {CALM_SECONDS:.0f} s after the last failure: {last}, {msgspec.json.encode(doing).decode()}"
    )


async def _all_work(cluster: LocalCluster, keeper: Keeper, doing: dict[str, Any]) -> bool:
    """Every participant is in this incarnation and does new turns, and an epoch of it is committed."""
    base = (doing["last"] or {}).get("epoch") or 0
    try:
        if (await cluster.call("GET", "/v1/status?fresh=1"))["epochs"]["newest_committed"] <= base:
            return False
        found = [await _ask(cluster, slot, "returns") for slot in keeper.participants]
        if {answer["incarnation"] for answer in found} != {doing["incarnation"]}:
            return False
        before = [await _turns(cluster, slot) for slot in keeper.participants]
        await asyncio.sleep(POLL_SECONDS)
        after = [await _turns(cluster, slot) for slot in keeper.participants]
    except SnapshotError:
        return False  # One has ended after all, as a twin's successor may; it is started again.
    return all(late > early for early, late in zip(before, after, strict=True))


async def _turns(cluster: LocalCluster, slot: Slot) -> int:
    return int((await _ask(cluster, slot, "statistics"))["statistics"]["turns"])


async def _ask(cluster: LocalCluster, slot: Slot, what: str) -> dict[str, Any]:
    if not slot.ready.is_set():
        raise ClusterFailed(f"{slot.name} is not a member")
    return await cluster.ask(slot.name, {"do": what})
