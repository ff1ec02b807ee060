"""I33, for senders: what a participant keeps of messages is what it says, and outside input cannot drive it beyond its limit.

The limit is looked at before an input is accepted, by sums that the product keeps as messages come and go. Here these sums
are made anew from the queues themselves. With inputs only, and agents that pass on what they get, what is in flight is at
most the limit and one message; it may grow while it is passed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simulations.violations import Violation

if TYPE_CHECKING:
    from simulations.participant_node import ParticipantLife

MESSAGE_MAX: Final = 2_000
"""Bytes of one message, its envelope included."""


def check_memory(life: ParticipantLife, limit: int, *, growth: int, bounded: bool = True) -> None:
    """Judge one participant now.

    Args:
        life: Which.
        limit: On what is in flight when an input is accepted.
        growth: A message may grow by this factor while it is passed on.
        bounded: All of its input comes from outside; False: only the sums are looked at.

    Raises:
        Violation: I33.
    """
    machine, pump = life.machine, life.pump
    mailboxes = sum(len(data) for host in life.hosts for _, data in host.mailbox)
    check_sums(
        life.name,
        {
            "in mailboxes": (pump.mailbox_bytes, mailboxes),
            "in channels": (machine.outgoing_bytes, sum(peer.outgoing_bytes for peer in machine._peers.values())),  # noqa: SLF001 - no interface tells
        },
    )
    if bounded:
        check_bound(life.name, life.in_flight_bytes, growth * (limit + MESSAGE_MAX))


def check_sums(name: str, sums: dict[str, tuple[int, int]]) -> None:
    """Compare what is kept with what is there."""
    for what, (kept, there) in sums.items():
        if kept != there:
            raise Violation("I33", f"{name} counts {kept} bytes {what}; there are {there}")


def check_bound(name: str, in_flight: int, bound: int) -> None:
    """What is in flight is not beyond its bound."""
    if in_flight > bound:
        raise Violation("I33", f"{name} has {in_flight} bytes in flight; outside input brings it to {bound} at most")
