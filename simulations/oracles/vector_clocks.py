"""I3: for all p, q of a cut, what p knows of q is no more than what q had done: VC_p[q] <= VC_q[q].

The clocks tick at turns and deliveries and travel with messages in the ghost log; no position of a channel is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulations.oracles.channel_states import cuts_of
from simulations.violations import Violation

if TYPE_CHECKING:
    from protocol.manifest import Manifest
    from simulations.ghost import GhostLog


def check_vector_clocks(ghost: GhostLog, manifest: Manifest) -> None:
    """Judge one manifest.

    Raises:
        Violation: I3.
    """
    cuts = cuts_of(ghost, manifest)
    for name, cut in cuts.items():
        for other, its in cuts.items():
            knows, had = cut.clock.get(its.line, 0), its.clock.get(its.line, 0)
            if knows > had:
                raise Violation(
                    "I3", f"epoch {manifest.epoch}: {name} knows moment {knows} of {other}, which recorded at {had}"
                )
