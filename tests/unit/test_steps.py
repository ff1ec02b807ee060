"""Steps and questions before anything happens: names, places, intents, and what is refused."""

import functools
from typing import Any

import msgspec
import pytest

from participant.effects.entries import Entry, Kind, State
from participant.failure import Retry
from participant.schema import Schema
from participant.steps import (
    EVERYTHING,
    IN_STEP,
    PLAIN,
    Calls,
    QuestionExpired,
    StepCall,
    StepFailed,
    StepUndecided,
    ask_call,
    encode_given,
    encode_result,
    finished_of,
    is_async,
    outcome_of,
    step_call,
)
from protocol.errors import LimitExceeded, LocalProtocolError, Unsavable


class Receipt(msgspec.Struct, frozen=True):
    number: int


async def charge(order: str, cents: int, *, token: str) -> Receipt:
    return Receipt(cents)


def called(function: Any = charge, *arguments: Any, calls: Calls | None = None, **settings: Any) -> StepCall:
    defaults: dict[str, Any] = {
        "name": None, "retry": None, "resolve": None, "idempotent": False, "intent": EVERYTHING, "diverged": "refuse",
    }  # fmt: skip
    keywords = settings.pop("keywords", {})
    return step_call("a/b", calls or Calls(), function, arguments, keywords, **{**defaults, **settings})


def test_places_are_counted_by_name_in_order_of_calling():
    calls = Calls()
    found = [called(charge, calls=calls), called(is_async, calls=calls), called(charge, calls=calls)]
    assert [(call.name, call.ordinal) for call in found] == [("charge", 0), ("is_async", 0), ("charge", 1)]
    assert calls.place(Kind.QUESTION, "") == 0
    assert calls.place(Kind.QUESTION, "") == 1


def test_a_step_is_named_after_its_function_wherever_that_is():
    class Bank:
        async def charge(self) -> None: ...

        async def __call__(self) -> None: ...

    assert called(Bank().charge).name == "charge"
    assert called(functools.partial(charge, "o1")).name == "charge"
    assert called(Bank()).name == "Bank"
    assert called(lambda: 1).name == "<lambda>"
    assert called(charge, name="pay").name == "pay"
    for name in ("", "x" * 200, "a\nb"):
        with pytest.raises(ValueError, match="is no name"):
            called(charge, name=name)


def test_a_function_that_takes_a_token_is_given_one_unless_it_has_one_already():
    assert called(charge).wants_token
    assert called(functools.partial(charge, "o1")).wants_token
    assert not called(charge, keywords={"token": "mine"}).wants_token
    assert not called(is_async).wants_token


def test_results_are_of_the_type_that_the_function_declares():
    assert called(charge).result.declared is Receipt
    assert called(lambda: 1).result.declared is Any
    assert called(functools.partial(charge, "o1")).result.declared is Receipt

    async def opaque() -> Calls: ...

    with pytest.raises(TypeError, match="step opaque: what it returns cannot be recorded"):
        called(opaque)


def test_intents_are_equal_when_what_counts_is_equal():
    base = called(charge, "o1", 500, keywords={"a": {"x": 1, "y": 2}}).intent
    assert called(charge, "o1", 500, keywords={"a": {"y": 2, "x": 1}}).intent == base
    assert called(charge, "o1", 501, keywords={"a": {"x": 1, "y": 2}}).intent != base
    assert called(charge, "o1", 500).intent != base
    assert called(charge, "o1", 1, intent=("o1",)).intent == called(charge, "o1", 2, intent=("o1",)).intent
    assert called(charge, {1, 2, 3}).intent == called(charge, {3, 2, 1}).intent
    assert called(charge, "o1", 1, intent=("o1",)).shown == "('o1',)"


def test_what_could_do_a_thing_twice_is_refused_before_it_does_it_once():
    with pytest.raises(ValueError, match="idempotent=True"):
        called(charge, retry=Retry(attempts=2))
    assert called(charge, retry=Retry(attempts=1)).retry.attempts == 1
    assert called(charge, retry=Retry(attempts=2), idempotent=True).retry.attempts == 2
    assert called(charge, retry=Retry(attempts=2), resolve=charge).retry.attempts == 2
    assert called(charge).retry.attempts == 1


def test_misuse_is_said_and_takes_no_place():
    calls = Calls()
    with pytest.raises(TypeError, match="give a function"):
        called(5, calls=calls)
    with pytest.raises(ValueError, match="must be refuse, replay or ask"):
        called(charge, calls=calls, diverged="maybe")
    with pytest.raises(Unsavable, match="intent="):
        called(charge, object(), calls=calls)
    inside = IN_STEP.set("outer")
    try:
        with pytest.raises(LocalProtocolError, match="inside of step outer"):
            called(charge, calls=calls)
    finally:
        IN_STEP.reset(inside)
    assert calls.total == 0


