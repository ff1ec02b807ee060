"""The compacted beginning of the log: one checked file, made, read, shipped and installed here.

Layout: magic, CRC, length, then canonical JSON: whose it is, the last two entries that it covers (the library compares
them with the journal) and the state machine's own text.

Rules:
    * A snapshot is verified before anything is built on it: at the start before pysyncobj exists (it would swallow the
      error and run on with an empty state), before it is shipped (rot must not spread), and after it has arrived.
    * Installing never loses acknowledged entries. The library clears the whole log; the Raft paper (section 7, rule 6)
      keeps entries behind a snapshot that agrees with the log, and so do we (`take_kept_entries`). A snapshot of what
      is applied already is ignored.
    * The file is durable, name included, before the journal lets go of what it covers (`Files.replace`).
"""

from __future__ import annotations

import base64
import json
import logging
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pysyncobj.config import SERIALIZER_STATE

from coordinator.runtime.raft import pinned
from protocol.errors import StoreError
from protocol.limits import RAFT_SNAPSHOT_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.runtime.raft.files import Files
    from coordinator.runtime.raft.journal import DurableJournal, Entry

logger = logging.getLogger(__name__)

SNAPSHOT_NAME: Final = "snapshot"
PIECE_BYTES: Final = 256 << 10
_HEADER: Final = struct.Struct(">8sIQ")
_MAGIC: Final = b"CLCTSNP1"


class CorruptSnapshot(StoreError):
    """The snapshot does not verify, or does not fit the journal beside it; the coordinator must not start."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            "open",
            where,
            f"{reason}. The journal before it is gone, so this coordinator does not start: it would run on with an empty "
            "state. Check the disk; put the whole folder back as it was (never an older copy: that forgets votes and "
            "acknowledged entries), or empty it and start with --rejoin while the others are up. The other coordinators go on without this one as long as they are a quorum",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A verified snapshot."""

    state: str
    """What the state machine's `snapshot` returned; ASCII or not."""
    last: Entry
    """The last entry that it covers."""
    previous: Entry
    """The entry before."""


def encode_snapshot(snapshot: Snapshot, identity: dict[str, object]) -> bytes:
    """The file's bytes; equal for equal input."""

    def packed(entry: Entry) -> list[object]:
        return [base64.b64encode(entry[0]).decode("ascii"), entry[1], entry[2]]

    group = {"cluster": identity["cluster"], "members": identity["members"]}
    document = {
        "group": group,
        "last": packed(snapshot.last),
        "previous": packed(snapshot.previous),
        "state": snapshot.state,
        "version": 1,
    }
    body = msgspec.json.encode(document, order="sorted")  # many times faster than `json` on megabytes of text
    return _HEADER.pack(_MAGIC, zlib.crc32(body), len(body)) + body


def decode_snapshot(data: bytes, identity: dict[str, object], where: str) -> Snapshot:
    """Verify and read.

    Raises:
        CorruptSnapshot: Any byte is not as it was written.
        StoreError: It belongs to another group.
    """
    if len(data) < _HEADER.size:
        raise CorruptSnapshot(where, f"it is cut short ({len(data)} bytes)")
    magic, crc, length = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if magic != _MAGIC:
        raise CorruptSnapshot(where, "it is not a snapshot of this program, or of another format version")
    if len(body) != length or zlib.crc32(body) != crc:
        raise CorruptSnapshot(where, "its checksum does not fit")
    document = json.loads(body)
    if document["version"] != 1:
        raise CorruptSnapshot(where, f"its version {document['version']} is unknown")
    group = {"cluster": identity["cluster"], "members": identity["members"]}
    if document["group"] != group:
        raise StoreError("open", where, f"it belongs to {document['group']}, the configuration says {group}")

    def unpacked(entry: list[Any]) -> Entry:
        return base64.b64decode(entry[0]), entry[1], entry[2]

    return Snapshot(state=document["state"], last=unpacked(document["last"]), previous=unpacked(document["previous"]))


def read_snapshot(files: Files, identity: dict[str, object], where: str = SNAPSHOT_NAME) -> Snapshot | None:
    """The folder's snapshot, verified; None if there is none."""
    data = files.read(SNAPSHOT_NAME)
    return None if data is None else decode_snapshot(data, identity, where)


def align(journal: DurableJournal, snapshot: Snapshot | None, where: str = SNAPSHOT_NAME) -> None:
    """Make the journal begin with exactly the snapshot's two entries, before the library looks at it.

    A crash between "snapshot is there" and "journal is trimmed" leaves a journal that begins earlier; the library would
    throw it away as a whole, acknowledged entries after the snapshot included.

    Raises:
        CorruptSnapshot: Journal and snapshot do not meet: one of them is older than the other allows.
    """
    first = journal[0][1] if len(journal) else 1
    if snapshot is None:
        if first > 1:
            raise CorruptSnapshot(where, f"it is missing, and the journal begins at entry {first}")
    else:
        if journal.is_new:
            raise CorruptSnapshot(where, "it is there but the journal beside it is missing")
        index = snapshot.last[1]
        if first > index:
            raise CorruptSnapshot(where, f"it ends with entry {index}, the journal begins only at entry {first}")
        position = index - first
        agrees = position < len(journal) and journal[position] == snapshot.last
        following = journal[position + 1 :] if agrees else []
        wanted = [snapshot.previous, snapshot.last, *following]
        if journal[:] != wanted:
            journal.start_with(wanted)
        journal.setRaftCommitIndex(max(index, journal.getRaftCommitIndex()))
    journal.sync()


