"""What happens at a participant, told to those who listen."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from participant.events import Lost
from participant.runtime.news import News
from protocol.limits import EVENTS_WAITING_MAX


async def heard(news):
    async with aclosing(news.listen()) as listening:
        return [event.reason async for event in listening]


async def test_who_does_not_listen_fast_enough_loses_the_oldest_and_it_is_counted():
    news = News()
    news.tell(Lost(reason="nobody listens yet"))
    listening = asyncio.create_task(heard(news))
    await asyncio.sleep(0)
    for number in range(EVENTS_WAITING_MAX + 3):
        news.tell(Lost(reason=str(number)))
    news.end()
    assert await listening == [str(number) for number in range(3, EVENTS_WAITING_MAX + 3)]
    assert news.lost == 3


async def test_everybody_hears_everything_until_the_end_and_who_comes_then_hears_nothing():
    news = News()
    listening = [asyncio.create_task(heard(news)) for _ in range(2)]
    await asyncio.sleep(0)
    news.tell(Lost(reason="cable"))
    news.end()
    assert await asyncio.gather(*listening) == [["cable"], ["cable"]]
    assert await heard(news) == []
    assert news.lost == 0


async def test_who_goes_is_told_nothing_more():
    news = News()
    async with aclosing(news.listen()) as listening:
        first = asyncio.create_task(anext(listening))
        await asyncio.sleep(0)
        news.tell(Lost(reason="cable"))
        assert (await first).reason == "cable"
    for _ in range(EVENTS_WAITING_MAX + 1):
        news.tell(Lost(reason="again"))
    assert news.lost == 0
