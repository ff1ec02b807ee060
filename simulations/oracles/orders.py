"""I29 for charges, I19 for acknowledged input, I30 at the end: what the bank and the archive have against what agents remember.

At each cut: no order was handled twice, each was charged, and a state remembers what the bank and the human said. At the
end, for everything in the surviving history: charged once, its receipt in the archive, and no acknowledged input missing.
Charges and answers of work that was given up are allowed: they stay, as the world does not roll back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from simulations.state_forms import agent_fields
from simulations.violations import LivenessViolation, Violation
from simulations.world import SECOND

if TYPE_CHECKING:
    from simulations.cluster import SimulatedCluster
    from simulations.workloads.orders import Orders


def check_orders(where: str, fields: dict[str, Any], orders: Orders) -> None:
    """Judge one desk's state.

    Raises:
        Violation: I6, I29.
    """
    charges = orders.outside.bank.charges
    receipts = dict(fields.get("receipts", {}))
    for order, count in dict(fields.get("handled", {})).items():
        if count != 1:
            raise Violation("I6", f"{where}: order {order} was handled {count} times")
        charge = charges.get(order)
        if charge is None:
            raise Violation("I29", f"{where}: order {order} was handled, and never charged")
        if receipts.get(order) != charge.result:
            raise Violation(
                "I29",
                f"{where}: it remembers {receipts.get(order)} for order {order}, and the bank said {charge.result}",
            )
    for order, answer in dict(fields.get("answers", {})).items():
        told = orders.told.get(order, answer)
        if told != answer:
            raise Violation("I29", f"{where}: order {order} was answered {told!r}, and it remembers {answer!r}")


def _may_be_lost(cluster: SimulatedCluster, token: str, desk: str, logs: list[str]) -> bool:
    """Its desk has left the cluster, or was given up, or nobody comes back who has it in a log."""
    if desk.partition("/")[2] in cluster.have_left or cluster.placements.gave_up(desk):
        return True
    gone = {*cluster.have_left, *cluster.absent}
    if logs:
        return gone.issuperset(logs)
    # Whoever took it was not heard: a customer's own participant, or anybody where they go elsewhere.
    takers = cluster.participants if cluster.options.elsewhere else [token.partition("-")[0]]
    return not gone.isdisjoint(takers)


def demand_orders(cluster: SimulatedCluster, orders: Orders) -> None:
    """Judge the end, in a quiet world.

    Raises:
        Violation: I6, I19, I29.
        LivenessViolation: I30.
    """

    def at_rest() -> bool:
        # A customer whose order was not taken gives it again, also in a world that has come to rest.
        return not any(orders.waiting.values()) and cluster.idle()

    if not cluster.world.run(cluster.world.now + 60 * SECOND, until=at_rest):
        raise LivenessViolation("L9", f"orders that are not taken or not handled after 60 s: {orders.waiting}")
    desks: dict[str, dict[str, Any]] = {
        host.id: {
            name: dict(found) if isinstance(found, list) else found for name, found in agent_fields(host.agent).items()
        }
        for life in cluster.lives.values()
        if life.member
        for host in life.hosts
        if host.id.startswith("desk/")
    }
    for name, fields in desks.items():
        check_orders(name, fields, orders)
    for token, (desk, logs) in orders.acknowledged.items():
        if _may_be_lost(cluster, token, desk, logs):
            continue
        name = orders.names.now(desk)
        if name not in desks and cluster.options.elsewhere:
            continue  # it waits for a desk that nobody hosts
        if token not in desks.get(name, {}).get("handled", {}):
            raise Violation(
                "I19", f"input {token} for {desk} was acknowledged, is in the logs of {logs}, and is not there"
            )
    wanted = {order: fields["receipts"][order] for fields in desks.values() for order in fields.get("handled", {})}

    def missing() -> list[str]:
        kept = {}
        for payload in orders.outside.archive.kept.values():
            receipt = msgspec.msgpack.decode(payload)
            kept[receipt["order"]] = receipt["result"]
        return [order for order, result in wanted.items() if kept.get(order) != result]

    bound = cluster.world.now + 60 * SECOND
    while missing() and cluster.world.now < bound:
        cluster.world.run(cluster.world.now + SECOND)
    if missing():
        raise LivenessViolation(
            "I30", f"receipts that are not in the archive after 60 s: {missing()[:4]} of {len(wanted)}"
        )
