"""Every decoder of `protocol`, found by looking through its modules, on bytes from anywhere: it accepts, or raises
`WireError` or `StoreError`, never anything else, and imports nothing (scenario A13).

A new function whose name says that it decodes must be listed here, or the first test fails.
"""

import importlib
import inspect
import pkgutil
import sys

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import protocol
from protocol import contents, documents, messages
from protocol.consulting import AnswerQuestion
from protocol.digests import check_digest, digest, epoch_of_key
from protocol.errors import StoreError, WireError
from protocol.items import encode_marker_item, encode_message_item, split_items
from protocol.keys import ClusterKeys, decode_secret
from protocol.manifest import LocalSnapshot, Manifest
from protocol.pack import PackBuilder, PackReader
from protocol.storage import ensure_format
from protocol.storage.memory import MemoryStore
from protocol.storage.names import check_key, check_prefix
from protocol.tombstones import decode_tombstone, tombstone
from protocol.wire import FrameCodec

KEYS = ClusterKeys.from_secret(bytes(range(32)))
CODEC = FrameCodec("demo", KEYS)


def read_pack(data):
    for _ in PackReader.from_bytes(data).chunks():
        pass


def format_document(data):
    store = MemoryStore("demo")
    store.replace_for_test("format.json", data)
    try:
        ensure_format(store, "demo")
    except protocol.ConfigError as error:
        # A well-formed document of another layout or cluster is the user's mistake.
        assert "layout version" in str(error) or "belongs to cluster" in str(error)  # noqa: PT017


