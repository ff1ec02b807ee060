"""Simulator: events of the protocol per second of CPU in seeded runs with all judges, against messages of bare simpy processes.

Measured: seeds as a sweep draws them, one after the other: the product's machines, turns, frames with their MAC, encoding,
packs, the ledger on each coordinator, faults, the ghost log, and every oracle. An event is a message sent by a turn, a message
delivered, or anything else that a machine was told. In one process, on one core.

Reference: four simpy processes that pass messages of the same size to each other through stores, each after a time on its way:
a simulation of this kind that does nothing else. One message is a timeout, a put and a get.

Second row: virtual seconds for each second of CPU, over the same runs. How many depends on how much happens in them.

Bound: a frame with its MAC, encoded, checked and opened, is 15 us, a turn 8, an entry applied by three ledgers 60, an epoch
with its packs and judgement some 10 ms, and the events that come of them are 1, 3, 4 and 60: 10 to 15 us an event if the queue,
the trace and the judges of single messages were free. A message of simpy is 6 to 13 us.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from simulations.bench.measure import Row, Settings, interleave, median, row_of
from simulations.run import run as run_one
from simulations.swarm import draw_run

if TYPE_CHECKING:
    from collections.abc import Generator

NAME = "simulator"
FIRST_SEED = 20_000
PROCESSES = 4
VIRTUAL_SECONDS = 100.0
"""Wanted of each second of CPU."""


async def run(settings: Settings) -> list[Row]:
    """Both rows."""
    seeds = range(FIRST_SEED, FIRST_SEED + settings.pick(1, 12, 60))
    cycles = settings.pick(1, 5, 9)
    messages = settings.pick(200, 50_000, 200_000)
    virtual: list[tuple[float, float]] = []

    async def ours() -> float:
        events, virtual_ns = 0, 0
        began = time.process_time()
        for seed in seeds:
            what = draw_run(seed)
            if what.options.runtimes:
                continue  # drivers are not what is measured here
            outcome = run_one(what)
            assert outcome.ok, f"seed {seed}: {outcome.text}"
            events += outcome.events
            virtual_ns += outcome.virtual_ns
        took = time.process_time() - began
        virtual.append((virtual_ns / 1e9, took))
        return events / took

    async def reference() -> float:
        began = time.process_time()
        _simpy(messages)
        return messages / (time.process_time() - began)

    samples = await interleave(ours, reference, cycles)
    notes = f"{median([taken for taken, _ in samples]):,.0f} events/s, simpy {median([taken for _, taken in samples]):,.0f} messages/s"
    return [
        row_of(
            NAME,
            f"{len(seeds)} seeds",
            "events/s / simpy messages/s",
            samples,
            bar=1.0,
            at_least=True,
            unit="1/s",
            notes=notes,
        ),
        row_of(
            NAME,
            "virtual time",
            "virtual seconds / CPU seconds",
            virtual[1:],  # the first round warms up
            bar=VIRTUAL_SECONDS,
            at_least=True,
            unit="s",
        ),
    ]


def _simpy(messages: int) -> None:
    """Pass this many messages among four processes."""
    import simpy

    environment = simpy.Environment()
    boxes = [simpy.Store(environment) for _ in range(PROCESSES)]
    left = messages

    def travel(message: Any, target: int) -> Generator[Any, Any, None]:  # noqa: ANN401 - a store of simpy gives anything
        yield environment.timeout(1 + message[0] % 7)
        yield boxes[target].put(message)

    def member(me: int) -> Generator[Any, Any, None]:
        nonlocal left
        while True:
            message = yield boxes[me].get()
            left -= 1
            if left > 0:
                environment.process(travel(message, (me + 1) % PROCESSES))

    for index in range(PROCESSES):
        environment.process(member(index))
    for index in range(4 * PROCESSES):
        boxes[index % PROCESSES].put(bytes([index]) * 100)
    environment.run()
    assert left <= 0, "every message was handled"
