"""A small committed epoch in a store, made by hand from documents and packs alone: for tests of what reads epochs.

Two participants. ``a`` hosts ``bank/main`` (keyed and plain state, a running turn, a timer) and ``tool/opaque`` (pickled);
``b`` hosts ``shop/x``. On a->b two messages are in flight around a marker of another epoch; b->a is empty; before that
three items had been received on a->b.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from blake3 import blake3

from protocol.digests import digest, manifest_key, pack_key, snapshot_key
from protocol.documents import canonical_json, channel_table, packs_of, sign_manifest
from protocol.items import encode_marker_item, encode_message_item
from protocol.keys import ClusterKeys
from protocol.manifest import (
    AgentSnapshot,
    ChunkRef,
    FieldRef,
    IncomingCut,
    LocalSnapshot,
    Manifest,
    ManifestMember,
    OutgoingCut,
)
from protocol.messages import Envelope
from protocol.pack import PackBuilder
from protocol.storage import ensure_format

KEYS = ClusterKeys.from_secret(bytes(range(32)))
PICKLE = b"cos\nsystem\n(S'touch /tmp/cleancut-was-here'\ntR."
"""What a pickle that runs a command looks like."""


def envelope(number, *, target="shop/x", source="bank/main", body=None):
    return Envelope(
        id=number.to_bytes(16, "big"),
        source=source,
        target=target,
        type="Paid",
        version=1,
        body=msgspec.msgpack.encode({"cents": number} if body is None else body),
    )


def encoded(*values):
    """What lies in a mailbox's chunk."""
    return msgspec.msgpack.encode(list(values))


def plain_manifest(epoch, *, cluster="c", participant="p1", snapshot="", started_at=1, previous="", agents=()):
    """A manifest of one participant, to be signed: for tests of what lies under a manifest's key."""
    member = ManifestMember(participant=participant, session=1, snapshot=snapshot or digest(b"one"), agents=agents)
    return Manifest(
        cluster=cluster,
        epoch=epoch,
        incarnation=1,
        topology=1,
        started_at=started_at,
        policy="periodic",
        previous=previous,
        members=(member,),
        channels=(),
        packs=(),
        merkle_root="",
    )


@dataclass
class MadeEpoch:
    """The parts of an epoch; change them, then `write`."""

    store: object
    epoch: int = 7
    cluster: str = "demo"
    previous: str = ""
    snapshots: dict[str, LocalSnapshot] = field(default_factory=dict)
    packs: dict[str, bytes] = field(default_factory=dict)
    manifest: Manifest | None = None
    data: bytes = b""

    def pack(self, *chunks):
        """A pack of these chunks; one reference each."""
        builder = PackBuilder()
        for chunk in chunks:
            builder.add(chunk)
        data, name, _ = builder.finish()
        self.packs[name] = data
        return tuple(ChunkRef(digest(chunk), name, len(chunk)) for chunk in chunks)

    def change(self, participant, **changes):
        self.snapshots[participant] = msgspec.structs.replace(self.snapshots[participant], **changes)

    def write(self, *, changes=None, keys=KEYS):
        """Put all of it into the store; `changes` go into the manifest before it is signed."""
        ensure_format(self.store, "demo")
        for name, data in self.packs.items():
            self.store.put(pack_key(name), data)
        objects = {name: canonical_json(snapshot) for name, snapshot in self.snapshots.items()}
        for data in objects.values():
            self.store.put(snapshot_key(digest(data)), data)
        fields = {
            "cluster": self.cluster,
            "epoch": self.epoch,
            "incarnation": 1,
            "topology": 2,
            "started_at": 1,
            "previous": self.previous,
            "members": tuple(
                ManifestMember(
                    participant=name,
                    session=snapshot.session,
                    snapshot=digest(objects[name]),
                    agents=tuple(sorted(agent.id for agent in snapshot.agents)),
                )
                for name, snapshot in sorted(self.snapshots.items())
            ),
            "channels": channel_table(self.snapshots),
            "packs": packs_of(self.snapshots.values()),
            "merkle_root": "",
        }
        self.manifest = Manifest(**(fields | (changes or {})))
        self.data = sign_manifest(self.manifest, keys)
        self.store.put(manifest_key(self.epoch), self.data)
        return self


def made_epoch(store, *, epoch=7, previous=""):
    """The epoch of the module's description, not yet written."""
    made = MadeEpoch(store, epoch=epoch, previous=previous)
    before = [encode_message_item(msgspec.msgpack.encode(envelope(n))) for n in (1, 2, 3)]
    flying = [
        encode_message_item(msgspec.msgpack.encode(envelope(4))),
        encode_marker_item(epoch + 1),
        encode_message_item(msgspec.msgpack.encode(envelope(5))),
    ]
    sent = digest_of(*before, *flying)
    back = digest_of()
    accounts = (
        msgspec.msgpack.encode([["ann", {"cents": 5}], ["bob", {"cents": 6}], ["old", {"cents": 9}]]),
        msgspec.msgpack.encode([["eve", {"cents": 0}], ["bob", {"cents": 7}]]),
        encoded("old"),
    )
    spent = msgspec.msgpack.encode(12)
    mailbox = encoded(envelope(8, target="bank/main", source="shop/x"), envelope(9, target="bank/main"))
    timers = encoded([60_000_000_000, envelope(10, target="bank/main")])
    first, second, gone, value, mail, timer, pickled = made.pack(*accounts, spent, mailbox, timers, PICKLE)
    head, tail, note = made.pack(
        b"".join(flying)[:20], b"".join(flying)[20:], msgspec.msgpack.encode({"open": True, "raw": b"\xff"})
    )
    common = {"cluster": "demo", "incarnation": 1, "epoch": epoch, "topology": 2}
    made.snapshots["a"] = LocalSnapshot(
        **common,
        participant="a",
        session=11,
        agents=(
            AgentSnapshot(
                id="bank/main",
                state_version=3,
                fields=(
                    FieldRef(name="accounts", shape="keyed", segments=((first,), (second,)), removed=(gone,)),
                    FieldRef(name="spent", shape="value", segments=((value,),)),
                    FieldRef(name="unset", shape="value"),
                ),
                mailbox=(mail,),
                mailbox_count=2,
                running=True,
                timers=(timer,),
                timers_count=1,
            ),
            AgentSnapshot(
                id="tool/opaque",
                fields=(FieldRef(name="state", shape="whole", serializer="cloudpickle", segments=((pickled,),)),),
                dead=True,
            ),
        ),
        outgoing=(OutgoingCut(target="b", sent=6, digest=sent),),
        incoming=(IncomingCut(source="b", received=0, closed_at=0, digest=back, items=0, messages=0),),
    )
    made.snapshots["b"] = LocalSnapshot(
        **common,
        participant="b",
        session=12,
        agents=(AgentSnapshot(id="shop/x", fields=(FieldRef(name="note", shape="value", segments=((note,),)),)),),
        outgoing=(OutgoingCut(target="a", sent=0, digest=back),),
        incoming=(
            IncomingCut(source="a", received=3, closed_at=6, digest=sent, items=3, messages=2, chunks=(head, tail)),
        ),
    )
    return made


def digest_of(*items):
    hasher = blake3()
    for item in items:
        hasher.update(item)
    return "b3:" + hasher.hexdigest()
