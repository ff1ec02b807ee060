"""The manifest and the local-snapshot object as bytes: canonical JSON, strict decoding, Merkle root, signature.

Rules:
    * Canonical: keys sorted, no spaces, UTF-8, each key once. One content has one spelling, so one digest.
    * A digest or signature is always over the *stored* bytes, never over bytes that were decoded and encoded again: a
      later build may have written fields that this one does not know, and they count.
    * Unknown fields are ignored; an unknown `format` is `UnsupportedVersion`. Everything else that does not fit is
      `ObjectCorrupt`, which names the object and the place in it. Nothing else is raised, whatever the bytes.
    * Here is form only (types, ranges, names, order). Whether the numbers fit together is for `protocol.cut` (P1) and
      `protocol.verify`.

Sources: DESIGN.md section 7; RELIABILITY.md T4, T6, T7, T9.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from protocol.digests import digest, merkle_root_of
from protocol.errors import ObjectCorrupt, ObjectMissing, UnsupportedVersion, printable
from protocol.limits import MANIFEST_BYTES_MAX, NESTING_MAX, SNAPSHOT_OBJECT_BYTES_MAX
from protocol.manifest import (
    FORMAT_VERSION,
    AgentSnapshot,
    ChunkRef,
    LocalSnapshot,
    Manifest,
    ManifestChannel,
    ManifestMember,
)
from protocol.tombstones import decode_tombstone

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from protocol.ids import Digest
    from protocol.keys import ClusterKeys

_T = TypeVar("_T", Manifest, LocalSnapshot)

_REFS_PER_STEP: Final = 512
"""Chunk references that are encoded at once: 0.3 ms."""
_SEGMENTS_PER_STEP: Final = 64
_AGENTS_PER_STEP: Final = 16
_PLACE: Final = b"\x00"
"""Stands for what is put in its place afterwards: no JSON has this byte."""


class _Versioned(msgspec.Struct):
    """What is read first: a later format must give a clear error, not a schema's complaint."""

    format: int


_encoder: Final = msgspec.json.Encoder(order="sorted")
_versioned: Final = msgspec.json.Decoder(_Versioned)
_SAYS_FORMAT: Final = b'"format":'
_manifest: Final = msgspec.json.Decoder(Manifest)
_snapshot: Final = msgspec.json.Decoder(LocalSnapshot)


# --- canonical JSON -------------------------------------------------------------------------------------------------


def canonical_json(value: object) -> bytes:
    """The one spelling of a JSON value."""
    return _encoder.encode(value)


def is_canonical(data: bytes) -> bool:
    """Whether these bytes are the one spelling of the JSON value that they hold; known fields or not."""
    try:
        return _encoder.encode(msgspec.json.decode(data)) == data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
        return False


# --- the local-snapshot object --------------------------------------------------------------------------------------


def encode_local_snapshot(snapshot: LocalSnapshot) -> bytes:
    """The object's canonical bytes; their `digest` is what the report names.

    Asserts that channels are sorted and agents named once: assembler and readers rely on it.
    """
    problem = _snapshot_problem(snapshot)
    assert problem is None, problem
    return _encoder.encode(snapshot)


def local_snapshot_steps(snapshot: LocalSnapshot) -> Generator[None, None, bytes]:
    """`encode_local_snapshot` in steps of a fraction of a millisecond: the same bytes, while a loop is served in between.

    Yields:
        After each step.
    """
    problem = _snapshot_problem(snapshot)
    assert problem is None, problem
    agents: list[bytes] = []
    for number, agent in enumerate(snapshot.agents):
        fields: list[msgspec.Raw] = []
        for field in agent.fields:
            if sum(map(len, field.segments)) <= _REFS_PER_STEP:
                fields.append(msgspec.Raw(_encoder.encode(field)))
                continue
            segments: list[bytes] = []
            for segment in field.segments:
                segments.append((yield from _joined_steps(segment)))
                if len(segments) % _SEGMENTS_PER_STEP == 0:
                    yield
            stand_in = msgspec.structs.replace(field, segments=(msgspec.Raw(_PLACE),))
            fields.append(msgspec.Raw(_put_in_place(_encoder.encode(stand_in), segments)))
            yield
        whole = _encoder.encode(msgspec.structs.replace(agent, fields=tuple(fields)) if fields else agent)
        agents.append(whole)
        if number % _AGENTS_PER_STEP == _AGENTS_PER_STEP - 1:
            yield
    if not agents:
        return _encoder.encode(snapshot)
    document = msgspec.structs.replace(snapshot, agents=(msgspec.Raw(_PLACE),))
    return _put_in_place(_encoder.encode(document), agents)


