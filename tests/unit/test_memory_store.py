"""protocol.storage.memory: what it has beyond the port (tests/conformance has the rest)."""

import gc

import pytest

from protocol.errors import StoreError
from protocol.ports import PutResult
from protocol.storage import open_store
from protocol.storage.memory import MemoryStore


def test_a_failure_that_was_ordered_comes_once_and_stores_nothing():
    store = MemoryStore("demo")
    store.fail_next_put(StoreError("put", "a", "no room", errno_name="ENOSPC"))
    with pytest.raises(StoreError, match="ENOSPC"):
        store.put("a", b"1")
    assert list(store.list("")) == []
    assert store.put("a", b"1") is PutResult.CREATED


def test_operations_are_listed_in_order():
    store = MemoryStore("demo")
    store.put("a", b"1")
    store.get("a", size_max=1)
    store.get_range("a", 0, 1)
    store.size("a")
    list(store.list("a"))
    store.delete("a")
    assert list(store.operations) == [
        ("put", "a"),
        ("get", "a"),
        ("get_range", "a"),
        ("size", "a"),
        ("list", "a"),
        ("delete", "a"),
    ]


def test_the_hook_runs_before_each_operation_and_may_raise():
    store = MemoryStore("demo")
    seen = []

    def hook(operation, key):
        seen.append((operation, key))
        if operation == "delete":
            raise StoreError("delete", key, "on fire")

    store.before_operation = hook
    store.put("a", b"1")
    with pytest.raises(StoreError, match="on fire"):
        store.delete("a")
    assert store.size("a") == 1
    assert seen == [("put", "a"), ("delete", "a"), ("size", "a")]


def test_a_name_is_one_store_per_cluster_in_a_process_while_it_is_held():
    first = open_store("memory:shared", "demo")
    first.put("a", b"1")
    assert open_store("memory:shared", "demo") is first
    assert open_store("memory:shared", "other") is not first
    assert first.url == "memory:shared"
    assert first.cluster == "demo"
    del first
    gc.collect()
    assert list(open_store("memory:shared", "demo").list("")) == ["format.json"]


def test_an_object_can_be_damaged_behind_everybodys_back():
    store = MemoryStore("demo")
    store.put("a", b"1")
    store.replace_for_test("a", b"2")
    assert store.get("a", size_max=1) == b"2"
