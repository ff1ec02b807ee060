"""Turn path: one message through mailbox, handler with one state write, one send; against a bare asyncio queue hand-off.

Measured: two agents pass messages of 100 bytes to each other; each handling writes one saved value and sends one message.
In one process both live in one participant; over WebSocket each has a participant and a socket of its own, and both run
on this process's loop, so that the CPU time of both sides is counted.

Reference: two tasks and two `asyncio.Queue`s that pass one message to and fro: each hand-off wakes the other task. The bar is
for this one. A second row divides by the same queues with as many messages under way as the measured side has: then the
queue is never empty, `get` never waits, nothing is handed from task to task, and what is left of asyncio is two calls.

Bound: the turn decodes one Struct (0.3 us), makes a context and a turn (0.6), runs the handler (0.3), encodes message and
envelope with the check that nothing is lost (1.5), hashes the child's id (0.7), appends and pops deques (0.3): some 4 us.
A hand-off between tasks is about 2 to 5 us, through a queue that is never empty 0.3 to 0.7. So the best to be had is above
0.5 of the first and 0.1 of the second: what makes turns transactional, typed and durable costs ten times a bare `put`.
Over WebSocket one message alone is a frame, a MAC and four system calls each way, and an acknowledgement: 100 us.

Ray actor calls are not measured beside it: Ray is no dependency of this project and does not install in seconds.
(2.6 to 3.4 thousand calls a second were measured elsewhere on like machines.)
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from participant import Agent, Context, handler, value
from simulations.bench.local import LocalParticipants
from simulations.bench.measure import Row, Settings, interleave, row_of

NAME = "turn-path"


class Ball(msgspec.Struct, frozen=True):
    """A message of about 100 bytes."""

    number: int
    pad: str


PAD = "x" * 88


class Player(Agent, kind="player"):
    """Writes one value and sends the ball on."""

    seen = value(int, default=0)

    def __init__(self, name: str, other: str, rally: Rally) -> None:
        super().__init__(name)
        self._other = other
        self._rally = rally

    @handler
    async def on_ball(self, ctx: Context, ball: Ball) -> None:
        """One turn."""
        self.seen += 1
        if self._rally.goes_on():
            ctx.send(self._other, ball)


class Rally:
    """Counts hand-offs and says when they are enough."""

    def __init__(self) -> None:
        self._left = 0
        self._flying = 0
        self._over: asyncio.Future[None] | None = None

    def begin(self, count: int, flying: int) -> asyncio.Future[None]:
        """A rally of `count` hand-offs with `flying` balls."""
        self._left = count
        self._flying = flying
        self._over = asyncio.get_running_loop().create_future()
        return self._over

    def goes_on(self) -> bool:
        """Count one; whether the ball is to be passed on."""
        self._left -= 1
        if self._left >= self._flying:
            return True
        if self._left == 0 and self._over is not None:
            self._over.set_result(None)
        return False


async def run(settings: Settings) -> list[Row]:
    """All cases."""
    count = settings.pick(2_000, 30_000, 200_000)
    cycles = settings.pick(1, 7, 15)
    rows = []
    for sockets in (False, True):
        for flying in (1, 256):
            # Alone on a socket each hand-off is a round trip of the loop and the kernel: fewer of them say as much.
            hand_offs = count // 10 if sockets and flying == 1 else count
            rows += await _case(sockets=sockets, flying=flying, count=hand_offs, cycles=cycles)
    return rows


async def _case(*, sockets: bool, flying: int, count: int, cycles: int) -> list[Row]:
    rally = Rally()
    players = [Player("one", "player/two", rally), Player("two", "player/one", rally)]
    groups = [[player] for player in players] if sockets else [players]
    async with LocalParticipants(groups, sockets=sockets) as cluster:

        async def turns() -> float:
            over = rally.begin(count, flying)
            before = time.process_time()
            for number in range(flying):
                cluster.participants[0].ingest_nowait("player/one", Ball(number, PAD))
            await over
            return count / (time.process_time() - before)

        async def queue() -> float:
            return count / await _queue_seconds(count, 1)

        samples = await interleave(turns, queue, cycles)
        full = count / await _queue_seconds(count, flying)
    case = f"{'over WebSocket' if sockets else 'in one process'}, {flying} under way"
    rows = [
        row_of(
            NAME,
            case,
            "messages per CPU-s / hand-offs between tasks per CPU-s",
            samples,
            bar=0.3,
            at_least=True,
            unit="1/s",
            notes=f"{_middle(samples) / 1000:.0f} k messages per CPU-second",
        )
    ]
    if flying > 1:
        rows.append(
            row_of(
                NAME,
                case,
                "the same / a queue that is never empty",
                [(above, full) for above, _ in samples],
                unit="1/s",
            )
        )
    return rows


def _middle(samples: list[tuple[float, float]]) -> float:
    return sorted(above for above, _ in samples)[len(samples) // 2]


async def _queue_seconds(count: int, flying: int) -> float:
    """CPU seconds of as many hand-offs between two tasks."""
    rally = Rally()
    over = rally.begin(count, flying)
    queues: list[asyncio.Queue[Ball]] = [asyncio.Queue(), asyncio.Queue()]
    seen = [0, 0]

    async def play(me: int) -> None:
        mine, other = queues[me], queues[1 - me]
        while True:
            ball = await mine.get()
            seen[me] += 1
            if rally.goes_on():
                other.put_nowait(ball)

    tasks = [asyncio.create_task(play(me)) for me in (0, 1)]
    before = time.process_time()
    for number in range(flying):
        queues[0].put_nowait(Ball(number, PAD))
    await over
    taken = time.process_time() - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return taken
