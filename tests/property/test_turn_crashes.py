"""Participants whose turns are logged, without a driver: a crash between any two steps loses and repeats nothing.

Machine, hosts, writer and replay are the real ones; log, network and time are lists in the test's hands. What is durable at a
crash is what the schedule had synced; frames may be lost, repeated and overtaken at any time.
"""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from participant import Agent, Context, handler, value
from participant.codec import MessageRegistry
from participant.context import encode_envelope
from participant.host import AgentHost
from participant.machine import ParticipantMachine
from participant.machine_events import (
    ControlArrived,
    DeliverToAgents,
    EnterTopology,
    FrameArrived,
    LogReceived,
    LogSent,
    LogSynced,
    MessageIngested,
    PeerConnected,
    PeerDisconnected,
    SendControl,
    SendFrame,
    SetTimer,
    TimerFired,
    TurnCommitted,
)
from participant.runtime.turn_keeper import _streams
from participant.state import CutClock
from participant.turnlog.replay import Replay
from participant.turnlog.writer import TurnLogWriter
from protocol.messages import Envelope, Member, Registered, StreamBroken, TopologyChanged
from protocol.wire import FrameHeader

NAMES = ("a", "b", "c")
MILLISECOND = 1_000_000
encode = msgspec.msgpack.encode


class Note(msgspec.Struct, frozen=True):
    """The n-th from one agent to another, to be passed on so many times."""

    number: int
    hops: int


class Clerk(Agent, kind="clerk"):
    got = value(dict[str, list[int]], default={})
    sent = value(dict[str, int], default={})

    @handler
    def on_note(self, ctx: Context, note: Note) -> None:
        self.got.setdefault(ctx.source, []).append(note.number)
        for step in range(min(note.hops, 2)):
            target = f"clerk/{NAMES[(NAMES.index(self.id[-1]) + 1 + (note.number + step) % 2) % 3]}"
            self.sent[target] = self.sent.get(target, 0) + 1
            ctx.send(target, Note(self.sent[target], note.hops - 1 - step))


