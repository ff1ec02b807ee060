"""A coordinator that cannot work says why and ends, before anything is ready."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import pytest

from tests.integration.coordinators import ROOT, Cluster, cluster

pytestmark = pytest.mark.slow


async def attempt(running: Cluster, *arguments: str, config=None) -> tuple[int, str]:
    """Start a further process; its exit code and everything it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        "-m",
        "coordinator.runtime.service",
        "--config",
        str(config or running.c1.config),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={name: value for name, value in os.environ.items() if not name.startswith("CLEANCUT_")},
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), 20)
    except TimeoutError:
        process.send_signal(signal.SIGKILL)
        raise
    return process.returncode, said.decode()


def changed(running: Cluster, old: str, new: str):
    path = running.folder / "changed.toml"
    text = running.c1.config.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def made(tmp_path) -> Cluster:
    return Cluster(tmp_path, 1, {"kind": "manual"})


async def test_a_second_process_on_the_same_folder_is_refused(tmp_path):
    async with cluster(tmp_path) as running:
        other = changed(running, running.c1.http, "127.0.0.1:0")
        code, said = await attempt(running, config=other)
        assert code == 2
        assert f"{tmp_path}/c1 is in use by another running coordinator" in said
        await running.leader()


async def test_a_port_in_use_is_named(tmp_path):
    running = made(tmp_path)
    host, port = running.c1.http.split(":")
    with socket.create_server((host, int(port))):
        code, said = await attempt(running)
    assert code == 2
    assert f"http: cannot listen on {running.c1.http}: the address is in use" in said


async def test_a_folder_of_another_coordinator_or_cluster_is_refused(tmp_path):
    async with cluster(tmp_path) as running:
        await running.c1.end()
        code, said = await attempt(running, config=changed(running, 'id = "c1"', 'id = "c2"'))
        assert code == 2
        assert "belongs to coordinator 'c1' of cluster 'shop', not to 'c2' of 'shop'" in said
        code, said = await attempt(running, config=changed(running, 'cluster = "shop"', 'cluster = "other"'))
        assert code == 2
        assert "not to 'c1' of 'other'" in said or "belongs to cluster 'shop'" in said


async def test_a_store_that_is_no_folder_is_named(tmp_path):
    running = made(tmp_path)
    (tmp_path / "file").write_text("x")
    code, said = await attempt(running, config=changed(running, running.store_url, str(tmp_path / "file" / "x")))
    assert code == 2
    assert "store" in said
    assert "Traceback" not in said


async def test_a_store_that_cannot_be_written_is_named(tmp_path):
    """The folder of the cluster is taken by a file: root ignores permissions, this it cannot ignore."""
    running = made(tmp_path)
    (tmp_path / "store" / "shop").write_text("x")
    code, said = await attempt(running)
    assert code == 2
    assert "store: " in said
    assert "ENOTDIR" in said or "not a folder" in said.lower() or "Not a directory" in said
    assert "Traceback" not in said


async def test_a_typo_in_the_settings_is_named(tmp_path):
    running = made(tmp_path)
    code, said = await attempt(running, config=changed(running, "secret_file =", "secret_fiel ="))
    assert code == 2
    assert said.strip() == (
        f"coordinator: {tmp_path}/changed.toml: secret_fiel: no such setting; did you mean 'secret_file'?"
    )


async def test_a_secret_that_is_missing_or_too_short_is_named_and_never_shown(tmp_path):
    running = made(tmp_path)
    running.secret_file.write_text("hunter2hunter2")
    code, said = await attempt(running)
    assert code == 2
    assert "secret_file: " in said
    assert "hunter2" not in said
    running.secret_file.unlink()
    code, said = await attempt(running)
    assert code == 2
    assert "no such file" in said


async def test_python_without_checks_is_refused(tmp_path):
    code, said = await attempt(made(tmp_path), "-O")
    assert code == 2
    assert "python -O" in said


async def test_more_coordinators_without_certificates_are_refused(tmp_path):
    running = made(tmp_path)
    path = tmp_path / "group.toml"
    text = running.c1.config.read_text()
    path.write_text(text + '[peers.c2]\nraft = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\n')
    code, said = await attempt(running, config=path)
    assert code == 2
    assert "tls: is required with more than one coordinator" in said


async def test_log_lines_can_be_json(tmp_path):
    import json

    async with cluster(tmp_path, extra="log_json = true") as running:
        await running.leader()
        await running.c1.end()
        lines = [json.loads(line) for line in running.c1.text().splitlines()]
        assert lines[-1]["message"] == "ended"
        assert {line["coordinator"] for line in lines} == {"c1"}


async def test_a_damaged_journal_is_not_started_from(tmp_path):
    async with cluster(tmp_path) as running:
        await running.leader()
        await running.c1.end()
        journal = max((tmp_path / "c1" / "raft").iterdir(), key=lambda path: path.stat().st_size)
        data = bytearray(journal.read_bytes())
        data[len(data) // 2] ^= 0xFF
        journal.write_bytes(data)
        code, said = await attempt(running)
        assert code == 1
        assert "cannot start: " in said
        assert str(journal) in said
        assert "Traceback" not in said
