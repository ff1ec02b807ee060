"""Users' agents as a workload of the simulator, and the cut that their invariants are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from blake3 import blake3

from participant.agent import Agent
from participant.codec import MessageRegistry
from participant.context import encode_envelope
from participant.failure import Stopped
from participant.host import decode_envelope
from participant.testing import EpochView
from protocol.errors import ConfigError
from protocol.ids import MESSAGE_ID_BYTES, AgentId, MessageId
from protocol.messages import Envelope
from simulations.awaiting import AwaitingForms, AwaitingPump
from simulations.hanging import demand_turns_end
from simulations.options import TOPOLOGIES
from simulations.oracles.channel_states import cuts_of
from simulations.violations import Violation
from simulations.workloads.base import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from participant.failure import DeadLettered
    from participant.machine_events import DeadLetter
    from participant.runtime.pump import Pump
    from protocol.manifest import Manifest
    from protocol.ports import ObjectStore
    from protocol.reading import EpochReader
    from simulations.cluster import SimulatedCluster
    from simulations.ghost import GhostLog
    from simulations.options import Options, Run
    from simulations.participant_node import ParticipantLife

OUTSIDE: Final = AgentId("outside/ingest")
ANY: Final = "any"
"""Each seed draws a topology."""
_SHOWN: Final = 160
_AGENTS_SHOWN: Final = 12


class Cut(EpochView):
    """A committed epoch of a simulated cluster.

    Attributes:
        losses: Members that are not in their first life.
        put_aside: Reasons of all dead letters and stopped agents so far, in order.
        seconds: Virtual time.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifest: Manifest,
        registry: MessageRegistry,
        *,
        ghost: GhostLog,
        losses: int,
        put_aside: Sequence[str],
        seconds: float,
    ) -> None:
        super().__init__(store, manifest, registry)
        self.losses = losses
        self.put_aside = tuple(put_aside)
        self.seconds = seconds
        self._ghost = ghost

    def total(self, state: Callable[[str, dict[str, Any]], Any], message: Callable[[Any], Any] | None = None) -> Any:  # noqa: ANN401 - what is summed
        """As `EpochView.total`; what went to and came from lives that are gone is added and taken away again."""
        found = super().total(state, message)
        if message is not None and self.losses:
            for sent, data in self._strangers():
                (decoded,) = self._decoded([decode_envelope(data)])
                found = found + message(decoded) if sent else found - message(decoded)
        return found

    def _strangers(self) -> Iterator[tuple[bool, bytes]]:
        """(whether it was sent by a member, encoded envelope) of each message from or to a life that is no member."""
        sessions = {member.session for member in self.manifest.members}
        for cut in cuts_of(self._ghost, self.manifest).values():
            for stream, count in cut.sent.items():
                if stream.target_session not in sessions:
                    yield from ((True, data) for data in stream.sent[:count])
            for stream, count in cut.received.items():
                if stream.source_session not in sessions:
                    yield from ((False, data) for data in stream.sent[:count])


class UserPlan:
    """What a user wants to be run, looked at once; and what one run finds."""

    def __init__(
        self,
        make_agents: Callable[[], Sequence[Agent | Sequence[Agent]]],
        *,
        start: tuple[tuple[str, object], ...],
        invariants: tuple[Callable[[Cut], Any], ...],
        participants: int | None,
        topology: str = "mesh",
        messages: tuple[type, ...],
        after_loss: bool,
        patience_ns: int,
    ) -> None:
        """Look at the agents.

        Raises:
            ConfigError: They make no cluster.
        """
        self.make_agents = make_agents
        self.invariants = invariants
        self.after_loss = after_loss
        self.patience_ns = patience_ns
        """Virtual time within which a turn has to end in a healed world."""
        self._participants = participants
        if topology not in (ANY, *TOPOLOGIES):
            raise ConfigError("topology", f"there is no {topology!r}; there are {', '.join((ANY, *TOPOLOGIES))}")
        self.topology = topology
        self.groups = [[agent.id for agent in group] for group in self._grouped()]
        agents = [agent for group in self._grouped() for agent in group]
        ids = [agent.id for agent in agents]
        if len(set(ids)) != len(ids):
            raise ConfigError("make_agents", f"two agents have the same id: {', '.join(sorted(ids))}")
        self.registry = MessageRegistry.of_agents(agents, [*messages, *(type(message) for _, message in start)])
        self.forms = AwaitingForms(agents)
        self.start: dict[str, list[tuple[int, object]]] = {}
        """Agent -> messages from outside, each with its number among all of them."""
        self.messages_from_outside = len(start)
        for number, (agent, message) in enumerate(start):
            if agent not in ids:
                raise ConfigError("start", f"there is no agent {agent!r}; there are {', '.join(sorted(ids))}")
            self.start.setdefault(agent, []).append((number, message))
        self.nodes = len(self.groups)
        """Participants of this run: fewer than groups share them."""
        self.left_out: frozenset[int] = frozenset()
        """Messages from outside that this run does without; asked, never iterated."""
        self.pumps: list[AwaitingPump] = []
        self.put_aside: list[str] = []
        self.cuts = 0

    def _grouped(self) -> list[list[Agent]]:
        made = [[item] if isinstance(item, Agent) else list(item) for item in self.make_agents()]
        if self._participants is not None:
            if self._participants < 1:
                raise ConfigError("participants", "a cluster has at least one")
            spread: list[list[Agent]] = [[] for _ in range(self._participants)]
            for index, group in enumerate(made):
                spread[index % self._participants] += group
            made = spread
        if not any(made):
            raise ConfigError("make_agents", "a cluster has at least one agent")
        while len(made) < 2:
            made.append([])  # a fault has two ends: a participant that hosts nobody
        return made

    def agents(self, index: int) -> list[Agent]:
        """Fresh agents of a participant.

        Raises:
            ConfigError: They are not the same ones as before.
        """
        # With fewer participants than groups, the last one has the rest.
        hosted = slice(index, index + 1 if index + 1 < self.nodes else None)
        made = [agent for group in self._grouped()[hosted] for agent in group]
        expected = [agent for group in self.groups[hosted] for agent in group]
        if [agent.id for agent in made] != expected:
            raise ConfigError("make_agents", f"gave {made} where it gave {expected} before")
        return made

    def workload(self, options: Options, targets: dict[str, tuple[str, ...]]) -> UserWorkload:
        """Of one run."""
        return UserWorkload(self, options, targets)

    def begin_run(self, what: Run) -> None:
        """Forget the last one."""
        self.nodes = min(what.options.nodes, len(self.groups))
        self.left_out = frozenset(what.user.left_out if what.user is not None else ())
        self.put_aside = []
        self.cuts = 0

    def end_run(self) -> None:
        """Unwind what the run has left: tasks of lives that were killed, and of the last ones."""
        for pump in self.pumps:
            pump.unwind()
        self.pumps = []
        self.forms.before.clear()


