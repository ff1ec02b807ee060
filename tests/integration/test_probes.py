"""Whether anybody listens at a participant's address, asked of real sockets; and a control connection that is cut."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from coordinator.runtime import probes
from coordinator.runtime.probes import probe
from simulations.demo.ports import free_ports
from tests.integration.coordinators import Line, cluster, until
from tests.integration.test_participant_coordinators import make

if TYPE_CHECKING:
    from pathlib import Path


def bound(*, backlog: int | None) -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    if backlog is not None:
        taken.listen(backlog)
    return taken


def address_of(taken: socket.socket) -> str:
    return f"ws://127.0.0.1:{taken.getsockname()[1]}"


async def test_somebody_who_listens_is_found_though_he_never_accepts():
    with bound(backlog=5) as taken:
        assert await probe(address_of(taken)) == "listens"


async def test_port_at_which_nobody_listens_refuses():
    with bound(backlog=None) as taken:
        assert await probe(address_of(taken)) == "refuses"


async def test_machine_that_does_not_answer_is_no_refusal(monkeypatch):
    monkeypatch.setattr(probes, "PROBE_SECONDS", 0.1)
    with bound(backlog=0) as taken, socket.socket() as first, socket.socket() as second:
        # A full queue of connections: Linux drops what comes then, as a network does that is down.
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(taken.getsockname())
        assert await probe(address_of(taken)) == ""


@pytest.mark.parametrize(
    "address", ["ws://", "ws://127.0.0.1", "ws://127.0.0.1:99999", "ws://[::1", "ws://no.such.host.invalid:1"]
)
async def test_what_is_no_address_is_no_refusal(address, monkeypatch):
    monkeypatch.setattr(probes, "PROBE_SECONDS", 0.5)
    assert await probe(address) == ""


async def test_name_with_several_addresses_refuses_when_all_of_them_do():
    with bound(backlog=None) as taken:
        port = taken.getsockname()[1]
        assert await probe(f"ws://localhost:{port}") == "refuses"
        taken.listen()
        assert await probe(f"ws://localhost:{port}") == "listens"


@pytest.mark.slow
async def test_control_connection_that_is_cut_costs_a_living_process_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, recovery="auto") as made:
        (port,) = free_ports(1)
        line = Line(port, int(made.coordinators[0].http.rpartition(":")[2]))
        await line.start()
        try:
            async with (
                make(made, "a", "b") as there,
                make(made, "b", "a", coordinators=[f"127.0.0.1:{port}"]) as cut,
            ):
                await asyncio.gather(there.wait_member(), cut.wait_member())
                for number in range(1, 4):
                    line.heal()  # resets it
                    await until(
                        lambda number=number: cut.statistics()["control_connections"] > number, "it has dialed again"
                    )
                status = await made.get("/v1/status?fresh=1")
                assert status["incarnation"] == 1
                assert (await made.get("/v1/participants"))["participants"][1]["state"] == "member"
        finally:
            line.close()
