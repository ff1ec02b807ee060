"""A process that logs turns as fast as it can, and prints each number that it was told is durable; for tests that kill it.

Arguments: folder, session.
"""

import asyncio
import os
import sys
from pathlib import Path

from participant.runtime.log_files import Life, LocalFolder
from participant.runtime.turn_logger import TurnLogger
from protocol.errors import FencedError, StoreError
from protocol.failpoints import arm_failpoints
from tests.turnlog_world import World


async def main(folder: Path, session: int) -> None:
    arm_failpoints(os.environ, ())
    local = LocalFolder(folder, "p1")
    life = Life(1, session)
    local.take_over(life)
    world = World()
    ended = asyncio.Event()

    def durable(number: int) -> None:
        os.write(1, f"{number}\n".encode())

    def failed(error: StoreError | FencedError) -> None:
        os.write(1, f"{type(error).__name__}\n".encode())
        ended.set()

    logger = TurnLogger(
        local.files("turns"),
        cluster="demo",
        participant="p1",
        owner=local,
        on_durable=durable,
        on_failure=failed,
        segment_bytes=20_000,
    )
    replayed = logger.recover(world.hosts, now=0)
    world.arrived = replayed.received.get("q", 0)
    logger.begin(life, world.hosts.values())
    world.writer = logger.writer
    while not ended.is_set():
        for _ in range(3):
            world.arrive("worker/a", (("count", "", 1), ("append", "", 4)))
            world.run("worker/a")
        try:
            logger.flush()
        except (StoreError, FencedError):
            # The log has failed between two turns of the loop; who listens is told by the next.
            await asyncio.wait_for(ended.wait(), 20)
            break
        await asyncio.sleep(0)


asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
