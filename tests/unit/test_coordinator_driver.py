"""The driver: one event at a time, effects in order, outcomes as events, and no half-alive coordinator."""

from __future__ import annotations

import asyncio
import threading

import pytest

from coordinator.assembler import AssemblyRequest
from coordinator.events import (
    Answer,
    AssembleCut,
    BecameLeader,
    CloseConnection,
    CommandAmbiguous,
    CommandRefused,
    CutRefused,
    EpochTriggered,
    ForsakeManifest,
    LeaderKnown,
    LostLeadership,
    ManifestFailed,
    ManifestForsaken,
    ManifestRefused,
    ManifestStored,
    MessageArrived,
    PolicyChanged,
    Probe,
    Probed,
    Propose,
    SetTimer,
    SnapshotsUnreadable,
    StoreManifest,
    TimerFired,
)
from coordinator.ledger import LeadCommand
from coordinator.policy import PolicySettings
from coordinator.runtime import driver as driver_module
from coordinator.runtime.driver import Clock, Driver
from protocol.digests import digest, manifest_key
from protocol.documents import sign_manifest
from protocol.errors import Refused, StoreError, Unreachable
from protocol.messages import Register
from protocol.storage import MemoryStore
from protocol.tombstones import decode_tombstone
from tests.epochs import KEYS, plain_manifest

COMMAND = LeadCommand(id=("c1.x", 1), term=1, coordinator="c1")


def request_of(*snapshots):
    """An assembly of epoch 4 from these local snapshots: (participant, digest)."""
    return AssemblyRequest(
        cluster="shop",
        epoch=4,
        incarnation=1,
        started_at=0,
        policy="",
        previous="",
        topology=1,
        members=(),
        snapshots=snapshots,
    )


class Machine:
    """Answers events from a table and keeps them."""

    def __init__(self):
        self.events = []
        self.inside = False
        self.answers = {}
        self.news = asyncio.Event()

    def step(self, event, now):
        assert not self.inside, "an event inside an event"
        self.inside = True
        try:
            self.events.append(event)
            self.news.set()
            make = self.answers.get(type(event))
            return tuple(make(event)) if make else ()
        finally:
            self.inside = False

    async def wait_event(self, kind):
        async with asyncio.timeout(5):
            while not (found := [each for each in self.events if isinstance(each, kind)]):
                self.news.clear()
                await self.news.wait()
        return found[0]


class Group:
    def __init__(self):
        self.submitted = []
        self.failure = None

    async def submit(self, command, timeout):
        self.submitted.append(command)
        if self.failure is not None:
            raise self.failure
        return "{}"


class Fixture:
    def __init__(self, store=None, **more):
        self.machine = Machine()
        self.group = Group()
        self.store = store or MemoryStore("shop")
        self.crashes = []
        self.crashed = asyncio.Event()
        self.url = "http://c2:7400"
        self.driver = Driver(
            self.machine,
            self.group,
            self.store,
            KEYS,
            clock=Clock(),
            leader_url=lambda: self.url,
            crashed=self._crash,
            fences={},
            **more,
        )

    def _crash(self, error):
        self.crashes.append(error)
        self.crashed.set()


@pytest.fixture
async def made():
    fixture = Fixture()
    yield fixture
    await fixture.driver.close()


async def test_an_event_that_an_effect_brings_forth_waits_for_the_step_to_end(made):
    made.machine.answers[TimerFired] = lambda _: [Answer(request="r9", result={})]
    made.driver._answer = lambda request, result: made.driver.feed(LeaderKnown(leader=request))
    made.driver.feed(TimerFired())
    assert [type(each) for each in made.machine.events] == [TimerFired, LeaderKnown]
    assert made.crashes == []


async def test_a_machine_that_raises_ends_the_process_once_and_takes_no_more(made):
    def fail(_):
        raise ZeroDivisionError("a defect")

    made.machine.answers[TimerFired] = fail
    made.driver.feed(TimerFired())
    made.driver.feed(TimerFired())
    assert [str(each) for each in made.crashes] == ["a defect"]
    assert len(made.machine.events) == 1


async def test_events_without_end_are_a_defect(made, monkeypatch):
    monkeypatch.setattr(driver_module, "EVENTS_IN_A_ROW_MAX", 10)
    made.machine.answers[TimerFired] = lambda _: [Answer(request="r", result={})]
    made.driver._answer = lambda *_: made.driver.feed(TimerFired())
    made.driver.feed(TimerFired())
    assert "without end" in str(made.crashes[0])


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(Refused("no-leader", "nobody leads"), CommandRefused), (Unreachable("gone"), CommandAmbiguous)],
)
async def test_a_proposal_that_fails_comes_back_as_refused_or_ambiguous(made, failure, kind):
    made.group.failure = failure
    made.machine.answers[TimerFired] = lambda _: [Propose(command=COMMAND)]
    made.driver.feed(TimerFired())
    event = await made.machine.wait_event(kind)
    assert (event.id, event.reason) == (COMMAND.id, str(failure))
    assert '"at":1' in made.group.submitted[0]


