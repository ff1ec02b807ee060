"""What an init system does: whatever has ended is started again, and every end is noted."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from participant.runtime.control import ID_TAKEN_SECONDS, REGISTER_SECONDS
from simulations.demo.process import EXIT_ENDED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from simulations.demo.children import Child
    from simulations.demo.cluster import Coordinator, LocalCluster
    from simulations.demo.process import Spec

RESTART_SECONDS = 0.1
LINES_MAX = 200
"""Of a log that several lives share."""
TWIN_SECONDS = 2 * (ID_TAKEN_SECONDS + REGISTER_SECONDS)
"""From when a frozen twin wakes until one of the two has ended.

A twin that is no member waits while its name is taken: its predecessor may only have been killed. The coordinator that it
asks may be dead, or elected a moment ago: then it asks another, and waits anew.
"""


@dataclass
class Slot:
    """One participant or coordinator: a name, and the process that has it now."""

    name: str
    start: Callable[[], Awaitable[Child]]
    child: Child | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    """The process says so: a participant is a member."""
    starts: int = 0


class Keeper:
    """Keeps processes alive.

    Attributes:
        findings: Ends that nobody caused and that are no orderly end of what was fenced, in sentences.
        fenced: How many ended by themselves, as fenced ones must.
    """

    def __init__(self, cluster: LocalCluster, specs: list[Spec], say: Callable[[str], None]) -> None:
        """Nothing is started yet.

        Args:
            cluster: Its coordinators run already.
            specs: Of all participants.
            say: The narrator.
        """
        self._cluster = cluster
        self._say = say
        self.findings: list[str] = []
        self.fenced = 0
        self.participants = [Slot(spec.id, lambda spec=spec: cluster.spawn_participant(spec)) for spec in specs]  # type: ignore[misc]
        self.coordinators = [Slot(one.id, lambda one=one: self._coordinator(one)) for one in cluster.coordinators]  # type: ignore[misc]
        for slot, one in zip(self.coordinators, cluster.coordinators, strict=True):
            slot.child = one.child
        self._tasks: set[asyncio.Task[None]] = set()
        self._twins: set[asyncio.Task[None]] = set()

    async def _coordinator(self, one: Coordinator) -> Child:
        await self._cluster.start_coordinator(one)
        assert one.child is not None
        return one.child

    def begin(self) -> None:
        """Start the participants; from now on everything is kept alive."""
        for slot in (*self.participants, *self.coordinators):
            self._spawn(self._keep(slot), self._tasks)

    async def wait_ready(self, seconds: float) -> list[str]:
        """Until every participant says that it is a member. Returns who does not, by name."""
        waits = [asyncio.create_task(slot.ready.wait(), name=slot.name) for slot in self.participants]
        await asyncio.wait(waits, timeout=seconds)
        late = [wait.get_name() for wait in waits if not wait.done()]
        for wait in waits:
            wait.cancel()
        return late

    def kill(self, slot: Slot) -> None:
        """SIGKILL; it is started again at once."""
        if slot.child is not None:
            slot.child.kill()

    def freeze(self, slot: Slot, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        if slot.child is not None and slot.child.running:
            self._spawn(self._wake(slot.child, seconds), self._twins)

    def twin(self, slot: Slot, seconds: float) -> None:
        """SIGSTOP, a successor at once, and SIGCONT later: one of the two must then end by itself.

        Which one depends on who was there first when the frozen one woke.
        """
        child = slot.child
        if child is None or not child.running:
            return
        slot.ready.clear()
        self._spawn(self._wake_twin(slot, child, seconds), self._twins)
        slot.child = None
        self._spawn(self._keep(slot), self._tasks)

    async def calm(self) -> None:
        """All that was frozen is awake again, and every twin has ended."""
        await asyncio.gather(*self._twins)

    async def stop(self) -> None:
        """Keep nothing alive any more. The processes go on."""
        for task in (*self._tasks, *self._twins):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._twins, return_exceptions=True)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _spawn(self, work: Awaitable[None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _keep(self, slot: Slot) -> None:
        while True:
            if slot.child is None:
                slot.ready.clear()
                slot.child = await slot.start()
                slot.starts += 1
            child = slot.child
            if child.name in {each.name for each in self.participants} and not slot.ready.is_set():
                slot_ready = "ready" in await child.read_line()
                if slot_ready and slot.child is child:
                    slot.ready.set()
            await child.wait()
            self._judge_end(child)
            if slot.child is not child:
                return  # A twin: its successor has a keeper of its own.
            slot.ready.clear()
            slot.child = None
            await asyncio.sleep(RESTART_SECONDS)

    def _judge_end(self, child: Child) -> None:
        code = child.returncode
        if child.ended_on_purpose:
            return
        if code == EXIT_ENDED:
            self.fenced += 1
            said = [line for line in child.last_lines(LINES_MAX).splitlines() if line.startswith("ended: ")]
            self._say(f"  {child.name} (process {child.pid}) has ended by itself, {''.join(said[-1:])[:240]}")
            return
        self.findings.append(f"{child.name} (process {child.pid}) ended by itself with {code}: {child.last_lines(3)}")
        self._say(f"FOUND: {self.findings[-1]}")

    async def _wake(self, child: Child, seconds: float) -> None:
        child.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            child.signal(signal.SIGCONT)

    async def _wake_twin(self, slot: Slot, child: Child, seconds: float) -> None:
        await self._wake(child, seconds)
        try:
            await asyncio.wait_for(child.wait(), TWIN_SECONDS)
        except TimeoutError:
            if slot.ready.is_set():
                self.findings.append(
                    f"{child.name} (process {child.pid}) slept {seconds:.1f} s, its successor is a member, and it does not end"
                )
                self._say(f"FOUND: {self.findings[-1]}")
            child.kill()
