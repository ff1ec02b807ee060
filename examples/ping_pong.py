"""Two agents that play ping-pong for ever, each in a process of its own, while the cluster takes epochs.

Run it, each line in its own terminal::

    cleancut keys init ./ping --coordinators c1=127.0.0.1:7500:7400
    cleancut coordinator --config ./ping/c1.toml
    python examples/ping_pong.py ./ping left right
    python examples/ping_pong.py ./ping right left

and look at it::

    export CLEANCUT_DIR=./ping
    cleancut status
    cleancut epoch list
    cleancut epoch state latest player/left
    cleancut epoch verify latest
"""

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from participant import Agent, Context, EpochCommitted, Participant, handler, value


@dataclass(frozen=True)
class Ball:
    """What goes to and fro."""

    hits: int


class Player(Agent, kind="player"):
    """Hits the ball back after a while; counts its hits."""

    hits = value(int, default=0)

    def __init__(self, name: str, *, other: str) -> None:
        super().__init__(name)
        self._other = f"player/{other}"

    async def on_start(self, ctx: Context) -> None:
        """One of the two serves."""
        if str(ctx.self_id) < self._other:
            ctx.send(self._other, Ball(1))

    @handler
    async def on_ball(self, ctx: Context, ball: Ball) -> None:
        """One message is one turn: the counter and the next ball take effect together, or not at all."""
        await asyncio.sleep(0.05)
        self.hits += 1
        ctx.send(self._other, Ball(ball.hits + 1))


async def main(folder: Path, name: str, other: str) -> None:
    """Host one player until Ctrl-C."""
    cluster = json.loads((folder / "cleancut.json").read_text())
    participant = Participant(
        Player(name, other=other),
        id=name,
        cluster=cluster["cluster"],
        coordinators=cluster["coordinators"],
        store=str(folder / cluster["store"]),
        secret_file=str(folder / cluster["secret_file"]),
        ca_file=str(folder / cluster["ca"]) if "ca" in cluster else None,
    )
    async with participant:
        print(f"{name}: waiting for a coordinator", flush=True)
        await participant.wait_member()
        print(f"{name}: a member", flush=True)
        async for event in participant.events():
            if isinstance(event, EpochCommitted):
                print(f"{name}: epoch {event.epoch} committed", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python examples/ping_pong.py FOLDER NAME OTHER; FOLDER is that of `cleancut keys init`")
    try:
        asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
    except KeyboardInterrupt:
        print("ended")
