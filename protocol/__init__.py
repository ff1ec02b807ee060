"""What all sides agree on: pure state machines, wire and storage formats.

Public names are imported when first used (`protocol.lazy`). A new one goes into all three lists below and into
``tests/unit/public_names.txt``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.lazy import lazy_exports

if TYPE_CHECKING:
    from protocol.cut import Violation
    from protocol.errors import (
        ConfigError,
        DryRun,
        FencedError,
        ForgedFrame,
        IllegalName,
        InconsistentCut,
        LimitExceeded,
        LocalProtocolError,
        MalformedFrame,
        ManifestConflict,
        NoRecoveryLine,
        ObjectConflict,
        ObjectCorrupt,
        ObjectMissing,
        Overloaded,
        ProtocolError,
        RecoveryError,
        Refused,
        RemoteProtocolError,
        SnapshotError,
        StoreError,
        UnknownAgent,
        Unreachable,
        Unsavable,
        UnsupportedVersion,
        WireError,
    )
    from protocol.ids import (
        AgentId,
        ChannelId,
        ClusterName,
        CoordinatorId,
        Digest,
        Duration,
        Epoch,
        Incarnation,
        Instant,
        MessageId,
        ParticipantId,
        Session,
        Term,
        TopologyVersion,
    )
    from protocol.keys import ClusterKeys, read_secret
    from protocol.manifest import LocalSnapshot, Manifest
    from protocol.messages import Envelope
    from protocol.ports import FrameSink, ObjectStore, PutResult, Transport
    from protocol.reading import AgentState, EpochReader
    from protocol.storage import FilesystemStore, MemoryStore, open_store
    from protocol.topology import Topology
    from protocol.verify import Finding, VerifyReport, verify_all, verify_epoch

__all__ = [
    "AgentId",
    "AgentState",
    "ChannelId",
    "ClusterKeys",
    "ClusterName",
    "ConfigError",
    "CoordinatorId",
    "Digest",
    "DryRun",
    "Duration",
    "Envelope",
    "Epoch",
    "EpochReader",
    "FencedError",
    "FilesystemStore",
    "Finding",
    "ForgedFrame",
    "FrameSink",
    "IllegalName",
    "Incarnation",
    "InconsistentCut",
    "Instant",
    "LimitExceeded",
    "LocalProtocolError",
    "LocalSnapshot",
    "MalformedFrame",
    "Manifest",
    "ManifestConflict",
    "MemoryStore",
    "MessageId",
    "NoRecoveryLine",
    "ObjectConflict",
    "ObjectCorrupt",
    "ObjectMissing",
    "ObjectStore",
    "Overloaded",
    "ParticipantId",
    "ProtocolError",
    "PutResult",
    "RecoveryError",
    "Refused",
    "RemoteProtocolError",
    "Session",
    "SnapshotError",
    "StoreError",
    "Term",
    "Topology",
    "TopologyVersion",
    "Transport",
    "UnknownAgent",
    "Unreachable",
    "Unsavable",
    "UnsupportedVersion",
    "VerifyReport",
    "Violation",
    "WireError",
    "open_store",
    "read_secret",
    "verify_all",
    "verify_epoch",
]

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would let every misspelt name pass
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "cut": ("Violation",),
            "errors": (
                "ConfigError",
                "DryRun",
                "FencedError",
                "ForgedFrame",
                "IllegalName",
                "InconsistentCut",
                "LimitExceeded",
                "LocalProtocolError",
                "MalformedFrame",
                "ManifestConflict",
                "NoRecoveryLine",
                "ObjectConflict",
                "ObjectCorrupt",
                "ObjectMissing",
                "Overloaded",
                "ProtocolError",
                "RecoveryError",
                "Refused",
                "RemoteProtocolError",
                "SnapshotError",
                "StoreError",
                "UnknownAgent",
                "Unreachable",
                "Unsavable",
                "UnsupportedVersion",
                "WireError",
            ),
            "ids": (
                "AgentId",
                "ChannelId",
                "ClusterName",
                "CoordinatorId",
                "Digest",
                "Duration",
                "Epoch",
                "Incarnation",
                "Instant",
                "MessageId",
                "ParticipantId",
                "Session",
                "Term",
                "TopologyVersion",
            ),
            "keys": (
                "ClusterKeys",
                "read_secret",
            ),
            "manifest": (
                "LocalSnapshot",
                "Manifest",
            ),
            "messages": ("Envelope",),
            "ports": (
                "FrameSink",
                "ObjectStore",
                "PutResult",
                "Transport",
            ),
            "reading": (
                "AgentState",
                "EpochReader",
            ),
            "storage": (
                "FilesystemStore",
                "MemoryStore",
                "open_store",
            ),
            "topology": ("Topology",),
            "verify": (
                "Finding",
                "VerifyReport",
                "verify_all",
                "verify_epoch",
            ),
        },
    )
