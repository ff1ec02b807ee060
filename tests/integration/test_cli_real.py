"""The command line against real coordinators, started by the command line from what the command line made."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli_cluster import CliCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


@pytest.fixture
def coordinators(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CliCluster]:
    group = CliCluster(tmp_path / "cluster", getattr(request, "param", 1))
    try:
        yield group
    finally:
        group.close()


def test_one_coordinator_from_keys_to_an_orderly_end(coordinators: CliCluster, tmp_path: Path) -> None:
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
    happened = cleancut("events", "--since", "0", "--count", "2")
    assert happened.returncode == 0, happened.stderr
    assert "leader-elected" in happened.stdout

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
def test_three_coordinators_answer_on_when_the_leader_is_killed(coordinators: CliCluster) -> None:
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
