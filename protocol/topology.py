"""Topology: who is a member, which channels there are, who hosts which agent, and who must start an epoch.

One topology version is a frozen document from the ledger; everything here is a function of it. Channels follow from the
members' targets: one to each target that is a member, never to oneself. What a participant sends to itself goes straight
into its mailbox and is part of its local state; a participant that *names* itself as a target is refused, loudly, because
it would wait for a marker that nobody sends.

Whom a start order reaches decides whether an epoch can end (Chandy & Lamport 1985, section 3.3, termination): each
participant must get the order or be reachable by markers from one that does. ``all`` works for any graph. ``minimal`` is one
participant of each source component: a strongly connected component that no channel from outside leads into.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from protocol.errors import ConfigError, IllegalName
from protocol.ids import AgentId, ChannelId, ParticipantId, TopologyVersion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from networkx import DiGraph

    from protocol.messages import Member


def check_targets(participant: str, targets: Iterable[str] | None) -> None:
    """Refuse targets that no topology can hold; for use when a participant registers.

    Raises:
        IllegalName: The participant is its own target.
    """
    if targets is not None and participant in targets:
        raise IllegalName("channel", f"{participant}->{participant}")


@dataclass(frozen=True, slots=True)
class Topology:
    """One version of the member list.

    Answers come in sorted order, whatever the order of `members`: the same version gives the same bytes everywhere.
    """

    version: TopologyVersion
    members: tuple[Member, ...]
    _by_id: dict[ParticipantId, Member] = field(init=False, repr=False, compare=False)
    _targets: dict[ParticipantId, frozenset[str] | None] = field(init=False, repr=False, compare=False)
    """Targets that are members; None: all the others."""
    _hosts: dict[AgentId, ParticipantId] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check and index.

        Raises:
            ConfigError: Two members have one id, or host one agent, or a member is its own target (`IllegalName`).
        """
        by_id: dict[ParticipantId, Member] = {}
        hosts: dict[AgentId, ParticipantId] = {}
        for member in sorted(self.members, key=_member_id):
            participant = ParticipantId(member.id)
            if participant in by_id:
                raise ConfigError("topology", f"two members are called {member.id!a}")
            check_targets(member.id, member.targets)
            by_id[participant] = member
            for agent in member.agents:
                host = hosts.setdefault(AgentId(agent), participant)
                if host != participant:
                    raise ConfigError("topology", f"agent {agent!a} is hosted by {host} and by {participant}")
        targets = {
            participant: None if member.targets is None else frozenset(t for t in member.targets if t in by_id)
            for participant, member in by_id.items()
        }
        # A frozen dataclass is set up once, here; nothing writes to it later.
        object.__setattr__(self, "_by_id", by_id)
        object.__setattr__(self, "_targets", targets)
        object.__setattr__(self, "_hosts", hosts)

    def participants(self) -> tuple[ParticipantId, ...]:
        """Ids of all members, sorted."""
        return tuple(self._by_id)

    def member(self, participant: ParticipantId) -> Member | None:
        """The member of this id, or None."""
        return self._by_id.get(participant)

    def channels(self) -> tuple[ChannelId, ...]:
        """All channels, sorted by source, then target."""
        return tuple(channel for participant in self._by_id for channel in self.outgoing(participant))

    def outgoing(self, participant: ParticipantId) -> tuple[ChannelId, ...]:
        """Channels from a member, sorted by target; none for a stranger."""
        return tuple(ChannelId(participant, target) for target in self.targets_of(participant))

    def incoming(self, participant: ParticipantId) -> tuple[ChannelId, ...]:
        """Channels to a member, sorted by source; none for a stranger."""
        return tuple(ChannelId(source, participant) for source in self.sources_of(participant))

    def targets_of(self, participant: ParticipantId) -> tuple[ParticipantId, ...]:
        """Members to which a member has a channel, sorted; none for a stranger."""
        if participant not in self._by_id:
            return ()
        targets = self._targets[participant]
        if targets is None:
            return tuple(other for other in self._by_id if other != participant)
        return tuple(other for other in self._by_id if other in targets)

    def sources_of(self, participant: ParticipantId) -> tuple[ParticipantId, ...]:
        """Members that have a channel to a member, sorted; none for a stranger."""
        if participant not in self._by_id:
            return ()
        return tuple(
            other
            for other, targets in self._targets.items()
            if other != participant and (targets is None or participant in targets)
        )

    def has_channel(self, channel: ChannelId) -> bool:
        """Whether this channel is one of the topology's."""
        source, target = channel
        return source in self._by_id and target in self._by_id and self._sends(source, target)

    def host_of(self, agent: AgentId) -> ParticipantId | None:
        """The member that hosts an agent, or None."""
        return self._hosts.get(agent)

    def agents(self) -> tuple[AgentId, ...]:
        """Ids of all hosted agents, sorted."""
        return tuple(sorted(self._hosts))

    def graph(self) -> DiGraph[ParticipantId]:
        """The channels as a directed graph."""
        # Costs 100 ms of start-up: only who asks for a graph pays.
        import networkx as nx

        graph: DiGraph[ParticipantId] = nx.DiGraph()
        graph.add_nodes_from(self._by_id)
        graph.add_edges_from(self.channels())
        return graph

    def components(self) -> tuple[tuple[ParticipantId, ...], ...]:
        """Strongly connected components, each sorted, by their first members."""
        if self._is_full():
            return (self.participants(),) if self._by_id else ()
        import networkx as nx

        return tuple(sorted(tuple(sorted(component)) for component in nx.strongly_connected_components(self.graph())))

    def source_components(self) -> tuple[tuple[ParticipantId, ...], ...]:
        """Strongly connected components into which no channel leads from outside, in the order of `components`."""
        components = self.components()
        if len(components) < 2:
            return components
        place = {participant: index for index, component in enumerate(components) for participant in component}
        entered = {place[target] for source, target in self.channels() if place[source] != place[target]}
        return tuple(component for index, component in enumerate(components) if index not in entered)

    def unreachable_from(self, starters: Iterable[ParticipantId]) -> tuple[ParticipantId, ...]:
        """Members that would never take part if only these got the start order, sorted.

        Args:
            starters: Who begins; strangers among them reach nobody.
        """
        reached = {participant for participant in starters if participant in self._by_id}
        ahead = sorted(reached)
        while ahead:
            for _source, target in self.outgoing(ahead.pop()):
                if target not in reached:
                    reached.add(target)
                    ahead.append(target)
        return tuple(participant for participant in self._by_id if participant not in reached)

    def starters(self, mode: Literal["all", "minimal"] = "all") -> tuple[ParticipantId, ...]:
        """Who must get the start order so that every member takes part.

        Args:
            mode: ``all`` members, or ``minimal``: the first of each source component.

        Returns:
            Sorted. `unreachable_from` of them is empty.
        """
        if mode == "all":
            return self.participants()
        return tuple(sorted(component[0] for component in self.source_components()))

    def _sends(self, source: ParticipantId, target: ParticipantId) -> bool:
        targets = self._targets[source]
        return source != target and (targets is None or target in targets)

    def _is_full(self) -> bool:
        """Every member sends to every other: known without looking at the square of channels."""
        return all(targets is None for targets in self._targets.values())


def _member_id(member: Member) -> str:
    return member.id
