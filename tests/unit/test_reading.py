"""protocol.reading and protocol.contents: an epoch for people, nothing imported, nothing executed."""

import datetime
import sys

import msgspec
import pytest

from protocol import contents, reading
from protocol.digests import manifest_key, pack_key, snapshot_key
from protocol.errors import ObjectCorrupt, ObjectMissing, UnknownAgent
from protocol.items import encode_message_item
from protocol.manifest import AgentSnapshot, FieldRef
from protocol.messages import Envelope
from protocol.pack import PackReader
from protocol.reading import EpochReader, Opaque, shown
from protocol.storage.memory import MemoryStore
from tests.epochs import PICKLE, encoded, envelope, made_epoch


@pytest.fixture
def made():
    return made_epoch(MemoryStore("demo"))


def reader_of(made):
    return EpochReader.open(made.write().store, made.epoch)


def test_the_agents_of_an_epoch_and_where_they_were(made):
    reader = reader_of(made)
    assert reader.agents() == ("bank/main", "shop/x", "tool/opaque")
    assert [reader.host_of(agent) for agent in reader.agents()] == ["a", "b", "a"]
    assert reader.manifest.epoch == 7


def test_state_is_decoded_into_plain_values(made):
    """A base, an overlay that changes bob, and a key that has gone; a value that was never set is left out."""
    state = reader_of(made).state("bank/main")
    assert state.fields == {"accounts": {"ann": {"cents": 5}, "bob": {"cents": 7}, "eve": {"cents": 0}}, "spent": 12}
    assert (state.participant, state.state_version, state.running, state.dead) == ("a", 3, True, False)


def test_pickled_state_is_shown_by_its_size_and_never_loaded(made):
    state = reader_of(made).state("tool/opaque")
    assert state.fields == {"state": Opaque("cloudpickle", len(PICKLE))}
    assert str(state.fields["state"]) == f"<cloudpickle, {len(PICKLE)} bytes, not loaded>"
    assert state.dead


def test_mailbox_timers_and_channel_state_are_messages_in_order(made):
    reader = reader_of(made)
    assert [each.id[-1] for each in reader.mailbox("bank/main")] == [8, 9]
    assert reader.timers("bank/main") == [(60_000_000_000, envelope(10, target="bank/main"))]
    assert reader.channel("a", "b") == [envelope(4), envelope(5)]
    assert reader.channel("b", "a") == []
    assert reader.mailbox("shop/x") == []
    assert reader.timers("shop/x") == []
    assert reader.unrouted("a") == []


def test_envelopes_wrapped_as_byte_strings_are_read_too(made):
    (mail,) = made.pack(encoded(msgspec.msgpack.encode(envelope(1)), msgspec.msgpack.encode(envelope(2))))
    made.change("b", unrouted=(mail,), unrouted_count=2)
    assert reader_of(made).unrouted("b") == [envelope(1), envelope(2)]


def test_an_agent_as_a_document_is_plain_json(made):
    reader = reader_of(made)
    document = reader.document("bank/main")
    assert msgspec.json.decode(msgspec.json.encode(document)) == document
    assert document["mailbox"][0] == {
        "id": "00" * 15 + "08",
        "source": "shop/x",
        "target": "bank/main",
        "type": "Paid",
        "version": 1,
        "body": {"cents": 8},
    }
    assert document["timers"][0]["in_ns"] == 60_000_000_000
    assert reader.document("tool/opaque")["fields"] == {"state": {"opaque": "cloudpickle", "size": len(PICKLE)}}
    assert reader.document("shop/x")["fields"] == {"note": {"open": True, "raw": {"hex": "ff"}}}


def test_what_is_not_there_is_said_so(made):
    reader = reader_of(made)
    for ask in (
        lambda: reader.state("bank/other"),
        lambda: reader.mailbox("../../etc"),
        lambda: reader.snapshot("c"),
        lambda: reader.channel("b", "c"),
        lambda: reader.channel("a", "a"),
    ):
        with pytest.raises(UnknownAgent, match=r"epoch 7 (has|holds) no"):
            ask()
    with pytest.raises(ObjectMissing):
        EpochReader.open(made.store, 8)


