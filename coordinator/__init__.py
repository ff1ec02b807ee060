"""Starts epochs, assembles cuts, writes manifests.

Public names are imported when first used (`protocol.lazy`). A new one goes into all three lists below (the first under
``if TYPE_CHECKING:``, as in `protocol`) and into ``tests/unit/public_names.txt``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.lazy import lazy_exports

if TYPE_CHECKING:
    from coordinator.assembler import Assembled, AssemblyRequest, Refusal, assemble
    from coordinator.certificates import make_certificates
    from coordinator.config import Address, CoordinatorConfig, PeerConfig, TlsConfig, load_config
    from coordinator.ledger import Ledger
    from coordinator.machine import Leader
    from coordinator.policy import PolicySettings

__all__ = [
    "Address",
    "Assembled",
    "AssemblyRequest",
    "CoordinatorConfig",
    "Leader",
    "Ledger",
    "PeerConfig",
    "PolicySettings",
    "Refusal",
    "TlsConfig",
    "assemble",
    "load_config",
    "make_certificates",
]

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would let every misspelt name pass
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "assembler": ("Assembled", "AssemblyRequest", "Refusal", "assemble"),
            "certificates": ("make_certificates",),
            "config": (
                "Address",
                "CoordinatorConfig",
                "PeerConfig",
                "TlsConfig",
                "load_config",
            ),
            "ledger": ("Ledger",),
            "machine": ("Leader",),
            "policy": ("PolicySettings",),
        },
    )
