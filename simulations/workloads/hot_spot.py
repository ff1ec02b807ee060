"""Hot spot: everybody's work goes to one agent that takes long for each piece.

Clients outside give jobs to the gates, one on each participant, and some of them directly to the hot agent; gates number
their jobs and pass them on. The hot agent lives where most channels lead to, and works on one piece at a time, so its mailbox
grows long, and while it is far away so do channel states. Nothing is lost on the way, and the pieces of each gate come in order.

A participant refuses outside input while more than a limit is in flight there. So what a gate's participant keeps in memory
is bounded whatever clients do; the mailbox of the hot agent itself is not, as far as its input comes from other participants.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from participant import Agent, Context, handler, keyed, value
from protocol.errors import Overloaded
from simulations.oracles.arrival import arrived, check_arrival
from simulations.oracles.memory import check_memory
from simulations.prng import log_uniform, stream
from simulations.workloads.awaited import AwaitedWorkload
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from protocol.messages import Envelope
    from protocol.reading import EpochReader
    from simulations.cluster import SimulatedCluster
    from simulations.options import Options
    from simulations.participant_node import ParticipantLife

JOBS_MAX: Final = 240
"""That all clients of a run give, about: so that the hot agent is done within the time that a healed world has."""
GREEDY: Final = 40
"""Jobs that a client gives at once, now and then."""
GROWTH: Final = 2
"""A job grows by a number and a gate's name while it is passed on, and takes a header: at most by this factor."""


class Job(msgspec.Struct, frozen=True):
    """Outside input."""

    load: bytes


class Piece(msgspec.Struct, frozen=True):
    """A job with a number, on its way to the hot agent."""

    gate: int
    number: int
    load: bytes


class Gate(Agent, kind="gate"):
    """Numbers jobs and passes them on."""

    passed = value(int, default=0)

    def __init__(self, name: str, *, life: int, hot: str) -> None:
        super().__init__(name)
        self._life = life
        self._hot = hot

    @handler
    def on_job(self, ctx: Context, job: Job) -> None:
        """The next number."""
        ctx.send(self._hot, Piece(self._life, self.passed, job.load))
        self.passed += 1


class Hot(Agent, kind="hot"):
    """Takes long for each piece, and looks at their order."""

    next = keyed(int, int)
    """Life of a gate -> number of its next piece."""
    taken = value(int, default=0)
    direct = value(int, default=0)
    """Jobs that came without a gate."""
    gaps = keyed(str, int)
    late = value(int, default=0)
    twice = value(int, default=0)

    def __init__(self, name: str, *, work_ns: int) -> None:
        super().__init__(name)
        self._work = work_ns / SECOND

    @handler
    async def on_piece(self, ctx: Context, piece: Piece) -> None:
        """Work on it."""
        await asyncio.sleep(self._work)
        wrong = arrived(self.next, self.gaps, piece.gate, piece.number)
        self.late += wrong == "late"
        self.twice += wrong == "twice"
        self.taken += 1

    @handler
    async def on_job(self, ctx: Context, job: Job) -> None:
        """Work on it."""
        await asyncio.sleep(self._work)
        self.direct += 1


class HotSpot(AwaitedWorkload):
    """A gate on each participant, and one hot agent."""

    messages: ClassVar[tuple[type, ...]] = (Job, Piece)

    def __init__(self, options: Options, targets: dict[str, tuple[str, ...]]) -> None:
        super().__init__(options, targets)
        random = stream(options.seed, "hot-spot")
        self._clients = stream(options.seed, "clients")
        sources = {name: sum(name in others for others in targets.values()) for name in targets}
        self.home = max(sources, key=lambda name: sources[name])
        """Where the hot agent lives."""
        self._work_ns = log_uniform(random, 2 * MS, 60 * MS)
        self._load_bytes = random.pick((10, 100, 1000))
        self.in_flight_bytes_max = log_uniform(random, 1_000, 40_000)
        self._lives = 0
        self._left = JOBS_MAX
        self.accepted = 0
        self.refused = 0

    def agents(self, participant: str) -> list[Agent]:
        """A gate; and the hot agent, if it lives there."""
        self._lives += 1
        found: list[Agent] = [Gate(participant, life=self._lives, hot=f"hot/{self.home}")]
        if participant == self.home:
            found.append(Hot(self.home, work_ns=self._work_ns))
        return found

    def begin(self, life: ParticipantLife) -> None:
        """Clients find the new member, if it can reach the hot agent."""
        if life.name == self.home or self.home in self.targets[life.name]:
            life.later(self._clients.below(self.options.tick_ns), self._give, life)

    def _give(self, life: ParticipantLife) -> None:
        """Some jobs; of a greedy client, many."""
        random = self._clients
        if not self.switch.on or self._left <= 0:
            return
        check_memory(life, self.in_flight_bytes_max, growth=GROWTH, bounded=life.name != self.home)
        for _ in range(GREEDY if random.chance(1, 6) else 1 + random.below(self.options.burst)):
            direct = random.chance(1, 6)
            target = f"hot/{self.home}" if direct else f"gate/{life.name}"
            refusal = life.ingest(target, Job(bytes(self._load_bytes)))
            if refusal is None:
                self.accepted += 1
                self._left -= 1
            else:
                self.refused += 1
                if isinstance(refusal, Overloaded):
                    life.cluster.probes.hit("input.overloaded")
        life.later(self.options.tick_ns // 2 + random.below(self.options.tick_ns), self._give, life)

    def judge(self, cluster: SimulatedCluster, reader: EpochReader) -> None:
        """What the hot agent has found.

        Raises:
            Violation: I6.
        """
        for agent in reader.agents():
            if agent.startswith("hot/"):
                check_arrival(f"epoch {reader.manifest.epoch}, {agent}", reader.state(agent).fields)

    def judge_end(self, cluster: SimulatedCluster) -> None:
        """Everything has been worked on, and nothing is kept.

        Raises:
            Violation: I6, I33.
        """
        for life in cluster.lives.values():
            check_memory(life, 0, growth=GROWTH)

    def share(self, participant: str) -> int:
        """Nothing: what a gate has passed on is its debt."""
        return 0

    def held(self, fields: dict[str, Any]) -> int:
        """A gate's debt, the hot agent's takings."""
        return int(fields.get("taken", 0)) - int(fields.get("passed", 0))

    def carried(self, envelope: Envelope) -> int:
        """A piece is one."""
        return int(envelope.type == "Piece")