def test_a_turn_makes_so_many_steps_and_no_more():
    calls = Calls()
    calls.total = 10_000
    with pytest.raises(LimitExceeded, match="more than 10000"):
        called(charge, calls=calls)


def test_a_turn_cannot_commit_while_it_is_to_be_parked_or_its_steps_run():
    calls = Calls()
    calls.check_over("a/b")
    calls.running = 2
    with pytest.raises(LocalProtocolError, match="while 2 of its steps"):
        calls.check_over("a/b")
    calls.parking = StepUndecided("a/b", "charge", "t", b"", PLAIN, "who knows")
    with pytest.raises(StepUndecided):
        calls.check_over("a/b")


def test_plain_functions_and_coroutine_functions_are_told_apart():
    class Both:
        async def __call__(self) -> None: ...

    assert is_async(charge)
    assert is_async(functools.partial(charge, "x"))
    assert is_async(Both())
    assert not is_async(len)
    assert not is_async(functools.partial(len, "x"))
    assert not is_async(lambda: 1)


def entry(state: State, result: bytes = b"", reason: str = "", kind: Kind = Kind.STEP) -> Entry:
    return Entry(
        token="t", kind=kind, agent="a/b", message_id=b"m" * 16, name="charge", ordinal=0, intent=b"i", shown="(1,)",
        payload=b"", participant="p", incarnation=1, session=1, claim_id=b"c", claimed_at=0, state=state, result=result,
        reason=reason,
    )  # fmt: skip


def test_what_a_call_returns_is_what_was_recorded():
    schema = Schema(Receipt)
    done = finished_of(entry(State.DONE, encode_result(schema, Receipt(5), "a/b", "charge")))
    assert outcome_of(done, schema, "a/b") == Receipt(5)
    with pytest.raises(StepFailed, match="declined"):
        outcome_of(finished_of(entry(State.FAILED, reason="declined")), schema, "a/b")
    with pytest.raises(QuestionExpired, match=r"nobody answered in time: \(1,\)"):
        outcome_of(finished_of(entry(State.EXPIRED, kind=Kind.QUESTION)), schema, "a/b")
    with pytest.raises(Unsavable, match="does not fit the declared type"):
        outcome_of(finished_of(entry(State.DONE, b"\xa1x")), schema, "a/b")
    with pytest.raises(Unsavable, match="are kept"):
        encode_result(PLAIN, "x" * 2_000_000, "a/b", "charge")


def test_what_somebody_outside_gives_must_have_the_wanted_form():
    schema = Schema(Receipt)
    assert encode_given(schema, Receipt(5), "result") == encode_given(schema, {"number": 5}, "result")
    assert encode_given(None, [1, "two"], "answer") == msgspec.msgpack.encode([1, "two"])
    for wrong in ("yes", {"number": "five"}, None):
        with pytest.raises(Unsavable, match="is wanted"):
            encode_given(schema, wrong, "result")
    with pytest.raises(Unsavable):
        encode_given(None, object(), "answer")


def test_questions_are_checked_like_steps():
    settings: dict[str, Any] = {"answer": bool, "timeout": None, "intent": EVERYTHING, "diverged": "refuse"}
    calls = Calls()
    first = ask_call("a/b", calls, "ship it?", **settings)
    second = ask_call("a/b", calls, {"ship": "it?"}, **{**settings, "timeout": 1.5})
    assert (first.ordinal, second.ordinal, first.timeout_ns, second.timeout_ns) == (0, 1, None, 1_500_000_000)
    assert first.intent != second.intent
    assert ask_call("a/b", Calls(), "other words", **{**settings, "intent": "ship"}).intent == (
        ask_call("a/b", Calls(), "ship it?", **{**settings, "intent": "ship"}).intent
    )
    for timeout in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            ask_call("a/b", calls, "?", **{**settings, "timeout": timeout})
    with pytest.raises(ValueError, match="diverged"):
        ask_call("a/b", calls, "?", **{**settings, "diverged": "x"})
    with pytest.raises(Unsavable):
        ask_call("a/b", calls, object(), **settings)
    with pytest.raises(LimitExceeded):
        ask_call("a/b", calls, "x" * 70_000, **settings)
    with pytest.raises(TypeError):
        ask_call("a/b", calls, "?", **{**settings, "answer": Calls})
    assert calls.total == 2
