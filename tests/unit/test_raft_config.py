"""Settings, and the interpreter and library that are refused."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.runtime.raft.config import (
    TIMINGS,
    RaftConfig,
    RaftTiming,
    TlsFiles,
    split_address,
    timing_preset,
)
from coordinator.runtime.raft.pinned import check_interpreter
from protocol.errors import ConfigError, IllegalName

ROOT = Path(__file__).parents[2]
TLS = TlsFiles(ca=Path("ca.pem"), certificate=Path("c1.pem"), key=Path("c1.key"))


def config(**changes) -> RaftConfig:
    settings = {"id": "c1", "cluster": "demo", "folder": Path("data"), **changes}
    return RaftConfig(**settings)


def test_presets_hold_their_own_rules_and_slow_is_slower():
    assert timing_preset("slow").election_min > timing_preset("normal").election_min
    with pytest.raises(ConfigError, match="normal, slow"):
        timing_preset("fast")


@pytest.mark.parametrize(
    "change",
    [
        {"heartbeat": 0.1},
        {"heartbeat": 0.0},
        {"election_max": 0.3},
        {"leader_fallback": 0.15},
        {"connection": 0.5},
        {"reconnect": 0.0},
    ],
)
def test_clocks_that_would_depose_leaders_are_refused(change):
    with pytest.raises(ConfigError, match="raft timing"):
        replace(TIMINGS["normal"], **change)


def test_more_than_one_coordinator_without_certificates_is_refused():
    with pytest.raises(ConfigError, match="keys init"):
        config(peers={"c2": "127.0.0.1:7501"})


def test_one_coordinator_needs_no_certificates():
    assert config().members == ("c1",)


@pytest.mark.parametrize(
    "changes",
    [
        {"listen": "7500"},
        {"listen": "127.0.0.1:70000"},
        {"peers": {"c2": "nowhere"}, "tls": TLS},
        {"peers": {"c1": "127.0.0.1:7501"}, "tls": TLS},
        {"compact_entries": 1},
        {"compact_seconds": 0.0},
    ],
)
def test_settings_that_cannot_work_are_refused(changes):
    with pytest.raises(ConfigError):
        config(**changes)


@pytest.mark.parametrize("changes", [{"id": "../c1"}, {"cluster": "a/b"}, {"peers": {"C2": "h:1"}, "tls": TLS}])
def test_illegal_names_are_refused(changes):
    with pytest.raises(IllegalName):
        config(**changes)


def test_members_are_sorted_ids_of_the_whole_group():
    assert config(id="c2", peers={"c3": "h:1", "c1": "h:2"}, tls=TLS).members == ("c1", "c2", "c3")


def test_addresses_are_split_with_ipv6_in_brackets():
    assert split_address("raft", "[::1]:7500") == ("::1", 7500)
    assert split_address("raft", "host:0") == ("host", 0)


def test_another_version_of_the_library_is_refused():
    with pytest.raises(ConfigError, match=r"0\.3\.17 is required, 0\.3\.18"):
        check_interpreter(version="0.3.18")


def test_python_without_assertions_is_refused():
    program = "import coordinator.runtime.raft.pinned"
    ended = subprocess.run([sys.executable, "-O", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "start it without -O" in ended.stderr


def test_settings_can_be_read_without_the_library():
    program = "import coordinator.runtime.raft, sys; sys.exit('pysyncobj' in sys.modules or 'ssl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_timing_is_a_plain_value():
    assert RaftTiming() == TIMINGS["normal"]
