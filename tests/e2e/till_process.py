"""A participant whose agent writes a line for each sale, to a file that only grows; for tests that kill or freeze it.

Arguments: a JSON document with ``id``, ``cluster``, ``coordinators``, ``store``, ``secret_file``, ``local`` and ``out``. Failpoints
come by the environment. Prints a line of JSON when it is a member, and one when it is ended.
"""

import asyncio
import json
import sys

import msgspec

from participant import Agent, Context, Participant, handler, value
from participant.sinks import FileSink
from protocol.errors import SnapshotError


class Sale(msgspec.Struct, frozen=True):
    number: int


class Till(Agent, kind="till"):
    """Each sale becomes one line here, and one at the agent of the other participant."""

    sold = value(int, default=0)

    @handler
    async def on_sale(self, ctx: Context, sale: Sale) -> None:
        self.sold += 1
        ctx.emit("sales", {"till": ctx.self_id, "number": sale.number})
        if ctx.source.startswith("outside/"):
            ctx.send("till/b" if ctx.self_id == "till/a" else "till/a", sale)


async def main() -> None:
    given = json.loads(sys.argv[1])
    sink = FileSink("sales", given.pop("out"))
    try:
        async with Participant(Till(given["id"]), sinks=[sink], **given) as participant:
            await participant.wait_member()
            print(json.dumps({"member": participant.session}), flush=True)
            async for _ in participant.events():
                pass
    except SnapshotError as error:
        print(json.dumps({"ended": type(error).__name__, "reason": str(error)}), flush=True)
        sys.exit(3)


if __name__ == "__main__":
    asyncio.run(main())
