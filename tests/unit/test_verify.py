"""protocol.verify: a sound epoch is sound, and each kind of damage is named where it is."""

import msgspec
import pytest

from protocol import documents
from protocol import findings as findings_module
from protocol.digests import digest, manifest_key, pack_key, snapshot_key
from protocol.documents import canonical_json, sign_manifest
from protocol.errors import StoreError
from protocol.items import encode_message_item
from protocol.keys import ClusterKeys
from protocol.manifest import AgentSnapshot, ChunkRef, FieldRef, IncomingCut
from protocol.pack import PackReader
from protocol.storage import open_store
from protocol.storage.memory import MemoryStore
from protocol.verify import committed_epochs, verify_all, verify_epoch
from tests.epochs import KEYS, digest_of, encoded, envelope, made_epoch

OTHER_KEYS = ClusterKeys.from_secret(bytes(range(1, 33)))


@pytest.fixture
def made():
    return made_epoch(MemoryStore("demo"))


def verified(made, **options):
    return verify_epoch(made.store, made.epoch, KEYS, **options)


def kinds(report):
    return sorted({finding.kind for finding in report.findings})


def only(report):
    assert len(report.findings) == 1, [str(finding) for finding in report.findings]
    assert not report.ok
    return report.findings[0]


def changed(made, participant, /, **changes):
    """Write the epoch with a change in one local snapshot and verify it."""
    made.snapshots[participant] = msgspec.structs.replace(made.snapshots[participant], **changes)
    return verified(made.write())


def incoming(made, **changes):
    """The same with a change at b's end of the channel a->b."""
    (end,) = made.snapshots["b"].incoming
    return changed(made, "b", incoming=(msgspec.structs.replace(end, **changes),))


# --- sound -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_sound_epoch_is_sound_and_everything_was_looked_at(kind, tmp_path):
    store = MemoryStore("demo") if kind == "memory" else open_store(str(tmp_path), "demo")
    made = made_epoch(store).write()
    report = verified(made)
    assert report.findings == ()
    assert report.ok
    assert report.deep
    assert report.signature == "verified"
    assert report.manifest == digest(made.data)
    assert report.notes == ()
    assert report.counts == {
        "members": 2,
        "agents": 3,
        "channels": 2,
        "packs": 2,
        "chunks": 10,
        "bytes": sum(
            ref.bytes for ref in {ref for each in made.snapshots.values() for ref in documents.chunk_refs(each)}
        ),
        "items_in_flight": 3,
        "messages_in_flight": 2,
        "messages_in_mailboxes": 2,
        "timers": 1,
        "outputs": 0,
        "finished_steps": 0,
        "questions": 0,
    }


def test_a_report_is_a_plain_document(made):
    report = verified(made.write())
    assert msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(report)))["ok"] is True


def test_without_a_secret_the_signature_is_not_checked_and_that_is_said(made):
    report = verify_epoch(made.write().store, 7, None)
    assert report.ok
    assert report.signature == "not checked"
    assert report.notes == ("the signature was not checked: no secret was given",)


def test_verifying_only_reads(made):
    made.write()
    made.store.operations.clear()
    verified(made)
    assert {operation for operation, _ in made.store.operations} <= {"get", "get_range", "size", "list"}


def test_a_shallow_check_reads_no_pack_but_sees_that_each_is_there(made):
    made.write()
    made.store.operations.clear()
    assert verified(made, deep=False).ok
    packs = [operation for operation, key in made.store.operations if key.startswith("packs/")]
    assert packs == ["size"] * 2
    gone = made.manifest.packs[0]
    made.store.delete(pack_key(gone))
    finding = only(verified(made, deep=False))
    assert (finding.kind, finding.key) == ("missing", pack_key(gone))


# --- the manifest ----------------------------------------------------------------------------------------------------


def test_an_epoch_without_a_manifest_is_missing(made):
    finding = only(verified(made))
    assert (finding.kind, finding.key) == ("missing", manifest_key(7))
    assert only(verify_epoch(made.store, 0, KEYS)).kind == "missing"


