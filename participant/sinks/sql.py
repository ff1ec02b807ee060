"""Outputs as rows of a table, through DB-API 2.0: row and token in one transaction, the fence compared in it.

::

    receipts = SqlSink(
        "receipts",
        lambda: sqlite3.connect("/var/lib/shop/receipts.db"),
        "INSERT INTO receipts (order_id, cents) VALUES (?, ?)",
        row=lambda value: (value["order"], value["cents"]),
    )

The database must be one whose transactions hold (SQLite, PostgreSQL, ...): then a crash anywhere leaves row and token, or
neither. The two tables of `participant.sinks.tables` are made beside the user's own.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

from participant.outbox import Outcome, Receipt
from participant.sinks.base import SinkError, sink_name
from participant.sinks.tables import Tables
from participant.sinks.threads import OwnThread
from protocol.errors import FencedError
from protocol.failpoints import fp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from participant.sinks.base import SinkOutput
    from protocol.fencing import Connection, Cursor
    from protocol.outputs import FencingToken

_T = TypeVar("_T")

_ROWS_FAULT: Final = frozenset({"IntegrityError", "DataError"})
"""Names of DB-API's errors that say that a row is wrong, not that the database is."""


class RowRefused(Exception):
    """A row that the database, or the function that makes it, will never take."""


class SqlSink:
    """See the module.

    Args:
        name: As of every sink.
        connect: Opens a connection; called in the sink's own thread, again after each failure. Not in autocommit mode.
        statement: Inserts one output.
        row: An output's value -> the statement's parameters.
        setup: Statements run on each new connection: ``CREATE TABLE IF NOT EXISTS ...``.
        paramstyle: Of the driver: ``qmark``, ``format`` or ``pyformat``.
        prefix: Of the names of our own tables.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Connection],
        statement: str,
        *,
        row: Callable[[Any], Sequence[Any]],
        setup: Sequence[str] = (),
        paramstyle: str = "qmark",
        prefix: str = "cleancut",
    ) -> None:
        self.name = sink_name(name)
        self._connect = connect
        self._statement = statement
        self._row = row
        self._setup = tuple(setup)
        self._tables = Tables(prefix, paramstyle=paramstyle)
        self._thread = OwnThread(f"sink {name}")
        self._connection: Connection | None = None

    async def open(self, writer: FencingToken) -> None:
        """See `Sink`."""
        await self._thread.run(lambda: self._transact(lambda cursor: self._tables.admit(cursor, self.name, writer)))

    async def deliver(self, writer: FencingToken, outputs: Sequence[SinkOutput]) -> list[Receipt]:
        """See `Sink`. An output whose row is wrong is refused alone."""
        return await self._thread.run(lambda: self._deliver(writer, outputs))

    async def raise_fence(self, incarnation: int) -> None:
        """See `Sink`."""
        await self._thread.run(
            lambda: self._transact(lambda cursor: self._tables.raise_fence(cursor, self.name, incarnation))
        )

    async def outputs_after(self, epoch: int) -> list[tuple[str, str, int]]:
        """Token, agent and newest epoch before it, of every output that is no part of this epoch."""
        return await self._thread.run(
            lambda: self._transact(lambda cursor: self._tables.outputs_after(cursor, self.name, epoch))
        )

    async def close(self) -> None:
        """See `Sink`."""
        await self._thread.run(self._drop)
        self._thread.close()

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _deliver(self, writer: FencingToken, outputs: Sequence[SinkOutput]) -> list[Receipt]:
        try:
            return self._take(writer, outputs)
        except RowRefused:
            pass
        # One of them is wrong: one transaction each finds out which.
        receipts: list[Receipt] = []
        for output in outputs:
            try:
                receipts += self._take(writer, [output])
            except RowRefused as error:
                receipts.append(Receipt(Outcome.REFUSED, str(error)))
        return receipts

    def _take(self, writer: FencingToken, outputs: Sequence[SinkOutput]) -> list[Receipt]:
        return self._transact(lambda cursor: self._tables.take(cursor, self.name, writer, outputs, self._write))

    def _write(self, cursor: Cursor, outputs: list[SinkOutput]) -> None:
        try:
            rows = [tuple(self._row(output.value)) for output in outputs]
        except Exception as error:
            raise RowRefused(f"no row can be made of it: {type(error).__name__}: {error}") from error
        try:
            cursor.executemany(self._statement, rows)
        except Exception as error:
            if any(base.__name__ in _ROWS_FAULT for base in type(error).__mro__):
                raise RowRefused(f"{type(error).__name__}: {error}") from error
            raise

    def _transact(self, work: Callable[[Cursor], _T]) -> _T:
        """One transaction.

        Raises:
            FencedError: From `work`.
            RowRefused: From `work`.
            SinkError: Anything else; the connection is made anew next time.
        """
        try:
            connection = self._connected()
            cursor = connection.cursor()
            result = work(cursor)
            fp("sink.before_commit")
            connection.commit()
            fp("sink.after_commit")
        except (FencedError, RowRefused):
            self._roll_back()
            raise
        except Exception as error:
            self._drop()
            raise SinkError(self.name, f"{type(error).__name__}: {error}") from error
        return result

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = self._connect()
            try:
                cursor = connection.cursor()
                for statement in self._setup:
                    cursor.execute(statement)
                self._tables.create(cursor)
                connection.commit()
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _roll_back(self) -> None:
        try:
            assert self._connection is not None, "a transaction without a connection"
            self._connection.rollback()
        except Exception:  # noqa: BLE001 - a driver's error: the connection is of no use any more
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()