class Part:
    """One participant's lives."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.disk: list[tuple[int, bytes]] = []
        """Durable batches."""
        self.inputs: list[tuple] = []
        """Its input log, durable."""
        self.session = self.line = 0
        self.begin()

    def begin(self) -> None:
        self.clock = CutClock()
        agent = Clerk(self.name)
        self.host = AgentHost(agent, MessageRegistry.of_agents([agent]), self.clock)
        self.host.state.logged = True
        self.machine = ParticipantMachine(self.name, logged=True)
        self.writer = TurnLogWriter()
        self.waiting: list[tuple[int, bytes]] = []
        self.next = 1
        self.lines: dict[str, int] = {}
        self.topology = 0
        self.timer: int | None = None
        self.controls: list = []
        self.taken = 0
        self.alive = True

    def recover(self) -> None:
        self.begin()
        replay = Replay({self.host.id: self.host})
        for first, body in self.disk:
            replay.batch(body, first)
            self.next = first + len(msgspec.msgpack.decode(body))
        replayed = replay.finish(self.world.now, 0)
        self.lines = dict(replayed.lines)
        self.taken = replayed.input_position
        self.machine.resume(session=self.session, line=self.line, incarnation=1, streams=_streams(replayed))

    def step(self, event) -> None:
        self.carry_out(self.machine.step(event, self.world.now))

    def carry_out(self, effects) -> None:
        for effect in effects:
            match effect:
                case DeliverToAgents():
                    self.host.mailbox.extend(effect.deliveries)
                case LogReceived():
                    for number, (envelope, data) in zip(effect.numbers, effect.deliveries, strict=True):
                        self.writer.received(effect.source, number, envelope, data)
                case LogSent():
                    self.writer.passed_on(effect.message)
                    self.writer.sent(effect.target, effect.number, effect.item)
                case EnterTopology():
                    self.topology = effect.topology.version
                    for peer, line in effect.lines.items():
                        if self.lines.get(peer) != line:
                            self.lines[peer] = line
                            self.writer.stream(peer, line)
                case SendFrame():
                    self.world.network.append((self.name, effect))
                case SetTimer(at=at):
                    self.timer = at
                case SendControl():
                    self.controls.append(effect.message)

    # --- what a schedule may do ---

    def take_input(self) -> None:
        """The next of what the input log holds."""
        if self.topology and self.taken < len(self.inputs):
            delivery = self.inputs[self.taken]
            self.taken += 1
            self.writer.taken(self.taken, delivery[1])
            self.step(MessageIngested(delivery))

    def turn(self) -> None:
        if not self.topology or not self.host.mailbox:
            return
        turn = self.host.begin_turn(self.world.now)
        turn.start()
        result = turn.commit(self.world.now)
        self.writer.turn(
            turn.envelope,
            changes=list(result.changes),
            sends=self.machine.route(result.sends),
            timers=result.timers,
            outputs=result.outputs,
            steps=result.steps,
            attempt=1,
            at=0,
        )
        self.step(TurnCommitted(result.sends))

    def tick(self) -> None:
        for peer, received, acknowledged in self.machine.positions():
            self.writer.position(peer, received)
            if self.writer.waiting and acknowledged:
                self.writer.acknowledged(peer, acknowledged)
        records = self.writer.take()
        if records:
            body = encode([msgspec.Raw(record) for record in records])
            self.waiting.append((self.next, body))
            self.next += len(records)
        self.machine.logging(self.next - 1)
        self.carry_out(self.machine.flush(self.world.now))

    def sync(self) -> None:
        if self.waiting:
            self.disk.append(self.waiting.pop(0))
        durable = self.waiting[0][0] - 1 if self.waiting else self.next - 1
        self.step(LogSynced(durable))

    def fire(self) -> None:
        if self.timer is not None and self.timer <= self.world.now:
            self.timer = None
            self.step(TimerFired())


class World:
    """The ledger's and the network's part."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = MILLISECOND
        self.network: list[tuple[str, SendFrame]] = []
        self.sessions = 0
        self.version = 0
        self.parts: dict[str, Part] = {}
        self.members: dict[str, Member] = {}
        for name in NAMES:
            self.parts[name] = Part(self, name)
            self.register(name)
        self.tell_topology()

    def register(self, name: str) -> None:
        part = self.parts[name]
        resumption = part.machine.resumption
        self.sessions += 1
        part.session = self.sessions
        part.line = part.session if resumption is None else resumption.line
        self.members[name] = Member(
            id=name,
            session=part.session,
            agents=(f"clerk/{name}",),
            line=0 if resumption is None else resumption.line,
            streams=() if resumption is None else resumption.streams,
        )
        line = self.members[name].line
        registered = Registered(term=1, session=part.session, incarnation=1, lease_ns=1, line=line, durability="turn")
        part.step(ControlArrived(message=registered))

    def tell_topology(self) -> None:
        self.version += 1

    def hear(self, name: str) -> None:
        """A participant is told the topology, sooner or later, and finds its peers."""
        part = self.parts[name]
        if part.topology == self.version or not all(each.alive for each in self.parts.values()):
            return
        told = TopologyChanged(
            term=1, session=part.session, incarnation=1, version=self.version, members=tuple(self.members.values())
        )
        part.step(ControlArrived(message=told))
        for other in NAMES:
            if other != name:
                part.step(PeerConnected(peer=other))

    def deliver(self) -> None:
        if not self.network:
            return
        index = self.random.randrange(min(len(self.network), 4))
        source, effect = self.network[index]
        if self.random.random() > 0.1:
            del self.network[index]
        if self.random.random() < 0.1 or not self.parts[effect.target].alive:
            return
        header = FrameHeader(
            kind=effect.kind,
            incarnation=effect.incarnation,
            source_session=effect.source_session,
            target_session=effect.target_session,
            epoch=effect.epoch,
            first=effect.first,
            ack=effect.ack,
            count=effect.count,
            source=source,
            target=effect.target,
        )
        self.parts[effect.target].step(FrameArrived(header, effect.body))

    def crash(self, name: str) -> None:
        part = self.parts[name]
        part.alive = False
        for other in self.parts.values():
            if other.alive:
                other.step(PeerDisconnected(peer=name))

    def come_back(self) -> None:
        for name, part in self.parts.items():
            if not part.alive:
                part.recover()
                self.register(name)
        self.tell_topology()

    def any_step(self) -> None:
        part = self.parts[self.random.choice(NAMES)]
        if not part.alive:
            return
        match self.random.randrange(9):
            case 0 | 1 | 2:
                self.deliver()
            case 3 | 4:
                part.turn()
            case 5:
                part.tick()
            case 6:
                part.sync()
            case 7:
                part.take_input()
            case _:
                self.hear(part.name)
                self.now += self.random.randrange(300) * MILLISECOND
                part.fire()

    @property
    def still(self) -> bool:
        return not any(
            part.topology != self.version
            or part.host.mailbox
            or part.machine.outgoing_bytes
            or part.waiting
            or part.taken < len(part.inputs)
            for part in self.parts.values()
        )

    def drain(self) -> None:
        for _ in range(20_000):
            if self.still:
                return
            for part in self.parts.values():
                self.hear(part.name)
                part.take_input()
                part.turn()
                part.tick()
                part.sync()
                part.fire()
            for _ in range(6):
                self.deliver()
            self.now += 20 * MILLISECOND
        raise AssertionError("it never comes to rest")

    def give(self, name: str, number: int, hops: int) -> None:
        target = f"clerk/{name}"
        identity = NAMES.index(name).to_bytes(8, "big") + number.to_bytes(8, "big")
        envelope = Envelope(identity, "outside/ingest", target, "Note", 1, encode(Note(number, hops)))
        self.parts[name].inputs.append((envelope, encode_envelope(envelope)))

    def judge(self, given: int) -> None:
        for name, part in self.parts.items():
            assert part.host.agent.got.get("outside/ingest", []) == list(range(1, given + 1)), f"input of {name}"
        self.judge_channels()

    def judge_channels(self) -> None:
        for name, part in self.parts.items():
            agent = part.host.agent
            for other, theirs in self.parts.items():
                if other == name:
                    continue
                sender = theirs.host.agent
                expected = list(range(1, sender.sent.get(agent.id, 0) + 1))
                assert agent.got.get(sender.id, []) == expected, f"{other} to {name}"
                sending, receiving = theirs.machine._peers[name].sending, part.machine._peers[other].receiving
                assert sending is not None
                assert receiving is not None
                assert sending.digest() == receiving.digest(), f"digests of {other} to {name}"


