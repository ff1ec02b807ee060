"""``sweep --dask`` against a real scheduler and workers on loopback: the same numbers, and who is refused.

Everything runs from a copy of the packages: what somebody changes meanwhile in the tree must not make strangers of its workers.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from simulations.build import PACKAGES
from tests.simulation.frozen_tree import copy_of_packages

WAIT_SECONDS = 60
SEEDS = "0..3"

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return copy_of_packages(tmp_path_factory.mktemp("tree"))


def environment(tree):
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("DASK_", "PYTEST_", "COV_"))}
    return {**kept, "PYTHONPATH": str(tree), "DASK_LOGGING__DISTRIBUTED": "error"}


@contextmanager
def started(*arguments, tree):
    """A program of Dask's that ends with the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=tree,
        env=environment(tree),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def scheduler(tree, folder):
    """Gives its process and address."""
    file = folder / "scheduler.json"
    arguments = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    with started("distributed.cli.dask_scheduler", *arguments, tree=tree) as process:
        until(lambda: file.exists() and file.read_text().endswith("}"), process)
        yield process, json.loads(file.read_text())["address"]


def worker(tree, address, folder):
    arguments = ["--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    place = ["--local-directory", str(folder)]
    return started("distributed.cli.dask_worker", address, *arguments, *place, tree=tree)


def until(condition, process):
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < deadline, "it does not come up"
        time.sleep(0.05)


def command(*arguments):
    return [sys.executable, "-m", "coordinator.cli", "simulate", "sweep", *arguments]


def impatient(*arguments):
    """The same without the patience that a cluster that is just coming up needs."""
    code = (
        "import sys, simulations.sweep_dask as sweep; sweep.CONNECT_SECONDS = sweep.WORKERS_SECONDS = 2; "
        "from coordinator.cli.root import main; main(sys.argv[1:])"
    )
    return [sys.executable, "-c", code, "simulate", "sweep", *arguments]


def sweep(tree, *arguments, command=command):
    return subprocess.run(
        command(*arguments), cwd=tree, env=environment(tree), capture_output=True, text=True, check=False
    )


def document(ran):
    found = json.loads(ran.stdout)
    del found["seconds"]
    return found


def test_a_cluster_gives_the_same_numbers_as_this_machine(tree, tmp_path):
    here = sweep(tree, "--seeds", SEEDS, "--json")
    assert here.returncode == 0, here.stderr
    with (
        scheduler(tree, tmp_path) as (_, address),
        worker(tree, address, tmp_path / "one"),
        worker(tree, address, tmp_path / "two"),
    ):
        there = sweep(tree, "--seeds", SEEDS, "--json", "--dask", address)
        assert there.returncode == 0, there.stderr
        assert document(there) == document(here)
        # Failures come home as well, and with them the exit code and the replay files.
        planted = ["--seeds", SEEDS, "--mutant", "late-marker", "--stop-at", "1", "--dask", address]
        failed = sweep(tree, *planted, "--save", str(tmp_path / "failures"))
        assert failed.returncode == 4, failed.stderr
        assert list((tmp_path / "failures").glob("seed-*.json"))


def test_seeds_of_a_worker_that_dies_are_run_by_another(tree, tmp_path):
    here = sweep(tree, "--seeds", SEEDS, "--json")
    with scheduler(tree, tmp_path) as (_, address), worker(tree, address, tmp_path / "one"):
        with worker(tree, address, tmp_path / "two") as mortal, asking(tree, address, "--json") as asked:
            until(lambda: busy(address) == 2, asked)
            mortal.kill()
            output, errors = asked.communicate(timeout=200)
        assert asked.returncode == 0, errors
        found = json.loads(output)
        del found["seconds"]
        assert found == document(here)


@contextmanager
def asking(tree, address, *arguments):
    """A sweep that runs."""
    with subprocess.Popen(
        command("--seeds", SEEDS, "--dask", address, *arguments),
        cwd=tree,
        env=environment(tree),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def busy(address):
    """Workers that run a seed at this moment, as the scheduler says."""
    code = f"import distributed; c = distributed.Client({address!r}, timeout=20); print(sum(map(bool, c.processing().values())))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return int(ran.stdout or 0)


def test_a_scheduler_that_goes_away_ends_the_sweep_with_what_there_is(tree, tmp_path):
    with (
        scheduler(tree, tmp_path) as (process, address),
        worker(tree, address, tmp_path / "one"),
        asking(tree, address) as asked,
    ):
        until(lambda: busy(address) == 1, asked)
        process.kill()
        _, errors = asked.communicate(timeout=200)
    assert asked.returncode == 5, errors
    assert f"the Dask scheduler at {address} is gone" in errors
    assert "Traceback" not in errors


def test_without_a_scheduler_or_workers_it_says_so(tree, tmp_path):
    ran = sweep(tree, "--seeds", "0..1", "--dask", "tcp://127.0.0.1:1", command=impatient)
    assert ran.returncode == 5
    assert "no Dask scheduler at tcp://127.0.0.1:1" in ran.stderr
    assert "Traceback" not in ran.stderr
    with scheduler(tree, tmp_path) as (_, address):
        ran = sweep(tree, "--seeds", "0..1", "--dask", address, command=impatient)
    assert ran.returncode == 5
    assert f"the Dask scheduler at {address} has no workers" in ran.stderr


def test_a_worker_of_another_build_is_refused_by_name(tree, tmp_path):
    other = copy_of_packages(tmp_path / "other")
    with (other / "protocol" / "version.py").open("a", encoding="utf-8") as file:
        file.write("# another commit\n")
    with scheduler(tree, tmp_path) as (_, address), worker(other, address, tmp_path / "one"):
        ran = sweep(tree, "--seeds", "0..1", "--dask", address)
    assert ran.returncode == 6, ran.stderr
    assert "the Dask worker tcp://127.0.0.1:" in ran.stderr
    assert "runs another build of Cleancut (" in ran.stderr
    assert "install this very commit there" in ran.stderr


def test_a_worker_without_cleancut_is_refused_by_name(tree, tmp_path):
    empty = tmp_path / "empty"
    for package in PACKAGES:
        (empty / package).mkdir(parents=True)
        (empty / package / "__init__.py").write_text("")
    with scheduler(tree, tmp_path) as (_, address), worker(empty, address, tmp_path / "one"):
        ran = sweep(tree, "--seeds", "0..1", "--dask", address)
    assert ran.returncode == 6, ran.stderr
    assert "has no Cleancut (No module named 'simulations.build')" in ran.stderr
