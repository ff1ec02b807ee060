"""Whether anybody listens at a participant's address: one connection, without a word.

`coordinator.probing` says what the answer is good for. A participant takes the connection and sees it end; it never gets as
far as a handshake.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

Found: TypeAlias = Literal["listens", "refuses", ""]

PROBE_SECONDS: Final = 1.0
"""Who has not answered by then is suspected for as long as this anyway."""
PROBES_MAX: Final = 64
"""At once; all participants of a cluster may come, or lose their connection, in one moment."""


async def probe(address: str) -> Found:
    """Ask once.

    Args:
        address: ``ws://host:port``; a host of several addresses refuses when all of them do.

    Returns:
        As `Probed.found`.
    """
    loop = asyncio.get_running_loop()
    refused = 0
    try:
        parts = urlsplit(address)
        if not parts.hostname or not parts.port:
            return ""
        async with asyncio.timeout(PROBE_SECONDS):
            places = await loop.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, place in places:
                with socket.socket(family, kind, protocol) as attempt:
                    attempt.setblocking(False)  # noqa: FBT003 (the shape of the standard library)
                    try:
                        await loop.sock_connect(attempt, place)
                    except ConnectionRefusedError:
                        refused += 1
                    else:
                        return "listens"
    except (OSError, ValueError, TimeoutError):
        return ""  # no such host, no way there, no answer
    return "refuses" if refused and refused == len(places) else ""
