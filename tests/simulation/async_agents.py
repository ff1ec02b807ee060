"""Agents that await in every way that asyncio has, for tests of the simulator's event loop under whole clusters."""

import asyncio
import random
from dataclasses import dataclass

from participant import Agent, Backoff, Context, Retry, handler, keyed, value

START = 100


@dataclass(frozen=True)
class Tick:
    """An account's own timer."""


@dataclass(frozen=True)
class Pay:
    """Money on its way."""

    amount: int
    note: str = ""


class Account(Agent, kind="account"):
    """Pays the others a little after some real work: sleeps, timeouts, inner tasks, queues."""

    balance = value(int, default=START)
    partners = keyed(str, int)
    notes = value(dict[str, list[int]], default={})
    failure = Retry(attempts=5, backoff=Backoff(first=0.02))

    def __init__(self, name: str, others: tuple[str, ...]) -> None:
        super().__init__(name)
        self._others = others

    async def on_start(self, ctx: Context) -> None:
        await asyncio.sleep(0.01)
        ctx.after(0.05, Tick())

    @handler
    async def on_tick(self, ctx: Context, tick: Tick) -> None:
        ctx.after(0.05, Tick())
        amount = 1 + random.randrange(9)
        other = random.choice(self._others)
        self.balance -= amount
        self.partners[other] = self.partners.get(other, 0) + amount
        if ctx.attempt == 1 and random.randrange(8) == 0:
            await asyncio.sleep(0.02)
            raise ConnectionError("the bank's computer is down")
        try:
            async with asyncio.timeout(0.03):
                await asyncio.sleep(random.random() * 0.04)
        except TimeoutError:
            self.balance += amount
            self.partners[other] -= amount
            return
        ctx.send(f"account/{other}", Pay(amount, note=await self._note()))

    async def _note(self) -> str:
        """Three tasks that talk through a queue; one of them is too slow and is cancelled."""
        queue: asyncio.Queue[int] = asyncio.Queue()
        done = asyncio.Event()

        async def produce(number: int) -> None:
            await asyncio.sleep(0)
            queue.put_nowait(number)
            if queue.qsize() == 3:
                done.set()

        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(produce(number))
        await done.wait()
        slow = {asyncio.create_task(asyncio.sleep(delay, delay)) for delay in (0.001, 5, 6, 7)}
        finished, late = await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        assert {task.result() for task in finished} == {0.001}
        return "".join(str(queue.get_nowait()) for _ in range(3))

    @handler
    async def on_pay(self, ctx: Context, pay: Pay) -> None:
        self.balance += pay.amount
        lengths = await asyncio.to_thread(len, pay.note)
        self.notes.setdefault(pay.note, []).append(lengths)
        self.notes[pay.note] = self.notes[pay.note][-3:]


def accounts() -> list[Agent]:
    names = ("a", "b", "c")
    return [Account(name, tuple(other for other in names if other != name)) for name in names]


def held(agent: str, state: dict[str, object]) -> int:
    return int(state.get("balance", START))  # type: ignore[call-overload]


def carried(message: object) -> int:
    return message.amount if isinstance(message, Pay) else 0
