"""Tokens and fences in two tables of a database, through DB-API 2.0: what `SqlSink` and `FileSink` stand on.

A batch is one transaction: `protocol.fencing` locks and compares, then tokens go in with the rows that they stand for.

Everything here blocks; sinks call it in a thread.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

from participant.outbox import DELIVERED, DUPLICATE, Outcome, Receipt
from protocol.fencing import DEFAULT_PREFIX, FenceTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from participant.sinks.base import SinkOutput
    from protocol.fencing import Cursor
    from protocol.outputs import FencingToken

_LOOKED_UP_AT_ONCE: Final = 100


class Tables(FenceTable):
    """The two tables; arguments and errors as of `FenceTable`."""

    def __init__(self, prefix: str = DEFAULT_PREFIX, *, paramstyle: str = "qmark") -> None:
        super().__init__(prefix, paramstyle=paramstyle)
        self.outputs = f"{prefix}_outputs"

    def create(self, cursor: Cursor) -> None:
        """Make the tables where they are not there yet."""
        super().create(cursor)
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self.outputs} (token VARCHAR(64) PRIMARY KEY, sink VARCHAR(64) NOT NULL, "
            f"agent VARCHAR(160) NOT NULL, digest VARCHAR(64) NOT NULL, after_epoch BIGINT NOT NULL, "
            f"incarnation BIGINT NOT NULL)"
        )

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
            marks = ", ".join([self.mark] * 6)
            rows = [(each.token, sink, each.agent, each.digest.hex(), each.after, writer.incarnation) for each in new]
            columns = "token, sink, agent, digest, after_epoch, incarnation"
            cursor.executemany(f"INSERT INTO {self.outputs} ({columns}) VALUES ({marks})", rows)  # noqa: S608 - checked prefix
        return receipts

    def outputs_after(self, cursor: Cursor, sink: str, epoch: int) -> list[tuple[str, str, int]]:
        """Token, agent and newest epoch before it, of every output that is no part of this epoch."""
        cursor.execute(
            f"SELECT token, agent, after_epoch FROM {self.outputs} "  # noqa: S608 - checked prefix
            f"WHERE sink = {self.mark} AND after_epoch >= {self.mark} ORDER BY after_epoch, token",
            (sink, epoch),
        )
        return [(str(token), str(agent), int(after)) for token, agent, after in cursor.fetchall()]

    def _known(self, cursor: Cursor, tokens: list[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for start in range(0, len(tokens), _LOOKED_UP_AT_ONCE):
            some = tokens[start : start + _LOOKED_UP_AT_ONCE]
            marks = ", ".join([self.mark] * len(some))
            cursor.execute(f"SELECT token, digest FROM {self.outputs} WHERE token IN ({marks})", tuple(some))  # noqa: S608 - checked prefix
            found.update((str(token), str(digest)) for token, digest in cursor.fetchall())
        return found