@pytest.mark.parametrize("seed", range(120))
def test_crashes_at_any_moment_leave_each_message_once_and_each_channel_in_order(seed: int) -> None:
    world = World(seed)
    random = world.random
    given = 0
    for _ in range(random.randrange(1, 5)):
        for _ in range(2):
            given += 1
            for name in NAMES:
                world.give(name, given, hops=random.randrange(5))
        for _ in range(random.randrange(250)):
            world.any_step()
        for name in random.sample(NAMES, random.choice((1, 1, 2, 3))):
            world.crash(name)
        for _ in range(random.randrange(30)):
            world.any_step()
        world.come_back()
    world.drain()
    world.judge(given)


@pytest.mark.parametrize("seed", range(20))
def test_disk_that_loses_what_it_had_synced_is_found_out(seed: int) -> None:
    world = World(seed)
    for name in NAMES:
        world.hear(name)
        for number in range(1, 4):
            world.give(name, number, hops=4)
    world.drain()
    world.crash("a")
    lost = world.parts["a"].disk
    del lost[len(lost) // 2 :]
    world.come_back()
    for name in NAMES:
        world.hear(name)
    told = [broken for name in NAMES for broken in world.parts[name].controls if isinstance(broken, StreamBroken)]
    assert told
    assert {broken.peer for broken in told} == {"a"}
    assert {broken.peer_session for broken in told} == {world.parts["a"].session}


def test_life_whose_log_knows_nothing_of_a_peer_takes_its_base_from_what_the_peer_knows() -> None:
    """It died before it had written that there is a peer, and the peer had sent it something by then."""
    world = World(3)
    world.hear("b")
    world.give("b", 1, hops=1)
    part = world.parts["b"]
    part.take_input()
    part.turn()
    part.tick()
    part.sync()
    assert part.host.agent.sent == {"clerk/a": 1}
    world.crash("a")
    world.crash("b")
    assert part.disk
    assert not world.parts["a"].disk
    world.come_back()
    assert world.members["b"].session > world.members["a"].session
    world.drain()
    world.judge_channels()


@pytest.mark.parametrize("victims", [("a",), ("a", "b"), NAMES])
@pytest.mark.parametrize("step", range(40))
def test_crash_after_each_step_of_one_schedule(victims: tuple[str, ...], step: int) -> None:
    world = World(7)
    for name in NAMES:
        world.hear(name)
        world.give(name, 1, hops=4)
    for _ in range(3 * step):
        world.any_step()
    for name in victims:
        world.crash(name)
    world.come_back()
    world.drain()
    world.judge(1)
