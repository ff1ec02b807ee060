"""The turn log's records, its writer, what replay refuses, and the file driver over all of it."""

import errno
from typing import Any

import msgspec
import pytest

from participant.logs.segment import CorruptLog, segment_name
from participant.runtime.durable_log import LogPoisoned
from participant.runtime.log_files import FolderFiles, Life
from participant.runtime.turn_logger import TurnLogger
from participant.turnlog.history import agent_history
from participant.turnlog.records import (
    NOTHING,
    AcknowledgedRecord,
    DeliveredRecord,
    LifeRecord,
    PositionRecord,
    ReceivedRecord,
    SentRecord,
    TurnRecord,
    decode_records,
    encode_record,
)
from participant.turnlog.replay import Replay
from protocol.errors import RecoveryError
from tests.logs_world import disk
from tests.turnlog_world import ALLOWED, World, body_of, content, replayed

LIFE = Life(1, 1)


def decoded(world: World) -> list[Any]:
    return [record for _, records in world.batches for record in decode_records(body_of(records))]


def test_a_turn_is_one_flat_record_of_this_form():
    """Golden: a log of an earlier build must be read."""
    world = World()
    world.arrive("worker/a", (("count", "", 2), ("key", "x", 1), ("unkey", "x", 0), ("remote", "y", 0)))
    world.run("worker/a")
    world.flush()
    ((_, (record,)),) = world.batches
    assert msgspec.msgpack.decode(record)[:9] == [
        1, "worker/a", (1).to_bytes(16, "big"), "q", 1, [["count", 2, None]],
        [["r", 1, msgspec.msgpack.decode(world.remote[0][1])]], [], [],
    ]  # fmt: skip
    assert record.hex().startswith("9e01a8776f726b65722f61c410")


def test_a_message_that_comes_and_is_handled_between_two_flushes_costs_one_record():
    world = World()
    world.arrive("worker/a", (("count", "", 1),))
    world.arrive("worker/b", (("count", "", 1),))
    world.run("worker/a")
    world.flush()
    world.run("worker/b")
    world.flush()
    assert [type(record) for record in decoded(world)] == [ReceivedRecord, TurnRecord, TurnRecord]
    turns = [record for record in decoded(world) if isinstance(record, TurnRecord)]
    assert [(turn.source, turn.number) for turn in turns] == [("q", 1), ("q", 2)]


def test_a_turn_that_only_looks_logs_no_change_and_one_that_appends_logs_one_block():
    world = World()
    world.arrive("worker/a", tuple(("append", "", 4) for _ in range(40)))
    world.run("worker/a")
    world.arrive("worker/a", (("look", "", 0),))
    world.run("worker/a")
    world.arrive("worker/a", (("append", "", 5),))
    world.run("worker/a")
    world.flush()
    first, look, last = decoded(world)
    assert look.changes == []
    ((name, payload, removed),) = last.changes
    count, blocks = msgspec.msgpack.decode(payload)
    assert (name, removed, len(blocks)) == ("items", NOTHING, 1)
    assert count == len(msgspec.msgpack.decode(first.changes[0][1])[1])


def test_an_agent_with_a_state_of_its_own_is_captured_once_a_turn():
    world = World()
    host = world.hosts["whole/w"]  # type: ignore[index]
    captures = []
    real = host.agent.capture
    host.agent.capture = lambda: captures.append(1) or real()  # type: ignore[method-assign]
    for text in "abc":
        world.arrive("whole/w", (("say", text, 0),))
        world.run("whole/w")
    assert len(captures) == 4, "once before the first turn, and once at the end of each"
    world.flush()
    again = World(logged=False)
    replayed(world, again)
    assert again.hosts["whole/w"].agent.seen == ["a", "b", "c"]  # type: ignore[index, attr-defined]


def test_positions_markers_acknowledgements_and_outputs_come_back():
    world = World()
    writer = world.writer
    writer.life(3, 7, {"worker/a": 1}, "0.1")
    writer.position("q", 4)
    writer.position("q", 4)
    for number in range(1, 4):
        world.arrive("worker/a", (("remote", str(number), 0),))
        world.run("worker/a")
    writer.sent("r", 4, b"marker")
    writer.acknowledged("r", 2)
    writer.delivered([b"gone"])
    world.flush()
    assert [type(record) for record in decoded(world)].count(PositionRecord) == 1
    found = replayed(world, World(logged=False))
    assert found.received == {"q": 4}
    assert found.sent == {"r": 4}
    assert found.unacknowledged == {"r": [(3, world.remote[2][1], True), (4, b"marker", False)]}
    assert found.last == LifeRecord(3, 7, {"worker/a": 1}, "0.1")
    assert found.outputs == []
    assert isinstance(decoded(world)[-1], DeliveredRecord)
    assert isinstance(decoded(world)[-2], AcknowledgedRecord)
    assert isinstance(decoded(world)[-3], SentRecord)


