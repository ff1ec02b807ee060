"""`durability="turn"`: nothing of a turn leaves its participant before the disk has it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from participant.runtime.log_files import FolderFiles
from tests.integration.fleet import until
from tests.integration.test_turn_durability import Turned, pay

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


class Disk:
    """The disk of one participant: syncs of its turns wait until it lets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.lets = threading.Event()
        self.lets.set()
        self.waiting = 0
        real = FolderFiles.sync

        def sync(files: FolderFiles, segment: str) -> None:
            if files._folder.name == "turns" and files._folder.parent.name == name and not self.lets.is_set():
                self.waiting += 1
                assert self.lets.wait(30)
            real(files, segment)

        monkeypatch.setattr(FolderFiles, "sync", sync)


def out(world: Turned, agent: str) -> int:
    """Outputs of an agent that the sink has taken."""
    return sum(output.agent == f"purse/{agent}" for output in world.sink.outputs)


async def works_meanwhile(world: Turned, name: str) -> None:
    """Turns of a participant whose disk works come all the way to the sink: whatever would leave elsewhere has had its time."""
    for number in (101, 102, 103):
        before = out(world, name)
        await pay(world, name, 1, hops=0, first=number)
        await until(lambda before=before: out(world, name) == before + 1)


async def test_outputs_and_sends_leave_when_the_turn_is_on_the_disk_and_no_epoch_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, "a")
    async with Turned(tmp_path, ("a", "b")) as world:
        await pay(world, "a", 1, hops=1)
        await world.quiet()
        assert (out(world, "a"), out(world, "b")) == (1, 1)
        disk.lets.clear()
        await pay(world, "a", 4, hops=1, first=2)
        await until(lambda: len(world.purse("a").seen["outside/ingest"]) == 5)
        await until(lambda: disk.waiting)
        await works_meanwhile(world, "b")
        # It was done, in memory. Nobody knows.
        assert (out(world, "a"), out(world, "b")) == (1, 1 + 3)
        assert world.purse("b").seen == {"purse/a": [1], "outside/ingest": [101, 102, 103]}
        disk.lets.set()
        await world.quiet()
        assert (out(world, "a"), out(world, "b")) == (5, 5 + 3)
        assert world.conductor.manifests == {}
        world.judge(total=2000 + 5 + 3)


async def test_what_was_received_is_acknowledged_when_its_turn_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b dies with turns that its disk does not have: a sends them again, and they are done once."""
    disk = Disk(monkeypatch, "b")
    async with Turned(tmp_path, ("a", "b")) as world:
        await pay(world, "a", 1, hops=1)
        await world.quiet()
        disk.lets.clear()
        await pay(world, "a", 4, hops=1, first=2)
        await until(lambda: len(world.purse("b").seen["purse/a"]) == 5)
        await works_meanwhile(world, "a")
        assert world.participants["a"].outgoing_bytes > 0, "nothing of it is acknowledged"
        assert out(world, "b") == 1
        crashing = asyncio.ensure_future(world.crash("b"))
        await asyncio.sleep(0)
        disk.lets.set()
        await crashing
        await world.back("b")
        await world.quiet()
        assert world.purse("b").seen == {"purse/a": [1, 2, 3, 4, 5]}
        assert out(world, "b") == 5 + world.lives["b"]
        world.judge(total=2000 + 5 + 3)
