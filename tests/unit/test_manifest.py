"""protocol.manifest, protocol.documents, protocol.digests: canonical bytes, strict decoding, Merkle root, signature."""

import json
from pathlib import Path

import msgspec
import pytest

from protocol import digests, documents
from protocol.digests import digest, epoch_of_key, manifest_key, merkle_root_of, pack_key, snapshot_key
from protocol.documents import (
    channel_table,
    chunk_refs,
    decode_local_snapshot,
    decode_manifest,
    encode_local_snapshot,
    encode_manifest,
    is_canonical,
    local_snapshot_steps,
    merkle_root,
    packs_of,
    sign_manifest,
    verify_signature,
)
from protocol.errors import ObjectCorrupt, ObjectMissing, StoreError, UnsupportedVersion
from protocol.keys import ClusterKeys
from protocol.manifest import (
    AgentSnapshot,
    ChunkRef,
    FieldRef,
    IncomingCut,
    LocalSnapshot,
    Manifest,
    ManifestChannel,
    ManifestMember,
    OutgoingCut,
)

DATA = Path(__file__).parent / "data"
KEYS = ClusterKeys.from_secret(bytes(range(32)))
D1, D2, D3 = digest(b"1"), digest(b"2"), digest(b"3")
P1, P2 = digest(b"pack 1"), digest(b"pack 2")


def a_snapshot(**changes):
    fields = {
        "cluster": "demo",
        "participant": "a",
        "incarnation": 1,
        "session": 5,
        "epoch": 7,
        "topology": 2,
        "agents": (
            AgentSnapshot(
                id="bank/main",
                fields=(
                    FieldRef(
                        name="accounts", shape="keyed", segments=((ChunkRef(D1, P2, 10),), (ChunkRef(D2, P1, 20),))
                    ),
                    FieldRef(name="spent", shape="value", segments=((ChunkRef(D3, P1, 1),),)),
                ),
                mailbox=(ChunkRef(D1, P1, 3),),
                mailbox_count=1,
            ),
        ),
        "outgoing": (OutgoingCut(target="b", sent=9, digest=D1),),
        "incoming": (IncomingCut(source="b", received=3, closed_at=5, digest=D2, items=2, messages=1),),
        "state_bytes": 31,
    }
    return LocalSnapshot(**(fields | changes))


def a_manifest(**changes):
    fields = {
        "cluster": "demo",
        "epoch": 7,
        "incarnation": 1,
        "topology": 2,
        "started_at": 1_700_000_000_000_000_000,
        "policy": "manual",
        "members": (
            ManifestMember(participant="a", session=5, snapshot=D1, agents=("bank/main",)),
            ManifestMember(participant="b", session=6, snapshot=D2, agents=()),
        ),
        "channels": (
            ManifestChannel(source="a", target="b", sent=9, received=8, recorded=1, messages=1, digest=D1),
            ManifestChannel(source="b", target="a", sent=5, received=3, recorded=2, messages=1, digest=D2),
        ),
        "packs": tuple(sorted((P1, P2))),
        "merkle_root": D3,
    }
    return Manifest(**(fields | changes))


