"""Reads a participant's local folder for people: its effect ledger and its turns, whether it runs or not. Writes nothing.

A log that is being written while it is read ends where its last whole batch does. One whose oldest segments go meanwhile is
read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from participant.effects.entries import Kind, State
from participant.effects.ledger import EffectLedger, decode_changes
from participant.effects.shown import cursor, shown_effect, shown_question, standing
from participant.logs.recovery import LogIdentity, LogMap
from participant.logs.segment import CorruptLog, decode_segment_header, ordinal_of, read_batches
from participant.runtime.effects_local import LOG_NAME as EFFECTS
from participant.runtime.log_files import OWNER_NAME, store_error
from participant.runtime.turn_logger import LOG_NAME as TURNS
from participant.turnlog.history import agent_history
from participant.turnlog.records import EndedRecord, TurnRecord, decode_records
from protocol.consulting import Page, cursor_of, page_of
from protocol.errors import ObjectCorrupt, StoreError
from protocol.limits import LOG_HEADER_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from participant.logs.segment import Batch, SegmentHeader

TRIES: Final = 5
"""A log that changes under us this often is not read."""

T = TypeVar("T")


class FilesToRead:
    """A log's folder as it is; nothing in it is ever made or changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.where = str(folder)

    def names(self) -> list[str]:
        """What is there; nothing if the folder is not."""
        return sorted(each.name for each in self._folder.iterdir()) if self._folder.is_dir() else []

    def read_head(self, name: str, size: int) -> bytes:
        """The first bytes of a file."""
        with (self._folder / name).open("rb") as file:
            return file.read(size)

    def read(self, name: str) -> bytes:
        """A whole file."""
        return (self._folder / name).read_bytes()


def participants_in(folder: Path) -> list[Path]:
    """The participants' folders under a folder for local files; the folder itself if it is one's.

    Raises:
        StoreError: It is not there, or not a folder.
    """
    try:
        if _is_participant(folder):
            return [folder]
        return sorted(each for each in folder.iterdir() if each.is_dir() and _is_participant(each))
    except OSError as error:
        raise store_error("open", str(folder), error) from error


def effects_page(
    folder: Path, *, in_doubt: bool = False, agent: str = "", before: str = "", limit: int = 100
) -> dict[str, Any]:
    """Steps in the effect logs under a folder, newest first. Of a process that runs, a step under way is among those in doubt.

    Raises:
        ObjectCorrupt: A log is damaged.
        StoreError: It cannot be read, or there is none.
    """
    rows: list[tuple[Any, dict[str, Any]]] = []
    oldest = cursor_of(before)
    participants = _with_log(folder, EFFECTS)
    for each in participants:
        for entry in read_effects(each).entries.values():
            if entry.kind is not Kind.STEP or (agent and entry.agent != agent):
                continue
            stands = standing(entry, entry.participant, (), {})
            if (in_doubt and not stands) or (oldest is not None and cursor(entry) >= oldest):
                continue
            rows.append((cursor(entry), shown_effect(entry, stands)))
    rows.sort(key=lambda row: row[0], reverse=True)
    page = page_of((row for _, row in rows), limit)
    return {"effects": page.rows, "more": page.more, "participants": [each.name for each in participants]}


def questions_page(folder: Path, *, agent: str = "", before: str = "", limit: int = 100) -> dict[str, Any]:
    """Questions in the effect logs under a folder that had no answer, newest first.

    Raises:
        ObjectCorrupt: A log is damaged.
        StoreError: It cannot be read, or there is none.
    """
    oldest = cursor_of(before)
    participants = _with_log(folder, EFFECTS)
    entries = [
        entry
        for each in participants
        for entry in read_effects(each).entries.values()
        if entry.kind is Kind.QUESTION and entry.state is State.CLAIMED and entry.closed_after < 0
        if (not agent or entry.agent == agent) and (oldest is None or cursor(entry) < oldest)
    ]
    entries.sort(key=cursor, reverse=True)
    page = page_of((shown_question(entry, waits=False, expires_in=None) for entry in entries), limit)
    return {"questions": page.rows, "more": page.more, "participants": [each.name for each in participants]}


def read_effects(participant: Path) -> EffectLedger:
    """The effect ledger in a participant's folder.

    Raises:
        ObjectCorrupt: It is damaged.
        StoreError: It cannot be read.
    """

    def read(files: FilesToRead) -> EffectLedger:
        ledger = EffectLedger()
        for batch in _batches(files):
            try:
                for change in decode_changes(batch.body):
                    ledger.apply(change)
            except (ValueError, KeyError) as error:
                raise ObjectCorrupt("get", files.where, f"records from {batch.first} on: {error!r}") from None
        return ledger

    return _read(participant / EFFECTS, read)


