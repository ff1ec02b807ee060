"""Conversation: agents take turns in talks with each other; each answer takes a model call, perhaps tools, perhaps a human's yes.

Where two participants have channels both ways, their talkers hold a talk in turns: there is one floor, and whoever has it
speaks next. Where there is only one way the one lectures and the other listens. Who has neither talks to itself. A talk
belongs to one pair of lives; a life that begins introduces itself, and the talk is begun again.

A turn is long: the model is thinking, tools are at work outside (`simulations.effects`), so cuts fall inside of turns. Now and
then an answer needs a human's approval, which comes as outside input seconds later; until then the floor stays where it is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
from blake3 import blake3

from participant import Agent, Context, handler, keyed, value
from simulations.effects import Effects, Tools
from simulations.oracles.effects import check_effects
from simulations.oracles.transcripts import OnItsWay, Side, check_talk
from simulations.prng import log_uniform, stream
from simulations.workloads.awaited import AwaitedWorkload
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from protocol.messages import Envelope
    from protocol.reading import EpochReader
    from simulations.cluster import SimulatedCluster
    from simulations.options import Options
    from simulations.participant_node import ParticipantLife
    from simulations.workloads.base import Switch

LAST: Final = 12
"""Texts of a talk that a side keeps."""
TOOLS_MAX: Final = 3
"""Tool calls of one turn."""
RECEIPTS: Final = 8
"""Receipts of tool calls that an agent keeps."""
APPROVAL: Final = 6
"""One answer in so many needs a human."""
LOOK_NS: Final = 400 * MS
"""Between two looks of the human."""


class Talk(msgspec.Struct, frozen=True):
    """One side's transcript, and whose turn it is."""

    partner: str
    count: int = 0
    """Utterances that this side knows."""
    last: tuple[str, ...] = ()
    floor: bool = False
    asks: bool = False
    """Its next utterance waits for a human's approval."""

    def with_text(self, number: int, text: str, *, floor: bool) -> Talk:
        """After one more utterance."""
        return Talk(self.partner, number + 1, (*self.last, text)[-LAST:], floor)


class Hello(msgspec.Struct, frozen=True):
    """A talker introduces itself."""

    life: int
    back: bool
    """An answer to one."""


class Said(msgspec.Struct, frozen=True):
    """An utterance."""

    talk: str
    number: int
    text: str
    turns: bool
    """With it goes the floor."""


class Approved(msgspec.Struct, frozen=True):
    """A human's yes to the next utterance of a talk."""

    talk: str
    number: int


class Lecture(msgspec.Struct, frozen=True):
    """A lecturer's own timer."""


