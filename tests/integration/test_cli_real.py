"""The command line against real coordinators, started by the command line from what the command line made."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("CLEANCUT_")}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]
COMMAND = [sys.executable, "-m", "coordinator.cli"]


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in held]
    for sock in held:
        sock.close()
    return ports


class Coordinators:
    """Processes that this test started, by id."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[str]] = {}
        ports = free_ports(2 * count)
        listed = ",".join(f"c{n + 1}=127.0.0.1:{ports[2 * n]}:{ports[2 * n + 1]}" for n in range(count))
        self.cleancut("keys", "init", str(folder), "--coordinators", listed, "--cluster", "shop")

    def start(self, name: str) -> None:
        """Start one and wait for the line that says that it is ready."""
        log = (self.folder / f"{name}.log").open("w")
        child = subprocess.Popen(
            [*COMMAND, "coordinator", "--config", str(self.folder / f"{name}.toml")],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        self.running[name] = child
        assert child.stdout is not None
        watchdog = threading.Timer(30, child.kill)
        watchdog.start()
        line = child.stdout.readline()
        watchdog.cancel()
        assert "ready" in line, (self.folder / f"{name}.log").read_text()

    def end(self, name: str, number: int = signal.SIGTERM) -> int:
        """End one; returns its exit code."""
        child = self.running.pop(name)
        child.send_signal(number)
        try:
            return child.wait(20)
        finally:
            child.kill()
            assert child.stdout is not None
            child.stdout.close()

    def cleancut(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The command, on this cluster's folder by default."""
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=ROOT,
            env={**ENVIRONMENT, "CLEANCUT_DIR": str(self.folder), **environment},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    def document(self, *arguments: str) -> Any:
        """A command's JSON document."""
        ended = self.cleancut(*arguments, "--json")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)


@pytest.fixture
def coordinators(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Coordinators]:
    group = Coordinators(tmp_path / "cluster", getattr(request, "param", 1))
    try:
        yield group
    finally:
        for name in list(group.running):
            group.end(name, signal.SIGKILL)


def test_one_coordinator_from_keys_to_an_orderly_end(coordinators: Coordinators, tmp_path: Path) -> None:
    """Made, started, looked at, changed, refused, ended; each with the exit code that scripts rely on."""
    cleancut = coordinators.cleancut
    assert cleancut("status").returncode == 5, "it does not run yet"
    coordinators.start("c1")
    status = coordinators.document("status", "--fresh")
    assert (status["cluster"], status["leader"]) == ("shop", "c1")
    for command in (["status"], ["participants"], ["topology"], ["epoch", "list"], ["policy", "show"]):
        assert cleancut(*command).returncode == 0, command

    assert cleancut("epoch", "show", "7").returncode == 3
    assert cleancut("epoch", "show", "latest").returncode == 3
    assert cleancut("epoch", "verify", "7").returncode == 3
    refused = cleancut("epoch", "trigger")
    assert refused.returncode == 6, "no participant is a member"
    assert "start a participant" in refused.stderr

    changed = cleancut("policy", "set", "--kind", "manual", "--deadline", "30s")
    assert changed.returncode == 0, changed.stderr
    assert coordinators.document("policy", "show")["deadline_ms"] == 30_000
    assert coordinators.document("policy", "show")["kind"] == "manual"
    assert cleancut("policy", "set", "--max-concurrent", "0").returncode == 2

    other = tmp_path / "other.secret"
    other.write_text("abcd" * 16)
    other.chmod(0o600)
    assert cleancut("status", "--secret-file", str(other)).returncode == 6
    viewer = tmp_path / "viewer.token"
    assert cleancut("keys", "token", "viewer", "--out", str(viewer)).returncode == 0
    assert cleancut("status", "--token", str(viewer)).returncode == 0
    assert cleancut("policy", "set", "--kind", "manual", "--token", str(viewer)).returncode == 6
    address = coordinators.document("status")["coordinators"][0]["address"]
    anonymous = cleancut("status", "--coordinators", address, CLEANCUT_DIR="")
    assert anonymous.returncode == 6
    assert "--secret-file" in anonymous.stderr

    doctor = json.loads(cleancut("doctor", "--json").stdout)
    assert {check["name"]: check["ok"] for check in doctor["checks"]}["leader"] is True
    assert coordinators.end("c1") == 0
    assert cleancut("status").returncode == 5


@pytest.mark.parametrize("coordinators", [3], indirect=True)
def test_three_coordinators_answer_on_when_the_leader_is_killed(coordinators: Coordinators) -> None:
    """Reads and writes reach the new leader through whoever answers; the dead one is passed over, an election waited for."""
    for name in ("c1", "c2", "c3"):
        coordinators.start(name)
    leader = coordinators.document("status", "--fresh")["leader"]
    assert leader in coordinators.running
    coordinators.end(leader, signal.SIGKILL)
    changed = coordinators.cleancut("policy", "set", "--kind", "manual", "--timeout", "30")
    assert changed.returncode == 0, changed.stderr
    status = coordinators.document("status", "--fresh", "--timeout", "30")
    assert status["leader"] in coordinators.running
    assert status["policy"]["kind"] == "manual"
    for name in list(coordinators.running)[1:]:
        coordinators.end(name, signal.SIGKILL)
    alone = coordinators.cleancut("policy", "set", "--kind", "periodic", "--timeout", "3")
    assert alone.returncode == 5, "without a quorum nothing may be said to be done"
