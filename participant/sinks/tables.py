"""Tokens and fences in two tables of a database, through DB-API 2.0: what `SqlSink` and `FileSink` stand on.

Rules:
    * A transaction begins with an update of the fence's row. In every database that locks the row (in SQLite the file), so
      two writers, or a writer and a raised fence, never see the same state: the comparison and the write are one step.
    * Tokens go in with the rows that they stand for, in the same transaction.

Everything here blocks; sinks call it in a thread.
"""

from __future__ import annotations

import hmac
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from participant.outbox import DELIVERED, DUPLICATE, Outcome, Receipt
from protocol.outputs import check_fence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from participant.sinks.base import SinkOutput
    from protocol.outputs import FencingToken

PARAMETERS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s"}
"""DB-API's `paramstyle` -> placeholder, for those styles that take positional parameters."""
_LOOKED_UP_AT_ONCE: Final = 100
_PREFIX: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}\Z")


Cursor: TypeAlias = Any
"""DB-API 2.0's cursor; no type describes those of all drivers."""
Connection: TypeAlias = Any
"""DB-API 2.0's connection, not in autocommit mode."""


class Tables:
    """The two tables.

    Args:
        prefix: Of their names.
        paramstyle: Of the driver (``module.paramstyle``).

    Raises:
        ValueError: Another paramstyle than `PARAMETERS` knows, or a prefix that is no SQL name.
    """

    def __init__(self, prefix: str = "cleancut", *, paramstyle: str = "qmark") -> None:
        if paramstyle not in PARAMETERS:
            raise ValueError(f"paramstyle {paramstyle!r} is none of {', '.join(PARAMETERS)}")
        if not _PREFIX.match(prefix):
            raise ValueError(f"{prefix!r} is no prefix for table names")
        self._mark = PARAMETERS[paramstyle]
        self.outputs = f"{prefix}_outputs"
        self.fences = f"{prefix}_fences"

    def create(self, cursor: Cursor) -> None:
        """Make the tables where they are not there yet."""
        # ON CONFLICT and upserts are spelled differently everywhere; this is what all databases take.
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self.outputs} (token VARCHAR(64) PRIMARY KEY, sink VARCHAR(64) NOT NULL, "
            f"agent VARCHAR(160) NOT NULL, digest VARCHAR(64) NOT NULL, after_epoch BIGINT NOT NULL, "
            f"incarnation BIGINT NOT NULL)"
        )
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self.fences} (sink VARCHAR(64) NOT NULL, participant VARCHAR(64) NOT NULL, "
            f"incarnation BIGINT NOT NULL, session BIGINT NOT NULL, PRIMARY KEY (sink, participant))"
        )

    def lock(self, cursor: Cursor, sink: str) -> int:
        """Begin a transaction that no other one on this sink runs beside; returns the fence's incarnation."""
        statement = f"UPDATE {self.fences} SET incarnation = incarnation WHERE sink = {self._mark} AND participant = ''"  # noqa: S608 - checked prefix
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

    def take(
        self,
        cursor: Cursor,
        sink: str,
        writer: FencingToken,
        outputs: Sequence[SinkOutput],
        write: Callable[[Cursor, list[SinkOutput]], object],
    ) -> list[Receipt]:
        """Within a transaction: compare the fence, leave out what is there, write the rest, remember its tokens.

        Args:
            cursor: Of the transaction.
            sink: The sink's name.
            writer: Who writes.
            outputs: A batch.
            write: Writes those outputs of it that are new; with the same cursor where that is possible.

        Returns:
            A receipt for each output, valid once the transaction is committed.

        Raises:
            FencedError: The writer is a zombie.
        """
        self.admit(cursor, sink, writer)
        known = self._known(cursor, [output.token for output in outputs])
        receipts: list[Receipt] = []
        new: list[SinkOutput] = []
        for output in outputs:
            digest = output.digest.hex()
            before = known.get(output.token)
            if before is None:
                known[output.token] = digest
                new.append(output)
                receipts.append(DELIVERED)
            elif hmac.compare_digest(before, digest):
                receipts.append(DUPLICATE)
            else:
                receipts.append(Receipt(Outcome.DIVERGED))
        if new:
            write(cursor, new)
            marks = ", ".join([self._mark] * 6)
            rows = [(each.token, sink, each.agent, each.digest.hex(), each.after, writer.incarnation) for each in new]
            columns = "token, sink, agent, digest, after_epoch, incarnation"
            cursor.executemany(f"INSERT INTO {self.outputs} ({columns}) VALUES ({marks})", rows)  # noqa: S608 - checked prefix
        return receipts

    def outputs_after(self, cursor: Cursor, sink: str, epoch: int) -> list[tuple[str, str, int]]:
        """Token, agent and newest epoch before it, of every output that is no part of this epoch."""
        cursor.execute(
            f"SELECT token, agent, after_epoch FROM {self.outputs} "  # noqa: S608 - checked prefix
            f"WHERE sink = {self._mark} AND after_epoch >= {self._mark} ORDER BY after_epoch, token",
            (sink, epoch),
        )
        return [(str(token), str(agent), int(after)) for token, agent, after in cursor.fetchall()]

    def _known(self, cursor: Cursor, tokens: list[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for start in range(0, len(tokens), _LOOKED_UP_AT_ONCE):
            some = tokens[start : start + _LOOKED_UP_AT_ONCE]
            marks = ", ".join([self._mark] * len(some))
            cursor.execute(f"SELECT token, digest FROM {self.outputs} WHERE token IN ({marks})", tuple(some))  # noqa: S608 - checked prefix
            found.update((str(token), str(digest)) for token, digest in cursor.fetchall())
        return found

    def _select(self, cursor: Cursor, column: str, sink: str, participant: str) -> Any:  # noqa: ANN401 - a number or None
        statement = f"SELECT {column} FROM {self.fences} WHERE sink = {self._mark} AND participant = {self._mark}"  # noqa: S608 - checked prefix
        cursor.execute(statement, (sink, participant))
        row = cursor.fetchone()
        return None if row is None else row[0]

    def _set(self, cursor: Cursor, column: str, number: int, sink: str, participant: str) -> None:
        mark = self._mark
        statement = f"UPDATE {self.fences} SET {column} = {mark} WHERE sink = {mark} AND participant = {mark}"  # noqa: S608 - checked prefix
        cursor.execute(statement, (number, sink, participant))

    def _insert_fence(self, cursor: Cursor, sink: str, participant: str, incarnation: int, session: int) -> None:
        marks = ", ".join([self._mark] * 4)
        columns = "sink, participant, incarnation, session"
        statement = f"INSERT INTO {self.fences} ({columns}) VALUES ({marks})"  # noqa: S608 - checked prefix
        cursor.execute(statement, (sink, participant, incarnation, session))
