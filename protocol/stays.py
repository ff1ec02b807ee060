"""Where agents have run: what they did outside is in the effect ledgers of hosts that an epoch from before knows nothing of. Pure.

An epoch tells who hosted an agent at its cut. Who hosted it after that, in an incarnation that ended before any epoch of it was
committed, or that an operator goes back behind, only the coordinators know. Only agents that have come to another host are
remembered, each of their hosts with the newest incarnation in which they ran there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Stays: TypeAlias = "dict[str, dict[str, int]]"
"""Agent -> host -> incarnation."""


def note_stays(
    stays: Stays,
    before: Mapping[str, str],
    after: Mapping[str, str],
    renames: Iterable[tuple[str, str]],
    incarnation: int,
) -> None:
    """A rollback ends an incarnation in which agents ran.

    Args:
        stays: Changed in place.
        before: Agent -> host in that incarnation.
        after: The same in the next one.
        renames: (name in the epoch, name from now on). Whether the incarnation that ends had the former or the latter is not asked:
            both names have been wherever one has.
        incarnation: That ends.
    """
    names = dict(renames)
    for agent, host in before.items():
        for name in dict.fromkeys((agent, names.get(agent, agent))):
            if name in stays or after.get(name, host) != host:
                stays.setdefault(name, {})[host] = incarnation
    for old, new in names.items():
        merged: dict[str, int] = {}
        for hosts in (stays.get(old, {}), stays.get(new, {})):
            for host, last in hosts.items():
                merged[host] = max(last, merged.get(host, 0))
        if merged:
            stays[old], stays[new] = dict(merged), merged


def elsewhere(stays: Stays, agents: Iterable[str], host: str, since: int) -> dict[str, tuple[str, ...]]:
    """Other hosts -> which of these agents have run there in later incarnations than the epoch's.

    Args:
        stays: Of all agents.
        agents: That come to this host.
        host: Not named itself.
        since: Incarnation of the epoch; 0 for the start.
    """
    found: dict[str, list[str]] = {}
    for agent in agents:
        for name, last in stays.get(agent, {}).items():
            if last > since and name != host:
                found.setdefault(name, []).append(agent)
    return {name: tuple(sorted(found[name])) for name in sorted(found)}