def test_a_body_that_is_no_msgpack_is_shown_as_bytes():
    shown_body = reading.shown_message(msgspec.structs.replace(envelope(1), body=b"\xc1"))["body"]
    assert shown_body == {"hex": "c1"}


def test_an_extension_type_may_be_a_key(made):
    (odd,) = made.pack(b"\x91\x92\xd4\x05\x01\x02")
    field = FieldRef(name="odd", shape="keyed", segments=((odd,),))
    made.change("b", agents=(AgentSnapshot(id="shop/x", fields=(field,)),))
    reader = reader_of(made)
    assert reader.state("shop/x").fields == {"odd": {(5, b"\x01"): 2}}
    assert reader.document("shop/x")["fields"] == {"odd": {"pairs": [[[5, {"hex": "01"}], 2]]}}


def test_a_manifest_under_another_epochs_key_is_refused(made):
    made.write()
    made.store.put(manifest_key(8), made.data)
    with pytest.raises(ObjectCorrupt, match="this is the manifest of epoch 7"):
        EpochReader.open(made.store, 8)


def test_an_agent_that_the_manifest_places_where_it_is_not_is_corrupt(made):
    made.write()
    members = tuple(msgspec.structs.replace(each, agents=("ghost/x",)) for each in made.manifest.members[:1])
    reader = EpochReader(made.store, msgspec.structs.replace(made.manifest, members=members))
    with pytest.raises(ObjectCorrupt, match="places agent ghost/x there"):
        reader.state("ghost/x")


def test_other_serializers_and_keys(made):
    json_ref, bad_json, deep_json, odd = made.pack(
        b'{"a":[1]}', b"{", b"[" * 50_000, msgspec.msgpack.encode([[[1, [2]], "x"], [None, "y"], [{"k": [1]}, "z"]])
    )
    fields = (
        FieldRef(name="json", shape="value", serializer="json", segments=((json_ref,),)),
        FieldRef(name="odd", shape="keyed", segments=((odd,),)),
    )
    made.change("b", agents=(AgentSnapshot(id="shop/x", fields=fields),))
    state = reader_of(made).state("shop/x")
    assert state.fields == {"json": {"a": [1]}, "odd": {(1, (2,)): "x", None: "y", (("k", (1,)),): "z"}}
    for ref in (bad_json, deep_json):
        made.epoch += 1
        made.change(
            "b",
            epoch=made.epoch,
            agents=(
                AgentSnapshot(
                    id="shop/x", fields=(FieldRef(name="j", shape="value", serializer="json", segments=((ref,),)),)
                ),
            ),
        )
        with pytest.raises(ObjectCorrupt, match="field j of shop/x"):
            reader_of(made).state("shop/x")


def test_shown_values_are_json_whatever_they_were():
    values = [
        None,
        True,
        2**53,
        2**53 + 1,
        -(2**60),
        1.5,
        float("nan"),
        float("inf"),
        "text",
        b"short",
        b"x" * 33,
        {"a": (1, [2])},
        {1: 2, "b": 3},
        msgspec.msgpack.Ext(5, b"e"),
        datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        Opaque("cloudpickle", 9),
        1j,
    ]
    assert msgspec.json.decode(msgspec.json.encode([shown(value) for value in values])) == [
        None,
        True,
        2**53,
        str(2**53 + 1),
        str(-(2**60)),
        1.5,
        "nan",
        "inf",
        "text",
        {"hex": b"short".hex()},
        {"bytes": "eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4"},
        {"a": [1, [2]]},
        {"pairs": [[1, 2], ["b", 3]]},
        {"ext": 5, "hex": "65"},
        "2026-01-02T00:00:00+00:00",
        {"opaque": "cloudpickle", "size": 9},
        "1j",
    ]


