"""Outputs as lines of a file that only grows: each once, in order, across crashes; and nothing of a zombie's.

Beside ``out.jsonl`` lies ``out.jsonl.cleancut``, a SQLite database with the tokens, the fence, and the file's *end*: how much
of it counts. A batch is one transaction of that database: lock, compare the fence, write lines behind the end, make them
durable, then tokens and the new end, commit.

    * Dies before the commit: what lies behind the end is a torn tail. The next writer cuts it off; the batch comes again.
    * Dies after it: the batch comes again, and its tokens are there.
    * Two processes never write at once: the lock is held over the whole of it. A process that is stopped (SIGSTOP) in these
      milliseconds keeps the lock; then fence and successor wait, and say for what.
    * A file that is shorter than its end has lost outputs: an error, nothing is written.

Readers of the file that must not see a torn tail read up to `end_of`.

It blocks; everything runs in the sink's own thread.
"""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from participant.sinks.base import SinkError, sink_name
from participant.sinks.tables import Tables
from participant.sinks.threads import OwnThread
from protocol.errors import FencedError
from protocol.failpoints import fp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from participant.outbox import Receipt
    from participant.sinks.base import SinkOutput
    from protocol.fencing import Cursor
    from protocol.outputs import FencingToken

_T = TypeVar("_T")

INDEX_SUFFIX: Final = ".cleancut"
LOCK_SECONDS: Final = 5.0
"""Another process's transaction takes milliseconds; one that takes longer hangs or is stopped."""


def json_line(output: SinkOutput) -> bytes:
    """The payload as one line of JSON."""
    return msgspec.json.encode(output.value) + b"\n"


class FileSink:
    """See the module.

    Args:
        name: As of every sink.
        path: The file; its folder exists.
        encode: Output -> the bytes to append; default: a line of JSON.
        adopt: Take over a file that has content and no index. Without it that is an error: its index may have been lost, and
            with it the knowledge of what is in the file.
    """

    def __init__(
        self,
        name: str,
        path: str | Path,
        *,
        encode: Callable[[SinkOutput], bytes] = json_line,
        adopt: bool = False,
    ) -> None:
        self.name = sink_name(name)
        self.path = os.fspath(path)
        self._encode = encode
        self._adopt = adopt
        self._tables = Tables("cleancut")
        self._thread = OwnThread(f"sink {name}")
        self._index: sqlite3.Connection | None = None
        self._file = -1

    async def open(self, writer: FencingToken) -> None:
        """See `Sink`. Cuts a torn tail off."""
        await self._thread.run(lambda: self._transact(lambda cursor: self._admit(cursor, writer)))

    async def deliver(self, writer: FencingToken, outputs: Sequence[SinkOutput]) -> list[Receipt]:
        """See `Sink`."""

        def take(cursor: Cursor) -> list[Receipt]:
            return self._tables.take(cursor, self.name, writer, outputs, self._append)

        return await self._thread.run(lambda: self._transact(take))

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

    def _admit(self, cursor: Cursor, writer: FencingToken) -> None:
        self._tables.admit(cursor, self.name, writer)
        self._cut_torn_tail(cursor)

    def _append(self, cursor: Cursor, outputs: list[SinkOutput]) -> None:
        end = self._cut_torn_tail(cursor)
        data = memoryview(b"".join(map(self._encode, outputs)))
        offset = end
        while data:
            written = os.pwrite(self._file, data, offset)
            data, offset = data[written:], offset + written
            fp("sink.file_written")
        os.fsync(self._file)
        fp("sink.file_synced")
        cursor.execute("UPDATE cleancut_file SET end_at = ? WHERE sink = ?", (offset, self.name))

    def _cut_torn_tail(self, cursor: Cursor) -> int:
        """The end, with nothing behind it; within a transaction that has the lock.

        Raises:
            SinkError: The file is shorter than its end.
        """
        cursor.execute("SELECT end_at FROM cleancut_file WHERE sink = ?", (self.name,))
        row = cursor.fetchone()
        size = os.fstat(self._file).st_size
        if row is None:
            if size and not self._adopt:
                raise SinkError(
                    self.name,
                    f"{self.path} has {size} bytes and no index says what they are; move it away, or adopt it",
                )
            cursor.execute("INSERT INTO cleancut_file (sink, end_at) VALUES (?, ?)", (self.name, size))
            return size
        end = int(row[0])
        if size < end:
            raise SinkError(self.name, f"{self.path} has {size} bytes and had {end}: outputs were lost from it")
        if size > end:
            os.ftruncate(self._file, end)
        return end

    def _transact(self, work: Callable[[Cursor], _T]) -> _T:
        try:
            index = self._opened()
            result = work(index.cursor())
            fp("sink.file_indexed")
            index.commit()
            fp("sink.file_committed")
        except FencedError:
            self._drop()
            raise
        except SinkError:
            self._drop()
            raise
        except sqlite3.OperationalError as error:
            self._drop()
            if "locked" in str(error):
                reason = f"another process has held the lock of {self.path} for {LOCK_SECONDS:.0f} s; is one stopped?"
                raise SinkError(self.name, reason) from error
            raise SinkError(self.name, f"{self.path}{INDEX_SUFFIX}: {error}") from error
        except (OSError, sqlite3.Error) as error:
            # After a failed fsync nobody knows what is on the disk: file and index are opened anew, the tail is cut.
            self._drop()
            raise SinkError(self.name, f"{self.path}: {error}") from error
        except Exception as error:
            # The user's `encode`.
            self._drop()
            raise SinkError(self.name, f"{type(error).__name__}: {error}") from error
        return result

    def _opened(self) -> sqlite3.Connection:
        if self._index is not None:
            return self._index
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o644)
            self._index = index = sqlite3.connect(
                self.path + INDEX_SUFFIX, timeout=LOCK_SECONDS, check_same_thread=False
            )
            index.execute("PRAGMA journal_mode = WAL").fetchone()
            index.execute("PRAGMA synchronous = FULL")
            self._tables.create(index.cursor())
            index.execute(
                "CREATE TABLE IF NOT EXISTS cleancut_file (sink VARCHAR(64) PRIMARY KEY, end_at BIGINT NOT NULL)"
            )
            index.commit()
            _sync_folder(os.path.dirname(self.path) or ".")
        except BaseException:
            self._drop()
            raise
        return index

    def _drop(self) -> None:
        index, self._index = self._index, None
        if index is not None:
            index.close()
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def end_of(path: str | Path, name: str) -> int:
    """How many bytes of a sink's file count: everything up to there was acknowledged, nothing of it goes away again.

    Args:
        path: The file.
        name: The sink's name.
    """
    index = sqlite3.connect(f"file:{os.fspath(path)}{INDEX_SUFFIX}?mode=ro", uri=True, timeout=LOCK_SECONDS)
    try:
        row = index.execute("SELECT end_at FROM cleancut_file WHERE sink = ?", (name,)).fetchone()
        return 0 if row is None else int(row[0])
    finally:
        index.close()


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
