"""A whole cluster in memory, for tests of your own agents: no sockets, no processes, time in your hands.

::

    async with Cluster(Buyer("main"), Ledger("main")) as cluster:
        await cluster.send("buyer/main", Order("o1", 500))
        await cluster.idle()
        await cluster.advance(60)                      # durable timers fire
        epoch = await cluster.epoch()
        assert epoch.state("ledger/main")["total"] == 500
        assert epoch.total(lambda agent, state: state["total"]) == 500

Each agent gets a participant of its own, unless you put several into a list. Participants are real: the same machine, turns,
capture and formats as in production; between them frames are encoded, signed and acknowledged. The coordinator is a
substitute that checks each cut with the same rules.

Time: the cluster's clock stands still, except when `advance` moves it, and a little when messages travel or something real
(a thread that writes, a handler that awaits) is waited for. What your handlers await themselves takes real time.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, Self

from participant.agent import Agent
from participant.codec import MessageRegistry
from participant.effects.backend import MemoryEffects
from participant.host import START_TYPE
from participant.runtime.conductor import Conductor, LocalControl
from participant.runtime.participant import Participant
from participant.runtime.transports.memory import MemoryHub, MemoryTransport
from protocol.contents import decode_value
from protocol.errors import ConfigError, LimitExceeded, Refused, UnknownAgent
from protocol.ids import Instant, cluster_name
from protocol.keys import ClusterKeys
from protocol.reading import EpochReader
from protocol.storage.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from participant.events import ParticipantEvent
    from participant.failure import DeadLettered
    from participant.runtime.effect_desk import AnswerResult, Question, Settlement
    from participant.runtime.transports.memory import Faults
    from participant.sinks.base import Sink
    from protocol.journal import FinishedStep
    from protocol.manifest import Manifest
    from protocol.messages import Envelope
    from protocol.ports import ObjectStore

SECRET: Final = b"a secret for clusters in tests.."
_STEP_NS: Final = 10_000_000
"""Virtual time that passes while something real is waited for."""
_STEP_SECONDS: Final = 0.002
"""Real time of such a step."""
_QUIET_ROUNDS: Final = 3
_TRAVEL_STEPS_MAX: Final = 100_000
_NS_PER_SECOND: Final = 1_000_000_000


class ManualClock:
    """Time that moves only when told to; a `participant.runtime.clock.Clock`."""

    def __init__(self) -> None:
        self._now = _NS_PER_SECOND
        self._ordinal = 0
        self._waiting: list[tuple[int, int, _Call]] = []

    def now(self) -> Instant:
        """Nanoseconds."""
        return Instant(self._now)

    stopwatch = staticmethod(monotonic_ns)

    def call_at(self, at: int, callback: Callable[[], None]) -> _Call:
        """Call when time gets there; in the next turn of the loop if it is there already."""
        call = _Call(callback)
        if at <= self._now:
            asyncio.get_running_loop().call_soon(call.run)
        else:
            self._ordinal += 1
            heappush(self._waiting, (at, self._ordinal, call))
        return call

    @property
    def next_at(self) -> int | None:
        """Earliest instant for which somebody waits."""
        while self._waiting and self._waiting[0][2].cancelled:
            heappop(self._waiting)
        return self._waiting[0][0] if self._waiting else None

    def move_to(self, at: int) -> None:
        """Let time pass up to this instant; who waited is called in order."""
        while (due := self.next_at) is not None and due <= at:
            _, _, call = heappop(self._waiting)
            self._now = max(self._now, due)
            call.run()
        self._now = max(self._now, at)


class _Call:
    __slots__ = ("_callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def run(self) -> None:
        if not self.cancelled:
            self._callback()


class EpochView:
    """A committed epoch, read back from the store as anybody would.

    Attributes:
        number: The epoch's.
        manifest: Its manifest.
    """

    def __init__(self, store: ObjectStore, manifest: Manifest, registry: MessageRegistry) -> None:
        self.number = manifest.epoch
        self.manifest = manifest
        self._reader = EpochReader(store, manifest)
        self._registry = registry

    def agents(self) -> tuple[str, ...]:
        """Ids, sorted."""
        return self._reader.agents()

    def state(self, agent: str) -> dict[str, Any]:
        """Fields of an agent at the cut, as plain Python."""
        return self._reader.state(agent).fields

    def mailbox(self, agent: str) -> list[Any]:
        """Messages that the agent had not handled, next to handle first."""
        return self._decoded(self._reader.mailbox(agent))

    def timers(self, agent: str) -> list[tuple[float, Any]]:
        """Seconds left at the cut, and the message that comes then."""
        return [(left / _NS_PER_SECOND, self._decoded([envelope])[0]) for left, envelope in self._reader.timers(agent)]

    def outputs(self, agent: str) -> list[tuple[str, Any]]:
        """Sink and payload of what the agent had emitted and no sink had taken, in order."""
        return [
            (output.sink, decode_value(output.payload, f"output of {agent}")) for output in self._reader.outputs(agent)
        ]

    def steps(self, agent: str) -> list[FinishedStep]:
        """Finished steps of the agent's turn that was running at the cut."""
        return self._reader.journal(agent)

    def questions(self, agent: str) -> list[tuple[str, Any]]:
        """Token and question of what nobody had answered at the cut."""
        return [
            (asked.token, decode_value(asked.question, f"question of {agent}"))
            for asked in self._reader.questions(agent)
        ]

    def in_flight(self) -> list[Any]:
        """Messages on all channels, and those that wait for an agent that nobody hosts."""
        found = [
            message
            for channel in self.manifest.channels
            for message in self._decoded(self._reader.channel(channel.source, channel.target))
        ]
        for member in self.manifest.members:
            found += self._decoded(self._reader.unrouted(member.participant))
        return found

    def messages(self) -> list[Any]:
        """All messages of the epoch: in flight, in mailboxes, in timers."""
        found = self.in_flight()
        for agent in self.agents():
            found += self.mailbox(agent)
            found += [message for _, message in self.timers(agent)]
        return found

    def total(self, state: Callable[[str, dict[str, Any]], Any], message: Callable[[Any], Any] | None = None) -> Any:  # noqa: ANN401 - what is summed
        """A sum over the whole cut: what is conserved must be the same in each epoch.

        Args:
            state: (agent id, its fields) -> what it holds.
            message: Message -> what it carries; without it, messages count nothing.
        """
        found = sum(state(agent, self.state(agent)) for agent in self.agents())
        return found if message is None else found + sum(message(one) for one in self.messages())

    def _decoded(self, envelopes: Iterable[Envelope]) -> list[Any]:
        # An `on_start` that was still running, or had not begun, stands in the mailbox, too: no message of anybody's.
        return [
            self._registry.decode(envelope.type, envelope.version, envelope.body)
            for envelope in envelopes
            if envelope.type != START_TYPE
        ]


