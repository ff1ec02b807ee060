"""Forks: an epoch of a run as the beginning of another cluster, which is then run by itself (`protocol.forks`). Judged by I37.

The fork is made in the middle of a run, by the product's own `make_fork`; the original goes on, and nothing in its store is
touched. When the run is over, the fork is run: other coordinators, participants, disks and a world of its own, in which nothing
goes wrong. Its agents must have what the ghost saw at the cut (I26), its epochs commit, and nothing of it may reach a bank or an
archive: those of the original, whichever store its participants were started on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from blake3 import blake3

from protocol.digests import digest, manifest_key
from protocol.errors import ObjectCorrupt, ObjectMissing
from protocol.forks import make_fork
from protocol.ids import ClusterName, Epoch
from protocol.keys import ClusterKeys
from protocol.storage import ensure_format
from protocol.verify import verify_epoch
from simulations.oracles.liveness import (
    commits_at_work,
    demand_all_members,
    demand_commits,
    demand_ends,
    demand_quiet,
)
from simulations.store_view import OpenMemory
from simulations.violations import Violation
from simulations.world import SECOND

if TYPE_CHECKING:
    from protocol.forks import Fork
    from simulations.cluster import SimulatedCluster
    from simulations.ghost import GhostCut
    from simulations.options import Options
    from simulations.oracles.membership import StartedWith

FORK_NAME: Final = ClusterName("forked")
FORK_SECRET: Final = b"another secret, for forks in simulations"
AT_WORK_NS: Final = 2 * SECOND


class Forked(NamedTuple):
    """A fork, and what the ghost knows of the epoch that it begins from."""

    fork: Fork
    objects: dict[str, bytes]
    started: StartedWith
    cuts: dict[tuple[int, int], GhostCut]
    total: int | None
    """Of the workload's, as I5 found it; None: it was not judged."""

    def plant(self, cluster: SimulatedCluster) -> None:
        """Have a new cluster's judges know the epoch."""
        history, epoch = cluster.oracles.history, self.fork.epoch
        manifest = self.objects[manifest_key(Epoch(epoch))]
        history.incarnation = self.fork.incarnation
        history.committed = history.recoverable = epoch
        history.states[epoch], history.started[epoch] = "committed", self.started
        history.manifests[epoch], history.sealed[epoch] = manifest, digest(manifest)
        cluster.ghost.cuts.update(self.cuts)
        if self.total is not None:
            cluster.ghost.rollbacks.totals[epoch] = self.total


def take_fork(cluster: SimulatedCluster) -> Forked | None:
    """Fork the newest epoch that can be read; None: there is none.

    Raises:
        Violation: I37.
    """
    there = cluster.operator.there()
    if not there:
        return None
    epoch, source = there[-1], cluster.store.objects
    keys = ClusterKeys.from_secret(FORK_SECRET)
    target = OpenMemory(FORK_NAME)
    ensure_format(target, FORK_NAME)
    before = _fingerprint(cluster)
    try:
        report = make_fork(source, epoch, cluster.keys, target, FORK_NAME, keys)
    except (ObjectCorrupt, ObjectMissing):
        if cluster.store.spoiled.meant:
            return None  # it is rotten, and a fork is none
        raise
    again = make_fork(source, epoch, cluster.keys, target, FORK_NAME, keys)
    if again.copied or again.fork != report.fork:
        raise Violation("I37", f"epoch {epoch} is forked again, and {again.copied} objects are written anew")
    if _fingerprint(cluster) != before:
        raise Violation("I37", f"a fork of epoch {epoch} has changed the original's store")
    found = verify_epoch(target, epoch, keys)
    if not found.ok:
        raise Violation("I37", f"the fork of epoch {epoch} is not whole: {found.findings[0]}")
    history, ghost = cluster.oracles.history, cluster.ghost
    started = history.started[epoch]
    names = target.keys()
    objects = {key: target.find(key) or b"" for key in names}
    cuts = {(session, epoch): ghost.cuts[session, epoch] for session in started.sessions.values()}
    return Forked(report.fork, objects, started, cuts, ghost.rollbacks.totals.get(epoch))


def _fingerprint(cluster: SimulatedCluster) -> str:
    hasher = blake3()
    for key in sorted(cluster.store.keys()):
        hasher.update(key.encode())
        hasher.update(cluster.store.visible(key) or b"")
    return hasher.hexdigest()


def options_of_fork(options: Options) -> Options:
    """Of the run of a fork: the same agents, and nothing goes wrong."""
    changes: dict[str, Any] = {
        "by_hand": False,
        "refuse": False,
        "disk": False,
        "settled": False,
        "faults_ns": AT_WORK_NS,
    }
    return msgspec.structs.replace(options, **changes)


def run_fork(cluster: SimulatedCluster) -> None:
    """A fork's own run.

    Raises:
        Violation: I37 and whatever the other judges say.
    """
    forked = cluster.forked
    assert forked is not None, "a fork's run"
    cluster.boot()
    cluster.world.run(AT_WORK_NS)
    cluster.heal()
    demand_all_members(cluster)
    demand_ends(cluster)
    if commits_at_work(cluster):
        demand_commits(cluster, 1)
    cluster.world.run(cluster.world.now + AT_WORK_NS)
    cluster.workload.switch.on = False
    demand_quiet(cluster)
    demand_commits(cluster, 1)
    cluster.demand_drivers()
    touched = cluster.workload.touched()
    if touched:
        raise Violation("I37", f"a fork in dry-run reaches what is outside of it: {touched[0]}, of {len(touched)}")
    if not cluster.ghost.rollbacks.count:
        raise Violation("I37", f"the fork of epoch {forked.fork.epoch} has not gone to it")
    cluster.probes.hit("fork.run")
