"""Participants in this process, with a coordinator in memory: real drivers, machines, capture and stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from participant import Participant
from participant.runtime.conductor import Conductor, LocalControl
from participant.runtime.transports.memory import MemoryHub, MemoryTransport
from protocol.ids import ClusterName
from protocol.keys import ClusterKeys
from protocol.storage import ensure_format
from protocol.storage.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from participant import Agent
    from protocol.ports import ObjectStore

CLUSTER = ClusterName("bench")
SECRET = b"a secret for benchmarks, 32 bytes"


class LocalParticipants:
    """One participant for each group of agents, called ``p0``, ``p1``, ...; an async context manager.

    Args:
        groups: Agents of each participant.
        store: Default: one in memory.
        sockets: Frames go over WebSocket on the loopback interface, not through queues.
        messages: Types that agents send and none handles.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Agent]],
        *,
        store: ObjectStore | None = None,
        sockets: bool = False,
        messages: Iterable[type] = (),
    ) -> None:
        self.store: ObjectStore = MemoryStore(CLUSTER) if store is None else store
        self.conductor = Conductor(cluster=CLUSTER, store=self.store, keys=ClusterKeys.from_secret(SECRET))
        hub = MemoryHub()
        messages = tuple(messages)
        self.participants = [
            Participant(
                *group,
                id=f"p{number}",
                cluster=CLUSTER,
                transport="websocket" if sockets else "memory",
                store=self.store,
                secret=SECRET,
                messages=messages,
                control=LocalControl(self.conductor),
                wire=None if sockets else MemoryTransport(f"p{number}", hub),
            )
            for number, group in enumerate(groups)
        ]
        self._started: list[Participant] = []

    async def __aenter__(self) -> Self:
        """All are members."""
        ensure_format(self.store, CLUSTER)
        try:
            for participant in self.participants:
                await participant.__aenter__()
                self._started.append(participant)
            await self.conductor.wait_members(*(participant.id for participant in self.participants))
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all."""
        for participant in self._started:
            await participant.__aexit__(kind, error, trace)
