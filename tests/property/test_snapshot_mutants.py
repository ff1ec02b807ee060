"""The tests can fail: each machine here breaks one rule, and the vectors or the random schedules must refuse it."""

from __future__ import annotations

from itertools import cycle
from random import Random
from typing import TYPE_CHECKING

import pytest

from protocol.errors import SnapshotError
from protocol.items import encode_marker_item
from protocol.snapshot import (
    ChannelClosed,
    Effect,
    LocalPartComplete,
    MarkerReceived,
    RecordState,
    SendMarkers,
    SnapshotMachine,
)
from tests.conformance import schedule_runner
from tests.conformance.cos418_runner import CASES, Cos418World, read_snap, recorded_draws
from tests.property.snapshot_schedules import RepeatingWorld, Schedule, judge, play
from tests.snapshot_world import NOW, Process, World, channel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from protocol.ids import ChannelId
    from protocol.snapshot import _Part, _Recording


# --- machines that break a rule -------------------------------------------------------------------------------------


class ClosesAllAtSecondMarker(SnapshotMachine):
    """Holds itself complete at the second marker."""

    def _close(self, part: _Part, channel: ChannelId, closed_at: int) -> list[Effect]:
        effects: list[Effect] = []
        for other in [channel, *part.open]:
            if other in part.open:
                held = part.open[other]
                last = closed_at if other == channel else max(held.next - 1, 0)
                effects += super()._close(part, other, last)
        return effects


class CountsMarkers(SnapshotMachine):
    """Completes when as many markers came as there are channels, whichever channels they came on."""

    def step(self, event, now):
        counted = self.__dict__.setdefault("counted", {})
        effects = super().step(event, now)
        if isinstance(event, MarkerReceived):
            counted[event.epoch] = counted.get(event.epoch, 0) + 1
            part = self._parts.get(event.epoch)
            if part is not None and counted[event.epoch] >= len(part.incoming):
                more: list[Effect] = []
                for other in list(part.open):
                    more += self._close(part, other, max(part.open[other].next - 1, 0))
                return (*effects, *more)
        return effects


class RecordsForTheNewestEpochOnly(SnapshotMachine):
    def _record(self, recordings: Sequence[_Recording], first: int, items: Sequence[bytes]) -> list[Effect]:
        return super()._record([max(recordings, key=lambda recording: recording.part.epoch)], first, items)


class LeavesTheFirstChannelOpen(SnapshotMachine):
    def _begin(self, epoch, incoming, outgoing, *, first, closed_at):
        return super()._begin(epoch, incoming, outgoing, first=None, closed_at=closed_at)


class SendsNoMarkersAfterAMarker(SnapshotMachine):
    """Only who is ordered sends markers."""

    def _begin(self, epoch, incoming, outgoing, *, first, closed_at):
        return super()._begin(epoch, incoming, () if first else outgoing, first=first, closed_at=closed_at)


class RecordsAfterTheMarkerToo(SnapshotMachine):
    """Goes on recording a closed channel until all are closed."""

    def _marker_received(self, event: MarkerReceived) -> tuple[Effect, ...]:
        part = self._parts.get(event.epoch)
        if part is not None and event.channel in part.open and len(part.open) > 1:
            self.__dict__.setdefault("late", {}).setdefault(event.epoch, []).append(event.channel)
            recording = part.open[event.channel]
            if recording.next:
                recording.next += 1
            return ()
        effects = list(super()._marker_received(event))
        if part is not None:
            for late in self.__dict__.get("late", {}).pop(event.epoch, []):
                effects += self._close(part, late, max(part.open[late].next - 1, 0))
        return tuple(effects)


class BeginsAgainAtEachMarker(SnapshotMachine):
    """Records and marks a second time when a marker comes twice."""

    def step(self, event, now):
        effects = super().step(event, now)
        if isinstance(event, MarkerReceived) and not effects:
            return (RecordState(epoch=event.epoch), SendMarkers(epoch=event.epoch, channels=self._outgoing))
        return effects


