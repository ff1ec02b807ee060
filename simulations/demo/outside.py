"""The bank outside of the cluster: a process that charges cards and keeps a ledger of its own.

``python -m simulations.demo.outside LEDGER.jsonl [ANSWER_MS]`` prints ``{"url": ...}`` and serves until its standard input ends.

It is as plain as a bank of the worst kind: it knows no idempotency, so each request that reaches it is one more charge, in
the ledger on its disk before it is answered. What is charged twice, or never, shows there and nowhere else.

    POST /charges {"token", "order", "cents"}   -> {"receipt"}
    GET  /charges/{token}                       -> {"receipt"} of the first charge with this token, or 404
    GET  /ledger                                -> [{"receipt", "token", "order", "cents"}, ...] in order
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Iterable


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the ledger."""

    receipt: str
    token: str
    """What the client called this charge."""
    order: str
    cents: int


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    token: str
    order: str
    cents: int


class OutsideBank:
    """The bank's only state: an append-only file, and where each token stands in it."""

    def __init__(self, ledger: Path, *, answer_seconds: float = 0.0) -> None:
        """Open, or begin, a ledger.

        Args:
            ledger: A file of one JSON document a line.
            answer_seconds: From a charge to its answer: how long a client may die without having heard.
        """
        self._answer_seconds = answer_seconds
        self.charges = read_ledger(ledger) if ledger.exists() else []
        self._receipts = {charge.token: charge.receipt for charge in reversed(self.charges)}
        self._file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def charge(self, token: str, order: str, cents: int) -> str:
        """Charge once more, whatever was charged before. Returns the receipt."""
        charge = Charge(receipt=f"r{len(self.charges) + 1}", token=token, order=order, cents=cents)
        os.write(self._file, msgspec.json.encode(charge) + b"\n")
        os.fsync(self._file)
        self.charges.append(charge)
        self._receipts.setdefault(token, charge.receipt)
        return charge.receipt

    def receipt(self, token: str) -> str | None:
        """Of the first charge with this token."""
        return self._receipts.get(token)

    def close(self) -> None:
        """No charge any more."""
        os.close(self._file)

    def application(self) -> web.Application:
        """The HTTP side. A charge is made in one step: it is never between two others."""
        application = web.Application()
        application.add_routes(
            [
                web.post("/charges", self._post),
                web.get("/charges/{token}", self._get),
                web.get("/ledger", self._ledger),
            ]
        )
        return application

    async def _post(self, request: web.Request) -> web.Response:
        try:
            wanted = msgspec.json.decode(await request.read(), type=_Request)
        except msgspec.MsgspecError as error:
            return web.json_response({"error": str(error)}, status=400)
        receipt = self.charge(wanted.token, wanted.order, wanted.cents)
        await asyncio.sleep(self._answer_seconds)
        return web.json_response({"receipt": receipt})

    async def _get(self, request: web.Request) -> web.Response:
        receipt = self.receipt(request.match_info["token"])
        if receipt is None:
            return web.json_response({"error": "no charge with this token"}, status=404)
        return web.json_response({"receipt": receipt})

    async def _ledger(self, _request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self.charges), content_type="application/json")


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger against what the cluster says was paid."""

    charges: int
    duplicated: tuple[str, ...]
    """Orders that were charged more than once."""
    lost: tuple[str, ...]
    """Orders that the cluster holds as paid and the bank never charged."""
    cents: int
    """Of all charges."""


def audit(charges: Iterable[Charge], paid: Iterable[str]) -> Audit:
    """Compare.

    Args:
        charges: The bank's ledger.
        paid: Orders that the cluster holds as paid.
    """
    counts: dict[str, int] = {}
    cents = 0
    for charge in charges:
        counts[charge.order] = counts.get(charge.order, 0) + 1
        cents += charge.cents
    return Audit(
        charges=sum(counts.values()),
        duplicated=tuple(sorted(order for order, count in counts.items() if count > 1)),
        lost=tuple(sorted(set(paid) - counts.keys())),
        cents=cents,
    )


def read_ledger(path: Path) -> list[Charge]:
    """All charges, in order. A last line that is not whole is none: the bank writes it, or died in the middle, and has not said so.

    Raises:
        msgspec.MsgspecError: A line is not one.
    """
    lines, _, _ = path.read_bytes().rpartition(b"\n")
    return [msgspec.json.decode(line, type=Charge) for line in lines.splitlines()]


async def serve(ledger: Path, answer_seconds: float) -> int:
    """Serve on a free port of loopback until standard input ends. Returns the process's exit code."""
    bank = OutsideBank(ledger, answer_seconds=answer_seconds)
    runner = web.AppRunner(bank.application(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    sys.stdout.write(json.dumps({"url": f"http://{host}:{port}"}) + "\n")
    sys.stdout.flush()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    await runner.cleanup()
    bank.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(serve(Path(sys.argv[1]), float(sys.argv[2]) / 1000 if len(sys.argv) > 2 else 0.0)))
