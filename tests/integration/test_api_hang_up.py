"""A client that hangs up while it is being answered: nobody's bug, so nothing that reads like one."""

import asyncio
import logging

import pytest
from aiohttp import web

from coordinator.runtime.answers import errors_middleware


async def test_a_client_that_hangs_up_leaves_no_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Strangers could fill the disk with it otherwise; a real bug on an open connection is told all the same."""
    ended = asyncio.Event()

    async def late(request: web.Request) -> web.Response:
        if "bug" in request.query:
            raise ConnectionResetError("of something else")
        try:
            # The transport has no event for its end.
            while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            raise ConnectionResetError("Cannot write to closing transport")
        finally:
            ended.set()

    app = web.Application(middlewares=[errors_middleware(logging.getLogger("cleancut.api"))])
    app.router.add_get("/", late)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await writer.drain()
        writer.transport.abort()
        await asyncio.wait_for(ended.wait(), 20)
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []

        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /?bug HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b" 500 " in await asyncio.wait_for(reader.readline(), 20)
        writer.close()
        assert any("failed" in record.message for record in caplog.records)
    finally:
        await runner.cleanup()
