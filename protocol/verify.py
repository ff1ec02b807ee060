"""Verifies epochs from what lies in a store, offline, trusting nobody: promise P1 and all that a restore will need.

What is checked, in this order:
    1. The manifest: its form, canonical bytes, number, cluster, signature (where keys are given), Merkle root.
    2. Each member's local snapshot: digest, form, that it is of this epoch and participant, that it holds the agents that
       the manifest places there.
    3. The channel table against the two ends of each channel, and P1 by `protocol.cut`.
    4. The list of packs; that each is there.
    5. Deep: each pack's digest, each chunk, and what the chunks hold (`protocol.verify_contents`).

Rules:
    * A finding names object, participant or channel, what was expected and what was found. All findings are collected
      unless the caller wants only the first. A store that fails is a finding too: what cannot be read cannot be restored.
    * Nothing is decoded before its digest fits, and nothing is ever imported or unpickled.
    * What is not evidence of damage is a note: an unchecked signature, a previous manifest that retention removed.

What it does not know: the ledger. That the ledger has sealed this manifest and no other is for its digest to say, which a
report carries.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from protocol.cut import violations
from protocol.digests import (
    EPOCH_MAX,
    EPOCHS_PREFIX,
    FORMAT_KEY,
    digest,
    epoch_of_key,
    manifest_key,
    pack_key,
    snapshot_key,
)
from protocol.documents import (
    channel_table,
    decode_local_snapshot,
    decode_manifest,
    merkle_root,
    packs_of,
    verify_signature,
)
from protocol.errors import ConfigError, StoreError
from protocol.findings import EnoughFound, Finding, Findings, VerifyReport
from protocol.ids import ParticipantId, TopologyVersion
from protocol.limits import KIB, MANIFEST_BYTES_MAX, SNAPSHOT_OBJECT_BYTES_MAX
from protocol.messages import Member
from protocol.tombstones import is_forsaken
from protocol.topology import Topology
from protocol.verify_contents import ContentVerifier

if TYPE_CHECKING:
    from protocol.cut import Violation
    from protocol.findings import SignatureState
    from protocol.ids import Epoch
    from protocol.keys import ClusterKeys
    from protocol.manifest import LocalSnapshot, Manifest, ManifestChannel, ManifestMember
    from protocol.ports import ObjectStore

__all__ = ["Finding", "Verifier", "VerifyReport", "committed_epochs", "newest_epoch", "verify_all", "verify_epoch"]


def verify_epoch(
    store: ObjectStore,
    epoch: int,
    keys: ClusterKeys | None,
    *,
    deep: bool = True,
    stop_at_first: bool = False,
) -> VerifyReport:
    """Verify one epoch.

    Args:
        store: The cluster's store. Only read.
        epoch: Its number.
        keys: To check the signature; None: it is reported as not checked.
        deep: Also read every pack and chunk.
        stop_at_first: Stop at the first finding.

    Returns:
        The report; never raises for anything that the store holds or fails to give.
    """
    return Verifier(store, keys, deep=deep, stop_at_first=stop_at_first).verify(epoch)


def verify_all(
    store: ObjectStore, keys: ClusterKeys | None, *, deep: bool = True, stop_at_first: bool = False
) -> tuple[VerifyReport, ...]:
    """Verify every epoch that has a manifest, ascending; what several share is read once.

    Args:
        store: As `verify_epoch`.
        keys: As `verify_epoch`.
        deep: As `verify_epoch`.
        stop_at_first: Stop each epoch at its first finding; the other epochs are verified all the same.

    Raises:
        StoreError: The manifests cannot be listed.
    """
    verifier = Verifier(store, keys, deep=deep, stop_at_first=stop_at_first)
    return tuple(verifier.verify(epoch) for epoch in committed_epochs(store))


def committed_epochs(store: ObjectStore) -> tuple[Epoch, ...]:
    """Epochs that have a manifest, ascending. For people and checks; the newest epoch comes from the ledger."""
    return tuple(epoch for epoch in _listed(store) if not is_forsaken(store, epoch))


def newest_epoch(store: ObjectStore, *, before: int = EPOCH_MAX + 1) -> Epoch | None:
    """The newest epoch under this number that has a manifest; looks at as few objects as can be."""
    return next((each for each in reversed(_listed(store)) if each < before and not is_forsaken(store, each)), None)


def _listed(store: ObjectStore) -> list[Epoch]:
    """Epochs under whose keys something lies, ascending: a manifest, or the tombstone of one that was forsaken."""
    found = (epoch_of_key(key) for key in store.list(EPOCHS_PREFIX))
    return [epoch for epoch in found if epoch is not None]


class Verifier:
    """Verifies epochs of one store and remembers which packs and chunks were right."""

    def __init__(
        self, store: ObjectStore, keys: ClusterKeys | None, *, deep: bool = True, stop_at_first: bool = False
    ) -> None:
        self._store = store
        self._keys = keys
        self._deep = deep
        self._stop_at_first = stop_at_first
        self._contents = ContentVerifier(store)

    def verify(self, epoch: int) -> VerifyReport:
        """Verify one epoch; see `verify_epoch`."""
        into = Findings(stop_at_first=self._stop_at_first)
        run = _Run(self._store, self._keys, self._contents if self._deep else None, epoch, into)
        with suppress(EnoughFound):
            run.check()
        return VerifyReport(
            epoch=epoch,
            ok=not into.findings,
            deep=self._deep,
            manifest=run.digest,
            signature=run.signature,
            findings=tuple(into.findings),
            counts=into.counts,
            notes=tuple(into.notes),
        )


class _Run:
    """One epoch being verified."""

    def __init__(
        self,
        store: ObjectStore,
        keys: ClusterKeys | None,
        contents: ContentVerifier | None,
        epoch: int,
        into: Findings,
    ) -> None:
        self._store = store
        self._keys = keys
        self._contents = contents
        self._epoch = epoch
        self._key = ""
        self._into = into
        self.digest = ""
        self.signature: SignatureState = "not checked"

    def check(self) -> None:
        """Everything, in order. Raises `EnoughFound`."""
        self._key = self._into.attempt(partial(manifest_key, self._epoch), key=EPOCHS_PREFIX) or ""
        data = self._get(self._key, MANIFEST_BYTES_MAX) if self._key else None
        if data is None:
            return
        self.digest = digest(data)
        manifest = self._into.attempt(partial(decode_manifest, data, name=self._key), key=self._key)
        if manifest is None:
            return
        self._check_signature(data, manifest)
        self._check_manifest(manifest)
        snapshots = {
            member.participant: snapshot
            for member in manifest.members
            if (snapshot := self._check_member(manifest, member)) is not None
        }
        self._check_table(manifest, snapshots)
        self._check_cut(manifest, snapshots)
        packs = self._check_packs(manifest, snapshots)
        if self._contents is not None:
            self._contents.check(packs, snapshots, self._into)
            return
        for pack in packs:
            self._into.attempt(partial(self._store.size, pack_key(pack)), key=pack_key(pack))

    # --- the manifest -----------------------------------------------------------------------------------------------

    def _check_signature(self, data: bytes, manifest: Manifest) -> None:
        if self._keys is None:
            self._into.notes.append("the signature was not checked: no secret was given")
        elif not manifest.signature:
            self.signature = "missing"
            self._into.add("signature", "the manifest is not signed", key=self._key)
        elif not verify_signature(data, manifest, self._keys):
            self.signature = "wrong"
            self._into.add(
                "signature",
                "the signature does not verify: the manifest was changed, or signed with another secret",
                key=self._key,
            )
        else:
            self.signature = "verified"

    def _check_manifest(self, manifest: Manifest) -> None:
        self._into.count("members", len(manifest.members))
        self._into.count("agents", sum(len(member.agents) for member in manifest.members))
        self._into.count("channels", len(manifest.channels))
        self._expect("manifest", "the manifest lies under another epoch's key", self._epoch, manifest.epoch)
        root = merkle_root(manifest.members, manifest.channels)
        self._expect("manifest", "the Merkle root is not that of its members and channels", root, manifest.merkle_root)
        cluster = self._cluster_of_store()
        if cluster is not None:
            self._expect("foreign", "the manifest is of another cluster", cluster, manifest.cluster)
        self._note_chain(manifest)

    def _expect(self, kind: str, detail: str, expected: object, found: object) -> None:
        if expected != found:
            self._into.add(kind, detail, key=self._key, expected=expected, found=found)

    def _cluster_of_store(self) -> str | None:
        data = self._get(FORMAT_KEY, 4 * KIB)
        if data is None:
            return None
        try:
            return str(msgspec.json.decode(data, type=dict[str, Any]).get("cluster"))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            self._into.add("corrupt", "not a format document", key=FORMAT_KEY)
            return None

    def _note_chain(self, manifest: Manifest) -> None:
        try:
            earlier = newest_epoch(self._store, before=self._epoch)
            before = (
                "" if earlier is None else digest(self._store.get(manifest_key(earlier), size_max=MANIFEST_BYTES_MAX))
            )
        except StoreError as error:
            self._into.notes.append(f"the chain was not followed: {error}")
            return
        if before == manifest.previous:
            return
        if not manifest.previous:
            self._into.notes.append(f"it names no previous manifest, though that of epoch {earlier} is there")
            return
        self._into.notes.append(
            f"the previous manifest, {manifest.previous[:19]}..., is not the newest earlier one in the store: retention "
            "removed it, its epoch was sealed and forsaken, or an older epoch was put back"
        )

    # --- members ----------------------------------------------------------------------------------------------------

    def _check_member(self, manifest: Manifest, member: ManifestMember) -> LocalSnapshot | None:
        """The member's local snapshot, if its bytes are the right ones."""
        name, key = member.participant, snapshot_key(member.snapshot)
        data = self._get(key, SNAPSHOT_OBJECT_BYTES_MAX, participant=name)
        if data is None:
            return None
        snapshot = self._into.attempt(
            partial(decode_local_snapshot, data, expected=member.snapshot, name=key), key=key, participant=name
        )
        if snapshot is None:
            return None
        for what in ("cluster", "epoch", "incarnation"):
            expected, found = getattr(manifest, what), getattr(snapshot, what)
            if expected != found:
                detail = f"the local snapshot is of another {what}"
                self._into.add("foreign", detail, key=key, participant=name, expected=expected, found=found)
        placed, held = tuple(sorted(member.agents)), tuple(agent.id for agent in snapshot.agents)
        if placed != held:
            self._into.add(
                "agents",
                "the local snapshot does not hold the agents that the manifest places there",
                key=key,
                participant=name,
                expected=", ".join(placed) or "none",
                found=", ".join(held) or "none",
            )
        return snapshot

    # --- channels ---------------------------------------------------------------------------------------------------

    def _check_table(self, manifest: Manifest, snapshots: dict[str, LocalSnapshot]) -> None:
        reported = {(row.source, row.target): row for row in channel_table(snapshots)}
        written = {(row.source, row.target): row for row in manifest.channels}
        members = frozenset(member.participant for member in manifest.members)
        for channel in sorted({*reported, *written}):
            expected, found = _row(reported.get(channel)), _row(written.get(channel))
            name = "->".join(channel)
            if not members.issuperset(channel):
                self._into.add(
                    "channel-table", "a channel of somebody who is not a member", key=self._key, channel=name
                )
            elif snapshots.keys() >= set(channel) and expected != found:
                self._into.add(
                    "channel-table",
                    "the manifest's row is not what the two ends reported",
                    key=self._key,
                    channel=name,
                    expected=expected,
                    found=found,
                )

    def _check_cut(self, manifest: Manifest, snapshots: dict[str, LocalSnapshot]) -> None:
        topology = self._topology(manifest)
        if topology is None:
            return
        for violation in violations(topology, {ParticipantId(name): each for name, each in snapshots.items()}):
            # What could not be read was named already; a channel with one end unread proves nothing.
            ends: tuple[str, ...] = violation.channel or ()
            if violation.participant is not None:
                ends = (violation.participant,)
            if all(end in snapshots for end in ends):
                self._add_violation(violation)

    def _topology(self, manifest: Manifest) -> Topology | None:
        targets: dict[str, list[str]] = {}
        for row in manifest.channels:
            targets.setdefault(row.source, []).append(row.target)
        members = tuple(
            Member(
                id=member.participant,
                session=member.session,
                agents=member.agents,
                targets=tuple(targets.get(member.participant, ())),
            )
            for member in manifest.members
        )
        try:
            return Topology(TopologyVersion(manifest.topology), members)
        except ConfigError as error:
            self._into.add("manifest", f"its members are no topology: {error}", key=self._key)
            return None

    def _add_violation(self, violation: Violation) -> None:
        self._into.add(
            violation.kind,
            violation.detail,
            participant=violation.participant or "",
            channel=str(violation.channel) if violation.channel is not None else "",
            expected="" if violation.sent is None else f"sent {violation.sent}",
            found="" if violation.received is None else f"received {violation.received}",
        )

    # --- packs ------------------------------------------------------------------------------------------------------

    def _check_packs(self, manifest: Manifest, snapshots: dict[str, LocalSnapshot]) -> list[str]:
        """Compare the list of packs with what the local snapshots name; all of them, sorted."""
        named, listed = packs_of(snapshots.values()), frozenset(manifest.packs)
        for pack in named:
            if pack not in listed:
                self._into.add(
                    "packs", "a local snapshot names this pack and the manifest does not list it", key=pack_key(pack)
                )
        if len(snapshots) == len(manifest.members):
            needed = frozenset(named)
            for pack in manifest.packs:
                if pack not in needed:
                    self._into.add(
                        "packs", "the manifest lists this pack and no local snapshot names it", key=pack_key(pack)
                    )
        self._into.count("packs", len(manifest.packs))
        return sorted({*manifest.packs, *named})

    def _get(self, key: str, size_max: int, *, participant: str = "") -> bytes | None:
        return self._into.attempt(partial(self._store.get, key, size_max=size_max), key=key, participant=participant)


def _row(row: ManifestChannel | None) -> str:
    if row is None:
        return "no row"
    return f"sent {row.sent}, received {row.received}, recorded {row.recorded}, messages {row.messages}, {row.digest}"
