"""A process whose agent charges once when it starts, at a bank that is a file; for tests that kill it.

Arguments: folder, mode (``token``, ``resolve``, ``nothing``), ledger (``local`` or a Redis URL). Prints one JSON line when its
turn is over or parked, or when it was ended. What it is told by its environment: the failpoints of `protocol.failpoints`, and
``BANK_HANGS``: the call waits, after the charge, until that file is gone.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from participant import Agent, Context, DidNotHappen, value
from participant.runtime.effects_local import LocalEffects
from participant.runtime.effects_redis import RedisEffects
from participant.runtime.log_files import LocalFolder
from participant.testing import Cluster
from protocol.errors import SnapshotError

FOLDER = Path(sys.argv[1])
MODE = sys.argv[2]
LEDGER = sys.argv[3]
BANK = FOLDER / "bank"


def charges() -> list[list[str]]:
    return [line.split() for line in BANK.read_text().splitlines()] if BANK.exists() else []


async def charge(cents: int, *, token: str) -> str:
    if MODE == "token" and any(known == token for known, _ in charges()):
        return f"receipt {token}"
    with BANK.open("a") as file:
        file.write(f"{token} {cents}\n")
        file.flush()
        os.fsync(file.fileno())
    hangs = os.environ.get("BANK_HANGS")
    if hangs:
        print("charged", flush=True)
        while Path(hangs).exists():  # noqa: ASYNC110, ASYNC240 - another process removes it
            await asyncio.sleep(0.005)
    return f"receipt {token}"


async def find(token: str) -> Any:
    return f"receipt {token}" if any(known == token for known, _ in charges()) else DidNotHappen()


class Shop(Agent, kind="shop"):
    receipt = value(str, default="")

    async def on_start(self, ctx: Context) -> None:
        how = {"token": {"idempotent": True}, "resolve": {"resolve": find}, "nothing": {}}[MODE]
        self.receipt = await ctx.step(charge, 500, **how)


async def main() -> None:
    shop = Shop("main")
    cluster = Cluster(shop)
    ledger = LocalEffects(LocalFolder(FOLDER / "local", "p1"), cluster="test", participant="p1")
    cluster.effects = RedisEffects(LEDGER, cluster="test") if LEDGER != "local" else ledger  # type: ignore[assignment]
    outcome: dict[str, Any] = {}
    try:
        async with cluster:
            parked = [turn.cause for turn in cluster.participant_of("shop/main").parked]
            outcome = {"receipt": shop.receipt, "parked": parked}
    except SnapshotError as error:
        outcome = {"ended": type(error).__name__, "reason": str(error)}
    print(json.dumps({**outcome, "charges": len(charges())}), flush=True)


asyncio.run(main())
