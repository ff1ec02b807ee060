"""How long the event loop was held: an idle ticker beside the agents, read apart for the time around a cut and the rest.

A gap is how much later than asked the ticker woke. On a busy machine the operating system causes gaps too; the gaps
outside of cuts, measured in the same run, say how large those are.
"""

from __future__ import annotations

import asyncio

TICK_SECONDS = 0.002
CUT_SECONDS = 0.25
"""A gap this long or less before an epoch's end counts as the cut's."""


class StallMeter:
    """Longest gaps, in milliseconds."""

    def __init__(self) -> None:
        self._recent: list[tuple[float, float]] = []
        self._in_cut: list[float] = []
        self._outside: list[float] = []

    async def run(self) -> None:
        """Tick for ever."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(TICK_SECONDS)
            after = loop.time()
            self._recent.append((after, after - before - TICK_SECONDS))
            if len(self._recent) > 2000:
                self._outside.extend(gap for _, gap in self._recent[:1000])
                del self._recent[:1000]
                self._outside = sorted(self._outside)[-200:]

    def note(self, event: object) -> None:
        """An event of the participant; the end of an epoch closes its window."""
        if type(event).__name__ != "EpochCommitted":
            return
        since = asyncio.get_running_loop().time() - CUT_SECONDS
        self._in_cut.append(max((gap for at, gap in self._recent if at >= since), default=0.0))
        self._outside.extend(gap for at, gap in self._recent if at < since)
        self._outside = sorted(self._outside)[-200:]
        self._recent.clear()

    def result(self) -> dict[str, float]:
        """Longest gaps around cuts and outside of them, in milliseconds."""
        return {
            "in_cut_ms": round(1000 * max(self._in_cut, default=0.0), 3),
            "outside_ms": round(1000 * max(self._outside, default=0.0), 3),
        }