class SnapshotStore:
    """What the library calls its serializer; the library calls it from the tick and from received messages.

    Args:
        files: The coordinator's folder.
        identity: As in the journal.
        take: Gives the state machine's text; called between two commands.
        restore: Replaces the state machine's state.
        now: Seconds, monotonic; only to space out retries of a failing disk.
    """

    RETRY_SECONDS: Final = 5.0
    """A snapshot that could not be written (full disk) is tried again after this long; the journal grows meanwhile."""

    def __init__(
        self,
        files: Files,
        identity: dict[str, object],
        *,
        take: Callable[[], str],
        restore: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        self._files = files
        self._identity = identity
        self._take = take
        self._restore = restore
        self._now = now
        self._finished: tuple[int, int] | None = None
        self._retry_at = 0.0
        self._shipping: dict[str, tuple[bytes, int]] = {}
        self._arriving: bytearray | None = None
        self._kept: list[Entry] = []
        self.raft: Any = None
        """The library's object; set once it exists."""
        self.failure: BaseException | None = None
        """Why a snapshot could not be loaded. The library swallows the exception; the driver must not."""
        self.last_index = 0
        """Entry that the newest snapshot of this process ends with."""

    def check(self) -> None:
        """Raise what the library swallowed."""
        if self.failure is not None:
            raise self.failure

    # Making one.

    def checkSerializing(self) -> tuple[int, int | None]:  # noqa: N802 - the library's name
        """What became of the last `serialize`."""
        finished, self._finished = self._finished, None
        if finished is None:
            return SERIALIZER_STATE.NOT_SERIALIZING, None
        self._shipping.clear()
        return finished

    def serialize(self, data: tuple[object, Entry, Entry, object], index: int) -> None:
        """Write a snapshot of everything applied; `index` names the entry that the journal may begin with then."""
        if self._finished is not None or self._now() < self._retry_at:
            return
        _, last, previous, _ = data
        encoded = encode_snapshot(Snapshot(state=self._take(), last=last, previous=previous), self._identity)
        try:
            self._files.replace(SNAPSHOT_NAME, encoded)
        except OSError as error:
            # The old snapshot and the whole journal are still there: nothing is lost, compaction waits.
            logger.warning("no snapshot was written, trying again in %s s: %s", self.RETRY_SECONDS, error)
            self._retry_at = self._now() + self.RETRY_SECONDS
            return
        self.last_index = last[1]
        self._finished = (SERIALIZER_STATE.SUCCESS, index)

    # Reading one.

    def deserialize(self) -> tuple[None, Entry, Entry, tuple[()]]:
        """Load the folder's snapshot into the state machine."""
        try:
            snapshot = read_snapshot(self._files, self._identity)
            assert snapshot is not None, "the library asks only when there is one"
            self._restore(snapshot.state)
        except BaseException as error:
            self.failure = error
            raise
        self.last_index = snapshot.last[1]
        return None, snapshot.last, snapshot.previous, ()

    # Shipping it to a follower.

    def getTransmissionData(self, node: Any) -> tuple[bytes, bool, bool]:  # noqa: ANN401, N802 - the library's
        """The next piece for a follower: (bytes, is first, is last).

        Never None, which the library takes for "later" and asks again at once, for a heartbeat's length, sending a
        message each time. So in the one tick in which the snapshot is newer than the journal's beginning it is shipped
        all the same: the follower then rejects the entries before its end and gets the right ones.
        """
        data, sent = self._shipping.get(node.id, (b"", 0))
        if not sent:
            data = self._files.read(SNAPSHOT_NAME) or b""
            try:
                decode_snapshot(data, self._identity, SNAPSHOT_NAME)
            except StoreError as error:
                self.failure = error
                raise
        piece = data[sent : sent + PIECE_BYTES]
        is_last = sent + len(piece) >= len(data)
        if is_last:
            self._shipping.pop(node.id, None)
        else:
            self._shipping[node.id] = (data, sent + len(piece))
        return piece, sent == 0, is_last

    def cancelTransmisstion(self, node: Any) -> None:  # noqa: ANN401, N802 - the library's name
        """A follower is gone; it starts over when it comes back."""
        self._shipping.pop(node.id, None)

    # Receiving it from the leader.

    def setTransmissionData(self, piece: tuple[bytes, bool, bool] | None) -> bool:  # noqa: N802 - the library's name
        """Take a piece; True if the library is to load the folder's snapshot now and empty the log for it."""
        if piece is None:
            return False
        data, is_first, is_last = piece
        if is_first:
            self._arriving = bytearray()
        if self._arriving is None:
            return False
        self._arriving += data
        if len(self._arriving) > RAFT_SNAPSHOT_BYTES_MAX:
            logger.error("the leader's snapshot is larger than %d bytes: dropped", RAFT_SNAPSHOT_BYTES_MAX)
            self._arriving = None
        if not is_last or self._arriving is None:
            return False
        arrived, self._arriving = bytes(self._arriving), None
        try:
            snapshot = decode_snapshot(arrived, self._identity, "the leader's snapshot")
        except StoreError:
            logger.exception("the leader's snapshot was dropped")
            return False
        if snapshot.last[1] <= self.raft.raftLastApplied:
            return False
        log = pinned.log_of(self.raft)
        index = snapshot.last[1]
        if pinned.entry_at(self.raft, index) == snapshot.last:
            self._kept = log[index - log[0][1] + 1 :]
        try:
            self._files.replace(SNAPSHOT_NAME, arrived)
        except OSError as error:
            self.failure = error
            raise
        return True

    def take_kept_entries(self) -> list[Entry]:
        """Entries behind a just installed snapshot that agreed with the log; they go back into it."""
        kept, self._kept = self._kept, []
        return kept