def history_page(participant: Path, agent: str, *, before: int = 0, limit: int = 50) -> Page:
    """The newest turns of an agent in a participant's turn log, oldest of them first.

    Args:
        participant: Its folder.
        agent: Its id.
        before: Number of a record: only older ones; 0: up to the newest.
        limit: At most so many.

    Raises:
        ObjectCorrupt: The log is damaged.
        StoreError: It cannot be read.
    """

    def read(files: FilesToRead) -> Page:
        page = page_of(_newest_first(files, agent, before), limit)
        page.rows.reverse()
        return page

    return _read(participant / TURNS, read)


def history_document(folder: Path, agent: str, *, before: int = 0, limit: int = 50) -> dict[str, Any] | None:
    """The same from all participants' folders under a folder, as the API gives it; None: none has a turn of the agent.

    Raises:
        ObjectCorrupt: A log is damaged.
        StoreError: It cannot be read, or there is none.
    """
    for each in _with_log(folder, TURNS):
        page = history_page(each, agent, before=before, limit=limit)
        if page.rows:
            return {"agent": agent, "participant": each.name, "turns": page.rows, "more": page.more}
    return None


def logged_agents(folder: Path) -> list[dict[str, Any]]:
    """Agents with turns in the logs under a folder.

    Raises:
        ObjectCorrupt: A log is damaged.
        StoreError: It cannot be read, or there is none.
    """
    found = []
    for each in _with_log(folder, TURNS):
        for agent, (turns, at) in sorted(_read(each / TURNS, _agents).items()):
            found.append({"agent": agent, "participant": each.name, "turns": turns, "last_turn_at_ms": at // 1_000_000})
    return found


def has_turn_log(participant: Path) -> bool:
    """Whether a participant's folder has one."""
    return (participant / TURNS).is_dir()


def _agents(files: FilesToRead) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for batch in _batches(files):
        try:
            records = decode_records(batch.body)
        except ValueError as error:
            raise ObjectCorrupt("get", files.where, f"records from {batch.first} on: {error}") from None
        for record in records:
            if isinstance(record, TurnRecord | EndedRecord):
                turns, at = found.get(record.agent, (0, 0))
                found[record.agent] = (turns + isinstance(record, TurnRecord), max(at, record.at))
    return found


def _newest_first(files: FilesToRead, agent: str, before: int) -> Iterator[dict[str, Any]]:
    """Segment by segment from the newest back: whoever wants ten turns does not read the whole log."""
    found = _map(files)
    following: SegmentHeader | None = None
    for segment in reversed(found.segments):
        size = None if following is None else following.size
        following = segment.header
        if before and segment.header.first >= before:
            continue
        batches, _ = read_batches(files.read(segment.name), segment.start, f"{files.where}/{segment.name}", size=size)
        rows = [row for row in agent_history(batches, agent) if not before or row["number"] < before]
        yield from reversed(rows)


def _batches(files: FilesToRead) -> Iterable[Batch]:
    found = _map(files)
    first = found.segments[0].header.first if found.segments else 1
    # What a committed epoch covered may be gone.
    return found.batches(files.read, after=first - 1) if found.segments else ()


def _map(files: FilesToRead) -> LogMap:
    names = files.names()
    newest = max((name for name in names if ordinal_of(name) is not None), default="")
    if not newest:
        return LogMap((), files.read_head, LogIdentity("", "", ""), files.where)
    header, _ = decode_segment_header(files.read_head(newest, LOG_HEADER_BYTES_MAX + 64), f"{files.where}/{newest}")
    return LogMap(names, files.read_head, LogIdentity(header.kind, header.cluster, header.participant), files.where)


def _read(folder: Path, read: Callable[[FilesToRead], T]) -> T:
    """Read a log that may be in use."""
    attempt = 1
    while True:
        try:
            return read(FilesToRead(folder))
        except CorruptLog as error:
            if attempt == TRIES:
                raise ObjectCorrupt("get", error.key, error.reason) from None
        except FileNotFoundError as error:
            # A segment that an epoch covered went between a look at the folder and the reading.
            if attempt == TRIES:
                raise store_error("get", str(folder), error) from error
        except OSError as error:
            raise store_error("get", str(folder), error) from error
        attempt += 1


def _with_log(folder: Path, log: str) -> list[Path]:
    found = [each for each in participants_in(folder) if (each / log).is_dir()]
    if not found:
        raise StoreError("open", str(folder), f"no participant's {log} log is here", errno_name="ENOENT")
    return found


def _is_participant(folder: Path) -> bool:
    return (folder / OWNER_NAME).is_file() or (folder / EFFECTS).is_dir() or (folder / TURNS).is_dir()
