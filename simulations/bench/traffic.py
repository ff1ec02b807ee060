"""One participant process of the path-overhead benchmark: ``python -m simulations.bench.traffic SPEC.json``.

Its agent keeps 500 KB of state, 5,000 values of 100 bytes. Each message that it handles replaces one of them and is passed on
to the other process's agent. Commands come on standard input, one word a line, and are answered by one line each:
``throw N`` (put N messages under way), ``read`` (CPU seconds of this process and turns so far).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import msgspec

from participant import Agent, Context, Participant, handler, keyed

VALUES = 5_000
VALUE_BYTES = 100


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is to be."""

    id: str
    other: str
    cluster: str
    coordinators: tuple[str, ...]
    store: str
    secret_file: str


class Parcel(msgspec.Struct, frozen=True):
    """100 bytes for the other side's state."""

    slot: int
    content: bytes


class Keeper(Agent, kind="keeper"):
    """Puts each parcel into its state and sends it on."""

    parcels = keyed(int, bytes)

    def __init__(self, name: str, other: str) -> None:
        super().__init__(name)
        self._other = f"keeper/{other}"
        self.parcels.update({slot: bytes([slot % 251]) * VALUE_BYTES for slot in range(VALUES)})

    @handler
    async def on_parcel(self, ctx: Context, parcel: Parcel) -> None:
        """Keep it, and send the next one: other contents, so that no state stays what it was."""
        self.parcels[parcel.slot] = parcel.content
        content = parcel.content[1:] + parcel.content[:1]
        ctx.send(self._other, Parcel((parcel.slot + 1) % VALUES, content))


async def run(spec: Spec) -> None:
    """Until standard input ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with Participant(
        Keeper(spec.id, spec.other),
        id=spec.id,
        cluster=spec.cluster,
        coordinators=spec.coordinators,
        store=spec.store,
        secret_file=spec.secret_file,
    ) as participant:
        await participant.wait_member()
        _answer({"ready": spec.id})
        while line := await reader.readline():
            word, *rest = line.decode().split()
            if word == "throw":
                for number in range(int(rest[0])):
                    content = number.to_bytes(4, "big") * (VALUE_BYTES // 4)
                    participant.ingest_nowait(f"keeper/{spec.id}", Parcel(number * 7 % VALUES, content))
            _answer({"cpu": time.process_time(), "turns": participant.statistics()["turns"]})


def _answer(document: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Spec)))
