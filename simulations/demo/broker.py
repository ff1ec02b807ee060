"""A mosquitto of the demo's own, on loopback, as a child: password, queue bounds, no Nagle delay."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from protocol.errors import ConfigError
from simulations.demo import children
from simulations.demo.cluster import ClusterFailed
from simulations.demo.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

START_SECONDS = 20.0


def find_mosquitto() -> str:
    """Path of the program.

    Raises:
        ConfigError: It is not installed.
    """
    for candidate in (shutil.which("mosquitto"), "/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto"):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise ConfigError("--transport mqtt", "needs the program mosquitto; on Debian: apt-get install mosquitto")


async def start_broker(folder: Path) -> tuple[children.Child, str]:
    """Start it.

    Args:
        folder: Exists; configuration, password file and log go into it.

    Returns:
        The child, and the transport setting that leads to it (``mqtt://user:password@host:port``).
    """
    program = find_mosquitto()
    [port] = free_ports(1)
    password = secrets.token_hex(16)
    passwords = folder / "passwords"
    passwords.touch(mode=0o600)
    passwords.write_text(f"cleancut:{password}\n", encoding="utf-8")
    hasher = shutil.which("mosquitto_passwd") or str(program).replace("sbin/mosquitto", "bin/mosquitto_passwd")
    await asyncio.to_thread(subprocess.run, [hasher, "-U", str(passwords)], check=True, capture_output=True)
    lines = [
        f"listener {port} 127.0.0.1",
        "protocol mqtt",
        "allow_anonymous false",
        f"password_file {passwords}",
        "set_tcp_nodelay true",
        "max_queued_messages 100000",
        "max_queued_bytes 67108864",
        "max_inflight_messages 100",
        "message_size_limit 8388608",
        "persistence false",
        "log_dest stderr",
    ]
    if sys.platform == "linux" and os.geteuid() == 0:
        lines.append("user root")
    configuration = folder / "mosquitto.conf"
    configuration.write_text("\n".join(lines) + "\n", encoding="utf-8")
    child = await children.start("mosquitto", [program, "-c", str(configuration)], log=folder / "mosquitto.log")
    loop = asyncio.get_running_loop()
    limit = loop.time() + START_SECONDS
    while loop.time() < limit and child.running:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.close()
        return child, f"mqtt://cleancut:{password}@127.0.0.1:{port}"
    raise ClusterFailed(f"mosquitto did not start; the end of {child.log}:\n{child.last_lines()}")
