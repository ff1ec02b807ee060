"""I22 to I28 of rollbacks: nothing old has an effect, an incarnation is entered once, and everybody gets what the epoch held.

What an agent must get back is taken from the ghost's own cuts and lists, not from the store: its state and mailbox at the
cut, and behind it, channel by channel, what had been sent to it before the sender's cut and not received before its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from participant.inputs import came_with_token
from participant.machine_events import SendControl
from participant.restoring import RESTORED_TYPE
from protocol.digests import fence_key
from protocol.messages import Envelope
from simulations.oracles.placement import renamed
from simulations.violations import Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from participant.machine_events import Effect
    from participant.runtime.loader import Loaded
    from protocol.messages import Restore
    from simulations.cluster import SimulatedCluster
    from simulations.ghost import GhostCut
    from simulations.participant_node import ParticipantLife

_decode = msgspec.msgpack.Decoder(Envelope).decode


class Rollbacks:
    """What the ghost knows of rollbacks."""

    def __init__(self) -> None:
        self.totals: dict[int, int] = {}
        """Epoch -> what it held of the workload's total, judged by I5."""
        self.count = 0
        """Incarnations that somebody was ordered into."""
        self._bases: dict[int, int] = {}
        """Incarnation -> epoch."""
        self._lives: dict[tuple[str, int], int] = {}
        """(participant, incarnation) -> session that entered it by a restore order."""
        self._members: dict[int, frozenset[str]] = {}
        """Incarnation -> who is restored into it; asked, never iterated."""
        self._begun: set[int] = set()
        """Incarnations in which somebody runs; asked, never iterated."""

    def has_begun(self, incarnation: int) -> bool:
        """Whether anybody runs in it."""
        return incarnation in self._begun

    def ordered(self, life: ParticipantLife, order: Restore, effects: Sequence[Effect]) -> None:
        """A restore order for this very life has arrived; `effects` is what it brought about.

        Raises:
            Violation: I23, I27, I28.
        """
        cluster = life.cluster
        if not cluster.store.is_durable(fence_key(order.incarnation)):
            raise Violation(
                "I23", f"{life.name} is ordered into incarnation {order.incarnation}, and the store is not fenced"
            )
        cluster.workload.check_fenced(order.incarnation)
        if order.incarnation not in self._bases:
            self.count += 1
        base = self._bases.setdefault(order.incarnation, order.epoch)
        self._members[order.incarnation] = frozenset(member.id for member in order.members)
        if base != order.epoch:
            raise Violation("I28", f"incarnation {order.incarnation} begins from epoch {base} and from {order.epoch}")
        if order.epoch and cluster.oracles.history.states.get(order.epoch) != "committed":
            raise Violation(
                "I28", f"incarnation {order.incarnation} begins from epoch {order.epoch}, which is not committed"
            )
        if self._lives.get((life.name, order.incarnation)) is not None and order.incarnation == life.ghost.incarnation:
            if any(not isinstance(effect, SendControl) for effect in effects):
                raise Violation(
                    "I27", f"{life.name}: a repeated order into incarnation {order.incarnation} has an effect"
                )
            cluster.probes.hit("restore.repeated")

    def enters(self, life: ParticipantLife, incarnation: int) -> None:
        """A life has obeyed an order, and the incarnation is on its disk.

        Raises:
            Violation: I24.
        """
        known = self._lives.setdefault((life.name, incarnation), life.ghost.session)
        if known != life.ghost.session:
            raise Violation(
                "I24", f"{life.name}: sessions {known} and {life.ghost.session} enter incarnation {incarnation}"
            )

    def begun(self, life: ParticipantLife) -> None:
        """A restored life's agents run.

        Raises:
            Violation: I5, I28.
        """
        cluster, incarnation = life.cluster, life.ghost.incarnation
        topology = life.machine.topology
        assert topology is not None, "it runs without a topology"
        if incarnation in self._begun:
            return
        self._begun.add(incarnation)
        epoch = self._bases[incarnation]
        if epoch and epoch not in self.totals:
            return  # its manifest was not judged: it became visible before somebody died on the way
        total = 0
        here: list[str] = []
        for member in topology.members:
            if member.id not in self._members[incarnation]:
                continue  # it joined since, before anybody was told to run
            other = cluster.ghost.lives.get(member.session)
            if other is None or other.incarnation != incarnation or not other.is_restored:
                raise Violation(
                    "I28", f"{life.name} runs in incarnation {incarnation}, and {member.id} is not restored"
                )
            total += other.opening or 0
            here += member.agents if cluster.options.elsewhere else [member.id]
        cluster.placements.check_heirs(topology, incarnation)
        fresh = self._fresh(cluster, incarnation, here)
        if fresh is None:
            return
        if total != self.totals.get(epoch, 0) + fresh:
            raise Violation(
                "I5",
                f"incarnation {incarnation} begins with {total}; epoch {epoch} held {self.totals.get(epoch, 0)}, fresh agents "
                f"bring {fresh}",
            )

    def _fresh(self, cluster: SimulatedCluster, incarnation: int, here: list[str]) -> int | None:
        """What those bring that begin anew, without what those held that are given up; None: it is not known, inside of a turn."""
        beginning = cluster.placements.beginning(incarnation)
        epoch = beginning.epoch
        held = cluster.oracles.history.started[epoch].agents if epoch else {}
        workload = cluster.workload
        if not cluster.options.elsewhere:
            return sum(workload.share(name) for name in here if name not in held)
        known = {beginning.renames.get(agent, agent) for agents in held.values() for agent in agents}
        fresh = sum(workload.brings(agent) for agent in here if agent not in known)
        cuts = self._cuts(cluster, epoch)
        for agent in sorted(agent for agents in held.values() for agent in agents):
            if beginning.renames.get(agent, agent) in beginning.dropped:
                cut = next(cut for cut in cuts.values() if agent in cut.states)
                if not cut.states[agent]:
                    return None
                fresh -= workload.held(dict(msgspec.msgpack.decode(cut.states[agent])))
                fresh -= sum(map(workload.carried_bytes, self._waiting(cluster, cuts, cut, agent, epoch)))
        return fresh

    def restored(self, life: ParticipantLife, order: Restore, loaded: Loaded) -> None:
        """A life's agents were loaded.

        Raises:
            Violation: I26.
        """
        cluster = life.cluster
        if cluster.incarnation_on_disk(life) < order.incarnation:
            raise Violation("I24", f"{life.name} loads incarnation {order.incarnation}, which is not on its disk")
        cluster.probes.hit("restore.loaded_epoch" if order.epoch else "restore.loaded_start")
        placed = next((set(member.agents) for member in order.members if member.id == life.name), set())
        if {host.id for host in loaded.hosts} != placed:
            raise Violation(
                "I26", f"{life.name} is to host {sorted(placed)}, and has {[host.id for host in loaded.hosts]}"
            )
        cuts = self._cuts(cluster, order.epoch)
        renames = cluster.placements.beginning(order.incarnation).renames
        firsts = {new: old for old, new in renames.items()}
        forms = cluster.workload.forms
        had = life.ghost.had
        for host in loaded.hosts:
            # Whoever has a name that an agent of the epoch had is another one.
            was = firsts.get(host.id, "" if host.id in renames else host.id)
            source = next((name for name, cut in cuts.items() if was in cut.states), None)
            if source is None:
                continue  # fresh: I5 of the whole, and the mailbox holds its start
            cut = cuts[source]
            state = forms.at_cut(host)
            if cut.states[was] and state and state != cut.states[was]:
                raise Violation(
                    "I26", f"{life.name}: {host.id} does not have the state of its cut of epoch {order.epoch}"
                )
            waiting = self._waiting(cluster, cuts, cut, was, order.epoch)
            had |= cut.had
            had.update(message.id for message in map(_decode, waiting) if came_with_token(message.source, message.id))
            expected = [renamed(data, renames) for data in waiting]
            mailbox = [data for envelope, data in host.mailbox if envelope.type != RESTORED_TYPE]
            if mailbox != expected:
                raise Violation(
                    "I26",
                    f"{life.name}: {host.id} has {len(mailbox)} messages, {len(expected)} were there or on their way at its "
                    f"cut of epoch {order.epoch}, or they are others",
                )
            if len(host.timers) != cut.timers[was]:
                raise Violation("I26", f"{life.name}: {host.id} has {len(host.timers)} timers of {cut.timers[was]}")

    @staticmethod
    def _cuts(cluster: SimulatedCluster, epoch: int) -> dict[str, GhostCut]:
        """Participant -> its cut of an epoch; of the start there are none."""
        if not epoch:
            return {}
        sessions = cluster.oracles.history.started[epoch].sessions
        return {name: cluster.ghost.cuts[session, epoch] for name, session in sessions.items()}

    @staticmethod
    def _waiting(
        cluster: SimulatedCluster, cuts: dict[str, GhostCut], cut: GhostCut, agent: str, epoch: int
    ) -> list[bytes]:
        """What was in an agent's mailbox at the cut, and behind it what was on its way to it, channel by channel."""
        found = [data for data in cut.mailboxes[agent] if _decode(data).type != RESTORED_TYPE]
        had = set(cut.had)
        for name in sorted(cuts):
            for stream, sent in cuts[name].sent.items():
                if stream.target_session != cut.line or stream.incarnation != _incarnation(cluster, epoch):
                    continue
                flying = stream.sent[cut.received.get(stream, 0) : sent]
                if flying:
                    cluster.probes.hit("restore.in_flight")
                for data in flying:
                    message = _decode(data)
                    if message.target != agent:
                        continue
                    if came_with_token(message.source, message.id):
                        if message.id in had:
                            continue  # it had come by another way
                        had.add(message.id)
                    found.append(data)
        return found


def _incarnation(cluster: SimulatedCluster, epoch: int) -> int:
    """That an epoch is of."""
    return int(cluster.oracles.history.started[epoch].incarnation)
