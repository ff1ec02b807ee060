"""Sinks against real files, a real SQLite and a real HTTP server: each output once, across crashes, never from a zombie."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web

from participant.outbox import DELIVERED, DUPLICATE, Outcome
from participant.sinks import FileSink, HttpSink, MemorySink, Sink, SinkError, SinkOutput, SqlSink
from participant.sinks import file as file_module
from participant.sinks.file import end_of
from protocol.errors import ConfigError, FencedError
from protocol.outputs import FenceState, FencingToken, output_id, output_token

WRITER = FencingToken("p1", 1, 5)


def output(number: int, value: object = None, *, after: int = 0) -> SinkOutput:
    identity = output_id(number.to_bytes(16, "big"), b"buyer/main", 0)
    payload = msgspec.msgpack.encode({"n": number} if value is None else value)
    return SinkOutput(output_token("shop", "receipts", identity), "buyer/main", payload, after)


def lines(path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_bytes().splitlines()]


# --- the same for all -------------------------------------------------------------------------------------------------


def sql_sink(path, name: str = "receipts") -> SqlSink:
    return SqlSink(
        name,
        lambda: sqlite3.connect(path, timeout=0.3, check_same_thread=False),
        "INSERT INTO receipts (n) VALUES (?)",
        row=lambda value: (value["n"],),
        setup=["CREATE TABLE IF NOT EXISTS receipts (n INTEGER NOT NULL CHECK (n < 1000))"],
    )


class Service:
    """An HTTP service that knows idempotency keys and fences, as the sink's documentation describes it."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.known: dict[str, bytes] = {}
        self.fence = FenceState()
        self.statuses: list[int] = []
        self.lose_answers = 0
        self.requests = 0

    async def take(self, request: web.Request) -> web.Response:
        self.requests += 1
        if self.statuses:
            return web.Response(status=self.statuses.pop(0), text="told to")
        try:
            self.fence.admit(FencingToken.from_header(request.headers["Cleancut-Fence"]), "the service")
        except FencedError as error:
            return web.Response(status=409, headers={"Cleancut-Fenced": "1"}, text=str(error))
        key, body = request.headers["Idempotency-Key"], await request.read()
        before = self.known.get(key)
        if before is not None:
            if before != body:
                return web.Response(status=422, headers={"Cleancut-Diverged": "1"}, text="another payload")
            return web.Response(headers={"Idempotent-Replayed": "true"})
        self.known[key] = body
        self.taken.append(json.loads(body)["n"])
        if self.lose_answers:
            self.lose_answers -= 1
            assert request.transport is not None
            request.transport.close()
        return web.Response(status=201)

    async def raise_fence(self, request: web.Request) -> web.Response:
        if self.statuses:
            return web.Response(status=self.statuses.pop(0), text="told to")
        self.fence.raise_fence((await request.json())["incarnation"])
        return web.Response(status=204)


@asynccontextmanager
async def serving(service: Service):
    app = web.Application()
    app.router.add_post("/receipts", service.take)
    app.router.add_put("/fence", service.raise_fence)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def made(kind: str, folder):
    """A sink, another one on the same place (as of another process), and what was taken."""
    if kind == "http":
        service = Service()
        async with serving(service) as url:
            pair = [HttpSink("receipts", f"{url}/receipts", fence_url=f"{url}/fence") for _ in range(2)]
            yield *pair, lambda: service.taken
            for one in pair:
                await one.close()
    elif kind == "memory":
        one = MemorySink("receipts")
        yield one, one, lambda: [value["n"] for value in one.values]
    else:
        path = folder / f"out.{kind}"
        pair = [FileSink("receipts", path) if kind == "file" else sql_sink(path) for _ in range(2)]

        def taken() -> list[int]:
            if kind == "file":
                return lines(path)
            with sqlite3.connect(path) as connection:
                found = [n for (n,) in connection.execute("SELECT n FROM receipts ORDER BY rowid")]
            connection.close()
            return found

        yield *pair, taken
        for one in pair:
            await one.close()