def respelled(data, **changes):
    """The same document with some fields changed, canonical again."""
    return json.dumps(json.loads(data) | changes, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


# --- digests and keys ------------------------------------------------------------------------------------------------


def test_keys_are_made_of_checked_digests_only():
    assert snapshot_key(D1) == f"snapshots/{D1[3:]}"
    assert pack_key(D1) == f"packs/{D1[3:5]}/{D1[3:]}"
    for hostile in ("", "b3:../../etc/passwd", "b3:" + "A" * 64, D1 + "\n", D1[:-1], "sha256:" + "0" * 64, None, 7):
        for key in (snapshot_key, pack_key):
            with pytest.raises(ObjectCorrupt, match="not a digest"):
                key(hostile)


def test_manifest_keys_sort_as_their_epochs():
    assert manifest_key(7) == "epochs/00000000000000000007.json"
    assert sorted(manifest_key(n) for n in (10, 9, 2**63 - 1)) == [
        manifest_key(9),
        manifest_key(10),
        manifest_key(2**63 - 1),
    ]
    assert epoch_of_key(manifest_key(7)) == 7
    for other in (
        "epochs/7.json",
        "epochs/" + "0" * 20 + ".json",
        "packs/aa",
        manifest_key(7) + "\n",
        manifest_key(7) + ".tmp",
    ):
        assert epoch_of_key(other) is None


@pytest.mark.parametrize("epoch", [0, -1, 2**63, 10**30])
def test_a_number_that_no_epoch_has_is_a_missing_object(epoch):
    with pytest.raises(ObjectMissing, match="there is no epoch"):
        manifest_key(epoch)
    assert epoch_of_key(f"epochs/{epoch:020d}.json") is None


def test_the_tree_is_that_of_rfc_6962():
    """The recursive definition, word for word, against the loop."""

    def recursive(leaves):
        if len(leaves) == 1:
            return digests.blake3(b"\0" + leaves[0]).digest()
        split = 1
        while split * 2 < len(leaves):
            split *= 2
        return digests.blake3(b"\1" + recursive(leaves[:split]) + recursive(leaves[split:])).digest()

    for count in range(1, 40):
        leaves = [bytes([n]) * (n % 5) for n in range(count)]
        assert merkle_root_of(leaves) == "b3:" + recursive(leaves).hex()
    assert merkle_root_of([]) == digest(b"")


def test_a_leaf_is_not_a_node():
    """Second preimage: the two children's hashes as one leaf must give another root."""
    left, right = (digests.blake3(b"\0" + leaf).digest() for leaf in (b"x", b"y"))
    assert merkle_root_of([left + right]) != merkle_root_of([b"x", b"y"])


# --- round trips and golden bytes ------------------------------------------------------------------------------------


def test_documents_come_back_as_they_were():
    snapshot = a_snapshot()
    data = encode_local_snapshot(snapshot)
    assert decode_local_snapshot(data, expected=digest(data)) == snapshot
    manifest = a_manifest()
    data = encode_manifest(manifest)
    assert decode_manifest(data, expected=digest(data)) == manifest


def in_steps(steps):
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


@pytest.mark.parametrize(
    ("agents", "fields", "segments", "refs"),
    [(0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 1, 1), (40, 2, 3, 1), (2, 2, 2, 1300), (1, 3, 700, 1), (1, 1, 1, 512)],
)
def test_a_local_snapshot_made_in_steps_is_the_same_bytes(agents, fields, segments, refs):
    """And the steps are small, however many references there are in which places."""
    row = tuple(ChunkRef(D1, P1, number) for number in range(refs))
    snapshot = a_snapshot(
        agents=tuple(
            AgentSnapshot(
                id=f"bank/{agent:03}",
                dead=agent % 2 == 0,
                mailbox=row[:3],
                fields=tuple(
                    FieldRef(name=f'f{field}"\0é', shape="keyed", segments=(row,) * segments, removed=row[:2])
                    for field in range(fields)
                ),
            )
            for agent in range(agents)
        )
    )
    steps, data = in_steps(local_snapshot_steps(snapshot))
    assert data == encode_local_snapshot(snapshot)
    assert 1100 * (steps + 1) >= agents * fields * segments * refs


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("local-snapshot-v1", encode_local_snapshot(a_snapshot())),
        ("manifest-v1", sign_manifest(a_manifest(), KEYS)),
    ],
)
def test_format_1_is_these_bytes_for_ever(name, data):
    """Golden bytes: a change here is a new format version."""
    golden = (DATA / f"{name}.json").read_bytes().removesuffix(b"\n")
    assert data == golden
    assert is_canonical(golden)


