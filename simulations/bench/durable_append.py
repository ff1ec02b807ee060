"""Durable append: what a logged turn costs until it may be acknowledged, alone and in company.

Measured: a turn's record through the writer, the group commit's thread, append and fdatasync, until whoever waits is told: one
at a time, and 64 that come together. And the syncs that 64 turns take.

Reference: an append of as many bytes with fdatasync, in this thread, nothing around it.

Bound: the way to the thread and back is 0.1 ms and more where the interpreter is busy; an fdatasync is 0.1 to 4 ms. DBOS makes
15 fsyncs for a workflow of one step.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from participant.context import encode_envelope
from participant.runtime.log_files import FolderFiles, Life
from participant.runtime.turn_logger import TurnLogger
from participant.turnlog.records import NOTHING
from protocol.ids import AgentId, MessageId
from protocol.messages import Envelope
from simulations.bench.measure import Row, Settings, interleave, median, row_of, scratch_folder

if TYPE_CHECKING:
    from pathlib import Path

    from participant.turnlog.records import Change

NAME = "durable-append"
TOGETHER = 64
BODY_BYTES = 100


async def run(settings: Settings) -> list[Row]:
    """Time of a durable turn, alone and with others; syncs for each."""
    cycles = settings.pick(1, 11, 31)
    turns = settings.pick(2, 40, 200)
    rows: list[Row] = []
    with scratch_folder() as folder:
        bench = _Bench(folder)
        record_bytes = await bench.start()
        for case, company in (("one at a time", 1), (f"{TOGETHER} at once", TOGETHER)):
            rounds = max(1, turns // company)

            async def measured(rounds: int = rounds, company: int = company) -> float:
                began = time.perf_counter()
                for _ in range(rounds):
                    await bench.turns(company)
                return (time.perf_counter() - began) / rounds

            async def reference(rounds: int = rounds, company: int = company) -> float:
                began = time.perf_counter()
                for _ in range(rounds):
                    bench.probe(record_bytes * company)
                return (time.perf_counter() - began) / rounds

            samples = await interleave(measured, reference, cycles)
            notes = f"{1000 * median([taken for taken, _ in samples]):.2f} ms, probe {1000 * median([taken for _, taken in samples]):.2f}"
            rows.append(row_of(NAME, case, "durable / fdatasync probe", samples, bar=2.0, unit="s", notes=notes))
        syncs: list[tuple[float, float]] = []
        for _ in range(cycles):
            before = bench.logger.log.syncs
            await bench.turns(TOGETHER)
            syncs.append((float(bench.logger.log.syncs - before), float(TOGETHER)))
        rows.append(row_of(NAME, f"{TOGETHER} at once", "syncs / turn", syncs, bar=0.1, unit="syncs"))
        await bench.close()
    return rows


class _Bench:
    """A turn log, and a file to probe the disk with."""

    def __init__(self, folder: Path) -> None:
        self._probe = os.open(folder / "probe", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.logger = TurnLogger(FolderFiles(folder / "turns"), cluster="bench", participant="p1")
        self._number = 0

    async def start(self) -> int:
        """Ready to log; returns the bytes of a turn's record."""
        self.logger.recover({}, now=0)
        self.logger.begin(Life(1, 1), ())
        await self.logger.wait_durable(self.logger.flush())
        before = self.logger.log.bytes_written
        await self.turns(TOGETHER)
        return (self.logger.log.bytes_written - before) // TOGETHER

    async def turns(self, count: int) -> None:
        """As many turns as come together, durable."""
        writer = self.logger.writer
        changes: list[Change] = [("total", NOTHING, NOTHING)]
        for _ in range(count):
            self._number += 1
            identity = MessageId(self._number.to_bytes(16, "big"))
            envelope = Envelope(identity, AgentId("bank/a"), AgentId("bank/b"), "Transfer", 1, bytes(BODY_BYTES))
            data = encode_envelope(envelope)
            writer.received("p2", self._number, envelope, data)
            writer.turn(
                envelope,
                changes=changes,
                sends=[("p2", self._number, data)],
                timers=(),
                outputs=(),
                steps=(),
                attempt=1,
                at=0,
            )
        await self.logger.wait_durable(self.logger.flush())

    def probe(self, size: int) -> None:
        """The least that makes as many bytes durable."""
        os.write(self._probe, bytes(size))
        os.fdatasync(self._probe)

    async def close(self) -> None:
        """Let go of the files."""
        os.close(self._probe)
        await self.logger.close()