class ForgetsTheOthersMarkers(SnapshotMachine):
    """Leaves the markers of other epochs out of a recording: the numbers have gaps."""

    def _record(self, recordings: Sequence[_Recording], first: int, items: Sequence[bytes]) -> list[Effect]:
        if items[0][0] == encode_marker_item(1)[0]:
            for recording in recordings:
                recording.next = first + 1
            return []
        return super()._record(recordings, first, items)


class KeepsReferencesToTheLastItemOnly(SnapshotMachine):
    """Loses all but the last recorded item of a channel."""

    def _record(self, recordings: Sequence[_Recording], first: int, items: Sequence[bytes]) -> list[Effect]:
        for recording in recordings:
            recording.items.clear()
        return super()._record(recordings, first, items)


# --- drivers that break a rule --------------------------------------------------------------------------------------


class MarkerOvertakes(World):
    """Markers go out by themselves, messages wait in a buffer: a marker is put before messages that were sent earlier."""

    def send(self, source: str, target: str, payload: bytes, amount: int = 0) -> None:
        held = self.__dict__.setdefault("held", {})
        c = channel(source, target)
        if self.queues[c]:
            held.setdefault(c, []).append(payload)
            self.processes[source].state -= amount
            self.log.append(("send", c, payload, amount))
        else:
            super().send(source, target, payload, amount)

    def deliver(self, c: ChannelId, *, amount: int = 0) -> tuple[str, bytes | int]:
        what = super().deliver(c, amount=amount)
        held = self.__dict__.get("held", {})
        if held.get(c):
            self.put(c, schedule_item(held[c].pop(0)))
        return what


class RecordsLate(World):
    """Takes the state after the next delivery instead of in the step: a record that is a task of its own."""

    def carry_out(self, process: Process, effect: Effect) -> None:
        super().carry_out(process, effect)
        if isinstance(effect, RecordState):
            self.__dict__.setdefault("late", {})[process.name] = effect.epoch

    def deliver(self, c: ChannelId, *, amount: int = 0) -> tuple[str, bytes | int]:
        late = self.__dict__.setdefault("late", {}).pop(c.target, None)
        what = super().deliver(c, amount=amount)
        if late is not None and what[0] == "message":
            self.processes[c.target].cuts[late].state += amount
        return what


class MarkersLate(World):
    """Sends the markers at the next delivery: a message slips in between record and marker."""

    def carry_out(self, process: Process, effect: Effect) -> None:
        if isinstance(effect, SendMarkers):
            self.__dict__.setdefault("late", []).append((process, effect))
        else:
            super().carry_out(process, effect)

    def deliver(self, c: ChannelId, *, amount: int = 0) -> tuple[str, bytes | int]:
        self.flush()
        return super().deliver(c, amount=amount)

    def flush(self) -> None:
        late = self.__dict__.get("late", [])
        while late:
            process, effect = late.pop(0)
            super().carry_out(process, effect)


def schedule_item(payload: bytes) -> bytes:
    return b"\x01" + len(payload).to_bytes(4, "big") + payload


# --- judges ---------------------------------------------------------------------------------------------------------

REFUSALS = (AssertionError, SnapshotError, KeyError, IndexError)
"""How a wrong machine shows: a check fails, a driver's number is refused, or there is nothing where something must be."""


def vectors_refuse(machine: Callable[..., SnapshotMachine], world_type: type[World] = World) -> bool:
    for case in schedule_runner.cases():
        try:
            schedule_runner.run(case, machine, world_type)
        except REFUSALS:
            return True
    return False


def cos418_refuses(machine: Callable[..., SnapshotMachine]) -> bool:
    for case, (top, expected) in CASES.items():
        world = Cos418World(top, cycle(recorded_draws()), machine=machine)
        try:
            world.run(f"{case}.events")
            for name in expected:
                snap = read_snap(name)
                assert world.snap(snap.id + 1) == snap
        except REFUSALS:
            return True
    return False


def random_schedules(count: int = 80) -> list[Schedule]:
    """The same ones each time."""
    found = []
    for seed in range(count):
        random = Random(seed)
        names = "abcde"[: random.randint(2, 5)]
        pairs = [channel(s, t) for s in names for t in names if s != t]
        channels = tuple(sorted(random.sample(pairs, random.randint(1, len(pairs)))))
        found.append(
            Schedule(
                participants=names,
                channels=channels,
                epochs=random.randint(1, 3),
                start_everywhere=bool(seed % 2),
                choices=tuple(random.randrange(10_000) for _ in range(120)),
            )
        )
    return found


