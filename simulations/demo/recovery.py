"""Participants that are killed and started again, and how long it takes until everybody works again.

The demo is what an init system is in production: it starts again what has ended. Nothing else is done to bring the cluster
back; the rest is seen from outside, through the coordinators' API.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec

from protocol.errors import SnapshotError
from simulations.demo.cluster import ClusterFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulations.demo.cluster import LocalCluster
    from simulations.demo.process import Spec

RECOVERY_SECONDS = 60.0
POLL_SECONDS = 0.03


class RecoverySeconds(msgspec.Struct, kw_only=True):
    """From a kill to work; the parts add up to the total."""

    detect: float = 0.0
    """Until the leader knew that the cluster must be rolled back."""
    restart: float = 0.0
    """From then until what was killed was there again and could be given its part."""
    load: float = 0.0
    """Until every participant had its part of the epoch."""
    replay: float = 0.0
    """Until a new turn was over at every participant, or, where it went on from its log alone, at the one that was killed."""
    total: float = 0.0

    def words(self, *, alone: bool = False) -> str:
        """For people; of one that went on from its log `alone`."""
        if alone:
            return (
                f"process there again after {self.restart:.2f} s, its state out of the log {self.load:.2f} s later, "
                f"a new turn after {self.replay:.2f} s more: {self.total:.2f} s in all"
            )
        return (
            f"detected after {self.detect:.2f} s, process there again {self.restart:.2f} s later, "
            f"loaded in {self.load:.2f} s, new turns everywhere after {self.replay:.2f} s more: {self.total:.2f} s in all"
        )


class Recovery(msgspec.Struct, kw_only=True):
    """One way back, from the kill that caused it: a rollback, or, where turns are logged, one participant's own."""

    participant: str
    incarnation: int
    epoch: int
    cause: str
    seconds: RecoverySeconds


async def recovery_of(cluster: LocalCluster) -> dict[str, Any]:
    """What recovery is doing, from whoever leads; empty while nobody does."""
    try:
        status = await cluster.call("GET", "/v1/status?fresh=1")
    except SnapshotError:
        return {}
    return {"incarnation": status["incarnation"], **status["recovery"]}


async def incarnation_of(cluster: LocalCluster) -> int:
    """The one in force."""
    while not (found := await recovery_of(cluster)):
        await cluster.work_for(POLL_SECONDS)
    return int(found["incarnation"])


async def kill_participant(
    cluster: LocalCluster,
    spec: Spec,
    say: Callable[[str], None],
    *,
    where: str,
    before: int,
    module: str = "simulations.demo.process",
) -> Recovery:
    """SIGKILL, start again, and wait until all participants work in a new incarnation.

    Args:
        cluster: It runs.
        spec: Whom to kill.
        say: The narrator.
        where: In the middle of what.
        before: The incarnation that was in force.
        module: What its process runs.

    Raises:
        ClusterFailed: It did not come back.
    """
    child = cluster.participants[spec.id]
    loop = asyncio.get_running_loop()
    child.kill()
    # The records of the coordinators, on the same machine, have the wall clock.
    killed, killed_at = loop.time(), time.time()
    await child.wait()
    agents = ", ".join(f"{kind}/{name}" for kind, name in spec.agents)
    say(f"SIGKILL to {spec.id} (process {child.pid}; {agents}), {where}")
    if spec.durability == "turn":
        return await _resumed(cluster, spec, say, before=before, killed=killed, module=module)
    starting = asyncio.create_task(cluster.start_participant(spec, module=module))
    try:
        record = await _wait_rollback(cluster, before, say, killed=killed)
        await starting
    finally:
        if not starting.done():
            starting.cancel()
    worked = await _first_turns(cluster, int(record["incarnation"]))
    total = worked - killed
    begun = record["started_at_ms"] / 1000 - killed_at
    restart = min(max(record["waited_ms"] / 1000, 0.0), max(begun, 0.0))
    load = record["took_ms"] / 1000
    seconds = RecoverySeconds(
        detect=round(max(begun - restart, 0.0), 3),
        restart=round(restart, 3),
        load=round(load, 3),
        replay=round(max(total - begun - load, 0.0), 3),
        total=round(total, 3),
    )
    say(f"  {seconds.words()}")
    return Recovery(
        participant=spec.id,
        incarnation=int(record["incarnation"]),
        epoch=int(record["epoch"]),
        cause=str(record["cause"]),
        seconds=seconds,
    )


