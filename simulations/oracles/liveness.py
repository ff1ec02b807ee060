"""L1, L2, L3: in a healed world everybody comes together, every epoch ends, and new ones commit.

The bounds are sums of what the parts are allowed to take: a lease until a lost member is noticed, a deadline for an epoch, two
intervals, reconnects, and what is queued already. They are generous on purpose: what never happens passes every bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simulations.carrying import LOAD_MAX, captured_ns, drained_ns, load
from simulations.names import first_of
from simulations.violations import LivenessViolation
from simulations.world import SECOND

if TYPE_CHECKING:
    from simulations.cluster import SimulatedCluster


RECORDING_ENOUGH: Final = 64 * 1024
"""Below this limit, bytes, epochs may well abort as long as agents are at work."""


def demand_all_members(cluster: SimulatedCluster) -> None:
    """L3: all participants become members of one topology, in which all their agents have a host.

    Raises:
        LivenessViolation: They do not.
    """
    options = cluster.options
    bound = 20 * SECOND + 4 * options.lease_ns + 4 * options.deadline_ns
    if options.recovery:
        bound += 60 * SECOND
    if not cluster.world.run(cluster.world.now + bound, until=cluster.all_members):
        spoilt = cluster.probes.hits.get("fault.epoch-spoilt")
        raise LivenessViolation(
            "L8" if spoilt else "L3",
            f"not all are members {bound / 1e9:.0f} s after the last fault: {_describe(cluster)}",
        )
    if options.elsewhere:
        _demand_hosted(cluster)


def _demand_hosted(cluster: SimulatedCluster) -> None:
    """L3: what the program of a member declares runs somewhere, whether or not an epoch holds it."""
    hosted = {host.id for life in cluster.lives.values() if life.member for host in life.hosts}
    names = cluster.workload.names
    for name in sorted(cluster.lives):
        if not cluster.lives[name].member or name in cluster.spares:
            continue
        for first in (first_of(agent.id) for agent in cluster.workload.agents(name)):
            # One that an operator has renamed begins under its new name, and one that has left with its host stays away.
            if cluster.have_left or cluster.placements.gave_up(first) or names.declared(first) != names.now(first):
                continue
            if names.now(first) not in hosted:
                raise LivenessViolation(
                    "L3", f"{names.now(first)} runs nowhere, and {name} is there, which declares it"
                )


def demand_ends(cluster: SimulatedCluster) -> None:
    """L1: every epoch that is open now ends.

    Raises:
        LivenessViolation: One does not.
    """
    history = cluster.oracles.history
    newest = max(history.states, default=0)
    bound = 2 * cluster.options.deadline_ns + 10 * SECOND

    def ended() -> bool:
        return all(state in ("committed", "aborted") for number, state in history.states.items() if number <= newest)

    if not cluster.world.run(cluster.world.now + bound, until=ended):
        still = [f"{number} is {state}" for number, state in history.states.items() if state in ("started", "sealed")]
        raise LivenessViolation("L1", f"epoch {', '.join(still)} after {bound / 1e9:.0f} s: {_describe(cluster)}")


def demand_commits(cluster: SimulatedCluster, count: int) -> None:
    """L2: epochs that start from now on commit, within two intervals and an epoch's time each, once markers come through.

    A marker waits behind what was said before it, also while somebody was away: as long as channels take to carry that.

    Raises:
        LivenessViolation: They do not.
    """
    history = cluster.oracles.history
    options = cluster.options
    newest = max(history.states, default=0)
    before = history.commits
    each = 2 * options.interval_ns + options.pause_ns + options.deadline_ns + 5 * SECOND
    bound = (count + 1) * each + drained_ns(options, _queued(cluster))

    def committed() -> bool:
        if history.commits - before < count:
            return False  # asked after each event
        states = history.states
        return (
            sum(1 for number in range(newest + 1, max(states, default=0) + 1) if states.get(number) == "committed")
            >= count
        )

    if not cluster.world.run(cluster.world.now + bound, until=committed):
        recent = [f"{number} {state}" for number, state in list(history.states.items())[-4:]]
        raise LivenessViolation(
            "L2", f"no new epoch commits in a healed cluster; newest: {recent}; {_describe(cluster)}"
        )


def demand_quiet(cluster: SimulatedCluster) -> None:
    """All that is on its way arrives once nobody begins anything new, and every stream was delivered to its end.

    Raises:
        LivenessViolation: It does not.
    """
    bound = 180 * SECOND
    if not cluster.world.run(cluster.world.now + bound, until=cluster.idle):
        busy = {name: (life.machine.outgoing_bytes, life.pump.busy) for name, life in sorted(cluster.lives.items())}
        raise LivenessViolation("L2", f"messages do not arrive in a healed cluster; (bytes out, busy): {busy}")
    for life in cluster.lives.values():
        for stream in life.ghost.incoming.values():
            if stream.delivered != len(stream.sent):
                raise LivenessViolation("I6", f"{stream}: {stream.delivered} of {len(stream.sent)} messages arrived")


def commits_at_work(cluster: SimulatedCluster) -> bool:
    """Whether epochs of agents at work have to commit; else commits are demanded of agents at rest alone.

    They need not where agents say more than channels carry, or than an epoch may record (I33), nor where what waits for agents, or is
    about to, leaves an epoch too little time for its capture.
    """
    options = cluster.options
    if options.recording_bytes_max < RECORDING_ENOUGH or load(options) > LOAD_MAX:
        return False
    waiting = 0
    for life in [] if options.runtimes else cluster.lives.values():
        behind = sum(len(stream.sent) - stream.delivered for stream in life.ghost.incoming.values())
        waiting = max(waiting, behind + max((len(host.mailbox) for host in life.hosts), default=0))
    return captured_ns(options, waiting) <= options.deadline_ns // 2


def _queued(cluster: SimulatedCluster) -> int:
    """Messages that some channel has still to bring, the busiest one; as the ghost log knows them."""
    streams = (stream for life in cluster.lives.values() for stream in life.ghost.incoming.values())
    return max((len(stream.sent) - stream.delivered for stream in streams), default=0)


def _describe(cluster: SimulatedCluster) -> str:
    leader = cluster.log.leader
    if leader is None or not leader.alive:
        return "there is no leader"
    waits = leader.machine.waits_for(leader.now) if leader.machine.leading else "it has not begun to lead"  # type: ignore[arg-type]
    members = {member.id: member.session for member in leader.ledger.state.topology.members}
    lives = {
        name: (life.machine.session, life.alive, life.ended, life.control.line is not None)
        for name, life in sorted(cluster.lives.items())
    }
    return f"leader {leader.name}: {waits or 'nothing holds it back'}; members {members}; (session, alive, ended, connected) {lives}"
