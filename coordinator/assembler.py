"""The cut assembler: local snapshots in, a checked and signed manifest out, or the reason why not.

`assemble` is a pure function of the ledger's record of the epoch and of the objects that the reports name, so every
leader makes the same bytes, whatever the order in which the reports came (I8). It trusts nobody: each object must be of
this cluster, epoch, incarnation, topology version, and of the session that the ledger fixed at the start; it must hold
exactly the agents placed on its participant; and all channels together must pass `protocol.cut.check_cut` (P1). Sums
are no proof: a message that is lost and another that is counted twice add up.

`assemble_from_store` is what a driver runs in a thread: read, decode, check. Retrying and deadlines are the machine's.

Source: DESIGN.md section 7 (Commit) and section 8 (assembler); RELIABILITY.md I1, I2, I7, I8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.events import CutAssembled, CutRefused, SnapshotsUnreadable
from protocol.digests import digest, snapshot_key
from protocol.documents import channel_table, decode_local_snapshot, packs_of, sign_manifest
from protocol.errors import ConfigError, ObjectCorrupt, ObjectMissing, StoreError, UnsupportedVersion
from protocol.ids import ParticipantId, TopologyVersion
from protocol.limits import SNAPSHOT_OBJECT_BYTES_MAX
from protocol.manifest import LocalSnapshot, Manifest, ManifestMember
from protocol.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.ledger import EpochRecord, LedgerState
    from protocol.cut import Violation
    from protocol.keys import ClusterKeys
    from protocol.messages import Member
    from protocol.ports import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblyRequest:
    """All that the manifest depends on beside the objects; a function of the ledger alone."""

    cluster: str
    epoch: int
    incarnation: int
    started_at: int
    """Wall clock, ns, from the start entry."""
    policy: str
    """Why it was started."""
    previous: str
    """Manifest of the epoch sealed before; "" for the first."""
    topology: int
    members: tuple[Member, ...]
    """Of the topology version that the start entry fixed, by id."""
    snapshots: tuple[tuple[str, str], ...]
    """(participant, digest of its local-snapshot object), by participant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A cut that passed."""

    manifest: Manifest
    data: bytes
    """The manifest's canonical, signed bytes."""
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A cut that did not pass."""

    participant: str
    """Whose object shows it; the receiver of the channel for a violation of P1."""
    cause: str
    violation: Violation | None = None
    """The first violation, if it is one of P1."""


def request_for(state: LedgerState, record: EpochRecord) -> AssemblyRequest:
    """What to assemble for an open epoch whose reports are all in.

    The topology cannot have changed since the start: the ledger changes it only while no epoch is open. Neither can
    `previous`, because epochs are sealed in order: ask only when no earlier epoch is `STARTED`.
    """
    assert record.open
    assert record.complete
    assert record.topology == state.topology.version
    return AssemblyRequest(
        cluster=state.cluster,
        epoch=record.epoch,
        incarnation=record.incarnation,
        started_at=record.started_at,
        policy=record.reason,
        previous=state.sealed_manifest if record.state == "started" else record.previous,
        topology=record.topology,
        members=state.topology.members,
        snapshots=tuple((name, member.snapshot) for name, member in sorted(record.members.items())),
    )


def assemble(request: AssemblyRequest, objects: Mapping[str, LocalSnapshot], keys: ClusterKeys) -> Assembled | Refusal:
    """Check the cut and make its manifest.

    Args:
        request: From `request_for`.
        objects: Participant -> decoded object, whose digest was compared with the request's when it was read. In any
            order; those of others than the members are refused.
        keys: Signs the manifest.

    Returns:
        The manifest and its bytes, or the first thing wrong in the order of participants, then of channels.
    """
    # Here, so that importing the machine does not import the checks and what they need.
    from protocol.cut import check_cut

    members = {member.id: member for member in request.members}
    for name in sorted({*objects, *members}):
        cause = _foreign(request, members.get(name), objects.get(name))
        if cause is not None:
            return Refusal(participant=name, cause=cause)
    try:
        topology = Topology(TopologyVersion(request.topology), request.members)
    except ConfigError as error:
        return Refusal(participant="", cause=f"topology {request.topology} is not one: {error}")
    snapshots = {name: objects[name] for name in sorted(members)}
    violation = check_cut(topology, {ParticipantId(name): snapshot for name, snapshot in snapshots.items()})
    if violation is not None:
        target = violation.channel.target if violation.channel is not None else ""
        return Refusal(participant=violation.participant or target, cause=str(violation), violation=violation)
    digests = dict(request.snapshots)
    manifest = Manifest(
        cluster=request.cluster,
        epoch=request.epoch,
        incarnation=request.incarnation,
        topology=request.topology,
        started_at=request.started_at,
        policy=request.policy,
        previous=request.previous,
        members=tuple(
            ManifestMember(
                participant=name,
                session=members[name].session,
                snapshot=digests[name],
                agents=tuple(sorted(members[name].agents)),
            )
            for name in sorted(members)
        ),
        channels=channel_table(snapshots),
        packs=packs_of(snapshots.values()),
        merkle_root="",
    )
    data = sign_manifest(manifest, keys)
    return Assembled(manifest=manifest, data=data, digest=digest(data))


def assemble_objects(request: AssemblyRequest, data: Mapping[str, bytes], keys: ClusterKeys) -> Assembled | Refusal:
    """`assemble` on the objects' bytes: digests are compared before anything is decoded."""
    objects: dict[str, LocalSnapshot] = {}
    for participant, expected in request.snapshots:
        if participant not in data:
            return Refusal(participant=participant, cause=f"the local snapshot of {participant} is missing")
        try:
            objects[participant] = decode_local_snapshot(
                data[participant], expected=expected, name=snapshot_key(expected)
            )
        except (ObjectCorrupt, UnsupportedVersion) as error:
            return Refusal(participant=participant, cause=str(error))
    return assemble(request, objects, keys)


