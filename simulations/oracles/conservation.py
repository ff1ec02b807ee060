"""I5: what a workload never makes or destroys adds up in each cut.

A life begins with its workload's own share, or with what an epoch gave it (and what all lives of an incarnation were given
is what that epoch held: `simulations.oracles.rollbacks`). What it sent to lives that are not in the cut is gone from it, and what it took
from such lives has come to it; both are known from the ghost's lists up to the cut. So::

    states + mailboxes + channel states + unrouted  =  shares of the members
                                                     + taken from strangers - sent to strangers

Sums are no proof of a cut, and this is no more than one witness beside I1 to I3; but it reads stored values only through
their meaning, and nothing else does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulations.oracles.channel_states import cuts_of
from simulations.oracles.reachability import beginning
from simulations.violations import Violation

if TYPE_CHECKING:
    from protocol.reading import EpochReader
    from simulations.cluster import SimulatedCluster


def check_conservation(cluster: SimulatedCluster, reader: EpochReader) -> None:
    """Judge one manifest.

    Raises:
        Violation: I5.
    """
    workload, ghost, manifest = cluster.workload, cluster.ghost, reader.manifest
    lines = {ghost.turns.line(member.session, manifest.incarnation) for member in manifest.members}
    found = 0
    for agent in reader.agents():
        found += workload.held(reader.state(agent).fields)
        found += sum(map(workload.carried, reader.mailbox(agent)))
    for channel in manifest.channels:
        found += sum(map(workload.carried, reader.channel(channel.source, channel.target)))
    expected = 0
    for member in manifest.members:
        found += sum(map(workload.carried, reader.unrouted(member.participant)))
        expected += beginning(cluster, ghost.lives[member.session])
    for cut in cuts_of(ghost, manifest).values():
        for stream, count in cut.sent.items():
            if stream.target_session not in lines:
                expected -= sum(workload.carried_bytes(data) for data in stream.sent[:count])
        for stream, count in cut.received.items():
            if stream.source_session not in lines:
                expected += sum(workload.carried_bytes(data) for data in stream.sent[:count])
    if found != expected:
        raise Violation("I5", f"epoch {manifest.epoch} holds {found} of {expected}")
    ghost.rollbacks.totals[manifest.epoch] = found
