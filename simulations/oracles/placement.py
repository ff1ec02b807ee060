"""I35 and I36: what an epoch holds has one place in the incarnation that begins from it, and an operator's word is kept.

I35: each agent of the epoch has exactly one host among the members, under the name that it has from then on; but for those that
an operator has given up, and only those. What was held for agents that were not there (unrouted messages) goes on from one heir.
Names are followed along the line of epochs: a rename that an operator asked for lasts, also where a rollback goes further back
than the epoch of the rename; whoever names an epoch says all of it anew.

I36: what an operator is refused has no effect, and what was granted has happened: agents are where they were to go and are called
what they were to be called.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from protocol.messages import Envelope
from simulations.names import first_of
from simulations.violations import Violation

if TYPE_CHECKING:
    from coordinator.events import RestoreRequested
    from coordinator.ledger import Ledger
    from protocol.topology import Topology
    from simulations.cluster import SimulatedCluster
    from simulations.ghost import GhostCut

_decode = msgspec.msgpack.Decoder(Envelope).decode


class Beginning:
    """How an incarnation began."""

    __slots__ = ("dropped", "epoch", "renames")

    def __init__(self, epoch: int, renames: dict[str, str], dropped: tuple[str, ...]) -> None:
        self.epoch = epoch
        self.renames = renames
        """Name in the epoch -> name from then on."""
        self.dropped = dropped
        """Names from then on."""


class Placements:
    """Of all incarnations."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.begun: dict[int, Beginning] = {}
        self._given_up: dict[str, None] = {}
        """Agents that operators have given up."""
        self._given: dict[str, None] = {}
        """Names that agents were given, in any incarnation: they last."""

    def beginning(self, incarnation: int) -> Beginning:
        """How it began."""
        return self.begun.get(incarnation) or Beginning(0, {}, ())

    def gave_up(self, first: str) -> bool:
        """Whether an agent was given up in any incarnation, by its first name."""
        return any(first_of(agent) == first for each in self.begun.values() for agent in each.dropped)

    def rolled_back(self, ledger: Ledger, command: dict[str, Any], before: int) -> None:
        """The entry that begins an incarnation is applied.

        Args:
            ledger: Of the replica that has applied it.
            command: The entry.
            before: Incarnation that it ends.

        Raises:
            Violation: I35, I36.
        """
        cluster = self._cluster
        incarnation, epoch = int(command["incarnation"]), int(command["epoch"])
        renames: dict[str, str] = dict(command.get("renames", ()))
        dropped = tuple(command.get("dropped", ()))
        asked = cluster.operator.asked_by(command["cause"])
        request = None if asked is None else asked[1]
        where = f"incarnation {incarnation} from epoch {epoch} ({command['cause'][:60]})"
        if asked is not None and asked[0].kind == "wrong":
            raise Violation("I36", f"{where} begins, though it was asked for what cannot be: {request}")
        held = self._held(epoch)
        if epoch:
            self._check_names(where, renames, request, held, command, before)
        if request is not None and request.allow_unclaimed:
            self._given_up.update(dict.fromkeys(dropped))
        elif not self._given_up.keys() >= {*dropped}:
            raise Violation("I35", f"{where}: {dropped} are given up, and nobody has allowed it")
        hosts: dict[str, list[str]] = {}
        for member in ledger.state.topology.members:
            for agent in member.agents:
                hosts.setdefault(agent, []).append(member.id)
        for agent, at in sorted(hosts.items()):
            if len(at) > 1:
                raise Violation("I35", f"{where}: {agent} is hosted by {at}")
        # A name that somebody was given before is that agent's, although this epoch does not hold it yet.
        for agent in sorted(renames.keys() - {*renames.values()} - self._given.keys()):
            if agent in hosts:
                raise Violation(
                    "I35", f"{where}: {agent} is {renames[agent]} now, and hosted by {hosts[agent]} all the same"
                )
        for agent in sorted(renames.get(agent, agent) for agent in held):
            if (agent in hosts) == (agent in dropped):
                raise Violation(
                    "I35", f"{where}: {agent} is hosted by {hosts.get(agent)}, given up: {agent in dropped}"
                )
        if request is not None:
            for agent, name in request.moves:
                if hosts.get(agent) != [name] and hosts.get(renames.get(agent, agent)) != [name]:
                    raise Violation("I36", f"{where}: {agent} was to move to {name}, and is at {hosts.get(agent)}")
        self.begun[incarnation] = Beginning(epoch, renames, dropped)
        self._given.update(dict.fromkeys(renames.values()))
        base = int(cluster.oracles.history.started[epoch].incarnation) if epoch else 0
        cluster.workload.names.began(incarnation, base, renames)
        for name, found in (("renamed", renames), ("dropped", dropped)):
            if found:
                cluster.probes.hit(f"restore.{name}")
        if epoch and any(hosts.get(renames.get(agent, agent), [name]) != [name] for agent, name in held.items()):
            cluster.probes.hit("restore.elsewhere")

    def _held(self, epoch: int) -> dict[str, str]:
        if not epoch:
            return {}
        agents = self._cluster.oracles.history.started[epoch].agents
        return {agent: name for name, placed in agents.items() for agent in placed}

    def _check_names(
        self,
        where: str,
        renames: dict[str, str],
        request: RestoreRequested | None,
        held: dict[str, str],
        command: dict[str, Any],
        before: int,
    ) -> None:
        epoch = int(command["epoch"])
        if request is not None and (request.epoch is not None or request.renames):
            wanted = dict(request.renames)
        elif request is None and self._cluster.operator.has_named(epoch, command["cause"]):
            return  # asked for without a reason of its own
        else:
            wanted = self._line(held, epoch, before)
        found = {old: new for old, new in renames.items() if old in held and old != new}
        if found != {old: new for old, new in wanted.items() if old in held and old != new}:
            wanted = {old: new for old, new in wanted.items() if old != new}
            raise Violation("I35", f"{where}: agents are renamed by {found}; asked for was {wanted}")

    def _line(self, held: dict[str, str], epoch: int, before: int) -> dict[str, str]:
        """What an epoch's agents are called in an incarnation that comes from it, by all renames on the way."""
        started = self._cluster.oracles.history.started
        target = started[epoch].incarnation
        names: dict[str, str] = {}
        incarnation = before
        path: list[Beginning] = []
        while incarnation > target and incarnation in self.begun:
            path.append(self.begun[incarnation])
            base = path[-1].epoch
            incarnation = int(started[base].incarnation) if base else 0
        for agent in held:
            name = agent
            for beginning in reversed(path):
                name = beginning.renames.get(name, name)
            names[agent] = name
        return names

    # --- when everybody has its part -----------------------------------------------------------------------------------

    def check_heirs(self, topology: Topology, incarnation: int) -> None:
        """Messages that nobody's mailbox held have one heir each.

        Raises:
            Violation: I35.
        """
        cluster = self._cluster
        ghost, beginning = cluster.ghost, self.beginning(incarnation)
        if not beginning.epoch:
            return
        wanted: Counter[bytes] = Counter()
        for cut in self._cuts(beginning.epoch).values():
            wanted.update(renamed(data, beginning.renames) for data in cut.unrouted)
        found: Counter[bytes] = Counter()
        for member in topology.members:
            found.update(ghost.lives[member.session].inherited)
        if found != wanted:
            raise Violation(
                "I35",
                f"incarnation {incarnation}: {found.total()} messages wait for agents, {wanted.total()} did at the cut of epoch "
                f"{beginning.epoch}, or they are others",
            )

    def _cuts(self, epoch: int) -> dict[str, GhostCut]:
        ghost = self._cluster.ghost
        sessions = self._cluster.oracles.history.started[epoch].sessions
        return {name: ghost.cuts[session, epoch] for name, session in sessions.items()}


def renamed(data: bytes, renames: dict[str, str]) -> bytes:
    """An encoded message with the names of from now on."""
    if not renames:
        return data
    envelope = _decode(data)
    source, target = renames.get(envelope.source), renames.get(envelope.target)
    if source is None and target is None:
        return data
    changed = msgspec.structs.replace(envelope, source=source or envelope.source, target=target or envelope.target)
    return msgspec.msgpack.encode(changed)