def test_what_was_emitted_and_not_delivered_is_released_again():
    world = World()
    envelope, _ = world.message("worker/a", (), 1)
    for identity in (b"one", b"two"):
        world.writer.turn(
            envelope, changes=[], sends=[], timers=[], outputs=[(identity, "bank", b"\x01")], steps=[], attempt=1, at=0
        )
    world.writer.delivered([b"one"])
    world.flush()
    world.batches = [
        (
            1,
            [
                encode_record(ReceivedRecord("q", 1, msgspec.Raw(world.message("worker/a", (), 1)[1]))),
                *world.batches[0][1][1:],
            ],
        )
    ]
    found = replayed(world, World(logged=False))
    assert found.outputs == [("worker/a", (b"two", "bank", b"\x01"))]


def test_a_dead_letter_and_a_stopped_agent_come_back():
    world = World()
    world.arrive("worker/a", (("fail", "no", 0),))
    world.arrive("whole/w", (("fail", "no", 0),))
    world.flush()
    world.run("worker/a")
    world.run("whole/w")
    world.flush()
    again = World(logged=False)
    replayed(world, again)
    assert content(again) == content(world)
    assert again.hosts["whole/w"].dead  # type: ignore[index]
    assert len(again.hosts["whole/w"].mailbox) == 1  # type: ignore[index]


def refused(world: World, reason: str, into: World | None = None) -> None:
    world.flush()
    with pytest.raises(RecoveryError, match=reason):
        replayed(world, into or World(logged=False))


def test_a_log_that_does_not_fit_the_agents_is_refused_by_name():
    world = World()
    world.writer.life(1, 1, {"worker/a": 2}, "")
    refused(world, "worker/a: its turns were logged with state_version 2, its class has 1")

    world = World()
    world.arrive("worker/a", (("count", "", 1),))
    world.run("worker/a")
    into = World(logged=False)
    del into.hosts["worker/a"]  # type: ignore[arg-type]
    refused(world, "turns of agent worker/a, which is not here", into)

    world = World()
    envelope, _ = world.message("worker/a", (), 1)
    nothing: dict[str, Any] = {"sends": [], "timers": [], "outputs": [], "steps": [], "attempt": 1, "at": 0}
    world.writer.turn(envelope, changes=[], **nothing)
    refused(world, "neither epoch nor log has it")

    for change, reason in (
        (("gone", msgspec.Raw(b"\x01"), NOTHING), "its class has no field gone"),
        (("numbers", msgspec.Raw(b"\x91\x92\x01\x01"), NOTHING), "field numbers does not fit its declared type"),
        (("count", msgspec.Raw(b"\xa1x"), NOTHING), "field count does not fit its declared type"),
        (("items", msgspec.Raw(b"\x92\x02\x91\x92\x00\xc4\x01\x90"), NOTHING), "field items does not fit.*block 1"),
    ):
        world = World()
        world.arrive("worker/a", ())
        envelope = world.hosts["worker/a"].mailbox[0][0]  # type: ignore[index]
        world.writer.turn(envelope, changes=[change], **nothing)
        refused(world, reason)

    with pytest.raises(RecoveryError, match="none of ours"):
        Replay({}).batch(b"\x91\x91\x63", 1)


def test_pickles_in_a_log_need_the_right_to_unpickle():
    world = World()
    world.arrive("pickled/p", (("say", "a", 1),))
    world.run("pickled/p")
    world.flush()
    replay = Replay(World(logged=False).hosts)
    with pytest.raises(RecoveryError, match="no PickleAllowed"):
        replay.batch(body_of(world.batches[0][1]), 1)


def logger_on(files: Any, **settings: Any) -> TurnLogger:
    return TurnLogger(files, cluster="demo", participant="p1", **settings)


async def logged_world(files: Any, turns: int, **settings: Any) -> tuple[World, TurnLogger]:
    """Turns, each made durable before the next."""
    logger = logger_on(files, **settings)
    world = World()
    assert logger.recover(world.hosts, now=0).turns == 0
    logger.begin(LIFE, world.hosts.values())
    world.writer = logger.writer
    for number in range(turns):
        world.arrive("worker/a", (("count", "", 1), ("append", "", number)))
        world.run("worker/a")
        await logger.wait_durable(logger.flush())
    return world, logger


