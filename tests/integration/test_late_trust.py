"""aiohttp without the system's authorities until somebody needs them: then all is as it would have been."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from coordinator.certificates import make_certificates
from protocol.ids import coordinator_id
from simulations.demo.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

UNTOUCHED = """
import ssl
load, verify = ssl.SSLContext.load_default_certs, ssl.SSLContext.set_default_verify_paths
from participant.runtime.late_trust import _LateTrust, aiohttp
from aiohttp import connector
both = connector._SSL_CONTEXT_VERIFIED, connector._SSL_CONTEXT_UNVERIFIED
assert [type(each) for each in both] == [_LateTrust, _LateTrust]
assert all(isinstance(each, ssl.SSLContext) for each in both)
assert ssl.SSLContext.load_default_certs is load
assert ssl.SSLContext.set_default_verify_paths is verify
assert both[0].verify_mode is ssl.CERT_REQUIRED and both[0].check_hostname
known = ssl.create_default_context().cert_store_stats()
assert known["x509"] > 0, "this machine trusts somebody"
assert [each.cert_store_stats() for each in both] == [known, known]
assert [type(each) for each in both] == [ssl.SSLContext, ssl.SSLContext]
"""

FETCH = """
import asyncio, ssl, sys
from participant.runtime.late_trust import aiohttp

async def main():
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(sys.argv[1], sys.argv[2])
    async def answer(reader, writer):
        await reader.readuntil(b"\\r\\n\\r\\n")
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nhi")
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", int(sys.argv[3]), ssl=serving)
    async with server, aiohttp.ClientSession() as session:
        try:
            async with session.get(f"https://127.0.0.1:{sys.argv[3]}/") as response:
                print("trusted", await response.text())
        except aiohttp.ClientConnectorCertificateError:
            print("refused")

asyncio.run(main())
"""


def run(code: str, *arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_contexts_are_whole_once_they_are_used_and_nothing_of_ssl_is_changed():
    run(UNTOUCHED)


def test_aiohttp_that_is_there_already_stays_as_it_is():
    run(
        "import ssl, aiohttp\nfrom aiohttp import connector\nfrom participant.runtime import late_trust\n"
        "assert type(connector._SSL_CONTEXT_VERIFIED) is ssl.SSLContext\n"
        "assert connector._SSL_CONTEXT_VERIFIED.cert_store_stats()['x509'] > 0"
    )


@pytest.mark.slow
def test_stranger_is_refused_and_whom_the_system_trusts_is_not(tmp_path: Path):
    make_certificates(tmp_path, {coordinator_id("c1"): ["127.0.0.1"]})
    (port,) = free_ports(1)
    arguments = (str(tmp_path / "c1.pem"), str(tmp_path / "c1.key"), str(port))
    assert run(FETCH, *arguments) == "refused"
    assert run(FETCH, *arguments, SSL_CERT_FILE=str(tmp_path / "ca.pem")) == "trusted hi"
