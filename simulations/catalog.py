"""What a sweep of some hundred seeds must have reached."""

from __future__ import annotations

from typing import Final

from simulations.faults import POINTS

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
    "log.twice",
    "network.blocked_loss",
    "network.cut_in_flight",
    "network.duplicated",
    "network.half_open_loss",
    "network.held",
    "network.lost",
    "network.patience_over",
    "network.reordered",
    "network.zombie_frames",
    "store.ENOSPC",
    "store.down",
    "store.timeout_after_success",
    "upload.retried",
    "wire.refused",
    *POINTS,
)
"""Rare states, and the points of the protocol at which a process may crash."""