class Talker(Agent, kind="talker"):
    """Holds its participant's talks, one turn at a time."""

    life = value(int, default=0)
    talks = keyed(str, Talk)
    begun = value(int, default=0)
    """Floors that it brought into the world."""
    strays = value(int, default=0)
    """Floors of talks that are over."""
    wrong = value(int, default=0)
    calls = value(int, default=0)
    """Tool calls."""
    receipts = keyed(str, int)
    """Token -> result, of the last ones."""
    approvals = value(int, default=0)

    def __init__(
        self,
        name: str,
        *,
        life: int,
        partners: tuple[str, ...],
        audience: tuple[str, ...],
        think_ns: int,
        tick_ns: int,
        switch: Switch,
    ) -> None:
        super().__init__(name)
        self._life = life
        self._partners = partners
        self._audience = audience
        self._think_ns = think_ns
        self._tick = tick_ns / SECOND
        self._switch = switch
        self.tools: Tools | None = None
        """Connected when its life begins."""

    async def on_start(self, ctx: Context) -> None:
        """Say who is there."""
        self.life = self._life
        for partner in self._partners:
            ctx.send(f"talker/{partner}", Hello(self._life, back=False))
        if self._audience:
            ctx.after(self._tick, Lecture())

    @handler
    async def on_hello(self, ctx: Context, hello: Hello) -> None:
        """Whoever's name is first begins the talk."""
        partner = ctx.source.partition("/")[2]
        name = self._name_of(partner, hello.life)
        if name in self.talks or not self._meets(partner, hello.life):
            return
        if ctx.self_id < ctx.source:
            self.begun += 1
            await self._answer(ctx, name, Talk(partner, floor=True))
        else:
            self.talks[name] = Talk(partner)
            if not hello.back:
                ctx.send(ctx.source, Hello(self._life, back=True))

    def _meets(self, partner: str, life: int) -> bool:
        """The partner is in this life: what there was with the one before is over. False: it has been in a later one."""
        for old, talk in list(self.talks.items()):
            if talk.partner == partner and ">" not in old:
                if _life_in(old, partner) > life:
                    return False
                self.strays += talk.floor
                del self.talks[old]
        return True

    @handler
    async def on_said(self, ctx: Context, said: Said) -> None:
        """Hear it, and answer if that is how the talk goes."""
        talk = self.talks.get(said.talk)
        if not said.turns:
            talk = talk or Talk("")
            self.wrong += bool(talk.count) and said.number != talk.count
            for old in [old for old in self.talks if old != said.talk and _speaker(old) == _speaker(said.talk)]:
                del self.talks[old]
            self.talks[said.talk] = talk.with_text(said.number, said.text, floor=False)
            return
        if talk is None:
            partner = ctx.source.partition("/")[2]
            life = _life_in(said.talk, partner)
            if said.talk != self._name_of(partner, life) or not self._meets(partner, life):
                self.strays += 1  # for a life of this side that is gone
                return
            talk = Talk(partner)
        self.wrong += said.number != talk.count
        await self._answer(ctx, said.talk, talk.with_text(said.number, said.text, floor=True))

    @handler
    async def on_approved(self, ctx: Context, approved: Approved) -> None:
        """Go on; a yes that comes twice changes nothing."""
        talk = self.talks.get(approved.talk)
        if talk is not None and talk.asks and talk.count == approved.number:
            self.approvals += 1
            await self._answer(ctx, approved.talk, talk, approved=True)

    @handler
    async def on_lecture(self, ctx: Context, due: Lecture) -> None:
        """The next sentence to everybody who cannot answer."""
        if not self._switch.on:
            return
        text = await self._think(ctx, "")
        for listener in self._audience:
            name = f"{ctx.self_id[7:]}.{self._life}>{listener}"
            talk = self.talks.get(name) or Talk(listener)
            ctx.send(f"talker/{listener}", Said(name, talk.count, text, turns=False))
            self.talks[name] = talk.with_text(talk.count, text, floor=False)
        ctx.after(self._tick, Lecture())

    async def _answer(self, ctx: Context, name: str, talk: Talk, *, approved: bool = False) -> None:
        """Think, use tools, and speak; or keep the floor until a human has agreed."""
        self.talks[name] = talk
        if not self._switch.on:
            return
        text = await self._think(ctx, talk.last[-1] if talk.last else "")
        draw = ctx.message_id[0]
        if not approved and draw % APPROVAL == 0:
            self.talks[name] = Talk(talk.partner, talk.count, talk.last, floor=True, asks=True)
            return
        calls = draw % (TOOLS_MAX + 1)
        if calls:
            await self._use_tools(ctx, calls, text, together=ctx.message_id[1] % 2 == 0)
        ctx.send(f"talker/{talk.partner}", Said(name, talk.count, text, turns=True))
        self.talks[name] = talk.with_text(talk.count, text, floor=False)

    async def _think(self, ctx: Context, heard: str) -> str:
        """A model call. Some time out and are made again."""
        took = int.from_bytes(ctx.message_id[2:6], "big") % self._think_ns / SECOND
        try:
            async with asyncio.timeout(self._think_ns * 7 / 8 / SECOND):
                await asyncio.sleep(took)
        except TimeoutError:
            await asyncio.sleep(took / 8)
        return blake3(ctx.message_id + heard.encode()).hexdigest(length=6)

    async def _use_tools(self, ctx: Context, calls: int, text: str, *, together: bool) -> None:
        assert self.tools is not None, "a life is connected before its turns begin"
        asked = (self.tools.call(ctx.self_id, ctx.message_id, number, f"{text} {number}") for number in range(calls))
        found = await asyncio.gather(*asked) if together else [await one for one in asked]
        self.calls += calls
        for token, result in found:
            self.receipts[token] = result
        for token in list(self.receipts)[: len(self.receipts) - RECEIPTS]:
            del self.receipts[token]

    def _name_of(self, partner: str, life: int) -> str:
        me = self.id.partition("/")[2]
        return "-".join(sorted((f"{me}.{self._life}", f"{partner}.{life}")))


def _life_in(name: str, who: str) -> int:
    """The life of one side of a talk in turns."""
    return next(int(side[len(who) + 1 :]) for side in _sides(name) if side.startswith(f"{who}."))


def _sides(name: str) -> list[str]:
    return name.split("-")


def _speaker(name: str) -> str:
    """Who lectures, whatever its life; "" for a talk in turns."""
    return name.rpartition(".")[0] if ">" in name else ""


