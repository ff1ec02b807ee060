"""A bank of tokens over FIFO channels that takes one snapshot: the smallest world for the oracle of reachability."""

from __future__ import annotations

import heapq
from random import Random
from typing import TYPE_CHECKING

from tests.model.reach_oracle import (
    Channel,
    HistoryEvent,
    Kind,
    RecordedCut,
    Refutation,
    judge_reachability,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Transfer = tuple[int, int]
"""Number and amount."""
EACH = 5
SENDS_UNTIL = 40.0


def step(balance: int, event: HistoryEvent[Transfer]) -> int:
    """The application."""
    assert event.message is not None
    return balance + event.message[1] if event.kind is Kind.RECEIVE else balance - event.message[1]


class TokenWorld:
    """One run.

    Args:
        seed: All choices.
        participants: How many.
        bug: "" or one of `BUGS`.
    """

    BUGS = ("not-fifo", "late-marker", "message-not-recorded")

    def __init__(self, seed: int, *, participants: int, bug: str = "") -> None:
        self.random = Random(seed)
        self.bug = bug
        self.names = [f"p{number}" for number in range(participants)]
        self.balance = dict.fromkeys(self.names, EACH)
        self.history: list[HistoryEvent[Transfer]] = []
        self.states: dict[str, int] = {}
        self.channels: dict[Channel, list[Transfer]] = {}
        self.closed: set[Channel] = set()
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._arrival: dict[Channel, float] = {}
        self._number = 0

    def run(self) -> Refutation | None:
        """To the end; the oracle's verdict."""
        for name in self.names * 2:
            self._act(name)
        self._later(self.random.uniform(1, 20), lambda: self._record(self.names[0]))
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()
        assert len(self.closed) == len(self.names) * (len(self.names) - 1), "the cut is not complete"
        assert sum(self.balance.values()) == EACH * len(self.names)
        return judge_reachability(
            initial=dict.fromkeys(self.names, EACH),
            history=self.history,
            cut=RecordedCut(states=self.states, channels=self.channels),
            final=self.balance,
            step=step,
        )

    def _later(self, after: float, event: Callable[[], None], channel: Channel | None = None) -> None:
        at = self.now + after
        if channel is not None and self.bug != "not-fifo":
            at = self._arrival[channel] = max(at, self._arrival.get(channel, 0.0) + 1e-9)
        self._number += 1
        heapq.heappush(self._events, (at, self._number, event))

    def _act(self, name: str) -> None:
        if self.now < SENDS_UNTIL:
            other = self.random.choice([one for one in self.names if one != name])
            amount = self.random.randint(1, 2)
            self._later(self.random.expovariate(1), lambda: self._send(name, other, amount))

    def _send(self, source: str, target: str, amount: int) -> None:
        if self.balance[source] < amount:
            return
        self._number += 1
        transfer, channel = (self._number, amount), (source, target)
        self.balance[source] -= amount
        self._note(source, Kind.SEND, channel, transfer)
        self._later(self.random.expovariate(1), lambda: self._receive(channel, transfer), channel)

    def _receive(self, channel: Channel, transfer: Transfer) -> None:
        target = channel[1]
        self.balance[target] += transfer[1]
        self._note(target, Kind.RECEIVE, channel, transfer)
        if target in self.states and channel not in self.closed:
            self.channels[channel].append(transfer)
        self._act(target)

    def _note(self, participant: str, kind: Kind, channel: Channel, transfer: Transfer) -> None:
        event = HistoryEvent(
            participant=participant, kind=kind, channel=channel, message=transfer, recorded=participant in self.states
        )
        self.history.append(event)

    # --- the snapshot -------------------------------------------------------------------------------------------------

    def _record(self, name: str, first: Channel | None = None) -> None:
        if name in self.states:
            return
        self.states[name] = self.balance[name]
        for other in self.names:
            if other != name:
                self.channels[other, name] = []
        if first is not None:
            self.closed.add(first)
        if self.bug == "late-marker":
            self._later(self.random.expovariate(2), lambda: self._markers(name))
        else:
            self._markers(name)

    def _markers(self, name: str) -> None:
        for other in self.names:
            if other != name:
                self._marker_leaves((name, other))

    def _marker_leaves(self, channel: Channel) -> None:
        self._later(self.random.expovariate(1), lambda: self._marker_arrives(channel), channel)

    def _marker_arrives(self, channel: Channel) -> None:
        if channel[1] not in self.states:
            self._record(channel[1], channel)
            return
        self.closed.add(channel)
        if self.bug == "message-not-recorded" and self.channels[channel]:
            self.channels[channel].pop()
