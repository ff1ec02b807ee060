"""A log on the participant's own disk: records in, one fsync for all that wait, and the way back.

::

    log = DurableLog(files, identity)
    for batch in log.recover(after=position): ...        # blocking; before anything is appended
    log.begin(life)
    number = log.append(record)                          # on the loop, at once
    job = log.take()                                     # on the loop: everything that waits, as one batch
    log.write(job)                                       # blocking: in a thread, one at a time

`participant.runtime.group_commit` does the last two by itself.

Rules:
    * A record is acknowledged after its batch's fsync has succeeded and the folder was found to be still ours; never before,
      and never after any write or fsync has failed: the kernel may have marked the lost pages clean, and the next fsync
      "succeeds" (Rebello et al. 2020; I18). The log is *poisoned* then: everything later is refused, the process ends, and
      its successor recovers from the file.
    * Whoever recovers syncs what it has read before it believes it: it may only have been in the page cache.
    * Each life begins a segment of its own, made whole with its first batch. Its header says where the segment before ends, so
      a torn tail is cut off without touching the file.
    * What a committed epoch covers is deleted in whole segments, the oldest first: a crash in between leaves no hole.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import time_ns
from typing import TYPE_CHECKING, Final, NamedTuple

from participant.logs.recovery import LogIdentity, LogMap
from participant.logs.segment import (
    Batch,
    End,
    SegmentHeader,
    encode_batch,
    encode_segment_header,
    segment_name,
)
from participant.runtime.log_files import Life, store_error
from protocol.errors import FencedError, LimitExceeded, StoreError
from protocol.failpoints import fp
from protocol.limits import LOG_BATCH_TARGET_BYTES, LOG_RECORD_BYTES_MAX, LOG_SEGMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from participant.runtime.log_files import LogFiles, Owner

_FIRST: Final = 1


class LogPoisoned(StoreError):
    """Writing failed once; nothing is acknowledged any more by this process."""


class Job(NamedTuple):
    """One write: the records of one batch."""

    records: list[bytes]
    last: int
    """Number of the last of them."""
    base: bool
    """The log begins anew with them."""


@dataclass(slots=True)
class _Kept:
    """A segment on disk."""

    ordinal: int
    first: int
    """Number of its first record."""
    size: int
    """Bytes that count."""


class DurableLog:
    """Not thread safe: `append` and `take` on the loop, `write` and `truncate` one at a time anywhere.

    Args:
        files: The log's folder.
        identity: Whose log it is.
        owner: Asked after each fsync; None: nobody else can have the folder.
        segment_bytes: A segment that is this large is the last one's predecessor.
        now: Wall clock, nanoseconds: for people.
    """

    def __init__(
        self,
        files: LogFiles,
        identity: LogIdentity,
        *,
        owner: Owner | None = None,
        segment_bytes: int = LOG_SEGMENT_BYTES,
        now: Callable[[], int] = time_ns,
    ) -> None:
        self._files = files
        self.where = files.where
        """The log's folder, for messages."""
        self._identity = identity
        self._owner = owner
        self._segment_bytes = segment_bytes
        self._now = now
        self._life: Life | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._bounds: deque[int] = deque()
        """Numbers of the last records of what is to be written as one; ascending."""
        self._next = _FIRST
        """Number of the next record that is appended."""
        self._base_due = True
        """The next segment is the log's beginning: it is new, or was reset."""
        self._segments: list[_Kept] = []
        """Each segment that is there and counts."""
        self._leftovers: list[str] = []
        self._ordinal = 0
        self._end = End(0, _FIRST, b"")
        """Where the newest segment ends; on the side of `write`."""
        self._open = False
        """This life's segment is there."""
        self._failure: StoreError | FencedError | None = None
        self.torn_bytes = 0
        self.durable = 0
        """Number of the last record that is durable."""
        self.syncs = 0
        self.bytes_written = 0

    # --- the way back -------------------------------------------------------------------------------------------------

    def recover(self, *, after: int = 0, only_read: bool = False) -> Iterator[Batch]:
        """Read what is there; to be used up before anything else.

        Args:
            after: Number of the last record that is not needed: an epoch holds its effect.
            only_read: Somebody else goes on writing. Else what is there counts from now on, and is made durable: an earlier life
                may have died between write and sync, and what is believed here may be told to others before anything is written.

        Yields:
            Batches in order; the first may begin before `after` + 1.

        Raises:
            CorruptLog: Damage that is no torn tail, or the records after `after` are gone.
            StoreError: Somebody else's log, or the system's error.
        """
        try:
            found = LogMap(self._files.names(), self._files.read_head, self._identity, self._files.where)
            yield from found.batches(self._files.read, after=after)
            if found.newest is not None and not only_read:
                self._files.sync(segment_name(found.newest.ordinal))
        except OSError as error:
            raise store_error("get", self._files.where, error) from error
        self._leftovers = list(found.leftovers)
        headers = [segment.header for segment in found.segments]
        sizes = [header.size for header in headers[1:]] + ([found.end.size] if found.end is not None else [])
        self._segments = [
            _Kept(header.ordinal, header.first, size) for header, size in zip(headers, sizes, strict=True)
        ]
        self.torn_bytes = found.torn_bytes
        if found.end is not None:
            assert found.newest is not None, "a log with an end has a segment"
            self._ordinal = found.newest.ordinal
            self._end = found.end
            self._next = found.end.next
            self._base_due = False
        self.durable = self._next - 1

    @property
    def next(self) -> int:
        """Number that the next appended record gets."""
        return self._next

    @property
    def newest_ordinal(self) -> int:
        """Of the newest segment; 0: there is none."""
        return self._ordinal

    def begin(self, life: Life) -> None:
        """Write from now on as this life; its segment is made with its first record."""
        assert not self._waiting, "another life's records are not written as this one's"
        self._life = life
        self._open = False

    # --- on the loop --------------------------------------------------------------------------------------------------

    def append(self, record: bytes) -> int:
        """Have a record written with the next batch.

        Args:
            record: One encoded msgpack value.

        Returns:
            Its number.

        Raises:
            LogPoisoned: Writing failed before.
            FencedError: The folder is somebody else's now.
            LimitExceeded: Far too long.
        """
        if self._failure is not None:
            raise self._failure
        if len(record) > LOG_RECORD_BYTES_MAX:
            raise LimitExceeded(f"a record of {len(record)} bytes for {self.where}; at most {LOG_RECORD_BYTES_MAX}")
        number = self._next
        self._next = number + 1
        self._waiting.append(record)
        self._waiting_bytes += len(record)
        return number

    def bind(self) -> None:
        """What was appended since the last call is to be written as one batch: a torn tail takes all of it or nothing."""
        if self._waiting and (not self._bounds or self._bounds[-1] < self._next - 1):
            self._bounds.append(self._next - 1)

    def start_anew(self, records: list[bytes], *, first: int | None = None) -> int:
        """Have the log begin anew, with these records: what it holds until now does not count any more once they are durable.

        For a compaction, and for the log of an incarnation that begins at an epoch. Nothing may wait.

        Args:
            records: At least one.
            first: Number of the first of them; default: goes on.

        Returns:
            The number of the last.

        Raises:
            LogPoisoned: Writing failed before.
            FencedError: The folder is somebody else's now.
            LimitExceeded: They are far too much for one batch; nothing has changed.
        """
        if self._failure is not None:
            raise self._failure
        assert not self._waiting, "what waits would be lost"
        assert records, "a beginning is something"
        if sum(map(len, records)) > LOG_RECORD_BYTES_MAX:
            raise LimitExceeded(f"{self.where} would begin anew with more than {LOG_RECORD_BYTES_MAX} bytes")
        if first is not None:
            self._next = first
        self._base_due = True
        for record in records:
            self.append(record)
        return self._next - 1

    @property
    def waiting(self) -> int:
        """Records that no write has taken yet."""
        return len(self._waiting)

    def take(self) -> Job | None:
        """What waits, for one write; None if nothing does. The rest, beyond `LOG_BATCH_TARGET_BYTES`, stays."""
        records = self._waiting
        if not records:
            return None
        first = self._next - len(records)
        if self._waiting_bytes > LOG_BATCH_TARGET_BYTES and not self._base_due:
            size = count = 0
            while count < len(records) and (not count or size + len(records[count]) <= LOG_BATCH_TARGET_BYTES):
                size += len(records[count])
                count += 1
            bounds = self._bounds
            while bounds and bounds[0] < first + count - 1:
                bounds.popleft()
            if bounds and first <= bounds[0] < first + len(records):
                count = bounds.popleft() - first + 1
                size = sum(len(record) for record in records[:count])
            self._waiting = records[count:]
            self._waiting_bytes -= size
            records = records[:count]
        else:
            self._waiting = []
            self._waiting_bytes = 0
            self._bounds.clear()
        base, self._base_due = self._base_due, False
        return Job(records, first + len(records) - 1, base)

    # --- blocking -----------------------------------------------------------------------------------------------------

    def write(self, job: Job) -> None:
        """Make a batch durable. Jobs are written in the order in which they were taken.

        Raises:
            LogPoisoned: It failed; nothing of it is acknowledged, ever.
            FencedError: The folder is somebody else's now; nothing of it is acknowledged either.
        """
        if self._failure is not None:
            raise self._failure
        try:
            self._write(job)
            if self._owner is not None:
                self._owner.check()
        except FencedError as error:
            self._failure = error
            raise
        except FileExistsError as error:
            self._failure = self._overtaken()
            raise self._failure from error
        except (OSError, StoreError) as error:
            self._failure = self._poisoned(error)
            raise self._failure from error
        self.durable = job.last

    def truncate(self, before: int) -> int:
        """Delete segments that hold only records with numbers below `before`; returns how many.

        The newest segment stays. A failure harms nothing: they are deleted the next time.

        Raises:
            StoreError: The system's error.
            FencedError: The folder is somebody else's now.
        """
        if self._failure is not None:
            raise self._failure
        if self._owner is not None:
            # Before: what is deleted may be all that a successor has.
            self._owner.check()
        names = list(self._leftovers)
        kept = self._segments
        while len(kept) > 1 and kept[1].first <= before:
            names.append(segment_name(kept[0].ordinal))
            kept = kept[1:]
        if not names:
            return 0
        fp("log.before_truncate")
        try:
            self._files.remove(names)
        except OSError as error:
            raise store_error("delete", self._files.where, error) from error
        self._leftovers = []
        self._segments = kept
        return len(names)

    def close(self) -> None:
        """Let go of the files. What waits is forgotten: it was not acknowledged."""
        self._waiting = []
        self._waiting_bytes = 0
        self._files.close()

    @property
    def size(self) -> int:
        """Bytes of all segments that count."""
        return sum(kept.size for kept in self._segments)

    @property
    def failure(self) -> StoreError | FencedError | None:
        """Why nothing can be appended any more."""
        return self._failure

    def _write(self, job: Job) -> None:
        begins = not self._open or job.base or self._end.size >= self._segment_bytes
        head = b""
        start = self._end
        if begins:
            head, start = encode_segment_header(self._header(job))
        batch, end = encode_batch(start, job.records, self._now())
        fp("log.before_append")
        if begins:
            # Header and first batch in one: a segment is never without records, nor a base without what it stands for.
            ordinal = self._ordinal + 1
            fp("log.before_rotate")
            self._files.create(segment_name(ordinal), head + batch)
            fp("log.after_rotate")
            self._ordinal = ordinal
            self._open = True
            if job.base:
                self._leftovers += [segment_name(old.ordinal) for old in self._segments]
                self._segments = []
            self._segments.append(_Kept(ordinal, start.next, end.size))
        else:
            name = segment_name(self._ordinal)
            self._files.append(name, batch)
            fp("log.before_sync")
            self._files.sync(name)
            fp("log.after_sync")
            self._segments[-1].size = end.size
        self._end = end
        self.syncs += 1
        self.bytes_written += len(head) + len(batch)

    def _header(self, job: Job) -> SegmentHeader:
        assert self._life is not None, "begin comes first"
        return SegmentHeader(
            kind=self._identity.kind,
            cluster=self._identity.cluster,
            participant=self._identity.participant,
            incarnation=self._life.incarnation,
            session=self._life.session,
            ordinal=self._ordinal + 1,
            first=job.last - len(job.records) + 1,
            base=job.base,
            chain=b"" if job.base else self._end.chain,
            size=0 if job.base else self._end.size,
        )

    def _overtaken(self) -> StoreError | FencedError:
        """Why a segment that we were to begin is there: it is our successor's, or our predecessor's last deed."""
        where = f"{self._files.where}/{segment_name(self._ordinal + 1)}"
        if self._owner is None:
            return FencedError(f"{where}: somebody else has begun it; this life of the participant is over")
        try:
            self._owner.check()
        except (FencedError, StoreError) as error:
            return error
        return LogPoisoned(
            "put",
            where,
            "an earlier life wrote it in this very moment, before it was stopped; start again",
            definite=False,
        )

    def _poisoned(self, error: OSError | StoreError) -> LogPoisoned:
        path = f"{self._files.where}/{segment_name(self._ordinal)}"
        if isinstance(error, OSError):
            found = store_error("put", path, error)
            reason, name = found.reason, found.errno_name
        else:
            reason, name = error.reason, error.errno_name
        return LogPoisoned(
            "put",
            path,
            f"{reason}; what was written last may be lost, nothing is acknowledged any more, the participant must end",
            errno_name=name,
            definite=False,
        )
