"""A participant's process for tests that kill it: its agents charge at a bank that hangs after the charge, and ask.

Arguments: id, agents' names with commas, coordinators with commas, store, secret file, folder for local files, bank. The bank is
a folder: each charge is a file in it; while it holds a file ``hangs``, a charge does not come back.
"""

import asyncio
import sys
from pathlib import Path

from participant import Participant
from tests.operator_world import Buyer, Order, Receipt

NAME, AGENTS, COORDINATORS, STORE, SECRET, LOCAL, BANK = sys.argv[1:]


class BankBuyer(Buyer, kind="buyer"):
    """Charges outside of its process."""

    async def charge(self, order: Order, cents: int, *, token: str) -> Receipt:
        number = len(list(Path(BANK).glob("charge-*"))) + 1  # noqa: ASYNC240 - a folder of a few files
        (Path(BANK) / f"charge-{number}").write_text(f"{token} {order.id} {cents}")
        while (Path(BANK) / "hangs").exists():  # noqa: ASYNC110 - the test removes it
            await asyncio.sleep(0.005)
        return Receipt(number)


async def main() -> None:
    async with Participant(
        *(BankBuyer(name) for name in AGENTS.split(",")),
        id=NAME,
        cluster="shop",
        coordinators=COORDINATORS.split(","),
        store=STORE,
        secret_file=SECRET,
        local=LOCAL,
    ) as participant:
        await participant.wait_member()
        print("member", flush=True)
        async for _ in participant.events():
            pass


asyncio.run(main())