async def test_a_proposal_that_raises_something_else_is_a_defect(made):
    made.group.failure = KeyError("what")
    made.machine.answers[TimerFired] = lambda _: [Propose(command=COMMAND)]
    made.driver.feed(TimerFired())
    await asyncio.wait_for(made.crashed.wait(), 5)
    assert isinstance(made.crashes[0], KeyError)


async def test_a_timer_fires_once_at_its_newest_instant(made):
    instants = iter([10**18, 0])
    made.machine.answers[LeaderKnown] = lambda _: [SetTimer(at=next(instants))]
    made.driver.feed(LeaderKnown(leader="a"))
    made.driver.feed(LeaderKnown(leader="b"))
    await made.machine.wait_event(TimerFired)
    assert made.driver._timer is None


async def test_a_manifest_is_stored_and_again_is_a_success(made):
    data = b"manifest"
    order = StoreManifest(epoch=4, manifest=data, digest=digest(data))
    made.machine.answers[TimerFired] = lambda _: [order]
    made.driver.feed(TimerFired())
    assert (await made.machine.wait_event(ManifestStored)).digest == digest(data)
    assert made.store.get(manifest_key(4), size_max=100) == data
    made.machine.events.clear()
    made.driver.feed(TimerFired())
    await made.machine.wait_event(ManifestStored)


async def test_a_manifest_in_whose_place_something_whole_lies_is_refused_for_good(made):
    data = sign_manifest(plain_manifest(4, snapshot=digest(b"mine")), KEYS)
    made.store.put(manifest_key(4), sign_manifest(plain_manifest(4), KEYS))
    made.machine.answers[TimerFired] = lambda _: [StoreManifest(epoch=4, manifest=data, digest=digest(data))]
    made.driver.feed(TimerFired())
    assert "other bytes" in (await made.machine.wait_event(ManifestRefused)).cause


async def test_a_key_is_taken_and_a_manifest_that_was_there_first_is_stored(made):
    request = request_of()
    order = ForsakeManifest(epoch=4, digest=digest(b"manifest"), request=request)
    made.machine.answers[TimerFired] = lambda _: [order]
    made.driver.feed(TimerFired())
    assert (await made.machine.wait_event(ManifestForsaken)).digest == order.digest
    assert decode_tombstone(made.store.get(manifest_key(4), size_max=1000)).forsaken == order.digest
    made.store.replace_for_test(manifest_key(4), b"manifest")
    made.driver.feed(TimerFired())
    assert (await made.machine.wait_event(ManifestStored)).digest == order.digest
    made.store.fail_next_put(StoreError("put", manifest_key(4), "no space left on device", errno_name="ENOSPC"))
    made.driver.feed(TimerFired())
    assert "ENOSPC" in (await made.machine.wait_event(ManifestFailed)).cause


async def test_a_store_that_fails_is_told_with_its_errno():
    class Full(MemoryStore):
        def put(self, key, data):
            raise StoreError("put", key, "no space left on device", errno_name="ENOSPC")

    made = Fixture(Full("shop"))
    made.machine.answers[TimerFired] = lambda _: [StoreManifest(epoch=4, manifest=b"m", digest=digest(b"m"))]
    made.driver.feed(TimerFired())
    event = await made.machine.wait_event(ManifestFailed)
    assert "ENOSPC" in event.cause
    assert made.driver.counts["store_failures"] == 1
    await made.driver.close()


async def test_a_store_that_hangs_counts_as_failed_and_keeps_only_its_thread(monkeypatch):
    release = threading.Event()

    class Hanging(MemoryStore):
        def put(self, key, data):
            release.wait(10)
            raise StoreError("put", key, "late")

        def get(self, key, *, size_max):
            release.wait(10)
            raise StoreError("get", key, "late")

    monkeypatch.setattr(driver_module, "STORE_SECONDS_MAX", 0.05)
    made = Fixture(Hanging("shop"))
    request = request_of(("p1", digest(b"x")))
    made.machine.answers[TimerFired] = lambda _: [
        StoreManifest(epoch=4, manifest=b"m", digest=digest(b"m")),
        AssembleCut(epoch=4, request=request),
    ]
    made.driver.feed(TimerFired())
    assert "did not answer within" in (await made.machine.wait_event(ManifestFailed)).cause
    assert "did not answer within" in (await made.machine.wait_event(SnapshotsUnreadable)).cause
    assert made.driver.store_threads_busy == 2
    release.set()
    async with asyncio.timeout(5):
        while made.driver.store_threads_busy:  # noqa: ASYNC110 - threads end without a word to this loop
            await asyncio.sleep(0.001)
    await made.driver.close()


