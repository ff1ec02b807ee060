"""What applied entries mean to people: each told once, refused ones not at all."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.ledger import (
    AbortCommand,
    CommitCommand,
    ConfigureCommand,
    FenceCommand,
    LeadCommand,
    LeaveCommand,
    Ledger,
    MarkLostCommand,
    RegisterCommand,
    Report,
    ReportsCommand,
    RestoredCommand,
    RestoredNote,
    RollbackCommand,
    SealCommand,
    StartCommand,
    TopologyCommand,
    encode_command,
    parse_result,
)
from coordinator.policy import PolicySettings
from coordinator.runtime.changes import Changes
from coordinator.runtime.events import EventLog
from coordinator.runtime.history import Historian
from coordinator.runtime.views import epoch_full, epoch_short, participants, rollback, topology
from protocol.digests import digest

D = digest(b"x")


class Log:
    """A replica with its historian."""

    def __init__(self):
        self.ledger = Ledger("shop")
        self.events = EventLog("boot")
        self.historian = Historian(self.ledger, self.events)
        self.number = 0

    def apply(self, kind, **fields):
        self.number += 1
        text = encode_command(kind(id=("c1.x", self.number), term=1, **fields), at=5_000_000_000)
        return text, self.repeat(text)

    def repeat(self, text):
        result = parse_result(self.ledger.apply(text))
        self.historian.applied(text, result)
        return result

    def told(self):
        return [event["kind"] for event in self.events.since(0)[1]]


@pytest.fixture
async def log():
    log = Log()
    log.apply(LeadCommand, coordinator="c1")
    for name in ("p1", "p2"):
        log.apply(RegisterCommand, participant=name, boot_id=name, agents=(f"buyer/{name}",))
    log.apply(TopologyCommand, version=1)
    return log


async def test_an_epoch_is_told_step_by_step_and_shown_as_it_stands(log):
    log.apply(StartCommand, topology=1, reason="test", deadline_ns=1_000_000_000)
    assert epoch_short(log.ledger.epoch(1))["duration_ms"] is None
    reports = tuple(
        Report(epoch=1, participant=name, session=session, incarnation=1, snapshot=D, waited_ns=3_000_000)
        for session, name in ((1, "p1"), (2, "p2"))
    )
    log.apply(ReportsCommand, reports=reports)
    log.apply(SealCommand, epoch=1, manifest=D)
    log.apply(CommitCommand, epoch=1, manifest=D, took_ns=9_000_000, phases={"assemble": 1_500_000})
    assert log.told() == [
        "leader-elected",
        "participant-registered",
        "participant-registered",
        "topology-changed",
        "epoch-started",
        "epoch-reported",
        "epoch-sealed",
        "epoch-committed",
    ]
    told = log.events.since(0)[1][5]
    assert (told["epoch"], told["participants"]) == (1, ["p1", "p2"])
    last = log.events.since(0)[1][-1]
    assert (last["epoch"], last["duration_ms"], last["at_ms"]) == (1, 9, 5_000)
    shown = epoch_full(log.ledger.epoch(1))
    assert shown["members"]["p1"] | {"phase": "reported", "reported_ms": 3, "session": 1} == shown["members"]["p1"]
    assert shown["phases"] == {"assemble": 1.5}
    assert topology(log.ledger)["channels"] == [["p1", "p2"], ["p2", "p1"]]


async def test_a_rollback_is_told_from_its_beginning_to_its_end(log):
    log.apply(MarkLostCommand, session=2, cause="silent for 3 s")
    log.apply(RegisterCommand, participant="p2", boot_id="b9", agents=("w/p2",))
    membership = log.ledger.state.membership
    log.apply(RollbackCommand, incarnation=2, epoch=0, membership=membership, cause="p2 lost", fences=("store",))
    log.apply(FenceCommand, incarnation=2, fence="store")
    notes = tuple(RestoredNote(participant=name, session=session, state=D) for name, session in (("p1", 1), ("p2", 3)))
    log.apply(RestoredCommand, incarnation=2, restored=notes)
    assert log.told()[-4:] == ["rollback-begun", "fence-raised", "participants-restored", "rollback-done"]
    shown = rollback(log.ledger.rollback)
    assert (shown["state"], shown["restored_count"], shown["cause"]) == ("done", 2, "p2 lost")


async def test_losses_leaves_and_aborts_are_told_with_their_cause(log):
    log.apply(ConfigureCommand, policy=PolicySettings(recovery="off"))
    log.apply(StartCommand, topology=1, reason="test", deadline_ns=1_000_000_000)
    log.apply(MarkLostCommand, session=2, cause="silent for 3 s")
    told = log.events.since(0)[1]
    assert [each["kind"] for each in told[-2:]] == ["participant-lost", "epoch-aborted"]
    assert told[-1]["participant"] == "p2"
    log.apply(LeaveCommand, session=1)
    log.apply(TopologyCommand, version=2)
    assert log.told()[-3:] == ["participant-leaving", "topology-changed", "participant-left"]
    assert log.events.since(0)[1][-1]["participant"] == "p1"
    shown = {each["id"]: each for each in participants(log.ledger, None)["participants"]}
    assert (shown["p2"]["state"], shown["p2"]["cause"], shown["p2"]["up"]) == ("lost", "silent for 3 s", None)
    aborted = epoch_full(log.ledger.epoch(1))
    assert aborted["abort"]["cause"] == "silent for 3 s"


async def test_a_repeated_or_refused_entry_is_not_told(log):
    before = log.told()
    text, _ = log.apply(StartCommand, topology=1, reason="test", deadline_ns=1_000_000_000)
    log.repeat(text)
    log.apply(StartCommand, topology=1, reason="again", deadline_ns=1_000_000_000)
    log.apply(AbortCommand, epoch=99, phase="operator", cause="x")
    assert log.told() == [*before, "epoch-started"]
    assert log.historian.applied("not a command", {"ok": True}) is None


async def test_waiting_for_a_change_ends_when_it_is_there_or_the_time_is_over():
    changes = Changes()
    values = []
    task = asyncio.create_task(changes.wait_until(lambda: len(values) == 2, 5))
    for value in range(2):
        await asyncio.sleep(0)
        values.append(value)
        changes.changed()
    assert await task
    assert not await changes.wait_until(lambda: False, 0.01)
    assert await changes.wait_until(lambda: True, 0)


async def test_old_entries_are_events_and_not_lines_of_the_log(log, caplog):
    """The log's times are of its writing: history that is read again at a start would look like news."""
    caplog.set_level("INFO")
    text = encode_command(LeadCommand(id=("c2.x", 1), term=2, coordinator="c2"), at=5_000_000_000)
    result = parse_result(log.ledger.apply(text))
    log.historian.applied(text, result, old=True)
    assert log.told()[-1] == "leader-elected"
    assert "c2" not in caplog.text