@pytest.mark.parametrize(
    ("data", "kind"), [(b"", "corrupt"), (b"{}", "corrupt"), (b'{"format":9}', "manifest"), (b"[" * 10**5, "corrupt")]
)
def test_a_manifest_that_is_none_is_corrupt(made, data, kind):
    made.write()
    made.store.replace_for_test(manifest_key(7), data)
    report = verified(made)
    assert only(report).kind == kind
    assert report.manifest == digest(data)


def test_every_changed_byte_of_a_manifest_is_noticed(made):
    """I16: none of these verifies, and none makes the verifier fail."""
    made.write()
    for offset in range(0, len(made.data), 7):
        data = bytearray(made.data)
        data[offset] ^= 1
        made.store.replace_for_test(manifest_key(7), bytes(data))
        assert not verified(made, deep=False, stop_at_first=True).ok


def test_a_signature_of_another_secret_is_wrong(made):
    report = verified(made.write(keys=OTHER_KEYS))
    assert only(report).kind == "signature"
    assert report.signature == "wrong"


def test_an_unsigned_manifest_is_a_finding_where_a_secret_was_given(made):
    made.write()
    document = msgspec.json.decode(made.data) | {"signature": ""}
    made.store.replace_for_test(manifest_key(7), canonical_json(document))
    report = verified(made)
    assert only(report).kind == "signature"
    assert report.signature == "missing"


def test_a_manifest_of_another_epoch_under_this_key_is_named(made):
    """Replayed from an older epoch: the signature verifies, the number does not."""
    made.write()
    made.store.put(manifest_key(8), made.data)
    report = verify_epoch(made.store, 8, KEYS)
    finding = only(report)
    assert (finding.kind, finding.expected, finding.found) == ("manifest", "8", "7")


def test_a_manifest_of_another_cluster_is_foreign(made):
    made.cluster = "other"
    report = verified(made.write())
    assert kinds(report) == ["foreign"]
    assert ("demo", "other") in {(finding.expected, finding.found) for finding in report.findings}


def test_a_wrong_merkle_root_is_named(made):
    made.write()
    document = msgspec.json.decode(made.data) | {"merkle_root": digest(b"x"), "signature": ""}
    unsigned = canonical_json(document)
    made.store.replace_for_test(manifest_key(7), canonical_json(document | {"signature": KEYS.sign_manifest(unsigned)}))
    finding = only(verified(made))
    assert finding.kind == "manifest"
    assert finding.found == digest(b"x")


@pytest.mark.parametrize("data", [b"nothing", b"\xff", b"[1]"])
def test_a_damaged_format_document_is_named(made, data):
    made.write()
    made.store.replace_for_test("format.json", data)
    assert only(verified(made)).key == "format.json"


def test_a_missing_format_document_is_named(made):
    made.write()
    made.store.delete("format.json")
    assert only(verified(made)).kind == "missing"


def test_the_chain_to_the_manifest_before_is_noted_when_it_does_not_hold(made):
    made.write()
    linked = made_epoch(made.store, epoch=8, previous=digest(made.data)).write()
    assert verified(linked).notes == ()
    made_epoch(made.store, epoch=9, previous=digest(b"gone")).write()
    assert "retention removed it" in verify_epoch(made.store, 9, KEYS).notes[0]
    made_epoch(made.store, epoch=10).write()
    assert verify_epoch(made.store, 10, KEYS).notes == (
        "it names no previous manifest, though that of epoch 9 is there",
    )


def test_a_chain_that_cannot_be_followed_is_noted(made):
    made.write()

    def broken(operation, key):
        if operation == "list":
            raise StoreError("list", key, "I/O error", errno_name="EIO")

    made.store.before_operation = broken
    report = verified(made)
    assert report.ok
    assert "the chain was not followed: store list" in report.notes[0]


