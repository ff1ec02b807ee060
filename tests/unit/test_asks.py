"""Questions to participants and the bounds of outside input at a coordinator, with a hub that only notes what is asked."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.runtime import ingests as ingests_module
from coordinator.runtime.answers import ApiError
from coordinator.runtime.asks import Asks, NotAsked, Unanswered
from coordinator.runtime.ingests import BURST, PER_SECOND, Ingests
from protocol.messages import Ingest, Ingested


class Hub:
    """Answers at once, or not at all."""

    def __init__(self, asks: Asks, *, connected: bool = True, answers: bool = True, code: str = "") -> None:
        self.asks = asks
        self.connected = connected
        self.answers = answers
        self.code = code
        self.asked: list[Ingest] = []

    def ask(self, session: int, message: Ingest) -> bool:
        if not self.connected:
            return False
        self.asked.append(message)
        if self.answers:
            answer = Ingested(session=session, request=message.request, code=self.code)
            asyncio.get_running_loop().call_soon(self.asks.answered, answer)
        return True


def question(number: int) -> Ingest:
    return Ingest(session=3, request=number, agent="a/b", name="order", body=b"{}")


async def test_each_question_gets_its_own_answer_and_strangers_answers_are_dropped():
    asks = Asks()
    hub = Hub(asks, answers=False)
    waiting = [asyncio.ensure_future(asks.ask(hub, 3, question, 5)) for _ in range(2)]
    await asyncio.sleep(0)
    first, second = (message.request for message in hub.asked)
    asks.answered(Ingested(session=3, request=99))
    asks.answered(Ingested(session=4, request=first))
    asks.answered(Ingested(session=3, request=second, position=2))
    asks.answered(Ingested(session=3, request=first, position=1))
    asks.answered(Ingested(session=3, request=first, position=7))
    assert [answer.position for answer in await asyncio.gather(*waiting)] == [1, 2]
    assert asks.waiting == 0


async def test_a_session_without_a_connection_was_not_asked_and_one_that_loses_it_may_have_acted():
    asks = Asks()
    with pytest.raises(NotAsked):
        await asks.ask(Hub(asks, connected=False), 3, question, 5)
    waiting = asyncio.ensure_future(asks.ask(Hub(asks, answers=False), 3, question, 5))
    await asyncio.sleep(0)
    asks.session_lost(4)
    await asyncio.sleep(0)
    assert not waiting.done()
    asks.session_lost(3)
    with pytest.raises(Unanswered, match="its connection was lost"):
        await waiting
    with pytest.raises(Unanswered, match="not within 0 s"):
        await asks.ask(Hub(asks, answers=False), 3, question, 0.01)
    assert asks.waiting == 0


async def test_one_participant_is_handed_a_burst_and_then_so_many_a_second_and_others_are_not_held_up():
    now = [100.0]
    asks = Asks()
    inputs = Ingests(asks, lambda: now[0])
    hub = Hub(asks)
    refusals = set()

    async def taken(session: int) -> bool:
        try:
            await inputs.hand_over(hub, session, question, 10)
        except ApiError as error:
            refusals.add((error.status, error.code, error.message))
            return False
        return True

    def at(session: int):
        def make(number: int) -> Ingest:
            return Ingest(session=session, request=number, agent="a/b", name="order", body=b"{}")

        return make

    assert [await taken(3) for _ in range(BURST + 5)] == [True] * BURST + [False] * 5
    await inputs.hand_over(hub, 4, at(4), 10)
    now[0] += 0.1
    again = [await taken(3) for _ in range(PER_SECOND)]
    assert again.count(True) == pytest.approx(PER_SECOND // 10, abs=1)
    assert refusals == {(429, "overloaded", f"more than {PER_SECOND} inputs a second for one participant")}
    inputs.session_lost(3)
    assert await taken(3)
    assert inputs.counts["taken"] == BURST + 1 + again.count(True) + 1


async def test_inputs_that_wait_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(ingests_module, "WAITING_BYTES_MAX", 100)
    asks = Asks()
    inputs = Ingests(asks, lambda: 0.0)
    hub = Hub(asks, answers=False)
    waiting = asyncio.ensure_future(inputs.hand_over(hub, 3, question, 80))
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="too many inputs wait"):
        await inputs.hand_over(hub, 3, question, 30)
    asks.answered(Ingested(session=3, request=hub.asked[0].request))
    await waiting
    hub.answers = True
    assert not (await inputs.hand_over(hub, 3, question, 30)).code


async def test_a_refusal_is_counted_apart():
    asks = Asks()
    inputs = Ingests(asks, lambda: 0.0)
    answer = await inputs.hand_over(Hub(asks, code="overloaded"), 3, question, 1)
    assert answer.code == "overloaded"
    assert inputs.counts == {"taken": 0, "refused": 1, "unanswered": 0}
