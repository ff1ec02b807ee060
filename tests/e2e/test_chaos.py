"""Two minutes of kills, freezes and twins on real processes, with the bank outside."""

import faulthandler
import json
import subprocess
import sys

import pytest

from simulations.chaos import SECONDS
from tests.e2e.real_cluster import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 300)]


def test_whatever_is_killed_or_frozen_nothing_is_lost_and_nothing_happens_twice(tmp_path):
    faulthandler.cancel_dump_traceback_later()  # It would show where we wait after two minutes, which is no news.
    done = subprocess.run(
        [sys.executable, "-m", "simulations.chaos", "--seconds", str(SECONDS), "--seed", "12", "--dir", str(tmp_path / "d"), "--json"],
        capture_output=True, text=True, timeout=SECONDS + 280, check=False, cwd=ROOT,
    )  # fmt: skip
    document = json.loads(done.stdout) if done.stdout.strip() else {}
    assert done.returncode == 0, (document.get("problems"), done.stderr)
    assert sum(document["faults"].values()) > SECONDS / 10
    assert document["participant_kills"] > 0
    assert document["leader_kills"] > 0
    assert document["rollbacks"] > 3
    assert set(document["totals"]) == {document["total_expected"]}
    assert document["ended_by_themselves"] > 0, "some were fenced"
    # As a stranger would audit the bank.
    ledger = [json.loads(line) for line in (tmp_path / "d" / "bank.jsonl").read_text().splitlines()]
    assert len(ledger) == len({charge["order"] for charge in ledger}) == document["charges"] > 0