# --- members ---------------------------------------------------------------------------------------------------------


def test_a_missing_local_snapshot_is_named_once_and_the_rest_is_checked(made):
    made.write()
    member = made.manifest.members[1]
    made.store.delete(snapshot_key(member.snapshot))
    report = verified(made)
    finding = only(report)
    assert (finding.kind, finding.participant, finding.key) == ("missing", "b", snapshot_key(member.snapshot))
    assert report.counts["messages_in_mailboxes"] == 2


def test_a_local_snapshot_that_was_changed_or_swapped_is_corrupt_by_its_digest(made):
    made.write()
    first, second = (snapshot_key(member.snapshot) for member in made.manifest.members)
    made.store.replace_for_test(first, made.store.get(second, size_max=10_000))
    finding = only(verified(made))
    assert (finding.kind, finding.participant) == ("corrupt", "a")
    assert "expected digest" in finding.detail


@pytest.mark.parametrize(
    "change", [{"cluster": "x"}, {"epoch": 6}, {"incarnation": 2}, {"topology": 3}, {"participant": "c"}]
)
def test_a_local_snapshot_of_something_else_is_foreign(made, change):
    report = changed(made, "a", **change)
    assert "foreign" in kinds(report)
    assert any(finding.participant == "a" for finding in report.findings)


def test_a_local_snapshot_of_another_session_is_foreign(made):
    made.write()
    members = tuple(msgspec.structs.replace(each, session=99) for each in made.manifest.members)
    made.store.replace_for_test(
        manifest_key(7), sign_manifest(msgspec.structs.replace(made.manifest, members=members), KEYS)
    )
    assert kinds(verified(made)) == ["foreign"]


def test_agents_that_are_not_where_the_manifest_says_are_named(made):
    made.write()
    members = (
        msgspec.structs.replace(made.manifest.members[0], agents=("bank/main", "ghost/x")),
        made.manifest.members[1],
    )
    made.store.replace_for_test(
        manifest_key(7), sign_manifest(msgspec.structs.replace(made.manifest, members=members), KEYS)
    )
    finding = only(verified(made))
    assert (finding.kind, finding.participant) == ("agents", "a")
    assert (finding.expected, finding.found) == ("bank/main, ghost/x", "bank/main, tool/opaque")


def test_two_members_with_one_agent_are_no_topology(made):
    made.change("b", agents=made.snapshots["a"].agents)
    report = verified(made.write())
    assert kinds(report) == ["manifest"]
    assert "hosted by a and by b" in report.findings[0].detail


# --- channels and P1 -------------------------------------------------------------------------------------------------


def test_a_row_of_the_channel_table_that_its_ends_did_not_report_is_named(made):
    rows = tuple(
        msgspec.structs.replace(row, messages=row.messages + 1) if row.source == "a" else row
        for row in documents.channel_table(made.snapshots)
    )
    finding = only(verified(made.write(changes={"channels": rows})))
    assert (finding.kind, finding.channel) == ("channel-table", "a->b")
    assert "messages 2" in finding.expected
    assert "messages 3" in finding.found


def test_a_row_that_is_missing_is_named(made):
    rows = documents.channel_table(made.snapshots)[:1]
    report = verified(made.write(changes={"channels": rows}))
    assert {"channel-table", "foreign"} <= set(kinds(report))
    assert any(finding.found == "no row" for finding in report.findings)


def test_a_row_of_a_stranger_is_named(made):
    rows = documents.channel_table(made.snapshots)
    rows = (*rows, msgspec.structs.replace(rows[0], source="x", target="y"))
    finding = only(verified(made.write(changes={"channels": rows})))
    assert (finding.kind, finding.channel) == ("channel-table", "x->y")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"received": 7, "closed_at": 7, "items": 0, "messages": 0, "chunks": ()}, "orphan"),
        ({"received": 4}, "duplicate"),
        ({"closed_at": 5, "items": 2}, "lost"),
        ({"closed_at": 7}, "orphan-in-channel"),
        ({"digest": digest(b"other")}, "digest"),
    ],
)
def test_an_inconsistent_cut_is_named_by_its_kind_and_channel(made, change, kind):
    report = incoming(made, **change)
    finding = next(each for each in report.findings if each.kind == kind)
    assert finding.channel == "a->b"
    assert finding.expected == "sent 6"