KINDS = ["file", "sql", "http", "memory"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_batch_that_comes_again_is_taken_once(kind, tmp_path):
    async with made(kind, tmp_path) as (sink, other, taken):
        assert isinstance(sink, Sink)
        await sink.open(WRITER)
        assert await sink.deliver(WRITER, [output(1), output(2)]) == [DELIVERED, DELIVERED]
        assert await other.deliver(WRITER, [output(1), output(2), output(3)]) == [DUPLICATE, DUPLICATE, DELIVERED]
        assert taken() == [1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_same_output_twice_in_one_batch_is_taken_once(kind, tmp_path):
    async with made(kind, tmp_path) as (sink, _, taken):
        assert await sink.deliver(WRITER, [output(1), output(1)]) == [DELIVERED, DUPLICATE]
        assert taken() == [1]


@pytest.mark.parametrize("kind", KINDS)
async def test_another_payload_under_the_same_token_is_said_and_the_first_one_stands(kind, tmp_path):
    async with made(kind, tmp_path) as (sink, _, taken):
        await sink.deliver(WRITER, [output(1)])
        (receipt,) = await sink.deliver(WRITER, [output(1, {"n": 99})])
        assert receipt.outcome is Outcome.DIVERGED
        assert taken() == [1]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_zombie_of_an_older_incarnation_is_refused_from_the_moment_the_fence_stands(kind, tmp_path):
    async with made(kind, tmp_path) as (zombie, successor, taken):
        await zombie.open(WRITER)
        await zombie.deliver(WRITER, [output(1)])
        await successor.raise_fence(2)
        await successor.raise_fence(1)
        with pytest.raises(FencedError, match=r"incarnation 1, and 2 has begun"):
            await zombie.deliver(WRITER, [output(2)])
        await successor.deliver(FencingToken("p9", 2, 9), [output(2)])
        assert taken() == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_first_output_of_a_newer_incarnation_raises_the_fence_by_itself(kind, tmp_path):
    async with made(kind, tmp_path) as (zombie, successor, taken):
        await zombie.deliver(WRITER, [output(1)])
        await successor.deliver(FencingToken("p1", 2, 9), [output(2)])
        with pytest.raises(FencedError):
            await zombie.deliver(WRITER, [output(3)])
        assert taken() == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
async def test_within_one_incarnation_only_the_older_session_of_the_same_participant_is_refused(kind, tmp_path):
    async with made(kind, tmp_path) as (old, new, taken):
        await old.deliver(WRITER, [output(1)])
        await new.deliver(FencingToken("p1", 1, 6), [output(2)])
        with pytest.raises(FencedError, match="session 5, and 6 has begun"):
            await old.deliver(WRITER, [output(3)])
        await old.deliver(FencingToken("p2", 1, 2), [output(4)])
        assert taken() == [1, 2, 4]


@pytest.mark.parametrize("kind", ["file", "sql", "memory"])
async def test_opening_refuses_the_older_session_before_any_output_is_written(kind, tmp_path):
    async with made(kind, tmp_path) as (old, new, taken):
        await old.deliver(WRITER, [output(1)])
        await new.open(FencingToken("p1", 1, 6))
        with pytest.raises(FencedError):
            await old.deliver(WRITER, [output(2)])
        with pytest.raises(FencedError):
            await old.open(WRITER)
        assert taken() == [1]


@pytest.mark.parametrize("kind", ["file", "sql", "memory"])
async def test_what_was_taken_after_an_epoch_can_be_listed(kind, tmp_path):
    async with made(kind, tmp_path) as (sink, _, _taken):
        await sink.deliver(WRITER, [output(1, after=3), output(2, after=4), output(3, after=5)])
        assert [(token, after) for token, _, after in await sink.outputs_after(4)] == [
            (output(2).token, 4),
            (output(3).token, 5),
        ]


async def test_tokens_differ_by_cluster_sink_and_position():
    tokens = {
        output_token(cluster, sink, output_id(parent, agent, ordinal))
        for cluster in ("shop", "fork")
        for sink in ("a", "b")
        for parent in (b"1" * 16, b"2" * 16)
        for agent in (b"x/1", b"x/2")
        for ordinal in (0, 1)
    }
    assert len(tokens) == 32


# --- files ------------------------------------------------------------------------------------------------------------


def image(source, target) -> None:
    """What a crash at this moment leaves: files as they are, the database's log included."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for name in os.listdir(source):
        if not name.endswith("-shm"):  # shared memory does not survive
            shutil.copyfile(source / name, target / name)


async def test_a_crash_at_every_byte_of_a_batch_leaves_each_output_once(tmp_path, monkeypatch):
    """The process dies with any part of the lines in the file, and with the index before or after its commit."""
    place = tmp_path / "place"
    place.mkdir()
    sink = FileSink("receipts", place / "out.jsonl")
    await sink.deliver(WRITER, [output(1), output(2)])
    images = []

    def point(name: str) -> None:
        if name.startswith("sink."):
            images.append((name, tmp_path / f"image-{len(images)}"))
            image(place, images[-1][1])

    monkeypatch.setattr(file_module, "fp", point)
    await sink.deliver(WRITER, [output(3), output(4)])
    await sink.close()
    assert [name for name, _ in images] == [
        "sink.file_written",
        "sink.file_synced",
        "sink.file_indexed",
        "sink.file_committed",
    ]
    monkeypatch.undo()
    before = len(b'{"n":1}\n{"n":2}\n')
    tried = 0
    for name, at in images:
        full = (at / "out.jsonl").stat().st_size
        lengths = [full] if name == "sink.file_committed" else range(before, full + 1)
        for length in lengths:
            there = tmp_path / "there"
            shutil.rmtree(there, ignore_errors=True)
            shutil.copytree(at, there)
            os.truncate(there / "out.jsonl", length)
            again = FileSink("receipts", there / "out.jsonl")
            await again.open(WRITER)
            assert lines(there / "out.jsonl") == ([1, 2, 3, 4] if name == "sink.file_committed" else [1, 2])
            receipts = await again.deliver(WRITER, [output(3), output(4)])
            assert receipts == ([DUPLICATE] * 2 if name == "sink.file_committed" else [DELIVERED] * 2)
            assert lines(there / "out.jsonl") == [1, 2, 3, 4]
            await again.close()
            tried += 1
    assert tried == 3 * 17 + 1


def _index_knows_its_file(place, look) -> bool:
    shutil.rmtree(look, ignore_errors=True)
    shutil.copytree(place, look)
    index = sqlite3.connect(look / "out.jsonl.cleancut")
    try:
        return index.execute("SELECT COUNT(*) FROM cleancut_file").fetchone() != (0,)
    except sqlite3.OperationalError:
        return False
    finally:
        index.close()


async def test_a_log_of_the_index_that_is_cut_anywhere_brings_back_a_state_in_which_nothing_comes_twice(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    sink = FileSink("receipts", place / "out.jsonl")
    for number in range(1, 6):
        await sink.deliver(WRITER, [output(number)])
    taken = tmp_path / "taken"
    image(place, taken)
    await sink.close()
    wal = taken / "out.jsonl.cleancut-wal"
    size = wal.stat().st_size
    frames = (size - 32) // (24 + 4096)
    assert frames >= 5
    for length in [32 + frame * (24 + 4096) + extra for frame in range(frames) for extra in (0, 1, 30, 4000)]:
        there = tmp_path / "there"
        shutil.rmtree(there, ignore_errors=True)
        shutil.copytree(taken, there)
        os.truncate(there / "out.jsonl.cleancut-wal", length)
        again = FileSink("receipts", there / "out.jsonl")
        batch = [output(number) for number in range(1, 6)]
        if not _index_knows_its_file(there, tmp_path / "look"):
            # Not even the first commit is there; the file has lines that nothing speaks for, and that is said.
            with pytest.raises(SinkError, match="no index says what they are"):
                await again.deliver(WRITER, batch)
        else:
            await again.deliver(WRITER, batch)
            assert lines(there / "out.jsonl") == [1, 2, 3, 4, 5]
        await again.close()


async def test_a_file_that_lost_outputs_is_an_error_and_nothing_is_written(tmp_path):
    path = tmp_path / "out.jsonl"
    sink = FileSink("receipts", path)
    await sink.deliver(WRITER, [output(1), output(2)])
    os.truncate(path, 9)
    with pytest.raises(SinkError, match="has 9 bytes and had 16: outputs were lost"):
        await sink.deliver(WRITER, [output(3)])
    assert path.stat().st_size == 9
    await sink.close()


async def test_a_file_with_content_and_no_index_is_adopted_only_if_told_to(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_bytes(b'{"n":0}\n')
    sink = FileSink("receipts", path)
    with pytest.raises(SinkError, match="no index says what they are"):
        await sink.open(WRITER)
    assert path.read_bytes() == b'{"n":0}\n'
    await sink.close()
    adopting = FileSink("receipts", path, adopt=True)
    await adopting.deliver(WRITER, [output(1)])
    assert lines(path) == [0, 1]
    await adopting.close()


async def test_a_failed_sync_is_an_error_and_the_batch_is_written_again_from_its_beginning(tmp_path, monkeypatch):
    path = tmp_path / "out.jsonl"
    sink = FileSink("receipts", path)
    await sink.deliver(WRITER, [output(1)])
    real = os.fsync

    def failing(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", real)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(SinkError, match="Input/output error"):
        await sink.deliver(WRITER, [output(2)])
    assert await sink.deliver(WRITER, [output(2)]) == [DELIVERED]
    assert lines(path) == [1, 2]
    await sink.close()


async def test_readers_can_tell_how_much_of_the_file_counts(tmp_path):
    path = tmp_path / "out.jsonl"
    sink = FileSink("receipts", path)
    await sink.deliver(WRITER, [output(1)])
    with path.open("ab") as torn:
        torn.write(b'{"n":')
    assert end_of(path, "receipts") == 8
    assert end_of(path, "another") == 0
    await sink.close()


async def test_a_user_s_own_encoding_is_taken_and_its_failure_named(tmp_path):
    sink = FileSink("receipts", tmp_path / "out.bin", encode=lambda each: each.value["n"].to_bytes(4, "big"))
    await sink.deliver(WRITER, [output(7)])
    assert (tmp_path / "out.bin").read_bytes() == b"\0\0\0\7"
    with pytest.raises(SinkError, match="KeyError"):
        await sink.deliver(WRITER, [output(8, {"m": 1})])
    await sink.close()


def _write_for_ever(path: str, started) -> None:
    async def run() -> None:
        sink = FileSink("receipts", path)
        number = 0
        while True:
            await sink.deliver(WRITER, [output(number)])
            number += 1
            if number == 20:
                started.set()

    asyncio.run(run())


async def test_a_writer_killed_at_any_moment_leaves_whole_outputs_and_its_successor_goes_on(tmp_path):
    context = multiprocessing.get_context("spawn")
    path = tmp_path / "out.jsonl"
    started = context.Event()
    process = context.Process(target=_write_for_ever, args=(str(path), started))
    process.start()
    try:
        assert await asyncio.to_thread(started.wait, 30)
    finally:
        process.kill()
        process.join()
    sink = FileSink("receipts", path)
    await sink.open(FencingToken("p1", 2, 9))
    found = lines(path)
    assert found == list(range(len(found)))
    assert len(found) >= 20
    await sink.deliver(FencingToken("p1", 2, 9), [output(number) for number in range(len(found) + 2)])
    assert lines(path) == list(range(len(found) + 2))
    await sink.close()


async def test_a_frozen_twin_that_wakes_after_its_successor_began_is_refused(tmp_path):
    """SIGSTOP between two writes; if it stops inside one, its lock is said to be held, which `raise_fence` waits for."""
    context = multiprocessing.get_context("spawn")
    path = tmp_path / "out.jsonl"
    started = context.Event()
    process = context.Process(target=_write_for_ever, args=(str(path), started))
    process.start()
    successor = FileSink("receipts", path)
    try:
        assert await asyncio.to_thread(started.wait, 30)
        while True:
            os.kill(process.pid, signal.SIGSTOP)
            try:
                await asyncio.wait_for(asyncio.shield(raised := asyncio.ensure_future(successor.raise_fence(2))), 1)
                break
            except TimeoutError:
                # Stopped with the lock: let it go on a little, the fence gets through.
                os.kill(process.pid, signal.SIGCONT)
                await raised
                break
        await successor.open(FencingToken("p1", 2, 9))
        count = len(lines(path))
        await successor.deliver(FencingToken("p1", 2, 9), [output(10_000)])
        os.kill(process.pid, signal.SIGCONT)
        await asyncio.to_thread(process.join, 30)
        assert process.exitcode == 1, "the twin ended with FencedError"
        assert lines(path) == [*range(count), 10_000]
    finally:
        process.kill()
        process.join()
        await successor.close()


async def test_a_lock_that_another_process_keeps_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(file_module, "LOCK_SECONDS", 0.2)
    path = tmp_path / "out.jsonl"
    sink = FileSink("receipts", path)
    await sink.deliver(WRITER, [output(1)])
    with sqlite3.connect(f"{path}.cleancut") as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SinkError, match="another process has held the lock"):
            await sink.raise_fence(2)
    other.close()
    await sink.raise_fence(2)
    await sink.close()


# --- tables -----------------------------------------------------------------------------------------------------------


async def test_a_row_that_the_database_refuses_is_refused_alone(tmp_path):
    sink = sql_sink(tmp_path / "out.db")
    receipts = await sink.deliver(WRITER, [output(1), output(5_000), output(2), output(3, {"m": 1})])
    assert [receipt.outcome.value for receipt in receipts] == ["delivered", "refused", "delivered", "refused"]
    assert "CHECK" in receipts[1].reason
    assert "KeyError" in receipts[3].reason
    assert await sink.deliver(WRITER, [output(1), output(2)]) == [DUPLICATE, DUPLICATE]
    await sink.close()


async def test_a_crash_before_the_commit_leaves_neither_row_nor_token_and_after_it_both(tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir()
    sink = sql_sink(place / "out.db")
    await sink.deliver(WRITER, [output(1)])
    images = {}

    def point(name: str) -> None:
        images[name] = tmp_path / name
        image(place, images[name])

    monkeypatch.setattr("participant.sinks.sql.fp", point)
    await sink.deliver(WRITER, [output(2), output(3)])
    await sink.close()
    monkeypatch.undo()
    for name, expected in (("sink.before_commit", DELIVERED), ("sink.after_commit", DUPLICATE)):
        again = sql_sink(images[name] / "out.db")
        assert await again.deliver(WRITER, [output(2), output(3)]) == [expected, expected]
        connection = sqlite3.connect(images[name] / "out.db")
        assert [n for (n,) in connection.execute("SELECT n FROM receipts ORDER BY n")] == [1, 2, 3]
        connection.close()
        await again.close()


async def test_a_commit_whose_fate_is_unknown_comes_again_and_is_taken_once(tmp_path, monkeypatch):
    sink = sql_sink(tmp_path / "out.db")

    def point(name: str) -> None:
        if name == "sink.after_commit":
            monkeypatch.undo()
            raise ConnectionError("the answer is lost")

    monkeypatch.setattr("participant.sinks.sql.fp", point)
    with pytest.raises(SinkError, match="the answer is lost"):
        await sink.deliver(WRITER, [output(1)])
    assert await sink.deliver(WRITER, [output(1)]) == [DUPLICATE]
    await sink.close()


async def test_a_database_that_is_gone_is_an_error_that_heals(tmp_path):
    folder = tmp_path / "later"
    sink = sql_sink(folder / "out.db")
    with pytest.raises(SinkError, match="unable to open"):
        await sink.deliver(WRITER, [output(1)])
    folder.mkdir()
    assert await sink.deliver(WRITER, [output(1)]) == [DELIVERED]
    await sink.close()


async def test_two_sinks_share_a_database_and_not_their_tokens_nor_fences(tmp_path):
    one, other = sql_sink(tmp_path / "out.db", "one"), sql_sink(tmp_path / "out.db", "other")
    await one.raise_fence(7)
    await other.deliver(WRITER, [output(1)])
    with pytest.raises(FencedError):
        await one.deliver(WRITER, [output(2)])
    await one.close()
    await other.close()


def test_a_driver_with_another_parameter_style_is_refused_and_so_is_a_strange_prefix():
    with pytest.raises(ValueError, match="paramstyle 'named'"):
        SqlSink("x", lambda: None, "", row=lambda value: value, paramstyle="named")
    with pytest.raises(ValueError, match="no prefix"):
        SqlSink("x", lambda: None, "", row=lambda value: value, prefix="a; DROP TABLE x")


# --- HTTP -------------------------------------------------------------------------------------------------------------


async def test_a_lost_answer_comes_again_under_the_same_key_and_is_done_once():
    service = Service()
    service.lose_answers = 1
    async with serving(service) as url:
        sink = HttpSink("receipts", f"{url}/receipts")
        with pytest.raises(SinkError):
            await sink.deliver(WRITER, [output(1), output(2)])
        assert await sink.deliver(WRITER, [output(1), output(2)]) == [DUPLICATE, DELIVERED]
        assert service.taken == [1, 2]
        await sink.close()


@pytest.mark.parametrize("status", [401, 403, 404, 409, 429, 500, 503, 302])
async def test_an_answer_that_somebody_can_mend_is_an_error_that_is_tried_again(status):
    service = Service()
    service.statuses = [status]
    async with serving(service) as url:
        sink = HttpSink("receipts", f"{url}/receipts")
        with pytest.raises(SinkError, match=f"answers {status}: told to"):
            await sink.deliver(WRITER, [output(1)])
        assert await sink.deliver(WRITER, [output(1)]) == [DELIVERED]
        await sink.close()


@pytest.mark.parametrize("status", [400, 413, 415, 422])
async def test_an_answer_that_blames_the_output_refuses_it_for_good(status):
    service = Service()
    service.statuses = [status]
    async with serving(service) as url:
        sink = HttpSink("receipts", f"{url}/receipts")
        refused, taken = await sink.deliver(WRITER, [output(1), output(2)])
        assert (refused.outcome, refused.reason) == (Outcome.REFUSED, f"{status}: told to")
        assert taken == DELIVERED
        await sink.close()


async def test_412_says_that_the_writer_is_a_zombie():
    service = Service()
    service.statuses = [412]
    async with serving(service) as url:
        sink = HttpSink("receipts", f"{url}/receipts")
        with pytest.raises(FencedError, match="refuses this process"):
            await sink.deliver(WRITER, [output(1)])
        await sink.close()


async def test_a_fence_that_the_service_does_not_take_is_an_error():
    service = Service()
    service.statuses = [500]
    async with serving(service) as url:
        sink = HttpSink("receipts", f"{url}/receipts", fence_url=f"{url}/fence")
        with pytest.raises(SinkError, match="the fence was answered with 500"):
            await sink.raise_fence(2)
        await sink.raise_fence(2)
        assert service.fence.incarnation == 2
        await sink.close()


async def test_nobody_at_the_address_is_an_error():
    sink = HttpSink("receipts", "http://127.0.0.1:9/receipts", seconds=2)
    with pytest.raises(SinkError, match=r"127\.0\.0\.1:9"):
        await sink.deliver(WRITER, [output(1)])
    await sink.close()


async def test_requests_carry_the_users_headers_and_the_fence():
    seen = {}

    async def take(request: web.Request) -> web.Response:
        seen.update(request.headers)
        return web.Response()

    app = web.Application()
    app.router.add_post("/", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    sink = HttpSink("receipts", f"http://{host}:{port}/", headers={"Authorization": "Bearer x"})
    await sink.deliver(WRITER, [output(1)])
    await sink.close()
    await runner.cleanup()
    assert seen["Authorization"] == "Bearer x"
    assert seen["Cleancut-Fence"] == "1/5/p1"
    assert seen["Idempotency-Key"] == output(1).token
    assert FencingToken.from_header("1/5/p1") == WRITER


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="is not http"):
        HttpSink("receipts", "ftp://x")
