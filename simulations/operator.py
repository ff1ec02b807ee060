"""An operator of a simulated cluster: has it restored, moves and renames agents, gives some up, and now and then errs.

What faults begin (`simulations.faults`) are wishes here: looked at again and again until the leader has carried them out, has
refused them for good, or there is nothing to do any more. Each request has a reason of its own, so that the oracles know which
rollback is whose (`simulations.oracles.placement`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from coordinator.events import RestoreRequested
from simulations.names import first_of
from simulations.oracles.rot import was_spoiled
from simulations.prng import sample, stream
from simulations.violations import Violation
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from coordinator.ledger import Ledger
    from simulations.cluster import SimulatedCluster
    from simulations.coordinator_node import CoordinatorLife
    from simulations.wishes import Wish

LOOK_NS: Final = SECOND
"""Between two looks at a cluster with a manual policy, at least."""
WISH_NS: Final = 300 * MS
PATIENCE_NS: Final = 8 * SECOND
"""Without an answer for so long, a request is made again."""
TRIES_MAX: Final = 6
REASON: Final = "an operator wants it so"
"""Of requests that are no wish's."""
NEEDED: Final = ("rename", "give-up")
"""Without which a cluster may wait for ever: wanted in the healed world, too."""
_FOR_GOOD: Final = ("bad-map", "not-committed", "unknown", "corrupt")