def test_a_channel_that_was_never_closed_is_incomplete(made):
    rows = documents.channel_table(made.snapshots)
    made.change("b", incoming=())
    report = verified(made.write(changes={"channels": rows}))
    assert [(finding.kind, finding.channel) for finding in report.findings if finding.kind != "packs"] == [
        ("channel-table", "a->b"),
        ("incomplete", "a->b"),
    ]


# --- packs and chunks ------------------------------------------------------------------------------------------------


def test_a_pack_that_is_not_listed_and_one_that_is_not_needed_are_named(made):
    needed = documents.packs_of(made.snapshots.values())
    report = verified(made.write(changes={"packs": needed[:1]}))
    assert (only(report).kind, only(report).key) == ("packs", pack_key(needed[1]))
    made = made_epoch(MemoryStore("demo"))
    (surplus,) = made.pack(b"nobody names this")
    finding = only(verified(made.write(changes={"packs": tuple(sorted((*needed, surplus.pack)))})))
    assert (finding.kind, finding.key) == ("packs", pack_key(surplus.pack))


def test_a_missing_pack_is_named_once_not_for_each_chunk(made):
    made.write()
    gone = made.snapshots["a"].agents[0].mailbox[0].pack
    made.store.delete(pack_key(gone))
    finding = only(verified(made))
    assert (finding.kind, finding.key) == ("missing", pack_key(gone))


def test_a_disk_that_fails_is_a_finding_with_its_errno(made):
    made.write()
    gone = made.snapshots["a"].agents[0].mailbox[0].pack

    def broken(operation, key):
        if key == pack_key(gone):
            raise StoreError("get", key, "I/O error", errno_name="EIO")

    made.store.before_operation = broken
    finding = only(verified(made))
    assert (finding.kind, finding.key, finding.detail) == ("unreadable", pack_key(gone), "EIO: I/O error")


def test_every_damaged_chunk_is_named_with_pack_owner_and_place(made):
    made.write()
    mailbox = made.snapshots["a"].agents[0].mailbox[0]
    data = bytearray(made.packs[mailbox.pack])
    for entry in PackReader.from_bytes(bytes(data)).entries:
        data[entry.offset] ^= 0xFF
    made.store.replace_for_test(pack_key(mailbox.pack), bytes(data))
    report = verified(made)
    whole, *chunks = report.findings
    assert (whole.kind, whole.expected) == ("corrupt", mailbox.pack)
    assert {finding.kind for finding in chunks} == {"corrupt"}
    assert {finding.participant for finding in chunks} == {"a"}
    assert [finding.detail.partition(":")[0] for finding in chunks] == [
        "mailbox of bank/main",
        "timers of bank/main",
        "field accounts of bank/main",
        "field accounts of bank/main",
        "field accounts of bank/main, keys that have gone",
        "field spent of bank/main",
        "field state of tool/opaque",
    ]
    assert f"chunk {mailbox.digest}" in chunks[0].detail


def test_a_flipped_bit_anywhere_in_a_pack_is_noticed(made):
    made.write()
    name, data = next(iter(made.packs.items()))
    for offset in range(0, len(data), 11):
        flipped = bytearray(data)
        flipped[offset] ^= 1
        made.store.replace_for_test(pack_key(name), bytes(flipped))
        report = verified(made)
        assert any(finding.key == pack_key(name) for finding in report.findings)


def test_a_reference_to_a_chunk_that_its_pack_has_not_is_named(made):
    ref = made.snapshots["b"].incoming[0].chunks[0]
    report = incoming(made, chunks=(ChunkRef(digest(b"no such"), ref.pack, 5),))
    finding = only(report)
    assert (finding.kind, finding.channel) == ("corrupt", "a->b")
    assert "not in this pack's index" in finding.detail


