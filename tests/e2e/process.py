"""A participant process for tests: the demo's agents, odd ones beside them, and a few more commands.

``python -m tests.e2e.process SPEC.json``. Commands, one JSON document a line, one answer each: ``{"do": "statistics"}``,
``{"do": "send", "agent": ..., "message": ["spoil", {...}]}``, ``{"do": "leave"}``, ``{"do": "dead-letters"}``.

What ends the participant is said as ``{"ended": sentence}``; the exit code is then 3.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from participant import Participant
from protocol.errors import SnapshotError
from protocol.failpoints import VARIABLE
from simulations.demo import agents as bank
from simulations.demo.process import Spec
from tests.e2e import odd_agents

if TYPE_CHECKING:
    from collections.abc import Callable

    from participant import Agent

EXIT_ENDED = 3
ME = "{me}"
"""Stands for the participant's own id in the names of its failpoints' tickets."""


class OddSpec(Spec, frozen=True, kw_only=True):
    """The demo's, and what only tests want."""

    odd: tuple[tuple[str, str], ...] = ()
    """(kind, name) of `odd_agents`."""
    listen: str = "127.0.0.1:0"
    advertise: str = ""
    local: str = ""
    """Folder for what it remembers over restarts."""
    takes: bool = False
    """It takes the bank's agents, and notebooks, of participants that stay away."""

    def factories(self) -> dict[str, Callable[[str], Agent]]:
        """How agents of others are made here."""
        if not self.takes:
            return {}
        kinds = ("account", "intake", "kitchen", "courier", *(("cashier",) if self.bank else ()))
        makers = {kind: partial(bank.make, kind, accounts=self.accounts, bank=self.bank) for kind in kinds}
        return {**makers, "notebook": odd_agents.Notebook}

    def all_agents(self) -> list[Agent]:
        """Every agent of this process."""
        return [*self.make_agents(), *(odd_agents.KINDS[kind](name) for kind, name in self.odd)]


def say(document: dict[str, Any]) -> None:
    """One line to whoever started this process."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


async def obey(participant: Participant, command: dict[str, Any]) -> dict[str, Any]:
    """One command."""
    match command["do"]:
        case "statistics":
            return participant.statistics()
        case "send":
            name, fields = command["message"]
            await participant.ingest(command["agent"], odd_agents.MESSAGES[name](**fields))
            return {"ok": True}
        case "incarnation":
            return {"incarnation": participant.incarnation, "agents": sorted(agent.id for agent in participant.agents)}
        case "dead-letters":
            return {"reasons": [letter.reason for letter in participant.dead_letters]}
        case "leave":
            await participant.leave(drain=False)
            return {"ok": True}
        case other:
            return {"error": f"unknown command {other!r}"}


async def serve(participant: Participant, spec: OddSpec, stopped: asyncio.Event) -> None:
    """Commands until the end of the input."""
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await participant.wait_member()
    say({"ready": spec.id})
    while line := await reader.readline():
        try:
            say(await obey(participant, msgspec.json.decode(line)))
        except SnapshotError as error:
            say({"refused": str(error)})
    stopped.set()


async def watch(participant: Participant, stopped: asyncio.Event) -> None:
    """Log what happens; the end of the events is the end."""
    async for event in participant.events():
        logging.getLogger("events").info("%s", event)
    stopped.set()


async def run(spec: OddSpec) -> None:
    """Host the agents until told to end.

    Raises:
        SnapshotError: What ended the participant.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    async with Participant(
        *spec.all_agents(),
        id=spec.id,
        cluster=spec.cluster,
        coordinators=list(spec.coordinators),
        transport=spec.transport,
        store=spec.store,
        secret_file=spec.secret_file,
        targets=spec.targets,
        listen=spec.listen,
        advertise=spec.advertise,
        local=spec.local or None,
        durability=spec.durability,
        takes=spec.factories(),
        messages=[bank.Delivered, bank.Order, bank.Tick, bank.Transfer, *odd_agents.MESSAGES.values()],
    ) as participant:
        tasks = [
            asyncio.create_task(serve(participant, spec, stopped)),
            asyncio.create_task(watch(participant, stopped)),
        ]
        stop = asyncio.create_task(stopped.wait())
        await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in (stop, *tasks):
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


def main() -> int:
    """Entry point."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    spec = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=OddSpec)
    if VARIABLE in os.environ:
        os.environ[VARIABLE] = os.environ[VARIABLE].replace(ME, spec.id)
    try:
        asyncio.run(run(spec))
    except SnapshotError as error:
        say({"ended": f"{type(error).__name__}: {error}"})
        return EXIT_ENDED
    return 0


if __name__ == "__main__":
    sys.exit(main())