DECODERS = {
    "wire.FrameCodec.peek": CODEC.peek,
    "wire.FrameCodec.verify_and_open": CODEC.verify_and_open,
    "items.split_items": lambda data: split_items(data, max(1, len(data) // 30)),
    "messages.decode_to_coordinator": messages.decode_to_coordinator,
    "messages.decode_to_participant": messages.decode_to_participant,
    "messages.decode_from_coordinator": messages.decode_from_coordinator,
    "messages.decode_from_participant": messages.decode_from_participant,
    "documents.decode_manifest": documents.decode_manifest,
    "documents.decode_local_snapshot": documents.decode_local_snapshot,
    "documents.is_canonical": documents.is_canonical,
    "tombstones.decode_tombstone": decode_tombstone,
    "pack.PackReader": read_pack,
    "contents.decode_value": lambda data: contents.decode_value(data, "x"),
    "contents.decode_segment": lambda data: contents.decode_segment(data, "x"),
    "contents.decode_keys": lambda data: contents.decode_keys(data, "x"),
    "contents.decode_envelope": lambda data: contents.decode_envelope(data, "x"),
    "contents.decode_mailbox": lambda data: contents.decode_mailbox(data, "x"),
    "contents.decode_timers": lambda data: contents.decode_timers(data, "x"),
    "contents.decode_outputs": lambda data: contents.decode_outputs(data, "x"),
    "contents.decode_tokens": lambda data: contents.decode_tokens(data, "x"),
    "contents.decode_journal": lambda data: contents.decode_journal(data, "x"),
    "contents.decode_questions": lambda data: contents.decode_questions(data, "x"),
    "contents.decode_channel": lambda data: contents.messages_of(contents.decode_channel(data, 1, "x"), "x"),
    "keys.decode_secret": decode_secret,
    "storage.ensure_format": format_document,
}
TEXT_DECODERS = {
    "digests.check_digest": check_digest,
    "digests.epoch_of_key": epoch_of_key,
    "storage.names.check_key": lambda text: check_key("get", text),
    "storage.names.check_prefix": check_prefix,
    "keys.ClusterKeys.role_of": KEYS.role_of,
    "keys.ClusterKeys.verify_manifest": lambda text: KEYS.verify_manifest(b"x", text),
}


def envelope():
    return msgspec.msgpack.encode(messages.Envelope(bytes(16), "a/b", "c/d", "T", 1, b"\x01"))


def frame():
    fields = {"incarnation": 1, "source_session": 2, "target_session": 3, "epoch": 4, "first": 5, "ack": 6, "count": 1}
    return CODEC.encode(**fields, source="a", target="b", body=encode_message_item(envelope()))


def pack():
    builder = PackBuilder()
    builder.add(b"stored")
    builder.add(b"compressed " * 50)
    return builder.finish()[0]


def snapshot():
    return documents.encode_local_snapshot(
        LocalSnapshot(
            cluster="demo",
            participant="a",
            incarnation=1,
            session=1,
            epoch=1,
            topology=1,
            agents=(),
            outgoing=(),
            incoming=(),
        )
    )


def manifest():
    return documents.sign_manifest(
        Manifest(
            cluster="demo",
            epoch=1,
            incarnation=1,
            topology=1,
            started_at=0,
            members=(),
            channels=(),
            packs=(),
            merkle_root=digest(b""),
        ),
        KEYS,
    )


SAMPLES = [
    frame(),
    envelope(),
    msgspec.msgpack.encode([messages.Envelope(bytes(16), "a/b", "c/d", "T", 1, b"\x01")]),
    msgspec.msgpack.encode([[5, messages.Envelope(bytes(16), "a/b", "c/d", "T", 1, b"\x01")]]),
    msgspec.msgpack.encode([["key", {"value": 1}]]),
    encode_message_item(envelope()) + encode_marker_item(7),
    messages.encode_control(messages.Heartbeat(session=1)),
    messages.encode_control(messages.Consult(session=1, request=1, what=AnswerQuestion(token="t", answer=b"true"))),
    messages.encode_control(messages.Consulted(session=1, request=1, code="no-effect", body=b"{}")),
    messages.encode_control(messages.StartEpoch(term=1, session=1, incarnation=1, epoch=1, topology=1, deadline_ns=1)),
    pack(),
    snapshot(),
    manifest(),
    tombstone("demo", 7, digest(b"manifest")),
    b'{"cluster":"demo","format":1}',
]
HOSTILE = [
    b"",
    b"\x91" * 100_000,
    b"\x81\xa1a" * 100_000,
    b"[" * 100_000,
    b'{"format":1,"x":' * 50_000,
    b"\xc6\x7f\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc9\x7f\xff\xff\xff\x05",
    b"\x84\xa4type\xa8register\xa7cluster\xa4demo",
    b"cos\nsystem\n(S'true'\ntR.",
    b"\x80\x05\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94.",
    b"\x01\x7f\xff\xff\xff",
    b"CLCT" + b"\xff" * 200,
    b"CLPK\x01\0\0\0" + b"\xff" * 44 + b"\x01KPLC",
]


def mutated():
    """A right document with a few wrong bytes, cut or grown: gets further than random bytes do."""

    @st.composite
    def build(draw):
        data = bytearray(draw(st.sampled_from(SAMPLES)))
        for _ in range(draw(st.integers(1, 4))):
            offset = draw(st.integers(0, len(data) - 1))
            data[offset] = draw(st.integers(0, 255))
        data = data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data
        return bytes(data) + draw(st.binary(max_size=8))

    return build()


def accepts_or_refuses(decode, given):
    modules = len(sys.modules)
    try:
        decode(given)
    except (WireError, StoreError) as error:
        assert str(error).isprintable()  # noqa: PT017 - both outcomes are right
        assert len(str(error)) < 2000  # noqa: PT017
    assert len(sys.modules) == modules


def test_every_decoder_of_the_package_is_listed_here():
    listed = {name.rpartition(".")[2] for name in DECODERS} | {name.rpartition(".")[2] for name in TEXT_DECODERS}
    for module in pkgutil.walk_packages(protocol.__path__, "protocol."):
        loaded = importlib.import_module(module.name)
        for name, member in vars(loaded).items():
            ours = inspect.isfunction(member) and member.__module__ == module.name
            if ours and (name.startswith(("decode_", "split_", "parse_")) or name == "check_key"):
                assert name in listed, f"{module.name}.{name} decodes and is not fuzzed"


@pytest.mark.parametrize("name", DECODERS)
def test_hostile_bytes_are_refused_or_accepted_and_nothing_else(name):
    for data in HOSTILE:
        accepts_or_refuses(DECODERS[name], data)


@pytest.mark.parametrize("name", DECODERS)
def test_every_right_document_given_to_every_decoder(name):
    for data in SAMPLES:
        accepts_or_refuses(DECODERS[name], data)


@pytest.mark.slow
@given(data=st.one_of(st.binary(max_size=300), mutated()))
@example(data=b"\x81\xa4type\xa1\x00")  # was shown unescaped in an error
@example(data=b"\x81\xa4type\xa6\x1b[31m!")
def test_bytes_from_anywhere_are_refused_or_accepted_and_nothing_else(data):
    for decode in DECODERS.values():
        accepts_or_refuses(decode, data)


@pytest.mark.slow
@given(
    data=st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary() | st.floats(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_well_formed_values_of_the_wrong_shape_are_refused_or_accepted(data):
    packed = msgspec.msgpack.encode(data)
    for name, decode in DECODERS.items():
        accepts_or_refuses(decode, packed)
        if name.startswith(("documents", "storage")):
            accepts_or_refuses(decode, msgspec.json.encode(msgspec.to_builtins(data, str_keys=True)))


@pytest.mark.slow
@given(text=st.text() | st.from_regex(r"[a-z0-9./_-]{0,40}", fullmatch=True) | st.none() | st.integers())
def test_names_from_anywhere_are_refused_or_accepted_and_nothing_else(text):
    for name, decode in TEXT_DECODERS.items():
        if isinstance(text, str) or not name.startswith(("keys", "digests.epoch")):
            accepts_or_refuses(decode, text)
