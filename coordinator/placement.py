"""Who is to host which agent after a rollback. Pure.

An agent goes to whoever is live and declares it (or has adopted it before); that is how a cluster comes back on other
hosts: they declare its agents. One that was given to another host stays that host's, unless that has left in order. What
nobody declares waits for its host to come back, and after a while goes to those that can take its kind, evenly. An agent
for which there is nobody holds up the rollback, by name: none is ever dropped in silence (D12).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from coordinator.ledger import ParticipantRecord

SHOWN_MAX = 5


class Placement(NamedTuple):
    """What has to happen before every agent has a host."""

    adoptions: dict[str, tuple[str, ...]]
    """Participant -> agents that it is to take, both in order."""
    missing: dict[str, tuple[str, ...]]
    """Participant that had them -> agents that nobody hosts and nobody is to take (yet)."""

    @property
    def complete(self) -> bool:
        """Every agent has a host."""
        return not self.adoptions and not self.missing


def place(
    agents: Mapping[str, str],
    live: Iterable[ParticipantRecord],
    given_up: Mapping[str, bool],
    *,
    adopted: Mapping[str, str] = MappingProxyType({}),
    members: Container[str] = (),
    anybody: bool = False,
) -> Placement:
    """Place the agents of an epoch.

    Args:
        agents: Agent -> participant that had it.
        live: Sessions that take part.
        given_up: Participants that are waited for no more -> True.
        adopted: Agent -> participant that takes it with the next rollback, whoever hosts it now.
        members: Agents of the topology: who declares one of these, and has given it away, does not take it back.
        anybody: Nobody is waited for.

    Returns:
        The same for the same arguments, whatever their order.
    """
    candidates = sorted((record for record in live if record.live), key=lambda record: record.id)
    hosted = {*adopted, *(agent for record in candidates for agent in record.agents)}
    declared = {agent: record.id for record in reversed(candidates) for agent in record.declared}
    load = {record.id: len(record.agents) for record in candidates}
    adoptions: dict[str, list[str]] = {}
    missing: dict[str, list[str]] = {}
    for agent in sorted(agents):
        if agent in hosted:
            continue
        before = agents[agent]
        kind = agent.partition("/")[0]
        able = [record.id for record in candidates if kind in record.kinds]
        target = None if agent in members else declared.get(agent)
        if target is None and able and (anybody or given_up.get(before, False)):
            target = min(able, key=lambda name: (load[name], name))
        if target is not None:
            load[target] += 1
            adoptions.setdefault(target, []).append(agent)
        else:
            missing.setdefault(before, []).append(agent)
    return Placement(
        {name: tuple(adoptions[name]) for name in sorted(adoptions)},
        {name: tuple(missing[name]) for name in sorted(missing)},
    )


def missing_in_words(missing: Mapping[str, tuple[str, ...]]) -> str:
    """Who is waited for, with which agents."""
    parts = []
    for name in sorted(missing)[:SHOWN_MAX]:
        agents = missing[name]
        shown = ", ".join(agents[:SHOWN_MAX])
        more = f" and {len(agents) - SHOWN_MAX} more" if len(agents) > SHOWN_MAX else ""
        parts.append(f"{shown}{more} (on {name} before)")
    more = f"; and agents of {len(missing) - SHOWN_MAX} others" if len(missing) > SHOWN_MAX else ""
    return "; ".join(parts) + more
