"""Real processes, real TLS, real files; SIGKILL and SIGSTOP."""

import asyncio
import itertools
import shutil
import time
from dataclasses import replace

import pytest

from tests.integration.raft_process import RaftProcess, RaftProcesses, eventually, raft_processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

FAILOVER_SECONDS_MAX = 5.0
"""Far above the target of 1.5 s: these machines are shared. The measured time is printed."""


class Load:
    """Writers that submit ids to a child as fast as it answers, and note which were acknowledged."""

    def __init__(self, prefix: str) -> None:
        self.acknowledged: list[str] = []
        self.ambiguous: list[str] = []
        self._ids = (f"{prefix}{number}" for number in itertools.count())
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, target: RaftProcess, writers: int = 16) -> None:
        self._tasks = [asyncio.create_task(self._write(target)) for _ in range(writers)]

    async def wait_acknowledged(self, count: int) -> None:
        async def enough() -> bool:
            return len(self.acknowledged) >= count

        await eventually(enough, timeout=30)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self, target: RaftProcess) -> None:
        while True:
            identity = next(self._ids)
            try:
                outcome = await target.submit(f"{identity} {'x' * 500}")
            except ConnectionError:
                self.ambiguous.append(identity)
                return
            if outcome == "ok":
                self.acknowledged.append(identity)
            elif outcome == "unreachable":
                self.ambiguous.append(identity)


async def retry_until_applied(group: RaftProcesses, identity: str) -> None:
    async with asyncio.timeout(20):
        for member in itertools.cycle(group.running):
            if await member.submit(identity) == "ok":
                return
            await asyncio.sleep(0.02)


async def has_applied(member: RaftProcess, index: int) -> bool:
    return (await member.ask("status"))["applied"] >= index


async def leads_no_more(member: RaftProcess) -> bool:
    return not (await member.ask("status"))["is_leader"]


async def test_killing_leaders_under_load_loses_no_acknowledged_command_and_doubles_none(tmp_path):
    """I34, I19. The stock library lost up to 177 commands in a round of this, on a loaded machine."""
    times = []
    async with raft_processes(tmp_path) as group:
        acknowledged, ambiguous = [], []
        for round_number in range(3):
            leader = await group.wait_leader()
            load = Load(f"r{round_number}-")
            load.start(leader)
            await load.wait_acknowledged(200)
            survivors = [member for member in group.members if member is not leader]
            killed_at = time.monotonic()
            await leader.kill()
            await load.end()
            await group.wait_leader(survivors)
            times.append(time.monotonic() - killed_at)
            acknowledged += load.acknowledged
            ambiguous += load.ambiguous
            await leader.start()
        for identity in ambiguous[:5]:
            await retry_until_applied(group, identity)
        await group.wait_leader()
        sequence = await group.wait_equal()
        assert [identity for identity in acknowledged if identity not in set(sequence)] == []
        assert len(set(sequence)) == len(sequence)
        assert set(ambiguous[:5]) <= set(sequence)
    print("failover:", ", ".join(f"{seconds:.2f} s" for seconds in times))
    assert max(times) < FAILOVER_SECONDS_MAX


async def test_killing_a_follower_inside_compactions_loses_nothing_it_acknowledged(tmp_path):
    """I34. With its own journal, 5 of 120 kills of the stock library forgot acknowledged entries."""
    async with raft_processes(tmp_path, compact_entries=60) as group:
        leader = await group.wait_leader()
        load = Load("k")
        load.start(leader)
        followers = [member for member in group.members if member is not leader]
        for number in range(6):
            victim = followers[number % 2]
            goal = len(load.acknowledged) + 150
            await load.wait_acknowledged(goal)
            applied = (await victim.ask("status"))["applied"]
            await victim.kill()
            await victim.start()
            await eventually(lambda victim=victim, applied=applied: has_applied(victim, applied))
        snapshot_at = (await followers[0].ask("status"))["snapshot_at"]
        await load.end()
        await group.wait_leader()
        sequence = await group.wait_equal()
        assert snapshot_at > 0
        assert set(load.acknowledged) <= set(sequence)
        assert len(set(sequence)) == len(sequence)


