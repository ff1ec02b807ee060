"""What a sweep of some hundred seeds must have reached: rare states, every kind of fault, and a crash at every point.

Four of five seeds force a crash at the point that their number says: `SEEDS_ENOUGH` seeds in a row try each some eight times.
"""

from __future__ import annotations

from typing import Final

from simulations.faults import DRIVERS_ONLY, KINDS, POINTS

SEEDS_ENOUGH: Final = 10 * len(POINTS)
WANTED_PROBES: Final = (
    "clock.stepped_back",
    "cut.message_in_flight",
    "cut.two_channels_in_flight",
    "disk.ENOSPC_in_put",
    "disk.died_in_put",
    "disk.power_cut",
    "disk.sync_file_EIO",
    "disk.sync_folder_EIO",
    "epoch.aborted_after_half",
    "log.elected",
    "log.late",
    "log.lose",
    "log.refuse",
    "log.silent",
    "log.snapshot_installed",
    "log.stale_hint",
    "log.twice",
    "network.blocked_loss",
    "network.clogged",
    "network.cut_in_flight",
    "network.cut_mid_frame",
    "network.duplicated",
    "network.half_open_loss",
    "network.held",
    "network.lost",
    "network.patience_over",
    "network.reordered",
    "network.zombie_frames",
    "rot.committed_epoch_damaged",
    "rot.later_epoch_whole",
    "rot.noticed_by_assembler",
    "store.429",
    "store.500",
    "store.503",
    "store.ENOSPC",
    "store.down",
    "store.put_after_timeout",
    "store.read_cut",
    "store.read_flip",
    "store.read_old",
    "store.read_page",
    "store.repaired",
    "store.rotten_manifest",
    "store.rotten_pack",
    "store.rotten_snapshot",
    "store.stale_list",
    "store.timeout",
    "store.timeout_after_success",
    "upload.retried",
    "wire.refused",
    *POINTS,
    *(f"fault.{kind}" for kind in KINDS if kind not in DRIVERS_ONLY),
    *(f"fault.crash-at {point}" for point in POINTS),
)
"""Rare states; points of the protocol that were passed; faults that did something."""
