"""A whole simulated cluster: everything put together, and the hands that faults need.

Participants that ended start again after a while, as under a supervisor; coordinators that crashed start with a snapshot of
their ledger that is some entries old.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal

from protocol.digests import manifest_key, snapshot_key
from protocol.ids import ClusterName
from protocol.keys import ClusterKeys
from protocol.messages import Registered, Restore, StartEpoch, TopologyChanged
from protocol.wire import FrameCodec
from simulations.control import ControlLine
from simulations.coordinator_node import CoordinatorLife
from simulations.forking import FORK_NAME, FORK_SECRET
from simulations.ghost import GhostLog
from simulations.local_disk import LocalDisk
from simulations.log import ReplicatedLog
from simulations.network import Network
from simulations.operator import Operator
from simulations.oracles import Oracles
from simulations.oracles.durability import check_all_committed
from simulations.oracles.placement import Placements
from simulations.participant_node import ParticipantLife
from simulations.prng import stream
from simulations.probes import Probes
from simulations.store import SimulatedStore
from simulations.topologies import names_of, spares_of, targets_of
from simulations.workloads import workload_of
from simulations.world import MS, SECOND, World

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from participant.agent import Agent
    from protocol.messages import ToParticipant
    from simulations.forking import Forked
    from simulations.options import Options
    from simulations.prng import Prng
    from simulations.trace import Trace
    from simulations.workloads import MakeWorkload

SECRET: Final = b"a secret for clusters in simulations"
WALL_NS: Final = 1_790_000_000 * SECOND
GIVEN_UP_NS: Final = 8 * SECOND
"""In the healed world, until those are back that an operator gives up."""
KILLED_TWIN_NS: Final = 3 * SECOND
QUEUED_ORDERS: Final = 6
WRONG_REFUSALS: Final = 12
"""One probe in so many is refused although the process is there, while there are faults."""
HEALED_START_NS: Final = 100 * MS
"""Until those that are down when all is healed start again."""


class _NoTasks:
    """In place of a driver's tasks, for workloads whose handlers never await."""

    def spawn(self, work: Any, *, name: str) -> Any:  # noqa: ANN401 - as `TaskSet.spawn`
        """There is no event loop."""
        work.close()
        raise AssertionError(f"{name}: a handler awaits, and this world has no event loop")