async def test_a_group_that_is_killed_as_a_whole_goes_on_where_it_was(tmp_path):
    async with raft_processes(tmp_path, compact_entries=80) as group:
        leader = await group.wait_leader()
        load = Load("a")
        load.start(leader)
        await load.wait_acknowledged(300)
        await asyncio.gather(*(member.kill() for member in group.members))
        await load.end()
        for member in group.members:
            await member.start()
        await group.wait_leader()
        sequence = await group.wait_equal()
        assert set(load.acknowledged) <= set(sequence)


async def test_a_stopped_leader_answers_nothing_stale_after_it_goes_on(tmp_path):
    """I20: two believe that they lead; only the new one's commands and reads succeed."""
    async with raft_processes(tmp_path) as group:
        old = await group.wait_leader()
        assert await old.submit("before") == "ok"
        old.pause()
        others = [member for member in group.members if member is not old]
        new = await group.wait_leader(others)
        assert await new.submit("meanwhile") == "ok"
        asked = [asyncio.create_task(old.ask("read", timeout=1.0)) for _ in range(3)]
        claimed = asyncio.create_task(old.submit("stale-claim", timeout=1.0))
        await asyncio.sleep(0)
        old.resume()
        for answer in await asyncio.gather(*asked):
            # A read either fails or waited for the new leader: then it shows what that one committed.
            assert answer["outcome"] != "ok" or "meanwhile" in answer["sequence"]
        outcome = await claimed
        sequence = await group.wait_equal()
        assert sequence[:2] == ["before", "meanwhile"]
        assert outcome != "ok" or "stale-claim" in sequence


async def test_a_leader_without_quorum_stops_answering_within_its_fallback_time(tmp_path):
    """The stock library's default keeps serving stale state for 30 s."""
    async with raft_processes(tmp_path) as group:
        leader = await group.wait_leader()
        others = [member for member in group.members if member is not leader]
        for member in others:
            member.pause()
        cut_at = time.monotonic()
        await eventually(lambda: leads_no_more(leader))
        print(f"stopped leading after {time.monotonic() - cut_at:.2f} s")
        assert (await leader.ask("barrier", timeout=0.5))["outcome"] != "ok"
        assert await leader.submit("nobody-hears", timeout=0.5) != "ok"
        for member in others:
            member.resume()
        await group.wait_leader()
        assert "nobody-hears" not in await group.wait_equal()


async def test_a_rejoining_coordinator_with_a_long_backlog_catches_up(tmp_path):
    """The stock library's pipelined rejections overwrite each other, for ever."""
    async with raft_processes(tmp_path) as group:
        leader = await group.wait_leader()
        behind = next(member for member in group.members if member is not leader)
        await behind.kill()
        load = Load("b")
        load.start(leader, writers=32)
        await load.wait_acknowledged(1500)
        await load.end()
        started_at = time.monotonic()
        await behind.start()
        sequence = await group.wait_equal()
        print(f"caught up {len(sequence)} commands in {time.monotonic() - started_at:.2f} s, start of Python included")
        assert set(load.acknowledged) <= set(sequence)


async def test_a_coordinator_whose_disk_is_lost_rejoins_empty_and_votes_once_it_has_caught_up(tmp_path):
    async with raft_processes(tmp_path, compact_entries=60) as group:
        leader = await group.wait_leader()
        load = Load("w")
        load.start(leader)
        await load.wait_acknowledged(200)
        await load.end()
        lost = next(member for member in group.members if member is not leader)
        await lost.kill()
        shutil.rmtree(lost.config.folder)
        lost.config = replace(lost.config, rejoin=True)
        await lost.start()
        assert set(load.acknowledged) <= set(await group.wait_equal())
        await eventually(lambda: has_rejoined(lost))
        await leader.kill()
        await group.wait_leader()
        assert set(load.acknowledged) <= set(await group.wait_equal())


async def has_rejoined(member: RaftProcess) -> bool:
    return not (await member.ask("status"))["rejoining"]


async def test_a_command_submitted_to_a_follower_reaches_the_leader_and_is_readable_there(tmp_path):
    async with raft_processes(tmp_path) as group:
        leader = await group.wait_leader()
        follower = next(member for member in group.members if member is not leader)
        assert await follower.submit("passed-on") == "ok"
        for member in group.members:
            assert (await member.ask("read", timeout=2.0))["sequence"] == ["passed-on"]
