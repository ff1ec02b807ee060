"""For workloads whose handlers await: each life gets an event loop on virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from simulations.awaiting import AwaitingForms, AwaitingPump
from simulations.state_forms import StateForms, agent_fields
from simulations.workloads.base import Workload

if TYPE_CHECKING:
    from participant.agent import Agent
    from participant.runtime.pump import Pump
    from simulations.options import Options
    from simulations.participant_node import ParticipantLife


_encode = msgspec.msgpack.encode


class PlainForms(AwaitingForms):
    """For agents with plain states and no order that could be lost: cheap, since it is made before every turn."""

    def stored(self, fields: dict[str, Any]) -> bytes:
        """See `StateForms`."""
        return StateForms.stored(self, fields)

    def of(self, agent: Agent) -> bytes:
        """See `AwaitingForms`."""
        return _encode(agent_fields(agent))


class AwaitedWorkload(Workload):
    """Cuts may come while turns are running."""

    def __init__(self, options: Options, targets: dict[str, tuple[str, ...]]) -> None:
        super().__init__(options, targets)
        self._pumps: list[AwaitingPump] = []
        self._forms = self.forms = PlainForms([])

    def pump(self, life: ParticipantLife) -> Pump:
        """One with an event loop."""
        self._forms.holding |= AwaitingForms(list(life.agents)).holding
        pump = AwaitingPump(life, self._forms)
        self._pumps.append(pump)
        return pump

    def close(self) -> None:
        """Unwind the tasks that are left."""
        for pump in self._pumps:
            pump.unwind()
        self._pumps.clear()
        self._forms.before.clear()