def _put_in_place(stand_in: bytes, items: list[bytes]) -> bytes:
    """One copy of everything: megabytes that are copied twice are a millisecond more."""
    head, tail = stand_in.split(_PLACE)
    items[0] = head + items[0]
    items[-1] += tail
    return b",".join(items)


def _joined_steps(refs: tuple[ChunkRef, ...]) -> Generator[None, None, bytes]:
    """One array of references."""
    if len(refs) <= _REFS_PER_STEP:
        return _encoder.encode(refs)
    pieces: list[bytes] = []
    for start in range(0, len(refs), _REFS_PER_STEP):
        pieces.append(_encoder.encode(refs[start : start + _REFS_PER_STEP])[1:-1])
        yield
    return b"[" + b",".join(pieces) + b"]"


def decode_local_snapshot(data: bytes, *, expected: str | None = None, name: str = "local snapshot") -> LocalSnapshot:
    """The local snapshot in an object.

    Args:
        data: The object's bytes.
        expected: The digest that named it, checked before anything is decoded.
        name: What to call it in errors: its key.

    Raises:
        ObjectCorrupt: Other digest, too large, not this schema, out of order.
        UnsupportedVersion: Of a later format.
    """
    check_bytes(data, expected, name)
    snapshot = _decode(_snapshot, data, name, SNAPSHOT_OBJECT_BYTES_MAX)
    problem = _snapshot_problem(snapshot)
    if problem is not None:
        raise ObjectCorrupt("get", name, problem)
    return snapshot


def chunk_refs(snapshot: LocalSnapshot) -> Iterator[ChunkRef]:
    """Every chunk that a local snapshot names, in document order; one chunk may come more than once."""
    for agent in snapshot.agents:
        for field in agent.fields:
            for segment in field.segments:
                yield from segment
            yield from field.removed
        yield from agent.mailbox
        yield from agent.timers
        yield from agent.outputs
        yield from agent.journal
        yield from agent.questions
    yield from snapshot.unrouted
    yield from snapshot.input_tokens or ()
    for incoming in snapshot.incoming:
        yield from incoming.chunks


# --- the manifest ---------------------------------------------------------------------------------------------------


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest's canonical bytes, as they are. Asserts that members, channels and packs are sorted."""
    problem = _manifest_problem(manifest)
    assert problem is None, problem
    return _encoder.encode(manifest)


def decode_manifest(data: bytes, *, expected: str | None = None, name: str = "manifest") -> Manifest:
    """The manifest in an object. Its signature is not checked: see `verify_signature`.

    Args:
        data: The object's bytes.
        expected: The digest in the ledger's seal, where there is one; checked before anything is decoded.
        name: What to call it in errors: its key.

    Raises:
        ObjectCorrupt: Other digest, too large, not canonical, not this schema, out of order.
        ObjectMissing: A tombstone lies in its place: the epoch was forsaken and has no manifest.
        UnsupportedVersion: Of a later format.
    """
    check_bytes(data, expected, name)
    forsaken = decode_tombstone(data)
    if forsaken is not None:
        raise ObjectMissing("get", name, f"epoch {forsaken.epoch} was sealed and then aborted: it has no manifest")
    manifest = _decode(_manifest, data, name, MANIFEST_BYTES_MAX)
    problem = _manifest_problem(manifest)
    if problem is None and not is_canonical(data):
        problem = "these bytes are not canonical JSON: it was written by something else, or changed"
    if problem is not None:
        raise ObjectCorrupt("get", name, problem)
    return manifest


def merkle_root(members: Sequence[ManifestMember], channels: Sequence[ManifestChannel]) -> Digest:
    """Root over the members' snapshot digests and the channel table, in their order.

    The leaves spell out their fields, so that a field added later does not change an old manifest's root.
    """
    leaves = [_encoder.encode(("member", m.participant, m.session, m.snapshot)) for m in members]
    leaves.extend(
        _encoder.encode(("channel", c.source, c.target, c.sent, c.received, c.recorded, c.messages, c.digest))
        for c in channels
    )
    return merkle_root_of(leaves)


def sign_manifest(manifest: Manifest, keys: ClusterKeys) -> bytes:
    """The final bytes of a manifest: `merkle_root` and `signature` filled in, canonical.

    The signature covers everything else in it: cluster, epoch, incarnation, the previous manifest's digest, all object
    digests (RELIABILITY.md T6).
    """
    rooted = msgspec.structs.replace(
        manifest, merkle_root=merkle_root(manifest.members, manifest.channels), signature=""
    )
    signature = keys.sign_manifest(encode_manifest(rooted))
    return encode_manifest(msgspec.structs.replace(rooted, signature=signature))


