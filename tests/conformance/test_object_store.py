"""The object-store port: one body, every store. What passes here is a store that all parts may rely on."""

import threading

import pytest

from protocol.errors import ObjectConflict, ObjectCorrupt, ObjectMissing, StoreError
from protocol.ports import ObjectStore, PutResult
from protocol.storage import ensure_format, open_store
from protocol.storage.memory import MemoryStore

KEY = "packs/ab/abcdef"


@pytest.fixture(params=["filesystem", "memory"])
def store(request, tmp_path):
    """Each arm, opened the way a user's setting opens it."""
    if request.param == "filesystem":
        return open_store(f"file:{tmp_path}", "demo")
    fresh = MemoryStore("demo", name=str(tmp_path))
    ensure_format(fresh, "demo")
    return fresh


def test_it_is_an_object_store(store):
    assert isinstance(store, ObjectStore)
    assert ":" in store.url


def test_what_was_put_is_got(store):
    assert store.put(KEY, b"data") is PutResult.CREATED
    assert store.get(KEY, size_max=4) == b"data"
    assert store.size(KEY) == 4


def test_empty_and_large_objects_are_objects(store):
    large = bytes(range(256)) * 20_000
    store.put("a/empty", b"")
    store.put("a/large", large)
    assert store.get("a/empty", size_max=0) == b""
    assert store.get("a/large", size_max=len(large)) == large


def test_putting_the_same_again_is_an_outcome_not_an_error(store):
    store.put(KEY, b"data")
    assert store.put(KEY, b"data") is PutResult.ALREADY_THERE


@pytest.mark.parametrize("other", [b"datA", b"dat", b"data!", b""])
def test_putting_other_bytes_under_a_key_is_a_conflict_and_changes_nothing(store, other):
    store.put(KEY, b"data")
    with pytest.raises(ObjectConflict) as caught:
        store.put(KEY, other)
    assert caught.value.key == KEY
    assert caught.value.definite
    assert store.get(KEY, size_max=100) == b"data"


def test_a_difference_far_into_a_large_object_is_a_conflict(store):
    large = bytes(3_000_000)
    store.put(KEY, large)
    assert store.put(KEY, large) is PutResult.ALREADY_THERE
    with pytest.raises(ObjectConflict):
        store.put(KEY, large[:-1] + b"x")


def test_of_many_racing_puts_one_creates(store):
    """Half of them bring other bytes: exactly one content wins and everybody is told the truth."""
    outcomes = []
    start = threading.Barrier(16)

    def racer(number):
        start.wait()
        try:
            outcomes.append((number % 2, store.put("epochs/race", b"%d" % (number % 2))))
        except ObjectConflict:
            outcomes.append((number % 2, "conflict"))

    threads = [threading.Thread(target=racer, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = int(store.get("epochs/race", size_max=10))
    assert [outcome for _, outcome in outcomes].count(PutResult.CREATED) == 1
    for content, outcome in outcomes:
        assert (outcome == "conflict") == (content != winner)


def test_a_missing_object_is_missing(store):
    for read in (lambda: store.get("a/b", size_max=1), lambda: store.size("a/b"), lambda: store.get_range("a/b", 0, 0)):
        with pytest.raises(ObjectMissing) as caught:
            read()
        assert caught.value.key == "a/b"


def test_get_refuses_more_than_it_was_told_to_take(store):
    store.put(KEY, b"12345")
    with pytest.raises(ObjectCorrupt, match="5 bytes; at most 4"):
        store.get(KEY, size_max=4)


def test_a_range_is_exact_or_refused(store):
    store.put(KEY, b"0123456789")
    assert store.get_range(KEY, 0, 10) == b"0123456789"
    assert store.get_range(KEY, 3, 4) == b"3456"
    assert store.get_range(KEY, 10, 0) == b""
    for offset, length in ((0, 11), (9, 2), (10, 1), (0, 2**62), (2**62, 1)):
        with pytest.raises(ObjectCorrupt, match="10 bytes"):
            store.get_range(KEY, offset, length)


def test_keys_are_listed_sorted_by_prefix(store):
    keys = ["a/b", "a-b", "a.b", "a/b-c", "a/bc/d", "b/1", "a/b0", "b/10", "b/2"]
    for key in keys:
        if key != "a/b":
            store.put(key, b"x")
    keys.remove("a/b")
    assert list(store.list("")) == sorted([*keys, "format.json"])
    assert list(store.list("a/")) == sorted(key for key in keys if key.startswith("a/"))
    assert list(store.list("a")) == sorted(key for key in keys if key.startswith("a"))
    assert list(store.list("a/b")) == ["a/b-c", "a/b0", "a/bc/d"]
    assert list(store.list("b/1")) == ["b/1", "b/10"]
    assert list(store.list("c/")) == []
    assert list(store.list("c/d/e")) == []


@pytest.mark.parametrize("before", [None, b"", b"old", b"x" * 100_000])
def test_what_is_replaced_is_there_afterwards_whatever_was_before(store, before):
    if before is not None:
        store.put(KEY, before)
    store.replace(KEY, b"new")
    assert store.get(KEY, size_max=10) == b"new"
    assert store.put(KEY, b"new") is PutResult.ALREADY_THERE
    assert list(store.list("")) == sorted([KEY, "format.json"])


def test_a_deleted_object_is_missing_and_may_be_put_again(store):
    store.put(KEY, b"old")
    store.delete(KEY)
    store.delete(KEY)
    store.delete("never/was")
    with pytest.raises(ObjectMissing):
        store.get(KEY, size_max=10)
    assert store.put(KEY, b"new") is PutResult.CREATED


HOSTILE = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../x",
    "a/../b",
    "a//b",
    "a/",
    "/a",
    "./a",
    "a/.",
    ".hidden",
    "a/.tmp-1-2",
    "a\0b",
    "A/b",
    "a b",
    "a\\b",
    "a\nb",
    "é",
    "a\u202eb",
    "~",
    "-rf",
    "x" * 300,
    "/".join(["a"] * 300),
    "con:",
    None,
    7,
    b"bytes",
]


@pytest.mark.parametrize("key", HOSTILE, ids=lambda key: ascii(key)[:30])
def test_hostile_keys_are_refused_by_every_operation_and_touch_nothing(store, key):
    before = list(store.list(""))
    for operation in (
        lambda: store.put(key, b"x"),
        lambda: store.get(key, size_max=1),
        lambda: store.get_range(key, 0, 1),
        lambda: store.size(key),
        lambda: store.replace(key, b"x"),
        lambda: store.delete(key),
    ):
        with pytest.raises(StoreError, match="not a legal key") as caught:
            operation()
        assert not isinstance(caught.value, ObjectMissing)
        assert str(caught.value).isprintable()
    assert list(store.list("")) == before


@pytest.mark.parametrize("prefix", ["..", "/", "a//", ".tmp", "A", "a/../", None])
def test_hostile_prefixes_are_refused(store, prefix):
    with pytest.raises(StoreError, match="no legal key begins so"):
        store.list(prefix)


def test_what_is_put_is_the_stores_own(store):
    """The caller may go on to change its buffer."""
    buffer = bytearray(b"before")
    store.put(KEY, buffer)
    buffer[:] = b"after!"
    assert store.get(KEY, size_max=10) == b"before"
