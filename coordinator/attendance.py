"""Who is connected, who was heard when, who has accepted the topology. Local to one leader, never replicated.

A lease is measured on this leader's monotonic clock from what it heard itself. After a change of leader all leases start
anew, and are longer until their participant is heard: it must first notice that the leader is gone, and may try a
coordinator that hangs before it finds this one. A lease alone fenced whole clusters whose leader had been stopped. The
same holds after this leader itself slept (stopped process, stalled loop): the silence may be its own.

The ledger decides who is a member; this table only knows how to reach them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.ids import Instant
from protocol.limits import LEASE_CHECKS, RECONNECT_NS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.ledger import TopologyRecord


@dataclass(slots=True, kw_only=True)
class Attendee:
    """One live session."""

    participant: str
    session: int
    heard_at: Instant
    connection: int | None = None
    why_gone: str = ""
    """Of the last connection."""
    gone_at: Instant | None = None
    """When this leader saw its connection close; None: it has one, or has not come to this leader yet."""
    newcomer: bool = False
    """Member since the current topology version, seen by this leader."""
    grace_ns: int = 0
    """On top of the lease, until it is heard."""

    def heard(self, now: Instant) -> None:
        """It has said something."""
        self.heard_at = now
        self.grace_ns = 0


class Attendance:
    """All live sessions that this leader knows."""

    def __init__(self, lease_ns: int) -> None:
        self.lease_ns = lease_ns
        self.next_check = Instant(0)
        """When `silent` wants to be asked next."""
        self._by_session: dict[int, Attendee] = {}
        self._session_of: dict[int, int | None] = {}
        """Connection -> session; None: not registered yet."""
        self._not_ready: dict[int, None] = {}
        """Members of the current topology that are not connected or have not accepted it."""
        self._members: frozenset[int] = frozenset()
        """Sessions of the current topology; asked, never iterated."""
        self._topology = 0
        self.topology_since = Instant(0)

    # --- leadership -------------------------------------------------------------------------------------------------

    def begin(self, sessions: Iterable[tuple[str, int]], now: Instant) -> None:
        """A leader begins: all leases start now, with time to find this leader on top."""
        self._by_session = {
            session: Attendee(participant=participant, session=session, heard_at=now, grace_ns=RECONNECT_NS)
            for participant, session in sessions
        }
        self._session_of = dict.fromkeys(self._session_of)
        self.next_check = Instant(now + self.lease_ns // LEASE_CHECKS)

    def end(self) -> list[int]:
        """Leadership is over; returns the connections, which stay open until they are closed."""
        self._by_session.clear()
        self._not_ready.clear()
        self._members = frozenset()
        return sorted(self._session_of)

    # --- connections ------------------------------------------------------------------------------------------------

    def connected(self, connection: int) -> None:
        """A connection that has not registered yet."""
        self._session_of[connection] = None

    def disconnected(self, connection: int, reason: str, now: Instant) -> int | None:
        """The lease of its session goes on from what was heard last; returns the session that it leaves without one."""
        session = self._session_of.pop(connection, None)
        attendee = None if session is None else self._by_session.get(session)
        if attendee is not None and attendee.connection == connection:
            attendee.connection = None
            attendee.why_gone = reason
            attendee.gone_at = now
            self._lacks(attendee.session)
            return attendee.session
        return None

    def is_open(self, connection: int) -> bool:
        """This connection was not reported as gone."""
        return connection in self._session_of

    def attach(self, participant: str, session: int, connection: int, now: Instant) -> int | None:
        """Bind a session to a connection; returns the connection that it replaces."""
        attendee = self._by_session.get(session)
        if attendee is None:
            attendee = Attendee(participant=participant, session=session, heard_at=now)
            self._by_session[session] = attendee
        replaced = attendee.connection
        if replaced is not None:
            self._session_of[replaced] = None
        attendee.connection = connection
        attendee.gone_at = None
        attendee.heard(now)
        self._session_of[connection] = session
        self._lacks(session)  # it has to accept the topology again: what it knew of it may be gone
        return replaced if replaced != connection else None

    def expect(self, participant: str, session: int, now: Instant) -> None:
        """A session whose connection went away while it was registered: its lease runs."""
        self._by_session.setdefault(session, Attendee(participant=participant, session=session, heard_at=now))

    def attendee_of(self, connection: int) -> Attendee | None:
        """Who speaks on this connection; None: nobody registered on it, or its session has ended."""
        session = self._session_of.get(connection)
        return None if session is None else self._by_session.get(session)

    def attendee(self, session: int) -> Attendee | None:
        """The live session with this number."""
        return self._by_session.get(session)

    def forget(self, session: int) -> int | None:
        """A session has ended; returns its connection."""
        attendee = self._by_session.pop(session, None)
        self._not_ready.pop(session, None)
        if attendee is None or attendee.connection is None:
            return None
        self._session_of[attendee.connection] = None
        return attendee.connection

    def __len__(self) -> int:
        return len(self._by_session)

    # --- topology ---------------------------------------------------------------------------------------------------

    def topology_set(self, topology: TopologyRecord, newcomers: Iterable[int], now: Instant) -> None:
        """From now on acceptance of this version counts; everyone has to give it again."""
        self._topology = topology.version
        self.topology_since = now
        for attendee in self._by_session.values():
            attendee.newcomer = False
        for session in newcomers:
            newcomer = self._by_session.get(session)
            if newcomer is not None:
                newcomer.newcomer = True
        self._not_ready = dict.fromkeys(member.session for member in topology.members)
        self._members = frozenset(self._not_ready)

    def accepted(self, session: int, version: int) -> None:
        """All channels of this version can be used by this participant."""
        attendee = self._by_session.get(session)
        if version == self._topology and attendee is not None and attendee.connection is not None:
            self._not_ready.pop(session, None)
            # It has been able to; should it be disconnected later, its lease decides, as everybody's.
            attendee.newcomer = False

    def not_ready(self) -> list[int]:
        """Sessions of members that an epoch would have to wait for before it could even start."""
        return sorted(self._not_ready)

    @property
    def all_ready(self) -> bool:
        """Every member is connected and has accepted the topology."""
        return not self._not_ready

    def _lacks(self, session: int) -> None:
        if session in self._members:
            self._not_ready[session] = None

    def suspected(self) -> str:
        """A participant whose connection has closed and that is neither back nor lost; "" if there is none."""
        return next((each.participant for each in self._by_session.values() if each.gone_at is not None), "")

    # --- leases -----------------------------------------------------------------------------------------------------

    def silent(self, now: Instant, suspect_ns: int | None = None) -> list[Attendee]:
        """Sessions whose lease is over, oldest session first. Ask when `next_check` has come.

        Args:
            now: Instant.
            suspect_ns: Those whose connection closed this long ago count as silent, too; None: their lease decides.
        """
        if now < self.next_check:
            return []
        slept_ns = now - self.next_check
        self.next_check = Instant(now + self.lease_ns // LEASE_CHECKS)
        if slept_ns > self.lease_ns // 2:
            for attendee in self._by_session.values():
                attendee.heard_at, attendee.grace_ns = now, RECONNECT_NS
                attendee.gone_at = None
            self.topology_since = now  # whoever has just joined may have accepted it meanwhile, unread
            return []
        return [
            attendee
            for _, attendee in sorted(self._by_session.items())
            if now - attendee.heard_at > self.lease_ns + attendee.grace_ns
            or (suspect_ns is not None and attendee.gone_at is not None and now - attendee.gone_at > suspect_ns)
        ]
