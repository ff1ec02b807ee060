"""Agents that wait for somebody's decision, as their participants' heartbeats name them. Known to the leader alone, never replicated.

An agent that begins or ceases to wait is an event of the coordinator that leads (``agent-waits``, ``agent-goes-on``); a new
leader tells it again, as it hears it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from protocol.limits import PARTICIPANTS_MAX, WAITING_LISTED_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coordinator.ledger import ParticipantRecord
    from protocol.messages import Heartbeat, WaitingAgent

LISTED_MAX: Final = 100
"""Agents that the cluster's status names."""


class Waits(NamedTuple):
    """Who waits at one participant."""

    agents: tuple[WaitingAgent, ...]
    """The first ones."""
    total: int
    questions: int
    """Open ones."""


NOBODY: Final = Waits((), 0, 0)


class WaitingBoard:
    """What the newest heartbeat of each session said.

    Args:
        tell: Takes events: kind, and details by name.
    """

    def __init__(self, tell: Callable[[str, dict[str, Any]], None] = lambda _kind, _details: None) -> None:
        self.tell = tell
        self._by_session: dict[int, Waits] = {}

    def heard(self, participant: str, message: Heartbeat) -> None:
        """A heartbeat came."""
        before = self._by_session.get(message.session, NOBODY)
        if not message.waiting_count and not message.questions:
            if before is NOBODY:
                return
            del self._by_session[message.session]
            now = NOBODY
        else:
            now = Waits(message.waiting[:WAITING_LISTED_MAX], max(0, message.waiting_count), max(0, message.questions))
            self._by_session[message.session] = now
            while len(self._by_session) > PARTICIPANTS_MAX:
                del self._by_session[next(iter(self._by_session))]
        known = dict.fromkeys(before.agents)
        for each in now.agents:
            if each not in known:
                self.tell("agent-waits", {"participant": participant, **_shown(each)})
        if now.total <= len(now.agents):
            # Else one that is not named any more may only have been pushed off the list.
            left = dict.fromkeys(now.agents)
            for each in before.agents:
                if each not in left:
                    self.tell("agent-goes-on", {"participant": participant, **_shown(each)})

    def of(self, session: int) -> Waits:
        """Who waits at a session's participant."""
        return self._by_session.get(session, NOBODY)

    def participant(self, session: int) -> dict[str, Any]:
        """One participant's part, for its row."""
        waits = self.of(session)
        return {
            "waiting": [_shown(each) for each in waits.agents],
            "waiting_count": waits.total,
            "questions": waits.questions,
        }

    def document(self, live: Iterable[ParticipantRecord]) -> dict[str, Any]:
        """Who waits in the whole cluster, for its status."""
        agents: list[dict[str, Any]] = []
        count = questions = 0
        for record in live:
            waits = self.of(record.session)
            count += waits.total
            questions += waits.questions
            agents += [{"participant": record.id, **_shown(each)} for each in waits.agents]
        return {"count": count, "questions": questions, "agents": agents[:LISTED_MAX]}


def _shown(waiting: WaitingAgent) -> dict[str, str]:
    return {"agent": waiting.agent, "step": waiting.step, "token": waiting.token, "cause": waiting.cause}
