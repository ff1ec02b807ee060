"""One participant process of the demo: ``python -m simulations.demo.process SPEC.json``.

It reads commands from standard input, one JSON document a line, and answers each with one line on standard output:
``{"do": "ingest", "agent": ..., "send": [target, amount]}``, ``{"do": "statistics"}``, ``{"do": "returns"}``,
``{"do": "leave"}``. End of input or SIGTERM ends it in order.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from participant import Agent, Participant, Restored, Resumed
from protocol.errors import SnapshotError
from simulations.demo import agents as bank
from simulations.demo import tokens
from simulations.demo.stall import StallMeter

EXIT_ENDED = 3
"""The participant was ended: another has its name, say."""
RETURN_POLL_SECONDS = 0.002
CALM_SECONDS = 20.0
"""A first turn that has not come by then is not one whose time anybody measures."""
CALM_POLL_SECONDS = 0.2


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
    local: str = ""
    """Folder for what it remembers over restarts: incarnation, effect ledger, log of turns."""
    durability: str = "epoch"
    """The cluster's: ``epoch`` or ``turn``."""
    bank: str = ""
    """Where orders are charged."""
    careless: bool = False
    """Orders are charged without a step."""

    def make_agents(self) -> list[Agent]:
        """The agents that this process hosts."""
        made = [bank.make(kind, name, self.accounts, self.bank, careless=self.careless) for kind, name in self.agents]
        return [*made, *(tokens.Server(name, tokens=count) for name, count in self.servers)]


async def _commands() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def _answer(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


class Returns:
    """When this participant's first new turn was over, by incarnation: on the loop's clock, which all processes share."""

    def __init__(self, participant: Participant, times: dict[str, float]) -> None:
        self._participant = participant
        self.first_turns: dict[int, float] = {}
        self.times = times
        """Of this process: ``started`` once all is imported, ``entered`` once its state is back out of its log, if it has one,
        ``resumed`` once the first turn after that is over; the same with ``_cpu``: its CPU seconds until then."""
        self._polling: asyncio.Task[None] | None = None

    def restored(self, incarnation: int) -> None:
        """Agents run again."""
        if self._polling is not None:
            self._polling.cancel()
        self._polling = asyncio.create_task(self._poll(incarnation, self._participant.statistics()["turns"]))

    def resumed(self) -> None:
        """Agents go on where the log ends."""
        self.restored(0)

    async def _poll(self, incarnation: int, turns: int) -> None:
        loop = asyncio.get_running_loop()
        calm = loop.time() + CALM_SECONDS
        while self._participant.statistics()["turns"] == turns:  # noqa: ASYNC110 - a count, no event
            await asyncio.sleep(RETURN_POLL_SECONDS if loop.time() < calm else CALM_POLL_SECONDS)
        now = loop.time()
        if incarnation:
            self.first_turns[incarnation] = now
        else:
            self.times |= {"resumed": now, "resumed_cpu": time.process_time()}


async def _obey(participant: Participant, line: bytes, meter: StallMeter, returns: Returns) -> None:
    command = msgspec.json.decode(line)
    match command["do"]:
        case "ingest":
            target, amount = command["send"]
            await participant.ingest(command["agent"], tokens.Send(target, amount))
            _answer({"ok": True})
        case "statistics":
            _answer({"statistics": participant.statistics(), "stall": meter.result()})
        case "returns":
            first = {str(number): at for number, at in returns.first_turns.items()}
            _answer({"incarnation": participant.incarnation, "first_turns": first, "times": returns.times})
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
    times = {"started": loop.time(), "started_cpu": time.process_time()}
    commands = await _commands()
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
            local=spec.local or None,
            durability=spec.durability,
            messages=[tokens.Send] if spec.servers else [bank.Delivered, bank.Order, bank.Transfer],
        ) as participant,
        asyncio.TaskGroup() as group,
    ):
        times |= {"entered": loop.time(), "entered_cpu": time.process_time()}
        returns = Returns(participant, times)
        tasks = (
            group.create_task(_watch(participant, meter, returns, stopped)),
            # From the start: whoever finds no coordinator, and has lost its parent meanwhile, is to end, too.
            group.create_task(_serve(participant, commands, meter, returns, stopped)),
            group.create_task(_work(participant, spec.id, meter)),
        )
        await stopped.wait()
        for task in tasks:
            task.cancel()
    return 0


async def _work(participant: Participant, name: str, meter: StallMeter) -> None:
    """Say when it is a member; only then is there a cut that could hold the loop, and the meter costs a twentieth of a core."""
    await participant.wait_member()
    _answer({"ready": name})
    await meter.run()


async def _serve(
    participant: Participant, reader: asyncio.StreamReader, meter: StallMeter, returns: Returns, stopped: asyncio.Event
) -> None:
    while line := await reader.readline():
        await _obey(participant, line, meter, returns)
    stopped.set()


async def _watch(participant: Participant, meter: StallMeter, returns: Returns, stopped: asyncio.Event) -> None:
    async for event in participant.events():
        logging.getLogger("demo").info("%s", event)
        meter.note(event)
        if isinstance(event, Restored):
            returns.restored(event.incarnation)
        elif isinstance(event, Resumed):
            returns.resumed()
    stopped.set()


def main() -> int:
    """Entry point."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    spec = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Spec)
    ended: list[BaseException] = []
    try:
        return asyncio.run(run(spec))
    except* SnapshotError as group:
        ended = _leaves(group)
    sys.stderr.write(f"ended: {type(ended[0]).__name__}: {ended[0]}\n")
    return EXIT_ENDED


def _leaves(group: BaseExceptionGroup[SnapshotError]) -> list[BaseException]:
    return [
        leaf for each in group.exceptions for leaf in (_leaves(each) if isinstance(each, ExceptionGroup) else [each])
    ]


if __name__ == "__main__":
    sys.exit(main())
