"""I12: at the moment in which a manifest becomes visible, everything that it names is there and whole.

The image that is read is what a crash of every process at this moment would leave. Reading is left to
`protocol.verify`, which recomputes each digest from the bytes; that it looks at everything is proved by the mutants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.digests import manifest_key
from protocol.ids import Epoch
from protocol.verify import verify_epoch
from simulations.violations import Violation

if TYPE_CHECKING:
    from simulations.cluster import SimulatedCluster


def check_durable(cluster: SimulatedCluster, epoch: int, data: bytes, *, deep: bool) -> None:
    """Judge one manifest.

    Raises:
        Violation: I12.
    """
    image = cluster.store.image()
    # A manifest may be visible a moment before it is durable; what it names may not.
    image.put(manifest_key(Epoch(epoch)), data)
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