class Operator:
    """Of one run."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._random = stream(cluster.options.seed, "operator")
        self._mind = stream(cluster.options.seed, "operator's wishes")
        self._wishes: list[Wish] = []
        self._number = 0
        self.asked: dict[str, tuple[Wish, RestoreRequested]] = {}
        """By reason."""
        self.asked_for: dict[int, None] = {}
        """Epochs that were asked for by number."""

    def boot(self) -> None:
        """Begin to look."""
        options, world = self._cluster.options, self._cluster.world
        if options.by_hand or options.refuse:
            world.after(LOOK_NS, self._random, self._look, 1)
        if options.elsewhere:
            world.after(WISH_NS, self._mind, self._look_at_wishes)

    def wants(self, wish: Wish) -> None:
        """From now on."""
        self._wishes.append(wish)

    def heal(self) -> None:
        """What would only disturb is not wanted any more."""
        self._wishes = [wish for wish in self._wishes if wish.kind in NEEDED]

    def gives_up(self, name: str) -> bool:
        """Whether a participant's agents are to be given up, and are not yet."""
        return any(wish.kind == "give-up" and wish.who == name for wish in self._wishes)

    def asked_by(self, cause: str) -> tuple[Wish, RestoreRequested] | None:
        """Whose rollback it is that has this cause; None: nobody's who gave a reason."""
        return self.asked.get(cause.partition(";")[0])

    def has_named(self, epoch: int, cause: str) -> bool:
        """Whether a rollback that has this cause goes to an epoch because it was asked for by number."""
        return epoch in self.asked_for and (cause.startswith(REASON) or self.asked_by(cause) is not None)

    # --- a manual policy ----------------------------------------------------------------------------------------------

    def _look(self, number: int) -> None:
        """Where somebody is lost, or a rollback has failed, the operator asks for one."""
        cluster = self._cluster
        leader = cluster.log.leader
        if leader is not None and leader.alive and leader.machine.leading:
            ledger = leader.ledger
            record = ledger.rollback
            failed = record is not None and record.state == "failed"
            if ledger.lost_members() or failed:
                epoch = self._choice(ledger)
                if cluster.options.by_hand or epoch is not None:
                    cluster.probes.hit("restore.by_hand")
                    renames = () if epoch is None else self._map(ledger, epoch)
                    request = RestoreRequested(request=f"restore-{number}", epoch=epoch, reason=REASON, renames=renames)
                    self._ask(leader, request)
        pause = LOOK_NS + self._random.below(2 * LOOK_NS)
        cluster.world.after(pause, self._random, self._look, number + 1)

    def there(self) -> list[int]:
        """Committed epochs of which everything can be read, and which were not given up."""
        history = self._cluster.oracles.history
        return [
            number
            for number, state in history.states.items()
            if state == "committed" and number not in history.given_up and not was_spoiled(self._cluster, number)
        ]

    def _choice(self, ledger: Ledger) -> int | None:
        """Most often the newest; now and then the one before, of those that are there."""
        cluster = self._cluster
        if cluster.options.refuse and ledger.recovery_epoch:
            there = self.there()
            if ledger.recovery_epoch not in there and there:
                cluster.probes.hit("restore.named_for_refusal")
                return self._named(there[-1])
        if not cluster.options.by_hand or not self._random.chance(1, 3):
            return None
        there = self.there()
        if len(there) < 2:
            return None
        cluster.probes.hit("restore.asked_for_older")
        return self._named(there[-2])

    def _named(self, epoch: int) -> int:
        self.asked_for[epoch] = None
        return epoch

    def _ask(self, leader: CoordinatorLife, request: RestoreRequested) -> None:
        leader.enter(leader.feed, request)

    # --- wishes -------------------------------------------------------------------------------------------------------

    def _look_at_wishes(self) -> None:
        cluster = self._cluster
        leader = cluster.log.leader
        if leader is not None and leader.alive and leader.machine.leading:
            for wish in list(self._wishes):
                self._look_at(wish, leader)
        cluster.world.after(WISH_NS + self._mind.below(2 * WISH_NS), self._mind, self._look_at_wishes)

    def _look_at(self, wish: Wish, leader: CoordinatorLife) -> None:
        cluster = self._cluster
        if wish.request is not None:
            answer = cluster.answers.get(wish.request.request)
            if answer is not None:
                self._answered(wish, wish.request, answer)
            elif cluster.world.now - wish.asked_at > PATIENCE_NS:
                wish.request = None
            return
        if wish.tries >= TRIES_MAX and wish.kind not in NEEDED:
            self._wishes.remove(wish)
            return
        fields = self._fields(wish, leader.ledger)
        if fields is None:
            return
        self._number += 1
        reason = f"wish {self._number} is to {wish.kind}"
        request = RestoreRequested(request=f"wish-{self._number}", reason=reason, **{"epoch": None, **fields})
        wish.request, wish.asked_at, wish.tries = request, cluster.world.now, wish.tries + 1
        self.asked[reason] = (wish, request)
        self._ask(leader, request)

    def _answered(self, wish: Wish, request: RestoreRequested, answer: dict[str, Any]) -> None:
        """The leader has said what came of it."""
        probe = self._cluster.probes.hit
        wish.request = None
        if answer["ok"]:
            if wish.kind == "wrong":
                raise Violation("I36", f"{request} cannot be, and the answer is {answer}")
            probe(f"operator.{wish.kind}")
            self._wishes.remove(wish)
            return
        code = answer["code"]
        if wish.kind == "wrong" and code in {"bad-map", "not-placed"}:
            named = [name for pair in (*request.renames, *request.moves) for name in pair]
            if not any(name in answer["sentence"] for name in named):
                raise Violation("I36", f"{request} is refused, and no name is said: {answer['sentence']}")
            probe("operator.refused_by_name")
        if code in _FOR_GOOD or wish.kind == "wrong":
            probe(f"operator.refused_{code}")
            # Whoever was lost when the map was made may be back since, and host what the map was to rename.
            if wish.kind not in NEEDED or (code == "bad-map" and self._is_as_it_was(request)):
                self._wishes.remove(wish)

    def _is_as_it_was(self, request: RestoreRequested) -> bool:
        leader = self._cluster.log.leader
        return leader is not None and self._map(leader.ledger, request.epoch or 0) == request.renames

    def _fields(self, wish: Wish, ledger: Ledger) -> dict[str, Any] | None:
        """What to ask for; None: not now, or there is nothing to do (then the wish is gone)."""
        match wish.kind:
            case "move" | "spread":
                return self._moves(wish, ledger)
            case "swap":
                return self._swap(ledger)
            case "rename":
                return self._renames(wish, ledger)
            case "give-up":
                return self._given_up(wish, ledger)
            case "back":
                there = self.there()[-2:]
                if not there:
                    return None
                epoch = self._named(self._mind.pick(there))
                return {"epoch": epoch, "renames": self._map(ledger, epoch)}
            case _:
                return self._wrong(wish, ledger)

    def _moves(self, wish: Wish, ledger: Ledger) -> dict[str, Any] | None:
        live = [record.id for record in ledger.participants() if record.live]
        agents = [agent for member in ledger.state.topology.members for agent in member.agents]
        if not agents or len(live) < 2:
            return None
        if wish.kind == "spread":
            if any(name not in live for name in self._cluster.spares if name not in self._cluster.absent):
                return None
            to = {agent: live[index % len(live)] for index, agent in enumerate(sorted(agents))}
        else:
            to = {agent: self._mind.pick(live) for agent in sample(self._mind, agents, 1 + wish.variant % 3)}
        moves = tuple((agent, name) for agent, name in sorted(to.items()) if ledger.host_of(agent) not in (None, name))
        return {"moves": moves} if moves else None

    def _swap(self, ledger: Ledger) -> dict[str, Any] | None:
        agents = sorted(agent for member in ledger.state.topology.members for agent in member.agents)
        kinds = [agent.partition("/")[0] for agent in agents]
        kind = self._mind.pick(kinds) if kinds else ""
        chosen = sample(self._mind, [agent for agent in agents if agent.partition("/")[0] == kind], 2)
        if len(chosen) < 2:
            return None
        one, other = chosen
        renames = {**dict(self._map(ledger, ledger.recovery_epoch)), one: other, other: one}
        return {"renames": tuple(sorted(renames.items()))}

    def _renames(self, wish: Wish, ledger: Ledger) -> dict[str, Any] | None:
        record = ledger.state.participants.get(wish.who)
        if record is None or not record.live:
            return None
        declared = self._cluster.workload.names.declared
        if any(declared(first_of(agent)) != agent for agent in record.declared):
            return None  # it is the process of before, or somebody thought better of it meanwhile
        there, epoch = self.there(), ledger.recovery_epoch
        if epoch and epoch not in there:
            if not there:
                return None
            epoch = there[-1]
        renames = self._map(ledger, epoch)
        if not any(new in record.agents for _, new in renames):
            self._wishes.remove(wish)  # they have come back in another way
            return None
        return {"epoch": self._named(epoch), "renames": renames}

    def _map(self, ledger: Ledger, epoch: int) -> tuple[tuple[str, str], ...]:
        """All that is called otherwise now than in an epoch: whoever maps one agent has to name them all."""
        if not self._cluster.options.elsewhere:
            return ()
        if epoch:
            held = [
                agent for agents in self._cluster.oracles.history.started[epoch].agents.values() for agent in agents
            ]
        else:
            held = [agent for member in ledger.state.topology.members for agent in member.agents]
        hosted = [agent for record in ledger.participants() if record.live for agent in record.agents]
        found = {}
        for new in hosted:
            old = [agent for agent in held if first_of(agent) == first_of(new) and agent not in hosted]
            if new not in held and len(old) == 1:
                found[old[0]] = new
        return tuple(sorted(found.items()))

    def _given_up(self, wish: Wish, ledger: Ledger) -> dict[str, Any] | None:
        if wish.who not in self._cluster.absent:
            self._wishes.remove(wish)  # it is back
            return None
        if all(member.id != wish.who for member in ledger.lost_members()):
            return None
        return {"allow_unclaimed": True}

    def _wrong(self, wish: Wish, ledger: Ledger) -> dict[str, Any] | None:
        """Something that cannot be, whenever it is looked at."""
        agents = [agent for member in ledger.state.topology.members for agent in member.agents]
        if len(agents) < 2:
            return None
        one, other = sample(self._mind, agents, 2)
        match wish.variant % 5:
            case 0:
                return {"renames": ((one, one),)}
            case 1:
                return {"renames": ((f"{one}-or-not", one),)}
            case 2:
                return {"renames": tuple(sorted(((one, f"{one}-new"), (other, f"{one}-new"))))}
            case 3:
                # In an epoch from before its host came nobody has the name yet, and it can be given.
                started = self._cluster.oracles.history.started
                held = [{agent for at in started[epoch].agents.values() for agent in at} for epoch in self.there()[-3:]]
                return {"renames": ((one, other),)} if held and all({one, other} <= each for each in held) else None
            case _:
                return {"moves": ((one, "nobody"),)}
