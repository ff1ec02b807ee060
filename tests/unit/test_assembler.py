"""The cut assembler: what it refuses, by name, and that its bytes are a function of ledger and objects."""

import pytest

from coordinator.assembler import (
    Assembled,
    AssemblyRequest,
    Refusal,
    assemble,
    assemble_from_store,
    assemble_objects,
    request_for,
)
from coordinator.events import CutAssembled, CutRefused, SnapshotsUnreadable
from protocol.digests import digest, snapshot_key
from protocol.documents import decode_manifest, encode_local_snapshot, merkle_root, verify_signature
from protocol.errors import StoreError
from protocol.ids import ClusterName
from protocol.keys import ClusterKeys
from protocol.manifest import AgentSnapshot, ChunkRef, FieldRef, IncomingCut, LocalSnapshot, OutgoingCut
from protocol.messages import Member
from protocol.storage.memory import MemoryStore
from tests.coordinator_world import KEYS, MANUAL, cluster, replace_struct

EMPTY = digest(b"")
SENT = digest(b"what a sent to b")
MEMBERS = tuple(Member(id=name, session=i + 1, agents=(f"w/{name}",)) for i, name in enumerate(("a", "b", "c")))


def snapshot(name: str) -> LocalSnapshot:
    """Three members, each sends to each; 7 items went from a to b: 4 were received, 3 are in flight."""
    others = [m.id for m in MEMBERS if m.id != name]

    def out(target):
        return OutgoingCut(target=target, sent=7, digest=SENT) if (name, target) == ("a", "b") else quiet_out(target)

    def quiet_out(target):
        return OutgoingCut(target=target, sent=0, digest=EMPTY)

    def incoming(source):
        if (source, name) == ("a", "b"):
            chunk = ChunkRef(digest=digest(b"chunk"), pack=digest(b"pack of b"), bytes=9)
            return IncomingCut(
                source=source, received=4, closed_at=7, digest=SENT, items=3, messages=3, chunks=(chunk,)
            )
        return IncomingCut(source=source, received=0, closed_at=0, digest=EMPTY, items=0, messages=0)

    field = FieldRef(name="x", shape="value", segments=((ChunkRef(digest=EMPTY, pack=digest(b"pack"), bytes=0),),))
    return LocalSnapshot(
        cluster="shop",
        participant=name,
        incarnation=1,
        session=next(m.session for m in MEMBERS if m.id == name),
        epoch=5,
        topology=2,
        agents=(AgentSnapshot(id=f"w/{name}", fields=(field,)),),
        outgoing=tuple(out(target) for target in others),
        incoming=tuple(incoming(source) for source in others),
    )


def objects(**changes) -> dict[str, LocalSnapshot]:
    found = {name: snapshot(name) for name in ("a", "b", "c")}
    for name, fields in changes.items():
        found[name] = replace_struct(found[name], **fields)
    return found


def request(found: dict[str, LocalSnapshot]) -> AssemblyRequest:
    return AssemblyRequest(
        cluster="shop",
        epoch=5,
        incarnation=1,
        started_at=1_790_000_000_000_000_000,
        policy="manual",
        previous=digest(b"manifest before"),
        topology=2,
        members=MEMBERS,
        snapshots=tuple((name, digest(encode_local_snapshot(found[name]))) for name in ("a", "b", "c")),
    )


def refusal(**changes) -> Refusal:
    found = objects(**changes)
    result = assemble(request(found), found, KEYS)
    assert isinstance(result, Refusal)
    return result


def incoming_of_b(**fields):
    first, *rest = snapshot("b").incoming
    return {"incoming": (replace_struct(first, **fields), *rest)}


@pytest.mark.parametrize(
    ("name", "fields", "what"),
    [
        ("a", {"cluster": "other"}, "of cluster other, not shop"),
        ("b", {"epoch": 4}, "of epoch 4, not 5"),
        ("b", {"incarnation": 2}, "of incarnation 2, not 1"),
        ("c", {"session": 9}, "of session 9, not 3"),
        ("c", {"topology": 1}, "of topology 1, not 2"),
        ("a", {"agents": ()}, "lacks agent w/a"),
        ("a", {"agents": (AgentSnapshot(id="w/a"), AgentSnapshot(id="w/z"))}, "holds agent w/z"),
    ],
)
def test_object_that_is_not_of_this_epoch_is_refused_by_name(name, fields, what):
    result = refusal(**{name: fields})
    assert result.participant == name
    assert what in result.cause
    assert result.violation is None


def test_object_of_another_participant_is_refused():
    found = objects()
    found["c"] = found["b"]
    result = assemble(request(objects()), found, KEYS)
    assert result.participant == "c"
    assert "of participant b, not c" in result.cause


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"received": 8, "closed_at": 8}, "orphan"),
        ({"closed_at": 8, "items": 4}, "orphan-in-channel"),
        ({"closed_at": 6, "items": 2}, "lost"),
        ({"items": 2}, "lost"),
        ({"items": 4}, "duplicate"),
        ({"closed_at": 3, "items": 0}, "counted-twice"),
        ({"digest": EMPTY}, "digest"),
    ],
)
def test_cut_that_breaks_the_first_promise_is_refused_with_channel_and_counts(fields, kind):
    result = refusal(b=incoming_of_b(**{"messages": 0, **fields}))
    assert result.violation.kind == kind
    assert result.participant == "b"
    assert "a->b" in result.cause