async def test_turns_on_disk_come_back_and_what_an_epoch_covers_goes(tmp_path: Any):
    files = FolderFiles(tmp_path / "turns")
    world, logger = await logged_world(files, 12, segment_bytes=200)
    segments = len(files.names())
    assert segments > 3
    position = logger.position
    assert await logger.keep(position - 2) > 0
    assert len(files.names()) < segments
    await logger.close()
    again = World(logged=False)
    later = logger_on(FolderFiles(tmp_path / "turns"))
    with pytest.raises(CorruptLog, match="is needed"):
        later.recover(again.hosts, now=0)
    found = logger_on(FolderFiles(tmp_path / "turns")).recover(again.hosts, after=position - 2, now=0, allowed=ALLOWED)
    assert found.turns == 2
    assert world.hosts["worker/a"].turns == 12  # type: ignore[index]


async def test_a_log_cut_at_any_byte_gives_the_turns_before_it_and_nothing_half(tmp_path: Any):
    """I17 for turns: f(prefix)."""
    files = FolderFiles(tmp_path / "turns")
    _, logger = await logged_world(files, 6)
    await logger.close()
    path = tmp_path / "turns" / segment_name(1)
    whole = path.read_bytes()
    counts = []
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        again = World(logged=False)
        try:
            found = logger_on(FolderFiles(tmp_path / "turns")).recover(again.hosts, now=0)
        except CorruptLog:
            assert not counts
            continue
        counts.append(found.turns)
        worker: Any = again.hosts["worker/a"].agent  # type: ignore[index]
        assert worker.count == found.turns
        assert len(worker.items) == sum(number % 5 + 1 for number in range(found.turns))
    assert counts == sorted(counts)
    assert set(counts) == {1, 2, 3, 4, 5, 6}


async def test_after_a_rollback_the_log_goes_on_behind_the_epoch_and_forgets_what_did_not_happen(tmp_path: Any):
    world, logger = await logged_world(FolderFiles(tmp_path / "turns"), 4)
    await logger.begin_anew(Life(2, 1), world.hosts.values(), after=3)
    world.writer = logger.writer
    world.arrive("worker/a", (("count", "", 100),))
    world.run("worker/a")
    await logger.wait_durable(logger.flush())
    await logger.close()
    again = World(logged=False)
    found = logger_on(FolderFiles(tmp_path / "turns")).recover(again.hosts, after=3, now=0)
    assert found.turns == 1
    worker: Any = again.hosts["worker/a"].agent  # type: ignore[index]
    assert worker.count == 104, "values are logged as they are, not as they change"
    assert found.last is not None
    assert found.last.incarnation == 2


async def test_a_failed_sync_is_told_once_and_nothing_is_durable_any_more():
    files = disk()
    failures: list[Exception] = []
    durable: list[int] = []
    world, logger = await logged_world(files, 2, on_failure=failures.append, on_durable=durable.append)
    files.fail_next_sync = errno.EIO
    world.arrive("worker/a", (("count", "", 1),))
    world.run("worker/a")
    with pytest.raises(LogPoisoned):
        await logger.wait_durable(logger.flush())
    assert len(failures) == 1
    assert durable[-1] == logger.position - 1
    logger.writer.position("q", 99)
    with pytest.raises(LogPoisoned):
        logger.flush()


async def test_an_agents_history_is_in_its_log(tmp_path: Any):
    world, logger = await logged_world(FolderFiles(tmp_path / "turns"), 2)
    world.arrive("worker/a", (("remote", "x", 0), ("timer", "y", 2)))
    world.run("worker/a")
    world.arrive("worker/a", (("fail", "no", 0),))
    world.run("worker/a")
    await logger.wait_durable(logger.flush())
    await logger.close()
    log = logger_on(FolderFiles(tmp_path / "turns")).log
    history = list(agent_history(log.recover(), "worker/a"))
    assert [turn["outcome"] for turn in history] == ["committed", "committed", "committed", "dead-letter"]
    assert history[0]["fields"] == ["count", "items"]
    assert history[2]["sends"][0]["target"] == "worker/far"
    assert history[2]["timers"][0]["in_ns"] == 3_000_000_000
    assert history[3]["reason"] == "it raised"
    assert list(agent_history(log.recover(), "worker/b")) == []
