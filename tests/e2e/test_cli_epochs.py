"""From nothing to epochs that are looked at, checked, damaged and blamed: the example's cluster through the command line."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli_cluster import ROOT, CliCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CliCluster]:
    """One coordinator and the two players of examples/ping_pong.py, each in a process of its own."""
    made = CliCluster(tmp_path / "ping", 1)
    try:
        made.start("c1")
        assert made.cleancut("policy", "set", "--kind", "manual", "--pause", "0s").returncode == 0
        for name, other in (("left", "right"), ("right", "left")):
            program = [sys.executable, str(ROOT / "examples" / "ping_pong.py"), str(made.folder), name, other]
            made.run(name, program, until="a member")
        yield made
    finally:
        made.close()


def test_epochs_of_a_running_cluster_from_trigger_to_offline_proof(cluster: CliCluster) -> None:
    """What is shown online and what is read from the store alone is the same, also when nothing runs any more."""
    first = cluster.document("epoch", "trigger", "--reason", "first")
    second = cluster.document("epoch", "trigger")
    assert (first["state"], second["state"]) == ("committed", "committed")
    assert second["epoch"] == first["epoch"] + 1
    assert sorted(second["members"]) == ["left", "right"]
    number = str(second["epoch"])

    assert [each["id"] for each in cluster.document("participants")["participants"]] == ["left", "right"]
    assert cluster.document("topology")["channels"] == [["left", "right"], ["right", "left"]]
    listed = cluster.document("epoch", "list")["epochs"]
    assert [each["epoch"] for each in listed] == [second["epoch"], first["epoch"]]
    assert listed[1]["reason"] == "first"
    assert cluster.document("epoch", "show", "latest")["epoch"] == second["epoch"]
    assert f"Epoch {number}" in cluster.cleancut("epoch", "why", number).stdout
    for command in (["epoch", "list"], ["epoch", "show", number], ["participants"], ["topology"], ["status"]):
        assert cluster.cleancut(*command).returncode == 0, command

    online = cluster.document("epoch", "state", number, "player/left")
    offline = cluster.document("epoch", "state", number, "player/left", "--offline")
    assert online == offline
    assert online["fields"]["hits"] >= 0
    agents = cluster.document("epoch", "state", number)["agents"]
    assert agents == cluster.document("epoch", "state", number, "--offline")["agents"]
    assert cluster.cleancut("epoch", "state", number, "player/nobody").returncode == 3

    report = cluster.document("epoch", "verify", number)
    assert (report["ok"], report["signature"]) == (True, "verified")
    assert cluster.cleancut("epoch", "abort", number).returncode == 6
    assert cluster.cleancut("doctor").returncode == 0

    for name in ("left", "right", "c1"):
        cluster.end(name)
    assert cluster.cleancut("epoch", "verify", number).returncode == 5
    assert cluster.document("epoch", "verify", number, "--offline")["manifest"] == report["manifest"]


def test_damage_is_exit_4_online_and_offline(cluster: CliCluster) -> None:
    number = str(cluster.document("epoch", "trigger")["epoch"])
    [pack, *_] = sorted((cluster.folder / "store").rglob("packs/*/*"))
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0x40
    pack.chmod(0o600)
    pack.write_bytes(data)
    for options in ([], ["--offline"]):
        ended = cluster.cleancut("epoch", "verify", number, *options)
        assert ended.returncode == 4, ended.stderr
        assert "Traceback" not in ended.stderr
        assert pack.name in ended.stdout


def test_an_epoch_that_waits_for_a_stopped_participant_aborts_and_names_it(cluster: CliCluster) -> None:
    """SIGSTOP: the process is there and silent. The abort names it, `why` says so, and the next epoch works."""
    assert cluster.cleancut("policy", "set", "--deadline", "1500ms").returncode == 0
    stopped = cluster.running["right"]
    stopped.send_signal(signal.SIGSTOP)
    try:
        ended = cluster.cleancut("epoch", "trigger")
    finally:
        stopped.send_signal(signal.SIGCONT)
    assert ended.returncode == 1, ended.stderr
    assert "right" in ended.stderr
    [newest, *_] = cluster.document("epoch", "list")["epochs"]
    assert newest["state"] == "aborted"
    assert newest["abort"]["participant"] == "right"
    why = cluster.cleancut("epoch", "why", str(newest["epoch"]))
    assert why.returncode == 0
    assert "right" in why.stdout
    assert cluster.cleancut("epoch", "verify", str(newest["epoch"])).returncode in {3, 6}, "it has no manifest"
    after = cluster.cleancut("epoch", "trigger")
    assert after.returncode == 0, after.stderr
