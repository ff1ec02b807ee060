"""The log on disk: one append-only file of checksummed batches.

Theory of operation:
    Everything that must be durable before the process says anything, new entries, cut-off entries, term and vote, goes
    into the next *batch*. `sync` writes that batch and calls fdatasync once; the transport sends nothing before
    (`transport.flush`), so one fdatasync serves everything that happened in a tick (group commit).

    A batch says "from index `keep` on, the log is these entries" and repeats term, vote and commit index. Truncating
    the log is therefore also an append; nothing that was synced is ever overwritten in place. Compaction writes a new
    file with one batch beside the old one and renames it.

What a damaged file means (`_load`):
    * Batches are written one after the other, each only once its predecessor is synced. So a bad batch with a valid
      batch header behind it was good once: **corruption**, refuse.
    * The last batch is **torn** (a crash in the middle of `sync`; nothing in it was acknowledged) if the file is too
      short for it or one of its disk sectors was never written and still reads as zeros. It is cut off.
    * A last batch that is complete and wrong is corruption as well: entries in it may have been acknowledged.
    Our batches hold no sector of zeros: entries are pickled ASCII.

    After a failed write or fdatasync nothing is known about the file any more: Linux marks the failed pages clean, and a
    second fdatasync "succeeds" (Rebello et al., ATC 2020). The journal is then *poisoned*: every later call raises,
    nothing more is acknowledged, the process ends and recovers from the file (I18).

Differences from the library's `FileJournal`: that one has no checksum and never calls fsync; it empties the file before
it rewrites it; unreadable term and vote count as "never voted".
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, overload

from coordinator.runtime.raft.pinned import Journal
from protocol.errors import StoreError
from protocol.failpoints import fp
from protocol.limits import RAFT_JOURNAL_REWRITE_BYTES_MIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.runtime.raft.files import Files

Entry: TypeAlias = tuple[bytes, int, int]
"""(command, index, term), as the library keeps it."""

JOURNAL_NAME: Final = "journal"
_FILE_MAGIC: Final = b"CLCTJRN1"
_FILE_HEADER: Final = struct.Struct(">8sII")  # magic, identity's length, its CRC
_BATCH_MAGIC: Final = b"CJB1"
_BATCH: Final = struct.Struct(">4sIQQQQIIIBB")
# magic, CRC of the rest of the header, file offset, keep, commit, term, entry count, body length, body CRC,
# length of the vote, 1 while rejoining
_CHECKED_FROM: Final = 8
_RECORD: Final = struct.Struct(">IQ")  # command length, term
_END_MARK: Final = b"\n"
"""Ends each batch, so that its last piece of a sector is never all zeros."""
_SECTOR: Final = 512


class CorruptJournal(StoreError):
    """The journal is damaged; this coordinator must not start: it could forget entries that it acknowledged."""

    def __init__(self, where: str, offset: int, reason: str) -> None:
        self.offset = offset
        super().__init__(
            "open",
            where,
            f"damaged at byte {offset}: {reason}. This coordinator may have acknowledged what it can no longer read, so "
            "it does not start. Check the disk; put the whole folder back as it was (never an older copy: that forgets "
            "votes and acknowledged entries), or empty it and start with --rejoin while the others are up. The other coordinators go on without this one as long as they are a quorum",
        )


class JournalPoisoned(StoreError):
    """Writing failed once; nothing may be acknowledged any more by this process."""


class _Batch(NamedTuple):
    keep: int
    commit: int
    term: int
    vote: str | None
    rejoining: bool
    entries: list[tuple[bytes, int]]
    end: int


class _HardState(NamedTuple):
    """What every batch repeats."""

    commit: int
    term: int
    vote: str | None
    rejoining: bool


def _record_bytes(command: bytes) -> int:
    return _RECORD.size + len(command)


def _encode_batch(offset: int, keep: int, state: _HardState, entries: Iterable[Entry]) -> bytes:
    vote_bytes = (state.vote or "").encode()
    parts = [vote_bytes]
    count = 0
    for command, _, entry_term in entries:
        parts.append(_RECORD.pack(len(command), entry_term))
        parts.append(command)
        count += 1
    parts.append(_END_MARK)
    body = b"".join(parts)
    header = _BATCH.pack(
        _BATCH_MAGIC,
        0,
        offset,
        keep,
        state.commit,
        state.term,
        count,
        len(body),
        zlib.crc32(body),
        len(vote_bytes),
        state.rejoining,
    )
    crc = zlib.crc32(header[_CHECKED_FROM:])
    return header[:4] + crc.to_bytes(4, "big") + header[_CHECKED_FROM:] + body


def _batch_header_at(data: bytes, offset: int) -> tuple[int, ...] | None:
    """The fields of a valid batch header, None if there is none at `offset`."""
    if offset + _BATCH.size > len(data):
        return None
    magic, crc, *fields = _BATCH.unpack_from(data, offset)
    if magic != _BATCH_MAGIC or fields[0] != offset:
        return None
    return tuple(fields) if zlib.crc32(data[offset + _CHECKED_FROM : offset + _BATCH.size]) == crc else None


def _batch_at(data: bytes, offset: int) -> _Batch | None:
    fields = _batch_header_at(data, offset)
    if fields is None:
        return None
    _, keep, commit, term, count, length, body_crc, vote_length, rejoining = fields
    start = offset + _BATCH.size
    body = data[start : start + length]
    if len(body) != length or zlib.crc32(body) != body_crc:
        return None
    vote = body[:vote_length].decode() or None
    entries = []
    position = vote_length
    for _ in range(count):
        size, entry_term = _RECORD.unpack_from(body, position)
        position += _RECORD.size
        entries.append((body[position : position + size], entry_term))
        position += size
    assert body[position:] == _END_MARK, "a batch with a valid checksum was written by us"
    return _Batch(keep, commit, term, vote, bool(rejoining), entries, start + length)


def _looks_torn(data: bytes, offset: int) -> bool:
    """Whether the bytes from `offset` to the end can be a batch whose writing was interrupted."""
    fields = _batch_header_at(data, offset)
    end = offset + _BATCH.size if fields is None else offset + _BATCH.size + fields[5]
    if end > len(data):
        return True
    start = offset
    while start < len(data):
        stop = min(len(data), start - start % _SECTOR + _SECTOR)
        if not data[start:stop].strip(b"\0"):
            return True
        start = stop
    return False


class DurableJournal(Journal):  # type: ignore[misc] # the library is untyped
    """The library's journal, on a file that survives power loss and says so when it did not.

    Opening reads the file, cuts a torn tail off, and leaves the object in agreement with the disk.

    Args:
        files: The coordinator's folder.
        identity: Whose journal this is; written into a new file, compared with an old one.
        where: The file's full path, for messages.

    Raises:
        CorruptJournal: Damage that is not a torn tail.
        StoreError: The folder belongs to another coordinator, or the system's error.
    """

    def __init__(self, files: Files, identity: dict[str, object], where: str = JOURNAL_NAME) -> None:
        self._files = files
        self._where = where
        self._head = _encode_head(identity)
        self._entries: list[Entry] = []
        self._term, self._commit = 0, 1
        self._vote: str | None = None
        self._rejoining = False
        self._unsynced_from: int | None = None
        self._hard_state_dirty = False
        self._rewrite_due = False
        self._poisoned = False
        self.synced_count = 0
        self.torn_bytes = 0
        data = files.read(JOURNAL_NAME)
        self.is_new = data is None
        if data is None:
            self._end = 0
            self._rewrite_due = True
        else:
            self._end = self._load(data, identity)

    # What the library calls.

    def add(self, command: bytes, index: int, term: int) -> None:
        """Put an entry at the end of the log; durable after `sync`."""
        assert not self._entries or index == self._entries[-1][1] + 1, "the log has no gaps"
        self._entries.append((bytes(command), index, term))
        if self._unsynced_from is None:
            self._unsynced_from = index

    def clear(self) -> None:
        """Empty the log; the file keeps its content until `sync` replaces it as a whole."""
        self._entries = []
        self._rewrite_due = True

    def deleteEntriesFrom(self, position: int) -> None:  # noqa: N802 - the library's name
        """Cut the log at a position (not index): a leader's log differs from there on."""
        if position >= len(self._entries):
            return
        index = self._entries[position][1]
        del self._entries[position:]
        self._unsynced_from = index if self._unsynced_from is None else min(index, self._unsynced_from)

    def deleteEntriesTo(self, position: int) -> None:  # noqa: N802 - the library's name
        """Drop entries before a position: they are in the snapshot, which is durable already."""
        self.start_with(self._entries[position:])

    @overload
    def __getitem__(self, position: int) -> Entry: ...
    @overload
    def __getitem__(self, position: slice) -> list[Entry]: ...
    def __getitem__(self, position: int | slice) -> Entry | list[Entry]:
        return self._entries[position]

    def __len__(self) -> int:
        return len(self._entries)

    def _destroy(self) -> None:
        """The library's last call. Does not sync: what was not said to anybody may be forgotten."""
        self._files.close()

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802 - the library's name
        """Remember the commit index; it rides on the next batch, being old is harmless."""
        self._commit = index

    def getRaftCommitIndex(self) -> int:  # noqa: N802 - the library's name
        """The commit index; never beyond the log's end."""
        return self._commit

    def setCurrentTerm(self, term: int, vote: str | None) -> None:  # noqa: N802 - the library's name
        """Remember term and vote; durable after `sync`, so before any message that tells of them."""
        self._term, self._vote = term, vote
        self._hard_state_dirty = True

    def getCurrentTerm(self) -> int:  # noqa: N802 - the library's name
        """The term."""
        return self._term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802 - the library's name
        """Whom this coordinator voted for in its term."""
        return self._vote

    # What our own code calls.

    def start_with(self, entries: list[Entry]) -> None:
        """Make the log exactly `entries`; the file is replaced at the next `sync`."""
        self._entries = list(entries)
        self._rewrite_due = True

    @property
    def rejoining(self) -> bool:
        """Whether this coordinator lost its folder and has not caught up since (`Guards`, rule 7). Durable."""
        return self._rejoining

    @rejoining.setter
    def rejoining(self, value: bool) -> None:
        self._rejoining = value
        self._hard_state_dirty = True

    def _hard_state(self, last: int) -> _HardState:
        return _HardState(min(self._commit, last), self._term, self._vote, self._rejoining)

    @property
    def dirty(self) -> bool:
        """Whether `sync` has something to do."""
        return self._rewrite_due or self._hard_state_dirty or self._unsynced_from is not None

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._end

    def sync(self) -> bool:
        """Make the log, term and vote durable; returns whether there was anything to do.

        Raises:
            JournalPoisoned: The system reported an error now or earlier. Nothing may leave this process any more.
        """
        if self._poisoned:
            raise JournalPoisoned("put", self._where, "an earlier write failed; the coordinator must end")
        if not self.dirty:
            return False
        try:
            if self._rewrite_due or self._mostly_garbage():
                self._rewrite()
            else:
                self._append()
        except OSError as error:
            self._poisoned = True
            raise JournalPoisoned(
                "put",
                self._where,
                f"{error.strerror}; nothing was acknowledged since, the coordinator must end",
                errno_name=_errno_name(error),
                definite=False,
            ) from error
        self._rewrite_due = self._hard_state_dirty = False
        self._unsynced_from = None
        self.synced_count += 1
        return True

    def _append(self) -> None:
        last = self._entries[-1][1] if self._entries else 0
        keep = last + 1 if self._unsynced_from is None else self._unsynced_from
        fresh = self._entries[keep - self._entries[0][1] :] if self._entries else []
        batch = _encode_batch(self._end, keep, self._hard_state(max(last, 1)), fresh)
        self._files.append(JOURNAL_NAME, batch)
        fp("journal.before_vote_sync" if self._hard_state_dirty else "journal.before_sync")
        self._files.sync(JOURNAL_NAME)
        fp("journal.after_sync")
        self._end += len(batch)

    def _rewrite(self) -> None:
        first, last = (self._entries[0][1], self._entries[-1][1]) if self._entries else (1, 1)
        batch = _encode_batch(len(self._head), first, self._hard_state(last), self._entries)
        fp("journal.before_rewrite")
        self._files.replace(JOURNAL_NAME, self._head + batch)
        fp("journal.after_rewrite")
        self._end = len(self._head) + len(batch)

    def _mostly_garbage(self) -> bool:
        """Whether terms without entries and cut-off entries have filled the file; each rewrite halves it at least."""
        if self._end < RAFT_JOURNAL_REWRITE_BYTES_MIN:
            return False
        return self._end > 4 * sum(_record_bytes(command) for command, _, _ in self._entries)

    def _load(self, data: bytes, identity: dict[str, object]) -> int:
        offset = self._check_head(data, identity)
        batches = 0
        while offset < len(data) and (batch := _batch_at(data, offset)) is not None:
            self._replay(batch, offset)
            offset = batch.end
            batches += 1
        if not batches:
            # The file is made by one rename of header and first batch together, so it cannot be without.
            raise CorruptJournal(self._where, offset, "the first batch is unreadable")
        if offset < len(data):
            self._check_torn(data, offset)
            self.torn_bytes = len(data) - offset
            self._files.truncate(JOURNAL_NAME, offset)
        self._commit = min(self._commit, self._entries[-1][1] if self._entries else 1)
        return offset

    def _check_head(self, data: bytes, identity: dict[str, object]) -> int:
        if len(data) < _FILE_HEADER.size:
            raise CorruptJournal(self._where, 0, "too short to be a journal")
        magic, length, crc = _FILE_HEADER.unpack_from(data)
        if magic != _FILE_MAGIC:
            raise CorruptJournal(self._where, 0, "not a journal of this program, or of another format version")
        end: int = _FILE_HEADER.size + length
        text = data[_FILE_HEADER.size : end]
        if len(text) != length or zlib.crc32(text) != crc:
            raise CorruptJournal(self._where, 0, "its header is unreadable")
        owner = json.loads(text)
        if owner != identity:
            raise StoreError(
                "open",
                self._where,
                f"this folder belongs to {_describe(owner)}, the configuration says {_describe(identity)}; a group's "
                "coordinators are fixed when it is created",
            )
        return end

    def _replay(self, batch: _Batch, offset: int) -> None:
        if self._entries:
            first, last = self._entries[0][1], self._entries[-1][1]
            if not first <= batch.keep <= last + 1:
                raise CorruptJournal(self._where, offset, f"entry {batch.keep} does not follow entry {last}")
            del self._entries[batch.keep - first :]
        self._entries.extend((command, batch.keep + k, term) for k, (command, term) in enumerate(batch.entries))
        self._term, self._vote, self._commit = batch.term, batch.vote, batch.commit
        self._rejoining = batch.rejoining

    def _check_torn(self, data: bytes, offset: int) -> None:
        later = data.find(_BATCH_MAGIC, offset + 1)
        while later != -1:
            if _batch_header_at(data, later) is not None:
                raise CorruptJournal(self._where, offset, f"unreadable, but a valid batch follows at byte {later}")
            later = data.find(_BATCH_MAGIC, later + 1)
        if not _looks_torn(data, offset):
            raise CorruptJournal(self._where, offset, "the last batch was written completely and does not verify")


def _encode_head(identity: dict[str, object]) -> bytes:
    text = json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()
    return _FILE_HEADER.pack(_FILE_MAGIC, len(text), zlib.crc32(text)) + text


def _describe(identity: dict[str, object]) -> str:
    members = identity.get("members")
    among = ", ".join(map(str, members)) if isinstance(members, list) else "?"
    return f"coordinator {identity.get('coordinator')} (of {among}) in cluster {identity.get('cluster')}"


def _errno_name(error: OSError) -> str | None:
    import errno

    return None if error.errno is None else errno.errorcode.get(error.errno)
