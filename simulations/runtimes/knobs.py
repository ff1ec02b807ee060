"""Limits of the drivers that are now and then at an edge, so that what lies behind them is reached within a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import coordinator.runtime.connections as connections
import coordinator.runtime.driver as driver
import participant.runtime.durable_log as durable_log
import participant.runtime.parts as parts
import participant.runtime.turn_keeper as turn_keeper
import participant.runtime.turn_logger as turn_logger
from protocol.limits import LOG_BATCH_TARGET_BYTES, MIB
from simulations.prng import stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack


class Knobs:
    """Of one run, drawn from its seed."""

    def __init__(self, seed: int) -> None:
        random = stream(seed, "knobs")
        edge = random.chance(1, 2)
        self.window = random.pick((256, 4096)) if edge else 65536
        """Bytes that a control connection holds which nobody has read."""
        self.store_seconds = random.pick((1.0, 4.0)) if random.chance(1, 2) else 60.0
        """One attempt of the leader's at the store."""
        self.store_threads = random.pick((1, 2, 6)) if random.chance(1, 2) else driver.OWN_STORE_THREADS
        self.waiting_bytes = random.pick((4096, 32768)) if random.chance(1, 3) else 32 * MIB
        """Orders that may wait for a slow participant."""
        self.idle_seconds = random.pick((3.0, 30.0))
        self.write_seconds = random.pick((2.0, 20.0))
        random = stream(seed, "knobs of logs")
        self.segment_bytes = random.pick((1, 2000, 20_000)) if random.chance(3, 4) else turn_keeper.SEGMENT_BYTES
        self.batch_bytes = random.pick((400, 4000)) if random.chance(1, 3) else LOG_BATCH_TARGET_BYTES
        self.wants_epoch_bytes = random.pick((4_000, 40_000)) if random.chance(1, 4) else turn_keeper.WANTS_EPOCH_BYTES

    def turn_logs(self, stack: ExitStack, wall: Callable[[], int], *, quick: bool) -> None:
        """Those of logs of turns, whose timers run by the wall clock while nobody is there; small batches only on a quick disk."""
        self._put(
            stack,
            (turn_keeper, "SEGMENT_BYTES", self.segment_bytes),
            (turn_keeper, "WANTS_EPOCH_BYTES", self.wants_epoch_bytes),
            (durable_log, "LOG_BATCH_TARGET_BYTES", self.batch_bytes if quick else LOG_BATCH_TARGET_BYTES),
            (turn_keeper, "time_ns", wall),
            (turn_logger, "time_ns", wall),
        )

    def turn(self, stack: ExitStack) -> None:
        """Put them in place until the stack ends."""
        self._put(
            stack,
            (driver, "STORE_SECONDS_MAX", self.store_seconds),
            (driver, "OWN_STORE_THREADS", self.store_threads),
            (parts, "STORE_SECONDS_MAX", 2 * self.store_seconds),
            (connections, "WAITING_BYTES_MAX", self.waiting_bytes),
            (connections, "IDLE_SECONDS_MAX", self.idle_seconds),
            (connections, "WRITE_SECONDS_MAX", self.write_seconds),
        )

    @staticmethod
    def _put(stack: ExitStack, *places: tuple[object, str, object]) -> None:
        for module, name, value in places:
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
