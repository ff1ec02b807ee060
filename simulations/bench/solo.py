"""One participant alone, with a scripted coordinator: cuts on demand, each of which may be the first or build on the last.

An epoch that is aborted leaves nothing behind, so the next cut of the same state is a full one again: that is how a full cut
is measured many times without changing the state in between.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from participant import Participant
from participant.runtime.transports.memory import MemoryHub, MemoryTransport
from protocol.messages import (
    AbortEpoch,
    EpochCommitted,
    EpochFailed,
    LocalReport,
    Member,
    Registered,
    StartEpoch,
    TopologyChanged,
)
from simulations.bench.local import CLUSTER, SECRET

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from participant import Agent
    from participant.runtime.control import ControlSink
    from protocol.messages import FromParticipant, ToParticipant
    from protocol.ports import ObjectStore

DEADLINE_NS = 600_000_000_000


class SoloControl:
    """The coordinator's side, in the participant's own loop."""

    def __init__(self) -> None:
        self._sink: ControlSink | None = None
        self._report: asyncio.Future[LocalReport] | None = None
        self._newest = 0

    async def start(self, sink: ControlSink) -> None:
        """Register at once, alone in the topology."""
        self._sink = sink
        register = sink.register_message()
        self._say(Registered(term=1, session=1, incarnation=1, lease_ns=DEADLINE_NS, newest_epoch=0, aborted_through=0))
        member = Member(
            id=register.participant, session=1, address=register.address, agents=register.agents, targets=None
        )
        self._say(TopologyChanged(term=1, session=1, incarnation=1, version=1, members=(member,)))

    def send(self, message: FromParticipant) -> bool:
        """From the participant."""
        if self._report is None or self._report.done():
            return True
        if isinstance(message, LocalReport):
            self._report.set_result(message)
        elif isinstance(message, EpochFailed):
            self._report.set_exception(RuntimeError(f"the epoch failed in phase {message.phase}: {message.cause}"))
        return True

    async def close(self) -> None:
        """End."""
        self._sink = None

    def order(self) -> asyncio.Future[LocalReport]:
        """Start an epoch: the cut is taken in a coming turn of the loop, not inside this call."""
        self._newest += 1
        self._report = asyncio.get_running_loop().create_future()
        self._say(StartEpoch(term=1, session=1, incarnation=1, epoch=self._newest, topology=1, deadline_ns=DEADLINE_NS))
        return self._report

    def abort(self) -> None:
        """End the epoch: nothing of it is known any more."""
        self._say(AbortEpoch(term=1, session=1, epoch=self._newest, reason="measured", ended_through=self._newest))

    def commit(self) -> None:
        """End the epoch: the next one names what this one wrote."""
        self._say(EpochCommitted(term=1, session=1, epoch=self._newest, manifest="", ended_through=self._newest))

    def _say(self, message: ToParticipant) -> None:
        asyncio.get_running_loop().call_soon(self._arrive, message)

    def _arrive(self, message: ToParticipant) -> None:
        if self._sink is not None:
            self._sink.control_received(message)


class SoloParticipant:
    """A participant with these agents; an async context manager."""

    def __init__(self, agents: Sequence[Agent], store: ObjectStore) -> None:
        self.control = SoloControl()
        self.participant = Participant(
            *agents,
            id="solo",
            cluster=CLUSTER,
            transport="memory",
            store=store,
            secret=SECRET,
            control=self.control,
            wire=MemoryTransport("solo", MemoryHub()),
        )

    async def __aenter__(self) -> Self:
        """It is a member and its agents have started."""
        await self.participant.__aenter__()
        await self.participant.wait_member()
        await self.participant.wait_idle()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        await self.participant.__aexit__(kind, error, trace)