def oracle_refuses(machine: Callable[..., SnapshotMachine], world_type: type[World] = World) -> bool:
    for schedule in random_schedules():
        try:
            judge(play(schedule, machine=machine, world_type=world_type, repeat_orders=True), schedule.epochs)
        except REFUSALS:
            return True
    return False


def cut_check_refuses(machine: Callable[..., SnapshotMachine], world_type: type[World] = World) -> bool:
    """The product's own checker, on parts that claim to be complete."""
    for schedule in random_schedules():
        try:
            world = play(schedule, machine=machine, world_type=world_type)
        except REFUSALS:
            continue
        for epoch in range(1, schedule.epochs + 1):
            if world.complete(epoch) and world.violation(epoch) is not None:
                return True
    return False


MUTANTS = [
    ClosesAllAtSecondMarker,
    RecordsForTheNewestEpochOnly,
    LeavesTheFirstChannelOpen,
    SendsNoMarkersAfterAMarker,
    RecordsAfterTheMarkerToo,
    ForgetsTheOthersMarkers,
    KeepsReferencesToTheLastItemOnly,
]
DRIVERS = [MarkerOvertakes, RecordsLate, MarkersLate]


def test_the_machine_itself_is_refused_by_none_of_the_judges():
    assert not vectors_refuse(SnapshotMachine)
    assert not cos418_refuses(SnapshotMachine)
    assert not oracle_refuses(SnapshotMachine)
    assert not oracle_refuses(SnapshotMachine, RepeatingWorld)
    assert not cut_check_refuses(SnapshotMachine)


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m is not ForgetsTheOthersMarkers])
def test_vectors_refuse_each_wrong_machine(mutant: type[SnapshotMachine]):
    assert vectors_refuse(mutant)


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m is not ForgetsTheOthersMarkers])
def test_random_schedules_refuse_each_wrong_machine(mutant: type[SnapshotMachine]):
    assert oracle_refuses(mutant)


def test_cut_check_refuses_a_recording_without_the_other_epochs_markers():
    """The messages are all there: only numbers and digest tell."""
    assert not vectors_refuse(ForgetsTheOthersMarkers)
    assert cut_check_refuses(ForgetsTheOthersMarkers)


@pytest.mark.parametrize("mutant", [CountsMarkers, BeginsAgainAtEachMarker])
def test_repeated_markers_refuse_machines_that_count_or_begin_again(mutant: type[SnapshotMachine]):
    """On a channel that repeats nothing they pass: it takes the repetition to tell."""
    assert oracle_refuses(mutant, RepeatingWorld)
    if mutant is CountsMarkers:
        assert not vectors_refuse(mutant)


@pytest.mark.parametrize("driver", DRIVERS)
def test_vectors_and_random_schedules_refuse_each_wrong_driver(driver: type[World]):
    assert vectors_refuse(SnapshotMachine, driver)
    assert oracle_refuses(SnapshotMachine, driver)


def test_cos418_alone_does_not_refuse_everything():
    """Why the other vectors are there (the page beside them says so): two wrong machines pass all its cases."""
    assert cos418_refuses(LeavesTheFirstChannelOpen)
    assert not cos418_refuses(RecordsForTheNewestEpochOnly)
    assert not cos418_refuses(ClosesAllAtSecondMarker)


def test_wrong_machines_really_differ_from_the_machine():
    """A mutant whose override is never reached would make the tests above worthless."""
    incoming = tuple(channel(name, "q") for name in "abc")
    for mutant in (ClosesAllAtSecondMarker, CountsMarkers):
        machine = mutant("q")
        machine._incoming = incoming
        effects: list[Effect] = []
        for place in (1, 2, 3)[: 2 if mutant is ClosesAllAtSecondMarker else 3]:
            source = incoming[min(place, 2) - 1]
            effects += machine.step(MarkerReceived(channel=source, epoch=1, number=place), NOW)
        assert any(isinstance(effect, LocalPartComplete) for effect in effects)
        assert sum(isinstance(effect, ChannelClosed) for effect in effects) == 3