class UserWorkload(Workload):
    """Users' agents in one run."""

    comes_to_rest: ClassVar[bool] = False

    def __init__(self, plan: UserPlan, options: Options, targets: dict[str, tuple[str, ...]]) -> None:
        super().__init__(options, targets)
        self._plan = plan
        self.messages = plan.registry.types()  # type: ignore[misc]  # of this run
        self.forms = plan.forms

    def agents(self, participant: str) -> list[Agent]:
        """Fresh agents of one life."""
        return self._plan.agents(int(participant.removeprefix("p")) - 1)

    def pump(self, life: ParticipantLife) -> Pump:
        """One with an event loop."""
        pump = AwaitingPump(life, self._plan.forms)
        self._plan.pumps.append(pump)
        return pump

    def begin(self, life: ParticipantLife) -> None:
        """The messages from outside."""
        for host in life.hosts:
            for position, (number, message) in enumerate(self._plan.start.get(host.id, ())):
                if number in self._plan.left_out:
                    continue
                name, version, body = host.registry.encode(message)
                identity = blake3(f"{life.boot_id} {host.id} {position}".encode()).digest(length=MESSAGE_ID_BYTES)
                envelope = Envelope(MessageId(identity), OUTSIDE, host.id, name, version, body)
                host.deliver(envelope, encode_envelope(envelope))

    def put_aside(self, life: ParticipantLife, letter: DeadLettered | Stopped | DeadLetter) -> None:
        """Users' handlers may well raise: what comes of it is theirs to judge."""
        what = "Stopped" if isinstance(letter, Stopped) else "DeadLetter"
        self._plan.put_aside.append(letter.reason)
        life.note(what, letter.reason)

    def judge(self, cluster: SimulatedCluster, reader: EpochReader) -> None:
        """Ask the invariants.

        Raises:
            Violation: One does not hold.
        """
        plan, manifest = self._plan, reader.manifest
        if not plan.invariants or len(manifest.members) != len(cluster.participants):
            return
        lives = cluster.ghost.lives
        losses = sum(1 for member in manifest.members if lives[member.session].number > 1)
        if losses and not plan.after_loss:
            return
        plan.cuts += 1
        for invariant in plan.invariants:
            cut = Cut(
                cluster.store.meant,
                manifest,
                plan.registry,
                ghost=cluster.ghost,
                losses=losses,
                put_aside=plan.put_aside,
                seconds=cluster.world.now / 1e9,
            )
            name = getattr(invariant, "__name__", repr(invariant))
            name = "the invariant" if name == "<lambda>" else name
            try:
                answer = invariant(cut)
            except Exception as error:
                text = str(error) or type(error).__name__
                raise Violation(name, f"epoch {manifest.epoch} at {cut.seconds:.3f} s: {text}{_shown(cut)}") from error
            if answer is not None and not answer:
                raise Violation(name, f"{answer!r} of epoch {manifest.epoch} at {cut.seconds:.3f} s{_shown(cut)}")

    def demand(self, cluster: SimulatedCluster) -> None:
        """No handler waits for ever."""
        demand_turns_end(cluster, self._plan.pumps, self._plan.patience_ns)

    def share(self, participant: str) -> int:
        """Nothing that is known here."""
        return 0

    def held(self, fields: dict[str, Any]) -> int:
        """As `share`."""
        return 0

    def carried(self, envelope: Envelope) -> int:
        """As `share`."""
        return 0


def _shown(cut: Cut) -> str:
    """The cut, for people: each agent's state and all messages, shortened."""
    lines = [f"\n  {agent}: {str(cut.state(agent))[:_SHOWN]}" for agent in cut.agents()[:_AGENTS_SHOWN]]
    return "".join(lines) + f"\n  messages: {str(cut.messages())[:_SHOWN]}"
