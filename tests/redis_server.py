"""A Redis server of the tests' own, on a free port of this machine."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(1, signal.SIGKILL)


class RedisServer:
    """Starts in `folder`; what it had synced there is there again after `kill` and `start`."""

    def __init__(self, folder: Path, *, appendfsync: str = "always") -> None:
        program = shutil.which("redis-server") or "/usr/bin/redis-server"
        assert os.path.exists(program), "these tests need redis-server: apt-get install redis-server"
        self._program = program
        self._folder = folder
        self._appendfsync = appendfsync
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        log = (self._folder / "redis.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [
                    *(self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
                    *("--appendonly", "yes", "--appendfsync", self._appendfsync, "--dir", str(self._folder)),
                ],
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - nothing but a system call
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        end = time.monotonic() + 20
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(5) == b"+PONG":
                        return
            except OSError:
                pass
            assert self._process.poll() is None, (self._folder / "redis.log").read_text()
            assert time.monotonic() < end, "redis-server does not answer"
            time.sleep(0.01)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def suspend(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None
