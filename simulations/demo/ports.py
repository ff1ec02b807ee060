"""Ports for processes that are about to start.

Taken below the range from which the system gives ports to outgoing connections (32768 and up on Linux, 49152 elsewhere): a
port that was merely free a moment ago is otherwise some client's by the time its process listens. Each process walks on
from a random place, so that two of them, and one process's successive clusters, do not meet.
"""

from __future__ import annotations

import secrets
import socket
from typing import Final

from protocol.errors import ConfigError

FIRST: Final = 10_240
BEHIND: Final = 32_000

_next = FIRST + secrets.randbelow(BEHIND - FIRST)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface on which nobody listens now, all different, none given before by this process.

    Raises:
        ConfigError: There are not so many.
    """
    global _next
    found: list[int] = []
    for _ in range(BEHIND - FIRST):
        if len(found) == count:
            return found
        port, _next = _next, _next + 1 if _next + 1 < BEHIND else FIRST
        with socket.socket() as probe:
            # As a server binds: a connection of the last one that is still closing is no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    raise ConfigError("ports", f"{count} free ports between {FIRST} and {BEHIND} are needed; {len(found)} were found")
