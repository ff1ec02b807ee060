"""The simulator's store: what is spoiled, what is still known of it, and what a reader gets."""

import pytest

from protocol.digests import digest, pack_key
from protocol.errors import ObjectMissing, StoreError
from protocol.ids import ClusterName
from simulations.options import Options
from simulations.prng import stream
from simulations.probes import Probes
from simulations.spoil import HOWS, damaged
from simulations.store import SimulatedStore
from simulations.trace import Trace
from simulations.world import SECOND, World

DATA = b"what a participant has written, and means" * 20


class Put:
    """A store in a world of its own, and puts that are waited for."""

    def __init__(self, *, disk: bool = False, seed: int = 1) -> None:
        self.world = World(Trace(), steps_max=100_000)
        self.store = SimulatedStore(self.world, Options(seed=seed, disk=disk), ClusterName("c"), Probes())
        self.store.crash = lambda who: None

    def put(self, data: bytes, *, name=pack_key) -> tuple[str, list[StoreError | None]]:
        answers: list[StoreError | None] = []
        key = name(digest(data))
        self.store.put("p1", key, data, answers.append)
        self.world.run(self.world.now + 20 * SECOND)
        return key, answers


@pytest.mark.parametrize("how", sorted({*HOWS} - {"gone"}))
@pytest.mark.parametrize("data", [b"", b"x", DATA])
def test_damage_never_leaves_the_bytes_as_they_were(how, data):
    for seed in range(50):
        assert damaged(stream(seed, "damage"), how, data, [data, b"an older object"]) != data


@pytest.mark.parametrize("disk", [False, True])
def test_a_spoiled_object_is_known_as_it_was_meant_and_read_as_it_is(disk):
    """However it was spoiled: the judges see what was written, readers what lies there."""
    for seed in range(12):
        where = Put(disk=disk, seed=seed)
        key, answers = where.put(DATA)
        assert answers == [None]
        assert where.store.rot()
        assert where.store.is_spoiled(key)
        assert where.store.meant.get(key, size_max=1 << 20) == DATA
        assert where.store.image().get(key, size_max=1 << 20) == DATA
        assert list(where.store.meant.list("packs/")) == [key]
        reader = where.store.reader()
        try:
            assert reader.get(key, size_max=1 << 20) != DATA
        except ObjectMissing:
            continue
        assert reader.rotten == [key]


@pytest.mark.parametrize("disk", [False, True])
def test_the_right_bytes_put_again_mend_what_was_spoiled(disk):
    for seed in range(12):
        where = Put(disk=disk, seed=seed)
        key, _ = where.put(DATA)
        where.store.rot()
        assert where.put(DATA)[1] == [None]
        assert not where.store.is_spoiled(key)
        assert where.store.objects.get(key, size_max=1 << 20) == DATA


def test_a_listing_that_is_behind_knows_older_objects_only():
    where = Put()
    first, _ = where.put(b"first")
    second, _ = where.put(b"second")
    assert sorted(where.store.stale(0).list("packs/")) == sorted((first, second))
    assert list(where.store.stale(20 * SECOND).list("packs/")) == [first]
    assert list(where.store.stale(where.world.now).list("packs/")) == []


def test_a_put_without_an_answer_may_arrive_later_or_never():
    arrived = set()
    for seed in range(20):
        where = Put(seed=seed)
        where.store.hang = 1000
        key, answers = where.put(DATA)
        (error,) = answers
        assert error is not None
        assert not error.definite
        arrived.add(key in set(where.store.objects.list("packs/")))
    assert arrived == {False, True}


def test_a_busy_store_says_so_and_has_done_nothing():
    where = Put()
    where.store.busy = 1000
    key, answers = where.put(DATA)
    assert [error.reason[:3] in {"429", "500", "503"} for error in answers if error is not None] == [True]
    assert key not in set(where.store.objects.list("packs/"))
