"""Recover one: an agent of 500 KB out of its epoch, and the turns that were logged after it.

Measured: read the agent's chunks, decode them into its host, read a log of 1,000 turns (one write of a key, one send each) and
apply it. And how fast a longer log is applied, in turns a second.

Reference: read the same bytes, take their checksums and decode state and records from msgpack: the least that gives Python
objects.

Bound: a turn's record is decoded in 0.8 us and applied in 2; 500 KB are decoded in 1 ms. LangGraph takes 1.7 to 1.9 of the
reference for the state alone, Ray 2.0.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from participant import Agent, Context, handler, keyed
from participant.capture import Capturer
from participant.codec import MessageRegistry
from participant.context import encode_envelope
from participant.failure import DeadLettered
from participant.history import CutClock
from participant.host import AgentHost
from participant.loading import load_agent
from participant.logs.segment import decode_segment_header, read_batches
from participant.runtime.log_files import FolderFiles, Life
from participant.runtime.turn_logger import TurnLogger
from participant.turnlog.records import decode_records
from protocol.ids import AgentId, MessageId
from protocol.messages import Envelope
from protocol.pack import BytesSource, PackReader
from simulations.bench.measure import Row, Settings, interleave, median, row_of, scratch_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from protocol.manifest import AgentSnapshot, ChunkRef

NAME = "recover-one"
STATE_BYTES = 500_000
KEYS = 5_000
TURNS = 1_000
TURNS_PER_BATCH = 64
RATE_GOAL = 200_000
"""Turns a second."""


class Put(msgspec.Struct, frozen=True):
    """Sets one key."""

    key: str
    number: int


class Store(Agent, kind="store"):
    """Many small values."""

    values = keyed(str, str)

    @handler
    def on_put(self, ctx: Context, message: Put) -> None:
        """One write, one send."""
        self.values[message.key] = f"{message.number:0{STATE_BYTES // KEYS - 20}}"
        ctx.send("store/far", message)


async def run(settings: Settings) -> list[Row]:
    """Time of a recovery; rate of a replay."""
    cycles = settings.pick(1, 15, 41)
    many = settings.pick(TURNS, 20 * TURNS, 200 * TURNS)
    rows: list[Row] = []
    with scratch_folder() as folder:
        world = _World(folder)
        await world.fill(TURNS)

        async def measured() -> float:
            return _timed(world.recover)

        async def reference() -> float:
            return _timed(world.floor)

        samples = await interleave(measured, reference, cycles)
        notes = f"{1000 * median([taken for taken, _ in samples]):.1f} ms"
        rows.append(
            row_of(
                NAME,
                f"500 KB and {TURNS} turns",
                "recovery / (read, checksum, decode)",
                samples,
                bar=2.0,
                unit="s",
                notes=notes,
            )
        )
        (folder / "long").mkdir()
        long = _World(folder / "long")
        await long.fill(many)
        # CPU seconds: of a replay nothing waits, and other processes must not count.
        rates = [(many / _timed(long.replay, time.process_time), float(RATE_GOAL)) for _ in range(cycles)]
        rows.append(
            row_of(
                NAME,
                f"replay of {many} turns",
                f"turns a CPU second / {RATE_GOAL}",
                rates,
                bar=1.0,
                at_least=True,
                unit="turns/s",
                notes=f"{median([rate for rate, _ in rates]):,.0f} turns/s",
            )
        )
    return rows


def _timed(work: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> float:
    gc.collect()
    gc.disable()
    try:
        began = clock()
        work()
        return clock() - began
    finally:
        gc.enable()


class _World:
    """One agent, its epoch in a file, and its log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._registry = MessageRegistry((Put,))
        self._snapshot: AgentSnapshot | None = None
        self._pack = folder / "pack"
        self._position = 0
        self._bodies: dict[str, list[tuple[int, int]]] = {}
        """Where the records of turns lie in each segment's file."""

    def _host(self) -> AgentHost:
        return AgentHost(Store("main"), self._registry, CutClock())

    def _logger(self) -> TurnLogger:
        return TurnLogger(FolderFiles(self._folder / "turns"), cluster="bench", participant="p1")

    async def fill(self, turns: int) -> None:
        """500 KB of state, an epoch of it, and turns after it."""
        host = self._host()
        logger = self._logger()
        logger.recover({}, now=0)
        logger.begin(Life(1, 1), [host])
        for number in range(KEYS):
            self._turn(host, logger, number)
        await logger.wait_durable(logger.flush())
        self._position = logger.position
        capturer = Capturer(host.state.clock)
        frozen = capturer.freeze(1, [host], now=0)
        packs = [pack for pack in (*frozen.slices(), *frozen.channel_slices(())) if pack is not None]
        assert len(packs) == 1, "one small pack"
        self._pack.write_bytes(packs[0].data)
        (self._snapshot,) = frozen.agent_snapshots()
        for number in range(turns):
            self._turn(host, logger, number)
            if number % TURNS_PER_BATCH == 0:
                await logger.wait_durable(logger.flush())
        await logger.wait_durable(logger.flush())
        await logger.close()
        self._find_bodies()

    def _find_bodies(self) -> None:
        for path in sorted((self._folder / "turns").iterdir()):
            data = path.read_bytes()
            _, end = decode_segment_header(data, str(path))
            bodies = self._bodies[path.name] = []
            batches, _ = read_batches(data, end, str(path))
            position = end.size
            for batch in batches:
                start = data.index(batch.body, position)
                position = start + len(batch.body)
                if batch.first > self._position:
                    bodies.append((start, position))

    def _turn(self, host: AgentHost, logger: TurnLogger, number: int) -> None:
        name, version, body = self._registry.encode(Put(f"key {number % KEYS}", number))
        identity = MessageId(host.turns.to_bytes(16, "big"))
        envelope = Envelope(identity, AgentId("store/far"), host.id, name, version, body)
        data = encode_envelope(envelope)
        host.deliver(envelope, data)
        logger.writer.received("p2", host.turns + 1, envelope, data)
        turn = host.begin_turn(0)
        assert not isinstance(turn, DeadLettered), "its own message"
        turn.start()
        result = turn.commit(0)
        logger.writer.turn(
            envelope,
            changes=list(result.changes),
            sends=[("p2", host.turns, data) for _, data in result.sends],
            timers=(),
            outputs=(),
            steps=(),
            attempt=1,
            at=0,
        )

    def recover(self) -> None:
        """Epoch, then log."""
        assert self._snapshot is not None, "filled"
        host = self._host()
        reader = PackReader(BytesSource(self._pack.read_bytes()))

        def read(refs: Iterable[ChunkRef]) -> bytes:
            return b"".join(reader.chunk(ref.digest) for ref in refs)

        load_agent(host, self._snapshot, read, now=0)
        self._logger().recover({host.id: host}, after=self._position, now=0)

    def replay(self) -> None:
        """The log alone."""
        host = self._host()
        self._logger().recover({host.id: host}, after=self._position, now=0)

    def floor(self) -> None:
        """The same bytes as objects, by the shortest way."""
        assert self._snapshot is not None, "filled"
        data = self._pack.read_bytes()
        blake3(data).digest()
        reader = PackReader(BytesSource(data))
        for field in self._snapshot.fields:
            for segment in field.segments:
                msgspec.msgpack.decode(b"".join(reader.chunk(ref.digest) for ref in segment))
        for path in sorted((self._folder / "turns").iterdir()):
            data = path.read_bytes()
            blake3(data).digest()
            for start, stop in self._bodies[path.name]:
                decode_records(memoryview(data)[start:stop])