def verify_signature(data: bytes, manifest: Manifest, keys: ClusterKeys) -> bool:
    """Whether `data`, the stored bytes of `manifest`, was signed with this cluster's secret."""
    # Inside a JSON string every quote is escaped, so this spelling can only be a field; found twice, it is not ours.
    field = b'"signature":' + _encoder.encode(manifest.signature)
    if data.count(field) != 1:
        return False
    return keys.verify_manifest(data.replace(field, b'"signature":""'), manifest.signature)


def channel_table(snapshots: Mapping[str, LocalSnapshot]) -> tuple[ManifestChannel, ...]:
    """The manifest's channel table, made from the local snapshots alone.

    A channel of which only one end reported has no row here: that is for `protocol.cut` to name.
    """
    sent = {(source, out.target): out.sent for source, snapshot in snapshots.items() for out in snapshot.outgoing}
    return tuple(
        ManifestChannel(
            source=source,
            target=target,
            sent=sent[source, target],
            received=incoming.received,
            recorded=incoming.items,
            messages=incoming.messages,
            digest=incoming.digest,
        )
        for source, target, incoming in sorted(
            (
                (incoming.source, target, incoming)
                for target, snapshot in snapshots.items()
                for incoming in snapshot.incoming
            ),
            key=lambda row: row[:2],
        )
        if (source, target) in sent
    )


def packs_of(snapshots: Iterable[LocalSnapshot]) -> tuple[str, ...]:
    """Every pack that these local snapshots name, sorted, once each."""
    return tuple(sorted({ref.pack for snapshot in snapshots for ref in chunk_refs(snapshot)}))


# --- checks of form -------------------------------------------------------------------------------------------------


def check_bytes(data: bytes, expected: str | None, name: str) -> None:
    """Compare an object with the digest that named it, before anybody decodes it.

    Raises:
        ObjectCorrupt: With the digest that was expected and the one found.
    """
    if expected is None:
        return
    found = digest(data)
    if found != expected:
        raise ObjectCorrupt("get", name, f"expected digest {expected}, found {found} over {len(data)} bytes")


def _decode(decoder: msgspec.json.Decoder[_T], data: bytes, name: str, size_max: int) -> _T:
    if len(data) > size_max:
        raise ObjectCorrupt("get", name, f"{len(data)} bytes; at most {size_max} are read")
    try:
        document: _T | None = None
        if _SAYS_FORMAT in data:
            # Most documents are of this version: one pass over them. Any other may well not fit, and says why in a second one.
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError, RecursionError):
                document = decoder.decode(data)
        version = _versioned.decode(data).format if document is None else document.format
        if version != FORMAT_VERSION:
            raise UnsupportedVersion(f"{name} has format version {version}; this build reads version {FORMAT_VERSION}")
        return decoder.decode(data) if document is None else document
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError) as error:
        raise ObjectCorrupt("get", name, f"not one of our documents: {printable(error)}") from None
    except RecursionError:
        raise ObjectCorrupt("get", name, f"nested far deeper than {NESTING_MAX} levels") from None


def _snapshot_problem(snapshot: LocalSnapshot) -> str | None:
    me = snapshot.participant
    return (
        _order_problem("agents", [agent.id for agent in snapshot.agents])
        or _order_problem("outgoing", [out.target for out in snapshot.outgoing])
        or _order_problem("incoming", [incoming.source for incoming in snapshot.incoming])
        or next((f"outgoing: a channel from {me} to itself" for out in snapshot.outgoing if out.target == me), None)
        or next((f"incoming: a channel from {me} to itself" for inc in snapshot.incoming if inc.source == me), None)
        or next((problem for agent in snapshot.agents if (problem := _agent_problem(agent))), None)
    )


def _agent_problem(agent: AgentSnapshot) -> str | None:
    names = [field.name for field in agent.fields]
    return f"agent {agent.id}: a field comes twice" if len(set(names)) != len(names) else None


def _manifest_problem(manifest: Manifest) -> str | None:
    return (
        _order_problem("members", [member.participant for member in manifest.members])
        or _order_problem("channels", [(row.source, row.target) for row in manifest.channels])
        or _order_problem("packs", list(manifest.packs))
        or next((f"channels: {row.source} to itself" for row in manifest.channels if row.source == row.target), None)
    )


def _order_problem(what: str, keys: Sequence[Any]) -> str | None:
    for earlier, later in pairwise(keys):
        if earlier >= later:
            return f"{what}: {later!r} comes after {earlier!r}; they must be sorted and each come once"
    return None
