"""Wall clocks that jump by hours while epochs are open (D15): every process under libfaketime, monotonic time left alone."""

import asyncio
import signal
import subprocess
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from protocol.errors import SnapshotError
from simulations.demo import summary
from tests.e2e.real_cluster import real_cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

HOUR_NS = 3_600_000_000_000


def library() -> str:
    """Where the package `faketime` put its library; `make test` installs it."""
    listed = subprocess.run(["dpkg", "-L", "libfaketime"], capture_output=True, text=True, check=True).stdout
    [path] = [line for line in listed.splitlines() if line.endswith("libfaketime.so.1")]
    assert Path(path).exists()
    return path


async def test_clock_that_jumps_an_hour_back_and_forth_during_epochs_changes_no_number_and_no_deadline(tmp_path):
    """Numbers only grow, durations are those of the monotonic clock, history is in the order of numbers, not of times.

    Each epoch is held open by a participant that is stopped until the coordinator believes the new time. The deadline is
    15 s: by the wall clock each epoch misses it by an hour, or would have an hour more.
    """
    folder = tmp_path / "cluster"
    folder.mkdir()
    clock = tmp_path / "clock"
    clock.write_text("+0\n")
    variables = {
        "LD_PRELOAD": library(),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Else waits for the interpreter's lock last until the faked time says so, and every thread stalls after a jump.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }
    async with real_cluster(folder, participants=2, lease_ms=20_000, variables=variables) as cluster:
        records = [await cluster.commit_one()]
        for offset in (-3600, +3600, 0):
            held = cluster.participants["bank-1"]
            cluster.signal(held, signal.SIGSTOP)
            try:
                number = await cluster.begin()
                clock.write_text(f"{offset:+}\n")
                await until(lambda offset=offset: _believes(cluster, offset), "the coordinator believes the new time")
                assert (await cluster.epoch(number))["state"] == "started"
            finally:
                cluster.signal(held, signal.SIGCONT)
            record = await cluster.ended(number)
            assert record["state"] == "committed", record["abort"]
            assert 0 < record["duration_ms"] < 15_000
            records.append(record)
        assert [each["epoch"] for each in records] == [1, 2, 3, 4]
        starts = [summary.read_manifest(cluster.open_store(), each["epoch"]).started_at for each in records]
        assert starts != sorted(starts), "the clock did go back: the processes believed it"
        assert max(starts) - min(starts) > HOUR_NS
        history = await cluster.judge()
        assert all(each["duration_ms"] >= 0 for each in history)
        sessions = [tuple(one["session"] for _, one in sorted(each["members"].items())) for each in records]
        assert len(set(sessions)) == 1, "no lease was measured by the wall clock"


async def _believes(cluster, offset):
    """Whether the coordinator's answers carry a date that is so many seconds off."""
    async with cluster._session.get(f"http://{cluster.coordinators[0].http}/v1/status") as response:
        told = parsedate_to_datetime(response.headers["Date"]).timestamp()
    return abs(told - time.time() - offset) < 300


async def test_two_triggers_at_one_instant_never_share_a_number(tmp_path):
    """Numbers come from the log, not from a clock: one trigger starts an epoch, the other is refused or gets the next number."""
    async with real_cluster(tmp_path, participants=1) as cluster:
        await cluster.commit_one()
        started = []
        for _ in range(5):
            both = await asyncio.gather(*(_trigger(cluster) for _ in range(4)))
            numbers = [number for number in both if number]
            assert numbers, "one of them is taken"
            assert len(set(numbers)) == len(numbers)
            started += numbers
            for number in numbers:
                await cluster.ended(number)
        assert started == sorted(set(started))
        assert len(await cluster.judge()) == 1 + len(started)


async def _trigger(cluster):
    try:
        return int((await cluster.call("POST", "/v1/epochs", {}))["epoch"])
    except SnapshotError as error:
        if "epoch-open" not in str(error):
            raise
        return 0