def test_effect_ledgers_are_in_the_document_where_there_are_any():
    """Those of the golden bytes above have none; older builds read past them."""
    plain = a_snapshot()
    assert (plain.ledger, plain.agents[0].ledgers) == (msgspec.UNSET, ())
    agent = msgspec.structs.replace(plain.agents[0], ledgers=("b/0123456789abcdef", "c@7"))
    data = encode_local_snapshot(a_snapshot(ledger="a/fedcba9876543210", agents=(agent,)))
    assert b'"ledger":"a/fedcba9876543210"' in data
    assert b'"ledgers":["b/0123456789abcdef","c@7"]' in data
    found = decode_local_snapshot(data)
    assert (found.ledger, found.agents[0].ledgers) == ("a/fedcba9876543210", agent.ledgers)
    for wrong in ("", "x" * 129, 7, None):
        with pytest.raises(ObjectCorrupt, match="ledger"):
            decode_local_snapshot(respelled(data, ledger=wrong))


def test_the_same_content_has_the_same_bytes_whatever_the_order_of_making():
    backwards = Manifest(**dict(reversed([(name, getattr(a_manifest(), name)) for name in Manifest.__struct_fields__])))
    assert encode_manifest(backwards) == encode_manifest(a_manifest())


@pytest.mark.parametrize(
    "data", [b'{"b":1,"a":2}', b'{"a": 1}', b'{"a":1,"a":1}', b'{"a":1}\n', b'{"a":"\\u0041"}', b"{", b"\xff"]
)
def test_other_spellings_are_not_canonical(data):
    assert not is_canonical(data)


def test_deep_nesting_is_not_canonical_and_not_a_crash():
    assert not is_canonical(b"[" * 100_000 + b"]" * 100_000)


# --- strict decoding -------------------------------------------------------------------------------------------------


def test_a_digest_that_does_not_fit_is_refused_before_decoding(monkeypatch):
    monkeypatch.setattr(documents, "_versioned", None)
    data = encode_manifest(a_manifest())
    with pytest.raises(ObjectCorrupt, match=f"expected digest {D1}, found {digest(data)} over"):
        decode_manifest(data, expected=D1, name="epochs/7")
    with pytest.raises(ObjectCorrupt, match="expected digest"):
        decode_local_snapshot(encode_local_snapshot(a_snapshot()), expected=D1)


@pytest.mark.parametrize("decode", [decode_manifest, decode_local_snapshot])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"format":1}',
        b'{"format":"1"}',
        b'{"format":true}',
        b'{"format":1e400}',
        b"\xff\xfe",
        b'{"format":1,"x":"\xff"}',
        b'{"format":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b'{"format":1,"cluster":"os.system","__reduce__":"cos\\nsystem"}',
        encode_manifest(a_manifest())[:-1],
        encode_local_snapshot(a_snapshot())[:-1],
        encode_manifest(a_manifest()) + b"x",
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, bytes) else value.__name__,
)
def test_what_is_not_the_document_is_corrupt_and_nothing_else(decode, data):
    with pytest.raises(ObjectCorrupt):
        decode(data)


@pytest.mark.parametrize("decode", [decode_manifest, decode_local_snapshot])
def test_a_later_format_says_so(decode):
    with pytest.raises(UnsupportedVersion, match="thing has format version 2; this build reads version 1"):
        decode(b'{"format":2,"all":"different"}', name="thing")


