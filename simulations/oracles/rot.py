"""I16: what is not what was written is noticed before it is used.

Three moments. When the leader reads the parts of an epoch: no seal is proposed for a cut of which it was given wrong bytes
(`simulations.coordinator_node` asks here). While a listing is behind: an epoch is not called damaged because a listing does
not name it. When all is over: each committed epoch that names a spoiled object is found by verification, which names that
object; reading it gives the right values or an error, never others; and every other epoch is whole (I14).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.digests import manifest_key, pack_key, snapshot_key
from protocol.documents import decode_manifest
from protocol.errors import SnapshotError, StoreError
from protocol.reading import EpochReader
from protocol.verify import Verifier, verify_epoch
from simulations.oracles.channel_states import check_channel_states
from simulations.violations import Violation

if TYPE_CHECKING:
    from protocol.ports import ObjectStore
    from simulations.cluster import SimulatedCluster

LOOKED_AT: int = 12
"""Of each kind, the newest epochs only: so that the sum stays in bounds."""


def check_noticed(cluster: SimulatedCluster, epoch: int, rotten: list[str]) -> None:
    """A cut has passed; it must not have been read from wrong bytes.

    Raises:
        Violation: I16.
    """
    if rotten:
        raise Violation("I16", f"the cut of epoch {epoch} passes although {rotten[0]} was not what was written")


def check_listing(cluster: SimulatedCluster, behind: ObjectStore) -> int:
    """Verify the newest committed epochs through a listing that is behind; how many were looked at.

    Raises:
        Violation: I14.
    """
    looked = 0
    for epoch in _committed(cluster)[-3:]:
        if _spoiled_of(cluster, epoch):
            continue
        report = verify_epoch(behind, epoch, cluster.keys, deep=False, stop_at_first=True)
        looked += 1
        if not report.ok:
            first = report.findings[0]
            raise Violation(
                "I14", f"epoch {epoch} is called damaged because a listing is behind: {first.kind} {first.detail}"
            )
    return looked


def check_rot(cluster: SimulatedCluster) -> None:
    """The last look at the store.

    Raises:
        Violation: I14 or I16.
    """
    if not cluster.store.spoiled.meant:
        return
    damaged = [epoch for epoch in _committed(cluster) if _spoiled_of(cluster, epoch)]
    for epoch in damaged[-LOOKED_AT:]:
        _check_found(cluster, epoch, _spoiled_of(cluster, epoch))
        _check_not_silent(cluster, epoch)
    whole = [epoch for epoch in _committed(cluster) if epoch not in damaged]
    verifier = Verifier(cluster.store.now, cluster.keys, stop_at_first=True)
    for epoch in whole[-LOOKED_AT:]:
        report = verifier.verify(epoch)
        if not report.ok:
            first = report.findings[0]
            raise Violation("I14", f"epoch {epoch} has no spoiled object, but {first.kind} {first.key}: {first.detail}")
    if damaged:
        cluster.probes.hit("rot.committed_epoch_damaged")
    if damaged and whole and whole[-1] > damaged[0]:
        cluster.probes.hit("rot.later_epoch_whole")


def _committed(cluster: SimulatedCluster) -> list[int]:
    return sorted(epoch for epoch, state in cluster.oracles.history.states.items() if state == "committed")


def _spoiled_of(cluster: SimulatedCluster, epoch: int) -> list[str]:
    """Which objects of an epoch are not what was written: manifest, local snapshots, packs, in this order."""
    return [key for key in _once_spoiled(cluster, epoch) if cluster.store.is_spoiled(key)]


def was_spoiled(cluster: SimulatedCluster, epoch: int) -> bool:
    """Whether any object of a committed epoch was spoiled at some time: whoever read it then has found it damaged."""
    return bool(_once_spoiled(cluster, epoch))


def _once_spoiled(cluster: SimulatedCluster, epoch: int) -> list[str]:
    if not cluster.store.spoiled.meant:
        return []
    manifest = decode_manifest(cluster.oracles.history.manifests[epoch])
    named = [
        manifest_key(epoch),
        *(snapshot_key(member.snapshot) for member in manifest.members),
        *(pack_key(pack) for pack in manifest.packs),
    ]
    return [key for key in named if key in cluster.store.spoiled.meant]


def _check_found(cluster: SimulatedCluster, epoch: int, spoiled: list[str]) -> None:
    report = verify_epoch(cluster.store.now, epoch, cluster.keys)
    named = {finding.key for finding in report.findings}
    # A manifest that is not the right one may lead to others' objects; what it led to is then nobody's to name.
    wanted = spoiled[:1] if spoiled[0] == manifest_key(epoch) else spoiled
    for key in wanted:
        if key not in named:
            found = f"{report.findings[0].kind} {report.findings[0].key}" if report.findings else "nothing"
            raise Violation("I16", f"epoch {epoch}: {key} is not what was written, and verification finds {found}")


def _check_not_silent(cluster: SimulatedCluster, epoch: int) -> None:
    try:
        reader = EpochReader.open(cluster.store.objects, epoch)
        if reader.manifest != decode_manifest(cluster.oracles.history.manifests[epoch]):
            return  # its signature is what tells; whoever restores asks for it first
        check_channel_states(cluster.ghost, reader, cluster.workload.forms)
    except (StoreError, SnapshotError):
        return
    except Violation as violation:
        raise Violation("I16", f"wrong bytes are read as if they were right: {violation.text}") from violation
