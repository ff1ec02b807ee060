"""A mosquitto of the tests' own: a child process on a free loopback port, ended by its pid."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

from simulations.demo.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(1, signal.SIGKILL)


class Broker:
    """One mosquitto; `start` returns when it answers."""

    def __init__(self, folder: Path, *, password: str | None = None, tls: Path | None = None) -> None:
        """`tls`: a folder with ca.pem, broker.pem and broker.key; clients must show a certificate, too."""
        self.folder = folder
        self._scheme = "mqtt" if tls is None else "mqtts"
        self.port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        executable = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
        assert os.path.exists(executable), "these tests need mosquitto: apt-get install mosquitto"
        self._executable = executable
        lines = [
            f"listener {self.port} 127.0.0.1",
            "protocol mqtt",
            "set_tcp_nodelay true",
            "max_queued_messages 100000",
            "max_queued_bytes 67108864",
            "message_size_limit 8388608",
            f"log_dest file {folder}/mosquitto.log",
        ]
        if tls is not None:
            lines += [f"cafile {tls}/ca.pem", f"certfile {tls}/broker.pem", f"keyfile {tls}/broker.key"]
            lines.append("require_certificate true")
        if password is None:
            lines.append("allow_anonymous true")
        else:
            file = folder / "passwords"
            file.touch(mode=0o600)
            subprocess.run(["mosquitto_passwd", "-b", str(file), "p", password], check=True, capture_output=True)
            lines += ["allow_anonymous false", f"password_file {file}"]
        if os.getuid() == 0:
            # Else it drops its privileges and cannot read its own files.
            lines.append("user root")
        self._conf = folder / "mosquitto.conf"
        self._conf.write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._process = subprocess.Popen(  # noqa: ASYNC220 - forking is all that blocks
            [self._executable, "-c", str(self._conf)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one call of the C library, no locks
        )
        async with asyncio.timeout(10):
            while True:
                assert self._process.poll() is None, (self.folder / "mosquitto.log").read_text()
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.01)
                    continue
                writer.close()
                await writer.wait_closed()
                return

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
