"""Participants over each transport, with the conductor in memory as their coordinator."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import msgspec

from participant import Agent, Context, Participant, handler, value
from participant.runtime.conductor import Conductor, LocalControl
from participant.runtime.transports.memory import MemoryHub, MemoryTransport
from protocol.ids import cluster_name
from protocol.keys import ClusterKeys
from protocol.reading import EpochReader
from protocol.storage.memory import MemoryStore
from tests.integration.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from protocol.ports import ObjectStore

SECRET = bytes(range(32))
KEYS = ClusterKeys.from_secret(SECRET)
CLUSTER = cluster_name("shop")


class Token(msgspec.Struct, frozen=True):
    """Some money on its way; it goes on for so many hops."""

    cents: int
    hops: int


class Holder(Agent, kind="holder"):
    """Keeps money, and passes tokens on to its neighbours in turn."""

    cents = value(int, default=1000)
    handled = value(int, default=0)

    def __init__(self, name: str, *neighbours: str, pause: float | None = None) -> None:
        super().__init__(name)
        self.neighbours = [f"holder/{neighbour}" for neighbour in neighbours]
        self.pause = pause

    @handler
    async def on_token(self, ctx: Context, token: Token) -> None:
        if self.pause is not None:
            await asyncio.sleep(self.pause)
        self.handled += 1
        if token.hops == 0 or not self.neighbours:
            self.cents += token.cents
            return
        target = self.neighbours[(self.handled + token.hops) % len(self.neighbours)]
        if self.cents > 0:
            self.cents -= 1
            ctx.send(target, Token(token.cents + 1, token.hops - 1))
        else:
            ctx.send(target, Token(token.cents, token.hops - 1))


class Fleet:
    """Participants that reach each other, and what is needed to look at their epochs."""

    def __init__(self, kind: str, folder: Path, *, store: ObjectStore | None = None) -> None:
        self.kind = kind
        self.hub = MemoryHub()
        self.broker = Broker(folder) if kind == "mqtt" else None
        self.store = store or MemoryStore(CLUSTER)
        self.conductor = Conductor(cluster=CLUSTER, store=self.store, keys=KEYS)
        self.participants: dict[str, Participant] = {}
        self.controls: dict[str, LocalControl] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self.broker is not None:
            await self.broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._stack.aclose()
        finally:
            if self.broker is not None:
                self.broker.kill()

    async def join(self, name: str, *agents: Agent, secret: bytes = SECRET, **options) -> Participant:
        control = LocalControl(self.conductor)
        wire = MemoryTransport(name, self.hub) if self.kind == "memory" else None
        participant = Participant(
            *agents,
            id=name,
            cluster=CLUSTER,
            transport=self.broker.url if self.broker is not None else self.kind,
            store=self.store,
            secret=secret,
            control=control,
            wire=wire,
            **options,
        )
        await self._stack.enter_async_context(participant)
        self.participants[name] = participant
        self.controls[name] = control
        return participant

    async def ring(self, names: Sequence[str], **options) -> None:
        """One holder each, in a cycle, and no channels but those of the cycle."""
        for index, name in enumerate(names):
            following = names[(index + 1) % len(names)]
            await self.join(name, Holder(name, following, **options), targets=(following,))
        await self.conductor.wait_members(*names)

    async def mesh(self, names: Sequence[str], **options) -> None:
        for name in names:
            await self.join(name, Holder(name, *(other for other in names if other != name), **options))
        await self.conductor.wait_members(*names)

    def holder(self, name: str) -> Holder:
        (agent,) = self.participants[name].agents
        assert isinstance(agent, Holder)
        return agent

    def reader(self, epoch: int) -> EpochReader:
        return EpochReader(self.store, self.conductor.manifests[epoch])

    def money(self, epoch: int) -> tuple[int, int]:
        """(in states, in mailboxes and on channels) of an epoch."""
        reader = self.reader(epoch)
        states = sum(reader.state(agent).fields["cents"] for agent in reader.agents())
        envelopes = [envelope for agent in reader.agents() for envelope in reader.mailbox(agent)]
        for channel in reader.manifest.channels:
            envelopes += reader.channel(channel.source, channel.target)
        tokens = [
            msgspec.msgpack.decode(envelope.body, type=Token) for envelope in envelopes if envelope.type == "Token"
        ]
        return states, sum(token.cents for token in tokens)

    async def idle(self) -> None:
        """Until nothing moves any more."""
        async with asyncio.timeout(30):
            while any(one.busy or one.outgoing_bytes for one in self.participants.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Poll: what is waited for has no event of its own."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
