"""One participant process of the demo: ``python -m simulations.demo.process SPEC.json``.

It reads commands from standard input, one JSON document a line, and answers each with one line on standard output:
``{"do": "ingest", "agent": ..., "send": [target, amount]}``, ``{"do": "statistics"}``, ``{"do": "leave"}``. End of input
or SIGTERM ends it in order.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from participant import Agent, Participant
from simulations.demo import agents as bank
from simulations.demo import tokens
from simulations.demo.stall import StallMeter


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What one participant process is to be."""

    id: str
    cluster: str
    coordinators: tuple[str, ...]
    transport: str
    store: str
    secret_file: str
    agents: tuple[tuple[str, str], ...] = ()
    """(kind, name) of the bank's agents."""
    accounts: tuple[str, ...] = ()
    """Ids of all accounts of the cluster."""
    servers: tuple[tuple[str, int], ...] = ()
    """(name, tokens) of a scripted run's servers."""
    targets: tuple[str, ...] | None = None

    def make_agents(self) -> list[Agent]:
        """The agents that this process hosts."""
        made = [bank.make(kind, name, self.accounts) for kind, name in self.agents]
        return [*made, *(tokens.Server(name, tokens=count) for name, count in self.servers)]


async def _commands() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def _answer(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


async def _obey(participant: Participant, line: bytes, meter: StallMeter) -> None:
    command = msgspec.json.decode(line)
    match command["do"]:
        case "ingest":
            target, amount = command["send"]
            await participant.ingest(command["agent"], tokens.Send(target, amount))
            _answer({"ok": True})
        case "statistics":
            _answer({"statistics": participant.statistics(), "stall": meter.result()})
        case "leave":
            await participant.leave()
            _answer({"ok": True})
        case other:
            _answer({"error": f"unknown command {other!r}"})


async def run(spec: Spec) -> int:
    """Host the spec's agents until told to end. Returns the process's exit code."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    meter = StallMeter()
    async with (
        Participant(
            *spec.make_agents(),
            id=spec.id,
            cluster=spec.cluster,
            coordinators=list(spec.coordinators),
            transport=spec.transport,
            store=spec.store,
            secret_file=spec.secret_file,
            targets=spec.targets,
            messages=[tokens.Send] if spec.servers else [bank.Delivered, bank.Order, bank.Transfer],
        ) as participant,
        asyncio.TaskGroup() as group,
    ):
        meter_task = group.create_task(meter.run())
        watch = group.create_task(_watch(participant, meter, stopped))
        reader = await _commands()
        await participant.wait_member()
        _answer({"ready": spec.id})
        serve = group.create_task(_serve(participant, reader, meter, stopped))
        await stopped.wait()
        for task in (meter_task, watch, serve):
            task.cancel()
    return 0


async def _serve(
    participant: Participant, reader: asyncio.StreamReader, meter: StallMeter, stopped: asyncio.Event
) -> None:
    while line := await reader.readline():
        await _obey(participant, line, meter)
    stopped.set()


async def _watch(participant: Participant, meter: StallMeter, stopped: asyncio.Event) -> None:
    async for event in participant.events():
        logging.getLogger("demo").info("%s", event)
        meter.note(event)
    stopped.set()


def main() -> int:
    """Entry point."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    spec = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Spec)
    return asyncio.run(run(spec))


if __name__ == "__main__":
    sys.exit(main())