# --- contents --------------------------------------------------------------------------------------------------------


def test_recorded_items_are_counted_again(made):
    finding = only(incoming(made, messages=3))
    assert (finding.kind, finding.channel, finding.expected, finding.found) == ("content", "a->b", "3", "2")


def test_recorded_bytes_that_are_no_items_are_named(made):
    refs = made.pack(b"garbage")
    finding = only(incoming(made, chunks=refs))
    assert (finding.kind, finding.channel) == ("content", "a->b")
    assert "recorded items" in finding.detail


def test_a_recorded_message_with_a_hostile_agent_is_named(made):
    items = [encode_message_item(msgspec.msgpack.encode(envelope(n, target="../../x"))) for n in (4, 5, 6)]
    report = incoming(made, chunks=made.pack(b"".join(items)), messages=3)
    assert "'../../x' is not allowed" in only(report).detail


def test_a_recording_that_is_the_whole_stream_is_hashed_again(made):
    """Both ends agree on a digest that the recorded bytes do not have: only the bytes can tell."""
    items = [encode_message_item(msgspec.msgpack.encode(envelope(n))) for n in (1, 2)]
    good = IncomingCut(
        source="a",
        received=0,
        closed_at=2,
        digest=digest_of(*items),
        items=2,
        messages=2,
        chunks=made.pack(b"".join(items)),
    )
    out = msgspec.structs.replace(made.snapshots["a"].outgoing[0], sent=2, digest=digest_of(*items))
    made.change("a", outgoing=(out,))
    assert changed(made, "b", incoming=(good,)).ok
    again = made_epoch(MemoryStore("demo"))
    lie = digest(b"a lie")
    again.change("a", outgoing=(msgspec.structs.replace(out, digest=lie),))
    again.packs |= made.packs
    finding = only(changed(again, "b", incoming=(msgspec.structs.replace(good, digest=lie),)))
    assert (finding.kind, finding.channel, finding.expected, finding.found) == ("digest", "a->b", lie, good.digest)


def test_a_recording_from_before_a_stream_was_resumed_is_hashed_from_there(made):
    items = [encode_message_item(msgspec.msgpack.encode(envelope(n))) for n in (4, 5, 6)]
    good = IncomingCut(
        source="a",
        received=3,
        closed_at=6,
        digest=digest_of(*items[1:]),
        items=3,
        messages=3,
        chunks=made.pack(b"".join(items)),
        base=4,
    )
    out = msgspec.structs.replace(made.snapshots["a"].outgoing[0], sent=6, digest=digest_of(*items[1:]))
    made.change("a", outgoing=(out,))
    assert changed(made, "b", incoming=(good,)).ok
    again = made_epoch(MemoryStore("demo"))
    lie = digest(b"a lie")
    again.change("a", outgoing=(msgspec.structs.replace(out, digest=lie),))
    again.packs |= made.packs
    finding = only(changed(again, "b", incoming=(msgspec.structs.replace(good, digest=lie),)))
    assert (finding.kind, finding.channel, finding.expected, finding.found) == ("digest", "a->b", lie, good.digest)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"mailbox_count": 3}, "mailbox of bank/main"),
        ({"timers_count": 0}, "timers of bank/main"),
        ({"mailbox": (), "mailbox_count": 0}, "bank/main was in a turn, but its mailbox is empty"),
    ],
)
def test_counts_of_an_agent_that_do_not_fit_are_named(made, change, place):
    first, second = made.snapshots["a"].agents
    finding = only(changed(made, "a", agents=(msgspec.structs.replace(first, **change), second)))
    assert (finding.kind, finding.participant) == ("content", "a")
    assert place in finding.detail


