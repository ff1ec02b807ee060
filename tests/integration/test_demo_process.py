"""The demo's participant process, whose coordinators and parent may be gone before it has found anybody."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.coordinators import CLUSTER

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("how", ["its parent is gone", "it is told to end"])
async def test_a_process_that_finds_no_coordinator_ends_all_the_same(tmp_path: Path, how: str) -> None:
    store, secret = tmp_path / "store", tmp_path / "secret"
    store.mkdir()
    secret.touch(mode=0o600)
    secret.write_bytes(bytes(range(7, 71)))
    spec = {
        "id": "lone",
        "cluster": CLUSTER,
        "coordinators": ["127.0.0.1:9", "127.0.0.1:10"],
        "transport": "websocket",
        "store": str(store),
        "secret_file": str(secret),
        "agents": [["account", "a"]],
        "accounts": ["account/a"],
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "simulations.demo.process",
        str(tmp_path / "spec.json"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            while b"trying on" not in (line := await process.stderr.readline()):
                assert line, "it has ended before"
            if how == "its parent is gone":
                process.stdin.close()
            else:
                process.send_signal(signal.SIGTERM)
            assert await process.stdout.read() == b"", "it was never ready"
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
