"""The demo as its users run it: real processes that are killed, every cut added up, every charge counted at the bank."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.shared import shared_path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CASES = {
    "2nodes-simple": ("2nodes.top", 1),
    "2nodes-message": ("2nodes.top", 1),
    "3nodes-simple": ("3nodes.top", 1),
    "3nodes-bidirectional-messages": ("3nodes.top", 1),
    "8nodes-sequential-snapshots": ("8nodes.top", 2),
}


def demo_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "coordinator.cli", "demo", *arguments]


def run_demo(*arguments: str, timeout: float = 170) -> tuple[int, dict, str]:
    done = subprocess.run(
        demo_command(*arguments, "--json"), capture_output=True, text=True, timeout=timeout, check=False
    )
    document = json.loads(done.stdout) if done.stdout.strip() else {}
    return done.returncode, document, done.stderr


def processes_naming(text: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # ended meanwhile
        if text in line and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def wait_until(condition, seconds: float, what: str) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"{what}: not within {seconds} s"
        time.sleep(0.05)


def test_two_demos_side_by_side_commit_epochs_survive_every_kill_and_conserve_money(tmp_path):
    """Both run at once, so that neither may depend on fixed ports or folders."""
    other = subprocess.Popen(
        demo_command("--seconds", "6", "--dir", str(tmp_path / "other"), "--coordinators", "1", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    code, document, errors = run_demo("--seconds", "8", "--dir", str(tmp_path / "one"))
    other_out, other_err = other.communicate(timeout=120)
    assert code == 0, errors
    assert document["consistent"] is True
    assert document["problems"] == []
    assert document["leader_kills"] == 1
    assert document["epochs_committed"] >= 3
    assert len(document["totals"]) == document["epochs_committed"]
    assert set(document["totals"]) == {document["total_expected"]}
    assert document["participants"] == 4
    assert document["messages"] > 1000
    assert document["orders_made"] > 0
    assert other.returncode == 0, other_err
    assert json.loads(other_out)["consistent"] is True
    assert processes_naming(str(tmp_path)) == []
    # The bank's own ledger, read as a stranger would. The cluster works on while it is judged: a few charges are newer.
    ledger = [json.loads(line) for line in (tmp_path / "one" / "bank.jsonl").read_text().splitlines()]
    assert len(ledger) == len({charge["order"] for charge in ledger}) >= document["charges"] > 0
    assert document["charges_cents"] == sum(charge["cents"] for charge in ledger[: document["charges"]])
    for found in (document, json.loads(other_out)):
        assert found["participant_kills"] == 2
        assert found["rollbacks"] >= 2
        assert (found["charges_duplicated"], found["charges_lost"]) == (0, 0)
        seconds = found["recovery_seconds"]
        parts = sum(seconds[part] for part in ("detect", "restart", "load", "replay"))
        assert 0 < parts == pytest.approx(seconds["total"], abs=0.1)


def test_a_demo_that_charges_without_a_step_finds_its_duplicates_and_fails(tmp_path):
    """What the demo says when all is well is worth something only if it says otherwise when it is not."""
    code, document, errors = run_demo(
        "--seconds", "5", "--coordinators", "1", "--careless", "--dir", str(tmp_path / "d")
    )  # fmt: skip
    assert code == 4, errors
    assert document["charges_duplicated"] > 0
    assert document["consistent"] is False
    assert "charged more than once: order-" in document["problems"][0]
    assert set(document["totals"]) == {document["total_expected"]}


def test_the_demo_over_mqtt_is_consistent(tmp_path):
    code, document, errors = run_demo("--seconds", "6", "--transport", "mqtt", "--dir", str(tmp_path / "d"))
    assert code == 0, errors
    assert document["transport"] == "mqtt"
    assert document["participant_kills"] == 2
    assert document["consistent"] is True
    assert document["epochs_committed"] >= 2


def test_ctrl_c_ends_every_process_and_removes_the_temporary_folder(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    child = subprocess.Popen(
        demo_command("--seconds", "100"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    assert child.stdout is not None
    seen = []
    for line in child.stdout:
        seen.append(line)
        if "are members" in line:
            break
    assert processes_naming(str(tmp_path)), seen
    child.send_signal(signal.SIGINT)
    rest, _ = child.communicate(timeout=60)
    assert child.returncode == 130, (seen, rest)
    assert "Traceback" not in rest
    assert processes_naming(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_killed_demo_leaves_no_process_behind(tmp_path):
    child = subprocess.Popen(
        demo_command("--seconds", "100", "--dir", str(tmp_path / "d")),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if "are members" in line:
            break
    child.kill()
    child.wait()
    child.stdout.close()
    wait_until(lambda: processes_naming(str(tmp_path)) == [], 10, "children end with their parent")


@pytest.mark.parametrize("case", sorted(CASES))
def test_others_scripts_run_on_real_processes_and_every_cut_holds_the_files_tokens(case, tmp_path):
    folder = shared_path("vectors/cos418")
    top, snapshots = CASES[case]
    code, document, errors = run_demo(
        "--topology", str(folder / top), "--events", str(folder / f"{case}.events"),
        "--coordinators", "1", "--dir", str(tmp_path / "d"),
    )  # fmt: skip
    assert code == 0, errors
    assert document["epochs_committed"] == snapshots
    assert document["totals"] == [document["total_expected"]] * snapshots
    tokens = [line.split() for line in (folder / top).read_text().splitlines() if line and not line.startswith("#")]
    assert document["total_expected"] == sum(int(words[1]) for words in tokens[1 : 1 + int(tokens[0][0])])


@pytest.mark.parametrize(
    ("top", "events", "expected"),
    [
        ("", "tick\n", "is empty"),
        ("x\n", "tick\n", "not a whole number"),
        ("2\nN1 1\n", "tick\n", "promises 2 servers"),
        ("2\nN1 1\nn1 2\n", "tick\n", "stands there twice"),
        ("2\nN1 1\n../N2 2\n", "tick\n", "not allowed"),
        ("2\nN1 1\nN2 2\nN1 N3\n", "tick\n", "no server n3"),
        ("2\nN1 1\nN2 2\nN1 N2\n", "send N2 N1 1\n", "no channel n2 -> n1"),
        ("2\nN1 1\nN2 2\nN1 N2\n", "snapshot N9\n", "no server n9"),
        ("2\nN1 1\nN2 2\nN1 N2\n", "jump N1\n", "is not send, snapshot or tick"),
        ("999999\n", "tick\n", "1 to 64"),
    ],
)
def test_a_wrong_script_is_refused_with_file_and_line_before_anything_starts(tmp_path, top, events, expected):
    (tmp_path / "a.top").write_text(top)
    (tmp_path / "a.events").write_text(events)
    done = subprocess.run(
        demo_command("--topology", str(tmp_path / "a.top"), "--events", str(tmp_path / "a.events")),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_topology_without_events_is_wrong_usage(tmp_path):
    done = subprocess.run(demo_command("--topology", "x.top"), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--events" in done.stderr


def test_a_folder_that_is_not_empty_is_refused_and_untouched(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    done = subprocess.run(demo_command("--dir", str(tmp_path)), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert (tmp_path / "mine.txt").read_text() == "keep"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
