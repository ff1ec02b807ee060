"""Whether a participant whose connection has closed is gone, or only its connection: asked of its own listening address.

A closed control connection alone says little, so a participant that has one is only suspected, for `SUSPECT_NS`. But a
process that lives goes on listening for its peers, whatever becomes of its connection to the coordinators. If its machine
refuses a connection there, no process listens, and the participant is lost at once.

Only a refusal counts, and only of an address that took a connection of this leader's earlier in the same session: an
address of another network (loopback on another machine, say) or a firewall may refuse for ever. Everything else, above all
no answer, leaves it at the old patience: a participant that is behind a proxy, that has no address (MQTT, in memory), or
whose port another process has by now. A refusal that is wrong all the same costs a needless rollback, nothing else: the
ledger decides, sessions fence whoever was declared lost and is not.

After a change of leader in the same moment there is no earlier connection to go by: leases decide, as before.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from coordinator.events import Probe
from protocol.ids import Instant
from protocol.limits import PROBE_PAUSE_NS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.attendance import Attendee
    from coordinator.desk import Desk
    from coordinator.events import Probed

_SCHEME: Final = "ws://"
"""Of addresses at which a process listens by itself."""


class _Target:
    """One session's address."""

    __slots__ = ("address", "answers", "pause_ns", "under_way")

    def __init__(self, address: str) -> None:
        self.address = address
        self.answers = False
        """It took a connection of this leader's."""
        self.under_way = False
        self.pause_ns = PROBE_PAUSE_NS
        """Before the next attempt."""


class Prober:
    """The probes of one leader. Part of `Registry`.

    Args:
        desk: Shared with the other parts.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._targets: dict[int, _Target] = {}
        """By session."""
        self._due: dict[int, int] = {}
        """Session that is to be probed -> number of its place in `_queue`."""
        self._queue: list[tuple[Instant, int, int]] = []
        """When, number, session: a heap, because it is looked at after each event and all may lose their connection at once.
        What `_due` does not name any more counts for nothing."""
        self._number = 0

    def clear(self) -> None:
        """Leadership begins or is over."""
        self._targets.clear()
        self._due.clear()
        self._queue.clear()

    def attached(self, session: int, address: str, now: Instant) -> None:
        """It has registered: find out whether its address can be asked."""
        self._due.pop(session, None)
        target = self._targets.get(session)
        if target is None or target.address != address:
            if not address.startswith(_SCHEME):
                self._targets.pop(session, None)
                return
            target = self._targets[session] = _Target(address)
        if not target.answers:
            self._schedule(session, now)

    def disconnected(self, session: int, now: Instant) -> None:
        """Its connection has closed."""
        target = self._targets.get(session)
        if target is not None and target.answers:
            target.pause_ns = PROBE_PAUSE_NS
            self._schedule(session, now)

    def forget(self, session: int) -> None:
        """It has ended."""
        self._targets.pop(session, None)
        self._due.pop(session, None)

    def keep(self, now: Instant) -> None:
        """Order what is due."""
        due = []
        while self._queue and (self._queue[0][0] <= now or self._is_void(self._queue[0])):
            entry = heappop(self._queue)
            if not self._is_void(entry):
                due.append(entry[1:])
        for _, session in sorted(due):
            del self._due[session]
            target = self._targets[session]
            if not target.under_way and self._desk.ledger.policy.recovery != "off":
                target.under_way = True
                self._desk.out.append(Probe(session=session, address=target.address))

    def answered(self, event: Probed, now: Instant) -> Attendee | None:
        """An attempt has ended; returns who is lost by what it found."""
        target = self._targets.get(event.session)
        if target is None or target.address != event.address:
            return None
        target.under_way = False
        if event.found == "listens":
            target.answers = True
        attendee = self._desk.attendance.attendee(event.session)
        if attendee is None or attendee.gone_at is None or not target.answers:
            return None
        # Until it is back, or the ledger has its end: that may need another attempt, too.
        self._schedule(event.session, Instant(now + target.pause_ns))
        target.pause_ns *= 2
        return attendee if event.found == "refuses" else None

    def next_instant(self) -> Iterator[Instant]:
        """When something here is due without any event."""
        if self._queue:
            yield self._queue[0][0]

    def _schedule(self, session: int, at: Instant) -> None:
        self._number += 1
        self._due[session] = self._number
        heappush(self._queue, (at, self._number, session))

    def _is_void(self, entry: tuple[Instant, int, int]) -> bool:
        _, number, session = entry
        return self._due.get(session) != number