async def test_closing_waits_for_no_probe_and_hears_of_none():
    asked, ended = asyncio.Event(), []

    async def no_answer(address):
        try:
            asked.set()
            await asyncio.Event().wait()
        finally:
            ended.append(address)

    made = Fixture(probe=no_answer)
    made.machine.answers[TimerFired] = lambda _: [Probe(session=1, address="ws://dark:7000")]
    made.driver.feed(TimerFired())
    await asked.wait()
    async with asyncio.timeout(5):
        await made.driver.close()
    assert ended == ["ws://dark:7000"]
    assert not [each for each in made.machine.events if isinstance(each, Probed)]


async def test_a_store_that_hangs_gathers_no_work(monkeypatch):
    """A page that polls the doctor of a dead store for a day must not leave a day's probes behind."""
    monkeypatch.setattr(driver_module, "STORE_THREADS", 1)
    made = Fixture()
    release = threading.Event()
    ran = []
    with pytest.raises(TimeoutError):
        await made.driver.in_thread(lambda: release.wait(10), 0.01)
    for number in range(20):
        with pytest.raises(TimeoutError):
            await made.driver.in_thread(lambda number=number: ran.append(number), 0.001)
    async with asyncio.timeout(5):
        while made.driver.store_threads_busy > 1:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
    release.set()
    assert await made.driver.in_thread(lambda: "next", 5) == "next"
    assert ran == []
    await made.driver.close()


async def test_reads_that_keep_every_thread_do_not_keep_the_leader_from_the_store(made):
    release = threading.Event()
    reads = [
        asyncio.create_task(made.driver.in_thread(lambda: release.wait(10))) for _ in range(driver_module.STORE_THREADS)
    ]
    made.machine.answers[TimerFired] = lambda _: [StoreManifest(epoch=4, manifest=b"m", digest=digest(b"m"))]
    made.driver.feed(TimerFired())
    await made.machine.wait_event(ManifestStored)
    assert not any(read.done() for read in reads)
    release.set()
    await asyncio.gather(*reads)


async def test_objects_that_break_the_checks_abort_their_epoch_and_not_one_leader_after_the_other():
    class Odd(MemoryStore):
        def get(self, key, *, size_max):
            raise RecursionError("maximum recursion depth exceeded")

    made = Fixture(Odd("shop"))
    request = request_of(("p1", digest(b"x")))
    made.machine.answers[TimerFired] = lambda _: [AssembleCut(epoch=4, request=request)]
    made.driver.feed(TimerFired())
    refused = await made.machine.wait_event(CutRefused)
    assert "RecursionError" in refused.cause
    assert made.crashes == []
    await made.driver.close()


async def test_leadership_is_told_once_and_a_new_term_ends_the_one_before(made):
    made.driver.leadership_changed(True, 3)
    made.driver.leadership_changed(True, 3)
    made.driver.leadership_changed(True, 5)
    made.driver.leadership_changed(False, 5)
    kinds = [each for each in made.machine.events if not isinstance(each, LeaderKnown)]
    assert kinds == [
        BecameLeader(term=3),
        LostLeadership(leader=made.url),
        BecameLeader(term=5),
        LostLeadership(leader=made.url),
    ]


async def test_a_registration_is_preceded_by_the_newest_address_of_the_leader(made):
    message = Register(cluster="shop", participant="p1", boot_id="0" * 32)
    made.driver.message_arrived(1, message)
    assert made.machine.events == [LeaderKnown(leader=made.url), MessageArrived(connection=1, message=message)]


async def test_a_request_is_answered_or_times_out_or_is_refused_when_too_many_wait(made, monkeypatch):
    def answer(event):
        return [Answer(request=event.request, result={"ok": True, "epoch": 7})]

    made.machine.answers[EpochTriggered] = answer
    assert await made.driver.trigger_epoch("why") == {"ok": True, "epoch": 7}
    assert made.machine.events[0].reason == "why"
    monkeypatch.setattr(driver_module, "REQUEST_SECONDS_MAX", 0.01)
    assert (await made.driver.abort_epoch(7, "why"))["code"] == "unknown-outcome"
    made.machine.answers[PolicyChanged] = lambda event: [Answer(request="nobody", result={})]
    assert (await made.driver.change_policy(PolicySettings()))["code"] == "unknown-outcome"
    monkeypatch.setattr(driver_module, "REQUESTS_MAX", 0)
    assert (await made.driver.trigger_epoch(""))["code"] == "busy"
    assert made.driver._requests == {}


async def test_orders_for_connections_that_are_gone_are_dropped(made):
    made.machine.answers[TimerFired] = lambda _: [CloseConnection(connection=99, reason="x")]
    made.driver.feed(TimerFired())
    assert made.crashes == []


async def test_a_closed_driver_takes_no_more_events(made):
    await made.driver.close()
    made.driver.feed(TimerFired())
    assert made.machine.events == []
