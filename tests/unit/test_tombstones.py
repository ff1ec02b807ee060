"""Tombstones: of a sealed epoch that is given up the store decides, once, that it never gets its manifest."""

import msgspec
import pytest

from coordinator.cli import offline
from coordinator.cli.exits import Failure
from protocol.digests import digest, manifest_key
from protocol.documents import decode_manifest, sign_manifest
from protocol.errors import ObjectConflict, ObjectCorrupt, ObjectMissing, StoreError
from protocol.ids import ClusterName
from protocol.keys import ClusterKeys
from protocol.limits import MANIFEST_BYTES_MAX
from protocol.storage import ensure_format
from protocol.storage.filesystem import FilesystemStore
from protocol.storage.memory import MemoryStore
from protocol.storage.repair import put_manifest, take_manifest_key
from protocol.tombstones import TOMBSTONE_BYTES_MAX, decode_tombstone, is_forsaken, tombstone
from protocol.verify import committed_epochs, newest_epoch, verify_epoch
from tests.epochs import plain_manifest

KEYS = ClusterKeys.from_secret(b"a secret for tests of tombstones in a store")
SNAPSHOT = digest(b"one")


def manifest(epoch: int = 7, **fields: object) -> bytes:
    return sign_manifest(plain_manifest(epoch, **fields), KEYS)


OURS = manifest()
KEY = manifest_key(7)


@pytest.fixture(params=["memory", "folder"])
def store(request, tmp_path):
    if request.param == "memory":
        return MemoryStore(ClusterName("c"))
    made = FilesystemStore(str(tmp_path), ClusterName("c"))
    made.check_openable(writable=True)
    return made


def take(store, sealed=OURS):
    return take_manifest_key(store, 7, cluster="c", sealed=digest(sealed), snapshots={"p1": SNAPSHOT})


def there(store):
    return store.get(KEY, size_max=MANIFEST_BYTES_MAX)


# --- who is first -------------------------------------------------------------------------------------------------------


def test_a_manifest_that_comes_after_the_key_was_taken_is_refused(store):
    assert take(store)
    with pytest.raises(ObjectConflict, match="epoch 7 was forsaken"):
        put_manifest(store, KEY, OURS)
    with pytest.raises(ObjectConflict):
        store.put(KEY, OURS)
    assert decode_tombstone(there(store)).forsaken == digest(OURS)


def test_a_manifest_that_came_first_stays_and_the_key_is_not_taken(store):
    put_manifest(store, KEY, OURS)
    assert not take(store)
    assert there(store) == OURS


def test_to_take_a_key_again_changes_nothing(store):
    assert take(store)
    before = there(store)
    assert take(store)
    assert there(store) == before


def test_a_damaged_manifest_of_this_epoch_makes_way_for_the_tombstone(store):
    for damage in (b"", OURS[:-3], manifest(started_at=2), manifest(epoch=6)):
        store.replace(KEY, damage)
        assert take(store)
        assert decode_tombstone(there(store)) is not None
        with pytest.raises(ObjectConflict):
            put_manifest(store, KEY, OURS)


def test_a_tombstone_of_another_epoch_is_damage(store):
    store.replace(KEY, tombstone("c", 6, digest(b"six")))
    put_manifest(store, KEY, OURS)
    assert there(store) == OURS
    store.replace(KEY, tombstone("c", 6, digest(b"six")))
    assert take(store)
    assert decode_tombstone(there(store)).epoch == 7


def test_a_whole_manifest_of_others_stays_and_the_key_counts_as_taken(store):
    others = manifest(snapshot=digest(b"somebody else's"))
    store.put(KEY, others)
    assert take(store)
    assert there(store) == others


def test_a_tombstone_of_this_epoch_stays_whatever_was_sealed(store):
    """Even where two leaders took it for different manifests: neither will ever be there."""
    first = tombstone("c", 7, digest(b"another manifest"))
    store.put(KEY, first)
    assert take(store)
    assert there(store) == first
    with pytest.raises(ObjectConflict, match="epoch 7 was forsaken"):
        put_manifest(store, KEY, OURS)


# --- stores that do not do what they say --------------------------------------------------------------------------------


