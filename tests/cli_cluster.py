"""A cluster that the command line makes and starts: coordinators, participants, and the command to look at them."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from simulations.demo.ports import free_ports

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("CLEANCUT_")}
COMMAND = [sys.executable, "-m", "coordinator.cli"]
READY_SECONDS = 40


class CliCluster:
    """Processes that this test started, by id."""

    def __init__(self, folder: Path, count: int, *options: str) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[str]] = {}
        ports = free_ports(2 * count)
        listed = ",".join(f"c{n + 1}=127.0.0.1:{ports[2 * n]}:{ports[2 * n + 1]}" for n in range(count))
        self.cleancut("keys", "init", str(folder), "--coordinators", listed, "--cluster", "shop", *options)

    def start(self, name: str) -> None:
        """Start a coordinator and wait for the line that says that it is ready."""
        self.run(name, [*COMMAND, "coordinator", "--config", str(self.folder / f"{name}.toml")], until="ready")

    def run(self, name: str, command: list[str], *, until: str) -> None:
        """Start a process and wait until it prints a line with `until` in it; its errors go into a file."""
        with (self.folder / f"{name}.log").open("w") as log:
            child = subprocess.Popen(
                command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
            )
        self.running[name] = child
        assert child.stdout is not None
        watchdog = threading.Timer(READY_SECONDS, child.kill)
        watchdog.start()
        try:
            for line in child.stdout:
                if until in line:
                    return
        finally:
            watchdog.cancel()
        raise AssertionError(f"{name} did not say {until!r}:\n{(self.folder / f'{name}.log').read_text()}")

    def end(self, name: str, number: int = signal.SIGTERM) -> int:
        """End one; returns its exit code."""
        child = self.running.pop(name)
        child.send_signal(number)
        try:
            return child.wait(20)
        finally:
            child.kill()
            assert child.stdout is not None
            child.stdout.close()

    def cleancut(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The command, on this cluster's folder by default."""
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=ROOT,
            env={**ENVIRONMENT, "CLEANCUT_DIR": str(self.folder), **environment},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    def document(self, *arguments: str) -> Any:
        """A command's JSON document."""
        ended = self.cleancut(*arguments, "--json")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def close(self) -> None:
        """End whatever runs still."""
        for name in list(self.running):
            self.end(name, signal.SIGKILL)
