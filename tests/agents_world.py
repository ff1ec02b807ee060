"""Small helpers for tests of agents: a host that runs turns, a driver of slices, and the way back from packs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from participant.capture import Capturer
from participant.codec import MessageRegistry
from participant.failure import DeadLettered
from participant.host import AgentHost
from participant.loading import load_agent
from participant.state import CutClock
from protocol.messages import Envelope
from protocol.pack import BytesSource, PackReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from participant.agent import Agent
    from participant.serializers import PickleAllowed
    from protocol.manifest import AgentSnapshot, ChunkRef


class AgentWorld:
    """Agents of one participant, without a participant."""

    def __init__(self, *agents: Agent, messages: Iterable[type] = ()) -> None:
        self.clock = CutClock()
        self.registry = MessageRegistry.of_agents(agents, messages)
        self.hosts = {agent.id: AgentHost(agent, self.registry, self.clock) for agent in agents}
        self.capturer = Capturer(self.clock)
        self.packs: dict[str, bytes] = {}
        self.now = 0
        self._sent = 0

    @property
    def host(self) -> AgentHost:
        """The only host."""
        (host,) = self.hosts.values()
        return host

    def envelope(self, message: object, target: str = "", source: str = "outside/ingest") -> tuple[Envelope, bytes]:
        """A message as it lies in a mailbox."""
        name, version, body = self.registry.encode(message)
        self._sent += 1
        identity = self._sent.to_bytes(16, "big")
        envelope = Envelope(identity, source, target or next(iter(self.hosts)), name, version, body)
        return envelope, msgspec.msgpack.encode(envelope)

    def put(self, message: object, target: str = "") -> None:
        """Into the mailbox."""
        delivery = self.envelope(message, target)
        self.hosts[delivery[0].target].deliver(*delivery)

    def run_next(self, host: AgentHost | None = None) -> Any:
        """One turn that does not wait: its result, or what the failure policy said."""
        host = host or self.host
        turn = host.begin_turn(self.now)
        if isinstance(turn, DeadLettered):
            return turn
        try:
            coroutine = turn.start()
            if coroutine is not None:
                try:
                    coroutine.send(None)
                except StopIteration:
                    pass
                else:
                    raise AssertionError("the handler waits")
            return turn.commit(self.now)
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001 - as a driver does
            return turn.rollback(error, self.now)

    def handle(self, message: object, target: str = "") -> Any:
        """Put a message and run a turn."""
        self.put(message, target)
        return self.run_next(self.hosts[target] if target else None)

    def epoch(
        self, number: int, *, during: Callable[[], object] = lambda: None, commit: bool = True
    ) -> dict[str, AgentSnapshot]:
        """A whole epoch; `during` runs between cut and encoding."""
        frozen = self.capturer.freeze(number, self.hosts.values(), now=self.now)
        during()
        self.drive(frozen.slices())
        self.drive(frozen.channel_slices([]))
        snapshots = {snapshot.id: snapshot for snapshot in frozen.agent_snapshots()}
        self.new_bytes = frozen.new_bytes
        self.written_bytes = frozen._writer.written_bytes
        (self.capturer.committed if commit else self.capturer.dropped)(number)
        return snapshots

    def drive(self, slices: Iterable[Any]) -> int:
        """Run slices to their end, keep the packs; returns the number of steps."""
        steps = 0
        for pack in slices:
            steps += 1
            if pack is not None:
                self.packs[pack.digest] = pack.data
        return steps

    def read(self, refs: Iterable[ChunkRef]) -> bytes:
        """Verified bytes of chunks, joined."""
        return b"".join(PackReader(BytesSource(self.packs[ref.pack])).chunk(ref.digest) for ref in refs)

    def restored(self, agent: Agent, snapshot: AgentSnapshot, allowed: PickleAllowed | None = None) -> AgentHost:
        """A host of a fresh agent, loaded."""
        host = AgentHost(agent, self.registry, CutClock())
        load_agent(host, snapshot, self.read, now=self.now, allowed=allowed)
        return host