def test_deep_values_are_cut_off_not_followed():
    value = keyed = 1
    for _ in range(500):
        value = [value]
        keyed = (keyed,)
    assert "..." in str(shown(value))
    assert "..." in str(reading.hashable(keyed))


# --- hostile content (A13) -------------------------------------------------------------------------------------------

MANY = b"\x91" * 100_000 + b"\xc0"
HOSTILE = {
    "empty": b"",
    "pickle": PICKLE,
    "class path": msgspec.msgpack.encode({"__reduce__": ["os.system", ["true"]], "py/object": "os.system"}),
    "2 GB of bytes": b"\xc6\x7f\xff\xff\xff",
    "4 G of array": b"\xdd\xff\xff\xff\xff",
    "4 G of map": b"\xdf\xff\xff\xff\xff",
    "deep": MANY,
    "bad text": b"\xa1\xff",
    "ext": b"\xc7\x04\x05abcd",
    "timestamp": b"\xd7\xff" + b"\xff" * 8,
    "unhashable key": b"\x81\x81\x01\x02\x03",
    "trailing": b"\x90\x90",
    "reserved byte": b"\xc1",
    "bad id": encoded(Envelope(b"short", "a/b", "a/b", "T", 1, b"")),
    "hostile agent": encoded(Envelope(bytes(16), "../../etc/passwd", "a/b", "T", 1, b"")),
    "hostile target": encoded(Envelope(bytes(16), "a/b", "a/b\n", "T", 1, b"")),
    "huge message": encoded(Envelope(bytes(16), "a/b", "a/b", "T", 1, bytes(2**20 + 1))),
    "wrapped garbage": encoded(b"\xc1"),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_content_is_plain_values_or_corrupt_and_imports_nothing(data):
    modules = set(sys.modules)
    for decode in (
        contents.decode_value,
        contents.decode_segment,
        contents.decode_mailbox,
        contents.decode_timers,
        contents.decode_envelope,
        lambda given, name: contents.messages_of(contents.decode_channel(given, 1, name), name),
        lambda given, name: contents.messages_of([encode_message_item(given[:1000] or b"x")], name),
    ):
        try:
            shown(decode(data, "thing"))
        except ObjectCorrupt as error:
            assert error.key == "thing"  # noqa: PT017 - both outcomes are right, nothing else is
    assert set(sys.modules) == modules


@pytest.mark.parametrize(
    "name", ["pickle", "deep", "bad id", "hostile agent", "hostile target", "huge message", "wrapped garbage"]
)
def test_a_mailbox_of_hostile_bytes_is_refused(made, name):
    (mail,) = made.pack(HOSTILE[name])
    made.change("b", unrouted=(mail,), unrouted_count=1)
    with pytest.raises(ObjectCorrupt, match="unrouted messages of b"):
        reader_of(made).unrouted("b")


def test_an_object_of_another_tenant_is_refused_by_its_digest(made):
    """Swapped in under the right key: the reader compares before it decodes."""
    reader = reader_of(made)
    keys = list(made.store.list("snapshots/"))
    made.store.replace_for_test(keys[0], made.store.get(keys[1], size_max=10_000))
    swapped = next(name for name in ("a", "b") if snapshot_key(made.manifest.members[name == "b"].snapshot) == keys[0])
    with pytest.raises(ObjectCorrupt, match="expected digest"):
        reader.snapshot(swapped)


def test_a_damaged_chunk_is_named_with_its_pack(made):
    reader = reader_of(made)
    ref = made.snapshots["a"].agents[0].fields[1].segments[0][0]
    data = bytearray(made.packs[ref.pack])
    (entry,) = (each for each in PackReader.from_bytes(made.packs[ref.pack]).entries if each.digest == ref.digest)
    data[entry.offset] ^= 1
    made.store.replace_for_test(pack_key(ref.pack), bytes(data))
    with pytest.raises(ObjectCorrupt, match=f"chunk {ref.digest}: expected this digest") as caught:
        reader.state("bank/main")
    assert caught.value.key == pack_key(ref.pack)
