"""Fresh reads share barriers, and each gets one that began after it asked."""

from __future__ import annotations

import asyncio

from coordinator.runtime.barriers import SharedBarrier
from protocol.errors import Refused


class Log:
    def __init__(self):
        self.gates = []

    async def barrier(self):
        gate = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_flood_of_fresh_reads_makes_two_barriers_and_none_begins_before_its_question():
    log = Log()
    shared = SharedBarrier(log.barrier)
    first = asyncio.create_task(shared.passed())
    await settle()
    flood = [asyncio.create_task(shared.passed()) for _ in range(100)]
    await settle()
    assert len(log.gates) == 1
    log.gates[0].set_result(None)
    await first
    await settle()
    assert len(log.gates) == 2
    assert not any(each.done() for each in flood), "the first barrier began before they asked"
    late = asyncio.create_task(shared.passed())
    await settle()
    log.gates[1].set_result(None)
    await asyncio.gather(*flood)
    await settle()
    assert not late.done()
    log.gates[2].set_result(None)
    await late


async def test_a_barrier_that_fails_fails_for_those_who_share_it_and_a_reader_that_goes_takes_nobody_along():
    log = Log()
    shared = SharedBarrier(log.barrier)
    readers = [asyncio.create_task(shared.passed()) for _ in range(3)]
    await settle()
    readers[0].cancel()
    await settle()
    log.gates[0].set_exception(Refused("no-leader", "nobody leads"))
    outcomes = await asyncio.gather(*readers, return_exceptions=True)
    assert [type(each) for each in outcomes] == [asyncio.CancelledError, Refused, Refused]
    again = asyncio.create_task(shared.passed())
    await settle()
    log.gates[1].set_result(None)
    await again
