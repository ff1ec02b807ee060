"""I4: the recorded global state is reachable from where recording began, and where it ended is reachable from it.

Chandy and Lamport prove this by swapping neighbouring events until everything that a process did before it recorded stands
before everything that any process did after: the recorded state need never have been, but it might have. This is that
proof as a program. It sorts the real history so, plays it again with the application's own step function, and demands

1. that each receive takes the head of its channel, in the sorted order too (an orphan cannot);
2. that after the first part states and channels *are* the recorded ones;
3. that after the second part the states are those that the real run ended with.

Independent of I1 to I3: it counts nothing, and needs neither sequence numbers, epochs on messages nor clocks.

It judges applications whose step is a function of state and message (a handler that draws random numbers or asks a clock
cannot be played again).

Source: Chandy & Lamport 1985, section 4, Theorem 1. Differs: a violated premise (a channel that is not FIFO, a marker that
is late, a message that is not recorded) is reported by the first event or state that does not fit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

State = TypeVar("State")
Message = TypeVar("Message", bound=Hashable)
Channel = tuple[str, str]
"""Source and target."""


class Kind(Enum):
    """What happened at a participant."""

    SEND = "send"
    RECEIVE = "receive"
    LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent(Generic[Message]):
    """One event of one participant."""

    participant: str
    kind: Kind
    recorded: bool
    """Whether the participant had recorded its state before this event."""
    channel: Channel | None = None
    """Of a send or receive."""
    message: Message | None = None
    """Of a send or receive; distinct for any two messages of one channel, or a swap goes unnoticed. Else what `step` needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCut(Generic[State, Message]):
    """What a snapshot says."""

    states: Mapping[str, State]
    channels: Mapping[Channel, Sequence[Message]]
    """In order; an empty one may be left out."""


class Fault(Enum):
    """Which demand is not met."""

    PREFIX = "a receive before the cut does not take the head of its channel"
    STATES = "the recorded states are not those of the events before the cut"
    CHANNELS = "the recorded channel states are not what is in flight after the events before the cut"
    SUFFIX = "a receive after the cut does not take the head of its channel"
    FINAL = "the history does not end in the final states"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refutation:
    """Why the recorded state is not reachable, or the final one not from it."""

    fault: Fault
    detail: str

    def __str__(self) -> str:
        return f"{self.fault.value}: {self.detail}"


def judge_reachability(
    *,
    initial: Mapping[str, State],
    history: Sequence[HistoryEvent[Message]],
    cut: RecordedCut[State, Message],
    final: Mapping[str, State],
    step: Callable[[State, HistoryEvent[Message]], State],
    initial_channels: Mapping[Channel, Sequence[Message]] | None = None,
) -> Refutation | None:
    """Judge one recorded cut.

    Args:
        initial: Participant -> state before the first event. Never changed here.
        history: All events in the order in which they happened; of each participant first those with ``recorded=False``.
        cut: What was recorded.
        final: Participant -> state after the last event.
        step: The application: state before an event and the event -> state after it. Pure.
        initial_channels: What was in flight before the first event, in order; nothing by default.

    Returns:
        None: The theorem holds for this cut. Else the first demand that is not met.

    Raises:
        ValueError: The history is none: an event of an unknown participant, a send or receive without channel or at the
            wrong end of it, or an event from before the recording after one from after it.
    """
    _check_history(initial, history)
    states = dict(initial)
    channels = {channel: deque(messages) for channel, messages in (initial_channels or {}).items()}

    wrong = _play(states, channels, (event for event in history if not event.recorded), step)
    if wrong is not None:
        return Refutation(fault=Fault.PREFIX, detail=wrong)
    if states != dict(cut.states):
        different = [name for name in sorted({*states, *cut.states}) if states.get(name) != cut.states.get(name)]
        name = different[0]
        return Refutation(
            fault=Fault.STATES, detail=f"{name} recorded {cut.states.get(name)!r}, it was {states.get(name)!r}"
        )
    in_flight = {channel: list(messages) for channel, messages in channels.items() if messages}
    recorded = {channel: list(messages) for channel, messages in cut.channels.items() if messages}
    if in_flight != recorded:
        apart = [c for c in sorted({*in_flight, *recorded}) if in_flight.get(c, []) != recorded.get(c, [])]
        channel = apart[0]
        return Refutation(
            fault=Fault.CHANNELS,
            detail=f"{channel[0]}->{channel[1]} recorded {recorded.get(channel, [])!r}, in flight {in_flight.get(channel, [])!r}",
        )

    wrong = _play(states, channels, (event for event in history if event.recorded), step)
    if wrong is not None:
        return Refutation(fault=Fault.SUFFIX, detail=wrong)
    if states != dict(final):
        name = next(name for name in sorted({*states, *final}) if states.get(name) != final.get(name))
        return Refutation(
            fault=Fault.FINAL, detail=f"{name} ends as {final.get(name)!r}, played again {states.get(name)!r}"
        )
    return None


def _play(
    states: dict[str, State],
    channels: dict[Channel, deque[Message]],
    events: Iterable[HistoryEvent[Message]],
    step: Callable[[State, HistoryEvent[Message]], State],
) -> str | None:
    """Apply events to `states` and `channels`; a sentence for the first receive that is not possible."""
    for event in events:
        channel, message = event.channel, event.message
        if channel is not None and message is not None:
            items = channels.setdefault(channel, deque())
            if event.kind is Kind.SEND:
                items.append(message)
            elif not items or items[0] != message:
                head = repr(items[0]) if items else "nothing"
                return f"{event.participant} receives {message!r} on {channel[0]}->{channel[1]}, whose head is {head}"
            else:
                items.popleft()
        states[event.participant] = step(states[event.participant], event)
    return None


def _check_history(initial: Mapping[str, State], history: Sequence[HistoryEvent[Message]]) -> None:
    after: dict[str, bool] = {}
    for number, event in enumerate(history):
        who = event.participant
        if who not in initial:
            raise ValueError(f"event {number} is of {who!r}, who has no initial state")
        if after.get(who, False) and not event.recorded:
            raise ValueError(f"event {number} of {who!r} is said to be from before its recording, which was earlier")
        after[who] = event.recorded
        if event.kind is Kind.LOCAL:
            if event.channel is not None:
                raise ValueError(f"event {number} of {who!r} is local and names a channel")
            continue
        if event.channel is None or event.message is None:
            raise ValueError(f"event {number} of {who!r} needs a channel and a message")
        if event.channel[0 if event.kind is Kind.SEND else 1] != who:
            raise ValueError(f"event {number} of {who!r} is at the wrong end of {event.channel[0]}->{event.channel[1]}")
