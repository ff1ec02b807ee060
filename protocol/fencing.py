"""A fence in a table of a database, through DB-API 2.0: what sinks compare their writers with, and a coordinator raises.

One row per sink holds the incarnation, one more per participant its session. A transaction begins with an update of the first
row: in every database that locks it (in SQLite the file), so two writers, or a writer and a raised fence, never see the same
state: the comparison and what follows are one step.

Everything here blocks, and imports no driver: whoever calls it brings the connection.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from protocol.outputs import check_fence

if TYPE_CHECKING:
    from protocol.outputs import FencingToken

PARAMETERS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s"}
"""DB-API's `paramstyle` -> placeholder, for those styles that take positional parameters."""
_PREFIX: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}\Z")
DEFAULT_PREFIX: Final = "cleancut"

Cursor: TypeAlias = Any
"""DB-API 2.0's cursor; no type describes those of all drivers."""
Connection: TypeAlias = Any
"""DB-API 2.0's connection, not in autocommit mode."""


class FenceTable:
    """The table.

    Args:
        prefix: Of its name.
        paramstyle: Of the driver (``module.paramstyle``).

    Raises:
        ValueError: Another paramstyle than `PARAMETERS` knows, or a prefix that is no SQL name.
    """

    def __init__(self, prefix: str = DEFAULT_PREFIX, *, paramstyle: str = "qmark") -> None:
        if paramstyle not in PARAMETERS:
            raise ValueError(f"paramstyle {paramstyle!r} is none of {', '.join(PARAMETERS)}")
        if not _PREFIX.match(prefix):
            raise ValueError(f"{prefix!r} is no prefix for table names")
        self.mark = PARAMETERS[paramstyle]
        """Placeholder of a parameter."""
        self.fences = f"{prefix}_fences"

    def create(self, cursor: Cursor) -> None:
        """Make the table where it is not there yet."""
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self.fences} (sink VARCHAR(64) NOT NULL, participant VARCHAR(64) NOT NULL, "
            f"incarnation BIGINT NOT NULL, session BIGINT NOT NULL, PRIMARY KEY (sink, participant))"
        )

    def lock(self, cursor: Cursor, sink: str) -> int:
        """Begin a transaction that no other one on this sink runs beside; returns the fence's incarnation."""
        statement = f"UPDATE {self.fences} SET incarnation = incarnation WHERE sink = {self.mark} AND participant = ''"  # noqa: S608 - checked prefix
        cursor.execute(statement, (sink,))
        if cursor.rowcount == 0:
            # The first one ever. Two of them at once: the second meets the primary key, and comes again.
            self._insert_fence(cursor, sink, "", 0, 0)
            return 0
        return int(self._select(cursor, "incarnation", sink, "") or 0)

    def admit(self, cursor: Cursor, sink: str, writer: FencingToken) -> None:
        """Lock, compare the writer with the fence, and remember it as the newest.

        Raises:
            FencedError: It is older. The transaction is to be rolled back.
        """
        incarnation = self.lock(cursor, sink)
        session = self._select(cursor, "session", sink, writer.participant)
        check_fence(writer, incarnation=incarnation, session=int(session or 0), where=f"sink {sink}")
        if writer.incarnation > incarnation:
            self._set(cursor, "incarnation", writer.incarnation, sink, "")
        if session is None:
            self._insert_fence(cursor, sink, writer.participant, writer.incarnation, writer.session)
        elif writer.session > int(session):
            self._set(cursor, "session", writer.session, sink, writer.participant)

    def raise_fence(self, cursor: Cursor, sink: str, incarnation: int) -> None:
        """Nothing older than this is admitted once the transaction is committed."""
        if incarnation > self.lock(cursor, sink):
            self._set(cursor, "incarnation", incarnation, sink, "")

    def _select(self, cursor: Cursor, column: str, sink: str, participant: str) -> Any:  # noqa: ANN401 - a number or None
        statement = f"SELECT {column} FROM {self.fences} WHERE sink = {self.mark} AND participant = {self.mark}"  # noqa: S608 - checked prefix
        cursor.execute(statement, (sink, participant))
        row = cursor.fetchone()
        return None if row is None else row[0]

    def _set(self, cursor: Cursor, column: str, number: int, sink: str, participant: str) -> None:
        mark = self.mark
        statement = f"UPDATE {self.fences} SET {column} = {mark} WHERE sink = {mark} AND participant = {mark}"  # noqa: S608 - checked prefix
        cursor.execute(statement, (number, sink, participant))

    def _insert_fence(self, cursor: Cursor, sink: str, participant: str, incarnation: int, session: int) -> None:
        marks = ", ".join([self.mark] * 4)
        columns = "sink, participant, incarnation, session"
        statement = f"INSERT INTO {self.fences} ({columns}) VALUES ({marks})"  # noqa: S608 - checked prefix
        cursor.execute(statement, (sink, participant, incarnation, session))
