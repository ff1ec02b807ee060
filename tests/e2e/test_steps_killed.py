"""Real processes that die at each named point of a step, and one that only sleeps (A3, A8)."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.redis_server import RedisServer

SCRIPT = Path(__file__).with_name("step_process.py")
ROOT = Path(__file__).parents[2]
DEATHS = [
    ("effect.before_claim", "nothing"),
    ("log.before_sync", "nothing"),
    ("effect.before_record", "nothing"),
    *((point, mode) for point in ("effect.claimed", "effect.called") for mode in ("token", "resolve", "nothing")),
    ("effect.recorded", "nothing"),
]
DOUBTFUL = {"log.before_sync": 0, "effect.claimed": 0, "effect.called": 1, "effect.before_record": 1}
"""Where nobody can tell: charges made by then."""


def started(folder: Path, mode: str, ledger: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder), mode, ledger],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=50)
    assert process.returncode == 0, err
    found = json.loads(out.strip().splitlines()[-1])
    assert isinstance(found, dict)
    return found


def dies(folder: Path, mode: str, ledger: str, point: str) -> None:
    process = started(folder, mode, ledger, CLEANCUT_ALLOW_FAILPOINTS="1", CLEANCUT_FAILPOINTS=f"{point}=exit")
    _, err = process.communicate(timeout=50)
    assert process.returncode == 137, err
    assert f"failpoint {point}: exit" in err


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    server.start()
    yield server
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize(("point", "mode"), DEATHS)
def test_a_process_that_dies_in_a_step_charges_once_or_asks(tmp_path: Path, point: str, mode: str):
    """A3: before the claim is durable, after it, after the call, after the result. Never 2, never silent."""
    dies(tmp_path, mode, "local", point)
    found = outcome(started(tmp_path, mode, "local"))
    if mode == "nothing" and point in DOUBTFUL:
        # A claim that was written and not synced outlives the process, if not its power.
        expected = {"receipt": "", "parked": ["in-doubt"], "charges": DOUBTFUL[point]}
        assert found == expected
        assert outcome(started(tmp_path, mode, "local")) == expected, "and so it stays"
        return
    assert found["charges"] == 1
    assert found["receipt"].startswith("receipt ")
    assert found["parked"] == []


@pytest.mark.slow
@pytest.mark.parametrize("point", ["effect.claimed", "effect.called"])
def test_the_same_with_the_ledger_in_redis(tmp_path: Path, server: RedisServer, point: str):
    dies(tmp_path, "resolve", server.url, point)
    server.kill()
    server.start()
    found = outcome(started(tmp_path, "resolve", server.url))
    assert (found["charges"], found["parked"]) == (1, [])


@pytest.mark.slow
def test_the_frozen_twin_is_refused_and_ends_with_a_clear_error(tmp_path: Path):
    """A8: suspended inside a step; its successor finds out what became of it and goes on; the twin wakes up."""
    hangs = tmp_path / "hangs"
    hangs.touch()
    twin = started(tmp_path, "resolve", "local", BANK_HANGS=str(hangs))
    assert twin.stdout is not None
    assert twin.stdout.readline() == "charged\n"
    twin.send_signal(signal.SIGSTOP)
    successor = outcome(started(tmp_path, "resolve", "local"))
    assert successor["charges"] == 1
    assert successor["receipt"].startswith("receipt ")
    hangs.unlink()
    twin.send_signal(signal.SIGCONT)
    found = outcome(twin)
    assert found["ended"] == "FencedError"
    assert "must stop" in found["reason"]
    assert found["charges"] == 1
    assert outcome(started(tmp_path, "resolve", "local")) == successor