class Conversation(AwaitedWorkload):
    """A talker on each participant, two on one that has nobody to talk to."""

    messages: ClassVar[tuple[type, ...]] = (Hello, Said, Approved, Lecture)
    item_bytes: ClassVar[int] = 200

    @classmethod
    def says(cls, options: Options, targets: Mapping[str, tuple[str, ...]]) -> float:
        """A lecturer's next sentence; in a talk there is one on its way."""
        return 1

    def __init__(self, options: Options, targets: dict[str, tuple[str, ...]]) -> None:
        super().__init__(options, targets)
        random = stream(options.seed, "conversation")
        self.effects = Effects()
        self._think_ns = log_uniform(random, 20 * MS, SECOND)
        self._there_ns = log_uniform(random, 10 * MS, 800 * MS)
        self._patience_ns = log_uniform(random, SECOND, 8 * SECOND)
        self._human = stream(options.seed, "human")
        self._lives: dict[str, int] = {}

    def agents(self, participant: str) -> list[Agent]:
        """A talker that knows its partners and its audience."""
        self._lives[participant] = self._lives.get(participant, 0) + 1
        known = self.targets[participant]
        partners = tuple(other for other in known if participant in self.targets[other])
        audience = tuple(other for other in known if other not in partners)
        names = [participant]
        if not known and not any(participant in others for others in self.targets.values()):
            names.append(f"{participant}x")
        return [
            Talker(
                name,
                life=self._lives[participant],
                partners=partners or tuple(other for other in names if other != name),
                audience=audience if name == participant else (),
                think_ns=self._think_ns,
                tick_ns=self.options.tick_ns,
                switch=self.switch,
            )
            for name in names
        ]

    def begin(self, life: ParticipantLife) -> None:
        """The new member's agents get their tools, and a human looks after them."""
        tools = Tools(self.effects, life, there_ns=self._there_ns)
        for agent in life.agents:
            assert isinstance(agent, Talker)
            agent.tools = tools
        life.later(self._human.below(LOOK_NS), self._look, life, {})

    def _look(self, life: ParticipantLife, seen: dict[tuple[str, str, int], int]) -> None:
        """What waits for approval gets it after a while; now and then twice."""
        if not self.switch.on:
            return
        for host in life.hosts:
            agent = host.agent
            assert isinstance(agent, Talker)
            if host.turn is not None:
                continue  # nobody outside sees what a turn has not committed
            for name, talk in agent.talks.items():
                if not talk.asks:
                    continue
                key = (host.id, name, talk.count)
                asked = seen.setdefault(key, life.now)
                if life.now - asked >= self._patience_ns and life.ingest(host.id, Approved(name, talk.count)) is None:
                    # Long before it looks again, unless it is of those who press the button twice.
                    seen[key] = 1 << 62 if self._human.chance(7, 8) else asked
                    life.cluster.probes.hit("input.approved")
        life.later(LOOK_NS, self._look, life, seen)

    # --- judging ------------------------------------------------------------------------------------------------------

    def judge(self, cluster: SimulatedCluster, reader: EpochReader) -> None:
        """Transcripts and effects.

        Raises:
            Violation: I5, I29.
        """
        epoch = int(reader.manifest.epoch)
        states = {agent: reader.state(agent).fields for agent in reader.agents()}
        for agent, fields in states.items():
            check_effects(cluster, self.effects, reader, agent, fields)
        on_its_way = _utterances(reader)
        for name in sorted({name for fields in states.values() for name in fields.get("talks", {})}):
            turns = ">" not in name
            found = []
            for who, life in _ends(name):
                state = states.get(f"talker/{who}")
                if state is None or (life and state.get("life") != life):
                    break  # a side whose life is not in this cut: the talk is over
                talk = state.get("talks", {}).get(name)
                found.append(
                    Side(f"talker/{who}", 0, ())
                    if talk is None
                    else Side(f"talker/{who}", talk["count"], talk["last"], bool(talk["floor"]))
                )
            if len(found) == 2:
                said = [one for talk_name, one in on_its_way if talk_name == name]
                if turns and not (found[0].known or found[0].floor or found[1].known or said):
                    continue  # whoever begins has not heard of the other yet
                check_talk(epoch, name, found[0], found[1], said, turns=turns)

    def share(self, participant: str) -> int:
        """Nothing: a talk that is begun is a debt."""
        return 0

    def held(self, fields: dict[str, Any]) -> int:
        """Floors; an utterance that was not the next one can not be made up for."""
        floors = sum(bool(talk["floor"]) for talk in fields.get("talks", {}).values())
        wrong = int(fields.get("wrong", 0)) << 40
        return floors + int(fields.get("strays", 0)) - int(fields.get("begun", 0)) + wrong

    def carried(self, envelope: Envelope) -> int:
        """The floor goes with an utterance."""
        return int(envelope.type == "Said" and msgspec.msgpack.decode(envelope.body, type=Said).turns)


def _ends(name: str) -> list[tuple[str, int]]:
    """Both sides of a talk, and their lives; 0: of whatever life."""
    if ">" in name:
        speaker, _, listener = name.partition(">")
        who, _, life = speaker.rpartition(".")
        return [(who, int(life)), (listener, 0)]
    sides = [side.rpartition(".") for side in _sides(name)]
    return [(who, int(life)) for who, _, life in sides]


def _utterances(reader: EpochReader) -> list[tuple[str, OnItsWay]]:
    """(talk, utterance) of all that was said and not heard, in the order in which it will be."""
    found: list[tuple[str, OnItsWay]] = []

    def take(envelopes: Iterable[Envelope]) -> None:
        for envelope in envelopes:
            if envelope.type == "Said":
                said = msgspec.msgpack.decode(envelope.body, type=Said)
                found.append((said.talk, OnItsWay(envelope.target, said.number, said.text)))

    for agent in reader.agents():
        take(reader.mailbox(agent))
    for channel in reader.manifest.channels:
        take(reader.channel(channel.source, channel.target))
    for member in reader.manifest.members:
        take(reader.unrouted(member.participant))
    return found