def test_a_read_that_goes_wrong_costs_no_manifest_that_is_there():
    """What is not certain is an error, and tried again."""

    class Flipping(MemoryStore):
        def get(self, key, *, size_max):
            data = super().get(key, size_max=size_max)
            return bytes([data[0] ^ 1]) + data[1:]

    flipping = Flipping(ClusterName("c"))
    flipping.put(KEY, OURS)
    with pytest.raises(ObjectConflict):
        take(flipping)
    assert MemoryStore.get(flipping, KEY, size_max=MANIFEST_BYTES_MAX) == OURS


def test_a_read_that_calls_a_manifest_too_large_costs_none():
    class Wrong(MemoryStore):
        def get(self, key, *, size_max):
            raise ObjectCorrupt("get", key, "too large")

    wrong = Wrong(ClusterName("c"))
    wrong.put(KEY, OURS)
    with pytest.raises(ObjectCorrupt):
        take(wrong)
    assert MemoryStore.get(wrong, KEY, size_max=MANIFEST_BYTES_MAX) == OURS


def test_what_is_larger_than_a_manifest_may_be_makes_way(monkeypatch):
    import protocol.storage.repair as repair

    monkeypatch.setattr(repair, "MANIFEST_BYTES_MAX", 1000)
    store = MemoryStore(ClusterName("c"))
    store.put(KEY, b"x" * 1001)
    assert take(store)
    assert is_forsaken(store, 7)


def test_a_replacement_that_a_store_answers_and_does_not_do_is_no_success():
    class Forgetful(MemoryStore):
        def replace(self, key, data):
            pass

    forgetful = Forgetful(ClusterName("c"))
    forgetful.put(KEY, b"damaged")
    with pytest.raises(ObjectConflict):
        take(forgetful)


def test_a_store_that_fails_decides_nothing():
    store = MemoryStore(ClusterName("c"))
    store.fail_next_put(StoreError("put", KEY, "no space left on device", errno_name="ENOSPC"))
    with pytest.raises(StoreError, match="ENOSPC"):
        take(store)
    assert not list(store.list(""))


# --- what readers see ---------------------------------------------------------------------------------------------------


def test_a_tombstone_is_small_and_a_manifest_that_is_as_small_is_none():
    largest = tombstone("c" * 63, 2**63 - 1, digest(b"x"))
    assert len(largest) <= TOMBSTONE_BYTES_MAX
    bare = msgspec.structs.replace(decode_manifest(OURS), members=(), policy="", cluster="c", epoch=1)
    small = sign_manifest(bare, KEYS)
    assert len(small) <= TOMBSTONE_BYTES_MAX
    assert decode_tombstone(small) is None


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[" * 400, b"\xff", OURS, b'{"format":2}', tombstone("c", 7, "x") + b" "]
)
def test_what_is_no_tombstone_is_none(data):
    assert decode_tombstone(data) is None


def test_an_epoch_without_a_manifest_is_not_listed_and_not_the_newest(store):
    ensure_format(store, ClusterName("c"))
    first = manifest(epoch=5)
    store.put(manifest_key(5), first)
    assert take(store)
    assert committed_epochs(store) == (5,)
    assert newest_epoch(store) == 5
    store.put(manifest_key(9), manifest(epoch=9, previous=digest(first)))
    assert newest_epoch(store) == 9
    assert newest_epoch(store, before=9) == 5
    assert newest_epoch(store, before=5) is None
    notes = verify_epoch(store, 9, KEYS).notes
    assert not [note for note in notes if "previous manifest" in note], "its chain goes around it"


def test_commands_on_a_store_say_that_there_is_no_such_epoch(store):
    assert take(store)
    with pytest.raises(Failure, match="holds none"):
        offline.present(store, 7)
    with pytest.raises(Failure, match="holds no epoch"):
        offline.present(store, "latest")
    store.put(manifest_key(5), manifest(epoch=5))
    assert offline.present(store, "latest") == 5
    with pytest.raises(ObjectMissing, match="it has no manifest"):
        decode_manifest(there(store))
    report = verify_epoch(store, 7, KEYS)
    assert [finding.kind for finding in report.findings] == ["missing"]


def test_nothing_there_is_not_forsaken(store):
    assert not is_forsaken(store, 7)
    assert not is_forsaken(store, 0)
