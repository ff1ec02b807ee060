"""A participant process full of small agents that never stop: ``python -m simulations.bench.cells SPEC.json``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from participant import Agent, Context, handler, value
from simulations.demo import process
from simulations.demo.agents import Tick

STATE_BYTES = 5_000
TICK_SECONDS = 0.5


class Spec(process.Spec, frozen=True, kw_only=True):
    """The demo's, with cells in place of accounts."""

    cells: int = 0

    def make_agents(self) -> list[Agent]:
        """The agents that this process hosts."""
        return [Cell(f"{self.id}-{index}") for index in range(self.cells)]


class Cell(Agent, kind="cell"):
    """5 KB of state, a part of which changes at each tick."""

    data = value(bytes, default=b"")
    ticks = value(int, default=0)

    async def on_start(self, ctx: Context) -> None:
        """Fill up, at some distance from the others."""
        self.data = (ctx.message_id * (STATE_BYTES // len(ctx.message_id) + 1))[:STATE_BYTES]
        ctx.after(TICK_SECONDS * ctx.message_id[0] / 256, Tick())

    @handler
    def on_tick(self, ctx: Context, tick: Tick) -> None:
        """Change."""
        self.ticks += 1
        self.data = self.data[16:] + ctx.message_id
        ctx.after(TICK_SECONDS, Tick())


def main() -> int:
    """Entry point."""
    spec = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Spec)
    return asyncio.run(process.run(spec))


if __name__ == "__main__":
    sys.exit(main())
