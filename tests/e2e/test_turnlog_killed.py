"""Processes that die while they log turns, and one that only sleeps: what was acknowledged is there (I17, I22)."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from participant.runtime.log_files import LocalFolder
from participant.runtime.turn_logger import TurnLogger
from tests.turnlog_world import World

SCRIPT = Path(__file__).with_name("turnlog_process.py")
ROOT = Path(__file__).parents[2]
POINTS = ["log.before_append", "log.before_sync", "log.after_sync", "log.before_rotate", "log.after_rotate"]


def started(folder: Path, session: int, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder), str(session)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def acknowledged_after(process: subprocess.Popen[str], count: int) -> int:
    """The last number that it was told is durable, once it was told so many times."""
    assert process.stdout is not None
    number = 0
    for _ in range(count):
        line = process.stdout.readline().strip()
        assert line, process.stderr.read() if process.stderr else ""
        number = int(line)
    return number


def recovered(folder: Path) -> tuple[int, int]:
    """Number of the last record, and turns; the agent's state is what so many turns make."""
    world = World(logged=False)
    logger = TurnLogger(LocalFolder(folder, "p1").files("turns"), cluster="demo", participant="p1")
    found = logger.recover(world.hosts, now=0)
    worker: Any = world.hosts["worker/a"].agent  # type: ignore[index]
    assert worker.count == found.turns
    assert len(worker.items) == 5 * found.turns
    return logger.position, found.turns


@pytest.mark.slow
def test_what_was_acknowledged_is_there_after_kill_9_again_and_again(tmp_path: Path):
    before = 0
    for session in range(1, 4):
        process = started(tmp_path, session)
        acknowledged = acknowledged_after(process, 40 * session)
        process.kill()
        rest = process.communicate()[0].split()
        last = int(rest[-1]) if rest else acknowledged
        position, turns = recovered(tmp_path)
        assert position >= last > before
        # One record for each life, one for each turn.
        assert turns == position - session
        before = position
    assert len(list((tmp_path / "p1" / "turns").iterdir())) > 3, "it has gone on in new segments meanwhile"


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_death_at_any_point_of_a_write_loses_nothing_acknowledged(tmp_path: Path, point: str):
    process = started(tmp_path, 1, CLEANCUT_ALLOW_FAILPOINTS="1", CLEANCUT_FAILPOINTS=f"{point}=exit@2")
    out, err = process.communicate(timeout=50)
    assert process.returncode == 137, err
    numbers = [int(line) for line in out.split()]
    position, turns = recovered(tmp_path)
    assert position >= (numbers[-1] if numbers else 0)
    assert turns >= position - 1
    process = started(tmp_path, 2)
    last = acknowledged_after(process, 5)
    process.kill()
    process.communicate()
    assert recovered(tmp_path)[0] >= last


@pytest.mark.slow
def test_a_twin_that_slept_acknowledges_nothing_and_is_not_read(tmp_path: Path):
    """Suspended in the middle; its successor takes the folder over and goes on; it wakes up, and is told to stop."""
    twin = started(tmp_path, 1)
    acknowledged_after(twin, 20)
    twin.send_signal(signal.SIGSTOP)
    successor = started(tmp_path, 2)
    acknowledged = acknowledged_after(successor, 20)
    twin.send_signal(signal.SIGCONT)
    lines = twin.communicate(timeout=50)[0].split()
    assert lines[-1] == "FencedError"
    acknowledged = acknowledged_after(successor, 20)
    successor.kill()
    successor.communicate()
    position, turns = recovered(tmp_path)
    assert position >= acknowledged
    assert turns == position - 2
