"""The two durable effect ledgers under what happens to them: kills, restarts, servers that forget, damage."""

import errno
from pathlib import Path

import pytest

from participant import Agent, Context, Participant
from participant.effects.backend import MemoryEffects
from participant.effects.entries import State
from participant.effects.ledger import Claimed, Known
from participant.logs.segment import CorruptLog
from participant.runtime.durable_log import LogPoisoned
from participant.runtime.effects_local import LocalEffects
from participant.runtime.effects_redis import RedisEffects
from participant.runtime.log_files import LocalFolder
from participant.testing import Cluster
from protocol.errors import ConfigError, Refused, StoreError, Unreachable
from tests.conformance.test_effect_backends import FENCE, LATER, entry
from tests.redis_server import RedisServer


class Charger(Agent, kind="charger"):
    async def on_start(self, ctx: Context) -> None:
        await ctx.step(nothing)


async def nothing() -> None: ...


def local(folder: Path, **settings: int) -> LocalEffects:
    return LocalEffects(LocalFolder(folder, "p1"), cluster="shop", participant="p1", **settings)


async def test_nothing_works_before_a_local_ledger_is_open(tmp_path: Path):
    with pytest.raises(StoreError, match="not open"):
        await local(tmp_path).claim(entry(), FENCE)


async def test_a_local_log_of_what_was_pruned_is_rewritten_and_says_the_same(tmp_path: Path):
    effects = local(tmp_path, rewrite_bytes_min=20_000)
    await effects.open(FENCE)
    for ordinal in range(200):
        await effects.claim(entry(ordinal), FENCE)
        await effects.end(entry(ordinal).token, FENCE, b"one", State.DONE, result=b"r")
    await effects.close_turn([entry(ordinal).token for ordinal in range(190)], 1, FENCE)
    folder = tmp_path / "p1" / "effects"
    before = sum(file.stat().st_size for file in folder.iterdir())
    assert await effects.prune(2, FENCE) == 190
    after = sum(file.stat().st_size for file in folder.iterdir())
    assert after < before / 10
    await effects.claim(entry(500), FENCE)
    expected = await effects.entries(states=tuple(State))
    await effects.aclose()
    again = local(tmp_path)
    await again.open(LATER)
    assert await again.entries(states=tuple(State)) == expected
    assert len(expected) == 11
    await again.aclose()


async def test_a_failed_sync_ends_every_claim_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """I18: nobody is told "yours" again, however well the next fsync goes."""
    import os

    effects = local(tmp_path)
    await effects.open(FENCE)
    await effects.claim(entry(0), FENCE)
    real = os.fdatasync

    def failing(handle: int) -> None:
        monkeypatch.setattr(os, "fdatasync", real)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    for _ in range(2):
        with pytest.raises(LogPoisoned, match="EIO"):
            await effects.claim(entry(1), FENCE)
    with pytest.raises(LogPoisoned):
        await effects.entry(entry(0).token)
    await effects.aclose()


async def test_a_damaged_local_ledger_is_refused(tmp_path: Path):
    effects = local(tmp_path)
    await effects.open(FENCE)
    for ordinal in range(3):
        await effects.claim(entry(ordinal), FENCE)
    await effects.aclose()
    (segment,) = (tmp_path / "p1" / "effects").iterdir()
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptLog):
        await local(tmp_path).open(LATER)


async def test_another_clusters_folder_is_refused(tmp_path: Path):
    effects = local(tmp_path)
    await effects.open(FENCE)
    await effects.aclose()
    with pytest.raises(StoreError, match="in cluster shop"):
        await LocalEffects(LocalFolder(tmp_path, "p1"), cluster="other", participant="p1").open(FENCE)


