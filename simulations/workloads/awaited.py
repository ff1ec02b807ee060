"""For workloads whose handlers await: each life gets an event loop on virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulations.awaiting import AwaitingForms, AwaitingPump
from simulations.workloads.base import Workload

if TYPE_CHECKING:
    from participant.runtime.pump import Pump
    from simulations.options import Options
    from simulations.participant_node import ParticipantLife


class AwaitedWorkload(Workload):
    """Cuts may come while turns are running."""

    def __init__(self, options: Options, targets: dict[str, tuple[str, ...]]) -> None:
        super().__init__(options, targets)
        self._pumps: list[AwaitingPump] = []
        self._forms = self.forms = AwaitingForms([])

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
