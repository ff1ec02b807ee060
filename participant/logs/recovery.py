"""Which segments of a log count, and what they hold together: a function of the files alone.

Rules:
    * The newest segment that is a base is where the log begins; segments before it are leftovers of a deletion that was
      interrupted.
    * From there on ordinals follow each other, and each segment begins with the chain, at the number and the size at which
      the one before it ends. Anything else is a hole.
    * (incarnation, session) never goes down from one segment to the next: an older life has no business behind a newer one.
    * Segments that a committed epoch covered may be gone. The caller says which record it needs first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from participant.logs.segment import (
    Batch,
    CorruptLog,
    End,
    SegmentHeader,
    decode_segment_header,
    ordinal_of,
    read_batches,
)
from protocol.errors import StoreError
from protocol.limits import LOG_HEADER_BYTES_MAX, LOG_SEGMENTS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_HEAD_BYTES = LOG_HEADER_BYTES_MAX + 64


class LogIdentity(NamedTuple):
    """Whose log it is; another's is refused."""

    kind: str
    cluster: str
    participant: str


class Segment(NamedTuple):
    """One segment that counts."""

    name: str
    header: SegmentHeader
    start: End
    """Where its batches begin."""


class LogMap:
    """The segments of a log, looked at once.

    Args:
        names: Files of the log's folder, in any order; others than segments are passed over.
        read_head: The first bytes of a file, at least as many as are there up to the given number.
        identity: Whose log this must be.
        where: The folder, for messages.

    Raises:
        CorruptLog: A segment's header cannot be read, or segments do not follow each other.
        StoreError: Another participant's log, or far too many segments.
    """

    def __init__(
        self, names: Iterable[str], read_head: Callable[[str, int], bytes], identity: LogIdentity, where: str
    ) -> None:
        self._where = where
        found = sorted(name for name in names if ordinal_of(name) is not None)
        if len(found) > LOG_SEGMENTS_MAX:
            raise StoreError("open", where, f"{len(found)} segments; at most {LOG_SEGMENTS_MAX} are read")
        segments: list[Segment] = []
        leftovers: list[str] = []
        # From the newest backwards to the base: what lies before it may be as broken as it likes.
        for name in reversed(found):
            if segments and segments[-1].header.base:
                leftovers.append(name)
                continue
            path = f"{where}/{name}"
            header, start = decode_segment_header(read_head(name, _HEAD_BYTES), path)
            _check_identity(header, identity, path)
            if header.ordinal != ordinal_of(name):
                raise CorruptLog(path, 0, f"it says that it is segment {header.ordinal}")
            segments.append(Segment(name, header, start))
        segments.reverse()
        self.segments: tuple[Segment, ...] = tuple(segments)
        self.leftovers: tuple[str, ...] = tuple(reversed(leftovers))
        """Files that do not count any more, oldest first."""
        self._check_order()
        self.torn_bytes = 0
        """Cut off at the end; known once `batches` is through."""
        self.end: End | None = None
        """Of the newest segment; None: there is none, or `batches` is not through."""

    @property
    def first(self) -> int:
        """Number of the first record that is there, or would be."""
        return self.segments[0].header.first if self.segments else 1

    @property
    def newest(self) -> SegmentHeader | None:
        """Header of the newest segment."""
        return self.segments[-1].header if self.segments else None

    def batches(self, read: Callable[[str], bytes], *, after: int = 0) -> Iterator[Batch]:
        """All batches that hold a record with a number beyond `after`; one segment is in memory at a time.

        Args:
            read: A whole file.
            after: Number of the last record that is not needed. The batch that holds its successor may begin before it.

        Raises:
            CorruptLog: Damage that is no torn tail; or the record after `after` is not there any more.
        """
        if self.segments and self.first > after + 1 and not (self.segments[0].header.base and after == 0):
            raise CorruptLog(
                f"{self._where}/{self.segments[0].name}", 0, f"begins with record {self.first}; {after + 1} is needed"
            )
        end: End | None = None
        for index, segment in enumerate(self.segments):
            following = self.segments[index + 1].header if index + 1 < len(self.segments) else None
            if following is not None and following.first <= after + 1:
                continue
            path = f"{self._where}/{segment.name}"
            data = read(segment.name)
            size = None if following is None else following.size
            batches, end = read_batches(data, segment.start, path, size=size)
            if following is None:
                self.torn_bytes = len(data) - end.size
            elif (end.chain, end.next) != (following.chain, following.first):
                raise CorruptLog(path, end.size, "the segment after it was begun behind other records")
            for batch in batches:
                if batch.first + batch.records_count > after + 1:
                    yield batch
        self.end = end
        if end is not None and end.next <= after:
            raise CorruptLog(
                f"{self._where}/{self.segments[-1].name}",
                end.size,
                f"the log ends with record {end.next - 1}; an epoch was taken after record {after}",
            )
        if end is None and after:
            raise CorruptLog(self._where, 0, f"the log is empty; an epoch was taken after record {after}")

    def _check_order(self) -> None:
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            old, new = before.header, after.header
            path = f"{self._where}/{after.name}"
            if new.ordinal != old.ordinal + 1:
                raise CorruptLog(
                    path, 0, f"segment {new.ordinal} follows segment {old.ordinal}; what was between is gone"
                )
            if (new.incarnation, new.session) < (old.incarnation, old.session):
                raise CorruptLog(path, 0, "an older life's segment follows a newer one's")


def _check_identity(header: SegmentHeader, identity: LogIdentity, path: str) -> None:
    found = LogIdentity(header.kind, header.cluster, header.participant)
    if found != identity:
        raise StoreError(
            "open",
            path,
            f"this is the log of {found.kind} of participant {found.participant} in cluster {found.cluster}; "
            f"{identity.kind} of {identity.participant} in {identity.cluster} were looked for. Each participant has a "
            "local folder of its own",
        )
