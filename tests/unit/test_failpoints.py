"""Failpoints: armed only on purpose and only on this machine; each says that it acted; each has a place and a sentence."""

import errno
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from protocol import failpoints
from protocol.errors import ConfigError, StoreError
from protocol.failpoints import EXIT_CODE, PERMISSION, POINTS, VARIABLE, arm_failpoints, armed, fp, fp_store

ROOT = Path(__file__).resolve().parents[2]
CALL = re.compile(r"\bfp(?:_store)?\(\s*\"([a-z_.]+)\"")


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.disarm_failpoints()


def arm(text: str, hosts: tuple[str, ...] = ("127.0.0.1",)) -> None:
    arm_failpoints({VARIABLE: text, PERMISSION: "1"}, hosts)


def test_without_the_variables_nothing_is_armed_and_a_point_does_nothing():
    arm_failpoints({PERMISSION: "1"}, ["192.0.2.1"])
    assert not armed()
    for point in POINTS:
        fp(point)
        fp_store(point, "packs/aa/bb")


def test_points_without_the_permission_are_refused():
    for value in ({}, {PERMISSION: "0"}, {PERMISSION: "yes"}):
        with pytest.raises(ConfigError, match=PERMISSION):
            arm_failpoints({VARIABLE: "local.frozen=exit", **value}, [])
    assert not armed()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_a_process_that_others_can_reach_refuses_to_start_with_points_armed(host):
    with pytest.raises(ConfigError, match="not loopback"):
        arm("local.frozen=exit", ("127.0.0.1", host))
    assert not armed()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_in_any_spelling_is_allowed(host):
    arm("local.frozen=sleep:0", (host,))
    assert armed()


@pytest.mark.parametrize(
    "text",
    [
        "no.such.point=exit",
        "local.frozen",
        "local.frozen=explode",
        "local.frozen=error:ENOSUCH",
        "local.frozen=error:errorcode",
        "local.frozen=sleep:-1",
        "local.frozen=sleep:999999",
        "local.frozen=exit@0",
        "local.frozen=exit; local.frozen=exit",
    ],
)
def test_what_is_no_setting_is_refused_with_the_reason_and_nothing_is_armed(text):
    with pytest.raises(ConfigError) as raised:
        arm(text)
    assert raised.value.setting == VARIABLE
    assert not armed()


def test_an_error_is_the_systems_at_a_point_and_the_stores_beside_a_store(capfd):
    arm("journal.before_sync=error:EIO; pack.before_put=error:ENOSPC@2")
    with pytest.raises(OSError, match="Input/output error") as raised:
        fp("journal.before_sync")
    assert raised.value.errno == errno.EIO
    fp_store("pack.before_put", "packs/aa/bb")
    with pytest.raises(StoreError, match="packs/aa/bb") as refused:
        fp_store("pack.before_put", "packs/aa/bb")
    assert refused.value.errno_name == "ENOSPC"
    fp_store("pack.before_put", "packs/aa/bb")
    said = capfd.readouterr().err.splitlines()
    assert said[1:] == [
        "failpoint journal.before_sync: error:EIO (passed 1 times)",
        "failpoint pack.before_put: error:ENOSPC (passed 2 times)",
    ]


def test_a_sleep_takes_its_time_and_says_so(capfd):
    arm("snapshot.before_put=sleep:30@1")
    begun = time.monotonic()
    fp("snapshot.before_put")
    assert time.monotonic() - begun >= 0.03
    fp("snapshot.before_put")
    assert capfd.readouterr().err.count("failpoint snapshot.before_put: sleep:30") == 1


def test_a_ticket_lets_one_pass_act_when_the_test_wants_it(tmp_path):
    ticket = tmp_path / "now"
    arm(f"journal.after_sync=error:EIO?{ticket}")
    fp("journal.after_sync")
    ticket.touch()
    with pytest.raises(OSError, match=r"failpoint journal\.after_sync"):
        fp("journal.after_sync")
    assert not ticket.exists()
    fp("journal.after_sync")


def test_a_second_participant_of_the_process_arms_nothing_anew():
    arm("local.frozen=error:EIO@2")
    fp("local.frozen")
    arm("local.frozen=error:EIO@2")
    with pytest.raises(OSError, match=r"local\.frozen"):
        fp("local.frozen")


def test_exit_ends_the_process_at_once_and_leaves_one_line():
    program = (
        "import atexit, os\n"
        "from protocol.failpoints import arm_failpoints, fp\n"
        "atexit.register(print, 'farewell')\n"
        "arm_failpoints(os.environ, ['127.0.0.1'])\n"
        "print('not flushed', end='')\n"
        "try:\n    fp('local.frozen')\nfinally:\n    print('finally')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={VARIABLE: "local.frozen=exit", PERMISSION: "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == EXIT_CODE
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == "failpoint local.frozen: exit (passed 1 times)"


def test_every_point_has_one_place_a_sentence_and_only_drivers_have_places():
    """A machine must stay pure: crash points lie between its events (RELIABILITY.md 4.6, DESIGN.md section 3)."""
    placed: Counter[str] = Counter()
    for folder in ("protocol", "participant", "coordinator"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "protocol.failpoints" not in text:
                continue
            # Sinks do I/O, as drivers do.
            assert {"runtime", "sinks"} & set(path.relative_to(ROOT).parts), f"{path} is no driver"
            assert set(CALL.findall(text)) <= set(POINTS), path
            placed.update({point: text.count(f'"{point}"') for point in POINTS if f'"{point}"' in text})
    assert dict(placed) == dict.fromkeys(POINTS, 1)
    for point, sentence in POINTS.items():
        assert sentence.endswith("."), point