async def _resumed(
    cluster: LocalCluster, spec: Spec, say: Callable[[str], None], *, before: int, killed: float, module: str
) -> Recovery:
    """It goes on from its log, and nobody goes back."""
    loop = asyncio.get_running_loop()
    await cluster.start_participant(spec, module=module)
    after = await incarnation_of(cluster)
    if after != before:
        raise ClusterFailed(f"{spec.id} was to go on from its log, and incarnation {after} has begun")
    limit = loop.time() + RECOVERY_SECONDS
    while "resumed" not in (times := (await cluster.ask(spec.id, {"do": "returns"}))["times"]):
        if loop.time() > limit:
            raise ClusterFailed(f"no new turn at {spec.id}")
        await cluster.work_for(POLL_SECONDS)
    seconds = RecoverySeconds(
        restart=round(times["started"] - killed, 3),
        load=round(times["entered"] - times["started"], 3),
        replay=round(times["resumed"] - times["entered"], 3),
        total=round(times["resumed"] - killed, 3),
    )
    say(f"  {spec.id} went on from its log of turns; the others went on meanwhile")
    say(f"  {seconds.words(alone=True)}")
    return Recovery(participant=spec.id, incarnation=after, epoch=0, cause="killed", seconds=seconds)


async def _wait_rollback(
    cluster: LocalCluster, before: int, say: Callable[[str], None], *, killed: float
) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    told = 0
    suspected = False
    doing: dict[str, Any] = {}
    while loop.time() < killed + RECOVERY_SECONDS:
        doing = await recovery_of(cluster) or doing
        after = loop.time() - killed
        if doing.get("state") == "stopped":
            break
        if not suspected and doing.get("state") not in {None, "running"}:
            suspected = True
            say(f"  after {after:.2f} s the coordinators know: {doing['why']}")
        last = doing.get("last")
        if last is not None and doing["incarnation"] > max(before, told):
            told = int(doing["incarnation"])
            say(f"  incarnation {told} begins from epoch {last['epoch']}: {last['cause']}")
        if told > before and doing["state"] == "running" and last is not None and last["state"] == "done":
            return dict(last)
        await cluster.work_for(POLL_SECONDS)
    raise ClusterFailed(f"the cluster did not come back: recovery is {doing.get('state')}, {doing.get('why')}")


async def _first_turns(cluster: LocalCluster, incarnation: int) -> float:
    """When every participant had finished a turn of this incarnation."""
    loop = asyncio.get_running_loop()
    limit = loop.time() + RECOVERY_SECONDS
    waiting = set(cluster.participants)
    last = 0.0
    while loop.time() < limit:
        for name in sorted(waiting):
            answer = await cluster.ask(name, {"do": "returns"})
            first = answer["first_turns"].get(str(incarnation))
            if first is not None:
                last = max(last, float(first))
                waiting.discard(name)
            elif answer["incarnation"] > incarnation:
                raise ClusterFailed(f"{name} is in incarnation {answer['incarnation']} already")
        if not waiting:
            return last
        await cluster.work_for(POLL_SECONDS)
    raise ClusterFailed(f"no new turn at {', '.join(sorted(waiting))} in incarnation {incarnation}")


async def epoch_open(cluster: LocalCluster, seconds: float) -> int:
    """The epoch that is open now, as soon as one is; 0 when none was within that time."""
    loop = asyncio.get_running_loop()
    limit = loop.time() + seconds
    while loop.time() < limit:
        open_epochs = (await cluster.call("GET", "/v1/status"))["epochs"]["open"]
        if open_epochs:
            return int(open_epochs[0])
        await asyncio.sleep(0)
    return 0
