"""A store with one small committed epoch, made with the formats alone: two participants, one message in flight."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
from blake3 import blake3

from protocol.digests import digest, manifest_key, pack_key, snapshot_key
from protocol.documents import channel_table, encode_local_snapshot, packs_of, sign_manifest
from protocol.ids import AgentId, Epoch, cluster_name
from protocol.items import encode_message_item
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
from protocol.ports import ObjectStore
from protocol.storage import open_store

EVIL = "\x1b[31mred\u202e"
SECRET = bytes(range(32))
EMPTY = "b3:" + blake3(b"").hexdigest()


@dataclass
class Made:
    """Where it is."""

    folder: Path
    store: ObjectStore
    secret_file: Path
    pack: str

    def file(self, key: str) -> Path:
        """The file of an object."""
        return self.folder / "store" / "shop" / key


def make_store(folder: Path, *, epoch: int = 3, claim_sent: int = 1) -> Made:
    """Write it.

    Args:
        folder: Gets ``store/`` and ``secret``.
        epoch: Its number.
        claim_sent: What p1 says that it sent to p2, of whom it is known that 1 is right.
    """
    (folder / "store").mkdir()
    secret = folder / "secret"
    secret.write_text(SECRET.hex())
    secret.chmod(0o600)
    store = open_store(str(folder / "store"), cluster_name("shop"))
    keys = ClusterKeys.from_secret(SECRET)
    message = Envelope(
        id=b"\1" * 16,
        source=AgentId("buyer/main"),
        target=AgentId("ledger/main"),
        type="Paid",
        version=1,
        body=msgspec.msgpack.encode({"cents": 5}),
    )
    item = encode_message_item(msgspec.msgpack.encode(message))
    contents = {
        "item": item,
        "note": msgspec.msgpack.encode(EVIL),
        "orders": msgspec.msgpack.encode([["o1", {"cents": 5, "raw": b"\0\1"}]]),
        "pickled": b"\x80\x05never loaded",
        "mailbox": msgspec.msgpack.encode([message]),
    }
    builder = PackBuilder()
    digests = {name: builder.add(data) for name, data in contents.items()}
    packed, pack, _ = builder.finish()
    store.put(pack_key(pack), packed)

    def ref(name: str) -> ChunkRef:
        return ChunkRef(digests[name], pack, len(contents[name]))

    buyer = AgentSnapshot(
        id="buyer/main",
        state_version=2,
        fields=(
            FieldRef(name="note", shape="value", segments=((ref("note"),),)),
            FieldRef(name="orders", shape="keyed", segments=((ref("orders"),),)),
            FieldRef(name="model", shape="whole", serializer="cloudpickle", segments=((ref("pickled"),),)),
        ),
        mailbox=(ref("mailbox"),),
        mailbox_count=1,
    )
    after = "b3:" + blake3(item).hexdigest()
    common = {"cluster": "shop", "incarnation": 1, "epoch": epoch, "topology": 1}
    snapshots = {
        "p1": LocalSnapshot(
            participant="p1",
            session=1,
            agents=(buyer,),
            outgoing=(OutgoingCut(target="p2", sent=claim_sent, digest=after),),
            incoming=(IncomingCut(source="p2", received=0, closed_at=0, digest=EMPTY, items=0, messages=0),),
            **common,
        ),
        "p2": LocalSnapshot(
            participant="p2",
            session=2,
            agents=(AgentSnapshot(id="ledger/main"),),
            outgoing=(OutgoingCut(target="p1", sent=0, digest=EMPTY),),
            incoming=(
                IncomingCut(
                    source="p1", received=0, closed_at=1, digest=after, items=1, messages=1, chunks=(ref("item"),)
                ),
            ),
            **common,
        ),
    }
    members = []
    for name, snapshot in sorted(snapshots.items()):
        data = encode_local_snapshot(snapshot)
        store.put(snapshot_key(digest(data)), data)
        agents = tuple(agent.id for agent in snapshot.agents)
        members.append(ManifestMember(participant=name, session=snapshot.session, snapshot=digest(data), agents=agents))
    manifest = Manifest(
        started_at=1,
        members=tuple(members),
        channels=channel_table(snapshots),
        packs=packs_of(snapshots.values()),
        merkle_root="",
        **common,
    )
    store.put(manifest_key(Epoch(epoch)), sign_manifest(manifest, keys))
    return Made(folder, store, secret, pack)
