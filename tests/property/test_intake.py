"""The intake on a simulated disk that loses power, dies between any two operations, and fails to sync.

What is checked: an input that was acknowledged enters, once, in order, under one id, whatever comes between; one that was not
acknowledged enters at most once; a token is one input for ever (RELIABILITY.md I14, I18, T14).
"""

from __future__ import annotations

import asyncio
import errno

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from participant.runtime.intake import Intake
from participant.runtime.log_files import Life
from protocol.errors import FencedError, RecoveryError, Refused, StoreError
from protocol.ids import AgentId
from simulations.log_disk import ProcessDied, SimulatedLogFiles
from simulations.raft.prng import Prng

AGENT = AgentId("shop/main")


class Folder:
    """A participant's folder on the simulated disk, as one of its lives sees it."""

    path = "/simulated"
    owners: dict[int, Life]

    def __init__(self, disk: SimulatedLogFiles, owner: list[Life]) -> None:
        self._disk = disk
        self._owner = owner
        self._life: Life | None = None

    def files(self, _log: str) -> SimulatedLogFiles:
        return self._disk

    def take_over(self, life: Life) -> None:
        if life < self._owner[0]:
            raise FencedError("a later life owns the folder")
        self._owner[0] = self._life = life

    def check(self) -> None:
        if self._owner[0] != self._life:
            raise FencedError("somebody else has the folder")


class World:
    """One participant over many lives, an epoch to go back to, and clients that remember what they were told."""

    def __init__(self, seed: int) -> None:
        self.disk = SimulatedLogFiles(Prng(seed))
        self.owner = [Life(0, 0)]
        self.incarnation = 0
        self.state: list[int] = []
        """Inputs that have entered, as the agents know it."""
        self.ids: dict[int, bytes] = {}
        self.epoch = 0
        self.saved: tuple[list[int], int | None, int] = ([], None, 0)
        """State, position and number of the newest committed epoch."""
        self.sent = 0
        self.acknowledged: dict[int, None] = {}
        self.intake: Intake | None = None
        self.failed = False

    def _enter(self, delivery, _taken_in) -> None:
        number = msgspec.msgpack.decode(delivery[0].body)
        self.state.append(number)
        known = self.ids.setdefault(number, delivery[0].id)
        assert known == delivery[0].id, f"input {number} came under two ids"

    def _fail(self, _error) -> None:
        self.failed = True

    async def start(self) -> None:
        """A new life, from the newest epoch."""
        self.failed = False
        self.incarnation += 1
        self.intake = Intake(
            Folder(self.disk, self.owner),  # type: ignore[arg-type]
            cluster="shop",
            participant="p1",
            enters=self._enter,
            had=lambda _: None,
            failed=self._fail,
            bytes_max=4 << 20,
        )
        await self.intake.open()
        await self._restore(self.intake)

    async def _restore(self, intake: Intake) -> None:
        state, position, epoch = self.saved
        self.state = list(state)
        life = Life(self.incarnation, self.incarnation)
        if self.incarnation == 1:
            await intake.restore(life, intake.hold(epoch=None), newest_epoch=0)
        else:
            await intake.restore(life, intake.hold(epoch=epoch, position=position))

    async def ensure(self) -> Intake:
        for _ in range(10):
            if self.intake is not None and not self.failed:
                return self.intake
            try:
                await self.crash(power=False)
            except (StoreError, ProcessDied):
                self.intake = None
        raise AssertionError("it does not start")

    async def crash(self, *, power: bool) -> None:
        if self.intake is not None:
            self.intake.stop()
            await self.intake._group.wait_idle()
        self.disk.die_at = None
        self.disk.fail_next_sync = 0
        if power:
            self.disk.lose_power()
        await self.start()

    async def roll_back(self) -> None:
        intake = await self.ensure()
        self.incarnation += 1
        try:
            await self._restore(intake)
        except (StoreError, RecoveryError):
            self.failed = True

    async def send(self, number: int) -> None:
        intake = await self.ensure()
        try:
            taken = await intake.add(AGENT, "order", 1, msgspec.msgpack.encode(number), token=f"t{number}")
        except (StoreError, FencedError, Refused):
            return
        except BaseException as error:
            if not isinstance(error, ProcessDied):
                raise
            self.failed = True
            return
        self.acknowledged[number] = None
        assert taken.duplicate or number in self.state

    async def take_epoch(self, *, commit: bool) -> None:
        intake = await self.ensure()
        self.epoch += 1
        position = intake.cut(self.epoch)
        saved = (list(self.state), position, self.epoch)
        if commit:
            self.saved = saved
            intake.committed(self.epoch)
            await intake._group.wait_idle()
        else:
            intake.dropped(self.epoch)


STEPS = st.lists(
    st.one_of(
        st.just(("new",)),
        st.tuples(st.just("many"), st.integers(2, 6)),
        st.tuples(st.just("again"), st.integers(0, 30)),
        st.tuples(st.just("epoch"), st.booleans()),
        st.just(("rollback",)),
        st.tuples(st.just("crash"), st.booleans()),
        st.just(("sync fails",)),
    ),
    max_size=30,
)


async def run(seed: int, steps) -> None:
    world = World(seed)
    await world.start()
    for name, *arguments in steps:
        match name:
            case "new":
                world.sent += 1
                await world.send(world.sent)
            case "many":
                first = world.sent + 1
                world.sent += arguments[0]
                await asyncio.gather(*(world.send(number) for number in range(first, world.sent + 1)))
            case "again":
                if world.sent:
                    await world.send(1 + arguments[0] % world.sent)
            case "epoch":
                await world.take_epoch(commit=arguments[0])
            case "rollback":
                await world.roll_back()
            case "crash":
                await world.crash(power=arguments[0])
            case "sync fails":
                world.disk.fail_next_sync = errno.EIO
        seen = world.state
        assert len(set(seen)) == len(seen), f"twice: {seen}"
    # Every client goes on until it is told; then a last crash, power and all.
    for number in range(1, world.sent + 1):
        while number not in world.acknowledged:
            await world.send(number)
    await world.crash(power=True)
    assert sorted(world.state) == list(range(1, world.sent + 1))
    before = list(world.state)
    await world.crash(power=True)
    assert world.state == before, "another order"
    assert world.intake is not None
    for number in range(1, world.sent + 1):
        await world.send(number)
    assert world.state == before, "a token was taken twice"
    await world.intake.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 30), STEPS)
def test_acknowledged_input_enters_once_and_in_one_order_whatever_the_disk_does(seed, steps) -> None:
    asyncio.run(run(seed, steps))
