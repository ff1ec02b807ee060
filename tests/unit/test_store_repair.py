"""Puts that repair: damage makes way, what is somebody else's does not."""

import pytest

from protocol.digests import digest, manifest_key, pack_key, snapshot_key
from protocol.documents import sign_manifest
from protocol.errors import ObjectConflict, StoreError
from protocol.ids import ClusterName
from protocol.keys import ClusterKeys
from protocol.limits import MIB
from protocol.ports import PutResult
from protocol.storage.memory import MemoryStore
from protocol.storage.repair import put_content, put_manifest
from tests.epochs import plain_manifest

KEYS = ClusterKeys.from_secret(b"a secret for tests of repairing a store")
DATA = b"a pack, or a local snapshot"


def manifest(epoch: int = 7, snapshot: bytes = b"one", started_at: int = 1) -> bytes:
    plain = plain_manifest(epoch, snapshot=digest(snapshot), started_at=started_at, agents=("desk/1", "desk/2"))
    return sign_manifest(plain, KEYS)


def flipped(data: bytes, position: int, bit: int = 0) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ClusterName("c"))


@pytest.mark.parametrize("name", [pack_key, snapshot_key])
@pytest.mark.parametrize("damage", [b"", DATA[:-1], flipped(DATA, 3), b"x" * MIB])
def test_a_damaged_object_makes_way_for_the_right_one(store, name, damage):
    key = name(digest(DATA))
    store.replace_for_test(key, damage)
    put_content(store, key, DATA)
    assert store.get(key, size_max=100) == DATA


@pytest.mark.parametrize("put", [put_content, put_manifest])
def test_at_no_moment_of_a_repair_is_there_nothing(store, put):
    """Somebody else may have mended it, and committed an epoch that names it, an instant before."""
    right = DATA if put is put_content else manifest()
    key = pack_key(digest(right)) if put is put_content else manifest_key(7)
    store.replace_for_test(key, b"damaged")
    seen = []

    def look(operation, _key):
        store.before_operation = None
        seen.append((operation, key in list(store.list(""))))
        store.before_operation = look

    store.before_operation = look
    assert put(store, key, right) is PutResult.CREATED
    store.before_operation = None
    assert store.get(key, size_max=MIB) == right
    assert [operation for operation, _ in seen] == ["put", "get", "replace", "put"]
    assert all(there for _, there in seen)


@pytest.mark.parametrize("put", [put_content, put_manifest])
def test_a_repair_that_comes_to_nothing_is_to_be_tried_again_and_is_no_success(put):
    """A store that answers and does nothing, or whose next object is damaged as well. No refusal: the key is nobody else's."""

    class Bad(MemoryStore):
        bad = 2

        def replace(self, key, data):
            super().replace(key, data if self.bad == 0 else b"damaged again")
            self.bad = max(0, self.bad - 1)

    right = DATA if put is put_content else manifest()
    key = pack_key(digest(right)) if put is put_content else manifest_key(7)
    bad = Bad(ClusterName("c"))
    bad.replace_for_test(key, b"damaged")
    for _ in range(2):
        with pytest.raises(StoreError, match="written anew, and still holds 13 other bytes") as caught:
            put(bad, key, right)
        assert not isinstance(caught.value, ObjectConflict)
    assert put(bad, key, right) is PutResult.CREATED
    assert bad.get(key, size_max=MIB) == right


def test_wrong_bytes_never_take_the_place_of_damaged_ones(store):
    key = pack_key(digest(DATA))
    store.replace_for_test(key, b"damaged")
    with pytest.raises(ObjectConflict):
        put_content(store, key, b"something else")
    assert store.get(key, size_max=100) == b"damaged"


def test_an_object_that_is_what_its_name_says_is_never_removed(store):
    """Whoever comes with other bytes for this name has a bug, and not the store."""
    key = pack_key(digest(DATA))
    store.put(key, DATA)
    with pytest.raises(ObjectConflict):
        put_content(store, key, b"something else")
    assert store.get(key, size_max=100) == DATA


def test_what_is_there_already_is_not_written_again(store):
    key = pack_key(digest(DATA))
    assert put_content(store, key, DATA) is PutResult.CREATED
    assert put_content(store, key, DATA) is PutResult.ALREADY_THERE
    assert [operation for operation, _ in store.operations] == ["put", "put"]


@pytest.mark.parametrize("bit", range(8))
def test_a_manifest_with_one_flipped_bit_makes_way_for_the_sealed_one(store, bit):
    """Wherever it is, the names of agents included, which no Merkle root covers; but for the format, since a later build's is left to that build."""
    key = manifest_key(7)
    right = manifest()
    kept = []
    for position in range(len(right)):
        store.replace_for_test(key, flipped(right, position, bit))
        try:
            put_manifest(store, key, right)
        except ObjectConflict:
            kept.append(position)
        else:
            assert store.get(key, size_max=MIB) == right
    version = right.index(b'"format":1') + len(b'"format":')
    assert kept == ([] if flipped(b"1", 0, bit) not in (b"0", b"3", b"5", b"9") else [version])


def test_an_older_epochs_manifest_under_this_key_makes_way(store):
    key = manifest_key(7)
    store.replace_for_test(key, manifest(epoch=6))
    put_manifest(store, key, manifest())
    assert store.get(key, size_max=MIB) == manifest()


def test_a_whole_manifest_of_others_stays(store):
    """A store that another cluster of this name has written to, before its ledger was lost: nothing of it is destroyed."""
    key = manifest_key(7)
    theirs = manifest(snapshot=b"another state")
    store.put(key, theirs)
    with pytest.raises(ObjectConflict):
        put_manifest(store, key, manifest())
    assert store.get(key, size_max=MIB) == theirs
