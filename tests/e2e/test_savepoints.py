"""A savepoint as an operator uses it: one command before something daring, another one to go back, whatever died between."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli_cluster import ROOT, CliCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CliCluster]:
    """Three coordinators and the two players of examples/ping_pong.py, each in a process of its own."""
    made = CliCluster(tmp_path / "ping", 3)
    try:
        for name in ("c1", "c2", "c3"):
            made.start(name)
        assert made.cleancut("policy", "set", "--kind", "manual", "--pause", "0s", "--timeout", "30").returncode == 0
        for name, other in (("left", "right"), ("right", "left")):
            program = [sys.executable, str(ROOT / "examples" / "ping_pong.py"), str(made.folder), name, other]
            made.run(name, program, until="a member")
        yield made
    finally:
        made.close()


def hits(cluster: CliCluster, epoch: str) -> int:
    found = cluster.document("epoch", "state", epoch, "player/left")["fields"]["hits"]
    assert isinstance(found, int)
    return found


def test_savepoint_is_gone_back_to_by_name_after_all_coordinators_were_killed(cluster: CliCluster) -> None:
    taken = cluster.document("epoch", "trigger", "--name", "before-the-migration")
    assert taken["names"] == ["before-the-migration"]
    number = taken["epoch"]
    then = hits(cluster, "before-the-migration")
    for _ in range(2):
        later = cluster.document("epoch", "trigger")["epoch"]
    twice = cluster.cleancut("epoch", "trigger", "--name", "before-the-migration")
    assert twice.returncode == 6
    assert f"is epoch {number}; no epoch was started" in twice.stderr
    assert cluster.document("status")["epochs"]["newest"] == later
    assert cluster.cleancut("epoch", "pin", str(number), "before-the-migration").returncode == 0
    assert cluster.cleancut("epoch", "pin", "latest", "before-the-migration").returncode == 6

    for name in ("c1", "c2", "c3"):
        cluster.end(name, signal.SIGKILL)
    assert cluster.cleancut("epoch", "show", "before-the-migration", "--timeout", "2").returncode == 5
    for name in ("c1", "c2", "c3"):
        cluster.start(name)

    shown = cluster.document("epoch", "show", "before-the-migration", "--timeout", "30")
    assert (shown["epoch"], shown["names"]) == (number, ["before-the-migration"])
    named = cluster.document("epoch", "list", "--named")["epochs"]
    assert [each["epoch"] for each in named] == [number]
    wrong = cluster.cleancut("epoch", "restore", "before-the-migraton", "--yes")
    assert wrong.returncode == 3
    assert "did you mean before-the-migration?" in wrong.stderr
    checked = cluster.cleancut("epoch", "restore", "before-the-migration", "--check", "--timeout", "30")
    assert checked.returncode == 0, checked.stderr
    ended = cluster.cleancut("epoch", "restore", "before-the-migration", "--yes", "--timeout", "40")
    assert ended.returncode == 0, ended.stderr
    assert f"2 participants back at epoch {number}" in ended.stdout
    assert "2 newer epochs" in ended.stderr

    after = cluster.document("epoch", "trigger")
    assert after["incarnation"] == 2
    assert hits(cluster, "latest") >= then
    assert hits(cluster, "before-the-migration") == then, "it stands for the same as before"
    gone = cluster.cleancut("epoch", "unpin", "before-the-migration")
    assert gone.returncode == 0, gone.stderr
    assert cluster.cleancut("epoch", "unpin", "before-the-migration").returncode == 3
    assert cluster.cleancut("epoch", "show", "before-the-migration").returncode == 3
    assert cluster.cleancut("epoch", "verify", str(number)).returncode == 0