def assemble_from_store(
    request: AssemblyRequest, store: ObjectStore, keys: ClusterKeys
) -> CutAssembled | CutRefused | SnapshotsUnreadable:
    """Read the objects, check, answer. Blocks; for a driver's thread.

    Returns:
        The event to feed to the machine; `took_ns` is the driver's to fill in.
    """
    data: dict[str, bytes] = {}
    for participant, named in request.snapshots:
        try:
            data[participant] = store.get(snapshot_key(named), size_max=SNAPSHOT_OBJECT_BYTES_MAX)
        except ObjectCorrupt as error:
            return CutRefused(epoch=request.epoch, participant=participant, cause=str(error))
        except StoreError as error:
            gone = isinstance(error, ObjectMissing)
            return SnapshotsUnreadable(epoch=request.epoch, participant=participant, cause=str(error), gone=gone)
    result = assemble_objects(request, data, keys)
    if isinstance(result, Refusal):
        return CutRefused(epoch=request.epoch, participant=result.participant, cause=result.cause)
    return CutAssembled(epoch=request.epoch, previous=request.previous, manifest=result.data, digest=result.digest)


def _foreign(request: AssemblyRequest, member: Member | None, snapshot: LocalSnapshot | None) -> str | None:
    """Why this object is not the one that the epoch waits for; None: it is."""
    if member is None:
        return f"an object of somebody who is not a member of epoch {request.epoch}"
    if snapshot is None:
        return f"the local snapshot of {member.id} is missing"
    for what, found, expected in (
        ("cluster", snapshot.cluster, request.cluster),
        ("epoch", snapshot.epoch, request.epoch),
        ("incarnation", snapshot.incarnation, request.incarnation),
        ("participant", snapshot.participant, member.id),
        ("session", snapshot.session, member.session),
        ("topology", snapshot.topology, request.topology),
    ):
        if found != expected:
            return f"the local snapshot of {member.id} is of {what} {found}, not {expected}"
    hosted, placed = {agent.id for agent in snapshot.agents}, set(member.agents)
    if hosted != placed:
        missing, surplus = sorted(placed - hosted), sorted(hosted - placed)
        what = f"lacks agent {missing[0]}" if missing else f"holds agent {surplus[0]}, which is not placed there"
        return f"the local snapshot of {member.id} {what}"
    return None