def test_messages_that_nobody_hosts_are_counted_again(made):
    (mail,) = made.pack(encoded(envelope(1)))
    finding = only(changed(made, "b", unrouted=(mail,), unrouted_count=2))
    assert (finding.kind, finding.participant) == ("content", "b")


@pytest.mark.parametrize("shape", ["keyed", "value"])
def test_a_value_that_cannot_be_decoded_is_named(made, shape):
    refs = made.pack(b"\xc1 no msgpack")
    field = FieldRef(name="f", shape=shape, segments=(refs,))
    finding = only(changed(made, "b", agents=(AgentSnapshot(id="shop/x", fields=(field,)),)))
    assert (finding.kind, finding.participant) == ("content", "b")
    assert "field f of shop/x" in finding.detail


def test_a_mailbox_and_timers_that_cannot_be_decoded_are_named(made):
    refs = made.pack(b"\xc1")
    report = changed(
        made, "b", agents=(AgentSnapshot(id="shop/x", mailbox=refs, mailbox_count=1, timers=refs, timers_count=1),)
    )
    assert [finding.detail.partition(":")[0] for finding in report.findings] == [
        "mailbox of shop/x",
        "timers of shop/x",
    ]


def test_a_value_that_is_nothing_is_a_value(made):
    refs = made.pack(b"\xc0")
    field = FieldRef(name="f", shape="value", segments=(refs,))
    assert changed(made, "b", agents=(AgentSnapshot(id="shop/x", fields=(field,)),)).ok


def test_contents_too_large_to_be_read_are_named_before_anything_is_read(made, monkeypatch):
    made.write()
    monkeypatch.setattr("protocol.verify_contents.CONTENT_BYTES_MAX", 50)
    report = verified(made)
    assert {finding.kind for finding in report.findings} == {"content"}
    assert all(finding.expected == "at most 50" for finding in report.findings)
    assert any(finding.channel == "a->b" for finding in report.findings)


# --- many findings, many epochs --------------------------------------------------------------------------------------


def test_all_findings_are_collected_unless_the_first_is_enough(made):
    first, second = made.snapshots["a"].agents
    made.change("a", agents=(msgspec.structs.replace(first, mailbox_count=9, timers_count=9), second))
    made.write(keys=OTHER_KEYS)
    report = verified(made)
    assert len(report.findings) == 3
    stopped = verified(made, stop_at_first=True)
    assert stopped.findings == report.findings[:1]
    assert stopped.notes == ("stopped after 1 finding",)
    assert not stopped.ok


def test_a_report_is_bounded(made, monkeypatch):
    monkeypatch.setattr(findings_module, "FINDINGS_MAX", 2)
    first, second = made.snapshots["a"].agents
    made.change("a", agents=(msgspec.structs.replace(first, mailbox_count=9, timers_count=9), second))
    report = verified(made.write(keys=OTHER_KEYS))
    assert len(report.findings) == 2
    assert report.notes == ("stopped after 2 findings",)


def test_a_finding_is_a_sentence(made):
    assert str(only(incoming(made, messages=3))) == (
        "content at a->b: recorded messages: another number than the local snapshot says (expected 3, found 2)"
    )


def test_all_epochs_are_verified_in_order_and_shared_chunks_are_read_once(made):
    made.write()
    made_epoch(made.store, epoch=8, previous=digest(made.data)).write()
    made_epoch(made.store, epoch=100).write(keys=OTHER_KEYS)
    assert committed_epochs(made.store) == (7, 8, 100)
    reports = verify_all(made.store, KEYS)
    assert [(report.epoch, report.ok) for report in reports] == [(7, True), (8, True), (100, False)]
    made.store.operations.clear()
    verify_all(made.store, KEYS)
    spent = made.snapshots["a"].agents[0].fields[1].segments[0][0]
    assert [operation for operation, key in made.store.operations if key == pack_key(spent.pack)].count("size") == 2


def test_an_epoch_verifies_the_same_way_twice(made):
    made.write(keys=OTHER_KEYS)
    assert verified(made) == verified(made)
