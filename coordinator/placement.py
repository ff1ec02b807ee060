"""Who is to host which agent after a rollback. Pure.

An agent goes to whoever is live and declares it (or has adopted it before); that is how a cluster comes back on other
hosts: they declare its agents. One that was given to another host stays that host's, also where that was lost and comes
back, unless it has left in order. What nobody declares waits for its host to come back, and after a while goes to whoever has
given it away, or to those that can take its kind, evenly. An agent for which there is nobody holds up the rollback, by
name: none is ever dropped in silence (D12).

An agent that the epoch does not hold holds up nothing: it begins with its host, when that is back. One that its host had
been given gets another at once, or nobody would begin it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    participants: Iterable[ParticipantRecord],
    given_up: Mapping[str, bool],
    *,
    adopted: Mapping[str, str] = MappingProxyType({}),
    last: Mapping[str, str] = MappingProxyType({}),
    new: Iterable[str] = (),
    anybody: bool = False,
) -> Placement:
    """Place the agents of an epoch.

    Args:
        agents: Agent -> participant that had it at the epoch.
        participants: All that are remembered.
        given_up: Participants that are waited for no more -> True.
        adopted: Agent -> participant that takes it with the next rollback, whoever hosts it now.
        last: Agent of the topology -> its host there: who declares one of these, and has given it away, does not take it
            back while that host is waited for.
        new: Those of them that the epoch does not hold.
        anybody: Nobody is waited for.

    Returns:
        The same for the same arguments, whatever their order.
    """
    known = {record.id: record for record in sorted(participants, key=lambda record: record.id)}
    live = {name: record for name, record in known.items() if record.live}
    hosted = {*adopted, *(agent for record in live.values() for agent in record.agents)}
    declared = {agent: record.id for record in reversed(live.values()) for agent in record.declared}
    load = {record.id: len(record.agents) for record in live.values()}
    adoptions: dict[str, list[str]] = {}
    missing: dict[str, list[str]] = {}

    def any_host(agent: str) -> str | None:
        kind = agent.partition("/")[0]
        able = [record.id for record in live.values() if kind in record.kinds]
        return declared.get(agent) or min(able, key=lambda name: (load[name], name), default=None)

    def take(agent: str, target: str) -> None:
        load[target] += 1
        adoptions.setdefault(target, []).append(agent)

    for agent in sorted(agents.keys() - hosted):
        before = last.get(agent, agents[agent])
        target = None if agent in last else declared.get(agent)
        if target is None and (anybody or given_up.get(before, False)):
            target = any_host(agent)
        if target is None:
            missing.setdefault(before, []).append(agent)
        else:
            take(agent, target)
    for agent in sorted({*new} - hosted):
        target = declared.get(agent)
        record = known.get(last[agent])
        # Who declares it begins it when that is back; who is back without it was to be without it.
        if target is None and (record is None or not (record.live or agent in record.declared)):
            target = any_host(agent)
        if target is not None:
            take(agent, target)
    return Placement(
        {name: tuple(sorted(adoptions[name])) for name in sorted(adoptions)},
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
