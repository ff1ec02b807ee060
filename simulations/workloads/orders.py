"""Orders: tills place them, desks have them charged at a bank outside, ask a human now and then, and put out receipts.

Everything that a rollback must not do twice: a charge is a step, an approval a question, a receipt an output, and some orders
come from outside, from customers who give the same order again with its token until they have heard that it is taken. An
order is named after its message: whatever descends from the same message is the same order.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from participant import Agent, Backoff, Context, QuestionExpired, Retry, handler, keyed, value
from participant.effects.ledger import EffectLedger
from participant.runtime.intake import Taken
from protocol.errors import DryRun, Refused, SnapshotError
from protocol.ids import MessageId
from simulations.names import Names, first_of
from simulations.oracles.orders import check_orders, demand_orders
from simulations.outside import ArchiveSink, Outside, Ways
from simulations.prng import log_uniform, stream
from simulations.settling import Settler, answered_by_consulting
from simulations.shared_effects import SharedEffects
from simulations.topologies import names_of
from simulations.violations import Violation
from simulations.workloads.awaited import AwaitedWorkload
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from participant.sinks.base import Sink
    from protocol.messages import Envelope
    from protocol.reading import EpochReader
    from simulations.cluster import SimulatedCluster
    from simulations.options import Options
    from simulations.participant_node import ParticipantLife
    from simulations.workloads.base import Switch

ASKS: Final = 6
"""One order in so many needs a human."""
LOOK_NS: Final = 300 * MS
"""Between two looks of the human."""
_AGAIN: Final = Retry(attempts=60, backoff=Backoff(first=0.02, maximum=1.0))


class Order(msgspec.Struct, frozen=True):
    """To a desk."""

    cents: int
    name: str = ""
    """Of one that comes from outside: its token. Else the message's id is its name."""


class Next(msgspec.Struct, frozen=True):
    """A till's own timer."""


class Till(Agent, kind="till"):
    """Places orders at the desks that its participant reaches."""

    made = value(int, default=0)

    def __init__(
        self, name: str, *, desks: tuple[str, ...], tick: float, burst: int, switch: Switch, names: Names
    ) -> None:
        super().__init__(name)
        self._desks = desks
        self._names = names
        self._tick = tick
        self._burst = burst
        self._switch = switch
        self.ways: Ways | None = None
        """Connected when its life begins."""

    async def on_start(self, ctx: Context) -> None:
        """Begin."""
        ctx.after(self._tick, Next())

    @handler
    def on_next(self, ctx: Context, due: Next) -> None:
        """The next orders."""
        if not self._switch.on:
            return
        for number in range(self._burst):
            desk = self._desks[(ctx.message_id[0] + number) % len(self._desks)]
            assert self.ways is not None, "a life is connected before its turns begin"
            ctx.send(self._names.called_in(self.ways.incarnation, desk), Order(1 + ctx.message_id[1]))
            self.made -= 1
        ctx.after(self._tick, Next())


class Desk(Agent, kind="desk"):
    """Has orders charged."""

    handled = keyed(str, int)
    """Order -> how often."""
    receipts = keyed(str, int)
    """Order -> what the bank said."""
    answers = keyed(str, str)
    """Order -> what a human said."""
    taken = value(int, default=0)
    """Orders of tills."""

    def __init__(self, name: str, *, patience: float) -> None:
        super().__init__(name)
        self._patience = patience
        self.ways: Ways | None = None
        """Connected when its life begins."""

    @handler
    async def on_order(self, ctx: Context, order: Order) -> None:
        """Charge it, perhaps ask, put out a receipt."""
        ways = self.ways
        assert ways is not None, "a life is connected before its turns begin"
        name = order.name or ctx.message_id.hex()
        draw = ctx.message_id[2]
        answer = ""
        if draw % ASKS == 0:
            try:
                answer = await ctx.ask({"order": name}, answer=str, timeout=self._patience if draw % 2 else None)
            except QuestionExpired:
                answer = "expired"
        try:
            result = await self._charge(ctx, ways, name, order.cents, forgiving=draw % 3 == 0)
        except DryRun:
            result = 0  # only a fork is told so
        self.handled[name] = self.handled.get(name, 0) + 1
        self.receipts[name] = result
        if answer:
            self.answers[name] = answer
        self.taken += not order.name
        ctx.emit("receipts", {"order": name, "result": result, "answer": answer})

    async def _charge(self, ctx: Context, ways: Ways, name: str, cents: int, *, forgiving: bool) -> int:
        if forgiving:
            return await ctx.step(ways.charge, name, cents, idempotent=True, retry=_AGAIN)
        return await ctx.step(ways.charge_once, name, cents, resolve=ways.find, retry=_AGAIN)


