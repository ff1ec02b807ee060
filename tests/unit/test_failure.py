from __future__ import annotations

import pytest

from participant.failure import (
    Backoff,
    DeadLetter,
    DeadLettered,
    DeadLetters,
    Retry,
    RetryAfter,
    Stop,
    Stopped,
    decide,
    describe,
)
from protocol.messages import Envelope

ENVELOPE = Envelope(b"0" * 16, "a/b", "c/d", "Order", 1, b"\x80")


def decided(policy, attempt, error=None):
    error = error or ValueError("no")
    return decide(policy, agent="c/d", message=ENVELOPE, data=b"data", error=error, attempt=attempt, now=100)


def test_retries_wait_twice_as_long_each_time_up_to_the_maximum():
    policy = Retry(attempts=6, backoff=Backoff(first=1, factor=2, maximum=5))
    waits = [decided(policy, attempt).at - 100 for attempt in range(1, 6)]
    assert waits == [seconds * 10**9 for seconds in (1, 2, 4, 5, 5)]


def test_the_last_attempt_leads_to_what_comes_then():
    assert isinstance(decided(Retry(attempts=2), 1), RetryAfter)
    letter = decided(Retry(attempts=2), 2)
    assert isinstance(letter, DeadLettered)
    assert (letter.agent, letter.message, letter.data, letter.attempts, letter.at) == ("c/d", ENVELOPE, b"data", 2, 100)
    assert letter.reason == "ValueError: no"
    assert isinstance(decided(Retry(attempts=1, then=Stop()), 1), Stopped)


def test_dead_letter_and_stop_do_not_retry():
    assert isinstance(decided(DeadLetter(), 1), DeadLettered)
    assert isinstance(decided(Stop(), 1), Stopped)


def test_a_backoff_of_many_attempts_neither_overflows_nor_takes_long():
    assert Backoff().wait_ns(10**6) == 30 * 10**9
    assert Backoff(factor=1, first=1).wait_ns(1000) == 10**9


@pytest.mark.parametrize("wrong", [{"first": -1}, {"first": 10, "maximum": 1}, {"factor": 0.5}, {"maximum": 1e12}])
def test_a_senseless_backoff_is_refused(wrong):
    with pytest.raises(ValueError, match="Backoff"):
        Backoff(**wrong)


@pytest.mark.parametrize("attempts", [0, -1, 10**9])
def test_a_senseless_number_of_attempts_is_refused(attempts):
    with pytest.raises(ValueError, match="attempts"):
        Retry(attempts=attempts)


def test_a_reason_is_one_line_of_bounded_length():
    reason = describe(ValueError("a\nb" * 1000))
    assert "\n" not in reason
    assert len(reason) <= 500
    assert describe(KeyError()) == "KeyError"


def test_dead_letters_are_bounded_and_counted():
    letters = DeadLetters(limit=2)
    for n in range(5):
        letters.add(DeadLettered(agent="c/d", message=ENVELOPE, data=b"", reason=str(n), attempts=1, at=n))
    assert (letters.count, len(letters), [letter.reason for letter in letters]) == (5, 2, ["3", "4"])


def test_dead_letters_are_bounded_in_bytes_and_the_newest_stays():
    letters = DeadLetters(bytes_max=100)
    for n, size in enumerate((60, 30, 30, 500)):
        letters.add(DeadLettered(agent="c/d", message=ENVELOPE, data=bytes(size), reason=str(n), attempts=1, at=n))
        assert [letter.reason for letter in letters] == [["0"], ["0", "1"], ["1", "2"], ["3"]][n]
    assert letters.count == 4


def test_an_error_whose_text_cannot_be_had_is_described_all_the_same():
    class Mute(ValueError):
        def __str__(self):
            raise RuntimeError("no words")

    assert describe(Mute()) == "Mute: (its text cannot be had)"
