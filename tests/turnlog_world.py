"""Agents of one participant whose turns are logged, without any driver."""

from dataclasses import dataclass
from typing import Any

import msgspec

from participant import Agent, Context, DeadLetter, Stop, handler, keyed, value
from participant.cells import KeyedState, WholeCell
from participant.codec import MessageRegistry
from participant.context import encode_envelope
from participant.failure import DeadLettered
from participant.history import CutClock
from participant.host import AgentHost
from participant.serializers import _SEAL, PickleAllowed
from participant.turnlog.replay import Replay, Replayed
from participant.turnlog.writer import TurnLogWriter
from protocol.ids import AgentId, Epoch
from protocol.messages import Envelope

ALLOWED = PickleAllowed(Epoch(1), _SEAL)


@dataclass
class Note:
    text: str
    tags: list[str]


class Do(msgspec.Struct, frozen=True):
    """What a turn is to do: each of these in order."""

    what: tuple[tuple[str, str, int], ...]


class Worker(Agent, kind="worker"):
    """One field of each form."""

    count = value(int, default=0)
    name = value(str)
    items = value(list[int], default=[])
    table = value(dict[str, int], default={})
    note = value(Note, default=Note("", []))
    numbers = keyed(str, int)
    notes = keyed(str, Note)
    failure = DeadLetter()

    @handler
    def on_do(self, ctx: Context, message: Do) -> None:
        for what, text, number in message.what:
            if what == "fail":
                raise ValueError(text)
            do(self, ctx, what, text, number)


def do(agent: Any, ctx: Context, what: str, text: str, number: int) -> None:
    match what:
        case "count":
            agent.count += number
        case "name":
            agent.name = text
        case "append":
            agent.items += [number] * (number % 5 + 1)
        case "edit":
            if agent.items:
                agent.items[number % len(agent.items)] = number
        case "shrink":
            del agent.items[number % (len(agent.items) + 1) :]
        case "table":
            agent.table[text] = number
        case "note":
            agent.note.tags.append(text)
        case "key":
            agent.numbers[text] = number
        case "unkey":
            agent.numbers.pop(text, None)
        case "clear":
            agent.notes.clear()
        case "keynote":
            agent.notes.setdefault(text, Note(text, []))
            agent.notes[text].tags.append(str(number))
        case "look":
            _ = (agent.items, agent.note, list(agent.notes.values()))
        case "local":
            ctx.send("worker/b", Do((("count", "", number),)))
        case "remote":
            ctx.send("worker/far", Do((("name", text, 0),)))
        case "nobody":
            ctx.send("worker/nobody", Do(()))
        case "timer":
            ctx.after(number + 1, Do((("key", text, number),)))


class Whole(Agent, kind="whole"):
    """Keeps its state its own way."""

    failure = Stop()

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.seen: list[str] = []

    def capture(self) -> Any:
        return self.seen

    def restore(self, state: Any) -> None:
        self.seen = list(state)

    @handler
    def on_do(self, ctx: Context, message: Do) -> None:
        for what, text, _ in message.what:
            self.seen.append(text)
            if what == "fail":
                raise ValueError(text)


class Pickled(Agent, kind="pickled", serializer="cloudpickle"):
    things = keyed(str, object)
    last = value(object, default=None)

    @handler
    def on_do(self, ctx: Context, message: Do) -> None:
        for _, text, number in message.what:
            self.things[text] = {number, text}
            self.last = complex(number, 1)


def agents() -> list[Agent]:
    return [Worker("a"), Worker("b"), Whole("w"), Pickled("p")]