@pytest.mark.parametrize(
    ("decode", "document"),
    [(decode_manifest, encode_manifest(a_manifest())), (decode_local_snapshot, encode_local_snapshot(a_snapshot()))],
)
def test_no_document_says_two_formats(decode, document):
    """However it begins: the last one counts, for whoever reads it afterwards, too."""
    beginning = document.replace(b'"format":1,', b"").replace(b"{", b'{"format":1,', 1)
    with pytest.raises(UnsupportedVersion):
        decode(beginning[:-1] + b',"format":2}')


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"cluster": "../x"}, "cluster"),
        ({"cluster": "demo\n"}, "cluster"),
        ({"epoch": 0}, "epoch"),
        ({"epoch": 2**63}, "epoch"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": "7"}, "epoch"),
        ({"epoch": 7.5}, "epoch"),
        ({"previous": "b3:x"}, "previous"),
        ({"merkle_root": ""}, "merkle_root"),
        ({"packs": ["b3:../../../etc/passwd"]}, "packs"),
        ({"policy": "x" * 5000}, "policy"),
        ({"members": {}}, "members"),
        ({"members": [{"participant": "../a", "session": 1, "snapshot": D1, "agents": []}]}, "participant"),
        ({"members": [{"participant": "a", "session": 1, "snapshot": D1, "agents": ["../../x"]}]}, "agents"),
        ({"members": [{"participant": "a", "session": 1, "snapshot": D1, "agents": ["bank/../x"]}]}, "agents"),
        ({"channels": [{"source": "a"}]}, "channels"),
    ],
)
def test_a_manifest_with_a_wrong_field_names_it(change, place):
    with pytest.raises(ObjectCorrupt, match=place):
        decode_manifest(respelled(encode_manifest(a_manifest()), **change))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"members": a_manifest().members[::-1]}, "members: 'a' comes after 'b'"),
        ({"members": a_manifest().members[:1] * 2}, "members: 'a' comes after 'a'"),
        ({"channels": a_manifest().channels[::-1]}, "channels"),
        ({"packs": a_manifest().packs[::-1]}, "packs"),
        ({"channels": (msgspec.structs.replace(a_manifest().channels[0], target="a"),)}, "a to itself"),
    ],
)
def test_order_and_uniqueness_are_part_of_the_form(change, says):
    plain = msgspec.to_builtins(msgspec.structs.replace(a_manifest(), **change))
    with pytest.raises(ObjectCorrupt, match=says):
        decode_manifest(documents.canonical_json(plain))
    with pytest.raises(AssertionError, match=says):
        encode_manifest(a_manifest(**change))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"agents": a_snapshot().agents * 2}, "agents: 'bank/main' comes after 'bank/main'"),
        ({"outgoing": a_snapshot().outgoing * 2}, "outgoing: 'b'"),
        ({"incoming": a_snapshot().incoming * 2}, "incoming: 'b'"),
        ({"participant": "b"}, "outgoing: a channel from b to itself"),
        ({"participant": "b", "outgoing": ()}, "incoming: a channel from b to itself"),
        (
            {"agents": (AgentSnapshot(id="x/y", fields=(FieldRef(name="n", shape="value"),) * 2),)},
            "agent x/y: a field comes twice",
        ),
    ],
)
def test_a_local_snapshot_out_of_form_is_refused_both_ways(change, says):
    plain = msgspec.to_builtins(msgspec.structs.replace(a_snapshot(), **change))
    with pytest.raises(ObjectCorrupt, match=says):
        decode_local_snapshot(documents.canonical_json(plain))
    with pytest.raises(AssertionError, match=says):
        encode_local_snapshot(a_snapshot(**change))


def test_a_field_of_a_later_build_is_read_past_and_counts_for_digest_and_signature():
    signed = sign_manifest(a_manifest(), KEYS)
    later = respelled(signed, zebra={"stripes": 7})
    manifest = decode_manifest(later, expected=digest(later))
    assert manifest.epoch == 7
    assert not verify_signature(later, manifest, KEYS)
    blank = respelled(later, signature="")
    resigned = respelled(blank, signature=KEYS.sign_manifest(blank))
    assert verify_signature(resigned, decode_manifest(resigned), KEYS)


def test_a_manifest_in_another_spelling_is_refused():
    spaced = json.dumps(json.loads(encode_manifest(a_manifest())), sort_keys=True).encode()
    with pytest.raises(ObjectCorrupt, match="not canonical"):
        decode_manifest(spaced)


