"""What every workload is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from participant.runtime.pump import Pump
from protocol.limits import IN_FLIGHT_BYTES_MAX
from protocol.messages import Envelope
from simulations.names import Names
from simulations.state_forms import StateForms
from simulations.turns import TurnClock
from simulations.violations import Violation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from participant.agent import Agent
    from participant.effects.backend import EffectBackend
    from participant.failure import DeadLettered, Stopped
    from participant.machine_events import DeadLetter
    from participant.sinks.base import Sink
    from protocol.reading import EpochReader
    from simulations.cluster import SimulatedCluster
    from simulations.options import Options
    from simulations.participant_node import ParticipantLife

_decode = msgspec.msgpack.Decoder(Envelope).decode


class Switch:
    """Whether agents still begin new work; shared by all of a run, not part of any state."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = True


class Workload(ABC):
    """Agents, and what is conserved among them."""

    messages: ClassVar[tuple[type, ...]] = ()
    """Every message type of it."""
    forms: StateForms = StateForms()
    """How the ghost log takes down states."""
    in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX
    """Past it a participant refuses outside input."""
    outside_world: ClassVar[bool] = False
    """Agents make steps, put questions, emit, and take logged input: participants have disks of their own."""
    kinds: ClassVar[tuple[type[Agent], ...]] = ()
    """Agents that others may take; empty: none (`Options.elsewhere`)."""
    comes_to_rest: ClassVar[bool] = True
    """Once the switch is off, nothing begins any more."""
    item_bytes: ClassVar[int] = 1000
    """Of a message of it in a channel: of its large ones, about."""

    def __init__(self, options: Options, targets: dict[str, tuple[str, ...]]) -> None:
        self.options = options
        self.targets = targets
        self.switch = Switch()
        self.names = Names()

    @classmethod
    def says(cls, options: Options, targets: Mapping[str, tuple[str, ...]]) -> float:
        """Messages that its busiest channel is given in each tick, on average, however many are queued there.

        0: agents wait for answers before they say more, or have little to say in all.
        """
        return 0

    @abstractmethod
    def agents(self, participant: str) -> list[Agent]:
        """Fresh agents of one life."""

    def take(self, agent: str) -> Agent:
        """Make an agent that comes from another participant; only for `kinds`."""
        raise NotImplementedError

    def brings(self, agent: str) -> int:
        """What a fresh agent adds to the total; only for `kinds`."""
        raise NotImplementedError

    def pump(self, life: ParticipantLife) -> Pump:
        """What runs the turns of a life."""
        return Pump(life.hosts, clock=TurnClock(life), sink=life, tasks=life.cluster.no_tasks)

    def connected(self, cluster: SimulatedCluster) -> None:  # noqa: B027 - most have nothing to do here
        """The cluster is there; nothing runs yet."""

    def sinks(self, life: ParticipantLife) -> list[Sink]:
        """What a life's agents emit to."""
        return []

    def connect(self, life: ParticipantLife, sinks: list[Sink]) -> None:  # noqa: B027 - as above
        """A life has its parts; nothing of it runs yet."""

    def taken(self, life: ParticipantLife, agent: Agent) -> None:  # noqa: B027 - as above
        """A life has made an agent that comes from another participant."""

    def effect_ledger(self, life: ParticipantLife) -> EffectBackend | None:
        """Where a life's agents have their effect ledger; None: on the participant's own disk."""
        return None

    def raise_fence(self, incarnation: int) -> None:  # noqa: B027 - as above
        """A coordinator tells the sinks to refuse older writers."""

    def check_fenced(self, incarnation: int) -> None:  # noqa: B027 - as above
        """Somebody is ordered into this incarnation.

        Raises:
            Violation: I23, a sink is not fenced.
        """

    def begin(self, life: ParticipantLife) -> None:  # noqa: B027 - most have nothing to do here
        """A life has become a member; its agents' starts are in their mailboxes."""

    def put_aside(self, life: ParticipantLife, letter: DeadLettered | Stopped | DeadLetter) -> None:
        """A message was put aside, or an agent stopped: no handler of a workload raises by itself.

        Raises:
            Violation: I6.
        """
        raise Violation("I6", f"{life.name}: a message was put aside: {letter.reason}")

    def judge(self, cluster: SimulatedCluster, reader: EpochReader) -> None:  # noqa: B027 - as above
        """A look at an epoch whose manifest has become visible, after the oracles' own."""

    def judge_end(self, cluster: SimulatedCluster) -> None:  # noqa: B027 - as above
        """The last look, when all is quiet."""

    def touched(self) -> list[str]:
        """What agents have reached outside; for forks, which may not."""
        return []

    def close(self) -> None:  # noqa: B027 - as above
        """The run is over, whatever came of it."""

    def demand(self, cluster: SimulatedCluster) -> None:  # noqa: B027 - as above
        """What has to happen in a healed world, after the oracles' own demands; may run the world.

        Raises:
            LivenessViolation: It does not.
        """

    @abstractmethod
    def share(self, participant: str) -> int:
        """What a fresh life adds to the total."""

    @abstractmethod
    def held(self, fields: dict[str, Any]) -> int:
        """What an agent's state holds of the total."""

    @abstractmethod
    def carried(self, envelope: Envelope) -> int:
        """What a message carries of the total."""

    def carried_bytes(self, data: bytes) -> int:
        """The same of an encoded envelope."""
        return self.carried(_decode(data))