class World:
    """Hosts, and the writer of their log; turns run when they are told to."""

    def __init__(self, *, logged: bool = True) -> None:
        made = agents()
        registry = MessageRegistry.of_agents(made)
        self.clock = CutClock()
        self.hosts = {agent.id: AgentHost(agent, registry, self.clock) for agent in made}
        for host in self.hosts.values():
            host.state.logged = logged
        self.registry = registry
        self.writer = TurnLogWriter()
        self.now = 1_000
        self.arrived = 0
        self.sent = 0
        self.batches: list[tuple[int, list[bytes]]] = []
        """First number, records."""
        self.next = 1
        self.remote: list[tuple[int, bytes]] = []

    def message(self, agent: str, what: tuple[tuple[str, str, int], ...], identity: int) -> tuple[Envelope, bytes]:
        name, version, body = self.registry.encode(Do(what))
        envelope = Envelope(identity.to_bytes(16, "big"), AgentId("out/side"), AgentId(agent), name, version, body)  # type: ignore[arg-type]
        return envelope, encode_envelope(envelope)

    def arrive(self, agent: str, what: tuple[tuple[str, str, int], ...]) -> None:
        """A message over the channel from ``q``."""
        self.arrived += 1
        envelope, data = self.message(agent, what, self.arrived)
        self.hosts[AgentId(agent)].deliver(envelope, data)
        self.writer.received("q", self.arrived, envelope, data)

    def run(self, agent: str) -> bool:
        """One turn of this agent, if it can have one."""
        host = self.hosts[AgentId(agent)]
        host.fire_timers(self.now)
        if not host.ready(self.now):
            return False
        envelope = host.mailbox[0][0]
        turn = host.begin_turn(self.now)
        assert not isinstance(turn, DeadLettered)
        attempt = host.attempts
        try:
            turn.start()
            result = turn.commit(self.now)
        except Exception as error:  # noqa: BLE001 - as a driver does
            outcome = turn.rollback(error, self.now)
            self.writer.ended(
                envelope,
                stopped=not isinstance(outcome, DeadLettered),
                reason="it raised",
                attempts=attempt,
                at=self.now,
            )
            return True
        sends = []
        for sent, data in result.sends:
            target = self.hosts.get(sent.target)
            if target is not None:
                target.deliver(sent, data)
                sends.append(("", 0, data))
            elif sent.target == "worker/nobody":
                sends.append(("", 0, data))
            else:
                self.sent += 1
                self.remote.append((self.sent, data))
                sends.append(("r", self.sent, data))
        self.writer.turn(
            envelope,
            changes=list(result.changes),
            sends=sends,
            timers=result.timers,
            outputs=result.outputs,
            steps=result.steps,
            attempt=attempt,
            at=self.now,
        )
        return True

    def flush(self) -> None:
        """What a group commit writes."""
        records = self.writer.take()
        if records:
            self.batches.append((self.next, records))
            self.next += len(records)


def body_of(records: list[bytes]) -> bytes:
    from participant.forms import container_header

    return b"".join((container_header(len(records), is_map=False), *records))


def replayed(world: World, into: World, *, after: int = 0, **positions: Any) -> Replayed:
    """The world's log applied to fresh hosts."""
    replay = Replay(into.hosts, allowed=ALLOWED, **positions)
    for first, records in world.batches:
        if first + len(records) > after + 1:
            replay.batch(body_of(records), first, after=after)
    return replay.finish(world.now, world.now)


def content(world: World) -> dict[str, Any]:
    """All that a restart must bring back."""
    found: dict[str, Any] = {}
    for agent, host in world.hosts.items():
        fields: dict[str, Any] = {}
        for name, cell in host.state.cells.items():
            # Pickles of equal things may differ.
            load = cell.form.load if cell.serializer == "cloudpickle" else lambda stored: stored
            if isinstance(cell, KeyedState):
                fields[name] = {key: load(stored) for key, stored in cell.data.items()}
            elif isinstance(cell, WholeCell):
                fields[name] = list(host.agent.seen)  # type: ignore[attr-defined]
            else:
                fields[name] = load(cell.committed if hasattr(cell, "committed") else cell.stored)
        timers = sorted((due, data) for due, _, _, data in host.timers)
        found[agent] = (fields, [data for _, data in host.mailbox], timers, host.dead)
    return found
