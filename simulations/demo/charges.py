"""The bank outside as the demo's child, and its ledger against what the cluster's last cut says of it."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.reading import EpochReader
from simulations.demo import children, summary
from simulations.demo.agents import CASHIER, price
from simulations.demo.cluster import ClusterFailed
from simulations.demo.outside import audit, read_ledger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from protocol.ports import ObjectStore
    from simulations.demo.outside import Audit, Charge

ANSWER_MS = 40
"""How long the bank takes to answer a charge that it has made: long enough for a client to die without having heard."""
START_SECONDS = 30.0
CHARGE_WAIT_SECONDS = 15.0
POLL_SECONDS = 0.001
SHOWN_MAX = 5


@dataclass(frozen=True)
class BankProcess:
    """The bank, running."""

    child: children.Child
    url: str
    ledger: Path

    def charges(self) -> list[Charge]:
        """Its ledger so far."""
        return read_ledger(self.ledger) if self.ledger.exists() else []

    async def wait_charge(self) -> Charge:
        """The next charge, as soon as it is in the ledger: its answer has not left yet.

        Raises:
            ClusterFailed: Nothing is charged.
        """
        loop = asyncio.get_running_loop()
        before, limit = self._size(), loop.time() + CHARGE_WAIT_SECONDS
        while loop.time() < limit:
            await asyncio.sleep(POLL_SECONDS)
            if self._size() > before:
                return self.charges()[-1]
        raise ClusterFailed(f"no order was charged within {CHARGE_WAIT_SECONDS:.0f} s")

    def _size(self) -> int:
        return self.ledger.stat().st_size if self.ledger.exists() else 0


async def start_bank(folder: Path) -> BankProcess:
    """Start it; its ledger is ``bank.jsonl`` in `folder`.

    Raises:
        ClusterFailed: It did not start.
    """
    ledger = folder / "bank.jsonl"
    child = await children.start(
        "bank",
        [sys.executable, "-m", "simulations.demo.outside", str(ledger), str(ANSWER_MS)],
        log=folder / "logs" / "bank.log",
    )
    try:
        line = await asyncio.wait_for(child.read_line(), START_SECONDS)
        url = str(json.loads(line)["url"])
    except (TimeoutError, ValueError, KeyError):
        await child.stop()
        raise ClusterFailed(f"the bank did not start; the end of {child.log}:\n{child.last_lines()}") from None
    return BankProcess(child, url, ledger)


def paid_orders(store: ObjectStore, epoch: int) -> dict[int, str]:
    """Order -> receipt, as one cut has them."""
    reader = EpochReader(store, summary.read_manifest(store, epoch))
    paid = summary.fields(reader, CASHIER).get("paid", {})
    return {int(number): str(receipt) for number, receipt in paid.items()}


def audit_orders(charges: Sequence[Charge], paid: dict[int, str]) -> tuple[Audit, list[str]]:
    """The bank's ledger against a cut.

    Args:
        charges: The whole ledger.
        paid: Order -> receipt, of the cut.

    Returns:
        What was charged too often or never, and what else does not agree, in sentences.
    """
    found = audit(charges, (f"order-{number}" for number in paid))
    by_order = {charge.order: charge for charge in charges}
    problems = []
    if found.duplicated:
        problems.append(f"charged more than once: {_some(found.duplicated)}")
    if found.lost:
        problems.append(f"never charged, and counted as paid: {_some(found.lost)}")
    for number, receipt in sorted(paid.items()):
        charge = by_order.get(f"order-{number}")
        if charge is None or charge.order in found.duplicated:
            continue
        if charge.receipt != receipt:
            problems.append(f"order-{number} has receipt {receipt}; the bank's is {charge.receipt}")
        if charge.cents != price(number):
            problems.append(f"order-{number} was charged {charge.cents} cents; its price is {price(number)}")
    return found, problems


def _some(orders: Sequence[str]) -> str:
    more = f" and {len(orders) - SHOWN_MAX} more" if len(orders) > SHOWN_MAX else ""
    return f"{', '.join(orders[:SHOWN_MAX])}{more}"
