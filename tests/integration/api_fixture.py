"""A listening application in this process, for the parts of the API that need neither raft nor a ledger."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from coordinator.config import Address
from coordinator.runtime.listener import IDLE_SECONDS_MAX, Listener
from protocol.keys import ClusterKeys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEYS = ClusterKeys.from_secret(bytes(range(32)))
OTHER_KEYS = ClusterKeys.from_secret(bytes(range(1, 33)))


def bearer(role: str, keys: ClusterKeys = KEYS) -> dict[str, str]:
    return {"Authorization": f"Bearer {keys.token(role)}"}


@asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[str]:
    """The application's URL while it listens on a free port of loopback."""
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=IDLE_SECONDS_MAX)
    await runner.setup()
    listener = Listener(runner, Address("127.0.0.1", 0))
    address = await listener.start()
    try:
        yield f"http://{address}"
    finally:
        listener.stop_listening()
        await runner.cleanup()


@asynccontextmanager
async def client(role: str | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(headers=bearer(role) if role else {}) as session:
        yield session
