"""I12: at the moment in which a manifest becomes visible, everything that it names is there and whole.

What is looked at is what a crash of every process, with the power, would leave at this moment. Two judges:

* `check_durable`, of every manifest: each object that it names lies there with the bytes that were checked, digest by
  digest and chunk by chunk, on the way to the other judges.
* `check_verified`, of every fourth: the product's own `protocol.verify`, which recomputes everything, must find nothing.
  That it looks at everything is proved by the mutants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocol.digests import manifest_key, pack_key, snapshot_key
from protocol.documents import chunk_refs
from protocol.ids import Epoch
from protocol.verify import verify_epoch
from simulations.violations import Violation

if TYPE_CHECKING:
    from simulations.cluster import SimulatedCluster
    from simulations.oracles.judgement import Judgement

VERIFIED_EVERY: Final = 4


def check_durable(cluster: SimulatedCluster, reader: Judgement) -> None:
    """Judge one manifest.

    Raises:
        Violation: I12.
        StoreError: Something cannot be read, which is I12 as well.
    """
    manifest, seen = reader.manifest, reader.seen
    image = cluster.store.image()
    keys = [snapshot_key(member.snapshot) for member in manifest.members]
    keys += map(pack_key, manifest.packs)
    for key in keys:
        if image.find(key) != seen.bytes_of(key):
            raise Violation("I12", f"epoch {manifest.epoch} is visible, but a power cut would not leave {key} whole")
    listed = frozenset(manifest.packs)
    for member in manifest.members:
        for ref in chunk_refs(reader.snapshot(member.participant)):
            if ref.pack not in listed:
                raise Violation("I12", f"epoch {manifest.epoch} is visible and does not name pack {ref.pack}")
            seen.read(ref)


def check_verified(cluster: SimulatedCluster, epoch: int, data: bytes, *, deep: bool) -> None:
    """Judge one manifest by the product's own verification.

    Raises:
        Violation: I12.
    """
    # A manifest may be visible a moment before it is durable; what it names may not.
    image = cluster.store.image({manifest_key(Epoch(epoch)): data})
    report = verify_epoch(image, epoch, cluster.keys, deep=deep, stop_at_first=True)
    if not report.ok:
        first = report.findings[0]
        raise Violation("I12", f"epoch {epoch} is visible, but {first.kind} {first.key}: {first.detail}")


def check_all_committed(cluster: SimulatedCluster) -> None:
    """I14: every committed epoch is there and whole; after a power cut.

    Raises:
        Violation: I14.
    """
    for epoch, state in cluster.oracles.history.states.items():
        if state != "committed":
            continue
        report = verify_epoch(cluster.store.meant, epoch, cluster.keys, stop_at_first=True)
        if not report.ok:
            first = report.findings[0]
            raise Violation("I14", f"after a power cut epoch {epoch} is lost: {first.kind} {first.key}: {first.detail}")