def test_oversized_documents_are_refused_before_decoding(monkeypatch):
    monkeypatch.setattr(documents, "MANIFEST_BYTES_MAX", 100)
    with pytest.raises(ObjectCorrupt, match="at most 100 are read"):
        decode_manifest(encode_manifest(a_manifest()))


# --- signature and tree ----------------------------------------------------------------------------------------------


def test_a_signed_manifest_verifies_and_any_change_does_not():
    signed = sign_manifest(a_manifest(), KEYS)
    manifest = decode_manifest(signed)
    assert manifest.merkle_root == merkle_root(manifest.members, manifest.channels)
    assert verify_signature(signed, manifest, KEYS)
    for change in ({"epoch": 8}, {"cluster": "other"}, {"previous": D1}, {"incarnation": 2}, {"packs": []}):
        changed = respelled(signed, **change)
        assert not verify_signature(changed, decode_manifest(changed), KEYS)
    assert not verify_signature(signed, manifest, ClusterKeys.from_secret(bytes(range(1, 33))))


def test_an_unsigned_manifest_does_not_verify():
    data = encode_manifest(a_manifest())
    assert not verify_signature(data, a_manifest(), KEYS)


def test_a_signature_hidden_in_an_unknown_field_does_not_verify():
    signed = sign_manifest(a_manifest(), KEYS)
    manifest = decode_manifest(signed)
    changed = respelled(signed, extra={"signature": manifest.signature})
    assert not verify_signature(changed, decode_manifest(changed), KEYS)
    quoted = respelled(signed, policy=f'"signature":"{manifest.signature}"')
    assert not verify_signature(quoted, decode_manifest(quoted), KEYS)


def test_signing_is_a_function_of_the_content_alone():
    assert sign_manifest(a_manifest(), KEYS) == sign_manifest(a_manifest(merkle_root=D1, signature="old"), KEYS)


@pytest.mark.parametrize("field", ["sent", "received", "recorded", "messages"])
def test_the_root_covers_each_count_of_the_channel_table(field):
    manifest = a_manifest()
    row = manifest.channels[0]
    changed = msgspec.structs.replace(row, **{field: getattr(row, field) + 1})
    assert merkle_root(manifest.members, (changed, *manifest.channels[1:])) != merkle_root(
        manifest.members, manifest.channels
    )


# --- tables made from local snapshots --------------------------------------------------------------------------------


def test_the_channel_table_comes_from_both_ends():
    a = a_snapshot()
    b = a_snapshot(
        participant="b",
        agents=(),
        outgoing=(OutgoingCut(target="a", sent=5, digest=D2),),
        incoming=(IncomingCut(source="a", received=8, closed_at=9, digest=D1, items=1, messages=1),),
    )
    assert channel_table({"b": b, "a": a}) == a_manifest().channels


def test_a_channel_with_one_end_has_no_row():
    assert channel_table({"a": a_snapshot()}) == ()


def test_every_chunk_and_pack_that_a_local_snapshot_names_is_found():
    snapshot = a_snapshot(
        unrouted=(ChunkRef(digest(b"u"), P1, 1),),
        incoming=(
            IncomingCut(
                source="b",
                received=0,
                closed_at=1,
                digest=D1,
                items=1,
                messages=1,
                chunks=(ChunkRef(digest(b"c"), P2, 1),),
            ),
        ),
    )
    assert [ref.digest for ref in chunk_refs(snapshot)] == [D1, D2, D3, D1, digest(b"u"), digest(b"c")]
    assert packs_of([snapshot, snapshot]) == tuple(sorted((P1, P2)))


def test_every_error_of_these_decoders_is_one_of_two_families():
    for data in (b"\x00", b'{"format":1.5}', b'{"format":[]}'):
        with pytest.raises((StoreError, UnsupportedVersion)):
            decode_manifest(data)