class SimulatedCluster:
    """Participants, coordinators, log, store and network in one world."""

    def __init__(
        self, options: Options, trace: Trace, make_workload: MakeWorkload = workload_of, forked: Forked | None = None
    ) -> None:
        self.options = options
        self.forked = forked
        """What this cluster is a fork of; None: of nothing."""
        self.forks: list[Forked] = []
        """That were made of it."""
        self.trace = trace
        self.world = World(trace, steps_max=options.steps_max)
        self.probes = Probes()
        self.name = ClusterName("simulated") if forked is None else FORK_NAME
        self.secret = SECRET if forked is None else FORK_SECRET
        self.keys = ClusterKeys.from_secret(self.secret)
        self.codec = FrameCodec(self.name, self.keys)
        self.no_tasks: Any = _NoTasks()
        self.spares = spares_of(options)
        self.participants = [*names_of(options), *self.spares]
        chosen = targets_of(options)
        everyone = options.topology == "mesh"
        self.targets: dict[str, tuple[str, ...] | None] = {
            name: None if everyone else chosen[name] for name in self.participants
        }
        self.workload = make_workload(options, chosen)
        self.store = SimulatedStore(self.world, options, self.name, self.probes)
        if forked is not None:
            self.store.preload(forked.objects)
        self.network = Network(self.world, options, self.probes)
        self.log = ReplicatedLog(self.world, options, self.probes)
        self.ghost = GhostLog()
        self.operator = Operator(self)
        self.placements = Placements(self)
        self.oracles = Oracles(self)
        self.ghost.oracles = self.oracles
        self.ghost.outputs.cluster = self
        self.ghost.turns.cluster = self
        self.workload.connected(self)
        if forked is not None:
            forked.plant(self)
        self.store.put_seen = self.oracles.object_visible
        self.store.crash = self._crash_in_put
        own_sinks = self.workload.outside_world and forked is None
        self.fences = ("store", "receipts") if own_sinks else ("store",)
        """Names of what acknowledges an incarnation before it is restored."""
        self.answers: dict[str, dict[str, Any]] = {}
        self.lives: dict[str, ParticipantLife] = {}
        self.lines: list[ControlLine] = []
        self.leaving: set[str] = set()
        """Participants that were told to leave; asked, never iterated."""
        self.frozen: list[ParticipantLife] = []
        """Those in whose place another process was started while they slept."""
        self.have_left: dict[str, None] = {}
        """Participants that have left in order at some time: what they had is theirs no more."""
        self.absent: dict[str, None] = dict.fromkeys(self.spares)
        """Participants that nobody starts."""
        self.lasting: dict[str, None] = {}
        """Of the absent, those that do not come back in the healed world either; asked, never iterated."""
        self.lasting.update(self.absent)
        self.healing = False
        self.rotten_reads: set[int] = set()
        """Epochs of which an assembler was given wrong bytes: it may well refuse them. Asked, never iterated."""
        self.entered: dict[str, int] = {}
        """Participant -> highest incarnation on its disk."""
        self._wall_jump: dict[str, int] = {}
        self._life_numbers: dict[str, int] = {}
        self._dumps: dict[str, tuple[str, int]] = {}
        self._control_blocks: dict[tuple[str, str], int] = {}
        self._line_number = 0
        self._random = stream(options.seed, "cluster")
        self._disks: dict[str, LocalDisk] = {}
        self._probe_random = stream(options.seed, "probes")
        self._queued: dict[str, tuple[int, list[ToParticipant]]] = {}
        """Participant -> life and the last orders that it was given."""
        self.late_orders = 0
        """Chances in 1,000 that orders of an earlier life come to the one that registers."""
        self._late_random = stream(options.seed, "late orders")
        self.participant_deaths = 0
        self.coordinator_deaths = 0

    def boot(self) -> None:
        """Start everything, each at a moment of its own."""
        for name in self.log.names:
            self.world.after(self._random.below(100 * MS), self._random, self.start_coordinator, name)
        for name in self.participants:
            self.world.after(self._random.below(300 * MS), self._random, self.start_participant, name)
        self.operator.boot()

    # --- what the second mode does otherwise ----------------------------------------------------------------------------

    def surroundings(self) -> AbstractContextManager[None]:
        """What of the interpreter's a run needs."""
        return nullcontext()

    def unwind(self) -> None:
        """The run is over."""

    def drivers_stuck(self, name: str) -> bool:
        """The store blocks the threads of a process ("": of all) from now on; whether there are threads."""
        return False

    def drivers_freed(self, name: str) -> None:
        """It does not any more."""

    def half_open_control(self, name: str) -> bool:
        """A participant's control connection carries nothing any more, unnoticed; whether there is one that can."""
        return False

    def stranger(self, name: str) -> bool:
        """Somebody with a participant's token breaks the rules of the control connection; whether there are rules."""
        return False

    def stop_in_order(self, name: str) -> bool:
        """A driver is told to end ("": the leader's); whether there is one."""
        return False

    def demand_drivers(self) -> None:
        """What has to hold of the drivers in a quiet world.

        Raises:
            LivenessViolation: It does not.
        """

    def make_participant(self, name: str, number: int, agents: Sequence[Agent]) -> ParticipantLife:
        """A life begins."""
        return ParticipantLife(self, name, number, agents)

    def make_coordinator(self, name: str, number: int, dump: tuple[str, int] | None) -> CoordinatorLife:
        """A life begins."""
        return CoordinatorLife(self, name, number, dump)

    def make_line(self, number: int, client: Any, coordinator: CoordinatorLife) -> ControlLine:  # noqa: ANN401 - by mode
        """A connection is made."""
        return ControlLine(number, client, coordinator)

    # --- participants -------------------------------------------------------------------------------------------------

    def start_participant(self, name: str) -> None:
        """The next life of a participant."""
        life = self.lives.get(name)
        if name in self.absent or (life is not None and life.alive):
            return
        number = self._life_numbers[name] = self._life_numbers.get(name, 0) + 1
        life = self.lives[name] = self.make_participant(name, number, self._agents_of(name))
        self.trace.note(self.world.now, name, "Started", f"life {number}")
        life.start()

    def _agents_of(self, name: str) -> list[Agent]:
        return [] if name in self.spares else self.workload.agents(name)

    def goes_away(self, name: str, *, for_good: bool) -> bool:
        """A participant dies, and nobody starts it again before it comes back; whether it could."""
        here = [each for each in self.participants if each not in self.absent]
        if name in self.absent or len(here) < 2:
            return False
        self.absent[name] = None
        if for_good:
            self.lasting[name] = None
        self.crash_participant(name, 0)
        return True

    def comes_back(self, name: str) -> None:
        """A participant that was away, or was not there yet, is started."""
        if name in self.absent and (not self.healing or name not in self.lasting):
            del self.absent[name]
            self.start_participant(name)

    def crash_participant(self, name: str, restart_ns: int) -> bool:
        """Kill a participant; it starts again after a while."""
        life = self.lives.get(name)
        if life is None or not life.alive:
            return False
        self.trace.note(self.world.now, name, "Crashed", f"again in {restart_ns / 1e6:.0f} ms")
        self._gone(life, "reset by peer")
        self.world.after(restart_ns, self._random, self.start_participant, name)
        return True

    def participant_ended(self, life: ParticipantLife) -> None:
        """A life is over by itself."""
        if life in self.frozen:
            self.probes.hit("twin.ended")
            self._over(life, "closed")
            return
        if life.ended == "left":
            self.have_left[life.name] = None
        self._gone(life, "closed")
        self.world.after(20 * MS + self._random.below(500 * MS), self._random, self.start_participant, life.name)

    def _gone(self, life: ParticipantLife, reason: str) -> None:
        self.participant_deaths += 1
        self._over(life, reason)
        if self.disk_of(life.name).stops_with_its_process():
            self.stop_machine(life.name)
        self.store.died(life.name)

    def _over(self, life: ParticipantLife, reason: str) -> None:
        life.die()
        life.pump.close()
        self.network.died(life)
        line = life.control.line
        if line is not None:
            self.world.after(self.options.latency_ns, self._random, line.cut, reason)

    def freeze_with_twin(self, name: str) -> ParticipantLife | None:
        """A participant stops, as by SIGSTOP, and whoever looks after it starts another process in its place.

        Returns:
            The frozen one; None: there is nobody to freeze.
        """
        life = self.lives.get(name)
        if life is None or not life.alive or life.asleep is not None or not life.ghost.session:
            return None
        life.suspend()
        self.frozen.append(life)
        del self.lives[name]
        self.start_participant(name)
        return life

    def _kill_twin(self, twin: ParticipantLife) -> None:
        if twin.alive:
            self.probes.hit("twin.killed")
            self._over(twin, "reset by peer")

    def stop_machine(self, name: str) -> None:
        """A participant's process has ended with its machine: so has one that was frozen there, whose place it had taken."""
        for twin in self.frozen:
            if twin.name == name:
                self._kill_twin(twin)
        self.disk_of(name).machine_stopped()

    def orders_seen(self, life: ParticipantLife, message: ToParticipant) -> None:
        """A life was told something: kept, so that orders can come to the next one as if they had waited in a queue."""
        name = life.name
        if isinstance(message, Registered):
            queued = self._queued.pop(name, None)
            if queued is not None and queued[0] != life.number and self._late_random.chance(self.late_orders, 1000):
                self.probes.hit("order.of_dead_session")
                for order in queued[1]:
                    self.world.after(self._late_random.below(400 * MS), self._late_random, life.order_comes_late, order)
        elif isinstance(message, Restore | StartEpoch | TopologyChanged):
            number, orders = self._queued.get(name, (life.number, []))
            orders = orders if number == life.number else []
            self._queued[name] = (life.number, [*orders, message][-QUEUED_ORDERS:])

    # --- coordinators -------------------------------------------------------------------------------------------------

    def start_coordinator(self, name: str) -> None:
        """The next life of a coordinator."""
        before = self.log.lives.get(name)
        if before is not None and before.alive:
            return
        number = self._life_numbers[name] = self._life_numbers.get(name, 0) + 1
        life = self.make_coordinator(name, number, self._dumps.get(name))
        self.trace.note(self.world.now, name, "Started", f"life {number}, {life.applied} entries in its snapshot")
        self.log.started(life)

    def crash_coordinator(self, name: str, restart_ns: int) -> bool:
        """Kill a coordinator; it starts again after a while."""
        life = self.log.lives.get(name)
        if life is None or not life.alive:
            return False
        self.coordinator_deaths += 1
        if self._random.chance(1, 2):
            # Its own compaction, some time ago; entries behind it come from the log again.
            self._dumps[name] = (life.ledger.dump(), life.applied)
        self.trace.note(self.world.now, name, "Crashed", f"again in {restart_ns / 1e6:.0f} ms")
        life.die()
        self.store.died(name)
        for line in list(life.lines.values()):
            self.world.after(self.options.latency_ns, self._random, line.cut, "reset by peer")
        self.log.look()
        self.world.after(restart_ns, self._random, self.start_coordinator, name)
        return True

    def keep_dump(self, name: str, dump: tuple[str, int]) -> None:
        """A coordinator's snapshot of its ledger is durable, with so many entries in it."""
        self._dumps[name] = dump

    def unstored_part(self, leader: str, random: Prng) -> str:
        """Key of a local snapshot of the epoch that this leader has just sealed; "" where its manifest may be there."""
        life, history = self.log.lives.get(leader), self.oracles.history
        if life is None or life is not self.log.leader:
            return ""
        for record in reversed(life.ledger.open_epochs()):
            if record.state == "sealed":
                key = snapshot_key(record.members[random.pick(sorted(record.members))].snapshot)
                stored = self.store.visible(manifest_key(record.epoch)) is not None
                return "" if stored or history.states.get(record.epoch) != "sealed" else key
        return ""

    def _crash_in_put(self, who: str) -> None:
        """The store killed somebody between two system calls."""
        restart = 100 * MS + self._random.below(SECOND)
        if who in self.targets:
            self.crash_participant(who, restart)
        else:
            self.crash_coordinator(who, restart)

    def power_cut(self, restart_ns: int) -> bool:
        """Everything is on one machine, and its power fails."""
        for name in self.participants:
            self.crash_participant(name, restart_ns)
            self.stop_machine(name)
        for name in self.log.names:
            self.crash_coordinator(name, restart_ns)
        if not self.store.power_cut():
            return False
        check_all_committed(self)
        return True

    def disk_of(self, name: str) -> LocalDisk:
        """A participant's own disk, which outlives its lives."""
        disk = self._disks.get(name)
        if disk is None:
            disk = self._disks[name] = LocalDisk(name, stream(self.options.seed, f"disk:{name}"), self._taken_over)
        return disk

    def _taken_over(self, name: str, incarnation: int) -> None:
        self.entered[name] = max(self.entered.get(name, 0), incarnation)

    # --- control connections ------------------------------------------------------------------------------------------

    def new_line(self, client: Any, coordinator: CoordinatorLife) -> Any:  # noqa: ANN401 - by mode
        """A connection is made."""
        self._line_number += 1
        line = self.make_line(self._line_number, client, coordinator)
        self.lines = [each for each in self.lines if each.open]
        self.lines.append(line)
        return line

    def control_blocked(self, participant: str, coordinator: str) -> bool:
        """Whether a partition lies between these two."""
        blocks = self._control_blocks
        return bool(blocks) and bool(blocks.get((participant, coordinator)) or blocks.get((participant, "")))

    def address_of(self, participant: str) -> str:
        """What a participant says of where it listens."""
        return f"ws://{participant}:7000" if self.options.listens else f"memory:{participant}"

    def probe_travel(self) -> int:
        """Until a coordinator knows what it found at an address."""
        return 2 * (self.options.latency_ns + self._probe_random.below(self.options.jitter_ns + 1))

    def found_at(self, coordinator: str, address: str) -> Literal["listens", "refuses", ""]:
        """What a coordinator finds that connects to a participant's address now."""
        name = address.removeprefix("ws://").partition(":")[0]
        life = self.network.lives.get(name)
        if self.control_blocked(name, coordinator):
            self.probes.hit("probe.no_answer")
            return ""
        if life is None or not life.alive:
            self.probes.hit("probe.refused")
            return "refuses"
        if not self.healing and self._probe_random.chance(1, WRONG_REFUSALS):
            self.probes.hit("probe.refused_wrongly")
            return "refuses"
        return "listens"

    def block_control(self, participant: str, coordinator: str) -> None:
        """A partition between a participant and a coordinator ("": all of them)."""
        key = (participant, coordinator)
        self._control_blocks[key] = self._control_blocks.get(key, 0) + 1

    def unblock_control(self, participant: str, coordinator: str) -> None:
        """It is over."""
        key = (participant, coordinator)
        self._control_blocks[key] -= 1
        if not self._control_blocks[key]:
            del self._control_blocks[key]
        for line in self.lines:
            if line.open and not self.control_blocked(line.client.life.name, line.coordinator.name):
                line.unblocked()

    # --- time ---------------------------------------------------------------------------------------------------------

    def wall(self, name: str) -> int:
        """A coordinator's wall clock, ns; it may jump."""
        return WALL_NS + self.world.now + self._wall_jump.get(name, 0)

    def jump_wall(self, name: str, by_ns: int) -> None:
        """Set a wall clock."""
        self._wall_jump[name] = self._wall_jump.get(name, 0) + by_ns

    # --- the end of faults --------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Mend everything: no fault is active, everybody is awake, and who is gone comes back."""
        self.healing = True
        self.late_orders = 0
        self.operator.heal()
        for name in list(self.absent):
            if name in self.lasting:
                self.lives.pop(name, None)
            elif self.operator.gives_up(name):
                self.world.after(GIVEN_UP_NS, self._random, self.comes_back, name)
            else:
                del self.absent[name]
        self.probes.disarm()
        for key in list(self._control_blocks):
            while key in self._control_blocks:
                self.unblock_control(*key)
        self.network.heal()
        self.store.heal()
        for name in self.log.names:
            life = self.log.lives.get(name)
            if life is not None and life.asleep is not None:
                life.resume()
        self.log.heal()
        for twin in self.frozen:
            if twin.asleep is not None:
                twin.resume()
            # If it still has its session, its successor waits for that: an operator decides.
            self.world.after(KILLED_TWIN_NS, self._random, self._kill_twin, twin)
        for name in self.participants:
            participant = self.lives.get(name)
            if participant is not None and participant.asleep is not None:
                participant.resume()
            if name not in self.absent and (participant is None or not participant.alive):
                self.world.after(HEALED_START_NS, self._random, self.start_participant, name)
        for name in self.log.names:
            coordinator = self.log.lives.get(name)
            if coordinator is None or not coordinator.alive:
                self.world.after(HEALED_START_NS, self._random, self.start_coordinator, name)

    def incarnation_on_disk(self, life: ParticipantLife) -> int:
        """Highest that a participant's next life would find there."""
        return self.entered.get(life.name, 0)

    # --- looking ------------------------------------------------------------------------------------------------------

    def all_members(self) -> bool:
        """Every participant is a member, with one topology among them, and a leader is at work."""
        leader = self.log.leader
        if leader is None or not leader.alive or not leader.machine.leading:
            return False
        topology = leader.ledger.state.topology
        if any(name not in self.lasting for name in self.absent):
            return False
        here = len(self.participants) - len(self.absent)
        if len(topology.members) != here or leader.ledger.topology_is_stale:
            return False
        if not leader.ledger.incarnation_begun:
            return False
        for member in topology.members:
            life = self.lives.get(member.id)
            if life is None or not life.alive or life.machine.session != member.session:
                return False
            if life.machine.incarnation != leader.ledger.state.incarnation:
                return False
            if life.machine.topology is None or life.machine.topology.version != topology.version:
                return False
        return True

    def idle(self) -> bool:
        """Nothing is on its way and nobody has anything to do."""
        if self.options.recovery and not all(life.member for life in self.lives.values()):
            return False  # a rollback is under way
        return all(
            life.alive
            and not life.machine.leaving  # what is said to it goes with it
            and not life.pump.busy
            and not life.input_comes
            and not life.parked_steps()
            and not life.machine.outgoing_bytes
            and not life.machine.flush_wanted
            for life in self.lives.values()
        )