class Cluster:
    """Participants, a network, a coordinator and a store in this process.

    Args:
        agents: One participant for each agent, or for each list of agents. Participants are called ``p1``, ``p2`` and so on.
        messages: Types that no handler takes, but that agents send or a test looks at.
        sinks: Where agents emit to; `participant.sinks.MemorySink` is one for tests. Shared by all participants.
        faults: What happens to frames on the network: see `participant.runtime.transports.memory`.
        store: Default: one in memory, gone with the cluster.
        local: Folder for what participants keep on their own disks, outside input among it; without one, input is lost with
            the work that it caused.
        durability: ``epoch``, or ``turn``, which needs `local`: then `resume` brings those back that crashed, and nobody else
            notices.
    """

    def __init__(
        self,
        *agents: Agent | Sequence[Agent],
        messages: Iterable[type] = (),
        sinks: Iterable[Sink] = (),
        faults: Faults | None = None,
        store: ObjectStore | None = None,
        local: str | None = None,
        durability: str = "epoch",
    ) -> None:
        if not agents:
            raise ConfigError("agents", "a cluster has at least one agent")
        self._groups = [(group,) if isinstance(group, Agent) else tuple(group) for group in agents]
        self._messages = tuple(messages)
        self._sinks = tuple(sinks)
        self._local = local
        self._durability = durability
        self._name = cluster_name("test")
        self.clock = ManualClock()
        self.hub = MemoryHub(faults=faults)
        self.store: ObjectStore = MemoryStore(self._name) if store is None else store
        self.conductor = Conductor(cluster=self._name, store=self.store, keys=ClusterKeys.from_secret(SECRET))
        self.effects = MemoryEffects()
        """The effect ledger: one for all participants, and older than any of them."""
        self.participants: dict[str, Participant] = {}
        self._crashed: dict[str, tuple[Agent, ...]] = {}
        self._kinds = {agent.kind: type(agent) for group in self._groups for agent in group}
        self._hosts: dict[str, Participant] = {}
        self._agents: dict[str, Agent] = {}
        self._registry = MessageRegistry.of_agents([agent for group in self._groups for agent in group], self._messages)

    async def __aenter__(self) -> Self:
        """All participants are members and all `on_start` have run."""
        for number, group in enumerate(self._groups, 1):
            self._make(f"p{number}", group)
        started: list[Participant] = []
        try:
            for participant in self.participants.values():
                await participant.__aenter__()
                started.append(participant)
            await self.conductor.wait_members(*self.participants)
            await self.idle()
        except BaseException:
            for participant in started:
                await participant.__aexit__(None, None, None)
            raise
        return self

    def _make(self, name: str, group: Sequence[Agent]) -> Participant:
        participant = Participant(
            *group,
            id=name,
            cluster=self._name,
            transport="memory",
            store=self.store,
            local=self._local,
            durability=self._durability,
            secret=SECRET,
            messages=self._registry.types(),
            takes=self._kinds,
            sinks=self._sinks,
            allow_cloudpickle=True,
            effects=self.effects,
            control=LocalControl(self.conductor),
            wire=MemoryTransport(name, self.hub),
            clock=self.clock,
        )
        self.participants[name] = participant
        for agent in group:
            self._hosts[agent.id] = participant
            self._agents[agent.id] = agent
        return participant

    async def _start(self, name: str, group: Sequence[Agent]) -> None:
        await self._make(name, group).__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all participants.

        Raises:
            SnapshotError: What ended one of them before.
        """
        failed: BaseException | None = None
        for participant in self.participants.values():
            try:
                await participant.__aexit__(kind, error, trace)
            except Exception as problem:  # noqa: BLE001 - the others must end, too; raised below
                failed = failed or problem
        if failed is not None and error is None:
            raise failed

    def __getitem__(self, agent: str) -> Agent:
        """An agent, to look at its state between turns."""
        try:
            return self._agents[agent]
        except KeyError:
            raise UnknownAgent(f"this cluster has no agent {agent!a}") from None

    def participant_of(self, agent: str) -> Participant:
        """The participant that hosts an agent."""
        self[agent]
        return self._hosts[agent]

    async def send(self, agent: str, message: object, *, token: str = "") -> None:
        """A message from outside to an agent; handled in coming turns of the loop. As `Participant.ingest`."""
        await self.participant_of(agent).ingest(agent, message, token=token)

    async def idle(self) -> None:
        """Until no turn runs or can begin and no message travels; timers and retries may still wait for time.

        Raises:
            LimitExceeded: Messages travel for ever: agents send each other in a circle, or the network loses everything.
        """
        for _ in range(_TRAVEL_STEPS_MAX):
            await self._settle()
            if not any(participant.outgoing_bytes for participant in self.participants.values()):
                return
            # Acknowledgements wait a few milliseconds for a frame to ride on.
            at = self.clock.next_at
            self.clock.move_to(self.clock.now() + _STEP_NS if at is None else at)
        raise LimitExceeded("messages still travel after all this time: do agents send each other in a circle?")

    async def advance(self, seconds: float) -> None:
        """Let time pass; whatever falls due on the way happens at its time."""
        end = self.clock.now() + round(seconds * _NS_PER_SECOND)
        while True:
            await self.idle()
            at = self.clock.next_at
            if at is None or at > end:
                break
            self.clock.move_to(at)
        self.clock.move_to(end)
        await self.idle()

    async def epoch(self, reason: str = "test") -> EpochView:
        """Take an epoch now, whatever is going on, and wait until it has committed.

        Raises:
            Refused: It was aborted; the sentence says why.
        """
        return await self.committed(self.conductor.start_epoch(reason))

    async def committed(self, number: int) -> EpochView:
        """A started epoch, once it has committed.

        Raises:
            Refused: It was aborted; the sentence says why.
        """
        outcome = asyncio.ensure_future(self.conductor.wait_epoch(number))
        try:
            while not outcome.done():
                await asyncio.wait({outcome}, timeout=_STEP_SECONDS)
                if not outcome.done():
                    self.clock.move_to(self.clock.now() + _STEP_NS)
            manifest = outcome.result()
        finally:
            outcome.cancel()
        return EpochView(self.store, manifest, self._registry)

    async def crash(self, participant: str) -> None:
        """End a participant as ``kill -9`` does: what it had not saved in an epoch is gone. `restore` brings it back.

        Args:
            participant: ``p1``, ``p2``, ...
        """
        crashed = self.participants.pop(participant)
        await crashed.__aexit__(None, None, None)
        self.conductor.lose(participant)
        self._crashed[participant] = tuple(type(agent)(agent.id.partition("/")[2]) for agent in crashed.agents)

    async def resume(self) -> None:
        """Start those again that crashed, each from its own log: for clusters with durability ``turn``.

        Agents are made anew with their name alone.

        Raises:
            Refused: A log is of no use: only `restore` helps.
        """
        back = sorted(self._crashed)
        for name in back:
            await self._start(name, self._crashed.pop(name))
        await self.conductor.wait_registered(*self.participants)
        if self.conductor.lost:
            raise Refused("not-resumed", f"{', '.join(self.conductor.lost)} cannot go on from a log")
        for name in back:
            await self.participants[name].wait_member()
        await self.conductor.wait_members(*self.participants)

    async def restore(
        self,
        epoch: EpochView | None = None,
        *,
        placement: Mapping[str, Sequence[str]] | None = None,
        elapsed: float = 0.0,
        renames: Mapping[str, str] | None = None,
    ) -> None:
        """Take the whole cluster back to an epoch, those that crashed included; returns when its agents run again.

        Agents of those that crashed are made anew with their name alone.

        Args:
            epoch: Committed; None: the start, fresh agents.
            placement: Participant -> ids of its agents, where they are to move.
            elapsed: Seconds since the epoch, for timers that were due meanwhile.
            renames: Agent of the epoch -> its name from then on; `placement` has the new names.

        Raises:
            Refused: A participant cannot take its part; the sentence says which and why.
        """
        for name in sorted(self._crashed):
            await self._start(name, self._crashed.pop(name))
        await self.conductor.wait_registered(*self.participants)
        placed = None if placement is None else {name: tuple(agents) for name, agents in placement.items()}
        outcome = self.conductor.begin_rollback(
            0 if epoch is None else epoch.number,
            placement=placed,
            elapsed_ns=round(elapsed * _NS_PER_SECOND),
            renames=tuple(sorted((renames or {}).items())),
        )
        await outcome
        await self.conductor.wait_members(*self.participants)
        for participant in self.participants.values():
            for agent in participant.agents:
                self._hosts[agent.id] = participant
                self._agents[agent.id] = agent

    def questions(self) -> tuple[Question, ...]:
        """Questions that agents ask and nobody has answered yet."""
        return tuple(question for participant in self.participants.values() for question in participant.questions())

    async def answer(self, token: str, value: object) -> AnswerResult:
        """Answer a question; as `Participant.answer`."""
        everybody = [*self.participants.values()]
        asking = [each for each in everybody if any(asked.token == token for asked in each.questions())]
        return await (asking or everybody)[0].answer(token, value)

    async def settle(self, token: str, settlement: Settlement) -> None:
        """Say what became of a step; as `Participant.settle`."""
        everybody = [*self.participants.values()]
        parked = [each for each in everybody if any(turn.token == token for turn in each.parked)]
        await (parked or everybody)[0].settle(token, settlement)

    def events(self, agent: str) -> AsyncIterator[ParticipantEvent]:
        """Events of the participant that hosts an agent; as `Participant.events`."""
        return self.participant_of(agent).events()

    @property
    def dead_letters(self) -> tuple[DeadLettered, ...]:
        """Of all participants."""
        return tuple(letter for participant in self.participants.values() for letter in participant.dead_letters)

    def statistics(self) -> dict[str, int]:
        """Sums over all participants; for names that end in ``_max``, the largest."""
        found: dict[str, int] = {}
        for participant in self.participants.values():
            for name, value in participant.statistics().items():
                known = found.get(name, 0)
                found[name] = max(known, value) if name.endswith("_max") else known + value
        return found

    async def _settle(self) -> None:
        """Turns of the loop, until several pass in which nothing is left to run."""
        quiet = rounds = 0
        while quiet < _QUIET_ROUNDS:
            rounds += 1
            # A handler that awaits something real is waited for without burning the processor.
            await asyncio.sleep(0 if rounds % 64 else _STEP_SECONDS)
            busy = self.hub.carrying or any(participant.busy for participant in self.participants.values())
            quiet = 0 if busy else quiet + 1
