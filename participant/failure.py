"""What happens to a message whose handler raised: retried, given to the dead letters, or its agent stopped.

A policy is a value, and deciding is a function of the attempt's number and the error: no clock, no randomness. Attempts
are counted in memory only: after a restore a message starts again with its first one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never

import msgspec

from protocol.limits import DEAD_LETTERS_BYTES_MAX, DEAD_LETTERS_MAX
from protocol.plain import Plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from participant.schema import Schema
    from protocol.messages import Envelope

NS_PER_SECOND: Final = 1_000_000_000
ATTEMPTS_MAX: Final = 1_000_000


class Backoff(Plain, frozen=True, kw_only=True):
    """Waiting times between attempts: ``first``, then ``factor`` times as long each, at most ``maximum``."""

    first: float = 0.1
    """Seconds before the second attempt."""
    factor: float = 2.0
    maximum: float = 30.0
    """Seconds."""

    def __post_init__(self) -> None:
        if not (0 <= self.first <= self.maximum and self.factor >= 1 and self.maximum < 1e9):
            raise ValueError("Backoff: 0 <= first <= maximum and factor >= 1 are needed")

    def wait_ns(self, attempt: int) -> int:
        """Nanoseconds to wait after this attempt (from 1) has failed."""
        seconds = self.first
        for _ in range(attempt - 1):
            seconds *= self.factor
            if seconds >= self.maximum:
                break
        return int(min(seconds, self.maximum) * NS_PER_SECOND)


class DeadLetter(Plain, frozen=True):
    """Put the message aside, with the reason, and go on with the next one."""


class Stop(Plain, frozen=True):
    """Stop the agent: the message stays at the head of its mailbox, and later ones wait behind it."""


class Retry(Plain, frozen=True, kw_only=True):
    """Handle the message again after a wait; the agent's later messages wait too, for order is kept."""

    attempts: int = 3
    """How often a message is handled at most, the first time included."""
    backoff: Backoff = msgspec.field(default_factory=Backoff)
    then: DeadLetter | Stop = msgspec.field(default_factory=DeadLetter)
    """When all attempts have failed."""

    def __post_init__(self) -> None:
        if not 1 <= self.attempts <= ATTEMPTS_MAX:
            raise ValueError(f"Retry: attempts is {self.attempts}; it must be 1 to {ATTEMPTS_MAX}")


FailurePolicy: TypeAlias = Retry | DeadLetter | Stop


class RetryAfter(Plain, frozen=True, kw_only=True):
    """The message stays at the head; it is handled again from `at` on."""

    at: int
    """Instant."""
    attempt: int
    """The attempt that failed, from 1."""
    reason: str


class DeadLettered(Plain, frozen=True, kw_only=True):
    """The message was put aside."""

    agent: str
    message: Envelope
    data: bytes
    """The encoded envelope."""
    reason: str
    """A sentence: the error with its type, or why the message could not be handled at all."""
    attempts: int
    at: int
    """Instant."""


class Stopped(Plain, frozen=True, kw_only=True):
    """The agent handles nothing any more."""

    agent: str
    message: Envelope
    reason: str
    attempts: int
    at: int
    """Instant."""


class Parked(Plain, frozen=True, kw_only=True):
    """The turn waits until somebody outside has decided something; then it runs again. No policy: nothing has failed."""

    agent: str
    message: Envelope
    step: str
    token: str
    """Of the step that it waits for, in the effect ledger."""
    intent: bytes
    """Of the step as it was called this time."""
    result: Schema
    """What a result of the step must be."""
    cause: Literal["in-doubt", "diverged"]
    reason: str
    at: int
    """Instant."""


FailureOutcome: TypeAlias = RetryAfter | DeadLettered | Stopped


def describe(error: BaseException) -> str:
    """One sentence about an error: type and text, on one line, of bounded length."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything, and the message must go somewhere
        text = "(its text cannot be had)"
    shown = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return shown if len(shown) <= 500 else shown[:497] + "..."


def decide(
    policy: FailurePolicy, *, agent: str, message: Envelope, data: bytes, error: BaseException, attempt: int, now: int
) -> FailureOutcome:
    """What the policy says about a failed attempt.

    Args:
        policy: The agent's.
        agent: Its id.
        message: The envelope of the message.
        data: The same, encoded.
        error: What the handler raised.
        attempt: From 1.
        now: Driver time, nanoseconds.
    """
    reason = describe(error)
    if isinstance(policy, Retry):
        if attempt < policy.attempts:
            return RetryAfter(at=now + policy.backoff.wait_ns(attempt), attempt=attempt, reason=reason)
        policy = policy.then
    match policy:
        case DeadLetter():
            return DeadLettered(agent=agent, message=message, data=data, reason=reason, attempts=attempt, at=now)
        case Stop():
            return Stopped(agent=agent, message=message, reason=reason, attempts=attempt, at=now)
        case _:
            assert_never(policy)


class DeadLetters:
    """A participant's newest dead letters, for a look; the count goes on."""

    __slots__ = ("_bytes", "_bytes_max", "_kept", "_limit", "count")

    def __init__(self, limit: int = DEAD_LETTERS_MAX, bytes_max: int = DEAD_LETTERS_BYTES_MAX) -> None:
        self._kept: deque[DeadLettered] = deque()
        self._limit = limit
        self._bytes = 0
        self._bytes_max = bytes_max
        self.count = 0
        """All that there ever were."""

    def add(self, letter: DeadLettered) -> None:
        """Keep one; the oldest goes when there are too many."""
        self._kept.append(letter)
        self._bytes += len(letter.data)
        while len(self._kept) > self._limit or (self._bytes > self._bytes_max and len(self._kept) > 1):
            self._bytes -= len(self._kept.popleft().data)
        self.count += 1

    def __iter__(self) -> Iterator[DeadLettered]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)
