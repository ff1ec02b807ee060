"""L7 of the drivers: nothing is left behind. What a driver holds when all is quiet does not depend on what it went through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simulations.violations import LivenessViolation, Violation
from simulations.world import SECOND

if TYPE_CHECKING:
    from coordinator.runtime.connections import ParticipantHub
    from simulations.runtimes.cluster import RuntimeCluster

PARTICIPANT_TASKS_MAX: Final = 12
"""Main program, control connection with writer and heartbeat, and an open epoch with its uploads."""
_BOUND_NS: Final = 90 * SECOND


def check_one_connection(name: str, hub: ParticipantHub) -> None:
    """At most one connection of a session is not being closed: what it says is not said twice.

    Raises:
        Violation: L7.
    """
    seen: dict[int, int] = {}
    for connection in hub._connections.values():  # noqa: SLF001 - an oracle looks at what the driver has
        if connection.session and connection.closing is None:
            if connection.session in seen:
                raise Violation(
                    "L7",
                    f"{name} keeps connections {seen[connection.session]} and {connection.id} of session "
                    f"{connection.session}",
                )
            seen[connection.session] = connection.id


def demand_nothing_left(cluster: RuntimeCluster) -> None:
    """L7: connections, requests, threads and tasks of the drivers come down to what a quiet cluster needs.

    Raises:
        LivenessViolation: They do not.
    """
    if not cluster.world.run(cluster.world.now + _BOUND_NS, until=lambda: not _left(cluster)):
        raise LivenessViolation("L7", f"left behind in a quiet cluster: {_left(cluster)}")


def _left(cluster: RuntimeCluster) -> str:
    """What is too much, in words; "" for nothing."""
    leader = cluster.log.leader
    for coordinator in cluster.coordinators():
        driver = coordinator.driver
        most = len(cluster.participants) if coordinator is leader else 0
        if driver.hub.open_count > most:
            return (
                f"{coordinator.name} has {driver.hub.open_count} connections, {driver.hub.bound_count} with a session"
            )
        if driver._requests:  # noqa: SLF001 - as above
            return f"{coordinator.name} has requests without an answer: {list(driver._requests)}"  # noqa: SLF001 - as above
        busy = driver.store_threads_busy - cluster.lost_threads.get((coordinator.name, coordinator.number), 0)
        if busy > 2:  # one epoch's
            return f"{coordinator.name} has {busy} threads in the store"
    for name in cluster.participants:
        participant = cluster.participant(name)
        tasks = participant.loop.tasks() if participant is not None else []
        if len(tasks) > PARTICIPANT_TASKS_MAX:
            return f"{name} has {len(tasks)} tasks: {[task.get_name() for task in tasks]}"
    return ""