def test_channel_that_was_never_closed_is_refused():
    result = refusal(b={"incoming": snapshot("b").incoming[1:]})
    assert result.violation.kind == "incomplete"


def test_sums_that_cancel_out_do_not_help():
    """Pitfall 36: one item lost on one channel, one counted twice on another."""
    first, second = snapshot("c").incoming
    result = refusal(
        b=incoming_of_b(closed_at=6, items=2, messages=2),
        c={"incoming": (replace_struct(first, items=1, messages=1), second)},
    )
    assert result.violation.kind == "lost"


def test_missing_and_surplus_objects_are_refused():
    found = objects()
    lacking = {name: s for name, s in found.items() if name != "b"}
    assert assemble(request(found), lacking, KEYS).participant == "b"
    surplus = {**found, "z": found["a"]}
    assert assemble(request(found), surplus, KEYS).participant == "z"


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\x80\x04pickle", b'{"format":1}', b"x" * 100])
def test_bytes_that_are_not_the_named_object_are_refused_before_they_are_decoded(data):
    found = objects()
    encoded = {name: encode_local_snapshot(s) for name, s in found.items()}
    result = assemble_objects(request(found), {**encoded, "b": data}, KEYS)
    assert result.participant == "b"
    assert "expected digest" in result.cause
    del encoded["c"]
    assert assemble_objects(request(found), encoded, KEYS).participant == "c"


def test_named_object_that_is_not_a_local_snapshot_is_refused():
    found = objects()
    encoded = {name: encode_local_snapshot(s) for name, s in found.items()}
    encoded["b"] = b'{"format":1,"cluster":"shop"}'
    wanted = request(found)
    named = tuple((n, digest(encoded[n])) for n, _ in wanted.snapshots)
    from dataclasses import replace

    result = assemble_objects(replace(wanted, snapshots=named), encoded, KEYS)
    assert result.participant == "b"
    assert "not one of our documents" in result.cause


def test_store_that_lacks_an_object_may_have_it_later_and_a_corrupt_one_is_final():
    found = objects()
    store = MemoryStore(ClusterName("shop"))
    for name in ("a", "c"):
        data = encode_local_snapshot(found[name])
        store.put(snapshot_key(digest(data)), data)
    event = assemble_from_store(request(found), store, KEYS)
    assert isinstance(event, SnapshotsUnreadable)
    assert event.participant == "b"
    assert event.gone
    key = snapshot_key(digest(encode_local_snapshot(found["b"])))
    store.put(key, b"rot")
    event = assemble_from_store(request(found), store, KEYS)
    assert isinstance(event, CutRefused)
    assert (event.participant, event.epoch) == ("b", 5)
    store.delete(key)
    store.put(key, encode_local_snapshot(found["b"]))
    event = assemble_from_store(request(found), store, KEYS)
    assert isinstance(event, CutAssembled)
    assert event.digest == digest(event.manifest)
    assert event.previous == digest(b"manifest before")


def test_store_that_fails_does_not_say_that_an_object_is_gone():
    """What is gone may be the end of a sealed epoch; a store that does not answer is not."""

    class Broken(MemoryStore):
        def get(self, key, *, size_max):
            raise StoreError("get", key, "input/output error", errno_name="EIO")

    event = assemble_from_store(request(objects()), Broken(ClusterName("shop")), KEYS)
    assert isinstance(event, SnapshotsUnreadable)
    assert not event.gone


def test_manifest_says_all_there_is_and_is_signed():
    found = objects()
    result = assemble(request(found), found, KEYS)
    assert isinstance(result, Assembled)
    manifest = decode_manifest(result.data, expected=result.digest)
    assert [m.participant for m in manifest.members] == ["a", "b", "c"]
    assert [m.session for m in manifest.members] == [1, 2, 3]
    assert manifest.members[1].agents == ("w/b",)
    row = next(c for c in manifest.channels if (c.source, c.target) == ("a", "b"))
    assert (row.sent, row.received, row.recorded, row.messages, row.digest) == (7, 4, 3, 3, SENT)
    assert len(manifest.channels) == 6
    assert manifest.packs == tuple(sorted([digest(b"pack"), digest(b"pack of b")]))
    assert manifest.merkle_root == merkle_root(manifest.members, manifest.channels)
    assert (manifest.previous, manifest.policy) == (digest(b"manifest before"), "manual")
    assert verify_signature(result.data, manifest, KEYS)
    assert not verify_signature(
        result.data, manifest, ClusterKeys.from_secret(b"another secret, as long as the first one")
    )


def test_request_is_the_same_whoever_leads_before_and_after_the_seal():
    world = cluster("b", "a", policy=MANUAL)
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "started" and world.epoch(1).complete)
    state = world.ledger.state
    before = request_for(state, world.epoch(1))
    assert [m.id for m in before.members] == ["a", "b"]
    assert before.policy == "manual"
    world.run(until=lambda: world.state_of(1) == "sealed")
    assert request_for(world.ledger.state, world.epoch(1)) == before
