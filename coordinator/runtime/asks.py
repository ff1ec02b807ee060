"""Questions to participants that are no orders: asked over the control connection, answered once, known to no machine.

Whoever asks waits for the answer of one session. A connection that is lost, and an answer that does not come in time, end the
wait with an error that says that it is not known what happened.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

from coordinator.runtime.answers import ApiError
from protocol.messages import Consulted, Ingested, Inspected

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.runtime.connections import ParticipantHub
    from protocol.messages import Consult, Ingest, Inspect

Answered: TypeAlias = Ingested | Inspected | Consulted

WAITING_MAX: Final = 2_048
"""Questions that wait for their answers."""


class NotAsked(ApiError):
    """The session has no connection, or is of an older build: nothing happened."""

    def __init__(self) -> None:
        super().__init__(
            503,
            "not-connected",
            "the participant has no connection at the moment, or is of an older build",
            "try again in a second",
            headers={"Retry-After": "1"},
        )


class Unanswered(ApiError):
    """It was asked, and what it did is not known."""

    def __init__(self, why: str) -> None:
        super().__init__(
            504,
            "unknown-outcome",
            f"the participant was asked and gave no answer: {why}",
            "an input is to be sent again with the same token; without a token it may be taken twice",
        )


class Asks:
    """Questions under way at this coordinator."""

    def __init__(self) -> None:
        self._numbers = 0
        self._waiting: dict[int, tuple[int, asyncio.Future[Answered]]] = {}
        """Request -> session that was asked, and its answer."""

    @property
    def waiting(self) -> int:
        """Questions without an answer."""
        return len(self._waiting)

    async def ask(
        self, hub: ParticipantHub, session: int, make: Callable[[int], Ingest | Inspect | Consult], seconds: float
    ) -> Answered:
        """Ask one session.

        Args:
            hub: Has the connections.
            session: Of the participant.
            make: The message, given the request's number.
            seconds: To wait for the answer.

        Raises:
            NotAsked: Nothing happened.
            Unanswered: It is not known what happened.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise ApiError(429, "overloaded", "too many questions wait for participants", headers={"Retry-After": "1"})
        self._numbers += 1
        number = self._numbers
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (session, future)
        try:
            if not hub.ask(session, make(number)):
                raise NotAsked
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise Unanswered(f"not within {seconds:.0f} s") from None
        finally:
            del self._waiting[number]

    def answered(self, message: Answered) -> None:
        """From the hub: what nobody waits for any more is dropped."""
        waiting = self._waiting.get(message.request)
        if waiting is not None and waiting[0] == message.session and not waiting[1].done():
            waiting[1].set_result(message)

    def session_lost(self, session: int) -> None:
        """From the hub: its connection is gone."""
        for asked, future in self._waiting.values():
            if asked == session and not future.done():
                future.set_exception(Unanswered("its connection was lost"))