async def test_claims_in_redis_survive_its_kill_and_meanwhile_it_is_said_to_be_unreachable(tmp_path: Path):
    server = RedisServer(tmp_path)
    server.start()
    try:
        effects = RedisEffects(server.url, cluster="shop")
        await effects.open(FENCE)
        await effects.claim(entry(0), FENCE)
        await effects.claim(entry(1), FENCE)
        await effects.end(entry(1).token, FENCE, b"one", State.DONE, result=b"r")
        server.kill()
        with pytest.raises(Unreachable, match=f"127.0.0.1:{server.port} does not answer"):
            await effects.claim(entry(2), FENCE)
        server.start()
        assert isinstance(await effects.claim(entry(0, claim_id=b"two"), FENCE), Known)
        ended = await effects.end(entry(1).token, FENCE, b"one", State.DONE, result=b"r")
        assert isinstance(ended, Claimed), "the same end again is the same end: its answer may have been lost"
        assert isinstance(await effects.claim(entry(2), FENCE), Claimed)
        await effects.aclose()
    finally:
        server.stop()


async def test_a_redis_that_forgets_is_refused_unless_that_is_asked_for(tmp_path: Path):
    server = RedisServer(tmp_path, appendfsync="everysec")
    server.start()
    try:
        effects = RedisEffects(server.url, cluster="shop")
        with pytest.raises(ConfigError, match=r"appendfsync everysec; .*fsync=relaxed"):
            await effects.open(FENCE)
        await effects.aclose()
        relaxed = RedisEffects(f"{server.url}?fsync=relaxed", cluster="shop")
        await relaxed.open(FENCE)
        await relaxed.aclose()
    finally:
        server.stop()


async def test_what_redis_refuses_for_good_is_an_error_of_the_store(tmp_path: Path):
    server = RedisServer(tmp_path)
    server.start()
    try:
        effects = RedisEffects(server.url, cluster="shop")
        await effects.open(FENCE)
        await effects._redis.set(f"cleancut:{{shop}}:e:{entry(0).token}", "somebody else's")
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await effects.claim(entry(0), FENCE)
        await effects.aclose()
    finally:
        server.stop()


async def test_a_password_is_never_shown():
    effects = RedisEffects("redis://user:hunter2@127.0.0.1:1/0", cluster="shop")
    with pytest.raises(Unreachable) as raised:
        await effects.open(FENCE)
    assert "hunter2" not in str(raised.value)
    await effects.aclose()
    with pytest.raises(ConfigError, match="http"):
        RedisEffects("http://127.0.0.1", cluster="shop")


async def test_a_ledger_in_memory_is_shared_by_those_who_are_given_it():
    effects = MemoryEffects()
    await effects.open(FENCE)
    await effects.claim(entry(), FENCE)
    assert isinstance(await effects.claim(entry(claim_id=b"two"), LATER), Known)


async def test_a_participant_whose_redis_forgets_ends_and_says_why(tmp_path: Path):
    """Not a dead letter: no message of it could ever be handled."""
    server = RedisServer(tmp_path, appendfsync="no")
    server.start()
    try:
        cluster = Cluster(Charger("main"))
        cluster.effects = server.url  # type: ignore[assignment]
        await cluster.__aenter__()
        participant = cluster.participant_of("charger/main")
        with pytest.raises(ConfigError, match="appendfsync no"):
            await cluster.__aexit__(None, None, None)
        assert participant.dead_letters == ()
    finally:
        server.stop()


async def test_nothing_is_asked_of_a_ledger_before_the_participant_is_a_member(tmp_path: Path):
    """Its fencing token would be nobody's."""
    participant = Participant(
        Charger("main"),
        id="p1",
        cluster="shop",
        transport="memory",
        store="memory:nobody",
        secret=bytes(range(32)),
        coordinators=["127.0.0.1:1"],
        local=str(tmp_path),
    )
    with pytest.raises(Refused, match="not started"):
        await participant.effects()
    async with participant:
        with pytest.raises(Refused, match="no member"):
            await participant.effects()
        assert participant.questions() == ()
