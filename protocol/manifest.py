"""The local-snapshot object and the manifest: what an epoch is made of, on disk.

Both are canonical JSON (sorted keys, no spaces, UTF-8), so that one content has one digest. The manifest is a function
of ledger entries and local-snapshot objects alone: every leader makes the same bytes.

Layout of the store (DESIGN.md section 7); keys are relative to ``<root>/<cluster>/``::

    format.json                 {"format": 1, "cluster": name}
    packs/<aa>/<hex>            pack id = BLAKE3 of the pack; aa = first two hex digits
    snapshots/<hex>             local-snapshot object, by digest of its bytes
    epochs/<20 digits>.json     manifest

Their bytes, signature and the checks of their form are in `protocol.documents`.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

FORMAT_VERSION = 1

_NAME = "[a-z0-9][a-z0-9._-]{0,62}"
# `\Z`, not `$`, which would let a line break follow.
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{_NAME}\Z")]
AgentName: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{_NAME}/{_NAME}\Z")]
MaybeAgentName: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A({_NAME}/{_NAME})?\Z")]
DigestText: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\Ab3:[0-9a-f]{64}\Z")]
MaybeDigest: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A(b3:[0-9a-f]{64})?\Z")]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=4096)]
LedgerName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Shape: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A(value|keyed|whole)\Z")]


class ChunkRef(msgspec.Struct, frozen=True, array_like=True):
    """Where one chunk lies: digest of its uncompressed bytes, and the pack that holds it."""

    digest: DigestText
    pack: DigestText
    """Digest of the pack object."""
    bytes: Count
    """Uncompressed size."""


class FieldRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One field of an agent's state (`value` or `keyed`), or the whole of an agent with capture() of its own.

    The field's encoded bytes are its chunks' bytes: for ``value`` and ``whole`` all chunks joined are one encoded value;
    for ``keyed`` each element of `segments` is a list of chunks that joined are one msgpack array ``[[key, value], ...]``.
    Segments apply in order: a later entry takes the place of an earlier one with the same key; then the keys in `removed`
    go. (A base and small overlays: an epoch writes only the entries that changed.)
    """

    name: Text
    shape: Shape
    """``value``, ``keyed`` or ``whole``."""
    serializer: Text = "msgpack"
    segments: tuple[tuple[ChunkRef, ...], ...] = ()
    removed: tuple[ChunkRef, ...] = ()
    """Chunks that joined are one msgpack array of keys that segments hold and the state does not."""


class AgentSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One agent at the cut."""

    id: AgentName
    state_version: Count = 1
    fields: tuple[FieldRef, ...] = ()
    mailbox: tuple[ChunkRef, ...] = ()
    """Chunks that joined are one msgpack array of encoded `Envelope`s, next to handle first; the message of a running
    turn is the first."""
    mailbox_count: Count = 0
    running: bool = False
    """A turn was running: its message is the first of the mailbox and will be handled again from its start."""
    timers: tuple[ChunkRef, ...] = ()
    """msgpack array of ``[fire in ns after the cut, encoded Envelope]``."""
    timers_count: Count = 0
    dead: bool = False
    """Stopped by its failure policy."""
    outputs: tuple[ChunkRef, ...] = ()
    """Chunks that joined are one msgpack array of encoded `Output`s (`protocol.outputs`), in order of emission: emitted
    before the cut, and not known by then to have reached their sink."""
    outputs_count: Count = 0
    journal: tuple[ChunkRef, ...] = ()
    """msgpack array of encoded `FinishedStep`s (`protocol.journal`): of turns that were not over."""
    journal_count: Count = 0
    questions: tuple[ChunkRef, ...] = ()
    """msgpack array of encoded `OpenQuestion`s: of turns that were not over."""
    questions_count: Count = 0
    was: MaybeAgentName = ""
    """The name that positions of its turns are named after, where a restore has given it another one; "": its own."""
    ledgers: tuple[LedgerName, ...] = ()
    """Effect ledgers that may hold what it has done, other than the one in `LocalSnapshot.ledger`: of hosts that it has left, and of
    disks that were lost (`participant.effects.reach`). Sorted."""


class OutgoingCut(msgspec.Struct, frozen=True, kw_only=True):
    """One outgoing channel at the cut."""

    target: Name
    sent: Count
    """Sequence number of the last item before the marker (the marker's number minus one)."""
    digest: DigestText
    """Running digest over the encoded items 1..sent of this channel."""
    ended: bool = False
    """The channel had ended in order before the cut."""


class IncomingCut(msgspec.Struct, frozen=True, kw_only=True):
    """One incoming channel: position at the cut and the channel state."""

    source: Name
    received: Count
    """Sequence number of the last item received before the local state was recorded."""
    closed_at: Count
    """Sequence number of the last item before the marker that closed the channel."""
    digest: DigestText
    """Running digest over the items 1..closed_at, continued from the cut over the *recorded* bytes: equal to the
    sender's only if what was recorded is what was sent."""
    items: Count
    """Recorded items, other epochs' markers included: closed_at - received."""
    messages: Count
    """Recorded messages among them."""
    chunks: tuple[ChunkRef, ...] = ()
    """Chunks that joined are the recorded items' encoded bytes, in order (protocol.items)."""
    base: Number | msgspec.UnsetType = msgspec.UNSET
    """The stream was resumed behind this item (`protocol.streams`): both digests are over what follows it. Unset: over all."""


class LocalSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A participant's part of an epoch: the object that its report names by digest."""

    format: int = FORMAT_VERSION
    cluster: Name
    participant: Name
    incarnation: Number
    session: Number
    epoch: Number
    topology: Number
    agents: tuple[AgentSnapshot, ...]
    unrouted: tuple[ChunkRef, ...] = ()
    """msgpack array of encoded Envelopes sent to agents that nobody hosted yet."""
    unrouted_count: Count = 0
    outgoing: tuple[OutgoingCut, ...]
    """Sorted by target."""
    incoming: tuple[IncomingCut, ...]
    """Sorted by source."""
    state_bytes: Count = 0
    input_position: Number | msgspec.UnsetType = msgspec.UNSET
    """Of the participant's input log: everything up to it had been taken in before the cut, nothing behind it. Unset (which
    is false): nothing had been; then it takes no bytes."""
    input_tokens: tuple[ChunkRef, ...] | msgspec.UnsetType = msgspec.UNSET
    """Each chunk is one msgpack array of ``[id, digest]``: messages of outside input with tokens that agents here had had at the cut,
    whichever participant took them, and what was asked for; the newest of them, oldest first. Whoever has an agent from here knows by
    them what is not to be delivered again. Older builds: hashes of the tokens of all that had been taken here. Unset: none."""
    ledger: LedgerName | msgspec.UnsetType = msgspec.UNSET
    """The effect ledger that was at hand (`participant.effects.reach`): what the agents here have done since their own `ledgers`
    is in it, and so is what they did after the cut. Unset: it is not known which one that was."""
    build: Text = ""


class ManifestMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member in a manifest."""

    participant: Name
    session: Number
    snapshot: DigestText
    """Digest of its `LocalSnapshot` object."""
    agents: tuple[AgentName, ...]
    """Placement."""


class ManifestChannel(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the channel table: P1 can be checked from it and the objects."""

    source: Name
    target: Name
    sent: Count
    received: Count
    recorded: Count
    messages: Count
    digest: DigestText


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The immutable document of a committed epoch."""

    format: int = FORMAT_VERSION
    cluster: Name
    epoch: Number
    incarnation: Number
    topology: Number
    started_at: Count
    """Wall clock of the leader that started it, ns since 1970: for people, never for decisions."""
    policy: Text = ""
    """Why it was started: ``periodic``, ``manual``, ``requested: ...``."""
    previous: MaybeDigest = ""
    """Digest of the manifest of the last committed epoch: a chain (RELIABILITY.md T6)."""
    members: tuple[ManifestMember, ...]
    """Sorted by participant."""
    channels: tuple[ManifestChannel, ...]
    """Sorted by source, target."""
    packs: tuple[DigestText, ...]
    """Every pack that any member's snapshot names, sorted."""
    merkle_root: DigestText
    """Root over the members' snapshot digests and the channel rows, in their order."""
    signature: Text = ""
    """Keyed BLAKE3 over the canonical bytes with this field empty (`ClusterKeys.sign_manifest`)."""
