"""Tokens, intents and the ledger's own rules; what every backend must do is in tests/conformance/test_effect_backends.py."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from participant.effects import ledger as module
from participant.effects.entries import Entry, Kind, State, effect_token, intent_digest, shown_arguments
from participant.effects.ledger import Claimed, EffectLedger, Fenced, Known, decode_changes, encode_change
from protocol.errors import FencedError, LimitExceeded
from protocol.outputs import FencingToken

FENCE = FencingToken("p1", 1, 1)


def entry(name: str, claim_id: bytes = b"c", kind: Kind = Kind.STEP) -> Entry:
    return Entry(
        token=name, kind=kind, agent="a/b", message_id=b"m" * 16, name=name, ordinal=0, intent=b"", shown="", payload=b"",
        participant="p1", incarnation=1, session=1, claim_id=claim_id, claimed_at=5,
    )  # fmt: skip


def test_token_is_a_position_and_nothing_else():
    """Golden: a token that changed with the build would do every effect of a rollback again."""
    assert effect_token("shop", "buyer/main", b"m" * 16, Kind.STEP, "charge", 0) == "4de0f7028276692f978d9264c666f3b6"


def test_every_part_of_a_position_makes_another_token():
    base = ("shop", "buyer/main", b"m" * 16, Kind.STEP, "charge", 0)
    others = [
        ("fork", *base[1:]),
        (base[0], "buyer/other", *base[2:]),
        (*base[:2], b"n" * 16, *base[3:]),
        (*base[:3], Kind.QUESTION, *base[4:]),
        (*base[:4], "refund", 0),
        (*base[:5], 1),
    ]
    tokens = {effect_token(*position) for position in [base, *others]}
    assert len(tokens) == 7
    assert all(len(token) == 32 for token in tokens)


@given(st.text(max_size=5), st.text(max_size=5), st.text(max_size=5), st.text(max_size=5))
def test_no_two_positions_run_together_into_one_text(cluster, agent, other_cluster, other_agent):
    one = effect_token(cluster, agent, b"", Kind.STEP, "", 0)
    other = effect_token(other_cluster, other_agent, b"", Kind.STEP, "", 0)
    assert (one == other) == ((cluster, agent) == (other_cluster, other_agent))


def test_arguments_are_shown_on_one_bounded_line_whatever_they_do():
    class Rude:
        def __repr__(self):
            raise RuntimeError

    assert shown_arguments(("a\nb", 5)) == "('a\\nb', 5)"
    assert shown_arguments(Rude()) == "(cannot be shown)"
    assert len(shown_arguments("x" * 100_000)) <= 1_000
    assert intent_digest(b"a") != intent_digest(b"b")


def test_more_entries_than_the_limit_are_refused_and_nothing_changes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "EFFECTS_MAX", 2)
    ledger = EffectLedger()
    ledger.claim(entry("one"), FENCE)
    ledger.claim(entry("two"), FENCE)
    with pytest.raises(LimitExceeded, match="go with the epochs"):
        ledger.claim(entry("three"), FENCE)
    assert isinstance(ledger.claim(entry("one", b"other"), FENCE)[1], Known)
    assert set(ledger.entries) == {"one", "two"}


def test_an_entry_that_was_given_out_stays_as_it_was():
    ledger = EffectLedger()
    _, claimed = ledger.claim(entry("one"), FENCE)
    ledger.end("one", FENCE, b"c", State.DONE, result=b"r", at=1)
    assert claimed.entry.state is State.CLAIMED
    assert ledger.entries["one"].state is State.DONE


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "take", "end", "settle", "accept", "close", "reopen", "prune"]),
        st.integers(0, 3),
        st.integers(1, 3),
        st.integers(1, 3),
        st.sampled_from([State.DONE, State.FAILED, State.RELEASED]),
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(OPERATIONS)
def test_what_was_logged_makes_the_same_ledger_and_nobody_old_changes_it(operations):
    """I22, I29: replay of the changes = the live ledger; one result per claim; an old token never changes anything."""
    ledger = EffectLedger()
    logged = []
    results: dict[tuple[str, bytes], bytes] = {}
    claim_ids = (b"%d" % number for number in itertools.count())
    highest = (0, 0)
    for operation, number, incarnation, session, state in operations:
        token, fence = f"t{number}", FencingToken("p1", incarnation, session)
        before = dict(ledger.entries)
        changes = []
        try:
            known = ledger.entries.get(token)
            if operation == "claim":
                mine = msgspec.structs.replace(entry(token, next(claim_ids)), incarnation=incarnation, session=session)
                changes, answer = ledger.claim(mine, fence)
                assert isinstance(answer, Claimed) == (known is None or known.state is State.RELEASED)
            elif operation in {"close", "reopen", "prune"}:
                changes = (
                    ledger.close([token], number, fence)
                    if operation == "close"
                    else getattr(ledger, operation)(number, fence)
                )
            elif known is None:
                continue
            elif operation == "take":
                changes, _ = ledger.take(token, fence, next(claim_ids), before=known.claim_id, at=1)
            elif operation == "end":
                changes, answer = ledger.end(token, fence, known.claim_id, state, result=b"%d" % session, at=2)
                if isinstance(answer, Claimed) and state is State.DONE:
                    assert results.setdefault((token, known.claim_id), answer.entry.result) == answer.entry.result
            elif operation == "settle" and state is not State.FAILED:
                changes, _ = ledger.settle(token, fence, state, result=b"op", at=3)
            elif operation == "accept" and known.ended:
                changes, _ = ledger.accept(token, fence, b"i")
        except FencedError:
            assert incarnation < highest[0] or session < highest[1]
            assert ledger.entries == before
        else:
            if operation in {"claim", "close", "reopen", "prune"} or changes:
                assert incarnation >= highest[0]
                assert session >= highest[1]
                highest = (incarnation, session)
        logged += [encode_change(change) for change in changes]
    for records in (logged, [encode_change(change) for change in ledger.dump()]):
        replayed = EffectLedger()
        for record in records:
            (change,) = decode_changes(b"\x91" + record)
            replayed.apply(change)
        assert replayed.entries == ledger.entries
        assert replayed.fence.sessions == ledger.fence.sessions
        assert replayed.fence.incarnation == ledger.fence.incarnation
    assert all(isinstance(change, Fenced) or change.entry for change in ledger.dump())
