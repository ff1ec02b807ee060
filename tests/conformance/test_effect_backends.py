"""One body, three arms: the effect ledger in memory, in a local log, in Redis."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from participant.effects.backend import EffectBackend, MemoryEffects
from participant.effects.entries import Entry, Kind, State, effect_token, intent_digest
from participant.effects.ledger import Claimed, Known
from participant.runtime.effects_local import LocalEffects
from participant.runtime.effects_redis import RedisEffects
from participant.runtime.log_files import LocalFolder
from protocol.errors import FencedError, Refused
from protocol.outputs import FencingToken
from tests.redis_server import RedisServer

FENCE = FencingToken("p1", 1, 3)
LATER = FencingToken("p1", 1, 4)
"""The same participant, started again."""
NEWER = FencingToken("p2", 2, 5)
"""Another participant, after a rollback."""
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


Reopen = Callable[[], Awaitable[EffectBackend]]


@pytest.fixture(params=["memory", "local", "redis"])
async def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Reopen]:
    """Gives the backend; again: as another process would see it."""
    made: list[EffectBackend] = []
    memory = MemoryEffects()
    cluster = f"shop{next(numbers)}"

    async def make() -> EffectBackend:
        if request.param == "memory":
            return memory
        if request.param == "local":
            backend: EffectBackend = LocalEffects(LocalFolder(tmp_path, "p1"), cluster=cluster, participant="p1")
        else:
            backend = RedisEffects(request.getfixturevalue("server").url, cluster=cluster)
        made.append(backend)
        return backend

    yield make
    for backend in made:
        await backend.aclose()


@pytest.fixture
async def effects(reopen: Reopen) -> EffectBackend:
    backend = await reopen()
    await backend.open(FENCE)
    return backend


def entry(ordinal: int = 0, *, fence: FencingToken = FENCE, kind: Kind = Kind.STEP, claim_id: bytes = b"one") -> Entry:
    return Entry(
        token=effect_token("shop", "buyer/main", b"m" * 16, kind, "charge", ordinal),
        kind=kind,
        agent="buyer/main",
        message_id=b"m" * 16,
        name="charge",
        ordinal=ordinal,
        intent=intent_digest(b"500"),
        shown="(500,) \N{EURO SIGN}",
        payload=b"\xff\x00" if kind is Kind.QUESTION else b"",
        participant=fence.participant,
        incarnation=fence.incarnation,
        session=fence.session,
        claim_id=claim_id,
        claimed_at=1_700_000_000_000_000_000 + ordinal,
    )


async def test_a_new_position_is_claimed_once(effects: EffectBackend):
    mine = entry()
    assert await effects.claim(mine, FENCE) == Claimed(mine)
    other = await effects.claim(entry(claim_id=b"two"), FENCE)
    assert other == Known(mine)
    assert await effects.entry(mine.token) == mine
    assert await effects.entry("0" * 32) is None


async def test_a_claim_that_is_repeated_because_its_answer_was_lost_is_the_same_claim(effects: EffectBackend):
    assert await effects.claim(entry(), FENCE) == await effects.claim(entry(), FENCE)


async def test_a_result_is_recorded_once_and_found_by_whoever_comes_later(effects: EffectBackend):
    token = entry().token
    await effects.claim(entry(), FENCE)
    ended = await effects.end(token, FENCE, b"one", State.DONE, result=b"\x00receipt")
    assert isinstance(ended, Claimed)
    assert (ended.entry.state, ended.entry.result, ended.entry.settled) == (State.DONE, b"\x00receipt", False)
    again = await effects.end(token, FENCE, b"one", State.DONE, result=b"another")
    assert isinstance(again, Known)
    assert again.entry.result == b"\x00receipt"
    found = await effects.claim(entry(claim_id=b"two"), FENCE)
    assert isinstance(found, Known)
    assert found.entry == ended.entry


async def test_only_the_holder_of_a_claim_ends_it(effects: EffectBackend):
    token = entry().token
    await effects.claim(entry(), FENCE)
    assert isinstance(await effects.end(token, FENCE, b"guess", State.DONE, result=b"x"), Known)
    found = await effects.entry(token)
    assert found is not None
    assert found.state is State.CLAIMED


async def test_another_life_goes_on_with_a_claim_and_its_former_holder_cannot_end_it(effects: EffectBackend):
    token = entry().token
    await effects.claim(entry(), FENCE)
    taken = await effects.take(token, LATER, b"two", before=b"one")
    assert isinstance(taken, Claimed)
    assert await effects.take(token, LATER, b"two", before=b"one") == taken, "the answer may have been lost"
    assert isinstance(await effects.take(token, LATER, b"three", before=b"one"), Known), "of two one gets it"
    assert (taken.entry.session, taken.entry.claim_id) == (4, b"two")
    with pytest.raises(FencedError):
        await effects.end(token, FENCE, b"one", State.DONE, result=b"late")
    assert isinstance(await effects.end(token, LATER, b"one", State.DONE, result=b"late"), Known)
    assert isinstance(await effects.end(token, LATER, b"two", State.DONE, result=b"right"), Claimed)
    assert isinstance(await effects.take(token, LATER, b"three", before=b"two"), Known)


@pytest.mark.parametrize("newer", [LATER, NEWER])
async def test_whoever_is_older_than_the_newest_that_was_seen_changes_nothing(
    effects: EffectBackend, newer: FencingToken
):
    """I22: by incarnation, whoever it is; by session, of one participant."""
    token = entry().token
    await effects.claim(entry(), FENCE)
    await effects.open(newer)
    before = await effects.entry(token)
    for attempt in (
        effects.claim(entry(1), FENCE),
        effects.take(token, FENCE, b"two", before=b"one"),
        effects.end(token, FENCE, b"one", State.DONE, result=b"x"),
        effects.settle(token, FENCE, State.RELEASED),
        effects.accept(token, FENCE, b"i"),
        effects.close_turn([token], 3, FENCE),
        effects.reopen(0, FENCE),
        effects.prune(9, FENCE),
        effects.open(FENCE),
    ):
        with pytest.raises(FencedError):
            await attempt
    assert await effects.entry(token) == before
    assert await effects.entry(entry(1).token) is None


async def test_sessions_of_other_participants_are_no_reason_to_refuse(effects: EffectBackend):
    await effects.open(FencingToken("p9", 1, 900))
    assert isinstance(await effects.claim(entry(), FENCE), Claimed)


async def test_what_certainly_did_not_happen_may_be_claimed_anew(effects: EffectBackend):
    token = entry().token
    await effects.claim(entry(), FENCE)
    await effects.end(token, FENCE, b"one", State.RELEASED)
    again = await effects.claim(entry(claim_id=b"two"), FENCE)
    assert isinstance(again, Claimed)
    assert (again.entry.state, again.entry.claim_id, again.entry.ended_at) == (State.CLAIMED, b"two", 0)


@pytest.mark.parametrize("state", [State.DONE, State.RELEASED])
async def test_an_operator_settles_what_has_no_end_once(effects: EffectBackend, state: State):
    token = entry().token
    await effects.claim(entry(), FENCE)
    settled = await effects.settle(token, LATER, state, result=b"r")
    assert isinstance(settled, Claimed)
    assert settled.entry.settled
    other = State.RELEASED if state is State.DONE else State.DONE
    assert isinstance(await effects.settle(token, LATER, other), Known)
    found = await effects.entry(token)
    assert found is not None
    assert found.state is state


async def test_another_intent_is_accepted_for_a_result_only(effects: EffectBackend):
    token = entry().token
    await effects.claim(entry(), FENCE)
    with pytest.raises(Refused):
        await effects.accept(token, FENCE, b"intent")
    await effects.end(token, FENCE, b"one", State.FAILED, reason="declined \N{EURO SIGN}")
    accepted = await effects.accept(token, FENCE, b"intent")
    assert (accepted.entry.accepted, accepted.entry.reason) == (b"intent", "declined \N{EURO SIGN}")


async def test_what_does_not_exist_cannot_be_ended(effects: EffectBackend):
    for attempt in (
        effects.end("f" * 32, FENCE, b"", State.DONE),
        effects.settle("f" * 32, FENCE, State.DONE),
        effects.take("f" * 32, FENCE, b"", before=b""),
        effects.accept("f" * 32, FENCE, b""),
    ):
        with pytest.raises(Refused, match="no effect"):
            await attempt


async def test_a_question_is_answered_by_whoever_comes_first(effects: EffectBackend):
    question = entry(kind=Kind.QUESTION)
    await effects.claim(question, FENCE)
    assert isinstance(await effects.end(question.token, LATER, b"", State.DONE, result=b"yes"), Claimed)
    late = await effects.end(question.token, LATER, b"", State.EXPIRED)
    assert isinstance(late, Known)
    assert (late.entry.result, late.entry.payload) == (b"yes", b"\xff\x00")


async def test_entries_are_listed_by_state_and_time(effects: EffectBackend):
    for ordinal in (3, 1, 2):
        await effects.claim(entry(ordinal), FENCE)
    await effects.end(entry(2).token, FENCE, b"one", State.DONE)
    assert [found.ordinal for found in await effects.entries()] == [1, 3]
    assert [found.ordinal for found in await effects.entries(states=(State.DONE,))] == [2]
    assert [found.ordinal for found in await effects.entries(states=tuple(State))] == [1, 2, 3]


async def test_an_entry_lives_as_long_as_a_kept_epoch_could_bring_its_position_back(effects: EffectBackend):
    for ordinal in range(4):
        await effects.claim(entry(ordinal), FENCE)
        await effects.end(entry(ordinal).token, FENCE, b"one", State.DONE)
    await effects.close_turn([entry(0).token], 4, FENCE)
    await effects.close_turn([entry(1).token, entry(2).token, "f" * 32], 5, FENCE)
    assert await effects.prune(4, FENCE) == 0
    assert await effects.prune(5, FENCE) == 1
    # Back to epoch 5: the turns of 1 and 2 run again, however new the oldest kept epoch will be.
    rolled = FencingToken("p1", 2, 3)
    await effects.open(rolled)
    await effects.reopen(5, rolled)
    assert await effects.prune(99, rolled) == 0
    await effects.close_turn([entry(1).token], 7, rolled)
    # Another participant says the same a little later.
    await effects.reopen(5, FencingToken("p2", 2, 4))
    assert await effects.prune(8, rolled) == 1
    assert [found.ordinal for found in await effects.entries(states=tuple(State))] == [2, 3]


async def test_a_thousand_entries_are_pruned_at_once(effects: EffectBackend):
    tokens = []
    for ordinal in range(1_050):
        await effects.claim(entry(ordinal), FENCE)
        tokens.append(entry(ordinal).token)
    assert len(await effects.entries()) == 1_050
    await effects.close_turn(tokens, 1, FENCE)
    assert await effects.prune(2, FENCE) == 1_050
    assert await effects.entries(states=tuple(State)) == []


async def test_everything_is_there_for_the_next_process_and_older_ones_are_refused(
    effects: EffectBackend, reopen: Reopen
):
    await effects.claim(entry(0), FENCE)
    await effects.claim(entry(1), FENCE)
    await effects.end(entry(1).token, FENCE, b"one", State.DONE, result=b"r")
    await effects.close_turn([entry(1).token], 2, FENCE)
    before = await effects.entries(states=tuple(State))
    successor = await reopen()
    await successor.open(LATER)
    assert await successor.entries(states=tuple(State)) == before
    # The frozen twin wakes: what it claims now is refused, and nobody is told otherwise.
    with pytest.raises(FencedError):
        await effects.claim(entry(2), FENCE)
    with pytest.raises(FencedError):
        await effects.end(entry(0).token, FENCE, b"one", State.DONE)
    assert await successor.entry(entry(2).token) is None
    found = await successor.claim(entry(0, fence=LATER, claim_id=b"two"), LATER)
    assert isinstance(found, Known)
    assert found.entry.state is State.CLAIMED


async def test_who_holds_a_claim_learns_that_it_has_a_successor_when_it_confirms_it(
    effects: EffectBackend, reopen: Reopen
):
    """It was frozen since, and its successor may be about to make the same call; nothing of the ledger need change for that."""
    claim = entry()
    assert isinstance(await effects.claim(claim, FENCE), Claimed)
    assert isinstance(await effects.take(claim.token, FENCE, b"one", before=b"one"), Claimed)
    successor = await reopen()
    await successor.open(LATER)
    with pytest.raises(FencedError):
        await effects.take(claim.token, FENCE, b"one", before=b"one")


async def test_one_process_may_go_on_as_a_later_life(effects: EffectBackend):
    """After a rollback the same process has another incarnation."""
    await effects.claim(entry(0), FENCE)
    newer = FencingToken("p1", 2, 3)
    await effects.open(newer)
    assert isinstance(await effects.end(entry(0).token, newer, b"one", State.DONE), Claimed)
    assert isinstance(await effects.claim(entry(1, fence=newer), newer), Claimed)
