"""The judges: one file for each kind of invariant, fed by the ghost log, never by the product's own verdict.

==================  ===================================================================================================
module              invariants (names of RELIABILITY.md section 3)
==================  ===================================================================================================
`channel_states`    I1 recorded = in flight, list by list; I2 no orphan; and the recorded local states and mailboxes
`vector_clocks`     I3, from clocks of its own
`reachability`      I4, the theorem of 1985 as a program, on some of the manifests
`conservation`      I5 totals of each manifest, with what went to and came from lives that are gone
`membership`        I7 members, sessions and channels are those of the start
`epochs`            I9 one manifest; I10 numbers grow; I11 one end for everybody; I19 what was acknowledged stays; I20; I21
`durability`        I12 a visible manifest has all its objects; I14 a power cut takes no committed epoch
`rot`               I16 spoiled objects are noticed before they are used, found and named; I14 and all others are whole
`rollbacks`         I22 to I28: fences, lives, bases, and what each participant was given back
`placement`         I35 everything of an epoch has one place, under its name; I36 what is refused has no effect
`turns`             I17, I22, I24, I30, I31 where turns are logged: a crash undoes nothing that anybody has seen, and takes nobody with it
`parked`            I25 what comes early from a newer incarnation is kept, and handed on when its receiver is in it
`liveness`          L1, L2, L3 in the healed world; L8 where the newest epoch was damaged
`transcripts`       I5 for conversations: both sides' transcripts, and what is on its way between them
`effects`           I29 an effect is done once, and a state remembers what was done
`outputs`           I22 and I30 at a sink: no zombie writes, nothing leaves that could be undone
`orders`            I29 for charges, I19 for acknowledged input, I6; I30 in the end
`chunks`            I12 over time: what any epoch named stays where it was
`growth`            L6 for states: what an epoch adds is bounded by what changed
`arrival`           I6 as a receiver sees it: lost, late, twice, spoiled
`memory`            I33 for senders: the sums of what is in flight, and the bound that outside input has
==================  ===================================================================================================

The last eight belong to workloads, which call them. The ghost log itself finds I6 (no gap, repeat or swap at a receiver), I20 (highest term obeyed) and I22 (strangers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protocol.digests import EPOCHS_PREFIX, epoch_of_key
from protocol.documents import decode_manifest
from protocol.errors import StoreError
from protocol.tombstones import decode_tombstone
from simulations.oracles.channel_states import check_channel_states
from simulations.oracles.conservation import check_conservation
from simulations.oracles.durability import VERIFIED_EVERY, check_durable, check_verified
from simulations.oracles.epochs import EpochHistory
from simulations.oracles.judgement import Judgement, SeenObjects
from simulations.oracles.membership import check_membership
from simulations.oracles.reachability import check_reachable
from simulations.oracles.vector_clocks import check_vector_clocks
from simulations.violations import Violation

if TYPE_CHECKING:
    from simulations.cluster import SimulatedCluster
    from simulations.coordinator_node import CoordinatorLife


class Oracles:
    """All judges of one run."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.history = EpochHistory(cluster)
        self._view = cluster.store.meant
        self._seen = SeenObjects(self._view)
        self.judged = 0
        """Manifests that were judged."""
        self.recorded_messages = 0
        """In-flight messages in them."""

    def object_visible(self, key: str, data: bytes) -> None:
        """An object has become visible in the store."""
        if not key.startswith(EPOCHS_PREFIX):
            return
        epoch = epoch_of_key(key)
        if epoch is None:
            return
        if decode_tombstone(data) is not None:
            self.history.tombstone_visible(int(epoch))
            return
        self.judged += 1
        self.history.manifest_visible(int(epoch), data)
        try:
            self._judge(int(epoch), key, data)
        except StoreError as error:
            raise Violation("I12", f"epoch {epoch} is visible and cannot be read: {error}") from error

    def _judge(self, epoch: int, key: str, data: bytes) -> None:
        cluster = self._cluster
        manifest = decode_manifest(data, name=key)
        reader = Judgement(self._view, manifest, self._seen)
        check_membership(self.history.started[epoch], manifest)
        self.recorded_messages += check_channel_states(cluster.ghost, reader, cluster.workload.forms)
        check_vector_clocks(cluster.ghost, manifest)
        check_conservation(cluster, reader)
        if self.judged & (self.judged - 1) == 0:
            # It looks at all of the past: at the 1st, 2nd, 4th, 8th manifest, so that the sum stays in bounds.
            check_reachable(cluster, reader)
        check_durable(cluster, reader)
        if self.judged % VERIFIED_EVERY == 1:
            check_verified(cluster, epoch, data, deep=cluster.options.deep)
        cluster.workload.judge(cluster, reader)

    def entry_applied(self, coordinator: CoordinatorLife, command: dict[str, Any], result: dict[str, Any]) -> None:
        """A replica has applied an entry."""
        self.history.entry_applied(coordinator, command, result)

    def told(self, name: str, epoch: int, how: str) -> None:
        """A participant was told how an epoch ended."""
        self.history.told(name, epoch, how)