class Orders(AwaitedWorkload):
    """A till and a desk on each participant; the bank, the archive, customers and a human outside.

    Where agents go elsewhere, so do customers: they give again anywhere what is not acknowledged to them.
    """

    messages: ClassVar[tuple[type, ...]] = (Order, Next)
    outside_world: ClassVar[bool] = True
    kinds: ClassVar[tuple[type[Agent], ...]] = (Till, Desk)

    def __init__(self, options: Options, targets: dict[str, tuple[str, ...]]) -> None:
        super().__init__(options, targets)
        random = stream(options.seed, "orders")
        self.outside: Outside
        """Made with the cluster."""
        self._there_ns = log_uniform(random, 2 * MS, 200 * MS)
        self._patience = log_uniform(random, 500 * MS, 6 * SECOND) / SECOND
        self._human = stream(options.seed, "human")
        self._customers = stream(options.seed, "customers")
        self._pause_ns = log_uniform(random, 100 * MS, SECOND)
        self.waiting: dict[str, list[tuple[str, str, int]]] = {}
        """Participant -> orders of customers there that were not acknowledged: token, desk, cents."""
        self.acknowledged: dict[str, tuple[str, list[str]]] = {}
        """Token -> desk, and in whose input logs it is."""
        self.told: dict[str, str] = {}
        """Order -> what the human said, and was told to be taken."""
        self._numbers: dict[str, int] = {}
        self._homes = names_of(options)
        self._ways: dict[str, Ways] = {}
        """Of the newest life of each participant."""
        self._settler = Settler(self, options) if options.settled else None
        self._ledger = EffectLedger()
        """Of all, where agents go elsewhere."""

    def connected(self, cluster: SimulatedCluster) -> None:
        """The world is there."""
        self.outside = Outside(cluster, there_ns=self._there_ns)

    def agents(self, participant: str) -> list[Agent]:
        """A till, and a desk."""
        return [self.take(self.names.declared(f"{kind.kind}/{participant}")) for kind in self.kinds]

    def take(self, agent: str) -> Agent:
        """See `Workload`."""
        kind, _, name = agent.partition("/")
        if kind == Desk.kind:
            return Desk(name, patience=self._patience)
        tick = max(self.options.tick_ns, 200 * MS) / SECOND
        desks = tuple(self._desks(first_of(name)))
        burst = min(self.options.burst, 2)
        return Till(name, desks=desks, tick=tick, burst=burst, switch=self.switch, names=self.names)

    def _desks(self, participant: str) -> list[str]:
        """Those that its channels lead to, by their first names."""
        if self.options.elsewhere:
            # Of everybody, in one order: who has got another name does the same again.
            return [f"desk/{name}" for name in self._homes]
        return [f"desk/{name}" for name in (participant, *self.targets[participant])]

    def brings(self, agent: str) -> int:
        """Nothing."""
        return 0

    def effect_ledger(self, life: ParticipantLife) -> SharedEffects | None:
        """See `Workload`."""
        return SharedEffects(self._ledger, Ways(self.outside, life)) if self.options.elsewhere else None

    def sinks(self, life: ParticipantLife) -> list[Sink]:
        """What a life's agents emit to."""
        return [ArchiveSink()]

    def connect(self, life: ParticipantLife, sinks: list[Sink]) -> None:
        """A life's ways to the outside; before anything of it runs."""
        ways = Ways(self.outside, life)
        for sink in sinks:
            assert isinstance(sink, ArchiveSink)
            sink.ways = ways
        for agent in life.agents:
            self._connect(agent, ways)
        self._ways[life.name] = ways

    def taken(self, life: ParticipantLife, agent: Agent) -> None:
        """See `Workload`."""
        self._connect(agent, self._ways[life.name])

    def _connect(self, agent: Agent, ways: Ways) -> None:
        assert isinstance(agent, Till | Desk)
        agent.ways = ways

    def raise_fence(self, incarnation: int) -> None:
        """See `Workload`."""
        self.outside.archive.raise_fence(incarnation)

    def check_fenced(self, incarnation: int) -> None:
        """See `Workload`.

        Raises:
            Violation: I23.
        """
        archive = self.outside.archive
        if "receipts" not in self.outside.cluster.fences:
            return  # a fork's: it is the original's
        if archive.fence.incarnation < incarnation:
            raise Violation(
                "I23", f"restore orders of incarnation {incarnation} leave, and {archive.name} is not fenced"
            )

    def begin(self, life: ParticipantLife) -> None:
        """The new member has customers, and a human who looks after it."""
        if life.visited:
            return  # again, in another incarnation: they are still there
        life.visited = True
        life.later(self._human.below(LOOK_NS), self._look, life, {})
        life.later(self._customers.below(self._pause_ns), self._customer, life)
        if self._settler is not None:
            self._settler.begin(life)

    # --- outside input ------------------------------------------------------------------------------------------------

    def _customer(self, life: ParticipantLife) -> None:
        """The next order of a customer, or one that nobody has acknowledged, or now and then one that somebody has."""
        waiting = self.waiting.setdefault(life.name, [])
        if self.switch.on and not waiting:
            number = self._numbers[life.name] = self._numbers.get(life.name, 0) + 1
            waiting.append((f"{life.name}-{number}", self._customers.pick(self._desks(life.name)), 1 + number))
        home = life.name
        if self.options.elsewhere:
            # Whoever is there serves customers of others, too.
            homes = [name for name, orders in self.waiting.items() if orders]
            home = self._customers.pick(homes) if homes and self._customers.chance(1, 2) else home
        if self.waiting[home] and life.member:
            life.run(self._give(life, home, *self.waiting[home][0]), name="customer")
        else:
            life.later(self._pause_ns, self._customer, life)

    async def _give(self, life: ParticipantLife, home: str, token: str, desk: str, cents: int) -> None:
        name = self.names.called_in(int(life.machine.incarnation), desk)
        taken: Taken | None
        try:
            async with asyncio.timeout(3):
                taken = await life.give(name, Order(cents, token), token)
        except (SnapshotError, TimeoutError) as error:
            # Its desk has another name by now: somebody has it.
            has_it = isinstance(error, Refused) and error.code == "token-conflict"
            taken = Taken(MessageId(b""), 0, duplicate=True) if has_it and name != desk else None
        if name != self.names.called_in(int(life.machine.incarnation), desk):
            # Given for a name that was its desk's before a rollback, and maybe taken afterwards: that is nobody's.
            self.waiting[home] = [each for each in self.waiting[home] if each[0] != token]
        elif taken is not None:
            probe = life.cluster.probes.hit
            if taken.duplicate:
                probe("input.duplicate")
            _, logs = self.acknowledged.setdefault(token, (desk, []))
            if taken.position and life.name not in logs:
                logs.append(life.name)
                if len(logs) > 1:
                    probe("input.in_two_logs")
            elif not taken.position:
                probe("input.known_here")
            probe("input.acknowledged")
            if self._customers.chance(7, 8):
                self.waiting[home] = [each for each in self.waiting[home] if each[0] != token]
        life.later(1 + self._customers.below(self._pause_ns), self._customer, life)

    # --- the human ----------------------------------------------------------------------------------------------------

    def _look(self, life: ParticipantLife, seen: dict[str, int]) -> None:
        """Who waits gets an answer after a while; now and then two, and now and then nobody looks for long."""
        for token, order in life.open_questions():
            asked = seen.setdefault(token, life.now)
            patience = self._human.below(round(self._patience * SECOND) * 2)
            if life.now - asked >= patience or not self.switch.on:
                seen[token] = life.now + SECOND
                word = self._human.pick(("yes", "no"))
                life.run(self._say(life, token, order, word), name="human")
                if self._human.chance(1, 6):
                    life.run(self._say(life, token, order, "twice"), name="human again")
        life.later(LOOK_NS, self._look, life, seen)

    async def _say(self, life: ParticipantLife, token: str, order: str, word: str) -> None:
        try:
            if self._settler is not None and self._human.chance(1, 2):
                took = await answered_by_consulting(life, token, word)
            else:
                took = await life.say(token, word)
        except (Refused, SnapshotError):
            return
        life.cluster.probes.hit(f"question.{took}")
        if took == "taken":
            self.told.setdefault(order, word)

    # --- judging ------------------------------------------------------------------------------------------------------

    def judge(self, cluster: SimulatedCluster, reader: EpochReader) -> None:
        """Orders at a cut.

        Raises:
            Violation: I6, I29.
        """
        if cluster.forked is not None:
            return  # its orders are charged by nobody
        where = f"epoch {reader.manifest.epoch}"
        for agent in reader.agents():
            if agent.startswith("desk/"):
                check_orders(f"{where}, {agent}", reader.state(agent).fields, self)

    def judge_end(self, cluster: SimulatedCluster) -> None:
        """Everything has come to its end.

        Raises:
            Violation: I6, I19, I29.
            LivenessViolation: I30.
        """
        demand_orders(cluster, self)

    def touched(self) -> list[str]:
        """See `Workload`."""
        return self.outside.requests

    def share(self, participant: str) -> int:
        """Nothing: what a till has made is its debt."""
        return 0

    def held(self, fields: dict[str, Any]) -> int:
        """A till's debt, a desk's takings."""
        return int(fields.get("made", 0)) + int(fields.get("taken", 0))

    def carried(self, envelope: Envelope) -> int:
        """An order of a till is one."""
        return int(envelope.type == "Order" and not msgspec.msgpack.decode(envelope.body, type=Order).name)
